"""The pictures of a trace: what they show as numbers, and the drawings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from projector.arrays import Floats, Ints
from projector.config.resources import hardware_table
from projector.errors import ConfigError
from projector.report.figures import figure as fig
from projector.trace.activity import COLLECTIVE, MOVE, PHASES, TYPES
from projector.trace.analysis import TraceAnalysis
from projector.trace.events import Samples
from projector.trace.measures import overlap as overlaps
from projector.trace.measures.breakdown import Instances, Part, breakdown, instances
from projector.trace.measures.gap import FACTORS, REST, OperationGap
from projector.trace.measures.iterations import rank_summaries
from projector.trace.measures.sampled import (
    CPU_PERCENT,
    active_cores,
    active_threads,
    minimum_cores,
)

# What the pictures of a trace show, as numbers: drawn ones and those of pages alike.
MOST_OPERATIONS = 6
"""Operations with a panel of their own."""

FEWEST_RUNS = 3
"""Runs of an operation from which a curve says anything."""

MOST_BARS = 14

COMPUTING = tuple(name for name in TYPES if name not in {TYPES[COLLECTIVE], TYPES[MOVE]})

NS_PER_MS = 1e6
PS_PER_US = 1e6


@dataclass(frozen=True, slots=True)
class PhaseBars:
    """Time of an iteration by phase: bars of types of operations, and the bubbles between them."""

    phases: tuple[str, ...]
    parts: dict[str, list[float]]
    """Type of operation, or ``launch``: ms in each phase, the median over samples."""
    communication: dict[str, list[float]]
    """``hidden`` and ``exposed`` communication, ms in each phase."""


def phase_bars(analysis: TraceAnalysis) -> PhaseBars:
    """Return the breakdown by phase and type (figure 4 of the Chopper study)."""
    found = {
        (part.key["phase"], part.key["type"]): part
        for part in breakdown(analysis.everything, ("phase", "type"), where=analysis.sampled)
    }
    launch = {
        part.key["phase"]: part
        for part in breakdown(analysis.everything, ("phase",), where=analysis.sampled)
    }
    phases = tuple(phase for phase in PHASES if phase in launch)

    def values(kind: str) -> list[float]:
        return [_ms(part) for part in [found.get((phase, kind)) for phase in phases]]

    parts = {kind: values(kind) for kind in COMPUTING}
    parts["launch"] = [launch[phase].launch_ns.median / NS_PER_MS for phase in phases]
    moved = [found.get((phase, TYPES[COLLECTIVE])) for phase in phases]
    exposed = [0.0 if part is None else part.exposed_ns.median / NS_PER_MS for part in moved]
    hidden = [max(_ms(part) - bare, 0.0) for part, bare in zip(moved, exposed, strict=True)]
    return PhaseBars(phases, parts, {"hidden": hidden, "exposed": exposed})


def _ms(part: Part | None) -> float:
    return 0.0 if part is None else part.duration_ns.median / NS_PER_MS


@dataclass(frozen=True, slots=True)
class OverlapPanel:
    """Overlap and duration of the runs of one operation."""

    name: str
    phase: str
    rank: Ints
    """int64[runs]."""
    overlap: Floats
    """float64[runs]: overlap ratio."""
    duration: Floats
    """float64[runs]: normalised to the least of each kind on its device."""
    correlation: float | None
    d50: float | None
    d0: float | None

    def curves(self) -> list[tuple[int, overlaps.OverlapCdf]]:
        """Return the curve of each rank."""
        return [
            (rank, overlaps.cdf(self.duration[self.rank == rank], self.overlap[self.rank == rank]))
            for rank in np.unique(self.rank).tolist()
        ]


def overlap_panels(analysis: TraceAnalysis, most: int = MOST_OPERATIONS) -> list[OverlapPanel]:
    """Return the longest operations that communication overlaps somewhere, the longest first."""
    activities = analysis.everything
    runs = instances(activities, where=analysis.sampled)
    panels: list[tuple[int, OverlapPanel]] = []
    for members in overlaps.operation_members(activities, runs):
        known = members[~np.isnan(runs.overlap[members]) & ~np.isnan(runs.normalised[members])]
        named = activities.operation[runs.row[members[0]]] >= 0
        if named and len(known) >= FEWEST_RUNS and np.any(runs.overlap[known] > 0.0):
            panels.append((int(runs.kernel_ps[members].sum()), _panel_of(analysis, runs, known)))
    return [panel for _, panel in sorted(panels, key=lambda each: -each[0])[:most]]


def _panel_of(analysis: TraceAnalysis, runs: Instances, members: Ints) -> OverlapPanel:
    activities = analysis.everything
    rows = runs.row[members]
    row = int(rows[0])
    operation = int(activities.operation[row])
    overlap, duration = runs.overlap[members], runs.normalised[members]
    effect = overlaps.effect_of(runs, members)
    return OverlapPanel(
        name=_plain(activities.operations[operation]),
        phase=_phase(analysis, row),
        rank=activities.rank[rows],
        overlap=overlap,
        duration=duration,
        correlation=overlaps.correlation(overlap, duration),
        d50=effect.d50,
        d0=effect.d0,
    )


def _plain(name: str) -> str:
    return name.removeprefix("torch::autograd::")


def _phase(analysis: TraceAnalysis, row: int) -> str:
    repeated = ", recomputed" if analysis.everything.recompute[row] else ""
    return f"{PHASES[analysis.everything.phase[row]]}{repeated}"


def launch_bars(
    analysis: TraceAnalysis, most: int = MOST_BARS
) -> tuple[list[str], list[list[float]]]:
    """Return the operations that wait longest for their launch (the study's figure 11).

    Beside their names stand preparation, call, and bubbles whose launch is not in the trace, each
    the mean over the runs of an operation in microseconds.
    """
    activities = analysis.everything
    runs = instances(activities, where=analysis.sampled)
    found: list[tuple[float, str, tuple[float, ...]]] = []
    for members in overlaps.operation_members(activities, runs):
        row = int(runs.row[members[0]])
        operation = int(activities.operation[row])
        name = _plain(activities.operations[operation]) if operation >= 0 else "(no operation)"
        preparation_ps, call_ps, bubble_ps = (
            int(values[members].sum())
            for values in (runs.preparation_ps, runs.call_ps, runs.launch_ps)
        )
        other_ps = max(bubble_ps - preparation_ps - call_ps, 0)
        label = f"{name} ({_phase(analysis, row)})"
        each = 1.0 / (len(members) * PS_PER_US)
        means = (preparation_ps * each, call_ps * each, other_ps * each)
        found.append((float(bubble_ps), label, means))
    kept = sorted(found, key=lambda each: -each[0])[:most]
    names = [name for _, name, _ in kept]
    return names, [[means[part] for *_, means in kept] for part in range(3)]


SPREAD = {
    "compute": "compute_ns",
    "exposed communication": "exposed_communication_ns",
    "exposed copies": "exposed_memcpy_ns",
    "idle": "idle_ns",
}
"""What adds up to the span of a rank, and its field of a summary."""


def rank_spread(analysis: TraceAnalysis) -> tuple[list[str], dict[str, list[float]]]:
    """Return the names of the ranks, and ms of compute, exposed traffic and idle time of each."""
    ranks = rank_summaries(analysis.in_time)
    several = len({each.rank for each in ranks}) < len(ranks)
    names = [f"{each.rank}, device {each.device}" if several else f"{each.rank}" for each in ranks]
    return names, {
        name: [getattr(each, key) / NS_PER_MS for each in ranks] for name, key in SPREAD.items()
    }


# The waterfall from the theoretical duration of operations to the actual one.
MOST = 6
"""Operations with a panel of their own."""

FACTOR_COLOURS = dict(zip((*FACTORS, REST), (*fig.PALETTE[1:5], "#BBBBBB"), strict=True))

_MOST_TITLE = 36


def gap_figure(gaps: Sequence[OperationGap], title: str) -> fig.Figure:
    """Draw the operations with the largest gap: the duration after each factor, in order."""
    gaps = [gap for gap in gaps if gap.theory_ns][:MOST]
    columns, lines = min(_COLUMNS, len(gaps)), -(-len(gaps) // _COLUMNS)
    note = "from FLOP at the peak rate to the actual duration of a step, in ms"
    figure = fig.new_figure(1.0 + 3.5 * columns, 1.2 + 2.6 * lines, title, note)
    for axes, gap in zip(fig.panels(figure, len(gaps), _COLUMNS), gaps, strict=True):
        _panel(axes, gap)
    return figure


def _panel(axes: fig.Axes, gap: OperationGap) -> None:
    assert gap.theory_ns is not None
    reached = gap.theory_ns / NS_PER_MS
    labels = ["theory"]
    axes.bar(0, reached, color=fig.PALETTE[0], width=0.7)
    for name in (*FACTORS, REST):
        factor = gap.factors.get(name)
        if factor is None:
            continue
        place, after = len(labels), reached * factor
        axes.bar(place, after - reached, bottom=reached, color=FACTOR_COLOURS[name], width=0.7)
        top = max(reached, after)
        axes.text(place, top, f"x {factor:.2f}", ha="center", va="bottom", fontsize=7.5)
        axes.plot([place - 1, place], [reached, reached], color=fig.SOFT, linewidth=0.6)
        labels.append(name)
        reached = after
    axes.bar(len(labels), gap.actual_ns / NS_PER_MS, color=fig.PALETTE[6], width=0.7)
    labels.append("actual")
    axes.set_xticks(range(len(labels)), labels, rotation=35, ha="right", fontsize=8)
    axes.set_title(f"{fig.one_line(gap.operation, _MOST_TITLE)}\n{gap.phase}", fontsize=9)
    axes.margins(y=0.14)
    axes.grid(axis="y", color=fig.FAINT)


# Pictures of what was sampled beside a run: cores of the host, clocks and power of devices.
CORES, CLOCKS = "cores", "clocks"

_PS_PER_S = 1e12
_MOST_LABELS = 16
_RECORD = "; record with projector trace record"

_TITLES: Mapping[str, str] = hardware_table("report_words.yaml")["sampled_titles"]


def cores_figure(analysis: TraceAnalysis) -> fig.Figure:
    """Draw active and minimum cores over time, and the threads of each physical core."""
    found = [each for each in analysis.trace.samples if each.what == CPU_PERCENT]
    if not found:
        raise _nothing(CORES, f"the utilisation of cores was not sampled{_RECORD}")
    samples = found[0]
    mapped = samples.physical_core is not None
    figure = fig.new_figure(
        8.6,
        5.4 if mapped else 3.2,
        f"Cores of the host: {samples.values.shape[1]:,} logical",
        "active: cores that do anything; minimum: as many would do if each were used in full",
    )
    axes = figure.subplots(2 if mapped else 1, 1, sharex=True, squeeze=False)[:, 0]
    time_s = _seconds(samples)
    lines = {"active": active_cores(samples.values), "minimum": minimum_cores(samples.values)}
    for (name, values), colour in zip(lines.items(), fig.PALETTE, strict=False):
        axes[0].step(time_s, values, where="pre", color=colour, linewidth=1.3, label=name)
    axes[0].set_ylabel("cores in use")
    axes[0].set_ylim(0, 1.05 * max(float(lines["active"].max()), 1.0))
    axes[0].locator_params(axis="y", integer=True)
    axes[0].grid(color=fig.FAINT)
    axes[0].legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)
    if samples.physical_core is not None:
        _threads(axes[1], samples, time_s)
    axes[-1].set_xlabel("time, s")
    return figure


def _threads(axes: fig.Axes, samples: Samples, time_s: Floats) -> None:
    """Draw how many logical cores of each physical one are active."""
    from matplotlib.colors import ListedColormap

    assert samples.physical_core is not None
    threads = active_threads(samples.values, samples.physical_core)
    most = max(int(np.bincount(np.unique(samples.physical_core, return_inverse=True)[1]).max()), 1)
    # A colour for each number of active threads, from none to all.
    colours = ["#F2F2F2", *fig.PALETTE[:most]]
    edges = np.append(time_s, time_s[-1] + (time_s[-1] - time_s[0]) / max(len(time_s) - 1, 1))
    mesh = axes.pcolormesh(
        edges, np.arange(threads.shape[1] + 1), threads.T, cmap=ListedColormap(colours),
        vmin=-0.5, vmax=most + 0.5, rasterized=True,
    )  # fmt: skip
    axes.set_ylabel("physical core")
    cores = np.arange(threads.shape[1])[:: -(-threads.shape[1] // _MOST_LABELS)]
    axes.set_yticks(cores + 0.5, cores.astype(str).tolist())
    axes.figure.colorbar(mesh, ax=axes, ticks=range(most + 1)).set_label("active threads")


def clocks_figure(analysis: TraceAnalysis) -> fig.Figure:
    """Draw clocks and power of devices over time."""
    found: dict[str, list[Samples]] = {}
    for each in analysis.trace.samples:
        if each.what != CPU_PERCENT:
            found.setdefault(each.what, []).append(each)
    if not found:
        raise _nothing(CLOCKS, f"neither clocks nor power were sampled{_RECORD}")
    note = "clocks, power and memory, as the samples give them"
    figure = fig.new_figure(8.6, 1.0 + 2.0 * len(found), "Sampled beside the run", note)
    panels = figure.subplots(len(found), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (what, several) in zip(panels, found.items(), strict=True):
        lines = [
            (_seconds(each), each.values[:, column], f"{name} of rank {rank}")
            for rank, each in enumerate(several)
            for column, name in enumerate(each.columns)
        ]
        for number, (time_s, values, name) in enumerate(lines):
            axes.plot(
                time_s, values, color=fig.PALETTE[number % len(fig.PALETTE)], linewidth=1.2,
                marker="o" if len(time_s) == 1 else None,
                label=name if len(several) > 1 else name.partition(" of rank")[0],
            )  # fmt: skip
        # A counter of a trace has its unit, or its only part, as its column.
        unit = f"\n{several[0].columns[0]}" if len(several[0].columns) == 1 else ""
        axes.set_ylabel(_TITLES.get(what, f"{what}{unit}"))
        axes.grid(color=fig.FAINT)
        if 1 < len(lines) <= len(fig.PALETTE):
            axes.legend(
                frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4
            )
    panels[-1].set_xlabel("time, s")
    return figure


def _seconds(samples: Samples) -> Floats:
    return np.asarray(samples.time_ps - samples.time_ps[0], np.float64) / _PS_PER_S


# All pictures of a trace.

BREAKDOWN, CDF, OVERLAP, LAUNCH, RANKS = "breakdown", "cdf", "overlap", "launch", "ranks"

COLOURS = dict(zip((*COMPUTING, "launch"), (*fig.PALETTE[:3], "#BBBBBB"), strict=True))
LAUNCHES = {
    "preparation: the host was late": fig.PALETTE[1],
    "call: launched, but not begun": fig.PALETTE[0],
    "its launch is not in the trace": "#BBBBBB",
}
TRAFFIC = {"hidden": fig.PALETTE[4], "exposed": fig.PALETTE[3]}
SPREAD_COLOURS = (fig.PALETTE[0], fig.PALETTE[3], fig.PALETTE[1], "#DDDDDD")

_MOST_RANKS = 64
_MOST_NAME = 44
_MOST_IN_PANEL = 34
_COLUMNS = 3
_LONG = 3.0
_MOST_POINTS = 20_000


def write_trace_picture(kind: str, analysis: TraceAnalysis, path: str | Path) -> None:
    """Draw one picture of a trace; the file appears whole or not at all."""
    fig.save_figure(path, lambda: DRAWN[kind](analysis))


def _nothing(kind: str, why: str) -> ConfigError:
    return ConfigError(f"the picture {kind} has nothing to show: {why}", key="plot", value=kind)


def title_of(analysis: TraceAnalysis) -> str:
    """Return whose trace it is."""
    ranks = len(analysis.trace.ranks)
    devices = next((rank.devices[0] for rank in analysis.trace.ranks if rank.devices), "")
    whose = f"{ranks:,} ranks" if ranks > 1 else f"rank {analysis.trace.ranks[0].rank}"
    return f"{whose} on {devices}" if devices else whose


def breakdown_figure(analysis: TraceAnalysis) -> fig.Figure:
    """Draw the time of an iteration by phase and type of operation."""
    bars = phase_bars(analysis)
    if not bars.phases:
        raise _nothing(BREAKDOWN, "nothing was selected")
    figure = fig.new_figure(
        8.6,
        1.9 + 0.62 * len(bars.phases),
        f"Where an iteration goes: {title_of(analysis)}",
        "medians over iterations and devices; launch is the time between kernels that compute",
    )
    axes = figure.subplots()
    places = np.arange(len(bars.phases))
    _stack(axes, places - 0.14, 0.42, bars.parts, COLOURS)
    _stack(axes, places + 0.24, 0.2, bars.communication, TRAFFIC, suffix=" communication")
    axes.set_yticks(places, bars.phases)
    axes.invert_yaxis()
    axes.set_xlabel("time of an iteration, ms")
    axes.grid(axis="x", color=fig.FAINT)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return figure


def _stack(
    axes: fig.Axes, places: Any, height: float, parts: Mapping[str, Sequence[float]],
    colours: Mapping[str, str], *, suffix: str = "",
) -> None:  # fmt: skip
    left = np.zeros(len(places))
    for name, values in parts.items():
        if any(values):
            axes.barh(
                places, values, height, left=left, color=colours[name], label=f"{name}{suffix}"
            )
        left += np.asarray(values)


def _panels(
    analysis: TraceAnalysis, kind: str, title: str, note: str
) -> tuple[fig.Figure, list[tuple[fig.Axes, OverlapPanel]]]:
    panels = overlap_panels(analysis)
    if not panels:
        raise _nothing(kind, "no communication overlaps an operation that computes")
    columns, lines = min(_COLUMNS, len(panels)), -(-len(panels) // _COLUMNS)
    title = f"{title}: {title_of(analysis)}"
    figure = fig.new_figure(1.0 + 3.4 * columns, 1.1 + 2.7 * lines, title, note)
    every = fig.panels(figure, len(panels), _COLUMNS)
    return figure, [*zip(every, panels, strict=True)]


def cdf_figure(analysis: TraceAnalysis) -> fig.Figure:
    """Draw how overlap cumulates over the durations of operations, a curve for each rank."""
    note = "share of all overlap with communication that lies in runs up to a duration"
    figure, panels = _panels(analysis, CDF, "Overlap over duration", note)
    for each, panel in panels:
        curves = panel.curves()
        for place, (rank, curve) in enumerate(curves):
            colour = (
                fig.PALETTE[place % len(fig.PALETTE)]
                if len(curves) <= len(fig.PALETTE)
                else fig.SOFT
            )
            each.step(
                curve.duration, curve.cumulative, where="post", color=colour, linewidth=1.4,
                label=f"rank {rank}",
            )  # fmt: skip
        _mark(each, panel.d0, "D0")
        _mark(each, panel.d50, "D50")
        _name(
            each, panel, f", D50/D0 = {panel.d50 / panel.d0:.2f}" if panel.d50 and panel.d0 else ""
        )
        _spread_out(each, "x", panel)
        each.set_ylim(-0.03, 1.12)
        each.grid(color=fig.FAINT)
        if 1 < len(curves) <= len(fig.PALETTE):
            each.legend(frameon=False, fontsize=7.5, loc="lower right")
    figure.supxlabel("duration of a run, over that of the shortest like it", fontsize=10)
    figure.supylabel("share of all overlap", fontsize=10)
    return figure


def _name(axes: fig.Axes, panel: OverlapPanel, more: str = "") -> None:
    name = f"{fig.one_line(panel.name, _MOST_IN_PANEL)}\n{panel.phase}{more}"
    axes.set_title(name, fontsize=9, linespacing=1.3)


def _spread_out(axes: fig.Axes, name: Literal["x", "y"], panel: OverlapPanel) -> None:
    """Give durations a logarithmic scale where a few runs are far longer than the others."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    if panel.duration.max() > _LONG:
        axis = axes.xaxis if name == "x" else axes.yaxis
        (axes.set_xscale if name == "x" else axes.set_yscale)("log")
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())


def _mark(axes: fig.Axes, value: float | None, name: str) -> None:
    if value is not None:
        axes.axvline(value, color=fig.INK, linewidth=0.9, linestyle=(0, (3, 3)))
        high = 1.01 if name == "D50" else 0.93
        axes.text(
            value, high, f" {name}", fontsize=8, va="top", transform=axes.get_xaxis_transform()
        )


def overlap_figure(analysis: TraceAnalysis) -> fig.Figure:
    """Draw duration against overlap ratio of the runs of operations."""
    note = "each point is one run of an operation; r is the correlation of both axes"
    figure, panels = _panels(analysis, OVERLAP, "Duration against overlap", note)
    for each, panel in panels:
        colour = np.searchsorted(np.unique(panel.rank), panel.rank) % len(fig.PALETTE)
        step = max(1, len(colour) // _MOST_POINTS)
        each.scatter(
            panel.overlap[::step], panel.duration[::step], s=14, alpha=0.6, linewidths=0,
            c=[fig.PALETTE[number] for number in colour[::step]],
        )  # fmt: skip
        _name(each, panel)
        _spread_out(each, "y", panel)
        if panel.correlation is not None:
            text = f"r = {panel.correlation:.2f}"
            each.text(0.5, 0.95, text, fontsize=8.5, va="top", transform=each.transAxes)
        each.set_xlim(-0.04, 1.04)
        each.grid(color=fig.FAINT)
    figure.supxlabel("overlap ratio: share of the run that communication covers", fontsize=10)
    figure.supylabel("duration of a run, over that of the shortest like it", fontsize=10)
    return figure


def launch_figure(analysis: TraceAnalysis) -> fig.Figure:
    """Draw preparation and call before the operations that wait longest."""
    names, times_us = launch_bars(analysis)
    if not any(map(sum, times_us)):
        raise _nothing(LAUNCH, "nothing that computes waits")
    figure = fig.new_figure(
        8.6,
        1.7 + 0.34 * len(names),
        f"Launch overhead: {title_of(analysis)}",
        "mean before one run; the operation with the largest sum over all runs comes first",
    )
    parts = dict(zip(LAUNCHES, times_us, strict=True))
    lengths = np.sum(times_us, axis=0)
    limits = _zooms(lengths)
    figure.set_size_inches(8.6 + 2.2 * (len(limits) - 1), figure.get_size_inches()[1])
    places = np.arange(len(names))
    panels = np.atleast_1d(figure.subplots(1, len(limits), sharey=True))
    for axes, limit in zip(panels, limits, strict=True):
        _stack(axes, places, 0.66, parts, LAUNCHES)
        axes.set_xlim(0.0, 1.06 * limit)
        for place in places[lengths > limit]:
            axes.text(1.0, place, ">", va="center", transform=axes.get_yaxis_transform())
        axes.set_xlabel("time before one run, µs")
        axes.grid(axis="x", color=fig.FAINT)
    panels[0].set_yticks(places, [fig.one_line(name, _MOST_NAME) for name in names])
    panels[0].invert_yaxis()
    panels[0].legend(frameon=False, loc="lower right")
    return figure


_FAR = 8.0
"""A bar so many times as long as the one in the middle gets a scale of its own."""


def _zooms(lengths: Floats) -> list[float]:
    """Return the ends of the scale: that of all bars, and that of the shorter ones."""
    longest = float(lengths.max())
    near = float(lengths[lengths <= _FAR * np.median(lengths)].max())
    return [longest, near] if 0.0 < near < longest else [longest]


def ranks_figure(analysis: TraceAnalysis) -> fig.Figure:
    """Draw what each rank did in its span."""
    names, parts = rank_spread(analysis)
    if not names:
        raise _nothing(RANKS, "nothing was selected")
    note = "compute, what it does not hide, and idle time add up to the span of a rank"
    if len(names) > _MOST_RANKS:
        busy = np.argsort(parts["idle"], kind="stable")
        half = _MOST_RANKS // 2
        kept = sorted([*busy[:half].tolist(), *busy[-half:].tolist()])
        note += f"; {half} with the least and {half} with the most idle time of {len(names)}"
        names = [names[place] for place in kept]
        parts = {name: [values[place] for place in kept] for name, values in parts.items()}
    title = f"Ranks beside each other: {title_of(analysis)}"
    figure = fig.new_figure(8.6, 1.9 + 0.26 * len(names), title, note)
    axes = figure.subplots()
    places = np.arange(len(names))
    _stack(axes, places, 0.72, parts, dict(zip(parts, SPREAD_COLOURS, strict=True)))
    axes.set_yticks(places, [f"rank {name}" for name in names])
    axes.invert_yaxis()
    axes.set_xlabel("time of a rank, ms")
    axes.grid(axis="x", color=fig.FAINT)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return figure


DRAWN: Mapping[str, Callable[[TraceAnalysis], fig.Figure]] = {
    BREAKDOWN: breakdown_figure,
    CDF: cdf_figure,
    OVERLAP: overlap_figure,
    LAUNCH: launch_figure,
    RANKS: ranks_figure,
    CORES: cores_figure,
    CLOCKS: clocks_figure,
}
