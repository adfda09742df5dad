"""What a tile makes of a GEMM: waves of tiles, traffic, power, and what sets the time."""

from typing import NamedTuple

import numpy as np

from projector.kernels._jit import helper, inlined
from projector.kernels.gemm.problem import (
    COMPUTE,
    EPILOGUE,
    ISSUE,
    L2,
    L2_FILL,
    MEMORY,
    OVERHEAD,
    Problem,
    Tile,
)

LOWEST_CLOCK = 0.05
"""Share of the highest clock below which no power cap pushes a device."""

HALVINGS = 40
"""Steps of the search for the clock; they leave an error of 1e-12."""

MISSED_AT_MOST = 1.0 - 1e-9
"""Share of what a cache is asked for that a bound takes for all of it: rounding stays below."""


class Core(NamedTuple):
    """Seconds on the compute units, and of L2 as a whole."""

    matrix: float
    scale: float
    """Vector units that multiply block scales, while the matrix pipe waits."""
    fill: float
    issue: float
    wait: float
    """What the steps of the main loop add, whatever they do."""
    epilogue: float
    """What the main loop does not hide of the epilogues."""
    epilogues: float
    """All of a unit's epilogues, one after the other."""
    l2: float


class Cut(NamedTuple):
    """What a tile cuts a problem into."""

    high: float
    """Clusters along M."""
    wide: float
    """Clusters along N."""
    tiles: float
    """Tiles of all of a batch, in whole clusters."""
    steps: float
    """Of the main loop over all of K."""


class Cost(NamedTuple):
    """Parts of a candidate's time that the choice of the clock asks for again and again."""

    core: Core
    memory_s: float
    hbm_bytes: float
    cache_bytes: float
    """Through the last cache before memory."""
    reduce_s: float


@inlined
def ceil_share(count: float, share: float) -> float:
    """Return ``count * share`` rounded up, where the share is one over a multiple of a half.

    A product with a rounded reciprocal may exceed a whole number that the quotient would hit. A
    quarter less of what is counted never misses one, as counts are whole; it is exact below 2^50.
    """
    rounded: float = np.ceil((count - 0.25) * share)
    return rounded


@inlined
def cut(problem: Problem, tile: Tile) -> Cut:
    """Cut a problem into tiles."""
    high = ceil_share(problem.m, tile.per_block_m)
    wide = ceil_share(problem.n, tile.per_block_n)
    clusters = high * wide * problem.batch
    return Cut(
        high, wide, clusters * tile.cluster_m * tile.cluster_n, ceil_share(problem.k, tile.per_step)
    )


@inlined
def loaded_bytes(problem: Problem, grid: Cut) -> float:
    """Bytes that L2 hands out; the units of a cluster share a load."""
    return grid.wide * problem.a_bytes + grid.high * problem.b_bytes


@inlined
def count_waves(tile: Tile, grid: Cut) -> float:
    """Waves of tiles, whole ones."""
    return ceil_share(grid.tiles * tile.split, tile.per_unit)


@inlined
def core_of(problem: Problem, tile: Tile, grid: Cut, waves: float, walked: float) -> Core:
    """Seconds on the compute units and of L2, at the full clock.

    ``walked`` are the elements of K that a unit walks through in all its waves. Seconds of the
    main loops are in proportion to them, and those of the epilogues rise in a straight line with
    the waves: the bounds of the search rest on it.
    """
    matrix_s = tile.flop * problem.flop_s
    rows = min(tile.m, problem.m) * tile.share_m + min(tile.n, problem.n) * tile.share_n
    epilogue_s = problem.epilogue_s + tile.area * problem.store_s
    return Core(
        walked * matrix_s,
        walked * tile.area * problem.scale_s,
        walked * rows * problem.fill_s,
        walked * problem.issue_s,
        walked * tile.wait * problem.clock_s,
        epilogue_s * (1.0 + (waves - 1.0) * problem.epilogue_exposed),
        epilogue_s * waves,
        loaded_bytes(problem, grid) * problem.load_byte_s,
    )


@inlined
def core_times(problem: Problem, tile: Tile, grid: Cut) -> Core:
    """Seconds on the compute units and of L2, at the full clock."""
    waves = count_waves(tile, grid)
    depth = np.ceil(grid.steps / tile.split) * tile.step
    return core_of(problem, tile, grid, waves, waves * depth)


@inlined
def loop_seconds(core: Core) -> float:
    """Seconds of the longest of what runs side by side in the main loops."""
    seconds: float = max(core.matrix + core.scale, core.fill, core.issue)
    return seconds


@inlined
def busy_seconds(core: Core, clock_share: float) -> float:
    """Seconds of the compute units: the main loops and what they do not hide, or L2."""
    loops = loop_seconds(core) + core.wait + core.epilogue
    return float(max(loops, core.epilogues, core.l2) / clock_share)


@inlined
def _missed(since_bytes: float, cache_bytes: float) -> float:
    """Share that a cache has lost of what it is asked for again after reading this much.

    A cache that replaces at random keeps nearly the square of what would fit, if everything is
    read in turn over and over.
    """
    kept = min(1.0, cache_bytes / since_bytes)
    return 1.0 - kept * kept


@inlined
def _sweeps(
    problem: Problem,
    tile: Tile,
    grid: Cut,
    units: float,
    side: float,
    rows: float,
    cache_bytes: float,
) -> float:
    """Bytes of A and B that ``units`` compute units read again, wave after wave.

    The tiles of a wave form a rectangle of the output, in whole clusters, as near to a square as
    the grid of tiles allows, or as high as the library groups them; ``side`` is the root of the
    units. Its rows of A and columns of B are read once, by units that advance in step. Rectangles
    follow each other along N, which soon asks for the same rows of A again and for B only when a
    group of rows is done; without groups of the library's own, along M if that reads less. Where
    dies take tiles in turn, each has the share ``rows`` of a rectangle's rows.
    """
    a, b = problem.a_bytes, problem.b_bytes
    if cache_bytes >= a + b:
        return 0.0
    down, across = grid.high * tile.cluster_m, grid.wide * tile.cluster_n
    tall = problem.group_m if problem.group_m > 0.0 else side * tile.narrow
    high = min(down, max(tile.cluster_m, tall))
    wide = min(across, max(tile.cluster_n, units / high))
    # A group higher than a wave takes several waves for its rows.
    wave = max(1.0, min(high, max(tile.cluster_m, units / wide)) * rows)
    panels, bands, waves = down / high, across / wide, down / wave
    rows_a, columns_b = a * rows / panels, b / bands
    again_a, again_b = (bands - 1.0) * a, (panels - 1.0) * b
    soon = _missed(rows_a + columns_b, cache_bytes)
    along_n = again_a * soon + again_b * _missed(b + rows_a, cache_bytes)
    along_m = again_b * soon + again_a * _missed(a + columns_b, cache_bytes)
    within = (waves - panels) * b * _missed(a / waves + columns_b, cache_bytes)
    return float(within + (along_n if problem.group_m > 0.0 else min(along_n, along_m)))


@inlined
def memory_traffic(problem: Problem, tile: Tile, grid: Cut) -> tuple[float, float]:
    """Bytes out of memory, and through the last cache before it."""
    down, across = grid.high * tile.cluster_m, grid.wide * tile.cluster_n
    on_die = max(1.0, min(tile.units, down * across) * problem.of_die)
    from_fabric = _sweeps(
        problem, tile, grid, on_die, np.sqrt(on_die), problem.die_rows, problem.die_bytes
    )
    from_memory = _sweeps(
        problem, tile, grid, problem.shared_units, problem.shared_side, 1.0, problem.shared_bytes
    )
    once = problem.a_bytes + problem.b_bytes + problem.output
    beyond = loaded_bytes(problem, grid) - problem.a_bytes - problem.b_bytes - from_fabric
    missed = problem.l2_miss_share * max(0.0, beyond)
    return once + min(from_fabric, from_memory) + missed, once + from_fabric + missed


@inlined
def traffic_seconds(problem: Problem, hbm_bytes: float, fabric_bytes: float) -> float:
    """Seconds of traffic behind L2."""
    return max(hbm_bytes * problem.hbm_byte_s, fabric_bytes * problem.fabric_byte_s)


@inlined
def least_memory_seconds(problem: Problem, grid: Cut) -> float:
    """Return what the traffic behind L2 does not go below, whatever it reads again.

    A share of the loads misses L2; what is read again on purpose adds at least as much to the
    traffic of the last cache as it takes from these.
    """
    once = problem.a_bytes + problem.b_bytes + problem.output
    beyond = loaded_bytes(problem, grid) - problem.a_bytes - problem.b_bytes
    missed = problem.l2_miss_share * max(0.0, beyond)
    return traffic_seconds(problem, once, once + missed)


@inlined
def _count_rectangles(
    tile: Tile, grid: Cut, tall: float, per_tall: float, per_units: float
) -> tuple[float, float]:
    """Panels along M and bands along N of full waves: those of `_sweeps`, without a quotient."""
    down, across = grid.high * tile.cluster_m, grid.wide * tile.cluster_n
    wide = across * (min(down, tall) * per_units)
    return max(1.0, down * per_tall), max(1.0, min(grid.wide, wide))


@inlined
def closer_memory_seconds(problem: Problem, tile: Tile, grid: Cut) -> float:
    """Return a higher bound than `least_memory_seconds`: some of what full waves read again.

    Whatever the order of the rectangles, what is needed again is asked for after the rows and
    columns of one rectangle at the soonest. One quotient serves both caches.
    """
    a, b = problem.a_bytes, problem.b_bytes
    panels, bands = _count_rectangles(
        tile, grid, tile.die_tall, tile.per_die_tall, tile.per_die_units
    )
    shared_panels, shared_bands = _count_rectangles(
        tile, grid, tile.shared_tall, tile.per_shared_tall, problem.per_shared_units
    )
    # Of all rectangles; over panels times bands this is what one reads.
    die_bytes = a * bands * problem.die_rows + b * panels
    shared_bytes = a * shared_bands + b * shared_panels
    per_bytes = 1.0 / (die_bytes * shared_bytes)
    die_kept = problem.die_bytes * (panels * bands) * (shared_bytes * per_bytes)
    shared_kept = problem.shared_bytes * (shared_panels * shared_bands) * (die_bytes * per_bytes)
    again = (a * bands + b * panels - (a + b)) * _least_missed(die_kept)
    # A grid that fills less than a wave forms smaller rectangles.
    from_fabric = again if grid.tiles >= tile.units * problem.batch else 0.0
    from_memory = (shared_bytes - (a + b)) * _least_missed(shared_kept)
    beyond = loaded_bytes(problem, grid) - (a + b) - from_fabric
    fabric_bytes = from_fabric + problem.l2_miss_share * max(0.0, beyond)
    once = a + b + problem.output
    return traffic_seconds(problem, once + min(fabric_bytes, from_memory), once + fabric_bytes)


@inlined
def _least_missed(kept: float) -> float:
    """Return what `_missed` does not go below, where a cache can keep this share."""
    kept = min(1.0, kept)
    return max(0.0, MISSED_AT_MOST - kept * kept)


@inlined
def reduction_seconds(problem: Problem, split: float) -> float:
    """Seconds of adding up the parts of a split K."""
    # Half of the traffic is the size; what L2 does not hold goes to memory and back.
    partial = problem.partial_bytes * split
    fits = partial <= 2.0 * problem.l2_bytes
    byte_s = problem.l2_byte_s if fits else problem.hbm_byte_s
    seconds: float = problem.split_k_s + partial * byte_s
    return seconds if split > 1.0 else 0.0


@inlined
def joined_seconds(problem: Problem, core_s: float, memory_s: float) -> float:
    """Seconds of work that runs side by side, with what of it does not hide."""
    return max(core_s, memory_s) + problem.overlap_loss * min(core_s, memory_s)


@helper
def cost_of(problem: Problem, tile: Tile) -> Cost:
    """Everything that a candidate's time at any clock is made of."""
    grid = cut(problem, tile)
    hbm_bytes, fabric_bytes = memory_traffic(problem, tile, grid)
    return Cost(
        core_times(problem, tile, grid),
        traffic_seconds(problem, hbm_bytes, fabric_bytes),
        hbm_bytes,
        fabric_bytes,
        reduction_seconds(problem, tile.split),
    )


@inlined
def find_bound(cost: Cost, time_s: float, clock_share: float) -> int:
    """Name the longest part; overhead where what no part explains is longer than any."""
    core = cost.core
    loop_s = loop_seconds(core)
    busy_s = busy_seconds(core, clock_share)
    epilogue_s = max(core.epilogue, core.epilogues if core.epilogues > loop_s else 0.0)
    longest_s = max(loop_s, core.wait, epilogue_s, core.l2)
    if time_s > 2.0 * max(longest_s / clock_share, cost.memory_s):
        return OVERHEAD
    if cost.memory_s >= busy_s:
        return MEMORY
    if core.l2 >= max(loop_s + core.wait + core.epilogue, core.epilogues):
        return L2
    if epilogue_s > max(loop_s, core.wait):
        return EPILOGUE
    if core.wait > loop_s or core.issue == loop_s > max(core.matrix + core.scale, core.fill):
        return ISSUE
    return COMPUTE if core.matrix + core.scale == loop_s else L2_FILL


@helper
def power_and_seconds(
    device: np.void, code: int, problem: Problem, cost: Cost, clock_share: float
) -> tuple[float, float]:
    """Watts and seconds where the clock is this share of the one that the rates hold at."""
    core_s = busy_seconds(cost.core, clock_share)
    time_s = problem.start_s + joined_seconds(problem, core_s, cost.memory_s) + cost.reduce_s
    flop = 2.0 * problem.m * problem.n * problem.k * problem.batch
    joules = flop * device["joule_per_flop"][code] + cost.hbm_bytes * device["joule_per_hbm_byte"]
    floor = device["power_voltage_floor"]
    volts = floor + (1.0 - floor) * clock_share * device["power_clock_share"][code]
    return device["power_idle_w"] + joules * volts * volts / time_s, time_s


@helper
def find_clock_share(device: np.void, code: int, problem: Problem, cost: Cost) -> float:
    """Highest share of the clock at which the kernel stays within the power cap."""
    cap_w = device["power_cap_w"]
    if cap_w <= 0.0 or device["joule_per_flop"][code] <= 0.0:
        return 1.0
    if power_and_seconds(device, code, problem, cost, 1.0)[0] <= cap_w:
        return 1.0
    low, high = LOWEST_CLOCK, 1.0
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        if power_and_seconds(device, code, problem, cost, middle)[0] <= cap_w:
            low = middle
        else:
            high = middle
    return low
