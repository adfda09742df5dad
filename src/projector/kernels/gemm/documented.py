"""The documented model of a warp-specialised persistent GEMM, term by term.

Shape suffixes: C are kernels to choose from, K is what describes one; others, and units, are those
of `projector.kernels.gemm.times`.

A kernel is a tile of one CTA and its cluster. The whole of K is one load, one product and one
epilogue, and waves of tiles overlap the three; the loads of a wave, and its stores, share the
bandwidth of the memory. Nothing is reused beyond a cluster but the share that the caller names.
"""

import math
from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints
from projector.kernels._jit import helper, kernel
from projector.kernels.columns import as_type, refuse_extents
from projector.kernels.gemm.problem import EXTENTS

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


class WsTile(NamedTuple):
    """One kernel of a menu."""

    m: float
    """Tile of a CTA."""
    n: float
    cluster_m: float
    """CTAs of its cluster."""
    cluster_n: float
    units: float
    """Compute units that clusters can fill."""


class WsTerms(NamedTuple):
    """Parts of the time of one GEMM."""

    setup_s: float
    first_load_s: float
    full_waves: float
    """Waves but the last."""
    load_s: float
    """What a full wave loads."""
    matrix_s: float
    """What a wave multiplies."""
    epilogue_s: float
    """What a full wave stores."""
    last_load_s: float
    last_epilogue_s: float
    time_s: float
    """``setup + first load + full waves * max(load, matrix, epilogue) + max(last load, matrix,
    last epilogue) + last epilogue``."""


TERMS = WsTerms._fields


@helper
def _terms(
    m: float, n: float, k: float, batch: float, out_bytes: float, tile: WsTile, rates: Rates
) -> WsTerms:
    down = np.ceil(m / (tile.m * tile.cluster_m)) * tile.cluster_m
    across = np.ceil(n / (tile.n * tile.cluster_n)) * tile.cluster_n
    tiles = down * across * batch
    full = np.ceil(tiles / tile.units) - 1.0
    last = tiles - full * tile.units
    load_rate = rates.bytes_per_s / rates.miss_share if rates.miss_share > 0.0 else math.inf
    per_k = (tile.m / tile.cluster_n + tile.n / tile.cluster_m) * rates.element_bytes
    stored = tile.m * tile.n * out_bytes / rates.bytes_per_s
    load_s = per_k * k * tile.units / load_rate
    last_load_s = per_k * k * last / load_rate
    matrix_s = 2.0 * tile.m * tile.n * k / rates.unit_flop_per_s
    epilogue_s = rates.epilogue_s + stored * tile.units
    last_epilogue_s = rates.epilogue_s + stored * last
    first_s = per_k * rates.first_elements * tile.units / load_rate
    waves_s = full * max(load_s, matrix_s, epilogue_s) + max(last_load_s, matrix_s, last_epilogue_s)
    return WsTerms(
        setup_s=rates.setup_s,
        first_load_s=first_s,
        full_waves=full,
        load_s=load_s,
        matrix_s=matrix_s,
        epilogue_s=epilogue_s,
        last_load_s=last_load_s,
        last_epilogue_s=last_epilogue_s,
        time_s=rates.setup_s + first_s + waves_s + last_epilogue_s,
    )


@helper
def _write(terms: WsTerms, term_T: Floats) -> None:
    for place, value in enumerate(terms):
        term_T[place] = value


@kernel(python_us=100.0)
def ws_persistent_terms(
    extent_G4: Ints,
    out_bytes_G: Floats,
    kernel_CK: Floats,
    rates: Rates,
    choice_G: Ints,
    term_GT: Floats,
) -> int:
    """Terms of each GEMM with the fastest kernel of a menu.

    extent_G4 : int64[G, 4]. (m, n, k, batch); the tiles of all of a batch run as one launch. A zero
        extent costs nothing.
    out_bytes_G : float64[G]. Bytes of an output element.
    kernel_CK : float64[C, 5]. `WsTile`.
    rates : Rates
    choice_G, term_GT : int64[G], float64[G, len(TERMS)]. Outputs: row of the fastest kernel (the
        first of equals, -1 where nothing runs), and its `WsTerms`.
    Returns ``OK``, or ``INVALID`` where a row has no finite, non-negative time.

    Seed of the model: a write-up of warp-specialised persistent CuTeDSL kernels on B200, whose
    two worked examples the tests repeat to six digits.
    """
    status = OK
    for g in range(extent_G4.shape[0]):
        m, n = float(extent_G4[g, 0]), float(extent_G4[g, 1])
        k, batch = float(extent_G4[g, 2]), float(extent_G4[g, 3])
        term_GT[g] = 0.0
        choice_G[g] = -1
        if min(m, n, k, batch) == 0.0:
            continue
        time_s = 0.0
        for c in range(kernel_CK.shape[0]):
            tile_m, tile_n, cluster_m, cluster_n, units = kernel_CK[c]
            tile = WsTile(tile_m, tile_n, cluster_m, cluster_n, units)
            terms = _terms(m, n, k, batch, out_bytes_G[g], tile, rates)
            if choice_G[g] < 0 or terms.time_s < time_s:
                choice_G[g] = c
                time_s = terms.time_s
                _write(terms, term_GT[g])
        if not (min(m, n, k, batch) > 0.0 and 0.0 <= time_s < math.inf):
            status = INVALID
    return status


def ws_persistent_columns(
    extent_G4: Ints, out_bytes_G: Floats, kernel_CK: Floats, rates: Rates
) -> tuple[Ints, Floats]:
    """Return the columns ``(choice, terms)`` of `ws_persistent_terms`.

    Raises `ValueError` if a time is no finite, non-negative number.
    """
    rows = len(extent_G4)
    choice_G, term_GT = np.empty(rows, np.int64), np.empty((rows, len(TERMS)))
    status = ws_persistent_terms(
        *as_type(np.int64, extent_G4),
        *as_type(np.float64, out_bytes_G, kernel_CK),
        rates,
        choice_G,
        term_GT,
    )
    if status != OK:
        refuse_extents("GEMM", EXTENTS, term_GT[:, TERMS.index("time_s")], extent_G4)
    return choice_G, term_GT
