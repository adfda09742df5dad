"""What checkpoints and failures add to a run, against the interval between checkpoints."""

from pathlib import Path

import numpy as np

from projector.arrays import Floats
from projector.config.job import Job
from projector.config.run import run_default
from projector.errors import ConfigError
from projector.projection.api import project_performance
from projector.projection.run import RunProjection
from projector.report.figures import figure as fig
from projector.report.terminal.job import short_title
from projector.report.terminal.step import duration
from projector.runs import time

_POINTS = 160
_PLAYED = 9
"""Intervals at which runs are played."""

_SAMPLES = 400
_DECADES = 1.0
"""On each side of the best interval."""

_MINUTE = 60.0


def write_interval(job: Job, path: str | Path) -> None:
    """Draw the cost of the interval of a job's run; the file appears whole or not at all."""
    run = project_performance(job).run
    if run is None or not (job.run.checkpoint.enabled and job.run.failures.enabled):
        key = "run.tokens" if run is None else "run.checkpoint"
        msg = f"{key}: the picture of the interval needs a run with checkpoints and failures"
        raise ConfigError(msg, key=key, allowed="run.tokens, with checkpoints and failures")
    fig.save_figure(path, lambda: interval_figure(run))


def interval_figure(run: RunProjection) -> fig.Figure:
    """Draw what is added to the steps, with its parts, and runs that were played."""
    interruptions, _ = time.interruptions_of(run.inputs)
    times = run.times
    parts = (times.compute_s, times.warm_up_s, times.evaluation_s, times.stragglers_s)
    work_s = float(sum(part[0] for part in parts))
    best_s = float(time.best_interval_s(interruptions)[0])
    least_s = max(float(run.inputs.step_s[0]), float(interruptions.write_s[0]))
    centre_s = min(max(best_s, least_s), work_s)
    low, high = centre_s / 10.0**_DECADES, min(centre_s * 10.0**_DECADES, work_s)
    intervals_s = np.geomspace(max(low, least_s), high, _POINTS)
    failures = 86400.0 * float(interruptions.rate_per_s[0])
    figure = fig.new_figure(
        8.4,
        4.9,
        f"{short_title(run.job)}: what checkpoints and failures add",
        f"{failures:.3g} failures a day, {duration(float(interruptions.restart_s[0]))} to set up "
        f"again, {duration(float(interruptions.stall_s[0]))} at each checkpoint",
    )
    axes = figure.subplots()
    top = _curves(axes, interruptions, work_s, intervals_s)
    _played(axes, interruptions, work_s, intervals_s)
    _marks(axes, run, interruptions, top)
    axes.set_xscale("log")
    axes.set_xlim(intervals_s[0] / _MINUTE, intervals_s[-1] / _MINUTE)
    fig.number_ticks(axes.xaxis, intervals_s[0], intervals_s[-1])
    axes.set_ylim(0.0, top)
    added = "added to the time of the steps, %"
    fig.label(axes, "training between two checkpoints, minutes", added, grid="both")
    axes.legend(loc="upper center", frameon=False, ncols=2)
    return figure


def _many(interruptions: time.Interruptions, count: int, rate: float = 1.0) -> time.Interruptions:
    """Return one run's interruptions as often as there are intervals."""
    columns = {
        name: np.full(count, getattr(interruptions, name)[0])
        for name in interruptions.__dataclass_fields__
    }
    columns["rate_per_s"] *= rate
    return time.Interruptions(**columns)


def _added(interruptions: time.Interruptions, work_s: float, intervals_s: Floats) -> Floats:
    """Return what is added to the work, in percent of it."""
    work = np.full(len(intervals_s), work_s)
    return 100.0 * (time.expected_s(interruptions, work, intervals_s)[0] / work_s - 1.0)


def _curves(
    axes: fig.Axes, interruptions: time.Interruptions, work_s: float, intervals_s: Floats
) -> float:
    """Draw the parts as areas and the band of the rate; return the top of the figure."""
    many = _many(interruptions, len(intervals_s))
    total = _added(many, work_s, intervals_s)
    down = -np.expm1(-many.rate_per_s * many.restart_s)
    restarts = (100.0 + total) * down
    segments = time.expected_s(many, np.full(len(intervals_s), work_s), intervals_s)[1]
    saved = 100.0 * (segments * many.stall_s + many.write_s) / work_s
    minutes = intervals_s / _MINUTE
    bottom = np.zeros(len(minutes))
    for name, top, colour, alpha in (
        ("restarts", restarts, 4, 0.55),
        ("checkpoints", restarts + saved, 1, 0.55),
        ("lost work", total, 3, 0.45),
    ):
        axes.fill_between(
            minutes, bottom, top, color=fig.PALETTE[colour], alpha=alpha, label=name, lw=0
        )
        bottom = top
    axes.plot(minutes, total, color=fig.INK, linewidth=1.6, label="expected")
    spread = np.exp(run_default("rate_log_spread"))
    for factor in (1.0 / spread, spread):
        other = _added(_many(interruptions, len(intervals_s), factor), work_s, intervals_s)
        label = f"{spread:.2g} times more failures, and fewer" if factor > 1.0 else None
        axes.plot(minutes, other, color=fig.SOFT, linewidth=1.0, linestyle="--", label=label)
    return float(1.5 * max(total.max(), total.min() * 2.0))


def _played(
    axes: fig.Axes, interruptions: time.Interruptions, work_s: float, intervals_s: Floats
) -> None:
    chosen = np.geomspace(intervals_s[0] * 1.05, intervals_s[-1] / 1.05, _PLAYED)
    ones = np.ones((_PLAYED, _SAMPLES))
    work = np.full(_PLAYED, work_s)
    found = time.simulate_segments(_many(interruptions, _PLAYED), work, chosen, ones, ones)
    added = 100.0 * (found.total_s / work_s - 1.0)
    low, mean, high = np.percentile(added, 5, 1), added.mean(1), np.percentile(added, 95, 1)
    axes.errorbar(
        chosen / _MINUTE, mean, yerr=np.stack([mean - low, high - mean]), fmt="o", markersize=3.5,
        color=fig.PALETTE[0], elinewidth=0.9, capsize=2, label="played: mean and 90 % of runs",
    )  # fmt: skip


def _marks(
    axes: fig.Axes, run: RunProjection, interruptions: time.Interruptions, top: float
) -> None:
    marks = (
        ("Young", float(time.young_interval_s(interruptions)[0]), 0.60),
        ("Daly", float(time.daly_interval_s(interruptions)[0]), 0.54),
        ("this run", run.checkpoint_interval_s or 0.0, 0.66),
    )
    for name, seconds, height in marks:
        axes.axvline(seconds / _MINUTE, color=fig.SOFT, linewidth=0.8, ymax=height)
        fig.beside(
            axes, f"{name}: {duration(seconds)}", (seconds / _MINUTE, height * top), (3, -2),
            fontsize=8.5, color=fig.INK, va="top",
            bbox={"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1.0},
        )  # fmt: skip
