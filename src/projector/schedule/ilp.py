"""The integer linear program of a zero-bubble schedule, and HiGHS, which solves it.

Variables: the start of each operation; for every two operations of one rank that can run in
either order (:class:`~projector.schedule.bounds.Windows` says which cannot), a binary that is 1
where the first goes first; and the objective. With ``first(a, b)`` that binary, or what is known
of it, ``s`` starts and ``d`` durations, the rows are

- ``s_b >= s_a + d_a + latency`` where b waits for a (arXiv:2401.10241, appendix: its (2) and (3));
- ``s_b >= s_a + d_a - H (1 - first(a, b))`` for every pair that is undecided, and the same the
  other way round (its (1) and (4); H is no smaller than how far b can lie before the end of a);
- ``(1 - w_share) * B's first + w_share * W's first >= number + 1 - limit / activation`` for every
  F, which is its (5): what is held is ``1`` for every F, less ``1 - w_share`` for every B and
  ``w_share`` for every W before. With a ``w_share`` of 0 or 1 it is one known order for each F,
  and the windows have it already;
- ``objective >= s + d - since`` for the last operation of each rank.

These say everything; but as long as binaries are fractions, the second kind says next to nothing.
So three more kinds, true of every order, tell the relaxation what a rank can do:

- ``s_b >= s_a + d_a + work between`` where a is known to go first, for neighbours of one kind and
  for known orders of two kinds: an operation lies between where it is before b and not before a;
- ``first(a, b)`` grows with the microbatch of b and falls with that of a;
- no three operations go round in a circle.

Units: times are multiples of ``Model.unit_ps``.
"""

import math
from itertools import pairwise, product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from projector.errors import ScheduleError

from .bounds import Problem, Windows
from .order import BACKWARD, FORWARD, WEIGHT

if TYPE_CHECKING:
    import highspy

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SEED = 2401
"""Of the solver's heuristics, so that two runs which end on their own find the same schedule."""

UNITS = 10_000
"""About how many units an objective has where times share no larger one."""

HORIZON = 2
"""Objectives that H spans. One is enough in exact arithmetic, but HiGHS has been seen to report
an optimum 2 % too high with it; two never were wrong."""

TOLERANCE = 1e-6
"""Of a bound, as a share of the objective; that of HiGHS for a row is 1e-6 of a unit."""

MAX_TRIANGLES = 20_000
"""Most rows about three operations. They grow with the cube of the microbatches and only save
search."""


class Answer(NamedTuple):
    """What HiGHS says."""

    finished: bool
    """Whether it proved its solution the best."""
    failed: bool
    """Whether it gave up, or contradicts that there is a solution."""
    bound_ps: int
    """Of any schedule, rounded so that the solver's tolerance cannot raise it too far."""
    nodes: int
    values: Floats | None
    """Columns of its best solution."""


class Model:
    """The rows and columns of one program.

    Parameters
    ----------
    windows : Windows
        What is known of all schedules that are at least as good as one that is known.
    objective_ps : int
        Of that schedule.
    """

    def __init__(self, windows: Windows, objective_ps: int) -> None:
        self.windows = windows
        self.problem = windows.problem
        self.objective_ps = objective_ps
        self.grain_ps = _grain_ps(self.problem)
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
            self._add_monotone(stage)
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
        upper[self.objective] = self.objective_ps / unit
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
        """Column of the start of an operation."""
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
                row = (
                    np.append(columns, [self.objective, target]),
                    np.append(values, [1.0, -1.0]),
                )
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

    def _add_monotone(self, stage: int) -> None:
        for kind, other in ((FORWARD, BACKWARD), (FORWARD, WEIGHT), (BACKWARD, WEIGHT)):
            column = self._column[stage, kind, :, other]
            for less, more in (
                (column[:, :-1], column[:, 1:]),
                (column[1:], column[:-1]),
            ):
                free = (less >= 0) & (more >= 0)
                for pair in np.stack([less[free], more[free]], axis=1):
                    self._add(pair, np.array([1.0, -1.0]), upper=0.0)

    def _add_memory(self, stage: int) -> None:
        problem = self.problem
        share, each, limit = problem.w_share, problem.activation[stage], problem.limit[stage]
        if share in {0.0, 1.0}:
            return
        for number in range(problem.microbatches):
            backward, weight = self.windows.before[stage, FORWARD, number, BACKWARD:].tolist()
            if problem.held(stage, number + 1 - backward, backward - weight) <= limit:
                continue
            columns, values = [], []
            freed = 0.0
            for kind, part in ((BACKWARD, 1.0 - share), (WEIGHT, share)):
                column = self._column[stage, kind, :, FORWARD, number]
                freed += part * float(self._known[stage, kind, :, FORWARD, number].sum())
                columns.append(column[column >= 0])
                values.append(np.full(len(columns[-1]), part * self._sign[kind, FORWARD]))
            # What fits exactly must not fail by a rounding; what is too much is found afterwards.
            least = number + 1 - limit / each - freed - 1e-9
            self._add(np.concatenate(columns), np.concatenate(values), least)

    def _add_triangles(self) -> None:
        """Keep F before B before W from W before F, and the other way round."""
        known = column = None
        rows: list[tuple[Ints, Floats, float, float]] = []
        for stage in range(self.problem.pp):
            cube = []
            for kind, other, axis in (
                (FORWARD, BACKWARD, 2),
                (BACKWARD, WEIGHT, 0),
                (FORWARD, WEIGHT, 1),
            ):
                cube.append(
                    [
                        np.expand_dims(part[stage, kind, :, other], axis)
                        for part in (self._column, self._known)
                    ]
                )
            weights = (1.0, 1.0, -1.0)
            known = sum(weight * part for weight, (_, part) in zip(weights, cube, strict=True))
            free = [column >= 0 for column, _ in cube]
            most = known + free[0] + free[1]
            least = known - free[2]
            useful = (most > 1) | (least < 0)
            if len(rows) + int(useful.sum()) > MAX_TRIANGLES:
                return
            for place in zip(*np.nonzero(useful), strict=True):
                columns, values = [], []
                for weight, (column, _), is_free in zip(weights, cube, free, strict=True):
                    here = tuple(
                        min(at, size - 1) for at, size in zip(place, column.shape, strict=True)
                    )
                    if is_free[here]:
                        columns.append(int(column[here]))
                        values.append(weight)
                constant = float(known[place])
                rows.append((np.array(columns), np.array(values), -constant, 1.0 - constant))
        for row in rows:
            self._add(*row)


def run(model: Model, values: Floats, time_limit_s: float) -> Answer:
    """Solve a model from a known solution.

    Raises
    ------
    ScheduleError
        Where HiGHS is not installed.
    """
    try:
        import highspy
    except ModuleNotFoundError as error:
        msg = (
            "this schedule is optimised by HiGHS, which is not installed: "
            "pip install 'projector[ilp]'"
        )
        raise ScheduleError(msg, key="schedule") from error
    highs = highspy.Highs()
    for name, value in (
        ("output_flag", False),
        ("threads", 1),
        ("random_seed", SEED),
        ("time_limit", time_limit_s),
        ("mip_rel_gap", 0.0),
        # Objectives differ by a grain or not at all.
        ("mip_abs_gap", max(0.5 * model.grain_ps / model.unit_ps, 1e-6)),
    ):
        highs.setOptionValue(name, value)
    model.pass_to(highs)
    known = highspy.HighsSolution()
    known.col_value = values.tolist()
    highs.setSolution(known)
    highs.run()
    info = highs.getInfo()
    status = highs.getModelStatus()
    finished = status == highspy.HighsModelStatus.kOptimal
    failed = not finished and status != highspy.HighsModelStatus.kTimeLimit
    solution = None
    if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
        solution = np.array(highs.getSolution().col_value)
    return Answer(
        finished=finished,
        failed=failed,
        bound_ps=0 if failed else model.round_bound(info.mip_dual_bound),
        nodes=max(0, int(info.mip_node_count)),
        values=solution,
    )


def _grain_ps(problem: Problem) -> int:
    """Return what all times are multiples of."""
    times = [problem.duration_ps.ravel(), problem.to_next_ps[:-1], problem.to_previous_ps[1:]]
    return int(np.gcd.reduce(np.concatenate(times))) or 1
