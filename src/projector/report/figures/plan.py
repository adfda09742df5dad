"""The figure of a plan: days against money, or GPU-hours without prices."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from projector.planning.choice import Choice
from projector.planning.plan import PlanResult
from projector.planning.question import days_number, number, usd
from projector.planning.ranking import COST, value_of
from projector.projection.bands import COVERED
from projector.report.figures.figure import (
    FAINT,
    INK,
    PALETTE,
    SOFT,
    WIDE,
    check_figure,
    head,
    new_figure,
    number_ticks,
    save_figure,
)
from projector.report.figures.markers import draw_list, number_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LISTED = 14
"""Choices that are numbered and listed."""

ROOM = 1.35
"""Factor of room around the points."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def write_plan_figure(result: PlanResult, path: str | Path) -> None:
    """Draw days against money of all choices; the file appears whole or not at all."""
    check_figure(path)
    save_figure(path, lambda: plan_figure(result))


def spend_label(result: PlanResult) -> str:
    """Return the label of the axis that is not days."""
    return "USD" if result.spend == COST else "GPU-hours"


def plan_figure(result: PlanResult) -> "Figure":
    """Draw the choices with their bands, the front, the knee, and the limits."""
    figure = new_figure(*WIDE)
    head(figure, f"Days against {spend_label(result)}: {result.question.job.model.name}")
    axes, side = figure.subplots(1, 2, width_ratios=(1.0, 0.78))
    if not result.choices:
        axes.set_axis_off()
        draw_list(side, (), (), notes=[result.answer])
        return figure
    _scale(axes, result)
    _draw_limits(axes, result)
    for place, label in enumerate(dict.fromkeys(each.label for each in result.choices)):
        _draw_kind(axes, result, label, place)
    _draw_front(axes, result)
    shown = result.choices[:LISTED]
    points = np.array([[each.run.days, value_of(each, result.spend)] for each in shown])
    number_points(axes, points, np.full(len(shown), 5.0))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4, frameon=False)
    _draw_names(side, result, shown)
    return figure


def _scale(axes: "Axes", result: PlanResult) -> None:
    runs = [each.run for each in result.choices]
    days = [run.days_low for run in runs] + [run.days_high for run in runs]
    spent = [value_of(each, result.spend) for each in result.choices]
    low, high = min(days) / ROOM, max(days) * ROOM
    bottom, top = min(spent) / ROOM, max(spent) * ROOM
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(bottom, top))
    number_ticks(axes.xaxis, low, high)
    number_ticks(axes.yaxis, bottom, top)
    axes.set_xlabel("time of the run, days")
    axes.set_ylabel(spend_label(result))
    axes.grid(color=FAINT, lw=0.6)


def _draw_limits(axes: "Axes", result: PlanResult) -> None:
    question = result.question
    line: dict[str, Any] = {"color": INK, "lw": 1.0, "ls": (0, (4, 3)), "zorder": 3}
    if question.deadline_days is not None:
        axes.axvline(
            question.deadline_days, label=f"deadline, {question.deadline_days:,g} days", **line
        )
    if question.budget_usd is not None and result.spend == COST:
        axes.axhline(question.budget_usd, label=f"budget, {usd(question.budget_usd)}", **line)


def _draw_kind(axes: "Axes", result: PlanResult, label: str, place: int) -> None:
    """Draw the choices of one kind of cluster; those at risk are hollow."""
    members = [each for each in result.choices if each.label == label]
    colour, marker = PALETTE[place % len(PALETTE)], MARKERS[place % len(MARKERS)]
    for each in members:
        run, spent = each.run, value_of(each, result.spend)
        # Money grows with time, so that both ends of a band lie on a line through the point.
        ends = [run.days_low, run.days_high]
        axes.plot(
            ends,
            [spent * days / run.days for days in ends],
            color=colour,
            lw=1.1,
            alpha=0.45,
            zorder=4,
        )
    for fits in (True, False):
        shown = [each for each in members if each.fits == fits]
        if shown:
            axes.scatter(
                [each.run.days for each in shown],
                [value_of(each, result.spend) for each in shown],
                s=42, marker=marker, zorder=6, linewidths=1.2, edgecolors=colour,
                facecolors=colour if fits else "white",
                label=label if fits else f"{label}, memory at risk",
            )  # fmt: skip


def _draw_front(axes: "Axes", result: PlanResult) -> None:
    front = result.front
    days = [each.run.days for each in front]
    spent = [value_of(each, result.spend) for each in front]
    axes.plot(
        days, spent, color=SOFT, lw=1.2, zorder=5, drawstyle="steps-post",
        label=f"no other beats these in both; bars: {COVERED} % bands",
    )  # fmt: skip
    knee = result.knee
    if knee is not None:
        axes.scatter(
            [knee.run.days], [value_of(knee, result.spend)], s=190, facecolors="none",
            edgecolors=INK, linewidths=1.3, zorder=7, label="knee",
        )  # fmt: skip


def _draw_names(side: "Axes", result: PlanResult, shown: tuple[Choice, ...]) -> None:
    write = usd if result.spend == COST else number
    rows = [
        (
            str(place + 1),
            days_number(each.run.days),
            days_number(each.run.days_high),
            write(value_of(each, result.spend)),
            f"{each.name}, {each.layout}",
        )
        for place, each in enumerate(shown)
    ]
    notes = [result.answer]
    if len(shown) < len(result.choices):
        notes.insert(0, f"{len(shown)} of {len(result.choices)} choices are numbered.")
    columns = (("", 0.0, "left"), ("days", 0.14, "right"), ("to", 0.23, "right"),
               (spend_label(result), 0.38, "right"), ("cluster", 0.42, "left"))  # fmt: skip
    draw_list(side, columns, rows, notes=notes, wrap=46)
