"""Time of fused attention on one device, from its tiles.

Shape suffixes
    A   attentions in the batch
    7   extents (batch, heads, key heads, queries, keys, d_qk, d_v)
    D   devices
Units
    time s, traffic bytes, rates FLOP/s and bytes/s. Floats are float64, extents int64.

The forward gives each work-group a block of queries and walks over the keys it may see; the
backward gives it a block of keys and walks over the queries (FlashAttention-2, arXiv 2307.08691).
"""

import math

import numpy as np
from numpy.typing import NDArray

from ._jit import helper, kernel

BOUNDS = ("matrix", "softmax", "memory", "atomics")
"""What sets the time of an attention, by code."""

MATRIX, SOFTMAX, MEMORY, ATOMICS = range(4)

HEAD_DIM_STEP = 32
"""Head widths are padded to a multiple of this in registers."""

HIDDEN_LOSS = 0.1
"""Share of the shorter of compute and traffic that stays visible; a fit over 322 published rows
of mature kernels prefers overlap with this loss to adding (1.5 against 3.8 % median error)."""

ELEMENT_BYTES = 2.0

OK, INVALID = 0, 1


@helper
def _forward_steps(
    block: int, rows: int, columns: int, queries: int, keys: int, causal: int, window: int
) -> int:
    """Inner steps of one block of queries; with fewer queries than keys they are the last ones."""
    offset = keys - queries
    first = block * rows + offset
    last = min((block + 1) * rows, queries) - 1 + offset
    end = min(keys, last + 1) if causal else keys
    begin = max(0, first - window + 1) if window > 0 else 0
    if end <= begin:
        return 0
    return (end + columns - 1) // columns - begin // columns


@helper
def _backward_steps(
    block: int, rows: int, columns: int, queries: int, keys: int, causal: int, window: int
) -> int:
    """Inner steps of one block of keys."""
    offset = keys - queries
    first = block * columns - offset
    last = min((block + 1) * columns, keys) - 1 - offset
    begin = max(0, first) if causal else 0
    end = min(queries, last + window) if window > 0 else queries
    if end <= begin:
        return 0
    return (end + rows - 1) // rows - begin // rows


@helper
def _makespan(total_s: float, longest_s: float, shortest_s: float, groups: float, units: float) -> float:
    """When the last work-group ends, the heaviest started first.

    Equal groups run in whole waves. Unequal ones fill each other's gaps; what remains at the end
    is at most one of the lightest.
    """
    if groups <= units:
        return longest_s
    if shortest_s == longest_s:
        return math.ceil(groups / units) * longest_s
    return max(longest_s, total_s / units + shortest_s * (1.0 - 1.0 / units))


@helper
def _padded(width: float) -> float:
    return math.ceil(width / HEAD_DIM_STEP) * HEAD_DIM_STEP


@kernel
def attention_times(
    extent_A7: NDArray[np.int64],
    causal_A: NDArray[np.int64],
    window_A: NDArray[np.int64],
    backward_A: NDArray[np.int64],
    dtype_A: NDArray[np.int64],
    device_A: NDArray[np.int64],
    devices_D: NDArray[np.void],
    time_s_A: NDArray[np.float64],
    bound_A: NDArray[np.int64],
) -> int:
    """Time of each fused attention, forward or backward.

    Parameters
    ----------
    extent_A7 : int64[A, 7]
        (batch, heads, key heads, queries, keys, d_qk, d_v). A zero extent costs nothing.
    causal_A, window_A, backward_A : int64[A]
        Whether keys behind a query are masked, how many keys a query sees (0: all), and whether
        the backward is timed.
    dtype_A : int64[A]
        Code of the matrix type.
    device_A : int64[A]
        Row of ``devices_D``.
    devices_D : DEVICE[D]
    time_s_A, bound_A : float64[A], int64[A]
        Outputs: seconds, and code of the limiter.

    Returns
    -------
    int
        ``OK``, or ``INVALID`` where a time is no finite, non-negative number.

    Notes
    -----
    An inner step multiplies ``rows x columns`` scores: ``2 * (d_qk + d_v)`` FLOP each forward,
    ``2 * (3 * d_qk + 2 * d_v)`` backward (scores again, dP, dV, dQ, dK), and one exponential, of
    which the device's share ``attention_softmax_exposed`` is not hidden by the matrix pipe.
    Blocks wholly behind the mask are skipped, partial ones are not. In the backward every block
    of keys adds its part of dQ in FP32 atomics.
    """
    status = OK
    for a in range(extent_A7.shape[0]):
        batch, heads = float(extent_A7[a, 0]), float(extent_A7[a, 1])
        key_heads = float(extent_A7[a, 2])
        queries, keys = extent_A7[a, 3], extent_A7[a, 4]
        d_qk, d_v = _padded(float(extent_A7[a, 5])), _padded(float(extent_A7[a, 6]))
        time_s_A[a] = 0.0
        bound_A[a] = MATRIX
        pairs = batch * heads
        if pairs <= 0.0 or queries <= 0 or keys <= 0 or d_qk + d_v <= 0.0:
            continue
        device = devices_D[device_A[a]]
        units = device.compute_units
        unit_rate = device.matrix_flop_per_s[dtype_A[a]] / units
        unit_exponentials = device.transcendental_per_s / units
        if backward_A[a]:
            rows, columns = device.attention_backward_rows, device.attention_backward_columns
            efficiency = device.attention_backward_efficiency
            flop = 2.0 * (3.0 * d_qk + 2.0 * d_v)
            blocks = (keys + int(columns) - 1) // int(columns)
        else:
            rows, columns = device.attention_forward_rows, device.attention_forward_columns
            efficiency = device.attention_forward_efficiency
            flop = 2.0 * (d_qk + d_v)
            blocks = (queries + int(rows) - 1) // int(rows)
        matrix_s = flop * rows * columns / (unit_rate * efficiency)
        softmax_s = device.attention_softmax_exposed * rows * columns / unit_exponentials
        step_s = matrix_s + softmax_s
        total_steps = 0.0
        most, least = 0, 1 << 60
        for block in range(blocks):
            if backward_A[a]:
                steps = _backward_steps(
                    block, int(rows), int(columns), queries, keys, causal_A[a], window_A[a]
                )
            else:
                steps = _forward_steps(
                    block, int(rows), int(columns), queries, keys, causal_A[a], window_A[a]
                )
            total_steps += steps
            most = max(most, steps)
            least = min(least, steps)
        overhead_s = device.attention_tile_overhead_s
        compute_s = _makespan(
            pairs * (total_steps * step_s + blocks * overhead_s),
            most * step_s + overhead_s,
            least * step_s + overhead_s,
            pairs * blocks,
            units,
        )
        query_bytes = ELEMENT_BYTES * pairs * queries * (d_qk + d_v)
        key_bytes = ELEMENT_BYTES * batch * key_heads * keys * (d_qk + d_v)
        traffic = query_bytes + key_bytes + 4.0 * pairs * queries
        atomic_s = 0.0
        if backward_A[a]:
            # O and dO, dQ accumulated in FP32 and converted, dK and dV of every query head, and
            # the pass over O and dO before.
            traffic += ELEMENT_BYTES * pairs * queries * 3.0 * d_v
            traffic += pairs * queries * d_qk * (4.0 + 4.0 + ELEMENT_BYTES)
            traffic += ELEMENT_BYTES * pairs * keys * (d_qk + d_v)
            if device.attention_atomic_bytes_per_s > 0.0:
                added = 4.0 * pairs * total_steps * rows * d_qk
                atomic_s = added / device.attention_atomic_bytes_per_s
        memory_s = traffic / device.hbm_bytes_per_s
        beside_s = max(memory_s, atomic_s)
        time = max(compute_s, beside_s) + HIDDEN_LOSS * min(compute_s, beside_s)
        if beside_s > compute_s:
            bound_A[a] = MEMORY if memory_s >= atomic_s else ATOMICS
        elif softmax_s > matrix_s:
            bound_A[a] = SOFTMAX
        time_s_A[a] = time
        if not (0.0 <= time < math.inf):
            status = INVALID
    return status


def attention_time_columns(
    extent_A7: NDArray[np.int64],
    causal_A: NDArray[np.int64],
    window_A: NDArray[np.int64],
    backward_A: NDArray[np.int64],
    dtype_A: NDArray[np.int64],
    device_A: NDArray[np.int64],
    devices_D: NDArray[np.void],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the columns ``(time_s, bound)`` of `attention_times`.

    Raises
    ------
    ValueError
        If a time is no finite, non-negative number.
    """
    rows = len(extent_A7)
    time_s_A, bound_A = np.empty(rows), np.empty(rows, np.int64)
    flags = (causal_A, window_A, backward_A, dtype_A, device_A)
    columns = [np.ascontiguousarray(column, np.int64) for column in flags]
    status = attention_times(
        np.ascontiguousarray(extent_A7), *columns, devices_D, time_s_A, bound_A
    )
    if status != OK:
        msg = "an attention has no finite time"
        raise ValueError(msg)
    return time_s_A, bound_A
