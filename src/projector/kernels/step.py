"""Data parallelism beside the layers of a stage, and what follows the pipeline of a step.

Shape suffixes
    R   runs of equal layers, S stages; ``run_offset`` cuts runs into stages (CSR)
Units
    seconds, float64.
"""

import math
from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints

from ._jit import helper, inlined, kernel
from .pipeline import Replays

PS = 1e-12
"""Seconds of the tick of schedules."""

CATEGORY_TERMS = 6
"""Categories of exposed time of a stage, its first columns."""

STAGE_LAUNCH, EXPOSED_LAST, EXPOSED_EACH, STAGE_TERMS = range(CATEGORY_TERMS, CATEGORY_TERMS + 4)
"""Further columns of a stage: launches of a microbatch; what data parallelism adds to the last
backward, and to a forward and a backward between the first and the last."""

COMPUTE_TERMS = 3
"""Categories of compute, the first of them."""

BREAKDOWN_TERMS = CATEGORY_TERMS + 6
BUBBLE, PIPELINE, DATA_PARALLEL, OPTIMIZER, LAUNCH, STRAGGLERS = range(
    CATEGORY_TERMS, BREAKDOWN_TERMS
)
"""Columns of a breakdown behind the categories."""

STEP, LAST_OPERATION, BUSIEST, ENDING = range(4)
"""Columns of the times of a step: the step; the last operation of any rank; work of the busiest
rank; work of the rank that ends the step. Of the ranks: ``ENDING_RANK`` and ``BUSIEST_RANK``."""

ENDING_RANK, BUSIEST_RANK = range(2)


class StepJobs(NamedTuple):
    """Jobs whose stages are placed alike, n of them; ``int64[n]`` each."""

    row: Ints
    """Among all jobs of the batch."""
    replay: Ints
    """Row of its replay."""
    replica: Ints
    family: Ints
    microbatches: Ints
    """Of one step."""


class StepReplicas(NamedTuple):
    """Where the numbers of replicas begin, those with the same placement among all."""

    chosen: Ints
    """``int64[any]``: those of the jobs."""
    stage_first: Ints
    """``int64[replicas]``: first stage."""
    rank_first: Ints
    """``int64[replicas]``: first rank."""
    chunk_first: Ints
    """``int64[replicas]``: first chunk."""
    tied_s: Floats
    """``float64[replicas]``: sum of tied embeddings' gradients at both ends."""


class StepFamilies(NamedTuple):
    """What jobs of a family share."""

    apart: Ints
    """``int64[families]``: 1 where ranks do not wait for each other between steps: each takes as
    long as its span."""
    overhead_s: Floats
    """``float64[families]``: what no rank owns."""
    straggler_share: Floats
    """``float64[families]``: by how much of its compute the slowest device ends behind the average
    one."""


class StepStages(NamedTuple):
    """What stages and chunks take."""

    kind: Ints
    """``int64[stages]``: row of each stage in ``kind_s``."""
    kind_s: Floats
    """``float64[kinds, STAGE_TERMS]``: what each kind of stage takes; see the constants above."""
    exposed_first_s: Floats
    """``float64[stages]``: what data parallelism adds to the first forward."""
    tail_s: Floats
    """``float64[chunks]``: gradient traffic left after the last backward."""


class StepRanks(NamedTuple):
    """What ranks take once their last backward has ended."""

    reduce_after_s: Floats
    """``float64[ranks]``: gradient traffic that nothing overlaps."""
    gather_after_s: Floats
    """``float64[ranks]``: parameter gathers that nothing overlaps."""
    optimizer_s: Floats
    """``float64[ranks]``: update."""


class StepOutputs(NamedTuple):
    """What `end_steps` and `fullest_ranks` write, one column for each job of the batch."""

    breakdown_s: Floats
    """``float64[BREAKDOWN_TERMS, all]``: categories, bubble, pipeline, data parallelism,
    optimizer, launch, stragglers."""
    time_s: Floats
    """``float64[4, all]``: ``STEP`` to ``ENDING``."""
    rank: Ints
    """``int64[2, all]``: the rank that ends the step, and the busiest."""
    peak_bytes: Floats
    """``float64[all]``: the most that a rank holds."""
    peak_rank: Ints
    """``int64[all]``: the first rank that does."""


class _Ends(NamedTuple):
    """How the ranks of one job end."""

    ending: int
    """Rank that has sent its gradients last."""
    finish_s: float
    """When it has."""
    last_s: float
    """When the last operation of any rank has ended."""
    busiest: int
    """Rank that works the longest."""


@helper
def _gathered_at(
    gather_s: Floats, run_of_layer: Ints, layer: int, now: float, channel: float, gathered: Floats
) -> float:
    """Gather the weights of a layer, asked for at ``now``; return until when the channel is busy.

    ``gathered`` takes the moment at which they are there, 0 where nothing is to be gathered.
    """
    seconds = gather_s[run_of_layer[layer]]
    gathered[layer] = 0.0
    if seconds > 0.0:
        channel = max(channel, now) + seconds
        gathered[layer] = channel
    return channel


@helper
def _list_layers(begin: int, end: int, run_count: Ints, backward: bool, run_of_layer: Ints) -> int:
    """Write the run of each layer, in the order in which they compute; return their number."""
    layers = 0
    for step in range(end - begin):
        run = end - 1 - step if backward else begin + step
        for _ in range(run_count[run]):
            run_of_layer[layers] = run
            layers += 1
    return layers


@kernel
def overlapped_stages(
    run_offset: Ints,
    run_count: Ints,
    compute_s: Floats,
    gather_s: Floats,
    reduce_s: Floats,
    backward: bool,
    ahead: Ints,
    duration_s: Floats,
    tail_s: Floats,
) -> None:
    """Run compute and one communication channel through each stage, layer by layer.

    A layer computes once its weights are gathered. When it starts to, the gather of the layer
    ``ahead`` positions on is asked for, so that ``ahead + 1`` layers of gathered weights are held
    at most; with 0 that of the next layer is asked for when this one has computed. A layer's
    gradients are reduced once it has computed. The channel serves what is asked for in order.

    Parameters
    ----------
    run_offset : int64[S + 1]
        First run of each stage.
    run_count : int64[R]
        Layers of each run.
    compute_s : float64[R]
        Compute of one layer.
    gather_s, reduce_s : float64[R]
        Gathering the weights and reducing the gradients of one layer.
    backward : bool
        Walk from the last layer to the first.
    ahead : int64[S]
        Layers whose weights are gathered ahead of the one that computes.
    duration_s : float64[S]
        Output: until the last layer has computed.
    tail_s : float64[S]
        Output: how much longer the channel is busy after that.
    """
    num_stages = run_offset.shape[0] - 1
    most = 0
    for stage in range(num_stages):
        most = max(most, run_count[run_offset[stage] : run_offset[stage + 1]].sum())
    run_of_layer = np.empty(most, np.int64)
    gathered = np.empty(most)
    for stage in range(num_stages):
        begin, end = run_offset[stage], run_offset[stage + 1]
        layers = _list_layers(begin, end, run_count, backward, run_of_layer)
        depth = ahead[stage]
        computed = 0.0
        channel = 0.0
        asked = 0
        for layer in range(layers):
            # What is asked for before the first layer may start.
            while asked < min(layers, max(1, depth)):
                channel = _gathered_at(gather_s, run_of_layer, asked, 0.0, channel, gathered)
                asked += 1
            started = max(computed, gathered[layer])
            if depth > 0 and asked < layers:
                channel = _gathered_at(gather_s, run_of_layer, asked, started, channel, gathered)
                asked += 1
            run = run_of_layer[layer]
            computed = started + compute_s[run]
            if depth == 0 and asked < layers:
                channel = _gathered_at(gather_s, run_of_layer, asked, computed, channel, gathered)
                asked += 1
            if reduce_s[run] > 0.0:
                channel = max(channel, computed) + reduce_s[run]
        duration_s[stage] = computed
        tail_s[stage] = max(0.0, channel - computed)


@kernel
def gathered_forwards(
    stage_offset: Ints,
    rank_of_stage: Ints,
    kind_of_stage: Ints,
    run_offset: Ints,
    run_count: Ints,
    compute_s: Floats,
    gather_s: Floats,
    slowdown: Floats,
    channel_s: Floats,
    silent_s: Floats,
    duration_s: Floats,
) -> None:
    """Run the first microbatch through the stages while updated weights are still gathered.

    Every pipeline rank starts gathering when the step starts, its layers in model order, however
    late the first microbatch arrives; a layer computes once its weights are there. What a rank
    computes while its own gathers still run takes longer by the share ``slowdown``.

    Parameters
    ----------
    stage_offset : int64[jobs + 1]
        First virtual stage of each job, in model order.
    rank_of_stage : int64[S]
        Pipeline rank of each virtual stage.
    kind_of_stage : int64[S]
        Which runs it has.
    run_offset, run_count, compute_s, gather_s
        As in `overlapped_stages`, one stage for each kind.
    slowdown : float64[jobs]
    channel_s, silent_s : float64[max(rank_of_stage) + 1]
        Scratch.
    duration_s : float64[S]
        Output: from the arrival of the microbatch at a stage until its last layer has computed.
    """
    for job in range(stage_offset.shape[0] - 1):
        for stage in range(stage_offset[job], stage_offset[job + 1]):
            channel_s[rank_of_stage[stage]] = 0.0
            silent_s[rank_of_stage[stage]] = 0.0
        for stage in range(stage_offset[job], stage_offset[job + 1]):
            rank, kind = rank_of_stage[stage], kind_of_stage[stage]
            for run in range(run_offset[kind], run_offset[kind + 1]):
                silent_s[rank] += run_count[run] * gather_s[run]
        arrival = 0.0
        for stage in range(stage_offset[job], stage_offset[job + 1]):
            rank, kind = rank_of_stage[stage], kind_of_stage[stage]
            computed = arrival
            waited = 0.0
            for run in range(run_offset[kind], run_offset[kind + 1]):
                for _ in range(run_count[run]):
                    if gather_s[run] > 0.0:
                        channel_s[rank] += gather_s[run]
                        waited += max(0.0, channel_s[rank] - computed)
                        computed = max(computed, channel_s[rank])
                    computed += compute_s[run]
            beside = min(computed, silent_s[rank]) - arrival - waited
            computed += slowdown[job] * max(0.0, beside)
            duration_s[stage] = computed - arrival
            arrival = computed


@inlined
def _find_ends(
    replay: int,
    replayed: Replays,
    busy_ps: Ints,
    rank_first: int,
    reduce_after_s: Floats,
    chunk_first: int,
    tail_s: Floats,
    tied_s: float,
    apart: int,
    waiting: Ints,
) -> _Ends:
    """Find the ranks of one job that decide its step.

    The chunks of a rank share one channel for their gradients, in the order in which their last
    backwards end; ``waiting`` is scratch for it, one entry a chunk. All stands in one loop, since a
    call for each rank would take as long as its work.
    """
    start_ps, end_ps, _, last_ps = replayed
    num_ranks, num_chunks = last_ps.shape[1:]
    ending, busiest = 0, 0
    finish_s, last_s, most_ps = -math.inf, -math.inf, -1
    for r in range(num_ranks):
        first = chunk_first + r * num_chunks
        end_s = end_ps[replay, r] * PS
        most_tail_s = 0.0
        for c in range(num_chunks):
            most_tail_s = max(most_tail_s, tail_s[first + c])
        sent_s = 0.0
        # A tail of zero may end a rounding error before its own backward.
        if most_tail_s > 0.0:
            for c in range(num_chunks):
                place = c
                while place > 0 and (
                    last_ps[replay, r, waiting[place - 1]] > last_ps[replay, r, c]
                ):
                    waiting[place] = waiting[place - 1]
                    place -= 1
                waiting[place] = c
            for place in range(num_chunks):
                c = waiting[place]
                sent_s = max(sent_s, last_ps[replay, r, c] * PS) + tail_s[first + c]
        done_s = max(end_s, sent_s) + reduce_after_s[rank_first + r]
        if r == 0 or r == num_ranks - 1:
            done_s += tied_s
        begin_s = apart * start_ps[replay, r] * PS
        last_s = max(last_s, end_s - begin_s)
        if done_s - begin_s > finish_s:
            finish_s = done_s - begin_s
            ending = r
        if busy_ps[replay, r] > most_ps:
            most_ps = busy_ps[replay, r]
            busiest = r
    return _Ends(ending, finish_s, last_s, busiest)


@helper
def _updating_rank(rank_first: int, num_ranks: int, ranks: StepRanks) -> int:
    """Return the rank of a replica, among all, that takes the longest to update and to gather."""
    _, gather_after_s, optimizer_s = ranks
    updating = rank_first
    for rank in range(rank_first, rank_first + num_ranks):
        after_s = optimizer_s[rank] + gather_after_s[rank]
        if after_s > optimizer_s[updating] + gather_after_s[updating]:
            updating = rank
    return updating


@inlined
def _write_stages(
    held: Ints,
    rank: int,
    first: int,
    count: int,
    kind_of: Ints,
    kind_s: Floats,
    exposed_first_s: Floats,
    breakdown_s: Floats,
) -> tuple[float, float]:
    """Write the categories of a rank; return its launches and what data parallelism adds.

    Its stages count from ``first``; ``count`` microbatches pass through them.
    """
    for term in range(BREAKDOWN_TERMS):
        breakdown_s[term] = 0.0
    exposed_s = 0.0
    launch_s = 0.0
    for c in range(held.shape[1]):
        stage = first + held[rank, c]
        kind = kind_of[stage]
        for term in range(CATEGORY_TERMS):
            breakdown_s[term] += count * kind_s[kind, term]
        launch_s += count * kind_s[kind, STAGE_LAUNCH]
        exposed_s += exposed_first_s[stage] + kind_s[kind, EXPOSED_LAST]
        exposed_s += (count - 1) * kind_s[kind, EXPOSED_EACH]
    return launch_s, exposed_s


@kernel
def end_steps(
    jobs: StepJobs,
    replicas: StepReplicas,
    families: StepFamilies,
    held: Ints,
    replayed: Replays,
    alone: Replays,
    stages: StepStages,
    ranks: StepRanks,
    outputs: StepOutputs,
) -> None:
    """Let the gradients, the optimizer and the gathers follow the last backwards.

    A step ends with the last rank to have sent its gradients, and the longest update after that;
    the breakdown is that of this rank. All wait for the slowest device, whose compute takes longer.

    Shapes
        n       jobs whose stages are placed alike
        all     jobs of the batch
        pp, C   ranks, and chunks of a rank

    Parameters
    ----------
    jobs : StepJobs
        The n jobs.
    replicas, families
        Of all jobs.
    held : int64[pp, C]
        Stage of the model that each chunk of each rank holds.
    replayed, alone : Replays
        Distinct replays of the jobs, and the same without transfers.
    stages : StepStages
        Of all jobs.
    ranks : StepRanks
        Of all jobs.
    outputs : StepOutputs
        Output: all but the peaks of memory.
    """
    # Each array is taken out of its tuple once: that counts a reference.
    row, replay_of, replica_of, family_of, microbatches = jobs
    chosen, stage_first, rank_first, chunk_first, tied_s = replicas
    aparts, overhead_s, straggler_share = families
    start_ps, end_ps, _, _ = replayed
    alone_start_ps, alone_end_ps, busy_ps, _ = alone
    kind_of, kind_s, exposed_first_s, tail_s = stages
    reduce_after_s, gather_after_s, optimizer_s = ranks
    breakdown_s, time_s, rank, _, _ = outputs
    waiting = np.empty(held.shape[1], np.int64)
    terms_s = np.empty(BREAKDOWN_TERMS)
    updating_of = np.empty(rank_first.shape[0], np.int64)
    for replica in chosen:
        updating_of[replica] = _updating_rank(rank_first[replica], held.shape[0], ranks)
    for place in range(row.shape[0]):
        job, replay = row[place], replay_of[place]
        replica, family = replica_of[place], family_of[place]
        apart, updating = aparts[family], updating_of[replica]
        ends = _find_ends(
            replay, replayed, busy_ps, rank_first[replica], reduce_after_s, chunk_first[replica],
            tail_s, tied_s[replica], apart, waiting,
        )  # fmt: skip
        ending = ends.ending

        launch_s, exposed_s = _write_stages(
            held, ending, stage_first[replica], microbatches[place], kind_of, kind_s,
            exposed_first_s, terms_s,
        )  # fmt: skip
        span_ps = end_ps[replay, ending] - apart * start_ps[replay, ending]
        alone_ps = alone_end_ps[replay, ending] - apart * alone_start_ps[replay, ending]
        # A span can be shorter with latencies than without: its start may wait longer for them.
        idle_ps = min(span_ps, alone_ps)
        end_s = end_ps[replay, ending] * PS - apart * start_ps[replay, ending] * PS
        sent_s = ends.finish_s - end_s
        terms_s[BUBBLE] = (idle_ps - busy_ps[replay, ending]) * PS
        terms_s[PIPELINE] = (span_ps - idle_ps) * PS
        terms_s[DATA_PARALLEL] = exposed_s + sent_s + gather_after_s[updating]
        terms_s[OPTIMIZER] = optimizer_s[updating]
        terms_s[LAUNCH] = launch_s + overhead_s[family]
        late_s = 0.0
        for term in range(COMPUTE_TERMS):
            late_s += straggler_share[family] * terms_s[term]
        terms_s[STRAGGLERS] = late_s
        for term in range(BREAKDOWN_TERMS):
            breakdown_s[term, job] = terms_s[term]

        after_s = optimizer_s[updating] + gather_after_s[updating]
        time_s[STEP, job] = ends.finish_s + after_s + overhead_s[family] + late_s
        time_s[LAST_OPERATION, job] = ends.last_s
        time_s[BUSIEST, job] = busy_ps[replay, ends.busiest] * PS
        time_s[ENDING, job] = busy_ps[replay, ending] * PS
        rank[ENDING_RANK, job] = ending
        rank[BUSIEST_RANK, job] = ends.busiest


@kernel
def fullest_ranks(
    jobs: Ints,
    rank_first: Ints,
    static_bytes: Floats,
    held: Ints,
    activation_bytes: Floats,
    outputs: StepOutputs,
) -> None:
    """Find the rank of each job that holds the most.

    Parameters
    ----------
    jobs : int64[n]
        Row of the job among all.
    rank_first : int64[n]
        Its first rank.
    static_bytes : float64[ranks]
        What each rank holds besides activations.
    held : int64[n]
        Row of its activations.
    activation_bytes : float64[rows, pp]
        The most that each rank holds of them.
    outputs : StepOutputs
        Output: the peaks of memory.
    """
    peak_bytes, peak_rank = outputs.peak_bytes, outputs.peak_rank
    for place in range(jobs.shape[0]):
        most = -1.0
        fullest = 0
        for r in range(activation_bytes.shape[1]):
            peak = static_bytes[rank_first[place] + r] + activation_bytes[held[place], r]
            if peak > most:
                most = peak
                fullest = r
        peak_bytes[jobs[place]] = most
        peak_rank[jobs[place]] = fullest
