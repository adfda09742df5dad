"""Comma-separated files of profilers: columns of text, whatever stands around them.

Tools write lines of their own before the heading (``==PROF== Connected``), cut a last line when
they are killed, and spell one column in several ways. All of that ends here.
"""

import csv
import gzip
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from projector.arrays import Floats, Ints
from projector.config import resources
from projector.config._base import Config
from projector.config.yaml_file import read_yaml
from projector.trace.events import NONE, Problem

CHUNK_ROWS = 65_536
LONGEST_FIELD = 1 << 24
"""Names of kernels of templates reach 100,000 characters, of which the parser allows 131,072."""

_GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+")


class Names(Config):
    """A quantity and the headings that stand for it."""

    value: list[str]
    source: str
    note: str = ""


class Word(Config):
    """What one word of a file stands for."""

    value: str
    source: str
    note: str = ""


class Factor(Config):
    """What a unit is in the unit that is counted in here."""

    value: float
    source: str
    note: str = ""


class Sampled(Config):
    """What a column of samples holds."""

    value: str
    """As in ``events.Samples.what``; nothing for what is passed over."""
    factor: float
    source: str
    note: str = ""


class Formats(Config):
    """``hardware/trace_formats.yaml``."""

    columns: dict[str, Names]
    descriptive: Names
    marker_domains: dict[str, Word]
    chrome_processes: dict[str, Word]
    file_endings: Names
    skipped_domains: Names
    directions: dict[str, Word]
    units: dict[str, Factor]
    sampled: dict[str, Sampled]
    sources: dict[str, str]


@cache
def load_formats() -> Formats:
    """Return what the columns and records of profilers' files stand for."""
    path = resources.data_dir("hardware") / "trace_formats.yaml"
    return Formats.parse(read_yaml(path), path=path.name)


@cache
def _quantities() -> dict[str, str]:
    columns = load_formats().columns
    return {heading: quantity for quantity, names in columns.items() for heading in names.value}


@cache
def plain(heading: str) -> str:
    """Return a heading without case, spaces and signs."""
    return "".join(char for char in heading.lower() if char.isalnum())


@cache
def quantity_of(heading: str) -> str:
    """Return the quantity that a heading stands for, nothing for a counter's own."""
    key = plain(heading)
    if key in load_formats().descriptive.value:
        return "descriptive"
    return _quantities().get(key, "")


@dataclass(frozen=True, slots=True)
class Table:
    """The columns of a file, as text."""

    path: str
    headings: tuple[str, ...]
    columns: tuple[Sequence[str], ...]
    """Of equal length, as `headings`."""
    lines: Ints
    """Line of the file on which each row ends."""
    problems: tuple[Problem, ...]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.lines)

    def has(self, *quantities: str) -> bool:
        """Whether all of some quantities are there."""
        return set(quantities) <= {quantity_of(heading) for heading in self.headings}

    def text(self, quantity: str) -> Sequence[str] | None:
        """Return the first column that stands for a quantity, None without one."""
        for heading, column in zip(self.headings, self.columns, strict=True):
            if quantity_of(heading) == quantity:
                return column
        return None

    def ints(self, quantity: str) -> Ints:
        """Return a quantity as int64[rows], `NONE` where it is not there or no number."""
        column = self.text(quantity)
        return np.full(len(self), NONE, np.int64) if column is None else whole_numbers(column)

    def take(self, rows: Any) -> "Table":
        """Return some of the rows, chosen by flags or places."""
        places = np.flatnonzero(rows) if np.asarray(rows).dtype == bool else np.asarray(rows)
        columns = tuple([column[i] for i in places.tolist()] for column in self.columns)
        return Table(self.path, self.headings, columns, self.lines[places], self.problems)


def open_text(path: Path) -> IO[str]:
    """Open a file of text, plain or gzip; bytes that are no UTF-8 become marks."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="replace", newline="")
    return path.open(encoding="utf-8-sig", errors="replace", newline="")


def read_table(path: Path, *, heading: Sequence[str]) -> Table:
    """Return the table that a file holds, as far as it can be read.

    Parameters
    ----------
    path : Path
        Comma-separated, plain or gzip.
    heading : sequence of str
        Quantities of which the heading names at least one; lines before it are passed over.

    Notes
    -----
    A row of another number of fields is left out and told of, as is what follows damage.
    """
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_FIELD))
    reader = _Reader(path, heading)
    reader.read()
    columns = tuple(
        [field for chunk in reader.chunks for field in chunk[place]]
        for place in range(len(reader.headings))
    )
    if not reader.headings:
        reader.tell(0, "no heading that is known, nothing read")
    lines = np.array(reader.lines, np.int64)
    return Table(str(path), reader.headings, columns, lines, tuple(reader.problems))


class _Reader:
    """Takes the rows of a file one by one."""

    def __init__(self, path: Path, heading: Sequence[str]) -> None:
        self.path = path
        self.heading = heading
        self.headings: tuple[str, ...] = ()
        self.chunks: list[list[tuple[str, ...]]] = []
        self.lines: list[int] = []
        self.problems: list[Problem] = []
        self._rows: list[list[str]] = []
        self._held: list[str] = []
        """Lines of the file since the last row."""

    def read(self) -> None:
        line = 0
        try:
            with open_text(self.path) as stream:
                reader = csv.reader(self._each(stream))
                for row in reader:
                    line = reader.line_num
                    self._take(line, row)
                    self._held.clear()
        except (EOFError, OSError, csv.Error) as error:
            self.tell(line + 1, f"{error}; what stands before it was read")
        self._close()

    def tell(self, line: int, text: str) -> None:
        where = f"line {line:,}" if line else ""
        self.problems.append(Problem(str(self.path), where, text))

    def _each(self, stream: Iterable[str]) -> Iterator[str]:
        for line in stream:
            self._held.append(line)
            yield line.replace("\0", "") if "\0" in line else line

    def _take(self, line: int, row: list[str]) -> None:
        if not self.headings:
            if any(quantity_of(field) in self.heading for field in row):
                self.headings = tuple(field.strip() for field in row)
            return
        if len(row) == len(self.headings) + 1 and not row[-1]:
            row.pop()
        if len(row) == len(self.headings):
            self._rows.append(row)
            self.lines.append(line)
            if len(self._rows) == CHUNK_ROWS:
                self._close()
        elif len(self._held) > 1:
            # A quotation mark that was lost makes one row of many lines.
            held, self._held = self._held, []
            for place, text in enumerate(held):
                for single in csv.reader([text.replace("\0", "")]):
                    self._take(line - len(held) + 1 + place, single)
        elif row and not row[0].startswith("=="):
            # Tools write lines of their own, with such signs, between and after the rows.
            self.tell(line, f"a row of {len(row)} fields, not {len(self.headings)}, left out")

    def _close(self) -> None:
        if self._rows:
            self.chunks.append(list(zip(*self._rows, strict=True)))
            self._rows = []


def whole_numbers(column: Sequence[str]) -> Ints:
    """Return texts as int64; `NONE` for what is no whole number, or none of 64 bits.

    Text around digits is passed over: ``Agent 1`` is 1.
    """
    try:
        return np.array(column, dtype=np.int64) if len(column) else np.zeros(0, np.int64)
    except (ValueError, OverflowError):
        known: dict[str, int] = {}
        return np.array([_whole(text, known) for text in column], np.int64)


def _whole(text: str, known: dict[str, int]) -> int:
    number = known.get(text)
    if number is None:
        found = re.search(r"-?\d+", text.replace(",", ""))
        number = int(found[0]) if found and len(found[0]) < 20 else NONE
        number = known[text] = number if abs(number) < 1 << 63 else NONE
    return number


def numbers(column: Sequence[str]) -> Floats:
    """Return texts as float64, NaN where they are no number.

    Thousands may be grouped and a comma may stand before decimals, as locales have it: of two
    different signs the last is that of the decimals; commas before groups of three digits group.
    """
    try:
        return np.array(column, dtype=np.float64) if len(column) else np.zeros(0)
    except ValueError:
        return np.array([_number(text) for text in column], np.float64)


def _number(text: str) -> float:
    text = text.strip().replace("\u202f", "").replace("\u00a0", "").rstrip("%").replace("'", "")
    if "," in text:
        if "." in text and text.rfind(".") < text.rfind(","):
            text = text.replace(".", "").replace(",", ".")
        elif "." in text or _GROUPED.fullmatch(text):
            text = text.replace(",", "")
        else:
            text = text.replace(",", ".")
    try:
        return float(text)
    except ValueError:
        return math.nan
