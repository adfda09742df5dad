"""One attention: its tiles, the work-groups that walk over them, and what its passes take."""

import heapq
import math
from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints
from projector.kernels._jit import helper
from projector.kernels.device import (
    BACKWARD_COLUMNS,
    BACKWARD_ROWS,
    BACKWARD_SCALE,
    BASE_HEAD_DIM,
    FORWARD_COLUMNS,
    FORWARD_ROWS,
    FORWARD_SCALE,
    HEAD_DIM,
    MASK_ROWS,
    OPERAND_BYTES,
)

HEAD_DIM_STEP = 32.0
"""Head widths are padded to a multiple of this in registers."""

MAX_BLOCKS = 8192
"""Blocks looked at one by one; of more, runs of neighbours count as their heaviest end."""

LISTED_WAVES = 4.0
"""Waves of work-groups at the end that are given to compute units one by one; those before them
leave no unit idle."""

UNBOUNDED = 1e18
"""Distance to a key that no mask has."""


class Shape(NamedTuple):
    """One attention; query q sees the keys q + low to q + high."""

    batch: float
    heads: float
    key_heads: float
    queries: float
    keys: float
    d_qk: float
    d_v: float
    low: float
    high: float


class Tile(NamedTuple):
    """The tile of one pass at one head width."""

    rows: float
    columns: float
    efficiency: float
    mask_rows: float


class Walk(NamedTuple):
    """The blocks of one head and what each visits.

    Element x of the blocked axis stands at the position x // packed, and meets the elements
    position + low to position + high of the walked axis.
    """

    blocked: float
    block: float
    walked: float
    step: float
    low: float
    high: float
    heavy_last: float
    """1 where the blocks at the end of the axis have the most steps."""
    packed: float
    """Query heads of one key head that share a block, row by row."""
    mask_rows: float
    """Multiple up to which masked elements are visited all the same; 0 means a step."""


class Costs(NamedTuple):
    """Seconds of the parts of a work-group."""

    step: float
    matrix: float
    """Of which matrix instructions."""
    mask: float
    """What a step that is partly masked takes longer."""
    group: float
    """Start and finish of a work-group."""
    longest_first: float
    """1 where the longest groups of all heads start first, not those of one head after another."""
    chain: float
    """Share that shows of the step by which each group of one head starts after the last."""


class Work(NamedTuple):
    """What the blocks of one head add up to, and all heads on the device."""

    steps: float
    masked: float
    blocks: float
    waves: float
    mean_s: float
    makespan_s: float
    costs: Costs


@helper
def block_steps(walk: Walk, block: float, masks: bool) -> tuple[float, float]:
    """Inner steps of one block, and with ``masks`` how many of them are partly masked.

    Steps are the tiles of the walked axis that hold anything visible. Divisions are what this
    takes, so those whose result is known are left out.
    """
    first = block * walk.block
    last = min(first + walk.block, walk.blocked) - 1.0
    if walk.packed != 1.0:
        first, last = np.floor(first / walk.packed), np.floor(last / walk.packed)
    begin, end = max(0.0, first + walk.low), min(walk.walked - 1.0, last + walk.high)
    if end < begin:
        return 0.0, 0.0
    if walk.mask_rows > 0.0 and walk.low == -UNBOUNDED:
        end = min(walk.walked, np.ceil((end + 1.0) / walk.mask_rows) * walk.mask_rows) - 1.0
    steps = np.floor(end / walk.step) + 1.0
    if begin > 0.0:
        steps -= np.floor(begin / walk.step)
    if not masks:
        return steps, 0.0
    whole = np.floor((min(walk.walked - 1.0, first + walk.high) + 1.0) / walk.step)
    if last + walk.low > 0.0:
        whole -= np.ceil((last + walk.low) / walk.step)
    return steps, steps - max(0.0, whole)


@helper
def _last_groups(
    group_s_R: Floats, blocks: float, heads: float, units: float, rising: bool, longest_first: bool
) -> tuple[float, float]:
    """Sum and makespan of the groups that start last; a unit takes one when it has ended its own.

    Whole waves stand before them. ``group_s_R`` has runs of blocks from the heavy end of a head.
    """
    groups, run = blocks * heads, np.ceil(blocks / len(group_s_R))
    before = units * max(0.0, np.floor(groups / units - LISTED_WAVES))
    free = [0.0] * int(units)
    sum_s = end_s = 0.0
    for place in range(int(before), int(groups)):
        block = place // heads if longest_first else place % blocks
        if rising and not longest_first:
            block = blocks - 1.0 - block
        ended_s = free[0] + group_s_R[int(block // run)]
        sum_s += ended_s - free[0]
        end_s = max(end_s, ended_s)
        heapq.heapreplace(free, ended_s)
    return sum_s, end_s


KEPT = 3, 23
"""Rows and columns of the schedules that are kept. A row each: the last forward with whole tiles,
the last with half ones, the last backward. Columns: what it was made from, then its `Work`."""


@helper
def _keep(kept: Floats, values: tuple[float, ...]) -> bool:
    """Write numbers into an array, and say whether they stood there."""
    same = True
    for place, value in enumerate(values):
        same = same and kept[place] == value
        kept[place] = value
    return same


@helper
def _kept_schedule(walk: Walk, heads: float, units: float, costs: Costs, kept: Floats) -> Work:
    """Return `schedule`, made anew only where the one that is kept was made from other numbers."""
    same = _keep(kept[:9], walk)
    same &= _keep(kept[9:15], costs)
    same &= _keep(kept[15:17], (heads, units))
    if not same:
        _keep(kept[17:], schedule(walk, heads, units, costs)[:6])
    return Work(kept[17], kept[18], kept[19], kept[20], kept[21], kept[22], costs)


@helper
def schedule(walk: Walk, heads: float, units: float, costs: Costs) -> Work:
    """Work of one head, and the makespan of all heads.

    The last groups are given out one by one, in the order in which the implementation starts them.
    Nothing ends before its longest group.
    """
    blocks = np.ceil(walk.blocked / walk.block)
    run = max(1.0, np.ceil(blocks / MAX_BLOCKS))
    masks = costs.mask > 0.0
    steps, masked, most_s, done = 0.0, 0.0, 0.0, 0.0
    group_s_R = np.empty(int(np.ceil(blocks / run)))
    while done < blocks:
        length = min(run, blocks - done)
        # The heavy end of the run, counted from the heavy end of the axis.
        block = blocks - 1.0 - done if walk.heavy_last > 0.0 else done
        heavy, partly = block_steps(walk, block, masks)
        group_s = heavy * costs.step + partly * costs.mask + costs.group
        group_s_R[int(done // run)] = group_s
        done += length
        steps += length * heavy
        masked += length * partly
        most_s = max(most_s, group_s)
    mean_s = (steps * costs.step + masked * costs.mask) / blocks + costs.group
    waves = blocks * heads / units
    # In a fixed order the groups of one head that run together start a step apart.
    chained_s = costs.chain * costs.step * (min(blocks, units) - 1.0) * max(1.0, waves)
    makespan_s = mean_s
    if not np.isinf(mean_s):
        sum_s, end_s = _last_groups(
            group_s_R, blocks, heads, units, walk.heavy_last > 0.0, costs.longest_first > 0.0
        )
        makespan_s = max(waves * mean_s - sum_s / units + end_s, most_s)
    makespan_s += chained_s
    return Work(steps, masked, blocks, waves, mean_s, makespan_s, costs)


@helper
def _visible(queries: float, offset: float, ahead: float) -> float:
    """Sum over the queries q of max(0, q + offset + ahead)."""
    top = queries - 1.0 + offset + ahead
    count = min(queries, top)
    return count * top - 0.5 * count * (count - 1.0) if top > 0.0 else 0.0


@helper
def visible_pairs(queries: float, keys: float, low: float, high: float) -> float:
    """Pairs of a query q and a key in q + low .. q + high."""
    below_end = queries * keys
    if high < UNBOUNDED:
        below_end = _visible(queries, high, 1.0) - _visible(queries, high, 1.0 - keys)
    if low == -UNBOUNDED:
        return below_end
    return below_end - (_visible(queries, low, 0.0) - _visible(queries, low, -keys))


@helper
def count_reads(
    streams: float, groups: float, units: float, stream_bytes: float, cache: float
) -> float:
    """How often memory is read for an operand that ``groups`` work-groups walk over.

    Groups that run together walk in step and share one read. Later ones find in the cache what
    fits there beside the other streams in flight.
    """
    waves = max(1.0, groups / units)
    in_flight = min(streams, max(1.0, units / groups)) * stream_bytes
    return 1.0 + (waves - 1.0) * max(0.0, 1.0 - cache / in_flight)


@helper
def padded(width: float) -> float:
    """Return a head width as registers hold it."""
    return float(np.ceil(width / HEAD_DIM_STEP)) * HEAD_DIM_STEP


@helper
def tile_of(device: np.void, d_qk: float, backward: bool) -> Tile:
    """Tile of the narrowest described head width that holds ``d_qk``, else of the widest."""
    found, width, widest = -1, math.inf, BASE_HEAD_DIM
    if d_qk <= BASE_HEAD_DIM:
        width = BASE_HEAD_DIM
    last = -1
    for entry in range(device["num_attention_dims"]):
        head_dim = device["attention_dims"][entry, HEAD_DIM]
        if d_qk <= head_dim < width:
            found, width = entry, head_dim
        if head_dim > widest:
            last, widest = entry, head_dim
    if width == math.inf:
        found = last
    rows, columns = device["attention_forward_rows"], device["attention_forward_columns"]
    efficiency, mask_rows = device["attention_forward_efficiency"], 0.0
    if backward:
        rows, columns = device["attention_backward_rows"], device["attention_backward_columns"]
        efficiency = device["attention_backward_efficiency"]
    if found >= 0:
        entry_row = device["attention_dims"][found]
        if backward:
            rows, columns = entry_row[BACKWARD_ROWS], entry_row[BACKWARD_COLUMNS]
            efficiency *= entry_row[BACKWARD_SCALE]
        else:
            rows, columns = entry_row[FORWARD_ROWS], entry_row[FORWARD_COLUMNS]
            efficiency *= entry_row[FORWARD_SCALE]
            mask_rows = entry_row[MASK_ROWS]
    return Tile(rows, columns, efficiency, mask_rows)


@helper
def step_costs(
    device: np.void, code: int, flop: float, scores: float, vector_ops: float, exposed: float
) -> tuple[float, float, float]:
    """Seconds of one inner step, of its matrix instructions, and of its softmax alone."""
    units = device["compute_units"]
    matrix_s = flop * scores / (device["attention_flop_per_s"][code] / units)
    least_s = scores / (device["attention_exp_per_s"] / units)
    vector_ops /= device["attention_vector_saving"]
    softmax_s = least_s + scores * vector_ops / (device["attention_vector_per_s"] / units)
    return max(matrix_s + exposed * softmax_s, least_s), matrix_s, softmax_s


BOUNDS = ("matrix", "softmax", "memory", "atomics", "overhead")
"""What sets the time of an attention, by code."""

MATRIX, SOFTMAX, MEMORY, ATOMICS, OVERHEAD = range(len(BOUNDS))


class AttentionTerms(NamedTuple):
    """Parts of the time of one attention.

    Compute is the sum of matrix, softmax, mask, tile and idle, each a mean over the compute units;
    time is start + passes + the longer of compute (or atomics) and memory, and ``HIDDEN_LOSS`` of
    the shorter.
    """

    time_s: float
    compute_s: float
    """Makespan of the work-groups."""
    memory_s: float
    atomics_s: float
    passes_s: float
    """Passes over operands before and after."""
    start_s: float
    matrix_s: float
    softmax_s: float
    mask_s: float
    """What steps that are partly masked take longer."""
    tile_s: float
    """Starts and finishes of work-groups."""
    idle_s: float
    groups: float
    """Work-groups."""
    waves: float
    """Of work-groups."""
    rows: float
    """Of a tile."""
    columns: float
    steps_per_group: float
    flop: float
    """Exact ones."""
    bytes: float
    """Of memory beside the compute."""
    pass_bytes: float
    """Of the passes."""


TERMS = AttentionTerms._fields
"""Columns of `attention_terms`."""


HIDDEN_LOSS = 0.1
"""Share of the shorter of compute and traffic that stays visible; a fit over 322 published rows
of mature kernels prefers overlap with this loss to adding (1.5 against 3.8 % median error)."""

MIN_OUTPUT_BYTES = 2.0
"""O and the gradients are stored in 16 bits or more, whatever the type of Q, K and V."""

FP32 = 4.0

FORWARD_VECTOR_OPS = 5.0
"""Vector instructions a score beside its exponential, where each takes one number: scale and
subtract, maximum, sum, convert."""

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
def _forward_work(device: np.void, code: int, shape: Shape, tile: Tile, kept: Floats) -> Work:
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
        shape.queries * packed, tile.rows, shape.keys, tile.columns, shape.low, shape.high,
        1.0, packed, tile.mask_rows,
    )  # fmt: skip
    costs = Costs(
        step_s, matrix_s, device["attention_mask_exposed"] * softmax_s,
        device["attention_tile_overhead_s"], device["attention_longest_first"], 0.0,
    )  # fmt: skip
    return _kept_schedule(walk, heads, device["compute_units"], costs, kept)


@helper
def _forward(device: np.void, code: int, shape: Shape, kept_3K: Floats) -> Parts:
    tile = tile_of(device, shape.d_qk, False)
    work = _forward_work(device, code, shape, tile, kept_3K[0])
    if device["attention_half_efficiency"] > 0.0:
        efficiency = tile.efficiency * device["attention_half_efficiency"]
        half = Tile(0.5 * tile.rows, tile.columns, efficiency, tile.mask_rows)
        spread_out = _forward_work(device, code, shape, half, kept_3K[1])
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
        work.makespan_s, work.costs.step > 2.0 * work.costs.matrix,
        traffic / device["hbm_bytes_per_s"], 0.0, passes_s, device["attention_start_s"],
        tile, work, traffic, passed,
    )  # fmt: skip


class _Traffic(NamedTuple):
    """Bytes of a backward, and the seconds of its atomics."""

    moved: float
    """Beside the compute."""
    passed: float
    """Before and after."""
    atomics_s: float


@helper
def _backward_work(device: np.void, code: int, shape: Shape, tile: Tile, kept: Floats) -> Work:
    flop = 2.0 * (3.0 * padded(shape.d_qk) + 2.0 * padded(shape.d_v)) / tile.efficiency
    exposed = device["attention_backward_softmax_exposed"]
    step_s, matrix_s, softmax_s = step_costs(
        device, code, flop, tile.rows * tile.columns, BACKWARD_VECTOR_OPS, exposed
    )
    walk = Walk(
        blocked=shape.keys, block=tile.columns, walked=shape.queries, step=tile.rows,
        low=-shape.high, high=-shape.low, heavy_last=0.0, packed=1.0, mask_rows=0.0,
    )  # fmt: skip
    costs = Costs(
        step=step_s,
        matrix=matrix_s,
        mask=device["attention_mask_exposed"] * softmax_s,
        group=device["attention_backward_tile_overhead_s"],
        longest_first=device["attention_backward_longest_first"],
        chain=device["attention_dq_order_exposed"],
    )
    heads, units = shape.batch * shape.heads, device["compute_units"]
    return _kept_schedule(walk, heads, units, costs, kept)


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
def _backward(device: np.void, code: int, shape: Shape, kept_3K: Floats) -> Parts:
    tile = tile_of(device, shape.d_qk, True)
    work = _backward_work(device, code, shape, tile, kept_3K[2])
    traffic = _backward_traffic(device, code, shape, tile, work)
    return Parts(
        compute=work.makespan_s, softmax=work.costs.step > 2.0 * work.costs.matrix,
        memory=traffic.moved / device["hbm_bytes_per_s"], atomics=traffic.atomics_s,
        passes=traffic.passed / device["hbm_bytes_per_s"],
        overhead=device["attention_backward_start_s"], tile=tile, work=work,
        bytes=traffic.moved, pass_bytes=traffic.passed,
    )  # fmt: skip


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
    passes_s = passed / device["elementwise_bytes_per_s"]
    start_s = device["attention_start_s"]
    return Parts(compute_s, False, 0.0, 0.0, passes_s, start_s, tile, work, 0.0, passed)


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
    kept_3K: Floats,
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
        terms = _backward(device, code, shape, kept_3K)
    else:
        terms = _forward(device, code, shape, kept_3K)
    busy_s = max(terms.compute, terms.atomics)
    time_s = max(busy_s, terms.memory) + HIDDEN_LOSS * min(busy_s, terms.memory)
    time_s += terms.passes + terms.overhead
    # Whole tiles never fall below the exact work but by rounding.
    flop *= batch * heads * visible_pairs(queries, keys, low, high)
    return max(time_s, flop / device["attention_flop_per_s"][code]), terms, flop
