"""Where reports meet the terminal: documents laid out for its width, colour and characters."""

import io
import os
import sys
from typing import TextIO

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from projector.report.document import Document, Media, Table
from projector.report.terminal.grid import Cell, Grid, bar, heading

NARROWEST, WIDEST = 40, 120
"""Reports are laid out for widths in between; a narrower terminal wraps the lines itself."""

PIPED_WIDTH = 100
"""Width if the output is not a terminal and ``COLUMNS`` is not set."""


def render(
    *parts: Document | RenderableType, file: TextIO | None = None, width: int | None = None
) -> str:
    """Lay out a report as text for a file, as wide as its terminal; colours only for one."""
    file = sys.stdout if file is None else file
    target = Console(file=file)
    if width is None:
        width = target.width if target.is_terminal or "COLUMNS" in os.environ else PIPED_WIDTH
    width = max(NARROWEST, min(width, WIDEST))
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=width,
        force_terminal=target.is_terminal,
        no_color=target.no_color,
        color_system="auto" if target.is_terminal else None,
        highlight=False,
        emoji=False,
        markup=False,
        soft_wrap=False,
    )
    for part in parts:
        for each in parts_of(part) if isinstance(part, Document) else [part]:
            # What is to be copied stays on one line, however long.
            console.print(each, crop=False)
    text = "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
    encoding = (getattr(file, "encoding", None) or "utf-8").lower()
    return text.translate(_TO_ASCII) if (not encoding.startswith("utf")) else text


def parts_of(document: Document) -> list[RenderableType]:
    """Return the parts of a document in order, blank lines after tables and between sections."""
    sections = [each for each in document.sections if Media.TERMINAL & each.media]
    parts = list(document.head)
    for place, section in enumerate(sections):
        below: list[RenderableType] = []
        if section.lead:
            below.append(Text(section.lead))
        below += [Text(item) for item in section.items]
        if section.table is not None:
            below.append(_laid_out(section.table))
        indented = [Padding(each, (0, 0, 0, 2)) for each in below]
        parts += [heading(section.title, section.note), *indented, *section.closing]
        if place + 1 < len(sections) or section.table is not None:
            parts.append(Text())
    return parts


_MARKS = {"number": "", "word": "=", "text": "<", "bar": "|"}


def _laid_out(table: Table) -> Grid:
    columns = table.seen(Media.TERMINAL)
    laid_out = Grid(*(f"{_MARKS[each.kind]}{each.short or each.name}" for each in columns),
                    gap=table.gap)  # fmt: skip
    for row, values in enumerate(table.rows(Media.TERMINAL)):
        cells: list[Cell] = []
        for column, value in zip(columns, values, strict=True):
            if value is None:
                cells.append("")
            elif column.kind == "bar":
                cells.append(bar(value))
            else:
                written = column.write(value)
                cells.append(Text(written, column.style) if column.style else written)
        laid_out.add_row(*cells, style=table.styles.get(row))
    return laid_out


_TO_ASCII = str.maketrans({"█": "#", **dict.fromkeys("▉▊▋▌", "#"), **dict.fromkeys("▍▎▏", " ")})
