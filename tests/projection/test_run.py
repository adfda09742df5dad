"""Whole runs of jobs."""

import json
import pickle

import numpy as np
import pytest

import projector as pj
from projector.config.load import load_job
from projector.errors import ConfigError
from projector.projection.evaluate import evaluate
from projector.projection.run import project_runs

JOB = {
    "model": "llama3.2_1b",
    "parallelism": {"tp": 2, "pp": 2},
    "training": {"micro_batch_size": 1, "global_batch_size": 256, "seq_length": 2048},
    "cluster": {"device": "h100", "nodes": 2},
}


def run_of(**fields):
    overrides = {f"run.{name.replace('__', '.')}": value for name, value in fields.items()}
    return pj.project_performance(load_job(JOB, overrides)).run


def bare(**fields):
    return run_of(checkpoint=False, failures=False, stragglers=False, **fields)


def test_a_job_without_tokens_has_no_run():
    result = pj.project_performance(JOB)
    assert result.run is None
    assert "run" not in result.to_dict()
    runs = project_runs(evaluate([load_job(JOB)]))
    assert np.isnan(runs.times.total_s).all()
    with pytest.raises(ConfigError, match="how much is trained"):
        runs.of(0)


def test_tokens_over_the_rate_of_the_step():
    job = load_job(JOB, {"run.tokens": 1e12})
    result = pj.project_performance(job)
    seconds = 1e12 / result.tokens_per_s_per_gpu / 16
    assert result.run.terms_days["compute"] == pytest.approx(seconds / 86400)
    assert bare(tokens=1e12).days == pytest.approx(seconds / 86400)
    assert bare(tokens=1e12).goodput == 1.0


def test_steps_and_samples_are_tokens():
    expected = bare(tokens=1000 * 256 * 2048).days
    assert bare(steps=1000).days == pytest.approx(expected)
    assert bare(train_samples=256000).days == pytest.approx(expected)
    assert bare(train_iters=1000).tokens == 1000 * 256 * 2048


def test_the_json_object():
    result = pj.project_performance(load_job(JOB, {"run.tokens": 1e12}))
    run = json.loads(json.dumps(result.to_dict()))["run"]
    assert list(run) == [
        "tokens",
        "days",
        "days_low",
        "days_high",
        "gpu_hours",
        "energy_mwh",
        "co2_t",
        "cost_usd",
        "usd_per_gpu_hour",
        "usd_per_million_tokens",
        "usd_per_mfu_point",
        "watts_per_gpu",
        "average_w_per_gpu",
        "owned_multiplier",
        "goodput",
        "terms_days",
        "failures",
        "checkpoint_interval_s",
        "assumptions",
    ]
    assert sum(run["terms_days"].values()) == pytest.approx(run["days"])
    assert run["gpu_hours"] == pytest.approx(run["days"] * 24 * 16)
    assert run["days_low"] < run["days"] < run["days_high"]
    assert "days" in repr(result.run)


def test_a_checkpoint_has_weights_and_states():
    inputs = project_runs(evaluate([load_job(JOB, {"run.tokens": 1e9})])).inputs
    total = pj.project_memory(JOB).counts.parameters_total
    assert inputs.checkpoint_bytes[0] == total * (2 + 4 + 8)


def test_an_evaluation_is_forwards():
    run = bare(tokens=1e12, evaluation__interval_steps=100, evaluation__iterations=10)
    assert run.terms_days["evaluation"] == 0.0
    run = bare(tokens=1e12, eval_interval=100, eval_iters=10)
    share = run.terms_days["evaluation"] / run.terms_days["compute"]
    assert 0.1 * 0.28 < share < 0.1 * 0.34


@pytest.mark.parametrize(
    ("parallelism", "within"), [({"fsdp": 2}, 1e-6), ({"tp": 2}, 0.02), ({"pp": 4}, 0.1)]
)
def test_a_step_of_the_ramp_is_that_of_a_job_with_its_batch(parallelism, within):
    """Exact but for what hides behind compute, and for unequal stages."""
    job = {**JOB, "parallelism": parallelism}
    # 64 of 256 sequences for as many samples as make 100 steps.
    ramp = {"tokens": 1e12, "checkpoint": False, "failures": False, "stragglers": False}
    run = pj.project_performance({**job, "run": {**ramp, "rampup_batch_size": [64, 192, 6400]}}).run
    small = pj.project_performance(load_job(job, {"training.global_batch_size": 64}))
    whole = pj.project_performance(job)
    ramp_s = run.terms_days["warm_up"] * 86400 + 25 * whole.iteration_time_s
    assert ramp_s == pytest.approx(100 * small.iteration_time_s, rel=within)


def test_an_interval_in_steps_is_one_in_seconds():
    run = run_of(tokens=1e12, save_interval=1000)
    step = pj.project_performance(JOB).iteration_time_s
    assert run.checkpoint_interval_s == pytest.approx(1000 * step)


def test_a_batch_is_its_rows():
    changes = (
        {},
        {"run.tokens": 1e12},
        {"run.tokens": 1e12, "run.failures": False},
        {"run.steps": 3000, "run.checkpoint.asynchronous": True, "run.failures.spare_nodes": 1},
    )
    jobs = [load_job(JOB, each) for each in changes]
    together = project_runs(evaluate(jobs))
    for row, job in enumerate(jobs):
        alone = project_runs(evaluate([job]))
        np.testing.assert_array_equal(together.column("days")[row], alone.column("days")[0])
        if job.run.is_stated:
            assert together.of(row).to_dict() == alone.of(0).to_dict()


def test_a_run_can_be_pickled():
    run = run_of(tokens=1e12)
    assert pickle.loads(pickle.dumps(run)).to_dict() == run.to_dict()


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"checkpoint__interval_s": 1.0}, "run.checkpoint.interval_s"),
        ({"save_interval": 1, "checkpoint__overhead_s": 600}, "run.checkpoint.interval_steps"),
        ({"checkpoint": False, "failures__gpu_mtbf_hours": 20}, "run.checkpoint"),
        ({"failures__gpu_mtbf_hours": 0.5}, "run.failures"),
    ],
)
def test_a_run_that_cannot_be_says_why(fields, key):
    with pytest.raises(ConfigError) as caught:
        run_of(tokens=1e12, **fields)
    assert caught.value.key == key
    assert caught.value.allowed


def test_assumptions_name_what_is_not_stated():
    text = "\n".join(run_of(tokens=1e12).assumptions)
    assert "gpu_mtbf_hours" in text
    assert "write_gb_per_s_per_node" in text
    stated = run_of(tokens=1e12, failures=False, checkpoint__write_gb_per_s=10)
    text = "\n".join(stated.assumptions)
    assert "gpu_mtbf_hours" not in text
    assert "write_gb_per_s_per_node" not in text
    assert "failures left out" in text
