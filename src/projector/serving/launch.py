"""What starts a deployment in an inference engine, or in Dynamo, and what it leaves unsaid.

``hardware/settings/launch.yaml`` has the options of each engine's release. Options are read again
before they are returned: they say the same split and limits, or what they cannot say is refused.
"""

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

from projector.config.resources import settings_of
from projector.errors import ConfigError
from projector.serving.deployment import CACHE_TYPES, DEGREES, MTP, Deployment
from projector.serving.load import Traffic

ENGINES = ("vllm", "sglang", "trtllm")
"""Engines whose command lines are known."""

DYNAMO = "dynamo"
"""Runs one of the engines, that of the deployment, in Kubernetes."""

TARGETS = (*ENGINES, DYNAMO)

BACKENDS = {"vllm": "vllm", "vllm_async": "vllm", "sglang": "sglang", "tensorrt_llm": "trtllm"}
"""Engine of a deployment -> what Dynamo runs."""

MODEL = "$MODEL"
"""Shell variable with the checkpoint; its weights decide the types of linear layers."""


class Launch(NamedTuple):
    """What starts one replica, or all of them in Kubernetes."""

    role: str
    """``serve``, ``prefill`` and ``decode`` where these lie apart, or ``dynamo``."""
    files: Mapping[str, str]
    """By name, the command first."""
    unsaid: tuple[str, ...]
    """Fields that the engine has no option for."""


def launches(
    target: str, deployment: Deployment, traffic: Traffic, replicas: tuple[int, int] = (1, 1)
) -> list[Launch]:
    """Return what starts each kind of replica of a deployment in one of `TARGETS`.

    ``replicas``, those that prefill apart and the others, are what a manifest says.
    """
    sides = [("serve", deployment, traffic, replicas[1])]
    if deployment.disaggregated is not None:
        prompts = traffic.model_copy(update={"batch": deployment.prefill_prompts})
        prefill = ("prefill", deployment.prefill_side, prompts, replicas[0])
        sides = [prefill, ("decode", *sides[0][1:])]
    if target == DYNAMO:
        return [_graph(deployment, sides)]
    table = settings_of("launch")[target]
    found = []
    for role, side, load, _ in sides:
        told, unsaid = _told(table, role, side, load)
        if side.gpus > side.cluster.gpus_per_node:
            unsaid.append(
                "cluster.nodes: how the engine's processes on several hosts find each other"
            )
        found.append(Launch(role, _written(table, told, role), tuple(unsaid)))
    return found


def _graph(deployment: Deployment, sides: list[tuple[str, Deployment, Traffic, int]]) -> Launch:
    """Return the manifest of a frontend and its workers."""
    if deployment.engine not in BACKENDS:
        msg = f"engine ({deployment.engine}) is none that Dynamo runs; name it, as engine=vllm"
        raise ConfigError(msg, key="engine", value=deployment.engine, allowed=list(BACKENDS))
    backend = BACKENDS[deployment.engine]
    graph = settings_of("launch")[DYNAMO]
    table, missing = graph[backend], dict[str, None]()
    front = {"command": ["python3", "-m", "dynamo.frontend"]}
    components = [_component(table, "frontend", 1, front)]
    for role, side, load, count in sides:
        told, unsaid = _told(table, role, side, load)
        missing |= dict.fromkeys(unsaid)
        nodes = -(-side.gpus // side.cluster.gpus_per_node)
        mode = [] if role == "serve" else ["--disaggregation-mode", role]
        engine = _words(told)
        if "file" in table:
            engine = [table["file"], json.dumps(_nested(told))]
        worker = {
            "command": ["python3", "-m", table["module"]],
            "args": [table["model"], "$(MODEL)", *mode, *engine],
            "env": [{"name": "MODEL", "value": "CHECKPOINT"}],
            "resources": {"limits": {"nvidia.com/gpu": str(-(-side.gpus // nodes))}},
        }
        kind = "worker" if role == "serve" else role
        across = {"multinode": {"nodeCount": nodes}} if nodes > 1 else {}
        components.append(_component(table, kind, count, worker) | across)
    name = re.sub("[^a-z0-9]+", "-", deployment.model.name.lower()).strip("-")
    manifest = {
        "apiVersion": graph["api"],
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": name or "model"},
        "spec": {"backendFramework": backend, "components": components},
    }
    head = f"# {graph['title']} {graph['release']} with {table['title']} {table['release']}; "
    text = yaml.safe_dump(manifest, sort_keys=False, width=4096)
    return Launch(
        DYNAMO, {f"{DYNAMO}.yaml": f"{head}CHECKPOINT is the checkpoint.\n{text}"}, tuple(missing)
    )


def _component(
    table: Mapping[str, Any], kind: str, replicas: int, container: Mapping[str, Any]
) -> dict[str, Any]:
    main = {"name": "main", "image": table["image"], **container}
    template = {"spec": {"containers": [main]}}
    return {"name": kind, "type": kind, "replicas": replicas, "podTemplate": template}


def _told(
    table: Mapping[str, Any], role: str, deployment: Deployment, traffic: Traffic
) -> tuple[dict[str, Any], list[str]]:
    """Return option -> value, and the fields that no option says."""
    words = words_of(deployment, traffic)
    drafts = deployment.speculative if role != "prefill" else None
    parts = [table["options"], table.get("fused", {}) if deployment.exchanges else {}]
    parts += [table["mtp"] if drafts and drafts.draft == MTP else {}, table.get(role, {})]
    told: dict[str, Any] = {
        option: table["of_type"][words[word]] if word == "cache" else words.get(word, word)
        for part in parts
        for option, word in part.items()
    }
    if deployment.model.moe is None:
        told = {name: value for name, value in told.items() if "moe_" not in name}
    for name, value in words_in(table, told).items():
        if value != words[name]:
            msg = f"{name} ({words[name]}): {table['title']} would run {name} {value} of this split"
            raise ConfigError(msg, key=name, value=words[name], allowed=[value])
    unsaid = [
        f"{name}: {why}"
        for name, why in table["unsaid"].items()
        if name != "dispatcher" or deployment.exchanges
    ]
    if drafts and drafts.draft != MTP:
        unsaid.append("speculative: name the checkpoint that drafts")
    if deployment.weights or deployment.dtype not in {"bf16", "fp16"}:
        unsaid.append("dtype, weights: those of the checkpoint")
    if words["is_chunked"] and not traffic.chunk_tokens and role != "decode":
        unsaid.append("load.chunk_tokens: prompts go through in chunks, and were projected whole")
    return told, unsaid


def words_of(deployment: Deployment, traffic: Traffic) -> dict[str, Any]:
    """Return what options can say of a deployment; a batch fills all attention groups alike."""
    groups, stage = deployment.attention_dp, deployment.stage_gpus
    batch, limit = -(-(traffic.batch or 1) // groups), deployment.max_step_tokens
    if traffic.chunk_tokens:
        limit = traffic.chunk_tokens
    drafts = deployment.speculative.tokens if deployment.speculative else 0
    names = {held: name for name, held in reversed(CACHE_TYPES.items()) if name != "int8"}
    return {
        **{name: getattr(deployment, name) for name in DEGREES},
        "stage": stage,
        "expert_tp": deployment.expert_tp,
        "whole_experts": deployment.ep == stage > 1,
        "is_grouped": groups > 1,
        "is_chunked": traffic.context > limit,
        "group_batch": batch,
        "stage_batch": batch * groups,
        "step_tokens": limit,
        "stage_tokens": limit * groups,
        "length": traffic.longest,
        "gpu_memory_utilization": deployment.gpu_memory_utilization,
        "page_tokens": deployment.page_tokens,
        "cache": names[deployment.kv_cache_bytes],
        "drafts": drafts,
        "queries": drafts + 1,
    }


def _written(table: Mapping[str, Any], told: Mapping[str, Any], role: str) -> dict[str, str]:
    """Return a script, and the file that it names where the engine reads one."""
    head = f"#!/bin/sh\n# {table['title']} {table['release']}; MODEL is the checkpoint.\n"
    start = f'{head}exec {table["command"]} "{MODEL}"'
    if "file" not in table:
        words = " ".join(map(shlex.quote, _words(told))).replace(" --", " \\\n  --")
        return {f"{role}.sh": f"{start} \\\n  {words}\n"}
    file = f"{role}.yaml"
    text = yaml.safe_dump(_nested(told), sort_keys=False)
    return {f"{role}.sh": f"{start} {table['file']} {file}\n", file: text}


def _words(told: Mapping[str, Any]) -> list[str]:
    given = {name: value for name, value in told.items() if value is not False}
    return [
        word
        for name, value in given.items()
        for word in ([name] if value is True else [name, str(value)])
    ]


def _nested(told: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in told.items():
        section, _, key = name.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[key] = value
    return nested


def words_in(table: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the words of a deployment that options say, as the tool of the table takes them."""
    types = {name: held for held, name in table["of_type"].items()}
    found: dict[str, Any] = {word: said.get(option) for option, word in table["options"].items()}
    found |= {
        word: said[option]
        for option, word in table["mtp"].items()
        if word in {"drafts", "queries"} and option in said
    }
    found["cache"] = types[found["cache"]]
    # What an option says of a whole stage, or only whether there is something.
    if "is_grouped" in found:
        found["is_grouped"] = bool(found["is_grouped"])
        groups = found.setdefault("attention_dp", found["stage"])
        found["attention_dp"] = groups if found["is_grouped"] else 1
    groups = found["attention_dp"]
    stage = found.setdefault("stage", found.get("tp", 1) * groups)
    found.setdefault("tp", stage // groups)
    if "whole_experts" in found:
        found["whole_experts"] = bool(found["whole_experts"])
        found["ep"] = stage if found["whole_experts"] else 1
    return {name: value for name, value in found.items() if value is not None}
