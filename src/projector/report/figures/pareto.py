"""The figure of speed against memory."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from projector.arrays import Floats
from projector.projection.bands import AT_RISK, COVERED, DOES_NOT_FIT, FITS, VERDICTS, WORDS
from projector.report.figures.axes import is_hardware, is_workload
from projector.report.figures.figure import (
    FAINT,
    INK,
    PALETTE,
    SOFT,
    WIDE,
    check_figure,
    figure_of,
    head,
    new_figure,
    number_ticks,
    one_line,
    save_figure,
)
from projector.report.figures.front import CELLS, Cloud, Front, front_of_search, front_of_sweep
from projector.report.figures.markers import draw_list, number_points
from projector.report.figures.names import title_of_sweep
from projector.report.figures.one_workload import MOST_WORKLOADS, workloads_of
from projector.report.figures.rows import configuration
from projector.searches.result import SearchResult
from projector.sweeps.result import SweepResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMED = 12
"""Points of the front that are named."""

FRONT = PALETTE[3]
KINDS = (
    (DOES_NOT_FIT, "#9A9A9A", "s", "Greys"),
    (AT_RISK, "#C2508F", "^", "RdPu"),
    (FITS, PALETTE[0], "o", "Blues"),
)
"""Verdict, colour, marker and shades of counted cells; what is drawn last lies on top."""

RATE_LABEL, PEAK_LABEL = "speed, tokens/s/GPU", "peak memory of the fullest rank, GiB"


def write_pareto(result: SweepResult | SearchResult, path: str | Path) -> None:
    """Draw speed against memory of all rows, with the front; a file appears whole or not at all."""
    check_figure(path)
    fronts = read_fronts(result)
    if len(fronts) == 1:
        save_figure(path, lambda: pareto_figure(fronts[0][1]))
        return
    title = title_of_sweep(result) if isinstance(result, SweepResult) else ""
    save_figure(path, lambda: workloads_figure(fronts, title))


def read_fronts(result: SweepResult | SearchResult) -> list[tuple[str, Front]]:
    """Return the front of each workload with its name, of the first `MOST_WORKLOADS`."""
    if isinstance(result, SearchResult):
        return [("", front_of_search(result))]
    found = workloads_of(result)
    return [(name, read_front(each)) for name, each in found[:MOST_WORKLOADS]]


def read_front(result: SweepResult | SearchResult) -> Front:
    """Return what the figure shows."""
    if isinstance(result, SearchResult):
        return front_of_search(result)
    return front_of_sweep(result, title_of_sweep(result))


def pareto_figure(front: Front) -> "Figure":
    """Draw the cloud, the front over it, and the list of its configurations."""
    cloud = front.cloud
    figure = new_figure(*WIDE)
    head(figure, f"Speed against memory: {front.title}", counts_of(front.cloud))
    axes, side = figure.subplots(1, 2, width_ratios=(1.0, 0.74))
    low, high, bottom, top = cloud.shown
    axes.set(xlim=(low, high), ylim=(bottom, max(top, _top_of_band(front))))
    axes.set_xlabel(PEAK_LABEL)
    axes.set_ylabel(RATE_LABEL)
    axes.grid(color=FAINT, lw=0.6)
    if not cloud.rows:
        axes.text(0.5, 0.5, "no row", ha="center", color=SOFT, transform=axes.transAxes)
    _draw_cloud(axes, cloud)
    _draw_limit(axes, front)
    if not len(front.rate):
        note = ""
        if cloud.rows:
            why = "What is left is at risk" if cloud.at_risk else "Nothing fits"
            note = f"{why}, so there is no front."
        _draw_legend(axes)
        draw_list(side, (), (), notes=[note] if note else [])
        return figure
    _draw_front(axes, front)
    _draw_legend(axes)
    _list_front(axes, side, front)
    return figure


def _draw_legend(axes: "Axes") -> None:
    if axes.get_legend_handles_labels()[0]:
        # Below the axes: inside there is no place that rows never reach.
        axes.legend(
            loc="upper left", bbox_to_anchor=(-0.02, -0.1), ncols=2, frameon=False, fontsize=9.0,
            columnspacing=1.4, handletextpad=0.6,
        )  # fmt: skip


def workloads_figure(fronts: Sequence[tuple[str, Front]], title: str) -> "Figure":
    """Draw a panel for each workload: its cloud, its front and its knee."""
    columns = min(3, len(fronts))
    lines = -(-len(fronts) // columns)
    figure = new_figure(*WIDE)
    head(
        figure, f"Speed against memory: {title}", "each workload by itself, with its fastest layout"
    )
    grid = figure.subplots(lines, columns, squeeze=False)
    every = [axes for line in grid for axes in line]
    handles: dict[str, Any] = {}
    for place, (axes, (name, front)) in enumerate(zip(every, fronts, strict=False)):
        axes.set_xlabel(PEAK_LABEL if place + columns >= len(fronts) else "", fontsize=9.5)
        axes.set_ylabel(RATE_LABEL if place % columns == 0 else "", fontsize=9.5)
        low, high, bottom, top = front.cloud.shown
        axes.set(xlim=(low, high), ylim=(bottom, max(top, _top_of_band(front))))
        axes.grid(color=FAINT, lw=0.6)
        _draw_cloud(axes, front.cloud, bar=False)
        _draw_limit(axes, front)
        said = ["nothing fits"]
        if len(front.rate):
            _draw_front(axes, front)
            said = [front.knee_text, configuration(_short(front))]
        text = [
            one_line(name, 44),
            *(line for each in said for line in textwrap.wrap(each, 52)[:2]),
        ]
        axes.set_title("\n".join(text), fontsize=8.8, fontweight="normal")
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            # Panels differ in numbers; what a mark means is the same in all.
            handles.setdefault(re.split(r"[:,]|^\d+ ", label)[0] or label, (handle, label))
    for axes in every[len(fronts) :]:
        axes.set_axis_off()
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


def _short(front: Front) -> Mapping[str, Any]:
    """Return the layout of the fastest: no numbers of hardware, nor what names the workload."""
    return {
        field: value
        for field, value in front.settings[0].items()
        if not is_hardware(field) and not is_workload(field)
    }


def _top_of_band(front: Front) -> float:
    ends = speed_band(front)
    return 1.03 * ends[1] if ends else 0.0


def speed_band(front: Front) -> tuple[float, float] | None:
    """Return where 68 % of measured speeds of the fastest lie; None where nothing is known."""
    band = front.band
    if band is None or band.low_68 is None or band.high_68 is None or not len(front.rate):
        return None
    fastest = float(front.rate.max())
    return fastest / band.high_68, fastest / band.low_68


def counts_of(cloud: Cloud) -> str:
    """Say how many rows there are, and how many lie outside of the figure."""
    fit = "all" if cloud.rows and cloud.fit == cloud.rows else f"{cloud.fit:,}"
    text = f"{cloud.rows:,} {'row' if cloud.rows == 1 else 'rows'}, {fit} fit"
    if cloud.at_risk:
        text += f", {cloud.at_risk:,} at risk"
    if cloud.outside:
        text += f"; {cloud.outside:,} lie outside of the figure"
    return text


def _draw_cloud(axes: "Axes", cloud: Cloud, *, bar: bool = True) -> None:
    if cloud.counts is not None:
        _draw_cells(axes, cloud, cloud.counts, bar=bar)
        return
    for name, colour, marker, _ in KINDS:
        kind = VERDICTS.index(name)
        rate = np.concatenate([part[0][part[2] == kind] for part in cloud.points] or [[]])
        peak = np.concatenate([part[1][part[2] == kind] for part in cloud.points] or [[]])
        if len(rate):
            axes.scatter(
                peak, rate, s=11, c=colour, alpha=0.45, linewidths=0, zorder=2, marker=marker,
            )  # fmt: skip
            axes.plot([], [], marker, ms=6, color=colour, label=WORDS[name])


def _draw_cells(
    axes: "Axes", cloud: Cloud, counts: tuple[Floats, ...], *, bar: bool = True
) -> None:
    """Shade cells by the logarithm of their rows, all verdicts on one scale."""
    from matplotlib.colors import LogNorm

    low, high, bottom, top = cloud.shown
    most = max(10.0, *(float(cells.max()) for cells in counts))
    norm = LogNorm(1.0, most)
    kinds = [(counts[VERDICTS.index(name)], shades, WORDS[name]) for name, *_, shades in KINDS]
    shown = [kind for kind in kinds if kind[0].any()]
    for cells, name, label in shown:
        shades = _shades(name)
        drawn = axes.pcolormesh(
            np.linspace(low, high, CELLS[0] + 1),
            np.linspace(bottom, top, CELLS[1] + 1),
            np.ma.masked_equal(cells.T, 0.0),
            cmap=shades,
            norm=norm,
            rasterized=True,
            zorder=2,
        )
        axes.plot([], [], "s", ms=7, color=shades(0.6), label=label)
    if not shown or not bar:
        return
    scale = figure_of(axes).colorbar(drawn, ax=axes, pad=0.012, fraction=0.04, aspect=34)
    number_ticks(scale.ax.yaxis, 1.0, most)
    scale.set_label("rows in a cell of the cloud", fontsize=9, color=SOFT)
    scale.ax.tick_params(labelsize=8.5)


def _shades(name: str) -> Any:
    """Return a scale without its palest part, which is lost on white."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(colormaps[name](np.linspace(0.28, 0.9, 256)))


def _draw_limit(axes: "Axes", front: Front) -> None:
    if front.usable is None:
        return
    low, high = front.usable
    label = f"usable memory, {low:,.1f} GiB"
    if high > low:
        label = f"usable memory, {low:,.1f} to {high:,.1f} GiB"
        axes.axvspan(low, high, color="#F3E9DE", lw=0, zorder=1)
    axes.axvline(low, color=INK, lw=1.0, ls=(0, (4, 3)), label=label, zorder=3)
    if high > low:
        axes.axvline(high, color=INK, lw=1.0, ls=(0, (4, 3)), zorder=3)


def _draw_front(axes: "Axes", front: Front) -> None:
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
            front.peak[front.knee], front.rate[front.knee], "D", ms=10.0, mfc="none", mec=INK,
            mew=1.4, zorder=7, label=front.knee_text, ls="",
        )  # fmt: skip
    axes.hlines(
        front.rate, front.low, front.high, color=FRONT, lw=1.0, alpha=0.45, zorder=4,
        label=f"{COVERED} % band of its peaks",
    )  # fmt: skip
    if (ends := speed_band(front)) is not None:
        fastest = float(front.peak[np.argmax(front.rate)])
        axes.vlines(
            fastest, *ends, color=FRONT, lw=1.0, ls=":", zorder=4,
            label="68 % band of the speed; all move together",
        )  # fmt: skip


def _list_front(axes: "Axes", side: "Axes", front: Front) -> None:
    """List points of the front beside their numbers, with groups where there are several."""
    named = front.chosen(NAMED)
    points = np.column_stack([front.peak[named], front.rate[named]])
    number_points(axes, points, np.full(len(named), 5.0))
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
    draw_list(side, columns, rows, notes=notes, wrap=32 if grouped else 38)
