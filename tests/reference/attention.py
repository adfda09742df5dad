"""Plain-Python times of attention, tile by tile."""

import heapq
import math

from reference.gemm import operand_bytes

INFINITY = float("inf")

FORWARD_OPS, BACKWARD_OPS = 5, 8
"""Vector instructions of a score beside its exponential."""


def span(queries, keys, causal, window):
    """Least and greatest key - query that is visible."""
    offset = keys - queries
    low = offset - window + 1 if window else -INFINITY
    if causal:
        return low, offset
    return low, offset + window - 1 if window else INFINITY


def visible_pairs(queries, keys, causal, window):
    low, high = span(queries, keys, causal, window)
    return sum(max(0, min(keys - 1, q + high) - max(0, q + low) + 1) for q in range(queries))


def block_steps(blocked, block, walked, step, low, high, packed=1, mask_rows=0):
    """For each block of one axis, the tiles of the other that it visits, and those it masks.

    ``packed`` elements of the blocked axis stand at each position. A tile is visited where it
    holds a visible pair, and masked where it holds another or reaches beyond the end.
    """
    counts, element = [], 0
    while element < blocked * packed:
        first = int(element // packed)
        last = int((min(element + block, blocked * packed) - 1) // packed)
        visited = masked = 0
        seen = False
        limit = -1
        if mask_rows:
            limit = math.ceil((min(walked - 1, last + high) + 1) / mask_rows) * mask_rows - 1
        for y in range(0, walked, step):
            last_y = min(y + step, walked) - 1
            # The differences y - x of a tile are the integers from one corner to the other.
            visible = last_y - first >= low and y - last <= high
            whole = y + step <= walked and y - last >= low and last_y - first <= high
            seen = seen or visible
            if visible or (seen and y <= limit):
                visited += 1
                masked += not whole
        counts.append((visited, masked))
        element += block
    return counts


def makespan(groups_s, heads, units, order=None):
    """End of the last of all groups, of which the last four waves are given out one by one.

    Heads follow one another, or with an ``order`` all heads start their groups of one kind in turn.
    """
    in_order = groups_s * int(heads)
    if order:
        in_order = [group_s for group_s in order for _ in range(int(heads))]
    before = int(units) * max(0, len(in_order) // int(units) - 4)
    last = in_order[before:]
    busy_s = heads * math.fsum(groups_s) - math.fsum(last)
    return max(busy_s / units + list_schedule(last, units), *groups_s)


def list_schedule(groups_s, units):
    """Makespan of groups that start in this order, each on the first unit that is free."""
    free = [0.0] * int(units)
    for group_s in groups_s:
        heapq.heapreplace(free, free[0] + group_s)
    return max(free)


def padded(width):
    return math.ceil(width / 32) * 32


def tile_of(backward, d_qk, device):
    """Rows, columns, efficiency and mask_rows at the narrowest described width that holds d_qk."""
    rows, columns = device["attention_forward_rows"], device["attention_forward_columns"]
    efficiency = device["attention_forward_efficiency"]
    if backward:
        rows, columns = device["attention_backward_rows"], device["attention_backward_columns"]
        efficiency = device["attention_backward_efficiency"]
    menu = {128: (rows, columns, efficiency, 0)}
    for width, *others in device["attention_dims"]:
        f_rows, f_columns, b_columns, b_rows, f_scale, b_scale, mask_rows = others
        menu[width] = (f_rows, f_columns, efficiency * f_scale, 0 if backward else mask_rows)
        if backward:
            menu[width] = (b_rows, b_columns, efficiency * b_scale, 0)
    wide_enough = [width for width in menu if width >= d_qk]
    return menu[min(wide_enough) if wide_enough else max(menu)]


def inner_step_s(backward, d_qk, d_v, tile, code, device):
    """Seconds of a step, and of its softmax."""
    rows, columns, efficiency, _ = tile
    flop = 2 * (padded(d_qk) + padded(d_v))
    if backward:
        flop = 2 * (3 * padded(d_qk) + 2 * padded(d_v))
    scores, units = rows * columns, device["compute_units"]
    matrix_s = flop * scores * units / device["attention_flop_per_s"][code] / efficiency
    exponentials_s = scores * units / device["attention_exp_per_s"]
    operations = BACKWARD_OPS if backward else FORWARD_OPS + d_v / columns
    operations /= device["attention_vector_saving"]
    softmax_s = exponentials_s + scores * operations * units / device["attention_vector_per_s"]
    prefix = "attention_backward" if backward else "attention"
    step_s = matrix_s + device[f"{prefix}_softmax_exposed"] * softmax_s
    return max(step_s, exponentials_s), softmax_s


def reads(streams, groups, stream_bytes, device):
    """How often a stream that ``groups`` work-groups walk over comes out of memory."""
    units = device["compute_units"]
    cache = max(device["l2_bytes"], device["mall_bytes"])
    in_flight = min(streams, max(1, units / groups)) * stream_bytes
    missing = max(0, in_flight - cache) / in_flight
    return 1 + max(0, groups / units - 1) * missing


def forward_parts(shape, causal, window, code, device):
    """Seconds of the work-groups, of memory beside them, of passes before, and of the start."""
    batch, heads, key_heads, queries, keys, d_qk, d_v = shape
    low, high = span(queries, keys, causal, window)
    units, overhead_s = device["compute_units"], device["attention_tile_overhead_s"]
    packed = heads // key_heads if device["attention_packs_heads"] else 1

    def busy(tile):
        rows, columns, _, mask_rows = tile
        step_s, softmax_s = inner_step_s(False, d_qk, d_v, tile, code, device)
        mask_s = device["attention_mask_exposed"] * softmax_s
        mask_rows = 0 if window else mask_rows
        counts = block_steps(queries, rows, keys, int(columns), low, high, packed, mask_rows)
        groups_s = [steps * step_s + masked * mask_s + overhead_s for steps, masked in counts]
        order = groups_s[::-1] if device["attention_longest_first"] else None
        return makespan(groups_s, batch * heads // packed, units, order)

    tile = tile_of(False, d_qk, device)
    busy_s = busy(tile)
    if device["attention_half_efficiency"]:
        half = (tile[0] / 2, tile[1], tile[2] * device["attention_half_efficiency"], tile[3])
        if busy(half) < busy_s:
            tile, busy_s = half, busy(half)

    stored, loaded = max(2, operand_bytes(code)), operand_bytes(code)
    stream = (keys - max(0, low)) * (d_qk + d_v) * loaded
    times = 1
    if not window:
        per_stream = math.ceil(queries / tile[0]) * heads / key_heads
        times = reads(batch * key_heads, per_stream, stream, device)
    query_rows = batch * heads * queries
    moved = query_rows * (d_qk * loaded + d_v * stored + 4) + batch * key_heads * stream * times
    new = min(queries, keys)
    passed = device["attention_query_passes"] * query_rows * d_qk
    passed += device["attention_key_passes"] * batch * key_heads * new * (d_qk + d_v)
    passes_s = passed * stored / device["hbm_bytes_per_s"]
    passes_s += batch * new * device["attention_token_s"]
    return busy_s, moved / device["hbm_bytes_per_s"], passes_s, device["attention_start_s"]


def backward_parts(shape, causal, window, code, device):
    """The same, with the atomics beside the work-groups."""
    batch, heads, key_heads, queries, keys, d_qk, d_v = shape
    low, high = span(queries, keys, causal, window)
    units = device["compute_units"]
    tile = tile_of(True, d_qk, device)
    rows, columns, *_ = tile
    step_s, softmax_s = inner_step_s(True, d_qk, d_v, tile, code, device)
    mask_s = device["attention_mask_exposed"] * softmax_s
    counts = block_steps(keys, int(columns), queries, int(rows), -high, -low)
    overhead_s = device["attention_backward_tile_overhead_s"]
    groups_s = [steps * step_s + masked * mask_s + overhead_s for steps, masked in counts]
    order = groups_s if device["attention_backward_longest_first"] else None
    busy_s = makespan(groups_s, batch * heads, units, order)
    waves = len(counts) * batch * heads / units
    writers = min(len(counts), units)
    busy_s += device["attention_dq_order_exposed"] * step_s * (writers - 1) * max(1, waves)

    stored, loaded = max(2, operand_bytes(code)), operand_bytes(code)
    widths, query_rows = d_qk + d_v, batch * heads * queries
    stream = queries * (d_qk * loaded + d_v * stored)
    times = 1 if window else reads(batch * heads, len(counts), stream, device)
    moved = [
        batch * heads * stream * times,
        2 * 4 * query_rows,  # statistics in
        batch * key_heads * keys * widths * loaded,
        batch * heads * keys * widths * stored,  # dK and dV of every query head
    ]
    passed = [2 * query_rows * d_v * stored, 4 * query_rows]  # O and dO to delta
    if heads > key_heads:
        passed.append(batch * heads * keys * widths * stored)
        passed.append(batch * key_heads * keys * widths * stored)
    rate = device["attention_atomic_bytes_per_s"]
    if rate:
        moved.append(2 * 4 * query_rows * d_qk)
        passed.append((4 + 4 + stored) * query_rows * d_qk)  # clear, then convert
        added = 4 * batch * heads * sum(steps for steps, _ in counts) * rows * d_qk
        slowed = 1 + device["attention_atomic_contention"] * (writers - 1)
        busy_s = max(busy_s, added * slowed / rate)
    else:
        moved.append(query_rows * d_qk * stored)
    memory = device["hbm_bytes_per_s"]
    start_s = device["attention_backward_start_s"]
    return busy_s, sum(moved) / memory, sum(passed) / memory, start_s


def unfused_parts(shape, masked, backward, code, device):
    """Whole products, then passes over the scores in memory."""
    batch, heads, _, queries, keys, d_qk, d_v = shape
    products = 4 if backward else 2
    scores = batch * heads * queries * keys
    efficiency = tile_of(False, d_qk, device)[2]
    busy_s = products * scores * (d_qk + d_v) / device["attention_flop_per_s"][code] / efficiency
    times = device[f"attention_{'backward' if backward else 'forward'}_score_passes"]
    if masked and not backward:
        times += device["attention_mask_score_passes"]
    passed = times * scores + batch * heads * (queries + keys) * (d_qk + d_v)
    passes_s = passed * max(2, operand_bytes(code)) / device["elementwise_bytes_per_s"]
    return busy_s, 0.0, passes_s, device["attention_start_s"]


def attention_time(shape, causal, window, backward, code, device):
    if 0 in shape:
        return 0.0
    batch, heads, _, queries, keys, d_qk, d_v = shape
    unfused = "attention_backward_score_passes" if backward else "attention_forward_score_passes"
    per_pair = 2 * (d_qk + d_v)
    if device[unfused]:
        parts = unfused_parts(shape, causal or window > 0, backward, code, device)
        per_pair *= 2 if backward else 1
    elif backward:
        parts = backward_parts(shape, causal, window, code, device)
        per_pair = 2 * (3 * d_qk + 2 * d_v)
    else:
        parts = forward_parts(shape, causal, window, code, device)
    # Where scales of a head width come to more than the whole rate, the exact work still takes it.
    flop = per_pair * batch * heads * visible_pairs(queries, keys, causal, window)
    busy_s, memory_s, passes_s, start_s = parts
    time_s = max(busy_s, memory_s) + 0.1 * min(busy_s, memory_s) + passes_s + start_s
    return max(time_s, flop / device["attention_flop_per_s"][code])
