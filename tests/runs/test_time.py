"""The time of runs, term by term."""

import warnings
from dataclasses import fields, replace

import numpy as np
import pytest

from projector.runs.time import NEVER_ENDS, OK, TERMS, TOO_SHORT, RunInputs, WarmUp, run_times
from runs.inputs import NAN, run_inputs


def test_only_steps():
    times = run_times(run_inputs(saves=0, fails=0))
    assert times.total_s[0] == pytest.approx(1e12 / (1024 * 4096) * 10.0)
    assert times.goodput[0] == 1.0
    assert times.failures[0] == 0.0
    assert np.isnan(times.checkpoint_interval_s[0])


RAMP = {"start_batch": 256.0, "increment": 256.0, "samples": 1e7}


@pytest.mark.parametrize("asynchronous", [0, 1])
@pytest.mark.parametrize("interval_s", [NAN, 7200.0])
@pytest.mark.parametrize("spare_nodes", [NAN, 2.0])
@pytest.mark.parametrize("ramp", [{}, RAMP])
def test_terms_add_up(asynchronous, interval_s, spare_nodes, ramp):
    inputs = run_inputs(
        ramp,
        asynchronous=asynchronous,
        interval_s=interval_s,
        spare_nodes=spare_nodes,
        evaluation_steps=0.02,
        slowdown=0.01,
    )
    times = run_times(inputs)
    terms = [getattr(times, term)[0] for term in TERMS]
    assert min(terms) >= 0.0
    assert sum(terms) == pytest.approx(times.total_s[0], rel=1e-12)
    assert times.goodput[0] < 1.0
    assert times.status[0] == OK


def test_failures_follow_the_time_that_the_run_takes():
    times = run_times(run_inputs())
    rate = 1024 / 2e8 + 128 / 6e7
    assert times.failures[0] == pytest.approx(rate * times.total_s[0])


def test_a_stated_interval_shorter_than_its_write_is_told():
    times = run_times(run_inputs(interval_s=[3.0, 3000.0]))
    assert times.status.tolist() == [TOO_SHORT, OK]
    assert np.isnan(times.total_s[0])


def test_a_run_without_checkpoints_may_never_end():
    times = run_times(run_inputs(saves=0, gpus=[8.0, 16384.0], nodes=[1.0, 2048.0]))
    assert times.status.tolist() == [OK, NEVER_ENDS]
    assert np.isnan(times.total_s[1])


def test_few_spares_cost_time():
    times = run_times(run_inputs(spare_nodes=[NAN, 4.0, 2.0, 0.0]))
    assert times.spares_s[0] == 0.0
    assert np.all(np.diff(times.total_s) > 0.0)


def test_no_spare_waits_for_every_repair():
    inputs = run_inputs(spare_nodes=0.0)
    times = run_times(inputs)
    repairs = 0.5 * (1024 / 2e8 + 128 / 6e7) * 86400.0
    assert times.spares_s[0] == pytest.approx((times.total_s[0] - times.spares_s[0]) * repairs)


def test_the_asynchronous_checkpoint_stalls_less():
    times = run_times(run_inputs(asynchronous=[0, 1]))
    assert times.checkpoint_s[1] < times.checkpoint_s[0]
    assert times.total_s[1] < times.total_s[0]


def test_a_ramp_trains_the_same_tokens_in_more_steps():
    whole = run_times(run_inputs(saves=0, fails=0))
    ramp = run_times(run_inputs(RAMP, saves=0, fails=0))
    # 3 levels of equal samples; a step of 256, 512, 768 sequences misses 12, 8, 4 microbatches.
    expected = sum(
        1e7 / 3 * ((10.0 - 0.5 * missing) / size - 10.0 / 1024)
        for size, missing in ((256, 12), (512, 8), (768, 4))
    )
    assert ramp.warm_up_s[0] == pytest.approx(expected)
    assert ramp.compute_s[0] == whole.compute_s[0]


def test_a_ramp_longer_than_the_run_ends_with_it():
    long = run_times(run_inputs({**RAMP, "samples": 1e12}, saves=0, fails=0, tokens=4096e5))
    assert long.warm_up_s[0] == pytest.approx(1e5 * ((10 - 6) / 256 - 10 / 1024))


def test_a_batch_is_its_rows():
    rng = np.random.default_rng(1)
    rows = 50
    inputs = run_inputs(
        {"start_batch": rng.choice([NAN, 64.0, 512.0], rows), "increment": 64.0, "samples": 1e6},
        step_s=rng.uniform(1.0, 20.0, rows),
        gpus=rng.uniform(8.0, 2e4, rows),
        spare_nodes=rng.choice([NAN, 0.0, 5.0], rows),
        saves=rng.integers(0, 2, rows),
        asynchronous=rng.integers(0, 2, rows),
        interval_s=rng.choice([NAN, 600.0, 3600.0], rows),
    )
    together = run_times(inputs)
    for row in range(rows):
        alone = run_times(_row(inputs, row))
        for each in fields(alone):
            np.testing.assert_array_equal(
                getattr(together, each.name)[row : row + 1], getattr(alone, each.name)
            )


def _row(inputs, row):
    def cut(owner, kind):
        return {
            each.name: np.broadcast_to(getattr(owner, each.name), len(inputs.step_s))[row : row + 1]
            for each in fields(kind)
            if each.name != "warm_up"
        }

    one = replace(inputs.warm_up, **cut(inputs.warm_up, WarmUp))
    return RunInputs(warm_up=one, **cut(inputs, RunInputs))


def test_a_run_is_not_said_to_never_end_for_its_checkpoints():
    one_token = run_times(run_inputs(tokens=1.0))
    slow = run_times(run_inputs(fails=0, checkpoint_overhead_s=1e12))
    for times in (one_token, slow):
        assert times.status[0] == OK
        assert 0.0 < times.goodput[0] < 1e-3


def test_checkpoints_of_infinite_time_are_no_run_and_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        times = run_times(run_inputs(write_bytes_per_s=1e-290, asynchronous=[0, 1]))
    assert list(times.status) == [NEVER_ENDS, NEVER_ENDS]
