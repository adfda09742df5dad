"""The fastest tile and split of K of one GEMM, without timing every pair of them.

Shape suffixes
    S   numbers of parts of K
    T   tiles of a device

Every pair of a tile and a number of parts is held against a bound: the seconds of the compute
units beside the least traffic that any order of tiles has. What a tile asks for whatever the parts
is worked out once, the bounds of one number of parts are one pass over all tiles free of branches,
and both are vectorised. A number of parts whose reduction alone takes too long has no pass. Only
pairs whose bound is not above the best time so far are timed, the most promising ones first.
Where the first one leaves many, a closer bound of the traffic sorts out most of them.
"""

import math
from typing import NamedTuple

import numpy as np

from projector.arrays import Floats
from projector.kernels._jit import helper, inlined
from projector.kernels.device import MAX_SPLITS, MAX_TILES
from projector.kernels.gemm.model import (
    Cost,
    busy_seconds,
    ceil_share,
    closer_memory_seconds,
    core_of,
    core_times,
    cut,
    joined_seconds,
    least_memory_seconds,
    loop_seconds,
    memory_traffic,
    reduction_seconds,
    traffic_seconds,
)
from projector.kernels.gemm.problem import MENU, Problem, Tile, candidate, columns_of

SCRATCH = np.dtype(
    [
        ("menu", MENU),
        # Of each tile: how many cut the output, and steps of the main loop over all of K.
        ("tiles", np.float64, (MAX_TILES,)),
        ("steps", np.float64, (MAX_TILES,)),
        # Seconds of one element of K in a unit's main loop, of one epilogue, and of L2.
        ("loop_s", np.float64, (MAX_TILES,)),
        ("epilogue_s", np.float64, (MAX_TILES,)),
        ("l2_s", np.float64, (MAX_TILES,)),
        # Of the traffic behind L2: what it does not go below, or what it takes. Bytes out of
        # memory and through the cache before it are negative until they are known.
        ("memory_s", np.float64, (MAX_TILES,)),
        ("hbm_bytes", np.float64, (MAX_TILES,)),
        ("cache_bytes", np.float64, (MAX_TILES,)),
        # What each number of parts and each tile does not go below, infinite where that is timed;
        # and the lowest of each number of parts. The first row is a whole K.
        ("bound_s", np.float64, (MAX_SPLITS + 1, MAX_TILES)),
        ("lowest_s", np.float64, (MAX_SPLITS + 1,)),
    ]
)
"""A menu, and what a search knows of each of its tiles; one record, so that the compiler knows
how far columns are apart."""

UNKNOWN = -1.0

ROUNDING = 1.0 + 1e-9
"""How far above the time that it bounds rounding may put a bound."""

FEW = 3
"""Tiles that are timed sooner than a closer bound sorts them out."""


class Choice(NamedTuple):
    """The fastest candidate so far."""

    tile: int
    """-1 without one."""
    parts: float
    time_s: float


@inlined
def survey(problem: Problem, columns: int, scratch: np.void) -> None:
    """Work out what each tile asks for, whatever the parts of K, and bound its traffic."""
    for t in range(columns):
        tile = candidate(scratch["menu"], t, 1.0)
        grid = cut(problem, tile)
        core = core_of(problem, tile, grid, 1.0, 1.0)
        scratch["tiles"][t] = grid.tiles
        scratch["steps"][t] = grid.steps
        scratch["loop_s"][t] = loop_seconds(core) + core.wait
        scratch["epilogue_s"][t] = core.epilogue
        scratch["l2_s"][t] = core.l2
        scratch["memory_s"][t] = least_memory_seconds(problem, grid)
        scratch["hbm_bytes"][t] = UNKNOWN


@inlined
def bound_closer(problem: Problem, columns: int, scratch: np.void) -> None:
    """Replace the bounds of unknown traffic by closer ones."""
    for t in range(columns):
        tile = candidate(scratch["menu"], t, 1.0)
        closer_s = closer_memory_seconds(problem, tile, cut(problem, tile))
        known = scratch["hbm_bytes"][t] >= 0.0
        scratch["memory_s"][t] = scratch["memory_s"][t] if known else closer_s


@inlined
def bound_row(
    problem: Problem, row: int, split: float, limit_s: float, columns: int, scratch: np.void
) -> int:
    """Bound the times of all tiles with one number of parts; return how many keep to a limit."""
    per_split = 1.0 / split
    rest_s = problem.start_s + reduction_seconds(problem, split)
    above = 0
    for t in range(columns):
        waves = ceil_share(scratch["tiles"][t] * split, scratch["menu"]["per_unit"][t])
        depth = ceil_share(scratch["steps"][t], per_split) * scratch["menu"]["step"][t]
        epilogue_s = scratch["epilogue_s"][t]
        exposed_s = epilogue_s * (1.0 + (waves - 1.0) * problem.epilogue_exposed)
        loops_s = waves * depth * scratch["loop_s"][t] + exposed_s
        core_s = max(loops_s, epilogue_s * waves, scratch["l2_s"][t])
        bound_s = rest_s + joined_seconds(problem, core_s, scratch["memory_s"][t])
        scratch["bound_s"][row, t] = bound_s
        above += bound_s > limit_s
    return columns - above


@helper
def _lowest(row: int, columns: int, scratch: np.void) -> int:
    """Return where the first of the lowest bounds is. Four chains wait for each other less."""
    bound = scratch["bound_s"]
    a = b = c = d = math.inf
    for t in range(0, columns, 4):
        a, b = min(a, bound[row, t]), min(b, bound[row, t + 1])
        c, d = min(c, bound[row, t + 2]), min(d, bound[row, t + 3])
    lowest = min(a, b, c, d)
    for t in range(columns):
        if bound[row, t] <= lowest:
            return t
    return 0


@helper
def _count(limit_s: float, columns: int, scratch: np.void) -> int:
    """How many tiles may keep to a limit with a whole K."""
    above = 0
    for t in range(columns):
        above += scratch["bound_s"][0, t] > limit_s
    return columns - above


@helper
def _faster(
    problem: Problem, row: int, t: int, split: float, best: Choice, scratch: np.void
) -> Choice:
    """Time one candidate, and return it where it is faster than the best one, or that."""
    tile = candidate(scratch["menu"], t, split)
    grid = cut(problem, tile)
    scratch["bound_s"][row, t] = math.inf
    if scratch["hbm_bytes"][t] < 0.0:
        hbm_bytes, cache_bytes = memory_traffic(problem, tile, grid)
        scratch["hbm_bytes"][t] = hbm_bytes
        scratch["cache_bytes"][t] = cache_bytes
        scratch["memory_s"][t] = traffic_seconds(problem, hbm_bytes, cache_bytes)
    core_s = busy_seconds(core_times(problem, tile, grid), 1.0)
    joined_s = joined_seconds(problem, core_s, scratch["memory_s"][t])
    time_s = problem.start_s + joined_s + reduction_seconds(problem, split)
    if time_s < best.time_s:
        return Choice(t, split, time_s)
    if time_s == best.time_s and (split < best.parts or (split == best.parts and t < best.tile)):
        return Choice(t, split, time_s)
    return best


@inlined
def find_best(
    problem: Problem, split_S: Floats, splits: int, light_s: float, tiles: int, scratch: np.void
) -> Choice:
    """Find the fastest candidate; of equals the one of fewest parts of K, then the first.

    split_S : float64[S]. Numbers of parts above one that K may be cut into, rising.
    splits : int. How many of them the depth of the problem allows.
    light_s : float. Seconds that no candidate's compute units go below.
    tiles : int. Tiles in the menu.
    scratch : SCRATCH. Holds the menu. The rest is overwritten, and holds the traffic of the tile
        that is found.
    Returns tile -1, one part and infinity where no candidate has a finite time.
    """
    columns = columns_of(tiles)
    survey(problem, columns, scratch)
    bound_row(problem, 0, 1.0, math.inf, columns, scratch)
    best = Choice(-1, 1.0, math.inf)
    best = _faster(problem, 0, _lowest(0, columns, scratch), 1.0, best, scratch)
    left = _count(best.time_s * ROUNDING, columns, scratch)
    scratch["lowest_s"][0] = 0.0 if left > 0 else math.inf
    closer = left > FEW and problem.a_bytes + problem.b_bytes > problem.die_bytes
    if closer:
        bound_closer(problem, columns, scratch)
    first, first_t, first_s = 0, 0, math.inf
    for row in range(0 if closer else 1, splits + 1):
        split = split_S[row - 1] if row > 0 else 1.0
        limit_s = best.time_s * ROUNDING
        scratch["lowest_s"][row] = math.inf
        if problem.start_s + light_s + reduction_seconds(problem, split) > limit_s:
            continue
        # Of a whole K one is timed.
        if bound_row(problem, row, split, limit_s, columns, scratch) <= (row == 0):
            continue
        t = _lowest(row, columns, scratch)
        lowest_s = scratch["bound_s"][row, t]
        scratch["lowest_s"][row] = lowest_s
        if row > 0 and lowest_s < first_s:
            first, first_t, first_s = row, t, lowest_s
    if first > 0:
        best = _faster(problem, first, first_t, split_S[first - 1], best, scratch)
    for row in range(splits + 1):
        if scratch["lowest_s"][row] > best.time_s * ROUNDING:
            continue
        split = split_S[row - 1] if row > 0 else 1.0
        for t in range(tiles):
            if not scratch["bound_s"][row, t] > best.time_s * ROUNDING:
                best = _faster(problem, row, t, split, best, scratch)
    return best


@inlined
def cost_found(problem: Problem, tile: Tile, best: int, scratch: np.void) -> Cost:
    """Return `cost_of` the tile that was found, with the traffic that the scratch knows."""
    return Cost(
        core_times(problem, tile, cut(problem, tile)),
        scratch["memory_s"][best],
        scratch["hbm_bytes"][best],
        scratch["cache_bytes"][best],
        reduction_seconds(problem, tile.split),
    )
