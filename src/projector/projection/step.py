"""The step of a job: the replay of its pipeline, then gradients, optimizer and gathers."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.kernels import step as kernels
from projector.kernels import timings as timing_kernels
from projector.kernels.columns import as_compiled
from projector.kernels.grouping import distinct_pairs, group_rows, rows_by_number
from projector.kernels.memory import RankBytes
from projector.kernels.pipeline import FIRST, FORWARD, Ends, Replays
from projector.kernels.results import Rated, ResultColumns, end_steps
from projector.kernels.stage_times import StageTimes
from projector.projection.memory_columns import StateMemory, rank_bytes
from projector.projection.pipeline_costs import PipelineCosts
from projector.projection.replicas import PointToPoint, Replicas
from projector.projection.terms import BREAKDOWN
from projector.schedule.order import Order, Placement
from projector.schedule.registry import ChosenOrder
from projector.schedule.replay import order_times
from projector.schedule.replay.order_times import peak_bytes
from projector.schedule.replay.programs import empty_ends


@dataclass(frozen=True, eq=False)
class StepInputs:
    """What steps are put together from."""

    replicas: Replicas
    costs: PipelineCosts
    times: StageTimes
    p2p: PointToPoint
    state: StateMemory
    optimizer_s: Floats
    """float64[kinds of ranks]: the update."""
    tied_s: Floats
    """float64[replicas]: sum of the gradients of tied embeddings on two ranks."""

    @cached_property
    def first_forward_ps(self) -> Ints:
        """int64[rows]: forward of the first microbatch; see `StageTimes`."""
        return order_times.to_ps(self.times.first_forward_s)

    @cached_property
    def kind_ps(self) -> Ints:
        """int64[kinds of stages, KIND_TIMES]: all other durations; see `kernels.timings`."""
        own_s = self.times[:5]
        kind_ps = np.empty((len(own_s[0]), timing_kernels.KIND_TIMES), np.int64)
        if not timing_kernels.round_times(*own_s, kind_ps):
            raise order_times.bad_time()
        return kind_ps

    @cached_property
    def families(self) -> Floats:
        """float64[FAMILY_NUMBERS, families]; see `kernels.step`."""
        batch = self.replicas.workloads.batch
        apart, share = batch.training.post_validation, batch.straggler_share()
        return np.stack([apart, batch.cluster.step_overhead_s, share], dtype=np.float64)

    @cached_property
    def held(self) -> RankBytes:
        """What each kind of rank holds besides activations."""
        return rank_bytes(self.state)

    @cached_property
    def chunk_tail_s(self) -> Floats:
        """float64[chunks]: gradient traffic left when the last backward of each has ended."""
        return self.times.tail_s.take(self.replicas.stage_kind.take(self.replicas.chunk_stage))

    @cached_property
    def reduce_after_s(self) -> Floats:
        """float64[ranks]: gradient traffic that nothing overlaps."""
        return self.replicas.per_rank(self.times.reduce_after_s.take(self.replicas.stage_kind))

    @cached_property
    def gather_after_s(self) -> Floats:
        """float64[ranks]: parameter gathers that nothing overlaps."""
        return self.replicas.per_rank(self.times.gather_after_s.take(self.replicas.stage_kind))


def _number(column: int) -> cached_property[Floats]:
    return cached_property(lambda steps: np.ascontiguousarray(steps.outputs.number[:, column]))


def _rank(column: int) -> cached_property[Ints]:
    return cached_property(lambda steps: np.ascontiguousarray(steps.outputs.rank[:, column]))


@dataclass(frozen=True, eq=False)
class Steps:
    """Columns of the steps of a batch, one entry for each job."""

    num: int
    """Jobs."""
    runs: list[kernels.StepRuns]
    """What they are put together from, those of each placement."""

    @cached_property
    def outputs(self) -> kernels.StepOutputs:
        """All numbers of the steps."""
        outputs = kernels.StepOutputs.empty(self.num)
        for runs in self.runs:
            end_steps(runs, Rated.nothing(), outputs, ResultColumns.empty(0))
        return outputs

    def take(self, rows: Ints) -> "Steps":
        """Return the steps of some jobs, each at most once."""
        row = np.full(self.num, -1)
        row[rows] = np.arange(len(rows))
        return Steps(len(rows), [_runs_of(runs, row) for runs in self.runs])

    def results(self, rated: Rated, *, ranking: bool = False) -> ResultColumns:
        """Return the numbers of results; those of the steps themselves are not kept for it.

        For a ``ranking`` those alone that decide which of some jobs is the best.
        """
        columns = ResultColumns.empty(self.num, ranking=ranking)
        rated = as_compiled(rated)
        for runs in self.runs:
            end_steps(runs, rated, kernels.StepOutputs.empty(0), columns)
        return columns

    iteration_s = _number(kernels.STEP)
    """How long a step takes."""

    @property
    def breakdown_s(self) -> Floats:
        """float64[jobs, len(BREAKDOWN)]: on the rank that ends the step."""
        breakdown_s: Floats = self.outputs.number[:, : len(BREAKDOWN)]
        return breakdown_s

    pipeline_s = _number(kernels.LAST_OPERATION)
    """Until the last operation of any rank, gradients and optimizer left out.

    The longest span of one rank where ranks do not wait for each other between steps."""
    busiest_s = _number(kernels.BUSIEST)
    """Work of the busiest pipeline rank, sends left out."""
    ending_s = _number(kernels.ENDING)
    """The same for the rank that ends the step."""
    ending_rank = _rank(kernels.ENDING_RANK)
    """Pipeline rank that ends the last backward and its gradients."""
    busiest_rank = _rank(kernels.BUSIEST_RANK)
    """Pipeline rank that works the longest."""
    peak_bytes = _number(kernels.PEAK)
    """Allocated peak of the fullest rank."""
    peak_rank = _rank(kernels.PEAK_RANK)
    """Pipeline rank that has it, the first of several."""


def _runs_of(runs: kernels.StepRuns, row: Ints) -> kernels.StepRuns:
    """Return those of some jobs, given the new row of each job, -1 of what is left out."""
    replicas, row_of_job = runs.replicas, row.take(runs.jobs[kernels.ROW])
    kept = np.flatnonzero(row_of_job >= 0)
    begin = np.searchsorted(kept, runs.begin)
    used = np.flatnonzero(np.diff(begin))
    jobs = runs.jobs.take(kept, axis=1)
    jobs[kernels.ROW] = row_of_job.take(kept)
    return runs._replace(
        begin=np.append(begin.take(used), len(kept)),
        jobs=jobs,
        replicas=replicas._replace(
            number=replicas.number.take(used, axis=1), tied_s=replicas.tied_s.take(used)
        ),
    )


class Timings(NamedTuple):
    """Times of some replicas with one placement, each distinct one once."""

    alone_ps: Ints
    """int64[timings, columns]: durations; of one job int64[1, pp, chunks, 3, 3]."""
    duration_ps: Ints
    """The same for blocking sends, where the job has them."""
    column: Ints
    """int64[pp, chunks, 3, 3]: column of each duration by kind and class."""
    latency_ps: Ints
    """int64[timings, 2, virtual stages]: what is left of the latencies."""
    work_ps: Ints
    """int64[timings, 2, pp]: work of each rank with one microbatch, and what each further adds."""
    blocks: Flags
    """bool[timings]: whether ranks wait."""
    of_replica: Ints
    """int64[replicas]: timing of each; of other placements it means nothing."""
    silent: bool
    """Whether nothing is left of any latency."""

    @property
    def transfers(self) -> bool:
        """Whether anything is sent that takes time."""
        return not self.silent or self.duration_ps is not self.alone_ps


class Pipeline(NamedTuple):
    """The pipeline of one job, as its order was replayed."""

    timings: Timings
    """A batch of one."""
    alone: Replays
    """Without transfers."""
    replayed: Replays
    activation_bytes: Floats
    """float64[pp, chunks]: what one microbatch leaves in each chunk."""
    peak_bytes: Floats
    """float64[pp]: most activations that each rank holds at one time."""
    in_flight: Ints
    """int64[pp, chunks]: microbatches of each chunk at that time."""


def run_steps(inputs: StepInputs, orders: Sequence[ChosenOrder], order_of_job: Ints) -> Steps:
    """Replay the pipelines, those that share an order together."""
    replicas, num = inputs.replicas, len(order_of_job)
    any_job = np.empty(len(replicas), np.int64)
    any_job[replicas.of_job] = np.arange(num)
    parts, place, placed = [], np.empty(len(replicas), np.int64), 0
    for number in range(len(replicas.placements.unique)):
        same = np.flatnonzero(replicas.placements.of == number)
        order = orders[order_of_job[any_job[same[0]]]].short()
        timings = _timings(inputs, order, same)
        same = same[np.argsort(timings.of_replica.take(same), kind="stable")]
        parts.append((same, timings))
        place[same] = np.arange(placed, placed + len(same))
        placed += len(same)
    # Jobs of a replica follow one another, and replicas that take as long.
    jobs, begin = rows_by_number(place.take(replicas.of_job), placed)
    runs, placed = [], 0
    for same, timings in parts:
        some = begin[placed : placed + len(same) + 1]
        mine = jobs[some[0] : some[-1]]
        runs.append(_run_placement(inputs, orders, order_of_job, same, timings, mine, some))
        placed += len(same)
    return Steps(num, runs)


def _timings(inputs: StepInputs, order: Order, chosen: Ints) -> Timings:
    replicas = inputs.replicas
    placement = replicas.placement(int(chosen[0]))
    latency_ps, sends = _latencies_ps(inputs.p2p, chosen, placement.stage_of.size)
    asked = replicas.jobs.parallelism.overlap_p2p.take(chosen)
    # Megatron's default is by schedule.
    default = order.vpp == 1 and not order.splits_backward
    blocks = np.where(asked < 0, default, asked == 0)
    stages = timing_kernels.StageDurations(
        replicas.pattern,
        replicas.first_kind,
        inputs.times.first_row,
        replicas.patterns.stage_first,
        replicas.patterns.stage_kind,
        inputs.first_forward_ps,
        inputs.kind_ps,
    )
    first, timing = timing_kernels.distinct_timings(
        chosen, placement.num_stages, 2 * sends + blocks, stages
    )
    sent_ps, sends, blocks = placement.sent_ps(latency_ps), sends.take(first), blocks.take(first)
    latency_ps = latency_ps.take(sends, axis=0)
    waits = bool(latency_ps.any() and blocks.any())
    held, patterns = placement.model_stage, np.flatnonzero(np.bincount(replicas.pattern[chosen]))
    kinds = stages.stage_kind[stages.pattern_first[patterns, None] + held.ravel()]
    sent = sent_ps.reshape(-1, held.size)[: None if waits else 0]
    alike = group_rows(np.concatenate([kinds, sent]).T)[1].reshape(held.shape)
    column = alike[:, :, None, None] * timing_kernels.KIND_TIMES + timing_kernels.COLUMN
    firsts = (alike.max() + 1) * timing_kernels.KIND_TIMES + np.arange(held.size)
    column[:, :, FORWARD, FIRST] = firsts.reshape(held.shape)
    alone_ps = np.empty((len(first), firsts[-1] + 1), np.int64)
    duration_ps = np.empty((len(first) if waits else 0, firsts[-1] + 1), np.int64)
    work_ps = np.empty((len(first), 2, len(held)), np.int64)
    columns = timing_kernels.TimingColumns(alone_ps, duration_ps, work_ps)
    timing_kernels.write_timings(
        chosen.take(first), held, alike, stages, blocks, sends, sent_ps, columns
    )
    if waits:
        latency_ps[blocks] = 0
    of_replica = np.zeros(len(replicas), np.int64)
    of_replica[chosen] = timing
    return Timings(
        alone_ps=alone_ps,
        duration_ps=duration_ps if waits else alone_ps,
        column=column,
        latency_ps=latency_ps,
        work_ps=work_ps,
        blocks=blocks,
        of_replica=of_replica,
        silent=not latency_ps.any(),
    )


def _latencies_ps(p2p: PointToPoint, chosen: Ints, stages: int) -> tuple[Ints, Ints]:
    """Return the distinct latencies of replicas, int64[distinct, 2, stages], and which each has."""
    known, number = group_rows(p2p.first.take(chosen))
    row = p2p.first.take(chosen[known])[:, None] + np.arange(stages)
    latency_ps = np.ascontiguousarray(order_times.to_ps(p2p.latency_s[row]).transpose(0, 2, 1))
    first, equal = group_rows(latency_ps.reshape(len(known), -1))
    return latency_ps[first], equal[number]


def replay_job(inputs: StepInputs, chosen: ChosenOrder, job: int) -> Pipeline:
    """Return the pipeline of one job."""
    replicas = inputs.replicas
    replica = int(replicas.of_job[job])
    order = chosen.short()
    timings = _timings(inputs, order, np.array([replica], np.int64))
    one = np.zeros(1, np.int64)
    ends = _replay_all([chosen], one, timings, one)
    durations_ps = [each[:, timings.column] for each in (timings.alone_ps, timings.duration_ps)]
    timings = timings._replace(alone_ps=durations_ps[0], duration_ps=durations_ps[1])
    alone, replayed = (
        order_times.replay_of(*pair, chosen.microbatches)
        for pair in zip(ends, durations_ps, strict=True)
    )
    pipeline = int(replicas.pipeline[replica])
    saved_bytes = _saved_bytes(inputs, order, replicas.placement(replica), np.array([pipeline]))
    peak, in_flight = peak_bytes(order, saved_bytes, inputs.costs.weight_share[pipeline])
    return Pipeline(timings, alone, replayed, saved_bytes[0], peak[0], in_flight[0])


def _saved_bytes(inputs: StepInputs, order: Order, placement: Placement, pipelines: Ints) -> Floats:
    """Return what one microbatch leaves in each chunk, ``float64[pipelines, pp, chunks]``."""
    first = inputs.replicas.workloads.stage_offset[pipelines]
    saved_bytes: Floats = inputs.costs.saved_bytes[first[:, None, None] + placement.model_stage]
    assert saved_bytes.shape[1:] == (order.pp, order.vpp)
    return saved_bytes


def _run_placement(
    inputs: StepInputs,
    orders: Sequence[ChosenOrder],
    all_orders: Ints,
    same: Ints,
    timings: Timings,
    jobs: Ints,
    begin: Ints,
) -> kernels.StepRuns:
    """Replay jobs whose stages are placed alike.

    ``all_orders`` has the order of each job of the batch. ``same`` are the replicas of the
    placement, so that their timings ascend; ``jobs`` are rows in the order of their replicas, and
    ``begin`` int64[replicas + 1] says where those of each replica begin.
    """
    order_of_job = all_orders.take(jobs)
    replicas = inputs.replicas
    replica = replicas.of_job.take(jobs)
    timing = timings.of_replica.take(replica)
    first, run = distinct_pairs(timing, order_of_job)
    alone, replayed = _replay_all(
        orders,
        order_of_job.take(first),
        timings,
        timing.take(first),
        starts=bool(inputs.families[kernels.APART].any()),
    )
    peak, held = _peaks(inputs, orders, order_of_job, replica)
    microbatches = np.array([order.microbatches for order in orders], np.int64)
    family, patterns, costs, times = (
        replicas.family.take(jobs), replicas.patterns, inputs.costs, inputs.times,
    )  # fmt: skip
    firsts = (
        replicas.pattern, replicas.row_first, times.first_row, replicas.first_kind,
        replicas.first_rank_kind, timings.of_replica,
    )  # fmt: skip
    placement = replicas.placement(int(replica[0]))
    return kernels.StepRuns(
        begin - begin[0],
        np.stack([jobs, run, held, family, microbatches.take(order_of_job)]),
        kernels.StepPatterns(
            patterns.stage_first, patterns.stage_kind, patterns.rank_first, patterns.rank_kind
        ),
        kernels.StepReplicas(
            np.stack([first.take(same) for first in firsts]),
            inputs.tied_s.take(same),
            timings.work_ps,
        ),
        inputs.families,
        placement.model_stage,
        replayed,
        alone,
        kernels.StepStages(
            costs.categories_s,
            costs.apart_launch_s if placement.splits_backward else costs.launch_s,
            times.exposed_first_s,
            times.exposed_last_s,
            times.exposed_each_s,
            times.tail_s,
            times.reduce_after_s,
            times.gather_after_s,
        ),
        kernels.StepRanks(inputs.optimizer_s, inputs.held.static, peak),
    )


def _replay_all(
    orders: Sequence[ChosenOrder],
    order_of_run: Ints,
    timings: Timings,
    timing_of_run: Ints,
    starts: bool = True,
) -> tuple[Ends, Ends]:
    """Return all replays of a placement, whose timings ascend, without transfers and with them.

    What ``end_steps`` does not read is left out and has no rows: where there are transfers, last
    backwards of the first replays; starts, if they are not asked for.
    """
    num, column = len(order_of_run), timings.column
    pp, chunks = column.shape[:2]
    nothing = empty_ends(pp, chunks, 0)
    alone = replayed = empty_ends(pp, chunks, num)
    if timings.transfers:
        replayed = empty_ends(pp, chunks, num)
        alone = alone._replace(last_backward_end_ps=nothing.last_backward_end_ps)
    if not starts:
        alone = alone._replace(rank_start_ps=nothing.rank_start_ps)
        replayed = replayed._replace(rank_start_ps=nothing.rank_start_ps)
    batches = [order_times.Wanted(timings.alone_ps, None, alone, column)]
    if timings.transfers:
        latency_ps = None if timings.silent else timings.latency_ps
        batches.append(order_times.Wanted(timings.duration_ps, latency_ps, replayed, column))
    order_times.replay_chosen(orders, order_of_run, timing_of_run, batches)
    return alone, replayed


def _peaks(
    inputs: StepInputs, orders: Sequence[ChosenOrder], order_of_job: Ints, replica: Ints
) -> tuple[Floats, Ints]:
    replicas = inputs.replicas
    # Orders that differ in the number of microbatches alone mostly hold the same at their peaks.
    kind_of_order = np.zeros(len(orders), np.int64)
    of_kind: dict[tuple[bytes, bytes], tuple[int, Order]] = {}
    for number in np.flatnonzero(np.bincount(order_of_job)).tolist():
        order = orders[number].short()
        key = order_times.compile_peaks(order).key
        kind_of_order[number], _ = of_kind.setdefault(key, (len(of_kind), order))
    pair, pair_of_job = distinct_pairs(replica, kind_of_order.take(order_of_job))
    kind = kind_of_order.take(order_of_job.take(pair))
    pipeline = replicas.pipeline.take(replica.take(pair))
    first, row_of_pair = group_rows(kind, pipeline)
    placement = replicas.placement(int(replica[0]))
    peak = np.empty((len(first), len(placement.model_stage)))
    for number, order in of_kind.values():
        rows = np.flatnonzero(kind[first] == number)
        pipelines = pipeline[first[rows]]
        saved_bytes = _saved_bytes(inputs, order, placement, pipelines)
        peak[rows], _ = peak_bytes(order, saved_bytes, inputs.costs.weight_share[pipelines])
    return peak, row_of_pair.take(pair_of_job)
