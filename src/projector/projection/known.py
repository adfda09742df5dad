"""What one batch of jobs has taught the next: pipelines and workloads by their content."""

from dataclasses import fields
from operator import is_
from typing import Any

import numpy as np

from projector.arrays import Array, Ints, KnownKeys, bytes_of_rows
from projector.kernels.grouping import concatenated_ranges, group_numbers, group_rows, offsets
from projector.lower import workloads as lowering
from projector.lower.batch import JobBatch, JobColumns
from projector.operations.cost import WorkloadCosts
from projector.operations.known import GrowingColumns, KnownCosts, packed
from projector.projection.pipeline_costs import OF_PIPELINES, PipelineCosts, cost_pipelines

MOST_STAGES = 1 << 18
"""Stages of pipelines that are kept; a stage takes some 300 bytes."""

_OF_RUNS = ("forward_s", "backward_s", "input_s", "weight_s")
"""Columns of `PipelineCosts` with an entry for each run."""

_COSTS = tuple(field.name for field in fields(PipelineCosts))


class KnownPipelines:
    """Pipelines and workloads of all batches with sections in the same tables, up to a bound."""

    def __init__(self) -> None:
        self._workloads = KnownCosts()
        self._tables: tuple[Any, ...] = ()
        self._forget()

    def _forget(self) -> None:
        self._splits: dict[bytes, int] = {}
        self._machines: dict[bytes, int] = {}
        self._pipelines = KnownKeys()
        """By the numbers of their splits, trainings and machines."""
        self._columns = GrowingColumns()

    def make_room(self) -> None:
        """Forget what has become too much, between two batches."""
        if self._workloads.make_room() or self._columns.length("stage_like") > MOST_STAGES:
            self._forget()

    def of(
        self, batch: JobBatch, columns: JobColumns, layouts: lowering.Layouts
    ) -> tuple[lowering.Workloads, WorkloadCosts, PipelineCosts]:
        """Return what legal jobs are made of and what it costs; only what is new is computed."""
        tables = batch.sections[:4]
        if not (self._tables and all(map(is_, tables, self._tables))):
            self._forget()
            self._tables = tables
        machines = self._workloads.machines
        first, pipeline, fabric, keys = lowering.find_pipelines(batch, columns, machines)
        layout = layouts.of_job.take(first)
        numbers = self._numbers(keys, batch, columns, layouts, first)
        taken = self._columns.take
        stages = taken("stages", numbers)
        stage = concatenated_ranges(taken("first_stage", numbers), stages)
        runs = taken("runs", stage)
        run = concatenated_ranges(taken("first_run", stage), runs)
        of_run = taken("run_workload", run)
        first_run, run_workload = group_numbers(of_run, len(self._workloads))
        known, costs = self._workloads.take(of_run.take(first_run))
        workloads = lowering.Workloads(
            batch=batch,
            jobs=columns,
            pipeline=pipeline,
            first=first,
            layout=layout,
            structure=lowering.structures_of(batch.take(first), keys, layout)[1],
            **known._asdict(),
            **machines.records(),
            device=taken("device", numbers),
            fabric=fabric,
            stage_offset=offsets(stages),
            stage_like=taken("stage_like", stage),
            run_offset=offsets(runs),
            run_workload=run_workload,
            run_count=taken("run_count", run),
            run_copies=taken("run_copies", run),
        )
        other = dict.fromkeys(_OF_RUNS, run) | dict.fromkeys(OF_PIPELINES, numbers)
        parts = {name: taken(name, other.get(name, stage)) for name in _COSTS}
        return workloads, costs, PipelineCosts(**parts)

    def _numbers(
        self,
        keys: lowering.PipelineKeys,
        batch: JobBatch,
        columns: JobColumns,
        layouts: lowering.Layouts,
        first: Ints,
    ) -> Ints:
        """Return the number of each pipeline, given what tells it apart and a job that has it."""
        machines = keys.device, keys.fabric, keys.machine
        each, machine = group_rows(*machines)
        machine_rows = np.stack([column.take(each) for column in machines], axis=1)
        code = packed(
            _numbered(self._splits, keys.splits).take(keys.split),
            keys.training,
            _numbered(self._machines, machine_rows).take(machine),
        )
        new = np.flatnonzero(self._pipelines.missing(code))
        if len(new):
            jobs = first[new]
            self._add(
                lowering.build_workloads(
                    batch.take(jobs),
                    columns.take(jobs),
                    lowering.Layouts(layouts.of_job.take(jobs), layouts.outcomes),
                    self._workloads.machines,
                )
            )
            self._pipelines.add(code[new])
        return self._pipelines.rows(code)

    def _add(self, workloads: lowering.Workloads) -> None:
        number = self._workloads.numbers(workloads)
        costs = cost_pipelines(workloads, self._workloads.take(number)[1])
        runs = np.diff(workloads.run_offset)
        more: dict[str, Array] = {name: getattr(costs, name) for name in _COSTS}
        for name in ("device", "stage_like", "run_count", "run_copies"):
            more[name] = getattr(workloads, name)
        more["run_workload"] = number.take(workloads.run_workload)
        more["stages"], more["runs"] = np.diff(workloads.stage_offset), runs
        kept = self._columns
        more["first_stage"] = kept.length("stage_like") + workloads.stage_offset[:-1]
        more["first_run"] = kept.length("run_count") + workloads.run_offset[:-1]
        kept.add(more)


def _numbered(known: dict[bytes, int], rows: Ints) -> Ints:
    """Return the number of each row of int64[n, width]; new ones get one."""
    return np.array([known.setdefault(row, len(known)) for row in bytes_of_rows(rows)], np.int64)
