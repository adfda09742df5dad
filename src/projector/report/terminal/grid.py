"""Tables that follow the width of a terminal and never cut a number; numbers and lines in them."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rich.bar import Bar
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from projector.config.resources import hardware_table

BAR_CELLS = 30
"""Longest bar of a breakdown, in characters."""

LEAST_BAR_CELLS = 6

MOST_HEAD = 28
"""Characters from which the head of a column is folded, such as the name that a user gave."""

LEAST_TEXT = 16
"""Characters to which a column of text may shrink before columns move below."""

LEAST_KEY = 12
"""The same of the text that names a row where the columns of a table stand below each other."""


Cell = str | Text | Bar
Kind = Literal["number", "word", "text", "bar"]

_GIVING_WAY: tuple[Kind, ...] = ("bar", "text", "word")

_KINDS: dict[str, Kind] = {"<": "text", "=": "word", "|": "bar"}


@dataclass(slots=True)
class Column:
    """One column: its kind, its head and its cells."""

    kind: Kind
    head: str
    cells: list[Cell] = field(default_factory=list)
    roomy: int = 0
    """Characters below which text does not shrink beside other columns."""

    @property
    def full(self) -> int:
        """Characters that the column takes if nothing is folded."""
        if self.kind == "bar":
            return max(BAR_CELLS, len(self.head))
        return max(min(len(self.head), MOST_HEAD), max(map(_length, self.cells), default=0))

    @property
    def least(self) -> int:
        """Fewest characters in which nothing of the column is cut."""
        if self.kind == "bar":
            return max(LEAST_BAR_CELLS, len(self.head))
        if self.kind == "text":
            return min(self.full, max(LEAST_TEXT, len(self.head), self.roomy))
        return self.full

    @property
    def floor(self) -> int:
        """Fewest characters of all: words are folded too, where there is no other way."""
        return (
            min(self.least, max(LEAST_KEY, len(self.head))) if self.kind == "word" else self.least
        )


class Grid:
    """A table without frame, laid out for the width at hand.

    Where its columns have no room beside each other, bars go first. Then the columns stand in
    several tables below each other, and each of them begins with what names the rows.

    The first character of a head says what is in its column: ``<`` text, which is folded where
    there is little room, ``=`` text that stays on one line, ``|`` bars, else right-aligned numbers.
    """

    def __init__(self, *heads: str, header: bool = True, gap: int = 2) -> None:
        self.columns = [
            Column(_KINDS.get(head[:1], "number"), head[1:] if head[:1] in _KINDS else head)
            for head in heads
        ]
        self.styles: list[str | None] = []
        self._header, self._gap = header, gap

    @classmethod
    def of(
        cls,
        name: str,
        rows: Iterable[Any],
        *,
        style: Callable[[Any], str | None] | None = None,
        gap: int = 2,
        **known: Callable[[Any], Any],
    ) -> "Grid":
        """Return a table of ``hardware/report_tables.yaml``.

        Functions that are ``known`` make a value of a row, or write one.
        """
        rows, known = list(rows), _WRITERS | known
        told = [(*each, "", "", "")[:4] for each in hardware_table("report_tables.yaml")[name]]
        cells = [[_told(row, path, form, known) for _, path, form, _ in told] for row in rows]
        table = cls(*(str(head) for head, *_ in told), gap=gap)
        for column, (*_, roomy) in zip(table.columns, told, strict=True):
            column.roomy = roomy or 0
        for row, line in zip(rows, cells, strict=True):
            table.add_row(*line, style=style(row) if style else None)
        return table

    def add_row(self, *cells: Cell | int, style: str | None = None) -> None:
        """Add a cell to every column; thousands of a number are set apart."""
        for column, cell in zip(self.columns, cells, strict=True):
            column.cells.append(cell if isinstance(cell, Cell) else f"{cell:,}")
        self.styles.append(style)

    def __bool__(self) -> bool:
        """Return whether there is a row."""
        return bool(self.styles)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the width of the columns beside each other: folded, and on one line."""
        return Measurement(
            self._span([column.least for column in self.columns]),
            self._span([column.full for column in self.columns]),
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield one table, or several below each other where there is no room for one."""
        for index, columns in enumerate(self._blocks(options.max_width)):
            if index:
                yield Text()
            yield self._table(columns, options.max_width)

    def _span(self, widths: Sequence[int]) -> int:
        return sum(widths) + self._gap * max(len(widths) - 1, 0)

    def _fits(self, columns: Sequence[Column], width: int) -> bool:
        return self._span([column.least for column in columns]) <= width

    def _blocks(self, width: int) -> Iterator[list[Column]]:
        if self._fits(self.columns, width):
            yield self.columns
            return
        columns = [column for column in self.columns if column.kind != "bar"]
        if self._fits(columns, width):
            yield columns
            return
        keys = self._keys() if len(self.styles) > 1 else []
        share = max(LEAST_KEY, width // 2 // max(len(keys), 1))
        room = width - sum(min(key.full, share) + self._gap for key in keys)
        block: list[Column] = []
        for column in columns:
            if any(column is key for key in keys):
                continue
            if block and not self._fits([*block, column], room):
                yield [*keys, *block]
                block = []
            block.append(column)
        yield [*keys, *block]

    def _keys(self) -> list[Column]:
        """Return the first columns that tell the rows apart; without any, rows are numbered."""
        named = [column for column in self.columns if column.kind != "bar"]
        words = 0
        while words < len(named) and named[words].kind == "word":
            words += 1
        for many in range(1, max(words, 1) + 1):
            rows = list(zip(*(map(str, column.cells) for column in named[:many]), strict=True))
            if len(set(rows)) == len(rows):
                return named[:many]
        return [Column("number", "row", [str(row + 1) for row in range(len(self.styles))])]

    def _table(self, columns: Sequence[Column], width: int) -> Table:
        table = Table(
            box=None,
            show_header=self._header,
            header_style=DIM,
            padding=(0, self._gap, 0, 0),
            pad_edge=False,
        )
        for column, cells in zip(columns, self._widths(columns, width), strict=True):
            table.add_column(
                column.head,
                justify="right" if column.kind == "number" else "left",
                overflow="fold",
                width=cells,
            )
        for row, style in enumerate(self.styles):
            table.add_row(*(column.cells[row] for column in columns), style=style)
        return table

    def _widths(self, columns: Sequence[Column], width: int) -> list[int]:
        """Return full widths; where they are too much, bars give way, then text, then words."""
        widths = [column.full for column in columns]
        for kind in _GIVING_WAY:
            over = self._span(widths) - width
            while over > 0:
                giving = [
                    index
                    for index, column in enumerate(columns)
                    if column.kind == kind and widths[index] > column.floor
                ]
                if not giving:
                    break
                widths[max(giving, key=lambda index: widths[index])] -= 1
                over -= 1
        return widths


def _told(row: Any, path: Any, form: str, known: Mapping[str, Callable[[Any], Any]]) -> Any:
    """Return a cell: a value of a row, written; empty where nothing is known."""
    value = known[path](row) if path in known else row
    for part in () if path in known else str(path).split("."):
        if isinstance(value, Mapping):
            value = value[part]
        elif value is not None:
            value = value[int(part)] if part.isdecimal() else getattr(value, part)
    if value is None:
        return ""
    return known[form](value) if form in known else format(value, form) if form else value


def _length(cell: Cell) -> int:
    return 0 if isinstance(cell, Bar) else max(map(cell_len, str(cell).splitlines()), default=0)


# Numbers, tables and paragraphs that all reports share.
DIM = "dim"


@dataclass(frozen=True, slots=True)
class Fitting:
    """The wide layout of some content where it has room, else the narrow one."""

    wide: RenderableType
    narrow: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the layout for the width at hand."""
        least = Measurement.get(console, options.update(width=_UNLIMITED), self.wide).minimum
        yield self.wide if least <= options.max_width else self.narrow


_UNLIMITED = 1000
"""Columns that no report needs."""


def section(title: str, note: str, table: RenderableType) -> list[RenderableType]:
    """Return a headed, indented table with a blank line below."""
    return [heading(title, note), Padding(table, (0, 0, 1, 2))]


def listing(title: str, note: str, table: Grid) -> list[RenderableType]:
    """Return a section, nothing where its table has no row."""
    return section(title, note, table) if table else []


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


# Lines of reports: entries that stay whole, and text that is made for copying.
@dataclass(frozen=True, slots=True)
class Entries:
    """Short texts side by side; a line ends between two of them and not within one."""

    texts: tuple[Text, ...]
    gap: int = 2

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines for the width at hand."""
        line = Text()
        for text in self.texts:
            if line and line.cell_len + self.gap + text.cell_len > options.max_width:
                yield line
                line = Text()
            line.append(" " * self.gap if line else "").append_text(text)
        yield line


def entries(texts: Iterable[str | Text], style: str = "") -> Entries:
    """Return short texts side by side."""
    return Entries(tuple(each if isinstance(each, Text) else Text(each, style) for each in texts))


def below(*lines: str, style: str = "") -> list[RenderableType]:
    """Return lines below a table, indented as it is, with a blank line behind; of none nothing."""
    return [Padding(Text("\n".join(lines), style), (0, 0, 1, 2))] if any(lines) else []


_WRITERS: dict[str, Callable[[Any], Any]] = {
    "bar": bar,
    "count": count,
    "gib": gib,
    "milliseconds": milliseconds,
    "percent": percent,
    "plain": plain,
    "dim": lambda text: Text(text, DIM),
}
"""How `Grid.of` writes values."""


def pairs(named: Iterable[tuple[str, str]], name_style: str = "dim") -> Entries:
    """Return names, each with its value."""
    return Entries(
        tuple(Text(f"{name} ", name_style).append(value, "default") for name, value in named)
    )


@dataclass(frozen=True, slots=True)
class Pasted:
    """Text that is made for copying: one line, however long it is.

    A terminal shows a long line below itself and copies it as one. A part of a report has to stand
    by itself for this: what is padded is cut to the width.
    """

    text: str
    indent: int = 2

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the line."""
        yield Segment(" " * self.indent + self.text)
        yield Segment.line()


def assignment(name: str, value: Any) -> str:
    """Write an override as a shell takes it: with quotes where it has other meanings there."""
    return shlex.quote(f"{name}={_value(value)}")


def assignments(overrides: Mapping[str, Any]) -> str:
    """Write overrides as one piece of a command."""
    return " ".join(assignment(name, value) for name, value in overrides.items())


def _value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {_value(each)}' for name, each in value.items())}}}"
    return f"[{','.join(map(_value, value))}]" if isinstance(value, list | tuple) else str(value)
