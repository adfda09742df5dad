"""Whole runs: time with failures, energy and cost of a million plans, and runs that are played."""

from dataclasses import fields, replace

import numpy as np
import pytest

from projector.config.load import load_job
from projector.projection.evaluate import evaluate
from projector.projection.run import project_runs
from projector.runs.cost import RunPower, cost_usd, emitted_kg, run_energy
from projector.runs.time import RunInputs, WarmUp, run_times, simulate_runs

PLANS = 1_000_000
JOB = {
    "model": "llama3.1_8b",
    "training": {"micro_batch_size": 1, "global_batch_size": 1024, "seq_length": 8192},
    "cluster": {"device": "h100", "nodes": 8},
    "run": {"tokens": 1e12},
}
CHANGES = (
    {},
    {"cluster.nodes": 16},
    {"run.checkpoint.asynchronous": True},
    {"run.failures.spare_nodes": 2},
    {"run.tokens": 1e11, "run.rampup_batch_size": [256, 256, 1000000]},
    {"run.evaluation": True},
)


def batch():
    """Return the runs of a few jobs, which differ in everything that a run has."""
    return project_runs(evaluate([load_job(JOB, change) for change in CHANGES]))


def repeated(owner, kind):
    """Return columns as long as there are plans."""
    names = [each.name for each in fields(kind) if each.name != "warm_up"]
    return {name: np.resize(getattr(owner, name), PLANS) for name in names}


@pytest.mark.thorough
def test_a_million_plans(benchmark):
    """Time in closed form, with the best interval, then energy, emissions and cost."""
    runs = batch()
    warm_up = WarmUp(**repeated(runs.inputs.warm_up, WarmUp))
    inputs = RunInputs(warm_up=warm_up, **repeated(runs.inputs, RunInputs))
    faster = np.random.default_rng(0).uniform(0.2, 3.0, PLANS)
    warm_up = replace(warm_up, microbatch_s=faster * warm_up.microbatch_s)
    inputs = replace(inputs, step_s=faster * inputs.step_s, warm_up=warm_up)
    watts = np.full(PLANS, 600.0)
    power = RunPower(watts, watts / 6.0, watts / 4.0, np.full(PLANS, 1.3))
    spares = np.nan_to_num(inputs.spare_nodes) * 8.0

    def plan():
        times = run_times(inputs)
        busy_s = times.compute_s + times.warm_up_s + times.evaluation_s + times.lost_work_s
        energy = run_energy(power, inputs.gpus, spares, busy_s, times.total_s)
        return (
            times.total_s,
            emitted_kg(energy.energy_kwh, np.full(PLANS, 400.0)),
            cost_usd(energy.gpu_hours, np.full(PLANS, 2.5)),
        )

    for column in benchmark.pedantic(plan, rounds=3, warmup_rounds=1):
        assert np.isfinite(column).all()
    if benchmark.stats is not None:
        benchmark.extra_info["plans_per_s"] = PLANS / benchmark.stats.stats.min


def test_runs_that_are_played(benchmark):
    """2,000 samples of each run, as for the band of one."""
    runs = batch()
    found = benchmark.pedantic(simulate_runs, (runs.inputs, runs.times), rounds=3, warmup_rounds=1)
    assert np.isfinite(found.total_s).all()
    if benchmark.stats is not None:
        played = found.total_s.size / benchmark.stats.stats.min
        benchmark.extra_info["played_runs_per_s"] = played
