"""The step of a job: the replay of its pipeline, then gradients, optimizer and gathers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from projector.kernels import step as kernels
from projector.kernels.distinct import offsets
from projector.operations.table import CATEGORIES
from projector.projection.data_parallel import StageTimes
from projector.projection.memory_columns import StateMemory
from projector.projection.pipelines import PipelineCosts
from projector.projection.replicas import PointToPoint, Replicas
from projector.schedule.order import Order
from projector.schedule.replay import Replays, peak_bytes, replay_batch, to_ps

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

BREAKDOWN = (*CATEGORIES, "pp_bubble", "pp_comm", "dp_comm", "optimizer", "launch")
"""Terms of a step, which add up to it."""

MIDDLE = 1
"""Class of durations that most microbatches have."""

BLOCK_BYTES = 1 << 21
"""Durations of the jobs that are replayed in one go: about what a core keeps at hand."""


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
    stage_ps: Ints
    """int64[stages, 3, 3]: durations by kind and class, an unsplit backward as one."""
    weight_ps: Ints
    """int64[stages]: gradient of the weights alone."""
    split_backward_ps: Ints
    """int64[stages, 3]: the rest of the backward, by class."""
    stage_s: Floats
    """float64[stages, STAGE_TERMS]: what ends and explains a step; see `kernels.step`."""


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


class Pipelines(NamedTuple):
    """The pipelines of jobs that share one order; axis 0 of every array is the job among them."""

    duration_ps: Ints
    """int64[n, pp, chunks, 3, 3]: as replayed."""
    latency_ps: Ints
    """int64[n, 2, virtual stages]: as replayed."""
    blocks: Flags
    """bool[n]: whether ranks wait until what they send has arrived."""
    alone: Replays
    """Without transfers."""
    replayed: Replays
    activation_bytes: Floats
    """float64[n, pp, chunks]: what one microbatch leaves in each chunk."""
    peak_bytes: Floats
    """float64[n, pp]: most activations that each rank holds at one time."""
    in_flight: Ints
    """int64[n, pp, chunks]: microbatches of each chunk at that time."""


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
    weight_s = costs.weight_s[replicas.stage]
    stage_ps = np.zeros((len(weight_s), 3, 3), np.int64)
    stage_ps[:, 0] = to_ps(times.forward_s)
    stage_ps[:, 1] = to_ps(times.backward_s)
    stage_s = np.empty((len(weight_s), kernels.STAGE_TERMS))
    stage_s[:, : kernels.CATEGORY_TERMS] = costs.categories_s[replicas.stage]
    stage_s[:, kernels.STAGE_LAUNCH] = costs.launch_s[replicas.stage]
    stage_s[:, kernels.TAIL] = times.tail_s
    stage_s[:, kernels.REDUCE_AFTER] = times.reduce_after_s
    stage_s[:, kernels.GATHER_AFTER] = times.gather_after_s
    forward, backward = times.exposed_forward_s, times.exposed_backward_s
    stage_s[:, kernels.EXPOSED_ONCE] = forward[:, 0] + backward[:, 2]
    stage_s[:, kernels.EXPOSED_EACH] = forward[:, MIDDLE] + backward[:, MIDDLE]
    return StepInputs(
        replicas=replicas,
        costs=costs,
        times=times,
        p2p=p2p,
        state=state,
        optimizer_s=optimizer_s,
        tied_s=tied_s,
        stage_ps=stage_ps,
        weight_ps=to_ps(weight_s),
        # Whatever data parallelism adds to a backward stays with B.
        split_backward_ps=to_ps(np.maximum(0.0, times.backward_s - weight_s[:, None])),
        stage_s=stage_s,
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
    static = inputs.state.static_bytes
    for number, order in enumerate(orders):
        for jobs in _blocks(by_order[first[number] : first[number + 1]], order):
            pipelines = replay_jobs(inputs, order, jobs)
            _end_steps(inputs, order, jobs, pipelines, steps)
            replica = inputs.replicas.of_job[jobs]
            rank = inputs.replicas.rank_offset[replica][:, None] + np.arange(order.pp)
            peak = static[rank] + pipelines.peak_bytes
            steps.peak_rank[jobs] = fullest = peak.argmax(axis=1)
            steps.peak_bytes[jobs] = peak[np.arange(len(jobs)), fullest]
    return steps


def _blocks(jobs: Ints, order: Order) -> Iterator[Ints]:
    """Cut jobs into as many as are replayed in one go."""
    size = max(64, BLOCK_BYTES // (72 * order.pp * order.vpp) // 64 * 64)
    return (jobs[begin : begin + size] for begin in range(0, len(jobs), size))


def replay_jobs(inputs: StepInputs, order: Order, jobs: Ints) -> Pipelines:
    """Run the pipelines of some jobs of one order."""
    replicas = inputs.replicas
    replica = replicas.of_job[jobs]
    placement = replicas.placement(int(replica[0]))
    stage = replicas.stage_offset[replica][:, None, None] + placement.model_stage
    duration_ps = inputs.stage_ps[stage]
    if order.splits_backward:
        duration_ps[:, :, :, 1] = inputs.split_backward_ps[stage]
        duration_ps[:, :, :, 2] = inputs.weight_ps[stage][..., None]
    virtual = replicas.chunk_first[replica][:, None] + np.arange(placement.stage_of.size)
    latency_ps = np.ascontiguousarray(to_ps(inputs.p2p.latency_s[virtual]).transpose(0, 2, 1))
    asked = replicas.workloads.batch.parallelism.overlap_p2p[jobs]
    # Megatron's default is by schedule.
    default = order.vpp == 1 and not order.splits_backward
    blocks = np.where(asked < 0, default, asked == 0)
    if latency_ps.any():
        alone = replay_batch(order, duration_ps, np.zeros_like(latency_ps))
        duration_ps[blocks], latency_ps[blocks] = placement.block(
            duration_ps[blocks], latency_ps[blocks]
        )
        replayed = replay_batch(order, duration_ps, latency_ps)
    else:
        alone = replayed = replay_batch(order, duration_ps, latency_ps)
    pipeline_stage = replicas.stage[stage]
    kept = inputs.costs.saved_bytes[pipeline_stage]
    share = inputs.costs.weight_share[replicas.pipeline[replica]]
    peak, in_flight = peak_bytes(order, kept, share)
    return Pipelines(duration_ps, latency_ps, blocks, alone, replayed, kept, peak, in_flight)


def _end_steps(
    inputs: StepInputs, order: Order, jobs: Ints, pipelines: Pipelines, steps: Steps
) -> None:
    replicas = inputs.replicas
    replica = replicas.of_job[jobs]
    batch = replicas.workloads.batch
    replayed, alone = pipelines.replayed, pipelines.alone
    breakdown_s = np.empty((len(jobs), len(BREAKDOWN)))
    time_s, rank = np.empty((len(jobs), 4)), np.empty((len(jobs), 2), np.int64)
    kernels.end_steps(
        replicas.stage_offset[replica],
        replicas.rank_offset[replica],
        np.ascontiguousarray(replicas.placement(int(replica[0])).model_stage),
        order.microbatches,
        batch.training.post_validation[jobs],
        replayed.rank_start_ps,
        replayed.rank_end_ps,
        replayed.last_backward_end_ps,
        alone.rank_start_ps,
        alone.rank_end_ps,
        alone.rank_busy_ps,
        inputs.stage_s,
        inputs.optimizer_s,
        inputs.tied_s[replica],
        batch.cluster.step_overhead_s[jobs],
        breakdown_s,
        time_s,
        rank,
    )
    steps.breakdown_s[jobs] = breakdown_s
    for place, column in enumerate(
        (steps.iteration_s, steps.pipeline_s, steps.busiest_s, steps.ending_s)
    ):
        column[jobs] = time_s[:, place]
    steps.ending_rank[jobs], steps.busiest_rank[jobs] = rank.T
