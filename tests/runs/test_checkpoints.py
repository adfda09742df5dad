"""Checkpoints and failures in closed form."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.runs.time import (
    Interruptions,
    best_interval_s,
    daly_interval_s,
    expected_s,
    segment_s,
    young_interval_s,
)


def interruptions(rate_per_s, restart_s=600.0, stall_s=30.0, write_s=0.0):
    columns = np.broadcast_arrays(rate_per_s, restart_s, stall_s, write_s)
    return Interruptions(*(np.atleast_1d(column).astype(float) for column in columns))


def test_without_failures_work_and_checkpoints_add_up():
    total_s, checkpoints = expected_s(interruptions(0.0), np.array([1000.0]), np.array([300.0]))
    assert checkpoints.tolist() == [4.0]
    assert total_s.tolist() == [1000.0 + 4 * 30.0]


def test_a_segment_is_dalys():
    mean_s, restart_s, stall_s, interval_s = 5000.0, 400.0, 50.0, 700.0
    expected = mean_s * np.exp(restart_s / mean_s) * np.expm1((interval_s + stall_s) / mean_s)
    found = segment_s(interruptions(1 / mean_s, restart_s, stall_s), np.array([interval_s]))
    assert found[0] == pytest.approx(expected, rel=1e-12)


def test_what_is_written_beside_steps_is_lost_too():
    apart = segment_s(interruptions(1e-4, 400.0), np.array([700.0]))
    beside = segment_s(interruptions(1e-4, 400.0, write_s=200.0), np.array([700.0]))
    assert beside[0] == pytest.approx(apart[0] * np.exp(200.0 * 1e-4))


@given(st.floats(1e-9, 1e-2), st.floats(0.01, 1e4), st.floats(0.0, 1e4))
def test_no_interval_is_better_than_the_best(rate_per_s, stall_s, write_s):
    given_ = interruptions(rate_per_s, 100.0, stall_s, write_s)
    best = best_interval_s(given_)
    cost = segment_s(given_, best) / best
    for factor in (0.5, 0.9, 1.1, 2.0):
        other = factor * best
        assert segment_s(given_, other)[0] / other[0] >= cost[0] * (1 - 1e-9)


def test_young_and_daly_are_near_where_checkpoints_are_short():
    given_ = interruptions(1e-6, stall_s=10.0)
    best = best_interval_s(given_)[0]
    assert daly_interval_s(given_)[0] == pytest.approx(best, rel=1e-5)
    assert young_interval_s(given_)[0] == pytest.approx(best, rel=0.01)


def test_daly_is_near_where_checkpoints_are_long():
    given_ = interruptions(1e-4, stall_s=1000.0)
    best = best_interval_s(given_)[0]
    assert daly_interval_s(given_)[0] == pytest.approx(best, rel=0.01)
    assert young_interval_s(given_)[0] > 1.1 * best


def test_without_failures_there_is_no_best_interval():
    assert best_interval_s(interruptions(0.0)).tolist() == [np.inf]
    assert best_interval_s(interruptions(1e-5, stall_s=0.0)).tolist() == [0.0]
