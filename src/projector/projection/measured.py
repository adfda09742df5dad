"""Hybrid projection: what a record measured, and the model for everything else."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from projector.arrays import Floats, Ints
from projector.config.job import Job
from projector.measure.record import Record
from projector.measure.restore import Restoration
from projector.operations.cost import ANALYTIC, MEASURED, ORIGINS, SCALED, MeasuredRows
from projector.operations.table import CATEGORIES
from projector.operations.work import repeated_rows
from projector.projection.benchmark import Benchmark
from projector.projection.evaluate import Evaluation, evaluate
from projector.projection.measured_memory import anchored
from projector.projection.performance import (
    PerformanceProjection,
    performance_projection,
    replica_of,
    run_weights,
)
from projector.projection.pipeline_costs import cost_runs
from projector.projection.provenance import Origins
from projector.projection.results import Results
from projector.projection.terms import BREAKDOWN


class Hybrid:
    """A record made ready for one job and whatever shares its model, device and precision."""

    def __init__(self, job: Job, record: Record, tp_rule: str = "ratio") -> None:
        """Lower the benchmark job of the record beside ``job``; see `project_measured`."""
        self.record = record
        self.warnings = tuple(record.check(job))
        self.benchmark = Benchmark(job, record)
        self.restoration: Restoration = self.benchmark.restoration(tp_rule)

    def evaluate(self, job: Job) -> Evaluation:
        """Evaluate a job with what was measured."""
        return evaluate([job], self.restoration)

    def project(self, job: Job) -> PerformanceProjection:
        """Project a job with what was measured."""
        evaluation = self.evaluate(job)
        plain = performance_projection(Results(evaluation), 0)
        provenance = replace(
            plain.provenance,
            times=Origins(shares_of_terms(evaluation, self.restoration), self._described()),
            warnings=(*plain.provenance.warnings, *self.warnings),
        )
        memory = replace(anchored(plain.memory, self.benchmark), provenance=provenance)
        return replace(plain, memory=memory, scalars=memory.scalars, provenance=provenance)

    def _described(self) -> dict[str, Any]:
        """Return what was measured where, as ``provenance.record`` of ``--json`` has it."""
        record = self.record
        return {
            "device": record.environment.device,
            "environment": record.environment.model_dump(mode="json"),
            "profile": record.device,
            "version": record.version,
            "reduction": record.reduction,
            "tp_rule": self.restoration.tp_rule,
            "optimizer_ratio": self.restoration.optimizer_share,
            "send_ratio": self.restoration.send_share,
            "step_over_layers": self.benchmark.step_share,
            "spread": self.benchmark.spread,
        }


def project_measured(job: Job, record: Record, *, tp_rule: str = "ratio") -> PerformanceProjection:
    """Project the step of a job from a record of the same device, precision and model.

    Compute is restored to another tensor parallelism by the ``ratio`` of what the model says of
    both shapes, or ``linear`` in the ranks (Primus).
    """
    return Hybrid(job, record, tp_rule).project(job)


def shares_of_terms(
    evaluation: Evaluation, restoration: Restoration
) -> dict[str, dict[str, float]]:
    """Return which share of each term of the only job's step has which origin.

    Terms of layers and launches are those of the rank that ends the step. Idle time of the pipeline
    follows from layers of all ranks by replay, and what stragglers cost from compute: what was
    measured of these counts as scaled.
    """
    assert evaluation.rows.measured is not None
    held = replica_of(evaluation, 0)[1].model_stage[int(evaluation.steps.ending_rank[0])]
    seconds = _origins_of_stages(evaluation, evaluation.rows.measured, held.tolist())
    everywhere = _origins_of_stages(
        evaluation, evaluation.rows.measured, range(evaluation.workloads.num_stages(0))
    )
    launch = len(CATEGORIES)
    seconds[launch, ANALYTIC] += float(evaluation.batch.cluster.step_overhead_s[0])
    terms = dict(zip((*CATEGORIES, "launch"), seconds, strict=True))
    terms["pp_bubble"] = _restored(everywhere.sum(axis=0))
    terms["stragglers"] = _restored(seconds[:3].sum(axis=0))
    if restoration.optimizer_share is not None:
        terms["optimizer"] = np.array([0.0, 0.0, 1.0])
    if restoration.send_share is not None:
        near, latency_s = evaluation.inputs.p2p.near, evaluation.inputs.p2p.latency_s
        scaled = float(latency_s[near].sum())
        terms["pp_comm"] = np.array([float(latency_s.sum()) - scaled, 0.0, scaled])
    of_step = dict(zip(BREAKDOWN, evaluation.steps.breakdown_s[0].tolist(), strict=True))
    return {
        term: _shares(terms.get(term, np.zeros(len(ORIGINS))) * (of_step[term] > 0.0))
        for term in BREAKDOWN
    }


def _restored(seconds: Floats) -> Floats:
    """Return seconds by origin, where measured ones count as scaled."""
    moved = seconds.copy()
    moved[SCALED] += moved[MEASURED]
    moved[MEASURED] = 0.0
    return moved


def _shares(seconds: Floats) -> dict[str, float]:
    total = float(seconds.sum())
    if total <= 0.0:
        return {"measured": 0.0, "scaled": 0.0, "analytic": 1.0}
    return {name: float(seconds[ORIGINS.index(name)]) / total for name in reversed(_ORDER)}


_ORDER = ("analytic", "scaled", "measured")


def _origins_of_stages(
    evaluation: Evaluation, measured: MeasuredRows, stages: Iterable[int]
) -> Floats:
    """Return seconds of a step of some stages, float64[categories + 1, origins]; launches last."""
    stages = list(stages)
    workloads, table, rows = evaluation.workloads, evaluation.table, evaluation.rows
    weights = run_weights(evaluation, 0, stages, evaluation.order(0).microbatches)
    of_workload = np.array([weights.get(row, 0.0) for row in range(len(workloads.rows))])
    times = of_workload[table.workload] * (1.0 + repeated_rows(table, workloads))
    seconds = np.zeros((len(CATEGORIES) + 1, len(ORIGINS)))
    np.add.at(seconds, (table.category, measured.origin), rows.exposed_s * times)
    launch_s = cost_runs(workloads.first_jobs(), workloads, evaluation.costs).launch_s
    origin: Ints = measured.layer_origin
    for run in (run for stage in stages for run in workloads.runs(0, stage)):
        workload = int(workloads.run_workload[run])
        count = float(workloads.run_count[run]) * evaluation.order(0).microbatches
        np.add.at(seconds[-1], origin[workload], launch_s[run] * count)
    return seconds
