"""The report of `sensitivity`, and its tornado."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from projector.report.figure import DPI, INK, SOFT, save_figure
from projector.report.job import configuration, title
from projector.report.tables import DIM, add_row, grid, milliseconds, plain, section, signed
from projector.searches.sensitivity import Effect, Sensitivity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BETTER, WORSE = "#3A7D5C", "#C0663A"
"""Bars of the tornado: what shortens the step and what lengthens it."""

BAR_IN = 0.3


def sensitivity_report(found: Sensitivity, top: int) -> list[RenderableType]:
    """Return the parts of the report, in the order of printing."""
    table = grid("=field", "value", "elasticity", "step less", "step more")
    for each in found.effects[:top]:
        low, high = (each.low_s / each.base_s - 1.0, each.high_s / each.base_s - 1.0)
        add_row(
            table,
            each.field,
            plain(each.value),
            f"{each.elasticity:+.3f}",
            f"{signed(100.0 * low)} %",
            f"{signed(100.0 * high)} %",
        )
    rest = len(found.effects) - top
    lines = [
        *([Text(f"{rest} smaller effects; --top shows more", style=DIM)] if rest > 0 else []),
        Text(
            f"{len(found.without_effect)} fields change nothing here, {len(found.illegal)} cannot "
            "change by as much; --json names them",
            style=DIM,
        ),
    ]
    percent = f"{100.0 * found.change:g} %"
    note = (
        f"elasticity: percent of the step for one percent of the field; step with the field "
        f"{percent} less and more"
    )
    step = Text(f"{milliseconds(found.iteration_time_s)} ms/step", style="bold")
    return [
        title(found.job), configuration(found.job, found.job.training.schedule), step, Text(),
        *section("Effects", note, table), *lines,
    ]  # fmt: skip


def write_tornado(found: Sensitivity, path: str | Path, top: int) -> None:
    """Draw the largest effects as bars around the step; the file appears whole or not at all.

    Raises
    ------
    ConfigError
        If `check_figure` refuses the path, or the file cannot be written.
    """
    save_figure(path, lambda: tornado_figure(found, top))


def tornado_figure(found: Sensitivity, top: int) -> "Figure":
    """Draw the tornado: one bar a field, from its shortest to its longest step."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    shown = [each for each in found.effects[:top] if each.swing > 0.0]
    engine = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)
    figure = Figure(figsize=(9.0, 1.6 + BAR_IN * max(1, len(shown))), dpi=DPI, layout=engine)
    FigureCanvasAgg(figure)
    job = found.job
    figure.suptitle(
        f"{job.model.name} on {job.cluster.gpus:,} x {job.cluster.device.name}: change of the "
        f"step with each field {100.0 * found.change:g} % less and more",
        x=0.012, ha="left", fontsize=11.0,
    )  # fmt: skip
    axes = figure.subplots()
    for row, each in enumerate(shown):
        for seconds, text in ((each.low_s, "less"), (each.high_s, "more")):
            share = 100.0 * (seconds / each.base_s - 1.0)
            if share:
                axes.barh(row, share, height=0.68, color=BETTER if share < 0.0 else WORSE)
                axes.annotate(
                    text, (share, row), xytext=(4 if share > 0.0 else -4, 0),
                    textcoords="offset points", va="center", fontsize=7.5, color=SOFT,
                    ha="left" if share > 0.0 else "right",
                )  # fmt: skip
    axes.axvline(0.0, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(shown)), [_short(each) for each in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.margins(x=0.09)
    axes.set_xlabel("change of the step, %")
    axes.grid(axis="x", color="#E6E6E6", linewidth=0.6)
    return figure


def _short(each: Effect) -> str:
    return each.field.removeprefix("cluster.")
