"""Operations of traces as tables: durations, launch overhead, overlap."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from projector.report.terminal.tables import add_row, grid, percent, section
from projector.report.terminal.trace import ms, short, us

MANY = 30
"""Rows that a terminal shows."""

OUTSIDE = "(no operation)"
"""What stands for an empty name."""

_SECOND = ("phase", "type", "class", "layer", "iteration", "rank", "device", "stream")
"""Keys that stay on one line."""


def operations_report(shown: Mapping[str, Any]) -> list[RenderableType]:
    """Return the report of `projector trace operations`."""
    names = _columns(shown["by"])
    table = grid(
        *names.values(), "activities", "share", "ms", "25-75 %", "exposed ms", "launch ms",
        "overlap",
    )  # fmt: skip
    rows = shown["operations"]
    for row in rows[:MANY]:
        add_row(
            table,
            *_key(row, names),
            f"{row['activities']:,}",
            percent(row["share"]),
            ms(row["duration_ns"]["median"]),
            _quartiles(row["duration_ns"]),
            ms(row["exposed_ns"]["median"]),
            ms(row["launch_ns"]["median"]),
            _percent(row["overlap"]),
        )
    note = "ms of one iteration of one rank, median" + _more(rows)
    return section(f"Activities by {', '.join(shown['by'])}", note, table)


def launch_report(shown: Mapping[str, Any]) -> list[RenderableType]:
    """Return the report of `projector trace launch`."""
    ranks = grid("rank", "launch ms", "preparation ms", "call ms", "of kernel time")
    for row in shown["ranks"][:MANY]:
        spent = row["launch_ns"]["median"]
        work = row["duration_ns"]["median"]
        parts = (row["preparation_ns"]["median"], row["call_ns"]["median"])
        add_row(ranks, str(row["rank"]), ms(spent), *map(ms, parts), _of(spent, work))
    names = _columns(shown["by"])
    table = grid(*names.values(), "activities", "launch ms", "25-75 %", "preparation ms", "call ms")
    rows = shown["operations"]
    for row in rows[:MANY]:
        add_row(
            table,
            *_key(row, names),
            f"{row['activities']:,}",
            ms(row["launch_ns"]["median"]),
            _quartiles(row["launch_ns"]),
            ms(row["preparation_ns"]["median"]),
            ms(row["call_ns"]["median"]),
        )
    note = "of one iteration, median"
    return [
        *section("Launch overhead", note, ranks),
        *section(f"By {', '.join(shown['by'])}", f"{note}{_more(rows)}", table),
    ]


def overlap_report(shown: Mapping[str, Any]) -> list[RenderableType]:
    """Return the report of `projector trace overlap`."""
    table = grid(
        "<operation", "=phase", "runs", "us", "overlap", "25-75 %", "correlation", "D50/D0"
    )
    rows = shown["operations"]
    for row in rows[:MANY]:
        spread = row["overlap"]
        add_row(
            table,
            short(row["operation"] or OUTSIDE) + _again(row),
            row["phase"],
            f"{row['instances']:,}",
            us(row["duration_ns"]["median"]),
            "" if spread is None else _percent(spread["median"]),
            "" if spread is None else f"{_percent(spread['q25'])}-{_percent(spread['q75'])}",
            "" if row["correlation"] is None else f"{row['correlation']:+.2f}",
            "" if row["ratio"] is None else f"{row['ratio']:.3f}",
        )
    note = "share of an operation during which communication runs" + _more(rows)
    return section("Overlap", note, table)


def _columns(by: Sequence[str]) -> dict[str, str]:
    """Return the columns of the keys; what is recomputed is said beside the name."""
    return {
        name: f"={name}" if name in _SECOND else f"<{name}" for name in by if name != "recompute"
    }


def _key(row: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
    cells = [_cell(row[name], name) for name in names]
    cells[0] += _again(row)
    return cells


def _cell(value: Any, name: str) -> str:
    if isinstance(value, int):
        return str(value) if value >= 0 else "outside"
    return short(value) if value else (OUTSIDE if name == "operation" else "")


def _again(row: Mapping[str, Any]) -> str:
    return " (recomputed)" if row.get("recompute") else ""


def _quartiles(spread: Mapping[str, Any]) -> str:
    return f"{ms(spread['q25'])}-{ms(spread['q75'])}"


def _percent(value: float | None) -> str:
    return "" if value is None else percent(value, 0)


def _of(part: float, whole: float) -> str:
    return percent(part / whole) if whole else ""


def _more(rows: Sequence[Any]) -> str:
    return f"; {len(rows) - MANY} more in --json" if len(rows) > MANY else ""
