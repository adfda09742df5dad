"""Data parallelism beside the layers of a stage, and what follows the pipeline of a step.

Shape suffixes
    R   runs of equal layers, S stages; ``run_offset`` cuts runs into stages (CSR)
Units
    seconds, float64.
"""

import numpy as np

from projector.arrays import Floats, Ints

from ._jit import helper, kernel

PS = 1e-12
"""Seconds of the tick of schedules."""

CATEGORY_TERMS = 6
"""Categories of exposed time of a stage, its first columns."""

STAGE_LAUNCH, EXPOSED_LAST, EXPOSED_EACH, STAGE_TERMS = range(CATEGORY_TERMS, CATEGORY_TERMS + 4)
"""Further columns of a stage: launches of a microbatch; what data parallelism adds to the last
backward, and to a forward and a backward between the first and the last."""


@kernel
def overlapped_stages(
    run_offset: Ints,
    run_count: Ints,
    compute_s: Floats,
    gather_s: Floats,
    reduce_s: Floats,
    backward: bool,
    duration_s: Floats,
    tail_s: Floats,
) -> None:
    """Run compute and one communication channel through each stage, layer by layer.

    A layer computes once its weights are gathered; the gather of the next layer starts when
    this one computes, so two layers of gathered weights are held at most. A layer's gradients
    are reduced once it has computed, after any gather already waiting.

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
    duration_s : float64[S]
        Output: until the last layer has computed.
    tail_s : float64[S]
        Output: how much longer the channel is busy after that.
    """
    for stage in range(run_offset.shape[0] - 1):
        begin, end = run_offset[stage], run_offset[stage + 1]
        computed = 0.0
        started = 0.0
        channel = 0.0
        pending = 0.0
        for step in range(end - begin):
            run = end - 1 - step if backward else begin + step
            for _ in range(run_count[run]):
                ready = computed
                if gather_s[run] > 0.0:
                    channel = max(channel, started) + gather_s[run]
                    ready = max(computed, channel)
                # The gather was asked for before the layer in front had computed, so its
                # gradients go out behind it.
                if pending > 0.0:
                    channel = max(channel, computed) + pending
                started = ready
                computed = started + compute_s[run]
                pending = reduce_s[run]
        if pending > 0.0:
            channel = max(channel, computed) + pending
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


@helper
def _gradients_sent_s(
    last_end_ps: Ints,
    replay: int,
    rank: int,
    tail_s: Floats,
    first: int,
    waiting: Ints,
) -> float:
    """Return when a rank has sent its gradients; 0 where nothing is left to send.

    Its chunks, whose tails begin at ``first``, share one channel, in the order in which their last
    backwards end.
    """
    for c in range(waiting.shape[0]):
        end_ps = last_end_ps[replay, rank, c]
        place = c
        while place > 0 and last_end_ps[replay, rank, waiting[place - 1]] > end_ps:
            waiting[place] = waiting[place - 1]
            place -= 1
        waiting[place] = c
    channel_s = 0.0
    most_tail_s = 0.0
    for position in range(waiting.shape[0]):
        c = waiting[position]
        most_tail_s = max(most_tail_s, tail_s[first + c])
        channel_s = max(channel_s, last_end_ps[replay, rank, c] * PS) + tail_s[first + c]
    # A tail of zero may end a rounding error before its own backward.
    return channel_s if most_tail_s > 0.0 else 0.0


@kernel
def end_steps(
    jobs: Ints,
    run: Ints,
    stage_first: Ints,
    rank_first: Ints,
    chunk_first: Ints,
    held: Ints,
    microbatches: Ints,
    apart: Ints,
    start_ps: Ints,
    end_ps: Ints,
    last_backward_end_ps: Ints,
    alone_start_ps: Ints,
    alone_end_ps: Ints,
    alone_busy_ps: Ints,
    kind_of_stage: Ints,
    stage_s: Floats,
    exposed_first_s: Floats,
    tail_s: Floats,
    reduce_after_s: Floats,
    gather_after_s: Floats,
    optimizer_s: Floats,
    tied_s: Floats,
    overhead_s: Floats,
    breakdown_s: Floats,
    time_s: Floats,
    rank: Ints,
) -> None:
    """Let the gradients, the optimizer and the gathers follow the last backwards.

    A step ends with the last rank to have sent its gradients, and the longest update after that;
    the breakdown is that of this rank.

    Shapes
        n       jobs whose stages are placed alike
        runs    distinct replays of them
        all     jobs of the batch
        pp, C   ranks, and chunks of a rank

    Parameters
    ----------
    jobs, run : int64[n]
        Row of the job among all, and its replay.
    stage_first, rank_first, chunk_first : int64[n]
        First stage, rank and chunk of the job.
    held : int64[pp, C]
        Stage of the model that each chunk of each rank holds.
    microbatches : int64[n]
        Of one step.
    apart : int64[n]
        1 where ranks do not wait for each other between steps: each takes as long as its span.
    start_ps, end_ps : int64[runs, pp]
        First and last operation of each rank.
    last_backward_end_ps : int64[runs, pp, C]
        Last backward of each chunk.
    alone_start_ps, alone_end_ps, alone_busy_ps : int64[runs, pp]
        The same without transfers, and the time in operations.
    kind_of_stage : int64[stages]
        Row of each stage in ``stage_s``.
    stage_s : float64[kinds, STAGE_TERMS]
        What each kind of stage takes; see the constants above.
    exposed_first_s : float64[stages]
        What data parallelism adds to the first forward.
    tail_s : float64[chunks]
        Gradient traffic left after the last backward.
    reduce_after_s, gather_after_s : float64[ranks]
        Gradient traffic and parameter gathers that nothing overlaps.
    optimizer_s : float64[ranks]
        Update of each rank.
    tied_s, overhead_s : float64[n]
        Sum of tied embeddings' gradients at both ends; what no rank owns.
    breakdown_s : float64[all, CATEGORY_TERMS + 5]
        Output: categories, bubble, pipeline, data parallelism, optimizer, launch.
    time_s : float64[all, 4]
        Output: the step; the last operation of any rank; work of the busiest rank; work of the
        rank that ends the step.
    rank : int64[all, 2]
        Output: the rank that ends the step, and the busiest.
    """
    num_ranks, num_chunks = held.shape
    finish_s = np.empty(num_ranks)
    ends_s = np.empty(num_ranks)
    waiting = np.empty(num_chunks, np.int64)
    for place in range(jobs.shape[0]):
        job = jobs[place]
        replay = run[place]
        first = stage_first[place]
        own_rank = rank_first[place]
        own_chunk = chunk_first[place]
        count = microbatches[place]
        for r in range(num_ranks):
            gradients_s = _gradients_sent_s(
                last_backward_end_ps, replay, r, tail_s, own_chunk + r * num_chunks, waiting
            )
            end_s = end_ps[replay, r] * PS
            done_s = max(end_s, gradients_s) + reduce_after_s[own_rank + r]
            if r == 0 or r == num_ranks - 1:
                done_s += tied_s[place]
            begin_s = apart[place] * start_ps[replay, r] * PS
            ends_s[r] = end_s - begin_s
            finish_s[r] = done_s - begin_s
        ending = 0
        updating = 0
        busiest = 0
        most_after_s = -1.0
        for r in range(num_ranks):
            if finish_s[r] > finish_s[ending]:
                ending = r
            if alone_busy_ps[replay, r] > alone_busy_ps[replay, busiest]:
                busiest = r
            if optimizer_s[own_rank + r] + gather_after_s[own_rank + r] > most_after_s:
                most_after_s = optimizer_s[own_rank + r] + gather_after_s[own_rank + r]
                updating = r

        for term in range(CATEGORY_TERMS + 5):
            breakdown_s[job, term] = 0.0
        exposed_s = 0.0
        launch_s = 0.0
        for c in range(num_chunks):
            stage = kind_of_stage[first + held[ending, c]]
            for term in range(CATEGORY_TERMS):
                breakdown_s[job, term] += count * stage_s[stage, term]
            launch_s += count * stage_s[stage, STAGE_LAUNCH]
            exposed_s += exposed_first_s[first + held[ending, c]] + stage_s[stage, EXPOSED_LAST]
            exposed_s += (count - 1) * stage_s[stage, EXPOSED_EACH]
        span_ps = end_ps[replay, ending] - apart[place] * start_ps[replay, ending]
        alone_ps = alone_end_ps[replay, ending] - apart[place] * alone_start_ps[replay, ending]
        # A span can be shorter with latencies than without: its start may wait longer for them.
        idle_ps = min(span_ps, alone_ps)
        breakdown_s[job, CATEGORY_TERMS] = (idle_ps - alone_busy_ps[replay, ending]) * PS
        breakdown_s[job, CATEGORY_TERMS + 1] = (span_ps - idle_ps) * PS
        breakdown_s[job, CATEGORY_TERMS + 2] = (
            exposed_s + (finish_s[ending] - ends_s[ending]) + gather_after_s[own_rank + updating]
        )
        breakdown_s[job, CATEGORY_TERMS + 3] = optimizer_s[own_rank + updating]
        breakdown_s[job, CATEGORY_TERMS + 4] = launch_s + overhead_s[place]

        last_s = ends_s[0]
        for r in range(num_ranks):
            last_s = max(last_s, ends_s[r])
        time_s[job, 0] = finish_s[ending] + most_after_s + overhead_s[place]
        time_s[job, 1] = last_s
        time_s[job, 2] = alone_busy_ps[replay, busiest] * PS
        time_s[job, 3] = alone_busy_ps[replay, ending] * PS
        rank[job, 0] = ending
        rank[job, 1] = busiest


@kernel
def fullest_ranks(
    jobs: Ints,
    rank_first: Ints,
    static_bytes: Floats,
    held: Ints,
    activation_bytes: Floats,
    peak_bytes: Floats,
    peak_rank: Ints,
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
    peak_bytes, peak_rank : float64[all], int64[all]
        Output: the most that a rank holds, and the first that does.
    """
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
