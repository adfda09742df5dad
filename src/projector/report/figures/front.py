"""Speed against memory: all rows as a cloud, and the Pareto front."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.report.figures.rows import (
    FITS,
    PEAK,
    RATE,
    USABLE,
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
"""Largest memory shown, relative to the usable memory; rows above it are only counted."""

Triple = tuple[Floats, Floats, Flags]
"""Speed, peak memory and whether it fits, of some rows."""


@dataclass(frozen=True, slots=True)
class Cloud:
    """Positions of rows, one by one or counted in cells."""

    rows: int
    fit: int
    shown: tuple[float, float, float, float]
    """Least and most memory in GiB, least and most tokens/s/GPU of the figure."""
    outside: int
    """Rows outside of the figure."""
    points: tuple[Triple, ...]
    """All rows, where they are few."""
    counts: tuple[Floats, Floats] | None
    """Rows in each cell, float64[memory, speed], those that fit and those that do not."""


@dataclass(frozen=True, slots=True)
class Front:
    """Contents of the Pareto figure."""

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
        """Return the rows to name: both ends, then repeatedly the row farthest from these."""
        if len(self.rate) <= most:
            return np.arange(len(self.rate))
        points = np.column_stack([_unit(self.rate), _unit(self.peak)])
        rows = [0, len(points) - 1]
        nearest = np.minimum(*(np.hypot(*(points - points[row]).T) for row in rows))
        while len(rows) < most and float(nearest.max()) > 0.0:
            rows.append(int(np.argmax(nearest)))
            nearest = np.minimum(nearest, np.hypot(*(points - points[rows[-1]]).T))
        return np.array(sorted(rows))

    def names(self, rows: Ints) -> tuple[list[str], str]:
        """Return the settings that differ between rows, and those that all of them share."""
        settings = [self.settings[row] for row in rows.tolist()]
        same = shared(settings) if len(settings) > 1 else {}
        return [configuration(setting) for setting in differing(settings)], configuration(same)


def front_of_sweep(result: SweepResult, title: str) -> Front:
    """Read the front and the cloud of a sweep, one chunk at a time."""
    low, high = np.inf, -np.inf

    def triples() -> Iterable[Triple]:
        for table in result.tables([RATE, PEAK, FITS]):
            yield numbers(table, RATE), numbers(table, PEAK), switches(table, FITS)

    for table in result.tables([USABLE]):
        usable_gib = numbers(table, USABLE)
        if len(usable_gib):
            low, high = (
                min(low, float(np.nanmin(usable_gib))),
                max(high, float(np.nanmax(usable_gib))),
            )
    usable = (low, high) if high > 0.0 and np.isfinite(low) else None
    best = result.pareto([RATE, PEAK])
    fields = axes_of(result.columns)
    return Front(
        title=title,
        cloud=_cloud(triples, usable),
        rate=numbers(best, RATE),
        peak=numbers(best, PEAK),
        settings=tuple(best.select(list(fields)).to_pylist()),
        usable=usable,
    )


def front_of_search(result: SearchResult) -> Front:
    """Read the front and the cloud of a search; rows outside its limits are left out."""
    job = result.job
    tokens = job.training.global_batch_size * job.training.seq_length / job.cluster.gpus

    def columns(configurations: Iterable[Any]) -> tuple[Floats, Floats]:
        pairs = [
            (tokens / candidate.iteration_time_s, to_gib(candidate.peak_bytes))
            for candidate in configurations
        ]
        rate, peak = np.array(pairs, np.float64).reshape(-1, 2).T
        return rate, peak

    all_points = columns(result.configurations)
    front = columns(result.pareto)
    limit_gib = [
        to_gib(candidate.peak_bytes + candidate.headroom_bytes)
        for candidate in result.configurations[:1]
    ]
    usable = (limit_gib[0], limit_gib[0]) if limit_gib else None
    name = f"{job.model.name} on {job.cluster.gpus:,} x {job.cluster.device.name}"
    return Front(
        title=name,
        cloud=_cloud(lambda: [(*all_points, np.ones(len(all_points[0]), np.bool_))], usable),
        rate=front[0],
        peak=front[1],
        settings=tuple(
            {name: value for name, value in candidate.overrides.items() if value is not None}
            for candidate in result.pareto
        ),
        usable=usable,
    )


def _cloud(triples: Callable[[], Iterable[Triple]], usable: tuple[float, float] | None) -> Cloud:
    """Look at the rows twice: for their range, then to count them."""
    rows = fit = 0
    ranges = {True: np.array([np.inf, -np.inf, 0.0]), False: np.array([np.inf, -np.inf, 0.0])}
    few: list[Triple] = []
    for rate, peak, fits in triples():
        rows, fit = rows + len(rate), fit + int(fits.sum())
        if rows <= FEW:
            few.append((rate, peak, fits))
        for kind, range_ in ranges.items():
            selected = (fits == kind) & np.isfinite(rate) & np.isfinite(peak)
            if selected.any():
                range_[0] = min(range_[0], float(peak[selected].min()))
                range_[1] = max(range_[1], float(peak[selected].max()))
                range_[2] = max(range_[2], float(rate[selected].max()))
    shown = _shown(ranges, usable)
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
            for index, kind in enumerate((True, False)):
                selected = visible & (fits == kind)
                counts[index][:] += np.histogram2d(peak[selected], rate[selected], edges)[0]
    points = tuple(few) if rows <= FEW else ()
    return Cloud(rows, fit, shown, rows - inside, points, None if rows <= FEW else counts)


def _shown(
    ranges: Mapping[bool, Floats], usable: tuple[float, float] | None
) -> tuple[float, float, float, float]:
    """Return the range of the figure: all rows that fit, and rows slightly too large."""
    fitting, others = ranges[True], ranges[False]
    drawn = fitting if np.isfinite(fitting[0]) else others
    if not np.isfinite(drawn[0]):
        return 0.0, 1.0, 0.0, 1.0
    least, most, fastest = (float(value) for value in drawn)
    if drawn is fitting and usable is not None:
        beyond = np.isfinite(others[0])
        most = max(most, usable[1] * (BEYOND if beyond else 1.02))
    elif usable is not None:
        # The figure shows by how much the rows are too large; far larger ones would hide it.
        least, most = min(least, 0.95 * usable[0]), min(most, max(4.0 * usable[1], 2.0 * least))
    room = 0.04 * (most - least) or 0.1 * most
    return max(0.0, least - room), most + room, 0.0, 1.08 * fastest


def _unit(values: Floats) -> Floats:
    spread = float(np.ptp(values))
    return (values - values.min()) / spread if spread else np.zeros(len(values))
