"""What the pictures of a trace show, as numbers: drawn ones and those of pages alike."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from projector.arrays import Floats, Ints
from projector.trace.activity import COLLECTIVE, MOVE, PHASES, TYPES
from projector.trace.analysis import TraceAnalysis
from projector.trace.measures.breakdown import Instances, Part, breakdown, instances
from projector.trace.measures.iterations import RankSummary, rank_summaries
from projector.trace.measures.overlap import (
    OverlapCdf,
    cdf,
    correlation,
    effect_of,
    operation_members,
)

MOST_OPERATIONS = 6
"""Operations with a panel of their own."""

FEWEST_RUNS = 3
"""Runs of an operation from which a curve says anything."""

MOST_BARS = 14
"""Operations in a chart of bars."""

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
        parts = [found.get((phase, kind)) for phase in phases]
        return [_ms(part) for part in parts]

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

    def curves(self) -> list[tuple[int, OverlapCdf]]:
        """Return the curve of each rank."""
        return [
            (rank, cdf(self.duration[self.rank == rank], self.overlap[self.rank == rank]))
            for rank in np.unique(self.rank).tolist()
        ]


def overlap_panels(analysis: TraceAnalysis, most: int = MOST_OPERATIONS) -> list[OverlapPanel]:
    """Return the longest operations that communication overlaps somewhere, the longest first."""
    activities = analysis.everything
    runs = instances(activities, where=analysis.sampled)
    panels: list[tuple[int, OverlapPanel]] = []
    for members in operation_members(activities, runs):
        known = members[~np.isnan(runs.overlap[members]) & ~np.isnan(runs.normalised[members])]
        named = activities.operation[runs.row[members[0]]] >= 0
        if named and len(known) >= FEWEST_RUNS and np.any(runs.overlap[known] > 0.0):
            panels.append((int(runs.kernel_ps[members].sum()), _panel(analysis, runs, known)))
    return [panel for _, panel in sorted(panels, key=lambda each: -each[0])[:most]]


def _panel(analysis: TraceAnalysis, runs: Instances, members: Ints) -> OverlapPanel:
    activities = analysis.everything
    rows = runs.row[members]
    row = int(rows[0])
    operation = int(activities.operation[row])
    overlap, duration = runs.overlap[members], runs.normalised[members]
    effect = effect_of(runs, members)
    return OverlapPanel(
        name=_plain(activities.operations[operation]),
        phase=_phase(analysis, row),
        rank=activities.rank[rows],
        overlap=overlap,
        duration=duration,
        correlation=correlation(overlap, duration),
        d50=effect.d50,
        d0=effect.d0,
    )


def _plain(name: str) -> str:
    return name.removeprefix("torch::autograd::")


def _phase(analysis: TraceAnalysis, row: int) -> str:
    repeated = ", recomputed" if analysis.everything.recompute[row] else ""
    return f"{PHASES[analysis.everything.phase[row]]}{repeated}"


@dataclass(frozen=True, slots=True)
class LaunchBars:
    """Launch overhead before an operation, the mean over its runs in microseconds."""

    names: list[str]
    preparation_us: list[float]
    call_us: list[float]
    other_us: list[float]
    """Bubbles whose launch is not in the trace."""


def launch_bars(analysis: TraceAnalysis, most: int = MOST_BARS) -> LaunchBars:
    """Return the operations that wait longest for their launch (the study's figure 11)."""
    activities = analysis.everything
    runs = instances(activities, where=analysis.sampled)
    found: list[tuple[float, str, float, float, float]] = []
    for members in operation_members(activities, runs):
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
        found.append((float(bubble_ps), label, *means))
    found.sort(key=lambda each: -each[0])
    kept = found[:most]
    return LaunchBars(
        names=[row[1] for row in kept],
        preparation_us=[row[2] for row in kept],
        call_us=[row[3] for row in kept],
        other_us=[row[4] for row in kept],
    )


SPREAD = ("compute", "exposed communication", "exposed copies", "idle")


def rank_spread(analysis: TraceAnalysis) -> tuple[list[str], dict[str, list[float]]]:
    """Return the names of the ranks, and ms of compute, exposed traffic and idle time of each."""
    ranks = rank_summaries(analysis.in_time)
    several = len({each.rank for each in ranks}) < len(ranks)
    names = [f"{each.rank}, device {each.device}" if several else f"{each.rank}" for each in ranks]
    return names, {name: _column(ranks, key) for name, key in zip(SPREAD, _KEYS, strict=True)}


_KEYS = ("compute_ns", "exposed_communication_ns", "exposed_memcpy_ns", "idle_ns")


def _column(ranks: Sequence[RankSummary], key: str) -> list[float]:
    return [getattr(each, key) / NS_PER_MS for each in ranks]
