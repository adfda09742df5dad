"""Records that make no sense: what cannot have been measured is modelled, and said."""

from collections.abc import Callable

import pytest
from tests.measure.synthetic import synthetic_record

from projector import load_job
from projector.config.job import Job
from projector.measure.record import MeasuredLayer, MeasuredOperation, Record
from projector.measure.reduction import reduce_job
from projector.measure.task import LEAST_S, Outcome, Timing
from projector.projection.api import project_performance
from projector.projection.performance import PerformanceProjection

Change = Callable[[Outcome], Outcome]


@pytest.fixture(scope="module")
def job() -> Job:
    return load_job(
        {
            "model": "llama3_8b",
            "parallelism": {"tp": 2, "pp": 4},
            "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096},
            "cluster": {"device": "h100", "nodes": 4},
        }
    )


@pytest.fixture(scope="module")
def record(job: Job) -> Record:
    return synthetic_record(reduce_job(job, 1), slow=2.0)


def project(job: Job, record: Record) -> PerformanceProjection:
    result = project_performance(job, records=record, profiling_mode="both")
    assert sum(result.breakdown_s.values()) == pytest.approx(result.iteration_time_s)
    assert result.comparison is not None
    return result


def changed(record: Record, change: Change) -> Record:
    """Return a record with every outcome changed."""
    assert record.step is not None
    return record.model_copy(
        update={
            "operations": [
                MeasuredOperation(key=one.key, outcome=change(one.outcome))
                for one in record.operations
            ],
            "layers": [
                MeasuredLayer(layer=one.layer, outcome=change(one.outcome)) for one in record.layers
            ],
            "step": record.step.model_copy(update={"outcome": change(record.step.outcome)}),
        }
    )


def lasting(seconds: float) -> Change:
    timing = Timing(median_s=seconds, low_s=seconds, high_s=seconds, repeats=3)

    def change(outcome: Outcome) -> Outcome:
        return outcome.model_copy(update={"times": dict.fromkeys(outcome.times, timing)})

    return change


@pytest.mark.parametrize("seconds", [0.0, 1e-310, 0.9 * LEAST_S])
def test_what_took_no_time_was_not_measured(job: Job, record: Record, seconds: float) -> None:
    result = project(job, changed(record, lasting(seconds)))
    assert result.iteration_time_s == project_performance(job).iteration_time_s
    assert "the record has no time of any operation or layer: all times are modelled" in (
        result.warnings
    )


@pytest.mark.parametrize("status", ["failed", "out_of_memory", "unsupported"])
def test_a_time_of_what_failed_counts_for_nothing(job: Job, record: Record, status: str) -> None:
    failed = changed(record, lambda outcome: outcome.model_copy(update={"status": status}))
    result = project(job, failed)
    assert result.iteration_time_s == project_performance(job).iteration_time_s
    assert result.comparison is not None
    assert not result.comparison.operations


def test_how_much_of_a_record_has_no_time_is_said(job: Job, record: Record) -> None:
    first, *others = record.operations
    lost = MeasuredOperation(key=first.key, outcome=Outcome(status="failed", message="died"))
    some = record.model_copy(update={"operations": [lost, *others]})
    programs = len(record.operations) + len(record.layers) + 1
    lost_one = f"of {programs} operations and layers the record has no time of 1 (1 failed)"
    assert some.check(job) == [f"{lost_one}: the models stand for them"]
    assert record.check(job) == []


def test_a_layer_without_columns_is_no_layer_of_the_job(job: Job, record: Record) -> None:
    unknown = [
        MeasuredLayer(layer=one.layer.model_copy(update={"columns": {}}), outcome=one.outcome)
        for one in record.layers
    ]
    without = project(job, record.model_copy(update={"layers": []}))
    with_unknown = project(job, record.model_copy(update={"layers": unknown}))
    assert with_unknown.iteration_time_s == without.iteration_time_s


def test_memory_is_not_anchored_on_a_step_of_unknown_layers(job: Job, record: Record) -> None:
    assert record.step is not None
    step = record.step.model_copy(update={"layers": []})
    memory = project(job, record.model_copy(update={"step": step})).memory
    assert memory.anchor is None
    assert memory.peak_bytes == project_performance(job).memory.peak_bytes


def test_an_update_of_no_parameters_is_modelled(job: Job, record: Record) -> None:
    def none(outcome: Outcome) -> Outcome:
        return outcome.model_copy(update={"numbers": {**outcome.numbers, "parameters": 1e-300}})

    result = project(job, changed(record, none))
    simulated = project_performance(job)
    assert result.breakdown_s["optimizer"] == simulated.breakdown_s["optimizer"]


def test_a_recipe_of_fp8_decides_nothing_in_other_types(job: Job, record: Record) -> None:
    assert record.check(load_job(job, {"training.fp8_recipe": "tensorwise"})) == []


def test_a_clock_that_was_not_measured_is_warned_of(job: Job, record: Record) -> None:
    slower = load_job(job, {"cluster.gpu_clock_mhz": 900})
    modelled = "cluster.gpu_clock_mhz 900 holds for what is modelled alone"
    stays = "measured times stay at the clock that the device had"
    assert record.check(slower) == [f"{modelled}: {stays}"]
