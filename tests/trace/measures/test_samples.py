"""Cores of the host (equations 4 and 5), clocks and power, by hand and against references."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.trace.events import Samples
from projector.trace.measures.iterations import iteration_times
from projector.trace.measures.sampled import (
    active_cores,
    cpu_use,
    held_mean,
    minimum_cores,
    sampled,
)
from reference import trace_measures as reference
from synthetic import activities, compute


def samples(what, values, times=None, physical=None):
    values = np.array(values, float)
    times = np.arange(len(values)) * 1000 if times is None else np.array(times) * 1000
    return Samples(
        path="samples.jsonl",
        what=what,
        time_ps=times,
        values=values,
        columns=tuple(f"c{column}" for column in range(values.shape[1])),
        physical_core=None if physical is None else np.array(physical),
    )


def test_cores_by_hand():
    use = cpu_use(samples("cpu_percent", [[50, 0, 100, 0.5], [0, 0, 0, 0]], physical=[0, 1, 0, 1]))
    assert use.cores == 4
    assert (use.active.max, use.active.min, use.minimum.max) == (3, 0, 1.505)
    assert (use.physical.cores, use.physical.active.max, use.physical.ever_active) == (2, 2, 2)
    assert use.physical.shared == 0.5
    json.dumps(use.to_dict())


def test_cores_without_a_map_or_samples():
    assert cpu_use(samples("cpu_percent", [[1, 2]])).physical is None
    assert cpu_use(samples("cpu_percent", [[1, 2]]), begin_ps=5000) is None
    assert cpu_use(samples("cpu_percent", [[np.nan, np.nan]])) is None
    idle = cpu_use(samples("cpu_percent", [[0, 0]], physical=[3, 3]))
    assert (idle.physical.shared, idle.physical.cores) == (0.0, 1)


def test_only_the_time_asked_for():
    cores = samples("cpu_percent", [[100], [50], [0]])
    assert cpu_use(cores, 1000, 1000).minimum.median == 0.5


percent = st.floats(0, 100)


@given(st.lists(st.lists(percent, min_size=3, max_size=3), min_size=1, max_size=6))
def test_equations_4_and_5_match_reference(rows):
    values = np.array(rows)
    assert active_cores(values).tolist() == [reference.active_cores(row) for row in rows]
    expected = [reference.minimum_cores(row) for row in rows]
    assert minimum_cores(values).tolist() == pytest.approx(expected)


def test_a_sample_holds_until_the_next():
    time, values = np.array([0, 10, 40, 50]), np.array([1000.0, 2000.0, 1000.0, 7.0])
    assert held_mean(time, values, 0, 50) == pytest.approx((10 + 60 + 10) * 1000 / 50)
    assert held_mean(time, values, 20, 30) == 2000.0
    assert held_mean(time, values, 60, 70) is None
    assert held_mean(time[:1], values[:1], 0, 10) is None


def test_clocks_and_power_in_iterations():
    table = activities(compute(0, 10, iteration=1), compute(10, 30, iteration=2))
    clock = samples("clock_mhz", [[1000], [2000], [2000]], times=[0, 10, 30])
    power = samples("power_w", [[700, np.nan], [500, np.nan], [500, np.nan]], times=[0, 10, 30])
    cores = samples("cpu_percent", [[1]])
    first, second = sampled([clock, cores, power], iteration_times(table))
    assert [each.mean for each in first.iterations] == [1000, 2000]
    assert first.mean == pytest.approx(5000 / 3)
    assert first.energy_j is None
    assert second.energy_j == pytest.approx((7000 + 10000) * 1e-9)
    assert (second.what, second.column, second.spread.max) == ("power_w", "c0", 700)
    assert second.variation == pytest.approx(np.std([700, 500, 500]) / np.mean([700, 500, 500]))
    json.dumps([first.to_dict(), second.to_dict()])


def test_one_sample_is_its_own_mean():
    (only,) = sampled([samples("clock_mhz", [[1500]])])
    assert (only.mean, only.variation, only.iterations) == (1500, 0.0, ())
