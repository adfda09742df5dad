"""Reading measurement tables: one pass, row by row, a bad row never stops the file."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from projector.errors import ConfigError
from projector.files import refuse_special
from projector.validate.kind import Row


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a table, or why it could not be read."""

    number: int
    """Line of the file it ends on, the header being line 1."""

    row: Row

    error: str = ""
    """Error of the line itself, ``""`` if it has the table's columns."""


class Table:
    """A CSV file with a header, read once and in order: UTF-8, with or without a byte order mark.

    ``required`` are the columns that a table of this ``kind`` must have.
    """

    def __init__(self, path: str | Path, required: Sequence[str], kind: str) -> None:
        self.path = Path(path)
        self._kind = kind
        with self._open() as stream:
            self.columns = self._header(stream, required)

    def __iter__(self) -> Iterator[Line]:
        """Yield the rows in order; blank lines are none."""
        with self._open() as stream:
            reader = csv.reader(stream)
            next(reader)
            while True:
                try:
                    fields = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    yield Line(reader.line_num, {}, f"unreadable line: {error}")
                    continue
                if not fields:
                    continue
                yield self._line(reader.line_num, fields)

    def _line(self, number: int, fields: list[str]) -> Line:
        error = ""
        if len(fields) != len(self.columns):
            error = f"{len(fields)} fields, but the header names {len(self.columns)} columns"
            fields = fields + [""] * (len(self.columns) - len(fields))
        return Line(number, dict(zip(self.columns, fields, strict=False)), error)

    def _open(self) -> TextIO:
        refuse_special(self.path, key="file")
        try:
            return self.path.open(encoding="utf-8-sig", errors="replace", newline="")
        except OSError as error:
            msg = f"{self.path} cannot be read: {error.strerror or error}"
            raise ConfigError(msg, key="file", value=str(self.path)) from None

    def _header(self, stream: TextIO, required: Sequence[str]) -> tuple[str, ...]:
        try:
            columns = tuple(name.strip() for name in next(csv.reader(stream), []))
        except (csv.Error, OSError) as error:
            msg = f"{self.path} has no readable header: {error}"
            raise ConfigError(msg, key="file", value=str(self.path)) from None
        if not any(columns):
            msg = f"{self.path} is empty; a {self._kind} table begins with a line of column names"
            raise ConfigError(msg, key="file", value=str(self.path), allowed=list(required))
        missing = [name for name in required if name not in columns]
        if missing:
            msg = (
                f"{self.path} has no column {missing[0]!r}; a {self._kind} table needs "
                f"{', '.join(required)}"
            )
            raise ConfigError(msg, key=missing[0], value=list(columns), allowed=list(required))
        twice = [name for name in columns if columns.count(name) > 1]
        if twice:
            msg = f"{self.path} names the column {twice[0]!r} twice"
            raise ConfigError(msg, key=twice[0], value=list(columns))
        return columns
