"""The columns of a cluster: its software, its host and what its devices and links give a job."""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from math import erfc, sqrt
from operator import attrgetter
from typing import Any

import numpy as np

from projector.arrays import Floats
from projector.config import cluster as config
from projector.config.device import Device
from projector.kernels.device import MATRIX_TYPES
from projector.lower import sharing
from projector.lower.columns import Column, Declare, SectionColumns
from projector.lower.fabrics import job_domain_gpus, tier_gpus
from projector.lower.hardware import native_type, slowdowns

_TYPES = tuple(enumerate(MATRIX_TYPES))
_STEPS = 4096
_FURTHEST = 12.0
"""Standard deviations beyond which no normal number of 2**60 lies."""

LOAD_ONE = 1 << 20
"""Shares are kept in parts of it, so that records of workloads are integers and compare exactly."""

LOSS = tuple(config.LossKernels.model_fields)
"""Fields of `LossKernels`, in the order of the columns ``fused_loss`` and ``unfused_loss``."""

CALLS = tuple(name for name in config.ExpertCalls.model_fields if name != "call_us")
"""Counts of `ExpertCalls`, two entries each in the column ``expert_calls``."""

PASSES = tuple(config.ExpertPasses.model_fields)
"""Fields of `ExpertPasses`, in the order of the column ``expert_passes``."""

_cluster = Declare[config.ClusterConfig, config.ClusterConfig]()
_device = Declare[config.ClusterConfig, Device](attrgetter("device"))
_software = Declare[config.ClusterConfig, config.SoftwareConfig](attrgetter("software"))


def _native_code(device: Device, name: str) -> int:
    return MATRIX_TYPES.index(native_type(device, name))


def _moe_layer_shares(software: config.SoftwareConfig) -> list[float]:
    """Shares of a layer's host time by phase; the gradient of weights has none of its own."""
    forward, backward = software.moe_layer_parts
    return [forward / (forward + backward), backward / (forward + backward), 0.0]


def _fields(section: str, names: Iterable[str]) -> Callable[[config.SoftwareConfig], Sequence[int]]:
    return attrgetter(*(f"{section}.{name}" for name in names))


def _in_parts(field: str) -> Callable[[config.SoftwareConfig], int]:
    """Return what reads a share in parts of `LOAD_ONE`."""
    read = attrgetter(field)
    return lambda software: round(read(software) * LOAD_ONE)


def _peaks(device: Device) -> list[float]:
    """Return the dense peak of each matrix type, NaN where the device has none."""
    native = device.matrix_flop_per_clk_per_cu
    return [device.peak_tflops(name) if name in native else float("nan") for name in MATRIX_TYPES]


def _copy_passes(software: config.SoftwareConfig) -> list[float]:
    """Return passes of gathers and reductions without FSDP, under FSDP 1 and under FSDP 2."""
    generations = (software.fsdp1_copies, software.fsdp2_copies)
    passes = [(each.gather_passes, each.reduce_passes) for each in generations]
    return [0.0, 0.0, *(each for pair in passes for each in pair)]


def _words(cluster: config.ClusterConfig) -> Hashable:
    device = cluster.device
    # Devices of a space share what is not replaced, and live as long as their table.
    return device.name, (*device.matrix_flop_per_clk_per_cu,), id(device.attention_kernels)


@lru_cache(maxsize=4096)
def largest_of_normals(count: int) -> float:
    """Return the expected largest of ``count`` independent standard normal numbers.

    It is the integral of ``1 - P(x)**n`` over x > 0, less that of ``P(x)**n`` over x < 0, with the
    normal distribution P, by the trapezoid rule, which converges faster than any power of its step
    for smooth integrands that vanish at both ends; each half has an end at 0 and its correction of
    Euler and Maclaurin cancels that of the other. ``sqrt(2 ln n)`` is its limit for many.
    """
    if count < 2:
        return 0.0
    x, below = _distribution()
    power = np.exp(count * below)
    step = 2.0 * _FURTHEST / _STEPS
    return float(step * (np.where(x > 0.0, 1.0 - power, -power).sum() + 0.5 * (x == 0.0).sum()))


@lru_cache(maxsize=1)
def _distribution() -> tuple[Floats, Floats]:
    """Return points and the logarithm of the normal distribution there."""
    x = np.linspace(-_FURTHEST, _FURTHEST, _STEPS + 1)
    # P(x) = 1 - Q(x): near 1 its logarithm is that of the small tail.
    tail = np.array([0.5 * erfc(value / sqrt(2.0)) for value in x.tolist()])
    head = np.maximum(tail[::-1], np.finfo(float).tiny)
    return x, np.where(x > 0.0, np.log1p(-np.minimum(tail, 0.5)), np.log(head))


class SoftwareColumns(SectionColumns[config.ClusterConfig]):
    """What records of workloads read of a cluster: its software, and which types it computes in.

    Its device and its links stand beside the records, so that all machines with one software
    share their shapes.
    """

    # Bit i: it computes in `MATRIX_TYPES[i]`. [bits]
    native_mask = _device.ints(
        lambda d: sum((name in d.matrix_flop_per_clk_per_cu) << i for i, name in _TYPES)
    )
    native_bf16 = _device.ints(lambda d: _native_code(d, "bf16"))  # What runs for BF16. [code]
    native_fp16 = _device.ints(lambda d: _native_code(d, "fp16"))  # What runs for FP16. [code]
    native_fp32 = _device.ints(lambda d: _native_code(d, "fp32"))  # What runs for FP32. [code]
    fp8_transposes = _device.ints("fp8_transposes")
    # Fields of `CALLS`, forward and backward. [operators]
    expert_calls = _software.floats(
        lambda s: [count for name in CALLS for count in getattr(s.expert_calls, name)]
    )
    expert_passes = _software.ints(_fields("expert_passes", PASSES))  # Fields of `PASSES`. [bytes]
    atomic_bytes = _software.ints("atomic_bytes")
    # Rate of eager kernels over others. [2**-20]
    eager_share_2e20 = _software.ints(_in_parts("eager_share"))
    # Of a collective that AsyncTP does not hide. [2**-20]
    async_tp_exposed_2e20 = _software.ints(_in_parts("async_tp_exposed"))
    # Of the rate that the device states. [2**-20]
    grouped_gemm_share_2e20 = _software.ints(_in_parts("grouped_gemm_share"))
    # Rate with scales by row over by tensor. [2**-20]
    rowwise_gemm_share_2e20 = _software.ints(_in_parts("rowwise_gemm_share"))
    gate_copy_bytes = _software.ints("gate_copy_bytes")
    attention_copy_bytes = _software.ints("attention_copy_bytes")
    fused_loss = _software.ints(_fields("fused_loss", LOSS))  # Fields of `LOSS`. [mixed]
    unfused_loss = _software.ints(_fields("unfused_loss", LOSS))  # Fields of `LOSS`. [mixed]
    software_key = _cluster.key_of(lambda: SOFTWARE)  # Everything above.


class HostColumns(SoftwareColumns):
    """What the host of a device adds to its layers."""

    host_link_bytes_per_s = _device.si("host_link_gb_per_s")
    gap_s = _device.si("kernel_start_us")
    graph_gap_s = _device.si("kernel_start_graph_us")
    launch_s = _software.si("launch_us")
    operator_s = _software.si("operator_us")
    host_sync_s = _software.si("host_sync_us")
    expert_call_s = _software.si("expert_calls.call_us")
    moe_layer_s = _software.si("moe_layer_ms", math.nan)
    moe_layer_sync_free_s = _software.si("moe_layer_sync_free_ms", math.nan)
    # Of an MoE layer's host time, in each phase. [share]
    moe_layer_shares = _software.floats(_moe_layer_shares)
    host_key = _cluster.key_of(lambda: HOST)  # Everything above.


class ClusterColumns(HostColumns):
    """Clusters; NaN is not stated."""

    gpus = _cluster.ints("gpus")
    nodes = _cluster.ints("nodes")
    # Of one scale-up domain that a job takes. [devices]
    domain = _cluster.ints(lambda c: job_domain_gpus(c, c.gpus))
    # Of one pod that a job takes; 0 is all. [devices]
    pod = _cluster.ints(lambda c: tier_gpus(c, c.gpus)[0])
    # Of one zone that a job takes; 0 is all. [devices]
    zone = _cluster.ints(lambda c: tier_gpus(c, c.gpus)[1])
    memory_bytes = _device.si("hbm_gib")
    stated_reserve_bytes = _cluster.si("memory_reserve_gib", math.nan)
    stated_fragmentation = _cluster.floats("fragmentation", none=math.nan)
    expandable = _software.ints("allocator.expandable_segments")
    idle_share = _software.floats("allocator.idle_share")
    pinned_share = _software.floats("allocator.pinned_share")
    context_bytes = _device.si("context_gib")
    communicator_bytes = _device.si("communicator_gib")
    exchange_peer_bytes = _device.si("exchange_peer_gib")
    workspace_bytes = _device.si("gemm_workspace_mib")
    slowdown = _device.floats(slowdowns)  # Of what runs beside, each of `SLOWDOWNS`. [share]
    # Of its compute by which the slowest device is late. [share]
    straggler_share = _cluster.floats(
        lambda c: c.variation.device_spread * largest_of_normals(c.gpus)
    )
    layer_spread = _cluster.floats("variation.layer_spread")
    # Moved for each byte gathered and reduced, by generation of FSDP. [bytes]
    copy_passes = _software.floats(_copy_passes)
    step_overhead_s = _software.si("step_overhead_ms")
    peak_tflops = _device.floats(_peaks)  # Dense peak of each of `MATRIX_TYPES`. [TFLOP/s]
    place_key = _cluster.key_of(lambda: BLOCKS)  # Where groups lie.
    pipeline_key = _cluster.key(sharing.CLUSTER.pipeline_key())  # What a pipeline costs.
    # How far off a projection may be.
    band_key = _cluster.key(
        lambda c: (
            *(c.device.name, c.device.architecture),
            c.network.scale_up_gpus if c.network.exchange_wait_us > 0.0 else 0,
        )
    )
    words_key = _cluster.key(_words)  # What messages say of it besides numbers.
    # What memory may depend on besides the band: all but what follows from rates of the device.
    memory_key = _cluster.key_of(
        lambda: [each for each in (*OF_MACHINE, *OF_JOB) if each is not ClusterColumns.peak_tflops]
    )
    # The same, beside what kernels read.
    machine_key = _cluster.key_of(lambda: OF_MACHINE, sharing.CLUSTER.apart_key())


_OfCluster = Column[config.ClusterConfig, Any]


def _columns(of: type[SectionColumns[config.ClusterConfig]]) -> list[_OfCluster]:
    return [column for column in vars(of).values() if isinstance(column, Column)]


SOFTWARE: list[_OfCluster] = _columns(SoftwareColumns)
"""What shapes of workloads read of a cluster."""

HOST: list[_OfCluster] = _columns(HostColumns)
"""What the host of a device adds to its layers."""

BLOCKS: list[_OfCluster] = [
    *(ClusterColumns.gpus, ClusterColumns.domain, ClusterColumns.pod, ClusterColumns.zone)
]
"""Numbers of devices in which groups lie."""

OF_JOB: tuple[_OfCluster, ...] = (
    *(*BLOCKS, ClusterColumns.nodes),
    *(ClusterColumns.memory_bytes, ClusterColumns.stated_reserve_bytes),
    *(ClusterColumns.stated_fragmentation, ClusterColumns.expandable, ClusterColumns.idle_share),
    *(ClusterColumns.pinned_share, ClusterColumns.step_overhead_s),
    *(ClusterColumns.straggler_share, ClusterColumns.layer_spread),
)
"""What jobs read on their own: neither pipelines nor replicas depend on it, but for the number of
devices and the places of groups, which they compare."""

OF_MACHINE: list[_OfCluster] = [
    *SOFTWARE,
    *HOST,
    *(column for column in _columns(ClusterColumns) if column not in OF_JOB),
]
"""What they may read of a cluster beside its device and its fabric."""
