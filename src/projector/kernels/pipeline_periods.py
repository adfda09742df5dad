"""Periods of an order that repeats itself, run one after the other or many of them at once.

A *state* holds the ends that anything behind a period still reads. Let P be what a period makes of
it: sums and maxima, so that with everything d later, ``P(x + d) = P(x) + d``. If each end of a
state x is by the same d later than a period before, it has *settled*: ``P(x) = x + d``, and k
periods make ``x + k d`` of it.

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

Shapes and units are those of `projector.kernels.pipeline`; ``LANES`` are configurations side by
side.
"""

from typing import NamedTuple

import numpy as np

from projector.arrays import Ints, Ints32
from projector.kernels._jit import helper
from projector.kernels._vectors import (
    WIDTH,
    anywhere,
    choose,
    equal,
    larger,
    less,
    load,
    spread,
    store,
    total,
)
from projector.kernels.pipeline import DEPENDENCY, DURATION, LATENCY, OUTPUT, PREVIOUS
from projector.kernels.pipeline_lanes import LANES, run_lanes

LIVE, FRAME, FRAMES, MAX_CYCLE, ROWS, TAIL_ROWS, SLOPED_AFTER = 0, 1, 2, 3, 4, 5, 6
"""Entries of the sizes: ends of a state; rows of a frame, which holds a state and what is live
within the period behind it; frames that are kept; the longest cycle that is looked for, in periods;
rows of all frames, and of an epilogue; periods that are run before any is run with slopes."""

CYCLES, LATER, DONE, SINCE, WANTED, GAP, SHRINKS = 0, 1, 2, 3, 4, 5, 6
"""Rows of the numbers of lanes: cycles that can be jumped, or a mark; by how much a settled state
is later after a period; periods that the newest state has behind it; the oldest frame that it was
reached from without a jump; periods of the next run, ``NEVER`` behind the last one; scratch."""

NEVER = np.iinfo(np.int64).max
"""Periods after which a configuration without further runs is wanted."""

STEEP_PS = 1 << 40
"""Products of longer differences of slopes with numbers of cycles might not fit."""

MOST_CYCLES = 1 << 20
"""More are not jumped at once."""


class PeriodicProgram(NamedTuple):
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
    """``int64[7]``: see ``LIVE`` and following."""
    used: Ints
    """``int64[used]``: durations that operations have, as in a line."""
    first: Ints
    """``int64[pp]``: row of the first operation of each rank, behind the prologue."""
    first_duration: Ints
    """``int64[pp]``: row of ``used`` that it has."""
    last: Ints
    """``int64[pp]``: row, behind the epilogue, of the last operation of each rank."""
    last_backward: Ints
    """``int64[pp, vpp]``: row of the last B (W, where it stands alone) of each chunk."""


class Block(NamedTuple):
    """Configurations side by side."""

    latency_ps: Ints
    """``int64[1 + 2 * stages, LANES]``"""
    duration_ps: Ints
    """``int64[used, LANES]``"""
    end_ps: Ints
    """``int64[ROWS, LANES]``"""
    slope_ps: Ints
    """``int64[MAX_CYCLE * FRAME + LIVE, LANES]``: what each end advances by in a cycle."""
    of_lane: Ints
    """``int64[7, LANES]``: see ``CYCLES`` and following."""


@helper
def frame_row(frame: int, sizes: Ints) -> int:
    """Return the first row of a frame; they are taken in turns."""
    return int(frame % sizes[FRAMES] * sizes[FRAME])


@helper
def _end_period(frame: int, program: PeriodicProgram, end_ps: Ints) -> None:
    """Let ends of older periods become older, behind the period that begins with a frame."""
    sizes = program.sizes
    row = frame_row(frame, sizes)
    _move(program.moved, row, end_ps)
    begin = frame_row(frame + 1, sizes)
    if begin == 0:
        for i in range(sizes[LIVE]):
            for lane in range(0, LANES, WIDTH):
                store(load(end_ps, row + sizes[FRAME] + i, lane), end_ps, i, lane)


@helper
def _move(moved: Ints32, base: int, rows: Ints) -> None:
    for i in range(moved.shape[0]):
        for lane in range(0, LANES, WIDTH):
            store(load(rows, base + moved[i, 0], lane), rows, base + moved[i, 1], lane)


@helper
def run_period(frame: int, program: PeriodicProgram, silent: bool, block: Block) -> None:
    """Run a period, from the state of a frame to that of the next."""
    row = frame_row(frame, program.sizes)
    run_lanes(program.period, row, silent, block.latency_ps, block.duration_ps, block.end_ps)
    _end_period(frame, program, block.end_ps)


@helper
def _limit_cycles(begin: int, of_lane: Ints) -> None:
    """Lower the cycles of a vector to those that leave its gaps open."""
    for lane in range(begin, begin + WIDTH):
        cycles, gap, shrinks = of_lane[CYCLES, lane], of_lane[GAP, lane], of_lane[SHRINKS, lane]
        # Divisions take long, and few lanes need one.
        if shrinks > 0 and (shrinks > STEEP_PS or cycles * shrinks > gap):
            of_lane[CYCLES, lane] = min(cycles, gap // shrinks)


@helper
def _run_period_with_slopes(frame: int, step: int, program: PeriodicProgram, block: Block) -> None:
    """Run a period, the ``step``-th of a cycle; lower the cycles to what the gaps allow."""
    latency_ps, duration_ps, end_ps, slope_ps, of_lane = block
    period = program.period
    row, slopes = frame_row(frame, program.sizes), step * program.sizes[FRAME]
    nothing, steep = spread(0), spread(STEEP_PS)
    for i in range(period.shape[0]):
        previous, dependency, output = period[i, PREVIOUS], period[i, DEPENDENCY], period[i, OUTPUT]
        latency, duration = period[i, LATENCY], period[i, DURATION]
        for lane in range(0, LANES, WIDTH):
            one_ps = load(end_ps, row + previous, lane)
            other_ps = load(end_ps, row + dependency, lane) + load(latency_ps, latency, lane)
            start_ps = larger(one_ps, other_ps)
            store(start_ps + load(duration_ps, duration, lane), end_ps, row + output, lane)
            # The gap to the predecessor that is not waited for, and what it shrinks by.
            slope_ps_of_one = load(slope_ps, slopes + previous, lane)
            slope_ps_of_other = load(slope_ps, slopes + dependency, lane)
            gap = one_ps - other_ps
            apart = slope_ps_of_other - slope_ps_of_one
            waits = less(gap, nothing) | (equal(gap, nothing) & less(nothing, apart))
            slope = choose(waits, slope_ps_of_other, slope_ps_of_one)
            store(slope, slope_ps, slopes + output, lane)
            gap = choose(waits, nothing - gap, gap)
            shrinks = choose(waits, nothing - apart, apart)
            closing = less(gap, load(of_lane, CYCLES, lane) * shrinks) | less(steep, shrinks)
            if anywhere(closing):
                store(gap, of_lane, GAP, lane)
                store(shrinks, of_lane, SHRINKS, lane)
                _limit_cycles(lane, of_lane)
    _move(program.moved, slopes, slope_ps)
    _end_period(frame, program, end_ps)


@helper
def any_settled(frame: int, sizes: Ints, block: Block) -> bool:
    """Mark, in the cycles, lanes that have settled in the period before a frame."""
    end_ps, of_lane = block.end_ps, block.of_lane
    newest, before = frame_row(frame, sizes), frame_row(frame - 1, sizes)
    found = False
    for lane in range(0, LANES, WIDTH):
        later_ps = load(end_ps, newest, lane) - load(end_ps, before, lane)
        settled = _running(frame - 1, lane, of_lane)
        for i in range(1, sizes[LIVE]):
            if not anywhere(settled):
                break
            turn_ps = load(end_ps, newest + i, lane) - load(end_ps, before + i, lane)
            settled = settled & equal(turn_ps, later_ps)
        store(settled, of_lane, CYCLES, lane)
        store(later_ps, of_lane, LATER, lane)
        found = found or anywhere(settled)
    return found


@helper
def _running(since: int, lane: int, of_lane: Ints) -> Ints:
    """Return which lanes are not done and have not jumped behind a frame, as a mask."""
    wanted = less(load(of_lane, WANTED, lane), spread(NEVER))
    return wanted & less(load(of_lane, SINCE, lane), spread(since + 1))


@helper
def find_cycle(frame: int, enough: int, sizes: Ints, block: Block) -> int:
    """Return a cycle that ``enough`` lanes seem to repeat, which are marked; 0 if there is none."""
    # Nearly all repeat each period. To look for all others each time took as long as the periods.
    longest = sizes[MAX_CYCLE] if frame % sizes[FRAMES] == 0 else 1
    for cycle in range(1, min(frame // 2, longest) + 1):
        if _mark_in_step(frame, cycle, sizes, block) >= enough:
            return cycle
    return 0


@helper
def _mark_in_step(frame: int, cycle: int, sizes: Ints, block: Block) -> int:
    """Mark, in the cycles, lanes whose last two cycles were alike; return their number."""
    end_ps, of_lane = block.end_ps, block.of_lane
    newest = frame_row(frame, sizes)
    before = frame_row(frame - cycle, sizes)
    oldest = frame_row(frame - 2 * cycle, sizes)
    found = 0
    for lane in range(0, LANES, WIDTH):
        same = _running(frame - 2 * cycle, lane, of_lane)
        for i in range(sizes[LIVE]):
            if not anywhere(same):
                break
            middle_ps = load(end_ps, before + i, lane)
            turn_ps = load(end_ps, newest + i, lane) - middle_ps
            same = same & equal(turn_ps, middle_ps - load(end_ps, oldest + i, lane))
        store(same, of_lane, CYCLES, lane)
        found -= total(same)
    return found


@helper
def run_cycle(frame: int, cycle: int, program: PeriodicProgram, most: Ints, block: Block) -> int:
    """Run periods with slopes; leave in the cycles how often each marked lane can repeat them.

    ``most`` are the most periods that each lane is wanted with. Returns the sum of the cycles.
    """
    sizes = program.sizes
    end_ps, slope_ps, of_lane = block.end_ps, block.slope_ps, block.of_lane
    live, behind = sizes[LIVE], cycle * sizes[FRAME]
    for lane in range(LANES):
        left = (most[lane] - of_lane[DONE, lane] - 1) // cycle
        jumps = max(min(left, MOST_CYCLES), 0)
        of_lane[CYCLES, lane] = jumps if of_lane[CYCLES, lane] else 0
    newest, before = frame_row(frame, sizes), frame_row(frame - cycle, sizes)
    for i in range(live):
        for lane in range(0, LANES, WIDTH):
            turn_ps = load(end_ps, newest + i, lane) - load(end_ps, before + i, lane)
            store(turn_ps, slope_ps, i, lane)
    for step in range(cycle):
        _run_period_with_slopes(frame + step, step, program, block)
    last = frame_row(frame + cycle, sizes)
    found = 0
    for lane in range(0, LANES, WIDTH):
        cycles = load(of_lane, CYCLES, lane)
        same = less(spread(0), cycles)
        for i in range(live):
            turn_ps = load(end_ps, last + i, lane) - load(end_ps, newest + i, lane)
            slope = load(slope_ps, i, lane)
            same = same & equal(turn_ps, slope)
            same = same & equal(turn_ps, load(slope_ps, behind + i, lane))
        store(cycles & same, of_lane, CYCLES, lane)
        found += total(cycles & same)
    return found


@helper
def jump(lane: int, frame: int, cycle: int, sizes: Ints, block: Block) -> None:
    """Advance the state of a frame, behind a cycle, by all cycles that can be jumped."""
    end_ps, slope_ps, of_lane = block.end_ps, block.slope_ps, block.of_lane
    cycles = of_lane[CYCLES, lane]
    row, slopes = frame_row(frame, sizes), cycle * sizes[FRAME]
    for i in range(sizes[LIVE]):
        end_ps[row + i, lane] += cycles * slope_ps[slopes + i, lane]
    of_lane[DONE, lane] += cycles * cycle
    of_lane[SINCE, lane] = frame
