"""Time of matrix multiplications on one device, by tiles and by speed of light.

Shape suffixes
    G   GEMMs in the batch
    4   extents (m, n, k, batch) of one of them
    D   devices
    C   candidates, i.e. pairs of a tile and a K split
    5   what describes a candidate
Units
    time s, work FLOP, traffic bytes, rates FLOP/s and bytes/s. Floats are float64, extents int64.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._jit import helper, kernel
from .device import (
    MATRIX_TYPES,
    MAX_TILES,
    OPERAND_BYTES,
    TILE_EFFICIENCY,
    TILE_K_BYTES,
    TILE_M,
    TILE_N,
)

BOUNDS = ("compute", "l2_fill", "l2", "memory", "overhead")
"""What sets the time of a GEMM, by code."""

COMPUTE, L2_FILL, L2, MEMORY, OVERHEAD = range(5)

MAX_SPLIT_K = 16
"""K is cut into 1, 2, 4, 8 or 16 parts."""

MIN_SPLIT_DEPTH = 256.0
"""Shallowest part that a library splits K into."""

STEP_ELEMENT_BYTES = 2.0
"""A step of the main loop takes ``k_bytes`` of 16-bit elements, and as many elements of any other
type, so that what K is padded to does not depend on the type."""

PARTIAL_BYTES = 8.0
"""A split-K partial result is written and read once, in FP32."""

OK, INVALID = 0, 1

STORE_CLOCK = MATRIX_TYPES.index("bf16")
"""Stores are no matrix load, so one clock serves all types."""

NUM_SPLITS = 5
MAX_CANDIDATES = MAX_TILES * NUM_SPLITS


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
    out_bytes: float
    """Bytes of an element of C."""
    partial_bytes: float
    """Traffic of one split's partial results."""
    units: float
    """Compute units; each holds one tile at a time."""
    unit_flop_per_s: float
    fill_s: float
    """One element of A or B from L2 into a compute unit."""
    l2_bytes: float
    l2_bytes_per_s: float
    multicast: float
    die_share: float
    """Share of the compute units that sit in front of one L2."""
    die_reread_share: float
    """Share of the operands that one L2 does not keep from one wave to the next."""
    shared_units: float
    """Compute units in front of the last cache before memory."""
    shared_reread_share: float
    fabric_bytes_per_s: float
    """Rate of the last cache, the memory's where that is higher or the only one."""
    hbm_bytes_per_s: float
    store_bytes_per_s: float
    start_s: float
    split_k_s: float
    overlap_loss: float
    wave_exposed: float
    """Share of a tile's first loads and last store that the next wave waits for."""
    latency_s: float
    store_s: float
    """One element of C from a compute unit."""


class _Tile(NamedTuple):
    """One candidate."""

    m: float
    n: float
    step: float
    """Elements of K that one step of the main loop takes."""
    efficiency: float
    split: float


@helper
def _core(problem: _Problem, tile: _Tile) -> tuple[float, float, float]:
    """Seconds of the matrix pipe, of L2 into the compute units, and of L2 as a whole."""
    tiles_m, tiles_n = np.ceil(problem.m / tile.m), np.ceil(problem.n / tile.n)
    waves = np.ceil(tiles_m * tiles_n * problem.batch * tile.split / problem.units)
    depth = np.ceil(np.ceil(problem.k / tile.step) / tile.split) * tile.step
    step_s = 2.0 * tile.m * tile.n / (problem.unit_flop_per_s * tile.efficiency)
    fill_s = (min(tile.m, problem.m) + min(tile.n, problem.n)) * problem.fill_s
    of_a = problem.multicast if tile.m >= tile.n else 1.0
    of_b = 1.0 if tile.m >= tile.n else problem.multicast
    loads = tiles_n / of_a * problem.a_bytes + tiles_m / of_b * problem.b_bytes
    return waves * depth * step_s, waves * depth * fill_s, loads / problem.l2_bytes_per_s


@helper
def _sweeps(problem: _Problem, tile: _Tile, units: float) -> float:
    """Bytes of A and B that ``units`` compute units read again, wave after wave.

    The tiles of a wave form a rectangle of the output that is as near to a square as the grid of
    tiles allows. Its rows of A and columns of B are read once, by CTAs that advance in step.
    """
    tiles_m, tiles_n = np.ceil(problem.m / tile.m), np.ceil(problem.n / tile.n)
    high = min(tiles_m, max(1.0, np.sqrt(units * tile.n / tile.m)))
    wide = min(tiles_n, max(1.0, units / high))
    high = min(tiles_m, max(1.0, units / wide))
    again: float = (tiles_n / wide - 1.0) * problem.a_bytes
    again += (tiles_m / high - 1.0) * problem.b_bytes
    return again


@helper
def _memory(problem: _Problem, tile: _Tile) -> float:
    """Seconds of the traffic behind L2, all but the store of the last wave."""
    tiles = np.ceil(problem.m / tile.m) * np.ceil(problem.n / tile.n)
    on_die = max(1.0, min(problem.units, tiles) * problem.die_share)
    from_fabric = _sweeps(problem, tile, on_die) * problem.die_reread_share
    from_memory = _sweeps(problem, tile, problem.shared_units) * problem.shared_reread_share
    once = problem.a_bytes + problem.b_bytes + problem.output - _last_output(problem, tile)
    return max(
        (once + min(from_fabric, from_memory)) / problem.hbm_bytes_per_s,
        (once + from_fabric) / problem.fabric_bytes_per_s,
    )


@helper
def _last_output(problem: _Problem, tile: _Tile) -> float:
    """Bytes that the last wave stores."""
    return min(problem.output, problem.units * tile.m * tile.n * problem.out_bytes)


@helper
def _around(problem: _Problem, tile: _Tile) -> float:
    """Seconds outside the main loop: start, first loads, last stores, and both between waves."""
    ingest_s = (min(tile.m, problem.m) + min(tile.n, problem.n)) * problem.fill_s
    store_s = _last_output(problem, tile) / problem.store_bytes_per_s
    # Half of the traffic is the size; what L2 does not hold goes to memory and back.
    partial = problem.partial_bytes * tile.split
    fits = partial <= 2.0 * problem.l2_bytes
    rate = problem.l2_bytes_per_s if fits else problem.store_bytes_per_s
    reduce_s = problem.split_k_s + partial / rate
    around_s: float = problem.start_s + ingest_s * tile.step + store_s
    tiles = np.ceil(problem.m / tile.m) * np.ceil(problem.n / tile.n)
    waves: float = np.ceil(tiles * problem.batch * tile.split / problem.units)
    between_s = problem.latency_s + ingest_s * tile.step + tile.m * tile.n * problem.store_s
    around_s += (waves - 1.0) * problem.wave_exposed * between_s
    return around_s + (reduce_s if tile.split > 1.0 else 0.0)


@helper
def _evaluate(
    problem: _Problem, menu_5C: NDArray[np.float64], count: int, time_s_C: NDArray[np.float64]
) -> None:
    """Time one GEMM with each candidate. Free of branches, so that the compiler vectorises it."""
    rows, columns, steps = menu_5C[0], menu_5C[1], menu_5C[2]
    efficiencies, splits = menu_5C[3], menu_5C[4]
    for c in range(count):
        tile = _Tile(rows[c], columns[c], steps[c], efficiencies[c], splits[c])
        compute_s, fill_s, l2_s = _core(problem, tile)
        core_s, memory_s = max(compute_s, fill_s, l2_s), _memory(problem, tile)
        loss_s = problem.overlap_loss * min(core_s, memory_s)
        time = _around(problem, tile) + max(core_s, memory_s) + loss_s
        deep = tile.split == 1.0 or problem.k >= MIN_SPLIT_DEPTH * tile.split
        time_s_C[c] = time if deep else math.inf


@helper
def _load_menu(device: np.void, menu_5C: NDArray[np.float64]) -> int:
    """Lay a device's tiles times K splits out in columns; return how many there are."""
    count = 0
    for tile in range(device["num_tiles"]):
        split = 1
        while split <= MAX_SPLIT_K:
            menu_5C[0, count] = device["tiles"][tile, TILE_M]
            menu_5C[1, count] = device["tiles"][tile, TILE_N]
            menu_5C[2, count] = device["tiles"][tile, TILE_K_BYTES] / STEP_ELEMENT_BYTES
            menu_5C[3, count] = device["tiles"][tile, TILE_EFFICIENCY]
            menu_5C[4, count] = split
            split *= 2
            count += 1
    return count


@helper
def _meet(
    device: np.void, code: int, m: float, n: float, k: float, batch: float,
    out_bytes: float, efficiency: float,
) -> _Problem:  # fmt: skip
    """Gather what one GEMM needs of a device."""
    units, dies = device["compute_units"], device["dies"]
    behind_l2 = device["mall_bytes"] > 0.0
    l2_of_die = device["l2_bytes"] / dies
    shared_cache = device["mall_bytes"] if behind_l2 else l2_of_die
    a_bytes, b_bytes = m * k * OPERAND_BYTES[code], n * k * OPERAND_BYTES[code]
    inputs = a_bytes + b_bytes
    fill_rate = device["l2_fill_bytes_per_clk_per_cu"] * device["clock_hz"][code]
    return _Problem(
        m,
        n,
        k,
        batch,
        a_bytes * batch,
        b_bytes * batch,
        m * n * batch * out_bytes,
        out_bytes,
        m * n * batch * PARTIAL_BYTES,
        units,
        device["matrix_flop_per_s"][code] / units * efficiency,
        OPERAND_BYTES[code] / fill_rate,
        device["l2_bytes"],
        device["l2_bytes_per_s"],
        device["l2_multicast"],
        1.0 / dies,
        max(0.0, 1.0 - l2_of_die / inputs),
        units if behind_l2 else units / dies,
        max(0.0, 1.0 - shared_cache / inputs),
        max(device["mall_bytes_per_s"], device["hbm_bytes_per_s"]),
        device["hbm_bytes_per_s"],
        min(device["hbm_bytes_per_s"], device["l2_bytes_per_s"]),
        device["gemm_overhead_s"] + device["hbm_latency_s"],
        device["gemm_split_k_s"],
        device["gemm_overlap_loss"],
        device["gemm_wave_exposed"],
        device["hbm_latency_s"],
        out_bytes / (device["l2_fill_bytes_per_clk_per_cu"] * device["clock_hz"][STORE_CLOCK]),
    )


@helper
def _bound(problem: _Problem, tile: _Tile, time_s: float) -> int:
    """Name the longest part; overhead where what no part explains is longer than any."""
    compute_s, fill_s, l2_s = _core(problem, tile)
    memory_s = _memory(problem, tile)
    longest_s = max(compute_s, fill_s, l2_s, memory_s)
    if time_s > 2.0 * longest_s:
        return OVERHEAD
    if compute_s == longest_s:
        return COMPUTE
    if fill_s == longest_s:
        return L2_FILL
    return L2 if l2_s == longest_s else MEMORY


@kernel
def gemm_times(
    extent_G4: NDArray[np.int64],
    dtype_G: NDArray[np.int64],
    out_bytes_G: NDArray[np.float64],
    efficiency_G: NDArray[np.float64],
    device_G: NDArray[np.int64],
    devices_D: NDArray[np.void],
    menu_5C: NDArray[np.float64],
    candidate_s_C: NDArray[np.float64],
    time_s_G: NDArray[np.float64],
    bound_G: NDArray[np.int64],
    choice_G: NDArray[np.int64],
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
    menu_5C, candidate_s_C : float64[5, MAX_CANDIDATES], float64[MAX_CANDIDATES]
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
    For a tile and a split the compute units work through ``ceil(tiles / units)`` waves; a wave
    lasts as long as its K loop, ``max(matrix pipe, L2 fill of the unit)``, also when it is only
    partly full. Beside it run the traffic of the whole device out of L2 and out of memory. Each
    wave reads the rows and columns of its rectangle of tiles once (`_sweeps`) and what an
    earlier wave read comes from a cache as far as the operands fit there: an L2 for each die,
    the memory-side cache for all of them. ``time = overhead + first load + max(core, memory) +
    loss * min(core, memory) + store of the last wave``, plus the reduction of a split K, where
    the core is the longest of matrix pipe, fill and L2: on-chip loads run ahead in the same
    pipeline and cost nothing beside it, memory does. The smallest wins, the first of equals.

    Left out: clusters that do not divide the units, drift of CTAs in a very deep K, stream-K.
    """
    status = OK
    menu_of = np.int64(-1)
    candidates = 0
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
            candidates = _load_menu(devices_D[d], menu_5C)
            menu_of = d
        problem = _meet(devices_D[d], code, m, n, k, batch, out_bytes_G[g], efficiency_G[g])
        _evaluate(problem, menu_5C, candidates, candidate_s_C)
        best, best_s = -1, math.inf
        for c in range(candidates):
            if candidate_s_C[c] < best_s:
                best, best_s = c, candidate_s_C[c]
        if best < 0:
            time_s_G[g] = math.nan
            status = INVALID
            continue
        tile = _Tile(
            menu_5C[0, best], menu_5C[1, best], menu_5C[2, best], menu_5C[3, best], menu_5C[4, best]
        )
        # The padded work never falls below the exact one but by rounding.
        light_s = 2.0 * m * n * k * batch / devices_D[d]["matrix_flop_per_s"][code]
        time_s_G[g] = max(best_s, light_s)
        bound_G[g] = _bound(problem, tile, best_s)
        choice_G[g] = best // NUM_SPLITS * MAX_SPLIT_K + np.int64(tile.split) - 1
        if not 0.0 <= time_s_G[g] < math.inf:
            status = INVALID
    return status


@kernel
def sol_times(
    extent_G4: NDArray[np.int64],
    dtype_G: NDArray[np.int64],
    out_bytes_G: NDArray[np.float64],
    device_G: NDArray[np.int64],
    devices_D: NDArray[np.void],
    time_s_G: NDArray[np.float64],
    bound_G: NDArray[np.int64],
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
    extent_G4: NDArray[np.int64],
    dtype_G: NDArray[np.int64],
    out_bytes_G: NDArray[np.float64],
    efficiency_G: NDArray[np.float64],
    device_G: NDArray[np.int64],
    devices_D: NDArray[np.void],
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
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
        np.empty((5, MAX_CANDIDATES)), np.empty(MAX_CANDIDATES),
        time_s_G, bound_G, choice_G,
    )  # fmt: skip
    if status != OK:
        raise ValueError(_explain(time_s_G, extent_G4))
    return time_s_G, bound_G, choice_G


def sol_time_columns(
    extent_G4: NDArray[np.int64],
    dtype_G: NDArray[np.int64],
    out_bytes_G: NDArray[np.float64],
    device_G: NDArray[np.int64],
    devices_D: NDArray[np.void],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
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


def _explain(time_s_G: NDArray[np.float64], extent_G4: NDArray[np.int64]) -> str:
    valid = np.isfinite(time_s_G) & (time_s_G >= 0.0) & (np.min(extent_G4, axis=1) >= 0)
    row = int(np.argmin(valid))
    m, n, k, batch = (int(extent) for extent in extent_G4[row])
    return f"GEMM {row} (m, n, k, batch = {m}, {n}, {k}, {batch}) has no finite time"
