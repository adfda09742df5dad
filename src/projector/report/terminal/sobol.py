"""Sobol indices as a table and as bars."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from projector.report.figures.figure import DPI, INK, save_figure
from projector.report.terminal.job import short_title
from projector.report.terminal.sensitivity import short_field
from projector.report.terminal.tables import DIM, add_row, grid, section
from projector.searches.sobol import SobolIndex, SobolIndices

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ALONE, TOTAL = "#0072B2", "#E69F00"
"""Bars of S1 and of ST."""

MOST_PANELS = 5
"""Of the figure: the mean, and workloads while there is room."""

ROW_IN = 0.44


def sobol_report(result: SobolIndices) -> list[RenderableType]:
    """Return the table of indices, below the effects."""
    averaged = len(result.workloads) > 1
    shown = result.by_workload if averaged and len(result.workloads) < MOST_PANELS else ()
    columns = [f"ST #{panel + 1}" for panel in range(len(shown))]
    table = grid("=field", "S1", "±", "ST", "±", *columns)
    for row, index in enumerate(result.indices):
        numbers = (index.s1, index.s1_interval, index.st, index.st_interval)
        totals = [f"{indices[row].st:.3f}" for indices in shown]
        add_row(table, short_field(index.field), *(f"{number:.3f}" for number in numbers), *totals)
    step = "mean ln(step)" if averaged else "ln(step)"
    note = (
        f"share of the variance of {step} a field explains alone (S1) and with the others (ST), "
        "± 95 %"
    )
    text = (
        f"each field between 1/{result.factor:g} and {result.factor:g} times its value; "
        f"{result.samples:,} samples, {result.evaluations:,} projections, seed {result.seed}; "
        f"standard deviation of {step} {result.spread:.3f}"
    )
    lines = [text]
    if result.left_out:
        lines.append(f"{len(result.left_out)} other fields were not sampled; --json says why")
    return [Text(), *section("Sobol indices", note, table), *(Text(line, DIM) for line in lines)]


def write_sobol(result: SobolIndices, path: str | Path) -> None:
    """Draw the indices; the file appears whole or not at all.

    Raises
    ------
    ConfigError
        If `check_figure` refuses the path, or the file cannot be written.
    """
    save_figure(path, lambda: sobol_figure(result))


def sobol_figure(result: SobolIndices) -> "Figure":
    """Draw S1 and ST of every field as bars with their intervals, a panel for each workload."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    panels: list[tuple[str, Sequence[SobolIndex]]] = []
    if len(result.workloads) == 1:
        panels.append(("", result.indices))
        subject = short_title(result.workloads[0].job)
    else:
        panels.append(("geometric mean", result.indices))
        subject = f"{len(result.workloads)} workloads"
        if len(result.workloads) < MOST_PANELS:
            panels += [
                (Path(workload.name).name, indices)
                for workload, indices in zip(result.workloads, result.by_workload, strict=True)
            ]
    size = (4.6 + 3.2 * len(panels), 2.0 + ROW_IN * len(result.indices))
    engine = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
    figure = Figure(figsize=size, dpi=DPI, layout=engine)
    FigureCanvasAgg(figure)
    span = f"from 1/{result.factor:g} to {result.factor:g} times its value"
    figure.suptitle(
        f"{subject}: Sobol indices, each field {span}", x=0.012, ha="left", fontsize=11.0
    )
    all_axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (name, indices) in zip(all_axes, panels, strict=True):
        _draw(axes, indices)
        if name:
            axes.set_title(name, fontsize=10.0)
    first = all_axes[0]
    first.set_yticks(
        range(len(result.indices)),
        [short_field(index.field, in_figure=True) for index in result.indices],
    )
    first.set_ylim(len(result.indices) - 0.4, -0.6)
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
            [row + shift for row in rows],
            values,
            height=0.36,
            color=color,
            label=label,
            xerr=intervals,
            error_kw={"ecolor": INK, "elinewidth": 0.9, "capsize": 2.5},
        )
    axes.axvline(0.0, color=INK, linewidth=0.8)
    axes.set_xlim(min(-0.02, axes.get_xlim()[0]), max(1.0, axes.get_xlim()[1]))
    axes.set_xlabel("share of the variance of ln(step)")
    axes.grid(axis="x", color="#E6E6E6", linewidth=0.6)
