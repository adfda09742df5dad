"""The step of a job: the replay of its pipeline, then gradients, optimizer and gathers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from projector.kernels import step as kernels
from projector.kernels.distinct import distinct, offsets
from projector.operations.table import CATEGORIES
from projector.projection.data_parallel import StageTimes
from projector.projection.memory_columns import StateMemory
from projector.projection.pipelines import PipelineCosts
from projector.projection.replicas import PointToPoint, Replicas
from projector.schedule.order import Order
from projector.schedule.placement import Placement
from projector.schedule.replay import Replays, peak_bytes, replay_batch, to_ps

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

BREAKDOWN = (*CATEGORIES, "pp_bubble", "pp_comm", "dp_comm", "optimizer", "launch")
"""Terms of a step, which add up to it."""

MIDDLE = 1
"""Class of durations that most microbatches have."""


@dataclass(frozen=True, eq=False)
class StepInputs:
    """What steps are put together from."""

    replicas: Replicas
    costs: PipelineCosts
    times: StageTimes
    p2p: PointToPoint
    state: StateMemory
    optimizer_s: Floats
    """float64[ranks]: the update on each rank of each replica."""
    tied_s: Floats
    """float64[replicas]: sum of the gradients of tied embeddings on two ranks."""
    first_forward_ps: Ints
    """int64[stages]: forward of the first microbatch."""
    kind_ps: Ints
    """int64[kinds of stages, 3, 3]: all other durations by kind of operation and class, an unsplit
    backward as one."""
    weight_ps: Ints
    """int64[kinds]: gradient of the weights alone."""
    split_backward_ps: Ints
    """int64[kinds, 3]: the rest of the backward, by class."""
    kind_s: Floats
    """float64[kinds, STAGE_TERMS]: what ends and explains a step; see `kernels.step`."""
    static_bytes: Floats
    """float64[ranks]: what each rank holds besides activations."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Columns of the steps of a batch, one entry for each job."""

    iteration_s: Floats
    breakdown_s: Floats
    """float64[jobs, len(BREAKDOWN)]: on the rank that ends the step."""
    pipeline_s: Floats
    """Until the last operation of any rank, gradients and optimizer left out; the longest span of
    one rank where ranks do not wait for each other between steps."""
    busiest_s: Floats
    """Work of the busiest pipeline rank, sends left out."""
    ending_s: Floats
    """The same of the rank that ends the step."""
    ending_rank: Ints
    """Pipeline rank that ends the last backward and its gradients."""
    busiest_rank: Ints
    peak_bytes: Floats
    """Allocated peak of the fullest rank."""
    peak_rank: Ints


class Timings(NamedTuple):
    """Times of some replicas with one placement, each distinct one once."""

    alone_ps: Ints
    """int64[timings, pp, chunks, 3, 3]: durations by kind and class."""
    duration_ps: Ints
    """The same where ranks wait until what they send has arrived, if they do."""
    latency_ps: Ints
    """int64[timings, 2, virtual stages]: what is left of the latencies."""
    blocks: Flags
    """bool[timings]: whether ranks wait."""
    of_replica: Ints
    """int64[replicas]: timing of each; of other placements it means nothing."""


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


def step_inputs(
    replicas: Replicas,
    costs: PipelineCosts,
    times: StageTimes,
    p2p: PointToPoint,
    state: StateMemory,
    optimizer_s: Floats,
    tied_s: Floats,
) -> StepInputs:
    """Convert the times of the stages for the replay, and gather what follows it."""
    stage = replicas.stage[replicas.kind_stage]
    weight_s = costs.weight_s[stage]
    backward_s = np.stack([times.backward_s, times.backward_s, times.last_backward_s], axis=1)
    kind_ps = np.zeros((len(weight_s), 3, 3), np.int64)
    kind_ps[:, 0] = to_ps(times.forward_s)[:, None]
    kind_ps[:, 1] = to_ps(backward_s)
    kind_s = np.empty((len(weight_s), kernels.STAGE_TERMS))
    kind_s[:, : kernels.CATEGORY_TERMS] = costs.categories_s[stage]
    kind_s[:, kernels.STAGE_LAUNCH] = costs.launch_s[stage]
    kind_s[:, kernels.TAIL] = times.tail_s
    kind_s[:, kernels.REDUCE_AFTER] = times.reduce_after_s
    kind_s[:, kernels.GATHER_AFTER] = times.gather_after_s
    kind_s[:, kernels.EXPOSED_LAST] = times.exposed_last_s
    kind_s[:, kernels.EXPOSED_EACH] = times.exposed_each_s
    return StepInputs(
        replicas=replicas,
        costs=costs,
        times=times,
        p2p=p2p,
        state=state,
        optimizer_s=optimizer_s,
        tied_s=tied_s,
        first_forward_ps=to_ps(times.first_forward_s),
        kind_ps=kind_ps,
        weight_ps=to_ps(weight_s),
        # Whatever data parallelism adds to a backward stays with B.
        split_backward_ps=to_ps(np.maximum(0.0, backward_s - weight_s[:, None])),
        kind_s=kind_s,
        static_bytes=state.static_bytes,
    )


def run_steps(inputs: StepInputs, orders: Sequence[Order], order_of_job: Ints) -> Steps:
    """Replay the pipelines, those that share an order together, and end the steps."""
    num = len(order_of_job)
    steps = Steps(
        iteration_s=np.empty(num),
        breakdown_s=np.empty((num, len(BREAKDOWN))),
        pipeline_s=np.empty(num),
        busiest_s=np.empty(num),
        ending_s=np.empty(num),
        ending_rank=np.empty(num, np.int64),
        busiest_rank=np.empty(num, np.int64),
        peak_bytes=np.empty(num),
        peak_rank=np.empty(num, np.int64),
    )
    by_order = np.argsort(order_of_job, kind="stable")
    first = offsets(np.bincount(order_of_job, minlength=len(orders)))
    timings: dict[int, Timings] = {}
    of_job = inputs.replicas.of_job
    of = inputs.replicas.placements.of
    outputs = _Outputs(np.empty((num, 4)), np.empty((num, 2), np.int64), steps)
    for number, order in enumerate(orders):
        jobs = by_order[first[number] : first[number + 1]]
        placement = int(of[of_job[jobs[0]]])
        if placement not in timings:
            timings[placement] = _timings(inputs, order, np.flatnonzero(of == placement))
        _run_order(inputs, order, jobs, timings[placement], outputs)
    for place, column in enumerate(
        (steps.iteration_s, steps.pipeline_s, steps.busiest_s, steps.ending_s)
    ):
        column[:] = outputs.time_s[:, place]
    steps.ending_rank[:], steps.busiest_rank[:] = outputs.rank.T
    return steps


class _Outputs(NamedTuple):
    time_s: Floats
    """float64[jobs, 4]: as `kernels.step.end_steps` writes them."""
    rank: Ints
    """int64[jobs, 2]"""
    steps: Steps


def _timings(inputs: StepInputs, order: Order, chosen: Ints) -> Timings:
    """Return the times of some replicas that have the placement of an order."""
    replicas = inputs.replicas
    placement = replicas.placement(int(chosen[0]))
    stage = replicas.stage_offset[chosen][:, None, None] + placement.model_stage
    kind = replicas.stage_kind[stage]
    alone_ps = inputs.kind_ps[kind]
    alone_ps[:, :, :, 0, 0] = inputs.first_forward_ps[stage]
    if order.splits_backward:
        alone_ps[:, :, :, 1] = inputs.split_backward_ps[kind]
        alone_ps[:, :, :, 2] = inputs.weight_ps[kind][..., None]
    virtual = replicas.chunk_first[chosen][:, None] + np.arange(placement.stage_of.size)
    latency_ps = np.ascontiguousarray(to_ps(inputs.p2p.latency_s[virtual]).transpose(0, 2, 1))
    asked = replicas.jobs.parallelism.overlap_p2p[chosen]
    # Megatron's default is by schedule.
    default = order.vpp == 1 and not order.splits_backward
    blocks = np.where(asked < 0, default, asked == 0)
    first, timing = distinct(
        alone_ps.reshape(len(chosen), -1), latency_ps.reshape(len(chosen), -1), blocks
    )
    alone_ps, latency_ps, blocks = alone_ps[first], latency_ps[first], blocks[first]
    duration_ps = alone_ps
    if latency_ps.any() and blocks.any():
        duration_ps = alone_ps.copy()
        duration_ps[blocks], latency_ps[blocks] = placement.block(
            alone_ps[blocks], latency_ps[blocks]
        )
    of_replica = np.zeros(len(replicas), np.int64)
    of_replica[chosen] = timing
    return Timings(alone_ps, duration_ps, latency_ps, blocks, of_replica)


def _replay(order: Order, timings: Timings, which: Ints) -> tuple[Replays, Replays]:
    """Return the replays of some timings, without transfers and with them."""
    silent = timings.duration_ps is timings.alone_ps and not timings.latency_ps.any()
    nothing = timings.latency_ps if silent else np.zeros_like(timings.latency_ps)
    alone = replay_batch(order, timings.alone_ps, nothing, which=which)
    if silent:
        return alone, alone
    return alone, replay_batch(order, timings.duration_ps, timings.latency_ps, which=which)


def replay_job(inputs: StepInputs, order: Order, job: int) -> Pipeline:
    """Return the pipeline of one job."""
    replicas = inputs.replicas
    replica = int(replicas.of_job[job])
    timings = _timings(inputs, order, np.array([replica], np.int64))
    alone, replayed = _replay(order, timings, np.zeros(1, np.int64))
    pipeline = int(replicas.pipeline[replica])
    kept = _kept_bytes(inputs, order, replicas.placement(replica), np.array([pipeline]))
    peak, in_flight = peak_bytes(order, kept, inputs.costs.weight_share[pipeline])
    return Pipeline(timings, alone, replayed, kept[0], peak[0], in_flight[0])


def _kept_bytes(inputs: StepInputs, order: Order, placement: Placement, pipelines: Ints) -> Floats:
    """Return what one microbatch leaves in each chunk, ``float64[pipelines, pp, chunks]``."""
    first = inputs.replicas.workloads.stage_offset[pipelines]
    kept: Floats = inputs.costs.saved_bytes[first[:, None, None] + placement.model_stage]
    assert kept.shape[1:] == (order.pp, order.vpp)
    return kept


def _run_order(
    inputs: StepInputs, order: Order, jobs: Ints, timings: Timings, outputs: _Outputs
) -> None:
    """Replay the jobs of one order, end their steps, and find their fullest ranks."""
    replicas, batch = inputs.replicas, inputs.replicas.workloads.batch
    replica = replicas.of_job[jobs]
    placement = replicas.placement(int(replica[0]))
    timing = timings.of_replica[replica]
    first, run = distinct(timing)
    alone, replayed = _replay(order, timings, timing[first])
    rank_first = replicas.rank_offset[replica]
    kernels.end_steps(
        jobs,
        run,
        replicas.stage_offset[replica],
        rank_first,
        np.ascontiguousarray(placement.model_stage),
        order.microbatches,
        batch.training.post_validation[jobs],
        replayed.rank_start_ps,
        replayed.rank_end_ps,
        replayed.last_backward_end_ps,
        alone.rank_start_ps,
        alone.rank_end_ps,
        alone.rank_busy_ps,
        replicas.stage_kind,
        inputs.kind_s,
        inputs.times.exposed_first_s,
        inputs.optimizer_s,
        inputs.tied_s[replica],
        batch.cluster.step_overhead_s[jobs],
        outputs.steps.breakdown_s,
        outputs.time_s,
        outputs.rank,
    )
    pipeline = replicas.pipeline[replica]
    first, held = distinct(pipeline)
    pipelines = pipeline[first]
    kept = _kept_bytes(inputs, order, placement, pipelines)
    peak, _ = peak_bytes(order, kept, inputs.costs.weight_share[pipelines])
    kernels.fullest_ranks(
        jobs, rank_first, inputs.static_bytes, held, peak, outputs.steps.peak_bytes,
        outputs.steps.peak_rank,
    )  # fmt: skip
