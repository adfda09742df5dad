"""Replay of one order that jumps over its steady state, exactly.

The middle of a long order repeats itself: on each rank, operation ``i + length`` has the duration
and the latency of operation ``i``, and waits for what stands one period behind what ``i`` waits
for. The program of such an order is a *prologue*, one *period* that is run again and again, and an
*epilogue*. After some periods the ends advance by constant steps, and many periods are jumped at
once. The steps need not be equal: an operation and what it waits for may drift apart, each with a
velocity of its own, until one of two predecessors overtakes the other.

Why a jump is exact. Let the *window* be the last c periods, E the ends, and the velocity of an
operation of the window what its end has advanced by since the same operation c periods earlier.
An operation before the window has the velocity of the one c periods later, which is in the window.
Of the two predecessors of an operation, the *chosen* one is the one that it really waited for; the
*gap* is the time by which the other one came earlier. If

1. times are integers, so that sums and maxima are exact,
2. each operation of the window has the velocity of its chosen predecessor,
3. each gap, which changes by the difference of the two velocities, stays >= 0 in n repetitions,
4. everything that is jumped over belongs to the periodic part, which is proven on the arrays when
   the order is compiled, and
5. no operation of a period or of the epilogue waits for one more than ``history`` periods older,
   with c >= history, so that all that is read later lies in the window that is carried along,

then the k-th repetition of the window ends at ``E + k * velocity`` for all k <= n. The proof is by
induction over k and, for each k, over the operations in topological order: the predecessors have
ended at ``E + k * velocity``; by (3) the maximum takes the chosen one; by (2) the operation keeps
its velocity. Nothing is assumed about how a schedule behaves: where no c meets the conditions, the
next period is run as it is.

Shapes
    n        configurations that share one order
    pp, vpp  ranks, and chunks (virtual stages) of a rank
    width    operations of one period, all ranks together
Units
    times int64 picoseconds.
"""

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
    OperationTimes,
    Replays,
    at,
    load_latencies,
    total_ps,
    write_busy,
)

PERIODS, HISTORY, MAX_CYCLE, CAPACITY, FIRST_ROW, SIZE = 0, 1, 2, 3, 4, 5
"""Entries of the layout: how often the period repeats; how many periods back it reads; the longest
cycle that is looked for, in periods; how many periods are kept; where the oldest of them begins
among the ends; how many ends there are."""


class JumpProgram(NamedTuple):
    """A periodic order; its columns are those of a line, with places for slots."""

    prologue: Ints32
    """``int32[ops, 5]``: places among the ends, and the place of the end."""
    period: Ints32
    """``int32[width, 5]``: the same, counted from where the period begins; negative places are
    those before it."""
    epilogue: Ints32
    """``int32[ops, 5]``: as the prologue."""
    layout: Ints
    """``int64[6]``: see ``PERIODS`` and following."""
    probe: Ints
    """``int64[2]``: two operations of the period that are looked at first."""
    used: Ints
    """``int64[used]``: durations that operations have, as in a line."""
    uses: Ints
    """``int64[used]``: how many operations have each of them."""
    latency_uses: Ints
    """``int64[1 + 2 * stages]``: how many operations wait for each latency."""
    first: Ints
    """``int64[pp]``: place of the first operation of each rank after the prologue."""
    first_duration: Ints
    """``int64[pp]``: the duration that it has, as an index into the flattened ones."""
    last: Ints
    """``int64[pp]``: place after the epilogue of the last operation of each rank."""
    last_backward: Ints
    """``int64[pp, vpp]``: the same of the last B (W, where it stands alone) of each chunk."""

    def expected_operations(self) -> int:
        """Return about how many operations a replay runs: it settles in two cycles, mostly."""
        periods = min(self.layout[PERIODS], 2 * self.layout[MAX_CYCLE])
        return len(self.prologue) + int(periods) * len(self.period) + len(self.epilogue)


@helper
def _run(
    program: Ints32,
    base: int,
    latency_ps: Ints,
    duration_ps: Ints,
    config: int,
    end_ps: Ints,
) -> None:
    """Run a straight program whose places count from ``base``."""
    for i in range(program.shape[0]):
        arrival = end_ps[at(base + program[i, DEPENDENCY])] + latency_ps[at(program[i, LATENCY])]
        started = max(end_ps[at(base + program[i, PREVIOUS])], arrival)
        duration = duration_ps[at(config), at(program[i, DURATION])]
        end_ps[at(base + program[i, OUTPUT])] = started + duration


@helper
def _copy(end_ps: Ints, source: int, target: int, count: int) -> None:
    """Move ends to lower places; the ranges may overlap."""
    for i in range(count):
        end_ps[target + i] = end_ps[source + i]


@helper
def _velocity(end_ps: Ints, place: int, window: int, cycle: int) -> int:
    """Return what an end advances by in one cycle; those before the window borrow from it."""
    newest = place if place >= window else place + cycle
    return int(end_ps[at(newest)] - end_ps[at(newest - cycle)])


@helper
def _jumps(
    period: Ints32,
    end_ps: Ints,
    latency_ps: Ints,
    stop: int,
    cycle: int,
    most: int,
) -> int:
    """Return how many cycles the window before ``stop`` can be jumped; at most ``most``.

    ``cycle`` is the length of the window in places, not in periods.
    """
    width = period.shape[0]
    window = stop - cycle
    count = most
    for base in range(window, stop, width):
        for i in range(width):
            place = base + period[i, OUTPUT]
            velocity = end_ps[at(place)] - end_ps[at(place - cycle)]
            previous = base + period[i, PREVIOUS]
            dependency = base + period[i, DEPENDENCY]
            gap = end_ps[at(previous)] - end_ps[at(dependency)] - latency_ps[at(period[i, LATENCY])]
            # Selections and no branches: which one is chosen cannot be predicted.
            chosen = _velocity(end_ps, previous if gap >= 0 else dependency, window, cycle)
            other = _velocity(end_ps, dependency if gap >= 0 else previous, window, cycle)
            if other > chosen:
                count = min(count, abs(gap) // (other - chosen))
            if velocity != chosen or count == 0:
                return 0
    return count


@helper
def _advances_evenly(end_ps: Ints, place: int, cycle: int) -> bool:
    last = end_ps[place] - end_ps[place - cycle]
    return bool(last == end_ps[place - cycle] - end_ps[place - 2 * cycle])


@helper
def _find_jump(
    period: Ints32,
    probe: Ints,
    layout: Ints,
    end_ps: Ints,
    latency_ps: Ints,
    filled: int,
    left: int,
) -> tuple[int, int]:
    """Return a cycle, in periods, and how often it can be jumped; 0 where none can be.

    ``filled`` periods are kept, ``left`` are still to be run. Two operations of every period say
    at little cost which cycles are worth looking at.
    """
    width = period.shape[0]
    stop = layout[FIRST_ROW] + filled * width
    longest = min(filled // 2, left, layout[MAX_CYCLE])
    for periods in range(layout[HISTORY], longest + 1):
        cycle = periods * width
        if filled <= 2 * periods or (
            _advances_evenly(end_ps, stop - width + probe[0], cycle)
            and _advances_evenly(end_ps, stop - width + probe[1], cycle)
        ):
            count = _jumps(period, end_ps, latency_ps, stop, cycle, left // periods)
            if count > 0:
                return periods, count
    return 0, 0


@helper
def _run_periods(
    period: Ints32,
    probe: Ints,
    layout: Ints,
    latency_ps: Ints,
    duration_ps: Ints,
    config: int,
    end_ps: Ints,
) -> int:
    """Run or jump all periods; the last ``history`` of them end where the first ones stood.

    Returns how many were run.
    """
    width = period.shape[0]
    first = layout[FIRST_ROW]
    filled = layout[HISTORY]
    left = layout[PERIODS]
    patience = 0
    num_run = 0
    while left > 0:
        if filled == layout[CAPACITY]:
            kept = 2 * layout[MAX_CYCLE]
            _copy(end_ps, first + (filled - kept) * width, first, kept * width)
            filled = kept
        _run(period, first + filled * width, latency_ps, duration_ps, config, end_ps)
        filled += 1
        left -= 1
        num_run += 1
        patience -= 1
        if left == 0 or patience > 0:
            continue
        periods, count = _find_jump(period, probe, layout, end_ps, latency_ps, filled, left)
        if count == 0:
            # Looking costs as much as running: the longer nothing is found, the rarer it gets.
            patience = filled // 4
            continue
        cycle = periods * width
        source = first + filled * width - cycle
        for i in range(cycle):
            end = end_ps[source + i]
            end_ps[first + i] = end + count * (end - end_ps[source + i - cycle])
        filled = periods
        left -= count * periods
        if left < periods:
            patience = left + 1  # What is left is not worth another search.
    kept = layout[HISTORY]
    _copy(end_ps, first + (filled - kept) * width, first, kept * width)
    return num_run


@kernel
def replay_jump(
    program: JumpProgram, times: OperationTimes, periods_run: Ints, replays: Replays
) -> int:
    """Run one order with the durations of each configuration, jumping where that is exact.

    Parameters
    ----------
    program : JumpProgram
        The order.
    times : OperationTimes
        Of n configurations.
    periods_run : int64[n]
        Output: periods that were run and not jumped.
    replays : Replays
        Output.

    Returns
    -------
    int
        ``OK``; ``OUT_OF_RANGE`` where a time is negative or too long; ``UNSURE`` where an end
        might be. Unless ``OK``, outputs mean nothing.
    """
    prologue, period, epilogue = program.prologue, program.period, program.epilogue
    layout, probe, used, uses = program.layout, program.probe, program.used, program.uses
    latency_uses, first_duration = program.latency_uses, program.first_duration
    first, last, last_backward = program.first, program.last, program.last_backward
    duration_ps, p2p_ps, which = times
    rank_start_ps, rank_end_ps, rank_busy_ps, last_backward_end_ps = replays
    num_ranks, num_chunks = last_backward.shape
    latency_ps = np.empty(latency_uses.shape[0], np.int64)
    end_ps = np.zeros(layout[SIZE], np.int64)
    for config in range(which.shape[0]):
        row = which[config]
        if not load_latencies(p2p_ps, row, latency_ps):
            return OUT_OF_RANGE
        total = total_ps(duration_ps, row, used, uses, latency_ps, latency_uses)
        if total < 0.0:
            return OUT_OF_RANGE
        if total > SAFE_PS:
            return UNSURE

        _run(prologue, 0, latency_ps, duration_ps, row, end_ps)
        for rank in range(num_ranks):
            rank_start_ps[config, rank] = (
                end_ps[first[rank]] - duration_ps[row, first_duration[rank]]
            )
        periods_run[config] = _run_periods(
            period, probe, layout, latency_ps, duration_ps, row, end_ps
        )
        _run(epilogue, 0, latency_ps, duration_ps, row, end_ps)

        write_busy(duration_ps, row, used, uses, num_chunks * 9, config, rank_busy_ps)
        for rank in range(num_ranks):
            rank_end_ps[config, rank] = end_ps[last[rank]]
            for c in range(num_chunks):
                last_backward_end_ps[config, rank, c] = end_ps[last_backward[rank, c]]
    return OK
