"""What a run knows of each of its operations: times, runs, work, and what slowed it down."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.arrays import Floats, Ints
from projector.config.device import Device
from projector.trace.activity import COMMUNICATION, Activities
from projector.trace.analysis import TraceAnalysis
from projector.trace.counter_join import join_counters
from projector.trace.counters import derive
from projector.trace.events import Samples
from projector.trace.groups import group, places_within
from projector.trace.measures.gap import Counted
from projector.trace.measures.overlap import overlap_ratios
from projector.trace.work import Works
from projector.units import MEGA, PICOSECOND
from projector.validate.traces.result import Side

ALONE = 0.01
"""A kernel runs alone where communication covers no larger share of it."""


def known(value: float) -> float | None:
    """Return a number above zero, None for any other."""
    return float(value) if np.isfinite(value) and value > 0.0 else None


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over a mean step for each group of activities; columns of equal length."""

    time_s: Floats
    calls: Floats
    """Of operators whose work is known, by the kernels that do it."""
    kernels: Floats
    work: Floats
    """FLOP, or bytes of collectives; 0 where not known."""
    waiting: Floats
    """Duration over that of the rank that waits least; NaN where not known."""
    overlap: Floats
    """Duration over that alone; NaN where nothing of the kind ran alone."""
    clock_hz: Floats
    """Mean sampled clock, by time; NaN where not sampled."""
    low_s: Floats
    high_s: Floats
    """Quartiles over steps and ranks."""
    performed_flop: Floats
    """Counted; NaN where some of the time was not."""
    utilisation: Floats
    """Of the matrix units, by counted cycles; NaN as above."""

    def runs(self, group: int) -> float:
        """Return how often a group ran in a step: calls where they are known, else kernels."""
        return float(self.calls[group] or self.kernels[group])

    def side(self, group: int) -> Side:
        """Return what is known of a group."""
        work, performed = known(self.work[group]), known(self.performed_flop[group])
        return Side(
            time_s=float(self.time_s[group]),
            runs=known(self.runs(group)),
            work=work,
            waiting=known(self.waiting[group]),
            overlap=known(self.overlap[group]),
            clock_hz=known(self.clock_hz[group]),
            instruction=performed / work if performed and work else None,
            utilisation=known(self.utilisation[group]),
        )


def sums_of(
    activities: Activities,
    works: Works,
    of: Ints,
    groups: int,
    steps: int,
    samples: Sequence[Samples] = (),
    *,
    causal: bool = True,
    counted: Counted | None = None,
) -> Sums:
    """Return what the activities of each group add up to, of all ranks that are compared.

    `of` is the group of each, -1 for none, and `steps` the iterations of all ranks together.
    """
    rows = np.flatnonzero(of >= 0)
    duration_ps = activities.end_ps[rows] - activities.start_ps[rows]
    duration_s = np.asarray(duration_ps * PICOSECOND, np.float64)
    own = of[rows]

    def add(values: Floats) -> Floats:
        return np.bincount(own, values, groups).astype(np.float64)

    time_s = add(duration_s)
    flop = works.flop(causal=causal)[rows]
    communicates = activities.klass[rows] == COMMUNICATION
    moved = np.where(communicates & (activities.bytes[rows] > 0), activities.bytes[rows], 0.0)
    low_s, high_s = _quartiles(activities, rows, own, duration_s, groups, steps)
    alone_s = _alone(activities, rows, duration_s)
    least_s = _least_waiting(activities, rows, duration_s)
    alone_s[communicates] = np.nan
    clock = clock_of(activities, rows, samples)
    clocked = ~np.isnan(clock) & ~communicates  # Links have a clock of their own.
    counters = Counted.none(len(activities)) if counted is None else counted
    # Only kernels that do the work count; what finishes them is seldom counted.
    multiplies = works.main[rows]
    performed = np.where(multiplies, counters.performed_flop[rows], 0.0)
    cycles = np.where(multiplies, counters.cycles[rows], 0.0)
    busy = np.where(multiplies, counters.utilisation[rows] * counters.cycles[rows], 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return Sums(
            time_s=time_s / steps,
            calls=add(works.main[rows].astype(np.float64)) / steps,
            kernels=add(np.ones(len(rows))) / steps,
            work=add(flop + moved) / steps,
            waiting=time_s / add(least_s),
            overlap=time_s / add(alone_s),
            clock_hz=add(np.where(clocked, clock, 0.0) * duration_s)
            / add(np.where(clocked, duration_s, 0.0)),
            low_s=low_s,
            high_s=high_s,
            performed_flop=add(performed) / steps,
            utilisation=add(busy) / add(cycles),
        )


def _quartiles(
    activities: Activities, rows: Ints, own: Ints, duration_s: Floats, groups: int, steps: int
) -> tuple[Floats, Floats]:
    """Return the quarter of the steps in which a group takes least, and most."""
    step = group(activities.rank[rows], activities.iteration[rows])
    table = np.zeros((groups, max(steps, step.count)))
    np.add.at(table, (own, step.of), duration_s)
    if not table.size:
        return np.zeros(groups), np.zeros(groups)
    low, high = np.quantile(table, (0.25, 0.75), axis=1)
    return low, high


def _alone(activities: Activities, rows: Ints, duration_s: Floats) -> Floats:
    """Return what each kernel takes alone: the median of those alike that did.

    NaN spreads over a group of which some kernel never ran alone, so that nothing is claimed.
    """
    overlap = overlap_ratios(activities)[rows]
    alike = group(activities.rank[rows], activities.name[rows], activities.detail[rows])
    alone = ~(overlap > ALONE)
    order = np.lexsort((duration_s, alike.of))
    order = order[alone[order]]
    counts = np.bincount(alike.of[order], minlength=alike.count)
    first = np.cumsum(counts) - counts
    ordered = np.append(duration_s[order], np.nan)
    middle = np.where(counts > 0, first + (counts - 1) // 2, len(order))
    # What ran alone is as long as it is; the median stands for what did not.
    return np.where(alone, duration_s, ordered[middle][alike.of])


def _least_waiting(activities: Activities, rows: Ints, duration_s: Floats) -> Floats:
    """Return what each collective takes on the rank of its group that waits least.

    Collectives of a group follow each other in one order on all ranks. NaN with one rank alone.
    """
    ranks = np.unique(activities.rank)
    least = np.full(len(rows), np.nan)
    chosen = np.flatnonzero(activities.klass[rows] == COMMUNICATION)
    if len(ranks) < 2 or not len(chosen):
        return least
    at = rows[chosen]
    columns = (activities.group[at], activities.name[at], activities.iteration[at])
    same = group(*columns, turns(activities, at))
    shortest = np.full(same.count, np.inf)
    np.minimum.at(shortest, same.of, duration_s[chosen])
    met = same.sizes()[same.of] > 1
    least[chosen] = np.where(met, shortest[same.of], np.nan)
    return least


def turns(activities: Activities, rows: Ints) -> Ints:
    """Return which of the collectives of its group and iteration each is, counted on its rank."""
    stream = group(
        activities.rank[rows], activities.group[rows], activities.name[rows],
        activities.iteration[rows],
    )  # fmt: skip
    return places_within(stream.of, activities.start_ps[rows])


def clock_of(activities: Activities, rows: Ints, samples: Sequence[Samples]) -> Floats:
    """Return the clock [Hz] while each of some activities ran; NaN where it was not sampled.

    A sample holds from its time until the next one; that at the middle of an activity counts.
    """
    clock = np.full(len(rows), np.nan)
    middle = (activities.start_ps[rows] + activities.end_ps[rows]) // 2
    for each in samples:
        if each.what != "clock_mhz" or not len(each.time_ps):
            continue
        last = np.searchsorted(each.time_ps, middle, side="right") - 1
        of_rank = (last >= 0) & ((each.rank < 0) | (activities.rank[rows] == each.rank))
        values = np.asarray(each.values, np.float64)
        for column, name in enumerate(each.columns):
            # One device sampled by its own rank needs no number.
            device = int(name) if name.isdecimal() else column
            alone = each.rank >= 0 and len(each.columns) == 1
            here = np.flatnonzero(of_rank & (alone | (activities.device[rows] == device)))
            clock[here] = values[last[here], column] * MEGA
    return clock


_METRICS = {
    "performed_flop": "matrix_flop", "utilisation": "matrix_utilisation", "cycles": "cycles",
}  # fmt: skip
"""Columns of `Counted` and the metrics of counters that they are."""


def counted_kernels(
    analysis: TraceAnalysis, activities: Activities, profile: Device | None
) -> tuple[Counted, dict[str, Any] | None]:
    """Return what counters say of each activity, and what of them was joined."""
    if not analysis.trace.counters:
        return Counted.none(len(activities)), None
    joined = join_counters(activities, analysis.trace.counters)
    metrics = derive(joined.values, device=profile, duration_ps=joined.duration_ps)
    unknown: Floats = np.full(len(activities), np.nan)
    columns = {
        column: metrics[metric].values if metric in metrics else unknown
        for column, metric in _METRICS.items()
    }
    told = {name: derived.to_dict() for name, derived in metrics.items()}
    return Counted(**columns), {**joined.to_dict(), "metrics": told}
