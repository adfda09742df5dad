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
    """Total steps of one head, and the makespan of all heads, the heaviest blocks first.

    The makespan is the largest of four lower bounds of any schedule: all work over all units; the
    heaviest block; and for every weight w, since of the work-groups that take at least w some
    unit gets ceil(count / units), that many times w. Blocks of one weight thus run in whole waves
    and blocks of many weights fill each other's gaps. List scheduling with the heaviest first
    stays within 4/3 of it, with many groups within a percent.
    """
    blocks = np.ceil(walk.blocked / walk.block)
    run = max(1.0, np.ceil(blocks / MAX_BLOCKS))
    steps, busy_s, longest_s, waves_s = 0.0, 0.0, 0.0, 0.0
    lightest_s = math.inf
    done = 0.0
    while done < blocks:
        length = min(run, blocks - done)
        # The heavy end of the run, counted from the heavy end of the axis.
        heavy = _steps(walk, blocks - 1.0 - done if walk.heavy_last else done)
        done += length
        steps += length * heavy
        group_s = heavy * step_s + block_s
        busy_s += length * group_s
        longest_s = max(longest_s, group_s)
        lightest_s = min(lightest_s, group_s)
        waves_s = max(waves_s, np.ceil(done * heads / units) * lightest_s)
    return _Work(steps, max(busy_s * heads / units, longest_s, waves_s))


@helper
def _visible(queries: float, offset: float, ahead: float) -> float:
    """Sum over the queries q of max(0, q + offset + ahead)."""
    top = queries - 1.0 + offset + ahead
    count = min(queries, top)
    return count * top - 0.5 * count * (count - 1.0) if top > 0.0 else 0.0


@helper
def _pairs(queries: float, keys: float, causal: bool, window: float) -> float:
    """Pairs of a query and a key that it sees."""
    offset = keys - queries
    seen = queries * keys
    if causal:
        seen = _visible(queries, offset, 1.0)
    elif window > 0.0:
        seen = _visible(queries, offset, window) - _visible(queries, offset, window - keys)
    if window > 0.0:
        seen -= _visible(queries, offset, 1.0 - window)
        if not causal:
            seen += _visible(queries, offset, 1.0 - window - keys)
    return seen


@helper
def _reads(streams: float, groups: float, units: float, stream_bytes: float, cache: float) -> float:
    """How often memory is read for an operand that ``groups`` work-groups walk over.

    Groups that run together walk in step and share one read. Later ones find in the cache what
    fits there beside the other streams in flight.
    """
    waves = max(1.0, groups / units)
    in_flight = min(streams, max(1.0, units / groups)) * stream_bytes
    return 1.0 + (waves - 1.0) * max(0.0, 1.0 - cache / in_flight)


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
        units = device["compute_units"]
        all_heads = batch * heads
        side = "backward" if backward else "forward"  # noqa: F841
        rows = device["attention_backward_rows"] if backward else device["attention_forward_rows"]
        columns = (
            device["attention_backward_columns"]
            if backward
            else device["attention_forward_columns"]
        )
        offset = keys - queries
        low = offset - window + 1.0 if window > 0.0 else -_UNBOUNDED
        high = offset + window - 1.0 if window > 0.0 else _UNBOUNDED
        high = offset if causal else high
        time_s_A[a] = 0.0
    return status
