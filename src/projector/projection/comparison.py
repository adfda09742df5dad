"""Measured beside simulated: operations, layers and a step of the benchmark, and the target.

A whole record is put beside what the models say of its job.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from projector.lower.stages import KINDS
from projector.measure.keys import OperationKey, keys_of
from projector.measure.programs import LAYER_KINDS, layers_of
from projector.measure.record import Record
from projector.measure.task import LayerKind, LayerSpec
from projector.operations.table import BACKWARD, FORWARD, WEIGHT
from projector.projection.benchmark import Benchmark
from projector.projection.evaluate import Evaluation, evaluate
from projector.projection.measured_memory import step_bytes
from projector.projection.memory import MemoryProjection
from projector.projection.performance import PerformanceProjection
from projector.units import to_gib, to_ms


@dataclass(frozen=True, slots=True)
class Pair:
    """One time, measured and simulated."""

    measured_s: float
    simulated_s: float

    @property
    def ratio(self) -> float | None:
        """Simulated over measured, as `projector validate` has it; none where nothing ran."""
        return self.simulated_s / self.measured_s if self.measured_s > 0.0 else None

    def to_dict(self) -> dict[str, Any]:
        """Return both in milliseconds."""
        return {
            "measured_ms": to_ms(self.measured_s),
            "simulated_ms": to_ms(self.simulated_s),
            "ratio": self.ratio,
        }


@dataclass(frozen=True, slots=True)
class ComparedOperation:
    """One kernel of the benchmark job, run by itself."""

    layer: str
    """Kind of the layer that it belongs to."""
    key: OperationKey
    pair: Pair
    low_s: float
    """Quarter of the runs were faster."""
    high_s: float
    """Quarter of the runs were slower."""
    runs: float
    """How often a microbatch runs it in one such layer."""
    backend: str = ""
    """What ran it."""

    @property
    def shape(self) -> str:
        """What its kernel works on, in a few characters."""
        return shape_of(self.key)

    def to_dict(self) -> dict[str, Any]:
        """Return the operation as ``--json`` prints it."""
        return {
            "layer": self.layer,
            "operation": self.key.label,
            "phase": self.key.phase,
            "kind": self.key.kind,
            "shape": self.shape,
            **self.pair.to_dict(),
            "measured_low_ms": to_ms(self.low_s),
            "measured_high_ms": to_ms(self.high_s),
            "runs_per_layer": self.runs,
            "backend": self.backend,
        }


@dataclass(frozen=True, slots=True)
class ComparedLayer:
    """Forward or backward of one real layer."""

    layer: str
    phase: str
    pair: Pair

    def to_dict(self) -> dict[str, Any]:
        """Return the layer as ``--json`` prints it."""
        return {"layer": self.layer, "phase": self.phase, **self.pair.to_dict()}


@dataclass(frozen=True, slots=True)
class Peaks:
    """One peak of memory, measured or anchored on what was, and simulated."""

    measured_bytes: float
    simulated_bytes: float

    @property
    def ratio(self) -> float | None:
        """Simulated over measured; none where nothing was held."""
        return self.simulated_bytes / self.measured_bytes if self.measured_bytes > 0.0 else None

    def to_dict(self) -> dict[str, Any]:
        """Return both in GiB."""
        return {
            "measured_gib": to_gib(self.measured_bytes),
            "simulated_gib": to_gib(self.simulated_bytes),
            "ratio": self.ratio,
        }


@dataclass(frozen=True, slots=True)
class ComparedMemory:
    """Peaks, allocated."""

    step: Peaks
    """Of the measured step of the benchmark."""
    target: Peaks
    """Of the job asked for, anchored on it."""

    def to_dict(self) -> dict[str, Any]:
        """Return the object that stands under ``comparison`` in ``memory --json``."""
        return {"step": self.step.to_dict(), "target": self.target.to_dict()}


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """A program that gave no time, and why."""

    name: str
    status: str
    message: str

    def to_dict(self) -> dict[str, Any]:
        """Return the program as ``--json`` prints it."""
        return {"name": self.name, "status": self.status, "message": self.message}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that was both measured and simulated."""

    operations: tuple[ComparedOperation, ...]
    layers: tuple[ComparedLayer, ...]
    step: Mapping[str, Pair]
    """Of a step with one layer of each kind: ``forward_backward``, ``optimizer``, ``total``."""
    target: Mapping[str, Pair]
    """Terms of the restored target's step, and its ``total``."""
    memory: ComparedMemory | None = None
    """Peaks, where the step said any."""
    missing: tuple[NotMeasured, ...] = ()

    @property
    def total(self) -> Pair:
        """The step of the restored target."""
        return self.target["total"]

    def to_dict(self) -> dict[str, Any]:
        """Return the object that stands under ``comparison`` in ``--json``."""
        return {
            "operations": [entry.to_dict() for entry in self.operations],
            "layers": [entry.to_dict() for entry in self.layers],
            "step": {name: pair.to_dict() for name, pair in self.step.items()},
            "target": {name: pair.to_dict() for name, pair in self.target.items()},
            "memory": self.memory.to_dict() if self.memory is not None else None,
            "summary": {
                "operations": errors(entry.pair for entry in self.operations),
                "layers": errors(entry.pair for entry in self.layers),
            },
            "not_measured": [entry.to_dict() for entry in self.missing],
        }


def errors(pairs: Iterable[Pair]) -> dict[str, Any]:
    """Sum up how far simulated times are off.

    ``median_ape`` is the median of |simulated / measured - 1|; it and ``geomean_ratio`` are None
    without a pair.
    """
    ratios = [pair.ratio for pair in pairs]
    known = [ratio for ratio in ratios if ratio is not None and ratio > 0.0]
    if not known:
        return {"count": 0, "median_ape": None, "geomean_ratio": None}
    return {
        "count": len(known),
        "median_ape": median(abs(ratio - 1.0) for ratio in known),
        "geomean_ratio": math.exp(math.fsum(map(math.log, known)) / len(known)),
    }


def shape_of(key: OperationKey) -> str:
    """Return what the kernel of a key works on, in a few characters."""
    if key.kind == "gemm":
        batch = f"{key.batch} x " if key.batch > 1 else ""
        return f"{batch}{key.m} x {key.n} x {key.k} {key.dtype}"
    if key.kind == "attention":
        width = f"{key.k}" if key.d_v in (0, key.k) else f"{key.k}/{key.d_v}"
        return f"{key.batch} x {key.heads}/{key.key_heads} x {key.m} x {width} {key.dtype}"
    if key.kind == "memory":
        return f"{key.bytes / 1e6:,.3g} MB"
    if key.kind == "collective":
        return f"{key.bytes / 1e6:,.3g} MB on {key.ranks}"
    return f"{key.tokens:,.0f} tokens on {key.ranks}"


def compare_record(
    benchmark: Benchmark, restored: PerformanceProjection, simulated: PerformanceProjection
) -> Comparison:
    """Put what a record measured beside what the models say, of the benchmark and of the target.

    The target was projected from the record (``restored``) and from the models alone.
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
    """Put the peak of the measured step, and the one anchored on it, beside modelled ones."""
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
