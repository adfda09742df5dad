"""Traces of real runs as tables."""

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from projector.report.terminal.tables import add_row, grid, percent, section

MANY = 32
"""Ranks that a terminal shows."""

_PARTS = (
    ("compute_ns", "compute"),
    ("exposed_communication_ns", "exposed communication"),
    ("exposed_memcpy_ns", "exposed copies"),
    ("idle_ns", "idle"),
)
"""What adds up to the span of a rank."""


def ms(time_ns: float) -> str:
    """Format nanoseconds as milliseconds, with four digits or more."""
    value = time_ns / 1e6
    return f"{value:,.1f}" if abs(value) >= 1000.0 else f"{value:,.4g}"


def share(part: float, whole: float) -> str:
    """Format a share as percent; nothing where there is no whole."""
    return percent(part / whole) if whole else ""


def summary_report(shown: Mapping[str, Any]) -> list[RenderableType]:
    """Return the report of `projector trace summary`."""
    return [*_title(shown), *_ranks(shown["ranks"])]


def _title(shown: Mapping[str, Any]) -> list[RenderableType]:
    files = shown["files"]
    events = sum(each["events"] for each in files)
    line = Text("Trace", style="bold")
    ranks = f"{len(files)} ranks" if len(files) > 1 else f"rank {files[0]['rank']}"
    devices = sorted({name for each in files for name in each["devices"]})
    where = f" on {', '.join(devices)}" if devices else ""
    line.append(f"  {ranks}{where}: {events:,} events", style="not bold")
    numbers = shown["iterations"]
    below = "no iterations" if not numbers else f"iterations {_runs(numbers)}"
    return [line, Padding(Text(below), (0, 0, 1, 2))]


def _ranks(ranks: list[Mapping[str, Any]]) -> list[RenderableType]:
    table = grid("rank", "span ms", *(name for _, name in _PARTS), "kernels")
    for each in ranks[:MANY]:
        span = each["span_ns"]
        add_row(
            table,
            str(each["rank"]),
            ms(span),
            *(share(each[key], span) for key, _ in _PARTS),
            f"{each['kernels']:,}",
        )
    note = "shares of the span, which they add up to"
    if len(ranks) > MANY:
        note += f"; {len(ranks) - MANY} more ranks in --json"
    return section("Ranks", note, table)


def _runs(numbers: list[int]) -> str:
    """Write 3, 4, 5, 8 as 3-5, 8."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
