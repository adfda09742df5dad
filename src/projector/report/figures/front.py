"""Speed against memory: all rows as a cloud, and those that no other beats."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.report.figures.rows import (
    FITS,
    PEAK,
    RATE,
    USABLE,
    Bools,
    Floats,
    Ints,
    axes_of,
    configuration,
    differing,
    numbers,
    shared,
    switches,
)
from projector.searches.configurations import SearchResult
from projector.sweeps.result import SweepResult
from projector.units import to_gib

FEW = 4_000
"""Rows that are drawn one by one; more are counted in cells."""

CELLS = 110, 80
"""Cells of the counted cloud: over memory, over speed."""

BEYOND = 1.3
"""Memory that is shown, in parts of what is usable; what needs more is counted only."""

Triple = tuple[Floats, Floats, Bools]
"""Speed, peak memory and whether it fits, of some rows."""


@dataclass(frozen=True, slots=True)
class Cloud:
    """Where rows lie, one by one or counted in cells."""

    rows: int
    fit: int
    shown: tuple[float, float, float, float]
    """Least and most memory in GiB, least and most tokens/s/GPU of the figure."""
    outside: int
    """Rows that lie outside of it."""
    points: tuple[Triple, ...]
    """All rows, where they are few."""
    counts: tuple[Floats, Floats] | None
    """Rows in each cell, float64[memory, speed], those that fit and those that do not."""


@dataclass(frozen=True, slots=True)
class Front:
    """What the Pareto figure shows."""

    title: str
    cloud: Cloud
    rate: Floats
    """tokens/s/GPU of the front, the fastest first."""
    peak: Floats
    """GiB."""
    settings: tuple[Mapping[str, Any], ...]
    """Field -> value of each of its rows."""
    usable: tuple[float, float] | None
    """Least and most usable memory of the devices, GiB."""

    def chosen(self, most: int) -> Ints:
        """Return the rows that are named: both ends, then always what lies farthest from these."""
        if len(self.rate) <= most:
            return np.arange(len(self.rate))
        points = np.column_stack([_unit(self.rate), _unit(self.peak)])
        kept = [0, len(points) - 1]
        nearest = np.minimum(*(np.hypot(*(points - points[row]).T) for row in kept))
        while len(kept) < most and float(nearest.max()) > 0.0:
            kept.append(int(np.argmax(nearest)))
            nearest = np.minimum(nearest, np.hypot(*(points - points[kept[-1]]).T))
        return np.array(sorted(kept))

    def names(self, rows: Ints) -> tuple[list[str], str]:
        """Return what tells these rows apart, and what all of them share."""
        settings = [self.settings[row] for row in rows.tolist()]
        same = shared(settings) if len(settings) > 1 else {}
        return [configuration(each) for each in differing(settings)], configuration(same)


def front_of_sweep(result: SweepResult, title: str) -> Front:
    """Read the front and the cloud of a sweep, one chunk at a time."""
    low, high = np.inf, -np.inf

    def triples() -> Iterable[Triple]:
        for table in result.tables([RATE, PEAK, FITS]):
            yield numbers(table, RATE), numbers(table, PEAK), switches(table, FITS)

    for table in result.tables([USABLE]):
        usable = numbers(table, USABLE)
        if len(usable):
            low, high = min(low, float(np.nanmin(usable))), max(high, float(np.nanmax(usable)))
    found = (low, high) if high > 0.0 and np.isfinite(low) else None
    best = result.pareto([RATE, PEAK])
    fields = axes_of(result.columns)
    return Front(
        title=title,
        cloud=_cloud(triples, found),
        rate=numbers(best, RATE),
        peak=numbers(best, PEAK),
        settings=tuple(best.select(list(fields)).to_pylist()),
        usable=found,
    )


def front_of_search(found: SearchResult) -> Front:
    """Read the front and the cloud of a search; what does not keep to its limits is not kept."""
    job = found.job
    tokens = job.training.global_batch_size * job.training.seq_length / job.cluster.gpus

    def columns(these: Iterable[Any]) -> tuple[Floats, Floats]:
        pairs = [(tokens / each.iteration_time_s, to_gib(each.peak_bytes)) for each in these]
        rate, peak = np.array(pairs, np.float64).reshape(-1, 2).T
        return rate, peak

    every = columns(found.configurations)
    front = columns(found.pareto)
    most = [to_gib(each.peak_bytes + each.headroom_bytes) for each in found.configurations[:1]]
    usable = (most[0], most[0]) if most else None
    name = f"{job.model.name} on {job.cluster.gpus:,} x {job.cluster.device.name}"
    return Front(
        title=name,
        cloud=_cloud(lambda: [(*every, np.ones(len(every[0]), np.bool_))], usable),
        rate=front[0],
        peak=front[1],
        settings=tuple(
            {name: value for name, value in each.overrides.items() if value is not None}
            for each in found.pareto
        ),
        usable=usable,
    )


def _cloud(triples: Callable[[], Iterable[Triple]], usable: tuple[float, float] | None) -> Cloud:
    """Look at the rows twice: for their range, then to count them."""
    rows = fit = 0
    ends = {True: np.array([np.inf, -np.inf, 0.0]), False: np.array([np.inf, -np.inf, 0.0])}
    few: list[Triple] = []
    for rate, peak, fits in triples():
        rows, fit = rows + len(rate), fit + int(fits.sum())
        if rows <= FEW:
            few.append((rate, peak, fits))
        for kind, range_ in ends.items():
            mine = (fits == kind) & np.isfinite(rate) & np.isfinite(peak)
            if mine.any():
                range_[0] = min(range_[0], float(peak[mine].min()))
                range_[1] = max(range_[1], float(peak[mine].max()))
                range_[2] = max(range_[2], float(rate[mine].max()))
    shown = _shown(ends, usable)
    edges = [
        np.linspace(*side, cells + 1)
        for side, cells in zip((shown[:2], shown[2:]), CELLS, strict=True)
    ]
    counts = (np.zeros(CELLS), np.zeros(CELLS))
    inside = 0
    for rate, peak, fits in triples():
        visible = (peak <= shown[1]) & (rate <= shown[3])
        inside += int(visible.sum())
        if rows > FEW:
            for place, kind in enumerate((True, False)):
                mine = visible & (fits == kind)
                counts[place][:] += np.histogram2d(peak[mine], rate[mine], edges)[0]
    points = tuple(few) if rows <= FEW else ()
    return Cloud(rows, fit, shown, rows - inside, points, None if rows <= FEW else counts)


def _shown(
    ends: Mapping[bool, Floats], usable: tuple[float, float] | None
) -> tuple[float, float, float, float]:
    """Return what the figure shows: all that fits, and what needs a little more than there is."""
    fitting, others = ends[True], ends[False]
    some = fitting if np.isfinite(fitting[0]) else others
    if not np.isfinite(some[0]):
        return 0.0, 1.0, 0.0, 1.0
    least, most, fastest = (float(value) for value in some)
    if some is fitting and usable is not None:
        beyond = np.isfinite(others[0])
        most = max(most, usable[1] * (BEYOND if beyond else 1.02))
    elif usable is not None:
        # How much too large everything is, which some rows of many times that would hide.
        least, most = min(least, 0.95 * usable[0]), min(most, max(4.0 * usable[1], 2.0 * least))
    room = 0.04 * (most - least) or 0.1 * most
    return max(0.0, least - room), most + room, 0.0, 1.08 * fastest


def _unit(values: Floats) -> Floats:
    spread = float(np.ptp(values))
    return (values - values.min()) / spread if spread else np.zeros(len(values))
