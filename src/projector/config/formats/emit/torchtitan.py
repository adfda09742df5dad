"""A TOML file of torchtitan."""

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from projector.config.formats.detect import comment_lines
from projector.config.formats.emit.emitted import recompute_words, same_model
from projector.config.formats.torchtitan import COMM_TYPES, DISPATCHERS, FLAVORS, SCHEDULES
from projector.config.job import Job
from projector.config.model import ModelConfig
from projector.config.model_file import load_model
from projector.config.resources import settings_of
from projector.distribution import package_version
from projector.errors import UnsupportedError

SUFFIX: Final = ".toml"

_ROTATIONS: Final = {ours: theirs for theirs, ours in COMM_TYPES.items()}

_BACKENDS: Final = {ours: theirs for theirs, ours in DISPATCHERS.items()}

_PIPELINES: Final = {ours: spelling for spelling, ours in SCHEDULES.values()}

_SHIPPED: Final = {
    (name, flavor.lower()): flavor
    for name, flavors in settings_of("torchtitan")["shipped"].items()
    for flavor in flavors.split()
}
"""Name and flavour in small letters -> its spelling; readers know those of other releases, too."""

_PART: Final = re.compile(r"(E?)(?:t\*(\d+)|(t*))(L?)")


def own(job: Job) -> dict[str, Any]:
    """Return recomputation of its own kind; refuse an architecture that torchtitan has not."""
    _flavor(job)
    found: dict[str, Any] = {}
    recompute = recompute_words(job)
    if recompute != "none" and _recompute(job)["mode"] == "none":
        found["training.recompute"] = recompute
    return found


def write(job: Job, carried: Mapping[str, Any]) -> str:
    """Return the file of a job; see `projector.config.formats.emit.emitted.Writer`."""
    title = "".join(char for char in job.name or job.model.name if char.isprintable())
    name, flavor = _flavor(job)
    compiled = {"model": job.training.torch_compile, "loss": job.training.cross_entropy_fusion}
    narrow = {"fp8": ["quantize.linear.float8"], "mxfp8": ["quantize.linear.mx"]}
    converters = narrow.get(job.training.precision, [])
    sections: dict[str, dict[str, Any]] = {
        "job": {"description": title},
        "model": {"name": name, "flavor": flavor, "converters": converters},
        "optimizer": {
            "name": "AdamW",
            "implementation": "foreach" if job.training.optimizer.update_bytes > 0 else "fused",
        },
        "training": _training(job),
        "parallelism": {**_sharding(job), **_degrees(job), **_pipeline(job)},
        "activation_checkpoint": _recompute(job),
        "compile": {
            "enable": any(compiled.values()),
            "components": [part for part, on in compiled.items() if on],
        },
        "quantize.linear.float8": _float8(job),
    }
    template: str = settings_of("torchtitan")["head"]
    head = template.format(title=title, version=package_version(), carried=comment_lines(carried))
    return head + "\n".join(
        _section(name, section) for name, section in sections.items() if section
    )


def _section(name: str, settings: Mapping[str, Any]) -> str:
    lines = [
        f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in settings.items()
    ]
    return f"[{name}]\n{''.join(lines)}"


def _flavor(job: Job) -> tuple[str, str]:
    """Return name and flavour of an architecture, or refuse one that torchtitan does not ship."""
    known = _architectures()
    for (name, flavor), model in known.items():
        if same_model(model, _with_open(job.model, model)):
            return name, _SHIPPED[name, flavor]
    listed = [f"{name} {spelling}" for (name, _), spelling in _SHIPPED.items()]
    near = [
        f"{name} {_SHIPPED[name, flavor]} differs in {', '.join(fields)}"
        for (name, flavor), model in known.items()
        if len(fields := _differing(model, job.model)) <= _NEAR
    ]
    names = dict.fromkeys(name for name, _ in _SHIPPED)
    msg = (
        f"torchtitan has no flavour with the architecture of {job.model.name}"
        f"{f' ({near[0]})' if near else ''}; add one to torchtitan/models and give it to a file, "
        f"write megatron or primus, or take a flavour of {', '.join(names)}"
    )
    raise UnsupportedError(msg, key="model", value=job.model.name, allowed=listed)


_NEAR: Final = 3
"""So many fields may differ in a flavour that an error names."""

_LEFT_OPEN: Final = ("rotary_base", "rotary_percent", "norm_epsilon")

_TOLD_APART: Final = ("max_position_embeddings", "rope_scaling")
"""What sets how far rotations reach: torchtitan takes the sequence length of the job."""


def _with_open(model: ModelConfig, flavor: ModelConfig) -> ModelConfig:
    """Return an architecture with what it leaves open, or a file carries, as in a flavour."""
    open_fields = [name for name in _LEFT_OPEN if getattr(model, name) is None]
    fields = {name: getattr(flavor, name) for name in (*open_fields, *_TOLD_APART)}
    if model.moe is not None and flavor.moe is not None and model.moe.router_score_function is None:
        scores = ("router_score_function", "router_pre_softmax", "router_scaling_factor")
        router = {name: getattr(flavor.moe, name) for name in scores}
        fields["moe"] = model.moe.model_copy(update=router)
    return model.model_copy(update=fields)


def _differing(one: ModelConfig, other: ModelConfig) -> list[str]:
    fields = type(one).model_fields.keys() - {"name", "source", "notes"}
    return sorted(field for field in fields if getattr(one, field) != getattr(other, field))


@cache
def _architectures() -> dict[tuple[str, str], ModelConfig]:
    return {(name, flavor): load_model(FLAVORS[name][flavor]) for name, flavor in _SHIPPED}


def _float8(job: Job) -> dict[str, Any]:
    training = job.training
    if training.precision != "fp8" or training.fp8_recipe not in {"tensorwise", "rowwise"}:
        return {}
    gather = training.fp8_param_gather
    return {"recipe_name": training.fp8_recipe, "enable_fsdp_float8_all_gather": gather}


def _training(job: Job) -> dict[str, Any]:
    training, split = job.training, job.parallelism
    settings: dict[str, Any] = {
        "seq_len": training.seq_length,
        "local_batch_size": training.micro_batch_size,
        "mixed_precision_param": "float32" if training.precision == "fp32" else "bfloat16",
    }
    if split.pp > 1:
        # Its pipeline cuts the local batch into microbatches.
        settings["local_batch_size"] = max(1, training.global_batch_size // job.ranks)
    else:
        settings["global_batch_size"] = training.global_batch_size
    return settings


def _sharding(job: Job) -> dict[str, Any]:
    split, ranks = job.parallelism, job.ranks
    if split.sharding_stage == 0:
        return {"data_parallel_replicate_degree": ranks, "data_parallel_shard_degree": 1}
    copies = split.num_distributed_optimizer_instances
    if split.sharding_group_size:
        copies = max(1, ranks * split.cp // split.sharding_group_size)
    if ranks % copies:
        copies = 1
    return {
        "data_parallel_replicate_degree": copies,
        "data_parallel_shard_degree": ranks // copies,
        "fsdp_reshard_after_forward": "always" if split.fsdp_reshard_after_forward else "never",
    }


def _degrees(job: Job) -> dict[str, Any]:
    split = job.parallelism
    settings: dict[str, Any] = {"tensor_parallel_degree": split.tp}
    if job.training.torch_compile and split.tp_overlap == "async_tp":
        settings["enable_async_tensor_parallel"] = True
    settings["context_parallel_degree"] = split.cp
    if split.cp > 1 and split.cp_comm_type in _ROTATIONS:
        settings["context_parallel_rotate_method"] = _ROTATIONS[split.cp_comm_type]
    if job.model.moe is not None:
        settings["expert_parallel_degree"] = split.ep
        if split.ep > 1:
            settings["expert_tensor_parallel_degree"] = split.expert_tp
        backend = _BACKENDS.get(job.training.moe.dispatcher)
        if backend is not None:
            settings["expert_parallel_comm_backend"] = backend
    return settings


def _pipeline(job: Job) -> dict[str, Any]:
    split, training = job.parallelism, job.training
    if split.pp == 1:
        return {}
    usual = "interleaved" if split.vpp > 1 else "1f1b"
    settings: dict[str, Any] = {
        "pipeline_parallel_degree": split.pp,
        "pipeline_parallel_schedule": _PIPELINES.get(training.schedule, _PIPELINES[usual]),
        "pipeline_parallel_microbatch_size": training.micro_batch_size,
    }
    parts = _parts(split.pipeline_model_parallel_layout or "")
    if parts:
        settings["module_fqns_per_model_part"] = parts
        return settings
    ends = (split.account_for_embedding_in_pipeline_split, split.account_for_loss_in_pipeline_split)
    settings["pipeline_parallel_first_stage_less_layers"] = int(ends[0])
    settings["pipeline_parallel_last_stage_less_layers"] = int(ends[1])
    length, rest = divmod(job.model.num_layers + sum(ends), split.pp * split.vpp)
    if not rest:
        settings["pipeline_parallel_layers_per_stage"] = length
    return settings


def _parts(layout: str) -> list[list[str]]:
    """Return the modules of each stage of a plain layout, nothing for another one."""
    found, layer = [], 0
    for text in layout.split("|") if layout else []:
        match = _PART.fullmatch(text)
        if match is None:
            return []
        count = int(match[2]) if match[2] else len(match[3] or "")
        names = [f"layers.{layer + place}" for place in range(count)]
        layer += count
        start = ["tok_embeddings"] if match[1] else []
        found.append([*start, *names, *(["norm", "output"] if match[4] else [])])
    return found


def _recompute(job: Job) -> dict[str, Any]:
    kind, layers = job.training.recompute, job.model.num_layers
    settings: dict[str, Any] = {"mode": "none"}
    if kind.granularity == "full" and kind.layers:
        every = kind.layers[0] + 1
        if kind.layers == tuple(range(every - 1, layers, every)):
            settings = {"mode": "selective", "selective_ac_option": str(every)}
    elif kind.granularity == "full" and kind.layers is None and kind.method == "uniform":
        settings = {"mode": "full"}
    elif kind.granularity == "selective" and kind.modules == ("per_op",):
        settings = {"mode": "selective", "selective_ac_option": "op"}
    return {**settings, "early_stop": job.training.recompute_early_stop}
