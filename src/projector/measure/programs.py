"""What is measured of a benchmark job: the job is reduced, measured, and kept as a record."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from projector.arrays import Ints
from projector.config.adapter import refuse_adapter
from projector.config.job import Job
from projector.config.model import refuse_diffusion, refuse_hybrid
from projector.kernels.device import MATRIX_TYPES
from projector.lower.batch import JobBatch, job_columns
from projector.lower.stages import KINDS, Kind
from projector.lower.workloads import Workloads, build_workloads, lay_out
from projector.measure import record
from projector.measure import task as tasks
from projector.measure.keys import OperationKey, keys_of
from projector.measure.process import run_task
from projector.measure.reduction import Reduction, reduce_job, reduction_lines
from projector.operations.cost import cost_rows
from projector.operations.emit import emit_operations
from projector.operations.table import ATTENTION, COLLECTIVE, CP_COMM, GEMM, MEMORY, OperationTable

LAYER_KINDS: dict[Kind, tasks.LayerKind] = {
    Kind.DENSE: "dense",
    Kind.MOE: "moe",
    Kind.EMBEDDING: "embedding",
    Kind.HEAD: "head",
    Kind.MTP: "mtp",
}
"""Kinds of workloads, as a worker knows them."""

COPIES = (1 << 26, 1 << 28, 1 << 30)
"""Bytes of the copies that show the rate of the memory; the largest is beyond every cache."""

CLOCK_WARM_UPS = 20.0
"""A load whose clock is read runs so many times longer than a warm-up."""

_ROW_NUMBERS = ("device", "fabric")
"""Columns of a workload that number rows of other tables."""


@dataclass(frozen=True, eq=False)
class Lowered:
    """The operations of one job, with all rows that take time."""

    workloads: Workloads
    table: OperationTable
    rows: Ints
    """Rows of the table with a time above 0, in model order."""


def lower_job(job: Job) -> Lowered:
    """Return the operation table of one legal job."""
    batch = JobBatch.of([job])
    workloads = build_workloads(batch, job_columns(batch), lay_out(batch))
    table = emit_operations(workloads.rows)
    return Lowered(workloads, table, np.flatnonzero(cost_rows(table, workloads).time_s > 0.0))


def layers_of(workloads: Workloads) -> list[tasks.LayerSpec]:
    """Return what a worker must know of each workload, in their order."""
    names = [name for name in workloads.rows.dtype.names or () if name not in _ROW_NUMBERS]
    layers = []
    for row in workloads.rows:
        columns = {name: int(row[name]) for name in names}
        layers.append(
            tasks.LayerSpec(
                kind=LAYER_KINDS[KINDS[columns["kind"]]],
                columns=columns,
                dtype=MATRIX_TYPES[columns["dtype"]],
                attention="flash" if columns["flash"] else "math",
            )
        )
    return layers


def task_of(
    reduction: Reduction,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    pace: tasks.Pace | None = None,
) -> tasks.Task:
    """Return what is measured: distinct operations and layers, one step, rates and clocks."""
    pace = tasks.Pace() if pace is None else pace
    refuse_hybrid(reduction.job.model, "a worker runs attention with an MLP or experts")
    lowered = lower_job(reduction.job)
    layers = layers_of(lowered.workloads)
    # Each workload once, as a token meets them first; the head is last.
    met = list(dict.fromkeys(lowered.workloads.run_workload.tolist()))
    heads = lowered.workloads.columns.kind == Kind.HEAD
    order = sorted(met, key=lambda number: bool(heads[number]))
    degrees = reduction.degrees
    operations = list(_operations(lowered, layers))
    known = {program.key for program in operations}
    programs: list[tasks.Program] = [
        *operations,
        *_of_target(reduction, known),
        *_sends(reduction, lowered),
        *(tasks.LayerProgram(layer=layers[number]) for number in order),
        _step(reduction.job, [layers[number] for number in order]),
        *(tasks.CopyProgram(bytes=size) for size in COPIES),
        *_clocks(lowered, pace),
    ]
    return tasks.Task(
        device=device,
        ranks=reduction.gpus,
        tp=degrees.tp,
        cp=degrees.cp,
        ep=degrees.ep,
        etp=degrees.etp,
        pace=pace,
        programs=programs,
    )


def record_of(reduction: Reduction, task: tasks.Task, answer: tasks.Answer) -> record.Record:
    """Return the record of what a worker answered."""
    job = reduction.job
    operations, layers, others = [], [], []
    step: record.MeasuredStep | None = None
    for program, outcome in zip(task.programs, answer.outcomes, strict=True):
        match program:
            case tasks.OperationProgram():
                operations.append(record.MeasuredOperation(key=program.key, outcome=outcome))
            case tasks.LayerProgram():
                layers.append(record.MeasuredLayer(layer=program.layer, outcome=outcome))
            case tasks.StepProgram():
                step = record.MeasuredStep(
                    layers=program.layers, optimizer=program.optimizer, outcome=outcome
                )
            case _:
                others.append(record.MeasuredOther(program=program, outcome=outcome))
    sections = {
        name: getattr(job, name).model_dump(mode="json", exclude_unset=True)
        for name in ("model", "parallelism", "training")
    }
    machines = {"nodes": job.cluster.nodes, "gpus_per_node": job.cluster.gpus_per_node}
    return record.Record(
        environment=answer.environment,
        device=job.cluster.device.name,
        precision=job.training.precision,
        reduction=reduction.to_dict(),
        job={**sections, "cluster": machines},
        operations=operations,
        layers=layers,
        step=step,
        others=others,
    )


def _operations(
    lowered: Lowered, layers: list[tasks.LayerSpec]
) -> Iterator[tasks.OperationProgram]:
    known: set[OperationKey] = set()
    table = lowered.table
    for row, key in zip(lowered.rows, keys_of(table, lowered.rows), strict=True):
        if key in known:
            continue
        known.add(key)
        layer = layers[table.workload[row]] if table.kind[row] == MEMORY else None
        yield tasks.OperationProgram(key=key, layer=layer)


def _of_target(reduction: Reduction, known: set[OperationKey]) -> Iterator[tasks.OperationProgram]:
    """Yield kernels of the target that a rank runs by itself and the benchmark job does not have.

    GEMMs and attention of one rank fit one device however many ranks share a layer, so that those
    of a divided layer are measured and not scaled. Context parallelism keeps its degree, so its
    collectives are measured too, also where layers of the worker move keys otherwise.
    """
    lowered = lower_job(reduction.target)
    table, rows = lowered.table, lowered.rows
    alone = (table.kind == GEMM) | (table.kind == ATTENTION)
    among = (table.kind == COLLECTIVE) & (table.category == CP_COMM)
    among &= table.ranks <= reduction.gpus
    for key in dict.fromkeys(keys_of(table, rows[(alone | among)[rows]])):
        if key not in known:
            yield tasks.OperationProgram(key=key)


def _sends(reduction: Reduction, lowered: Lowered) -> Iterator[tasks.OperationProgram]:
    """Yield the target's message between stages, by the benchmark's TP; two devices at least."""
    if reduction.gpus == 1 or reduction.target.parallelism.pp == 1:
        return
    columns = lowered.workloads.columns
    tokens = columns.micro_batch * columns.seq // columns.cp
    tokens = tokens // np.where(columns.sequence_parallel == 1, columns.tp, 1)
    size = 2.0 * float(tokens[0] * columns.hidden[0])
    key = OperationKey(
        label="pipeline.send", phase="forward", kind="collective", operation="send_recv", ranks=2,
        local=2, bytes=size,
    )  # fmt: skip
    yield tasks.OperationProgram(key=key)


def _step(job: Job, layers: list[tasks.LayerSpec]) -> tasks.StepProgram:
    """Return a step of a layer of each kind, without MTP; Muon is measured as Adam."""
    inside = [layer for layer in layers if layer.kind != "mtp"]
    optimizer: Literal["adam", "sgd"] = "sgd" if job.training.optimizer.name == "sgd" else "adam"
    return tasks.StepProgram(layers=inside, optimizer=optimizer)


def _clocks(lowered: Lowered, pace: tasks.Pace) -> Iterator[tasks.ClockProgram]:
    gemms = lowered.rows[lowered.table.kind[lowered.rows] == GEMM]
    for code in np.unique(lowered.table.dtype[gemms]):
        seconds = max(0.01, CLOCK_WARM_UPS * pace.warm_up_s)
        yield tasks.ClockProgram(dtype=MATRIX_TYPES[code], seconds=seconds)


Tell = Callable[[str], None]
"""Takes one line for people: a plan, progress, what was chosen."""


def benchmark_record(
    job: Job,
    benchmark_gpus: int | None = None,
    *,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    tell: Tell | None = None,
) -> record.Record:
    """Measure the layers of a job, however many devices it takes, on as many as there are.

    ``benchmark_gpus`` are by default those of a node of the job. ``device`` is ``cpu``, ``cuda``
    for GPUs of either vendor, or ``auto``. A processor uses all of its cores. ``tell`` is called
    with each line of progress.
    """
    refuse_diffusion(job.model, "its layers are not measured")
    refuse_adapter(job.training.adapter, "layers are measured with all weights trained")
    reduction = reduce_job(job, benchmark_gpus)
    if tell is not None:
        for line in reduction_lines(reduction.to_dict()):
            tell(line)
    task = task_of(reduction, device, tasks.Pace())
    progress = None if tell is None else tasks.Sparing(tell)
    return record_of(reduction, task, run_task(task, progress=progress))
