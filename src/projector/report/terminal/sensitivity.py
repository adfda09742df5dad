"""The report of `sensitivity`, and its tornado."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from projector.report.figures.figure import DPI, INK, SOFT, save_figure
from projector.report.terminal.job import configuration, short_title, title
from projector.report.terminal.tables import (
    DIM,
    add_row,
    grid,
    milliseconds,
    percent,
    plain,
    section,
    signed,
)
from projector.searches.multi_job import SharedEffect, SharedSensitivity
from projector.searches.sensitivity import Effect, Sensitivity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BETTER, WORSE = "#3A7D5C", "#C0663A"
"""Bars of the tornado: what shortens the step and what lengthens it."""

BAR_IN = 0.3

LONGEST_COLUMNS = 4
"""Workloads with a column of their own."""


def sensitivity_report(found: Sensitivity | SharedSensitivity, top: int) -> list[RenderableType]:
    """Return the parts of the report, in the order of printing."""
    if isinstance(found, SharedSensitivity):
        return [*_workloads(found), *_effects(found, top)]
    step = Text(f"{milliseconds(found.iteration_time_s)} ms/step", style="bold")
    step.append(f"  {_bound(found)}", style="not bold")
    return [
        title(found.job),
        configuration(found.job, found.job.training.schedule),
        step,
        Text(),
        *_effects(found, top),
    ]


def _bound(found: Sensitivity) -> str:
    shares = found.bound_shares or {}
    largest = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {percent(share, 0)}" for name, share in largest if share >= 0.005)


def _workloads(found: SharedSensitivity) -> list[RenderableType]:
    table = grid("#", "=workload", "GPUs", "=device", "weight", "ms/step", "=bound by")
    for place, (workload, each) in enumerate(zip(found.workloads, found.found, strict=True)):
        add_row(
            table,
            str(place + 1),
            workload.name,
            f"{workload.job.cluster.gpus:,}",
            workload.job.cluster.device.name,
            percent(workload.weight),
            milliseconds(each.iteration_time_s),
            _bound(each).split(",")[0],
        )
    mean = f"geometric mean {milliseconds(found.iteration_time_s)} ms/step"
    return section("Workloads", mean, table)


def _effects(found: Sensitivity | SharedSensitivity, top: int) -> list[RenderableType]:
    if isinstance(found, SharedSensitivity):
        table, step = _shared_table(found, top), found.found[0].step
    else:
        table, step = _table(found, top), found.step
    change = f"{100.0 * found.change:g} %"
    note = (
        f"percent of the step for one percent of the field: at the point, over {100.0 * step:g} %, "
        f"and over {change}"
    )
    if isinstance(found, Sensitivity):
        note += f"; step with {change} less and more"
    rest = len(found.effects) - top
    return [*section("Effects", note, table), *_notes(found, rest, found.effects[:top])]


def _table(found: Sensitivity, top: int) -> Table:
    table = grid("=field", "value", "point", "elasticity", "step less", "step more")
    for each in found.effects[:top]:
        low, high = (each.low_s / each.base_s - 1.0, each.high_s / each.base_s - 1.0)
        add_row(
            table,
            short_field(each.field),
            plain(each.value),
            _point(each),
            f"{each.elasticity:+.3f}",
            f"{signed(100.0 * low)} %",
            f"{signed(100.0 * high)} %",
        )
    return table


def _shared_table(found: SharedSensitivity, top: int) -> Table:
    numbers = range(1, len(found.found) + 1)
    columns = [f"#{number}" for number in numbers] if len(numbers) <= LONGEST_COLUMNS else []
    table = grid("=field", "point", "elasticity", *columns)
    for each in found.effects[:top]:
        alone = [f"{slope:+.3f}" for slope in each.by_workload] if columns else []
        add_row(table, short_field(each.field), _point(each), f"{each.elasticity:+.3f}", *alone)
    return table


def _point(each: Effect | SharedEffect) -> str:
    slope = "" if each.point_elasticity is None else f"{each.point_elasticity:+.3f}"
    return f"{slope}{'*' if each.uneven else ' '}"


def _notes(
    found: Sensitivity | SharedSensitivity, rest: int, shown: Sequence[Effect | SharedEffect]
) -> list[Text]:
    lines = []
    if any(each.uneven for each in shown):
        lines.append(
            "* the step jumps or bends here (tiles, waves, algorithms): trust the larger change"
        )
    if rest > 0:
        lines.append(f"{rest} smaller effects; --top shows more")
    lines.append(
        f"{len(found.without_effect)} fields change nothing here, {len(found.illegal)} cannot "
        "change by as much; --json names them"
    )
    return [Text(line, style=DIM) for line in lines]


def write_tornado(found: Sensitivity | SharedSensitivity, path: str | Path, top: int) -> None:
    """Draw the largest effects as bars around the step; the file appears whole or not at all.

    Raises
    ------
    ConfigError
        If `check_figure` refuses the path, or the file cannot be written.
    """
    save_figure(path, lambda: tornado_figure(found, top))


def tornado_figure(found: Sensitivity | SharedSensitivity, top: int) -> "Figure":
    """Draw the tornado: one bar a field, from its shortest to its longest step."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    shown = [each for each in found.effects[:top] if each.swing > 0.0]
    engine = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)
    figure = Figure(figsize=(9.0, 1.6 + BAR_IN * max(1, len(shown))), dpi=DPI, layout=engine)
    FigureCanvasAgg(figure)
    what = (
        f"{len(found.workloads)} workloads, geometric mean"
        if isinstance(found, SharedSensitivity)
        else short_title(found.job)
    )
    figure.suptitle(
        f"{what}: change of the step with each field {100.0 * found.change:g} % less and more",
        x=0.012,
        ha="left",
        fontsize=11.0,
    )
    axes = figure.subplots()
    for row, each in enumerate(shown):
        for seconds, text in ((each.low_s, "less"), (each.high_s, "more")):
            share = 100.0 * (seconds / each.base_s - 1.0)
            if share:
                axes.barh(row, share, height=0.68, color=BETTER if share < 0.0 else WORSE)
                axes.annotate(
                    text,
                    (share, row),
                    xytext=(4 if share > 0.0 else -4, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=7.5,
                    color=SOFT,
                    ha="left" if share > 0.0 else "right",
                )
    axes.axvline(0.0, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(shown)), [short_field(each.field, in_figure=True) for each in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.margins(x=0.09)
    axes.set_xlabel("change of the step, %")
    axes.grid(axis="x", color="#E6E6E6", linewidth=0.6)
    return figure


def short_field(field: str, *, in_figure: bool = False) -> str:
    """Name a field, and fields that move together once: ``scale_up_{,peer_}gb_per_s``."""
    parts = field.split("+")
    if len(parts) > 1:
        begin = _alike(parts)
        end = _alike([each[begin:][::-1] for each in parts])
        inner = ",".join(each[begin : len(each) - end] for each in parts)
        first = parts[0]
        field = f"{first[:begin]}{{{inner}}}{first[len(first) - end :]}"
    return field.removeprefix("cluster.") if in_figure else field


def _alike(texts: Sequence[str]) -> int:
    """Return how many characters texts begin with in common."""
    shortest = min(len(each) for each in texts)
    return next(
        (place for place in range(shortest) if len({each[place] for each in texts}) > 1), shortest
    )
