"""Speed against memory: the rows of a sweep or search, their front, and the figure."""

import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from projector.arrays import Floats, Ints
from projector.config.bands import Band
from projector.config.load import load_job
from projector.errors import ProjectorError
from projector.projection import bands
from projector.report.figures import figure as fig
from projector.report.figures import rows as swept
from projector.report.terminal.job import short_title
from projector.searches.ranking import Configuration, noise_groups, pair_noise
from projector.searches.result import SearchResult
from projector.sweeps.result import VERDICT_COLUMNS, SweepResult, numbers, standings
from projector.units import to_gib

# Speed against memory: all rows as a cloud, and the Pareto front.
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
        same = swept.shared(settings) if len(settings) > 1 else {}
        apart = [swept.configuration(setting) for setting in swept.differing(settings)]
        return apart, swept.configuration(same)


def front_of_sweep(result: SweepResult, title: str) -> Front:
    """Read the front and the cloud of a sweep, one chunk at a time."""
    low, high = np.inf, -np.inf

    def triples() -> Iterable[Triple]:
        for table in result.tables([swept.RATE, swept.PEAK, *VERDICT_COLUMNS]):
            rate, peak = (numbers(table, name) for name in (swept.RATE, swept.PEAK))
            yield rate, peak, standings(table)

    for table in result.tables([swept.USABLE, *VERDICT_COLUMNS]):
        # Rows that leave no memory at all say nothing about the devices of the others.
        may_fit = standings(table) != bands.VERDICTS.index(bands.DOES_NOT_FIT)
        usable_gib = numbers(table, swept.USABLE)[may_fit]
        if len(usable_gib):
            low = min(low, float(np.nanmin(usable_gib)))
            high = max(high, float(np.nanmax(usable_gib)))
    usable = (low, high) if high > 0.0 and np.isfinite(low) else None
    best = result.pareto([swept.RATE, swept.PEAK])
    fields = swept.axes_of(result.columns)
    settings = best.select(swept.untied(result.plan, fields)).to_pylist()
    kept, equal = distinct(numbers(best, swept.RATE), numbers(best, swept.PEAK))
    best = best.take(kept)
    rate = numbers(best, swept.RATE)
    shown = tuple(swept.merged([settings[row] for row in rows]) for rows in equal)
    return Front(
        title=title,
        cloud=_cloud(triples, usable),
        rate=rate,
        peak=numbers(best, swept.PEAK),
        low=numbers(best, swept.LOW),
        high=numbers(best, swept.HIGH),
        settings=shown,
        usable=usable,
        free=_free(numbers(best, swept.PEAK), numbers(best, swept.USABLE)),
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
    return pair_noise(fields) if all(swept.is_layout(field) for field in fields) else 0.0


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
    return bands.time_band(job)


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
    settings = tuple(
        swept.merged([set_fields(whole[row].overrides) for row in rows]) for rows in equal
    )
    peak = gib(front, "peak_bytes")
    codes = np.array([bands.VERDICTS.index(each.verdict) for each in every], np.int64)
    all_points = rates(every), gib(every, "peak_bytes"), codes
    limit_gib = to_gib(every[0].peak_bytes + every[0].headroom_bytes) if every else 0.0
    usable = (limit_gib, limit_gib) if every else None
    return Front(
        title=short_title(job),
        cloud=_cloud(lambda: [all_points], usable),
        rate=rates(front),
        peak=peak,
        low=gib(front, "peak_low_bytes"),
        high=gib(front, "peak_high_bytes"),
        settings=settings,
        usable=usable,
        free=_free(peak, np.full(len(peak), limit_gib)),
        groups=tuple(result.groups[place[id(each)]] for each in front),
        equal=tuple(len(rows) for rows in equal),
        band=bands.time_band(job),
    )


def set_fields(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return what overrides set, without what they leave open."""
    return {name: value for name, value in overrides.items() if value is not None}


def _cloud(triples: Callable[[], Iterable[Triple]], usable: tuple[float, float] | None) -> Cloud:
    """Look at the rows twice: for their range, then to count them."""
    of_kind = np.zeros(len(bands.VERDICTS), np.int64)
    ranges = [np.array([np.inf, -np.inf, 0.0]) for _ in bands.VERDICTS]
    few: list[Triple] = []
    for rate, peak, verdict in triples():
        of_kind += np.bincount(verdict, minlength=len(bands.VERDICTS))
        if of_kind.sum() <= FEW:
            few.append((rate, peak, verdict))
        for kind, range_ in enumerate(ranges):
            selected = (verdict == kind) & np.isfinite(rate) & np.isfinite(peak)
            if selected.any():
                range_[0] = min(range_[0], float(peak[selected].min()))
                range_[1] = max(range_[1], float(peak[selected].max()))
                range_[2] = max(range_[2], float(rate[selected].max()))
    shown = _shown(ranges, usable)
    sides = zip((shown[:2], shown[2:]), CELLS, strict=True)
    edges = [np.linspace(*side, cells + 1) for side, cells in sides]
    counts = tuple(np.zeros(CELLS) for _ in bands.VERDICTS)
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
        fit=int(of_kind[bands.VERDICTS.index(bands.FITS)]),
        at_risk=int(of_kind[bands.VERDICTS.index(bands.AT_RISK)]),
        shown=shown,
        outside=rows - inside,
        points=tuple(few) if rows <= FEW else (),
        counts=None if rows <= FEW else counts,
    )


def _shown(
    ranges: Sequence[Floats], usable: tuple[float, float] | None
) -> tuple[float, float, float, float]:
    """Return the range of the figure: all rows that may fit, and rows slightly too large."""
    low, high, fastest = np.array(ranges[:-1]).T
    may_fit, others = np.array([low.min(), high.max(), fastest.max()]), ranges[-1]
    drawn = may_fit if np.isfinite(may_fit[0]) else others
    if not np.isfinite(drawn[0]):
        return 0.0, 1.0, 0.0, 1.0
    least, most, fastest = (float(value) for value in drawn)
    if drawn is may_fit and usable is not None:
        most = max(most, usable[1] * (BEYOND if np.isfinite(others[0]) else 1.02))
    elif usable is not None:
        # The figure shows by how much the rows are too large; far larger ones would hide it.
        least, most = min(least, 0.95 * usable[0]), min(most, max(4.0 * usable[1], 2.0 * least))
    room = 0.04 * (most - least) or 0.1 * most
    return max(0.0, least - room), most + room, 0.0, 1.08 * fastest


def _unit(values: Floats) -> Floats:
    spread = float(np.ptp(values))
    return (values - values.min()) / spread if spread else np.zeros(len(values))


# The figure.

NAMED = 12
"""Points of the front that are named."""

FRONT = fig.PALETTE[3]
KINDS = (
    (bands.DOES_NOT_FIT, "#9A9A9A", "s", "Greys"),
    (bands.AT_RISK, "#C2508F", "^", "RdPu"),
    (bands.FITS, fig.PALETTE[0], "o", "Blues"),
)
"""Verdict, colour, marker and shades of counted cells; what is drawn last lies on top."""

RATE_LABEL, PEAK_LABEL = "speed, tokens/s/GPU", "peak memory of the fullest rank, GiB"


def write_pareto(result: SweepResult | SearchResult, path: str | Path) -> None:
    """Draw speed against memory of all rows, with the front; a file appears whole or not at all."""
    fig.check_figure(path)
    fronts = read_fronts(result)
    if len(fronts) == 1:
        fig.save_figure(path, lambda: pareto_figure(fronts[0][1]))
        return
    title = swept.title_of_sweep(result) if isinstance(result, SweepResult) else ""
    fig.save_figure(path, lambda: workloads_figure(fronts, title))


def read_fronts(result: SweepResult | SearchResult) -> list[tuple[str, Front]]:
    """Return the front of each workload with its name, of the first `MOST_WORKLOADS`."""
    found = [("", result)] if isinstance(result, SearchResult) else swept.workloads_of(result)
    return [(name, read_front(each)) for name, each in found[: swept.MOST_WORKLOADS]]


def read_front(result: SweepResult | SearchResult) -> Front:
    """Return what the figure shows."""
    if isinstance(result, SearchResult):
        return front_of_search(result)
    return front_of_sweep(result, swept.title_of_sweep(result))


def pareto_figure(front: Front) -> fig.Figure:
    """Draw the cloud, the front over it, and the list of its configurations."""
    cloud = front.cloud
    figure = fig.new_figure(*fig.WIDE, f"Speed against memory: {front.title}", counts_of(cloud))
    axes, side = figure.subplots(1, 2, width_ratios=(1.0, 0.74))
    low, high, bottom, top = cloud.shown
    axes.set(xlim=(low, high), ylim=(bottom, max(top, _top_of_band(front))))
    fig.label(axes, PEAK_LABEL, RATE_LABEL, grid="both")
    if not cloud.rows:
        fig.nothing(axes, "no row")
    _draw_cloud(axes, cloud)
    _draw_limit(axes, front)
    if len(front.rate):
        _draw_front(axes, front)
    if axes.get_legend_handles_labels()[0]:
        # Below the axes: inside there is no place that rows never reach.
        axes.legend(
            loc="upper left", bbox_to_anchor=(-0.02, -0.1), ncols=2, frameon=False, fontsize=9.0,
            columnspacing=1.4, handletextpad=0.6,
        )  # fmt: skip
    if len(front.rate):
        _list_front(axes, side, front)
    else:
        why = "What is left is at risk" if cloud.at_risk else "Nothing fits"
        notes = [f"{why}, so there is no front."] if cloud.rows else []
        fig.draw_list(side, (), (), notes=notes)
    return figure


def workloads_figure(fronts: Sequence[tuple[str, Front]], title: str) -> fig.Figure:
    """Draw a panel for each workload: its cloud, its front and its knee."""
    columns = min(3, len(fronts))
    note = "each workload by itself, with its fastest layout"
    figure = fig.new_figure(*fig.WIDE, f"Speed against memory: {title}", note)
    every = fig.panels(figure, len(fronts), columns)
    handles: dict[str, Any] = {}
    for place, (axes, (name, front)) in enumerate(zip(every, fronts, strict=True)):
        axes.set_xlabel(PEAK_LABEL if place + columns >= len(fronts) else "", fontsize=9.5)
        axes.set_ylabel(RATE_LABEL if place % columns == 0 else "", fontsize=9.5)
        low, high, bottom, top = front.cloud.shown
        top = max(top, _top_of_band(front))
        fig.label(axes, xlim=(low, high), ylim=(bottom, top), grid="both")
        _draw_cloud(axes, front.cloud, bar=False)
        _draw_limit(axes, front)
        said = ["nothing fits"]
        if len(front.rate):
            _draw_front(axes, front)
            # Of the fastest, without numbers of hardware and what names the workload.
            layout = {
                field: value
                for field, value in front.settings[0].items()
                if not swept.is_hardware(field) and not swept.is_workload(field)
            }
            said = [front.knee_text, swept.configuration(layout)]
        text = [
            fig.one_line(name, 44),
            *(line for each in said for line in textwrap.wrap(each, 52)[:2]),
        ]
        axes.set_title("\n".join(text), fontsize=8.8, fontweight="normal")
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            # Panels differ in numbers; what a mark means is the same in all.
            handles.setdefault(re.split(r"[:,]|^\d+ ", label)[0] or label, (handle, label))
    figure.legend(
        [handle for handle, _ in handles.values()],
        [_MEANS.get(name, name) for name in handles],
        loc="outside lower left", ncols=4, frameon=False,
    )  # fmt: skip
    return figure


_MEANS = {
    "": "as fast as the fastest, within noise",
    "front": "front: no other beats these in both",
    "knee": "knee",
}
"""Beginning of a label -> what stands in the legend of several panels."""


def _top_of_band(front: Front) -> float:
    return 1.03 * (speed_band(front) or (0.0, 0.0))[1]


def speed_band(front: Front) -> tuple[float, float] | None:
    """Return where 68 % of measured speeds of the fastest lie; None where nothing is known."""
    ends = front.band.limits(68) if front.band is not None and len(front.rate) else None
    return None if ends is None else (front.rate.max() / ends[1], front.rate.max() / ends[0])


def counts_of(cloud: Cloud) -> str:
    """Say how many rows there are, and how many lie outside of the figure."""
    fit = "all" if cloud.rows and cloud.fit == cloud.rows else f"{cloud.fit:,}"
    text = f"{cloud.rows:,} {'row' if cloud.rows == 1 else 'rows'}, {fit} fit"
    if cloud.at_risk:
        text += f", {cloud.at_risk:,} at risk"
    if cloud.outside:
        text += f"; {cloud.outside:,} lie outside of the figure"
    return text


def _draw_cloud(axes: fig.Axes, cloud: Cloud, *, bar: bool = True) -> None:
    if cloud.counts is not None:
        _draw_cells(axes, cloud, cloud.counts, bar=bar)
        return
    for name, colour, marker, _ in KINDS:
        kind = bands.VERDICTS.index(name)
        rate = np.concatenate([part[0][part[2] == kind] for part in cloud.points] or [[]])
        peak = np.concatenate([part[1][part[2] == kind] for part in cloud.points] or [[]])
        if len(rate):
            axes.scatter(
                peak, rate, s=11, c=colour, alpha=0.45, linewidths=0, zorder=2, marker=marker,
            )  # fmt: skip
            axes.plot([], [], marker, ms=6, color=colour, label=bands.WORDS[name])


def _draw_cells(
    axes: fig.Axes, cloud: Cloud, counts: tuple[Floats, ...], *, bar: bool = True
) -> None:
    """Shade cells by the logarithm of their rows, all verdicts on one scale."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap, LogNorm

    low, high, bottom, top = cloud.shown
    most = max(10.0, *(float(cells.max()) for cells in counts))
    norm = LogNorm(1.0, most)
    kinds = [
        (counts[bands.VERDICTS.index(name)], shades, bands.WORDS[name])
        for name, *_, shades in KINDS
    ]
    shown = [kind for kind in kinds if kind[0].any()]
    edges = np.linspace(low, high, CELLS[0] + 1), np.linspace(bottom, top, CELLS[1] + 1)
    for cells, name, label in shown:
        # Without its palest part, which is lost on white.
        shades = ListedColormap(colormaps[name](np.linspace(0.28, 0.9, 256)))
        counted = np.ma.masked_equal(cells.T, 0.0)
        drawn = axes.pcolormesh(*edges, counted, cmap=shades, norm=norm, rasterized=True, zorder=2)
        axes.plot([], [], "s", ms=7, color=shades(0.6), label=label)
    if not shown or not bar:
        return
    scale = fig.figure_of(axes).colorbar(drawn, ax=axes, pad=0.012, fraction=0.04, aspect=34)
    fig.number_ticks(scale.ax.yaxis, 1.0, most)
    scale.set_label("rows in a cell of the cloud", fontsize=9, color=fig.SOFT)
    scale.ax.tick_params(labelsize=8.5)


def _draw_limit(axes: fig.Axes, front: Front) -> None:
    if front.usable is None:
        return
    low, high = front.usable
    label = f"usable memory, {low:,.1f} GiB"
    if high > low:
        label = f"usable memory, {low:,.1f} to {high:,.1f} GiB"
        axes.axvspan(low, high, color="#F3E9DE", lw=0, zorder=1)
    axes.axvline(low, color=fig.INK, lw=1.0, ls=(0, (4, 3)), label=label, zorder=3)
    if high > low:
        axes.axvline(high, color=fig.INK, lw=1.0, ls=(0, (4, 3)), zorder=3)


def _draw_front(axes: fig.Axes, front: Front) -> None:
    order = np.argsort(front.peak, kind="stable")
    axes.step(
        front.peak[order], front.rate[order], where="post", color=FRONT, lw=1.4, zorder=5,
        label=f"front: {len(front.rate):,} that no other beats in both",
    )  # fmt: skip
    same = np.flatnonzero(np.array(front.groups) == 1)
    if len(same) > 1:
        axes.plot(
            front.peak[same], front.rate[same], "o", ms=11.0, color=FRONT, alpha=0.28, mew=0,
            zorder=4.5, label=f"{len(same)} as fast as the fastest, within noise",
        )  # fmt: skip
    axes.plot(front.peak, front.rate, "o", ms=4.5, color=FRONT, mec="white", mew=0.6, zorder=6)
    if front.knee is not None and front.knee_text:
        axes.plot(
            front.peak[front.knee], front.rate[front.knee], "D", ms=10.0, mfc="none", mec=fig.INK,
            mew=1.4, zorder=7, label=front.knee_text, ls="",
        )  # fmt: skip
    axes.hlines(
        front.rate, front.low, front.high, color=FRONT, lw=1.0, alpha=0.45, zorder=4,
        label=f"{bands.COVERED} % band of its peaks",
    )  # fmt: skip
    if (ends := speed_band(front)) is not None:
        axes.vlines(
            float(front.peak[np.argmax(front.rate)]), *ends, color=FRONT, lw=1.0, ls=":", zorder=4,
            label="68 % band of the speed; all move together",
        )  # fmt: skip


def _list_front(axes: fig.Axes, side: fig.Axes, front: Front) -> None:
    """List points of the front beside their numbers, with groups where there are several."""
    named = front.chosen(NAMED)
    points = np.column_stack([front.peak[named], front.rate[named]])
    fig.number_points(axes, points, np.full(len(named), 5.0))
    texts, same = front.names(named)
    grouped = len(set(front.groups)) < len(front.groups)
    rows = [
        (
            str(place + 1),
            f"{front.rate[row]:,.0f}",
            f"{front.peak[row]:,.1f}",
            f"{front.high[row]:,.1f}",
            *([str(front.groups[row])] if grouped else []),
            f"{text} (knee)" if row == front.knee and front.knee_text else text,
        )
        for place, (row, text) in enumerate(zip(named.tolist(), texts, strict=True))
    ]
    notes = [f"All of these: {same}"] if same else []
    if grouped:
        notes.append("Layouts of one group differ by less than the noise of a comparison.")
    if len(front.rate) > len(named):
        notes.append(f"{len(named)} of the {len(front.rate)} points of the front are named.")
    if any(number > 1 for number in front.equal):
        notes.append("Rows that are equal in speed and memory are named once.")
    columns = [("", 0.0, "left"), ("tokens/s/GPU", 0.22, "right"), ("GiB", 0.315, "right"),
               ("to GiB", 0.415, "right")]  # fmt: skip
    columns += [("group", 0.515, "right")] if grouped else []
    columns.append(("configuration", columns[-1][1] + 0.035, "left"))
    fig.draw_list(side, columns, rows, notes=notes, wrap=32 if grouped else 38)
