"""GEMMs as columns: arrays of any layout in, columns or an error out.

Shape suffixes as in `times`.
"""

import numpy as np

from projector.arrays import Floats, Ints, Records
from projector.kernels.gemm.problem import MENU
from projector.kernels.gemm.search import SCRATCH
from projector.kernels.gemm.terms import TERMS, GemmTerms
from projector.kernels.gemm.times import OK, gemm_terms, gemm_times, sol_times


def gemm_time_columns(
    extent_G4: Ints,
    dtype_G: Ints,
    out_bytes_G: Floats,
    efficiency_G: Floats,
    device_G: Ints,
    devices_D: Records,
) -> tuple[Floats, Ints, Ints]:
    """Return the columns ``(time_s, bound, choice)`` of `gemm_times`.

    Raises
    ------
    ValueError
        If a time is no finite, non-negative number.
    """
    rows = len(extent_G4)
    time_s_G, bound_G, choice_G = np.empty(rows), np.empty(rows, np.int64), np.empty(rows, np.int64)
    status = gemm_times(
        np.ascontiguousarray(extent_G4, np.int64),
        np.ascontiguousarray(dtype_G, np.int64),
        np.ascontiguousarray(out_bytes_G, np.float64),
        np.ascontiguousarray(efficiency_G, np.float64),
        np.ascontiguousarray(device_G, np.int64),
        devices_D,
        np.empty(1, SCRATCH),
        time_s_G,
        bound_G,
        choice_G,
    )
    if status != OK:
        raise ValueError(_explain(time_s_G, extent_G4))
    return time_s_G, bound_G, choice_G


def gemm_term_columns(
    extent_G4: Ints,
    dtype_G: Ints,
    out_bytes_G: Floats,
    efficiency_G: Floats,
    device_G: Ints,
    devices_D: Records,
    choice_G: Ints,
) -> Floats:
    """Return the terms (float64[G, len(TERMS)]) of `gemm_terms`."""
    term_GT = np.empty((len(extent_G4), len(TERMS)))
    gemm_terms(
        np.ascontiguousarray(extent_G4, np.int64),
        np.ascontiguousarray(dtype_G, np.int64),
        np.ascontiguousarray(out_bytes_G, np.float64),
        np.ascontiguousarray(efficiency_G, np.float64),
        np.ascontiguousarray(device_G, np.int64),
        devices_D,
        np.ascontiguousarray(choice_G, np.int64),
        np.empty(1, MENU),
        term_GT,
    )
    return term_GT


def seconds_of_terms(term_GT: Floats) -> Floats:
    """Return the seconds (float64[G]) that the terms of `gemm_term_columns` add up to.

    So a tile and split that the search would not choose can be timed: terms take any.
    """
    terms = GemmTerms(*term_GT.T)
    pipes_s = np.maximum(terms.matrix_s + terms.scale_s, terms.l2_fill_s)
    loops_s = np.maximum(pipes_s, terms.issue_s) + terms.wait_s
    core_s = np.maximum(np.maximum(loops_s + terms.epilogue_s, terms.epilogues_s), terms.l2_s)
    joined_s = np.maximum(core_s, terms.memory_s) + terms.loss_s
    seconds: Floats = terms.start_s + joined_s + terms.reduce_s
    return seconds


def sol_time_columns(
    extent_G4: Ints,
    dtype_G: Ints,
    out_bytes_G: Floats,
    device_G: Ints,
    devices_D: Records,
) -> tuple[Floats, Ints]:
    """Return the columns ``(time_s, bound)`` of `sol_times`.

    Raises
    ------
    ValueError
        If a time is no finite, non-negative number.
    """
    rows = len(extent_G4)
    time_s_G, bound_G = np.empty(rows), np.empty(rows, np.int64)
    status = sol_times(
        np.ascontiguousarray(extent_G4, np.int64),
        np.ascontiguousarray(dtype_G, np.int64),
        np.ascontiguousarray(out_bytes_G, np.float64),
        np.ascontiguousarray(device_G, np.int64),
        devices_D,
        time_s_G,
        bound_G,
    )
    if status != OK:
        raise ValueError(_explain(time_s_G, extent_G4))
    return time_s_G, bound_G


def _explain(time_s_G: Floats, extent_G4: Ints) -> str:
    valid = np.isfinite(time_s_G) & (time_s_G >= 0.0) & (np.min(extent_G4, axis=1) >= 0)
    row = int(np.argmin(valid))
    m, n, k, batch = (int(extent) for extent in extent_G4[row])
    return f"GEMM {row} (m, n, k, batch = {m}, {n}, {k}, {batch}) has no finite time"
