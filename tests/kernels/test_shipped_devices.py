"""What must hold for kernel times on every device that ships."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.devices import (
    BF16,
    FP8,
    FP8_BLOCK,
    FP16,
    FP32,
    INT8,
    MXFP4,
    MXFP6,
    MXFP8,
    NVFP4,
    RATES,
    SHIPPED,
    record,
    scaled,
)
from projector.kernels.attention import attention_time_columns
from projector.kernels.device import OPERAND_BYTES
from projector.kernels.gemm import gemm_time_columns
from thoroughness import examples

names = st.sampled_from(sorted(SHIPPED))
extents = st.integers(1, 1 << 15) | st.integers(1, 600)
factors = st.floats(1.0, 100.0)
LENGTHS = [*range(64, 2048, 192), *(1 << power for power in range(11, 18))]
WIDTHS = [(64, 64), (96, 96), (128, 128), (192, 192), (256, 256), (192, 128)]

shapes = st.tuples(
    st.integers(1, 8),
    st.sampled_from([1, 2, 8, 32, 128]),
    st.integers(1, 4000),
    st.integers(1, 4000),
    st.sampled_from(WIDTHS),
).map(lambda s: (s[0], s[1], s[1], s[2], s[3], *s[4]))


def gemm_times(rows, *devices, dtype=BF16, out=2.0, share=1.0, index=0):
    """Time of each (m, n, k, batch)."""
    # Copies: a kernel that is compiled for a broadcast array asks whether it can be written.
    columns = [
        each.copy() for each in np.broadcast_arrays(dtype, out, share, index, np.zeros(len(rows)))
    ]
    dtype, out, share, index = columns[:4]
    table = np.array(rows, np.int64)
    return gemm_time_columns(table, dtype, out, share, index, record(*devices))[0]


def attention_times(rows, *devices, causal=1, window=0, backward=0, dtype=BF16, index=0):
    """Time of each (batch, heads, key heads, queries, keys, d_qk, d_v)."""
    flags = np.broadcast_arrays(causal, window, backward, dtype, index, np.zeros(len(rows)))[:5]
    columns = (np.array(flag, np.int64) for flag in flags)
    return attention_time_columns(np.array(rows, np.int64), *columns, record(*devices))[0]


def square(length, heads=32, d_qk=128, d_v=None, batch=1, key_heads=None):
    return batch, heads, key_heads or heads, length, length, d_qk, d_v or d_qk


@given(m=extents, n=extents, k=extents, name=names, rate=st.sampled_from(RATES), factor=factors)
def test_a_faster_device_multiplies_no_slower(m, n, k, name, rate, factor):
    device = SHIPPED[name]
    rows = [(m, n, k, 1)] * 2
    before, after = gemm_times(rows, device, scaled(device, rate, factor), index=[0, 1])
    assert after <= before


@given(
    shape=shapes, backward=st.booleans(), name=names, rate=st.sampled_from(RATES), factor=factors
)
def test_a_faster_device_attends_no_slower(shape, backward, name, rate, factor):
    device = SHIPPED[name]
    faster = scaled(device, rate, factor)
    before, after = attention_times([shape] * 2, device, faster, backward=backward, index=[0, 1])
    assert after <= before


@given(m=st.integers(1, 64), n=st.integers(1, 64), k=st.integers(1, 64), name=names)
def test_a_narrower_type_is_no_slower(m, n, k, name):
    device = SHIPPED[name]
    codes = [FP32, FP16, BF16, FP8_BLOCK, MXFP8, FP8, INT8, MXFP6, NVFP4, MXFP4]
    rows = [(256 * m, 256 * n, 256 * k, 1)] * len(codes)
    times = dict(zip(codes, gemm_times(rows, device, dtype=codes), strict=True))
    rates, clocks = device["matrix_flop_per_s"], device["clock_hz"]
    for wide, narrow in itertools.combinations(codes, 2):
        # What a tile takes in clocks is shorter for a type that holds a higher clock.
        faster = rates[narrow] >= rates[wide] and clocks[narrow] >= clocks[wide]
        if OPERAND_BYTES[narrow] < OPERAND_BYTES[wide] and faster:
            assert times[narrow] <= times[wide]


@given(m=extents, n=extents, k=extents, batch=st.integers(1, 9), name=names)
def test_a_share_of_the_rate_is_a_slower_pipe(m, n, k, batch, name):
    device = SHIPPED[name]
    half = scaled(device, "matrix_flop_per_s", 0.5)
    rows = [(m, n, k, batch)] * 3
    whole, shared, slower = gemm_times(
        rows, device, half, index=[0, 0, 1], share=[1.0, 0.5, 1.0], dtype=FP8
    )
    assert shared == slower
    assert whole <= shared
    assert shared >= 2.0 * m * n * k * batch / half["matrix_flop_per_s"][FP8] * (1 - 1e-12)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_large_gemm_runs_at_the_sustained_rate(name):
    (time_s,) = gemm_times([(16384, 16384, 16384, 1)], SHIPPED[name])
    share = 2 * 16384**3 / time_s / SHIPPED[name]["matrix_flop_per_s"][BF16]
    assert 0.85 < share <= 1.0


@pytest.mark.parametrize("name", SHIPPED)
def test_a_thin_gemm_runs_at_the_rate_of_the_memory(name):
    (time_s,) = gemm_times([(1, 1 << 16, 1 << 14, 1)], SHIPPED[name])
    share = 2.0 * (1 << 30) / time_s / SHIPPED[name]["hbm_bytes_per_s"]
    assert 0.7 < share <= 1.0


@pytest.mark.parametrize("backward", [0, 1], ids=["forward", "backward"])
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("name", SHIPPED)
def test_causal_attention_costs_half_of_full_or_more(name, widths, backward):
    device = SHIPPED[name]
    for heads in (1, 32, 128):
        rows = [square(length, heads, *widths) for length in LENGTHS]
        causal = attention_times(rows, device, causal=1, backward=backward)
        full = attention_times(rows, device, causal=0, backward=backward)
        ratio = causal / full
        # The last wave of full attention may be nearly empty, as the third of 2.25 of one head on
        # MI300X; long and short groups of causal attention fill theirs: 1.22 of 3.
        least = 0.37 if heads == 1 else 0.41
        assert ratio.min() >= least
        # One block has a tile of masks to set and nothing to skip.
        assert ratio.max() <= 1.15
        # One head is two waves on some devices, and its long blocks come last.
        assert (least if heads == 1 else 0.45) <= ratio[-1] <= (0.8 if heads == 1 else 0.53)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_backward_costs_more_than_the_forward(name):
    device = SHIPPED[name]
    rows = [
        square(length, heads, *widths)
        for length in LENGTHS
        for heads in (1, 8, 64)
        for widths in WIDTHS
    ]
    # Blocks of 256 queries against 128 keys: where the forward leaves units idle, the backward
    # may spread over twice as many of them and make up for its work at narrow heads.
    groups = np.array([row[1] * np.ceil(row[3] / device["attention_forward_rows"]) for row in rows])
    filled = (groups > device["compute_units"]) | (np.array(rows)[:, 5] > 64)
    for causal in (0, 1):
        forward = attention_times(rows, device, causal=causal)
        backward = attention_times(rows, device, causal=causal, backward=1)
        assert np.all((backward > forward)[filled])
        ratio = dict(zip(WIDTHS, (backward / forward)[-len(WIDTHS) :], strict=True))
        assert 2.0 < ratio[128, 128] < 5.0
        # Primus-Turbo measured 7.7 to 10.7 at these widths on MI300X.
        assert 2.0 < ratio[192, 128] < 11.0


@pytest.mark.parametrize("backward", [0, 1], ids=["forward", "backward"])
@pytest.mark.parametrize("name", SHIPPED)
def test_a_window_costs_less_than_the_whole_past(name, backward):
    device = SHIPPED[name]
    rows = [square(length, heads) for length in LENGTHS for heads in (1, 32)]
    past = attention_times(rows, device, backward=backward)
    wide = attention_times(rows, device, backward=backward, window=4096)
    narrow = attention_times(rows, device, backward=backward, window=512)
    # Each bound of a window is a tile of masks to set.
    assert np.all(wide <= past * 1.04)
    assert np.all(narrow <= wide * 1.04)
    assert narrow[-1] < 0.1 * past[-1]


@given(
    groups=st.sampled_from([2, 4, 8]),
    key_heads=st.integers(1, 16),
    length=st.integers(1, 4096),
    batch=st.integers(1, 4),
    name=names,
)
def test_shared_keys_never_slow_the_forward(groups, key_heads, length, batch, name):
    heads = groups * key_heads
    rows = [
        square(length, heads, batch=batch),
        square(length, heads, batch=batch, key_heads=key_heads),
    ]
    own, shared = attention_times(rows, SHIPPED[name])
    assert shared <= own


@settings(max_examples=examples(200))
@given(
    shape=shapes,
    causal=st.booleans(),
    window=st.just(0) | st.integers(1, 4000),
    backward=st.booleans(),
    name=names,
)
def test_twice_the_batch_costs_up_to_twice(shape, causal, window, backward, name):
    rows = [shape, (2 * shape[0], *shape[1:])]
    once, twice = attention_times(
        rows, SHIPPED[name], causal=causal, window=window, backward=backward
    )
    assert once <= twice <= 2.0 * once * (1 + 1e-12)


@given(m=extents, n=extents, k=extents, batch=st.integers(1, 64), name=names)
def test_twice_the_problems_cost_up_to_twice(m, n, k, batch, name):
    once, twice = gemm_times([(m, n, k, batch), (m, n, k, 2 * batch)], SHIPPED[name])
    assert once <= twice <= 2.0 * once * (1 + 1e-12)


@pytest.mark.parametrize("name", SHIPPED)
def test_wider_heads_cost_more(name):
    # AITER's heads of 64 take as long as those of 128, and longer under a causal mask.
    narrow = 96 if name.startswith("mi3") else 64
    rows = [square(4096, d_qk=width) for width in (narrow, 128, 192, 256)]
    for backward in (0, 1):
        times = attention_times(rows, SHIPPED[name], backward=backward)
        assert np.all(np.diff(times) > 0)
