"""Plain-Python twin of the documented model of warp-specialised persistent GEMMs."""

import math


def terms(m, n, k, batch, out_bytes, menu, rates):
    """Return (place in the menu, terms by name) of the fastest kernel."""
    found = [one(m, n, k, batch, out_bytes, kernel, rates) for kernel in menu]
    best = min(range(len(menu)), key=lambda place: found[place]["time_s"])
    return best, found[best]


def one(m, n, k, batch, out_bytes, kernel, rates):
    tile_m, tile_n, cluster_m, cluster_n, units = kernel
    clusters = math.ceil(m / (tile_m * cluster_m)) * math.ceil(n / (tile_n * cluster_n)) * batch
    tiles = clusters * cluster_m * cluster_n
    waves = math.ceil(tiles / units)
    in_last = tiles - (waves - 1) * units

    def load_s(elements, ctas):
        rows = tile_m / cluster_n + tile_n / cluster_m
        from_memory = rows * elements * rates.element_bytes * ctas * rates.miss_share
        return from_memory / rates.bytes_per_s

    def epilogue_s(ctas):
        return rates.epilogue_s + tile_m * tile_n * out_bytes * ctas / rates.bytes_per_s

    matrix_s = 2 * tile_m * tile_n * k / rates.unit_flop_per_s
    first_s = load_s(rates.first_elements, units)
    time_s = rates.setup_s + first_s + epilogue_s(in_last)
    for wave in range(waves):
        ctas = in_last if wave == waves - 1 else units
        time_s += max(load_s(k, ctas), matrix_s, epilogue_s(ctas))
    return {
        "setup_s": rates.setup_s,
        "first_load_s": first_s,
        "full_waves": waves - 1,
        "load_s": load_s(k, units),
        "matrix_s": matrix_s,
        "epilogue_s": epilogue_s(units),
        "last_load_s": load_s(k, in_last),
        "last_epilogue_s": epilogue_s(in_last),
        "time_s": time_s,
    }
