import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.devices import SHIPPED
from projector.config.device_file import load_device
from projector.kernels.grouped import (
    GROUPED,
    INVALID,
    MAX_COLUMN_TILES,
    grouped_gemm_time_columns,
    grouped_gemm_times,
)
from projector.lower.hardware import expert_kernels, grouped_record
from reference import grouped as reference

ROUND = {
    "compute_units": 100.0,
    "unit_flop_per_s": 1e12,
    "operand_bytes": 2.0,
    "weight_bytes": 2.0,
    "output_bytes": 2.0,
    "row_share": 1.0,
    "fill_bytes_per_s": 1e11,
    "l2_bytes_per_s": np.inf,
    "hbm_bytes_per_s": 2e12,
    "group_s": 1e-7,
    "wave_s": 1e-6,
    "overlap_loss": 0.2,
    "row_tiles": [16.0, 64.0, 128.0],
    "column_tiles": [128.0, 256.0],
}

devices = st.fixed_dictionaries(
    {
        "compute_units": st.integers(1, 320).map(float),
        "unit_flop_per_s": st.floats(1e11, 1e14),
        "operand_bytes": st.sampled_from([0.5625, 1.0, 2.0]),
        "weight_bytes": st.sampled_from([0.53125, 1.0, 2.0]),
        "output_bytes": st.sampled_from([0.0, 1.0, 2.0]),
        "row_share": st.sampled_from([1.0 / 3.0, 0.5, 1.0]),
        "fill_bytes_per_s": st.floats(1e10, 1e12),
        "l2_bytes_per_s": st.one_of(st.just(np.inf), st.floats(1e11, 1e13)),
        "hbm_bytes_per_s": st.floats(1e11, 2e13),
        "group_s": st.floats(0.0, 1e-6),
        "wave_s": st.floats(0.0, 1e-5),
        "overlap_loss": st.floats(0.0, 1.0),
        "row_tiles": st.lists(st.sampled_from([8.0, 48.0, 128.0]), min_size=1, max_size=3),
        "column_tiles": st.lists(st.sampled_from([64.0, 128.0, 256.0]), min_size=1, max_size=3),
    }
)
loads = st.lists(st.one_of(st.just(0), st.integers(1, 600)), min_size=0, max_size=12)
tuned_rows = st.one_of(st.just(0), st.integers(1, 600))
extents = st.tuples(st.integers(0, 2000), st.integers(0, 8192))


def record(*dicts):
    rows = np.zeros(len(dicts), GROUPED)
    for row, device in zip(rows, dicts, strict=True):
        for name, value in device.items():
            if name.endswith("tiles"):
                row[f"num_{name}"] = len(value)
                row[name][: len(value)] = value
            else:
                row[name] = value
    return rows


def launch(sets, extent, classes, set_of=None, class_of=None, tuned=0):
    """Time every set once, or the launches that ``set_of`` names."""
    offsets = np.concatenate([[0], np.cumsum([len(item) for item in sets])]).astype(np.int64)
    flat = np.array([load for item in sets for load in item], np.int64)
    set_of = list(range(len(sets))) if set_of is None else set_of
    extent = extent if isinstance(extent, list) else [extent] * len(set_of)
    class_of = [0] * len(set_of) if class_of is None else class_of
    return grouped_gemm_time_columns(
        offsets, flat, np.array(set_of), np.array(extent), np.full(len(set_of), tuned),
        np.array(class_of), record(*classes),
    )  # fmt: skip


def time_s(load, extent=(1024, 2048), device=ROUND, tuned=0):
    return launch([load], extent, [device], tuned=tuned)[0][0]


@given(load=loads, extent=extents, device=devices, tuned=tuned_rows)
def test_matches_reference(load, extent, device, tuned):
    seconds, tile = launch([load], extent, [device], tuned=tuned)
    expected_s, expected_tile = reference.grouped_gemm_time(load, *extent, device, tuned)
    assert seconds[0] == pytest.approx(expected_s, rel=1e-9, abs=0)
    if expected_tile is None:
        assert tile[0] == -1
    else:
        found = divmod(int(tile[0]), MAX_COLUMN_TILES)
        assert device["row_tiles"][found[0]] == expected_tile[0]
        assert device["column_tiles"][found[1]] == expected_tile[1]


@given(load=loads, extent=extents, device=devices, places=st.lists(st.integers(0, 12), max_size=4))
def test_empty_experts_are_free(load, extent, device, places):
    padded = list(load)
    for place in places:
        padded.insert(min(place, len(padded)), 0)
    assert time_s(padded, extent, device) == time_s(load, extent, device)


@given(load=loads, extent=extents, device=devices, tuned=st.integers(1, 600))
def test_a_tile_for_other_loads_is_never_faster(load, extent, device, tuned):
    assert time_s(load, extent, device, tuned) >= time_s(load, extent, device)


@given(load=st.integers(1, 600), groups=st.integers(1, 12), extent=extents, device=devices)
def test_a_tile_for_these_loads_is_the_best(load, groups, extent, device):
    equal = [load] * groups
    assert time_s(equal, extent, device, load) == time_s(equal, extent, device)


@given(load=loads, more=st.integers(1, 600), extent=extents, device=devices, tuned=tuned_rows)
def test_more_tokens_are_never_faster(load, more, extent, device, tuned):
    for expert in range(len(load)):
        fuller = [*load[:expert], load[expert] + more, *load[expert + 1 :]]
        before_s = time_s(load, extent, device, tuned)
        assert time_s(fuller, extent, device, tuned) >= before_s


@given(
    sets=st.lists(loads, min_size=1, max_size=5),
    extent=extents,
    classes=st.lists(devices, min_size=1, max_size=3),
)
def test_launches_do_not_depend_on_each_other(sets, extent, classes):
    set_of = [*range(len(sets)), *reversed(range(len(sets)))]
    class_of = [i % len(classes) for i in range(len(set_of))]
    together, _ = launch(sets, extent, classes, set_of, class_of)
    for s, c, seconds in zip(set_of, class_of, together, strict=True):
        assert launch([sets[s]], extent, [classes[c]])[0][0] == seconds


@given(load=loads, extent=extents, device=devices)
def test_never_beats_either_roofline(load, extent, device):
    n, k = extent
    active = [x for x in load if x > 0]
    flop = 2.0 * sum(active) * n * k
    rate = device["compute_units"] * device["unit_flop_per_s"]
    weights = len(active) * n * k * device["weight_bytes"]
    found = time_s(load, extent, device)
    assert found >= flop / rate * (1.0 - 1e-12)
    assert found >= weights / device["hbm_bytes_per_s"] * (1.0 - 1e-12)


RATES = ["fill_bytes_per_s", "l2_bytes_per_s", "hbm_bytes_per_s"]


@given(load=loads, device=devices, field=st.sampled_from(RATES))
def test_a_faster_device_is_never_slower(load, device, field):
    faster = device | {field: 2.0 * device[field]}
    assert time_s(load, device=faster) <= time_s(load, device=device)


def test_padding_and_waves_by_hand():
    # 100 units; 65 experts with 17 rows: two tiles of 16 or one of 64, times eight columns of 128.
    load, n, k = [17] * 65, 1024, 2048
    tall_s = 2.0 * 64 * 128 * k / 1e12 + 1e-6
    tall_fill_s = (64 + 128) * k * 2.0 / 1e11 + 1e-6
    waves = math.ceil(65 * 8 / 100)
    core_s = waves * max(tall_s, tall_fill_s)
    memory_s = (65 * n * k * 2.0 + 65 * 17 * (k + n) * 2.0) / 2e12
    expected = max(core_s, memory_s) + 0.2 * min(core_s, memory_s) + 65e-7
    only = ROUND | {"row_tiles": [64.0], "column_tiles": [128.0]}
    assert time_s(load, (n, k), only) == pytest.approx(expected)
    assert time_s(load, (n, k)) <= expected


@pytest.mark.parametrize(
    ("change", "value"),
    [("load", -1), ("set", 5), ("class", 3), ("extent", -2), ("tuned", -1)],
)
def test_nonsense_is_refused(change, value):
    load = [3, value if change == "load" else 4]
    extent = (value if change == "extent" else 8, 8)
    with pytest.raises(ValueError, match="grouped GEMM"):
        launch(
            [load], [extent], [ROUND],
            [value if change == "set" else 0], [value if change == "class" else 0],
            value if change == "tuned" else 0,
        )  # fmt: skip


def test_runs_without_the_compiler():
    python = getattr(grouped_gemm_times, "py_func", grouped_gemm_times)
    seconds, tile = np.empty(2), np.empty(2, np.int64)
    args = (
        np.array([0, 3]), np.array([5, 0, 700]), np.array([0, 0]),
        np.array([[256, 512], [512, 256]]), np.array([0, 40]), np.array([0, 0]), record(ROUND),
    )  # fmt: skip
    assert python(*args, seconds, tile) != INVALID
    np.testing.assert_array_equal(seconds, grouped_gemm_time_columns(*args)[0])


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_device_has_grouped_gemms(name):
    device = load_device(name)
    for dtype in device.matrix_flop_per_clk_per_cu:
        kernels = expert_kernels(device, dtype)
        one = grouped_record(device, dtype, kernels)
        seconds, _ = grouped_gemm_time_columns(
            np.array([0, 64]), np.full(64, 128), np.array([0]), np.array([[2048, 4096]]),
            np.array([0]), np.array([0]), one,
        )  # fmt: skip
        assert 1e-6 < seconds[0] < 0.1


def test_an_older_release_has_an_entry_of_its_own():
    device = load_device("b200")
    old, new = (
        expert_kernels(device, "fp8_block", release) for release in ("1.3.0rc15", "1.3.0rc20")
    )
    assert old.gathers
    assert not new.gathers
    assert expert_kernels(load_device("a100"), "fp8_block", "x") == expert_kernels(
        load_device("a100"), "bf16"
    )


@pytest.mark.parametrize(
    ("name", "asked", "found"),
    [
        ("b200", "mxfp8", "fp8"), ("b200", "fp16", "bf16"), ("b200", "tf32", "bf16"),
        ("h100", "nvfp4_low_latency", "fp8"), ("mi355x", "mxfp8", "fp8"), ("a100", "fp8", "bf16"),
    ],
)  # fmt: skip
def test_a_type_without_an_entry_runs_as_a_wider_one(name, asked, found):
    device = load_device(name)
    assert expert_kernels(device, asked) == device.expert_layer.kernels[found]
