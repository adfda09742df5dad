import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from kernels.devices import NUM_TYPES, RATES, ROUND, SHIPPED, device_dicts, record, scaled
from projector.kernels import attention
from projector.kernels.attention import attention_time_columns, passes
from projector.kernels.attention import times as kernels
from projector.kernels.device import MATRIX_TYPES
from reference import attention as reference
from thoroughness import examples

BF16 = MATRIX_TYPES.index("bf16")
DEVICES = {"round": ROUND, "atomics": SHIPPED["mi325x"], "clusters": SHIPPED["h100"]}

lengths = st.integers(0, 3000) | st.integers(0, 130)
widths = st.sampled_from([16, 64, 80, 96, 128, 192, 256])
devices = device_dicts | st.sampled_from(sorted(DEVICES)).map(DEVICES.get)
codes = st.integers(0, len(MATRIX_TYPES) - 1)
flags = st.booleans()
windows = st.just(0) | st.integers(1, 3500)


@st.composite
def shapes(draw):
    key_heads = draw(st.integers(0, 6))
    heads = key_heads * draw(st.sampled_from([1, 1, 4, 16]))
    batch, queries, keys = draw(st.integers(0, 5)), draw(lengths), draw(lengths)
    return batch, heads, key_heads, queries, keys, draw(widths), draw(widths)


def times(*shapes, causal=True, window=0, backward=False, code=BF16, device=ROUND):
    rows = len(shapes)
    columns = (np.full(rows, value, np.int64) for value in (causal, window, backward, code, 0))
    return attention_time_columns(np.array(shapes), *columns, record(device))[0]


def square(length, heads=32, width=128, batch=1):
    return batch, heads, heads, length, length, width, width


FASTER_THAN_ITSELF = ROUND | {
    "attention_flop_per_s": (1e12,) * NUM_TYPES,
    "attention_backward_softmax_exposed": 0.0,
    "attention_backward_efficiency": 1.0,
    "attention_backward_tile_overhead_s": 0.0,
    "attention_backward_start_s": 0.0,
    "attention_dims": [(64.0, 64.0, 32.0, 64.0, 16.0, 1.0, 4.0, 0.0)],
}


@settings(max_examples=examples(150))
@given(shapes(), flags, windows, flags, codes, devices)
@example((1, 2, 2, 1, 1, 128, 128), True, 0, False, BF16, ROUND)
@example((1, 8, 2, 1024, 3000, 192, 128), True, 0, True, BF16, ROUND)  # the last queries
@example((1, 8, 2, 3000, 1000, 192, 128), True, 0, True, BF16, ROUND)  # queries that see nothing
@example((2, 32, 8, 2500, 2500, 64, 64), True, 300, False, BF16, ROUND)
@example((1, 4, 4, 2048, 2048, 64, 64), False, 0, False, BF16, ROUND)
@example((1, 4, 4, 2048, 2048, 64, 64), False, 100, True, BF16, ROUND)
@example((4, 32, 32, 2048, 2048, 64, 64), False, 0, True, BF16, FASTER_THAN_ITSELF)
def test_matches_reference(shape, causal, window, backward, code, device):
    expected = reference.attention_time(shape, causal, window, backward, code, device)
    (got,) = times(shape, causal=causal, window=window, backward=backward, code=code, device=device)
    assert got == pytest.approx(expected, rel=1e-9)


@settings(max_examples=examples(100))
@given(shapes(), flags, windows, flags, codes, devices, st.sampled_from(RATES), st.floats(1, 4))
def test_a_faster_device_is_never_slower(
    shape, causal, window, backward, code, device, rate, factor
):
    options = {"causal": causal, "window": window, "backward": backward, "code": code}
    quick = times(shape, device=scaled(device, rate, factor), **options)
    assert quick <= times(shape, device=device, **options)


@settings(max_examples=examples(100))
@given(shapes(), flags, windows, flags, codes, devices)
def test_never_beats_the_exact_work(shape, causal, window, backward, code, device):
    batch, heads, _, queries, keys, d_qk, d_v = shape
    flop = 2 * (3 * d_qk + 2 * d_v) if backward else 2 * (d_qk + d_v)
    assume(0 not in shape)
    flop *= batch * heads * reference.visible_pairs(queries, keys, causal, window)
    options = {"causal": causal, "window": window, "backward": backward, "code": code}
    (got,) = times(shape, device=device, **options)
    assert got >= flop / device["attention_flop_per_s"][code]


@given(lengths, lengths, flags, windows)
def test_visible_pairs_are_counted_exactly(queries, keys, causal, window):
    assume(queries and keys)
    low, high = reference.span(queries, keys, causal, window)
    clip = passes.UNBOUNDED
    got = passes.visible_pairs(float(queries), float(keys), max(low, -clip), min(high, clip))
    assert got == reference.visible_pairs(queries, keys, causal, window)


@settings(max_examples=examples(60))
@given(st.integers(1, 40), st.integers(1, 24), st.integers(1, 60), st.floats(0, 2), flags)
def test_causal_groups_are_scheduled_as_a_list(blocks, heads, units, block_s, longest_first):
    length = 128.0 * blocks
    walk = passes.Walk(length, 128.0, length, 64.0, -1e18, 0.0, True, 1.0, 0.0)
    costs = passes.Costs(1.0, 1.0, 0.0, block_s, longest_first, 0.0)
    work = passes.schedule(walk, float(heads), float(units), costs)
    groups_s = [2.0 * (block + 1) + block_s for block in range(blocks)] * heads
    listed = reference.list_schedule(
        sorted(groups_s, reverse=True) if longest_first else groups_s, units
    )
    assert work.steps == blocks * (blocks + 1)
    masked = [passes.block_steps(walk, float(block), True)[1] for block in range(blocks)]
    assert masked == [2.0] * blocks
    # The waves before the last four fill every unit.
    exact = len(groups_s) < 5 * units
    assert work.makespan_s == pytest.approx(listed, rel=1e-9 if exact else 0.15)


@pytest.mark.parametrize("name", sorted(DEVICES))
@pytest.mark.parametrize("backward", [False, True])
def test_causal_costs_half_to_all_of_full_attention(name, backward):
    shapes = [square(1 << power) for power in range(4, 18)]
    options = {"backward": backward, "device": DEVICES[name]}
    share = times(*shapes, causal=True, **options) / times(*shapes, causal=False, **options)
    # A tile of masks to set, where little can be skipped.
    assert np.all(share <= 1.05)
    assert np.all(share >= 0.45)
    assert share[-1] == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("backward", [False, True])
def test_a_window_makes_long_sequences_linear(backward):
    options = {"window": 1024, "backward": backward}
    short, long = times(square(1 << 15), square(1 << 17), **options)
    assert long / short == pytest.approx(4.0, rel=0.05)
    (unlimited,) = times(square(1 << 15), backward=backward)
    assert times(square(1 << 15), window=1 << 15, backward=backward)[0] <= unlimited
    assert short < 0.2 * unlimited


@pytest.mark.parametrize("backward", [False, True])
def test_the_shards_of_a_sequence_add_up(backward):
    # The second half of the queries sees all keys, the first half only the first half of them.
    length, heads = 1 << 16, 64
    whole, first, second = times(
        square(length, heads),
        square(length // 2, heads),
        (1, heads, heads, length // 2, length, 128, 128),
        backward=backward,
    )
    assert first + second == pytest.approx(whole, rel=0.02)


def test_fewer_key_heads_move_less_forward():
    many, few = times(
        (64, 32, 32, 1, 4096, 128, 128), (64, 32, 4, 1, 4096, 128, 128), device=DEVICES["clusters"]
    )
    assert few < many


def test_a_short_step_of_a_fast_pipe_is_bound_by_exponentials():
    device = ROUND | {"attention_flop_per_s": (1e18,) * len(MATRIX_TYPES)}
    row = np.array([square(8192)]), *np.array([[1], [0], [0], [BF16], [0]])
    time_s, bound = attention_time_columns(*row, record(device))
    assert attention.BOUNDS[bound[0]] == "softmax"
    assert time_s[0] >= 32 * 8192 * 8193 / 2 / device["attention_exp_per_s"]


@pytest.mark.parametrize(
    ("shape", "backward", "change", "bound"),
    [
        (square(16384), 0, {}, "matrix"),
        (square(16384), 0, {"attention_exp_per_s": 1e11}, "softmax"),
        ((64, 32, 32, 1, 16384, 128, 128), 0, {"hbm_bytes_per_s": 2e11}, "memory"),
        (square(16384), 1, {"attention_atomic_bytes_per_s": 1e11}, "atomics"),
        (square(64, heads=1), 1, {"attention_backward_start_s": 1e-3}, "overhead"),
    ],
)
def test_bound_names_the_longest_part(shape, backward, change, bound):
    flags = np.array([[1], [0], [backward], [BF16], [0]])
    _, code = attention_time_columns(np.array([shape]), *flags, record(ROUND | change))
    assert attention.BOUNDS[code[0]] == bound


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(shapes(), flags, windows, flags, codes), min_size=1, max_size=10))
def test_a_batch_equals_its_rows_bit_for_bit(rows):
    extents = np.array([row[0] for row in rows])
    flags = [np.array([row[1 + column] for row in rows], np.int64) for column in range(4)]
    # Neighbours share schedules: the third device differs from the first in its memory alone.
    columns = (extents, *flags, np.arange(3 * len(rows)) % 3)
    columns = *(column.repeat(3, axis=0) for column in columns[:-1]), columns[-1]
    table = record(ROUND, DEVICES["atomics"], ROUND | {"hbm_bytes_per_s": 1e12})[[0, 2, 1]]
    together = attention_time_columns(*columns, table)
    for a in range(3 * len(rows)):
        alone = attention_time_columns(*(column[a : a + 1] for column in columns), table)
        for both, one in zip(together, alone, strict=True):
            assert both[a] == one[0]


@pytest.mark.parametrize("axis", range(7))
def test_nothing_costs_nothing(axis):
    shape = list(square(512))
    shape[axis] = 0
    assert times(tuple(shape)) == 0.0
    assert times(tuple(shape), backward=True) == 0.0


def test_queries_before_all_keys_cost_little():
    # More queries than keys: the first see nothing under a causal mask.
    nothing, something = times((1, 8, 8, 8192, 8, 128, 128), square(8192, heads=8))
    assert 0.0 < nothing < 0.5 * something


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_very_long_sequences_stay_quadratic(backward, causal):
    # From some length on runs of neighbouring blocks are counted as one.
    options = {"causal": causal, "backward": backward}
    ladder = times(*(square(1 << power) for power in range(19, 25)), **options)
    assert ladder[1:] / ladder[:-1] == pytest.approx(np.full(5, 4.0), rel=2e-3)
    (huge,) = times(square(1 << 40, heads=1), **options)
    assert np.isfinite(huge)
    assert huge > 1e9


@pytest.mark.parametrize(
    ("extents", "code", "device", "window"),
    [
        ((1, 8, 8, -1, 8, 64, 64), BF16, 0, 0),
        ((1, 8, 8, 8, 8, 64, 64), NUM_TYPES, 0, 0),
        ((1, 8, 8, 8, 8, 64, 64), BF16, 1, 0),
        ((1, 8, 8, 8, 8, 64, 64), BF16, -1, 0),
        ((1, 8, 8, 8, 8, 64, 64), BF16, 0, -1),
    ],
)
def test_a_row_without_a_time_is_named(extents, code, device, window):
    flags = np.array([[1, 1], [0, window], [0, 0], [BF16, code], [0, device]])
    with pytest.raises(ValueError, match=r"attention 1 \(batch, .*\) has no finite time"):
        attention_time_columns(np.array([square(512), extents]), *flags, record(ROUND))


@pytest.mark.parametrize("field", ["attention_tile_overhead_s", "attention_start_s"])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_device_without_a_time_is_refused(field, value):
    with pytest.raises(ValueError, match="has no finite time"):
        times(square(512), device=ROUND | {field: value})


def test_python_and_compiled_kernels_agree():
    extents = np.array([square(1000), (2, 8, 2, 100, 3000, 192, 128), square(700), square(0)])
    flags = np.array([[1, 1, 0, 0], [0, 512, 0, 100], [0, 1, 1, 0], [BF16, 4, 3, 3], [0, 1, 0, 1]])
    table = record(ROUND, DEVICES["atomics"])
    compiled = attention_time_columns(extents, *flags, table)
    python = getattr(kernels.attention_times, "py_func", kernels.attention_times)
    outputs = np.empty(4), np.empty(4, np.int64)
    assert python(extents, *flags, table, np.zeros(passes.KEPT), *outputs) == kernels.OK
    for one, other in zip(compiled, outputs, strict=True):
        np.testing.assert_array_equal(one, other)


@settings(max_examples=examples(60))
@given(shapes(), flags, windows, flags, codes, st.floats(1, 12), st.floats(0, 8))
def test_unfused_attention_is_its_products_and_its_passes(
    shape, causal, window, backward, code, passes, mask_passes
):
    device = ROUND | {
        "attention_forward_score_passes": passes,
        "attention_backward_score_passes": passes,
        "attention_mask_score_passes": mask_passes,
    }
    expected = reference.attention_time(shape, causal, window, backward, code, device)
    (got,) = times(shape, causal=causal, window=window, backward=backward, code=code, device=device)
    assert got == pytest.approx(expected, rel=1e-9)


def test_unfused_attention_skips_nothing_and_grows_with_its_scores():
    device = ROUND | {"attention_forward_score_passes": 5.0}
    full, causal, window = (
        times(square(8192), device=device, causal=mask, window=seen)[0]
        for mask, seen in ((False, 0), (True, 0), (True, 512))
    )
    assert full == causal == window
    assert full > 5 * times(square(8192))[0]
    assert times(square(16384), device=device)[0] == pytest.approx(4 * full, rel=0.02)


@pytest.mark.parametrize("causal", [False, True])
def test_adding_dq_in_order_costs_its_start_skew(causal):
    device = ROUND | {"attention_dq_order_exposed": 0.4}
    for length in (1024, 8192, 65536):
        free, ordered = (
            times(square(length), causal=causal, backward=True, device=each)[0]
            for each in (ROUND, device)
        )
        # Deterministic backwards of FlashAttention-3 lose up to 37.9 %.
        assert free <= ordered <= free / (1 - 0.379)


def test_atomics_slow_down_with_the_writers_of_a_longer_sequence():
    device = ROUND | {
        "attention_atomic_bytes_per_s": 1e11, "attention_atomic_contention": 0.02,
    }  # fmt: skip
    alone = device | {"attention_atomic_contention": 0.0}
    slowed = [
        times(square(length), backward=True, device=device)[0]
        / times(square(length), backward=True, device=alone)[0]
        for length in (128, 1024, 8192)
    ]
    assert slowed[0] == pytest.approx(1.0)
    assert slowed[0] < slowed[1] < slowed[2]


@pytest.mark.parametrize(
    ("width", "rows"), [(32, 64), (64, 64), (80, 128), (128, 128), (192, 96), (256, 96), (512, 96)]
)
def test_a_head_takes_the_narrowest_tile_that_holds_it_else_the_widest(width, rows):
    dims = ((64.0, 64.0, 64.0, 128.0, 64.0, 1.0, 1.0, 0.0),)
    dims += ((256.0, 96.0, 64.0, 128.0, 64.0, 1.0, 1.0, 0.0),)
    device = record(ROUND | {"attention_dims": dims})
    terms = np.empty((1, len(attention.TERMS)))
    columns = np.array([square(4096, width=width)]), *np.array([[1], [0], [0], [BF16], [0]])
    kernels.attention_terms(*columns, device, np.zeros(passes.KEPT), terms)
    assert terms[0, attention.TERMS.index("rows")] == rows


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("backward", "widths"), [(0, 192 + 128), (1, 3 * 192 + 2 * 128)])
def test_the_work_that_is_told_is_the_exact_one(causal, backward, widths):
    terms = np.empty((1, len(attention.TERMS)))
    columns = (
        np.array([(2, 8, 2, 300, 500, 192, 128)]),
        *np.array([[causal], [0], [backward], [BF16], [0]]),
    )
    kernels.attention_terms(*columns, record(ROUND), np.zeros(passes.KEPT), terms)
    pairs = reference.visible_pairs(300, 500, causal, 0)
    assert terms[0, attention.TERMS.index("flop")] == 2 * widths * pairs * 2 * 8


def test_query_heads_that_share_keys_share_work_groups():
    packed = ROUND | {"attention_packs_heads": 1.0}
    terms = np.empty((2, len(attention.TERMS)))
    columns = (
        np.array([(1, 32, 4, 16, 4096, 128, 128)] * 2),
        *np.array([[1, 1], [0, 0], [0, 0], [BF16, BF16], [0, 1]]),
    )
    kernels.attention_terms(*columns, record(ROUND, packed), np.zeros(passes.KEPT), terms)
    groups = terms[:, attention.TERMS.index("groups")]
    # 16 queries of 8 heads fill one block of 128 rows.
    assert groups.tolist() == [32.0, 4.0]


def test_half_blocks_fill_a_grid_that_whole_ones_do_not():
    halves = ROUND | {"attention_half_efficiency": 0.8}
    small, large = square(1024, heads=8), square(16384, heads=64)
    for shape, faster in ((small, True), (large, False)):
        whole, half = (times(shape, causal=False, device=each)[0] for each in (ROUND, halves))
        assert bool(half < whole) is faster
        assert half <= whole


def test_masks_to_set_cost_what_they_are_told():
    device = ROUND | {"attention_mask_exposed": 2.0}
    share = times(square(4096), device=device) / times(square(4096))
    assert 1.0 < share < 1.2
    assert times(square(4096), causal=False, device=device) == times(square(4096), causal=False)
    narrow = times(square(4096), window=128, device=device) / times(square(4096), window=128)
    assert narrow > share
