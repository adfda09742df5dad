"""Time of the experts of one rank: route, permute, two grouped GEMMs, finalise.

Nothing is communicated. ``docs/serving.md`` states what is assumed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from projector.config.device import Device
from projector.kernels.device import MATRIX_TYPES, OPERAND_BYTES, TILE_M, TILE_N
from projector.kernels.elementwise import elementwise_time_column
from projector.kernels.gemm import MAX_SPLIT_K, gemm_time_columns
from projector.lower.hardware import device_record
from projector.units import MICROSECOND

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

EXACT_LOADS = 16
"""Loads up to here are timed as they are, larger ones rounded to a quarter of an octave."""

STEPS_PER_OCTAVE = 4

GEMMS = 2

FUSED_TOPK = 8
"""Most experts a token may pick for routing to be one fused kernel."""

FIRST_NARROW = MATRIX_TYPES.index("fp8")


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """The part of a mixture-of-experts layer that one rank computes."""

    device: Device
    hidden: int
    inner: int
    """Width of an expert on this rank."""
    gated: bool
    experts: int
    """Routed experts of all ranks."""
    topk: int
    dtype: str
    """Matrix type of the grouped GEMMs."""
    block_scaled: bool = False
    """FP8 with a scale for every 128 elements, quantised in passes of its own."""
    fused: bool = False
    """Low-latency kernels: activation and finalising are fused into the GEMMs."""


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Bytes and launches of the memory-bound kernels of one layer."""

    passes: tuple[float, ...]
    kernels: int
    """All kernels, GEMMs included."""


def expert_layer_times(
    layers: Sequence[ExpertLayer], tokens: Sequence[int], loads: Sequence[Ints]
) -> Floats:
    """Return the mean seconds of each layer over the draws of its loads.

    Parameters
    ----------
    layers : sequence of ExpertLayer
    tokens : sequence of int
        Tokens that are routed, those without a pick on this rank included.
    loads : sequence of int64[draws, local experts]
        Tokens of each expert of this rank.

    Returns
    -------
    float64[layers]
    """
    devices, device_of = _records(layers)
    gemm_s = _grouped_gemms(layers, loads, devices, device_of)
    out = np.empty(len(layers))
    for row, layer in enumerate(layers):
        pairs = loads[row].sum(axis=1).astype(np.float64)
        traffic = [_traffic(layer, tokens[row], count) for count in pairs]
        sizes = np.array([item.passes for item in traffic])
        seconds = elementwise_time_column(
            sizes.reshape(-1), np.zeros(sizes.size), np.zeros(sizes.size),
            np.full(sizes.size, device_of[row]), devices,
        )  # fmt: skip
        gap_s = layer.device.kernel_start_graph_us * MICROSECOND
        # A pass reads its indices and then its rows: two loads, one after the other.
        latency_s = 2.0 * layer.device.hbm_latency_us * MICROSECOND
        kernels = traffic[0].kernels
        fixed_s = kernels * gap_s + (kernels - GEMMS) * latency_s
        out[row] = fixed_s + (seconds.reshape(sizes.shape).sum(axis=1) + gemm_s[row]).mean()
    return out


def bin_loads(loads: Ints) -> Ints:
    """Round loads above `EXACT_LOADS` to the nearest of `STEPS_PER_OCTAVE` in each octave."""
    large = loads > EXACT_LOADS
    steps = np.rint(np.log2(np.maximum(loads, 1)) * STEPS_PER_OCTAVE) / STEPS_PER_OCTAVE
    return np.where(large, np.rint(np.exp2(steps)), loads).astype(np.int64)


def _records(layers: Sequence[ExpertLayer]) -> tuple[NDArray[np.void], Ints]:
    index: dict[int, int] = {}
    records: list[NDArray[np.void]] = []
    for layer in layers:
        if id(layer.device) not in index:
            index[id(layer.device)] = len(records)
            records.append(device_record(layer.device))
    return np.concatenate(records), np.array([index[id(layer.device)] for layer in layers])


def _traffic(layer: ExpertLayer, tokens: int, pairs: float) -> _Traffic:
    """List the memory-bound kernels of a layer; 16-bit activations come in and go out."""
    code = MATRIX_TYPES.index(layer.dtype)
    narrow = code >= FIRST_NARROW
    operand = float(OPERAND_BYTES[code])
    scores, rows = float(tokens * layer.experts), float(tokens * layer.hidden)
    arriving, inner = pairs * layer.hidden, pairs * layer.inner
    inputs = 2.0 * (1 + layer.gated)
    fused_router = layer.topk <= FUSED_TOPK
    # Scores in, picks and weights out; unfused softmax, top-k and masks pass over FP32 scores.
    routing = (4.0 if fused_router else 20.0) * scores + 8.0 * tokens * layer.topk
    # Histogram, scan and scatter of the picks.
    sorting = 16.0 * tokens * layer.topk
    passes, kernels = [routing, sorting], (1 if fused_router else 5) + (1 if layer.fused else 3)
    moved = 2.0 if layer.block_scaled or not narrow else operand
    if narrow and not layer.block_scaled:
        passes.append((2.0 + operand) * rows)
        kernels += 1
    if layer.fused:
        # The GEMMs gather their rows themselves, apply the activation and finalise.
        return _Traffic(tuple(passes), kernels + 2)
    passes.append(2.0 * moved * arriving)
    passes.append((inputs + (2.0 if layer.block_scaled else operand)) * inner)
    kernels += 2
    if layer.block_scaled:
        passes += [(2.0 + operand) * arriving, (2.0 + operand) * inner]
        kernels += 2
    passes.append(2.0 * arriving + 2.0 * rows)
    return _Traffic(tuple(passes), kernels + 3)


def _grouped_gemms(
    layers: Sequence[ExpertLayer], loads: Sequence[Ints], devices: NDArray[np.void], device_of: Ints
) -> list[Floats]:
    """Return for each layer float64[draws], both grouped GEMMs.

    The kernel times equal groups. A launch of A active experts with unequal loads is taken as
    the launch of A equal ones with the mean load, times ``sum t(load) / (A * t(mean))``, where
    t is what one more group adds to a full device (a launch with a group for each compute unit).
    So weights are read for active experts only, a few experts leave compute units idle, and
    full and nearly empty experts cost what their own tiles cost. Each wave of tiles after the
    first waits one memory latency: it belongs to other experts, whose operands are found through
    pointers that nothing prefetches.
    """
    columns: list[tuple[int, ...]] = []
    position: dict[tuple[int, ...], int] = {}

    def ask(*key: int) -> int:
        if key not in position:
            position[key] = len(columns)
            columns.append(key)
        return position[key]

    plans = []
    for row, layer in enumerate(layers):
        device, code = int(device_of[row]), MATRIX_TYPES.index(layer.dtype)
        units = int(devices[device]["compute_units"])
        widths = (
            (layer.inner * (1 + layer.gated), layer.hidden),
            (layer.hidden, layer.inner),
        )
        for draw, counts in enumerate(loads[row]):
            active = counts[counts > 0]
            if len(active) == 0:
                continue
            mean = -(-int(active.sum()) // len(active))
            bins, share = np.unique(bin_loads(active), return_counts=True)
            for n, k in widths:
                launch = ask(device, code, mean, n, k, len(active))
                typical = ask(device, code, mean, n, k, units)
                groups = [ask(device, code, int(m), n, k, units) for m in bins]
                plans.append(_Plan(row, draw, launch, typical, groups, bins, share))
    out = [np.zeros(len(draws)) for draws in loads]
    if not columns:
        return out
    table = np.array(columns, np.int64)
    efficiency = devices["grouped_forward_efficiency"][table[:, 0]]
    seconds, _, choice = gemm_time_columns(
        table[:, 2:], table[:, 1], np.full(len(table), 2.0), efficiency, table[:, 0], devices
    )
    tile, split = choice // MAX_SPLIT_K, choice % MAX_SPLIT_K + 1
    tiles = devices["tiles"][table[:, 0], tile]
    for plan in plans:
        device = devices[device_of[plan.row]]
        start_s = device["gemm_overhead_s"]
        work_s = np.maximum(seconds[plan.groups] - start_s, 0.0)
        mean_s = max(seconds[plan.typical] - start_s, _SHORTEST_S)
        uneven = float((work_s * plan.share).sum()) / (plan.share.sum() * mean_s)
        high, wide = tiles[plan.launch, TILE_M], tiles[plan.launch, TILE_N]
        blocks = float((np.ceil(plan.bins / high) * plan.share).sum())
        blocks *= np.ceil(table[plan.launch, 3] / wide) * split[plan.launch]
        waits = np.ceil(blocks / device["compute_units"]) - 1.0
        time_s = start_s + max(seconds[plan.launch] - start_s, 0.0) * uneven
        out[plan.row][plan.draw] += time_s + waits * device["hbm_latency_s"]
    return out


@dataclass(frozen=True, slots=True)
class _Plan:
    """One grouped GEMM of one draw, as rows of the table of distinct equal-group launches."""

    row: int
    draw: int
    launch: int
    typical: int
    groups: list[int]
    bins: Ints
    """Distinct loads."""
    share: Ints
    """Experts of each of them."""


_SHORTEST_S = 1e-12
