"""The tornado of a sensitivity study: what each field does to the step."""

from pathlib import Path
from typing import TYPE_CHECKING

from projector.report.figures.figure import INK, SOFT, new_figure, save_figure
from projector.report.terminal.job import short_title
from projector.report.terminal.sensitivity import short_field
from projector.searches.multi_job import SharedSensitivity
from projector.searches.sensitivity import Sensitivity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BETTER, WORSE = "#3A7D5C", "#C0663A"
"""Bars: what shortens the step and what lengthens it."""

BAR_IN = 0.3


def write_tornado(sensitivity: Sensitivity | SharedSensitivity, path: str | Path, top: int) -> None:
    """Draw the largest effects as bars around the step; the file appears whole or not at all.

    Raises
    ------
    ConfigError
        If `check_figure` refuses the path, or the file cannot be written.
    """
    save_figure(path, lambda: tornado_figure(sensitivity, top))


def tornado_figure(sensitivity: Sensitivity | SharedSensitivity, top: int) -> "Figure":
    """Draw the tornado: one bar a field, from its shortest to its longest step."""
    shown = [effect for effect in sensitivity.effects[:top] if effect.swing > 0.0]
    figure = new_figure(9.0, 1.6 + BAR_IN * max(1, len(shown)), wspace=0.02)
    what = (
        f"{len(sensitivity.workloads)} workloads, geometric mean"
        if isinstance(sensitivity, SharedSensitivity)
        else short_title(sensitivity.job)
    )
    percent = 100.0 * sensitivity.change
    figure.suptitle(
        f"{what}: change of the step with each field {percent:g} % less and more",
        x=0.012,
        ha="left",
        fontsize=11.0,
    )
    axes = figure.subplots()
    for row, effect in enumerate(shown):
        for seconds, text in ((effect.low_s, "less"), (effect.high_s, "more")):
            share = 100.0 * (seconds / effect.base_s - 1.0)
            if share:
                axes.barh(row, share, height=0.68, color=BETTER if share < 0.0 else WORSE)
                axes.annotate(
                    text, (share, row), xytext=(4 if share > 0.0 else -4, 0),
                    textcoords="offset points", va="center", fontsize=7.5, color=SOFT,
                    ha="left" if share > 0.0 else "right",
                )  # fmt: skip
    axes.axvline(0.0, color=INK, linewidth=0.8)
    axes.set_yticks(
        range(len(shown)), [short_field(effect.field, in_figure=True) for effect in shown]
    )
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.margins(x=0.09)
    axes.set_xlabel("change of the step, %")
    axes.grid(axis="x", color="#E6E6E6", linewidth=0.6)
    return figure
