"""Puts a record beside what the models say of the same job."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from projector.lower.kinds import KINDS
from projector.measure.keys import OperationKey, keys_of
from projector.measure.programs import LAYER_KINDS, layers_of
from projector.measure.record import Record
from projector.measure.task import LayerKind, LayerSpec
from projector.operations.table import BACKWARD, FORWARD, WEIGHT
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
from projector.projection.measured_memory import step_bytes
from projector.projection.memory import MemoryProjection
from projector.projection.performance import PerformanceProjection


def compare_record(
    benchmark: Benchmark, restored: PerformanceProjection, simulated: PerformanceProjection
) -> Comparison:
    """Put what a record measured beside what the models say, of the benchmark and of the target.

    Parameters
    ----------
    benchmark : Benchmark
        Of the record.
    restored, simulated : PerformanceProjection
        The job asked for, from the record and from the models alone.
    """
    record = benchmark.record
    layer_s = _layer_seconds(benchmark)
    target = evaluate([simulated.job])
    return Comparison(
        operations=tuple(_operations(record, (benchmark.evaluation, target))),
        layers=tuple(_layers(record, layer_s)),
        step=_step(benchmark, layer_s),
        target=_target(restored, simulated),
        memory=compare_memory(benchmark, restored.memory),
        missing=tuple(_missing(record)),
    )


def compare_memory(benchmark: Benchmark, anchored: MemoryProjection) -> ComparedMemory | None:
    """Put the peak of the measured step, and the one anchored on it, beside modelled ones.

    Parameters
    ----------
    benchmark : Benchmark
        Of the record.
    anchored : MemoryProjection
        Of the job asked for.
    """
    step, anchor = benchmark.record.step, anchored.anchor
    if step is None or anchor is None:
        return None
    modelled = step_bytes(benchmark, step.layers, step.outcome.numbers.get("states_bytes"))
    return ComparedMemory(
        step=Peaks(anchor.measured_bytes, modelled),
        target=Peaks(anchor.allocated_bytes, anchor.analytic_bytes),
    )


def _target(restored: PerformanceProjection, simulated: PerformanceProjection) -> dict[str, Pair]:
    terms = {
        name: Pair(seconds, simulated.breakdown_s[name])
        for name, seconds in restored.breakdown_s.items()
    }
    return {**terms, "total": Pair(restored.iteration_time_s, simulated.iteration_time_s)}


def _operations(record: Record, jobs: Sequence[Evaluation]) -> Iterator[ComparedOperation]:
    """Yield each measured kernel once, with the first layer that has it.

    Some are kernels of the target alone.
    """
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
    """What the models say of a kernel."""

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


def _layer_seconds(benchmark: Benchmark) -> _LayerSeconds:
    times = benchmark.layer_times()
    seconds = times.device_s + times.host_s
    return [
        (layer, float(phases[FORWARD]), float(phases[BACKWARD] + phases[WEIGHT]))
        for layer, phases in zip(layers_of(benchmark.evaluation.workloads), seconds, strict=True)
    ]


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
                pair = Pair(timing.median_s, simulated_s)
                yield ComparedLayer(entry.layer.kind, phase, pair)


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
