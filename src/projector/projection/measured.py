"""Hybrid projection: what a record measured, and the model for everything else.

Memory is anchored on the peak of a measured step. What was measured also stands beside what the
models say.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Floats, Ints
from projector.config.job import Job
from projector.config.resources import hardware_table
from projector.lower.stages import KINDS
from projector.measure.keys import OperationKey, keys_of
from projector.measure.programs import LAYER_KINDS, layers_of
from projector.measure.record import Record
from projector.measure.restore import Restoration
from projector.measure.task import LayerKind, LayerSpec
from projector.operations.cost import ANALYTIC, MEASURED, ORIGINS, SCALED, MeasuredRows
from projector.operations.table import BACKWARD, CATEGORIES, FORWARD, WEIGHT
from projector.operations.work import repeated_rows
from projector.projection.bands import verdict_of
from projector.projection.benchmark import Benchmark
from projector.projection.comparison import (
    ComparedLayer,
    ComparedMemory,
    ComparedOperation,
    Comparison,
    NotMeasured,
    Pair,
    Peaks,
)
from projector.projection.evaluate import Evaluation, evaluate
from projector.projection.memory import MemoryAnchor, MemoryProjection
from projector.projection.performance import (
    PerformanceProjection,
    performance_projection,
    replica_of,
    run_weights,
)
from projector.projection.pipeline_costs import cost_runs
from projector.projection.provenance import Origins
from projector.projection.results import DOES_NOT_FIT, OK, Results
from projector.projection.terms import BREAKDOWN
from projector.units import GIB

ASSUMED = "measured.yaml"
"""What is assumed of restored memory."""


def step_bytes(
    benchmark: Benchmark, layers: Sequence[LayerSpec], states_bytes: float | None = None
) -> float:
    """Return the modelled peak of a step of some layers on one rank that shares nothing.

    Weights, gradients and states of all of them, what they keep for the backward, the largest
    working set and the workspaces of libraries. ``states_bytes`` are weights, gradients and states
    as the step really holds them; without, those of the job's training.
    """
    costs, evaluation = benchmark.evaluation.costs, benchmark.evaluation
    found = (benchmark.workload_of(layer) for layer in layers)
    rows = [row for row in found if row is not None]
    parameters = float((costs.dense_parameters + costs.expert_parameters)[rows].sum())
    training = evaluation.batch.training
    of_parameter = training.held_weight_bytes + training.gradient_bytes + training.state_bytes
    if states_bytes is None:
        states_bytes = parameters * float(of_parameter[0])
    kept = float(costs.saved_bytes[rows].sum())
    transient = float(costs.transient_bytes[rows].max(initial=0.0))
    return (
        states_bytes + kept + transient + 2.0 * float(evaluation.batch.cluster.workspace_bytes[0])
    )


def anchor_of(benchmark: Benchmark, analytic_bytes: float) -> MemoryAnchor | None:
    """Return what the measured step says of a job with some modelled peak; None without one.

    What the step holds beyond the model counts as alive; if it holds less, the model stands, since
    a step of few layers does not meet every peak.
    """
    step = benchmark.record.step
    if step is None or step.outcome.status != "ok":
        return None
    if not step.layers or None in map(benchmark.workload_of, step.layers):
        return None  # What of the peak the model knows cannot be told.
    numbers = step.outcome.numbers
    allocated = numbers.get("peak_allocated_bytes", 0.0)
    if allocated <= 0.0:
        return None
    reserved = numbers.get("peak_reserved_bytes", allocated)
    communicators = max(0.0, numbers.get("communicator_bytes", 0.0))
    modelled = step_bytes(benchmark, step.layers, numbers.get("states_bytes"))
    return MemoryAnchor(
        analytic_bytes=analytic_bytes,
        live_bytes=max(0.0, allocated - modelled),
        idle_bytes=max(0.0, reserved - allocated - communicators),
        measured_bytes=allocated,
        margin=float(hardware_table(ASSUMED)["memory"]["margin"]["value"]),
    )


def anchored(memory: MemoryProjection, benchmark: Benchmark) -> MemoryProjection:
    """Return a memory projection with what the measured step held beyond the model.

    It lives on every rank beside its working set. What the allocator had idle replaces what the
    model expects of it; whether the job fits depends, as before, on what cannot be given back.
    """
    anchor = anchor_of(benchmark, memory.peak_bytes)
    if anchor is None:
        return memory
    peak, usable = anchor.allocated_bytes, memory.usable_bytes
    band = verdict_of(memory.job, peak, usable)
    stages = tuple(
        replace(stage, transient_bytes=stage.transient_bytes + anchor.live_bytes)
        for stage in memory.stages
    )
    scalars = {
        **memory.scalars,
        "peak_gib": peak / GIB,
        "peak_gib_low": band.low_bytes / GIB,
        "peak_gib_high": max(band.high_bytes, anchor.upper_bytes) / GIB,
        "headroom_gib": (usable - peak) / GIB,
        "allocator_gib": anchor.idle_bytes / GIB,
        "fits": peak <= usable,
        "verdict": band.verdict,
        "status": OK if peak <= usable else DOES_NOT_FIT,
    }
    return replace(memory, stages=stages, scalars=scalars, anchor=anchor)


def compare_record(
    benchmark: Benchmark, restored: PerformanceProjection, simulated: PerformanceProjection
) -> Comparison:
    """Put what was measured beside the models, of the benchmark and of the target."""
    record = benchmark.record
    times = benchmark.layer_times()
    seconds = times.device_s + times.host_s
    layer_s = [
        (layer, float(phases[FORWARD]), float(phases[BACKWARD] + phases[WEIGHT]))
        for layer, phases in zip(layers_of(benchmark.evaluation.workloads), seconds, strict=True)
    ]
    target = evaluate([simulated.job])
    terms = {
        name: Pair(seconds, simulated.breakdown_s[name])
        for name, seconds in restored.breakdown_s.items()
    }
    return Comparison(
        operations=tuple(_operations(record, (benchmark.evaluation, target))),
        layers=tuple(_layers(record, layer_s)),
        step=_step(benchmark, layer_s),
        target={**terms, "total": Pair(restored.iteration_time_s, simulated.iteration_time_s)},
        memory=compare_memory(benchmark, restored.memory),
        missing=tuple(_missing(record)),
    )


def compare_memory(benchmark: Benchmark, anchored: MemoryProjection) -> ComparedMemory | None:
    """Put the peak of the measured step, and the one anchored on it, beside modelled ones."""
    step, anchor = benchmark.record.step, anchored.anchor
    if step is None or anchor is None:
        return None
    modelled = step_bytes(benchmark, step.layers, step.outcome.numbers.get("states_bytes"))
    return {
        "step": Peaks(anchor.measured_bytes, modelled),
        "target": Peaks(anchor.allocated_bytes, anchor.analytic_bytes),
    }


def _operations(record: Record, jobs: Sequence[Evaluation]) -> Iterator[ComparedOperation]:
    """Yield each measured kernel once, with its first layer; some are the target's alone."""
    known: dict[OperationKey, _Modelled] = {}
    for evaluation in jobs:
        known = {**_kernels(evaluation), **known}
    for entry in record.operations:
        timing = entry.outcome.timing()
        if timing is None or entry.key not in known:
            continue
        modelled = known[entry.key]
        yield ComparedOperation(
            layer=modelled.layer,
            key=entry.key,
            pair=Pair(timing.median_s, modelled.once_s),
            low_s=timing.low_s,
            high_s=timing.high_s,
            runs=modelled.runs,
            backend=entry.outcome.backend,
        )


class _Modelled(NamedTuple):
    layer: LayerKind
    """The first that has it."""
    once_s: float
    runs: float
    """How often a microbatch runs it in one such layer."""


def _kernels(evaluation: Evaluation) -> dict[OperationKey, _Modelled]:
    table, kind = evaluation.table, evaluation.workloads.columns.kind
    once_s = evaluation.rows.time_s / np.maximum(table.repeats, 1.0)
    rows: dict[OperationKey, int] = {}
    runs: dict[OperationKey, float] = {}
    for row, key in enumerate(keys_of(table, np.arange(len(table)))):
        first = rows.setdefault(key, row)
        if table.workload[first] == table.workload[row]:
            runs[key] = runs.get(key, 0.0) + float(table.repeats[row])
    return {
        key: _Modelled(
            LAYER_KINDS[KINDS[int(kind[table.workload[row]])]], float(once_s[row]), runs[key]
        )
        for key, row in rows.items()
    }


_LayerSeconds = list[tuple[LayerSpec, float, float]]
"""Each layer of the benchmark job with its modelled seconds, forward and backward."""


def _modelled(layer: LayerSpec, layer_s: _LayerSeconds) -> tuple[float, float] | None:
    """Return modelled seconds of forward and backward of a layer; none if the job has none."""
    found = ((forward, backward) for spec, forward, backward in layer_s if spec == layer)
    return next(found, None)


def _layers(record: Record, layer_s: _LayerSeconds) -> Iterator[ComparedLayer]:
    for entry in record.layers:
        modelled = _modelled(entry.layer, layer_s)
        for phase, simulated_s in zip(PASSES, modelled or (), strict=False):
            timing = entry.outcome.timing(phase)
            if timing is not None:
                yield ComparedLayer(entry.layer.kind, phase, Pair(timing.median_s, simulated_s))


PASSES = ("forward", "backward")
"""What is measured of a layer."""


def _step(benchmark: Benchmark, layer_s: _LayerSeconds) -> dict[str, Pair]:
    """Return the parts of the measured step beside the sums of its layers."""
    step = benchmark.record.step
    if step is None or step.outcome.status != "ok":
        return {}
    modelled = [_modelled(layer, layer_s) for layer in step.layers]
    known = [times for times in modelled if times is not None]
    if len(known) < len(modelled):
        return {}
    simulated = {phase: math.fsum(times[at] for times in known) for at, phase in enumerate(PASSES)}
    parameters = step.outcome.numbers.get("parameters", 0.0)
    if parameters >= 1.0:
        simulated["optimizer"] = benchmark.update_s(parameters)
        simulated["total"] = math.fsum(simulated.values())
    return {
        name: Pair(timing.median_s, seconds)
        for name, seconds in simulated.items()
        if (timing := step.outcome.timing(name)) is not None
    }


def _missing(record: Record) -> Iterator[NotMeasured]:
    for name, outcome in record.not_measured():
        message = "it took no time" if outcome.status == "ok" else outcome.message
        yield NotMeasured(name, outcome.status, message)


class Hybrid:
    """A record made ready for one job and whatever shares its model, device and precision."""

    def __init__(self, job: Job, record: Record, tp_rule: str = "ratio") -> None:
        """Lower the benchmark job of the record beside ``job``.

        Compute is restored to another tensor parallelism by the ``ratio`` of what the model says of
        both shapes, or ``linear`` in the ranks (Primus).
        """
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
    names = ("measured", "scaled", "analytic")
    return {name: float(seconds[ORIGINS.index(name)]) / total for name in names}


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
    splits = evaluation.order(0).short().splits_backward
    launch_s = cost_runs(workloads, evaluation.costs, splits=splits).launch_s
    origin: Ints = measured.layer_origin
    runs = [run for stage in stages for run in workloads.runs(0, stage)]
    count = workloads.run_count[runs, np.newaxis] * float(evaluation.order(0).microbatches)
    np.add.at(seconds[-1], origin[workloads.run_workload[runs]], launch_s[runs] * count)
    return seconds
