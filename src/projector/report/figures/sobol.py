"""Sobol indices as bars."""

import itertools
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from projector.report.figures.figure import INK, WIDE, head, new_figure, save_figure
from projector.report.figures.names import title_of_jobs
from projector.report.figures.words import labels_of
from projector.report.terminal.job import short_title
from projector.report.terminal.sobol import MOST_PANELS
from projector.searches.sobol import SobolIndex, SobolIndices

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ALONE, TOTAL = "#0072B2", "#E69F00"
"""Bars of S1 and of ST."""

ROW_IN = 0.44

WIDE_INTERVAL = 0.1
"""Half width of an interval from which samples are called few: a tenth of the variance."""


def write_sobol(sobol: SobolIndices, path: str | Path) -> None:
    """Draw the indices; the file appears whole or not at all."""
    save_figure(path, lambda: sobol_figure(sobol))


def sobol_figure(sobol: SobolIndices) -> "Figure":
    """Draw S1 and ST of every field as bars with their intervals, a panel for each workload."""
    panels: list[tuple[str, Sequence[SobolIndex]]] = []
    jobs = [workload.job for workload in sobol.workloads]
    if len(jobs) == 1:
        panels.append(("", sobol.indices))
    else:
        panels.append(("geometric mean", sobol.indices))
        if len(jobs) < MOST_PANELS:
            panels += zip(_panel_titles(sobol), sobol.by_workload, strict=True)
    width_in = min(WIDE[0], 4.6 + 3.2 * len(panels))
    figure = new_figure(width_in, 2.5 + ROW_IN * len(sobol.indices), w_pad=0.1, wspace=0.02)
    head(figure, f"What the time of a step depends on: {title_of_jobs(jobs)}", _note(sobol))
    all_axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (name, indices) in zip(all_axes, panels, strict=True):
        _draw(axes, indices)
        if name:
            axes.set_title("\n".join(textwrap.wrap(name, 30)), fontsize=9.5)
    first = all_axes[0]
    # Axes are shared: limits are those of every panel, or some would be clipped.
    first.set_xlim(limits(sobol))
    labels = labels_of([index.field for index in sobol.indices])
    first.set_yticks(
        range(len(labels)), ["\n".join(textwrap.wrap(label, 30)) for label in labels], fontsize=9.5
    )
    first.set_ylim(len(sobol.indices) - 0.4, -0.6)
    handles, names = first.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower right", ncols=2, frameon=False)
    return figure


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


def _note(sobol: SobolIndices) -> str:
    """Say what was varied, and whether the samples are too few to tell fields apart."""
    widest = max((max(e.s1_interval, e.st_interval) for e in sobol.indices), default=0.0)
    text = (
        f"Sobol indices: each field from 1/{sobol.factor:g} to {sobol.factor:g} times its value; "
        f"{sobol.samples:,} samples, lines are 95 % intervals"
    )
    if widest > WIDE_INTERVAL:
        text += f"\nFew samples: intervals reach ±{widest:.2f}; more samples narrow them"
    return text


def _draw(axes: "Axes", indices: Sequence[SobolIndex]) -> None:
    rows = range(len(indices))
    for shift, color, label, values, intervals in (
        (-0.19, ALONE, "S1, alone", [e.s1 for e in indices], [e.s1_interval for e in indices]),
        (0.19, TOTAL, "ST, with others", [e.st for e in indices], [e.st_interval for e in indices]),
    ):
        axes.barh(
            [row + shift for row in rows], values, height=0.36, color=color, label=label,
            xerr=intervals, error_kw={"ecolor": INK, "elinewidth": 0.9, "capsize": 2.5},
        )  # fmt: skip
    axes.axvline(0.0, color=INK, linewidth=0.8)
    axes.set_xlabel("share of the variance of ln(time of a step)", fontsize=9.5)
    axes.grid(axis="x", color="#E6E6E6", linewidth=0.6)
