"""The fastest tile and split of K of one GEMM, without timing every pair of them.

Shape suffixes
    F   columns of a menu of tiles
    R   rows of the scratch
    S   numbers of parts of K
    T   tiles of a device

The seconds of the compute units of a whole K are cheap, and the traffic behind L2 is not. The
search therefore holds every tile against a bound: its own seconds on the compute units beside the
least traffic that any order of tiles has. It times the tile with the lowest bound, and then only
tiles whose bound is not above the best time so far. What a split of K can do at best is a second
bound of a tile. Terms that only add time leave both bounds valid.
"""

import math

from projector.arrays import Floats
from projector.kernels._jit import inlined
from projector.kernels.gemm.model import (
    Cost,
    Cut,
    busy_seconds,
    core_times,
    cut,
    joined_seconds,
    least_core_times,
    least_memory_seconds,
    least_reduction_seconds,
    memory_traffic,
    reduction_seconds,
    traffic_seconds,
)
from projector.kernels.gemm.problem import Problem, Tile, candidate

SCRATCH_ROWS = 6
CORE, MEMORY, HBM_BYTES, CACHE_BYTES, WHOLE, PARTS = range(SCRATCH_ROWS)
"""Rows of the scratch: seconds of the compute units with a whole K, and of the traffic behind L2
(negative where it is not known); bytes out of memory and through the cache before it; bounds of
the time with a whole K, and with several parts."""

UNKNOWN = -1.0

ROUNDING = 1.0 + 1e-9
"""How far above the time that it bounds rounding may put a bound."""


@inlined
def _bound_whole(problem: Problem, menu_FT: Floats, tiles: int, scratch_RT: Floats) -> None:
    """Bound the time of each tile with a whole K. Free of branches, so that it is vectorised."""
    for t in range(tiles):
        tile = candidate(menu_FT, t, 1.0)
        grid = cut(problem, tile)
        core_s = busy_seconds(core_times(problem, tile, grid), 1.0)
        least_s = least_memory_seconds(problem, grid)
        scratch_RT[CORE, t] = core_s
        scratch_RT[MEMORY, t] = UNKNOWN
        scratch_RT[WHOLE, t] = problem.start_s + joined_seconds(problem, core_s, least_s)


@inlined
def _bound_parts(
    problem: Problem,
    fewest: float,
    most: float,
    menu_FT: Floats,
    tiles: int,
    scratch_RT: Floats,
) -> None:
    """Bound the time of each tile with several parts of K, whatever their number."""
    least_s = problem.start_s + least_reduction_seconds(problem, fewest)
    for t in range(tiles):
        tile = candidate(menu_FT, t, fewest)
        grid = cut(problem, tile)
        core_s = busy_seconds(least_core_times(problem, tile, grid, fewest, most), 1.0)
        memory_s = least_memory_seconds(problem, grid)
        scratch_RT[PARTS, t] = least_s + joined_seconds(problem, core_s, memory_s)


@inlined
def _lowest(bound_T: Floats, tiles: int) -> int:
    """Return where the first of the lowest bounds is. Four chains wait for each other less."""
    a = b = c = d = math.inf
    whole = tiles - tiles % 4
    for t in range(0, whole, 4):
        a, b = min(a, bound_T[t]), min(b, bound_T[t + 1])
        c, d = min(c, bound_T[t + 2]), min(d, bound_T[t + 3])
    for t in range(whole, tiles):
        a = min(a, bound_T[t])
    lowest = min(a, b, c, d)
    for t in range(tiles):
        if bound_T[t] <= lowest:
            return t
    return 0


@inlined
def _add_memory(problem: Problem, tile: Tile, grid: Cut, t: int, scratch_RT: Floats) -> None:
    """Find the traffic of a tile, once."""
    if scratch_RT[MEMORY, t] < 0.0:
        hbm_bytes, fabric_bytes = memory_traffic(problem, tile, grid)
        scratch_RT[HBM_BYTES, t] = hbm_bytes
        scratch_RT[CACHE_BYTES, t] = fabric_bytes
        scratch_RT[MEMORY, t] = traffic_seconds(problem, hbm_bytes, fabric_bytes)


@inlined
def _search_whole(
    problem: Problem, menu_FT: Floats, tiles: int, scratch_RT: Floats
) -> tuple[int, float]:
    """Return the first of the fastest tiles with a whole K and its seconds; -1 without one."""
    _bound_whole(problem, menu_FT, tiles, scratch_RT)
    first = _lowest(scratch_RT[WHOLE], tiles)
    best, best_s = -1, math.inf
    for place in range(-1, tiles):
        # The most promising one goes first.
        t = first if place < 0 else place
        if scratch_RT[WHOLE, t] > best_s * ROUNDING or place == first:
            continue
        tile = candidate(menu_FT, t, 1.0)
        _add_memory(problem, tile, cut(problem, tile), t, scratch_RT)
        joined_s = joined_seconds(problem, scratch_RT[CORE, t], scratch_RT[MEMORY, t])
        time_s = problem.start_s + joined_s
        if time_s < best_s or (time_s == best_s and t < best):
            best, best_s = t, time_s
    return best, best_s


@inlined
def _search_parts(
    problem: Problem,
    split_S: Floats,
    splits: int,
    menu_FT: Floats,
    tiles: int,
    scratch_RT: Floats,
    best: int,
    best_s: float,
) -> tuple[int, int, float]:
    """Return the fastest candidate, where ``best`` is that with a whole K; as `find_best`."""
    parts = 1.0
    _bound_parts(problem, split_S[0], split_S[splits - 1], menu_FT, tiles, scratch_RT)
    first = _lowest(scratch_RT[PARTS], tiles)
    for place in range(-1, tiles):
        t = first if place < 0 else place
        if scratch_RT[PARTS, t] > best_s * ROUNDING or place == first:
            continue
        grid = cut(problem, candidate(menu_FT, t, 1.0))
        for s in range(splits):
            split = split_S[s]
            tile = candidate(menu_FT, t, split)
            core_s = busy_seconds(core_times(problem, tile, grid), 1.0)
            reduce_s = reduction_seconds(problem, split)
            least_s = max(scratch_RT[MEMORY, t], least_memory_seconds(problem, grid))
            bound_s = problem.start_s + joined_seconds(problem, core_s, least_s) + reduce_s
            if bound_s > best_s * ROUNDING:
                continue
            _add_memory(problem, tile, grid, t, scratch_RT)
            joined_s = joined_seconds(problem, core_s, scratch_RT[MEMORY, t])
            time_s = problem.start_s + joined_s + reduce_s
            if time_s < best_s or (
                time_s == best_s and (split < parts or (split == parts and t < best))
            ):
                best, parts, best_s = t, split, time_s
    return best, int(parts), best_s


@inlined
def find_best(
    problem: Problem,
    split_S: Floats,
    splits: int,
    light_s: float,
    menu_FT: Floats,
    tiles: int,
    scratch_RT: Floats,
) -> tuple[int, int, float]:
    """Find the fastest candidate; of equals the one of fewest parts of K, then the first.

    Parameters
    ----------
    split_S : float64[S]
        Numbers of parts above one that K may be cut into, rising.
    splits : int
        How many of them the depth of the problem allows.
    light_s : float
        Seconds that no candidate's compute units go below.
    menu_FT : float64[MENU_FIELDS, MAX_TILES]
    tiles : int
        Tiles in the menu.
    scratch_RT : float64[SCRATCH_ROWS, MAX_TILES]
        Overwritten; holds the traffic of the tile that is found.

    Returns
    -------
    tuple[int, int, float]
        Tile, parts of K and seconds; -1, 1 and infinity where no candidate has a finite time.
    """
    best, best_s = _search_whole(problem, menu_FT, tiles, scratch_RT)
    if splits == 0:
        return best, 1, best_s
    least_s = problem.start_s + least_reduction_seconds(problem, split_S[0]) + light_s
    if least_s > best_s * ROUNDING:
        return best, 1, best_s
    return _search_parts(problem, split_S, splits, menu_FT, tiles, scratch_RT, best, best_s)


@inlined
def cost_found(problem: Problem, tile: Tile, best: int, scratch_RT: Floats) -> Cost:
    """Return `cost_of` the tile that was found, with the traffic that the scratch knows."""
    return Cost(
        core_times(problem, tile, cut(problem, tile)),
        scratch_RT[MEMORY, best],
        scratch_RT[HBM_BYTES, best],
        scratch_RT[CACHE_BYTES, best],
        reduction_seconds(problem, tile.split),
    )
