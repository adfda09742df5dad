"""Workloads: the distinct pieces of work that jobs are made of.

A workload is one layer of one kind, an embedding, a head or an MTP projection, for one
microbatch on one rank. Operations are emitted once for each distinct workload, however many
jobs, stages and layers share it. A pipeline is what one microbatch meets on its way: stages made
of workloads. It is put together once for all jobs that differ in nothing that it depends on.
"""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints, Records
from projector.config.model import ModelConfig
from projector.config.parallelism import ParallelismConfig
from projector.config.training import TrainingConfig
from projector.errors import ConfigError, ProjectorError
from projector.kernels.grouping import concatenated_ranges, group_looked_up, group_rows, offsets
from projector.lower import workload_columns
from projector.lower.batch import PLACED, JobBatch, JobColumns
from projector.lower.cluster_columns import ClusterColumns
from projector.lower.hardware import attention_name
from projector.lower.machines import Machines
from projector.lower.sections import ParallelismColumns, TrainingColumns
from projector.lower.stages import (
    KIND_OF_LAYER,
    RECOMPUTE_NONE,
    Kind,
    LayerKind,
    LayerSettings,
    LayerSplit,
    Stage,
    stage_layout,
)


@dataclass(frozen=True, eq=False)
class Workloads:
    """Everything the operation table is made from, and the pipelines it is needed for.

    ``stage_*`` describe virtual stages, pipeline after pipeline (CSR with ``stage_offset``);
    ``run_*`` describe the runs of equal layers of each virtual stage (CSR with ``run_offset``),
    where an embedding, a head or an MTP projection is a run of one.
    """

    batch: JobBatch
    """One job of each family, which represents all."""
    jobs: JobColumns
    """Their degrees."""
    pipeline: Ints
    """int64[families]: pipeline of each family."""
    first: Ints
    """int64[pipelines]: first family that has it."""
    structure: Ints
    """int64[pipelines]: equal where they differ in their machines alone."""
    layout: Ints
    """int64[pipelines]: equal numbers where stages are alike in the same places."""
    shapes: Records
    """WORKLOAD[shapes], distinct; devices and fabrics are left 0."""
    shape: Ints
    """int64[workloads]: shape of each."""
    on_device: Ints
    """int64[workloads]: row of ``devices``."""
    on_fabric: Ints
    """int64[workloads]: row of ``fabrics``."""
    devices: Records
    """DEVICE[devices]."""
    slowdown: Floats
    """float64[devices, 3]: share by which each of `SLOWDOWNS` takes longer."""
    gemm_shares: Floats
    """float64[devices, matrix types]: rate of a GEMM in a step over that alone."""
    fabrics: Records
    """FABRIC[fabrics]."""
    exchanges: Records
    """EXCHANGE[fabrics]."""
    device: Ints
    """int64[pipelines]."""
    fabric: Ints
    """int64[families]; workloads have one that is the same for their groups."""
    stage_offset: Ints
    """int64[pipelines + 1]."""
    stage_like: Ints
    """int64[stages]: the first stage of the pipeline, from 0 on, that has the same runs."""
    run_offset: Ints
    """int64[stages + 1]."""
    run_workload: Ints
    """Workload of each run."""
    run_count: Ints
    """Layers of each run."""
    run_copies: Ints
    """Copies of the run's parameters: its layers, but an MTP module shares the head's weights."""

    def __len__(self) -> int:
        """Return the number of workloads."""
        return len(self.shape)

    @cached_property
    def rows(self) -> Records:
        """WORKLOAD[workloads], distinct."""
        rows = self.shapes[self.shape]
        rows["device"], rows["fabric"] = self.on_device, self.on_fabric
        return rows

    @cached_property
    def columns(self) -> workload_columns.WorkloadColumns:
        """The columns of the workloads."""
        return workload_columns.PlacedColumns(
            self.shapes, self.shape, self.on_device, self.on_fabric
        )

    @cached_property
    def pipeline_of_run(self) -> Ints:
        """int64[runs]."""
        runs = np.diff(self.run_offset[self.stage_offset])
        return np.repeat(np.arange(len(runs)), runs)

    @cached_property
    def structures(self) -> "Structures":
        """The same with one pipeline for all that differ in their machines alone."""
        first, of_pipeline = group_rows(self.structure)
        stages_of = np.diff(self.stage_offset)
        stage = concatenated_ranges(self.stage_offset[first], stages_of[first])
        runs_of = np.diff(self.run_offset)[stage]
        run = concatenated_ranges(self.run_offset[stage], runs_of)
        stage_offset = offsets(stages_of[first])
        workloads = replace(
            self,
            pipeline=of_pipeline.take(self.pipeline),
            first=self.first[first],
            structure=np.arange(len(first)),
            device=self.device[first],
            stage_offset=stage_offset,
            stage_like=self.stage_like[stage],
            run_offset=offsets(runs_of),
            run_workload=self.run_workload[run],
            run_count=self.run_count[run],
            run_copies=self.run_copies[run],
        )
        of_stage = concatenated_ranges(stage_offset[of_pipeline], stages_of)
        return Structures(workloads, of_pipeline, of_stage)

    def first_jobs(self) -> JobBatch:
        """Return a job of each pipeline, which represents all."""
        return self.batch.take(self.first)

    def runs(self, family: int, stage: int) -> range:
        """Return the runs of one virtual stage of a family."""
        row = int(self.stage_offset[self.pipeline[family]]) + stage
        return range(int(self.run_offset[row]), int(self.run_offset[row + 1]))

    def num_stages(self, family: int) -> int:
        """Return the virtual stages of a family."""
        pipeline = self.pipeline[family]
        return int(self.stage_offset[pipeline + 1] - self.stage_offset[pipeline])


class Structures(NamedTuple):
    """Pipelines without their machines."""

    workloads: Workloads
    """With one pipeline for each structure."""
    of_pipeline: Ints
    """int64[pipelines]: structure of each pipeline."""
    of_stage: Ints
    """int64[stages]: the same stage of its structure."""


class Layouts(NamedTuple):
    """Where the layers of jobs lie."""

    of_job: Ints
    """int64[jobs]: layout of each job."""
    outcomes: list["LayoutRuns | ProjectorError"]
    """Each layout, or why there is none."""


@dataclass(frozen=True)
class LayoutRuns:
    """The stages of one layout as runs of equal layers, in model order."""

    runs_of_stage: Ints
    """int64[stages]."""
    like: Ints
    """int64[stages]: the first stage with the same runs."""
    kinds: tuple[LayerKind | Kind, ...]
    """What each run is made of: a kind of layer, or another kind of workload."""
    counts: Ints
    """int64[runs]."""
    copies: Ints
    """int64[runs]."""


def lay_out(batch: JobBatch) -> Layouts:
    """Place the layers of all jobs, layouts that are equal once."""
    model, split, training = batch.model, batch.parallelism, batch.training
    first, of_job = group_rows(model.index, split.layout_key, training.layout_key)
    return Layouts(of_job, [_laid_out(batch, row) for row in first.tolist()])


def _laid_out(batch: JobBatch, row: int) -> LayoutRuns | ProjectorError:
    split = LayerSplit.of(batch.parallelism.of(row))
    settings = LayerSettings.of(batch.training.of(row))
    try:
        return _layout_runs(batch.model.of(row), split, settings)
    except ConfigError as error:
        # Frames of a kept error would keep the whole batch.
        return error.with_traceback(None)


@lru_cache(maxsize=4096)
def _layout_runs(model: ModelConfig, split: LayerSplit, settings: LayerSettings) -> LayoutRuns:
    runs = [_runs(stage, model) for stage in stage_layout(model, split, settings)]
    flat = [run for of_stage in runs for run in of_stage]
    return LayoutRuns(
        np.array([len(of_stage) for of_stage in runs], np.int64),
        np.array([runs.index(of_stage) for of_stage in runs], np.int64),
        tuple(kind for kind, _, _ in flat),
        np.array([count for _, count, _ in flat], np.int64),
        np.array([copies for _, _, copies in flat], np.int64),
    )


class PipelineKeys(NamedTuple):
    """What tells pipelines apart, of all jobs that have their sections in the same tables."""

    device: Ints
    """int64[pipelines]: number of the device, of `Machines`."""
    fabric: Ints
    """The first fabric that is the same for their groups."""
    machine: Ints
    """What else of their machines pipelines look at."""
    training: Ints
    """Key of what they train."""
    split: Ints
    """int64[pipelines]: row of `splits`."""
    splits: Ints
    """int64[splits, n]: keys of model and split, and where groups lie."""


class FoundPipelines(NamedTuple):
    """Which jobs have the same pipeline."""

    first: Ints
    """int64[pipelines]: the first job that has it."""
    of_job: Ints
    """int64[jobs]"""
    fabric: Ints
    """int64[jobs]: number of the fabric of each, of `Machines`."""
    keys: PipelineKeys


def find_pipelines(batch: JobBatch, columns: JobColumns, machines: Machines) -> FoundPipelines:
    """Find out which jobs have the same pipeline, and what pipelines differ in."""
    device, fabric_of_job = _machines_of(batch, machines)
    fabric = _seen_fabric(fabric_of_job, columns, machines)
    split, training, cluster = batch.parallelism, batch.training, batch.cluster
    first, pipeline = group_looked_up(
        [
            *(device, fabric, batch.model.index, columns.placed),
            *(cluster.index, split.index, training.index),
        ],
        [
            *(None, None, None, None),
            cluster.table.key(ClusterColumns.machine_key),
            split.table.key(ParallelismColumns.pipeline_key),
            training.table.key(TrainingColumns.pipeline_key),
        ],
    )
    jobs = batch.take(first)
    first_split, split_of = group_rows(
        jobs.model.index, jobs.parallelism.pipeline_key, columns.placed.take(first)
    )
    degrees = columns.take(first.take(first_split))
    splits = (
        jobs.model.index.take(first_split),
        jobs.parallelism.pipeline_key.take(first_split),
        # They depend on the number of devices, which is none of the keys.
        *(getattr(degrees, f"{group}_{name}") for group in PLACED for name in ("local", "span")),
    )
    return FoundPipelines(
        first,
        pipeline,
        fabric_of_job,
        PipelineKeys(
            device[first],
            fabric[first],
            jobs.cluster.machine_key,
            jobs.training.pipeline_key,
            split_of,
            np.stack(splits, axis=1),
        ),
    )


def _seen_fabric(fabric: Ints, columns: JobColumns, machines: Machines) -> Ints:
    """Return the first fabric that is the same for the groups of each job's layers, int64[jobs]."""
    if not fabric.any():
        return fabric
    beyond = np.zeros(len(fabric), np.bool_)
    alone = ~beyond
    for name in PLACED:
        size, local, span = (getattr(columns, f"{name}{of}") for of in ("", "_local", "_span"))
        beyond |= (local < size) | (span != 0)
        alone &= size == 1
    return np.where(beyond, fabric, np.where(alone, 0, machines.near.all().take(fabric)))


def structures_of(jobs: JobBatch, keys: PipelineKeys, layout: Ints) -> tuple[Ints, Ints]:
    """Return the first pipeline of each structure, and the structure of each, given their jobs."""
    # Machines with one software share the shapes of their workloads.
    return group_rows(layout, jobs.cluster.software_key, keys.split, keys.training)


def build_workloads(
    batch: JobBatch, columns: JobColumns, layouts: Layouts, machines: Machines | None = None
) -> Workloads:
    """Turn one job of each legal family into workloads, and the pipelines made of them."""
    machines = Machines() if machines is None else machines
    first, pipeline, fabric_of_job, keys = find_pipelines(batch, columns, machines)
    device, fabric = keys.device, keys.fabric
    layout = layouts.of_job[first]
    kinds, runs = _joined_layouts(layouts)
    stages_of, runs_of = (np.array(counts)[layout] for counts in (runs.stages, runs.runs))
    run = concatenated_ranges(runs.first_run[layout], runs_of)
    stage = concatenated_ranges(runs.first_stage[layout], stages_of)
    alike_first, alike = structures_of(batch.take(first), keys, layout)
    shapes, shape_of_run = _shapes(
        batch.take(first[alike_first]),
        columns.take(first[alike_first]),
        kinds,
        runs.kind[concatenated_ranges(runs.first_run[layout[alike_first]], runs_of[alike_first])],
        runs_of[alike_first],
    )
    shape = shape_of_run[concatenated_ranges(offsets(runs_of[alike_first])[alike], runs_of)]
    owner = np.repeat(np.arange(len(first)), runs_of)
    workload_first, workload = group_rows(shape, device[owner], fabric[owner])
    return Workloads(
        batch=batch,
        jobs=columns,
        pipeline=pipeline,
        first=first,
        structure=alike,
        layout=layout,
        shapes=shapes,
        shape=shape[workload_first],
        on_device=device[owner[workload_first]],
        on_fabric=fabric[owner[workload_first]],
        **machines.records(),
        device=device,
        fabric=fabric_of_job,
        stage_offset=offsets(stages_of),
        stage_like=runs.like[stage],
        run_offset=offsets(runs.runs_of_stage[stage]),
        run_workload=workload,
        run_count=runs.counts[run],
        run_copies=runs.copies[run],
    )


def _shapes(
    batch: JobBatch, columns: JobColumns, kinds: Records, kind_of_run: Ints, runs_of: Ints
) -> tuple[Records, Ints]:
    """Return the distinct shapes of the layers of some jobs, and which each run has.

    ``kind_of_run`` are rows of KIND[n], for the runs of one job after the other; ``runs_of`` is how
    many each job has.
    """
    job_of_run = np.repeat(np.arange(len(runs_of)), runs_of)
    piece, piece_of_run = group_rows(job_of_run, kind_of_run)
    owner = job_of_run[piece]
    records = workload_columns.workload_records(
        workload_columns.Pieces(batch.take(owner), columns.take(owner), kinds[kind_of_run[piece]])
    )
    distinct, shape_of_piece = group_rows(records.view(np.int64).reshape(len(records), -1))
    return records[distinct], shape_of_piece[piece_of_run]


class _JoinedLayouts(NamedTuple):
    stages: list[int]
    runs: list[int]
    first_stage: Ints
    first_run: Ints
    runs_of_stage: Ints
    like: Ints
    kind: Ints
    """int64[runs]: row of the table of kinds."""
    counts: Ints
    copies: Ints


def _joined_layouts(layouts: Layouts) -> tuple[Records, _JoinedLayouts]:
    known: dict[LayerKind | Kind, int] = {}
    layout_runs = [item for item in layouts.outcomes if isinstance(item, LayoutRuns)]
    assert len(layout_runs) == len(layouts.outcomes), "a job without a layout"
    numbers = [[known.setdefault(kind, len(known)) for kind in item.kinds] for item in layout_runs]
    stages = [len(item.runs_of_stage) for item in layout_runs]
    runs = [len(item.kinds) for item in layout_runs]
    kinds = np.zeros(len(known), workload_columns.KIND)
    for kind, number in known.items():
        if isinstance(kind, LayerKind):
            kinds[number] = kind
        else:
            kinds[number]["kind"] = kind
    return kinds, _JoinedLayouts(
        stages,
        runs,
        offsets(np.array(stages, np.int64))[:-1],
        offsets(np.array(runs, np.int64))[:-1],
        np.concatenate([item.runs_of_stage for item in layout_runs]),
        np.concatenate([item.like for item in layout_runs]),
        np.array([number for kinds_of_layout in numbers for number in kinds_of_layout], np.int64),
        np.concatenate([item.counts for item in layout_runs]),
        np.concatenate([item.copies for item in layout_runs]),
    )


def _machines_of(batch: JobBatch, machines: Machines) -> tuple[Ints, Ints]:
    """Return the devices and the fabrics that jobs run on, int64[jobs] each."""
    training, fsdp1 = batch.training, batch.parallelism.fsdp == 1
    first, kind = group_rows(training.attention_key, fsdp1.astype(np.int64))
    device = np.empty(len(batch), np.int64)
    for number, row in enumerate(first.tolist()):
        rows = np.flatnonzero(kind == number)
        name = attention_name(training.of(row))
        device[rows] = machines.devices_of(batch.cluster, rows, name, fsdp1=bool(fsdp1[row]))
    return device, machines.fabrics_of(batch.cluster)


def layout_of(
    model: ModelConfig, split: ParallelismConfig, training: TrainingConfig
) -> tuple[Stage, ...]:
    """Return the virtual stages of one job, in model order."""
    return stage_layout(model, LayerSplit.of(split), LayerSettings.of(training))


def _runs(stage: Stage, model: ModelConfig) -> list[tuple[LayerKind | Kind, int, int]]:
    """List the (workload key, count, parameter copies) of one stage in model order."""
    runs: list[tuple[LayerKind | Kind, int, int]] = []
    if stage.embedding:
        runs.append((Kind.EMBEDDING, 1, 1))
    if stage.embedding and model.vision is not None:
        tower = LayerKind(Kind.VISION, windowed=False, recompute=RECOMPUTE_NONE, narrow=False)
        layers = model.vision.num_layers
        runs.extend([(Kind.PROJECTOR, 1, 1), (tower, layers, layers)])
    runs.extend((kind, count, count) for kind, count in stage.layers)
    if stage.mtp:
        # An MTP module is a projection, a layer and the shared head once more.
        kind = LayerKind(
            kind=KIND_OF_LAYER[model.further_layer],
            windowed=False,
            recompute=RECOMPUTE_NONE,
            narrow=stage.layers[-1][0].narrow if stage.layers else False,
        )
        runs.extend(
            [
                (Kind.MTP, stage.mtp, stage.mtp),
                (kind, stage.mtp, stage.mtp),
                (Kind.HEAD, stage.mtp, 0 if stage.head else 1),
            ]
        )
    if stage.head:
        runs.append((Kind.HEAD, 1, 1))
    return runs
