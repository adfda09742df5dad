"""A run beside its projection, or beside another run."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from projector.projection.comparison import Pair
from projector.report.terminal.tables import add_row, grid, percent, section
from projector.report.terminal.trace import ms, short
from projector.units import NANOSECOND
from projector.validate.traces.result import (
    MEANINGS,
    Difference,
    Factor,
    TraceComparison,
    Unmatched,
)

MANY = 20
"""Operations that a terminal shows."""

FEW = 8
"""Unmatched operations that a terminal shows."""

_TYPES = {"communication": "comm.", "collective": "comm."}
"""Short names of types."""

SHOWN = 0.02
"""A factor nearer to 1 is left out of a line."""


def comparison_report(found: TraceComparison) -> list[RenderableType]:
    """Return the report of `projector trace compare`."""
    names = found.names
    return [
        *_title(found),
        *_step(found),
        *_operations(found),
        *_unmatched(f"Only {names.second}", found.only_second),
        *_unmatched(f"Only {names.first}", found.only_first),
    ]


def _ms(seconds: float) -> str:
    return ms(seconds / NANOSECOND)


def _title(found: TraceComparison) -> list[RenderableType]:
    line = Text(found.title[:1].upper() + found.title[1:], style="bold")
    steps = "step" if found.iterations == 1 else "steps"
    ranks = "rank" if len(found.ranks) == 1 else "ranks"
    line.append(f"  {found.iterations} {steps} of {len(found.ranks)} {ranks}", style="not bold")
    first, second = found.names.first, found.names.second
    below = (
        f"compared: {percent(found.matched_second)} of {second} and "
        f"{percent(found.matched_first)} of {first} time, durations added"
    )
    return [line, Padding(Text(below), (0, 0, 1, 2))]


def _step(found: TraceComparison) -> list[RenderableType]:
    first, second = found.names.first, found.names.second
    table = grid("=term", f"{first} ms", f"{second} ms", "difference", "ratio")
    for name, pair in found.step.items():
        add_row(table, name, *_pair(pair))
    return section("Step", "what the device did; only what nothing hides", table)


def _pair(pair: Pair) -> tuple[str, str, str, str]:
    difference = pair.measured_s - pair.simulated_s
    slower = _compact(pair.measured_s / pair.simulated_s) if pair.simulated_s else ""
    sign = "+" if difference >= 0.0 else ""
    return _ms(pair.simulated_s), _ms(pair.measured_s), f"{sign}{_ms(difference)}", slower


def _operations(found: TraceComparison) -> list[RenderableType]:
    names = found.names
    # Names of operations of the models tell their types.
    typed = ("=type",) * (names.first != "projected")
    table = grid(
        "=operation", "=phase", *typed, names.first, names.second, "difference", "ratio", "<because"
    )
    for each in found.operations[:MANY]:
        kind = (_TYPES.get(each.kind, each.kind),) * len(typed)
        add_row(
            table, short(each.operation, 28), each.phase, *kind, *_pair(each.pair),
            Text(_factors(each)),
        )  # fmt: skip
    note = f"ms of a step; ratio: {names.second} over {names.first}"
    if len(found.operations) > MANY:
        note += f"; {len(found.operations) - MANY} more in --json"
    used = {factor.name for each in found.operations[:MANY] for factor in _told(each.factors)}
    legend = "; ".join(f"{name}: {text}" for name, text in MEANINGS.items() if name in used)
    lines: list[RenderableType] = section("Operations", note, table)
    return [*lines, Padding(Text(legend, style="dim"), (0, 0, 1, 2))] if legend else lines


def _told(factors: Sequence[Factor]) -> list[Factor]:
    return [factor for factor in factors if abs(factor.value - 1.0) > SHOWN]


def _factors(each: Difference) -> str:
    told = sorted(_told(each.factors), key=lambda factor: -factor.size)
    return ", ".join(f"{factor.name} x{_compact(factor.value)}" for factor in told)


def _compact(ratio: float) -> str:
    """Format a ratio with two decimals, a large one with none."""
    return f"{ratio:.2f}" if ratio < 100.0 else f"{ratio:,.0f}"


def _unmatched(title: str, entries: Sequence[Unmatched]) -> list[RenderableType]:
    if not entries:
        return []
    table = grid("=operation", "=phase", "=type", "ms", "runs", "<kernel")
    for each in entries[:FEW]:
        runs = f"{each.runs:,.3g}" if each.runs < 1000.0 else f"{each.runs:,.0f}"
        add_row(
            table, short(each.operation, 34), each.phase, each.kind, _ms(each.time_s), runs,
            short(each.kernel),
        )  # fmt: skip
    total = _ms(sum(each.time_s for each in entries))
    note = f"{total} ms of a step"
    if len(entries) > FEW:
        note += f"; {len(entries) - FEW} more in --json"
    return section(title, note, table)
