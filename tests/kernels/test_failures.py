"""Played runs against their plain-Python twin."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.kernels.failures import ENDLESS, INVALID, OK, simulate_failures
from reference.failures import exponential, played

# Words of random numbers wrap, which numpy tells where nothing is compiled.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in scalar:RuntimeWarning")

SAMPLES = 3


def run(columns, seed=0, slower=1.0, more=1.0, samples=SAMPLES):
    columns = [np.atleast_1d(np.asarray(column, float)) for column in columns]
    shape = (len(columns[0]), samples)
    total_s, failures = np.zeros(shape), np.zeros(shape)
    factors = np.full(shape, slower), np.full(shape, more)
    status = simulate_failures(*columns, *factors, seed, total_s, failures)
    return status, total_s, failures


# Nothing that hardly ever ends: the twin is slow.
@given(
    st.floats(0.0, 1e6),
    st.floats(100.0, 5e3),
    st.floats(0.0, 1e3),
    st.floats(0.0, 1e3),
    st.floats(0.0, 1e3),
    st.floats(0.0, 5e-4),
    st.integers(0, (1 << 63) - 1),
)
def test_matches_reference(work_s, interval_s, stall_s, write_s, restart_s, rate, seed):
    columns = (work_s, interval_s, stall_s, write_s, restart_s, rate)
    status, total_s, failures = run(columns, seed)
    assert status == OK
    for sample in range(SAMPLES):
        expected = played(*columns, seed, sample)
        assert total_s[0, sample] == pytest.approx(expected[0], rel=1e-9)
        assert failures[0, sample] == expected[1]


@given(st.floats(0.5, 2.0), st.floats(0.5, 2.0))
def test_factors_are_those_of_work_and_rate(slower, more):
    _, found, _ = run((1e5, 1e3, 10.0, 0.0, 300.0, 1e-4), slower=slower, more=more)
    _, expected, _ = run((1e5 * slower, 1e3, 10.0, 0.0, 300.0, 1e-4 * more))
    assert np.array_equal(found, expected)


def test_draws_are_exponential():
    draws = np.array([exponential(7, s, n) for s in range(100) for n in range(100)])
    assert draws.mean() == pytest.approx(1.0, abs=0.03)
    assert draws.std() == pytest.approx(1.0, abs=0.05)
    neighbours = np.corrcoef(draws[:-1], draws[1:])[0, 1]
    assert abs(neighbours) < 0.03


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("bad", [-1.0, math.nan])
def test_bad_numbers_are_invalid_and_others_stay(place, bad):
    good = (1e5, 1e3, 10.0, 5.0, 300.0, 1e-4)
    columns = [np.array([value, value]) for value in good]
    columns[place][0] = bad
    status, total_s, _ = run(columns)
    assert status == INVALID
    assert np.isnan(total_s[0]).all()
    assert np.array_equal(total_s[1], run(good)[1][0])


def test_a_run_that_never_ends_is_told():
    # A million failures take a while where nothing is compiled.
    status, total_s, failures = run((1e9, 1e3, 10.0, 0.0, 100.0, 1.0), samples=1)
    assert status == ENDLESS
    assert np.isnan(total_s).all()
    assert np.isnan(failures).all()
