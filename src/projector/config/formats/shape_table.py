"""Numbers and tables of shapes as people write them: extents with commas, bytes with units.

Tables, for GEMMs and attention alike: headings in any case and order, other columns beside them,
thousands as ``"1,024"`` or ``1_024``, whole numbers that a spreadsheet wrote as ``64.0``, a byte
order mark, blank lines. What could be read in two ways is refused: more fields than headings (a
number whose comma is not quoted), and a column that is named twice.
"""

import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from projector.errors import ConfigError
from projector.files import open_table

# Numbers.

MAX_EXTENT = 1 << 40
"""Largest extent; products of larger ones are no longer exact."""

MAX_BYTES = 1e24
"""Largest buffer of a collective or message, far beyond any memory."""

MAX_DIGITS = 40
"""Longest text that is read as a number, leading zeros included."""

_WHOLE = re.compile(r"(\d+|\d{1,3}(?:,\d{3})+|\d{1,3}(?:_\d{3})+)(?:\.0*)?", re.ASCII)

_SIZE = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]+)?(?:e[0-9]+)?)\s*([kmgtp]i?)?b?", re.IGNORECASE)
_POWERS = "kmgtp"


def read_extent(name: str, text: str, where: str = "") -> int:
    """Return an extent from its text; ``where`` begins the message of an error."""
    match = _WHOLE.fullmatch(text.strip()) if len(text) <= MAX_DIGITS else None
    value = int(match[1].replace(",", "").replace("_", "")) if match else -1
    if not 0 <= value <= MAX_EXTENT:
        shown = text if len(text) <= MAX_DIGITS else f"{text[:MAX_DIGITS]}..."
        msg = f"{where}{name} must be an integer from 0 to 2**40, got {shown!r}"
        raise ConfigError(msg, key=name, value=shown, allowed="0 <= integer <= 2**40")
    return value


def byte_count(key: str, text: str) -> float:
    """Return bytes from ``65536``, ``64MiB`` (powers of 1,024) or ``1.5 GB`` (powers of 1,000)."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        msg = f"{key} must be bytes, such as 65536, 64MiB or 1GB, got {text!r}"
        raise ConfigError(
            msg, key=key, value=text, allowed="a number, with KiB, MiB, GB ... or not"
        )
    number, unit = found.groups()
    base = 1024.0 if unit and unit[1:] else 1000.0
    power = _POWERS.index(unit[0].lower()) + 1 if unit else 0
    size = float(re.sub("[_,]", "", number)) * base**power
    if not size <= MAX_BYTES:
        msg = f"{key} must be at most {MAX_BYTES:g}, got {text!r}"
        raise ConfigError(msg, key=key, value=text, allowed=f"0 to {MAX_BYTES:g}")
    return size


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

    def positive(self, name: str) -> float | None:
        """Return a number above zero, None where the column is empty."""
        text = self.text(name)
        try:
            number = float(text) if text else None
        except ValueError:
            number = 0.0
        if number is not None and not 0.0 < number < math.inf:
            msg = f"{self.where}{name} must be a number above 0, got {text!r}"
            raise ConfigError(msg, key=name, value=text, allowed="a number above 0")
        return number


def shape_rows(
    path: str | Path, required: Sequence[str], optional: Sequence[str]
) -> Iterator[ShapeRow]:
    """Yield the lines of a UTF-8 CSV table with ``required`` and maybe ``optional`` headings."""
    count = 0
    try:
        with open_table(path, key="csv") as stream:
            reader = csv.reader(stream, strict=True)
            names = [name.strip().lower() for name in next(reader, [])]
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
