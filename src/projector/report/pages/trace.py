"""The page of a trace: its pictures to point at, and the tables behind them."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from projector.report.document import Column, Document, Section, Table, words
from projector.report.figures import trace
from projector.report.figures.figure import PALETTE
from projector.report.pages import page
from projector.trace.analysis import TraceAnalysis
from projector.trace.measures.iterations import rank_summaries

_MS = 1e6


def trace_document(analysis: TraceAnalysis) -> Document:
    """Return the page of a trace."""
    warnings = analysis.warnings
    sections = [
        *([Section("Mind this", items=warnings)] if warnings else []),
        *_phases(analysis),
        *_overlap(analysis),
        *_launch(analysis),
        *_ranks(analysis),
    ]
    files = len(analysis.trace.ranks)
    lead = (
        f"{files:,} {'traces' if files > 1 else 'trace'}, {len(analysis.activities):,} activities."
    )
    return Document(f"Trace of {trace.title_of(analysis)}", lead, sections)


def _phases(analysis: TraceAnalysis) -> list[Section]:
    bars = trace.phase_bars(analysis)
    groups = (bars.parts, trace.COLOURS, ""), (bars.communication, trace.TRAFFIC, "communication")
    figure = _bars("time of an iteration, ms", bars.phases, *groups)
    text = (
        "Medians over iterations and devices. Launch is the time between kernels that compute; "
        "communication stands beside it, since it lies behind kernels or between them."
    )
    return [Section("Where an iteration goes", text, figures=[("phases", lambda: figure)])]


def _overlap(analysis: TraceAnalysis) -> list[Section]:
    panels = trace.overlap_panels(analysis, most=24)
    if not panels:
        return []
    text = (
        "Each point is a run of an operation. The overlap ratio is the share of its duration that "
        "communication covers. The duration is divided by that of the shortest run like it."
    )
    curves = "The share of all overlap that lies in runs up to a duration, one curve a rank."
    return [
        Section(
            "Duration against overlap",
            text,
            _effects(panels),
            figures=[(_name(panel), partial(_points, panel)) for panel in panels],
        ),
        Section(
            "Overlap over duration",
            curves,
            figures=[(_name(panel), partial(_curves, panel)) for panel in panels],
        ),
    ]


def _name(panel: trace.OverlapPanel) -> str:
    return f"{panel.name}, {panel.phase}"


def _effects(panels: Sequence[trace.OverlapPanel]) -> Table:
    ratios = [panel.d50 / panel.d0 if panel.d50 and panel.d0 else None for panel in panels]
    return Table([
        words("operation", [panel.name for panel in panels]),
        words("phase", [panel.phase for panel in panels]),
        Column("runs", [len(panel.rank) for panel in panels]),
        Column("correlation", [panel.correlation for panel in panels], digits=3),
        Column("D50", [panel.d50 for panel in panels], digits=3),
        Column("D0", [panel.d0 for panel in panels], digits=3),
        Column("D50/D0", ratios, digits=3),
    ])  # fmt: skip


def _points(panel: trace.OverlapPanel) -> dict[str, Any]:
    data = [
        page.scatter(
            "markers", f"rank {rank}", panel.overlap[panel.rank == rank],
            panel.duration[panel.rank == rank],
            marker={"color": PALETTE[place % len(PALETTE)], "size": 6, "opacity": 0.6},
        )
        for place, rank in enumerate(dict.fromkeys(panel.rank.tolist()))
    ]  # fmt: skip
    layout = page.plain_layout("overlap ratio", "duration over the shortest like it")
    # A share: without a range a single value would stand in the middle of 0 to 2.
    layout["xaxis"]["range"] = [-0.03, 1.03]
    return {"data": data, "layout": layout}


def _curves(panel: trace.OverlapPanel) -> dict[str, Any]:
    data = [
        page.scatter(
            "lines", f"rank {rank}", curve.duration, curve.cumulative,
            line={"color": PALETTE[place % len(PALETTE)], "shape": "hv"},
        )
        for place, (rank, curve) in enumerate(panel.curves())
    ]  # fmt: skip
    layout = page.plain_layout("duration over the shortest like it", "share of all overlap")
    return {"data": data, "layout": layout}


def _launch(analysis: TraceAnalysis) -> list[Section]:
    names, times_us = trace.launch_bars(analysis, most=30)
    kinds = ("preparation", "call", "launch not in the trace")
    parts = dict(zip(kinds, times_us, strict=True))
    colours = dict(zip(kinds, trace.LAUNCHES.values(), strict=True))
    figure = _bars("mean time before a run, µs", names, (parts, colours, ""))
    text = (
        "Mean before one run. Preparation: the host had not yet called the launch. Call: it had. "
        "The operation with the largest sum over all runs comes first."
    )
    return [Section("Launch overhead", text, figures=[("launch", lambda: figure)])]


def _ranks(analysis: TraceAnalysis) -> list[Section]:
    names, parts = trace.rank_spread(analysis)
    labels = [f"rank {name}" for name in names]
    colours = dict(zip(parts, trace.SPREAD_COLOURS, strict=True))
    figure = _bars("time of a rank, ms", labels, (parts, colours, ""))
    summaries = rank_summaries(analysis.in_time)
    columns = [
        words("rank", names),
        Column("span ms", [summary.span_ns / _MS for summary in summaries], digits=3),
        *(Column(f"{name} ms", values, digits=3) for name, values in parts.items()),
        Column("kernels", [summary.kernels for summary in summaries]),
    ]
    text = "Compute, what it does not hide, and idle time add up to the span of a rank."
    table = Table(columns)
    return [Section("Ranks beside each other", text, table, figures=[("ranks", lambda: figure)])]


def _bars(title: str, names: Sequence[str], *groups: tuple[Any, Any, str]) -> dict[str, Any]:
    """Return groups of stacked bars, each with its parts, their colours and what they are."""
    data = [bar for group in groups for bar in page.stacked_bars(names, *group, flat=True)]
    layout = page.plain_layout(title, "")
    layout |= {"barmode": "stack", "height": 160 + 26 * len(groups) * len(names)}
    layout["yaxis"] |= {"autorange": "reversed"}
    page.named_axis(layout, "yaxis")
    return {"data": data, "layout": layout}
