import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernels.devices import NUM_TYPES, ROUND, SHIPPED, device_dicts, record
from projector.kernels.device import MATRIX_TYPES, MAX_SPLITS, MAX_TILES
from projector.kernels.gemm import MAX_SPLIT_K, gemm_time_columns
from projector.kernels.gemm.search import SCRATCH
from reference import gemm as reference
from reference.gemm_search import bounds_hold, search_all
from thoroughness import examples

extents = st.integers(1, 1 << 17) | st.integers(1, 600) | st.sampled_from([1, 1 << 22])
codes = st.integers(0, NUM_TYPES - 1)
shares = st.sampled_from([1.0, 0.6])

# Few extents, so that candidates of equal time are common.
_sides = st.sampled_from([16.0, 48.0, 64.0, 128.0, 192.0, 256.0])
_tile = st.tuples(
    _sides, _sides, st.sampled_from([64.0, 128.0]), st.sampled_from([0.7, 1.0]),
    st.sampled_from([1.0, 2.0]), st.sampled_from([1.0, 2.0]), st.just(1.0),
    st.sampled_from([0.5, 1.0]), st.sampled_from([13.0, 120.0, 128.0]),
    st.sampled_from([0.0, 400.0]),
)  # fmt: skip
_splits = st.lists(st.integers(2, MAX_SPLIT_K).map(float), max_size=MAX_SPLITS, unique=True)
menus = st.lists(_tile, min_size=1, max_size=MAX_TILES)


def _with(device, tiles, splits):
    # What follows the units of a tile is as in any menu, where the tile does not say.
    others = ROUND["tiles"][0][9:]
    tiles = [
        (*tile[:8], min(tile[8], device["compute_units"]), *(tile[9:] or others)) for tile in tiles
    ]
    return device | {"tiles": tiles, "gemm_splits": tuple(sorted(splits))}


devices = st.builds(
    _with, device_dicts | st.sampled_from([ROUND, SHIPPED["h100"], SHIPPED["mi325x"]]), menus,
    _splits.map(sorted) | st.just([2.0, 4.0, 8.0, 16.0]),
)  # fmt: skip


def _choice(device, code, m, n, k, batch, share):
    time_s, _, choice = gemm_time_columns(
        np.array([[m, n, k, batch]]), np.array([code]), np.array([2.0]), np.array([share]),
        np.array([0]), record(device),
    )  # fmt: skip
    tile, parts = divmod(int(choice[0]), MAX_SPLIT_K)
    return tile, parts + 1, time_s[0]


@settings(max_examples=examples(300))
@given(devices, codes, extents, extents, extents, st.integers(1, 16), shares)
@example(
    _with(ROUND, [(64.0, 64.0, 64.0, 1.0, 1.0, 1.0, 1.0, 1.0, 128.0, 0.0)] * 64, [2.0, 3.0]),
    3,
    64,
    64,
    8192,
    1,
    1.0,
)  # all tiles are equal
def test_the_search_finds_what_timing_all_finds(device, code, m, n, k, batch, share):
    device = device | {"power_cap_w": 0.0}
    row = record(device)
    expected_s, choice = search_all(np.array([[m, n, k, batch]]), code, share, row)
    best, parts = divmod(int(choice[0]), MAX_SPLIT_K)
    assert _choice(device, code, m, n, k, batch, share) == (best, parts + 1, expected_s[0])


@settings(max_examples=examples(60))
@given(devices, codes, extents, extents, extents, st.integers(1, 16))
def test_the_search_agrees_with_the_reference(device, code, m, n, k, batch):
    device = device | {"power_cap_w": 0.0}
    problem = m, n, k, batch, code, 2.0, 1.0, device
    tile, split, time_s = _choice(device, code, m, n, k, batch, 1.0)
    expected = reference.candidate_time(*problem, *reference.best_candidate(*problem))
    assert time_s == pytest.approx(expected, rel=1e-9)
    chosen = reference.candidate_time(*problem, device["tiles"][tile], split)
    assert chosen == pytest.approx(expected, rel=1e-9)


@settings(max_examples=examples(100))
@given(devices, codes, extents, extents, extents, st.integers(1, 16), shares)
def test_no_candidate_is_faster_than_its_bound(device, code, m, n, k, batch, share):
    row, scratch = record(device)[0], np.empty(1, SCRATCH)[0]
    assert bounds_hold(row, code, float(m), float(n), float(k), float(batch), share, scratch)


def test_of_equal_tiles_the_first_is_chosen_with_the_fewest_parts():
    free = {"gemm_split_k_s": 0.0, "gemm_epilogue_clk": 0.0, "l2_bytes_per_s": 1e30}
    tile = (64.0, 64.0, 64.0, 1.0, 1.0, 1.0, 1.0, 1.0, 128.0)
    device = _with(ROUND | free, [tile] * 5, (2.0, 4.0))
    # One wave of 128 tiles leaves no unit to a second part.
    assert _choice(device, 3, 64 * 16, 64 * 8, 4096, 1, 1.0)[:2] == (0, 1)


def test_every_number_of_parts_is_tried():
    tile = (64.0, 64.0, 64.0, 1.0, 1.0, 1.0, 1.0, 1.0, 128.0)
    free = {"gemm_split_k_s": 0.0, "hbm_bytes_per_s": 1e18, "gemm_hbm_bytes_per_s": 1e18}
    device = _with(ROUND | free, [tile], (2.0, 7.0, 18.0))
    # 18 tiles: of 128 units 7 parts fill 126, 18 parts would take three waves.
    assert _choice(device, MATRIX_TYPES.index("bf16"), 64 * 18, 64, 7 * 4096, 1, 1.0)[:2] == (0, 7)
