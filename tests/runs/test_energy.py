"""Energy of a run from its power and its time, by hand."""

import numpy as np
import pytest

from projector.runs.cost import RunPower, emitted_kg, run_energy


def columns(*values):
    return tuple(np.array([value], np.float64) for value in values)


def test_busy_and_idle_time_differ():
    power = RunPower(*columns(600.0, 100.0, 300.0, 1.2))
    energy = run_energy(power, *columns(8.0, 2.0, 3600.0, 7200.0))
    devices_wh = 8 * (600 + 100) + 2 * 100 * 2
    assert energy.energy_kwh[0] == pytest.approx(1.2 * (devices_wh + 10 * 300 * 2) / 1e3)
    assert energy.gpu_hours[0] == pytest.approx(20.0)
    assert energy.average_w[0] == pytest.approx(energy.energy_kwh[0] * 1e3 / 20.0)


def test_grams_become_kilograms():
    assert emitted_kg(*columns(1000.0, 56.0))[0] == pytest.approx(56.0)


def test_runs_are_independent():
    power = RunPower(*(np.array(pair) for pair in ([600, 0], [100, 0], [300, 0], [1.2, 1.0])))
    both = run_energy(power, *(np.array(p) for p in ([8.0, 1], [2.0, 0], [3600.0, 1], [7200.0, 2])))
    alone = run_energy(
        RunPower(*columns(600.0, 100.0, 300.0, 1.2)), *columns(8.0, 2.0, 3600.0, 7200.0)
    )
    assert both.energy_kwh[0] == alone.energy_kwh[0]
    assert both.energy_kwh[1] == 0.0
