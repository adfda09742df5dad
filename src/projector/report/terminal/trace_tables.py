"""Operations of traces as tables: durations, launch overhead, overlap."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import RenderableType

from projector.report.terminal.tables import Fitting, add_row, grid, percent, section
from projector.report.terminal.trace import LONGEST_NAME, ms, short, us

MANY = 30
"""Rows that a terminal shows."""

OUTSIDE = "(no operation)"
"""What stands for an empty name."""

WIDE = 10.0
"""Spreads beyond this share of the median have no digits."""

_NAME_WIDTHS = {
    (False, True): LONGEST_NAME,
    (False, False): 34,
    (True, True): 28,
    (True, False): 22,
}
"""Characters of a name, by whether it has other keys beside it and whether there is room."""

_TYPES = {"communication": "comm."}
"""Short names of types."""


class _Column(NamedTuple):
    """A column of a table."""

    head: str
    cell: Callable[[Mapping[str, Any]], str]
    kept: bool = True
    """Whether it also stands in a narrow terminal."""


def operations_report(shown: Mapping[str, Any]) -> list[RenderableType]:
    """Return the report of `projector trace operations`."""
    rows = shown["operations"]
    columns = (
        _Column("count", _count, kept=False),
        _Column("share", lambda row: percent(row["share"])),
        _Column("ms", _median_of("duration_ns")),
        _Column("spread", lambda row: _spread(row["duration_ns"]), kept=False),
        _Column("launch", _median_of("launch_ns")),
        _Column("overlap", lambda row: _percent(row["overlap"])),
    )
    note = f"ms of one iteration of one rank: median, spread of the quartiles{_more(rows)}"
    return section(f"By {shown['by'][0]}", note, _fitting(rows, shown["by"], columns))


def launch_report(shown: Mapping[str, Any]) -> list[RenderableType]:
    """Return the report of `projector trace launch`."""
    ranks = grid("rank", "launch ms", "preparation", "call", "of kernel time")
    for row in shown["ranks"][:MANY]:
        spent = row["launch_ns"]["median"]
        work = row["duration_ns"]["median"]
        parts = (row["preparation_ns"]["median"], row["call_ns"]["median"])
        add_row(ranks, str(row["rank"]), ms(spent), *map(ms, parts), _of(spent, work))
    rows = shown["operations"]
    columns = (
        _Column("count", _count, kept=False),
        _Column("launch ms", _median_of("launch_ns")),
        _Column("spread", lambda row: _spread(row["launch_ns"]), kept=False),
        _Column("preparation", _median_of("preparation_ns")),
        _Column("call", _median_of("call_ns")),
    )
    note = "of one iteration, median"
    table = _fitting(rows, shown["by"], columns)
    return [
        *section("Launch overhead", f"ms {note}", ranks),
        *section(f"By {shown['by'][0]}", f"ms {note}{_more(rows)}", table),
    ]


def overlap_report(shown: Mapping[str, Any]) -> list[RenderableType]:
    """Return the report of `projector trace overlap`."""
    rows = shown["operations"]
    columns = (
        _Column("compared", lambda row: f"{row['instances']:,}"),
        _Column("us", lambda row: us(row["duration_ns"]["median"])),
        _Column("overlap", lambda row: _quantile(row["overlap"], "median")),
        _Column("25-75 %", _quartiles, kept=False),
        _Column("correlation", lambda row: _known(row["correlation"], "+.2f"), kept=False),
        _Column("D50/D0", lambda row: _known(row["ratio"], ".3f")),
    )
    note = "share of an operation during which communication runs" + _more(rows)
    table = _fitting(rows, ("operation", "phase", "recompute"), columns)
    return section("Overlap", note, table)


def _fitting(
    rows: Sequence[Mapping[str, Any]], by: Sequence[str], columns: Sequence[_Column]
) -> Fitting:
    """Return a table that drops columns, and shortens names, where there is no room."""
    kept = [column for column in columns if column.kept]
    return Fitting(_table(rows, by, columns, is_wide=True), _table(rows, by, kept, is_wide=False))


def _table(
    rows: Sequence[Mapping[str, Any]],
    by: Sequence[str],
    columns: Sequence[_Column],
    *,
    is_wide: bool,
) -> RenderableType:
    # What is recomputed is said beside the name.
    names = [name for name in by if name != "recompute"]
    width = _NAME_WIDTHS[len(names) > 1, is_wide]
    table = grid(*(f"={name}" for name in names), *(column.head for column in columns))
    for row in rows[:MANY]:
        again = " (again)" if row.get("recompute") else ""
        cells = [_cell(row[name], name, width - len(again)) for name in names]
        cells[0] += again
        add_row(table, *cells, *(column.cell(row) for column in columns))
    return table


def _count(row: Mapping[str, Any]) -> str:
    return f"{row['activities']:,}"


def _median_of(key: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: ms(row[key]["median"])


def _quantile(spread: Mapping[str, Any] | None, name: str) -> str:
    return "" if spread is None else _percent(spread[name])


def _quartiles(row: Mapping[str, Any]) -> str:
    spread = row["overlap"]
    return "" if spread is None else f"{_percent(spread['p25'])}-{_percent(spread['p75'])}"


def _known(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


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
