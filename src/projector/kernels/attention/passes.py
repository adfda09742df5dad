"""Forward, backward and unfused attention: what their parts take."""

from typing import NamedTuple

import numpy as np

from projector.arrays import Ints
from projector.kernels._jit import helper
from projector.kernels.attention.terms import ATOMICS, MATRIX, MEMORY, OVERHEAD, SOFTMAX
from projector.kernels.attention.tiles import (
    UNBOUNDED,
    Costs,
    Shape,
    Tile,
    Walk,
    Work,
    count_reads,
    padded,
    schedule,
    step_costs,
    tile_of,
    visible_pairs,
)
from projector.kernels.device import OPERAND_BYTES

HIDDEN_LOSS = 0.1
"""Share of the shorter of compute and traffic that stays visible; a fit over 322 published rows
of mature kernels prefers overlap with this loss to adding (1.5 against 3.8 % median error)."""

MIN_OUTPUT_BYTES = 2.0
"""O and the gradients are stored in 16 bits or more, whatever the type of Q, K and V."""

FP32 = 4.0

FORWARD_VECTOR_OPS = 5.0
"""Vector instructions a score beside its exponential: scale and subtract, maximum, sum, convert."""

BACKWARD_VECTOR_OPS = 8.0
"""The same backward: recomputing P, and dS = P * (dP - delta), both converted."""


class Parts(NamedTuple):
    """Parts of one attention."""

    compute: float
    """Makespan of the work-groups [s]."""
    softmax: bool
    """Whether a step spends more time on exponentials than on matrix instructions."""
    memory: float
    atomics: float
    passes: float
    """Passes over operands before and after [s]."""
    overhead: float
    tile: Tile
    work: Work
    bytes: float
    pass_bytes: float


@helper
def _forward_work(device: np.void, code: int, shape: Shape, tile: Tile) -> Work:
    flop = 2.0 * (padded(shape.d_qk) + padded(shape.d_v)) / tile.efficiency
    scores = tile.rows * tile.columns
    # The running maximum moves at every step, and O with it.
    vector_ops = FORWARD_VECTOR_OPS + shape.d_v / tile.columns
    step_s, matrix_s, softmax_s = step_costs(
        device, code, flop, scores, vector_ops, device["attention_softmax_exposed"]
    )
    packed, heads = 1.0, shape.batch * shape.heads
    if device["attention_packs_heads"] > 0.0:
        packed, heads = shape.heads / shape.key_heads, shape.batch * shape.key_heads
    walk = Walk(
        shape.queries * packed,
        tile.rows,
        shape.keys,
        tile.columns,
        shape.low,
        shape.high,
        True,
        packed,
        tile.mask_rows,
    )
    costs = Costs(
        step_s,
        matrix_s,
        device["attention_mask_exposed"] * softmax_s,
        device["attention_tile_overhead_s"],
        device["attention_tail"],
        0.0,
    )
    return schedule(walk, heads, device["compute_units"], costs)


@helper
def _forward(device: np.void, code: int, shape: Shape) -> Parts:
    tile = tile_of(device, shape.d_qk, False)
    work = _forward_work(device, code, shape, tile)
    if device["attention_half_efficiency"] > 0.0:
        efficiency = tile.efficiency * device["attention_half_efficiency"]
        half = Tile(0.5 * tile.rows, tile.columns, efficiency, tile.mask_rows)
        spread_out = _forward_work(device, code, shape, half)
        if spread_out.makespan_s < work.makespan_s:
            tile, work = half, spread_out

    heads = shape.batch * shape.heads
    operand, output = OPERAND_BYTES[code], max(MIN_OUTPUT_BYTES, OPERAND_BYTES[code])
    widths = shape.d_qk + shape.d_v
    streams = shape.batch * shape.key_heads
    stream_bytes = (shape.keys - max(0.0, shape.low)) * widths * operand
    groups = np.ceil(shape.queries / tile.rows) * shape.heads / shape.key_heads
    reads = 1.0
    if shape.low == -UNBOUNDED:
        cache = max(device["l2_bytes"], device["mall_bytes"])
        reads = count_reads(streams, groups, device["compute_units"], stream_bytes, cache)
    traffic = heads * shape.queries * (shape.d_qk * operand + shape.d_v * output + FP32)
    traffic += streams * stream_bytes * reads

    # Rotary positions, the append to a paged cache and the like see the 16-bit operands.
    new = min(shape.queries, shape.keys)
    passed = device["attention_query_passes"] * heads * shape.queries * shape.d_qk * output
    passed += device["attention_key_passes"] * streams * new * widths * output
    passes_s = passed / device["hbm_bytes_per_s"]
    passes_s += device["attention_token_s"] * shape.batch * new
    return Parts(
        work.makespan_s,
        work.costs.step > 2.0 * work.costs.matrix,
        traffic / device["hbm_bytes_per_s"],
        0.0,
        passes_s,
        device["attention_start_s"],
        tile,
        work,
        traffic,
        passed,
    )


class _Traffic(NamedTuple):
    """Bytes of a backward, and the seconds of its atomics."""

    moved: float
    """Beside the compute."""
    passed: float
    """Before and after."""
    atomics_s: float


@helper
def _backward_work(device: np.void, code: int, shape: Shape, tile: Tile) -> Work:
    flop = 2.0 * (3.0 * padded(shape.d_qk) + 2.0 * padded(shape.d_v)) / tile.efficiency
    exposed = device["attention_backward_softmax_exposed"]
    step_s, matrix_s, softmax_s = step_costs(
        device, code, flop, tile.rows * tile.columns, BACKWARD_VECTOR_OPS, exposed
    )
    walk = Walk(
        blocked=shape.keys,
        block=tile.columns,
        walked=shape.queries,
        step=tile.rows,
        low=-shape.high,
        high=-shape.low,
        heavy_last=False,
        packed=1.0,
        mask_rows=0.0,
    )
    costs = Costs(
        step=step_s,
        matrix=matrix_s,
        mask=device["attention_mask_exposed"] * softmax_s,
        group=device["attention_backward_tile_overhead_s"],
        tail=device["attention_backward_tail"],
        chain=device["attention_dq_order_exposed"],
    )
    return schedule(walk, shape.batch * shape.heads, device["compute_units"], costs)


@helper
def _backward_traffic(device: np.void, code: int, shape: Shape, tile: Tile, work: Work) -> _Traffic:
    heads, units = shape.batch * shape.heads, device["compute_units"]
    operand, output = OPERAND_BYTES[code], max(MIN_OUTPUT_BYTES, OPERAND_BYTES[code])
    widths = shape.d_qk + shape.d_v
    stream_bytes = shape.queries * (shape.d_qk * operand + shape.d_v * output)
    groups = np.ceil(shape.keys / tile.columns)
    reads = 1.0
    if shape.low == -UNBOUNDED:
        cache = max(device["l2_bytes"], device["mall_bytes"])
        reads = count_reads(heads, groups, units, stream_bytes, cache)
    query_rows = heads * shape.queries
    # Q and dO, walked over, and the statistics of a row; K and V in; dK and dV out for every
    # query head.
    traffic = heads * stream_bytes * reads + query_rows * 2.0 * FP32
    traffic += shape.batch * shape.key_heads * shape.keys * widths * operand
    traffic += heads * shape.keys * widths * output
    # The pass before takes O and dO to delta.
    passed = query_rows * (2.0 * shape.d_v * output + FP32)
    if shape.heads > shape.key_heads:
        # The pass after adds up dK and dV of the heads that share a key head.
        passed += shape.batch * (shape.heads + shape.key_heads) * shape.keys * widths * output
    atomics_s = 0.0
    if device["attention_atomic_bytes_per_s"] > 0.0:
        # dQ is cleared before, read and written by the adds in FP32, and converted after.
        passed += query_rows * shape.d_qk * (2.0 * FP32 + output)
        traffic += query_rows * shape.d_qk * 2.0 * FP32
        added = heads * work.steps * tile.rows * shape.d_qk * FP32
        writers = min(work.blocks, units) - 1.0
        slowed = 1.0 + device["attention_atomic_contention"] * writers
        atomics_s = added * slowed / device["attention_atomic_bytes_per_s"]
    else:
        traffic += query_rows * shape.d_qk * output
    return _Traffic(traffic, passed, atomics_s)


@helper
def _backward(device: np.void, code: int, shape: Shape) -> Parts:
    tile = tile_of(device, shape.d_qk, True)
    work = _backward_work(device, code, shape, tile)
    traffic = _backward_traffic(device, code, shape, tile, work)
    return Parts(
        compute=work.makespan_s,
        softmax=work.costs.step > 2.0 * work.costs.matrix,
        memory=traffic.moved / device["hbm_bytes_per_s"],
        atomics=traffic.atomics_s,
        passes=traffic.passed / device["hbm_bytes_per_s"],
        overhead=device["attention_backward_start_s"],
        tile=tile,
        work=work,
        bytes=traffic.moved,
        pass_bytes=traffic.passed,
    )


@helper
def _unfused(device: np.void, code: int, shape: Shape, score_passes: float, flop: float) -> Parts:
    """Its matrix products, whole whatever the mask, and its passes over the scores in 16 bits."""
    tile = tile_of(device, shape.d_qk, False)
    heads = shape.batch * shape.heads
    scores = heads * shape.queries * shape.keys
    compute_s = flop * scores / (device["attention_flop_per_s"][code] * tile.efficiency)
    costs = Costs(compute_s, compute_s, 0.0, 0.0, 0.0, 0.0)
    work = Work(1.0, 0.0, 1.0, 1.0, compute_s, compute_s, costs)
    output = max(MIN_OUTPUT_BYTES, OPERAND_BYTES[code])
    passed = score_passes * scores * output
    passed += heads * (shape.queries + shape.keys) * (shape.d_qk + shape.d_v) * output
    return Parts(
        compute_s,
        False,
        0.0,
        0.0,
        passed / device["elementwise_bytes_per_s"],
        device["attention_start_s"],
        tile,
        work,
        0.0,
        passed,
    )


@helper
def find_bound(terms: Parts) -> int:
    """Name the longest part."""
    memory_s = max(terms.memory, terms.passes)
    longest_s = max(terms.compute, memory_s, terms.atomics)
    if terms.overhead > longest_s:
        return OVERHEAD
    if terms.compute == longest_s:
        return SOFTMAX if terms.softmax else MATRIX
    return MEMORY if memory_s == longest_s else ATOMICS


@helper
def time_parts(
    extents: Ints,
    causal: bool,
    window: float,
    backward: bool,
    code: int,
    device: np.void,
) -> tuple[float, Parts, float]:
    """Seconds of one attention without zero extents, its terms, and its exact FLOP."""
    batch, heads = float(extents[0]), float(extents[1])
    key_heads = float(extents[2])
    queries, keys = float(extents[3]), float(extents[4])
    d_qk, d_v = float(extents[5]), float(extents[6])
    offset = keys - queries
    low = offset - window + 1.0 if window > 0.0 else -UNBOUNDED
    high = offset + window - 1.0 if window > 0.0 else UNBOUNDED
    high = offset if causal else high
    shape = Shape(batch, heads, key_heads, queries, keys, d_qk, d_v, low, high)
    flop = 2.0 * (3.0 * d_qk + 2.0 * d_v) if backward else 2.0 * (d_qk + d_v)
    score_passes = device["attention_backward_score_passes"]
    if not backward:
        score_passes = device["attention_forward_score_passes"]
    if score_passes > 0.0:
        # Unfused attention kept its scores: the backward multiplies four times.
        if not backward and (causal or window > 0.0):
            score_passes += device["attention_mask_score_passes"]
        products = 2.0 * (2.0 * d_qk + 2.0 * d_v) if backward else flop
        terms = _unfused(device, code, shape, score_passes, products)
        flop = products
    elif backward:
        terms = _backward(device, code, shape)
    else:
        terms = _forward(device, code, shape)
    busy_s = max(terms.compute, terms.atomics)
    time_s = max(busy_s, terms.memory) + HIDDEN_LOSS * min(busy_s, terms.memory)
    time_s += terms.passes + terms.overhead
    # Whole tiles never fall below the exact work but by rounding.
    flop *= batch * heads * visible_pairs(queries, keys, low, high)
    return max(time_s, flop / device["attention_flop_per_s"][code]), terms, flop
