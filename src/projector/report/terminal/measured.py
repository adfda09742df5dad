"""What was measured, where each term comes from, and measured beside simulated."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from projector.measure.reduction import reduction_lines
from projector.projection.comparison import ComparedOperation, Comparison, Pair, errors
from projector.projection.memory import MemoryProjection
from projector.projection.provenance import Origins
from projector.projection.terms import LIMITS
from projector.report.terminal.tables import (
    DIM,
    add_row,
    gib,
    grid,
    heading,
    milliseconds,
    percent,
    section,
)

MAX_OPERATIONS = 16
"""Operations shown one by one; the others are summed up."""

MAX_NAMES = 3
"""Operations named one by one that were not measured for the same reason."""

STYLES = {"measured": "green", "scaled": "yellow", "analytic": ""}
"""Colour of each origin."""

OF_STEP = "total"
"""Name of the sum among the pairs of a step."""


def mark(origin: str) -> Text:
    """Return the origin of a term as tables write it."""
    return Text(origin, style=STYLES.get(origin, ""))


def measurement(times: Origins | None) -> list[RenderableType]:
    """Say on what was measured, what was reduced for it, and why; nothing without a record."""
    if times is None:
        return []
    where = times.record["environment"]
    runtime = f", {where['backend'].upper()} {where['runtime']}" if where["runtime"] else ""
    note = f"torch {where['torch']}{runtime}"
    lines = "\n".join(reduction_lines(times.record["reduction"]))
    return [
        heading(f"Measured on {where['ranks']} x {where['device']}", note),
        Padding(Text(lines, style=DIM), (0, 0, 1, 2)),
    ]


def anchored_memory(result: MemoryProjection) -> list[RenderableType]:
    """Return what the peak is made of where it stands on a measured one."""
    anchor, compared = result.anchor, result.comparison
    if anchor is None:
        return []
    table = grid("=of the fullest stage", "GiB", "=from")
    for name, num_bytes, origin in (
        ("modelled peak", anchor.analytic_bytes, "analytic"),
        ("alive beyond the model", anchor.live_bytes, "scaled"),
        ("idle in the allocator", anchor.idle_bytes, "measured"),
        ("reserved peak", anchor.peak_bytes, ""),
        ("upper bound", anchor.upper_bytes, ""),
    ):
        add_row(table, name, gib(num_bytes), mark(origin))
    note = f"a step of the benchmark held {gib(anchor.measured_bytes)} GiB"
    if compared is not None:
        note += f", and {gib(compared.step.simulated_bytes)} simulated"
    return section("Peak, anchored on a measured one", note, table)


def compared_step(comparison: Comparison, origins: Mapping[str, str]) -> list[RenderableType]:
    """Return the terms of the restored target's step beside the simulated ones."""
    table = grid("=term", "<", "ms", "simulated", "sim/meas", "=from")
    for name, pair in comparison.target.items():
        if name == OF_STEP or pair.measured_s > 0.0 or pair.simulated_s > 0.0:
            cells = name, Text(LIMITS.get(name, ""), DIM)
            style = "bold" if name == OF_STEP else None
            add_row(table, *cells, *_numbers(pair), mark(origins.get(name, "")), style=style)
    note = "restored from what was measured, beside the models alone"
    return section("Time of one step", note, table)


def compared_benchmark(comparison: Comparison | None) -> list[RenderableType]:
    """Return layers, the step and operations of the benchmark, measured and simulated."""
    if comparison is None:
        return []
    table = grid("=of the benchmark", "ms", "simulated", "sim/meas")
    for entry in comparison.layers:
        add_row(table, f"{entry.layer} {entry.phase}", *_numbers(entry.pair))
    for name, pair in comparison.step.items():
        add_row(table, f"step of one layer each, {name}", *_numbers(pair))
    parts = section("Layers", "forward and backward as autograd runs them", table)
    parts += _operations(comparison.operations)
    return [*parts, *_missing(comparison)]


def _operations(operations: Sequence[ComparedOperation]) -> list[RenderableType]:
    if not operations:
        return []
    ranked = sorted(operations, key=lambda entry: -entry.pair.measured_s * entry.runs)
    table = grid("=operation", "=phase", "<shape", "ms", "simulated", "sim/meas")
    for entry in ranked[:MAX_OPERATIONS]:
        name = f"{entry.layer} {entry.key.label}"
        add_row(table, name, entry.key.phase, entry.shape, *_numbers(entry.pair))
    rest = ranked[MAX_OPERATIONS:]
    if rest:
        pair = Pair(
            sum(entry.pair.measured_s for entry in rest),
            sum(entry.pair.simulated_s for entry in rest),
        )
        add_row(table, f"{len(rest)} shorter ones", "", "", *_numbers(pair), style=DIM)
    return section("Operations", _summary(errors(entry.pair for entry in operations)), table)


def _summary(found: Mapping[str, Any]) -> str:
    if not found["count"]:
        return "each by itself"
    return (
        f"each by itself; of {found['count']}, simulated is off by "
        f"{percent(found['median_ape'])} in the median, {_ratio(found['geomean_ratio'])} on average"
    )


def _missing(comparison: Comparison) -> list[RenderableType]:
    if not comparison.missing:
        return []
    reasons: dict[tuple[str, str], list[str]] = {}
    for entry in comparison.missing:
        reasons.setdefault((entry.status, entry.message), []).append(entry.name)
    table = grid("<not measured", "=status", "<why")
    for (status, message), names in reasons.items():
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        shown = ", ".join(names[:MAX_NAMES])
        add_row(table, f"{shown}{more}", status.replace("_", " "), message)
    return section("Not measured", "the models stand for it", table)


def _numbers(pair: Pair) -> tuple[str, str, str]:
    return milliseconds(pair.measured_s), milliseconds(pair.simulated_s), _ratio(pair.ratio)


def _ratio(ratio: float | None) -> str:
    """Format simulated over measured, with two digits also where it is small."""
    if ratio is None:
        return ""
    return f"{ratio:.2f}" if ratio >= 0.1 or ratio == 0.0 else f"{ratio:.2g}"
