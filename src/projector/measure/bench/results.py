"""A table of results that grows while it is measured, and is continued after an interruption."""

import csv
import io
import os
from pathlib import Path

from projector.errors import ConfigError
from projector.files import check_place, not_written, open_table, write_whole
from projector.measure.bench.cases import BenchKind
from projector.measure.bench.rows import COLUMNS, Row, identity, is_readable, status_of

KEY = "out"
"""Option that names the file."""


class Results:
    """Rows of one file, by what they measure.

    Parameters
    ----------
    path : str or Path or None
        CSV table; a new one is begun where there is none. None keeps rows in memory alone.
    kind : str
        Kind of the rows.
    overwrite : bool
        Whether rows of a table that is there are dropped.
    """

    def __init__(self, path: str | Path | None, kind: BenchKind, *, overwrite: bool) -> None:
        self._path = None if path is None else Path(path)
        self._kind = kind
        self._rows: list[Row] = []
        self._places: dict[tuple[str, ...], int] = {}
        """Place of the last row of each identity; rows that nobody can read have none."""
        if self._path is None:
            return
        check_place(self._path, key=KEY)
        if self._path.exists() and not overwrite:
            for row in self._read(self._path):
                self._put(row)
        self._write_all()

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def row(self, key: tuple[str, ...]) -> Row | None:
        """Return the row of an `identity`; None where there is none, or one to be tried again.

        Running out of memory counts as measured: it would be the same again, and takes long.
        """
        found = self.any_row(key)
        tried = found is not None and status_of(found)[0] in ("failed", "unsupported")
        return None if tried else found

    def any_row(self, key: tuple[str, ...]) -> Row | None:
        """Return the row of an `identity`, also of a case that failed."""
        place = self._places.get(key)
        return None if place is None else self._rows[place]

    def add(self, rows: list[Row]) -> None:
        """Append rows; they are on the disk when this returns."""
        replaced = False
        for row in rows:
            place = self._places.get(identity(self._kind, row))
            if place is None:
                self._put(row)
            else:
                self._rows[place], replaced = row, True
        if self._path is None:
            return
        if replaced:
            self._write_all()
            return
        try:
            with self._path.open("a", encoding="utf-8", newline="") as stream:
                stream.write(self._text(rows))
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise not_written(self._path, error.strerror or str(error), key=KEY) from None

    def _put(self, row: Row) -> None:
        if is_readable(self._kind, row):
            self._places[identity(self._kind, row)] = len(self._rows)
        self._rows.append(row)

    def _read(self, path: Path) -> list[Row]:
        columns = COLUMNS[self._kind]
        with open_table(path, key=KEY) as stream:
            text = stream.read()
        # A line that was cut off while it was written is measured again.
        whole = text[: text.rfind("\n") + 1]
        lines = csv.reader(io.StringIO(whole, newline=""))
        header = tuple(next(lines, ()))
        if header and header != columns:
            msg = (
                f"{path} is no table of this command: its columns are not {', '.join(columns)}; "
                f"name another file, or --overwrite it"
            )
            raise ConfigError(msg, key=KEY, value=str(path), allowed="another file")
        if not header and text.strip():
            msg = f"{path} is no table; name another file, or --overwrite it"
            raise ConfigError(msg, key=KEY, value=str(path), allowed="another file")
        return [
            dict(zip(columns, fields, strict=True))
            for fields in lines
            if len(fields) == len(columns)
        ]

    def _write_all(self) -> None:
        assert self._path is not None
        header = io.StringIO()
        csv.writer(header, lineterminator="\n").writerow(COLUMNS[self._kind])
        text = header.getvalue() + self._text(self._rows)
        write_whole(self._path, text.encode(), key=KEY)

    def _text(self, rows: list[Row]) -> str:
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        for row in rows:
            writer.writerow([row[name] for name in COLUMNS[self._kind]])
        return stream.getvalue()
