"""Orders compiled for replay. None of this depends on time, and all of it is kept."""

from typing import Any, NamedTuple, TypeVar

import numpy as np

from projector.arrays import Ints, Ints32
from projector.errors import ScheduleError
from projector.kernels import pipeline as kernels
from projector.kernels import pipeline_lanes
from projector.kernels.pipeline import Ends, Line, Replays
from projector.kernels.pipeline_forks import MOST_RUNS, Forks
from projector.kernels.pipeline_lanes import LaneProgram
from projector.kernels.pipeline_periods import PeriodicProgram
from projector.schedule.order import FORWARD, Order, Series, check_complete, kept_by_operations


@kept_by_operations()
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
        raise ScheduleError("this order is not a schedule: a rank waits for ever", key="schedule")
    uses = np.bincount(line[:, kernels.DURATION])
    used = np.flatnonzero(uses)
    compiled = Line(
        line=line,
        slot=slot,
        used=used,
        uses=uses[used],
        latency_uses=np.bincount(line[:, kernels.LATENCY], minlength=1 + 2 * order.stage_of.size),
        first_slot=slot[order.rank_offset[:-1]],
        last_slot=slot[order.rank_offset[1:] - 1],
        last_backward_slot=slot[_last_backwards(order)],
    )
    freeze(compiled)
    return compiled


@kept_by_operations()
def compile_lanes(order: Order) -> LaneProgram:
    """Compile an order for the replay of many configurations side by side."""
    line = compile_line(order)
    program = line_program(line, line.line, np.arange(1, len(line.line) + 1))
    kept = np.unique(
        np.concatenate([line.first_slot, line.last_slot, line.last_backward_slot.ravel()])
    )
    place = np.full(len(line.line) + 1, -1)
    place[0] = 0
    place[kept] = 1 + np.arange(len(kept))
    num_places = pipeline_lanes.allocate(program, place, 1 + len(kept))
    first_duration = line.line[line.first_slot - 1, kernels.DURATION]
    compiled = LaneProgram(
        program=program,
        num_places=num_places,
        used=line.used,
        uses=line.uses,
        first=place[line.first_slot],
        first_duration=np.searchsorted(line.used, first_duration),
        last=place[line.last_slot],
        last_backward=place[line.last_backward_slot],
    )
    freeze(compiled)
    return compiled


def line_program(line: Line, columns: Ints32, output: Ints) -> Ints32:
    """Return operations of a line with the slots of their ends, dependencies on a rank left out."""
    program = np.empty((len(columns), 5), np.int32)
    program[:, :4] = columns
    alone = columns[:, kernels.LATENCY] == 0
    program[alone, kernels.DEPENDENCY] = columns[alone, kernels.PREVIOUS]
    # Of all durations only those that some operation has are brought into lanes.
    program[:, kernels.DURATION] = np.searchsorted(line.used, columns[:, kernels.DURATION])
    program[:, kernels.OUTPUT] = output
    return program


def empty_replays(pp: int, vpp: int, n: int) -> Replays:
    """Make room for the replays of n configurations."""
    start_ps, end_ps, busy_ps = np.empty((3, n, pp), np.int64)
    return Replays(start_ps, end_ps, busy_ps, np.empty((n, pp, vpp), np.int64))


def empty_ends(pp: int, vpp: int, n: int) -> Ends:
    """Make room for the ends of n replays, each with a row of its own."""
    start_ps, end_ps = np.empty((2, n, pp), np.int64)
    last_ps = np.empty((n, pp, vpp), np.int64)
    return Ends(np.arange(n), np.zeros(n, np.int64), start_ps, end_ps, last_ps)


def freeze(arrays: tuple[Any, ...]) -> None:
    """Guard what a cache hands to everyone."""
    for array in arrays:
        if isinstance(array, np.ndarray):
            array.setflags(write=False)


MAX_HISTORY = 4
"""Periods that an operation may reach back; orders that read farther do not fork."""

MAX_CANDIDATES = 16
"""Lengths of a period that are tried."""

MIN_CYCLES = 4
"""Cycles of up to this many periods are looked for, whatever the number of ranks."""

SLOPED_SOON, SLOPED_LATE = 4, 48
"""Periods that are run before any with slopes: soon, where a wave passes all ranks within two, as
ends then settle at once or drift for long; late elsewhere, as most settle by then."""

MOST_BYTES = 1 << 19
"""What the frames of the longest cycle may take, so that all of them stay in the second cache."""

Program = TypeVar("Program", LaneProgram, PeriodicProgram)
_NEXT = 1 << 24
"""Added to the rows of the next frame, as long as the size of a frame is unknown."""


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

    def microbatches(self, order: Order) -> int:
        """Return the microbatches that pass through one period."""
        return order.microbatches * self.length * order.pp // len(order.kind)


class ForkingOrder(NamedTuple):
    """What orders have in common that differ in the number of periods alone."""

    program: PeriodicProgram
    periods: int
    """Of the order that was compiled."""
    least: int
    """Microbatches of the order that has no period."""
    each: int
    """Microbatches that pass through one period."""

    def expected_operations(self) -> int:
        """Return about how many operations a replay runs: it settles in few periods, mostly."""
        program = self.program
        return (
            len(program.prologue)
            + min(self.periods, Series.MIN_PERIODS) * len(program.period)
            + len(program.epilogue)
        )


@kept_by_operations()
def compile_forks(order: Order) -> ForkingOrder | None:
    """Compile an order that repeats itself; None where it is not seen to do so."""
    line = compile_line(order)
    operations = _operations(order, line)
    period = _find_period(order, line, operations)
    if period is None:
        return None
    program = _Split(order, line, operations, period).program()
    freeze(program)
    each = period.microbatches(order)
    return ForkingOrder(program, period.repeats, order.microbatches - period.repeats * each, each)


def with_columns(program: Program, column: Ints | None) -> Program:
    """Return a program for times with such columns, each in lanes once; ``uses`` do not follow."""
    if column is None:
        return program
    used, row = np.unique(column.ravel()[program.used], return_inverse=True)
    names = {"program", "prologue", "period", "epilogue"}.intersection(program._fields)
    parts = {name: getattr(program, name).copy() for name in names}
    for part in parts.values():
        part[:, kernels.DURATION] = row[part[:, kernels.DURATION]]
    first = row[program.first_duration]
    mapped = program._replace(used=used, first_duration=first, **parts)
    # As all programs are: the kernels have one form.
    freeze(mapped)
    return mapped


def fork_runs(which: Ints, periods: Ints, rows: Ints) -> tuple[Forks, Ints]:
    """Gather runs with the same times; return them, and the row of times of each configuration.

    ``which`` is the times of each run (those with the same ones follow one another), ``periods``
    the periods, ``rows`` where it is written: ``int64[n]``.
    """
    begin = np.flatnonzero(np.diff(which, prepend=-1))
    sizes = np.diff(begin, append=len(which))
    if np.any(sizes > MOST_RUNS):
        # One with many runs is several.
        number = np.arange(len(which)) - np.repeat(begin, sizes)
        begin = np.flatnonzero(number % MOST_RUNS == 0)
    return Forks(np.append(begin, len(which)), periods, rows.copy()), which.take(begin)


def _operations(order: Order, line: Line) -> Operations:
    row = np.arange(len(line.slot))
    columns = line.line[line.slot - 1].astype(np.int64)
    latency = columns[:, kernels.LATENCY]
    row_of_slot = np.zeros(len(line.slot) + 1, np.int64)
    row_of_slot[line.slot] = row
    waits_for = np.where(latency > 0, row_of_slot[columns[:, kernels.DEPENDENCY]], row)
    return Operations(order.rank, columns[:, kernels.DURATION], latency, waits_for)


def _find_period(order: Order, line: Line, operations: Operations) -> Period | None:
    """Look for the shortest period that repeats often enough.

    An operation repeats after ``length`` where duration, latency and the distance to what it
    waits for are the same: the latency names the stage that it waits for, hence the rank.
    """
    each = (3 if order.splits_backward else 2) * order.vpp
    sizes = np.diff(order.rank_offset)
    if order.microbatches <= Series.MIN_PERIODS or np.any(sizes != each * order.microbatches):
        return None
    distance = operations.waits_for - np.arange(len(line.slot))
    columns = np.stack([operations.duration, operations.latency, distance])
    middle = int(sizes[0]) // 2
    length = each * np.arange(1, order.microbatches // Series.MIN_PERIODS + 1)
    likely = np.all(columns[:, middle - length] == columns[:, [middle]], axis=0)
    tried = 0
    for candidate in length[likely].tolist():
        if not all(
            np.array_equal(columns[:, row - candidate : row], columns[:, row : row + candidate])
            for row in (order.rank_offset[:-1] + middle)
        ):
            continue
        period = _prove_period(order, operations, columns, candidate)
        tried += 1
        if period is not None or tried == MAX_CANDIDATES:
            return period
    return None


def _prove_period(
    order: Order, operations: Operations, columns: Ints, length: int
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
    waiting, other, needed, possible = _between_ranks(order, operations)
    for history in range(1, MAX_HISTORY + 1):
        # The ends of as many periods as are read must exist.
        least = np.maximum(low, history * length)
        first = _cut(np.maximum, least, waiting, other, needed)
        repeats = int(np.min((high - first) // length))
        if repeats < Series.MIN_PERIODS:
            return None
        # An epilogue is run for each run of a configuration, a prologue once for all of them.
        most = high - repeats * length
        period = Period(length, _cut(np.minimum, most, other, waiting, possible), repeats)
        if _reach(order, operations, period) <= history:
            return period
    return None


class _Between(NamedTuple):
    """What ranks wait for of one another, for each pair of ranks of which one waits."""

    waiting: Ints
    """``int64[pairs]``: the rank that waits."""
    other: Ints
    """``int64[pairs]``: the rank that it waits for."""
    needed: Ints
    """``int64[pairs, operations of a rank + 1]``: operations of the other rank without which so
    many of this rank cannot end."""
    possible: Ints
    """The same shape: operations of this rank that can end with so many of the other rank."""


def _between_ranks(order: Order, operations: Operations) -> _Between:
    size = int(order.rank_offset[1])
    across = np.flatnonzero(operations.latency)
    rank, position = np.divmod(across, size)
    other, awaited = np.divmod(operations.waits_for[across], size)
    pairs, pair = np.unique(rank * order.pp + other, return_inverse=True)
    needed = np.zeros((len(pairs), size + 1), np.int64)
    needed[pair, position + 1] = awaited + 1
    possible = np.full_like(needed, size)
    possible[pair, awaited] = position
    return _Between(
        *np.divmod(pairs, order.pp),
        np.maximum.accumulate(needed, axis=1),
        np.minimum.accumulate(possible[:, ::-1], axis=1)[:, ::-1],
    )


def _cut(limit: np.ufunc, cut: Ints, of: Ints, other: Ints, bounds: Ints) -> Ints:
    """Cut all ranks behind some operations or more, or fewer, of which none waits for what follows.

    The cut of the rank ``of`` each pair gives its ``other`` one a bound, of the least operations
    for ``np.maximum``, of the most for ``np.minimum``.
    """
    pairs = np.arange(len(of))
    while True:
        moved = cut.copy()
        limit.at(moved, other, bounds[pairs, cut[of]])
        if np.array_equal(moved, cut):
            return cut
        cut = moved


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
    last = number[_last_backwards(order)]
    oldest = period.repeats - min(int(last.min()), int(source[after].min(initial=period.repeats)))
    return max(1, oldest, -int(source[repeated].min()))


def _last_backwards(order: Order) -> Ints:
    """Return the row of the last B (W, where it stands alone) of each chunk, int64[pp, vpp]."""
    # Rows of a rank are in its own order, so the last assignment is the last operation.
    (backward,) = np.nonzero(order.kind != FORWARD)
    last = np.empty((order.pp, order.vpp), np.int64)
    last[order.rank[backward], order.chunk[backward]] = backward
    return last


class _Split:
    """The rows of a periodic order, laid out for its three programs.

    A *state* holds the ends that a period or the epilogue reads of earlier periods: of each
    operation of a period those of the last ``ages`` periods, the newest first.
    """

    def __init__(self, order: Order, line: Line, operations: Operations, period: Period) -> None:
        self.order, self.line, self.operations, self.period = order, line, operations, period
        self.number = _period_of(order, period)
        position = np.arange(len(self.number)) - order.rank_offset[order.rank]
        step = (position - period.cut[order.rank]) % period.length
        self.within = order.rank * period.length + step
        self.before = np.flatnonzero(self.number < 0)
        self.repeated = np.flatnonzero(self.number == 0)
        self.after = np.flatnonzero(self.number >= period.repeats)
        self.last = order.rank_offset[1:] - 1
        self.last_backward = _last_backwards(order)
        self.ages = self._ages()
        self.first_of = np.concatenate([[0], np.cumsum(self.ages)])
        self.live = int(self.first_of[-1])

    def _ages(self) -> Ints:
        """Return from how many periods back each operation of a period is read."""
        ages = np.zeros(self.order.pp * self.period.length, np.int64)
        ends = np.concatenate([self.last, self.last_backward.ravel()])
        begins = self.order.rank_offset[:-1]
        for rows, period in ((self.repeated, 0), (self.after, self.period.repeats)):
            sources = [rows[~np.isin(rows, begins)] - 1, self.operations.waits_for[rows]]
            read = np.concatenate([*sources, ends] if period else sources)
            np.maximum.at(ages, self.within[read], period - self.number[read])
        return ages

    def _in_state(self, rows: Ints, period: int) -> tuple[Ints, Ints]:
        """Return those of some rows that the state before a period holds, and where."""
        age = period - self.number[rows]
        held = rows[(age > 0) & (age <= self.ages[self.within[rows]])]
        return held, self.first_of[self.within[held]] + period - self.number[held] - 1

    def _columns(self, rows: Ints, end_of: Ints, start: int) -> Ints32:
        """Return operations in topological order; the start of the step is an end as well."""
        line = self.line
        rows = rows[np.argsort(line.slot[rows])]
        columns = line.line[line.slot[rows] - 1]
        first = np.isin(rows, self.order.rank_offset[:-1])
        columns[:, kernels.PREVIOUS] = np.where(first, start, end_of[rows - 1])
        columns[:, kernels.DEPENDENCY] = end_of[self.operations.waits_for[rows]]
        return line_program(line, columns, end_of[rows])

    def _prologue(self) -> tuple[Ints32, int, Ints]:
        """Return the program, its rows, and the row of the first operation of each rank."""
        start, end_of = 0, 1 + np.arange(len(self.number))
        place = np.full(len(end_of) + 1, -1)
        place[start] = self.live
        held, where = self._in_state(self.before, 0)
        place[end_of[held]] = where
        first = end_of[self.order.rank_offset[:-1]]
        free = first[place[first] < 0]
        place[free] = self.live + 1 + np.arange(len(free))
        program = self._columns(self.before, end_of, start)
        rows = pipeline_lanes.allocate(program, place, self.live + 1 + len(free))
        return program, rows, place[first]

    def _behind_state(self, rows: Ints, period: int) -> tuple[Ints, Ints]:
        """Give each end that some operations read or write a number.

        Returns the number of the end of each row, ``int64[ops]``, and the place of each end,
        ``int64[ends]``, -1 where it has none yet.
        """
        end_of = np.zeros(len(self.number), np.int64)
        held, where = self._in_state(np.arange(len(self.number)), period)
        end_of[held] = where
        end_of[rows] = self.live + np.arange(len(rows))
        place = np.full(self.live + len(rows), -1)
        place[: self.live] = np.arange(self.live)
        return end_of, place

    def _period(self) -> tuple[Ints32, Ints32, int]:
        """Return the program of a period, what becomes older in it, and the rows of a frame."""
        end_of, place = self._behind_state(self.repeated, 0)
        held = self.repeated[self.ages[self.within[self.repeated]] > 0]
        place[end_of[held]] = _NEXT + self.first_of[self.within[held]]
        program = self._columns(self.repeated, end_of, 0)
        frame = pipeline_lanes.allocate(program, place, self.live)
        program[program >= _NEXT] += frame - _NEXT
        (older,) = np.nonzero(~np.isin(np.arange(self.live), self.first_of))
        moved = np.stack([older - 1, frame + older], axis=1).astype(np.int32)
        return program, moved, frame

    def _epilogue(self) -> tuple[Ints32, int, Ints]:
        """Return the program, its rows, and the place of each end."""
        end_of, place = self._behind_state(self.after, self.period.repeats)
        wanted = np.unique(np.append(end_of[self.last], end_of[self.last_backward]))
        wanted = wanted[wanted >= self.live]
        place[wanted] = self.live + np.arange(len(wanted))
        program = self._columns(self.after, end_of, 0)
        rows = pipeline_lanes.allocate(program, place, self.live + len(wanted))
        return program, rows, place[end_of]

    def program(self) -> PeriodicProgram:
        """Write the three programs."""
        order, line, operations = self.order, self.line, self.operations
        prologue, prologue_rows, first = self._prologue()
        period, moved, frame = self._period()
        epilogue, tail_rows, place_of = self._epilogue()
        # With equal stages a wave runs through all ranks. Longer cycles are rare; they are run.
        wave = -(-order.pp // self.period.microbatches(order))
        fitting = MOST_BYTES // (frame * pipeline_lanes.LANES * 8)
        max_cycle = max(1, min(max(MIN_CYCLES, wave), fitting))
        frames = 2 * max_cycle + 1
        sloped_after = SLOPED_SOON if wave <= 2 else SLOPED_LATE
        rows = max(prologue_rows, frames * frame + self.live)
        duration = np.searchsorted(line.used, operations.duration)
        return PeriodicProgram(
            prologue=prologue,
            period=period,
            moved=moved,
            epilogue=epilogue,
            sizes=np.array([self.live, frame, frames, max_cycle, rows, tail_rows, sloped_after]),
            used=line.used,
            first=first,
            first_duration=duration[order.rank_offset[:-1]],
            last=place_of[self.last],
            last_backward=place_of[self.last_backward],
        )
