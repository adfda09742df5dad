"""Jobs that differ from a base in one field: every field of every section, found by its type.

A field that is added to a section is varied without anyone listing it; where no value can be found
for it, `test_sharing` fails until `VALUES` names some.
"""

import types
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import numpy as np
from pydantic import BaseModel

from projector.config.adapter import AdapterConfig
from projector.config.cluster import ClusterConfig
from projector.config.job import Job
from projector.config.load import load_job, load_model
from projector.config.model import ModelConfig
from projector.config.training import RECOMPUTE_MODULES
from projector.errors import ProjectorError
from projector.lower.batch import SECTIONS, JobBatch
from projector.lower.stages import stage_layout
from projector.operations import counts
from projector.projection.evaluate import (
    Evaluation,
    check_exists,
    evaluate,
    evaluate_possible,
    find_legal,
)
from projector.projection.known import KnownPipelines
from projector.projection.provenance import documented_forms
from projector.projection.results import Coded, Results
from projector.schedule.registry import SCHEDULES

_STEP = {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 2048}
_NODES = {"device": "h100", "nodes": 4}

_TIERS = {
    "scale_up_gpus": 2,
    "forwards_in_node": False,
    "pod_nodes": 1,
    "pod_oversubscription": 6.0,
    "spine_latency_us": 2.0,
    "core_pods": 2,
    "core_oversubscription": 12.0,
    "core_latency_us": 3.0,
}
"""Pairs of devices share a fast link, and each node and each two nodes a switch."""

_SLOW_HOST = {"expert_calls": {"call_us": 1000.0}}
"""So that what the host does for a layer of experts shows."""

_RUN = {"tokens": 1e9, "warm_up": {"start_batch_size": 8, "increment": 8, "samples": 4000}}

BASES: dict[str, dict[str, Any]] = {
    "dense": {
        "model": "llama3.2_1b",
        "parallelism": {
            "tp": 2,
            "pp": 2,
            "cp": 2,
            "overlap_param_gather": False,
            "tp_comm_overlap": "async_tp",
        },
        "training": {
            **_STEP,
            "elementwise": "eager",
            "recompute": {"granularity": "selective", "modules": ["layernorm"]},
            "optimizer": {"offload_fraction": 0.5},
            "activation_offload_fraction": 0.9,
        },
        "cluster": _NODES,
        "run": _RUN,
    },
    "learned positions": {
        "model": {"extends": "gpt3_1.3b", "make_vocab_size_divisible_by": 128},
        "parallelism": {"tp": 4, "sequence_parallel": False, "zero_stage": 2},
        "training": {
            **_STEP,
            "recompute": {"granularity": "full", "num_layers": 2},
            "cross_entropy_fusion": False,
            "flash_attention": False,
        },
        "cluster": {**_NODES, "device": "mi300x", "network": {"scale_up_gpus": 24}},
    },
    "experts": {
        "model": {"extends": "gpt_oss_20b", "num_layers": 16, "tied_embeddings": True},
        "parallelism": {"tp": 2, "pp": 2, "vpp": 2, "ep": 4, "etp": 1},
        "training": {
            **_STEP,
            "recompute": {"method": "block", "num_layers": 1},
            "moe": {
                "load": "zipf",
                "capacity_factor": 8.0,
                "permute_fusion": False,
            },
        },
        "cluster": {**_NODES, "software": _SLOW_HOST},
    },
    "experts of a stated host": {
        "model": {"extends": "mixtral_8x7b", "num_layers": 8},
        "parallelism": {"ep": 4},
        "training": _STEP,
        "cluster": {**_NODES, "nodes": 1, "software": {"moe_layer_ms": 100.0}},
    },
    "latents in fp8": {
        "model": {"extends": "deepseek_v2_lite", "num_layers": 13, "mtp_num_layers": 1},
        "parallelism": {"pp": 2, "ep": 8, "zero_stage": 0, "overlap_grad_reduce": False},
        "training": {
            **_STEP,
            "precision": "fp8",
            "first_last_layers_bf16": 1,
            "moe": {"dispatcher": "deepep"},
        },
        "cluster": {**_NODES, "software": _SLOW_HOST},
    },
    "experts in two domains": {
        "model": {"extends": "deepseek_v2_lite", "num_layers": 4},
        "parallelism": {"ep": 8},
        "training": {**_STEP, "moe": {"dispatcher": "deepep"}},
        "cluster": {**_NODES, "network": {"scale_up_gpus": 4}},
    },
    "states": {
        "model": {
            "extends": "nemotron3_nano_30b_a3b",
            "num_layers": 6,
            "layer_types": ["mamba1", "mamba2_moe", "moe", "kda", "attention", "mlp"],
            "recurrent": {
                "num_heads": 64,
                "head_dim": 64,
                "num_groups": 8,
                "state_size": 128,
                "chunk_size": 128,
                "dt_rank": 64,
            },
        },
        "parallelism": {"tp": 2, "ep": 4, "etp": 1, "cp": 2},
        "training": _STEP,
        "cluster": _NODES,
    },
    "latents and text": {
        "model": {
            "extends": "flux.1_dev",
            "num_layers": 4,
            "layer_types": ["double_stream", "single_stream"],
        },
        "parallelism": {"tp": 2, "pp": 2, "cp": 2},
        "training": {**_STEP, "recompute": {"granularity": "selective", "modules": ["layernorm"]}},
        "cluster": _NODES,
    },
    "images": {
        "model": {
            "extends": "llama3.2_1b",
            "num_layers": 4,
            "vision": {
                "num_layers": 2,
                "hidden_size": 1024,
                "ffn_hidden_size": 4096,
                "num_attention_heads": 16,
                "patch_size": 588,
                "patches": 512,
                "projector_size": 2048,
            },
        },
        "parallelism": {"tp": 2, "pp": 2},
        "training": _STEP,
        "cluster": _NODES,
    },
    "latents": {
        "model": {"extends": "wan2.1_t2v_1.3b", "num_layers": 4},
        "parallelism": {"tp": 2, "cp": 2},
        "training": {**_STEP, "torch_compile": True},
        "cluster": _NODES,
    },
    "adapters": {
        "model": {"extends": "mixtral_8x7b", "num_layers": 8},
        "parallelism": {"tp": 2, "ep": 4, "etp": 1},
        "training": {
            **_STEP,
            "adapter": {"rank": 16, "dropout": 0.1},
            "moe": {"host_sync": False},
        },
        "cluster": _NODES,
    },
    "fsdp": {
        "model": "llama3.2_3b",
        "parallelism": {"fsdp": 2, "cp": 4, "cp_comm_type": "a2a"},
        "training": {**_STEP, "recompute": "full", "global_batch_size": 128},
        "cluster": {**_NODES, "software": {"launch_us": 40.0}, "network": _TIERS},
        "run": {"steps": 1000, "cost": {"owned": {"capex_usd_per_gpu": 3e4}}},
    },
    "fsdp 1": {
        "model": "llama3.2_1b",
        "run": {"samples": 1e6},
        "parallelism": {"fsdp": 1},
        "training": {
            **_STEP,
            "global_batch_size": 128,
            "precision": "fp8",
            "fp8_recipe": "rowwise",
            "framework": "megatron_lm",
        },
        "cluster": {**_NODES, "device": "mi300x"},
    },
    "planned": {
        "model": {"extends": "mixtral_8x7b", "num_layers": 8},
        "parallelism": {"pp": 4, "ep": 4},
        "training": {
            **_STEP,
            "cuda_graphs": True,
            "schedule": "seaailab",
            "zero_bubble_max_pending_backward": 5,
            "optimizer_post_validation": True,
        },
        "cluster": {**_NODES, "nodes": 2},
    },
    "planned with little memory": {
        "model": "llama3.2_1b",
        "parallelism": {"pp": 4},
        "training": {**_STEP, "schedule": "seaailab", "micro_batch_size": 4},
        "cluster": {**_NODES, "nodes": 2, "device": {"extends": "h100", "hbm_gib": 18.0}},
    },
}
"""Jobs in which every field that decides something does so in one of them."""


def _layouts(job: Job) -> Iterator[str]:
    """Yield layout strings that place one or two layers otherwise than an even split."""
    stages, layers = job.parallelism.pp * job.parallelism.vpp, job.model.num_layers
    share = layers // stages
    for moved in (1, 2):
        count = [share] * stages
        count[0] -= moved
        count[-1] += layers - sum(count)
        text = "|".join("t" * each for each in count)
        mtp = "m" * job.model.mtp_num_layers
        yield f"E{text}{mtp}L"


def _end_layers(job: Job) -> list[int]:
    split = job.parallelism
    return [job.model.num_layers // split.pp + moved * split.vpp for moved in (-1, 1, 2)]


VALUES: dict[str, Callable[[Job], Any]] = {
    "model.mla": lambda _: [load_model("deepseek_v2_lite").mla, None],
    "model.moe": lambda _: [load_model("mixtral_8x7b").moe, None],
    "model.layer_types": lambda _: [
        ("mamba2",),
        ("gdn_moe", "moe"),
        ("linear_dense", "dense"),
        ("rwkv7_dense", "conv_dense"),
        ("attention+mamba2_dense",),
        ("single_stream",),
        ("dit",),
        None,
    ],
    "model.vision": lambda _: [None],
    "model.recurrent": lambda _: [load_model("qwen3_next_80b_a3b").recurrent],
    "model.moe.layer_freq": lambda job: [2, (0,) + (1,) * job.model.num_layers],
    "parallelism.pipeline_model_parallel_layout": _layouts,
    "parallelism.decoder_first_pipeline_num_layers": _end_layers,
    "parallelism.decoder_last_pipeline_num_layers": _end_layers,
    "parallelism.rank_order": lambda _: ["tp-cp-ep-pp-dp", "pp-dp-cp-ep-tp"],
    "training.adapter": lambda _: [AdapterConfig(rank=8), None],
    "training.adapter.targets": lambda _: [("linear_qkv",), ("linear_fc1", "linear_fc2")],
    "training.framework": lambda _: [{"name": "nemo"}, {"name": "torchtitan"}],
    "training.framework.name": lambda _: ["nemo", "torchtitan"],
    "training.framework.release": lambda _: ["0.12"],
    "training.recompute.modules": lambda _: [(name,) for name in RECOMPUTE_MODULES],
    "training.recompute.layers": lambda _: [(0,), (0, 1)],
    "training.schedule": lambda _: [name for name, e in SCHEDULES.items() if not e.on_request],
    "training.attention_dropout": lambda _: [0.0],
    "training.attention_kernel": lambda job: [*job.cluster.device.attention_kernels, "unknown"],
    "cluster.device.power": lambda _: [None],
    "cluster.device.collective_algorithms": lambda _: [("ring",), ("tree", "direct")],
    "cluster.device.collective_network_algorithms": lambda _: [("hierarchical",), ("ring", "tree")],
    "cluster.device.collective_gather_ring_kib": lambda _: [0.0, 1e6],
    "cluster.device.collective_ring_gpus": lambda _: [(2, 4, 8), (3,)],
    "cluster.device.attention.dtypes": lambda _: [("bf16",), ("fp16", "bf16", "fp8")],
    "cluster.device.attention.forward_measured": lambda _: [{"a device": (64, 128)}],
    "cluster.device.attention.backward_measured": lambda _: [{"a device": (64, 128)}],
    "cluster.network.exchange_proxy_gb_per_s": lambda _: [0.001],
    "cluster.network.exchange_write_us": lambda _: [100_000.0],
    "cluster.network.nic_flag_latency_us": lambda _: [0.5, 5.0],
    "cluster.network.nic_flag_traffic": lambda _: [1.0, 20.0],
    "cluster.network.node": lambda _: ["mi250x"],
    "cluster.device.gpc_units": lambda job: [(job.cluster.device.compute_units,)],
}
"""Dotted field -> values that its type does not tell."""


_DEVICE = "cluster.device"
_LINEAR = "cluster.software."
"""Whole numbers that times or bytes are multiplied with: any two are legal, and tell as much."""


class Variant(NamedTuple):
    """A job that differs from its base in one field."""

    field: str
    """Dotted, from the job on."""
    job: Job


@lru_cache
def base_job(name: str) -> Job:
    """Return one of the bases."""
    return load_job(BASES[name])


@lru_cache
def variants(name: str, *, device: bool) -> tuple[Variant, ...]:
    """Return all jobs that differ from a base in one field, of the device or of anything else."""
    base = base_job(name)
    found = []
    if device:
        cluster = base.cluster
        for field, changed in _of_section(cluster.device, _DEVICE, base):
            other = _changed(cluster, "device", changed)
            found.append(Variant(field, base.model_copy(update={"cluster": other})))
    else:
        # A run that nobody states is not projected, whatever its other fields are.
        for section in (name for name in SECTIONS if name != "run" or base.run.is_stated):
            for field, other in _of_section(getattr(base, section), section, base):
                found.append(Variant(field, base.model_copy(update={section: other})))
    # One value of a device's field is enough: devices are compared as objects.
    return tuple({each.field: each for each in found}.values() if device else found)


def every_field(section: type[BaseModel], prefix: str) -> Iterator[str]:
    """Yield the dotted name of every field below a section that no collection hides."""
    for name, field in section.model_fields.items():
        dotted = f"{prefix}.{name}"
        nested = _config_of(field.annotation)
        if nested is None or nested is not field.annotation:
            yield dotted
        if nested is not None:
            yield from every_field(nested, dotted)


def _config_of(kind: Any) -> type[BaseModel] | None:
    """Return the configuration class of a nested section, if a field is one."""
    options = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    for option in options:
        if isinstance(option, type) and issubclass(option, BaseModel):
            return option
    return None


def _of_section(section: BaseModel, prefix: str, base: Job) -> Iterator[tuple[str, BaseModel]]:
    """Yield the dotted field and the section for each value that is legal by itself."""
    for name, field in type(section).model_fields.items():
        value, dotted = getattr(section, name), f"{prefix}.{name}"
        if dotted == _DEVICE:
            continue
        for changed_field, changed in _changes(field.annotation, value, dotted, base):
            try:
                other = _changed(section, name, changed)
            except (ProjectorError, ValueError):
                continue
            # Some rules of a section replace what was stated.
            if getattr(other, name) != value or type(getattr(other, name)) is not type(value):
                yield changed_field, other


def _changed(section: BaseModel, name: str, value: Any) -> BaseModel:
    """Return a section with one field replaced, read anew from what it states."""
    stated = {each: getattr(section, each) for each in section.model_fields_set - {"sources"}}
    return type(section).model_validate({**stated, name: value})


def _changes(kind: Any, value: Any, dotted: str, base: Job) -> Iterator[tuple[str, Any]]:
    """Yield other values of one field, and the dotted field that differs."""
    if isinstance(value, BaseModel):
        yield from _of_section(value, dotted, base)
    if dotted in VALUES:
        values: Any = VALUES[dotted](base)
    elif isinstance(value, Mapping):
        # Entries that are sections themselves are alike.
        nested = [key for key, item in value.items() if isinstance(item, BaseModel)][:1]
        for key in nested or value:
            item = value[key]
            for field, changed in _changes(type(item), item, f"{dotted}.{key}", base):
                yield field, {**value, key: changed}
        values = []
    elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
        for field, first in _of_section(value[0], f"{dotted}.0", base):
            yield field, (first, *value[1:])
        values = []
    else:
        values = _plain(kind, value)
        if isinstance(value, int) and dotted.startswith(_LINEAR):
            values = values[:2]
    yield from ((dotted, changed) for changed in values)


def _plain(kind: Any, value: Any) -> list[Any]:
    """Return other values of a field, near the one it has, by its type."""
    origin, options = get_origin(kind), get_args(kind)
    if origin is Literal:
        return [option for option in options if (option, type(option)) != (value, type(value))]
    if origin in (Union, types.UnionType):
        of_options = [_plain(option, value) for option in options if option is not type(None)]
        none = [None] if type(None) in options and value is not None else []
        return [*none, *(each for values in of_options for each in values)]
    if origin is not None and hasattr(kind, "__metadata__"):
        return _plain(options[0], value)
    if kind is bool:
        return [not value]
    if kind is int:
        return [2 * value, value // 2, value + 1, value - 1] if value else [1, 2, 4, 64]
    if kind is float:
        return [1.25 * value, 0.75 * value] if value else [0.5, 40.0]
    if kind is str:
        return [f"{value}_other"]
    if origin is tuple and value:
        more = [(2.0 * value[0], *value[1:])] if isinstance(value[0], int | float) else []
        return [value[1:], value[:1], value[::-1], *more]
    return []


_count = counts._count_uncached
_counted: dict[Any, tuple[counts.ModelCounts, ClusterConfig]] = {}


def count_once(model: ModelConfig, step: Any, cluster: ClusterConfig) -> counts.ModelCounts:
    """Return what the product counts from these, which it may not share by less than them."""
    key = model, step, id(cluster)
    if key not in _counted:
        _counted[key] = _count(model, step, cluster), cluster
    return _counted[key][0]


def clear_caches() -> None:
    """Forget what earlier jobs have left, so that a job alone is alone."""
    counts._cache.clear()
    documented_forms.cache_clear()
    stage_layout.cache_clear()


Row = Mapping[str, Any]
"""Name of a column -> its value, numbers as their bits; or the class and key of an error."""


def _rows(evaluation: Evaluation) -> list[Row]:
    columns = {}
    for name, column in Results(evaluation).columns().items():
        whole = np.ascontiguousarray(column.expanded() if isinstance(column, Coded) else column)
        bits = whole.view(np.int64) if whole.dtype == np.float64 else whole
        columns[name] = bits.tolist()
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def alone(job: Job) -> Row:
    """Return what a job gives that nothing was projected before."""
    clear_caches()
    try:
        return _rows(evaluate([job]))[0]
    except ProjectorError as error:
        return _refusal(error)


def _refusal(error: ProjectorError) -> Row:
    # Jobs that break one rule share an error, so that its numbers are those of one of them.
    words = "".join(char for char in error.message if not char.isdigit() and char not in ", ")
    return {"error": type(error).__name__, "key": error.key, "words": words.split(";")[0]}


def together(jobs: list[Job]) -> list[Row]:
    """Return the rows of jobs that are projected as one batch, as a sweep does."""
    clear_caches()
    batch = JobBatch.of(jobs)
    legal = find_legal(batch)
    rows: list[Row | None] = [None] * len(jobs)
    for row, number in enumerate(legal.refused.tolist()):
        if number >= 0:
            rows[row] = _refusal(legal.errors[number])
    kept = np.flatnonzero(legal.refused < 0)
    late: list[ProjectorError] = []
    for part, evaluation in evaluate_possible(
        batch.take(kept), legal.take(kept), late.append, KnownPipelines()
    ):
        for place, row in zip(kept[part].tolist(), _rows(evaluation), strict=True):
            rows[place] = row
    return [_late_refusal(job) if row is None else row for job, row in zip(jobs, rows, strict=True)]


def _late_refusal(job: Job) -> Row:
    """Return the error of a job that has no order; which of them it was is not told."""
    check_exists(job)
    return alone(job)


def differences(jobs: list[Job], expected: list[Row]) -> list[int]:
    """Return which jobs give something else in one batch than alone, in either order."""
    forward, backward = together(jobs), together(jobs[::-1])[::-1]
    return [
        row
        for row, wanted in enumerate(expected)
        if forward[row] != wanted or backward[row] != wanted
    ]
