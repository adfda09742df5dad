"""Time of matrix multiplications on one device, by tiles and by speed of light.

Shape suffixes
    G   GEMMs in the batch
    4   extents (m, n, k, batch) of one of them
    D   devices
Units
    time s, work FLOP, traffic bytes, rates FLOP/s and bytes/s. Floats are float64, extents int64.
"""

import math

import numpy as np
from numpy.typing import NDArray

from ._jit import helper, kernel
from .device import MATRIX_TYPES, OPERAND_BYTES, TILE_EFFICIENCY, TILE_M, TILE_N

BOUNDS = ("compute", "l2_fill", "l2", "memory", "overhead")
"""What sets the time of a GEMM, by code."""

COMPUTE, L2_FILL, L2, MEMORY, OVERHEAD = range(5)

MAX_SPLIT_K = 16
MIN_SPLIT_DEPTH = 256
"""Shallowest K that a library splits into."""

FIRST_STEP_BYTES = 128.0
"""Bytes of K of each operand row that must arrive before the first instruction."""

EDGE_CLOCK = MATRIX_TYPES.index("bf16")

OK, INVALID = 0, 1


@helper
def _reread_share(inputs: float, cache_bytes: float) -> float:
    """Share of repeated operand reads that caches do not serve."""
    return max(0.0, 1.0 - cache_bytes / inputs) if inputs > 0.0 else 0.0


@helper
def _dram_bytes(
    m: float, n: float, k: float, operand: float, tile_m: float, tile_n: float, units: float, cache: float
) -> tuple[float, float]:
    """Bytes of A and B that leave memory and that leave the caches behind L2.

    The tiles of one wave form a rectangle of the output as near to a square as the tile grid
    allows; its rows of A and columns of B are read once a wave. What a later wave reads again
    comes from the caches as far as A and B fit there.
    """
    rows, columns = math.ceil(m / tile_m), math.ceil(n / tile_n)
    together = min(rows * columns, units)
    high = min(rows, max(1.0, math.floor(math.sqrt(together * tile_n / tile_m))))
    wide = min(columns, math.ceil(together / high))
    high = min(rows, math.ceil(together / wide))
    rectangles = rows * columns / (high * wide)
    requested = rectangles * (high * tile_m + wide * tile_n) * k * operand
    once = (m + n) * k * operand
    requested = max(requested, once)
    return once + (requested - once) * _reread_share(once, cache), requested


@kernel
def gemm_times(
    extent_G4: NDArray[np.int64],
    dtype_G: NDArray[np.int64],
    out_bytes_G: NDArray[np.float64],
    efficiency_G: NDArray[np.float64],
    device_G: NDArray[np.int64],
    devices_D: NDArray[np.void],
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
    time_s_G, bound_G, choice_G : float64[G], int64[G], int64[G]
        Outputs: seconds, code of the limiter, and tile * 16 + split - 1 of the choice.

    Returns
    -------
    int
        ``OK``, or ``INVALID`` where a time is no finite, non-negative number.

    Notes
    -----
    For a tile and a split the compute units work through ``ceil(tiles / units)`` waves; a wave
    lasts as long as its K loop, ``max(matrix pipe, L2 fill of the unit)``, also when it is only
    partly full. Beside it run the traffic of the whole device out of L2 and memory. The time is
    ``overhead + max(compute, memory) + loss * min(compute, memory) + prologue + last store``,
    plus the reduction of a split K. The smallest wins, the first of equals.
    """
    status = OK
    for g in range(extent_G4.shape[0]):
        m, n = float(extent_G4[g, 0]), float(extent_G4[g, 1])
        k, batch = float(extent_G4[g, 2]), float(extent_G4[g, 3])
        time_s_G[g] = 0.0
        bound_G[g] = OVERHEAD
        choice_G[g] = -1
        if m <= 0.0 or n <= 0.0 or k <= 0.0 or batch <= 0.0:
            continue
        device = devices_D[device_G[g]]
        units = device.compute_units
        operand = OPERAND_BYTES[dtype_G[g]]
        unit_rate = device.matrix_flop_per_s[dtype_G[g]] / units * efficiency_G[g]
        fill_rate = device.l2_fill_bytes_per_clk_per_cu * device.clock_hz[dtype_G[g]]
        # First loads and last stores are no matrix load: one clock for all types.
        edge_rate = device.l2_fill_bytes_per_clk_per_cu * device.clock_hz[EDGE_CLOCK]
        cache = device.l2_bytes + device.mall_bytes
        output = m * n * batch * out_bytes_G[g]
        best = math.inf
        for tile in range(device.num_tiles):
            tile_m, tile_n = device.tiles[tile, TILE_M], device.tiles[tile, TILE_N]
            efficiency = device.tiles[tile, TILE_EFFICIENCY]
            tiles = math.ceil(m / tile_m) * math.ceil(n / tile_n) * batch
            dram, requested = _dram_bytes(m, n, k, operand, tile_m, tile_n, units, cache)
            memory_s = (dram * batch + output) / device.hbm_bytes_per_s
            if device.mall_bytes_per_s > 0.0:
                memory_s = max(memory_s, (requested * batch + output) / device.mall_bytes_per_s)
            longer, shorter = max(tile_m, tile_n), min(tile_m, tile_n)
            out_of_l2 = tiles * (longer / device.l2_multicast + shorter) * k * operand
            l2_s = out_of_l2 / device.l2_bytes_per_s
            traffic_s = max(memory_s, l2_s)
            store_s = min(tile_m, m) * min(tile_n, n) * out_bytes_G[g] / edge_rate
            prologue_s = device.hbm_latency_s + (tile_m + tile_n) * FIRST_STEP_BYTES / edge_rate
            around_s = device.gemm_overhead_s + prologue_s + store_s
            split = 1
            while split <= MAX_SPLIT_K and (split == 1 or k / split >= MIN_SPLIT_DEPTH):
                depth = math.ceil(k / split)
                waves = math.ceil(tiles * split / units)
                math_s = waves * (2.0 * tile_m * tile_n * depth / (unit_rate * efficiency))
                fill_s = waves * ((tile_m + tile_n) * depth * operand / fill_rate)
                core_s = max(math_s, fill_s)
                time = around_s + max(core_s, traffic_s)
                time += device.gemm_overlap_loss * min(core_s, traffic_s)
                if split > 1:
                    partial = 8.0 * m * n * batch * split
                    time += device.gemm_split_k_s + partial / device.l2_bytes_per_s
                if time < best:
                    best = time
                    choice_G[g] = tile * MAX_SPLIT_K + split - 1
                    if around_s > max(core_s, traffic_s):
                        bound_G[g] = OVERHEAD
                    elif core_s >= traffic_s:
                        bound_G[g] = COMPUTE if math_s >= fill_s else L2_FILL
                    else:
                        bound_G[g] = MEMORY if memory_s >= l2_s else L2
                split *= 2
        time_s_G[g] = best
        if not best < math.inf:
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
) -> None:
    """Speed of light of each GEMM: the longer of its FLOP and its compulsory traffic.

    Parameters are those of `gemm_times`.
    """
    for g in range(extent_G4.shape[0]):
        m, n = float(extent_G4[g, 0]), float(extent_G4[g, 1])
        k, batch = float(extent_G4[g, 2]), float(extent_G4[g, 3])
        device = devices_D[device_G[g]]
        operands = (m + n) * k * OPERAND_BYTES[dtype_G[g]]
        traffic_s = batch * (operands + m * n * out_bytes_G[g]) / device.hbm_bytes_per_s
        math_s = 2.0 * m * n * k * batch / device.matrix_flop_per_s[dtype_G[g]]
        time_s_G[g] = max(math_s, traffic_s) if m * n * k * batch > 0.0 else 0.0


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
        np.ascontiguousarray(extent_G4), np.ascontiguousarray(dtype_G, np.int64),
        np.ascontiguousarray(out_bytes_G), np.ascontiguousarray(efficiency_G),
        np.ascontiguousarray(device_G), devices_D,
        time_s_G, bound_G, choice_G,
    )  # fmt: skip
    if status != OK:
        msg = "a GEMM has no finite time"
        raise ValueError(msg)
    return time_s_G, bound_G, choice_G
