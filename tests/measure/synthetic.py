"""Records of a device that behaves exactly like the model, or slower by a known factor."""

from collections.abc import Mapping

import numpy as np

from projector.config.job import Job
from projector.lower.workloads import Workloads
from projector.measure.keys import OperationKey, keys_of
from projector.measure.programs import layers_of, record_of, task_of
from projector.measure.record import Record
from projector.measure.reduction import Reduction
from projector.measure.task import (
    Answer,
    CopyProgram,
    Environment,
    LayerProgram,
    LayerSpec,
    OperationProgram,
    Outcome,
    Program,
    StepProgram,
    Timing,
)
from projector.projection.benchmark import Benchmark
from projector.projection.evaluate import Evaluation, evaluate
from projector.projection.measured import Hybrid, step_bytes
from projector.projection.performance import PerformanceProjection

SPREAD = 0.02
"""Quarters of the runs are so much faster and slower than the median."""

NO_ANSWER = Outcome(status="unsupported", message="not measured")


def timing(seconds: float) -> Timing:
    """Return the timing of a run that takes so long."""
    low, high = seconds * (1.0 - SPREAD), seconds * (1.0 + SPREAD)
    return Timing(median_s=seconds, low_s=low, high_s=high, repeats=11)


def synthetic_record(
    reduction: Reduction,
    slow: float = 1.0,
    *,
    extra_s: Mapping[str, float] | None = None,
    operations: bool = True,
    layers: bool = True,
    step: bool = True,
    gradients_apart: bool = True,
    idle_bytes: float = 0.0,
    live_bytes: float = 0.0,
    device: str = "",
) -> Record:
    """Return what a device would answer that behaves like the model.

    Parameters
    ----------
    reduction : Reduction
        Of the job asked for.
    slow : float
        Everything takes so many times longer.
    extra_s : mapping, optional
        Kind of layer -> what it takes longer in the forward.
    operations, layers, step : bool
        Whether these were measured.
    gradients_apart : bool
        Whether layers tell the gradients of inputs and weights apart.
    idle_bytes : float
        What the allocator reserves beyond what is allocated at the peak of the step.
    live_bytes : float
        What lives at that peak that the model does not know.
    device : str
        Name as the runtime gives it; that of the profile unless stated.
    """
    task = task_of(reduction)
    environment = Environment(
        device=device or reduction.job.cluster.device.name,
        backend="cuda",
        memory_bytes=80 << 30,
        ranks=reduction.gpus,
        torch="2.13.0",
    )
    unanswered = Answer(environment=environment, outcomes=[NO_ANSWER] * len(task.programs))
    model = _Model(Benchmark(reduction.target, record_of(reduction, task, unanswered)), slow)
    model.knows(evaluate([reduction.target]))
    model.extra_s = extra_s or {}
    model.gradients_apart = gradients_apart
    model.idle_bytes, model.live_bytes = idle_bytes, live_bytes
    measured: dict[type, bool] = {
        OperationProgram: operations,
        LayerProgram: layers,
        StepProgram: step,
    }
    outcomes = [
        model.outcome(program) if measured.get(type(program), True) else NO_ANSWER
        for program in task.programs
    ]
    return record_of(reduction, task, Answer(environment=environment, outcomes=outcomes))


class _Model:
    """Answers programs from the analytic model of the benchmark job."""

    def __init__(self, benchmark: Benchmark, slow: float) -> None:
        """Cost every row and every layer once."""
        self.benchmark, self.slow = benchmark, slow
        self.extra_s: Mapping[str, float] = {}
        self.gradients_apart = True
        self.idle_bytes = self.live_bytes = 0.0
        evaluation = benchmark.evaluation
        self.time_s: dict[OperationKey, float] = {}
        self.knows(evaluation)
        times = benchmark.layer_times()
        self.layer_s = slow * (times.device_s + times.host_s)
        self.specs = layers_of(evaluation.workloads)

    def knows(self, evaluation: Evaluation) -> None:
        """Answer for the operations of a job, whether the benchmark job has them or not."""
        table = evaluation.table
        once_s = self.slow * evaluation.rows.time_s / np.maximum(table.repeats, 1.0)
        keys = keys_of(table, np.arange(len(table)))
        self.time_s |= dict(zip(keys, once_s.tolist(), strict=True))

    @property
    def workloads(self) -> Workloads:
        return self.benchmark.evaluation.workloads

    def outcome(self, program: Program) -> Outcome:
        match program:
            case OperationProgram():
                return _ok(time=self._operation(program.key))
            case LayerProgram():
                return _ok(**self._layer(program.layer))
            case StepProgram():
                return self._step(program)
            case CopyProgram():
                return _ok(time=self.slow * 2.0 * program.bytes / 2e12)
            case _:
                return Outcome(status="ok", numbers={"clock_mhz": 1500.0})

    def _operation(self, key: OperationKey) -> float:
        if key in self.time_s:
            return self.time_s[key]
        assert key.label == "pipeline.send", "no row of the benchmark job"
        return self.slow * self.benchmark.send_s(key.bytes)

    def _layer(self, layer: LayerSpec) -> dict[str, float]:
        forward, inputs, weights = self.layer_s[self.specs.index(layer)].tolist()
        times = {
            "forward": forward + self.extra_s.get(layer.kind, 0.0),
            "backward": inputs + weights,
        }
        if self.gradients_apart:
            times |= {"input_gradient": inputs, "weight_gradient": weights}
        return times

    def _step(self, program: StepProgram) -> Outcome:
        costs = self.benchmark.evaluation.costs
        workloads = [self.specs.index(layer) for layer in program.layers]
        parameters = (costs.dense_parameters + costs.expert_parameters)[workloads].sum().item()
        layers = [self._layer(layer) for layer in program.layers]
        times = {name: sum(layer[name] for layer in layers) for name in ("forward", "backward")}
        times["optimizer"] = self.slow * self.benchmark.update_s(parameters)
        times["total"] = sum(times.values())
        allocated = step_bytes(self.benchmark, program.layers) + self.live_bytes
        numbers = {
            "parameters": parameters,
            "peak_allocated_bytes": allocated,
            "peak_reserved_bytes": allocated + self.idle_bytes,
        }
        return _ok(**times).model_copy(update={"numbers": numbers})


def _ok(**times: float) -> Outcome:
    named = {name: timing(seconds) for name, seconds in times.items()}
    return Outcome(status="ok", times=named, backend="synthetic")


def project_measured(job: Job, record: Record, *, tp_rule: str = "ratio") -> PerformanceProjection:
    """Project the step of a job from a record of the same device, precision and model."""
    return Hybrid(job, record, tp_rule).project(job)
