"""Command lines that start a deployment in an inference engine, and what they leave unsaid.

``hardware/settings/launch.yaml`` has the options of each engine's release. A command line is read
again before it is returned: it says the same split and limits, or what it cannot say is refused.
"""

import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

from projector.config.resources import settings_of
from projector.envelope import flatten
from projector.errors import ConfigError
from projector.serving.deployment import CACHE_TYPES, DEGREES, MTP, Deployment
from projector.serving.load import Traffic

ENGINES = ("vllm", "sglang", "trtllm")
"""Engines whose command lines are known."""

MODEL = "$MODEL"
"""Shell variable with the checkpoint; its weights decide the types of linear layers."""


class Launch(NamedTuple):
    """What starts one replica: its files by name, the command first."""

    role: str
    """``serve``, or ``prefill`` and ``decode`` where these lie apart."""
    files: Mapping[str, str]
    unsaid: tuple[str, ...]
    """Fields that the engine has no option for."""


def launches(engine: str, deployment: Deployment, traffic: Traffic) -> list[Launch]:
    """Return what starts each kind of replica of a deployment in one of `ENGINES`."""
    if deployment.disaggregated is None:
        return [_launch(engine, "serve", deployment, traffic)]
    prompts = traffic.model_copy(update={"batch": deployment.prefill_prompts})
    return [
        _launch(engine, "prefill", deployment.prefill_side, prompts),
        _launch(engine, "decode", deployment, traffic),
    ]


def _launch(engine: str, role: str, deployment: Deployment, traffic: Traffic) -> Launch:
    table, words = settings_of("launch")[engine], words_of(deployment, traffic)
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
    text = _written(table, told, role)
    for name, value in read_launch(engine, [*text.values()][-1]).items():
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
    if deployment.gpus > deployment.cluster.gpus_per_node:
        unsaid.append("cluster.nodes: how the engine's processes on several hosts find each other")
    return Launch(role, text, tuple(unsaid))


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
        given = {name: value for name, value in told.items() if value is not False}
        words = [
            name if value is True else f"{name} {shlex.quote(str(value))}"
            for name, value in given.items()
        ]
        return {f"{role}.sh": " \\\n  ".join([start, *words]) + "\n"}
    nested: dict[str, Any] = {}
    for name, value in told.items():
        section, _, key = name.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[key] = value
    file = f"{role}.yaml"
    text = yaml.safe_dump(nested, sort_keys=False)
    return {f"{role}.sh": f"{start} {table['file']} {file}\n", file: text}


def read_launch(engine: str, text: str) -> dict[str, Any]:
    """Return the words of a deployment that a script, or the file of one, says."""
    table = settings_of("launch")[engine]
    said = _options(text) if "file" not in table else flatten(yaml.safe_load(text))
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
        found["attention_dp"] = found["stage"] if found["is_grouped"] else 1
    groups = found["attention_dp"]
    stage = found.setdefault("stage", found.get("tp", 1) * groups)
    found.setdefault("tp", stage // groups)
    if "whole_experts" in found:
        found["whole_experts"] = bool(found["whole_experts"])
        found["ep"] = stage if found["whole_experts"] else 1
    return {name: value for name, value in found.items() if value is not None}


def _options(text: str) -> dict[str, Any]:
    words = shlex.split(text.replace("\\\n", " "), comments=True)
    pairs = zip(words, [*words[1:], "--"], strict=True)
    return {
        word: True if value.startswith("--") else yaml.safe_load(value)
        for word, value in pairs
        if word.startswith("--")
    }
