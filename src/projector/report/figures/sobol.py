"""Sobol indices as bars."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from projector.report.figures.figure import INK, new_figure, save_figure
from projector.report.terminal.job import short_title
from projector.report.terminal.sensitivity import short_field
from projector.report.terminal.sobol import MOST_PANELS
from projector.searches.sobol import SobolIndex, SobolIndices

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ALONE, TOTAL = "#0072B2", "#E69F00"
"""Bars of S1 and of ST."""

ROW_IN = 0.44


def write_sobol(sobol: SobolIndices, path: str | Path) -> None:
    """Draw the indices; the file appears whole or not at all.

    Raises
    ------
    ConfigError
        If `check_figure` refuses the path, or the file cannot be written.
    """
    save_figure(path, lambda: sobol_figure(sobol))


def sobol_figure(sobol: SobolIndices) -> "Figure":
    """Draw S1 and ST of every field as bars with their intervals, a panel for each workload."""
    panels: list[tuple[str, Sequence[SobolIndex]]] = []
    if len(sobol.workloads) == 1:
        panels.append(("", sobol.indices))
        what = short_title(sobol.workloads[0].job)
    else:
        panels.append(("geometric mean", sobol.indices))
        what = f"{len(sobol.workloads)} workloads"
        if len(sobol.workloads) < MOST_PANELS:
            panels += [
                (Path(workload.name).name, indices)
                for workload, indices in zip(sobol.workloads, sobol.by_workload, strict=True)
            ]
    width_in, height_in = 4.6 + 3.2 * len(panels), 2.0 + ROW_IN * len(sobol.indices)
    figure = new_figure(width_in, height_in, w_pad=0.1, wspace=0.02)
    far = f"from 1/{sobol.factor:g} to {sobol.factor:g} times its value"
    figure.suptitle(f"{what}: Sobol indices, each field {far}", x=0.012, ha="left", fontsize=11.0)
    all_axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (name, indices) in zip(all_axes, panels, strict=True):
        _draw(axes, indices)
        if name:
            axes.set_title(name, fontsize=10.0)
    first = all_axes[0]
    first.set_yticks(
        range(len(sobol.indices)),
        [short_field(index.field, in_figure=True) for index in sobol.indices],
    )
    first.set_ylim(len(sobol.indices) - 0.4, -0.6)
    handles, labels = first.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower right", ncols=2, frameon=False)
    return figure


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
    axes.set_xlim(min(-0.02, axes.get_xlim()[0]), max(1.0, axes.get_xlim()[1]))
    axes.set_xlabel("share of the variance of ln(step)")
    axes.grid(axis="x", color="#E6E6E6", linewidth=0.6)
