import itertools

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from kernels.devices import NUM_TYPES, RATES, ROUND, SHIPPED, device_dicts, record, scaled
from projector.kernels import gemm
from projector.kernels.device import MATRIX_TYPES, OPERAND_BYTES
from projector.kernels.gemm import gemm_time_columns, sol_time_columns
from projector.kernels.gemm import times as kernels
from projector.kernels.gemm.model import LOWEST_CLOCK
from projector.kernels.gemm.problem import COMPUTE
from projector.kernels.gemm.search import SCRATCH
from reference import gemm as reference
from thoroughness import examples

CODES = {name: code for code, name in enumerate(MATRIX_TYPES)}
DEVICES = {
    "round": ROUND,
    "dies": SHIPPED["mi325x"],  # eight dies with an L2 each, and a cache behind them
    "clusters": SHIPPED["h100"],
}

extents = st.integers(0, 1 << 17) | st.integers(0, 600)
batches = st.integers(0, 64)
codes = st.integers(0, len(MATRIX_TYPES) - 1)
names = st.sampled_from(sorted(DEVICES))
out_bytes = st.sampled_from([1.0, 2.0, 4.0, 8.0])


def times(*rows, device=ROUND, dtype="bf16", out=2.0, share=1.0):
    """Time of each (m, n, k[, batch])."""
    table = np.array([(*row, 1) if len(row) == 3 else row for row in rows], np.int64)
    count = len(table)
    code = CODES[dtype] if isinstance(dtype, str) else dtype
    return gemm_time_columns(
        table, np.full(count, code), np.full(count, out), np.full(count, share),
        np.zeros(count, np.int64), record(device),
    )[0]  # fmt: skip


@settings(max_examples=examples(100))
@given(extents, extents, extents, batches, codes, out_bytes, device_dicts)
def test_matches_reference_on_any_device(m, n, k, batch, code, out, device):
    expected = reference.gemm_time(m, n, k, batch, code, out, 1.0, device)
    (got,) = times((m, n, k, batch), device=device, dtype=code, out=out)
    assert got == pytest.approx(expected, rel=1e-9)


@settings(max_examples=examples(100))
@given(extents, extents, extents, batches, codes, out_bytes, st.floats(0.3, 1.0), names)
@example(0, 4096, 4096, 1, 3, 2.0, 1.0, "dies")  # an expert that received no tokens
@example(1, 1, 1, 1, 3, 2.0, 1.0, "dies")
@example(1, 4096, 28672, 1, 3, 2.0, 1.0, "clusters")  # K is split
@example(129, 257, 65, 1, 3, 2.0, 1.0, "clusters")  # one row, column, step too many
@example(8192, 8192, 8192, 1, 3, 2.0, 1.0, "dies")
@example(4096, 14336, 4096, 8, 4, 2.0, 0.8, "dies")
def test_matches_reference(m, n, k, batch, code, out, share, name):
    device = DEVICES[name]
    expected = reference.gemm_time(m, n, k, batch, code, out, share, device)
    (got,) = times((m, n, k, batch), device=device, dtype=code, out=out, share=share)
    assert got == pytest.approx(expected, rel=1e-9)


@given(extents, extents, extents, batches, codes, out_bytes, names)
def test_speed_of_light_matches_reference(m, n, k, batch, code, out, name):
    time_s, bound = sol_time_columns(
        np.array([[m, n, k, batch]]), np.array([code]), np.array([out]), np.array([0]),
        record(DEVICES[name]),
    )  # fmt: skip
    expected = reference.sol_time(m, n, k, batch, code, out, DEVICES[name])
    assert time_s[0] == pytest.approx(expected, rel=1e-12)
    assert bound[0] in (COMPUTE, gemm.MEMORY) or 0 in (m, n, k, batch)


@settings(max_examples=examples(60))
@given(extents, extents, extents, st.integers(1, 32), codes, names)
def test_choice_is_the_first_of_the_fastest(m, n, k, batch, code, name):
    assume(min(m, n, k) > 0)
    device = DEVICES[name]
    time_s, _, choice = gemm_time_columns(
        np.array([[m, n, k, batch]]), np.array([code]), np.array([2.0]), np.array([1.0]),
        np.array([0]), record(device),
    )  # fmt: skip
    tile, split = divmod(int(choice[0]), gemm.MAX_SPLIT_K)
    chosen = reference.candidate_time(
        m, n, k, batch, code, 2.0, 1.0, device, device["tiles"][tile], split + 1
    )
    assert split == 0 or split + 1 in device["gemm_splits"]
    assert chosen == pytest.approx(time_s[0], rel=1e-9)
    assert (
        times((m, n, k, batch), device=device | {"tiles": device["tiles"][: tile + 1]}, dtype=code)
        == time_s
    )


@settings(max_examples=examples(100))
@given(
    extents, extents, extents, batches, codes, device_dicts | names.map(DEVICES.get),
    st.sampled_from(RATES), st.floats(1, 4),
)  # fmt: skip
def test_a_faster_device_is_never_slower(m, n, k, batch, code, device, rate, factor):
    row = (m, n, k, batch)
    quick = times(row, device=scaled(device, rate, factor), dtype=code)
    assert quick <= times(row, device=device, dtype=code)


@settings(max_examples=examples(100))
@given(
    st.integers(1, 64), st.integers(1, 64), st.integers(1, 64), st.integers(1, 9), names,
    st.booleans(),
)  # fmt: skip
def test_a_narrower_type_is_never_slower(m, n, k, batch, name, same_rate):
    device = DEVICES[name]
    if same_rate:
        device = device | {
            "matrix_flop_per_s": (700e12,) * NUM_TYPES,
            "clock_hz": (1.5e9,) * NUM_TYPES,
            "gemm_clk_per_k": (1.0,) * NUM_TYPES,
            "gemm_scale_clk": (0.0,) * NUM_TYPES,
        }
    row = (256 * m, 256 * n, 256 * k, batch)
    order = np.argsort(-OPERAND_BYTES, kind="stable")
    if not same_rate:
        order = [CODES[name] for name in ("fp32", "bf16", "mxfp8", "fp8", "nvfp4")]
    measured = [times(row, device=device, dtype=int(code))[0] for code in order]
    assert all(later <= earlier for earlier, later in itertools.pairwise(measured))


@given(extents, extents, extents, batches, codes, device_dicts | names.map(DEVICES.get))
def test_never_beats_the_speed_of_light(m, n, k, batch, code, device):
    (got,) = times((m, n, k, batch), device=device, dtype=code)
    assert got >= 2.0 * m * n * k * batch / device["matrix_flop_per_s"][code]
    assert got >= reference.sol_time(m, n, k, batch, code, 2.0, device) * (1 - 1e-12)


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(extents, extents, extents, batches, codes), min_size=1, max_size=12))
def test_a_batch_equals_its_rows_bit_for_bit(rows):
    table = np.array(rows, np.int64)
    device = np.arange(len(rows)) % 2
    share = np.linspace(0.5, 1.0, len(rows))
    columns = (
        np.ascontiguousarray(table[:, :4]),
        table[:, 4],
        np.full(len(rows), 2.0),
        share,
        device,
    )
    together = gemm_time_columns(*columns, record(DEVICES["dies"], ROUND))
    for g in range(len(rows)):
        alone = gemm_time_columns(
            *(column[g : g + 1] for column in columns), record(DEVICES["dies"], ROUND)
        )
        for both, one in zip(together, alone, strict=True):
            assert both[g] == one[0]


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_huge_extents_do_not_wrap(name):
    big = 1 << 40
    device = DEVICES[name]
    cubes = times((big, big, big), (big, big, 1, 8), (1, big, big, big), device=device)
    assert cubes[0] >= 2.0 * big**3 / device["matrix_flop_per_s"][3]
    assert np.all(np.isfinite(cubes))


@pytest.mark.parametrize("axis", range(4))
def test_nothing_costs_nothing(axis):
    row = [4096, 4096, 4096, 8]
    row[axis] = 0
    time_s, bound, choice = gemm_time_columns(
        np.array([row]), np.array([3]), np.array([2.0]), np.array([1.0]), np.array([0]),
        record(DEVICES["dies"]),
    )  # fmt: skip
    assert (time_s[0], bound[0], choice[0]) == (0.0, gemm.OVERHEAD, -1)


def test_an_empty_batch_is_empty():
    empty = np.empty(0, np.int64)
    columns = np.empty((0, 4), np.int64), empty, np.empty(0), np.empty(0), empty
    assert all(len(column) == 0 for column in gemm_time_columns(*columns, record(DEVICES["dies"])))


@pytest.mark.parametrize(
    ("row", "code", "device", "share"),
    [
        ((-1, 8, 8, 1), 3, 0, 1.0),
        ((8, 8, 8, 1), NUM_TYPES, 0, 1.0),
        ((8, 8, 8, 1), -1, 0, 1.0),
        ((8, 8, 8, 1), 3, 1, 1.0),
        ((8, 8, 8, 1), 3, 0, np.nan),
    ],
)
def test_a_row_without_a_time_is_named(row, code, device, share):
    table = np.array([(64, 64, 64, 1), row])
    columns = (
        np.array([3, code]),
        np.array([2.0, 2.0]),
        np.array([1.0, share]),
        np.array([0, device]),
    )
    with pytest.raises(ValueError, match=r"GEMM 1 \(m, n, k, batch = .*\) has no finite time"):
        gemm_time_columns(table, *columns, record(DEVICES["dies"]))


@pytest.mark.parametrize(("code", "device"), [(NUM_TYPES, 0), (3, 1)])
def test_speed_of_light_checks_its_rows(code, device):
    columns = np.array([code]), np.array([2.0]), np.array([device])
    with pytest.raises(ValueError, match="no finite time"):
        sol_time_columns(np.array([[8, 8, 8, 1]]), *columns, record(DEVICES["dies"]))
    with pytest.raises(ValueError, match="no finite time"):
        sol_time_columns(
            np.array([[8, -8, 8, 1]]), *(c * 0 for c in columns), record(DEVICES["dies"])
        )


@pytest.mark.parametrize("name", sorted(DEVICES))
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_a_large_gemm_reaches_the_sustained_rate(name, dtype):
    device = DEVICES[name]
    (got,) = times((16384, 16384, 16384), device=device, dtype=dtype)
    rate = 2 * 16384**3 / got
    assert 0.9 < rate / device["matrix_flop_per_s"][CODES[dtype]] <= 1.0


@pytest.mark.parametrize(
    ("row", "change", "bound"),
    [
        ((16384, 16384, 16384, 1), {}, "compute"),
        ((16384, 16384, 16384, 1), {"l2_fill_bytes_per_clk_per_cu": 8.0}, "l2_fill"),
        ((16384, 16384, 16384, 1), {"l2_bytes_per_s": 2e12}, "l2"),
        ((16, 16384, 16384, 64), {}, "memory"),
        ((64, 64, 64, 1), {}, "overhead"),
    ],
)
def test_bound_names_the_longest_part(row, change, bound):
    _, code, _ = gemm_time_columns(
        np.array([row]), np.array([3]), np.array([2.0]), np.array([1.0]), np.array([0]),
        record(ROUND | change),
    )  # fmt: skip
    assert gemm.BOUNDS[code[0]] == bound


def test_a_partial_wave_lasts_as_long_as_a_full_one():
    free = {"hbm_bytes_per_s": 1e18, "l2_bytes_per_s": 1e18, "l2_fill_bytes_per_clk_per_cu": 1e9}
    free |= {"gemm_hbm_bytes_per_s": 1e18, "gemm_epilogue_bytes_per_clk_per_cu": 1e9}
    fixed = {"gemm_overhead_s": 0.0, "gemm_epilogue_clk": 0.0}
    fixed |= {"tiles": [(128, 128, 128, 1.0, 1, 1, 1, 1, 128, 0)], "gemm_epilogue_exposed": 0.0}
    rows = [(128 * tiles, 128, 448) for tiles in (1, 128, 129, 256)]
    one, full, over, twice = times(*rows, device=ROUND | free | fixed)
    assert one == pytest.approx(full, rel=1e-3)
    assert over == pytest.approx(2.0 * full, rel=1e-3)
    assert over == pytest.approx(twice, rel=1e-3)


def test_a_deep_narrow_gemm_splits_k():
    columns = np.array([3]), np.array([2.0]), np.array([1.0]), np.array([0]), record(ROUND)
    _, _, choice = gemm_time_columns(np.array([[256, 256, 65536, 1]]), *columns)
    assert choice[0] % gemm.MAX_SPLIT_K > 0
    _, _, choice = gemm_time_columns(np.array([[8192, 8192, 8192, 1]]), *columns)
    assert choice[0] % gemm.MAX_SPLIT_K == 0


def test_a_cache_behind_l2_saves_traffic():
    row = (16384, 16384, 512)
    starved = DEVICES["dies"] | {"gemm_hbm_bytes_per_s": 0.3e12}
    without = starved | {"mall_bytes": 0.0, "mall_bytes_per_s": 0.0}
    assert times(row, device=starved) < times(row, device=without)


@settings(max_examples=examples(60))
@given(st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 4096), names)
def test_twice_the_problems_is_never_faster(m, n, k, name):
    once, twice = times((m, n, k, 8), (m, n, k, 16), device=DEVICES[name])
    assert once <= twice


def test_python_and_compiled_kernels_agree():
    table = np.array(
        [[4000, 5000, 6000, 1], [1, 4096, 4096, 3], [0, 1, 1, 1], [512, 512, 32768, 1]]
    )
    count = len(table)
    columns = (
        table, np.array([3, 4, 3, 6]), np.full(count, 2.0), np.full(count, 0.9),
        np.array([0, 1, 0, 1]), record(DEVICES["dies"], ROUND),
    )  # fmt: skip
    compiled = gemm_time_columns(*columns)
    python = getattr(kernels.gemm_times, "py_func", kernels.gemm_times)
    outputs = np.empty(count), np.empty(count, np.int64), np.empty(count, np.int64)
    assert python(*columns, np.empty(1, SCRATCH), *outputs) == kernels.OK
    for one, other in zip(compiled, outputs, strict=True):
        np.testing.assert_array_equal(one, other)


@settings(max_examples=examples(60))
@given(
    st.integers(1, 8192), st.integers(1, 8192), st.integers(1, 8192), st.integers(1, 4), codes,
    names, st.sampled_from([0.0, 250.0, 400.0, 700.0]),
)  # fmt: skip
def test_terms_match_reference(m, n, k, batch, code, name, cap_w):
    device = DEVICES[name] | {
        "power_cap_w": cap_w, "power_idle_w": 150.0, "power_voltage_floor": 0.4,
        "power_clock_share": (1.0,) * NUM_TYPES, "joule_per_flop": (0.8e-12,) * NUM_TYPES,
        "joule_per_hbm_byte": 60e-12,
    }  # fmt: skip
    columns = (
        np.array([[m, n, k, batch]]), np.array([code]), np.array([2.0]), np.array([1.0]),
        np.array([0]), record(device),
    )  # fmt: skip
    time_s, _, choice = gemm_time_columns(*columns)
    terms = dict(zip(gemm.TERMS, gemm.gemm_term_columns(*columns, choice)[0], strict=True))
    tile, split = divmod(int(choice[0]), gemm.MAX_SPLIT_K)
    tile, split, share = device["tiles"][tile], split + 1, terms["clock_share"]
    problem = m, n, k, batch, code, 2.0

    watts = reference.watts(*problem, 1.0, device, tile, split, share)
    assert terms["power_w"] == pytest.approx(watts, rel=1e-9)
    assert not cap_w or watts <= cap_w * (1 + 1e-9) or share == LOWEST_CLOCK
    assert share == 1.0 or share == LOWEST_CLOCK or watts == pytest.approx(cap_w, rel=1e-6)
    pipe_s = terms["matrix_s"] + terms["scale_s"]
    loop_s = max(pipe_s, terms["l2_fill_s"], terms["issue_s"]) + terms["wait_s"]
    core_s = max(loop_s + terms["epilogue_s"], terms["epilogues_s"], terms["l2_s"])
    assert core_s == pytest.approx(
        reference.core_s(*problem, 1.0, device, tile, split, share), rel=1e-9
    )
    memory_s = reference.memory_s(*problem[:4], tile, code, 2.0, device)
    assert terms["memory_s"] == pytest.approx(memory_s, rel=1e-9)
    whole = terms["start_s"] + max(core_s, memory_s) + terms["loss_s"] + terms["reduce_s"]
    light_s = 2.0 * m * n * k * batch / device["matrix_flop_per_s"][code]
    assert time_s[0] == pytest.approx(max(whole, light_s), rel=1e-9)


def test_no_choice_has_no_terms():
    columns = (
        np.array([[0, 8, 8, 1]]), np.array([3]), np.array([2.0]), np.array([1.0]), np.array([0]),
        record(ROUND),
    )  # fmt: skip
    assert not gemm.gemm_term_columns(*columns, np.array([-1])).any()
