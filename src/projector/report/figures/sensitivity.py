"""Figures of `sensitivity`: the tornado, Sobol indices, the map of what bounds a step."""

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from projector.arrays import Floats
from projector.config.resources import hardware_table
from projector.report.figures import figure as fig
from projector.report.figures.rows import title_of_jobs
from projector.report.figures.words import label_of, labels_of, relative_ticks
from projector.report.terminal.job import short_title
from projector.report.terminal.sensitivity import MOST_PANELS, three_digits
from projector.searches.bottleneck import CLASSES, BottleneckMap
from projector.searches.sensitivity import Sensitivity, SharedSensitivity
from projector.searches.sobol import SobolIndex, SobolIndices

BETTER, WORSE = "#3A7D5C", "#C0663A"
"""Bars: what shortens the step and what lengthens it."""

BAR_IN = 0.3


def tornado_figure(sensitivity: Sensitivity | SharedSensitivity, top: int) -> fig.Figure:
    """Draw the tornado: one bar a field, from its shortest to its longest step."""
    shown = [effect for effect in sensitivity.effects[:top] if effect.swing > 0.0]
    jobs, mean = [], ""
    if isinstance(sensitivity, SharedSensitivity):
        jobs = [each.job for each in sensitivity.workloads]
        mean = f", geometric mean of {len(jobs)} workloads"
    else:
        jobs = [sensitivity.job]
    note = f"change of the time of a step with each number {100.0 * sensitivity.change:g} % less "
    title, height_in = f"What matters: {title_of_jobs(jobs)}", 1.9 + BAR_IN * max(1, len(shown))
    figure = fig.new_figure(9.0, height_in, title, f"{note}and more{mean}", wspace=0.02)
    axes = figure.subplots()
    for row, effect in enumerate(shown):
        for seconds, text in ((effect.low_s, "less"), (effect.high_s, "more")):
            share = 100.0 * (seconds / effect.base_s - 1.0)
            if share:
                axes.barh(row, share, height=0.68, color=BETTER if share < 0.0 else WORSE)
                shift, side = (4, "left") if share > 0.0 else (-4, "right")
                style = {"va": "center", "fontsize": 8.5, "color": fig.SOFT, "ha": side}
                fig.beside(axes, text, (share, row), (shift, 0), **style)
    axes.axvline(0.0, color=fig.INK, linewidth=0.8)
    _name_rows(axes, [effect.field for effect in shown], 44)
    axes.margins(x=0.09)
    fig.label(axes, "change of the time of a step, %", grid="x")
    return figure


# Sobol indices as bars.
ALONE, TOTAL = "#0072B2", "#E69F00"
"""Bars of S1 and of ST."""

ROW_IN = 0.44

WIDE_INTERVAL = 0.1
"""Half width of an interval from which samples are called few: a tenth of the variance."""


def sobol_figure(sobol: SobolIndices) -> fig.Figure:
    """Draw S1 and ST of every field as bars with their intervals, a panel for each workload."""
    jobs = [workload.job for workload in sobol.workloads]
    panels: list[tuple[str, Sequence[SobolIndex]]]
    panels = [("geometric mean" if len(jobs) > 1 else "", sobol.indices)]
    if 1 < len(jobs) < MOST_PANELS:
        panels += zip(_panel_titles(sobol), sobol.by_workload, strict=True)
    width_in = min(fig.WIDE[0], 4.6 + 3.2 * len(panels))
    figure = fig.new_figure(width_in, 2.5 + ROW_IN * len(sobol.indices), w_pad=0.1, wspace=0.02)
    widest = max((max(e.s1_interval, e.st_interval) for e in sobol.indices), default=0.0)
    text = (
        f"Sobol indices: each field from 1/{sobol.factor:g} to {sobol.factor:g} times its value; "
        f"{sobol.samples:,} samples, lines are 95 % intervals"
    )
    if widest > WIDE_INTERVAL:
        text += f"\nFew samples: intervals reach ±{widest:.2f}; more samples narrow them"
    fig.head(figure, f"What the time of a step depends on: {title_of_jobs(jobs)}", text)
    all_axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (name, indices) in zip(all_axes, panels, strict=True):
        _draw(axes, indices)
        if name:
            axes.set_title("\n".join(textwrap.wrap(name, 30)), fontsize=9.5)
    first = all_axes[0]
    # Axes are shared: limits are those of every panel, or some would be clipped.
    first.set_xlim(limits(sobol))
    _name_rows(first, [index.field for index in sobol.indices], 30)
    handles, names = first.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower right", ncols=2, frameon=False)
    return figure


def _name_rows(axes: fig.Axes, fields: Sequence[str], longest: int) -> None:
    """Name bars from above, with lines of so many letters."""
    names = ["\n".join(textwrap.wrap(label, longest)) for label in labels_of(fields)]
    axes.set_yticks(range(len(names)), names, fontsize=9.5)
    axes.set_ylim(len(names) - 0.4, -0.6)


def _panel_titles(sobol: SobolIndices) -> list[str]:
    """Return model and devices of each workload, or its name where these do not tell it apart."""
    titles = [short_title(workload.job) for workload in sobol.workloads]
    if len(set(titles)) == len(titles):
        return titles
    return [Path(workload.name).name for workload in sobol.workloads]


def limits(sobol: SobolIndices) -> tuple[float, float]:
    """Return the ends of the axis: 0 to 1, and every bar with its interval in every panel."""
    low, high = 0.0, 1.0
    for index in itertools.chain(sobol.indices, *sobol.by_workload):
        low = min(low, index.s1 - index.s1_interval, index.st - index.st_interval)
        high = max(high, index.s1 + index.s1_interval, index.st + index.st_interval)
    room = 0.02 * (high - low)
    return low - room, high + room


def _draw(axes: fig.Axes, indices: Sequence[SobolIndex]) -> None:
    values = np.array([(e.s1, e.s1_interval, e.st, e.st_interval) for e in indices]).T
    for shift, color, label, (value, interval) in (
        (-0.19, ALONE, "S1, alone", values[:2]), (0.19, TOTAL, "ST, with others", values[2:])
    ):  # fmt: skip
        axes.barh(
            np.arange(len(indices)) + shift, value, height=0.36, color=color, label=label,
            xerr=interval, error_kw={"ecolor": fig.INK, "elinewidth": 0.9, "capsize": 2.5},
        )  # fmt: skip
    axes.axvline(0.0, color=fig.INK, linewidth=0.8)
    axes.set_xlabel("share of the variance of ln(time of a step)", fontsize=9.5)
    axes.grid(axis="x", color=fig.FAINT, lw=0.6)


# The map of what bounds a step, as a picture.
COLOURS: Mapping[str, str] = hardware_table("report_words.yaml")["bound_colours"]
NO_JOB = "#FFFFFF"

MOST_PRINTED = 81
"""Cells with their step printed in them; more have contours."""

FEW_TICKS = 9

LONG_S = 10.0
"""Longest step of a map from which all of them are written in seconds."""


def map_figure(maps: Sequence[BottleneckMap]) -> fig.Figure:
    """Draw each map as cells in the colours of their classes, with the step and the job's place."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    figure = fig.new_figure(
        min(1.2 + 6.4 * len(maps), max(fig.WIDE[0], 4.4 * len(maps))), 6.2, wspace=0.02
    )
    panels = fig.panels(figure, len(maps), len(maps))
    for axes, bottleneck_map in zip(panels, maps, strict=True):
        _draw_bottleneck(axes, bottleneck_map)
    cells = [cell for bottleneck_map in maps for row in bottleneck_map.cells for cell in row]
    seen = {cell.bound for cell in cells if cell is not None}
    handles = [
        Patch(facecolor=COLOURS[name], label=f"{name}-bound") for name in CLASSES if name in seen
    ]
    if None in cells:
        handles.append(Patch(facecolor=NO_JOB, edgecolor=fig.SOFT, hatch="///", label="no job"))
    job = Line2D(
        [], [], marker="o", color=fig.INK, markerfacecolor="white", linestyle="", label="job"
    )
    figure.legend(
        handles=[*handles, job], loc="outside lower center", ncols=len(handles) + 1, frameon=False
    )
    return figure


def _draw_bottleneck(axes: fig.Axes, bottleneck_map: BottleneckMap) -> None:
    from matplotlib.colors import LinearSegmentedColormap, ListedColormap

    rows = bottleneck_map.cells
    codes = np.array(
        [[-1 if each is None else CLASSES.index(each.bound) for each in row] for row in rows]
    )
    seconds = np.array(
        [[np.nan if each is None else each.iteration_time_s for each in row] for row in rows]
    )
    if len({*codes[codes >= 0].tolist()}) == 1:
        # One class says nothing of a place, so the shade of its colour says how fast it is.
        bound = COLOURS[CLASSES[int(codes.max())]]
        shades = LinearSegmentedColormap.from_list(bound, [bound, "white"])
        axes.imshow(seconds, origin="lower", aspect="auto", cmap=shades, interpolation="nearest")
    else:
        axes.imshow(
            codes, origin="lower", aspect="auto",
            cmap=ListedColormap([NO_JOB, *(COLOURS[name] for name in CLASSES)]), vmin=-1.5,
            vmax=len(CLASSES) - 0.5, interpolation="nearest",
        )  # fmt: skip
    for y, x in np.argwhere(codes < 0).tolist():
        axes.fill_between(
            [x - 0.5, x + 0.5], y - 0.5, y + 0.5, facecolor="none", edgecolor="#D0D0D0",
            hatch="///", linewidth=0.0,
        )  # fmt: skip
    printed = codes.size <= MOST_PRINTED or min(codes.shape) < 3
    if printed:
        for (y, x), step_s in np.ndenumerate(seconds):
            if np.isfinite(step_s):
                text = step_text(float(step_s), float(np.nanmax(seconds)))
                axes.text(x, y, text, ha="center", va="center", fontsize=8.0, color=fig.INK)
    else:
        _draw_contours(axes, seconds)
    x, y = (axis.values.index(axis.value) for axis in (bottleneck_map.x, bottleneck_map.y))
    # Beside the number, where numbers are printed.
    axes.plot(
        x - (0.4 if printed else 0.0), y, marker="o", color=fig.INK, markerfacecolor="white",
        markersize=7,
    )  # fmt: skip
    for axis, which in ((axes.xaxis, bottleneck_map.x), (axes.yaxis, bottleneck_map.y)):
        step = max(1, -(-len(which.values) // FEW_TICKS))
        places = range(which.values.index(which.value) % step, len(which.values), step)
        relative = relative_ticks(which.field, which.values, float(which.value))
        texts = relative.texts if relative else [three_digits(value) for value in which.values]
        axis.set_ticks(places, [texts[place] for place in places])
        axis.set_label_text(relative.label if relative else label_of(which.field))
    title = f"What bounds the step: {short_title(bottleneck_map.job)}"
    axes.set_title("\n".join(textwrap.wrap(title, 56)), fontsize=10.5)


def step_text(seconds: float, longest: float) -> str:
    """Write the time of a step in the unit of its map: ms, or seconds where steps are long."""
    if longest >= LONG_S:
        return f"{three_digits(seconds)} s"
    return f"{three_digits(1e3 * seconds)} ms"


def _draw_contours(axes: fig.Axes, seconds: Floats) -> None:
    """Draw lines of equal step, evenly spaced in its logarithm."""
    low, high = float(np.nanmin(seconds)), float(np.nanmax(seconds))
    if high <= low * 1.001:
        return
    levels = np.geomspace(low, high, 9)[1:-1]
    lines = axes.contour(
        np.ma.masked_invalid(seconds), levels=levels, colors=fig.INK, linewidths=0.8, alpha=0.75
    )
    axes.clabel(lines, fmt=lambda level: step_text(float(level), high), fontsize=8.0)
