"""Replay of one order with 16 configurations side by side.

Every operation of a line is run for all lanes before the next one, so that the processor works on
vectors. Ends live in *places* of 16 lanes that are taken again as soon as nobody reads them any
more: the few that are live stay in the nearest cache, however long the order is. Times are
integers, so that each lane gives what a replay of its own gives, bit for bit.

Shapes and units are those of `projector.kernels.pipeline`; ``places`` are the most ends that are
live at one time.
"""

import math
from typing import NamedTuple

import numpy as np

from projector.arrays import Ints, Ints32
from projector.kernels._jit import helper, kernel
from projector.kernels._vectors import (
    ROW,
    WIDTH,
    anywhere,
    larger,
    largest,
    less,
    load,
    spread,
    store,
)
from projector.kernels.pipeline import (
    DEPENDENCY,
    DURATION,
    LATENCY,
    MAX_DURATION_PS,
    OK,
    OUT_OF_RANGE,
    OUTPUT,
    PREVIOUS,
    SAFE_PS,
    UNSURE,
    OperationTimes,
    Replays,
    at,
)

LANES = ROW
"""Configurations side by side. More of them need more than the nearest cache holds, and wait longer
for the slowest of them; fewer are outweighed by what an operation costs itself."""


class LaneProgram(NamedTuple):
    """A line with places for slots; see :func:`allocate`."""

    program: Ints32
    """``int32[ops, 5]``: with rows of ``used`` in the column of durations."""
    num_places: int
    used: Ints
    """``int64[used]``: durations that operations have, as in a line."""
    uses: Ints
    """``int64[used]``: how many operations have each of them."""
    first: Ints
    """``int64[pp]``: place of the first operation of each rank."""
    first_duration: Ints
    """``int64[pp]``: row of ``used`` that it has."""
    last: Ints
    """``int64[pp]``: place of the last operation of each rank."""
    last_backward: Ints
    """``int64[pp, vpp]``: place of the last B (W, where it stands alone) of each chunk."""


@kernel
def allocate(program: Ints32, place_of: Ints, begin: int) -> int:
    """Give each end of a program a row that is free while the end is live.

    program : int32[ops, 5]. Its columns hold ends where they should hold rows, and are overwritten.
    place_of : int64[ends]. Row of ends that have one already, -1 of the others; overwritten.
    begin : int. First row to give.
    Returns behind the last row.
    """
    given = place_of >= 0
    last_use = np.full(place_of.shape[0], -1, np.int64)
    for i in range(program.shape[0]):
        last_use[program[i, PREVIOUS]] = i
        last_use[program[i, DEPENDENCY]] = i
    free = np.empty(program.shape[0] + 1, np.int64)
    num_free = 0
    rows = begin
    for i in range(program.shape[0]):
        previous, dependency = program[i, PREVIOUS], program[i, DEPENDENCY]
        output = program[i, OUTPUT]
        # The output takes its row before the operands give theirs up: where a loop over lanes
        # writes what it reads, it is not run on vectors.
        if not given[output]:
            if num_free > 0:
                num_free -= 1
                place_of[output] = free[num_free]
            else:
                place_of[output] = rows
                rows += 1
        program[i, PREVIOUS] = place_of[previous]
        program[i, DEPENDENCY] = place_of[dependency]
        program[i, OUTPUT] = place_of[output]
        if last_use[previous] == i and not given[previous]:
            free[num_free] = place_of[previous]
            num_free += 1
        if dependency != previous and last_use[dependency] == i and not given[dependency]:
            free[num_free] = place_of[dependency]
            num_free += 1
        if last_use[output] < 0 and not given[output]:
            free[num_free] = place_of[output]
            num_free += 1
    return rows


@helper
def load_times(
    times: OperationTimes,
    begin: int,
    used: Ints,
    operations: int,
    latency_ps: Ints,
    duration_ps: Ints,
) -> int:
    """Bring the times of a block into lanes; lanes beyond the last configuration repeat it.

    times : OperationTimes. Of n configurations; ``begin`` is the first one of the block.
    used : int64[used]. Durations to load.
    operations : int. How many are run.
    latency_ps, duration_ps : int64[1 + 2 * stages, LANES], int64[used, LANES]. Output. Row 0 of the
        latencies is left alone.
    Returns ``OK``, ``OUT_OF_RANGE`` or ``UNSURE``.
    """
    given_ps, p2p_ps, which = times
    values, sends = given_ps.reshape(given_ps.size), p2p_ps.reshape(p2p_ps.size)
    num_sends = latency_ps.shape[0] - 1 if p2p_ps.shape[0] > 0 else 0
    for lane in range(LANES):
        config = which[min(begin + lane, which.shape[0] - 1)]
        first = config * given_ps.shape[1]
        for i in range(used.shape[0]):
            duration_ps[i, lane] = values[at(first + used[i])]
        first = config * num_sends
        for i in range(num_sends):
            latency_ps[1 + i, lane] = sends[at(first + i)]
    longest_ps = _longest_ps(duration_ps, 0, used.shape[0])
    longest_latency_ps = _longest_ps(latency_ps, 1, num_sends)
    if longest_ps < 0 or longest_latency_ps < 0:
        return OUT_OF_RANGE
    total_ps = float(operations) * (float(longest_ps) + float(longest_latency_ps))
    return OK if total_ps <= SAFE_PS else UNSURE


@helper
def _longest_ps(rows: Ints, begin: int, count: int) -> int:
    """Return the longest time of some rows of lanes, or -1 where one is out of range."""
    limit, longest, outside = spread(MAX_DURATION_PS), spread(0), spread(0)
    for i in range(begin, begin + count):
        for lane in range(0, LANES, WIDTH):
            time_ps = load(rows, i, lane)
            longest = larger(longest, time_ps)
            # The sign of what is negative, and of what is too long.
            outside = outside | time_ps | (limit - time_ps)
    if anywhere(less(outside, spread(0))):
        return -1
    return largest(longest)


@helper
def run_lanes(
    program: Ints32, base: int, silent: bool, latency_ps: Ints, duration_ps: Ints, end_ps: Ints
) -> None:
    """Run a program with rows from ``base`` on; own ranks, if ``silent`` all, have no latency."""
    for i in range(program.shape[0]):
        previous = base + program[i, PREVIOUS]
        dependency = base + program[i, DEPENDENCY]
        latency = program[i, LATENCY]
        duration = program[i, DURATION]
        output = base + program[i, OUTPUT]
        for lane in range(0, LANES, WIDTH):
            start = load(end_ps, previous, lane)
            if dependency != previous:
                arrival = load(end_ps, dependency, lane)
                if not silent:
                    arrival = arrival + load(latency_ps, latency, lane)
                start = larger(start, arrival)
            store(start + load(duration_ps, duration, lane), end_ps, output, lane)


@helper
def _write_lanes(
    program: LaneProgram,
    block: int,
    duration_ps: Ints,
    end_ps: Ints,
    busy_ps: Ints,
    row: Ints,
    replays: Replays,
) -> None:
    first, first_duration = program.first, program.first_duration
    last, last_backward = program.last, program.last_backward
    rank_start_ps, rank_end_ps, rank_busy_ps, last_backward_end_ps = replays
    num_ranks, num_chunks = last_backward.shape
    starts = num_ranks if rank_start_ps.shape[0] > 0 else 0
    works = num_ranks if rank_busy_ps.shape[0] > 0 else 0
    chunks = num_chunks if last_backward_end_ps.shape[0] > 0 else 0
    for lane in range(min(LANES, row.shape[0] - block)):
        out = row[block + lane]
        for rank in range(starts):
            rank_start_ps[out, rank] = (
                end_ps[first[rank], lane] - duration_ps[first_duration[rank], lane]
            )
        for rank in range(works):
            rank_busy_ps[out, rank] = busy_ps[rank, lane]
        for rank in range(num_ranks):
            rank_end_ps[out, rank] = end_ps[last[rank], lane]
            for c in range(chunks):
                last_backward_end_ps[out, rank, c] = end_ps[last_backward[rank, c], lane]


@helper
def _sum_work(program: LaneProgram, duration_ps: Ints, busy_ps: Ints) -> None:
    used, uses = program.used, program.uses
    num_chunks = program.last_backward.shape[1]
    busy_ps[:] = 0
    for i in range(used.shape[0]):
        rank = used[i] // (num_chunks * 9)
        for lane in range(LANES):
            busy_ps[rank, lane] += uses[i] * duration_ps[i, lane]


@kernel(python_us=math.inf)
def replay_lanes(program: LaneProgram, times: OperationTimes, row: Ints, replays: Replays) -> int:
    """Run one order with the durations of each configuration, 16 at a time.

    program : LaneProgram. The order.
    times : OperationTimes. Of n configurations.
    row : int64[n]. Where each of them is written.
    replays : Replays. Output. Starts, work and last backwards are left out where there are no rows
        for them.
    Returns ``OK``; ``OUT_OF_RANGE`` where a time is negative or too long; ``UNSURE`` where an end
        might be. Unless ``OK``, outputs mean nothing.
    """
    columns, used, which = program.program, program.used, times.which
    num_ranks, num_chunks = program.last_backward.shape
    stages = num_ranks * num_chunks
    silent = times.p2p_ps.shape[0] == 0
    latency_ps = np.zeros((1 + 2 * stages, LANES), np.int64)
    duration_ps = np.empty((used.shape[0], LANES), np.int64)
    end_ps = np.zeros((program.num_places, LANES), np.int64)
    busy_ps = np.empty((num_ranks, LANES), np.int64)

    for block in range(0, which.shape[0], LANES):
        status = load_times(times, block, used, len(columns), latency_ps, duration_ps)
        if status != OK:
            return status
        run_lanes(columns, 0, silent, latency_ps, duration_ps, end_ps)
        if replays.rank_busy_ps.shape[0] > 0:
            _sum_work(program, duration_ps, busy_ps)
        _write_lanes(program, block, duration_ps, end_ps, busy_ps, row, replays)
    return OK
