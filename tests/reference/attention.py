"""Plain-Python times of fused attention, tile by tile."""

import heapq
import math

from reference.gemm import operand_bytes

INFINITY = float("inf")


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


def block_steps(blocked, block, walked, step, low, high):
    """For each block of one axis, the tiles of the other that hold a visible pair."""
    counts = []
    for x in range(0, blocked, block):
        last_x = min(x + block, blocked) - 1
        count = 0
        for y in range(0, walked, step):
            last_y = min(y + step, walked) - 1
            # The differences y - x of a tile are the integers from one corner to the other.
            count += last_y - x >= low and y - last_x <= high
        counts.append(count)
    return counts


def makespan(groups_s, heads, units):
    """Whole waves of the mean group, or the longest alone."""
    waves = math.ceil(len(groups_s) * heads / units)
    return max(waves * math.fsum(groups_s) / len(groups_s), *groups_s)


def list_schedule(groups_s, heads, units):
    """Makespan of starting the longest group first, each on the first unit that is free."""
    free = [0.0] * int(units)
    for group_s in sorted(groups_s * heads, reverse=True):
        heapq.heapreplace(free, free[0] + group_s)
    return max(free)


def padded(width):
    return math.ceil(width / 32) * 32


def inner_step_s(backward, d_qk, d_v, code, device):
    if backward:
        tile = device["attention_backward_rows"] * device["attention_backward_columns"]
        flop = 2 * (3 * padded(d_qk) + 2 * padded(d_v))
        efficiency = device["attention_backward_efficiency"]
    else:
        tile = device["attention_forward_rows"] * device["attention_forward_columns"]
        flop = 2 * (padded(d_qk) + padded(d_v))
        efficiency = device["attention_forward_efficiency"]
    units = device["compute_units"]
    matrix_s = flop * tile * units / device["matrix_flop_per_s"][code] / efficiency
    softmax_s = tile * units / device["transcendental_per_s"]
    return max(matrix_s + device["attention_softmax_exposed"] * softmax_s, softmax_s)


def reads(streams, groups, stream_bytes, device):
    """How often a stream that ``groups`` work-groups walk over comes out of memory."""
    units = device["compute_units"]
    cache = max(device["l2_bytes"], device["mall_bytes"])
    in_flight = min(streams, max(1, units / groups)) * stream_bytes
    missing = max(0, in_flight - cache) / in_flight
    return 1 + max(0, groups / units - 1) * missing


def traffic_bytes(shape, causal, window, backward, code, steps, device):
    batch, heads, key_heads, queries, keys, d_qk, d_v = shape
    stored = max(2, operand_bytes(code))
    loaded = operand_bytes(code)
    query_rows, key_rows = batch * heads * queries, batch * key_heads * keys
    if not backward:
        low, _ = span(queries, keys, causal, window)
        used = keys - max(0, low)
        blocks = math.ceil(queries / device["attention_forward_rows"])
        stream = used * (d_qk + d_v) * loaded
        times = 1
        if not window:
            times = reads(batch * key_heads, blocks * heads / key_heads, stream, device)
        statistics = 4 * query_rows
        own = query_rows * (d_qk * loaded + d_v * stored)
        return own + statistics + batch * key_heads * stream * times

    blocks = math.ceil(keys / device["attention_backward_columns"])
    stream = queries * (d_qk * loaded + d_v * stored)
    times = 1 if window else reads(batch * heads, blocks, stream, device)
    parts = [
        batch * heads * stream * times,
        2 * query_rows * d_v * stored,  # O and dO, for delta
        3 * 4 * query_rows,  # delta out and in, statistics in
        key_rows * (d_qk + d_v) * (loaded + stored),
        query_rows * d_qk * stored,
    ]
    if heads > key_heads:
        parts.append(2 * batch * heads * keys * (d_qk + d_v) * stored)
    if device["attention_atomic_bytes_per_s"]:
        parts.append(3 * 4 * query_rows * d_qk)
    return sum(parts)


def attention_time(shape, causal, window, backward, code, device):
    if 0 in shape:
        return 0.0
    batch, heads, _, queries, keys, d_qk, d_v = shape
    low, high = span(queries, keys, causal, window)
    if backward:
        rows, columns = device["attention_backward_rows"], device["attention_backward_columns"]
        steps = block_steps(keys, int(columns), queries, int(rows), -high, -low)
    else:
        rows, columns = device["attention_forward_rows"], device["attention_forward_columns"]
        steps = block_steps(queries, int(rows), keys, int(columns), low, high)
    step_s = inner_step_s(backward, d_qk, d_v, code, device)
    groups_s = [count * step_s + device["attention_tile_overhead_s"] for count in steps]
    busy_s = makespan(groups_s, batch * heads, device["compute_units"])
    atomic_rate = device["attention_atomic_bytes_per_s"]
    if backward and atomic_rate:
        busy_s = max(busy_s, 4 * batch * heads * sum(steps) * rows * d_qk / atomic_rate)
    memory_s = traffic_bytes(shape, causal, window, backward, code, steps, device)
    memory_s /= device["hbm_bytes_per_s"]
    time = max(busy_s, memory_s) + 0.1 * min(busy_s, memory_s)
    return time + device["gemm_overhead_s"] * (2 if backward else 1)
