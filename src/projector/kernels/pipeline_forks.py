"""Replay of orders that differ in the number of microbatches alone, all in one run, exactly.

The middle of a long order repeats itself: on each rank, operation ``i + length`` has the duration
and the latency of operation ``i``, and waits for what stands one period behind what ``i`` waits
for. The program of such an order is a *prologue*, one *period* that is run again and again, and an
*epilogue*; an order of more microbatches has more periods and is the same otherwise. So the
prologue and the periods are run once, and at each number of periods that somebody wants the replay
*forks*: the epilogue is run on what the ranks have reached there. 64 configurations are run side by
side, each of which forks where it likes.

Most configurations *settle* soon. Let the *state* x be the ends that anything behind a period still
reads, and P what a period makes of it: sums and maxima, so that with everything d later,
``P(x + d) = P(x) + d``. If each end of a state is by the same d later than a period before,
``P(x) = x + d``, then k periods make ``x + k d`` of it. Nothing more has to be run: all longer runs
end as that state does, later as a whole.

Others advance by constant steps that are not equal: an operation and what it waits for drift apart,
each with a slope of its own, until one of two predecessors overtakes the other. Many periods are
jumped at once there as well.

Why such a jump is exact. Let P be what c periods make of a state, and ``v = x - y`` what the state
has advanced by since the state y of c periods before. The c periods are run with *slopes*: those of
the state are v, and an operation has the slope of the predecessor that it really waits for, of two
that end at once the larger one. If

1. times are integers, so that sums and maxima are exact,
2. each predecessor that is not waited for comes early enough to do so for n more cycles: the gap,
   which changes by the difference of the two slopes in each, stays >= 0, and
3. the state behind the c periods is ``x + v`` and has the slopes v,

then ``P(x + k v) = x + (k + 1) v`` for all k <= n: by (2) each operation, in topological order,
waits for the same predecessor and ends k slopes later, and by (3) that is where the next cycle
begins. What stands between the periods of the cycle is k slopes later as well. Nothing is assumed
about how a schedule behaves: where (2) or (3) fails, the periods have been run as they are.

Shapes
    n        configurations, R runs of them, each with a number of periods of its own
    pp, vpp  ranks, and chunks (virtual stages) of a rank
    live     ends of a state
    used     durations that some operation has
Units
    times int64 picoseconds.
"""

import math
from typing import NamedTuple

import numpy as np

from projector.arrays import Ints, Ints32

from ._jit import helper, kernel
from .pipeline import (
    DEPENDENCY,
    DURATION,
    LATENCY,
    OK,
    OUT_OF_RANGE,
    OUTPUT,
    PREVIOUS,
    SAFE_PS,
    UNSURE,
    Ends,
    OperationTimes,
)
from .pipeline_lanes import LANES, load_lanes, run_lanes

LIVE, FRAME, CAPACITY, MAX_CYCLE, ROWS, TAIL_ROWS = 0, 1, 2, 3, 4, 5
"""Entries of the sizes: ends of a state; rows of a frame, which holds a state and what is live
within the period behind it; frames that are kept; the longest cycle that is looked for, in periods;
rows of all frames, and of an epilogue."""

MOST_RUNS = 16
"""Runs of one configuration: so many states of it may wait for their epilogue."""

NEVER = np.iinfo(np.int64).max
"""Periods after which a configuration without further runs forks."""

SLOPED_AT_ONCE, SLOPED_SHARE = 4, 4
"""Periods that are run with slopes at once, and those run without for each further one."""

MARGIN = 1.0 - 2.0**-30
"""What is compared in float64 is made smaller by this, so that no rounding lets a jump be too
long."""


class ForkProgram(NamedTuple):
    """A periodic order; its columns are those of a program of lanes."""

    prologue: Ints32
    """``int32[ops, 5]``: rows among the ends; the state is left in frame 0."""
    period: Ints32
    """``int32[width, 5]``: rows counted from those of a frame; the next frame follows it."""
    moved: Ints32
    """``int32[moved, 2]``: ends of older periods, which become older: from a row of a frame to one
    of the next."""
    epilogue: Ints32
    """``int32[ops, 5]``: rows behind a state."""
    sizes: Ints
    """``int64[6]``: see ``LIVE`` and following."""
    probe: Ints
    """``int64[2]``: two ends of a state that are looked at first."""
    used: Ints
    """``int64[used]``: durations that operations have, as in a line."""
    uses: Ints
    """``int64[2, used]``: how many operations have each of them, outside of the periods and in
    each."""
    latency_uses: Ints
    """``int64[2, 1 + 2 * stages]``: the same of operations that wait for each latency."""
    first: Ints
    """``int64[pp]``: row of the first operation of each rank, behind the prologue."""
    first_duration: Ints
    """``int64[pp]``: row of ``used`` that it has."""
    last: Ints
    """``int64[pp]``: row, behind the epilogue, of the last operation of each rank."""
    last_backward: Ints
    """``int64[pp, vpp]``: row of the last B (W, where it stands alone) of each chunk."""


class Forks(NamedTuple):
    """Which numbers of periods each configuration is wanted with."""

    offset: Ints
    """``int64[n + 1]``: first run of each configuration; ``MOST_RUNS`` at most."""
    periods: Ints
    """``int64[R]``"""
    row: Ints
    """``int64[R]``: where each run is written. The runs of a configuration are sorted by their
    periods."""


class _Block(NamedTuple):
    """64 configurations side by side; all but ``offset`` are of lanes."""

    latency_ps: Ints
    """``int64[1 + 2 * stages, LANES]``"""
    duration_ps: Ints
    """``int64[used, LANES]``"""
    end_ps: Ints
    """``int64[ROWS, LANES]``"""
    slope_ps: Ints
    """``int64[MAX_CYCLE * FRAME + LIVE, LANES]``: what each end advances by in a cycle."""
    gap_ps: Ints
    """``int64[LANES]``: scratch."""
    done: Ints
    """``int64[LANES]``: periods that the newest state has behind it."""
    since: Ints
    """``int64[LANES]``: oldest frame that the newest state was reached from without a jump."""
    cycles: Ints
    """``int64[LANES]``: cycles that can be jumped."""
    run: Ints
    """``int64[LANES]``: next run of the configuration."""
    begin: Ints
    """``int64[LANES]``: its first run."""
    stop: Ints
    """``int64[LANES]``: behind its last run."""
    wanted: Ints
    """``int64[LANES]``: periods of the next run, ``NEVER`` behind the last one."""


class _Waiting(NamedTuple):
    """States that wait for their epilogue."""

    state_ps: Ints
    """``int64[MOST_RUNS, live, LANES]``"""
    run: Ints
    """``int64[MOST_RUNS, LANES]``: run that each state was kept for."""
    filled: Ints
    """``int64[LANES]``: states of each configuration."""
    like: Ints
    """``int64[R]``: run whose state each run has."""
    later_ps: Ints
    """``int64[R]``: by how much everything in the run is later than in that state."""


@helper
def _move(moved: Ints32, base: int, rows: Ints) -> None:
    for i in range(moved.shape[0]):
        for lane in range(LANES):
            rows[base + moved[i, 1], lane] = rows[base + moved[i, 0], lane]


@helper
def _run_with_slopes(period: Ints32, frame: int, slopes: int, block: _Block) -> None:
    """Run a period, and lower ``cycles`` to what the gaps allow; ``slopes`` is their frame."""
    latency_ps, duration_ps, end_ps, slope_ps, gap_ps, _, _, cycles, _, _, _, _ = block
    for i in range(period.shape[0]):
        previous, dependency = frame + period[i, PREVIOUS], frame + period[i, DEPENDENCY]
        latency, duration = period[i, LATENCY], period[i, DURATION]
        output = frame + period[i, OUTPUT]
        # Loops with few arrays: those with more are not run on vectors.
        for lane in range(LANES):
            arrival = end_ps[dependency, lane] + latency_ps[latency, lane]
            gap_ps[lane] = end_ps[previous, lane] - arrival
        for lane in range(LANES):
            arrival = end_ps[dependency, lane] + latency_ps[latency, lane]
            end_ps[output, lane] = (
                max(end_ps[previous, lane], arrival) + duration_ps[duration, lane]
            )
        output += slopes - frame
        previous += slopes - frame
        dependency += slopes - frame
        for lane in range(LANES):
            one, other = slope_ps[previous, lane], slope_ps[dependency, lane]
            late = (gap_ps[lane] < 0) | ((gap_ps[lane] == 0) & (other > one))
            slope_ps[output, lane] = other if late else one
        closes = 0
        for lane in range(LANES):
            # The gap from the predecessor that is waited for, and what it shrinks by.
            apart = slope_ps[dependency, lane] - slope_ps[previous, lane]
            shrinks = apart if gap_ps[lane] > 0 else -apart
            shrinks = shrinks if gap_ps[lane] != 0 else 0
            limit = MARGIN * float(abs(gap_ps[lane]))
            closes |= float(cycles[lane]) * float(shrinks) > limit
        if closes:
            _limit_cycles(slope_ps, previous, dependency, gap_ps, cycles)


@helper
def _limit_cycles(
    slope_ps: Ints, previous: int, dependency: int, gap_ps: Ints, cycles: Ints
) -> None:
    """Lower ``cycles`` to those that leave the gap of one operation open."""
    for lane in range(LANES):
        if cycles[lane] == 0:
            continue
        gap = gap_ps[lane]
        apart = slope_ps[dependency, lane] - slope_ps[previous, lane]
        shrinks = apart if gap > 0 else -apart
        if gap != 0 and shrinks > 0:
            cycles[lane] = min(cycles[lane], abs(gap) // shrinks)


@helper
def _fork(
    lane: int, run: int, frame: int, slopes: int, k: int, block: _Block, waiting: _Waiting
) -> None:
    """Keep the state of a run: that of ``frame``, ``k`` cycles with its slopes later."""
    end_ps, slope_ps = block.end_ps, block.slope_ps
    state_ps = waiting.state_ps
    slot = waiting.filled[lane]
    waiting.filled[lane] = slot + 1
    waiting.run[slot, lane] = run
    waiting.like[run] = run
    waiting.later_ps[run] = 0
    if k == 0:
        for i in range(state_ps.shape[1]):
            state_ps[slot, i, lane] = end_ps[frame + i, lane]
    else:
        for i in range(state_ps.shape[1]):
            state_ps[slot, i, lane] = end_ps[frame + i, lane] + k * slope_ps[slopes + i, lane]


@helper
def _fork_lane(
    lane: int,
    frame: int,
    cycle: int,
    sizes: Ints,
    periods: Ints,
    block: _Block,
    waiting: _Waiting,
) -> None:
    """Keep the states of all runs up to the end of what was run, and of what can be jumped.

    The ``cycle`` periods behind ``frame``, a number, were run.
    """
    done, run, stop = block.done[lane], block.run[lane], block.stop[lane]
    cycles = block.cycles[lane]
    while run < stop and periods[run] <= done + (cycles + 1) * cycle:
        k = (periods[run] - done - 1) // cycle
        at = periods[run] - done - k * cycle
        _fork(lane, run, (frame + at) * sizes[FRAME], at * sizes[FRAME], k, block, waiting)
        run += 1
    block.run[lane] = run
    block.wanted[lane] = periods[run] if run < stop else NEVER


@helper
def _settled_lanes(frame: int, sizes: Ints, block: _Block) -> int:
    """Set ``cycles`` of lanes that have settled to 1, of the others to 0; return their number.

    Leaves by how much a period makes the state later, in ``gap_ps``.
    """
    end_ps, since, cycles, wanted = block.end_ps, block.since, block.cycles, block.wanted
    later_ps = block.gap_ps
    newest = frame * sizes[FRAME]
    before = newest - sizes[FRAME]
    for lane in range(LANES):
        later_ps[lane] = end_ps[newest, lane] - end_ps[before, lane]
        cycles[lane] = 0
    for i in range(1, sizes[LIVE]):
        for lane in range(LANES):
            # Bits that differ from those of the first end.
            cycles[lane] |= later_ps[lane] ^ (end_ps[newest + i, lane] - end_ps[before + i, lane])
    settled = 0
    for lane in range(LANES):
        running = (since[lane] < frame) & (wanted[lane] < NEVER)
        cycles[lane] = running & (cycles[lane] == 0)
        settled += cycles[lane]
    return settled


@helper
def _fork_settled(
    lane: int, frame: int, sizes: Ints, periods: Ints, block: _Block, waiting: _Waiting
) -> None:
    """Let all further runs share a state; the lane has settled in the period before ``frame``."""
    run, first = block.run[lane], block.done[lane]
    like = run - 1
    if like >= block.begin[lane] and periods[like] >= first - 1:
        first = periods[like]
    else:
        like = run
        _fork(lane, run, frame * sizes[FRAME], 0, 0, block, waiting)
    for later in range(run, block.stop[lane]):
        waiting.like[later] = like
        waiting.later_ps[later] = (periods[later] - first) * block.gap_ps[lane]
    block.run[lane] = block.stop[lane]
    block.wanted[lane] = NEVER


@helper
def _jump(lane: int, frame: int, cycle: int, sizes: Ints, block: _Block) -> None:
    """Advance the state of a frame by all cycles that can be jumped."""
    end_ps, slope_ps, cycles = block.end_ps, block.slope_ps, block.cycles[lane]
    row, slopes = frame * sizes[FRAME], cycle * sizes[FRAME]
    for i in range(sizes[LIVE]):
        end_ps[row + i, lane] += cycles * slope_ps[slopes + i, lane]
    block.done[lane] += cycles * cycle
    block.since[lane] = frame


@helper
def _keep_newest(sizes: Ints, frame: int, block: _Block) -> int:
    """Move the newest frames to the beginning; return the new number of ``frame``."""
    end_ps, since = block.end_ps, block.since
    kept = 2 * sizes[MAX_CYCLE]
    moved = frame - kept
    rows = moved * sizes[FRAME]
    for i in range(kept * sizes[FRAME] + sizes[LIVE]):
        for lane in range(LANES):
            end_ps[i, lane] = end_ps[rows + i, lane]
    for lane in range(LANES):
        since[lane] = max(since[lane] - moved, 0)
    return int(kept)


@helper
def _lanes_in_step(cycle: int, frame: int, sizes: Ints, probe: Ints, block: _Block) -> int:
    """Set ``cycles`` of lanes that might repeat to 1, of the others to 0; return their number."""
    end_ps, since, cycles, wanted = block.end_ps, block.since, block.cycles, block.wanted
    for lane in range(LANES):
        cycles[lane] = (since[lane] + 2 * cycle <= frame) & (wanted[lane] < NEVER)
    for i in range(probe.shape[0]):
        newest = frame * sizes[FRAME] + probe[i]
        before = newest - cycle * sizes[FRAME]
        oldest = before - cycle * sizes[FRAME]
        for lane in range(LANES):
            turn = end_ps[newest, lane] - end_ps[before, lane]
            same = turn == end_ps[before, lane] - end_ps[oldest, lane]
            cycles[lane] = cycles[lane] if same else 0
    return int(cycles.sum())


@helper
def _find_cycle(
    frame: int, shortest: int, enough: int, sizes: Ints, probe: Ints, block: _Block
) -> int:
    """Return a cycle that ``enough`` configurations seem to repeat; 0 where there is none."""
    for cycle in range(shortest, min(frame // 2, sizes[MAX_CYCLE]) + 1):
        if _lanes_in_step(cycle, frame, sizes, probe, block) >= enough:
            return cycle
    return 0


@helper
def _run_cycle(program: ForkProgram, cycle: int, frame: int, periods: Ints, block: _Block) -> bool:
    """Run periods with slopes; leave in ``cycles`` how often each lane can repeat them.

    Returns whether any can.
    """
    sizes = program.sizes
    end_ps, slope_ps, cycles = block.end_ps, block.slope_ps, block.cycles
    done, stop = block.done, block.stop
    live, rows = sizes[LIVE], sizes[FRAME]
    for lane in range(LANES):
        if cycles[lane] > 0:
            left = periods[stop[lane] - 1] - done[lane]
            cycles[lane] = max((left - 1) // cycle, 0)
    newest = frame * rows
    for i in range(live):
        for lane in range(LANES):
            slope_ps[i, lane] = end_ps[newest + i, lane] - end_ps[newest - cycle * rows + i, lane]
    for step in range(cycle):
        _run_with_slopes(program.period, newest + step * rows, step * rows, block)
        _move(program.moved, newest + step * rows, end_ps)
        _move(program.moved, step * rows, slope_ps)
    last = newest + cycle * rows
    for i in range(live):
        for lane in range(LANES):
            turn = end_ps[last + i, lane] - end_ps[newest + i, lane]
            same = (turn == slope_ps[i, lane]) & (slope_ps[cycle * rows + i, lane] == turn)
            cycles[lane] = cycles[lane] if same else 0
    found = False
    for lane in range(LANES):
        found = found or cycles[lane] > 0
    return found


@helper
def _run_to_forks(
    program: ForkProgram, silent: bool, periods: Ints, block: _Block, waiting: _Waiting
) -> None:
    """Run or jump periods, until the state of every run is known."""
    sizes, moved = program.sizes, program.moved
    latency_ps, duration_ps, end_ps = block.latency_ps, block.duration_ps, block.end_ps
    done, cycles, wanted = block.done, block.cycles, block.wanted
    frame = 0
    shortest = 1
    waited = 0
    plain, sloped = 0, 0
    done[:] = 0
    block.since[:] = 0
    _fork_at_once(periods, block, waiting)
    while True:
        if frame > 0 and _settled_lanes(frame, sizes, block) > 0:
            for lane in range(LANES):
                if cycles[lane] > 0:
                    _fork_settled(lane, frame, sizes, periods, block, waiting)
        if wanted.min() == NEVER:
            break
        if frame + sizes[MAX_CYCLE] >= sizes[CAPACITY]:
            frame = _keep_newest(sizes, frame, block)
        waited += 1
        cycle = 0
        # Slopes take ten times as long. They wait until many lanes may have use for them, and for
        # other periods, so that those that find little do not take much more than all the others.
        if frame >= 2 and SLOPED_SHARE * (sloped - SLOPED_AT_ONCE) <= plain:
            enough = 1 + (wanted < NEVER).sum() // (1 + waited)
            cycle = _find_cycle(frame, shortest, enough, sizes, program.probe, block)
        if cycle > 0:
            sloped += cycle
            found = _run_cycle(program, cycle, frame, periods, block)
            shortest = 1 if found else cycle + 1
            waited = 0
        else:
            shortest = 1
            cycle = 1
            plain += 1
            cycles[:] = 0
            base = frame * sizes[FRAME]
            run_lanes(program.period, base, silent, latency_ps, duration_ps, end_ps)
            _move(moved, base, end_ps)
        for lane in range(LANES):
            if wanted[lane] <= done[lane] + (cycles[lane] + 1) * cycle:
                _fork_lane(lane, frame, cycle, sizes, periods, block, waiting)
            if cycles[lane] > 0 and wanted[lane] < NEVER:
                _jump(lane, frame + cycle, cycle, sizes, block)
            done[lane] += cycle
        frame += cycle


@helper
def _fork_at_once(periods: Ints, block: _Block, waiting: _Waiting) -> None:
    """Keep the states of runs without a period, and say what is wanted next."""
    run, stop, wanted = block.run, block.stop, block.wanted
    for lane in range(LANES):
        while run[lane] < stop[lane] and periods[run[lane]] == 0:
            _fork(lane, run[lane], 0, 0, 0, block, waiting)
            run[lane] += 1
        wanted[lane] = periods[run[lane]] if run[lane] < stop[lane] else NEVER


@helper
def _load_block(
    program: ForkProgram, times: OperationTimes, most: int, begin: int, block: _Block
) -> int:
    """Bring the times of a block into lanes; ``most`` is the most periods that any of it runs."""
    given_ps, p2p_ps, which = times
    flat_p2p_ps = p2p_ps.reshape(p2p_ps.shape[0], p2p_ps.shape[1] * p2p_ps.shape[2])
    sends = np.arange(flat_p2p_ps.shape[1] if p2p_ps.shape[0] > 0 else 0)
    send_uses = program.latency_uses[0, 1:] + most * program.latency_uses[1, 1:]
    uses = program.uses[0] + most * program.uses[1]
    total = np.zeros(LANES, np.float64)
    fits = load_lanes(flat_p2p_ps, sends, send_uses, which, begin, block.latency_ps, 1, total)
    fits &= load_lanes(given_ps, program.used, uses, which, begin, block.duration_ps, 0, total)
    if not fits:
        return OUT_OF_RANGE
    return UNSURE if total.max() > SAFE_PS else OK


@helper
def _keep_starts(program: ForkProgram, block: _Block, start_ps: Ints) -> None:
    """Read when each rank starts, behind the prologue: int64[pp, LANES]."""
    first, first_duration = program.first, program.first_duration
    end_ps, duration_ps = block.end_ps, block.duration_ps
    for rank in range(first.shape[0]):
        for lane in range(LANES):
            start_ps[rank, lane] = (
                end_ps[first[rank], lane] - duration_ps[first_duration[rank], lane]
            )


@helper
def _write_ends(
    program: ForkProgram,
    slot: int,
    start_ps: Ints,
    tail_ps: Ints,
    waiting: _Waiting,
    row: Ints,
    ends: Ends,
) -> None:
    """Write what follows from one state of each lane, whose epilogue has been run."""
    last, last_backward = program.last, program.last_backward
    _, _, rank_start_ps, rank_end_ps, last_backward_end_ps = ends
    run, filled = waiting.run, waiting.filled
    num_ranks, num_chunks = last_backward.shape
    starts = num_ranks if rank_start_ps.shape[0] > 0 else 0
    chunks = num_chunks if last_backward_end_ps.shape[0] > 0 else 0
    for lane in range(LANES):
        if slot >= filled[lane]:
            continue
        out = row[run[slot, lane]]
        for rank in range(starts):
            rank_start_ps[out, rank] = start_ps[rank, lane]
        for rank in range(num_ranks):
            rank_end_ps[out, rank] = tail_ps[last[rank], lane]
            for c in range(chunks):
                last_backward_end_ps[out, rank, c] = tail_ps[last_backward[rank, c], lane]


@helper
def _write_runs(block: _Block, waiting: _Waiting, out: Ints, ends: Ends) -> None:
    """Write which state each run shares."""
    like, later_ps = waiting.like, waiting.later_ps
    row_of, later_of = ends.row, ends.later_ps
    for lane in range(LANES):
        for run in range(block.begin[lane], block.stop[lane]):
            row_of[out[run]] = out[like[run]]
            later_of[out[run]] = later_ps[run]


@helper
def _empty_block(program: ForkProgram) -> _Block:
    sizes = program.sizes
    return _Block(
        latency_ps=np.zeros((program.latency_uses.shape[1], LANES), np.int64),
        duration_ps=np.empty((program.used.shape[0], LANES), np.int64),
        end_ps=np.zeros((sizes[ROWS], LANES), np.int64),
        slope_ps=np.zeros((sizes[MAX_CYCLE] * sizes[FRAME] + sizes[LIVE], LANES), np.int64),
        gap_ps=np.empty(LANES, np.int64),
        done=np.empty(LANES, np.int64),
        since=np.empty(LANES, np.int64),
        cycles=np.empty(LANES, np.int64),
        run=np.empty(LANES, np.int64),
        begin=np.empty(LANES, np.int64),
        stop=np.empty(LANES, np.int64),
        wanted=np.empty(LANES, np.int64),
    )


@helper
def _sort_runs(begin: int, end: int, periods: Ints, row: Ints) -> None:
    """Sort a few runs by their periods."""
    for run in range(begin + 1, end):
        wanted, out = periods[run], row[run]
        place = run
        while place > begin and periods[place - 1] > wanted:
            periods[place] = periods[place - 1]
            row[place] = row[place - 1]
            place -= 1
        periods[place] = wanted
        row[place] = out


@helper
def _begin_lanes(forks: Forks, begin: int, block: _Block, waiting: _Waiting) -> int:
    """Set each lane to its first run; return the most periods of any."""
    offset, periods, row = forks
    most = np.int64(0)
    for lane in range(LANES):
        config = min(begin + lane, offset.shape[0] - 2)
        # Lanes beyond the last configuration repeat it, and have no runs.
        block.stop[lane] = offset[config + 1]
        block.begin[lane] = offset[config] if begin + lane == config else block.stop[lane]
        block.run[lane] = block.begin[lane]
        waiting.filled[lane] = 0
        _sort_runs(block.begin[lane], block.stop[lane], periods, row)
        most = max(most, periods[offset[config + 1] - 1])
    return int(most)


@kernel(python_us=math.inf)
def replay_forks(program: ForkProgram, times: OperationTimes, forks: Forks, ends: Ends) -> int:
    """Run orders of several lengths with the durations of each configuration.

    Parameters
    ----------
    program : ForkProgram
        What the orders have in common.
    times : OperationTimes
        Of n configurations.
    forks : Forks
        The R runs of them.
    ends : Ends
        Output. A run has its own row, or that of an earlier run of its configuration.

    Returns
    -------
    int
        ``OK``; ``OUT_OF_RANGE`` where a time is negative or too long; ``UNSURE`` where an end
        might be. Unless ``OK``, outputs mean nothing.
    """
    sizes = program.sizes
    live = sizes[LIVE]
    silent = times.p2p_ps.shape[0] == 0
    block = _empty_block(program)
    waiting = _Waiting(
        state_ps=np.empty((MOST_RUNS, live, LANES), np.int64),
        run=np.empty((MOST_RUNS, LANES), np.int64),
        filled=np.empty(LANES, np.int64),
        like=np.empty(forks.periods.shape[0], np.int64),
        later_ps=np.empty(forks.periods.shape[0], np.int64),
    )
    start_ps = np.empty((program.first.shape[0], LANES), np.int64)
    tail_ps = np.empty((sizes[TAIL_ROWS], LANES), np.int64)
    for begin in range(0, times.which.shape[0], LANES):
        most = _begin_lanes(forks, begin, block, waiting)
        status = _load_block(program, times, most, begin, block)
        if status != OK:
            return status
        block.end_ps[live, :] = 0
        run_lanes(program.prologue, 0, silent, block.latency_ps, block.duration_ps, block.end_ps)
        _keep_starts(program, block, start_ps)
        _run_to_forks(program, silent, forks.periods, block, waiting)
        _write_runs(block, waiting, forks.row, ends)
        for slot in range(waiting.filled.max()):
            for i in range(live):
                for lane in range(LANES):
                    tail_ps[i, lane] = waiting.state_ps[slot, i, lane]
            run_lanes(program.epilogue, 0, silent, block.latency_ps, block.duration_ps, tail_ps)
            _write_ends(program, slot, start_ps, tail_ps, waiting, forks.row, ends)
    return OK
