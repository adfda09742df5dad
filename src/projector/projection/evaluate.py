"""The one path of every projection: jobs in, columns of memory and time out.

A single job is a batch of one. Rows are independent: the result of a job does not depend on the
jobs it is evaluated with. Jobs share what they have in common: jobs that differ in the global batch
alone are one family up to the replay, workloads are costed once, pipelines and replicas are put
together once, and orders are replayed for all jobs that run them.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Floats, Ints, bits
from projector.config.job import Job
from projector.errors import ProjectorError
from projector.kernels.grouping import group_rows
from projector.kernels.memory import Devices
from projector.kernels.timings import EVERY_BACKWARD, EVERY_FORWARD, EVERY_WEIGHT
from projector.lower import workloads as lowering
from projector.lower.batch import Families, JobBatch, JobColumns, StepSizes, job_columns, step_sizes
from projector.lower.rules import EVEN_STEP, RULES, broken_rules, first_broken
from projector.operations import cost
from projector.operations.emit import emit_operations
from projector.operations.table import OperationTable
from projector.projection import step
from projector.projection.data_parallel import DataParallelCosts, cost_data_parallel, stage_times
from projector.projection.floors import Floors, activation_room, planned_floors
from projector.projection.known import KnownPipelines
from projector.projection.memory_columns import (
    AllocatorColumns,
    RankMemory,
    allocator_columns,
    devices_of,
    reserve_bytes,
    state_memory,
)
from projector.projection.pipeline_costs import cost_pipelines
from projector.projection.replicas import (
    cost_optimizer,
    cost_p2p,
    cost_tied_embeddings,
    find_replicas,
)
from projector.projection.schedules import (
    Schedules,
    choose_schedules,
    schedule_kinds,
)
from projector.projection.terms import STATIC_TERMS
from projector.schedule.planning.costs import Costs, costs_from
from projector.schedule.planning.heard import side_by_side
from projector.schedule.registry import ChosenOrder, Setting
from projector.schedule.replay.order_times import to_ps

Details = tuple[OperationTable, cost.RowCosts]
"""Operations, and the device time of each."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Everything known about a batch of jobs, in columns."""

    batch: JobBatch
    families: Families
    """What the jobs are of; ``workloads`` and the replicas of ``inputs`` are theirs."""
    workloads: lowering.Workloads
    costs: cost.WorkloadCosts
    parallel: DataParallelCosts
    inputs: step.StepInputs
    settings: list[Setting]
    setting_of_job: Ints
    orders: list[ChosenOrder]
    order_of_job: Ints
    steps: step.Steps
    details: Details | None = None
    """Every operation, where they were all costed for this batch."""

    @cached_property
    def _operations(self) -> Details:
        if self.details is not None:
            return self.details
        table = emit_operations(self.workloads.rows)
        return table, cost.cost_rows(table, self.workloads)

    @property
    def table(self) -> OperationTable:
        """Every operation of every workload."""
        return self._operations[0]

    @property
    def rows(self) -> cost.RowCosts:
        """Device time of each of them."""
        return self._operations[1]

    @cached_property
    def jobs(self) -> JobColumns:
        """Degrees of each job."""
        degrees = self.workloads.jobs
        return degrees if self.families.are_jobs else degrees.take(self.families.of_job)

    @property
    def global_batch(self) -> Ints:
        """Samples of a step, int64[jobs]."""
        return self.batch.training.global_batch

    @cached_property
    def microbatches(self) -> Ints:
        """Microbatches of one data-parallel rank in one step, int64[jobs]."""
        counts = np.array([setting.microbatches for setting in self.settings], np.int64)
        return counts.take(self.setting_of_job)

    def take(self, rows: Ints) -> "Evaluation":
        """Return some of the jobs, each at most once; their families are all kept."""
        replicas, families = self.inputs.replicas, self.families
        replicas = replace(
            replicas, of_job=replicas.of_job.take(rows), family=replicas.family.take(rows)
        )
        return replace(
            self,
            batch=self.batch.take(rows),
            families=Families(families.batch, families.of_job.take(rows)),
            inputs=replace(self.inputs, replicas=replicas),
            setting_of_job=self.setting_of_job.take(rows),
            order_of_job=self.order_of_job.take(rows),
            steps=self.steps.take(rows),
        )

    def job(self, row: int) -> Job:
        """Return one of the jobs."""
        return self.batch.job(row)

    def family(self, row: int) -> int:
        """Return the family of a job."""
        return int(self.families.of_job[row])

    def schedule(self, row: int) -> str:
        """Return the name of the schedule that a job runs."""
        return self.settings[int(self.setting_of_job[row])].name

    def order(self, row: int) -> ChosenOrder:
        """Return what each rank of a job does."""
        return self.orders[int(self.order_of_job[row])]

    def pipeline(self, row: int) -> step.Pipeline:
        """Return the replay of one job."""
        return step.replay_job(self.inputs, self.order(row), row)

    @cached_property
    def reserve_bytes(self) -> Floats:
        """What lies outside the allocator of a device of each family, float64[families]."""
        return reserve_bytes(self.families.batch, self.workloads.jobs)

    @cached_property
    def devices(self) -> Devices:
        """What the allocators of each family work with."""
        return devices_of(self.families.batch, self.reserve_bytes)

    @cached_property
    def fullest(self) -> Ints:
        """int64[jobs]: the kind of the fullest rank of each job."""
        replicas = self.inputs.replicas
        rank = replicas.rank_offset.take(replicas.of_job) + self.steps.peak_rank
        return replicas.rank_kind.take(rank)

    def usable_bytes(self, row: int) -> float:
        """Return what the fullest rank of a job may allocate."""
        rank = self.fullest[[row]]
        activations = self.steps.peak_bytes[[row]] - self.inputs.held.static[rank]
        return float(self._allocator(row, rank, activations).usable[0])

    def idle_bytes(self, row: int) -> Floats:
        """Return what the allocator of each pipeline rank of a job holds idle, float64[pp]."""
        ranks = self.inputs.replicas.kinds_of_ranks(int(self.inputs.replicas.of_job[row]))
        return self._allocator(row, ranks, self.memory(row).activations_bytes).idle

    def _allocator(self, row: int, ranks: Ints, activations: Floats) -> AllocatorColumns:
        families = np.full(len(ranks), self.family(row))
        return allocator_columns(self.devices, families, self.inputs.held, ranks, activations)

    def sharding_excess_bytes(self, row: int) -> float:
        """Return what sharding the weights of a job's fullest rank costs beyond ZeRO 2."""
        return float(self.inputs.state.sharding_excess_bytes[self.fullest[row]])

    def memory(self, row: int) -> RankMemory:
        """Return the memory of each pipeline rank of a job."""
        state, replicas = self.inputs.state, self.inputs.replicas
        ranks = replicas.kinds_of_ranks(int(replicas.of_job[row]))
        pipeline = self.pipeline(row)
        static = state.values(STATIC_TERMS)
        return RankMemory(
            **{name: values[ranks] for name, values in static.items()},
            activations_bytes=pipeline.peak_bytes,
            parameters=state.parameters[ranks],
            in_flight=pipeline.in_flight.sum(axis=1),
        )


class RefusedJobs(Exception):  # noqa: N818  carries errors, and users never see it
    """Jobs of a batch turned out to have no order; the others can be evaluated without them."""

    def __init__(self, errors: Mapping[int, ProjectorError]) -> None:
        super().__init__(f"{len(errors)} jobs have no order")
        self.errors = errors
        """Row -> why."""


class Legal(NamedTuple):
    """Which jobs of a batch can exist, by all rules that look at no times."""

    families: Families
    columns: JobColumns
    """Of the families."""
    layouts: lowering.Layouts
    """Of the families."""
    schedules: Schedules
    refused: Ints
    """int64[jobs]: number of the error in ``errors``, -1 for a job that can exist."""
    errors: list[ProjectorError]

    def take(self, rows: Ints) -> "Legal":
        """Return some of the jobs, with what they alone need."""
        families, kept = self.families.take(rows)
        layouts, schedules = self.layouts, self.schedules
        return Legal(
            families,
            self.columns.take(kept),
            lowering.Layouts(*_only_used(layouts.of_job[kept], layouts.outcomes)),
            Schedules(
                *_only_used(schedules.of_job[rows], schedules.outcomes), schedules.name[kept]
            ),
            self.refused[rows],
            self.errors,
        )


def _only_used(number: Ints, items: list[Any]) -> tuple[Ints, list[Any]]:
    used = np.zeros(len(items), np.int64)
    used[number] = 1
    kept = np.flatnonzero(used).tolist()
    return (np.cumsum(used) - 1).take(number), [items[index] for index in kept]


def find_legal(batch: JobBatch) -> Legal:
    """Look for what jobs break; equal rules share an error if texts differ in numbers only."""
    families = Families.of(batch)
    columns = job_columns(families.batch)
    kind = schedule_kinds(families)
    sizes = step_sizes(batch, families, columns.micro_batch * columns.dp, kind)
    refused, errors = _broken(batch, families, columns, sizes)
    layouts = lowering.lay_out(families.batch)
    schedules = choose_schedules(families, kind, sizes)
    if any(isinstance(outcome, ProjectorError) for outcome in layouts.outcomes):
        _refuse(refused, errors, layouts.of_job.take(families.of_job), layouts.outcomes)
    _refuse(refused, errors, schedules.of_job, schedules.outcomes)
    return Legal(families, columns, layouts, schedules, refused, errors)


def _broken(
    batch: JobBatch, families: Families, columns: JobColumns, sizes: StepSizes
) -> tuple[Ints, list[ProjectorError]]:
    """Return what of `RULES` jobs break: the number of an error, -1 for none, and the errors."""
    of_family = broken_rules(families.batch, columns)
    refused = np.full(len(batch), -1, np.int64)
    if not sizes.uneven.any() and (of_family == len(RULES)).all():
        return refused, []
    broken = of_family.take(families.of_job)
    broken[sizes.uneven.take(sizes.of_job) & (broken > EVEN_STEP)] = EVEN_STEP
    rows = np.flatnonzero(broken < len(RULES))
    # Messages name the model, the device, the type and the attention, besides numbers.
    named = families.batch
    _, text = group_rows(
        named.model.index,
        named.cluster.words_key,
        named.training.dtype,
        named.training.attention_key,
    )
    first, refused[rows] = group_rows(
        broken[rows] + len(RULES) * text.take(families.of_job.take(rows))
    )
    return refused, [RULES[broken[row]].error(batch.job(int(row))) for row in rows[first]]


def _refuse(
    refused: Ints,
    errors: list[ProjectorError],
    of_job: Ints,
    outcomes: Sequence[lowering.LayoutRuns | Setting | ProjectorError],
) -> None:
    for number, outcome in enumerate(outcomes):
        if isinstance(outcome, ProjectorError):
            refused[(of_job == number) & (refused < 0)] = len(errors)
            errors.append(outcome)


def check_exists(job: Job) -> None:
    """Raise what nearly every job that cannot exist breaks, much cheaper than evaluating it."""
    legal = find_legal(JobBatch.of([job]))
    if legal.refused[0] >= 0:
        raise legal.errors[legal.refused[0]]


def check_placed(job: Job) -> None:
    """Raise where a job cannot exist under any schedule."""
    broken = first_broken(job)
    if broken is not None:
        raise broken
    lowering.layout_of(job.model, job.parallelism, job.training)


def evaluate(jobs: Sequence[Job], measured: cost.RowTimes | None = None) -> Evaluation:
    """Project memory and time of ``jobs``, from measurements where there are any."""
    batch = JobBatch.of(jobs)
    legal = find_legal(batch)
    illegal = np.flatnonzero(legal.refused >= 0)
    if len(illegal):
        # Errors are shared by jobs with other numbers; the first job is told its own.
        check_exists(jobs[illegal[0]])
    try:
        return evaluate_legal(batch, legal, measured=measured)
    except RefusedJobs as refused:
        raise refused.errors[min(refused.errors)] from None


def evaluate_legal(
    batch: JobBatch,
    legal: Legal,
    known: KnownPipelines | None = None,
    measured: cost.RowTimes | None = None,
    threads: int = 0,
) -> Evaluation:
    """Project memory and time of at least one job; `find_legal` has refused none of them.

    Pipelines and workloads that earlier batches had are taken from ``known``, and new ones are
    added. ``measured`` replaces modelled times; it needs a batch whose workloads are not known.
    Several orders are planned in ``threads`` of their own, if there are any.
    """
    inputs, costs, parallel, details = _lower(legal, known, measured)
    settings = legal.schedules.settings()
    orders, order_of_job = _orders(inputs, settings, legal.schedules.of_job, threads)
    return Evaluation(
        batch=batch,
        families=legal.families,
        workloads=inputs.replicas.workloads,
        costs=costs,
        parallel=parallel,
        inputs=inputs,
        settings=settings,
        setting_of_job=legal.schedules.of_job,
        orders=orders,
        order_of_job=order_of_job,
        steps=step.run_steps(inputs, orders, order_of_job),
        details=details,
    )


def floors_of_legal(
    legal: Legal, known: KnownPipelines | None = None, most_peak: Floats | None = None
) -> Floors:
    """Return what no order of jobs can undercut that can exist and whose schedules are planned.

    No order is planned. Parameters and errors are those of `evaluate_legal` and `planned_floors`.
    """
    inputs, *_ = _lower(legal, known, None)
    return planned_floors(inputs, legal.schedules.settings(), legal.schedules.of_job, most_peak)


def _lower(
    legal: Legal, known: KnownPipelines | None, measured: cost.RowTimes | None
) -> tuple[step.StepInputs, cost.WorkloadCosts, DataParallelCosts, Details | None]:
    """Return what steps are put together from, and what that follows from."""
    families = legal.families
    details = None
    if known is None:
        workloads = lowering.build_workloads(families.batch, legal.columns, legal.layouts)
        table = emit_operations(workloads.rows)
        details = table, cost.cost_rows(table, workloads, measured)
        costs = cost.sum_workloads(*details, workloads)
        pipelines = cost_pipelines(workloads, costs)
    else:
        workloads, costs, pipelines = known.of(families.batch, legal.columns, legal.layouts)
    replicas = find_replicas(workloads, legal.schedules.name, families.of_job)
    with cost.numbers_in_range():
        parallel, p2p = cost_data_parallel(replicas, costs), cost_p2p(replicas)
        tied_s = cost_tied_embeddings(replicas)
    if measured is not None and measured.send_share is not None:
        p2p = p2p.restored(measured.send_share)
    times = stage_times(replicas, pipelines, parallel)
    state = state_memory(replicas, pipelines)
    optimizer_s = cost_optimizer(replicas, state.owned_parameters, state.held_parameters)
    if measured is not None and measured.optimizer_share is not None:
        optimizer_s = optimizer_s * measured.optimizer_share
    inputs = step.StepInputs(replicas, pipelines, times, p2p, state, optimizer_s, tied_s)
    return inputs, costs, parallel, details


def evaluate_possible(
    batch: JobBatch,
    legal: Legal,
    refuse: Callable[[ProjectorError], None],
    known: KnownPipelines | None = None,
    threads: int = 0,
) -> list[tuple[Ints, Evaluation]]:
    """Project what can be projected of some jobs: rows of the batch, rising, and their evaluation.

    ``refuse`` is called with the error of each job that turns out to be impossible.
    """
    rows = np.arange(len(batch))
    if not len(rows):
        return []
    try:
        return [(rows, evaluate_legal(batch, legal, known, threads=threads))]
    except RefusedJobs as refused:
        for error in refused.errors.values():
            refuse(error)
        parts = [np.setdiff1d(rows, list(refused.errors))]
    except ProjectorError as error:
        if len(rows) == 1:
            refuse(error)
            return []
        # One of them cannot be evaluated; halves find it in few steps.
        parts = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    return [
        (part[chosen], evaluation)
        for part in parts
        for chosen, evaluation in evaluate_possible(
            batch.take(part), legal.take(part), refuse, known, threads
        )
    ]


def _orders(
    inputs: step.StepInputs, settings: list[Setting], setting_of_job: Ints, threads: int
) -> tuple[list[ChosenOrder], Ints]:
    """Return the orders of a batch; a planned one suits the times and memory of its jobs."""
    planned = np.array([setting.planned for setting in settings])[setting_of_job]
    if not planned.any():
        return [ChosenOrder(setting) for setting in settings], setting_of_job
    batch, of_job = inputs.replicas.workloads.batch, inputs.replicas.of_job
    family = inputs.replicas.family
    # A planned order is made from these alone.
    cluster, training = batch.cluster, batch.training
    limits = (
        cluster.memory_bytes - reserve_bytes(batch, inputs.replicas.workloads.jobs),
        np.where(cluster.expandable == 1, 0.0, cluster.pinned_share),
        cluster.stated_fragmentation,
    )
    stated = training.most_pending, training.post_validation, training.solver_work
    columns = [of_job, *(bits(limit.take(family)) for limit in limits)]
    columns += [each.take(family) for each in stated]
    first, order_of_job = group_rows(
        setting_of_job, *(np.where(planned, column, -1) for column in columns)
    )
    planned_rows = first[planned[first]]
    room = activation_room(inputs, planned_rows)
    ranks = itertools.starmap(slice, itertools.pairwise(room.offset.tolist()))
    plans = [
        partial(
            settings[setting_of_job[row]].order,
            _planning_costs(inputs, row, room.most_bytes[mine]),
        )
        for row, mine in zip(planned_rows.tolist(), ranks, strict=True)
    ]
    answers = iter(side_by_side(plans, threads if len(plans) > 1 else 0))
    orders: list[ChosenOrder] = []
    errors: dict[int, ProjectorError] = {}
    for number, row in enumerate(first.tolist()):
        setting = settings[setting_of_job[row]]
        if not setting.planned:
            orders.append(ChosenOrder(setting))
            continue
        try:
            orders.append(ChosenOrder(setting, next(answers).result()))
        except ProjectorError as error:
            alone = error.with_traceback(None)
            errors |= dict.fromkeys(np.flatnonzero(order_of_job == number).tolist(), alone)
    if errors:
        raise RefusedJobs(errors)
    return orders, order_of_job


def _planning_costs(inputs: step.StepInputs, job: int, limit: Floats) -> Costs:
    replicas, training = inputs.replicas, inputs.replicas.workloads.batch.training
    replica, family = int(replicas.of_job[job]), int(replicas.family[job])
    stages = slice(replicas.stage_offset[replica], replicas.stage_offset[replica + 1])
    kinds = replicas.stage_kind[stages]
    stage_count = replicas.placement(replica).stage_of.size
    return costs_from(
        forward_ps=inputs.kind_ps[kinds, EVERY_FORWARD],
        backward_ps=inputs.kind_ps[kinds, EVERY_BACKWARD],
        weight_ps=inputs.kind_ps[kinds, EVERY_WEIGHT],
        p2p_ps=to_ps(inputs.p2p.latencies_s(replica, stage_count)).T,
        activation=inputs.costs.saved_bytes[replicas.stage[stages]],
        w_share=float(inputs.costs.weight_share[replicas.pipeline[replica]]),
        limit=limit,
        objective="period" if training.post_validation[family] else "makespan",
        solver_work=int(training.solver_work[family]),
    )
