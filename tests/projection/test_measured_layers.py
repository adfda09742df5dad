"""What measured layers say of their rows, and what they take beside them."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.measure.synthetic import synthetic_record, timing

from projector import load_job
from projector.measure.record import Record
from projector.measure.reduction import reduce_job
from projector.operations.cost import ANALYTIC, MEASURED, SCALED
from projector.projection.benchmark import Benchmark, LayerTimes
from projector.projection.measured import Hybrid

JOB = load_job(
    {
        "model": "llama3.1_8b",
        "training": {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 2048},
        "cluster": {"device": "h100", "nodes": 1},
    },
    {"training.elementwise": "eager"},
)
REDUCTION = reduce_job(JOB, 1)
MODEL: LayerTimes = Benchmark(JOB, synthetic_record(REDUCTION)).layer_times()
DENSE = 1
"""Workload of the transformer layers, between embedding and head."""

Times = dict[str, float]


def changed(record: Record, change: Callable[[Times], Times]) -> Record:
    """Return a record whose dense layer took other times."""
    layers = []
    for entry in record.layers:
        one = entry
        if entry.layer.kind == "dense":
            before = {name: timing.median_s for name, timing in entry.outcome.times.items()}
            times = {name: timing(seconds) for name, seconds in change(before).items()}
            outcome = entry.outcome.model_copy(update={"times": times})
            one = entry.model_copy(update={"outcome": outcome})
        layers.append(one)
    return record.model_copy(update={"layers": layers})


def restored(record: Record) -> LayerTimes:
    benchmark = Benchmark(JOB, record)
    return benchmark.layer_times(benchmark.restoration())


def test_rows_shrink_where_they_add_up_to_more_than_their_layer() -> None:
    def faster(times: Times) -> Times:
        return {**times, "forward": 0.5 * MODEL.device_s[DENSE, 0]}

    times = restored(changed(synthetic_record(REDUCTION), faster))
    assert times.device_s[DENSE, 0] == pytest.approx(0.5 * MODEL.device_s[DENSE, 0])
    assert times.host_s[DENSE, 0] == pytest.approx(0.0, abs=1e-15)
    # Others are as they were.
    np.testing.assert_allclose(times.device_s[[0, 2]], MODEL.device_s[[0, 2]], rtol=1e-12)
    np.testing.assert_allclose(times.device_s[DENSE, 1:], MODEL.device_s[DENSE, 1:], rtol=1e-12)


def test_the_modelled_host_gives_way_to_a_faster_layer() -> None:
    def faster(times: Times) -> Times:
        return {**times, "forward": MODEL.device_s[DENSE, 0] + 0.25 * MODEL.host_s[DENSE, 0]}

    times = restored(changed(synthetic_record(REDUCTION), faster))
    assert times.device_s[DENSE, 0] == pytest.approx(MODEL.device_s[DENSE, 0])
    assert times.host_s[DENSE, 0] == pytest.approx(0.25 * MODEL.host_s[DENSE, 0])


@pytest.mark.parametrize("apart", [True, False])
def test_the_whole_backward_counts_however_its_gradients_are_told_apart(*, apart: bool) -> None:
    def slower(times: Times) -> Times:
        return {**times, "backward": 1.5 * times["backward"]}

    record = changed(synthetic_record(REDUCTION, gradients_apart=apart), slower)
    times = restored(record)
    both = times.device_s[DENSE, 1:].sum() + times.host_s[DENSE, 1:].sum()
    before = MODEL.device_s[DENSE, 1:].sum() + MODEL.host_s[DENSE, 1:].sum()
    assert both == pytest.approx(1.5 * before)
    np.testing.assert_allclose(times.device_s, MODEL.device_s, rtol=1e-12)


def test_a_gradient_that_took_no_time_was_lost_in_noise() -> None:
    def noisy(times: Times) -> Times:
        return {**times, "input_gradient": 2.0 * times["backward"], "weight_gradient": 0.0}

    times = restored(changed(synthetic_record(REDUCTION), noisy))
    np.testing.assert_allclose(times.host_s[DENSE], MODEL.host_s[DENSE], rtol=1e-9)


def test_a_layer_alone_is_divided_as_the_model_divides_it() -> None:
    record = synthetic_record(REDUCTION, 3.0, operations=False)
    times = restored(record)
    np.testing.assert_allclose(times.device_s, 3.0 * MODEL.device_s, rtol=1e-9)
    measured = Hybrid(JOB, record).evaluate(JOB).rows.measured
    assert measured is not None
    assert set(measured.origin.tolist()) <= {ANALYTIC, SCALED}


def test_launches_are_measured_where_layers_are() -> None:
    measured = Hybrid(JOB, synthetic_record(REDUCTION)).evaluate(JOB).rows.measured
    assert measured is not None
    assert np.all(measured.layer_origin == MEASURED)
    without = Hybrid(JOB, synthetic_record(REDUCTION, layers=False)).evaluate(JOB).rows.measured
    assert without is not None
    assert np.all(without.layer_origin == ANALYTIC)


def test_the_step_stands_beside_the_sum_of_its_layers() -> None:
    benchmark = Benchmark(JOB, synthetic_record(REDUCTION))
    assert benchmark.step_share == pytest.approx(1.0)
    assert benchmark.spread == pytest.approx(0.02)
    assert benchmark.optimizer_share == pytest.approx(1.0)
    nothing = Benchmark(JOB, synthetic_record(REDUCTION, step=False, operations=False))
    assert nothing.step_share is None
    assert nothing.spread is None
    assert nothing.optimizer_share is None
