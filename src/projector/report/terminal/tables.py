"""Numbers, tables and paragraphs that all reports share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.bar import Bar
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.text import Text

from projector.report.terminal.grid import Cell, Grid

DIM = "dim"


def grid(*columns: str, header: bool = True, gap: int = 2) -> Grid:
    """Return an empty table without frame; `Grid` says what the names of columns mean."""
    return Grid(*columns, header=header, gap=gap)


def add_row(table: Grid, *cells: Cell, style: str | None = None) -> None:
    """Add a row to a table of `grid`."""
    table.add_row(*cells, style=style)


@dataclass(frozen=True, slots=True)
class Fitting:
    """The wide layout of some content where it has room, else the narrow one."""

    wide: RenderableType
    narrow: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the layout for the width at hand."""
        unlimited = options.update(width=_UNLIMITED)
        least = Measurement.get(console, unlimited, self.wide).minimum
        yield self.wide if least <= options.max_width else self.narrow


_UNLIMITED = 1000
"""Columns that no report needs."""


def section(title: str, note: str, table: RenderableType) -> list[RenderableType]:
    """Return a headed, indented table with a blank line below."""
    return [heading(title, note), Padding(table, (0, 0, 1, 2))]


def heading(title: str, note: str = "") -> Text:
    """Return the line above a section."""
    line = Text(title, style="bold")
    if note:
        line.append(f"  {note}", style="not bold dim")
    return line


def bar(share: float) -> Bar:
    """Return a bar of ``share`` of the width of its column."""
    return Bar(size=1.0, begin=0.0, end=max(0.0, min(share, 1.0)), color="cyan")


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
