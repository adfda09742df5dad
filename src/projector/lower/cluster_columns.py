"""The columns of a cluster: its software, its host and what its devices and links give a job."""

import math
from collections.abc import Hashable
from operator import attrgetter
from typing import Any

from projector.config.cluster import (
    ClusterConfig,
    ExpertCalls,
    ExpertPasses,
    LossKernels,
    SoftwareConfig,
)
from projector.config.device import Device
from projector.kernels.device import MATRIX_TYPES
from projector.lower import sharing
from projector.lower.columns import Column, Declare, SectionColumns
from projector.lower.fabrics import job_domain_gpus, tier_gpus
from projector.lower.hardware import native_type, slowdowns
from projector.lower.stragglers import largest_of_normals
from projector.units import GB, GIB, MIB, MICROSECOND, MILLISECOND

LOAD_ONE = 1 << 20
"""Shares are kept in parts of it, so that records of workloads are integers and compare exactly."""

LOSS = (
    "forward_bytes",
    "backward_bytes",
    "saved_bytes",
    "transient_bytes",
    "divided_bytes",
    "launches",
)
"""Fields of `LossKernels`, in the order of the columns ``fused_loss`` and ``unfused_loss``."""

CALLS = tuple(name for name in ExpertCalls.model_fields if name != "call_us")
"""Counts of `ExpertCalls`, two entries each in the column ``expert_calls``."""

PASSES = tuple(ExpertPasses.model_fields)
"""Fields of `ExpertPasses`, in the order of the column ``expert_passes``."""

_cluster = Declare[ClusterConfig]()
_device = _cluster.part(attrgetter("device"))
_software = _cluster.part(attrgetter("software"))


def _stated(value: float | None) -> float:
    return math.nan if value is None else value


def _native_code(device: Device, name: str) -> int:
    return MATRIX_TYPES.index(native_type(device, name))


def _native_mask(device: Device) -> int:
    native = device.matrix_flop_per_clk_per_cu
    return sum(1 << code for code, name in enumerate(MATRIX_TYPES) if name in native)


def _moe_layer_shares(software: SoftwareConfig) -> list[float]:
    """Shares of a layer's host time by phase; the gradient of weights has none of its own."""
    forward, backward = software.moe_layer_parts
    return [forward / (forward + backward), backward / (forward + backward), 0.0]


def _stated_s(milliseconds: float | None) -> float:
    """Return seconds, NaN where nothing is stated."""
    return math.nan if milliseconds is None else milliseconds * MILLISECOND


def _expert_calls(software: SoftwareConfig) -> list[float]:
    pairs = [getattr(software.expert_calls, name) for name in CALLS]
    return [count for pair in pairs for count in pair]


def _expert_passes(software: SoftwareConfig) -> list[int]:
    return [getattr(software.expert_passes, name) for name in PASSES]


def _loss(kernels: LossKernels) -> list[int]:
    return [getattr(kernels, name) for name in LOSS]


def _peaks(device: Device) -> list[float]:
    """Return the dense peak of each matrix type, NaN where the device has none."""
    native = device.matrix_flop_per_clk_per_cu
    return [device.peak_tflops(name) if name in native else float("nan") for name in MATRIX_TYPES]


def _copy_passes(software: SoftwareConfig) -> list[float]:
    """Return passes of gathers and reductions without FSDP, under FSDP 1 and under FSDP 2."""
    generations = (software.fsdp1_copies, software.fsdp2_copies)
    passes = [(each.gather_passes, each.reduce_passes) for each in generations]
    return [0.0, 0.0, *(each for pair in passes for each in pair)]


def _words(cluster: ClusterConfig) -> Hashable:
    device = cluster.device
    # Devices of a space share what is not replaced, and live as long as their table.
    return device.name, (*device.matrix_flop_per_clk_per_cu,), id(device.attention_kernels)


class SoftwareColumns(SectionColumns[ClusterConfig]):
    """What records of workloads read of a cluster: its software, and which types it computes in.

    Its device and its links stand beside the records, so that all machines with one software
    share their shapes.
    """

    native_mask = _device.ints(_native_mask, "bits", "Bit i: it computes in `MATRIX_TYPES[i]`.")
    native_bf16 = _device.ints(lambda d: _native_code(d, "bf16"), "code", "What runs for BF16.")
    native_fp16 = _device.ints(lambda d: _native_code(d, "fp16"), "code", "What runs for FP16.")
    native_fp32 = _device.ints(lambda d: _native_code(d, "fp32"), "code", "What runs for FP32.")
    expert_calls = _software.floats(
        _expert_calls, "operators", "Fields of `CALLS`, forward and backward."
    )
    expert_passes = _software.ints(_expert_passes, "bytes", "Fields of `PASSES`.")
    atomic_bytes = _software.ints(
        lambda s: s.atomic_bytes, "bytes", "As long as an atomic addition of 16 bits."
    )
    eager_share_2e20 = _software.ints(
        lambda s: round(s.eager_share * LOAD_ONE), "2**-20", "Of eager kernels' rate."
    )
    async_tp_exposed_2e20 = _software.ints(
        lambda s: round(s.async_tp_exposed * LOAD_ONE),
        "2**-20",
        "Of a collective that AsyncTP does not hide.",
    )
    grouped_gemm_share_2e20 = _software.ints(
        lambda s: round(s.grouped_gemm_share * LOAD_ONE),
        "2**-20",
        "Rate of grouped GEMMs over what the device states.",
    )
    rowwise_gemm_share_2e20 = _software.ints(
        lambda s: round(s.rowwise_gemm_share * LOAD_ONE),
        "2**-20",
        "Rate of a GEMM with scales by row over that with scales by tensor.",
    )
    fused_loss = _software.ints(
        lambda s: _loss(s.fused_loss), "mixed", "Fields of `LOSS`, of one fused kernel."
    )
    unfused_loss = _software.ints(
        lambda s: _loss(s.unfused_loss), "mixed", "The same for separate operators."
    )
    software_key = _cluster.key_of(lambda: SOFTWARE, "Everything above.")


class HostColumns(SoftwareColumns):
    """What the host of a device adds to its layers."""

    host_link_bytes_per_s = _device.floats(
        lambda d: d.host_link_gb_per_s * GB, "bytes/s", "Between device and host."
    )
    gap_s = _device.floats(lambda d: d.kernel_start_us * MICROSECOND, "s", "Between two kernels.")
    graph_gap_s = _device.floats(
        lambda d: d.kernel_start_graph_us * MICROSECOND, "s", "The same in a graph."
    )
    launch_s = _software.floats(
        lambda s: s.launch_us * MICROSECOND, "s", "Of the host for a kernel."
    )
    operator_s = _software.floats(
        lambda s: s.operator_us * MICROSECOND, "s", "Of the framework for a kernel."
    )
    host_sync_s = _software.floats(
        lambda s: s.host_sync_us * MICROSECOND, "s", "Of a wait for the device."
    )
    expert_call_s = _software.floats(
        lambda s: s.expert_calls.call_us * MICROSECOND,
        "s",
        "Of the host for an expert's call.",
    )
    moe_layer_s = _software.floats(
        lambda s: _stated_s(s.moe_layer_ms),
        "s",
        "Of the host for an MoE layer, if stated.",
    )
    moe_layer_sync_free_s = _software.floats(
        lambda s: _stated_s(s.moe_layer_sync_free_ms), "s", "The same without waits."
    )
    moe_layer_shares = _software.floats(
        _moe_layer_shares, "share", "Of an MoE layer's host time, in each phase."
    )
    host_key = _cluster.key_of(lambda: HOST, "Everything above.")


class ClusterColumns(HostColumns):
    """Clusters."""

    gpus = _cluster.ints(lambda c: c.gpus, "devices", "Of the whole cluster.")
    nodes = _cluster.ints(lambda c: c.nodes, "hosts", "Of the whole cluster.")
    domain = _cluster.ints(
        lambda c: job_domain_gpus(c, c.gpus), "devices", "Of one scale-up domain that a job takes."
    )
    pod = _cluster.ints(
        lambda c: tier_gpus(c, c.gpus)[0], "devices", "Of one pod that a job takes; 0 is all."
    )
    zone = _cluster.ints(
        lambda c: tier_gpus(c, c.gpus)[1], "devices", "Of one zone that a job takes; 0 is all."
    )
    memory_bytes = _device.floats(lambda d: d.hbm_gib * GIB, "bytes", "Of a device.")
    stated_reserve_bytes = _cluster.floats(
        lambda c: _stated(c.memory_reserve_gib) * GIB,
        "bytes",
        "That training cannot use; NaN is not stated.",
    )
    stated_fragmentation = _cluster.floats(
        lambda c: _stated(c.fragmentation), "share", "Of what is allocated; NaN is not stated."
    )
    expandable = _software.ints(
        lambda s: s.allocator.expandable_segments, "flag", "Segments grow in place."
    )
    idle_share = _software.floats(
        lambda s: s.allocator.idle_share,
        "share",
        "Of activations and working sets that lies in idle blocks where segments do not grow.",
    )
    pinned_share = _software.floats(
        lambda s: s.allocator.pinned_share, "share", "The same, which is never given back."
    )
    context_bytes = _device.floats(lambda d: d.context_gib * GIB, "bytes", "Of the driver.")
    communicator_bytes = _device.floats(
        lambda d: d.communicator_gib * GIB, "bytes", "Of a communicator."
    )
    exchange_peer_bytes = _device.floats(
        lambda d: d.exchange_peer_gib * GIB, "bytes", "Of a peer that is sent to directly."
    )
    workspace_bytes = _device.floats(
        lambda d: d.gemm_workspace_mib * MIB, "bytes", "Of GEMMs, for each library."
    )
    slowdown = _device.floats(slowdowns, "share", "Of what runs beside, each of `SLOWDOWNS`.")
    straggler_share = _cluster.floats(
        lambda c: c.variation.device_spread * largest_of_normals(c.gpus),
        "share",
        "Of its compute by which the slowest device is late.",
    )
    copy_passes = _software.floats(
        _copy_passes, "bytes", "Moved for each byte gathered and reduced, by generation of FSDP."
    )
    step_overhead_s = _software.floats(
        lambda s: s.step_overhead_ms * MILLISECOND, "s", "Of the host for a step."
    )
    peak_tflops = _device.floats(_peaks, "TFLOP/s", "Dense peak of each of `MATRIX_TYPES`.")
    place_key = _cluster.key_of(lambda: BLOCKS, "Where groups lie.")
    pipeline_key = _cluster.key(sharing.CLUSTER.pipeline_key(), "What a pipeline costs.")
    band_key = _cluster.key(
        lambda c: (c.device.name, c.device.architecture), "How far off a projection may be."
    )
    words_key = _cluster.key(_words, "What messages say of it besides numbers.")
    machine_key = _cluster.key_of(
        lambda: OF_MACHINE, "The same, beside what kernels read.", sharing.CLUSTER.apart_key()
    )


_OfCluster = Column[ClusterConfig, Any]


def _columns(of: type[SectionColumns[ClusterConfig]]) -> list[_OfCluster]:
    return [column for column in vars(of).values() if isinstance(column, Column)]


SOFTWARE: list[_OfCluster] = _columns(SoftwareColumns)
"""What shapes of workloads read of a cluster."""

HOST: list[_OfCluster] = _columns(HostColumns)
"""What the host of a device adds to its layers."""

BLOCKS: list[_OfCluster] = [
    *(ClusterColumns.gpus, ClusterColumns.domain, ClusterColumns.pod, ClusterColumns.zone)
]
"""Numbers of devices in which groups lie."""

OF_JOB = (
    *(*BLOCKS, ClusterColumns.nodes),
    *(ClusterColumns.memory_bytes, ClusterColumns.stated_reserve_bytes),
    *(ClusterColumns.stated_fragmentation, ClusterColumns.expandable, ClusterColumns.idle_share),
    *(ClusterColumns.pinned_share, ClusterColumns.straggler_share, ClusterColumns.step_overhead_s),
)
"""What jobs read on their own: neither pipelines nor replicas depend on it, but for the number of
devices and the places of groups, which they compare."""

OF_MACHINE: list[_OfCluster] = [
    *SOFTWARE,
    *HOST,
    *(column for column in _columns(ClusterColumns) if column not in OF_JOB),
]
"""What they may read of a cluster beside its device and its fabric."""
