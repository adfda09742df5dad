"""Plain-Python times of matrix multiplications, one candidate after the other."""

import math

ELEMENT_BYTES = (4, 4, 2, 2, 1, 1, 0.5, 1, 1, 0.75, 0.5)
# A scale of 8 bits for 32 elements of an MX type, for 16 of nvfp4; of 32 bits for 128 of fp8_block.
SCALE_BYTES = (0, 0, 0, 0, 0, 1 / 32, 1 / 16, 0, 4 / 128, 1 / 32, 1 / 32)


def operand_bytes(code):
    return ELEMENT_BYTES[code] + SCALE_BYTES[code]


def sol_time(m, n, k, batch, code, out_bytes, device):
    if 0 in (m, n, k, batch):
        return 0.0
    flop = 2 * m * n * k * batch
    traffic = batch * ((m * k + k * n) * operand_bytes(code) + m * n * out_bytes)
    return max(flop / device["matrix_flop_per_s"][code], traffic / device["hbm_bytes_per_s"])


def grid(m, n, tile):
    """Tiles along M and along N, rounded up to whole clusters."""
    tile_m, tile_n, cluster_m, cluster_n = tile[0], tile[1], tile[4], tile[5]
    down = cluster_m * math.ceil(m / (tile_m * cluster_m))
    return down, cluster_n * math.ceil(n / (tile_n * cluster_n))


def rereads(m, n, k, tile, code, units, cache_bytes, device, stride):
    """Bytes that the rectangles of one problem read beyond the first time, out of a cache.

    Tiles of a wave form a rectangle: a square of elements or as high as the group, if the grid and
    the clusters allow. A panel is all rows of a group of rectangles.
    """
    down, across = grid(m, n, tile)
    a, b = m * k * operand_bytes(code), k * n * operand_bytes(code)
    group = device["gemm_group_m"]
    high = min(down, max(tile[4], group or math.sqrt(units * tile[0] * tile[1]) / tile[0]))
    wide = min(across, max(tile[5], units / high))
    rows_now = max(1.0, min(high, max(tile[4], units / wide)) / stride)
    rows_a, columns_b = a * high / stride / down, b * wide / across

    def lost(read_since):
        return 1 - min(1.0, cache_bytes / read_since) ** 2

    again_a, again_b = a * (across / wide - 1), b * (down / high - 1)
    within = b * (down / rows_now - down / high) * lost(a * rows_now / down + columns_b)
    along = again_a * lost(rows_a + columns_b) + again_b * lost(b + rows_a)
    turned = again_b * lost(rows_a + columns_b) + again_a * lost(a + columns_b)
    return within + (along if group else min(along, turned))


def l2_loads(m, n, k, tile, code):
    """Bytes that L2 hands out for one problem."""
    down, across = grid(m, n, tile)
    a, b = m * k * operand_bytes(code), k * n * operand_bytes(code)
    return a * (across / tile[5]) + b * (down / tile[4])


def traffic(m, n, k, batch, tile, code, out_bytes, device):
    """Bytes out of memory, and through the last cache in front of it."""
    down, across = grid(m, n, tile)
    units, dies, stride = device["compute_units"], device["dies"], device["gemm_die_stride"]
    of_die = max(1, min(tile[8], down * across) * stride / dies)
    l2_of_die = device["l2_bytes"] / dies
    l2 = rereads(m, n, k, tile, code, of_die, l2_of_die, device, stride)
    if device["mall_bytes"]:
        behind = min(l2, rereads(m, n, k, tile, code, units, device["mall_bytes"], device, 1))
    else:
        # The device has no further cache: the same dies, but of waves that are full.
        behind = min(l2, rereads(m, n, k, tile, code, units / dies, l2_of_die, device, 1))
    operands = (m * k + k * n) * operand_bytes(code)
    again = l2_loads(m, n, k, tile, code) - operands - l2
    missed = max(0.0, again) * device["gemm_l2_miss_share"]
    stored = m * n * out_bytes
    return (operands + behind + missed + stored) * batch, (operands + l2 + missed + stored) * batch


def memory_s(m, n, k, batch, tile, code, out_bytes, device):
    from_memory, from_cache = traffic(m, n, k, batch, tile, code, out_bytes, device)
    rate = device["gemm_hbm_bytes_per_s"]
    return max(from_memory / rate, from_cache / max(device["mall_bytes_per_s"], rate))


def core_s(m, n, k, batch, code, out_bytes, share, device, tile, split, clock_share):
    tile_m, tile_n, k_bytes, efficiency, _, _, share_m, share_n, units, step_clk = tile
    clock = device["clock_hz"][code]
    step = k_bytes / 2
    depth = step * math.ceil(math.ceil(k / step) / split)
    down, across = grid(m, n, tile)
    waves = math.ceil(down * across * batch * split / units)

    unit_rate = device["matrix_flop_per_s"][code] * share * efficiency / device["compute_units"]
    math_s = depth * 2 * tile_m * tile_n / unit_rate
    rows = min(m, tile_m) * share_m + min(n, tile_n) * share_n
    taken_in = depth * rows * operand_bytes(code)
    fill_s = taken_in / (device["l2_fill_bytes_per_clk_per_cu"] * clock)
    issue_s = depth * device["gemm_clk_per_k"][code] / clock
    scale_s = depth * tile_m * tile_n * device["gemm_scale_clk"][code] / clock
    wait_s = depth / step * step_clk / clock
    loop_s = max(math_s + scale_s, fill_s, issue_s) + wait_s

    out_clk = tile_m * tile_n * out_bytes / device["gemm_epilogue_bytes_per_clk_per_cu"]
    epilogue_s = (device["gemm_epilogue_clk"] + out_clk) / clock
    between_s = device["gemm_epilogue_exposed"] * epilogue_s
    one_after_another_s = waves * loop_s + (waves - 1) * between_s + epilogue_s
    slower = device["gemm_unaligned_loads"] if k * ELEMENT_BYTES[code] % 16 else 1
    l2_s = batch * l2_loads(m, n, k, tile, code) * slower / device["l2_bytes_per_s"]
    return max(one_after_another_s, waves * epilogue_s, l2_s) / clock_share


def reduce_s(m, n, batch, split, device):
    if split == 1:
        return 0.0
    partial = 4 * split * m * n * batch
    fits = partial <= device["l2_bytes"]
    rate = device["l2_bytes_per_s"] if fits else device["gemm_hbm_bytes_per_s"]
    return device["gemm_split_k_s"] + 2 * partial / rate


def candidate_time(m, n, k, batch, code, out_bytes, share, device, tile, split, clock_share=1.0):
    core = core_s(m, n, k, batch, code, out_bytes, share, device, tile, split, clock_share)
    memory = memory_s(m, n, k, batch, tile, code, out_bytes, device)
    time = device["gemm_overhead_s"] + reduce_s(m, n, batch, split, device)
    return time + max(core, memory) + device["gemm_overlap_loss"] * min(core, memory)


def watts(m, n, k, batch, code, out_bytes, share, device, tile, split, clock_share):
    time = candidate_time(m, n, k, batch, code, out_bytes, share, device, tile, split, clock_share)
    hbm_bytes, _ = traffic(m, n, k, batch, tile, code, out_bytes, device)
    joules = 2 * m * n * k * batch * device["joule_per_flop"][code]
    joules += hbm_bytes * device["joule_per_hbm_byte"]
    floor = device["power_voltage_floor"]
    volts = floor + (1 - floor) * device["power_clock_share"][code] * clock_share
    return device["power_idle_w"] + joules * volts**2 / time


def best_candidate(m, n, k, batch, code, out_bytes, share, device):
    """Return the fastest pair of a tile and a split; the first, where splits go before tiles."""
    candidates = [
        (tile, split)
        for split in (1, *device["gemm_splits"])
        for tile in device["tiles"]
        if split == 1 or k >= 256 * split
    ]
    problem = m, n, k, batch, code, out_bytes, share, device
    return min(candidates, key=lambda candidate: candidate_time(*problem, *candidate))


def gemm_time(m, n, k, batch, code, out_bytes, share, device):
    """Return the best time, at the highest clock that the power cap allows the best candidate."""
    if 0 in (m, n, k, batch):
        return 0.0
    problem = m, n, k, batch, code, out_bytes, share, device
    best = best_candidate(*problem)
    clock_share = 1.0
    if device["power_cap_w"] and watts(*problem, *best, 1.0) > device["power_cap_w"]:
        low, high = 0.05, 1.0
        while high - low > 1e-11:
            middle = (low + high) / 2
            within = watts(*problem, *best, middle) <= device["power_cap_w"]
            low, high = (middle, high) if within else (low, middle)
        clock_share = low
    return candidate_time(*problem, *best, clock_share)
