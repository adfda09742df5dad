"""Time of matrix multiplications on one device, by tiles and by speed of light.

Shape suffixes
    G   GEMMs in the batch
    4   extents (m, n, k, batch) of one of them
    D   devices
    C   candidates, i.e. pairs of a tile and a K split
    F   what describes a candidate
    T   terms of a time
Units
    time s, work FLOP, traffic bytes, rates FLOP/s and bytes/s. Floats are float64, extents int64.
"""

import math
from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints, Records

from ._jit import helper, inlined, kernel
from .device import (
    MATRIX_TYPES,
    MAX_TILES,
    OPERAND_BYTES,
    TILE_CLUSTER_M,
    TILE_CLUSTER_N,
    TILE_EFFICIENCY,
    TILE_K_BYTES,
    TILE_M,
    TILE_N,
    TILE_SHARE_M,
    TILE_SHARE_N,
    TILE_UNITS,
)

BOUNDS = ("compute", "l2_fill", "l2", "memory", "overhead", "issue", "epilogue")
"""What sets the time of a GEMM, by code."""

COMPUTE, L2_FILL, L2, MEMORY, OVERHEAD, ISSUE, EPILOGUE = range(7)

TERMS = (
    "start_s", "matrix_s", "l2_fill_s", "issue_s", "epilogue_s", "epilogues_s", "l2_s", "memory_s",
    "loss_s", "reduce_s", "tiles", "waves", "units", "hbm_bytes", "l2_bytes", "clock_share",
    "power_w",
)  # fmt: skip
"""Columns of `gemm_terms`."""

MAX_SPLIT_K = 16
"""K is cut into 1, 2, 4, 8 or 16 parts."""

MIN_SPLIT_DEPTH = 256.0
"""Shallowest part that a library splits K into."""

STEP_ELEMENT_BYTES = 2.0
"""A step of the main loop takes ``k_bytes`` of 16-bit elements, and as many elements of any other
type, so that what K is padded to does not depend on the type."""

PARTIAL_BYTES = 8.0
"""A split-K partial result is written and read once, in FP32."""

LOWEST_CLOCK = 0.05
"""Share of the highest clock below which no power cap pushes a device."""

HALVINGS = 40
"""Steps of the search for the clock; they leave an error of 1e-12."""

OK, INVALID = 0, 1

NUM_SPLITS = 5
NUM_FIELDS = 12
"""Numbers that describe a candidate."""


class _Problem(NamedTuple):
    """One GEMM and the device rates it meets."""

    m: float
    n: float
    k: float
    batch: float
    a_bytes: float
    b_bytes: float
    output: float
    """Bytes of all of C."""
    partial_bytes: float
    """Traffic of one split's partial results."""
    units: float
    """Compute units; each holds one tile at a time."""
    flop_s: float
    """One FLOP on a compute unit."""
    fill_s: float
    """One element of A or B from L2 into a compute unit."""
    issue_s: float
    """Least time of one element of K in a tile."""
    l2_bytes: float
    l2_byte_s: float
    """One byte out of L2."""
    l2_miss_share: float
    of_die: float
    """Share of a wave whose rectangle one die sees."""
    die_rows: float
    """Share of the rows of that rectangle that one die has."""
    die_bytes: float
    """What one L2 holds of one problem of a batch, times the batch."""
    shared_units: float
    """Compute units in front of the last cache before memory, and their root."""
    shared_side: float
    shared_bytes: float
    """The same of the last cache before memory."""
    fabric_byte_s: float
    """One byte out of the last cache, out of the memory where that is faster or the only one."""
    hbm_byte_s: float
    group_m: float
    max_split: float
    start_s: float
    split_k_s: float
    overlap_loss: float
    epilogue_s: float
    """Fixed time of an epilogue."""
    store_s: float
    """One element of C out of a compute unit."""
    epilogue_exposed: float


class _Tile(NamedTuple):
    """One candidate, with what it would otherwise divide by anew for every GEMM."""

    m: float
    n: float
    block_m: float
    """Rows of a cluster."""
    block_n: float
    cluster_m: float
    cluster_n: float
    step: float
    """Elements of K that one step of the main loop takes."""
    flop: float
    """FLOP of one element of K, over the share of the pipe that is kept busy."""
    share_m: float
    share_n: float
    units: float
    """Compute units that its clusters can fill."""
    narrow: float
    """Root of its columns over its rows."""
    split: float


class _Core(NamedTuple):
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
def _blocks(problem: _Problem, tile: _Tile) -> tuple[float, float]:
    """Clusters along M and N."""
    return np.ceil(problem.m / tile.block_m), np.ceil(problem.n / tile.block_n)


@helper
def _grid(problem: _Problem, tile: _Tile) -> tuple[float, float]:
    """Tiles along M and N, in whole clusters."""
    down, across = _blocks(problem, tile)
    return down * tile.cluster_m, across * tile.cluster_n


@helper
def _loads(problem: _Problem, tile: _Tile) -> float:
    """Bytes that L2 hands out; the units of a cluster share a load."""
    down, across = _blocks(problem, tile)
    loads: float = across * problem.a_bytes + down * problem.b_bytes
    return loads


@helper
def _waves(problem: _Problem, tile: _Tile) -> float:
    down, across = _grid(problem, tile)
    waves: float = np.ceil(down * across * problem.batch * tile.split / tile.units)
    return waves


@helper
def _core(problem: _Problem, tile: _Tile) -> _Core:
    waves = _waves(problem, tile)
    depth = np.ceil(np.ceil(problem.k / tile.step) / tile.split) * tile.step
    matrix_s = tile.flop * problem.flop_s
    rows = min(tile.m, problem.m) * tile.share_m + min(tile.n, problem.n) * tile.share_n
    epilogue_s = problem.epilogue_s + tile.m * tile.n * problem.store_s
    return _Core(
        waves * depth * matrix_s,
        waves * depth * rows * problem.fill_s,
        waves * depth * problem.issue_s,
        epilogue_s * (1.0 + (waves - 1.0) * problem.epilogue_exposed),
        epilogue_s * waves,
        _loads(problem, tile) * problem.l2_byte_s,
    )


@helper
def _busy(core: _Core, clock_share: float) -> float:
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
    problem: _Problem, tile: _Tile, units: float, side: float, rows: float, cache_bytes: float
) -> float:
    """Bytes of A and B that ``units`` compute units read again, wave after wave.

    The tiles of a wave form a rectangle of the output, in whole clusters, as near to a square as
    the grid of tiles allows, or as high as the library groups them; ``side`` is the root of the
    units. Its rows of A and columns of B are read once, by units that advance in step. Rectangles
    follow each other along N, which soon asks for the same rows of A again and for B only when a
    group of rows is done; without groups of the library's own, along M if that reads less. Where
    dies take tiles in turn, each has the share ``rows`` of a rectangle's rows.
    """
    down, across = _grid(problem, tile)
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
def _traffic(problem: _Problem, tile: _Tile) -> tuple[float, float]:
    """Bytes out of memory, and through the last cache before it."""
    down, across = _grid(problem, tile)
    on_die = max(1.0, min(tile.units, down * across) * problem.of_die)
    from_fabric = _sweeps(
        problem, tile, on_die, np.sqrt(on_die), problem.die_rows, problem.die_bytes
    )
    from_memory = _sweeps(
        problem, tile, problem.shared_units, problem.shared_side, 1.0, problem.shared_bytes
    )
    once = problem.a_bytes + problem.b_bytes + problem.output
    beyond = _loads(problem, tile) - problem.a_bytes - problem.b_bytes - from_fabric
    missed = problem.l2_miss_share * max(0.0, beyond)
    return once + min(from_fabric, from_memory) + missed, once + from_fabric + missed


@inlined
def _memory(problem: _Problem, tile: _Tile) -> float:
    """Seconds of the traffic behind L2."""
    hbm_bytes, fabric_bytes = _traffic(problem, tile)
    seconds: float = hbm_bytes * problem.hbm_byte_s
    return max(seconds, fabric_bytes * problem.fabric_byte_s)


@helper
def _reduce(problem: _Problem, tile: _Tile) -> float:
    """Seconds of adding up the parts of a split K."""
    # Half of the traffic is the size; what L2 does not hold goes to memory and back.
    partial = problem.partial_bytes * tile.split
    fits = partial <= 2.0 * problem.l2_bytes
    byte_s = problem.l2_byte_s if fits else problem.hbm_byte_s
    seconds: float = problem.split_k_s + partial * byte_s
    return seconds if tile.split > 1.0 else 0.0


@helper
def _joined(problem: _Problem, core_s: float, memory_s: float) -> float:
    """Seconds of work that runs side by side, with what of it does not hide."""
    return max(core_s, memory_s) + problem.overlap_loss * min(core_s, memory_s)


@helper
def _load_menu(device: np.void, menu_FT: Floats) -> int:
    """Lay a device's tiles out in columns; return how many there are."""
    for row in range(device["num_tiles"]):
        tile = device["tiles"][row]
        m, n = tile[TILE_M], tile[TILE_N]
        menu_FT[0, row], menu_FT[1, row] = m, n
        menu_FT[2, row] = m * tile[TILE_CLUSTER_M]
        menu_FT[3, row] = n * tile[TILE_CLUSTER_N]
        menu_FT[4, row] = tile[TILE_CLUSTER_M]
        menu_FT[5, row] = tile[TILE_CLUSTER_N]
        menu_FT[6, row] = tile[TILE_K_BYTES] / STEP_ELEMENT_BYTES
        menu_FT[7, row] = 2.0 * m * n / tile[TILE_EFFICIENCY]
        menu_FT[8, row] = tile[TILE_SHARE_M]
        menu_FT[9, row] = tile[TILE_SHARE_N]
        menu_FT[10, row] = tile[TILE_UNITS]
        menu_FT[11, row] = np.sqrt(n / m)
    return int(device["num_tiles"])


@helper
def _candidate(menu_FT: Floats, t: int, split: float) -> _Tile:
    return _Tile(
        menu_FT[0, t], menu_FT[1, t], menu_FT[2, t], menu_FT[3, t], menu_FT[4, t], menu_FT[5, t],
        menu_FT[6, t], menu_FT[7, t], menu_FT[8, t], menu_FT[9, t], menu_FT[10, t],
        menu_FT[11, t], split,
    )  # fmt: skip


@helper
def _evaluate(problem: _Problem, menu_FT: Floats, tiles: int, scratch_s_RT: Floats) -> int:
    """Time one GEMM with each tile and split of K; return how many splits there are.

    Writes the traffic behind L2, which no split changes, into the first row of the scratch and the
    times of each split into the next ones. Loops over tiles are free of branches, so that the
    compiler vectorises them.
    """
    for t in range(tiles):
        scratch_s_RT[0, t] = _memory(problem, _candidate(menu_FT, t, 1.0))
    split, row = 1.0, 0
    while split <= problem.max_split or row == 0:
        row += 1
        for t in range(tiles):
            tile = _candidate(menu_FT, t, split)
            joined = _joined(problem, _busy(_core(problem, tile), 1.0), scratch_s_RT[0, t])
            scratch_s_RT[row, t] = problem.start_s + joined + _reduce(problem, tile)
        split *= 2.0
        if problem.k < MIN_SPLIT_DEPTH * split:
            break
    return row


@helper
def _meet(
    device: np.void, code: int, m: float, n: float, k: float, batch: float,
    out_bytes: float, efficiency: float,
) -> _Problem:  # fmt: skip
    """Gather what one GEMM needs of a device."""
    units, dies, clock = device["compute_units"], device["dies"], device["clock_hz"][code]
    behind_l2 = device["mall_bytes"] > 0.0
    l2_of_die = device["l2_bytes"] / dies
    shared_cache = device["mall_bytes"] if behind_l2 else l2_of_die
    a_bytes, b_bytes = m * k * OPERAND_BYTES[code], n * k * OPERAND_BYTES[code]
    shared_units = units if behind_l2 else units / dies
    hbm_rate = device["gemm_hbm_bytes_per_s"]
    return _Problem(
        m,
        n,
        k,
        batch,
        a_bytes * batch,
        b_bytes * batch,
        m * n * batch * out_bytes,
        m * n * batch * PARTIAL_BYTES,
        units,
        units / (device["matrix_flop_per_s"][code] * efficiency),
        OPERAND_BYTES[code] / (device["l2_fill_bytes_per_clk_per_cu"] * clock),
        device["gemm_clk_per_k"][code] / clock,
        device["l2_bytes"],
        1.0 / device["l2_bytes_per_s"],
        device["gemm_l2_miss_share"],
        device["gemm_die_stride"] / dies,
        1.0 / device["gemm_die_stride"],
        l2_of_die * batch,
        shared_units,
        np.sqrt(shared_units),
        shared_cache * batch,
        1.0 / max(device["mall_bytes_per_s"], hbm_rate),
        1.0 / hbm_rate,
        device["gemm_group_m"],
        device["gemm_max_split"],
        device["gemm_overhead_s"],
        device["gemm_split_k_s"],
        device["gemm_overlap_loss"],
        device["gemm_epilogue_clk"] / clock,
        out_bytes / (device["gemm_epilogue_bytes_per_clk_per_cu"] * clock),
        device["gemm_epilogue_exposed"],
    )


@helper
def _bound(problem: _Problem, tile: _Tile, time_s: float, clock_share: float) -> int:
    """Name the longest part; overhead where what no part explains is longer than any."""
    core, memory_s = _core(problem, tile), _memory(problem, tile)
    loop_s = max(core.matrix, core.fill, core.issue)
    busy_s = _busy(core, clock_share)
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
def _power(
    device: np.void, code: int, problem: _Problem, tile: _Tile, clock_share: float
) -> tuple[float, float]:
    """Watts and seconds where the clock is this share of the one that the rates hold at."""
    core_s, memory_s = _busy(_core(problem, tile), clock_share), _memory(problem, tile)
    time_s = problem.start_s + _joined(problem, core_s, memory_s)
    time_s += _reduce(problem, tile)
    flop = 2.0 * problem.m * problem.n * problem.k * problem.batch
    hbm_bytes, _ = _traffic(problem, tile)
    joules = flop * device["joule_per_flop"][code] + hbm_bytes * device["joule_per_hbm_byte"]
    floor = device["power_voltage_floor"]
    volts = floor + (1.0 - floor) * clock_share * device["power_clock_share"][code]
    return device["power_idle_w"] + joules * volts * volts / time_s, time_s


@helper
def _clock_share(device: np.void, code: int, problem: _Problem, tile: _Tile) -> float:
    """Highest share of the clock at which the kernel stays within the power cap."""
    cap_w = device["power_cap_w"]
    if cap_w <= 0.0 or device["joule_per_flop"][code] <= 0.0:
        return 1.0
    if _power(device, code, problem, tile, 1.0)[0] <= cap_w:
        return 1.0
    low, high = LOWEST_CLOCK, 1.0
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        if _power(device, code, problem, tile, middle)[0] <= cap_w:
            low = middle
        else:
            high = middle
    return low


@kernel
def gemm_times(
    extent_G4: Ints,
    dtype_G: Ints,
    out_bytes_G: Floats,
    efficiency_G: Floats,
    device_G: Ints,
    devices_D: Records,
    menu_FT: Floats,
    scratch_s_RT: Floats,
    time_s_G: Floats,
    bound_G: Ints,
    choice_G: Ints,
) -> int:
    """Time of each GEMM ``C[m, n] = A[m, k] @ B[k, n]`` with the best tile and K split.

    Parameters
    ----------
    extent_G4 : int64[G, 4]
        (m, n, k, batch); ``batch`` equal problems share one launch. A zero extent costs nothing.
    dtype_G : int64[G]
        Code of the operand type (``MATRIX_TYPES``).
    out_bytes_G : float64[G]
        Bytes of an output element, a read-modify-write counted twice.
    efficiency_G : float64[G]
        Share of the device's matrix rate that this kind of kernel reaches (grouped GEMMs).
    device_G : int64[G]
        Row of ``devices_D``.
    devices_D : DEVICE[D]
    menu_FT, scratch_s_RT : float64[NUM_FIELDS, MAX_TILES], float64[1 + NUM_SPLITS, MAX_TILES]
        Scratch, overwritten; one for each thread.
    time_s_G, bound_G, choice_G : float64[G], int64[G], int64[G]
        Outputs: seconds, code of the limiter (``BOUNDS``), and ``tile * MAX_SPLIT_K + split - 1``
        of the choice, -1 without one.

    Returns
    -------
    int
        ``OK``, or ``INVALID`` where a row has no finite, non-negative time.

    Notes
    -----
    For a tile and a split the compute units that whole clusters can fill work through
    ``ceil(tiles / units)`` waves; a wave lasts as long as its K loop, the longest of the matrix
    pipe, the loads of the unit out of L2 and the least time of a step, also when it is only partly
    full. Of a tile's epilogue (drain, convert, store) a share waits between waves, and the last
    one wholly. Beside it run the traffic of the whole device out of L2 and out of memory. Each
    wave reads the rows and columns of its rectangle of tiles once (`_sweeps`), what an earlier wave
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
            tiles = _load_menu(devices_D[d], menu_FT)
            menu_of = d
        problem = _meet(devices_D[d], code, m, n, k, batch, out_bytes_G[g], efficiency_G[g])
        splits = _evaluate(problem, menu_FT, tiles, scratch_s_RT)
        best, parts, best_s = -1, 1, math.inf
        for row in range(splits):
            for t in range(tiles):
                if scratch_s_RT[row + 1, t] < best_s:
                    best, parts, best_s = t, 1 << row, scratch_s_RT[row + 1, t]
        if best < 0:
            time_s_G[g] = math.nan
            status = INVALID
            continue
        tile = _candidate(menu_FT, best, float(parts))
        share = _clock_share(devices_D[d], code, problem, tile)
        if share < 1.0:
            best_s = _power(devices_D[d], code, problem, tile, share)[1]
        # The padded work never falls below the exact one but by rounding.
        light_s = 2.0 * m * n * k * batch / devices_D[d]["matrix_flop_per_s"][code]
        time_s_G[g] = max(best_s, light_s)
        bound_G[g] = _bound(problem, tile, best_s, share)
        choice_G[g] = best * MAX_SPLIT_K + parts - 1
        if not 0.0 <= time_s_G[g] < math.inf:
            status = INVALID
    return status


@kernel
def gemm_terms(
    extent_G4: Ints,
    dtype_G: Ints,
    out_bytes_G: Floats,
    efficiency_G: Floats,
    device_G: Ints,
    devices_D: Records,
    choice_G: Ints,
    menu_FT: Floats,
    term_GT: Floats,
) -> None:
    """Write out what the times of `gemm_times` are made of.

    Parameters
    ----------
    choice_G : int64[G]
        Tiles and splits, as `gemm_times` returned them; a row of -1 has no terms (zeros).
    term_GT : float64[G, len(TERMS)]
        Output. Seconds at the clock that the power cap leaves: start, main loops of the matrix
        pipe, of the loads and of the least step, epilogues that wait, all of a unit's epilogues,
        L2, memory, what the shorter of both adds, reduction. Then tiles, waves, units that run,
        bytes out of memory and L2, the clock over the one that the rates hold at, and watts (0
        where the device has no power model for the type).

    The other parameters are those of `gemm_times`.
    """
    for g in range(extent_G4.shape[0]):
        term_GT[g] = 0.0
        if choice_G[g] < 0:
            continue
        device, code = devices_D[device_G[g]], dtype_G[g]
        _load_menu(device, menu_FT)
        parts = choice_G[g] % MAX_SPLIT_K + 1
        tile = _candidate(menu_FT, choice_G[g] // MAX_SPLIT_K, float(parts))
        problem = _meet(
            device, code, float(extent_G4[g, 0]), float(extent_G4[g, 1]), float(extent_G4[g, 2]),
            float(extent_G4[g, 3]), out_bytes_G[g], efficiency_G[g],
        )  # fmt: skip
        core, memory_s = _core(problem, tile), _memory(problem, tile)
        down, across = _grid(problem, tile)
        tiles = down * across * problem.batch * tile.split
        share = _clock_share(device, code, problem, tile)
        terms = (
            problem.start_s, core.matrix / share, core.fill / share, core.issue / share,
            core.epilogue / share, core.epilogues / share, core.l2 / share, memory_s,
            problem.overlap_loss * min(_busy(core, share), memory_s), _reduce(problem, tile),
            tiles, _waves(problem, tile), min(tiles, tile.units), _traffic(problem, tile)[0],
            _loads(problem, tile), share, 0.0,
        )  # fmt: skip
        for place, value in enumerate(terms):
            term_GT[g, place] = value
        if device["joule_per_flop"][code] > 0.0:
            term_GT[g, -1] = _power(device, code, problem, tile, share)[0]


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
        np.ascontiguousarray(extent_G4, np.int64), np.ascontiguousarray(dtype_G, np.int64),
        np.ascontiguousarray(out_bytes_G, np.float64),
        np.ascontiguousarray(efficiency_G, np.float64),
        np.ascontiguousarray(device_G, np.int64), devices_D,
        np.empty((NUM_FIELDS, MAX_TILES)), np.empty((1 + NUM_SPLITS, MAX_TILES)),
        time_s_G, bound_G, choice_G,
    )  # fmt: skip
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
        np.ascontiguousarray(extent_G4, np.int64), np.ascontiguousarray(dtype_G, np.int64),
        np.ascontiguousarray(out_bytes_G, np.float64),
        np.ascontiguousarray(efficiency_G, np.float64),
        np.ascontiguousarray(device_G, np.int64), devices_D,
        np.ascontiguousarray(choice_G, np.int64), np.empty((NUM_FIELDS, MAX_TILES)), term_GT,
    )  # fmt: skip
    return term_GT


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
        np.ascontiguousarray(extent_G4, np.int64), np.ascontiguousarray(dtype_G, np.int64),
        np.ascontiguousarray(out_bytes_G, np.float64), np.ascontiguousarray(device_G, np.int64),
        devices_D, time_s_G, bound_G,
    )  # fmt: skip
    if status != OK:
        raise ValueError(_explain(time_s_G, extent_G4))
    return time_s_G, bound_G


def _explain(time_s_G: Floats, extent_G4: Ints) -> str:
    valid = np.isfinite(time_s_G) & (time_s_G >= 0.0) & (np.min(extent_G4, axis=1) >= 0)
    row = int(np.argmin(valid))
    m, n, k, batch = (int(extent) for extent in extent_G4[row])
    return f"GEMM {row} (m, n, k, batch = {m}, {n}, {k}, {batch}) has no finite time"
