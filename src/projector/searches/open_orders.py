"""Configurations whose orders are not planned yet, and how long that would take."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.projection.floors import Floors
from projector.projection.schedules import NAMES, Setting
from projector.searches.objectives import TIME
from projector.searches.ranking import Goal, Standing
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
        goal: Goal,
    ) -> "OpenOrders":
        """Return the bounds of some rows.

        Parameters
        ----------
        rows : int64[n]
        floors : Floors
            Of the same rows.
        high : float64[n]
            Where the band of a peak ends, as a factor of it.
        settings : sequence of Setting
        setting_of_row : int64[n]
        goal : Goal
        """
        peak = floors.peak_bytes
        may_rank = floors.usable_bytes - peak >= goal.limits.headroom_gib * GIB
        if not goal.limits.allow_risk:
            may_rank &= peak * high <= floors.usable_bytes
        # What a run costs, draws and emits does not follow from the time of a step alone.
        value = floors.iteration_s if goal.objective == TIME else np.full(len(rows), -np.inf)
        name = np.array([NAMES.index(each.name) for each in settings], np.int64)
        work = np.array([_work(each) for each in settings])
        return cls(
            rows,
            floors.iteration_s,
            value,
            peak,
            peak * high,
            may_rank,
            name[setting_of_row],
            work[setting_of_row],
        )

    @classmethod
    def joined(cls, parts: Sequence["OpenOrders"]) -> "OpenOrders":
        """Return several as one."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    def __len__(self) -> int:
        """Return the number of configurations."""
        return len(self.row)

    def take(self, index: Ints | Flags) -> "OpenOrders":
        """Return some of them."""
        columns: tuple[Any, ...] = self
        return OpenOrders(*(column[index] for column in columns))

    def rest(self, standing: Standing) -> "OpenOrders":
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
        """Begin with nothing known."""
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
        """Return as many of the first orders as take some seconds, at least one.

        Those that take longer than what is left are passed over.
        """
        each = self.each_s(orders)
        possible = np.flatnonzero(each <= left_s)
        count = int(np.searchsorted(np.cumsum(each[possible]), seconds))
        return orders.take(possible[: min(max(1, count), MOST_ORDERS)])
