"""Plain-Python time of one grouped GEMM: tile by tile, wave by wave."""


def core_time(loads, n, k, high, wide, device):
    """Seconds of the waves of one tile shape."""
    # Every expert's rows are cut by themselves; one list of tiles serves them all.
    tiles = [
        (expert, first_row, first_column)
        for expert, load in enumerate(loads)
        for first_row in range(0, load, int(high))
        for first_column in range(0, n, int(wide))
    ]
    per_wave = int(device["compute_units"])
    waves = [tiles[start : start + per_wave] for start in range(0, len(tiles), per_wave)]
    pipe_s = 2.0 * high * wide * k / device["unit_flop_per_s"]
    rows_bytes = high * k * device["row_share"] * device["operand_bytes"]
    moved = rows_bytes + wide * k * device["weight_bytes"]
    tile_s = max(pipe_s, moved / device["fill_bytes_per_s"]) + device["wave_s"]
    return max(len(waves) * tile_s, sum(moved / device["l2_bytes_per_s"] for _ in tiles))


def grouped_gemm_time(loads, n, k, device, tuned=0):
    """Return (seconds, (tile height, tile width)); the tile is None where nothing runs."""
    active = [load for load in loads if load > 0]
    if not active or 0 in (n, k):
        return 0.0, None

    known = [tuned] * len(loads) if tuned else active
    menu = [(high, wide) for high in device["row_tiles"] for wide in device["column_tiles"]]
    tile = min(menu, key=lambda shape: core_time(known, n, k, *shape, device))
    best_s = core_time(active, n, k, *tile, device)

    weights = len(active) * n * k * device["weight_bytes"]
    taken = k * device["row_share"] * device["operand_bytes"]
    rows = sum(load * taken + load * n * device["output_bytes"] for load in active)
    memory_s = (weights + rows) / device["hbm_bytes_per_s"]
    hidden_s, longer_s = sorted((best_s, memory_s))
    groups_s = len(active) * device["group_s"]
    return longer_s + device["overlap_loss"] * hidden_s + groups_s, tile
