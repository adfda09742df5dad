"""Evaluating what a search proposes: static orders all at once, planned ones the best first.

To plan an order takes milliseconds, to replay a static one microseconds. So every configuration
with a static order is evaluated, and of those with a planned one a bound is computed
(`projection.floors`). Orders are then planned by rising bound, until no bound is below what is
found: whatever is left can be neither among the best, nor on the front of the objective and memory.
What was found is the same as if all had been planned.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.errors import ProjectorError
from projector.projection.bands import memory_factors
from projector.projection.evaluate import evaluate_possible, find_legal, floors_of_legal
from projector.projection.floors import Floors
from projector.projection.known import KnownPipelines
from projector.projection.results import Results, verdicts
from projector.projection.schedules import NAMES
from projector.schedule.registry import Setting
from projector.searches import ranking
from projector.searches.candidates import Candidates
from projector.searches.limits import (
    CONFIGURATIONS,
    INTERRUPTED,
    ORDERS,
    OUT_OF_TIME,
    Progress,
    Watch,
)
from projector.units import GIB

SAMPLED = 3
"""Orders of each schedule that are planned to learn how long one takes."""

MOST_ORDERS = 256
"""Orders that are planned at once."""

_PROBED = 4
"""Planners lay most orders out with so many microbatches for each rank, and few with all."""


class OpenOrders(NamedTuple):
    """Bounds of n configurations with planned orders."""

    row: Ints
    """int64[n]: among the candidates."""
    step_s: Floats
    """float64[n]: no order makes a step shorter."""
    value: Floats
    """float64[n]: no order has less of the objective."""
    peak_bytes: Floats
    """float64[n]: no order needs less memory."""
    high_bytes: Floats
    """float64[n]: where the band of that ends."""
    may_rank: Flags
    """bool[n]: whether some order may be within the limits."""
    schedule: Ints
    """int64[n]: position of the schedule in `NAMES`."""
    work: Floats
    """float64[n]: operations that planning lays out, up to a factor for each schedule."""

    @classmethod
    def of(
        cls,
        rows: Ints,
        floors: Floors,
        high: Floats,
        settings: Sequence[Setting],
        setting_of_row: Ints,
        goal: ranking.Goal,
    ) -> "OpenOrders":
        """Return the bounds of some rows.

        ``high`` is where the band of a peak ends, as a factor of it.
        """
        peak = floors.peak_bytes
        may_rank = floors.usable_bytes - peak >= goal.limits.headroom_gib * GIB
        if not goal.limits.allow_risk:
            may_rank &= peak * high <= floors.usable_bytes
        # What a run costs, draws and emits does not follow from the time of a step alone.
        value = (
            floors.iteration_s if goal.objective == ranking.TIME else np.full(len(rows), -np.inf)
        )
        name = np.array([NAMES.index(each.name) for each in settings], np.int64)
        return cls(
            rows,
            floors.iteration_s,
            value,
            peak,
            peak * high,
            may_rank,
            name[setting_of_row],
            np.array([_work(each) for each in settings])[setting_of_row],
        )

    def __len__(self) -> int:
        return len(self.row)

    def take(self, index: Ints | Flags) -> "OpenOrders":
        """Return some of them."""
        columns: tuple[Any, ...] = self
        return OpenOrders(*(column[index] for column in columns))

    def rest(self, standing: ranking.Standing) -> "OpenOrders":
        """Return those that may matter, the ones with the best bounds first.

        Where nothing is within the limits and nothing can be, it is those that may come closest.
        """
        chosen = np.flatnonzero(self.may_rank & standing.may_matter(self.value, self.peak_bytes))
        if len(chosen) or not standing.is_empty:
            return self.take(chosen[np.argsort(self.step_s[chosen], kind="stable")])
        chosen = np.flatnonzero(self.high_bytes <= standing.least_high_bytes)
        return self.take(chosen[np.argsort(self.high_bytes[chosen], kind="stable")])

    def samples(self) -> Iterator["OpenOrders"]:
        """Yield some of each schedule: the first one, and others of evenly chosen work."""
        for schedule in np.unique(self.schedule).tolist():
            of_schedule = np.flatnonzero(self.schedule == schedule)
            by_work = of_schedule[np.argsort(self.work[of_schedule], kind="stable")]
            places = np.linspace(0, len(by_work) - 1, SAMPLED + 2).astype(np.int64)[1:-1]
            yield self.take(of_schedule[:1])
            yield self.take(np.setdiff1d(by_work[places], of_schedule[:1]))


def _work(setting: Setting) -> float:
    probe = min(setting.microbatches, _PROBED * setting.pp)
    return float(setting.pp * setting.vpp * (16 * probe + setting.microbatches))


class Pace:
    """How long planning takes, by what was planned so far."""

    def __init__(self) -> None:
        self._seconds = np.zeros(len(NAMES))
        self._work = np.zeros(len(NAMES))

    def learn(self, orders: OpenOrders, seconds: float) -> None:
        """Take into account how long some orders took together."""
        each = self.each_s(orders)
        share = each / each.sum() if each.sum() > 0.0 else orders.work / orders.work.sum()
        np.add.at(self._seconds, orders.schedule, seconds * share)
        np.add.at(self._work, orders.schedule, orders.work)

    def each_s(self, orders: OpenOrders) -> Floats:
        """Return how long each order should take, float64[n]; 0 where nothing is known yet."""
        known = self._work > 0.0
        rate = np.divide(self._seconds, self._work, out=np.zeros(len(known)), where=known)
        # A schedule that was not met yet is taken to be like the slowest.
        rate[~known] = rate.max()
        each: Floats = orders.work * rate[orders.schedule]
        return each

    def seconds(self, orders: OpenOrders) -> float:
        """Return how long all of some orders should take."""
        return float(self.each_s(orders).sum())

    def affordable(self, orders: OpenOrders, seconds: float, left_s: float) -> OpenOrders:
        """Return as many of the first orders as take some seconds, at least two for each thread.

        Those that take longer than what is left are passed over.
        """
        each = self.each_s(orders)
        possible = np.flatnonzero(each <= left_s)
        count = int(np.searchsorted(np.cumsum(each[possible]), seconds))
        return orders.take(possible[: min(max(2 * THREADS, count), MOST_ORDERS)])


THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""Orders are planned side by side: one on each core."""

BATCH = 8192

FIRST_BATCHES = 128, 1024
"""The first of many, or where time is limited; fewer than the first are not worth a batch then."""

SHARE = 0.25
"""Of the time that is left, what one batch may take."""

FEW_ORDERS = 32
"""Fewer orders are planned without a look at how long they take."""

BATCHED_S = 0.3
"""Planning goes on for so many seconds until what was found is looked at again."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Explored(ranking.Coverage):
    """What was found, and what was not looked at."""

    configurations: ranking.Evaluated
    """All that were evaluated, in the order in which they are tried."""
    illegal: Counter[str]
    """What cannot exist, by the field that refuses it."""


def explore(
    proposed: Candidates,
    goal: ranking.Goal,
    watch: Watch,
    *,
    keep_interrupted: bool = False,
    known: KnownPipelines | None = None,
) -> Explored:
    """Evaluate what may matter of some candidates, until the time of a watch is over.

    With ``keep_interrupted`` an interrupt ends it too, and what was found is returned.
    """
    explorer = _Explorer(proposed, goal, watch, known)
    try:
        explorer.run()
    except KeyboardInterrupt as interrupt:
        # A kind of its own is a request to end the process.
        if not keep_interrupted or type(interrupt) is not KeyboardInterrupt:
            raise
        explorer.stopped = INTERRUPTED
    return explorer.explored()


class _Explorer:
    def __init__(
        self,
        proposed: Candidates,
        goal: ranking.Goal,
        watch: Watch,
        known: KnownPipelines | None = None,
    ) -> None:
        self.proposed, self.goal, self.watch = proposed, goal, watch
        self.stopped = ""
        self.illegal = Counter(proposed.illegal)
        self.legal = find_legal(proposed.batch)
        refused = np.bincount(self.legal.refused + 1, minlength=len(self.legal.errors) + 1)[1:]
        for error, count in zip(self.legal.errors, refused.tolist(), strict=True):
            self._refuse(error, count)
        rows = np.flatnonzero(self.legal.refused < 0)
        schedules = self.legal.schedules
        are_planned = [isinstance(each, Setting) and each.planned for each in schedules.outcomes]
        planned = np.array(are_planned, np.bool_)[schedules.of_job[rows]]
        self.static, self.planned = rows[~planned], rows[planned]
        self.known = KnownPipelines() if known is None else known
        self.found = [ranking.Evaluated.none(proposed.overrides)]
        """What was evaluated, a part at a time."""
        self.seen = np.zeros(len(proposed), np.bool_)
        """Rows that were evaluated, or turned out to be impossible."""
        self.standing = ranking.Standing(goal)
        self.open: OpenOrders | None = None
        """Planned orders, once all are bounded."""
        self.num_planned = 0

    @property
    def num_found(self) -> int:
        """Configurations that were evaluated."""
        return sum(map(len, self.found))

    def _refuse(self, error: ProjectorError, count: int = 1) -> None:
        if count:
            self.illegal[error.key or "job"] += count

    def run(self) -> None:
        """Evaluate static orders, bound planned ones, and plan what may matter."""
        if not self._in_batches(self.static, self._evaluate, 0):
            return
        parts: list[OpenOrders] = []
        if len(self.planned) and self._in_batches(
            self.planned, lambda rows: parts.extend(self._bounded(rows)), len(self.static)
        ):
            self.open = OpenOrders(*map(np.concatenate, zip(*parts, strict=True)))
            self._plan(self.open)

    def _in_batches(self, rows: Ints, work: Callable[[Ints], None], before: int) -> bool:
        """Work through all rows in batches, behind ``before`` others; return whether time did."""
        begin, each_s = 0, 0.0
        # The first batch loads and compiles; the second one says how long all take.
        sizes = iter(FIRST_BATCHES if self.watch.is_limited or len(rows) > BATCH else ())
        while begin < len(rows):
            size = next(sizes, BATCH)
            if self.watch.is_limited and each_s:
                # Later batches may take longer; each has a part of what is left.
                size = int(min(size, self.watch.left_s * SHARE / each_s))
            if self.watch.is_over or size < FIRST_BATCHES[0]:
                self.stopped = OUT_OF_TIME
                return False
            part = rows[begin : begin + size]
            began = time.perf_counter()
            work(part)
            each_s = (time.perf_counter() - began) / len(part)
            if begin or len(part) == len(rows):
                done = before + begin + len(part)
                total = len(self.static) + len(self.planned)
                left_s = (total - done) * each_s
                self.watch.expects(left_s)
                self.watch.told(Progress(done, total, CONFIGURATIONS, self.num_found, left_s))
            begin += len(part)
        return True

    def _evaluate(self, rows: Ints) -> None:
        for part, evaluation in evaluate_possible(
            self.proposed.batch.take(rows), self.legal.take(rows), self._refuse, self.known, THREADS
        ):
            steps, results = evaluation.steps, Results(evaluation)
            found = ranking.Evaluated(
                self.proposed.overrides,
                rows[part],
                steps.iteration_s,
                steps.peak_bytes,
                results.headroom_bytes,
                results.peak_low_bytes,
                results.peak_high_bytes,
                verdicts(results.rows),
                ranking.objective_values(results, self.goal.objective),
            )
            if len(self.planned):
                self.standing.add(found)
            self.found.append(found)
        self.seen[rows] = True

    def _bounded(self, rows: Ints) -> Iterable[OpenOrders]:
        """Bound some rows; halves find one whose numbers leave their range, which is refused."""
        legal = self.legal.take(rows)
        try:
            floors = floors_of_legal(legal, self.known)
        except ProjectorError as error:
            if len(rows) == 1:
                self._refuse(error)
                self.seen[rows] = True
                return []
            half = len(rows) // 2
            return [*self._bounded(rows[:half]), *self._bounded(rows[half:])]
        _, high = memory_factors(self.proposed.batch.take(rows))
        settings = legal.schedules.settings(), legal.schedules.of_job
        return [OpenOrders.of(rows, floors, high, *settings, self.goal)]

    def _plan(self, orders: OpenOrders) -> None:
        """Plan orders by rising bounds, until none is left that may matter."""
        pace, rest = Pace(), self._rest(orders)
        if len(rest) > FEW_ORDERS:
            for sample in rest.samples():
                if not self.watch.is_over:
                    self._plan_some(sample, pace)
            rest = self._rest(orders)
        self.watch.expects(pace.seconds(rest))
        while len(rest):
            done, left_s = self.num_planned, pace.seconds(rest)
            self.watch.told(Progress(done, done + len(rest), ORDERS, self.num_found, left_s))
            some = pace.affordable(rest, BATCHED_S, self.watch.left_s)
            if self.watch.is_over or not len(some):
                self.stopped = OUT_OF_TIME
                return
            self._plan_some(some, pace)
            rest = self._rest(orders)

    def _rest(self, orders: OpenOrders) -> OpenOrders:
        """Return the orders that may matter by what was found so far."""
        rest = orders.take(~self.seen[orders.row]).rest(self.standing)
        return rest.take(self._may_matter(rest))

    def _may_matter(self, orders: OpenOrders) -> Flags:
        """Return which orders may be among the best, or on the front, bool[n].

        To be on the front an order must hold less than all that is faster than its bound, and with
        less memory its bound rises; so it goes on until it is beaten, or its bound stays.
        """
        value = orders.value.copy()
        matters = value <= self.standing.last
        rest = np.flatnonzero(~matters)
        while len(rest):
            most_bytes = self.standing.least_bytes(value[rest])
            possible = orders.peak_bytes[rest] < most_bytes
            rest, most_bytes = rest[possible], most_bytes[possible]
            if len(rest):
                legal = self.legal.take(orders.row[rest])
                floor_s = floors_of_legal(legal, self.known, most_bytes).iteration_s
                matters[rest] = floor_s <= value[rest]
                value[rest] = floor_s
                rest = rest[~matters[rest]]
        return matters

    def _plan_some(self, orders: OpenOrders, pace: Pace) -> None:
        if not len(orders):
            return
        began = time.perf_counter()
        self._evaluate(np.sort(orders.row))
        self.num_planned += len(orders)
        pace.learn(orders, time.perf_counter() - began)

    def explored(self) -> Explored:
        """Return what was found, and count what was not looked at."""
        found = ranking.Evaluated.joined(self.found)
        self.seen[found.row] = True
        unseen = int(np.count_nonzero((self.legal.refused < 0) & ~self.seen))
        left_out, least_s = unseen, None
        if self.open is not None:
            rest = self._rest(self.open)
            left_out = len(rest)
            least_s = float(rest.step_s.min()) if left_out else None
        return Explored(
            configurations=found,
            illegal=self.illegal,
            planned=self.num_planned,
            ruled_out=unseen - left_out,
            left_out=left_out,
            left_out_s=least_s,
            stopped=self.stopped,
        )
