"""Measured times of rows in place of modelled ones, on their way to the step."""

from dataclasses import dataclass

import numpy as np

from projector import load_job
from projector.arrays import Floats
from projector.config.job import Job
from projector.lower.stages import Kind
from projector.lower.workloads import Workloads
from projector.operations.cost import ANALYTIC, MEASURED, MeasuredRows
from projector.operations.table import OperationTable
from projector.projection.evaluate import Evaluation, evaluate


def _job() -> Job:
    return load_job(
        {
            "model": "llama3.2_1b",
            "parallelism": {"pp": 2},
            "training": {"micro_batch_size": 1, "global_batch_size": 16, "seq_length": 2048},
            "cluster": {"device": "h100", "nodes": 1, "gpus_per_node": 8},
        }
    )


@dataclass(frozen=True)
class Slower:
    """Every row ``factor`` times slower, the forward of a layer by ``extra_s``."""

    factor: float = 1.0
    extra_s: float = 0.0
    host_share: float = 1.0
    optimizer_share: float | None = None
    send_share: float | None = None

    def rows(self, table: OperationTable, workloads: Workloads, time_s: Floats) -> MeasuredRows:
        extra = np.zeros((2, len(workloads.rows), 3))
        extra[:, workloads.columns.kind == Kind.DENSE, 0] = self.extra_s
        origin = np.full(len(table), MEASURED)
        return MeasuredRows(
            time_s * self.factor,
            origin,
            extra,
            np.full(extra.shape, self.host_share),
            np.full(extra.shape[1:], ANALYTIC),
        )


def _columns(evaluation: Evaluation) -> list[np.ndarray]:
    return [*evaluation.steps.outputs]


def test_measurements_that_agree_with_the_model_change_nothing() -> None:
    job = _job()
    for plain, hybrid in zip(
        _columns(evaluate([job])), _columns(evaluate([job], Slower())), strict=True
    ):
        np.testing.assert_array_equal(plain, hybrid)


def test_slower_rows_make_their_categories_as_much_slower() -> None:
    job = _job()
    plain, hybrid = evaluate([job]), evaluate([job], Slower(2.0))
    np.testing.assert_allclose(
        hybrid.costs.exposed_s, 2.0 * plain.costs.exposed_s, rtol=1e-12, atol=0.0
    )
    assert hybrid.steps.iteration_s[0] > 1.5 * plain.steps.iteration_s[0]
    assert hybrid.rows.measured is not None
    assert plain.rows.measured is None


def test_what_a_layer_takes_beyond_its_rows_lengthens_each_of_its_runs() -> None:
    job = _job()
    plain, hybrid = evaluate([job]), evaluate([job], Slower(extra_s=1e-3))
    dense = (plain.workloads.columns.kind == Kind.DENSE)[plain.workloads.run_workload]
    longer = hybrid.inputs.costs.forward_s - plain.inputs.costs.forward_s
    np.testing.assert_allclose(longer, 1e-3 * dense, rtol=0.0, atol=1e-12)
    np.testing.assert_array_equal(hybrid.inputs.costs.backward_s, plain.inputs.costs.backward_s)


def test_the_optimizer_takes_its_measured_share() -> None:
    job = _job()
    plain, hybrid = evaluate([job]), evaluate([job], Slower(optimizer_share=3.0))
    np.testing.assert_array_equal(hybrid.inputs.optimizer_s, 3.0 * plain.inputs.optimizer_s)


def test_messages_within_a_domain_take_their_measured_share() -> None:
    job = _job()
    plain, hybrid = evaluate([job]), evaluate([job], Slower(send_share=5.0))
    before, after = plain.inputs.p2p, hybrid.inputs.p2p
    np.testing.assert_array_equal(
        after.latency_s, np.where(before.near, 5.0, 1.0) * before.latency_s
    )
    assert before.near.any()


def test_a_layer_takes_its_share_of_the_modelled_host() -> None:
    job = _job()
    plain, hybrid = evaluate([job]), evaluate([job], Slower(host_share=0.25))
    np.testing.assert_allclose(
        hybrid.inputs.costs.launch_s, 0.25 * plain.inputs.costs.launch_s, rtol=1e-12
    )
