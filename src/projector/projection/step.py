"""The step of a job: the replay of its pipeline, then gradients, optimizer and gathers."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from projector.config.job import Job
from projector.lower.workloads import Workloads
from projector.operations.table import CATEGORIES, WEIGHT
from projector.projection.data_parallel import StageTimes
from projector.projection.memory_columns import StageMemory
from projector.schedule.order import Order
from projector.schedule.placement import Placement
from projector.schedule.replay import Replays, peak_bytes, replay_batch, to_ps
from projector.units import MILLISECOND

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PS = 1e-12

BREAKDOWN = (*CATEGORIES, "pp_bubble", "pp_comm", "dp_comm", "optimizer", "launch")
"""Terms of a step, which add up to it."""

PP_BUBBLE, PP_COMM, DP_COMM, OPTIMIZER, LAUNCH = range(len(CATEGORIES), len(BREAKDOWN))


@dataclass(frozen=True, slots=True)
class StageSums:
    """What one microbatch takes in each virtual stage of all jobs."""

    categories_s: Floats
    """float64[stages, categories]: exposed time."""
    launch_s: Floats
    """float64[stages]: gaps between kernels and waits for the host."""
    weight_s: Floats
    """float64[stages]: gradient of the weights alone."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What steps are put together from; sequences have one entry for each job."""

    jobs: Sequence[Job]
    workloads: Workloads
    placements: Sequence[Placement]
    orders: Sequence[Order]
    times: StageTimes
    stages: StageSums
    p2p_s: Sequence[Floats]
    """float64[pp * chunks, 2]: latency from each virtual stage to the next and the one before."""
    optimizer_s: Sequence[Floats]
    """float64[pp]: the update on each rank."""
    tied_s: Floats
    """float64[jobs]: sum of the gradients of tied embeddings on two ranks."""
    memory: StageMemory
    """Its peaks of activations are filled in."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The step of each job; lists have one entry for each."""

    iteration_s: Floats
    """float64[jobs]."""
    breakdown_s: Floats
    """float64[jobs, len(BREAKDOWN)]: on the rank that ends the step."""
    ending_rank: Ints
    """int64[jobs]: pipeline rank that ends the last backward and its gradients."""
    rank_busy_s: list[Floats]
    """float64[pp] for each job: time each pipeline rank works, sends left out."""
    sends_ps: list[Ints | None]
    """int64[pp] for each job: time each rank waits for its own messages; None where it works on."""
    pipeline_s: Floats
    """float64[jobs]: until the last operation of any rank, gradients and optimizer left out; the
    longest span of one rank where ranks do not wait for each other between steps."""
    duration_ps: list[Ints]
    """int64[pp, vpp, 3, 3]: as the order was replayed."""
    latency_ps: list[Ints]
    """int64[2, pp * vpp] for each job, as its order was replayed."""


def stage_sums(
    workloads: Workloads, exposed_s: Floats, launch_s: Floats, layer_s: Floats
) -> StageSums:
    """Sum what the layers of each virtual stage take.

    Parameters
    ----------
    exposed_s : float64[runs, phases, categories]
    launch_s, layer_s : float64[runs, phases]
        One layer of each run of equal layers.
    """
    num = len(workloads.run_offset) - 1
    stage = np.repeat(np.arange(num), np.diff(workloads.run_offset))
    count = workloads.run_count
    categories = np.zeros((num, len(CATEGORIES)))
    launch = np.zeros(num)
    for phase in range(3):
        for term in range(len(CATEGORIES)):
            categories[:, term] += np.bincount(stage, exposed_s[:, phase, term] * count, num)
        launch += np.bincount(stage, launch_s[:, phase] * count, num)
    weight = np.bincount(stage, layer_s[:, WEIGHT] * count, num).astype(np.float64)
    return StageSums(categories, launch, weight)


def run_steps(inputs: StepInputs) -> Steps:
    """Replay the pipelines, those that share an order together, and end the steps."""
    num = len(inputs.jobs)
    steps = Steps(
        iteration_s=np.zeros(num),
        breakdown_s=np.zeros((num, len(BREAKDOWN))),
        ending_rank=np.zeros(num, np.int64),
        rank_busy_s=[np.zeros(0)] * num,
        sends_ps=[None] * num,
        pipeline_s=np.zeros(num),
        duration_ps=[np.zeros(0, np.int64)] * num,
        latency_ps=[np.zeros(0, np.int64)] * num,
    )
    groups: dict[int, list[int]] = defaultdict(list)
    for row, order in enumerate(inputs.orders):
        groups[id(order)].append(row)
    for members in groups.values():
        _replay(inputs, steps, np.array(members))
    return steps


@dataclass(frozen=True, slots=True)
class _Pipelines:
    """Pipelines that share one order; axis 0 of every array is the job among them."""

    order: Order
    held: Ints
    """int64[n, pp, chunks]: stage, of all jobs, that each chunk holds."""
    alone: Replays
    """Without transfers."""
    replayed: Replays


def _replay(inputs: StepInputs, steps: Steps, members: Ints) -> None:
    order, placement = inputs.orders[members[0]], inputs.placements[members[0]]
    first_stage = inputs.workloads.stage_offset[members]
    held = first_stage[:, None, None] + placement.model_stage
    duration_ps = _durations(inputs, order, held)
    latency_ps = to_ps(np.stack([inputs.p2p_s[row] for row in members])).transpose(0, 2, 1)
    alone = replay_batch(order, duration_ps, np.zeros_like(latency_ps))
    blocks = np.array([_blocks_sends(inputs.jobs[row], order) for row in members])
    duration_ps[blocks], latency_ps[blocks] = placement.block(
        duration_ps[blocks], latency_ps[blocks]
    )
    pipelines = _Pipelines(order, held, alone, replay_batch(order, duration_ps, latency_ps))
    for n, row in enumerate(members):
        _end_step(inputs, steps, pipelines, n, row)
        _fill_memory(inputs.memory, order, held[n], row)
        if blocks[n]:
            steps.sends_ps[row] = pipelines.replayed.rank_busy_ps[n] - alone.rank_busy_ps[n]
        # Copies: a view would keep the whole batch in memory as long as one of its jobs.
        steps.duration_ps[row] = duration_ps[n].copy()
        steps.latency_ps[row] = latency_ps[n].copy()


def _durations(inputs: StepInputs, order: Order, held: Ints) -> Ints:
    times, weight_s = inputs.times, inputs.stages.weight_s
    duration_ps = np.zeros((*held.shape, 3, 3), np.int64)
    duration_ps[:, :, :, 0, :] = to_ps(times.forward_s)[held]
    backward_s = times.backward_s
    if order.splits_backward:
        # W alone; whatever data parallelism adds to a backward stays with B.
        duration_ps[:, :, :, 2, :] = to_ps(weight_s)[held][..., None]
        backward_s = np.maximum(0.0, backward_s - weight_s[:, None])
    duration_ps[:, :, :, 1, :] = to_ps(backward_s)[held]
    return duration_ps


def _blocks_sends(job: Job, order: Order) -> bool:
    """Whether ranks wait until what they send has arrived; Megatron's default is by schedule."""
    if job.parallelism.overlap_p2p_comm is None:
        return order.vpp == 1 and not order.splits_backward
    return not job.parallelism.overlap_p2p_comm


def _end_step(inputs: StepInputs, steps: Steps, pipelines: _Pipelines, n: int, row: int) -> None:
    """Let the gradients, the optimizer and the gathers follow the last backwards of a job."""
    job, times, held = inputs.jobs[row], inputs.times, pipelines.held[n]
    replayed, alone = pipelines.replayed, pipelines.alone
    ends = replayed.rank_end_ps[n] * PS
    finish = np.maximum(ends, _gradients_end_s(times, held, replayed.last_backward_end_ps[n] * PS))
    finish += times.reduce_after_s[held].sum(axis=1)
    finish[[0, -1]] += inputs.tied_s[row]
    # Ranks that do not wait for each other between steps take as long as their span.
    spans = int(job.training.optimizer_post_validation)
    begins = spans * replayed.rank_start_ps[n] * PS
    ends, finish = ends - begins, finish - begins
    rank = int(np.argmax(finish))
    after = inputs.optimizer_s[row] + times.gather_after_s[held].sum(axis=1)
    last = int(np.argmax(after))
    overhead_s = job.cluster.software.step_overhead_ms * MILLISECOND
    steps.iteration_s[row] = finish[rank] + after[last] + overhead_s
    steps.ending_rank[row] = rank
    steps.rank_busy_s[row] = alone.rank_busy_ps[n] * PS
    steps.pipeline_s[row] = ends.max()

    out = steps.breakdown_s[row]
    _add_stages(inputs, held[rank], pipelines.order.microbatches, out)
    span_ps, alone_ps = (
        each.rank_end_ps[n, rank] - spans * each.rank_start_ps[n, rank]
        for each in (replayed, alone)
    )
    # A span can be shorter with latencies than without: its start may wait longer for them.
    idle_ps = min(span_ps, alone_ps)
    out[PP_BUBBLE] = (idle_ps - alone.rank_busy_ps[n, rank]) * PS
    out[PP_COMM] = (span_ps - idle_ps) * PS
    out[DP_COMM] += finish[rank] - ends[rank] + times.gather_after_s[held[last]].sum()
    out[OPTIMIZER] = inputs.optimizer_s[row][last]
    out[LAUNCH] += overhead_s


def _gradients_end_s(times: StageTimes, held: Ints, last_end_s: Floats) -> Floats:
    """Return when each rank has sent its gradients; 0 where nothing is left to send.

    The chunks of a rank share one channel, in the order in which their last backwards end.
    """
    tail_s, ranks = times.tail_s[held], np.arange(len(held))
    channel = np.zeros(len(held))
    by_end = np.argsort(last_end_s, axis=1, kind="stable")
    for position in range(held.shape[1]):
        chunk = by_end[:, position]
        channel = np.maximum(channel, last_end_s[ranks, chunk]) + tail_s[ranks, chunk]
    # A tail of zero may end a rounding error before its own backward.
    return np.where(tail_s.max(axis=1) > 0.0, channel, 0.0)


def _add_stages(inputs: StepInputs, held: Ints, microbatches: int, out: Floats) -> None:
    """Add what the chunks of one rank take in a step to its breakdown."""
    times, stages = inputs.times, inputs.stages
    for stage in held:
        out[: len(CATEGORIES)] += microbatches * stages.categories_s[stage]
        out[LAUNCH] += microbatches * stages.launch_s[stage]
        forward, backward = times.exposed_forward_s[stage], times.exposed_backward_s[stage]
        out[DP_COMM] += forward[0] + backward[2] + (microbatches - 1) * (forward[1] + backward[1])


def _fill_memory(memory: StageMemory, order: Order, held: Ints, row: int) -> None:
    kept = memory.saved_bytes[held][np.newaxis]
    peak, in_flight = peak_bytes(order, kept, float(memory.weight_share[row]))
    memory.activation_peak_bytes[row][:] = peak[0]
    memory.in_flight[row][:] = in_flight[0].sum(axis=1)
