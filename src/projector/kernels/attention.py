"""Time of fused attention on one device, from its tiles.

Shape suffixes
    A   attentions in the batch
    7   extents (batch, heads, key heads, queries, keys, d_qk, d_v) of one of them
    D   devices
Units
    time s, traffic bytes, rates FLOP/s and bytes/s. Floats are float64, extents int64.

The forward gives each work-group a block of queries and walks over the keys they may see; the
backward gives it a block of keys and walks over the queries (FlashAttention-2, arXiv 2307.08691).
With fewer queries than keys the queries are the last ones, so a slice of a sequence (context
parallelism, chunked prefill) is told by its two lengths.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._jit import helper, kernel
from .device import MATRIX_TYPES, OPERAND_BYTES

BOUNDS = ("matrix", "softmax", "memory", "atomics", "overhead")
"""What sets the time of an attention, by code."""

MATRIX, SOFTMAX, MEMORY, ATOMICS, OVERHEAD = range(5)

HEAD_DIM_STEP = 32.0
"""Head widths are padded to a multiple of this in registers."""

HIDDEN_LOSS = 0.1
"""Share of the shorter of compute and traffic that stays visible; a fit over 322 published rows
of mature kernels prefers overlap with this loss to adding (1.5 against 3.8 % median error)."""

MIN_OUTPUT_BYTES = 2.0
"""O and the gradients are stored in 16 bits or more, whatever the type of Q, K and V."""

FP32 = 4.0

MAX_BLOCKS = 8192
"""Blocks looked at one by one; of more, runs of neighbours count as their heaviest end."""

OK, INVALID = 0, 1

_UNBOUNDED = 1e18


class _Shape(NamedTuple):
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


class _Terms(NamedTuple):
    """Parts of one attention."""

    compute: float
    """Makespan of the work-groups [s]."""
    softmax: bool
    """Whether a step spends more time on exponentials than on matrix instructions."""
    memory: float
    atomics: float
    overhead: float


class _Walk(NamedTuple):
    """The blocks of one head and what each visits.

    Element x of the blocked axis meets the elements x + low to x + high of the walked axis.
    """

    blocked: float
    block: float
    walked: float
    step: float
    low: float
    high: float
    heavy_last: bool
    """Whether the blocks at the end of the axis have the most steps."""


class _Work(NamedTuple):
    """What the blocks of one head add up to."""

    steps: float
    makespan_s: float


@helper
def _steps(walk: _Walk, block: float) -> float:
    """Inner steps of one block: tiles of the walked axis that hold anything visible."""
    first = block * walk.block
    last = min(first + walk.block, walk.blocked) - 1.0
    begin, end = max(0.0, first + walk.low), min(walk.walked - 1.0, last + walk.high)
    steps = np.floor(end / walk.step) - np.floor(begin / walk.step) + 1.0
    return max(0.0, steps) if end >= begin else 0.0


@helper
def _schedule(walk: _Walk, heads: float, units: float, step_s: float, block_s: float) -> _Work:
    """Total steps of one head, and the makespan of all heads.

    Every unit takes as many work-groups as the unit with the most, each of mean length, or the
    longest alone where that takes more. Equal groups thus run in whole waves. Unequal ones
    (causal, heaviest first) could fill each other's gaps better than that, but published causal
    curves stay 2.6 to 7 % above half of the full ones at 31 to 8 waves, never below.
    """
    blocks = np.ceil(walk.blocked / walk.block)
    run = max(1.0, np.ceil(blocks / MAX_BLOCKS))
    steps, most, done = 0.0, 0.0, 0.0
    while done < blocks:
        length = min(run, blocks - done)
        # The heavy end of the run, counted from the heavy end of the axis.
        heavy = _steps(walk, blocks - 1.0 - done if walk.heavy_last else done)
        done += length
        steps += length * heavy
        most = max(most, heavy)
    mean_s = steps / blocks * step_s + block_s
    waves = np.ceil(blocks * heads / units)
    return _Work(steps, max(waves * mean_s, most * step_s + block_s))


@helper
def _visible(queries: float, offset: float, ahead: float) -> float:
    """Sum over the queries q of max(0, q + offset + ahead)."""
    top = queries - 1.0 + offset + ahead
    count = min(queries, top)
    return count * top - 0.5 * count * (count - 1.0) if top > 0.0 else 0.0


@helper
def _pairs(queries: float, keys: float, low: float, high: float) -> float:
    """Pairs of a query q and a key in q + low .. q + high."""
    below_end = queries * keys
    if high < _UNBOUNDED:
        below_end = _visible(queries, high, 1.0) - _visible(queries, high, 1.0 - keys)
    if low == -_UNBOUNDED:
        return below_end
    return below_end - (_visible(queries, low, 0.0) - _visible(queries, low, -keys))


@helper
def _reads(streams: float, groups: float, units: float, stream_bytes: float, cache: float) -> float:
    """How often memory is read for an operand that ``groups`` work-groups walk over.

    Groups that run together walk in step and share one read. Later ones find in the cache what
    fits there beside the other streams in flight.
    """
    waves = max(1.0, groups / units)
    in_flight = min(streams, max(1.0, units / groups)) * stream_bytes
    return 1.0 + (waves - 1.0) * max(0.0, 1.0 - cache / in_flight)


@helper
def _padded(width: float) -> float:
    return float(np.ceil(width / HEAD_DIM_STEP)) * HEAD_DIM_STEP


@helper
def _step(device: np.void, code: int, flop: float, scores: float) -> tuple[float, float]:
    """Seconds of one inner step, and of its matrix instructions alone."""
    unit_flop_per_s = device["matrix_flop_per_s"][code] / device["compute_units"]
    matrix_s = flop * scores / unit_flop_per_s
    softmax_s = scores / (device["transcendental_per_s"] / device["compute_units"])
    return max(matrix_s + device["attention_softmax_exposed"] * softmax_s, softmax_s), matrix_s


@helper
def _forward(device: np.void, code: int, shape: _Shape) -> _Terms:
    rows, columns = device["attention_forward_rows"], device["attention_forward_columns"]
    flop = 2.0 * (_padded(shape.d_qk) + _padded(shape.d_v)) / device["attention_forward_efficiency"]
    step_s, matrix_s = _step(device, code, flop, rows * columns)
    walk = _Walk(shape.queries, rows, shape.keys, columns, shape.low, shape.high, True)
    heads = shape.batch * shape.heads
    work = _schedule(
        walk, heads, device["compute_units"], step_s, device["attention_tile_overhead_s"]
    )

    operand, output = OPERAND_BYTES[code], max(MIN_OUTPUT_BYTES, OPERAND_BYTES[code])
    widths = shape.d_qk + shape.d_v
    streams = shape.batch * shape.key_heads
    stream_bytes = (shape.keys - max(0.0, shape.low)) * widths * operand
    groups = np.ceil(shape.queries / rows) * shape.heads / shape.key_heads
    reads = 1.0
    if shape.low == -_UNBOUNDED:
        cache = max(device["l2_bytes"], device["mall_bytes"])
        reads = _reads(streams, groups, device["compute_units"], stream_bytes, cache)
    traffic = heads * shape.queries * (shape.d_qk * operand + shape.d_v * output + FP32)
    traffic += streams * stream_bytes * reads
    return _Terms(
        work.makespan_s,
        step_s > 2.0 * matrix_s,
        traffic / device["hbm_bytes_per_s"],
        0.0,
        device["gemm_overhead_s"],
    )


@helper
def _backward(device: np.void, code: int, shape: _Shape) -> _Terms:
    rows, columns = device["attention_backward_rows"], device["attention_backward_columns"]
    flop = 2.0 * (3.0 * _padded(shape.d_qk) + 2.0 * _padded(shape.d_v))
    flop /= device["attention_backward_efficiency"]
    step_s, matrix_s = _step(device, code, flop, rows * columns)
    walk = _Walk(shape.keys, columns, shape.queries, rows, -shape.high, -shape.low, False)
    heads = shape.batch * shape.heads
    work = _schedule(
        walk, heads, device["compute_units"], step_s, device["attention_tile_overhead_s"]
    )

    operand, output = OPERAND_BYTES[code], max(MIN_OUTPUT_BYTES, OPERAND_BYTES[code])
    widths = shape.d_qk + shape.d_v
    stream_bytes = shape.queries * (shape.d_qk * operand + shape.d_v * output)
    groups = np.ceil(shape.keys / columns)
    reads = 1.0
    if shape.low == -_UNBOUNDED:
        cache = max(device["l2_bytes"], device["mall_bytes"])
        reads = _reads(heads, groups, device["compute_units"], stream_bytes, cache)
    # Q and dO, walked over; O and dO of the pass before; the statistics of both.
    traffic = heads * stream_bytes * reads
    traffic += heads * shape.queries * (2.0 * shape.d_v * output + 3.0 * FP32)
    # K and V in; dK and dV out for every query head, and added up where heads share a key head.
    traffic += shape.batch * shape.key_heads * shape.keys * widths * (operand + output)
    if shape.heads > shape.key_heads:
        traffic += 2.0 * heads * shape.keys * widths * output
    traffic += heads * shape.queries * shape.d_qk * output
    atomics_s = 0.0
    if device["attention_atomic_bytes_per_s"] > 0.0:
        # dQ is cleared, added to and converted; the adds meet in L2.
        traffic += heads * shape.queries * shape.d_qk * 3.0 * FP32
        added = heads * work.steps * rows * shape.d_qk * FP32
        atomics_s = added / device["attention_atomic_bytes_per_s"]
    return _Terms(
        work.makespan_s,
        step_s > 2.0 * matrix_s,
        traffic / device["hbm_bytes_per_s"],
        atomics_s,
        2.0 * device["gemm_overhead_s"],
    )


@helper
def _bound(terms: _Terms) -> int:
    """Name the longest part."""
    longest_s = max(terms.compute, terms.memory, terms.atomics)
    if terms.overhead > longest_s:
        return OVERHEAD
    if terms.compute == longest_s:
        return SOFTMAX if terms.softmax else MATRIX
    return MEMORY if terms.memory == longest_s else ATOMICS


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
        Whether keys behind a query are masked; how many keys a query sees, itself included (0:
        all; without a causal mask as many on the other side); and whether the backward is timed.
    dtype_A : int64[A]
        Code of the matrix type.
    device_A : int64[A]
        Row of ``devices_D``.
    devices_D : DEVICE[D]
    time_s_A, bound_A : float64[A], int64[A]
        Outputs: seconds, and code of the limiter (``BOUNDS``).

    Returns
    -------
    int
        ``OK``, or ``INVALID`` where a row has no finite, non-negative time.

    Notes
    -----
    An inner step multiplies ``rows x columns`` scores: ``2 * (d_qk + d_v)`` FLOP each forward,
    ``2 * (3 * d_qk + 2 * d_v)`` backward (scores again, dP, dV, dQ, dK), and one exponential, of
    which the device's share ``attention_softmax_exposed`` is not hidden by the matrix pipe; a
    step is never shorter than its exponentials. Tiles wholly behind the mask are skipped, partial
    ones are not. The makespan of the work-groups (`_schedule`), and in the backward the FP32
    atomics that add every block's part of dQ, run beside the memory traffic. The backward has a
    pass over O and dO before it, and passes after it that convert dQ and add up dK and dV of the
    heads that share a key head.
    """
    status = OK
    for a in range(extent_A7.shape[0]):
        batch, heads = float(extent_A7[a, 0]), float(extent_A7[a, 1])
        key_heads = float(extent_A7[a, 2])
        queries, keys = float(extent_A7[a, 3]), float(extent_A7[a, 4])
        d_qk, d_v = float(extent_A7[a, 5]), float(extent_A7[a, 6])
        causal, window, backward = causal_A[a] != 0, float(window_A[a]), backward_A[a] != 0
        least = min(batch, heads, key_heads, queries, keys, d_qk, d_v)
        time_s_A[a] = 0.0
        bound_A[a] = OVERHEAD
        if least == 0.0:
            continue
        d, code = device_A[a], dtype_A[a]
        if not (
            least > 0.0
            and window >= 0.0
            and 0 <= d < devices_D.shape[0]
            and 0 <= code < len(MATRIX_TYPES)
        ):
            time_s_A[a] = math.nan
            status = INVALID
            continue
        device = devices_D[d]
        offset = keys - queries
        low = offset - window + 1.0 if window > 0.0 else -_UNBOUNDED
        high = offset + window - 1.0 if window > 0.0 else _UNBOUNDED
        high = offset if causal else high
        shape = _Shape(batch, heads, key_heads, queries, keys, d_qk, d_v, low, high)
        terms = _backward(device, code, shape) if backward else _forward(device, code, shape)
        busy_s = max(terms.compute, terms.atomics)
        time = terms.overhead + max(busy_s, terms.memory) + HIDDEN_LOSS * min(busy_s, terms.memory)
        # Whole tiles never fall below the exact work but by rounding.
        flop = 2.0 * (3.0 * d_qk + 2.0 * d_v) if backward else 2.0 * (d_qk + d_v)
        flop *= batch * heads * _pairs(queries, keys, low, high)
        time_s_A[a] = max(time, flop / device["matrix_flop_per_s"][code])
        bound_A[a] = _bound(terms)
        # max() may drop a NaN; the sum of the parts keeps it.
        parts = terms.compute + terms.memory + terms.atomics + terms.overhead
        if not (0.0 <= parts < math.inf and 0.0 <= time_s_A[a] < math.inf):
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
    status = attention_times(
        np.ascontiguousarray(extent_A7, np.int64), np.ascontiguousarray(causal_A, np.int64),
        np.ascontiguousarray(window_A, np.int64), np.ascontiguousarray(backward_A, np.int64),
        np.ascontiguousarray(dtype_A, np.int64), np.ascontiguousarray(device_A, np.int64),
        devices_D, time_s_A, bound_A,
    )  # fmt: skip
    if status != OK:
        valid = np.isfinite(time_s_A) & (time_s_A >= 0.0) & (np.min(extent_A7, axis=1) >= 0)
        row = int(np.argmin(valid))
        names = "batch, heads, key heads, queries, keys, d_qk, d_v"
        extents = ", ".join(str(int(extent)) for extent in extent_A7[row])
        msg = f"attention {row} ({names} = {extents}) has no finite time"
        raise ValueError(msg)
    return time_s_A, bound_A
