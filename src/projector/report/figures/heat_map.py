"""The figure of the best of a column over two axes of a sweep."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from projector.errors import ConfigError
from projector.report.figures.best_cells import KEY, MOST_CELLS, HeatMap, check_fields, heat_maps
from projector.report.figures.figure import (
    INK,
    PALETTE,
    SOFT,
    check_figure,
    head,
    new_figure,
    one_line,
    save_figure,
    short_number,
)
from projector.report.figures.names import title_of_sweep
from projector.report.figures.rows import RATE, more_is_better, value_text
from projector.sweeps.result import SweepResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_WRITTEN = 240
"""Cells up to which their values are written."""

_NOTHING_FITS, _HATCH, _BEST = "#D9D9D9", "#C4C4C4", PALETTE[3]
_SCALE = "cividis"
"""A scale that the colour-blind read like everyone else, and that prints in grey."""

_CELL_IN = 0.62, 0.36
_LETTER_IN = 0.085
_BESIDE_IN, _ABOVE_IN = 2.2, 2.0
"""Inches of a figure around the map: beside it, and above and below it."""
_LONGEST = 28
"""Characters of a value that an axis shows."""
_UPRIGHT = 4
"""Characters up to which values of a full axis lie flat."""


def write_heat_map(
    result: SweepResult, fields: Sequence[str], path: str | Path, column: str = RATE
) -> None:
    """Draw the best of a column over two axes; the file appears whole or not at all.

    Parameters
    ----------
    result : SweepResult
        Rows of a sweep.
    fields : sequence of str
        Two axes of the space or whole-number results such as ``gpus``; the last part of a dotted
        name is enough where it is clear.
    path : str or Path
        File to write.
    column : str
        Column of numbers.

    Raises
    ------
    ConfigError
        If the axis or column does not exist, or the file cannot be written.
    """
    check_figure(path)
    chosen = check_fields(fields, column, result.plan.kinds)
    (heat_map,) = heat_maps(result, [chosen])
    if heat_map is None:
        msg = f"{KEY}: {chosen[0]} and {chosen[1]} have more than {MOST_CELLS:,} pairs of values"
        raise ConfigError(msg, key=KEY, value=list(fields), allowed=f"<= {MOST_CELLS:,} pairs")
    save_figure(path, lambda: heat_map_figure(heat_map, title_of_sweep(result)))


def heat_map_figure(heat_map: HeatMap, title: str) -> "Figure":
    """Draw one heat map, with the values where they are few."""
    from matplotlib.colors import ListedColormap

    height, width = heat_map.best.shape
    size = _size(heat_map)
    figure = new_figure(*size)
    head(figure, *_heading(heat_map, title, round(size[0] * 9.5)))
    axes = figure.subplots()
    if not heat_map.rows.size:
        axes.text(0.5, 0.5, "no row", ha="center", color=SOFT, transform=axes.transAxes)
        axes.set_axis_off()
        return figure
    edges = np.arange(width + 1) - 0.5, np.arange(height + 1) - 0.5
    # Below everything: an uncovered cell has no job, and what stays grey does not fit.
    axes.patch.set(facecolor="white", edgecolor=_HATCH, hatch="////", linewidth=0.0)
    jobs = np.where(heat_map.rows > 0, 1.0, np.nan)
    axes.pcolormesh(*edges, jobs, cmap=ListedColormap([_NOTHING_FITS]), rasterized=True)
    few = width * height <= MOST_WRITTEN
    if np.isfinite(heat_map.best).any():
        drawn = axes.pcolormesh(
            *edges,
            np.ma.masked_invalid(heat_map.best),
            cmap=_SCALE if more_is_better(heat_map.column) else f"{_SCALE}_r",  # the best is bright
            rasterized=True,
            edgecolors="white" if few else "none",
            linewidth=0.8 if few else 0.0,
        )
        bar = figure.colorbar(drawn, ax=axes, pad=0.02, fraction=0.05)
        bar.set_label(heat_map.label, fontsize=9)
        _draw_best(axes, heat_map)
        if few:
            _write_values(axes, heat_map, drawn)
    _draw_axes(axes, heat_map, size)
    _draw_legend(figure, heat_map)
    return figure


def _size(heat_map: HeatMap) -> tuple[float, float]:
    """Return inches that give a cell its room as long as there are few."""
    height, width = heat_map.best.shape
    wide = float(np.clip(3.4 + _CELL_IN[0] * width, 7.5, 15.0))
    tall = float(np.clip(2.6 + _CELL_IN[1] * height, 4.6, 11.0))
    upright, _ = _labels(heat_map)
    return wide, tall + (_LETTER_IN * _longest(heat_map) if upright else 0.0)


def _labels(heat_map: HeatMap) -> tuple[bool, float]:
    """Tell whether values of the lower axis are upright, and the inches that each takes."""
    flat_in = _LETTER_IN * _longest(heat_map) + 0.1
    width = heat_map.best.shape[1]
    wide = float(np.clip(3.4 + _CELL_IN[0] * width, 7.5, 15.0)) - _BESIDE_IN
    upright = flat_in * width > wide and _longest(heat_map) > _UPRIGHT
    return upright, 0.2 if upright else flat_in


def _longest(heat_map: HeatMap) -> int:
    return max((len(_cut(value_text(value))) for value in heat_map.values[0]), default=0)


def _heading(heat_map: HeatMap, title: str, characters: int) -> tuple[str, str]:
    others = ", ".join(name.rpartition(".")[2] for name in heat_map.over)
    over = f"in each cell the best over {others}" if others else "one configuration in each cell"
    return f"{heat_map.label}, {title}", "\n".join(textwrap.wrap(over, characters))


def _draw_best(axes: "Axes", heat_map: HeatMap) -> None:
    """Frame the best cell of all."""
    from matplotlib.patches import Rectangle

    sign = 1.0 if more_is_better(heat_map.column) else -1.0
    y, x = np.unravel_index(int(np.nanargmax(sign * heat_map.best)), heat_map.best.shape)
    axes.add_patch(
        Rectangle(
            (x - 0.5, y - 0.5), 1.0, 1.0, fill=False, ec=_BEST, lw=2.4, zorder=4, clip_on=False
        )
    )


def _write_values(axes: "Axes", heat_map: HeatMap, drawn: Any) -> None:
    """Write the value of each cell, white where the cell is dark."""
    colours = drawn.get_cmap()(drawn.norm(heat_map.best))
    light = colours[..., :3] @ np.array([0.2126, 0.7152, 0.0722]) > 0.45
    for (y, x), value in np.ndenumerate(heat_map.best):
        if not np.isnan(value):
            axes.text(
                x, y, cell_text(float(value)), ha="center", va="center", fontsize=8.5,
                color=INK if light[y, x] else "white",
            )  # fmt: skip


def cell_text(value: float) -> str:
    """Write the value of a cell: cells that differ by a percent are to differ here too."""
    return f"{value:,.0f}" if 100.0 <= abs(value) < 99_999.5 else short_number(value)


def _draw_axes(axes: "Axes", heat_map: HeatMap, size: tuple[float, float]) -> None:
    """Write the values of both axes, each so many that none meets the next."""
    texts = [[value_text(value) for value in values] for values in heat_map.values]
    upright, room_in = _labels(heat_map)
    for axis, names, wide, least, rotation in (
        (axes.xaxis, texts[0], size[0] - _BESIDE_IN, room_in, 90 if upright else 0),
        (axes.yaxis, texts[1], size[1] - _ABOVE_IN, 0.2, 0),
    ):
        step = max(1, int(np.ceil(least * len(names) / wide)))
        ticks = range(0, len(names), step)
        axis.set_ticks(ticks, [_cut(names[tick]) for tick in ticks], rotation=rotation)
    axes.tick_params(length=0)
    axes.set_xlabel(heat_map.fields[0])
    axes.set_ylabel(heat_map.fields[1])
    for side in axes.spines.values():
        side.set_visible(False)


def _draw_legend(figure: "Figure", heat_map: HeatMap) -> None:
    """Say what empty cells mean, where there are any, and which cell is framed."""
    from matplotlib.patches import Patch

    legal, fits = heat_map.rows > 0, np.isfinite(heat_map.best)
    handles = []
    if fits.any():
        handles.append(Patch(fc="none", ec=_BEST, lw=2.0, label="best of all"))
    if (legal & ~fits).any():
        handles.append(Patch(fc=_NOTHING_FITS, label="nothing fits"))
    if not legal.all():
        handles.append(Patch(fc="white", ec=_HATCH, hatch="////", lw=0.0, label="no legal job"))
    figure.legend(handles=handles, loc="outside lower left", ncols=3, frameon=False)


def _cut(text: str) -> str:
    text = one_line(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
