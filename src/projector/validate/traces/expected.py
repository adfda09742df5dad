"""What the models expect of one rank's step, operation by operation."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from projector.config.device_kernels import MATRIX_TYPES
from projector.config.job import Job
from projector.config.recurrence import WEIGHTS
from projector.lower.stages import KINDS, is_layer
from projector.measure.keys import PHASES, OperationKey, keys_of
from projector.operations.table import CATEGORIES
from projector.operations.work import repeated_rows
from projector.projection import performance as projected
from projector.projection.data_parallel import pass_flags
from projector.projection.evaluate import Evaluation, evaluate
from projector.projection.results import Results
from projector.trace.activity import BACKWARD, FORWARD, OPTIMIZER
from projector.units import TERA

DATA_PARALLEL, PIPELINE = "dp_comm", "pp_comm"
"""Categories of collectives that stand in no row of the operation table."""


class Name(NamedTuple):
    """What makes operations of a step one operation of a comparison."""

    label: str
    """Label of the operation table, such as ``mlp.fc1``."""
    phase: str
    """``forward``, ``backward`` (gradients of inputs), ``weight``, ``recompute``, ``optimizer``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRow:
    """One kernel or collective that the models expect, with how often a step runs it."""

    name: Name
    kind: str
    """``gemm``, ``attention``, ``memory``, ``collective``, ``exchange`` or ``optimizer``."""
    key: OperationKey | None
    category: str
    """Term of the step, such as ``compute_gemm``."""
    runs: float
    """Times in a step on the rank."""
    time_s: float
    """Time of one run on the device."""
    flop: float = 0.0
    """FLOP that one run needs."""
    bytes: float = 0.0
    """Of one run: traffic, or the buffer of a collective."""
    launches: float = 1.0
    """Kernels of one run."""
    clock_hz: float = 0.0
    """Clock that the model assumes."""

    @property
    def in_kernel(self) -> bool:
        """Whether it is a product within a kernel of a recurrence: no operator has its extents."""
        mixer = self.name.label.partition(".")[0]
        return self.category == "compute_attention" and mixer in WEIGHTS

    @property
    def group(self) -> int:
        """Phase of a trace in which it runs; recomputation runs in the backward."""
        phases = {"forward": FORWARD, "optimizer": OPTIMIZER}
        return phases.get(self.name.phase, BACKWARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the models expect of the step of one pipeline rank."""

    job: Job
    performance: projected.PerformanceProjection
    rank: int
    rows: tuple[ExpectedRow, ...]
    layers: tuple[tuple[str, ...], ...]
    """Labels of each kind of layer that the rank holds, in the order of the table."""
    before: tuple[str, ...] = ()
    """Labels that run before the first layer."""
    after: tuple[str, ...] = ()
    """Labels that run behind the last layer."""
    peak_flop_per_s: dict[str, float] = field(default_factory=dict)
    """Dense datasheet peak of each matrix type of the rows."""

    def of(self, phase: str, *kinds: str) -> list[ExpectedRow]:
        """Return the rows of a phase and of some kinds."""
        return [row for row in self.rows if row.name.phase == phase and row.kind in kinds]

    @property
    def names(self) -> tuple[Name, ...]:
        """Every operation once, in the order of the table."""
        return tuple(dict.fromkeys(row.name for row in self.rows))


def expect(job: Job, rank: int | None = None) -> Expected:
    """Project a job and list what one rank of its pipeline runs in a step.

    It is the rank that ends the step unless given.
    """
    evaluation = evaluate([job])
    performance = projected.performance_projection(Results(evaluation), 0)
    rank = int(evaluation.steps.ending_rank[0]) if rank is None else rank
    held = projected.replica_of(evaluation, 0)[1].model_stage[rank].tolist()
    weights = projected.run_weights(evaluation, 0, held, evaluation.order(0).microbatches)
    rows = [
        *_table_rows(evaluation, weights),
        *_copy_rows(evaluation, weights),
        *_other_rows(performance),
    ]
    used = {row.key.dtype for row in rows if row.key is not None}
    layers, before, after = _order(evaluation, weights)
    return Expected(
        job=job,
        performance=performance,
        rank=rank,
        rows=tuple(rows),
        layers=layers,
        before=before,
        after=after,
        peak_flop_per_s={
            name: job.cluster.device.peak_tflops(name) * TERA
            for name in MATRIX_TYPES
            if name in used
        },
    )


def _table_rows(evaluation: Evaluation, weights: dict[int, float]) -> Iterator[ExpectedRow]:
    table, workloads = evaluation.table, evaluation.workloads
    again = repeated_rows(table, workloads)
    chosen = np.flatnonzero(np.isin(table.workload, list(weights)))
    clocks = workloads.devices["clock_hz"][workloads.columns.device[table.workload]]
    for row, key in zip(chosen.tolist(), keys_of(table, chosen), strict=True):
        runs = weights[int(table.workload[row])]
        phase = PHASES[table.phase[row]]
        repeats = max(float(table.repeats[row]), 1.0)
        time_s = float(evaluation.rows.time_s[row]) / repeats
        if time_s == 0.0:
            continue
        for name, present in ((phase, True), ("recompute", bool(again[row]))):
            if present:
                yield ExpectedRow(
                    name=Name(key.label, name),
                    kind=key.kind,
                    key=key,
                    category=CATEGORIES[table.category[row]],
                    runs=runs * repeats,
                    time_s=time_s,
                    flop=float(table.flop[row]) / repeats,
                    bytes=float(table.bytes[row]),
                    launches=float(table.launches[row]),
                    clock_hz=float(clocks[row, table.dtype[row]]),
                )


def _copy_rows(evaluation: Evaluation, weights: dict[int, float]) -> Iterator[ExpectedRow]:
    """Yield the copies of FSDP around its collectives, which run between the kernels of layers.

    Gathered weights are copied in every forward, and in every backward that gathers them again;
    gradients are copied before they are reduced.
    """
    replicas, parallel = evaluation.inputs.replicas, evaluation.parallel
    replica = int(replicas.of_job[0])
    own = np.flatnonzero(replicas.of_run == replica)
    # Layers of one kind are alike in all stages of a replica.
    sent_as = dict(
        zip(
            replicas.workloads.run_workload[replicas.run[own]].tolist(),
            parallel.of_run[own].tolist(),
            strict=True,
        )
    )
    again = bool(pass_flags(replicas).regathers[replica])
    for workload, runs in weights.items():
        gather_s = float(parallel.sent.gather_copy_s[sent_as[workload]])
        reduce_s = float(parallel.sent.reduce_copy_s[sent_as[workload]])
        for label, phase, time_s in (
            ("fsdp.copy_in", "forward", gather_s),
            ("fsdp.copy_in", "backward", gather_s if again else 0.0),
            ("fsdp.copy_out", "backward", reduce_s),
        ):
            if time_s > 0.0:
                yield ExpectedRow(
                    name=Name(label, phase), kind="memory", key=None, category=DATA_PARALLEL,
                    runs=runs, time_s=time_s,
                )  # fmt: skip


def _other_rows(performance: projected.PerformanceProjection) -> Iterator[ExpectedRow]:
    """Yield what stands in no row of the table: data and pipeline parallelism, and the update."""
    sums: dict[tuple[str, str], tuple[float, float]] = {}
    for name, entry in performance.communication.items():
        prefix, _, label = name.partition(":")
        if prefix in ("dp", "pp") and entry.time_s > 0.0 and label != projected.ELSEWHERE:
            # Names in traces do not tell gradients and weights of experts apart from dense ones.
            place = prefix, label.removeprefix("experts.")
            time_s, num_bytes = sums.get(place, (0.0, 0.0))
            sums[place] = time_s + entry.time_s, num_bytes + entry.bytes
    for (prefix, label), (time_s, num_bytes) in sums.items():
        yield ExpectedRow(
            name=Name(f"{prefix}.{label}", "step"), kind="collective", key=None,
            category=f"{prefix}_comm", runs=1.0, time_s=time_s, bytes=num_bytes,
        )  # fmt: skip
    update_s = performance.breakdown_s["optimizer"]
    if update_s > 0.0:
        yield ExpectedRow(
            name=Name("optimizer", "optimizer"), kind="optimizer", key=None, category="optimizer",
            runs=1.0, time_s=update_s,
        )  # fmt: skip


_Order = tuple[tuple[tuple[str, ...], ...], tuple[str, ...], tuple[str, ...]]


def _order(evaluation: Evaluation, weights: dict[int, float]) -> _Order:
    table, kinds = evaluation.table, evaluation.workloads.columns.kind
    layers: list[tuple[str, ...]] = []
    ends: dict[str, tuple[str, ...]] = {}
    for workload in weights:
        rows = np.flatnonzero(table.workload == workload)
        labels = tuple(dict.fromkeys(table.labels[code] for code in table.label[rows].tolist()))
        if is_layer(kinds[workload : workload + 1])[0]:
            layers.append(labels)
        else:
            shown = KINDS[int(kinds[workload])].shown
            ends[shown] = ends.get(shown, ()) + labels
    before = ends.pop("embedding", ())
    after = tuple(label for labels in ends.values() for label in labels)
    return tuple(dict.fromkeys(layers)), before, after
