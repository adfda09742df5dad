"""Time of fused attention on one device, from its tiles.

Shape suffixes
    A   attentions in the batch
    7   extents (batch, heads, key heads, queries, keys, d_qk, d_v) of one of them
    D   devices
    T   terms of one time (``TERMS``)
Units
    time s, traffic bytes, rates FLOP/s and bytes/s. Floats are float64, extents int64.

The forward gives each work-group a block of queries and walks over the keys they may see; the
backward gives it a block of keys and walks over the queries (FlashAttention-2, arXiv 2307.08691).
With fewer queries than keys the queries are the last ones, so a slice of a sequence (context
parallelism, chunked prefill) is told by its two lengths.
"""

import math

import numpy as np

from projector.arrays import Floats, Ints, Records
from projector.kernels._jit import helper, kernel
from projector.kernels.attention.passes import (
    KEPT,
    OVERHEAD,
    TERMS,
    AttentionTerms,
    find_bound,
    time_parts,
)
from projector.kernels.columns import as_type, refuse_extents
from projector.kernels.device import MATRIX_TYPES

OK, INVALID = 0, 1


@helper
def _least(extents: Ints) -> int:
    """Return the least extent; `np.min` would take longer to compile than all the rest here."""
    least: int = extents[0]
    for extent in extents[1:]:
        least = min(least, extent)
    return least


@helper
def _legal(extents: Ints, window: int, d: int, code: int, devices_D: Records) -> bool:
    return bool(
        _least(extents) > 0
        and window >= 0
        and 0 <= d < devices_D.shape[0]
        and 0 <= code < len(MATRIX_TYPES)
    )


@kernel(python_us=100.0)
def attention_times(
    extent_A7: Ints,
    causal_A: Ints,
    window_A: Ints,
    backward_A: Ints,
    dtype_A: Ints,
    device_A: Ints,
    devices_D: Records,
    kept_3K: Floats,
    time_s_A: Floats,
    bound_A: Ints,
) -> int:
    """Time of each fused attention, forward or backward.

    extent_A7 : int64[A, 7]. (batch, heads, key heads, queries, keys, d_qk, d_v). A zero extent
        costs nothing.
    causal_A, window_A, backward_A : int64[A]. Whether keys behind a query are masked; how many keys
        a query sees, itself included (0: all; without a causal mask as many on the other side); and
        whether the backward is timed.
    dtype_A : int64[A]. Code of the matrix type.
    device_A : int64[A]. Row of ``devices_D``.
    devices_D : DEVICE[D]
    kept_3K : float64[KEPT]. Zeros, overwritten; neighbours share a schedule that is equal.
    time_s_A, bound_A : float64[A], int64[A]. Outputs: seconds, and code of the limiter
        (``BOUNDS``).
    Returns ``OK``, or ``INVALID`` where a row has no finite, non-negative time.

    An inner step multiplies ``rows x columns`` scores: ``2 * (d_qk + d_v)`` FLOP each forward,
    ``2 * (3 * d_qk + 2 * d_v)`` backward (scores again, dP, dV, dQ, dK), and one exponential with
    its vector instructions, of which the share ``attention_softmax_exposed`` is not hidden by the
    matrix pipe (ping-pong of two tiles hides the rest); a step is never shorter than its
    exponentials. Tiles wholly behind the mask are skipped, partial ones cost their masking on
    top. The makespan of the work-groups (`schedule`), and in the backward the FP32 atomics that
    add every block's part of dQ, run beside the memory traffic. Before and after stand passes
    over operands: delta, clearing and converting dQ, adding up dK and dV of heads that share a
    key head; and where the implementation has them rotary positions and the append to a cache.
    """
    status = OK
    for a in range(extent_A7.shape[0]):
        time_s_A[a] = 0.0
        bound_A[a] = OVERHEAD
        if _least(extent_A7[a]) == 0:
            continue
        d, code = device_A[a], dtype_A[a]
        if not _legal(extent_A7[a], window_A[a], d, code, devices_D):
            time_s_A[a] = math.nan
            status = INVALID
            continue
        time_s_A[a], parts, _ = time_parts(
            extent_A7[a], causal_A[a] != 0, float(window_A[a]), backward_A[a] != 0, code,
            devices_D[d], kept_3K,
        )  # fmt: skip
        bound_A[a] = find_bound(parts)
        # max() may drop a NaN; the sum of the parts keeps it.
        whole_s = parts.compute + parts.memory + parts.atomics + parts.passes + parts.overhead
        if not (0.0 <= whole_s < math.inf and 0.0 <= time_s_A[a] < math.inf):
            status = INVALID
    return status


@kernel(python_us=100.0)
def attention_terms(
    extent_A7: Ints,
    causal_A: Ints,
    window_A: Ints,
    backward_A: Ints,
    dtype_A: Ints,
    device_A: Ints,
    devices_D: Records,
    kept_3K: Floats,
    term_AT: Floats,
) -> None:
    """Write the terms (``TERMS``) of attentions that `attention_times` has timed."""
    for a in range(extent_A7.shape[0]):
        term_AT[a] = 0.0
        if _least(extent_A7[a]) == 0:
            continue
        device = devices_D[device_A[a]]
        time_s, parts, flop = time_parts(
            extent_A7[a], causal_A[a] != 0, float(window_A[a]), backward_A[a] != 0, dtype_A[a],
            device, kept_3K,
        )  # fmt: skip
        work, costs = parts.work, parts.work.costs
        # Of a mean unit: its share of all groups.
        steps = work.steps / work.blocks * work.waves
        matrix_s, step_s = steps * costs.matrix, steps * costs.step
        mask_s = work.masked / work.blocks * work.waves * costs.mask
        tile_s = work.waves * costs.group
        terms = AttentionTerms(
            time_s=time_s,
            compute_s=parts.compute,
            memory_s=parts.memory,
            atomics_s=parts.atomics,
            passes_s=parts.passes,
            start_s=parts.overhead,
            matrix_s=matrix_s,
            softmax_s=step_s - matrix_s,
            mask_s=mask_s,
            tile_s=tile_s,
            idle_s=max(0.0, parts.compute - step_s - mask_s - tile_s),
            groups=np.round(work.waves * device["compute_units"]),
            waves=work.waves,
            rows=parts.tile.rows,
            columns=parts.tile.columns,
            steps_per_group=work.steps / work.blocks,
            flop=flop,
            bytes=parts.bytes,
            pass_bytes=parts.pass_bytes,
        )
        for place, value in enumerate(terms):
            term_AT[a, place] = value


AttentionColumns = tuple[Ints, Ints, Ints, Ints, Ints, Ints, Records]
"""What `attention_times` reads, from ``extent_A7`` to ``devices_D``."""


def attention_time_columns(*columns: *AttentionColumns) -> tuple[Floats, Ints]:
    """Return the columns ``(time_s, bound)`` of `attention_times`.

    Raises `ValueError` if a time is no finite, non-negative number.
    """
    rows = len(columns[0])
    time_s_A, bound_A = np.empty(rows), np.empty(rows, np.int64)
    integers = as_type(np.int64, *columns[:-1])
    status = attention_times(*integers, columns[-1], np.zeros(KEPT), time_s_A, bound_A)
    if status != OK:
        names = "batch, heads, key heads, queries, keys, d_qk, d_v"
        refuse_extents("attention", names, time_s_A, columns[0])
    return time_s_A, bound_A


def attention_term_columns(*columns: *AttentionColumns) -> dict[str, Floats]:
    """Return the terms of `attention_terms` by name, float64[A] each."""
    term_AT = np.empty((len(columns[0]), len(TERMS)))
    attention_terms(*as_type(np.int64, *columns[:-1]), columns[-1], np.zeros(KEPT), term_AT)
    return {name: term_AT[:, column].copy() for column, name in enumerate(TERMS)}
