"""Tables that follow the width of the terminal and never cut a number or a head."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rich.bar import Bar
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

BAR_CELLS = 30
"""Longest bar of a breakdown, in characters."""

LEAST_BAR_CELLS = 6

LEAST_TEXT = 16
"""Characters to which a column of text may shrink before columns move below."""

LEAST_KEY = 12
"""The same of the text that names a row where the columns of a table stand below each other."""

DIM = "dim"

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
        return max(len(self.head), max(map(_length, self.cells), default=0))

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

    Parameters
    ----------
    *heads : str
        Heads of the columns; a first character says what is in them. ``<`` is text, which is
        folded where there is little room, ``=`` text that stays on one line, ``|`` bars. The
        others are right-aligned numbers.
    header : bool
        Whether the heads are shown.
    gap : int
        Blanks between two columns.
    """

    def __init__(self, *heads: str, header: bool = True, gap: int = 2) -> None:
        self.columns = [
            Column(_KINDS.get(head[:1], "number"), head[1:] if head[:1] in _KINDS else head)
            for head in heads
        ]
        self.styles: list[str | None] = []
        self._header, self._gap = header, gap

    def add_text(self, head: str, least: int) -> None:
        """Add a column of text that wants so many characters, before there are rows."""
        self.columns.append(Column("text", head, roomy=least))

    def add_row(self, *cells: Cell, style: str | None = None) -> None:
        """Add a cell to every column."""
        for column, cell in zip(self.columns, cells, strict=True):
            column.cells.append(cell)
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
        """Return the columns that name a row: the first ones that tell the rows apart.

        Without such columns the rows are numbered.
        """
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


def _length(cell: Cell) -> int:
    return 0 if isinstance(cell, Bar) else max(map(cell_len, str(cell).splitlines()), default=0)
