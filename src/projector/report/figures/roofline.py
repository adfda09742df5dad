"""The figure of a job's operations under the roofs of its device."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from projector.arrays import Floats
from projector.config.job import Job
from projector.operations.table import COMPUTE_ATTENTION, COMPUTE_GEMM, COMPUTE_OTHER
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
    save_figure,
)
from projector.report.figures.markers import draw_list, number_points
from projector.report.figures.operations import Operation, Roofline, read_roofline
from projector.units import TB, TERA

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMED = 16
"""Operations that are named, the longest ones."""

_KINDS = {
    COMPUTE_GEMM: ("GEMM", PALETTE[0], "o"),
    COMPUTE_ATTENTION: ("attention", PALETTE[3], "s"),
    COMPUTE_OTHER: ("memory-bound", PALETTE[2], "^"),
}
"""Name, colour and marker of each category of compute."""

_TENTH_PT2, _LEAST_PT2, _MOST_PT2 = 380.0, 14.0, 760.0
"""Area of a marker at a tenth of the step, of the smallest and of the largest."""

_APART = 0.045
"""Share of the height between two roofs from which both have room for their names."""

_AREAS = (
    "Areas: share of the step, in the mean over pipeline ranks; forwards with their recomputation. "
    "Compulsory traffic: every operand once."
)
_NOMINAL = (
    "Memory-bound operators have no matrix FLOP; they stand where one FLOP for each 16-bit element "
    "that they move would put them."
)

Limits = tuple[tuple[float, float], tuple[float, float]]
"""Ends of the intensities, in FLOP per byte, and of the rates, in FLOP/s."""


def write_roofline(job: Job, path: str | Path) -> None:
    """Draw the operations of a job under its roofs; the file appears whole or not at all."""
    check_figure(path)
    roofline = read_roofline(job)
    save_figure(path, lambda: roofline_figure(roofline))


def roofline_figure(roofline: Roofline) -> "Figure":
    """Draw all operations, those with matrix FLOP once more from near, and the longest as a list.

    Near the roofs matrix operations lie so close together that one figure cannot show both them
    and the memory-bound ones.
    """
    figure = new_figure(*WIDE)
    share = sum(operation.share for operation in roofline.operations)
    head(
        figure,
        f"Roofline: {roofline.title}",
        f"operations of a training step; together they take {100.0 * share:.0f} % of it",
    )
    whole, near, side = figure.subplots(1, 3, width_ratios=(0.8, 1.0, 1.0))
    named = roofline.operations[:NAMED]
    numbers = {id(operation): str(number + 1) for number, operation in enumerate(named)}
    _draw(whole, roofline, roofline.operations, _limits(roofline, roofline.operations, whole=True))
    whole.set_ylabel("rate of a GPU, TFLOP/s")
    whole.set_title("All operations")
    _draw_legend(whole, roofline)
    matrix = [operation for operation in roofline.operations if operation.dtype]
    if matrix:
        # Of those that matter: one router may lie far from everything else.
        shown = [operation for operation in named if operation.dtype]
        limits = _limits(roofline, shown or matrix, whole=False)
        _draw(near, roofline, matrix, limits)
        near.set_title("GEMMs and attention")
        _frame(whole, limits)
        _number(near, shown, [numbers[id(operation)] for operation in shown])
    else:
        near.set_axis_off()
    _write_memory(whole, roofline)
    _number_together(
        whole, [(operation, numbers[id(operation)]) for operation in named if not operation.dtype]
    )
    _list(side, roofline, named)
    return figure


def _limits(roofline: Roofline, operations: Iterable[Operation], *, whole: bool) -> Limits:
    intensity = [operation.intensity for operation in operations]
    rate = [operation.rate for operation in operations]
    top = max(roofline.roofs.values())
    if whole:
        ridge = top / roofline.bytes_per_s
        low = min([*intensity, ridge / 30.0]) / 2.5
        # Behind the points the roofs have room for their names.
        high = max([*intensity, ridge * 4.0]) * 14.0
        return (low, high), (min([*rate, low * roofline.bytes_per_s]) / 2.0, top * 2.5)
    roofs = [roofline.roofs.get(operation.dtype, operation.roof) for operation in operations]
    return (min(intensity) / 1.7, max(intensity) * 1.7), (min(rate) / 1.25, max(roofs) * 1.15)


def _draw(
    axes: "Axes", roofline: Roofline, operations: Sequence[Operation], limits: Limits
) -> None:
    """Draw the roofs within some limits, and operations below them."""
    (low, high), (floor, ceiling) = limits
    floor, ceiling = floor / TERA, ceiling / TERA
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(floor, ceiling))
    number_ticks(axes.xaxis, low, high)
    number_ticks(axes.yaxis, floor, ceiling)
    axes.set_xlabel("FLOP per byte of compulsory memory traffic")
    axes.grid(color=FAINT, lw=0.6)
    slope = roofline.bytes_per_s / TERA
    end = max(roofline.roofs.values()) / TERA
    axes.plot([low, end / slope], [low * slope, end], color=INK, lw=1.6, zorder=3)
    levels: dict[float, list[str]] = {}
    for name, rate in roofline.roofs.items():
        levels.setdefault(rate / TERA, []).append(name)
    used = {operation.dtype for operation in roofline.operations}
    # Types that the job uses first; another roof so near to one that is named has no name.
    order = sorted(levels, key=lambda rate: (not used.intersection(levels[rate]), -rate))
    room = float((ceiling / floor) ** _APART)
    labelled: list[float] = []
    for rate in order:
        bold = bool(used.intersection(levels[rate]))
        colour = INK if bold else "#A6A6A6"
        axes.plot(
            [rate / slope, max(high, rate / slope)],
            [rate] * 2,
            color=colour,
            lw=1.6 if bold else 0.9,
            zorder=3,
        )
        clear = all(max(rate / other, other / rate) > room for other in labelled)
        if clear and floor < rate < ceiling and rate / slope < high:
            labelled.append(rate)
            axes.annotate(
                f"{', '.join(levels[rate])}  {rate:,.0f}", (high, rate), xytext=(-3, 3),
                textcoords="offset points", ha="right", va="bottom", fontsize=8.5, color=colour,
                zorder=8,
            )  # fmt: skip
    # The longest first, so that smaller ones lie over them.
    for operation in operations:
        _, colour, marker = _KINDS[operation.category]
        axes.scatter(
            [operation.intensity], [operation.rate / TERA], s=_area(operation), c=colour,
            marker=marker, alpha=0.6, linewidths=0.7, edgecolors="white", zorder=5,
        )  # fmt: skip


def _area(operation: Operation) -> float:
    return float(np.clip(_TENTH_PT2 * operation.share / 0.1, _LEAST_PT2, _MOST_PT2))


def _points(operations: Sequence[Operation]) -> Floats:
    points = [(operation.intensity, operation.rate / TERA) for operation in operations]
    return np.array(points, np.float64).reshape(-1, 2)


def _number(axes: "Axes", operations: Sequence[Operation], texts: Sequence[str]) -> None:
    dpi = figure_of(axes).dpi
    corner = [1.0 if _KINDS[operation.category][2] == "o" else 2.0 for operation in operations]
    area_pt2 = np.multiply([_area(operation) for operation in operations], corner)
    radius_px = np.sqrt(area_pt2) / 2.0 * dpi / 72.0
    number_points(axes, _points(operations), radius_px, texts)


def _number_together(axes: "Axes", pairs: Sequence[tuple[Operation, str]]) -> None:
    """Write the numbers of memory-bound operators beside them, which lie on each other."""
    if not pairs:
        return
    x, y = _points([pairs[0][0]])[0].tolist()
    text = ", ".join(number for _, number in pairs)
    axes.annotate(
        text, (x, y), xytext=(13, -4), textcoords="offset points", ha="left", va="top",
        fontsize=8.2, fontweight="bold", zorder=9, in_layout=False,
    )  # fmt: skip


def _frame(axes: "Axes", limits: Limits) -> None:
    """Show which part the other figure shows."""
    from matplotlib.patches import Rectangle

    (low, high), (floor, ceiling) = limits
    axes.add_patch(
        Rectangle(
            (low, floor / TERA), high - low, (ceiling - floor) / TERA, fill=False, ec=SOFT, lw=0.9,
            ls=(0, (3, 2)), zorder=4,
        )
    )  # fmt: skip


def _write_memory(axes: "Axes", roofline: Roofline) -> None:
    """Write the name of the memory roof along it, about its middle."""
    slope = roofline.bytes_per_s / TERA
    low, ridge = axes.get_xlim()[0], max(roofline.roofs.values()) / roofline.bytes_per_s
    middle = float(low**0.4 * ridge**0.6)
    figure_of(axes).draw_without_rendering()
    line_px = axes.transData.transform([(low, low * slope), (ridge, ridge * slope)])
    run, rise = (line_px[1] - line_px[0]).tolist()
    axes.annotate(
        f"memory  {roofline.bytes_per_s / TB:.2f} TB/s", (middle, middle * slope), xytext=(-4, 4),
        textcoords="offset points", ha="center", va="bottom", fontsize=8.5,
        rotation=float(np.degrees(np.arctan2(rise, run))), rotation_mode="anchor",
    )  # fmt: skip


def _draw_legend(axes: "Axes", roofline: Roofline) -> None:
    from matplotlib.lines import Line2D

    shares = dict.fromkeys(_KINDS, 0.0)
    for operation in roofline.operations:
        shares[operation.category] += operation.share
    handles = [
        Line2D([], [], ls="", marker=marker, color=colour, ms=8, alpha=0.8,
               label=f"{name}, {100.0 * shares[category]:.1f} %")
        for category, (name, colour, marker) in _KINDS.items() if shares[category]
    ]  # fmt: skip
    if handles:
        axes.legend(
            handles=handles, loc="lower right", framealpha=0.9, edgecolor="none",
            title="of the step", title_fontsize=8.5, alignment="left",
        )  # fmt: skip


def _list(side: "Axes", roofline: Roofline, named: Sequence[Operation]) -> None:
    rows = [
        (str(number + 1), f"{100.0 * operation.share:.1f} %",
         f"{100.0 * operation.rate / operation.roof:.0f} %", f"{operation.name} {operation.phase}")
        for number, operation in enumerate(named)
    ]  # fmt: skip
    rest = roofline.operations[NAMED:]
    notes = []
    if rest:
        other = 100.0 * sum(operation.share for operation in rest)
        notes.append(f"{len(rest)} more operations take {other:.1f} % of the step.")
    notes += [_AREAS, _NOMINAL]
    columns = (("", 0.0, "left"), ("of the step", 0.24, "right"), ("of roof", 0.41, "right"),
               ("operation", 0.45, "left"))  # fmt: skip
    colours = [_KINDS[operation.category][1] for operation in named]
    draw_list(side, columns, rows, notes=notes, colours=colours, wrap=44)
