"""Each closed form against its definition, worked by hand, and what must hold for any input."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.config.first_order import FirstOrderConfig
from projector.first_order.equations import (
    Constants,
    StateBytes,
    achieved_throughput,
    activation_bytes,
    all_reduce_s,
    arithmetic_intensity,
    bubble_fraction,
    bytes_per_parameter,
    checkpointed_bytes,
    compute_s,
    crossing_factor,
    hierarchical_all_reduce_s,
    is_memory_bound,
    kv_cache_bytes,
    ridge_point,
    ring_all_reduce_s,
    roofline_time_s,
    sharded_states,
    step_s,
    time_to_train_s,
    training_flop,
    weights_read,
)

CONSTANTS = Constants.of()
positive = st.floats(1e-3, 1e18)
share = st.floats(0.0, 1.0)


def test_constants_are_those_of_the_methodology():
    values = FirstOrderConfig().model_dump()
    assert values == {
        "training_mfu": 0.45, "decode_mfu": 0.35, "prefill_mfu": 0.55, "overlap": 0.8,
        "tp_crossing": 1.40, "weight_bytes": 2.0, "master_bytes": 4.0, "gradient_bytes": 4.0,
        "accumulation_bytes": 2.0, "momentum_bytes": 4.0, "variance_bytes": 4.0,
        "checkpointed_share": 0.30,
    }  # fmt: skip
    assert Constants._fields == tuple(values)


def test_eighteen_and_twenty_bytes():
    assert bytes_per_parameter(CONSTANTS).total == 18.0
    assert bytes_per_parameter(CONSTANTS, accumulates_beside=True).total == 20.0
    each = bytes_per_parameter(CONSTANTS, accumulates_beside=np.array([False, True]))
    assert each.total.tolist() == [18.0, 20.0]


@pytest.mark.parametrize(
    ("stage", "expected"),
    [(0, 18.0), (1, 2 + 4 + 12 / 64), (2, 2 + 16 / 64), (3, 18 / 64)],
)
def test_zero(stage, expected):
    each = bytes_per_parameter(CONSTANTS)
    assert sharded_states(each, 64, stage).total == pytest.approx(expected)


def test_activations_of_gpt3():
    # L 96, s 2048, h 12288, a 96: 5 a s / h is 80, so the scores are 80 / 114 of all.
    whole = activation_bytes(96, 2048, 1, 12288, 96)
    assert whole == 96 * 2048 * 12288 * (34 + 80)
    without = activation_bytes(96, 2048, 1, 12288, 96, keeps_scores=False)
    assert 1.0 - without / whole == pytest.approx(80 / 114)
    assert checkpointed_bytes(whole, CONSTANTS) == pytest.approx(0.3 * float(whole))


def test_cache_of_llama_70b():
    assert kv_cache_bytes(80, 16, 8192, 8, 128) == 42_949_672_960


def test_rings():
    assert ring_all_reduce_s(8, 1e9, 450e9) == pytest.approx(2 * 7 / 8 * 1e9 / 450e9)
    expected = 2 * 7 / 8 * 1e9 / 450e9 + 2 * 15 / 16 * (1e9 / 8) / 50e9
    assert hierarchical_all_reduce_s(16, 8, 1e9, 450e9, 50e9) == pytest.approx(expected)
    assert all_reduce_s(128, 8, 1e9, 450e9, 50e9) == pytest.approx(expected)
    assert all_reduce_s(8, 8, 1e9, 450e9, 50e9) == ring_all_reduce_s(8, 1e9, 450e9)
    # One rank in each domain: a ring over the network alone.
    assert all_reduce_s(16, 1, 1e9, 450e9, 50e9) == ring_all_reduce_s(16, 1e9, 50e9)
    assert all_reduce_s(1, 8, 1e9, 450e9, 50e9) == 0.0


def test_bubbles_and_the_crossing():
    assert bubble_fraction(8, 32) == 7 / 32
    assert bubble_fraction(8, 32, 2) == 7 / 64
    assert bubble_fraction(1, 4) == 0.0
    assert crossing_factor([8, 16, 72, 73], [8, 8, 72, 72], CONSTANTS).tolist() == [1, 1.4, 1, 1.4]


def test_the_ridge_of_an_h100():
    assert ridge_point(1978.9e12, 3.35e12) == pytest.approx(590.7, abs=0.1)
    assert bool(is_memory_bound(2.0, 1978.9e12, 3.35e12))
    assert arithmetic_intensity(6.0, 3.0) == 2.0
    assert achieved_throughput([1.0, 1e6], 1e15, 1e12, 0.5).tolist() == [0.5e12, 0.5e15]


def test_time_to_train():
    flop = training_flop(300e9, 175e9)
    seconds = compute_s(flop, 1024, 0.45, 312e12)
    assert seconds / 86400 == pytest.approx(25.36, abs=0.01)
    assert time_to_train_s(300e9, 3e9, 2.0) == 200.0


def test_experts_that_are_read():
    assert weights_read(100.0, 10.0, [1, 4, 50]).tolist() == [10.0, 40.0, 100.0]


@given(positive, positive, positive, positive)
def test_roofs_rise_with_peak_and_bandwidth(intensity, peak, bandwidth, more):
    reached = achieved_throughput(intensity, peak, bandwidth)
    assert achieved_throughput(intensity, peak + more, bandwidth) >= reached
    assert achieved_throughput(intensity, peak, bandwidth + more) >= reached
    assert reached <= peak
    assert reached <= intensity * bandwidth


@given(positive, positive, positive, positive)
def test_work_takes_the_longer_of_compute_and_memory(flop, num_bytes, peak, bandwidth):
    longer = max(flop / peak, num_bytes / bandwidth)
    assert math.isclose(roofline_time_s(flop, num_bytes, peak, bandwidth), longer, rel_tol=1e-9)


@given(positive, positive, share)
def test_a_step_lies_between_the_longer_and_the_sum(compute, communication, overlap):
    step = step_s(compute, communication, overlap)
    assert max(compute, communication) <= step <= (compute + communication) * (1 + 1e-12)
    assert step_s(communication, compute, overlap) == step


@given(st.integers(1, 4096), st.integers(1, 512), positive, positive, positive)
def test_an_all_reduce_is_faster_on_faster_links(ranks, near, message, fast, more):
    slow = all_reduce_s(ranks, near, message, fast, fast)
    assert all_reduce_s(ranks, near, message, fast + more, fast) <= slow * (1 + 1e-12)
    assert all_reduce_s(ranks, near, message, fast, fast + more) <= slow * (1 + 1e-12)
    assert slow >= 0.0


@given(st.integers(1, 4096), st.integers(0, 3), positive, positive, positive)
def test_a_higher_stage_never_takes_more(ranks, stage, weights, gradients, optimizer):
    whole = StateBytes(np.asarray(weights), np.asarray(gradients), np.asarray(optimizer))
    rank, more = (sharded_states(whole, ranks, at).total for at in (stage, min(3, stage + 1)))
    assert more <= rank <= whole.total
