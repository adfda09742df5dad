"""Orders compiled for replay. None of this depends on time, and all of it is kept."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Ints, Ints32
from projector.errors import ScheduleError
from projector.kernels import pipeline as kernels
from projector.kernels import pipeline_lanes
from projector.kernels.pipeline import Line, OperationTimes, Replays
from projector.kernels.pipeline_jump import JumpProgram
from projector.kernels.pipeline_lanes import LaneProgram
from projector.schedule.legality import check_complete
from projector.schedule.order import FORWARD, Order
from projector.schedule.replay.order_cache import kept_by_operations, of_order

MIN_PERIODS = 10
"""Fewer repetitions than this are not worth the search for a steady state."""

MAX_HISTORY = 4
"""Periods that an operation may reach back; orders that read farther are not jumped."""

MAX_CANDIDATES = 16
"""Lengths of a period that are tried."""

MIN_CYCLES = 4
"""Cycles of up to this many periods are looked for, whatever the number of ranks."""


class Operations(NamedTuple):
    """What the time of each operation depends on, in the rows of the order, ``int64[ops]``."""

    rank: Ints
    duration: Ints
    latency: Ints
    """Index of the latency; 0 where an operation waits for its own rank alone."""
    waits_for: Ints
    """Row of the operation on another rank that it waits for; its own row if it waits for none.

    What precedes it on the same rank has ended by the end of the previous operation.
    """


class Period(NamedTuple):
    """A proof on the arrays that an order repeats itself.

    On each rank the first ``length`` operations from ``cut`` on stand there ``repeats`` times;
    those before the cut wait for none behind it.
    """

    length: int
    cut: Ints
    """``int64[pp]``: positions within the rank."""
    repeats: int
    history: int
    """Periods that operations of a period, or after the last one, reach back at most."""

    def microbatches(self, order: Order) -> int:
        """Return the microbatches that pass through one period."""
        return order.microbatches * self.length * order.pp // len(order.kind)


@kept_by_operations(of_order)
def compile_line(order: Order) -> Line:
    """Compile an order for replay, or raise :class:`ScheduleError` where it cannot run."""
    check_complete(order)
    num_ops = len(order.kind)
    line = np.empty((num_ops, 4), np.int32)
    slot = np.empty(num_ops, np.int64)
    status = kernels.compile_line(
        order.rank_offset,
        order.kind,
        order.chunk,
        order.microbatch,
        order.stage_of,
        order.num_stages,
        order.microbatches,
        line,
        slot,
    )
    if status != kernels.OK:
        msg = "this order is not a schedule: a rank waits for ever"
        raise ScheduleError(msg, key="schedule")
    # Rows of a rank are in its own order, so the last assignment is the last operation.
    last_backward = np.empty((order.pp, order.vpp), np.int64)
    (backward,) = np.nonzero(order.kind != FORWARD)
    last_backward[order.rank[backward], order.chunk[backward]] = slot[backward]
    used, uses = np.unique(line[:, kernels.DURATION].astype(np.int64), return_counts=True)
    compiled = Line(
        line=line,
        slot=slot,
        used=used,
        uses=uses,
        latency_uses=np.bincount(line[:, kernels.LATENCY], minlength=1 + 2 * order.stage_of.size),
        first_slot=slot[order.rank_offset[:-1]],
        last_slot=slot[order.rank_offset[1:] - 1],
        last_backward_slot=last_backward,
    )
    freeze(compiled)
    return compiled


@kept_by_operations(of_order)
def compile_lanes(order: Order) -> LaneProgram:
    """Compile an order for the replay of many configurations side by side."""
    line = compile_line(order)
    num_ops = len(line.line)
    program = np.empty((num_ops, 5), np.int32)
    lane_of_slot = np.empty(num_ops + 1, np.int64)
    kept_slots = np.concatenate([line.first_slot, line.last_slot, line.last_backward_slot.ravel()])
    num_places = pipeline_lanes.compile_lanes(line.line, kept_slots, program, lane_of_slot)
    # Of all durations only those that some operation has are brought into lanes.
    program[:, kernels.DURATION] = np.searchsorted(line.used, program[:, kernels.DURATION])
    first_duration = line.line[line.first_slot - 1, kernels.DURATION]
    compiled = LaneProgram(
        program=program,
        num_places=num_places,
        used=line.used,
        uses=line.uses,
        latency_uses=line.latency_uses,
        first=lane_of_slot[line.first_slot],
        first_duration=np.searchsorted(line.used, first_duration),
        last=lane_of_slot[line.last_slot],
        last_backward=lane_of_slot[line.last_backward_slot],
    )
    freeze(compiled)
    return compiled


@kept_by_operations(of_order)
def compile_jump(order: Order) -> JumpProgram | None:
    """Compile an order for jumps over its steady state; None where it is not seen to have one."""
    line = compile_line(order)
    operations = _operations(order, line)
    period = _find_period(order, line, operations)
    if period is None:
        return None
    compiled = _split(order, line, operations, period)
    freeze(compiled)
    return compiled


def _operations(order: Order, line: Line) -> Operations:
    row = np.arange(len(line.slot))
    row_of = np.zeros(len(row) + 1, np.int64)
    row_of[line.slot] = row
    columns = line.line[line.slot - 1].astype(np.int64)
    latency = columns[:, kernels.LATENCY]
    waits_for = np.where(latency > 0, row_of[columns[:, kernels.DEPENDENCY]], row)
    return Operations(order.rank, columns[:, kernels.DURATION], latency, waits_for)


def _find_period(order: Order, line: Line, operations: Operations) -> Period | None:
    """Look for the shortest period that repeats often enough.

    An operation repeats after ``length`` where duration, latency and the distance to what it
    waits for are the same: the latency names the stage that it waits for, hence the rank.
    """
    per_microbatch = (3 if order.splits_backward else 2) * order.vpp
    sizes = np.diff(order.rank_offset)
    if order.microbatches <= MIN_PERIODS or np.any(sizes != per_microbatch * order.microbatches):
        return None
    distance = operations.waits_for - np.arange(len(line.slot))
    columns = np.stack([operations.duration, operations.latency, distance])
    middle = int(sizes[0]) // 2
    length = per_microbatch * np.arange(1, order.microbatches // MIN_PERIODS + 1)
    likely = np.all(columns[:, middle - length] == columns[:, [middle]], axis=0)
    tried = 0
    for candidate in length[likely].tolist():
        if not _repeats_at(columns, order.rank_offset[:-1] + middle, candidate):
            continue
        period = _prove_period(order, line, operations, columns, candidate)
        tried += 1
        if period is not None or tried == MAX_CANDIDATES:
            return period
    return None


def _repeats_at(columns: Ints, middle: Ints, length: int) -> bool:
    """Whether the operations before the middle of each rank are repeated behind it."""
    return all(
        np.array_equal(columns[:, row - length : row], columns[:, row : row + length])
        for row in middle
    )


def _prove_period(
    order: Order, line: Line, operations: Operations, columns: Ints, length: int
) -> Period | None:
    """Find where a period holds on every rank, and a cut through all ranks at its beginning."""
    size = int(order.rank_offset[1])
    low, high = np.empty(order.pp, np.int64), np.empty(order.pp, np.int64)
    for rank, begin in enumerate(order.rank_offset[:-1]):
        of_rank = columns[:, begin : begin + size]
        (broken,) = np.nonzero(np.any(of_rank[:, length:] != of_rank[:, :-length], axis=0))
        edges = np.concatenate([[-1], broken, [size - length]])
        after = np.searchsorted(edges, size // 2 - length)
        low[rank], high[rank] = edges[after - 1] + 1, edges[after] + length
    for history in range(1, MAX_HISTORY + 1):
        # One period of margin before the cut, so that what holds there holds behind it too; and
        # the ends of as many periods as are read must exist.
        cut = _cut(order, line, np.maximum(low + length, history * length))
        repeats = int(np.min((high - cut) // length))
        if repeats < MIN_PERIODS:
            return None
        period = Period(length, cut, repeats, history)
        if _reach(order, operations, period) <= history:
            return period
    return None


def _cut(order: Order, line: Line, least: Ints) -> Ints:
    """Cut all ranks at one time, so that nothing before the cut waits for what is behind it.

    The times are those of operations of length 1; at least ``least`` operations of each rank
    stand before the cut.
    """
    times = OperationTimes(
        np.ones((1, order.stage_of.size * 9), np.int64),
        np.zeros((1, 2, order.stage_of.size), np.int64),
        np.zeros(1, np.int64),
    )
    end = np.empty(len(line.slot) + 1, np.int64)
    # What follows from the ends alone is not looked at.
    kernels.replay_batch(line, times, end, empty_replays(order, 1))
    end_of_rank = end[line.slot].reshape(order.pp, -1)
    latest = end_of_rank[np.arange(order.pp), least - 1].max()
    cut: Ints = np.count_nonzero(end_of_rank <= latest, axis=1)
    return cut


def _period_of(order: Order, period: Period) -> Ints:
    """Return the number of the period that each operation is in: < 0 before the cut."""
    position = np.arange(len(order.kind)) - order.rank_offset[order.rank]
    number: Ints = (position - period.cut[order.rank]) // period.length
    return number


def _reach(order: Order, operations: Operations, period: Period) -> int:
    """Return how many periods back the periodic program reads, or more than any program may."""
    number = _period_of(order, period)
    source = number[operations.waits_for]
    repeated = number == 0
    after = number >= period.repeats
    if np.any(source[number < 0] >= 0) or np.any(source[repeated] > 0):
        return MAX_HISTORY + 1
    # The last operations are read when everything has been run.
    (backward,) = np.nonzero(order.kind != FORWARD)
    last = np.zeros((order.pp, order.vpp), np.int64)
    last[order.rank[backward], order.chunk[backward]] = number[backward]
    oldest = period.repeats - min(int(last.min()), int(source[after].min(initial=period.repeats)))
    return max(1, oldest, -int(source[repeated].min()))


def _split(order: Order, line: Line, operations: Operations, period: Period) -> JumpProgram:
    """Lay out the ends of a periodic order, and write its three programs.

    The ends are: the start of the step; what precedes the periods that are read; those
    periods, ``history`` of them; room for further ones; the epilogue.
    """
    number = _period_of(order, period)
    history, repeats = period.history, period.repeats
    width = order.pp * period.length
    before = np.flatnonzero(number < -history)
    after = np.flatnonzero(number >= repeats)
    # With equal stages a wave runs through all ranks. Longer cycles are rare; they are run.
    max_cycle = max(MIN_CYCLES, -(-order.pp // period.microbatches(order)), history)
    capacity = history + min(repeats, 4 * max_cycle)
    first_row = 1 + len(before)
    base = first_row + history * width
    epilogue_at = first_row + capacity * width

    # The position of an operation in its period: the same in each, in the order of the line.
    repeated = np.flatnonzero(number == 0)
    within = np.empty((order.pp, period.length), np.int64)
    by_line = repeated[np.argsort(line.slot[repeated])]
    position = np.arange(len(number)) - order.rank_offset[order.rank]
    step = (position - period.cut[order.rank]) % period.length
    within[order.rank[by_line], step[by_line]] = np.arange(width)
    in_period = within[order.rank, step]

    def slots_at(frame: int) -> Ints:
        """Slot of each operation when the period ``frame`` is the next one at ``base``."""
        slots: Ints = base + (number - frame) * width + in_period
        slots[before] = 1 + np.arange(len(before))
        slots[after] = epilogue_at + np.arange(len(after))
        return slots

    at_start, at_end = slots_at(0), slots_at(repeats)
    slot_of_line = np.empty(len(number) + 1, np.int64)
    slot_of_line[line.slot] = at_end
    first = order.rank_offset[:-1]
    program = partial(_program, order, line, operations)
    return JumpProgram(
        prologue=program(np.flatnonzero(number < 0), at_start),
        period=program(repeated, at_start - base),
        epilogue=program(after, at_end),
        layout=np.array(
            [repeats, history, max_cycle, capacity, first_row, epilogue_at + len(after)]
        ),
        probe=within[[0, -1], -1],
        used=line.used,
        uses=line.uses,
        latency_uses=line.latency_uses,
        first=at_start[first],
        first_duration=operations.duration[first],
        last=slot_of_line[line.last_slot],
        last_backward=slot_of_line[line.last_backward_slot],
    )


def _program(order: Order, line: Line, operations: Operations, rows: Ints, slots: Ints) -> Ints32:
    """Compile some operations, given the slot of every operation."""
    rows = rows[np.argsort(line.slot[rows])]
    first = np.isin(rows, order.rank_offset[:-1])
    previous = np.where(first, 0, slots[rows - 1])
    waits_for = operations.waits_for[rows]
    columns = np.empty((len(rows), 5), np.int32)
    columns[:, kernels.PREVIOUS] = previous
    columns[:, kernels.DEPENDENCY] = np.where(waits_for == rows, previous, slots[waits_for])
    columns[:, kernels.LATENCY] = operations.latency[rows]
    columns[:, kernels.DURATION] = operations.duration[rows]
    columns[:, kernels.OUTPUT] = slots[rows]
    return columns


def empty_replays(order: Order, n: int) -> Replays:
    """Make room for the replays of n configurations."""
    ranks = (n, order.pp)
    return Replays(
        np.empty(ranks, np.int64),
        np.empty(ranks, np.int64),
        np.empty(ranks, np.int64),
        np.empty((n, order.pp, order.vpp), np.int64),
    )


def freeze(arrays: tuple[Any, ...]) -> None:
    """Guard what a cache hands to everyone."""
    for array in arrays:
        if isinstance(array, np.ndarray):
            array.setflags(write=False)
