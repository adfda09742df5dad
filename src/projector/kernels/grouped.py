"""Time of grouped matrix multiplications: one launch, one weight matrix for each group of rows.

Shape suffixes
    R   loads, the groups of all sets one after the other
    B   sets of loads
    B1  one more than the sets (CSR offsets)
    L   launches
    K   kernel classes of devices
Units: time s, rates FLOP/s and bytes/s. Floats are float64, loads and extents int64.
"""

import math

import numpy as np

from projector.arrays import Floats, Ints, Records
from projector.kernels._jit import helper, kernel
from projector.kernels.columns import as_type

MAX_ROW_TILES = 8
"""Longest menu of tile heights."""

MAX_COLUMN_TILES = 4
"""Longest menu of tile widths."""

OK, INVALID = 0, 1

GROUPED = np.dtype(
    [
        ("compute_units", np.float64),
        # What one compute unit reaches in its main loop.
        ("unit_flop_per_s", np.float64),
        # Of an element of the rows, of the weights and of the output.
        ("operand_bytes", np.float64),
        ("weight_bytes", np.float64),
        ("output_bytes", np.float64),
        # Share of k that a row brings in; the rest of its operand never leaves the unit.
        ("row_share", np.float64),
        # From L2 into one compute unit, and into all of them; infinite where it does not bind.
        ("fill_bytes_per_s", np.float64),
        ("l2_bytes_per_s", np.float64),
        ("hbm_bytes_per_s", np.float64),
        # What a group with rows adds to a launch.
        ("group_s", np.float64),
        # Start and end of a wave of tiles.
        ("wave_s", np.float64),
        # Share of the shorter of compute and memory time that is not hidden.
        ("overlap_loss", np.float64),
        ("num_row_tiles", np.int64),
        ("row_tiles", np.float64, (MAX_ROW_TILES,)),
        ("num_column_tiles", np.int64),
        ("column_tiles", np.float64, (MAX_COLUMN_TILES,)),
    ]
)
"""One kernel class of one device."""


@helper
def _row_tiles(load_R: Ints, tile_m: float) -> float:
    """Tiles along the rows of all groups, each padded by itself."""
    tiles = 0.0
    for load in load_R:
        tiles += np.ceil(load / tile_m)
    return tiles


@helper
def _core_s(
    device: np.void, row_tiles: float, high: float, wide: float, n: float, k: float
) -> float:
    """Seconds of all waves of tiles of one shape, memory aside."""
    tiles = row_tiles * np.ceil(n / wide)
    waves = np.ceil(tiles / device["compute_units"])
    pipe_s = 2.0 * high * wide * k / device["unit_flop_per_s"]
    row_bytes = device["row_share"] * device["operand_bytes"]
    moved = (high * row_bytes + wide * device["weight_bytes"]) * k
    tile_s = max(pipe_s, moved / device["fill_bytes_per_s"]) + device["wave_s"]
    core_s: float = max(waves * tile_s, tiles * moved / device["l2_bytes_per_s"])
    return core_s


@helper
def _best_tile(device: np.void, loads: Ints, tuned: int, n: float, k: float) -> tuple[int, float]:
    """Return the tile with the shortest core, -1 without one, and its seconds for the loads."""
    best, best_s = -1, math.inf
    for high in range(device["num_row_tiles"]):
        tile_m = device["row_tiles"][high]
        if tuned > 0:
            row_tiles = loads.shape[0] * np.ceil(tuned / tile_m)
        else:
            row_tiles = _row_tiles(loads, tile_m)
        for wide in range(device["num_column_tiles"]):
            core_s = _core_s(device, row_tiles, tile_m, device["column_tiles"][wide], n, k)
            if core_s < best_s:
                best_s = core_s
                best = high * MAX_COLUMN_TILES + wide
    if best >= 0 and tuned > 0:
        tile_m = device["row_tiles"][best // MAX_COLUMN_TILES]
        tile_n = device["column_tiles"][best % MAX_COLUMN_TILES]
        best_s = _core_s(device, _row_tiles(loads, tile_m), tile_m, tile_n, n, k)
    return best, best_s


@kernel(python_us=100.0)
def grouped_gemm_times(
    offset_B1: Ints,
    load_R: Ints,
    set_L: Ints,
    extent_L2: Ints,
    tuned_L: Ints,
    class_L: Ints,
    classes_K: Records,
    time_s_L: Floats,
    tile_L: Ints,
) -> int:
    """Time of each launch ``C_g[load_g, n] = A_g[load_g, k] @ W_g[k, n]`` over all its groups g.

    offset_B1 : int64[B + 1]. Where each set of loads begins in ``load_R``; a group is an expert.
    load_R : int64[R]. Rows of each group. A group without rows costs nothing.
    set_L : int64[L]. The set of loads that a launch works on; several launches may share one.
    extent_L2 : int64[L, 2]. (n, k), the same for all groups.
    tuned_L : int64[L]. Rows of every group that the tile was tuned for; 0 where it is picked for
        the loads.
    class_L : int64[L]. Row of ``classes_K``.
    classes_K : GROUPED[K]
    time_s_L, tile_L : float64[L], int64[L]. Outputs: seconds without the start of the kernel, and
        ``row tile * MAX_COLUMN_TILES + column tile`` of the choice, -1 where no group has rows.
    Returns ``OK``, or ``INVALID`` where an index is out of range or a launch has no finite,
        non-negative time.

    Every group is padded to whole tiles by itself; the tiles of all groups then go through the
    compute units together, in ``ceil(tiles / units)`` waves. A wave lasts as long as one tile's
    ``max(matrix pipe, L2 into the unit)`` and its start and end; all waves last at least as long as
    the L2 takes to hand out what the tiles take in. Beside them run, from memory, the
    weights of the groups that have rows, and the activations once. A kernel that runs two
    multiplications back to back is one launch over the k of both, of which its rows bring only
    ``row_share`` from outside. ``time = max(core, memory) +
    loss * min(core, memory) + groups with rows * group time``. One tile shape serves the launch:
    the one with the shortest core, the first of equals, for the loads or for the equal ones that
    a tuner saw.
    """
    status = OK
    for i in range(set_L.shape[0]):
        time_s_L[i] = 0.0
        tile_L[i] = -1
        s, c = set_L[i], class_L[i]
        n, k = float(extent_L2[i, 0]), float(extent_L2[i, 1])
        if not (
            0 <= s < offset_B1.shape[0] - 1
            and 0 <= c < classes_K.shape[0]
            and 0 <= offset_B1[s] <= offset_B1[s + 1] <= load_R.shape[0]
            and min(n, k) >= 0.0
            and tuned_L[i] >= 0
        ):
            time_s_L[i] = math.nan
            status = INVALID
            continue
        device = classes_K[c]
        groups, rows, least = 0, 0.0, np.int64(0)
        for r in range(offset_B1[s], offset_B1[s + 1]):
            least = min(least, load_R[r])
            rows += float(load_R[r])
            groups += load_R[r] > 0
        if least < 0:
            time_s_L[i] = math.nan
            status = INVALID
            continue
        if groups == 0 or min(n, k) == 0.0:
            continue
        loads = load_R[offset_B1[s] : offset_B1[s + 1]]
        tile_L[i], best_s = _best_tile(device, loads, tuned_L[i], n, k)
        row_bytes = k * device["row_share"] * device["operand_bytes"] + n * device["output_bytes"]
        moved = groups * n * k * device["weight_bytes"] + rows * row_bytes
        memory_s = moved / device["hbm_bytes_per_s"]
        loss_s = device["overlap_loss"] * min(best_s, memory_s)
        time_s_L[i] = max(best_s, memory_s) + loss_s + groups * device["group_s"]
        if not 0.0 <= time_s_L[i] < math.inf:
            status = INVALID
    return status


GroupedColumns = tuple[Ints, Ints, Ints, Ints, Ints, Ints, Records]
"""What `grouped_gemm_times` reads, from ``offset_B1`` to ``classes_K``."""


def grouped_gemm_time_columns(*columns: *GroupedColumns) -> tuple[Floats, Ints]:
    """Return the columns ``(time_s, tile)`` of `grouped_gemm_times`.

    Raises `ValueError` if a launch has no finite, non-negative time.
    """
    offset_B1, load_R, set_L, extent_L2, tuned_L, class_L, classes_K = columns
    extent_L2 = np.reshape(extent_L2, (-1, 2))
    ints = as_type(np.int64, offset_B1, load_R, set_L, extent_L2, tuned_L, class_L)
    time_s_L, tile_L = np.empty(len(set_L)), np.empty(len(set_L), np.int64)
    if grouped_gemm_times(*ints, classes_K, time_s_L, tile_L) != OK:
        raise ValueError("a grouped GEMM has no finite, non-negative time")
    return time_s_L, tile_L
