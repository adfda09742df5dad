"""Sections of jobs as tables of numbers: the casts and units of everything that jobs state.

Jobs of a batch mostly share a few sections, so that a section is read once for all of them.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from projector.config.cluster import ClusterConfig
from projector.config.device import Device
from projector.config.model import ModelConfig
from projector.config.parallelism import ParallelismConfig
from projector.config.training import RECOMPUTE_MODULES, TrainingConfig
from projector.kernels.device import MATRIX_TYPES, OPERAND_BYTES
from projector.lower import sharing
from projector.lower.hardware import domain_gpus, native_type
from projector.lower.sharing import Key
from projector.lower.stages import LayerSettings, LayerSplit, uses_narrow
from projector.units import GB, GIB, MICROSECOND, MILLISECOND

Ints = NDArray[np.int64]

FP8_RECIPES = ("delayed", "tensorwise", "rowwise", "blockwise")
CP_TYPES = ("p2p", "all_gather", "a2a")
DISPATCHERS = ("alltoall", "allgather", "deepep")
GRANULARITIES = ("none", "selective", "full")

DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
MASTER_BYTES = {"fp32": 4.0, "split": 2.0, "none": 0.0}
MOMENTS = {"adam": 2, "sgd": 1, "muon": 1}

LOAD_ONE = 1 << 20
"""Shares are kept in parts of it, so that records of workloads are integers and compare exactly."""


def parameter_bytes(training: TrainingConfig) -> float:
    """Bytes of a weight on the wire and in memory."""
    if training.fp8_param_gather:
        return 1.0
    return 4.0 if training.precision == "fp32" else 2.0


def usable_bytes(cluster: ClusterConfig) -> float:
    """Return what a rank may allocate: what is left of its device memory, less fragmentation."""
    left = cluster.device.hbm_gib * GIB - cluster.memory_reserve_gib * GIB
    return max(0.0, left / (1.0 + cluster.fragmentation))


def _of_mla(name: str) -> Callable[[ModelConfig], int]:
    return lambda model: getattr(model.mla, name) if model.mla else 0


def _of_moe(name: str) -> Callable[[ModelConfig], int]:
    return lambda model: getattr(model.moe, name) if model.moe else 0


def _query_width(model: ModelConfig) -> int:
    mla = model.mla
    return mla.qk_head_dim + mla.qk_pos_emb_head_dim if mla else model.head_dim


def _moments_bytes(training: TrainingConfig) -> float:
    optimizer = training.optimizer
    return MOMENTS[optimizer.name] * DTYPE_BYTES[optimizer.moment_dtype]


def _state_bytes(training: TrainingConfig) -> float:
    """Bytes of optimizer state for each parameter."""
    master = MASTER_BYTES[training.optimizer.master_weights]
    return (master if parameter_bytes(training) < 4.0 else 0.0) + _moments_bytes(training)


def _quantise_bytes(training: TrainingConfig) -> float:
    """Traffic of quantising a weight row- and column-wise, once a step."""
    operand = float(OPERAND_BYTES[MATRIX_TYPES.index(training.precision)])
    return 2.0 + 2.0 * operand if uses_narrow(training) else 0.0


def _quantised_copies(training: TrainingConfig) -> float:
    """Bytes for each weight of a linear layer that its quantised copies hold through the step."""
    return (0.0 if training.fp8_param_gather else 1.0) + training.fp8_weight_transpose_cache


def _recompute_unit(training: TrainingConfig) -> int:
    """Layers that are recomputed together."""
    recompute = training.recompute
    return recompute.num_layers or 1 if recompute.method == "uniform" else 1


def _seconds(name: str, unit: float) -> Callable[[ClusterConfig], float]:
    read = attrgetter(name)
    return lambda cluster: read(cluster) * unit


def _native_code(name: str) -> Callable[[ClusterConfig], int]:
    return lambda cluster: MATRIX_TYPES.index(native_type(cluster.device, name))


def _native_mask(cluster: ClusterConfig) -> int:
    native = cluster.device.matrix_flop_per_clk_per_cu
    return sum(1 << code for code, name in enumerate(MATRIX_TYPES) if name in native)


_Readers = Mapping[str, Callable[[Any], Any]]

MODEL: _Readers = {
    "num_layers": attrgetter("num_layers"),
    "hidden": attrgetter("hidden_size"),
    "ffn": attrgetter("ffn_hidden_size"),
    "gated": attrgetter("gated"),
    "mlp_bias": attrgetter("mlp_bias"),
    "heads": attrgetter("num_attention_heads"),
    "query_groups": attrgetter("query_groups"),
    "key_heads": lambda model: model.num_attention_heads if model.mla else model.query_groups,
    "d_qk": _query_width,
    "d_v": attrgetter("head_dim"),
    "rope": lambda model: model.position_embedding == "rope",
    "learned": lambda model: model.position_embedding == "learned",
    "attention_bias": lambda model: ("none", "qkv", "qkv+out").index(model.attention_bias),
    "qk_norm": lambda model: ("none", "head", "full").index(model.qk_norm),
    "sinks": attrgetter("attention_sinks"),
    "window": attrgetter("sliding_window"),
    "norm_parameters": lambda model: 1 if model.normalization == "rmsnorm" else 2,
    "norms": attrgetter("norms_per_layer"),
    "is_mla": lambda model: model.mla is not None,
    "q_lora": _of_mla("q_lora_rank"),
    "kv_lora": _of_mla("kv_lora_rank"),
    "d_nope": _of_mla("qk_head_dim"),
    "d_rope": _of_mla("qk_pos_emb_head_dim"),
    "is_moe": lambda model: model.moe is not None,
    "all_moe": lambda model: all(model.moe_layers),
    "experts": _of_moe("num_experts"),
    "topk": _of_moe("router_topk"),
    "expert_ffn": _of_moe("ffn_hidden_size"),
    "shared_ffn": _of_moe("shared_expert_ffn_hidden_size"),
    "shared_gate": _of_moe("shared_expert_gate"),
    "router_bias": _of_moe("router_bias"),
    "group_topk": _of_moe("group_topk"),
    "vocab": attrgetter("vocab_size"),
    "vocab_divisor": lambda model: model.make_vocab_size_divisible_by or 0,
    "max_positions": attrgetter("max_position_embeddings"),
    "tied": attrgetter("tied_embeddings"),
}
"""Column -> how it is read from a section; booleans become 0 and 1."""

PARALLELISM: _Readers = {
    **{name: attrgetter(name) for name in ("tp", "pp", "vpp", "cp", "ep")},
    "expert_tp": attrgetter("expert_tp"),
    "stated_dp": lambda split: split.dp or 0,
    "splits_sequence": attrgetter("splits_sequence"),
    "cp_type": lambda split: CP_TYPES.index(split.cp_comm_type),
    "tp_overlap": attrgetter("tp_comm_overlap"),
    "ep_overlap": attrgetter("overlap_moe_expert_parallel_comm"),
    "zero_stage": attrgetter("sharding_stage"),
    "regathers": lambda split: not split.fsdp or split.fsdp_reshard_after_forward,
    "overlap_grad_reduce": attrgetter("overlap_grad_reduce"),
    "overlap_param_gather": attrgetter("overlap_param_gather"),
    "bucket": lambda split: split.ddp_bucket_size or 0,
    "group_size": lambda split: split.microbatch_group_size_per_vp_stage or 0,
    "overlap_p2p": lambda split: (
        -1 if split.overlap_p2p_comm is None else int(split.overlap_p2p_comm)
    ),
}

TRAINING: _Readers = {
    "micro_batch": attrgetter("micro_batch_size"),
    "global_batch": attrgetter("global_batch_size"),
    "seq": attrgetter("seq_length"),
    "dtype": lambda training: MATRIX_TYPES.index(training.precision),
    "narrow": uses_narrow,
    "fp8_recipe": lambda training: FP8_RECIPES.index(training.fp8_recipe),
    "fp8_transpose": attrgetter("fp8_weight_transpose_cache"),
    "accumulate_bytes": lambda training: 4 if training.gradient_dtype == "fp32" else 2,
    "recompute": lambda training: GRANULARITIES.index(training.recompute.granularity),
    "recompute_mask": lambda training: sum(
        1 << RECOMPUTE_MODULES.index(module) for module in set(training.recompute.modules)
    ),
    "recompute_unit": _recompute_unit,
    "flash": attrgetter("flash_attention"),
    "default_attention": lambda training: training.attention_kernel == "default",
    "fused_loss": attrgetter("cross_entropy_fusion"),
    "graphs": attrgetter("cuda_graphs"),
    "compiled": attrgetter("torch_compile"),
    "offload": lambda training: float(training.activation_offload_fraction),
    "dispatcher": lambda training: DISPATCHERS.index(training.moe.dispatcher),
    "dispatch_bytes": lambda training: 1 if training.moe.dispatch_precision == "fp8" else 2,
    "permute_fusion": attrgetter("moe.permute_fusion"),
    "host_sync": attrgetter("moe.host_sync"),
    "capacity": lambda training: float(training.moe.capacity_factor or 0.0),
    "zipf": lambda training: (
        float(training.moe.zipf_exponent) if training.moe.load == "zipf" else -1.0
    ),
    "weight_bytes": parameter_bytes,
    "gradient_bytes": lambda training: DTYPE_BYTES[training.gradient_dtype],
    "reduce_bytes": lambda training: DTYPE_BYTES[training.reduce_dtype],
    "state_bytes": _state_bytes,
    "quantise_bytes": _quantise_bytes,
    "quantised_copies": _quantised_copies,
    "optimizer_offload": lambda training: float(training.optimizer.offload_fraction),
    "most_pending": lambda training: training.zero_bubble_max_pending_backward or 0,
    "post_validation": attrgetter("optimizer_post_validation"),
}

CLUSTER: _Readers = {
    "gpus": attrgetter("gpus"),
    "nodes": attrgetter("nodes"),
    "domain": domain_gpus,
    "native_mask": _native_mask,
    "native_bf16": _native_code("bf16"),
    "native_fp16": _native_code("fp16"),
    "native_fp32": _native_code("fp32"),
    "memory_bytes": lambda cluster: cluster.device.hbm_gib * GIB,
    "usable_bytes": usable_bytes,
    "host_link_bytes_per_s": lambda cluster: cluster.device.host_link_gb_per_s * GB,
    "slowdown": lambda cluster: float(cluster.device.comm_compute_slowdown),
    "gap_s": _seconds("device.kernel_start_us", MICROSECOND),
    "graph_gap_s": _seconds("device.kernel_start_graph_us", MICROSECOND),
    "launch_s": _seconds("software.launch_us", MICROSECOND),
    "operator_s": _seconds("software.operator_us", MICROSECOND),
    "host_sync_s": _seconds("software.host_sync_us", MICROSECOND),
    "moe_layer_s": _seconds("software.moe_layer_ms", MILLISECOND),
    "moe_layer_sync_free_s": _seconds("software.moe_layer_sync_free_ms", MILLISECOND),
    "step_overhead_s": _seconds("software.step_overhead_ms", MILLISECOND),
    "gemm_share_2e20": lambda cluster: round(cluster.software.gemm_share * LOAD_ONE),
    "peak_tflops": lambda cluster: _peaks(cluster.device),
}


def _peaks(device: Device) -> list[float]:
    """Return the dense peak of each matrix type, NaN where the device has none."""
    native = device.matrix_flop_per_clk_per_cu
    return [device.peak_tflops(name) if name in native else float("nan") for name in MATRIX_TYPES]


_Parts = Mapping[str, Key]

PARALLELISM_PARTS: _Parts = {
    "layout": LayerSplit.of,
    "pipeline": sharing.PARALLELISM.pipeline_key(),
    "replica": sharing.PARALLELISM.replica_key(),
}
"""What of a section decides where layers lie, what a microbatch takes in each stage of a pipeline,
and what data parallelism adds to that. Sections that are equal in a part share what it decides.
A layout is made from nothing but its part; the others are those of `projector.lower.sharing`."""

TRAINING_PARTS: _Parts = {
    "layout": LayerSettings.of,
    "pipeline": sharing.TRAINING.pipeline_key(),
    "replica": sharing.TRAINING.replica_key(),
    "attention": attrgetter("attention_kernel"),
    "schedule": attrgetter("schedule"),
}

CLUSTER_PARTS: _Parts = {"pipeline": sharing.CLUSTER.pipeline_key()}


class SectionTable:
    """Sections of one kind, one row each; columns are read when they are asked for."""

    def __init__(self, items: Sequence[Any], readers: _Readers, parts: _Parts) -> None:
        """Keep the sections, which stay alive as long as their table."""
        self.items = tuple(items)
        self._readers = readers
        self._parts = parts
        self._columns: dict[str, NDArray[Any]] = {}
        self._numbers: dict[str, tuple[dict[Hashable, int], Ints]] = {}

    def grow(self, items: Sequence[Any]) -> None:
        """Add sections behind those that are there, which are not read again."""
        self.items += tuple(items)

    def column(self, name: str) -> NDArray[Any]:
        """Return int64 or float64[sections]."""
        known = self._columns.get(name)
        if known is None or len(known) < len(self.items):
            read = self._readers[name]
            begin = 0 if known is None else len(known)
            values = np.array([read(item) for item in self.items[begin:]])
            whole = values.dtype.kind in "bi"
            more = values.astype(np.int64 if whole else np.float64)
            self._columns[name] = more if known is None else np.concatenate([known, more])
        return self._columns[name]

    def part(self, name: str) -> Ints:
        """Return int64[sections]: equal numbers where sections are equal in a part."""
        known, numbers = self._numbers.get(name, ({}, np.zeros(0, np.int64)))
        if len(numbers) < len(self.items):
            read = self._parts[name]
            rest = self.items[len(numbers) :]
            more = [known.setdefault(read(item), len(known)) for item in rest]
            numbers = np.concatenate([numbers, np.array(more, np.int64)])
            self._numbers[name] = known, numbers
        return numbers


def model_table(items: Sequence[ModelConfig]) -> SectionTable:
    """Return the table of some architectures."""
    return SectionTable(items, MODEL, {})


def parallelism_table(items: Sequence[ParallelismConfig]) -> SectionTable:
    """Return the table of some splits."""
    return SectionTable(items, PARALLELISM, PARALLELISM_PARTS)


def training_table(items: Sequence[TrainingConfig]) -> SectionTable:
    """Return the table of some steps."""
    return SectionTable(items, TRAINING, TRAINING_PARTS)


def cluster_table(items: Sequence[ClusterConfig]) -> SectionTable:
    """Return the table of some clusters."""
    return SectionTable(items, CLUSTER, CLUSTER_PARTS)
