"""Speed against memory: all rows as a cloud, and the Pareto front."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from projector.arrays import Floats, Ints
from projector.config.bands import Band
from projector.config.load import load_job
from projector.errors import ProjectorError
from projector.projection.bands import AT_RISK, DOES_NOT_FIT, FITS, VERDICTS, time_band
from projector.report.figures.axes import is_layout, untied
from projector.report.figures.rows import (
    HIGH,
    LOW,
    PEAK,
    RATE,
    USABLE,
    axes_of,
    configuration,
    differing,
    merged,
    numbers,
    shared,
)
from projector.searches.ranking import Configuration, noise_groups, pair_noise
from projector.searches.result import SearchResult
from projector.sweeps.result import VERDICT_COLUMNS, SweepResult, standings
from projector.units import to_gib

FEW = 4_000
"""Rows that are drawn one by one; more are counted in cells."""

CELLS = 110, 80
"""Cells of the counted cloud: over memory, over speed."""

BEYOND = 1.3
"""Largest memory shown, relative to the usable memory; rows above it are only counted."""

MEMORY_WORTH = 0.1
"""Share of the speed that all of the memory is worth where the knee of a front is named: one
percent of the speed for ten percent of the memory. A convention, not a model."""

Triple = tuple[Floats, Floats, Ints]
"""Speed, peak memory and verdict, as its position in `VERDICTS`, of some rows."""


@dataclass(frozen=True, slots=True)
class Cloud:
    """Positions of rows, one by one or counted in cells."""

    rows: int
    fit: int
    """Rows that fit with the band of their memory."""
    at_risk: int
    shown: tuple[float, float, float, float]
    """Least and most memory in GiB, least and most tokens/s/GPU of the figure."""
    outside: int
    """Rows outside of the figure."""
    points: tuple[Triple, ...]
    """All rows, where they are few."""
    counts: tuple[Floats, ...] | None
    """Rows in each cell, float64[memory, speed], of each of `VERDICTS`."""


@dataclass(frozen=True, slots=True)
class Front:
    """Contents of the Pareto figure."""

    title: str
    cloud: Cloud
    rate: Floats
    """tokens/s/GPU of the front, the fastest first."""
    peak: Floats
    """GiB."""
    low: Floats
    """Lower end of the band of each peak, GiB."""
    high: Floats
    settings: tuple[Mapping[str, Any], ...]
    """Field -> value of each of its rows."""
    usable: tuple[float, float] | None
    """Least and most usable memory of the rows that may fit, GiB."""
    free: Floats = field(default_factory=lambda: np.zeros(0))
    """Share of the usable memory that each point of the front leaves free."""
    groups: tuple[int, ...] = ()
    """Group of each point, 1 with the fastest: layouts of one cannot be told apart."""
    equal: tuple[int, ...] = ()
    """Rows that each point stands for: they are equal in speed and memory."""
    band: Band | None = None
    """Factors of the time of a step, the same for all points as far as one knows."""

    @property
    def knee(self) -> int | None:
        """The point to show: a percent of the speed is given up only for enough memory.

        It has the largest sum of the speed, as a share of the fastest one's, and of `MEMORY_WORTH`
        times the free memory, as a share of the usable. None where the front has fewer than two
        points.
        """
        if len(self.rate) < 2 or len(self.free) != len(self.rate):
            return None
        worth = self.rate / self.rate.max() + MEMORY_WORTH * self.free
        return int(np.flatnonzero(worth >= worth.max() - 1e-12)[0])

    @property
    def knee_text(self) -> str:
        """What the knee gives up and leaves free; empty where there is none."""
        if self.knee is None or not self.free[self.knee]:
            return ""
        free_gib = self.peak[self.knee] / (1.0 - self.free[self.knee]) - self.peak[self.knee]
        slower = 100.0 * (1.0 - self.rate[self.knee] / self.rate.max())
        speed = "the fastest" if slower < 0.05 else f"{slower:.1f} % slower than the fastest"
        return f"knee: {speed}, {free_gib:,.0f} GiB free"

    @property
    def within_noise(self) -> int:
        """Points that cannot be told apart from the fastest, itself among them."""
        return self.groups.count(1)

    def chosen(self, most: int) -> Ints:
        """Return the rows to name: both ends, then repeatedly the row farthest from these."""
        if len(self.rate) <= most:
            return np.arange(len(self.rate))
        points = np.column_stack([_unit(self.rate), _unit(self.peak)])
        rows = list(dict.fromkeys([0, len(points) - 1, *([self.knee] if self.knee else [])]))
        nearest = np.min([np.hypot(*(points - points[row]).T) for row in rows], axis=0)
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
        for table in result.tables([RATE, PEAK, *VERDICT_COLUMNS]):
            yield numbers(table, RATE), numbers(table, PEAK), standings(table)

    for table in result.tables([USABLE, *VERDICT_COLUMNS]):
        # Rows that leave no memory at all say nothing about the devices of the others.
        may_fit = standings(table) != VERDICTS.index(DOES_NOT_FIT)
        usable_gib = numbers(table, USABLE)[may_fit]
        if len(usable_gib):
            low, high = (
                min(low, float(np.nanmin(usable_gib))),
                max(high, float(np.nanmax(usable_gib))),
            )
    usable = (low, high) if high > 0.0 and np.isfinite(low) else None
    best = result.pareto([RATE, PEAK])
    fields = axes_of(result.columns)
    settings = best.select(untied(result.plan, fields)).to_pylist()
    kept, equal = distinct(numbers(best, RATE), numbers(best, PEAK))
    best = best.take(kept)
    rate = numbers(best, RATE)
    shown = tuple(merged([settings[row] for row in rows]) for rows in equal)
    return Front(
        title=title,
        cloud=_cloud(triples, usable),
        rate=rate,
        peak=numbers(best, PEAK),
        low=numbers(best, LOW),
        high=numbers(best, HIGH),
        settings=shown,
        usable=usable,
        free=_free(numbers(best, PEAK), numbers(best, USABLE)),
        groups=layout_groups(rate, shown),
        equal=tuple(len(rows) for rows in equal),
        band=band_of_sweep(result, best.select(list(fields)).slice(0, 1).to_pylist()),
    )


def distinct(*columns: Floats) -> tuple[Ints, list[list[int]]]:
    """Return the first of all rows that are equal in some columns, and the rows of each."""
    of_key: dict[tuple[float, ...], list[int]] = {}
    for row, key in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        of_key.setdefault(key, []).append(row)
    return np.array([rows[0] for rows in of_key.values()], np.int64), list(of_key.values())


def layout_groups(rate: Floats, settings: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """Return the group of each row, the fastest first: those of one differ by less than noise.

    Rows that differ in anything but the layout are never of one group: another chip, model,
    batch or number of devices is not noise.
    """
    if not len(rate) or not settings[0]:
        return tuple(range(1, len(rate) + 1))
    return tuple(noise_groups(rate.max() / rate, settings, _layout_noise).tolist())


def _layout_noise(fields: Collection[str]) -> float:
    return pair_noise(fields) if all(is_layout(field) for field in fields) else 0.0


def _free(peak: Floats, usable: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(usable > 0.0, 1.0 - peak / usable, 0.0)


def band_of_sweep(result: SweepResult, settings: Sequence[Mapping[str, Any]]) -> Band | None:
    """Return the band of the time of the first row's job; None where it cannot be made again."""
    base = result.plan.space.get("base")
    if not settings or not isinstance(base, Mapping):
        return None
    try:
        job = load_job(base, settings[0])
    except ProjectorError:
        return None
    return time_band(job)


def front_of_search(result: SearchResult) -> Front:
    """Read the front and the cloud of a search; rows outside its limits are left out."""
    job = result.job
    tokens = job.training.global_batch_size * job.training.seq_length / job.cluster.gpus

    def rates(configurations: Iterable[Configuration]) -> Floats:
        return np.array([tokens / each.iteration_time_s for each in configurations], np.float64)

    def gib(configurations: Iterable[Configuration], name: str) -> Floats:
        return np.array([to_gib(getattr(each, name)) for each in configurations], np.float64)

    every = result.configurations
    place = {id(each): row for row, each in enumerate(every)}
    whole = result.speed_front
    kept, equal = distinct(rates(whole), gib(whole, "peak_bytes"))
    front = [whole[row] for row in kept.tolist()]
    settings = tuple(merged([_set_fields(whole[row].overrides) for row in rows]) for rows in equal)
    peak = gib(front, "peak_bytes")
    codes = np.array([VERDICTS.index(each.verdict) for each in every], np.int64)
    all_points = rates(every), gib(every, "peak_bytes"), codes
    limit_gib = [
        to_gib(candidate.peak_bytes + candidate.headroom_bytes)
        for candidate in result.configurations[:1]
    ]
    usable = (limit_gib[0], limit_gib[0]) if limit_gib else None
    name = f"{job.model.name} on {job.cluster.gpus:,} x {job.cluster.device.name}"
    return Front(
        title=name,
        cloud=_cloud(lambda: [all_points], usable),
        rate=rates(front),
        peak=peak,
        low=gib(front, "peak_low_bytes"),
        high=gib(front, "peak_high_bytes"),
        settings=settings,
        usable=usable,
        free=_free(peak, np.full(len(peak), usable[1] if usable else 0.0)),
        groups=tuple(result.groups[place[id(each)]] for each in front),
        equal=tuple(len(rows) for rows in equal),
        band=time_band(job),
    )


def _set_fields(overrides: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in overrides.items() if value is not None}


def _cloud(triples: Callable[[], Iterable[Triple]], usable: tuple[float, float] | None) -> Cloud:
    """Look at the rows twice: for their range, then to count them."""
    of_kind = np.zeros(len(VERDICTS), np.int64)
    ranges = [np.array([np.inf, -np.inf, 0.0]) for _ in VERDICTS]
    few: list[Triple] = []
    for rate, peak, verdict in triples():
        of_kind += np.bincount(verdict, minlength=len(VERDICTS))
        if of_kind.sum() <= FEW:
            few.append((rate, peak, verdict))
        for kind, range_ in enumerate(ranges):
            selected = (verdict == kind) & np.isfinite(rate) & np.isfinite(peak)
            if selected.any():
                range_[0] = min(range_[0], float(peak[selected].min()))
                range_[1] = max(range_[1], float(peak[selected].max()))
                range_[2] = max(range_[2], float(rate[selected].max()))
    shown = _shown(ranges, usable)
    edges = [
        np.linspace(*side, cells + 1)
        for side, cells in zip((shown[:2], shown[2:]), CELLS, strict=True)
    ]
    counts = tuple(np.zeros(CELLS) for _ in VERDICTS)
    inside, rows = 0, int(of_kind.sum())
    for rate, peak, verdict in triples():
        visible = (peak <= shown[1]) & (rate <= shown[3])
        inside += int(visible.sum())
        if rows > FEW:
            for kind, cells in enumerate(counts):
                selected = visible & (verdict == kind)
                cells[:] += np.histogram2d(peak[selected], rate[selected], edges)[0]
    return Cloud(
        rows=rows,
        fit=int(of_kind[VERDICTS.index(FITS)]),
        at_risk=int(of_kind[VERDICTS.index(AT_RISK)]),
        shown=shown,
        outside=rows - inside,
        points=tuple(few) if rows <= FEW else (),
        counts=None if rows <= FEW else counts,
    )


def _shown(
    ranges: Sequence[Floats], usable: tuple[float, float] | None
) -> tuple[float, float, float, float]:
    """Return the range of the figure: all rows that may fit, and rows slightly too large."""
    may_fit, others = _union(ranges[:-1]), ranges[-1]
    drawn = may_fit if np.isfinite(may_fit[0]) else others
    if not np.isfinite(drawn[0]):
        return 0.0, 1.0, 0.0, 1.0
    least, most, fastest = (float(value) for value in drawn)
    if drawn is may_fit and usable is not None:
        beyond = np.isfinite(others[0])
        most = max(most, usable[1] * (BEYOND if beyond else 1.02))
    elif usable is not None:
        # The figure shows by how much the rows are too large; far larger ones would hide it.
        least, most = min(least, 0.95 * usable[0]), min(most, max(4.0 * usable[1], 2.0 * least))
    room = 0.04 * (most - least) or 0.1 * most
    return max(0.0, least - room), most + room, 0.0, 1.08 * fastest


def _union(ranges: Sequence[Floats]) -> Floats:
    """Return the least, the most and the fastest of several ranges."""
    low, high, fastest = np.array(ranges).T
    return np.array([low.min(), high.max(), fastest.max()])


def _unit(values: Floats) -> Floats:
    spread = float(np.ptp(values))
    return (values - values.min()) / spread if spread else np.zeros(len(values))
