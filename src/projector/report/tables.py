"""Numbers, tables and paragraphs that all reports share."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

BAR_CELLS = 24
"""Longest bar of a breakdown, in characters."""

DIM = "dim"


def grid(*columns: str, header: bool = True, indent: int = 2) -> Table:
    """Return an empty table without frame; a column whose name begins with ``<`` is text.

    Numbers stand right-aligned and are never cut; text gives way first.
    """
    table = Table(
        box=None, show_header=header, header_style=DIM, padding=(0, 1, 0, 0), pad_edge=False
    )
    table.add_column("", width=indent - 1, no_wrap=True)
    for column in columns:
        if column.startswith("<"):
            table.add_column(column[1:], justify="left", overflow="fold")
        else:
            table.add_column(column, justify="right", no_wrap=True, overflow="ignore")
    return table


def add_row(table: Table, *cells: str | Text, style: str | None = None) -> None:
    """Add a row to a table of `grid`."""
    table.add_row("", *cells, style=style)


def heading(text: str, note: str = "") -> Text:
    """Return the line above a section."""
    line = Text(text, style="bold")
    if note:
        line.append(f"  {note}", style="not bold dim")
    return line


def pairs(entries: Iterable[tuple[str, str]], indent: int = 2) -> Padding:
    """Return names with their values as one flowing paragraph, a pair never broken."""
    text = Text()
    for name, value in entries:
        if text:
            text.append("  ")
        text.append(f"{name}\u00a0", style=DIM)
        text.append(value.replace(" ", "\u00a0"))
    return Padding(text, (0, 0, 0, indent))


def paragraph(text: str, *, style: str = "", indent: int = 2) -> Padding:
    """Return an indented paragraph."""
    return Padding(Text(text, style=style), (0, 0, 0, indent))


def bar(share: float, *, cells: int = BAR_CELLS) -> str:
    """Return a bar of ``share`` of its full length."""
    return "█" * round(max(0.0, min(share, 1.0)) * cells)


def gib(num_bytes: float) -> str:
    """Format bytes as GiB."""
    return f"{num_bytes / 2**30:,.2f}"


def signed(value: float, digits: int = 1) -> str:
    """Format a difference with its sign."""
    return f"{value:+,.{digits}f}"


def milliseconds(seconds: float) -> str:
    """Format seconds as milliseconds, with more digits where they are few."""
    value = seconds * 1e3
    return f"{value:,.1f}" if abs(value) >= 10.0 or value == 0.0 else f"{value:,.3f}"


def percent(share: float, digits: int = 1) -> str:
    """Format a fraction as percent."""
    return f"{share * 100:.{digits}f} %"


def count(number: float) -> str:
    """Format a number of parameters with four digits and a magnitude."""
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if number >= limit:
            return f"{number / limit:.4g} {unit}"
    return f"{number:.0f}"


def plain(value: Any) -> str:
    """Write a value as the job file would."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(plain(item) for item in value) + "]"
    return str(value)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as dotted keys."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{key}.")
        else:
            flat[key] = value
    return flat
