"""Operations of traces as tables: durations, launch overhead, overlap."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from projector.report.terminal.tables import add_row, grid, percent, section
from projector.report.terminal.trace import LONGEST_NAME, ms, short, us

MANY = 30
"""Rows that a terminal shows."""

OUTSIDE = "(no operation)"
"""What stands for an empty name."""

WIDE = 10.0
"""Spreads beyond this share of the median have no digits."""

NARROW_NAME = 28
"""Characters of a name beside two other keys."""

_TYPES = {"communication": "comm."}
"""Short names of types."""


def operations_report(shown: Mapping[str, Any]) -> list[RenderableType]:
    """Return the report of `projector trace operations`."""
    names = _columns(shown["by"])
    table = grid(*names.values(), "count", "share", "ms", "spread", "launch", "overlap")
    rows = shown["operations"]
    for row in rows[:MANY]:
        add_row(
            table,
            *_key(row, names),
            f"{row['activities']:,}",
            percent(row["share"]),
            ms(row["duration_ns"]["median"]),
            _spread(row["duration_ns"]),
            ms(row["launch_ns"]["median"]),
            _percent(row["overlap"]),
        )
    note = f"ms of one iteration of one rank: median, spread of the quartiles{_more(rows)}"
    return section(f"By {shown['by'][0]}", note, table)


def launch_report(shown: Mapping[str, Any]) -> list[RenderableType]:
    """Return the report of `projector trace launch`."""
    ranks = grid("rank", "launch ms", "preparation", "call", "of kernel time")
    for row in shown["ranks"][:MANY]:
        spent = row["launch_ns"]["median"]
        work = row["duration_ns"]["median"]
        parts = (row["preparation_ns"]["median"], row["call_ns"]["median"])
        add_row(ranks, str(row["rank"]), ms(spent), *map(ms, parts), _of(spent, work))
    names = _columns(shown["by"])
    table = grid(*names.values(), "count", "launch ms", "spread", "preparation", "call")
    rows = shown["operations"]
    for row in rows[:MANY]:
        add_row(
            table,
            *_key(row, names),
            f"{row['activities']:,}",
            ms(row["launch_ns"]["median"]),
            _spread(row["launch_ns"]),
            ms(row["preparation_ns"]["median"]),
            ms(row["call_ns"]["median"]),
        )
    note = "of one iteration, median"
    return [
        *section("Launch overhead", f"ms {note}", ranks),
        *section(f"By {shown['by'][0]}", f"ms {note}{_more(rows)}", table),
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
            *_key(row, {"operation": ""}),
            row["phase"],
            f"{row['instances']:,}",
            us(row["duration_ns"]["median"]),
            "" if spread is None else _percent(spread["median"]),
            "" if spread is None else f"{_percent(spread['p25'])}-{_percent(spread['p75'])}",
            "" if row["correlation"] is None else f"{row['correlation']:+.2f}",
            "" if row["ratio"] is None else f"{row['ratio']:.3f}",
        )
    note = "share of an operation during which communication runs" + _more(rows)
    return section("Overlap", note, table)


def _columns(by: Sequence[str]) -> dict[str, str]:
    """Return the columns of the keys; what is recomputed is said beside the name."""
    return {name: f"={name}" for name in by if name != "recompute"}


def _key(row: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
    width = LONGEST_NAME if len(names) < 3 else NARROW_NAME
    again = " (again)" if row.get("recompute") else ""
    cells = [_cell(row[name], name, width - len(again)) for name in names]
    cells[0] += again
    return cells


def _cell(value: Any, name: str, width: int) -> str:
    if isinstance(value, int):
        return str(value) if value >= 0 else "outside"
    if name == "type":
        return _TYPES.get(str(value), str(value))
    return short(value, width) if value else (OUTSIDE if name == "operation" else "")


def _spread(spread: Mapping[str, Any]) -> str:
    """Return half the distance of the quartiles as a share of the median."""
    if spread["samples"] < 2 or not spread["median"]:
        return ""
    relative = (spread["p75"] - spread["p25"]) / 2.0 / spread["median"]
    return f"±{percent(relative)}" if relative < WIDE else f">{percent(WIDE, 0)}"


def _percent(value: float | None) -> str:
    return "" if value is None else percent(value, 0)


def _of(part: float, whole: float) -> str:
    return percent(part / whole) if whole else ""


def _more(rows: Sequence[Any]) -> str:
    return f"; {len(rows) - MANY} more in --json" if len(rows) > MANY else ""
