"""Tables of shapes as people write them, for GEMMs and attention alike.

Headings in any case and order, other columns beside them, thousands as ``"1,024"`` or ``1_024``,
whole numbers that a spreadsheet wrote as ``64.0``, a byte order mark, blank lines. What could be
read in two ways is refused: more fields than headings (a number whose comma is not quoted), and a
column that is named twice.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from projector.config.formats.written import read_extent
from projector.errors import ConfigError
from projector.files import open_table

MAX_SHAPES = 1_000_000
"""Most rows of a table."""


@dataclass(frozen=True, slots=True)
class ShapeRow:
    """One line of a table."""

    where: str
    """File and line, for messages."""
    fields: Mapping[str, str]
    """Text by heading in small letters, without blanks around it; a short line lacks its last."""

    def text(self, name: str) -> str:
        """Return the text of a column, ``""`` if it is empty."""
        return self.fields.get(name, "")

    def extent(self, name: str) -> int:
        """Return the number of a column."""
        return read_extent(name, self.text(name), self.where)


def shape_rows(
    path: str | Path, required: Sequence[str], optional: Sequence[str]
) -> Iterator[ShapeRow]:
    """Yield the lines of a CSV table in order.

    Parameters
    ----------
    path : str or Path
        UTF-8 text, with or without a byte order mark; its first line has the headings.
    required, optional : sequence of str
        Headings in small letters: those it must have, and those it may have. Others are ignored.
    """
    count = 0
    try:
        with open_table(path, key="csv") as stream:
            reader = csv.reader(stream, strict=True)
            names = [name.strip().lower() for name in next(reader, [])]
            _check_names(names, path, required, optional)
            for fields in reader:
                if not any(field.strip() for field in fields):
                    continue
                where = f"{path}:{reader.line_num}: "
                count += 1
                _check_line(len(fields), len(names), count, where)
                texts = (field.strip() for field in fields)
                yield ShapeRow(where, dict(zip(names, texts, strict=False)))
    except csv.Error as error:
        msg = f"{path} cannot be read: {error}"
        raise ConfigError(msg, key="csv", value=str(path), allowed="a CSV table") from None
    if not count:
        msg = f"{path} has no shapes"
        raise ConfigError(msg, key="csv", value=str(path), allowed="at least one row")


def _check_names(
    names: Sequence[str], path: str | Path, required: Sequence[str], optional: Sequence[str]
) -> None:
    missing = [name for name in required if name not in names]
    if missing:
        msg = f"{path} lacks the columns {', '.join(missing)}"
        allowed = f"columns {', '.join(required)}, and {', '.join(optional)}"
        raise ConfigError(msg, key=missing[0], value=list(names), allowed=allowed)
    for column, name in enumerate(names, start=1):
        first = names.index(name) + 1
        # Spreadsheets leave empty columns without a name.
        if name and first < column:
            msg = f"{path}:1: columns {first} and {column} are both named {name!r}"
            raise ConfigError(msg, key=name, value=list(names), allowed="each column once")


def _check_line(num_fields: int, num_names: int, count: int, where: str) -> None:
    if num_fields > num_names:
        msg = (
            f"{where}{num_fields} fields, but the first line names {num_names} columns; a number "
            f'with a comma stands in quotes, "1,024"'
        )
        raise ConfigError(msg, key="csv", value=num_fields, allowed=f"up to {num_names} fields")
    if count > MAX_SHAPES:
        msg = f"{where}a table may have at most {MAX_SHAPES:,} shapes"
        raise ConfigError(msg, key="csv", value=count, allowed=f"up to {MAX_SHAPES:,}")
