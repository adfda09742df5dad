"""What a tile makes of a GEMM: waves of tiles, traffic, power, and what sets the time."""

from typing import NamedTuple

import numpy as np

from projector.kernels._jit import helper, inlined
from projector.kernels.gemm.problem import Problem, Tile
from projector.kernels.gemm.terms import (
    COMPUTE,
    EPILOGUE,
    ISSUE,
    L2,
    L2_FILL,
    MEMORY,
    OVERHEAD,
)

LOWEST_CLOCK = 0.05
"""Share of the highest clock below which no power cap pushes a device."""

HALVINGS = 40
"""Steps of the search for the clock; they leave an error of 1e-12."""


class Core(NamedTuple):
    """Seconds on the compute units, and of L2 as a whole."""

    matrix: float
    fill: float
    issue: float
    epilogue: float
    """What the main loop does not hide of the epilogues."""
    epilogues: float
    """All of a unit's epilogues, one after the other."""
    l2: float


@helper
def _blocks(problem: Problem, tile: Tile) -> tuple[float, float]:
    """Clusters along M and N."""
    return np.ceil(problem.m / tile.block_m), np.ceil(problem.n / tile.block_n)


@helper
def tile_grid(problem: Problem, tile: Tile) -> tuple[float, float]:
    """Tiles along M and N, in whole clusters."""
    down, across = _blocks(problem, tile)
    return down * tile.cluster_m, across * tile.cluster_n


@helper
def loaded_bytes(problem: Problem, tile: Tile) -> float:
    """Bytes that L2 hands out; the units of a cluster share a load."""
    down, across = _blocks(problem, tile)
    loads: float = across * problem.a_bytes + down * problem.b_bytes
    return loads


@helper
def count_waves(problem: Problem, tile: Tile) -> float:
    """Waves of tiles, whole ones."""
    down, across = tile_grid(problem, tile)
    waves: float = np.ceil(down * across * problem.batch * tile.split / tile.units)
    return waves


@helper
def core_times(problem: Problem, tile: Tile) -> Core:
    """Seconds on the compute units and of L2, at the full clock."""
    waves = count_waves(problem, tile)
    depth = np.ceil(np.ceil(problem.k / tile.step) / tile.split) * tile.step
    matrix_s = tile.flop * problem.flop_s
    rows = min(tile.m, problem.m) * tile.share_m + min(tile.n, problem.n) * tile.share_n
    epilogue_s = problem.epilogue_s + tile.m * tile.n * problem.store_s
    return Core(
        waves * depth * matrix_s,
        waves * depth * rows * problem.fill_s,
        waves * depth * problem.issue_s,
        epilogue_s * (1.0 + (waves - 1.0) * problem.epilogue_exposed),
        epilogue_s * waves,
        loaded_bytes(problem, tile) * problem.l2_byte_s,
    )


@helper
def busy_seconds(core: Core, clock_share: float) -> float:
    """Seconds of the compute units: the main loops and what they do not hide, or L2."""
    loops = max(core.matrix, core.fill, core.issue) + core.epilogue
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
    problem: Problem, tile: Tile, units: float, side: float, rows: float, cache_bytes: float
) -> float:
    """Bytes of A and B that ``units`` compute units read again, wave after wave.

    The tiles of a wave form a rectangle of the output, in whole clusters, as near to a square as
    the grid of tiles allows, or as high as the library groups them; ``side`` is the root of the
    units. Its rows of A and columns of B are read once, by units that advance in step. Rectangles
    follow each other along N, which soon asks for the same rows of A again and for B only when a
    group of rows is done; without groups of the library's own, along M if that reads less. Where
    dies take tiles in turn, each has the share ``rows`` of a rectangle's rows.
    """
    down, across = tile_grid(problem, tile)
    tall = problem.group_m if problem.group_m > 0.0 else side * tile.narrow
    high = min(down, max(tile.cluster_m, tall))
    wide = min(across, max(tile.cluster_n, units / high))
    # A group higher than a wave takes several waves for its rows.
    wave = max(1.0, min(high, max(tile.cluster_m, units / wide)) * rows)
    a, b = problem.a_bytes, problem.b_bytes
    panels, bands, waves = down / high, across / wide, down / wave
    rows_a, columns_b = a * rows / panels, b / bands
    again_a, again_b = (bands - 1.0) * a, (panels - 1.0) * b
    soon = _missed(rows_a + columns_b, cache_bytes)
    along_n = again_a * soon + again_b * _missed(b + rows_a, cache_bytes)
    along_m = again_b * soon + again_a * _missed(a + columns_b, cache_bytes)
    within = (waves - panels) * b * _missed(a / waves + columns_b, cache_bytes)
    return float(within + (along_n if problem.group_m > 0.0 else min(along_n, along_m)))


@inlined
def memory_traffic(problem: Problem, tile: Tile) -> tuple[float, float]:
    """Bytes out of memory, and through the last cache before it."""
    down, across = tile_grid(problem, tile)
    on_die = max(1.0, min(tile.units, down * across) * problem.of_die)
    from_fabric = _sweeps(
        problem, tile, on_die, np.sqrt(on_die), problem.die_rows, problem.die_bytes
    )
    from_memory = _sweeps(
        problem, tile, problem.shared_units, problem.shared_side, 1.0, problem.shared_bytes
    )
    once = problem.a_bytes + problem.b_bytes + problem.output
    beyond = loaded_bytes(problem, tile) - problem.a_bytes - problem.b_bytes - from_fabric
    missed = problem.l2_miss_share * max(0.0, beyond)
    return once + min(from_fabric, from_memory) + missed, once + from_fabric + missed


@inlined
def memory_seconds(problem: Problem, tile: Tile) -> float:
    """Seconds of the traffic behind L2."""
    hbm_bytes, fabric_bytes = memory_traffic(problem, tile)
    seconds: float = hbm_bytes * problem.hbm_byte_s
    return max(seconds, fabric_bytes * problem.fabric_byte_s)


@helper
def reduction_seconds(problem: Problem, tile: Tile) -> float:
    """Seconds of adding up the parts of a split K."""
    # Half of the traffic is the size; what L2 does not hold goes to memory and back.
    partial = problem.partial_bytes * tile.split
    fits = partial <= 2.0 * problem.l2_bytes
    byte_s = problem.l2_byte_s if fits else problem.hbm_byte_s
    seconds: float = problem.split_k_s + partial * byte_s
    return seconds if tile.split > 1.0 else 0.0


@helper
def joined_seconds(problem: Problem, core_s: float, memory_s: float) -> float:
    """Seconds of work that runs side by side, with what of it does not hide."""
    return max(core_s, memory_s) + problem.overlap_loss * min(core_s, memory_s)


@helper
def find_bound(problem: Problem, tile: Tile, time_s: float, clock_share: float) -> int:
    """Name the longest part; overhead where what no part explains is longer than any."""
    core, memory_s = core_times(problem, tile), memory_seconds(problem, tile)
    loop_s = max(core.matrix, core.fill, core.issue)
    busy_s = busy_seconds(core, clock_share)
    epilogue_s = max(core.epilogue, core.epilogues if core.epilogues > loop_s else 0.0)
    if time_s > 2.0 * max(max(loop_s, epilogue_s, core.l2) / clock_share, memory_s):
        return OVERHEAD
    if memory_s >= busy_s:
        return MEMORY
    if core.l2 >= max(loop_s + core.epilogue, core.epilogues):
        return L2
    if epilogue_s > loop_s:
        return EPILOGUE
    if core.matrix == loop_s:
        return COMPUTE
    return L2_FILL if core.fill == loop_s else ISSUE


@helper
def power_and_seconds(
    device: np.void, code: int, problem: Problem, tile: Tile, clock_share: float
) -> tuple[float, float]:
    """Watts and seconds where the clock is this share of the one that the rates hold at."""
    core_s, memory_s = (
        busy_seconds(core_times(problem, tile), clock_share),
        memory_seconds(problem, tile),
    )
    time_s = problem.start_s + joined_seconds(problem, core_s, memory_s)
    time_s += reduction_seconds(problem, tile)
    flop = 2.0 * problem.m * problem.n * problem.k * problem.batch
    hbm_bytes, _ = memory_traffic(problem, tile)
    joules = flop * device["joule_per_flop"][code] + hbm_bytes * device["joule_per_hbm_byte"]
    floor = device["power_voltage_floor"]
    volts = floor + (1.0 - floor) * clock_share * device["power_clock_share"][code]
    return device["power_idle_w"] + joules * volts * volts / time_s, time_s


@helper
def find_clock_share(device: np.void, code: int, problem: Problem, tile: Tile) -> float:
    """Highest share of the clock at which the kernel stays within the power cap."""
    cap_w = device["power_cap_w"]
    if cap_w <= 0.0 or device["joule_per_flop"][code] <= 0.0:
        return 1.0
    if power_and_seconds(device, code, problem, tile, 1.0)[0] <= cap_w:
        return 1.0
    low, high = LOWEST_CLOCK, 1.0
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        if power_and_seconds(device, code, problem, tile, middle)[0] <= cap_w:
            low = middle
        else:
            high = middle
    return low
