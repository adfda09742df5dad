"""The tornado of a sensitivity study: what each field does to the step."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from projector.report.figures.figure import INK, SOFT, head, new_figure, save_figure
from projector.report.figures.names import title_of_jobs
from projector.report.figures.words import labels_of
from projector.searches.multi_job import SharedSensitivity
from projector.searches.sensitivity import Sensitivity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BETTER, WORSE = "#3A7D5C", "#C0663A"
"""Bars: what shortens the step and what lengthens it."""

BAR_IN = 0.3


def write_tornado(sensitivity: Sensitivity | SharedSensitivity, path: str | Path, top: int) -> None:
    """Draw the largest effects as bars around the step; the file appears whole or not at all."""
    save_figure(path, lambda: tornado_figure(sensitivity, top))


def tornado_figure(sensitivity: Sensitivity | SharedSensitivity, top: int) -> "Figure":
    """Draw the tornado: one bar a field, from its shortest to its longest step."""
    shown = [effect for effect in sensitivity.effects[:top] if effect.swing > 0.0]
    figure = new_figure(9.0, 1.9 + BAR_IN * max(1, len(shown)), wspace=0.02)
    jobs, mean = [], ""
    if isinstance(sensitivity, SharedSensitivity):
        jobs = [each.job for each in sensitivity.workloads]
        mean = f", geometric mean of {len(jobs)} workloads"
    else:
        jobs = [sensitivity.job]
    note = f"change of the time of a step with each number {100.0 * sensitivity.change:g} % less "
    head(figure, f"What matters: {title_of_jobs(jobs)}", f"{note}and more{mean}")
    axes = figure.subplots()
    for row, effect in enumerate(shown):
        for seconds, text in ((effect.low_s, "less"), (effect.high_s, "more")):
            share = 100.0 * (seconds / effect.base_s - 1.0)
            if share:
                axes.barh(row, share, height=0.68, color=BETTER if share < 0.0 else WORSE)
                axes.annotate(
                    text, (share, row), xytext=(4 if share > 0.0 else -4, 0),
                    textcoords="offset points", va="center", fontsize=8.5, color=SOFT,
                    ha="left" if share > 0.0 else "right",
                )  # fmt: skip
    axes.axvline(0.0, color=INK, linewidth=0.8)
    labels = labels_of([effect.field for effect in shown])
    axes.set_yticks(
        range(len(shown)), ["\n".join(textwrap.wrap(label, 44)) for label in labels], fontsize=9.5
    )
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.margins(x=0.09)
    axes.set_xlabel("change of the time of a step, %")
    axes.grid(axis="x", color="#E6E6E6", linewidth=0.6)
    return figure
