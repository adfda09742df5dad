"""The map of what bounds a step, as a picture."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from projector.arrays import Floats
from projector.report.figures.figure import INK, SOFT, WIDE, new_figure, save_figure
from projector.report.figures.words import label_of, relative_ticks
from projector.report.terminal.bottleneck import three_digits
from projector.report.terminal.job import short_title
from projector.searches.bottleneck import CLASSES, BottleneckMap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Okabe and Ito's palette, which keeps apart for the colour-blind; idle is grey.
COLOURS = {
    "compute": "#56B4E9",
    "memory": "#E69F00",
    "communication": "#009E73",
    "latency": "#CC79A7",
    "bubble": "#A6A6A6",
}
NO_JOB = "#FFFFFF"

MOST_PRINTED = 81
"""Cells with their step printed in them; more have contours."""

FEW_TICKS = 9

LONG_S = 10.0
"""Longest step of a map from which all of them are written in seconds."""


def write_maps(maps: Sequence[BottleneckMap], path: str | Path) -> None:
    """Draw maps side by side; the file appears whole or not at all."""
    save_figure(path, lambda: map_figure(maps))


def map_figure(maps: Sequence[BottleneckMap]) -> "Figure":
    """Draw each map as cells in the colours of their classes, with the step and the job's place."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    figure = new_figure(min(1.2 + 6.4 * len(maps), max(WIDE[0], 4.4 * len(maps))), 6.2, wspace=0.02)
    for axes, bottleneck_map in zip(
        figure.subplots(1, len(maps), squeeze=False)[0], maps, strict=True
    ):
        _draw(axes, bottleneck_map)
    cells = [cell for bottleneck_map in maps for row in bottleneck_map.cells for cell in row]
    seen = {cell.bound for cell in cells if cell is not None}
    handles = [
        Patch(facecolor=COLOURS[name], label=f"{name}-bound") for name in CLASSES if name in seen
    ]
    if None in cells:
        handles.append(Patch(facecolor=NO_JOB, edgecolor=SOFT, hatch="///", label="no job"))
    job = Line2D([], [], marker="o", color=INK, markerfacecolor="white", linestyle="", label="job")
    figure.legend(
        handles=[*handles, job], loc="outside lower center", ncols=len(handles) + 1, frameon=False
    )
    return figure


def _draw(axes: "Axes", bottleneck_map: BottleneckMap) -> None:
    from matplotlib.colors import ListedColormap

    codes = np.array(
        [
            [-1 if cell is None else CLASSES.index(cell.bound) for cell in row]
            for row in bottleneck_map.cells
        ]
    )
    seconds = np.array(
        [
            [np.nan if cell is None else cell.iteration_time_s for cell in row]
            for row in bottleneck_map.cells
        ]
    )
    colours = ListedColormap([NO_JOB, *(COLOURS[name] for name in CLASSES)])
    axes.imshow(
        codes, origin="lower", aspect="auto", cmap=colours, vmin=-1.5, vmax=len(CLASSES) - 0.5,
        interpolation="nearest",
    )  # fmt: skip
    for y, x in np.argwhere(codes < 0).tolist():
        axes.fill_between(
            [x - 0.5, x + 0.5], y - 0.5, y + 0.5, facecolor="none", edgecolor="#D0D0D0",
            hatch="///", linewidth=0.0,
        )  # fmt: skip
    if codes.size <= MOST_PRINTED or min(codes.shape) < 3:
        _print_steps(axes, seconds)
    else:
        _draw_contours(axes, seconds)
    job_cell = (
        bottleneck_map.x.values.index(bottleneck_map.x.value),
        bottleneck_map.y.values.index(bottleneck_map.y.value),
    )
    # Beside the number, where numbers are printed.
    beside = -0.4 if codes.size <= MOST_PRINTED or min(codes.shape) < 3 else 0.0
    axes.plot(
        job_cell[0] + beside, job_cell[1], marker="o", color=INK, markerfacecolor="white",
        markersize=7,
    )  # fmt: skip
    for axis, which, set_label in (
        (axes.xaxis, bottleneck_map.x, axes.set_xlabel),
        (axes.yaxis, bottleneck_map.y, axes.set_ylabel),
    ):
        step = max(1, -(-len(which.values) // FEW_TICKS))
        places = range(which.values.index(which.value) % step, len(which.values), step)
        relative = relative_ticks(which.field, which.values, float(which.value))
        texts = relative.texts if relative else [three_digits(value) for value in which.values]
        axis.set_ticks(places, [texts[place] for place in places])
        set_label(relative.label if relative else label_of(which.field))
    title = f"What bounds the step: {short_title(bottleneck_map.job)}"
    axes.set_title("\n".join(textwrap.wrap(title, 56)), fontsize=10.5)


def step_text(seconds: float, longest: float) -> str:
    """Write the time of a step in the unit of its map: ms, or seconds where steps are long."""
    if longest >= LONG_S:
        return f"{three_digits(seconds)} s"
    return f"{three_digits(1e3 * seconds)} ms"


def _print_steps(axes: "Axes", seconds: Floats) -> None:
    for (y, x), step_s in np.ndenumerate(seconds):
        if np.isfinite(step_s):
            axes.text(
                x,
                y,
                step_text(float(step_s), float(np.nanmax(seconds))),
                ha="center",
                va="center",
                fontsize=8.0,
                color=INK,
            )


def _draw_contours(axes: "Axes", seconds: Floats) -> None:
    """Draw lines of equal step, evenly spaced in its logarithm."""
    low, high = float(np.nanmin(seconds)), float(np.nanmax(seconds))
    if high <= low * 1.001:
        return
    levels = np.geomspace(low, high, 9)[1:-1]
    lines = axes.contour(
        np.ma.masked_invalid(seconds), levels=levels, colors=INK, linewidths=0.8, alpha=0.75
    )
    axes.clabel(lines, fmt=lambda level: step_text(float(level), high), fontsize=8.0)
