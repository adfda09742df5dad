"""The figure of speed against memory."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from projector.arrays import Floats
from projector.projection.verdict import AT_RISK, COVERED, DOES_NOT_FIT, FITS, VERDICTS, WORDS
from projector.report.figures.figure import (
    FAINT,
    INK,
    PALETTE,
    SOFT,
    check_figure,
    figure_of,
    head,
    new_figure,
    number_ticks,
    save_figure,
)
from projector.report.figures.front import CELLS, Cloud, Front, front_of_search, front_of_sweep
from projector.report.figures.markers import draw_list, number_points
from projector.report.figures.names import title_of_sweep
from projector.searches.configurations import SearchResult
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

RATE_LABEL, PEAK_LABEL = "tokens/s/GPU", "peak memory of the fullest rank, GiB"


def write_pareto(result: SweepResult | SearchResult, path: str | Path) -> None:
    """Draw speed against memory of all rows, with the front; the file appears whole or not at all.

    Raises
    ------
    ConfigError
        If `check_figure` refuses the path, or the file cannot be written.
    """
    check_figure(path)
    front = read_front(result)
    save_figure(path, lambda: pareto_figure(front))


def read_front(result: SweepResult | SearchResult) -> Front:
    """Return what the figure shows."""
    if isinstance(result, SearchResult):
        return front_of_search(result)
    return front_of_sweep(result, title_of_sweep(result))


def pareto_figure(front: Front) -> "Figure":
    """Draw the cloud, the front over it, and the list of its configurations."""
    cloud = front.cloud
    figure = new_figure(14.0, 6.4)
    head(figure, f"Speed against memory: {front.title}", counts_of(cloud))
    axes, side = figure.subplots(1, 2, width_ratios=(1.0, 0.72))
    axes.set(xlim=cloud.shown[:2], ylim=cloud.shown[2:])
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
        draw_list(side, (), (), notes=[note] if note else [])
    else:
        _draw_front(axes, side, front)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", framealpha=0.9, edgecolor="none")
    return figure


def counts_of(cloud: Cloud) -> str:
    """Say how many rows there are, and how many lie outside of the figure."""
    fit = "all" if cloud.rows and cloud.fit == cloud.rows else f"{cloud.fit:,}"
    text = f"{cloud.rows:,} {'row' if cloud.rows == 1 else 'rows'}, {fit} fit"
    if cloud.at_risk:
        text += f", {cloud.at_risk:,} at risk"
    if cloud.outside:
        text += f"; {cloud.outside:,} lie outside of the figure"
    return text


def _draw_cloud(axes: "Axes", cloud: Cloud) -> None:
    if cloud.counts is not None:
        _draw_cells(axes, cloud, cloud.counts)
        return
    for name, colour, marker, _ in KINDS:
        kind = VERDICTS.index(name)
        rate = np.concatenate([part[0][part[2] == kind] for part in cloud.points] or [[]])
        peak = np.concatenate([part[1][part[2] == kind] for part in cloud.points] or [[]])
        if len(rate):
            axes.scatter(
                peak, rate, s=11, c=colour, alpha=0.45, linewidths=0, label=WORDS[name], zorder=2,
                marker=marker,
            )  # fmt: skip


def _draw_cells(axes: "Axes", cloud: Cloud, counts: tuple[Floats, ...]) -> None:
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
    if not shown:
        return
    bar = figure_of(axes).colorbar(drawn, ax=axes, pad=0.012, fraction=0.04, aspect=34)
    number_ticks(bar.ax.yaxis, 1.0, most)
    bar.set_label("rows in a cell of the cloud", fontsize=9, color=SOFT)
    bar.ax.tick_params(labelsize=8.5)


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


def _draw_front(axes: "Axes", side: "Axes", front: Front) -> None:
    order = np.argsort(front.peak, kind="stable")
    axes.step(
        front.peak[order], front.rate[order], where="post", color=FRONT, lw=1.4, zorder=5,
        label=f"front: {len(front.rate):,} that no other beats in both",
    )  # fmt: skip
    axes.plot(front.peak, front.rate, "o", ms=4.5, color=FRONT, mec="white", mew=0.6, zorder=6)
    axes.hlines(
        front.rate, front.low, front.high, color=FRONT, lw=1.0, alpha=0.45, zorder=4,
        label=f"{COVERED} % band of its peaks",
    )  # fmt: skip
    named = front.chosen(NAMED)
    points = np.column_stack([front.peak[named], front.rate[named]])
    number_points(axes, points, np.full(len(named), 5.0))
    texts, same = front.names(named)
    rows = [
        (str(number + 1), f"{rate:,.0f}", f"{peak:,.1f}", f"{high:,.1f}", text)
        for number, ((peak, rate), high, text) in enumerate(
            zip(points.tolist(), front.high[named].tolist(), texts, strict=True)
        )
    ]
    notes = [f"All of these: {same}"] if same else []
    if len(front.rate) > len(named):
        notes.append(f"{len(named)} of the {len(front.rate)} points of the front are named.")
    columns = (("", 0.0, "left"), (RATE_LABEL, 0.2, "right"), ("GiB", 0.285, "right"),
               ("to", 0.375, "right"), ("configuration", 0.42, "left"))  # fmt: skip
    draw_list(side, columns, rows, notes=notes, wrap=46)
