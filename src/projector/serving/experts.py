"""Time of the experts of one rank: route, permute, two grouped GEMMs, finalise.

How many tokens each routed expert gets follows the distributions that benchmarks state.

Nothing is communicated. ``docs/serving.md`` states what is assumed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from projector.arrays import Floats, Ints, Records
from projector.config.device import Device
from projector.config.device_kernels import ExpertKernels
from projector.config.engine import benchmark_routing
from projector.kernels.device import FIRST_NARROW, MATRIX_TYPES, OPERAND_BYTES
from projector.kernels.grouped import grouped_gemm_time_columns
from projector.lower.hardware import SIXTEEN_BIT_BYTES, expert_kernels, grouped_record
from projector.units import MEGA, MICROSECOND, TB


def balanced_picks(tokens: int, experts: int, topk: int) -> Ints:
    """Return int64[tokens, topk]: token t picks ``(t + j * ceil(experts / topk)) % experts``."""
    stride = -(-experts // topk)
    picks: Ints = (np.arange(tokens)[:, None] + stride * np.arange(topk)[None, :]) % experts
    return picks


def balanced_loads(tokens: int, experts: int, topk: int) -> Ints:
    """Return int64[experts], the tokens of each expert under `balanced_picks`."""
    stride = -(-experts // topk)
    period = tokens // experts + (np.arange(experts) < tokens % experts)
    loads = np.zeros(experts, np.int64)
    for choice in range(topk):
        loads += np.roll(period, stride * choice)
    return loads


def power_law_loads(
    tokens: int, experts: int, topk: int, exponent: float, generator: np.random.Generator
) -> Ints:
    """Return int64[experts], loads of density ``x**-exponent``, scaled to ``tokens * topk``."""
    pairs = tokens * topk
    drawn = benchmark_routing()
    low, high = drawn.sparse_low, drawn.sparse_high
    if pairs > experts:
        low, high = 1.0, drawn.power_law_share * tokens
    uniform = generator.random(experts)
    if exponent == 1.0:
        draw = low * (high / low) ** uniform
    else:
        power = 1.0 - exponent
        draw = (low**power + uniform * (high**power - low**power)) ** (1.0 / power)
    loads = np.minimum(np.floor(draw / draw.sum() * pairs), tokens).astype(np.int64)
    return _hand_out(loads, pairs - int(loads.sum()), tokens)


def random_loads(tokens: int, experts: int, topk: int, generator: np.random.Generator) -> Ints:
    """Return int64[experts], loads of independent tokens that each pick ``topk`` distinct experts.

    All sets of experts are equally likely (R. W. Floyd's sampling, all tokens at a time).
    """
    picks = np.empty((topk, tokens), np.int64)
    for row, last in enumerate(range(experts - topk, experts)):
        drawn = generator.integers(0, last + 1, tokens)
        picks[row] = np.where((picks[:row] == drawn).any(axis=0), last, drawn)
    loads: Ints = np.bincount(picks.reshape(-1), minlength=experts).astype(np.int64)
    return loads


def fullest_rank_first(loads: Ints, ranks: int) -> Ints:
    """Return int64[experts] with the experts of the fullest rank swapped into rank 0."""
    by_rank = loads.reshape(ranks, -1).copy()
    fullest = int(np.argmax(by_rank.sum(axis=1)))
    by_rank[[0, fullest]] = by_rank[[fullest, 0]]
    return by_rank.reshape(-1)


def picks_of_loads(loads: Ints, tokens: int) -> Ints:
    """Return int64[tokens, topk], distinct picks of each token that add up to the loads.

    The experts, fullest first, are dealt to the tokens in turn; a load of at most ``tokens``
    thus never meets a token twice.
    """
    order = np.argsort(-loads, kind="stable")
    return np.repeat(order, loads[order]).reshape(-1, tokens).T


def group_limited_loads(picks: Ints, experts: int) -> Ints:
    """Return int64[experts] after group-limited routing of scores that are one at the picks.

    A token keeps the groups with the largest sum of its two best scores and picks among their
    experts; equal scores go to the lowest index. With groups of one expert that sum is the same
    for all.
    """
    tokens, topk = picks.shape
    wanted = np.zeros((tokens, experts), np.bool_)
    wanted[np.arange(tokens)[:, None], picks] = True
    drawn = benchmark_routing()
    score = np.minimum(wanted.reshape(tokens, drawn.groups, -1).sum(axis=2), 2)
    if experts == drawn.groups:
        score[:] = 0
    kept_groups = np.argsort(-score, axis=1, kind="stable")[:, : drawn.kept_groups]
    in_kept_group = np.zeros((tokens, drawn.groups), np.bool_)
    in_kept_group[np.arange(tokens)[:, None], kept_groups] = True
    allowed = np.repeat(in_kept_group, experts // drawn.groups, axis=1)
    hit = wanted & allowed
    rest = allowed & ~wanted
    missing = topk - hit.sum(axis=1, keepdims=True)
    filled = rest & (np.cumsum(rest, axis=1, dtype=np.int32) <= missing)
    loads: Ints = (hit | filled).sum(axis=0).astype(np.int64)
    return loads


def _hand_out(loads: Ints, left: int, limit: int) -> Ints:
    """Add ``left`` to the loads, one by one and in turn, none above ``limit``."""
    while left > 0:
        free = np.flatnonzero(loads < limit)
        if len(free) == 0:
            break
        share = left // len(free)
        if share == 0:
            loads[free[:left]] += 1
            break
        room = np.minimum(share, limit - loads[free])
        loads[free] += room
        left -= int(room.sum())
    return loads


GEMMS = 2


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """The part of a mixture-of-experts layer that one rank computes."""

    device: Device
    hidden: int
    inner: int
    """Width of an expert on this rank."""
    gated: bool
    experts: int
    topk: int
    dtype: str
    """Matrix type of the grouped GEMMs, native to the device."""
    weights: str = ""
    """Type that the weights are stored in where it is another one; they are widened on their
    way."""
    one_kernel: bool = False
    """Both GEMMs in one kernel, where the device has such a kernel."""
    gemms_alone: bool = False
    """Without routing, sorting, permutation and quantising, as tuners of kernels time them."""
    block_scaled: bool = False
    """FP8 with a scale for every 128 elements, quantised in passes of its own."""
    fused: bool = False
    """Low-latency kernels: activation and finalising are fused into the GEMMs."""
    release: str = ""
    """Release of the library, where an older one ran other kernels."""

    @property
    def kernels(self) -> ExpertKernels:
        """Constants of the kernels that run."""
        return expert_kernels(self.device, self.kernel_name, self.release)

    @property
    def kernel_name(self) -> str:
        """Key of ``expert_layer.kernels`` that the kernels are looked up by."""
        name = self.dtype if not self.weights else f"{self.weights}_{self.dtype}"
        if self.block_scaled and not name.endswith("_block"):
            name += "_block"
        elif self.fused:
            name += "_low_latency"
        if self.one_kernel and f"{name}_one" in self.device.expert_layer.kernels:
            name += "_one"
        return name


def expert_layer_times(
    layers: Sequence[ExpertLayer], tokens: Sequence[int], loads: Sequence[Ints]
) -> Floats:
    """Return the mean seconds of each layer over the draws of its loads, float64[layers].

    ``tokens`` are routed, those without a pick on this rank included. ``loads``, int64[draws, local
    experts] for each layer, are the tokens of each expert of this rank.
    """
    gemm_s = _grouped_gemms(layers, tokens, loads)
    out = np.empty(len(layers))
    for row, layer in enumerate(layers):
        each_s = layer.kernels.start_us * MICROSECOND + gemm_s[row] + _sum_s(layer, loads[row])
        if not layer.gemms_alone:
            each_s += _routing_s(layer, tokens[row]) + _passes_s(layer, tokens[row], loads[row])
        out[row] = each_s.mean()
    return out


def _sum_s(layer: ExpertLayer, loads: Ints) -> Floats:
    """Return float64[draws], what adding up the results of fused GEMMs takes.

    A kernel that runs both GEMMs adds a part for each slice of an expert that it takes.
    """
    kernels, device = layer.kernels, layer.device
    pairs = loads.sum(axis=1).astype(np.float64)
    if not kernels.fuses or kernels.sum_efficiency is None:
        return np.zeros(len(pairs))
    slices = -(-layer.inner // kernels.slice_columns) if kernels.slice_columns else 1
    rate = device.hbm_peak_tb_per_s * kernels.sum_efficiency * TB
    seconds: Floats = pairs * (slices * SIXTEEN_BIT_BYTES * layer.hidden / rate)
    return seconds


def _pass_s(layer: ExpertLayer, num_bytes: Floats | float, elements: Floats | float) -> Floats:
    """Seconds of passes over rows: the memory and the compute units, one after the other."""
    device = layer.device
    clocks = device.compute_units * device.peak_clock_mhz * MEGA
    memory = device.hbm_peak_tb_per_s * device.hbm_efficiency * TB
    units_s = elements / (layer.kernels.pass_elements_per_clk_per_cu * clocks)
    return np.asarray(num_bytes / memory + units_s)


def _routing_s(layer: ExpertLayer, tokens: int) -> float:
    """Seconds to pick experts for all tokens of the group and to sort the picks."""
    costs, device = layer.device.expert_layer, layer.device
    scores, picks = float(tokens * layer.experts), float(tokens * layer.topk)
    clocks = device.compute_units * device.peak_clock_mhz * MEGA
    sort_s = costs.sort_unit_clk * picks / clocks + costs.routing_start_us * MICROSECOND
    if layer.topk <= costs.fused_router_topk and layer.experts <= costs.fused_router_experts:
        # A score is read once in FP32 and then compared; picks and weights are small beside it.
        return sort_s + float(_pass_s(layer, 4.0 * scores, 4.0 * scores))
    unfused_s = costs.unfused_router_us * MICROSECOND
    return sort_s + unfused_s + costs.unfused_router_unit_clk * scores / clocks


def _passes_s(layer: ExpertLayer, tokens: int, loads: Ints) -> Floats:
    """Return float64[draws], the passes over rows; 16-bit activations come in and go out."""
    code = MATRIX_TYPES.index(layer.dtype)
    kernels, blocks = layer.kernels, layer.block_scaled
    operand = float(OPERAND_BYTES[code])
    rows = float(tokens * layer.hidden)
    pairs = loads.sum(axis=1).astype(np.float64)
    arriving, inner = pairs * layer.hidden, pairs * layer.inner
    # Bytes and elements of everything but the activation.
    moved, elements = np.zeros(len(pairs)), np.zeros(len(pairs))
    fuses = layer.fused or kernels.fuses
    wide = code < FIRST_NARROW or (blocks and not fuses)
    if not wide:
        moved += (2.0 + operand) * rows
        elements += 2.0 * rows
    if fuses:
        # The GEMMs gather their rows themselves, apply the activation and finalise; two kernels
        # without low latency leave their activations to be quantised in between.
        if not (wide or layer.fused or kernels.slice_columns):
            moved += (2.0 + operand) * inner
            elements += 2.0 * inner
        return _pass_s(layer, moved, elements)
    moved += 2.0 * (2.0 if wide else operand) * arriving + 2.0 * arriving + 2.0 * rows
    elements += 2.0 * arriving + arriving + rows
    if blocks:
        moved += (2.0 + operand) * arriving
        elements += 2.0 * arriving
    if kernels.gathers:
        moved += 4.0 * arriving
        elements += 2.0 * arriving
    apart = blocks and kernels.quantises_apart
    activated = (2.0 * (1 + layer.gated) + (2.0 if apart else operand)) * inner
    if apart:
        moved += (2.0 + operand) * inner
        elements += 2.0 * inner
    activation_s = _pass_s(layer, activated, (2.0 + layer.gated) * inner)
    few = benchmark_routing().few_experts
    longest = loads.max(axis=1, initial=0) * (2.0 if loads.shape[1] < few else 1.0)
    uneven_s = kernels.fullest_expert_clk * longest / (layer.device.peak_clock_mhz * MEGA)
    passes_s: Floats = _pass_s(layer, moved, elements) + np.maximum(activation_s, uneven_s)
    return passes_s


def tuned_rows(layer: ExpertLayer, tokens: int) -> int:
    """Rows of an expert that the tile was tuned for, 0 where it is picked for the loads."""
    if not layer.kernels.tuned or tokens == 0:
        return 0
    most = min(tokens, layer.device.expert_layer.tuned_tokens)
    below = 1 << (most.bit_length() - 1)
    return -(-below * layer.topk // layer.experts)


def _launches(layer: ExpertLayer) -> tuple[list[tuple[int, int]], Records]:
    """Return (n, k) of both launches and GROUPED[2]; one kernel leaves the second empty."""
    kernels, projections = layer.kernels, 1 + layer.gated
    kind = "fp8_block" if layer.block_scaled else layer.dtype
    record = grouped_record(layer.device, layer.dtype, kernels, weights=layer.weights, kind=kind)
    records = np.concatenate([record] * GEMMS)
    if kernels.slice_columns:
        # A unit takes rows in once, multiplies by a slice of all weights, and adds up the results.
        records["num_column_tiles"], records["column_tiles"][:, 0] = 1, kernels.slice_columns
        records["row_share"], records["output_bytes"] = 1.0 / (projections + 1), 0.0
        return [(layer.inner, layer.hidden * (projections + 1)), (0, 0)], records
    if kernels.fuses:
        # The activation goes out, and the sums are counted apart.
        records["output_bytes"] = SIXTEEN_BIT_BYTES / projections, 0.0
    return [(layer.inner * projections, layer.hidden), (layer.hidden, layer.inner)], records


def _grouped_gemms(
    layers: Sequence[ExpertLayer], tokens: Sequence[int], loads: Sequence[Ints]
) -> list[Floats]:
    """Return for each layer float64[draws], both grouped GEMMs."""
    if not layers:
        return []
    draws = np.array([len(item) for item in loads])
    sizes = np.concatenate([np.full(len(item), item.shape[1]) for item in loads])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    launches = [_launches(item) for item in layers]
    extents = np.array([extent for extent, _ in launches])
    classes = np.concatenate([records for _, records in launches])
    tuned = np.array([tuned_rows(*item) for item in zip(layers, tokens, strict=True)])
    row = np.repeat(np.arange(len(layers)), draws)
    sets = np.arange(len(row))
    seconds, _ = grouped_gemm_time_columns(
        offsets, np.concatenate([item.reshape(-1) for item in loads]), np.repeat(sets, GEMMS),
        extents[row].reshape(-1, 2), np.repeat(tuned[row], GEMMS),
        (GEMMS * row[:, None] + np.arange(GEMMS)).reshape(-1), classes,
    )  # fmt: skip
    return np.split(seconds.reshape(-1, GEMMS).sum(axis=1), np.cumsum(draws)[:-1])
