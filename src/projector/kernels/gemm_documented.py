"""The documented model of a warp-specialised persistent GEMM, term by term.

Shape suffixes
    G   GEMMs in the batch
    4   extents (m, n, k, batch) of one of them
    C   kernels to choose from
    K   what describes a kernel
    T   terms of a time
Units
    time s, traffic bytes, rates FLOP/s and bytes/s. Floats are float64, extents int64.

A kernel is a tile of one CTA and its cluster. The whole of K is one load, one product and one
epilogue, and waves of tiles overlap the three; the loads of a wave, and its stores, share the
bandwidth of the memory. Nothing is reused beyond a cluster but the share that the caller names.
"""

import math
from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints

from ._jit import helper, kernel

KERNEL_FIELDS = ("m", "n", "cluster_m", "cluster_n", "units")
"""Columns of a kernel: tile of a CTA, CTAs of its cluster, and units that clusters can fill."""

TERMS = (
    "setup_s", "first_load_s", "full_waves", "load_s", "matrix_s", "epilogue_s", "last_load_s",
    "last_epilogue_s", "time_s",
)  # fmt: skip

OK, INVALID = 0, 1


class Rates(NamedTuple):
    """What the model asks of a device, for one type of operand."""

    unit_flop_per_s: float
    bytes_per_s: float
    element_bytes: float
    """An operand's element with its share of the scales."""
    first_elements: float
    """Elements of K that the first load brings."""
    setup_s: float
    epilogue_s: float
    """Fixed part of an epilogue."""
    miss_share: float
    """Share of the loads that comes out of memory."""


@helper
def _terms(
    m: float, n: float, k: float, batch: float, out_bytes: float, kernel_K: Floats,
    rates: Rates, term_T: Floats,
) -> None:  # fmt: skip
    tile_m, tile_n, cluster_m, cluster_n, units = kernel_K
    down = np.ceil(m / (tile_m * cluster_m)) * cluster_m
    across = np.ceil(n / (tile_n * cluster_n)) * cluster_n
    tiles = down * across * batch
    full = np.ceil(tiles / units) - 1.0
    last = tiles - full * units
    load_rate = rates.bytes_per_s / rates.miss_share if rates.miss_share > 0.0 else math.inf
    per_k = (tile_m / cluster_n + tile_n / cluster_m) * rates.element_bytes
    stored = tile_m * tile_n * out_bytes / rates.bytes_per_s
    load_s, last_load_s = per_k * k * units / load_rate, per_k * k * last / load_rate
    matrix_s = 2.0 * tile_m * tile_n * k / rates.unit_flop_per_s
    epilogue_s = rates.epilogue_s + stored * units
    last_epilogue_s = rates.epilogue_s + stored * last
    first_s = per_k * rates.first_elements * units / load_rate
    waves_s = full * max(load_s, matrix_s, epilogue_s) + max(last_load_s, matrix_s, last_epilogue_s)
    term_T[0], term_T[1], term_T[2] = rates.setup_s, first_s, full
    term_T[3], term_T[4], term_T[5] = load_s, matrix_s, epilogue_s
    term_T[6], term_T[7] = last_load_s, last_epilogue_s
    term_T[8] = rates.setup_s + first_s + waves_s + last_epilogue_s


@kernel
def ws_persistent_terms(
    extent_G4: Ints,
    out_bytes_G: Floats,
    kernel_CK: Floats,
    rates: Rates,
    choice_G: Ints,
    term_GT: Floats,
) -> int:
    """Terms of each GEMM with the fastest kernel of a menu.

    Parameters
    ----------
    extent_G4 : int64[G, 4]
        (m, n, k, batch); the tiles of all of a batch run as one launch. A zero extent costs
        nothing.
    out_bytes_G : float64[G]
        Bytes of an output element.
    kernel_CK : float64[C, len(KERNEL_FIELDS)]
    rates : Rates
    choice_G, term_GT : int64[G], float64[G, len(TERMS)]
        Outputs: row of the fastest kernel (the first of equals, -1 where nothing runs), and its
        terms: setup, first load, waves but the last, what a full wave loads, multiplies and
        stores, what the last one loads and stores, and
        ``setup + first load + full waves * max(load, matrix, epilogue)
        + max(last load, matrix, last epilogue) + last epilogue``.

    Returns
    -------
    int
        ``OK``, or ``INVALID`` where a row has no finite, non-negative time.

    Notes
    -----
    Seed of the model: a write-up of warp-specialised persistent CuTeDSL kernels on B200, whose
    two worked examples the tests repeat to six digits.
    """
    status = OK
    time = len(TERMS) - 1
    terms = np.empty(len(TERMS))
    for g in range(extent_G4.shape[0]):
        m, n = float(extent_G4[g, 0]), float(extent_G4[g, 1])
        k, batch = float(extent_G4[g, 2]), float(extent_G4[g, 3])
        term_GT[g] = 0.0
        choice_G[g] = -1
        if min(m, n, k, batch) == 0.0:
            continue
        for c in range(kernel_CK.shape[0]):
            _terms(m, n, k, batch, out_bytes_G[g], kernel_CK[c], rates, terms)
            if choice_G[g] < 0 or terms[time] < term_GT[g, time]:
                choice_G[g] = c
                term_GT[g] = terms
        if not (min(m, n, k, batch) > 0.0 and 0.0 <= term_GT[g, time] < math.inf):
            status = INVALID
    return status


def ws_persistent_columns(
    extent_G4: Ints,
    out_bytes_G: Floats,
    kernel_CK: Floats,
    rates: Rates,
) -> tuple[Ints, Floats]:
    """Return the columns ``(choice, terms)`` of `ws_persistent_terms`.

    Raises
    ------
    ValueError
        If a time is no finite, non-negative number.
    """
    rows = len(extent_G4)
    choice_G, term_GT = np.empty(rows, np.int64), np.empty((rows, len(TERMS)))
    status = ws_persistent_terms(
        np.ascontiguousarray(extent_G4, np.int64), np.ascontiguousarray(out_bytes_G, np.float64),
        np.ascontiguousarray(kernel_CK, np.float64), rates, choice_G, term_GT,
    )  # fmt: skip
    if status != OK:
        valid = np.isfinite(term_GT[:, -1]) & (np.min(extent_G4, axis=1) >= 0)
        row = int(np.argmin(valid))
        m, n, k, batch = (int(extent) for extent in extent_G4[row])
        msg = f"GEMM {row} (m, n, k, batch = {m}, {n}, {k}, {batch}) has no finite time"
        raise ValueError(msg)
    return choice_G, term_GT
