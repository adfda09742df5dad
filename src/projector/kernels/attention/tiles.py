"""One attention, its tiles, and the makespan of the work-groups that walk over them."""

import math
from typing import NamedTuple

import numpy as np

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
)

HEAD_DIM_STEP = 32.0
"""Head widths are padded to a multiple of this in registers."""

MAX_BLOCKS = 8192
"""Blocks looked at one by one; of more, runs of neighbours count as their heaviest end."""

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
    heavy_last: bool
    """Whether the blocks at the end of the axis have the most steps."""
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
    tail: float
    """Share of a mean group by which uneven groups end apart."""
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
def schedule(walk: Walk, heads: float, units: float, costs: Costs) -> Work:
    """Work of one head, and the makespan of all heads.

    Equal groups run in whole waves. Uneven ones (causal) fill each other's gaps but for the last
    of them: their ends lie apart by a share of a mean group that depends on the order in which
    the implementation starts them. Nothing ends before its longest group, nor after waves of it.
    """
    blocks = np.ceil(walk.blocked / walk.block)
    run = max(1.0, np.ceil(blocks / MAX_BLOCKS))
    masks = costs.mask > 0.0
    steps, masked, most_s, done = 0.0, 0.0, 0.0, 0.0
    while done < blocks:
        length = min(run, blocks - done)
        # The heavy end of the run, counted from the heavy end of the axis.
        block = blocks - 1.0 - done if walk.heavy_last else done
        heavy, partly = block_steps(walk, block, masks)
        done += length
        steps += length * heavy
        masked += length * partly
        most_s = max(most_s, heavy * costs.step + partly * costs.mask)
    mean_s = (steps * costs.step + masked * costs.mask) / blocks
    spread = min(1.0, 2.0 * (most_s - mean_s) / most_s) if most_s > 0.0 else 0.0
    mean_s += costs.group
    waves = blocks * heads / units
    idle = (1.0 - spread) * (np.ceil(waves) - waves) + spread * costs.tail * min(1.0, waves)
    # In a fixed order the groups of one head that run together start a step apart.
    chained_s = costs.chain * costs.step * (min(blocks, units) - 1.0) * max(1.0, waves)
    longest_s = most_s + costs.group
    makespan_s = min(max((waves + idle) * mean_s, longest_s), np.ceil(waves) * longest_s)
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
    softmax_s = least_s + scores * vector_ops / (device["attention_vector_per_s"] / units)
    return max(matrix_s + exposed * softmax_s, least_s), matrix_s, softmax_s
