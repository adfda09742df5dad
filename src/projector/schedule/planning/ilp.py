"""The integer linear program of a zero-bubble schedule, and HiGHS, which solves it.

Variables: the start of each operation; for every two operations of one rank that can run in
either order (:class:`.bounds.Windows` says which cannot), a binary that is 1
where the first goes first; and the objective. With ``first(a, b)`` that binary, or what is known
of it, ``s`` starts and ``d`` durations, the rows are

- ``s_b >= s_a + d_a + latency`` where b waits for a;
- ``s_b >= s_a + d_a - H (1 - first(a, b))`` for every pair that is undecided, and the same the
  other way round, with an H that is at least how far b can lie before the end of a;
- ``first(B b, F) + first(W w, F) >= 1`` for every F and every b that could be the number of B's
  before it, where ``w + 1`` is the least number of W's that then leaves room (computed as memory
  is counted, so that no rounding decides); most are known orders, and the windows have them;
- ``objective >= s + d - since`` for the last operation of each rank.

These are the program of arXiv:2401.10241 (appendix), its memory in other words, and say everything;
but as long as binaries are fractions, the second kind says next to nothing. So three more kinds,
true of every order, tell the relaxation what a rank can do:

- ``s_b >= s_a + d_a + work between`` where a is known to go first, for neighbours of one kind and
  for known orders of two kinds: an operation lies between where it is before b and not before a;
- ``first(a, b)`` grows with the microbatch of b and falls with that of a;
- no three operations go round in a circle.

Units: times of columns and rows are in ``Model.unit_ps``.
"""

import math
from itertools import pairwise, product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from projector.arrays import Floats, Ints
from projector.distribution import install_command
from projector.errors import ScheduleError
from projector.schedule.order import BACKWARD, FORWARD, WEIGHT
from projector.schedule.planning.bounds import Windows
from projector.schedule.planning.heard import heard
from projector.schedule.planning.problem import Problem

if TYPE_CHECKING:
    import highspy

SEED = 2401
"""Of the solver's heuristics, so that two runs which end on their own find the same schedule."""

UNITS = 10_000
"""About how many units an objective has where times share no larger one."""

HORIZON = 2
"""Objectives that any time may be, in H and in the bounds of the columns. One is right on paper,
but then HiGHS is wrong more often, see :func:`run`."""

TOLERANCE = 1e-6
"""Of a bound, as a share of the objective; that of HiGHS for a row is 1e-6 of a unit."""

MAX_TRIANGLES = 20_000
"""Most rows about three operations. They grow with the cube of the microbatches and only save
search."""


class Answer(NamedTuple):
    """What HiGHS says."""

    finished: bool
    """Whether it proved its solution the best."""
    infeasible: bool
    """Whether it proved that no solution exists."""
    failed: bool
    """Whether it gave up."""
    bound_ps: int
    """Of any schedule, rounded so that the solver's tolerance cannot raise it too far."""
    nodes: int
    values: Floats | None
    """Columns of its best solution."""


class Model:
    """The rows and columns of one program.

    ``windows`` is what is known of all schedules that are at least as good as one with
    ``objective_ps``. ``most_ps`` is what the objective may be at most, where only a better one will
    do.
    """

    def __init__(self, windows: Windows, objective_ps: int, most_ps: int | None = None) -> None:
        self.windows = windows
        self.problem = windows.problem
        self.objective_ps = objective_ps
        self.most_ps = HORIZON * objective_ps if most_ps is None else most_ps
        self.grain_ps = grain_ps(self.problem)
        # Objectives of a few thousand compute well, and whole numbers best.
        self.unit_ps = max(self.grain_ps, objective_ps / UNITS)
        shape = windows.start_ps.shape
        self.starts = windows.start_ps.size
        self.objective = self.starts
        """Column of the objective, behind the starts and before the binaries."""
        self.duration = self.problem.duration_ps / self.unit_ps

        # first(a, b) = known + sign * column, of a = (kind, number) and b = (kind, number).
        self._known = np.zeros((*shape, *shape[1:]))
        self._sign = np.sign(np.arange(3) - np.arange(3)[:, np.newaxis]).astype(np.float64)
        self._column = np.full((*shape, *shape[1:]), -1)
        self.binaries = self._number_binaries()

        self._columns: list[Ints] = []
        self._values: list[Floats] = []
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._add_latencies()
        for stage in range(self.problem.pp):
            self._add_work(stage)
            self._add_pairs(stage)
            for kind, other in ((FORWARD, BACKWARD), (FORWARD, WEIGHT), (BACKWARD, WEIGHT)):
                column = self._column[stage, kind, :, other]
                for less, more in ((column[:, :-1], column[:, 1:]), (column[1:], column[:-1])):
                    free = (less >= 0) & (more >= 0)
                    for pair in np.stack([less[free], more[free]], axis=1):
                        self._add(pair, np.array([1.0, -1.0]), upper=0.0)
            self._add_memory(stage)
        self._add_triangles()

    @property
    def entries(self) -> int:
        """Numbers other than zero in the rows."""
        return sum(map(len, self._columns))

    def round_bound(self, units: float) -> int:
        """Return a bound in ps, less what the solver's tolerance can be worth, as a whole grain."""
        if not math.isfinite(units):
            return 0
        safe_ps = units * self.unit_ps - TOLERANCE * self.objective_ps
        return max(0, math.ceil(safe_ps / self.grain_ps) * self.grain_ps)

    def values(self, start_ps: Ints, position: Ints) -> Floats:
        """Return the columns of a known schedule: int64[pp, 3, microbatches] of each kind."""
        values = np.empty(self.objective + 1 + self.binaries)
        values[: self.starts] = start_ps.ravel() / self.unit_ps
        values[self.objective] = self.objective_ps / self.unit_ps
        first = position[:, :, :, np.newaxis, np.newaxis] < position[:, np.newaxis, np.newaxis]
        free = (self._column >= 0) & (self._sign > 0)[:, np.newaxis, :, np.newaxis]
        values[self._column[free]] = first[free]
        return values

    def earlier(self, values: Floats) -> Floats:
        """Return how many operations of its rank go before each; as read from the binaries."""
        first = np.where(
            self._column >= 0,
            self._known + self._sign[:, np.newaxis, :, np.newaxis] * np.rint(values[self._column]),
            self._known,
        )
        count: Floats = first.sum(axis=(1, 2))
        return count

    def pass_to(self, highs: "highspy.Highs") -> None:
        """Hand the program over in one go."""
        import highspy

        windows, unit = self.windows, self.unit_ps
        columns = self.objective + 1 + self.binaries
        cost = np.zeros(columns)
        cost[self.objective] = 1.0
        lower, upper = np.zeros(columns), np.ones(columns)
        lower[: self.starts] = windows.start_ps.ravel() / unit
        latest = HORIZON * float(self.objective_ps) - windows.tail_ps
        latest = latest - self.problem.duration_ps[:, :, np.newaxis]
        upper[: self.starts] = latest.ravel() / unit
        lower[self.objective] = windows.lower_bound_ps() / unit
        upper[self.objective] = self.most_ps / unit
        integrality = np.zeros(columns, np.int32)
        integrality[self.objective + 1 :] = int(highspy.HighsVarType.kInteger)
        lengths = np.array([len(row) for row in self._columns], np.int32)
        highs.passModel(
            columns,
            len(lengths),
            self.entries,
            int(highspy.MatrixFormat.kRowwise),
            int(highspy.ObjSense.kMinimize),
            0.0,
            cost,
            lower,
            upper,
            np.array(self._lower),
            np.array(self._upper),
            np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int32),
            np.concatenate(self._columns).astype(np.int32),
            np.concatenate(self._values),
            integrality,
        )

    def _number_binaries(self) -> int:
        windows = self.windows
        microbatches = self.problem.microbatches
        most = windows.most_before
        number = np.arange(microbatches)
        for kind in range(3):
            self._known[:, kind, :, kind] = number[:, np.newaxis] < number
        count = 0
        for kind, other in ((FORWARD, BACKWARD), (FORWARD, WEIGHT), (BACKWARD, WEIGHT)):
            known = number[:, np.newaxis] < windows.before[:, other, np.newaxis, :, kind]
            free = (number[:, np.newaxis] < most[:, other, np.newaxis, :, kind]) & ~known
            column = np.full(free.shape, -1)
            column[free] = self.objective + 1 + count + np.arange(int(free.sum()))
            count += int(free.sum())
            self._known[:, kind, :, other] = known
            self._column[:, kind, :, other] = column
            self._known[:, other, :, kind] = (~known | free).transpose(0, 2, 1)
            self._column[:, other, :, kind] = column.transpose(0, 2, 1)
        return count

    def _start(self, stage: int, kind: int, number: int) -> int:
        return (stage * 3 + kind) * self.problem.microbatches + number

    def _add(
        self, columns: Ints, values: Floats, lower: float = -math.inf, upper: float = math.inf
    ) -> None:
        self._columns.append(columns)
        self._values.append(values)
        self._lower.append(lower)
        self._upper.append(upper)

    def _before(self, stage: int, kind: int, number: int) -> tuple[Ints, Floats, float]:
        """Return the work of the rank that goes before an operation: columns, values, constant."""
        work = self.duration[stage][:, np.newaxis]
        column = self._column[stage, :, :, kind, number]
        free = column >= 0
        values = np.broadcast_to(work * self._sign[:, kind, np.newaxis], column.shape)
        constant = float((work * self._known[stage, :, :, kind, number]).sum())
        return column[free], values[free], constant

    def _add_latencies(self) -> None:
        problem = self.problem
        to_next, to_previous = (
            column / self.unit_ps for column in (problem.to_next_ps, problem.to_previous_ps)
        )
        for lower, upper in pairwise(range(problem.pp)):
            for number in range(problem.microbatches):
                for kind, source, target, latency in (
                    (FORWARD, lower, upper, to_next[lower]),
                    (BACKWARD, upper, lower, to_previous[upper]),
                ):
                    columns = [self._start(stage, kind, number) for stage in (target, source)]
                    delay = float(self.duration[source, kind] + latency)
                    self._add(np.array(columns), np.array([1.0, -1.0]), delay)

    def _add_work(self, stage: int) -> None:
        """Add what lies between two operations of known order, before the first, after the last."""
        last = self.problem.microbatches - 1
        for kind, number in product(range(3), range(last + 1)):
            columns, values, constant = self._before(stage, kind, number)
            target = self._start(stage, kind, number)
            if number == 0:
                first = self.problem.first_ps[stage] / self.unit_ps
                row = np.append(columns, target), np.append(-values, 1.0)
                self._add(*row, first + constant)
            if number == last:
                # What does not go before it goes after it.
                behind = float(self.duration[stage].sum()) * (last + 1) - constant
                behind -= self.problem.since_ps[stage] / self.unit_ps
                row = (np.append(columns, [self.objective, target]), np.append(values, [1.0, -1.0]))
                self._add(*row, behind)
            for other in range(3):
                count = int(self.windows.before[stage, kind, number, other])
                if not count:
                    continue
                if number and count == self.windows.before[stage, kind, number - 1, other]:
                    continue  # The operation before this one has the same row.
                less_columns, less_values, less = self._before(stage, other, count - 1)
                source = self._start(stage, other, count - 1)
                self._add(
                    np.concatenate([columns, less_columns, [target, source]]),
                    np.concatenate([-values, less_values, [1.0, -1.0]]),
                    constant - less,
                )

    def _add_pairs(self, stage: int) -> None:
        windows = self.windows
        start, tail = (
            column[stage] / self.unit_ps for column in (windows.start_ps, windows.tail_ps)
        )
        horizon = HORIZON * self.objective_ps / self.unit_ps
        for kind, other in ((FORWARD, BACKWARD), (FORWARD, WEIGHT), (BACKWARD, WEIGHT)):
            column = self._column[stage, kind, :, other]
            for i, j in zip(*np.nonzero(column >= 0), strict=True):
                columns = np.array(
                    [self._start(stage, other, j), self._start(stage, kind, i), column[i, j]]
                )
                most = float(horizon - tail[kind, i] - start[other, j])
                self._add(columns, np.array([1.0, -1.0, -most]), self.duration[stage, kind] - most)
                most = float(horizon - tail[other, j] - start[kind, i])
                self._add(columns, np.array([-1.0, 1.0, most]), self.duration[stage, other])

    def _add_memory(self, stage: int) -> None:
        """Let each F wait for one B more, or else for the W's that make up for it."""
        problem, limit = self.problem, self.problem.limit[stage]
        for number in range(problem.microbatches):
            least = int(self.windows.before[stage, FORWARD, number, BACKWARD])
            # The more B's, the fewer W's; of those that need the same W's, the last says it for
            # all.
            clauses = {}
            for backwards in range(least, number + 1):
                weights = backwards
                while weights and (
                    problem.held(stage, number + 1 - backwards, backwards - weights + 1) <= limit
                ):
                    weights -= 1
                clauses[weights] = backwards
            for weights, backwards in clauses.items():
                if not weights:
                    continue
                kinds, numbers = np.array([BACKWARD, WEIGHT]), np.array([backwards, weights - 1])
                index = stage, kinds, numbers, FORWARD, number
                known, column = self._known[index], self._column[index]
                sign, free = self._sign[kinds, FORWARD], column >= 0
                # Backwards in time a binary counts from 1, which `known` has already.
                if np.any((known == 1) & ~free):
                    continue
                self._add(column[free], sign[free], 1.0 - float(known.sum()))

    def _add_triangles(self) -> None:
        """Let W of l go before F of i only where they agree with B of j on it; nothing if too many.

        ``0 <= first(F i, B j) + first(B j, W l) - first(F i, W l) <= 1`` says both that F before B
        before W makes F before W, and the same backwards.
        """
        sides = ((FORWARD, BACKWARD, 2), (BACKWARD, WEIGHT, 0), (FORWARD, WEIGHT, 1))
        weight = np.array([1.0, 1.0, -1.0])
        rows: list[tuple[Ints, Floats, float, float]] = []
        for stage in range(self.problem.pp):
            shape = (self.problem.microbatches,) * 3
            column, known = (
                np.stack(
                    [
                        np.broadcast_to(np.expand_dims(part[stage, kind, :, other], axis), shape)
                        for kind, other, axis in sides
                    ],
                    axis=-1,
                )
                for part in (self._column, self._known)
            )
            free = column >= 0
            constant = known @ weight
            # Binaries have known 0, and move the sum by their weight.
            most = constant + (free & (weight > 0)).sum(axis=-1)
            least = constant - (free & (weight < 0)).sum(axis=-1)
            useful = (most > 1) | (least < 0)
            if len(rows) + int(useful.sum()) > MAX_TRIANGLES:
                return
            for columns, used, given in zip(
                column[useful], free[useful], constant[useful], strict=True
            ):
                rows.append((columns[used], weight[used], -float(given), 1.0 - float(given)))
        for row in rows:
            self._add(*row)


def run(model: Model, values: Floats | None, nodes: int, *, again: bool = False) -> Answer:
    """Solve a model in at most some nodes, from a known solution if there is one.

    One thread and no clock: the same model gives the same answer on every machine.

    Nothing that HiGHS 1.15.1 proves is quite safe: with and without its presolve, with narrow and
    with wide bounds, it has taken an order for the best though a better one satisfies every row,
    in 1 of 1,000 to 1 of 9,000 small problems, and with a part of the seeds for each. So it can be
    asked ``again`` in another way: with its presolve, and with other random numbers.
    """
    try:
        import highspy
    except ModuleNotFoundError as error:
        raise ScheduleError(
            "this schedule is optimised by HiGHS, which is not installed: "
            f"{install_command('ilp')}",
            key="schedule",
        ) from error
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    for name, value in (
        ("output_flag", False),
        # The windows have done most of its work.
        ("presolve", "on" if again else "off"),
        ("threads", 1),
        ("random_seed", SEED + again),
        ("mip_max_nodes", nodes),
        ("mip_rel_gap", 0.0),
        # Objectives differ by a grain or not at all.
        ("mip_abs_gap", max(0.5 * model.grain_ps / model.unit_ps, 1e-6)),
    ):
        highs.setOptionValue(name, value)
    model.pass_to(highs)
    if values is not None:
        known = highspy.HighsSolution()
        known.col_value = values.tolist()
        highs.setSolution(known)
    heard(highs.run)
    info = highs.getInfo()
    status = highs.getModelStatus()
    finished = status == highspy.HighsModelStatus.kOptimal
    infeasible = status == highspy.HighsModelStatus.kInfeasible
    failed = not (finished or infeasible or status == highspy.HighsModelStatus.kSolutionLimit)
    solution = None
    if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
        solution = np.array(highs.getSolution().col_value)
    return Answer(
        finished=finished,
        infeasible=infeasible,
        failed=failed,
        bound_ps=0 if failed or infeasible else model.round_bound(info.mip_dual_bound),
        nodes=max(0, int(info.mip_node_count)),
        values=solution,
    )


def grain_ps(problem: Problem) -> int:
    """Return what all times are multiples of."""
    times = [problem.duration_ps.ravel(), problem.to_next_ps[:-1], problem.to_previous_ps[1:]]
    return int(np.gcd.reduce(np.concatenate(times))) or 1
