"""Runs played from failure to failure agree with the closed form."""

import math
import random

import numpy as np
import pytest

from projector.errors import ConfigError, NumericError
from projector.runs.time import (
    Interruptions,
    Spread,
    band_of,
    best_interval_s,
    expected_s,
    interruptions_of,
    run_times,
    simulate_runs,
    simulate_segments,
    waiting_share,
)
from runs.inputs import NAN, run_inputs

HOUR, DAY = 3600.0, 86400.0


def interruptions(rate_per_s, restart_s=900.0, stall_s=60.0, write_s=0.0):
    columns = np.broadcast_arrays(rate_per_s, restart_s, stall_s, write_s)
    return Interruptions(*(np.atleast_1d(column).astype(float) for column in columns))


def played(given, work_s, interval_s, samples=4000, seed=0):
    ones = np.ones((len(work_s), samples))
    return simulate_segments(given, work_s, interval_s, ones, ones, seed)


CASES = {
    "a small cluster": (1 / (30 * DAY), 900.0, 300.0, 0.0, 60 * DAY, 6 * HOUR),
    "16,384 devices": (1 / (3 * HOUR), 900.0, 30.0, 0.0, 54 * DAY, 800.0),
    "failures every hour": (1 / HOUR, 900.0, 100.0, 0.0, 10 * DAY, 800.0),
    "asynchronous": (1 / HOUR, 600.0, 5.0, 120.0, 10 * DAY, 500.0),
    "asynchronous, always writing": (1 / HOUR, 600.0, 5.0, 120.0, 10 * DAY, 130.0),
    "failures in every set-up": (1e-3, 600.0, 5.0, 50.0, DAY, 130.0),
    "a last segment that is short": (1e-5, 900.0, 300.0, 0.0, 1e5, 3e4),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_mean_is_the_closed_form_within_a_percent(case):
    *of_failures, work_s, interval_s = case
    given, work_s, interval_s = interruptions(*of_failures), np.array([work_s]), [interval_s]
    expected, _ = expected_s(given, work_s, np.array(interval_s))
    found = played(given, work_s, np.array(interval_s))
    assert found.total_s.mean() == pytest.approx(expected[0], rel=0.005)
    rate = given.rate_per_s[0]
    assert found.failures.mean() == pytest.approx(rate * expected[0], rel=0.02)


@pytest.mark.parametrize("write_s", [0.0, 100.0])
def test_the_best_interval_is_that_of_the_simulation_within_five_percent(write_s):
    given = interruptions(1 / (2 * HOUR), 600.0, 60.0, write_s)
    best = best_interval_s(given)[0]
    interval_s = best * np.exp(np.linspace(-0.7, 0.7, 15))
    rows = len(interval_s)
    many = Interruptions(
        *(np.full(rows, getattr(given, name)[0]) for name in given.__dataclass_fields__)
    )
    total_s = played(many, np.full(rows, 40 * DAY), interval_s).total_s.mean(axis=1)
    # What checkpoints cost falls with the interval, lost work rises with it.
    x = interval_s / best
    powers = np.stack([1 / x, np.ones(rows), x, x**2], axis=1)
    a, _, b, c = np.linalg.lstsq(powers, total_s, rcond=None)[0]
    fine = np.linspace(0.6, 1.6, 2001)
    found = fine[np.argmin(a / fine + b * fine + c * fine**2)]
    assert found == pytest.approx(1.0, abs=0.05)


def test_a_run_is_the_same_in_any_batch():
    given = interruptions([1e-4, 1e-3, 1e-5])
    work_s, interval_s = np.array([1e5, 2e5, 3e5]), np.array([1e3, 2e3, 3e3])
    together = played(given, work_s, interval_s, 50)
    for row in range(3):
        one = interruptions(given.rate_per_s[row])
        alone = played(one, work_s[[row]], interval_s[[row]], 50)
        assert np.array_equal(alone.total_s[0], together.total_s[row])
    more = played(given, work_s, interval_s, 80)
    assert np.array_equal(more.total_s[:, :50], together.total_s)


def test_another_seed_is_another_run():
    given, work_s = interruptions(1e-4), np.array([1e6])
    runs = [played(given, work_s, np.array([1e3]), 50, seed).total_s for seed in (0, 0, 1)]
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


def test_without_failures_every_sample_is_the_closed_form():
    given, work_s, interval_s = interruptions(0.0), np.array([1e5]), np.array([3e3])
    expected, _ = expected_s(given, work_s, interval_s)
    assert np.all(played(given, work_s, interval_s, 5).total_s == expected)


def test_a_run_that_never_ends_has_no_time():
    found = played(interruptions(1.0, restart_s=100.0), np.array([1e9]), np.array([1e3]), 2)
    assert np.isnan(found.total_s).all()
    assert band_of(found) == (math.inf, math.inf)


@pytest.mark.parametrize("bad", [-1.0, NAN])
def test_bad_numbers_are_refused(bad):
    with pytest.raises(NumericError):
        played(interruptions(bad), np.array([1e5]), np.array([1e3]), 2)


def test_bad_seeds_are_refused():
    with pytest.raises(ConfigError, match="seed"):
        played(interruptions(1e-4), np.array([1e5]), np.array([1e3]), 2, seed=-1)


@pytest.mark.parametrize("asynchronous", [0, 1])
@pytest.mark.parametrize("saves", [0, 1])
def test_runs_are_played_as_they_are_computed(asynchronous, saves):
    inputs = run_inputs(asynchronous=asynchronous, saves=saves, slowdown=0.01, tokens=1e10)
    times = run_times(inputs)
    found = simulate_runs(inputs, times, samples=4000)
    assert found.total_s.mean() == pytest.approx(times.total_s[0], rel=0.01)


def test_the_band_is_that_of_the_step_and_wider_with_failures():
    def band(**given):
        inputs = run_inputs(**given)
        spread = Spread(np.array([0.9]), np.array([1.2]), np.array([0.6]))
        times = run_times(inputs)
        low, high = band_of(simulate_runs(inputs, times, spread))
        return low / times.total_s[0], high / times.total_s[0]

    low, high = band(fails=0, saves=0)
    assert (low, high) == pytest.approx((0.9, 1.2), abs=0.01)
    assert band(gpu_mtbf_s=1e7)[1] > 1.02 * high


@pytest.mark.parametrize("spares", [0, 1, 3])
def test_waiting_for_spares_is_erlangs_share(spares):
    """Nodes are repaired beside one another; the run stands still while none is left."""
    inputs = run_inputs(spare_nodes=float(spares), repair_s=2 * DAY)
    rate = interruptions_of(inputs)[0].rate_per_s
    expected = waiting_share(inputs, rate)[0]
    draw = random.Random(1)
    now, waited, returns = 0.0, 0.0, []
    for _ in range(40000):
        now += draw.expovariate(rate[0] * inputs.repaired_share[0])
        returns = sorted([*(time for time in returns if time > now), now + 2 * DAY])
        if len(returns) > spares:
            back = returns[len(returns) - spares - 1]
            waited += back - now
            now = back
    assert waited / now == pytest.approx(expected, abs=0.01)


def test_so_many_failures_that_they_average_out_are_not_played():
    spread = Spread(np.array([0.9]), np.array([1.2]), np.array([0.3]))
    few = run_inputs(tokens=2e13, gpu_mtbf_s=2e7, node_mtbf_s=6e6)
    times = run_times(few)
    assert 1000.0 < times.failures[0] < 5000.0
    many = run_inputs(tokens=2e17, gpu_mtbf_s=2e7, node_mtbf_s=6e6)
    played = band_of(simulate_runs(few, times, spread))
    expected = band_of(simulate_runs(many, run_times(many), spread))
    assert np.isfinite(expected).all()
    assert np.array(expected) / 1e4 == pytest.approx(np.array(played), rel=0.01)
