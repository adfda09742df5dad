"""Attentions as columns: arrays of any layout in, columns or an error out.

Shape suffixes as in `times`.
"""

import numpy as np

from projector.arrays import Floats, Ints, Records
from projector.kernels.attention.terms import TERMS
from projector.kernels.attention.times import OK, attention_terms, attention_times


def attention_time_columns(
    extent_A7: Ints,
    causal_A: Ints,
    window_A: Ints,
    backward_A: Ints,
    dtype_A: Ints,
    device_A: Ints,
    devices_D: Records,
) -> tuple[Floats, Ints]:
    """Return the columns ``(time_s, bound)`` of `attention_times`.

    Raises
    ------
    ValueError
        If a time is no finite, non-negative number.
    """
    rows = len(extent_A7)
    time_s_A, bound_A = np.empty(rows), np.empty(rows, np.int64)
    status = attention_times(
        np.ascontiguousarray(extent_A7, np.int64),
        np.ascontiguousarray(causal_A, np.int64),
        np.ascontiguousarray(window_A, np.int64),
        np.ascontiguousarray(backward_A, np.int64),
        np.ascontiguousarray(dtype_A, np.int64),
        np.ascontiguousarray(device_A, np.int64),
        devices_D,
        time_s_A,
        bound_A,
    )
    if status != OK:
        valid = np.isfinite(time_s_A) & (time_s_A >= 0.0) & (np.min(extent_A7, axis=1) >= 0)
        row = int(np.argmin(valid))
        names = "batch, heads, key heads, queries, keys, d_qk, d_v"
        extents = ", ".join(str(int(extent)) for extent in extent_A7[row])
        raise ValueError(f"attention {row} ({names} = {extents}) has no finite time")
    return time_s_A, bound_A


def attention_term_columns(
    extent_A7: Ints,
    causal_A: Ints,
    window_A: Ints,
    backward_A: Ints,
    dtype_A: Ints,
    device_A: Ints,
    devices_D: Records,
) -> dict[str, Floats]:
    """Return the terms of `attention_terms` by name, float64[A] each."""
    term_AT = np.empty((len(extent_A7), len(TERMS)))
    attention_terms(
        np.ascontiguousarray(extent_A7, np.int64),
        np.ascontiguousarray(causal_A, np.int64),
        np.ascontiguousarray(window_A, np.int64),
        np.ascontiguousarray(backward_A, np.int64),
        np.ascontiguousarray(dtype_A, np.int64),
        np.ascontiguousarray(device_A, np.int64),
        devices_D,
        term_AT,
    )
    return {name: term_AT[:, column].copy() for column, name in enumerate(TERMS)}
