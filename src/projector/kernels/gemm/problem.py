"""One GEMM, the device rates it meets, and the tiles it may be cut into."""

from typing import NamedTuple

import numpy as np

from projector.kernels._jit import helper, inlined
from projector.kernels.device import (
    ALIGNED_BYTES,
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
    TILE_STEP_CLK,
    TILE_UNITS,
)

EXTENTS = "m, n, k, batch"
"""Extents of a GEMM, as messages and columns have them."""

BOUNDS = ("compute", "l2_fill", "l2", "memory", "overhead", "issue", "epilogue")
"""What sets the time of a GEMM, by code."""

COMPUTE, L2_FILL, L2, MEMORY, OVERHEAD, ISSUE, EPILOGUE = range(len(BOUNDS))


class GemmTerms(NamedTuple):
    """Parts of the time of one GEMM; seconds are those at the clock that the power cap leaves."""

    start_s: float
    """Launch, first loads and the end of a kernel."""
    matrix_s: float
    """Main loops, as long as the matrix pipe takes."""
    scale_s: float
    """Main loops, as long as vector units multiply block scales after the matrix pipe."""
    l2_fill_s: float
    """Main loops, as long as the loads into a compute unit take."""
    issue_s: float
    """Main loops, as long as their least steps take."""
    wait_s: float
    """What the steps of the main loops add, whatever they do."""
    epilogue_s: float
    """Epilogues that wait: what the main loops do not hide."""
    epilogues_s: float
    """All of a compute unit's epilogues, one after the other."""
    l2_s: float
    """What L2 hands out, for the device as a whole."""
    memory_s: float
    """Traffic behind L2."""
    loss_s: float
    """What the shorter of core and memory adds."""
    reduce_s: float
    """Adding up the parts of a split K."""
    tiles: float
    waves: float
    units: float
    """Compute units that run."""
    hbm_bytes: float
    """Bytes out of memory."""
    cache_bytes: float
    """Bytes through the last cache before it."""
    l2_bytes: float
    """Bytes out of L2."""
    clock_share: float
    """Clock over the one that the rates hold at."""
    power_w: float
    """Watts; 0 where the device has no power model for the type."""


TERMS = GemmTerms._fields
"""Columns of `gemm_terms`."""

STEP_ELEMENT_BYTES = 2.0
"""A step of the main loop takes ``k_bytes`` of 16-bit elements, and as many elements of any other
type, so that what K is padded to does not depend on the type."""

PARTIAL_BYTES = 8.0
"""A split-K partial result is written and read once, in FP32."""


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
    per_shared_units: float
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
    die_tall: float
    """Rows of tiles of a full wave, as far as one die sees it, and one over them."""
    per_die_tall: float
    per_die_units: float
    """One over the units that one die sees of a full wave."""
    shared_tall: float
    """Rows of tiles of a full wave in front of the last cache, and one over them."""
    per_shared_tall: float
    wait: float
    """Clocks that its steps add for one element of K."""
    split: float


@inlined
def units_of_cache(device: np.void) -> float:
    """Compute units in front of the last cache before memory."""
    units: float = device["compute_units"]
    return units if device["mall_bytes"] > 0.0 else units / device["dies"]


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
    shared_units = units_of_cache(device)
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
        per_shared_units=1.0 / shared_units,
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


MENU = np.dtype([(field, np.float64, (MAX_TILES,)) for field in Tile._fields if field != "split"])
"""The tiles of a device in columns, with what they are whatever the GEMM."""

LANES = 8
"""Tiles that a vector unit takes at once."""


@inlined
def columns_of(tiles: int) -> int:
    """How many places of each column are filled for so many tiles: whole vectors."""
    return (tiles + LANES - 1) // LANES * LANES


@inlined
def _rows_of_wave(device: np.void, narrow: float, units: float, cluster_m: float) -> float:
    """Rows of tiles of the rectangle that a full wave forms, where the grid does not end first."""
    group = device["gemm_group_m"]
    rows: float = max(cluster_m, group if group > 0.0 else np.sqrt(units) * narrow)
    return rows


@helper
def load_menu(device: np.void, menu: np.void) -> int:
    """Lay a device's tiles out in columns (MENU); return how many there are.

    Copies of the last tile fill whole vectors.
    """
    tiles = int(device["num_tiles"])
    for place in range(columns_of(tiles)):
        tile = device["tiles"][min(place, tiles - 1)]
        m, n = tile[TILE_M], tile[TILE_N]
        menu["m"][place], menu["n"][place] = m, n
        menu["area"][place] = m * n
        menu["per_block_m"][place] = 1.0 / (m * tile[TILE_CLUSTER_M])
        menu["per_block_n"][place] = 1.0 / (n * tile[TILE_CLUSTER_N])
        menu["cluster_m"][place] = tile[TILE_CLUSTER_M]
        menu["cluster_n"][place] = tile[TILE_CLUSTER_N]
        menu["step"][place] = tile[TILE_K_BYTES] / STEP_ELEMENT_BYTES
        menu["per_step"][place] = STEP_ELEMENT_BYTES / tile[TILE_K_BYTES]
        menu["flop"][place] = 2.0 * m * n / tile[TILE_EFFICIENCY]
        menu["share_m"][place] = tile[TILE_SHARE_M]
        menu["share_n"][place] = tile[TILE_SHARE_N]
        menu["units"][place] = tile[TILE_UNITS]
        menu["per_unit"][place] = 1.0 / tile[TILE_UNITS]
        menu["narrow"][place] = np.sqrt(n / m)
        menu["wait"][place] = tile[TILE_STEP_CLK] * menu["per_step"][place]
        narrow, cluster_m = menu["narrow"][place], menu["cluster_m"][place]
        of_die = device["gemm_die_stride"] / device["dies"]
        die_units = max(1.0, menu["units"][place] * of_die)
        die_tall = _rows_of_wave(device, narrow, die_units, cluster_m)
        shared_tall = _rows_of_wave(device, narrow, units_of_cache(device), cluster_m)
        menu["die_tall"][place], menu["per_die_tall"][place] = die_tall, 1.0 / die_tall
        menu["per_die_units"][place] = 1.0 / die_units
        menu["shared_tall"][place], menu["per_shared_tall"][place] = shared_tall, 1.0 / shared_tall
    return tiles


@inlined
def candidate(menu: np.void, t: int, split: float) -> Tile:
    """Return a tile of a menu (MENU) with a split of K."""
    return Tile(
        m=menu["m"][t],
        n=menu["n"][t],
        area=menu["area"][t],
        per_block_m=menu["per_block_m"][t],
        per_block_n=menu["per_block_n"][t],
        cluster_m=menu["cluster_m"][t],
        cluster_n=menu["cluster_n"][t],
        step=menu["step"][t],
        per_step=menu["per_step"][t],
        flop=menu["flop"][t],
        share_m=menu["share_m"][t],
        share_n=menu["share_n"][t],
        units=menu["units"][t],
        per_unit=menu["per_unit"][t],
        narrow=menu["narrow"][t],
        die_tall=menu["die_tall"][t],
        per_die_tall=menu["per_die_tall"][t],
        per_die_units=menu["per_die_units"][t],
        shared_tall=menu["shared_tall"][t],
        per_shared_tall=menu["per_shared_tall"][t],
        wait=menu["wait"][t],
        split=split,
    )
