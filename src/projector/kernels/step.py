"""How steps end: gradients, the optimizer and gathers follow the replay of the pipeline.

The replay says when each rank has ended its last backward, and the rest of the step follows.

1. A rank sends the gradients that its last backwards have left, then those that nothing overlaps.
   The first and the last rank also sum the gradients of tied embeddings. The rank that is done
   last is the one that *ends the step*.
2. The longest update of any rank follows, with the gathers of that rank that nothing overlaps.
3. The host adds its overhead, and all wait for the slowest device.

The breakdown of a step is that of the rank that ends it. The busiest rank and the fullest one are
found as well.

Jobs of a replica that have one replay and equal families have equal steps. A step is therefore
ended once for jobs that follow one another, and `StepBlock.of_job` says which step a job has. A
block holds the steps of some replicas: `end_replicas` calls one function for each part, which
writes its columns for all of them.

Units: seconds, float64, and of replays picoseconds, int64 (``_ps``).
"""

import math
from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints
from projector.kernels._jit import helper, inlined
from projector.kernels.pipeline import Ends
from projector.kernels.timings import EACH, LEAST

PS = 1e-12
"""Seconds of the tick of schedules."""

CATEGORY_TERMS = 6
"""Categories of exposed time of a stage."""

COMPUTE_TERMS = 3
"""Categories of compute, the first of them."""

BREAKDOWN_TERMS = CATEGORY_TERMS + 6
BUBBLE, PIPELINE, DATA_PARALLEL, OPTIMIZER, LAUNCH, STRAGGLERS = range(
    CATEGORY_TERMS, BREAKDOWN_TERMS
)
"""Columns of `StepOutputs.number` behind the categories: the other terms of the breakdown."""

STEP, LAST_OPERATION, BUSIEST, ENDING, PEAK, STEP_NUMBERS = range(
    BREAKDOWN_TERMS, BREAKDOWN_TERMS + 6
)
"""Columns of `StepOutputs.number` behind the breakdown: seconds of the step; seconds until the last
operation of any rank has ended; work of the busiest rank, and of the rank that ends the step; bytes
of the fullest rank."""

ENDING_RANK, BUSIEST_RANK, PEAK_RANK, STEP_RANKS = range(4)
"""Columns of `StepOutputs.rank`: the rank that ends the step, the busiest and the fullest one; of
several the first."""

ROW, REPLAY, HELD, FAMILY, MICROBATCHES, JOB_NUMBERS = range(6)
"""Rows of `StepRuns.jobs`: place among all jobs of the batch; replay; row of
`StepRanks.activation_bytes`; family; microbatches of a step."""

PATTERN, ROW_FIRST, FIRST_ROW, KIND_FIRST, RANK_KIND_FIRST, TIMING, REPLICA_NUMBERS = range(7)
"""Rows of `StepReplicas.number`: pattern; row of the first stage among those of pipelines; row of
its first forward, -1 where each stage has the one of its kind (`StageTimes.first_row`); first kind
of stage; first kind of rank; timing."""

APART, OVERHEAD_S, STRAGGLER_SHARE, FAMILY_NUMBERS = range(4)
"""Rows of `StepRuns.families`: 1 where ranks do not wait for each other between steps, so that each
takes as long as its span; overhead of the host for a step; by how much of its compute the slowest
device ends behind the average one."""


class StepPatterns(NamedTuple):
    """Which stages and ranks of replicas are alike; see `kernels.replicas`."""

    stage_first: Ints
    """``int64[patterns + 1]``"""
    stage_kind: Ints
    """``int64[stages of patterns]``"""
    rank_first: Ints
    """``int64[patterns + 1]``"""
    rank_kind: Ints
    """``int64[ranks of patterns]``"""


class StepReplicas(NamedTuple):
    """Replicas whose stages are placed alike, and what they take."""

    number: Ints
    """``int64[REPLICA_NUMBERS, replicas]``"""
    tied_s: Floats
    """``float64[replicas]``: sum of tied embeddings' gradients at both ends."""
    work_ps: Ints
    """``int64[timings, 2, pp]``: work of each rank; see `TimingColumns.work_ps`."""


class StepStages(NamedTuple):
    """What stages take.

    ``rows`` are stages of pipelines, ``kinds`` kinds of the stages of replicas.
    """

    categories_s: Floats
    """``float64[rows, CATEGORY_TERMS]``: of a microbatch."""
    launch_s: Floats
    """``float64[rows]``: launches of a microbatch."""
    exposed_first_s: Floats
    """``float64[kinds + any]``: what data parallelism adds to the first forward; see `StageTimes`
    for its rows."""
    exposed_last_s: Floats
    """``float64[kinds]``: the same to the last backward."""
    exposed_each_s: Floats
    """``float64[kinds]``: the same to a forward and a backward between the first and the last."""
    tail_s: Floats
    """``float64[kinds]``: gradient traffic left after the last backward."""
    reduce_after_s: Floats
    """``float64[kinds]``: gradient traffic that nothing overlaps."""
    gather_after_s: Floats
    """``float64[kinds]``: parameter gathers that nothing overlaps."""


class StepRanks(NamedTuple):
    """What kinds of ranks take once their last backward has ended, and what they hold."""

    optimizer_s: Floats
    """``float64[kinds of ranks]``: update."""
    static_bytes: Floats
    """``float64[kinds of ranks]``: all but activations."""
    activation_bytes: Floats
    """``float64[any, pp]``: the most that each rank holds of them; jobs name their row (`HELD`)."""


class StepOutputs(NamedTuple):
    """The numbers of steps, a row for each of some jobs."""

    number: Floats
    """``float64[jobs, STEP_NUMBERS]``: the categories, then ``BUBBLE`` to ``STRAGGLERS``, then
    ``STEP`` to ``PEAK``."""
    rank: Ints
    """``int64[jobs, STEP_RANKS]``"""

    @staticmethod
    def empty(num: int) -> "StepOutputs":
        """Return columns of ``num`` jobs to be written."""
        return StepOutputs(np.empty((num, STEP_NUMBERS)), np.empty((num, STEP_RANKS), np.int64))


class StepRuns(NamedTuple):
    """What the steps of n jobs follow from, whose stages are placed alike."""

    begin: Ints
    """``int64[replicas + 1]``: where the jobs of each replica begin among the n."""
    jobs: Ints
    """``int64[JOB_NUMBERS, n]``: sorted by replicas."""
    patterns: StepPatterns
    replicas: StepReplicas
    families: Floats
    """``float64[FAMILY_NUMBERS, families]``"""
    stage_held: Ints
    """``int64[pp, C]``: stage of the model that each chunk of each rank holds."""
    replayed: Ends
    """Distinct replays of the jobs: ends and last backwards are read, and starts where ranks of a
    family do not wait for each other."""
    alone: Ends
    """The same without transfers, of which last backwards are not read."""
    stages: StepStages
    ranks: StepRanks


UPDATE_S, GATHER_S, TAIL_S, AFTER_NUMBERS = range(4)
"""Columns of `StepBlock.after_s`: update, and gathers, of the rank that takes the longest for both
together; the most gradient traffic that is left of any chunk."""

BUSY, WAITING, LISTS = range(3)
"""Rows of `StepBlock.lists`: ranks that may work the longest; chunks in the order in which their
gradients are sent."""

ROUNDED = 1.0 + 1e-12
"""More than rounding adds to a sum of all chunks of a rank."""


class StepBlock(NamedTuple):
    """The distinct steps of some replicas, and what they share."""

    number: Floats
    """``float64[steps, STEP_NUMBERS]``; see `StepOutputs`."""
    rank: Ints
    """``int64[steps, STEP_RANKS]``"""
    place: Ints
    """``int64[steps]``: the first job that has each, as a column of `StepRuns.jobs`."""
    of_job: Ints
    """``int64[jobs]``: the step of each job of these replicas."""
    begin: Ints
    """``int64[replicas + 1]``: where the steps of each replica begin."""
    chunk_kind: Ints
    """``int64[replicas, pp * C]``: kind of the stage that each chunk holds."""
    chunk_tail_s: Floats
    """``float64[replicas, pp * C]``: gradient traffic left after the last backward of a chunk."""
    rank_tail_s: Floats
    """``float64[replicas, pp]``: the same of all chunks of each rank."""
    reduce_after_s: Floats
    """``float64[replicas, pp]``: gradient traffic of each rank that nothing overlaps."""
    after_s: Floats
    """``float64[replicas, AFTER_NUMBERS]``"""
    lists: Ints
    """``int64[LISTS, any]``: scratch, as long as the ranks or the chunks of a rank."""


@helper
def empty_block(jobs: int, replicas: int, ranks: int, chunks: int) -> StepBlock:
    """Return places for so many jobs, and replicas with so many ranks and chunks of a rank."""
    return StepBlock(
        np.empty((jobs, STEP_NUMBERS)),
        np.empty((jobs, STEP_RANKS), np.int64),
        np.empty(jobs, np.int64),
        np.empty(jobs, np.int64),
        np.empty(replicas + 1, np.int64),
        np.empty((replicas, ranks * chunks), np.int64),
        np.empty((replicas, ranks * chunks)),
        np.empty((replicas, ranks)),
        np.empty((replicas, ranks)),
        np.empty((replicas, AFTER_NUMBERS)),
        np.empty((LISTS, max(ranks, chunks)), np.int64),
    )


@helper
def _list_steps(
    some: int, stop: int, begin: Ints, jobs: Ints, families: Floats, block: StepBlock
) -> None:
    """Write which jobs share a step: those of a replica, one after the other, with equal inputs.

    An equal replay is one of an equal order, so what ranks hold is equal too. Equal jobs that
    do not follow one another have a step each, which changes no result.
    """
    place_of, of_job, first_of = block.place, block.of_job, block.begin
    count = 0
    for replica in range(some, stop):
        first_of[replica - some] = count
        for place in range(begin[replica], begin[replica + 1]):
            new = place == begin[replica] or jobs[REPLAY, place] != jobs[REPLAY, place - 1]
            if not new and jobs[FAMILY, place] != jobs[FAMILY, place - 1]:
                for number in range(FAMILY_NUMBERS):
                    own = families[number, jobs[FAMILY, place]]
                    new = new or own != families[number, jobs[FAMILY, place - 1]]
            if new:
                place_of[count] = place
                count += 1
            of_job[place - begin[some]] = count - 1
    first_of[stop - some] = count


@inlined
def _busy_ranks(work_ps: Ints, timing: int, busy: Ints) -> int:
    """List the ranks of a timing that may work the longest with some count of microbatches.

    They are in rising order. A rank is left out if one before it works at least as long, both with
    one microbatch and for each further one: it is never the first of the busiest.
    """
    count, most = 0, 0
    for rank in range(work_ps.shape[2]):
        least_ps, each_ps = work_ps[timing, LEAST, rank], work_ps[timing, EACH, rank]
        more = least_ps > work_ps[timing, LEAST, most] or each_ps > work_ps[timing, EACH, most]
        if rank == 0 or more:
            busy[count] = rank
            count += 1
        if each_ps > work_ps[timing, EACH, most]:
            most = rank
    return count


@inlined
def _sent_s(
    row: int, later_ps: int, rank: int, last_ps: Ints, own: int, tail_s: Floats, waiting: Ints
) -> float:
    """Return when a rank has sent the gradients of its chunks, which share one channel.

    They are sent in the order in which their last backwards end; ``waiting`` is scratch for it, one
    entry a chunk. Where nothing is left to send it is 0, so that no rounding shows.
    """
    num_chunks = last_ps.shape[2]
    first, most_tail_s = rank * num_chunks, 0.0
    for c in range(num_chunks):
        most_tail_s = max(most_tail_s, tail_s[own, first + c])
    sent_s = 0.0
    if most_tail_s > 0.0:
        for c in range(num_chunks):
            place = c
            while place > 0 and last_ps[row, rank, waiting[place - 1]] > last_ps[row, rank, c]:
                waiting[place] = waiting[place - 1]
                place -= 1
            waiting[place] = c
        for place in range(num_chunks):
            c = waiting[place]
            sent_s = max(sent_s, (last_ps[row, rank, c] + later_ps) * PS) + tail_s[own, first + c]
    return sent_s


@helper
def _read_replicas(some: int, stop: int, runs: StepRuns, block: StepBlock) -> None:
    held, of_replica, optimizer_of = runs.stage_held, runs.replicas.number, runs.ranks.optimizer_s
    _, _, _, _, _, tail_of, reduce_of, gather_of = runs.stages
    stage_first, stage_kind, rank_first, rank_kind = runs.patterns
    chunk_kind, tail_s, rank_tail_s = block.chunk_kind, block.chunk_tail_s, block.rank_tail_s
    reduce_after_s, after_s = block.reduce_after_s, block.after_s
    for replica in range(some, stop):
        own, pattern = replica - some, of_replica[PATTERN, replica]
        first_stage, first_rank = stage_first[pattern], rank_first[pattern]
        first_kind = of_replica[KIND_FIRST, replica]
        first_rank_kind = of_replica[RANK_KIND_FIRST, replica]
        most_tail_s = longest_s = update_s = gather_s = 0.0
        for r in range(held.shape[0]):
            rank_reduce_s = rank_gather_s = left_s = 0.0
            for c in range(held.shape[1]):
                kind = first_kind + stage_kind[first_stage + held[r, c]]
                chunk = r * held.shape[1] + c
                chunk_kind[own, chunk], tail_s[own, chunk] = kind, tail_of[kind]
                most_tail_s = max(most_tail_s, tail_of[kind])
                left_s += tail_of[kind]
                rank_reduce_s += reduce_of[kind]
                rank_gather_s += gather_of[kind]
            rank_tail_s[own, r], reduce_after_s[own, r] = left_s, rank_reduce_s
            rank_update_s = optimizer_of[first_rank_kind + rank_kind[first_rank + r]]
            if r == 0 or rank_update_s + rank_gather_s > longest_s:
                longest_s = rank_update_s + rank_gather_s
                update_s, gather_s = rank_update_s, rank_gather_s
        after_s[own, UPDATE_S], after_s[own, GATHER_S] = update_s, gather_s
        after_s[own, TAIL_S] = most_tail_s


@helper
def _find_ends(some: int, stop: int, runs: StepRuns, block: StepBlock) -> None:
    """Write which ranks are done last with their gradients, and when.

    The time is written to ``STEP``; `_write_rest` adds what follows.
    """
    # To take an array out of a tuple counts a reference, so each is taken out once.
    jobs, families, tied_of, num_ranks = (
        runs.jobs, runs.families, runs.replicas.tied_s, runs.stage_held.shape[0],
    )  # fmt: skip
    row_of, later_of, start_ps, end_ps, last_ps = runs.replayed
    number, rank_of, place_of, _, first_of, _, tail_s, rank_tail_s, reduce_s, after_s, lists = block
    waiting, num_chunks = lists[WAITING], runs.stage_held.shape[1]
    starts = start_ps.shape[0] > 0
    for replica in range(some, stop):
        own = replica - some
        sends = after_s[own, TAIL_S] > 0.0
        for step in range(first_of[own], first_of[own + 1]):
            place = place_of[step]
            row, later_ps = row_of[jobs[REPLAY, place]], later_of[jobs[REPLAY, place]]
            apart = starts and families[APART, jobs[FAMILY, place]] > 0.0
            ending, finish_s, last_s = 0, -math.inf, -math.inf
            for r in range(num_ranks):
                end_s = (end_ps[row, r] + later_ps) * PS
                begin_s = start_ps[row, r] * PS if apart else 0.0
                tied_s = tied_of[replica] if r == 0 or r == num_ranks - 1 else 0.0
                last_s = max(last_s, end_s - begin_s)
                done_s = end_s
                if sends and num_chunks == 1:
                    done_s = max(end_s, (last_ps[row, r, 0] + later_ps) * PS + rank_tail_s[own, r])
                elif sends:
                    # Most ranks are done too early, even if they began to send at their ends.
                    most_s = (end_s + rank_tail_s[own, r]) * ROUNDED + reduce_s[own, r] + tied_s
                    if most_s - begin_s <= finish_s:
                        continue
                    done_s = max(end_s, _sent_s(row, later_ps, r, last_ps, own, tail_s, waiting))
                done_s = done_s + reduce_s[own, r] + tied_s - begin_s
                if done_s > finish_s:
                    ending, finish_s = r, done_s
            number[step, STEP], number[step, LAST_OPERATION] = finish_s, last_s
            rank_of[step, ENDING_RANK] = ending


@helper
def _write_work(some: int, stop: int, jobs: Ints, replicas: StepReplicas, block: StepBlock) -> None:
    of_replica, work_ps = replicas.number, replicas.work_ps
    number, rank_of, place_of, first_of = block.number, block.rank, block.place, block.begin
    busy = block.lists[BUSY]
    for replica in range(some, stop):
        timing = of_replica[TIMING, replica]
        num_busy = _busy_ranks(work_ps, timing, busy)
        for step in range(first_of[replica - some], first_of[replica - some + 1]):
            further = jobs[MICROBATCHES, place_of[step]] - 1
            busiest, most_ps = 0, -1
            for which in range(num_busy):
                r = busy[which]
                busy_ps = work_ps[timing, LEAST, r] + further * work_ps[timing, EACH, r]
                if busy_ps > most_ps:
                    busiest, most_ps = r, busy_ps
            rank_of[step, BUSIEST_RANK], number[step, BUSIEST] = busiest, most_ps * PS


@helper
def _write_stages(some: int, stop: int, runs: StepRuns, block: StepBlock) -> None:
    """Write what the stages of the ranks that end the steps take.

    ``LAUNCH`` and ``DATA_PARALLEL`` get the part of these stages; `_write_rest` adds the others.
    """
    jobs, of_replica, held = runs.jobs, runs.replicas.number, runs.stage_held
    categories_s, launch_of, first_s, last_s, each_s, _, _, _ = runs.stages
    number, rank_of, place_of, _, first_of, chunk_kind, _, _, _, _, _ = block
    for replica in range(some, stop):
        own = replica - some
        row_first, first_row = of_replica[ROW_FIRST, replica], of_replica[FIRST_ROW, replica]
        for step in range(first_of[own], first_of[own + 1]):
            count, ending = jobs[MICROBATCHES, place_of[step]], rank_of[step, ENDING_RANK]
            for term in range(CATEGORY_TERMS):
                number[step, term] = 0.0
            exposed_s = 0.0
            launch_s = 0.0
            for c in range(held.shape[1]):
                stage, kind = held[ending, c], chunk_kind[own, ending * held.shape[1] + c]
                for term in range(CATEGORY_TERMS):
                    number[step, term] += count * categories_s[row_first + stage, term]
                launch_s += count * launch_of[row_first + stage]
                exposed_s += first_s[kind if first_row < 0 else first_row + stage] + last_s[kind]
                exposed_s += (count - 1) * each_s[kind]
            number[step, LAUNCH], number[step, DATA_PARALLEL] = launch_s, exposed_s


@helper
def _write_rest(some: int, stop: int, runs: StepRuns, block: StepBlock) -> None:
    jobs, of_replica, work_ps = runs.jobs, runs.replicas.number, runs.replicas.work_ps
    families, after_s = runs.families, block.after_s
    row_of, later_of, start_ps, end_ps, _ = runs.replayed
    alone_row_of, alone_later_of, alone_start_ps, alone_end_ps, _ = runs.alone
    number, rank_of, place_of, first_of = block.number, block.rank, block.place, block.begin
    starts = start_ps.shape[0] > 0
    for replica in range(some, stop):
        own, timing = replica - some, of_replica[TIMING, replica]
        update_s, gather_s = after_s[own, UPDATE_S], after_s[own, GATHER_S]
        for step in range(first_of[own], first_of[own + 1]):
            place, ending = place_of[step], rank_of[step, ENDING_RANK]
            replay, family = jobs[REPLAY, place], jobs[FAMILY, place]
            row, alone_row = row_of[replay], alone_row_of[replay]
            start, alone_start = 0, 0
            if starts and families[APART, family] > 0.0:
                start, alone_start = start_ps[row, ending], alone_start_ps[alone_row, ending]
            end = end_ps[row, ending] + later_of[replay]
            alone_end = alone_end_ps[alone_row, ending] + alone_later_of[replay]
            # A span can be shorter with latencies than without: they may delay its start more than
            # its end.
            span_ps = end - start
            idle_ps = min(span_ps, alone_end - alone_start)
            further = jobs[MICROBATCHES, place] - 1
            busy_ps = work_ps[timing, LEAST, ending] + further * work_ps[timing, EACH, ending]
            finish_s, overhead_s = number[step, STEP], families[OVERHEAD_S, family]
            sent_s = finish_s - (end * PS - start * PS)
            number[step, BUBBLE] = (idle_ps - busy_ps) * PS
            number[step, PIPELINE] = (span_ps - idle_ps) * PS
            number[step, DATA_PARALLEL] = number[step, DATA_PARALLEL] + sent_s + gather_s
            number[step, OPTIMIZER] = update_s
            number[step, LAUNCH] += overhead_s
            late_s = 0.0
            for term in range(COMPUTE_TERMS):
                late_s += families[STRAGGLER_SHARE, family] * number[step, term]
            number[step, STRAGGLERS] = late_s
            number[step, STEP] = finish_s + (update_s + gather_s) + overhead_s + late_s
            number[step, ENDING] = busy_ps * PS


@helper
def _write_peaks(
    some: int,
    stop: int,
    jobs: Ints,
    of_replica: Ints,
    patterns: StepPatterns,
    ranks: StepRanks,
    block: StepBlock,
) -> None:
    """Write which rank holds the most, the first of several, and what it holds."""
    rank_first, rank_kind = patterns.rank_first, patterns.rank_kind
    static_bytes, activation_bytes = ranks.static_bytes, ranks.activation_bytes
    number, rank_of, place_of, first_of = block.number, block.rank, block.place, block.begin
    for replica in range(some, stop):
        first_rank = rank_first[of_replica[PATTERN, replica]]
        first_kind = of_replica[RANK_KIND_FIRST, replica]
        held, fullest, most = -1, 0, -1.0
        for step in range(first_of[replica - some], first_of[replica - some + 1]):
            # Most jobs of a replica hold the same.
            if jobs[HELD, place_of[step]] != held:
                held, most = jobs[HELD, place_of[step]], -1.0
                for r in range(activation_bytes.shape[1]):
                    kind = first_kind + rank_kind[first_rank + r]
                    peak = static_bytes[kind] + activation_bytes[held, r]
                    if peak > most:
                        most = peak
                        fullest = r
            number[step, PEAK], rank_of[step, PEAK_RANK] = most, fullest


@helper
def end_replicas(some: int, stop: int, runs: StepRuns, block: StepBlock) -> int:
    """End the steps of some replicas; the docstring of the module says how.

    some, stop : int. First of the replicas, and the one behind the last.
    runs : StepRuns
    block : StepBlock. Output.
    Returns how many distinct steps there are.
    """
    # A function takes a tuple where it reads most of it: each array of one takes time to compile.
    jobs, replicas = runs.jobs, runs.replicas
    _list_steps(some, stop, runs.begin, jobs, runs.families, block)
    _read_replicas(some, stop, runs, block)
    _find_ends(some, stop, runs, block)
    _write_work(some, stop, jobs, replicas, block)
    _write_stages(some, stop, runs, block)
    _write_rest(some, stop, runs, block)
    _write_peaks(some, stop, jobs, replicas.number, runs.patterns, runs.ranks, block)
    return int(block.begin[stop - some])
