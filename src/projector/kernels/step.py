"""What follows the pipeline of a step: gradients, the optimizer and gathers.

Units
    seconds, float64.
"""

import math
from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints

from ._jit import helper, inlined
from .pipeline import Ends
from .timings import EACH, LEAST

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
"""Columns of a breakdown behind the categories."""

STEP, LAST_OPERATION, BUSIEST, ENDING, PEAK, STEP_NUMBERS = range(
    BREAKDOWN_TERMS, BREAKDOWN_TERMS + 6
)
"""Numbers of a step behind its breakdown: seconds of the step; of the last operation of any rank;
work of the busiest rank, and of the rank that ends the step; bytes of the fullest rank."""

ENDING_RANK, BUSIEST_RANK, PEAK_RANK, STEP_RANKS = range(4)
"""The ranks of a step: that ends it, the busiest and the fullest; the first of several."""


class StepJobs(NamedTuple):
    """Jobs whose stages are placed alike, n of them, replica after replica."""

    begin: Ints
    """``int64[any + 1]``: where the jobs of each replica begin among these."""
    row: Ints
    """``int64[n]``: among all jobs of the batch."""
    replay: Ints
    """``int64[n]``: its replay."""
    held: Ints
    """``int64[n]``: row of what its ranks hold of activations."""
    family: Ints
    """``int64[n]``"""
    microbatches: Ints
    """``int64[n]``: of one step."""


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
    """Where the numbers of replicas begin, and which of them have the placement of the jobs."""

    chosen: Ints
    """``int64[any]``: those of the jobs."""
    pattern: Ints
    """``int64[replicas]``"""
    row_first: Ints
    """``int64[replicas]``: row of the first stage in its pipeline."""
    first_row: Ints
    """``int64[replicas]``: row of the first forward of its first stage; below 0 where each stage
    has that of its kind."""
    kind_first: Ints
    """``int64[replicas]``: first kind of stage."""
    rank_kind_first: Ints
    """``int64[replicas]``: first kind of rank."""
    tied_s: Floats
    """``float64[replicas]``: sum of tied embeddings' gradients at both ends."""
    timing: Ints
    """``int64[replicas]``: the times of each."""
    work_ps: Ints
    """``int64[timings, 2, pp]``: work of each rank; see `kernels.timings`."""


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
    """What stages take: those of pipelines, those of replicas and kinds of the latter."""

    categories_s: Floats
    """``float64[rows, CATEGORY_TERMS]``: of a microbatch."""
    launch_s: Floats
    """``float64[rows]``: launches of a microbatch."""
    exposed_first_s: Floats
    """``float64[kinds + any]``: what data parallelism adds to the first forward, of kinds and then
    of stages."""
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
    """``float64[rows, pp]``: the most that each rank holds of them, rows as in ``held``."""


class StepOutputs(NamedTuple):
    """The numbers of steps, a row for each of some jobs."""

    number: Floats
    """``float64[jobs, STEP_NUMBERS]``: categories, bubble, pipeline, data parallelism, optimizer,
    launch, stragglers; then ``STEP`` to ``PEAK``."""
    rank: Ints
    """``int64[jobs, STEP_RANKS]``"""

    @staticmethod
    def empty(num: int) -> "StepOutputs":
        """Return rows of ``num`` jobs to be written."""
        return StepOutputs(np.empty((num, STEP_NUMBERS)), np.empty((num, STEP_RANKS), np.int64))


class StepRuns(NamedTuple):
    """What the steps of n jobs are put together from, whose stages are placed alike."""

    jobs: StepJobs
    patterns: StepPatterns
    replicas: StepReplicas
    families: StepFamilies
    stage_held: Ints
    """``int64[pp, C]``: stage of the model that each chunk of each rank holds."""
    replayed: Ends
    """Distinct replays of the jobs. Of both, ends are read, and starts where ranks of a family are
    apart; of this one last backwards too."""
    alone: Ends
    """The same without transfers."""
    stages: StepStages
    ranks: StepRanks


class StepScratch(NamedTuple):
    """Places for what is found of one job after the other."""

    steps: StepOutputs
    """A row for each job of some replicas."""
    done_s: Floats
    """``float64[pp]``"""
    busy_ps: Ints
    """``int64[pp]``"""
    waiting: Ints
    """``int64[C]``"""
    kind: Ints
    """``int64[pp * C]``: kind of the stage that each chunk holds."""
    tail_s: Floats
    """``float64[pp * C]``"""
    reduce_after_s: Floats
    """``float64[pp]``"""


class _After(NamedTuple):
    """What follows the last backwards of one replica."""

    sends: bool
    """Whether gradients are sent behind the last backward of any chunk."""
    optimizer_s: float
    """Of the rank that takes the longest to update and to gather."""
    gather_s: float


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
def _sent_s(
    row: int,
    later_ps: int,
    rank: int,
    last_ps: Ints,
    first: int,
    tail_s: Floats,
    waiting: Ints,
) -> float:
    """Return when a rank has sent the gradients of its chunks, which share one channel.

    They are sent in the order in which their last backwards end; ``waiting`` is scratch for it, one
    entry a chunk. 0 where no chunk has any: a tail of zero may end a rounding error before its own
    backward.
    """
    num_chunks = last_ps.shape[2]
    most_tail_s = 0.0
    for c in range(num_chunks):
        most_tail_s = max(most_tail_s, tail_s[first + c])
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
            sent_s = max(sent_s, (last_ps[row, rank, c] + later_ps) * PS) + tail_s[first + c]
    return sent_s


@inlined
def _find_ends(
    replay: int,
    replayed: Ends,
    reduce_after_s: Floats,
    tail_s: Floats,
    sends: bool,
    tied_s: float,
    apart: int,
    done_s: Floats,
    busy_ps: Ints,
    waiting: Ints,
) -> _Ends:
    """Find the ranks of one job that decide its step; ``sends`` says whether there is any tail.

    ``busy_ps`` is the work of each rank; ``done_s`` and ``waiting`` are scratch. Each thing is done
    for all ranks before the next: loops without branches take several ranks at once.
    """
    row_of, later_of, start_ps, end_ps, last_ps = replayed
    row, later_ps = row_of[replay], later_of[replay]
    num_ranks, num_chunks = end_ps.shape[1], last_ps.shape[2]
    for r in range(num_ranks):
        done_s[r] = (end_ps[row, r] + later_ps) * PS
    if sends:
        for r in range(num_ranks):
            first = r * num_chunks
            done_s[r] = max(done_s[r], _sent_s(row, later_ps, r, last_ps, first, tail_s, waiting))
    for r in range(num_ranks):
        done_s[r] += reduce_after_s[r]
    done_s[0] += tied_s
    if num_ranks > 1:
        done_s[num_ranks - 1] += tied_s
    # Rounding keeps the order, so the last end is that of the latest tick.
    latest_ps, most_ps = end_ps[row, 0], busy_ps[0]
    for r in range(num_ranks):
        latest_ps = max(latest_ps, end_ps[row, r])
    last_s = (latest_ps + later_ps) * PS
    if apart:
        last_s = -math.inf
        for r in range(num_ranks):
            begin_s = start_ps[row, r] * PS
            done_s[r] -= begin_s
            last_s = max(last_s, (end_ps[row, r] + later_ps) * PS - begin_s)
    finish_s = done_s[0]
    for r in range(num_ranks):
        finish_s = max(finish_s, done_s[r])
    ending = 0
    while done_s[ending] < finish_s:
        ending += 1
    for r in range(num_ranks):
        most_ps = max(most_ps, busy_ps[r])
    busiest = 0
    while busy_ps[busiest] < most_ps:
        busiest += 1
    return _Ends(ending, finish_s, last_s, busiest)


@helper
def _read_ranks(replica: int, runs: StepRuns, scratch: StepScratch) -> _After:
    """Write what chunks and ranks of a replica send at last, and return what follows."""
    held, reduce_after_s = runs.stage_held, scratch.reduce_after_s
    kind_of, tail_s = scratch.kind, scratch.tail_s
    _, _, _, _, _, tail_of, reduce_of, gather_of = runs.stages
    stage_first, stage_kind, rank_first, rank_kind = runs.patterns
    optimizer_of, pattern = runs.ranks.optimizer_s, runs.replicas.pattern[replica]
    first_kind = runs.replicas.kind_first[replica]
    first_rank_kind = runs.replicas.rank_kind_first[replica]
    sends, optimizer_s, gather_s = False, 0.0, 0.0
    for r in range(held.shape[0]):
        reduce_s = after_s = 0.0
        for c in range(held.shape[1]):
            chunk = r * held.shape[1] + c
            kind = first_kind + stage_kind[stage_first[pattern] + held[r, c]]
            kind_of[chunk], tail_s[chunk] = kind, tail_of[kind]
            sends = sends or tail_of[kind] > 0.0
            reduce_s += reduce_of[kind]
            after_s += gather_of[kind]
        reduce_after_s[r] = reduce_s
        update_s = optimizer_of[first_rank_kind + rank_kind[rank_first[pattern] + r]]
        if r == 0 or update_s + after_s > optimizer_s + gather_s:
            optimizer_s, gather_s = update_s, after_s
    return _After(sends, optimizer_s, gather_s)


@inlined
def _write_stages(
    held: Ints,
    rank: int,
    first_row: int,
    row_first: int,
    count: int,
    kind_of: Ints,
    stages: StepStages,
    number: Floats,
    job: int,
) -> tuple[float, float]:
    """Write the categories of a rank; return its launches and what data parallelism adds.

    Its stages count from ``row_first`` in the pipeline, their first forwards from ``first_row``;
    ``count`` microbatches pass through them.
    """
    categories_s, launch_of, first_of, last_of, each_of, _, _, _ = stages
    for term in range(CATEGORY_TERMS):
        number[job, term] = 0.0
    exposed_s = 0.0
    launch_s = 0.0
    for c in range(held.shape[1]):
        stage = held[rank, c]
        row, kind = row_first + stage, kind_of[rank * held.shape[1] + c]
        for term in range(CATEGORY_TERMS):
            number[job, term] += count * categories_s[row, term]
        launch_s += count * launch_of[row]
        exposed_s += first_of[kind if first_row < 0 else first_row + stage] + last_of[kind]
        exposed_s += (count - 1) * each_of[kind]
    return launch_s, exposed_s


@helper
def _write_peaks(some: int, stop: int, runs: StepRuns, steps: StepOutputs) -> None:
    """Write the first rank that holds the most, and what it holds, of jobs of some replicas."""
    begin, held_of, number, rank = runs.jobs.begin, runs.jobs.held, steps.number, steps.rank
    replicas = runs.replicas
    chosen, pattern, kind_first = replicas.chosen, replicas.pattern, replicas.rank_kind_first
    rank_first, rank_kind = runs.patterns.rank_first, runs.patterns.rank_kind
    static_bytes, activation_bytes = runs.ranks.static_bytes, runs.ranks.activation_bytes
    for chosen_place in range(some, stop):
        replica = chosen[chosen_place]
        first_rank, first_kind = rank_first[pattern[replica]], kind_first[replica]
        held, fullest, most = -1, 0, -1.0
        for place in range(begin[chosen_place], begin[chosen_place + 1]):
            # Most jobs of a replica hold the same.
            if held_of[place] != held:
                held, most = held_of[place], -1.0
                for r in range(activation_bytes.shape[1]):
                    kind = first_kind + rank_kind[first_rank + r]
                    peak = static_bytes[kind] + activation_bytes[held, r]
                    if peak > most:
                        most = peak
                        fullest = r
            job = place - begin[some]
            number[job, PEAK] = most
            rank[job, PEAK_RANK] = fullest


@helper
def end_replicas(some: int, stop: int, runs: StepRuns, scratch: StepScratch) -> None:
    """Let the gradients, the optimizer and the gathers follow the last backwards of some replicas.

    A step ends with the last rank to have sent its gradients, and the longest update after that;
    the breakdown is that of this rank. All wait for the slowest device, whose compute takes longer.
    The fullest rank is found as well.

    Parameters
    ----------
    some, stop : int
        First of the replicas that jobs have, and the one behind the last.
    runs : StepRuns
    scratch : StepScratch
        Output: ``steps``, a row for each of their jobs.
    """
    # Each array is taken out of its tuple once: that counts a reference.
    jobs, _, replicas, families, stage_held, replayed, alone, stages, _ = runs
    begin, _, replay_of, _, family_of, microbatches = jobs
    chosen, _, row_first, first_row, _, _, tied_s, timing_of, work_ps = replicas
    aparts, overhead_s, straggler_share = families
    row_of, later_ps, start_ps, end_ps, _ = replayed
    alone_row_of, alone_later_ps, alone_start_ps, alone_end_ps, _ = alone
    steps, done_s, busy_ps, waiting, kind_of, tail_s, reduce_after_s = scratch
    number, rank = steps
    num_ranks = stage_held.shape[0]
    for chosen_place in range(some, stop):
        replica = chosen[chosen_place]
        timing = timing_of[replica]
        after = _read_ranks(replica, runs, scratch)
        after_s = after.optimizer_s + after.gather_s
        for place in range(begin[chosen_place], begin[chosen_place + 1]):
            job = place - begin[some]
            replay, family = replay_of[place], family_of[place]
            apart, further = aparts[family], microbatches[place] - 1
            for r in range(num_ranks):
                busy_ps[r] = work_ps[timing, LEAST, r] + further * work_ps[timing, EACH, r]
            ends = _find_ends(
                replay, replayed, reduce_after_s, tail_s, after.sends, tied_s[replica], apart,
                done_s, busy_ps, waiting,
            )  # fmt: skip
            ending = ends.ending

            launch_s, exposed_s = _write_stages(
                stage_held, ending, first_row[replica], row_first[replica], microbatches[place],
                kind_of, stages, number, job,
            )  # fmt: skip
            own, own_alone = row_of[replay], alone_row_of[replay]
            start = start_ps[own, ending] if apart else 0
            alone_start = alone_start_ps[own_alone, ending] if apart else 0
            end = end_ps[own, ending] + later_ps[replay]
            alone_end = alone_end_ps[own_alone, ending] + alone_later_ps[replay]
            span_ps = end - start
            # A span can be shorter with latencies than without: its start may wait longer for them.
            idle_ps = min(span_ps, alone_end - alone_start)
            sent_s = ends.finish_s - (end * PS - start * PS)
            number[job, BUBBLE] = (idle_ps - busy_ps[ending]) * PS
            number[job, PIPELINE] = (span_ps - idle_ps) * PS
            number[job, DATA_PARALLEL] = exposed_s + sent_s + after.gather_s
            number[job, OPTIMIZER] = after.optimizer_s
            number[job, LAUNCH] = launch_s + overhead_s[family]
            late_s = 0.0
            for term in range(COMPUTE_TERMS):
                late_s += straggler_share[family] * number[job, term]
            number[job, STRAGGLERS] = late_s

            number[job, STEP] = ends.finish_s + after_s + overhead_s[family] + late_s
            number[job, LAST_OPERATION] = ends.last_s
            number[job, BUSIEST] = busy_ps[ends.busiest] * PS
            number[job, ENDING] = busy_ps[ending] * PS
            rank[job, ENDING_RANK] = ending
            rank[job, BUSIEST_RANK] = ends.busiest
    _write_peaks(some, stop, runs, steps)
