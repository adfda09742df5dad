"""Time of matrix multiplications on one device, by tiles and by speed of light.

Shape suffixes
    G   GEMMs in the batch
    4   extents (m, n, k, batch) of one of them
    D   devices
    1   a record that is written
    T   terms of a time
Units: time s, work FLOP, traffic bytes, rates FLOP/s and bytes/s. Floats are float64, extents
int64.
"""

import math

import numpy as np

from projector.arrays import Floats, Ints, Records
from projector.kernels._jit import helper, kernel
from projector.kernels.columns import as_type, refuse_extents
from projector.kernels.device import MATRIX_TYPES, OPERAND_BYTES
from projector.kernels.gemm.model import (
    busy_seconds,
    cost_of,
    count_waves,
    cut,
    find_bound,
    find_clock_share,
    loaded_bytes,
    power_and_seconds,
)
from projector.kernels.gemm.problem import (
    COMPUTE,
    EXTENTS,
    MEMORY,
    MENU,
    OVERHEAD,
    TERMS,
    GemmTerms,
    candidate,
    load_menu,
    meet,
)
from projector.kernels.gemm.search import SCRATCH, cost_found, find_best

MAX_SPLIT_K = 64
"""Most parts that K is cut into."""

MIN_SPLIT_DEPTH = 256.0
"""Shallowest part that a library splits K into."""

OK, INVALID = 0, 1


@helper
def count_splits(device: np.void, k: float) -> int:
    """How many of a device's numbers of parts leave parts deep enough."""
    splits = 0
    while splits < device["num_gemm_splits"]:
        if k < MIN_SPLIT_DEPTH * device["gemm_splits"][splits]:
            break
        splits += 1
    return splits


@kernel(python_us=200.0)
def gemm_times(
    extent_G4: Ints,
    dtype_G: Ints,
    out_bytes_G: Floats,
    efficiency_G: Floats,
    device_G: Ints,
    devices_D: Records,
    scratch_1: Records,
    time_s_G: Floats,
    bound_G: Ints,
    choice_G: Ints,
) -> int:
    """Time of each GEMM ``C[m, n] = A[m, k] @ B[k, n]`` with the best tile and K split.

    extent_G4 : int64[G, 4]. (m, n, k, batch); ``batch`` equal problems share one launch. A zero
        extent costs nothing.
    dtype_G : int64[G]. Code of the operand type (``MATRIX_TYPES``).
    out_bytes_G : float64[G]. Bytes of an output element, a read-modify-write counted twice.
    efficiency_G : float64[G]. Share of the device's matrix rate that this kind of kernel reaches
        (grouped GEMMs).
    device_G : int64[G]. Row of ``devices_D``.
    devices_D : DEVICE[D]
    scratch_1 : SCRATCH[1]. Overwritten; one for each thread.
    time_s_G, bound_G, choice_G : float64[G], int64[G], int64[G]. Outputs: seconds, code of the
        limiter (``BOUNDS``), and ``tile * MAX_SPLIT_K + split - 1`` of the choice, -1 without one.
    Returns ``OK``, or ``INVALID`` where a row has no finite, non-negative time.

    For a tile and a split the compute units that whole clusters can fill work through
    ``ceil(tiles / units)`` waves; a wave lasts as long as its K loop, the longest of the matrix
    pipe, the loads of the unit out of L2 and the least time of a step, also when it is only partly
    full. Of a tile's epilogue (drain, convert, store) a share waits between waves, and the last
    one wholly. Beside it run the traffic of the whole device out of L2 and out of memory. Each
    wave reads the rows and columns of its rectangle of tiles once (`model`), what an earlier wave
    read comes from a cache as far as the operands fit there (an L2 for each die, the memory-side
    cache for all of them), and a share of the loads misses all the same. ``time = overhead +
    max(core, memory) + loss * min(core, memory)``, plus the reduction of a split K. The smallest
    wins, of equals the one of fewest parts of K, then the first. Under a power cap the clock of
    the winner is the highest at which ``idle + (joules of its FLOP and bytes) * V^2 / time`` stays
    below it.

    Left out: drift of units in a very deep K, stream-K.
    """
    status = OK
    menu_of = np.int64(-1)
    tiles = 0
    scratch, menu = scratch_1[0], scratch_1[0]["menu"]
    for g in range(extent_G4.shape[0]):
        m, n = float(extent_G4[g, 0]), float(extent_G4[g, 1])
        k, batch = float(extent_G4[g, 2]), float(extent_G4[g, 3])
        time_s_G[g] = 0.0
        bound_G[g] = OVERHEAD
        choice_G[g] = -1
        if min(m, n, k, batch) == 0.0:
            continue
        d, code = device_G[g], dtype_G[g]
        if not (
            min(m, n, k, batch) > 0.0
            and 0 <= d < devices_D.shape[0]
            and 0 <= code < len(MATRIX_TYPES)
        ):
            time_s_G[g] = math.nan
            status = INVALID
            continue
        if d != menu_of:
            tiles = load_menu(devices_D[d], menu)
            menu_of = d
        problem = meet(devices_D[d], code, m, n, k, batch, out_bytes_G[g], efficiency_G[g])
        ideal_s = 2.0 * m * n * k * batch * problem.flop_s / problem.units
        splits = count_splits(devices_D[d], k)
        split_S = devices_D[d]["gemm_splits"]
        best, parts, best_s = find_best(problem, split_S, splits, ideal_s, tiles, scratch)
        if best < 0:
            time_s_G[g] = math.nan
            status = INVALID
            continue
        cost = cost_found(problem, candidate(menu, best, parts), best, scratch)
        share = find_clock_share(devices_D[d], code, problem, cost)
        if share < 1.0:
            best_s = power_and_seconds(devices_D[d], code, problem, cost, share)[1]
        # The padded work never falls below the exact one but by rounding.
        light_s = 2.0 * m * n * k * batch / devices_D[d]["matrix_flop_per_s"][code]
        time_s_G[g] = max(best_s, light_s)
        bound_G[g] = find_bound(cost, best_s, share)
        choice_G[g] = best * MAX_SPLIT_K + int(parts) - 1
        if not 0.0 <= time_s_G[g] < math.inf:
            status = INVALID
    return status


@kernel(python_us=200.0)
def gemm_terms(
    extent_G4: Ints,
    dtype_G: Ints,
    out_bytes_G: Floats,
    efficiency_G: Floats,
    device_G: Ints,
    devices_D: Records,
    choice_G: Ints,
    menu_1: Records,
    term_GT: Floats,
) -> None:
    """Write out what the times of `gemm_times` are made of.

    choice_G : int64[G]. Tiles and splits, as `gemm_times` returned them; a row of -1 has no terms
        (zeros).
    menu_1 : MENU[1]. Overwritten; one for each thread.
    term_GT : float64[G, len(TERMS)]. Output: `GemmTerms`.
    The other parameters are those of `gemm_times`.
    """
    for g in range(extent_G4.shape[0]):
        term_GT[g] = 0.0
        if choice_G[g] < 0:
            continue
        device, code = devices_D[device_G[g]], dtype_G[g]
        menu = menu_1[0]
        load_menu(device, menu)
        parts = choice_G[g] % MAX_SPLIT_K + 1
        tile = candidate(menu, choice_G[g] // MAX_SPLIT_K, float(parts))
        m, n = float(extent_G4[g, 0]), float(extent_G4[g, 1])
        k, batch = float(extent_G4[g, 2]), float(extent_G4[g, 3])
        problem = meet(device, code, m, n, k, batch, out_bytes_G[g], efficiency_G[g])
        grid, cost = cut(problem, tile), cost_of(problem, tile)
        core, memory_s = cost.core, cost.memory_s
        tiles = grid.tiles * tile.split
        share = find_clock_share(device, code, problem, cost)
        watts = 0.0
        if device["joule_per_flop"][code] > 0.0:
            watts = power_and_seconds(device, code, problem, cost, share)[0]
        terms = GemmTerms(
            start_s=problem.start_s,
            matrix_s=core.matrix / share,
            scale_s=core.scale / share,
            l2_fill_s=core.fill / share,
            issue_s=core.issue / share,
            wait_s=core.wait / share,
            epilogue_s=core.epilogue / share,
            epilogues_s=core.epilogues / share,
            l2_s=core.l2 / share,
            memory_s=memory_s,
            loss_s=problem.overlap_loss * min(busy_seconds(core, share), memory_s),
            reduce_s=cost.reduce_s,
            tiles=tiles,
            waves=count_waves(tile, grid),
            units=min(tiles, tile.units),
            hbm_bytes=cost.hbm_bytes,
            cache_bytes=cost.cache_bytes,
            l2_bytes=loaded_bytes(problem, grid),
            clock_share=share,
            power_w=watts,
        )
        for place, value in enumerate(terms):
            term_GT[g, place] = value


@kernel
def sol_times(
    extent_G4: Ints,
    dtype_G: Ints,
    out_bytes_G: Floats,
    device_G: Ints,
    devices_D: Records,
    time_s_G: Floats,
    bound_G: Ints,
) -> int:
    """Speed of light of each GEMM: the longer of its FLOP and its compulsory traffic.

    Parameters and result are those of `gemm_times`; the bound is ``COMPUTE`` or ``MEMORY``.
    """
    status = OK
    for g in range(extent_G4.shape[0]):
        m, n = float(extent_G4[g, 0]), float(extent_G4[g, 1])
        k, batch = float(extent_G4[g, 2]), float(extent_G4[g, 3])
        d, code = device_G[g], dtype_G[g]
        time_s_G[g] = 0.0
        bound_G[g] = OVERHEAD
        if min(m, n, k, batch) == 0.0:
            continue
        if not (0 <= d < devices_D.shape[0] and 0 <= code < len(MATRIX_TYPES)):
            time_s_G[g] = math.nan
            status = INVALID
            continue
        operands = (m + n) * k * OPERAND_BYTES[code]
        traffic = batch * (operands + m * n * out_bytes_G[g])
        traffic_s = traffic / devices_D[d]["hbm_bytes_per_s"]
        compute_s = 2.0 * m * n * k * batch / devices_D[d]["matrix_flop_per_s"][code]
        time_s_G[g] = max(compute_s, traffic_s)
        bound_G[g] = COMPUTE if compute_s >= traffic_s else MEMORY
        if not (min(m, n, k, batch) > 0.0 and 0.0 <= time_s_G[g] < math.inf):
            status = INVALID
    return status


GemmColumns = tuple[Ints, Ints, Floats, Floats, Ints, Records]
"""What `gemm_times` reads, from ``extent_G4`` to ``devices_D``."""


def _cast(*columns: *GemmColumns) -> GemmColumns:
    extent_G4, dtype_G, out_bytes_G, efficiency_G, device_G, devices_D = columns
    extent_G4, dtype_G, device_G = as_type(np.int64, extent_G4, dtype_G, device_G)
    out_bytes_G, efficiency_G = as_type(np.float64, out_bytes_G, efficiency_G)
    return extent_G4, dtype_G, out_bytes_G, efficiency_G, device_G, devices_D


def gemm_time_columns(*columns: *GemmColumns) -> tuple[Floats, Ints, Ints]:
    """Return the columns ``(time_s, bound, choice)`` of `gemm_times`.

    Raises `ValueError` if a time is no finite, non-negative number.
    """
    rows = len(columns[0])
    time_s_G, bound_G, choice_G = np.empty(rows), np.empty(rows, np.int64), np.empty(rows, np.int64)
    scratch_1 = np.empty(1, SCRATCH)
    if gemm_times(*_cast(*columns), scratch_1, time_s_G, bound_G, choice_G) != OK:
        refuse_extents("GEMM", EXTENTS, time_s_G, columns[0])
    return time_s_G, bound_G, choice_G


def gemm_term_columns(*columns: *tuple[*GemmColumns, Ints]) -> Floats:
    """Return the terms (float64[G, len(TERMS)]) of `gemm_terms`, whose last input is the choice."""
    term_GT = np.empty((len(columns[0]), len(TERMS)))
    choice = as_type(np.int64, columns[-1])
    gemm_terms(*_cast(*columns[:-1]), *choice, np.empty(1, MENU), term_GT)
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
    extent_G4: Ints, dtype_G: Ints, out_bytes_G: Floats, device_G: Ints, devices_D: Records
) -> tuple[Floats, Ints]:
    """Return the columns ``(time_s, bound)`` of `sol_times`.

    Raises `ValueError` if a time is no finite, non-negative number.
    """
    rows = len(extent_G4)
    time_s_G, bound_G = np.empty(rows), np.empty(rows, np.int64)
    status = sol_times(
        *as_type(np.int64, extent_G4, dtype_G),
        *as_type(np.float64, out_bytes_G),
        *as_type(np.int64, device_G),
        devices_D,
        time_s_G,
        bound_G,
    )
    if status != OK:
        refuse_extents("GEMM", EXTENTS, time_s_G, extent_G4)
    return time_s_G, bound_G
