"""One GEMM, the device rates it meets, and the tiles it may be cut into.

Shape suffixes
    F   columns of a menu
    T   tiles of a device
"""

from typing import NamedTuple

import numpy as np

from projector.arrays import Floats
from projector.kernels._jit import helper, inlined
from projector.kernels.device import (
    ALIGNED_BYTES,
    OPERAND_BYTES,
    TILE_CLUSTER_M,
    TILE_CLUSTER_N,
    TILE_EFFICIENCY,
    TILE_K_BYTES,
    TILE_M,
    TILE_N,
    TILE_SHARE_M,
    TILE_SHARE_N,
    TILE_STEP_CLK,
    TILE_UNITS,
)

STEP_ELEMENT_BYTES = 2.0
"""A step of the main loop takes ``k_bytes`` of 16-bit elements, and as many elements of any other
type, so that what K is padded to does not depend on the type."""

PARTIAL_BYTES = 8.0
"""A split-K partial result is written and read once, in FP32."""

MENU_FIELDS = 16
(
    M, N, AREA, PER_BLOCK_M, PER_BLOCK_N, CLUSTER_M, CLUSTER_N, STEP, PER_STEP, FLOP,
    SHARE_M, SHARE_N, UNITS, PER_UNIT, NARROW, WAIT,
) = range(MENU_FIELDS)  # fmt: skip
"""Columns of a menu: the fields of `Tile`, of which only the split is no tile's own."""


class Problem(NamedTuple):
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
    scale_s: float
    """Block scales of one element of C and of K."""
    clock_s: float
    """One clock."""
    l2_bytes: float
    l2_byte_s: float
    """One byte out of L2."""
    load_byte_s: float
    """One byte of A or B out of L2."""
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
    start_s: float
    split_k_s: float
    overlap_loss: float
    epilogue_s: float
    """Fixed time of an epilogue."""
    store_s: float
    """One element of C out of a compute unit."""
    epilogue_exposed: float


class Tile(NamedTuple):
    """One candidate, with what it would otherwise divide by anew for every GEMM."""

    m: float
    n: float
    area: float
    per_block_m: float
    """One over the rows of a cluster."""
    per_block_n: float
    cluster_m: float
    cluster_n: float
    step: float
    """Elements of K that one step of the main loop takes."""
    per_step: float
    flop: float
    """FLOP of one element of K, over the share of the pipe that is kept busy."""
    share_m: float
    share_n: float
    units: float
    """Compute units that its clusters can fill."""
    per_unit: float
    narrow: float
    """Root of its columns over its rows."""
    wait: float
    """Clocks that its steps add for one element of K."""
    split: float


@inlined
def meet(
    device: np.void,
    code: int,
    m: float,
    n: float,
    k: float,
    batch: float,
    out_bytes: float,
    efficiency: float,
) -> Problem:
    """Gather what one GEMM needs of a device."""
    units, dies, clock = device["compute_units"], device["dies"], device["clock_hz"][code]
    behind_l2 = device["mall_bytes"] > 0.0
    l2_of_die = device["l2_bytes"] / dies
    shared_cache = device["mall_bytes"] if behind_l2 else l2_of_die
    a_bytes, b_bytes = m * k * OPERAND_BYTES[code], n * k * OPERAND_BYTES[code]
    shared_units = units if behind_l2 else units / dies
    hbm_rate = device["gemm_hbm_bytes_per_s"]
    # Scales are less than a quarter of a byte, and lie elsewhere.
    row_bytes = k * np.floor(4.0 * OPERAND_BYTES[code]) / 4.0
    unaligned = row_bytes % ALIGNED_BYTES != 0.0
    slower = device["gemm_unaligned_loads"] if unaligned else 1.0
    return Problem(
        m=m,
        n=n,
        k=k,
        batch=batch,
        a_bytes=a_bytes * batch,
        b_bytes=b_bytes * batch,
        output=m * n * batch * out_bytes,
        partial_bytes=m * n * batch * PARTIAL_BYTES,
        units=units,
        flop_s=units / (device["matrix_flop_per_s"][code] * efficiency),
        fill_s=OPERAND_BYTES[code] / (device["l2_fill_bytes_per_clk_per_cu"] * clock),
        issue_s=device["gemm_clk_per_k"][code] / clock,
        scale_s=device["gemm_scale_clk"][code] / clock,
        clock_s=1.0 / clock,
        l2_bytes=device["l2_bytes"],
        l2_byte_s=1.0 / device["l2_bytes_per_s"],
        load_byte_s=slower / device["l2_bytes_per_s"],
        l2_miss_share=device["gemm_l2_miss_share"],
        of_die=device["gemm_die_stride"] / dies,
        die_rows=1.0 / device["gemm_die_stride"],
        die_bytes=l2_of_die * batch,
        shared_units=shared_units,
        shared_side=np.sqrt(shared_units),
        shared_bytes=shared_cache * batch,
        fabric_byte_s=1.0 / max(device["mall_bytes_per_s"], hbm_rate),
        hbm_byte_s=1.0 / hbm_rate,
        group_m=device["gemm_group_m"],
        start_s=device["gemm_overhead_s"],
        split_k_s=device["gemm_split_k_s"],
        overlap_loss=device["gemm_overlap_loss"],
        epilogue_s=device["gemm_epilogue_clk"] / clock,
        store_s=out_bytes / (device["gemm_epilogue_bytes_per_clk_per_cu"] * clock),
        epilogue_exposed=device["gemm_epilogue_exposed"],
    )


@helper
def load_menu(device: np.void, menu_FT: Floats) -> int:
    """Lay a device's tiles out in columns of a menu; return how many there are."""
    for row in range(device["num_tiles"]):
        tile = device["tiles"][row]
        m, n = tile[TILE_M], tile[TILE_N]
        menu_FT[M, row], menu_FT[N, row] = m, n
        menu_FT[AREA, row] = m * n
        menu_FT[PER_BLOCK_M, row] = 1.0 / (m * tile[TILE_CLUSTER_M])
        menu_FT[PER_BLOCK_N, row] = 1.0 / (n * tile[TILE_CLUSTER_N])
        menu_FT[CLUSTER_M, row] = tile[TILE_CLUSTER_M]
        menu_FT[CLUSTER_N, row] = tile[TILE_CLUSTER_N]
        menu_FT[STEP, row] = tile[TILE_K_BYTES] / STEP_ELEMENT_BYTES
        menu_FT[PER_STEP, row] = STEP_ELEMENT_BYTES / tile[TILE_K_BYTES]
        menu_FT[FLOP, row] = 2.0 * m * n / tile[TILE_EFFICIENCY]
        menu_FT[SHARE_M, row] = tile[TILE_SHARE_M]
        menu_FT[SHARE_N, row] = tile[TILE_SHARE_N]
        menu_FT[UNITS, row] = tile[TILE_UNITS]
        menu_FT[PER_UNIT, row] = 1.0 / tile[TILE_UNITS]
        menu_FT[NARROW, row] = np.sqrt(n / m)
        menu_FT[WAIT, row] = tile[TILE_STEP_CLK] * menu_FT[PER_STEP, row]
    return int(device["num_tiles"])


@inlined
def candidate(menu_FT: Floats, t: int, split: float) -> Tile:
    """Return a tile of a menu with a split of K."""
    return Tile(
        m=menu_FT[M, t],
        n=menu_FT[N, t],
        area=menu_FT[AREA, t],
        per_block_m=menu_FT[PER_BLOCK_M, t],
        per_block_n=menu_FT[PER_BLOCK_N, t],
        cluster_m=menu_FT[CLUSTER_M, t],
        cluster_n=menu_FT[CLUSTER_N, t],
        step=menu_FT[STEP, t],
        per_step=menu_FT[PER_STEP, t],
        flop=menu_FT[FLOP, t],
        share_m=menu_FT[SHARE_M, t],
        share_n=menu_FT[SHARE_N, t],
        units=menu_FT[UNITS, t],
        per_unit=menu_FT[PER_UNIT, t],
        narrow=menu_FT[NARROW, t],
        wait=menu_FT[WAIT, t],
        split=split,
    )
