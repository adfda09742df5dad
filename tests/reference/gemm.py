"""Plain-Python times of matrix multiplications, one candidate after the other."""

import math

SPLITS = (1, 2, 4, 8, 16)
ELEMENT_BYTES = (4, 4, 2, 2, 1, 1, 0.5)
# A scale of 8 bits for 32 elements of mxfp8, for 16 of nvfp4.
SCALE_BYTES = (0, 0, 0, 0, 0, 1 / 32, 1 / 16)


def operand_bytes(code):
    return ELEMENT_BYTES[code] + SCALE_BYTES[code]


def sol_time(m, n, k, batch, code, out_bytes, device):
    if 0 in (m, n, k, batch):
        return 0.0
    flop = 2 * m * n * k * batch
    traffic = batch * ((m * k + k * n) * operand_bytes(code) + m * n * out_bytes)
    return max(flop / device["matrix_flop_per_s"][code], traffic / device["hbm_bytes_per_s"])


def rectangle(tiles_m, tiles_n, tile_m, tile_n, units):
    """Rows and columns of the tiles that run together: a square of elements, if the grid allows."""
    side = math.sqrt(units * tile_m * tile_n)
    high = min(tiles_m, max(1, side / tile_m))
    wide = min(tiles_n, max(1, units / high))
    return min(tiles_m, max(1, units / wide)), wide


def rereads(m, n, k, tile, code, units, cache_bytes):
    """Bytes that the rectangles of one problem read beyond the first time, out of a cache."""
    tiles_m, tiles_n = math.ceil(m / tile[0]), math.ceil(n / tile[1])
    high, wide = rectangle(tiles_m, tiles_n, tile[0], tile[1], units)
    a, b = m * k * operand_bytes(code), k * n * operand_bytes(code)
    rectangles_down, rectangles_across = tiles_m / high, tiles_n / wide
    read = a * rectangles_across + b * rectangles_down
    missing = max(0.0, (a + b - cache_bytes) / (a + b))
    return (read - a - b) * missing


def memory_s(m, n, k, batch, tile, code, out_bytes, device):
    tiles = math.ceil(m / tile[0]) * math.ceil(n / tile[1])
    units, dies = device["compute_units"], device["dies"]
    l2 = rereads(m, n, k, tile, code, max(1, min(units, tiles) / dies), device["l2_bytes"] / dies)
    if device["mall_bytes"]:
        behind = min(l2, rereads(m, n, k, tile, code, units, device["mall_bytes"]))
    else:
        # The device has no further cache: the same dies, but of waves that are full.
        behind = min(l2, rereads(m, n, k, tile, code, units / dies, device["l2_bytes"] / dies))
    operands = (m * k + k * n) * operand_bytes(code)
    stored = m * n * batch * out_bytes - last_stores(m, n, batch, tile, out_bytes, device)
    cache_rate = max(device["mall_bytes_per_s"], device["hbm_bytes_per_s"])
    from_memory = (operands + behind) * batch + stored
    from_cache = (operands + l2) * batch + stored
    return max(from_memory / device["hbm_bytes_per_s"], from_cache / cache_rate)


def last_stores(m, n, batch, tile, out_bytes, device):
    return min(m * n * batch, device["compute_units"] * tile[0] * tile[1]) * out_bytes


def candidate_time(m, n, k, batch, code, out_bytes, share, device, tile, split):
    tile_m, tile_n, k_bytes, efficiency = tile
    step = k_bytes / 2
    steps_of_part = math.ceil(math.ceil(k / step) / split)
    work_groups = math.ceil(m / tile_m) * math.ceil(n / tile_n) * batch * split
    waves = math.ceil(work_groups / device["compute_units"])

    unit_rate = device["matrix_flop_per_s"][code] * share * efficiency / device["compute_units"]
    math_s = waves * steps_of_part * (2 * tile_m * tile_n * step / unit_rate)
    step_bytes = (min(m, tile_m) + min(n, tile_n)) * step * operand_bytes(code)
    fill_s = step_bytes / (device["l2_fill_bytes_per_clk_per_cu"] * device["clock_hz"][code])
    a_loads = math.ceil(n / tile_n) * m * k * batch * operand_bytes(code)
    b_loads = math.ceil(m / tile_m) * n * k * batch * operand_bytes(code)
    if tile_m >= tile_n:
        a_loads /= device["l2_multicast"]
    else:
        b_loads /= device["l2_multicast"]
    core = max(
        math_s, waves * steps_of_part * fill_s, (a_loads + b_loads) / device["l2_bytes_per_s"]
    )
    memory = memory_s(m, n, k, batch, tile, code, out_bytes, device)

    store_rate = min(device["hbm_bytes_per_s"], device["l2_bytes_per_s"])
    time = device["gemm_overhead_s"] + device["hbm_latency_s"] + fill_s
    time += max(core, memory) + device["gemm_overlap_loss"] * min(core, memory)
    store_clock = device["clock_hz"][3]
    store_s = tile_m * tile_n * out_bytes / (device["l2_fill_bytes_per_clk_per_cu"] * store_clock)
    between_waves = device["hbm_latency_s"] + fill_s + store_s
    time += (waves - 1) * device["gemm_wave_exposed"] * between_waves
    time += last_stores(m, n, batch, tile, out_bytes, device) / store_rate
    if split > 1:
        partial = 4 * split * m * n * batch
        rate = device["l2_bytes_per_s"] if partial <= device["l2_bytes"] else store_rate
        time += device["gemm_split_k_s"] + 2 * partial / rate
    return time


def gemm_time(m, n, k, batch, code, out_bytes, share, device):
    """Return the best time."""
    if 0 in (m, n, k, batch):
        return 0.0
    return min(
        candidate_time(m, n, k, batch, code, out_bytes, share, device, tile, split)
        for tile in device["tiles"]
        for split in SPLITS
        if split == 1 or k >= 256 * split
    )
