"""Pictures of what was sampled beside a run: cores of the host, clocks and power of devices."""

from typing import TYPE_CHECKING

import numpy as np

from projector.arrays import Floats
from projector.errors import ConfigError
from projector.report.figures.figure import FAINT, PALETTE, head, new_figure
from projector.trace.analysis import TraceAnalysis
from projector.trace.events import Samples
from projector.trace.measures.sampled import (
    CPU_PERCENT,
    active_cores,
    active_threads,
    minimum_cores,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CORES, CLOCKS = "cores", "clocks"

_PS_PER_S = 1e12
_MOST_LABELS = 16

_TITLES = {
    "clock_mhz": "clock, MHz",
    "memory_clock_mhz": "memory clock, MHz",
    "power_w": "power, W",
    "memory_bytes": "memory, bytes",
}


def cores_figure(analysis: TraceAnalysis) -> "Figure":
    """Draw active and minimum cores over time, and the threads of each physical core."""
    found = [each for each in analysis.trace.samples if each.what == CPU_PERCENT]
    if not found:
        raise _unsampled(CORES, "the utilisation of cores was not sampled")
    samples = found[0]
    mapped = samples.physical_core is not None
    figure = new_figure(8.6, 5.4 if mapped else 3.2)
    head(
        figure,
        f"Cores of the host: {samples.values.shape[1]:,} logical",
        "active: cores that do anything; minimum: as many would do if each were used in full",
    )
    axes = figure.subplots(2 if mapped else 1, 1, sharex=True, squeeze=False)[:, 0]
    time_s = _seconds(samples)
    lines = {"active": active_cores(samples.values), "minimum": minimum_cores(samples.values)}
    for (name, values), colour in zip(lines.items(), PALETTE, strict=False):
        axes[0].step(time_s, values, where="pre", color=colour, linewidth=1.3, label=name)
    axes[0].set_ylabel("cores in use")
    axes[0].set_ylim(0, 1.05 * max(float(lines["active"].max()), 1.0))
    axes[0].locator_params(axis="y", integer=True)
    axes[0].grid(color=FAINT)
    axes[0].legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)
    if samples.physical_core is not None:
        _threads(axes[1], samples, time_s)
    axes[-1].set_xlabel("time, s")
    return figure


def _threads(axes: "Axes", samples: Samples, time_s: Floats) -> None:
    """Draw how many logical cores of each physical one are active."""
    from matplotlib.colors import ListedColormap

    assert samples.physical_core is not None
    threads = active_threads(samples.values, samples.physical_core)
    most = max(int(np.bincount(np.unique(samples.physical_core, return_inverse=True)[1]).max()), 1)
    # A colour for each number of active threads, from none to all.
    colours = ["#F2F2F2", *PALETTE[:most]]
    edges = np.append(time_s, time_s[-1] + (time_s[-1] - time_s[0]) / max(len(time_s) - 1, 1))
    mesh = axes.pcolormesh(
        edges, np.arange(threads.shape[1] + 1), threads.T, cmap=ListedColormap(colours),
        vmin=-0.5, vmax=most + 0.5, rasterized=True,
    )  # fmt: skip
    axes.set_ylabel("physical core")
    cores = np.arange(threads.shape[1])[:: -(-threads.shape[1] // _MOST_LABELS)]
    axes.set_yticks(cores + 0.5, cores.astype(str).tolist())
    bar = axes.figure.colorbar(mesh, ax=axes, ticks=range(most + 1))
    bar.set_label("active threads")


def clocks_figure(analysis: TraceAnalysis) -> "Figure":
    """Draw clocks and power of devices over time."""
    found: dict[str, list[Samples]] = {}
    for each in analysis.trace.samples:
        if each.what != CPU_PERCENT:
            found.setdefault(each.what, []).append(each)
    if not found:
        raise _unsampled(CLOCKS, "neither clocks nor power were sampled")
    figure = new_figure(8.6, 1.0 + 2.0 * len(found))
    head(figure, "Sampled beside the run", "clocks, power and memory, as the samples give them")
    panels = figure.subplots(len(found), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (what, several) in zip(panels, found.items(), strict=True):
        lines = [
            (_seconds(each), each.values[:, column], f"{name} of rank {rank}")
            for rank, each in enumerate(several)
            for column, name in enumerate(each.columns)
        ]
        for number, (time_s, values, name) in enumerate(lines):
            axes.plot(
                time_s, values, color=PALETTE[number % len(PALETTE)], linewidth=1.2,
                marker="o" if len(time_s) == 1 else None,
                label=name if len(several) > 1 else name.partition(" of rank")[0],
            )  # fmt: skip
        # A counter of a trace has its unit, or its only part, as its column.
        unit = f"\n{several[0].columns[0]}" if len(several[0].columns) == 1 else ""
        axes.set_ylabel(_TITLES.get(what, f"{what}{unit}"))
        axes.grid(color=FAINT)
        if 1 < len(lines) <= len(PALETTE):
            axes.legend(
                frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4
            )
    panels[-1].set_xlabel("time, s")
    return figure


def _seconds(samples: Samples) -> Floats:
    return np.asarray(samples.time_ps - samples.time_ps[0], np.float64) / _PS_PER_S


def _unsampled(kind: str, why: str) -> ConfigError:
    msg = f"the picture {kind} has nothing to show: {why}; record with projector trace record"
    return ConfigError(msg, key="plot", value=kind)
