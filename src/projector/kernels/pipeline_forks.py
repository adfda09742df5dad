"""Replay of orders that differ in the number of microbatches alone, all in one run, exactly.

The middle of a long order repeats itself: on each rank, operation ``i + length`` has the duration
and the latency of operation ``i``, and waits for what stands one period behind what ``i`` waits
for. The program of such an order is a *prologue*, one *period* that is run again and again, and an
*epilogue*; an order of more microbatches has more periods and is the same otherwise. So the
prologue and the periods are run once, and at each number of periods that somebody wants the replay
*forks*: the epilogue is run on the state that the ranks have reached there. 16 configurations are
run side by side, each of which forks where it likes.

Most configurations settle soon (`pipeline_periods`). Nothing more has to be run then: all longer
runs end as that state does, later as a whole.

Shapes
    n        configurations, R runs of them, each with a number of periods of its own
    pp, vpp  ranks, and chunks (virtual stages) of a rank
    live     ends of a state
Units: times int64 picoseconds.
"""

from typing import NamedTuple

import numpy as np

from projector.arrays import Ints
from projector.kernels._jit import helper, kernel
from projector.kernels._vectors import WIDTH, anywhere, less, load, spread, store
from projector.kernels.pipeline import OK, Ends, OperationTimes
from projector.kernels.pipeline_lanes import LANES, load_times, run_lanes
from projector.kernels.pipeline_periods import (
    CYCLES,
    DONE,
    FRAME,
    LATER,
    LIVE,
    MAX_CYCLE,
    NEVER,
    ROWS,
    SINCE,
    SLOPED_AFTER,
    TAIL_ROWS,
    WANTED,
    Block,
    PeriodicProgram,
    any_settled,
    find_cycle,
    frame_row,
    jump,
    run_cycle,
    run_period,
)

MOST_RUNS = 32
"""Runs of one configuration: so many states of it may wait for their epilogue."""

SLOPED_SHARE = 8
"""Periods that are run or jumped for each one that is run with slopes."""


class Forks(NamedTuple):
    """Which numbers of periods each configuration is wanted with."""

    offset: Ints
    """``int64[n + 1]``: first run of each configuration; ``MOST_RUNS`` at most."""
    periods: Ints
    """``int64[R]``"""
    row: Ints
    """``int64[R]``: row of outputs for each run. The runs of a configuration are sorted by their
    periods."""


class _Runs(NamedTuple):
    begin: Ints
    """``int64[LANES]``: the first one."""
    stop: Ints
    """``int64[LANES]``: behind the last one."""
    next: Ints
    """``int64[LANES]``: the next one to fork."""
    place: Ints
    """``int64[1 + R]``: how many states were kept, and the row that each of them is written to."""
    most: Ints
    """``int64[LANES]``: the most periods of any."""
    periods: Ints
    """``int64[R]``: those of each run."""
    row: Ints
    """``int64[R]``: as in `Forks`."""
    shared_row: Ints
    """Output, by the row of a run: that of the state it has."""
    later_ps: Ints
    """Output, by the row of a run: by how much all of it is later than in that state."""


class _Waiting(NamedTuple):
    state_ps: Ints
    """``int64[MOST_RUNS * live, LANES]``"""
    row: Ints
    """``int64[MOST_RUNS, LANES]``: where each state is written."""
    filled: Ints
    """``int64[LANES]``: states of each configuration."""


@helper
def _fork(
    lane: int, runs: _Runs, row: int, slopes: int, k: int, block: Block, waiting: _Waiting
) -> int:
    """Keep the state of the frame at ``row``, ``k`` cycles later; return where it will be written.

    What it advances by in a cycle stands at ``slopes``.
    """
    end_ps, slope_ps, state_ps = block.end_ps, block.slope_ps, waiting.state_ps
    slot, live = waiting.filled[lane], state_ps.shape[0] // MOST_RUNS
    waiting.filled[lane] = slot + 1
    runs.place[0] += 1
    out = runs.place[runs.place[0]]
    waiting.row[slot, lane] = out
    for i in range(live):
        later_ps = k * slope_ps[slopes + i, lane] if k > 0 else 0
        state_ps[slot * live + i, lane] = end_ps[row + i, lane] + later_ps
    return int(out)


@helper
def _fork_lane(
    lane: int, frame: int, cycle: int, sizes: Ints, block: Block, runs: _Runs, waiting: _Waiting
) -> None:
    """Keep the states of all runs up to the end of what was run, and of what can be jumped.

    The ``cycle`` periods behind ``frame`` were run.
    """
    run, stop, periods = runs.next[lane], runs.stop[lane], runs.periods
    done, cycles = block.of_lane[DONE, lane], block.of_lane[CYCLES, lane]
    while run < stop and periods[run] <= done + (cycles + 1) * cycle:
        k = (periods[run] - done - 1) // cycle
        step = periods[run] - done - k * cycle
        row, slopes = frame_row(frame + step, sizes), step * sizes[FRAME]
        out = runs.row[run]
        runs.shared_row[out] = _fork(lane, runs, row, slopes, k, block, waiting)
        runs.later_ps[out] = 0
        run += 1
    runs.next[lane] = run
    block.of_lane[WANTED, lane] = periods[run] if run < stop else NEVER


@helper
def _fork_settled(
    lane: int, frame: int, sizes: Ints, block: Block, runs: _Runs, waiting: _Waiting
) -> None:
    """Let all further runs share a state; the lane has settled in the period before ``frame``."""
    run, first, periods = runs.next[lane], block.of_lane[DONE, lane], runs.periods
    row, shared_row, later_ps = runs.row, runs.shared_row, runs.later_ps
    like, each_ps = run - 1, block.of_lane[LATER, lane]
    if like >= runs.begin[lane] and periods[like] >= first - 1:
        first, same = periods[like], shared_row[row[like]]
    else:
        same = _fork(lane, runs, frame_row(frame, sizes), 0, 0, block, waiting)
    for further in range(run, runs.stop[lane]):
        out = row[further]
        shared_row[out] = same
        later_ps[out] = (periods[further] - first) * each_ps
    runs.next[lane] = runs.stop[lane]
    block.of_lane[WANTED, lane] = NEVER


@helper
def _count_wanted(of_lane: Ints) -> int:
    wanted = 0
    for lane in range(LANES):
        wanted += of_lane[WANTED, lane] < NEVER
    return wanted


@helper
def _any_due(cycle: int, of_lane: Ints) -> bool:
    """Whether some lane is wanted within what was run and what can be jumped."""
    due = spread(0)
    for lane in range(0, LANES, WIDTH):
        turns = (load(of_lane, CYCLES, lane) + spread(1)) * spread(cycle)
        behind = load(of_lane, DONE, lane) + turns + spread(1)
        due = due | less(load(of_lane, WANTED, lane), behind)
    return anywhere(due)


@helper
def _advance(
    frame: int, cycle: int, sizes: Ints, block: Block, runs: _Runs, waiting: _Waiting
) -> None:
    """Fork what is due behind the periods of a cycle, which were run, and jump."""
    of_lane = block.of_lane
    if _any_due(cycle, of_lane):
        for lane in range(LANES):
            turns = (of_lane[CYCLES, lane] + 1) * cycle
            if of_lane[WANTED, lane] <= of_lane[DONE, lane] + turns:
                _fork_lane(lane, frame, cycle, sizes, block, runs, waiting)
    for lane in range(LANES):
        if of_lane[CYCLES, lane] > 0 and of_lane[WANTED, lane] < NEVER:
            jump(lane, frame + cycle, cycle, sizes, block)
        of_lane[DONE, lane] += cycle


@helper
def _run_to_forks(
    program: PeriodicProgram, silent: bool, block: Block, runs: _Runs, waiting: _Waiting
) -> None:
    """Run or jump periods, until the state of every run is known."""
    sizes, of_lane = program.sizes, block.of_lane
    frame, waited, spared, sloped = 0, 0, 0, 0
    for lane in range(LANES):
        of_lane[CYCLES, lane] = of_lane[SINCE, lane] = of_lane[WANTED, lane] = 0
        of_lane[DONE, lane] = -1
    # Runs without a period fork behind the prologue, as if it were one.
    _advance(-1, 1, sizes, block, runs, waiting)
    while True:
        if frame > 0 and any_settled(frame, sizes, block):
            for lane in range(LANES):
                if of_lane[CYCLES, lane] != 0:
                    _fork_settled(lane, frame, sizes, block, runs, waiting)
        wanted = _count_wanted(of_lane)
        if wanted == 0:
            break
        waited += 1
        cycle = 0
        # Slopes take several times as long, and most lanes settle without. They wait until many
        # lanes may have use for them, and where jumps are short they are few.
        if frame >= 2 and SLOPED_SHARE * sloped <= spared - sizes[SLOPED_AFTER]:
            cycle = find_cycle(frame, 1 + wanted // (1 + waited), sizes, block)
        if cycle > 0:
            spared += run_cycle(frame, cycle, program, runs.most, block) * cycle // wanted
            sloped += cycle
            waited = 0
        else:
            run_period(frame, program, silent, block)
            for lane in range(0, LANES, WIDTH):
                store(spread(0), of_lane, CYCLES, lane)
            cycle = 1
            spared += 1
        _advance(frame, cycle, sizes, block, runs, waiting)
        frame += cycle


@helper
def _keep_starts(program: PeriodicProgram, block: Block, start_ps: Ints) -> None:
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
    program: PeriodicProgram,
    slot: int,
    start_ps: Ints,
    tail_ps: Ints,
    waiting: _Waiting,
    ends: Ends,
) -> None:
    """Write what follows from one state of each lane, whose epilogue has been run."""
    last, last_backward = program.last, program.last_backward
    _, _, rank_start_ps, rank_end_ps, last_backward_end_ps = ends
    row, filled = waiting.row, waiting.filled
    num_ranks, num_chunks = last_backward.shape
    starts = num_ranks if rank_start_ps.shape[0] > 0 else 0
    chunks = num_chunks if last_backward_end_ps.shape[0] > 0 else 0
    for lane in range(LANES):
        if slot >= filled[lane]:
            continue
        out = row[slot, lane]
        for rank in range(starts):
            rank_start_ps[out, rank] = start_ps[rank, lane]
        for rank in range(num_ranks):
            rank_end_ps[out, rank] = tail_ps[last[rank], lane]
            for c in range(chunks):
                last_backward_end_ps[out, rank, c] = tail_ps[last_backward[rank, c], lane]


@helper
def _empty_block(program: PeriodicProgram, sends: int) -> Block:
    sizes = program.sizes
    return Block(
        latency_ps=np.zeros((1 + sends, LANES), np.int64),
        duration_ps=np.empty((program.used.shape[0], LANES), np.int64),
        end_ps=np.zeros((sizes[ROWS], LANES), np.int64),
        slope_ps=np.zeros((sizes[MAX_CYCLE] * sizes[FRAME] + sizes[LIVE], LANES), np.int64),
        of_lane=np.zeros((7, LANES), np.int64),
    )


@helper
def _sort_runs(begin: int, end: int, periods: Ints, row: Ints) -> None:
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
def _begin_lanes(forks: Forks, begin: int, runs: _Runs, waiting: _Waiting) -> int:
    """Set each lane to its first run; return the most periods of any."""
    offset, periods, row = forks
    longest = np.int64(0)
    for lane in range(LANES):
        config = min(begin + lane, offset.shape[0] - 2)
        # Lanes beyond the last configuration repeat it, and have no runs.
        runs.stop[lane] = offset[config + 1]
        runs.begin[lane] = offset[config] if begin + lane == config else runs.stop[lane]
        runs.next[lane] = runs.begin[lane]
        waiting.filled[lane] = 0
        _sort_runs(runs.begin[lane], runs.stop[lane], periods, row)
        runs.most[lane] = periods[offset[config + 1] - 1]
        longest = max(longest, runs.most[lane])
    return int(longest)


@kernel(python_us=1.0)
def replay_forks(program: PeriodicProgram, times: OperationTimes, forks: Forks, ends: Ends) -> int:
    """Run orders of several lengths with the durations of each configuration.

    program : PeriodicProgram. What the orders have in common.
    times : OperationTimes. Of n configurations.
    forks : Forks. The R runs of them.
    ends : Ends. Output. Runs that share a state have one row; those of all runs are given in turn.
    Returns ``OK``; ``OUT_OF_RANGE`` where a time is negative or too long; ``UNSURE`` where an end
        might be. Unless ``OK``, outputs mean nothing.
    """
    prologue, period, epilogue = program.prologue, program.period, program.epilogue
    sizes = program.sizes
    live = sizes[LIVE]
    silent = times.p2p_ps.shape[0] == 0
    block = _empty_block(program, times.p2p_ps.shape[1] * times.p2p_ps.shape[2])
    latency_ps, duration_ps, end_ps, _, _ = block
    runs = _Runs(
        begin=np.empty(LANES, np.int64),
        stop=np.empty(LANES, np.int64),
        next=np.empty(LANES, np.int64),
        place=np.append(0, forks.row),
        most=np.empty(LANES, np.int64),
        periods=forks.periods,
        row=forks.row,
        shared_row=ends.row,
        later_ps=ends.later_ps,
    )
    waiting = _Waiting(
        state_ps=np.empty((MOST_RUNS * live, LANES), np.int64),
        row=np.empty((MOST_RUNS, LANES), np.int64),
        filled=np.empty(LANES, np.int64),
    )
    start_ps = np.empty((program.first.shape[0], LANES), np.int64)
    tail_ps = np.empty((sizes[TAIL_ROWS], LANES), np.int64)
    for begin in range(0, times.which.shape[0], LANES):
        most = _begin_lanes(forks, begin, runs, waiting)
        operations = len(prologue) + most * len(period) + len(epilogue)
        status = load_times(times, begin, program.used, operations, latency_ps, duration_ps)
        if status != OK:
            return status
        end_ps[live, :] = 0
        run_lanes(prologue, 0, silent, latency_ps, duration_ps, end_ps)
        if ends.rank_start_ps.shape[0] > 0:
            _keep_starts(program, block, start_ps)
        _run_to_forks(program, silent, block, runs, waiting)
        for slot in range(waiting.filled.max()):
            for i in range(live):
                for lane in range(0, LANES, WIDTH):
                    store(load(waiting.state_ps, slot * live + i, lane), tail_ps, i, lane)
            run_lanes(epilogue, 0, silent, latency_ps, duration_ps, tail_ps)
            _write_ends(program, slot, start_ps, tail_ps, waiting, ends)
    return OK
