"""Tables of profilers: columns of comma-separated files, and a trace put together from columns.

Tools write lines of their own before the heading (``==PROF== Connected``), cut a last line when
they are killed, and spell one column in several ways. All of that ends here.
"""

import csv
import gzip
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.config._base import Config
from projector.config.resources import shipped_table
from projector.files import refuse_special
from projector.trace import events as ev
from projector.trace.events import NONE, NS_PS, Events, Problem, RankTrace
from projector.trace.groups import group
from projector.trace.names import Cited, Word

CHUNK_ROWS = 65_536
MOST_PROBLEMS = 20
"""Of a file that are told one by one."""

LONGEST_FIELD = 1 << 24
"""Names of kernels of templates reach 100,000 characters, of which the parser allows 131,072."""

_GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+")


class Headings(Cited):
    """The headings that stand for a quantity."""

    value: list[str]


class Factor(Cited):
    """What a unit is in the unit that is counted in here."""

    value: float


class SampledColumn(Cited):
    """What a column of samples holds."""

    value: str
    """As in ``events.Samples.what``; nothing for what is passed over."""
    factor: float


class Formats(Config):
    """``hardware/trace_formats.yaml``."""

    columns: dict[str, Headings]
    descriptive: Headings
    marker_domains: dict[str, Word]
    chrome_processes: dict[str, Word]
    file_endings: Headings
    skipped_domains: Headings
    directions: dict[str, Word]
    units: dict[str, Factor]
    sampled: dict[str, SampledColumn]
    amd_sampled: dict[str, SampledColumn]
    tool_records: dict[str, tuple[str, ...]]
    """Records of rocprofv3's JSON, and the numbers of each by their path within it."""
    tool_texts: dict[str, tuple[str, ...]]
    """Short lists of it that say what numbers stand for."""
    sources: dict[str, str]


load_formats = shipped_table(Formats, "trace_formats.yaml")


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


Column = Ints | list[str]
"""A column of a file: as numbers where all of it are whole ones, else as text."""


@dataclass(frozen=True, slots=True)
class Table:
    """The columns of a file."""

    path: str
    headings: tuple[str, ...]
    columns: tuple[Column, ...]
    """Of equal length, as `headings`."""
    lines: Ints
    """Line of the file on which each row ends."""
    problems: tuple[Problem, ...]

    def __len__(self) -> int:
        return len(self.lines)

    def has(self, *quantities: str) -> bool:
        """Whether all of some quantities are there."""
        return set(quantities) <= {quantity_of(heading) for heading in self.headings}

    def column(self, quantity: str) -> Column | None:
        """Return the first column that stands for a quantity, None without one."""
        for heading, column in zip(self.headings, self.columns, strict=True):
            if quantity_of(heading) == quantity:
                return column
        return None

    def text(self, quantity: str) -> list[str] | None:
        """Return a quantity as text, None where it is not there."""
        column = self.column(quantity)
        return None if column is None else texts(column)

    def ints(self, quantity: str) -> Ints:
        """Return a quantity as int64[rows], `NONE` where it is not there or no number."""
        column = self.column(quantity)
        return np.full(len(self), NONE, np.int64) if column is None else whole_numbers(column)

    def take(self, rows: Any) -> "Table":
        """Return some of the rows, chosen by flags or places."""
        places = np.flatnonzero(rows) if np.asarray(rows).dtype == bool else np.asarray(rows)
        columns = tuple(
            column[places]
            if isinstance(column, np.ndarray)
            else [column[i] for i in places.tolist()]
            for column in self.columns
        )
        return Table(self.path, self.headings, columns, self.lines[places], self.problems)


def open_text(path: Path) -> IO[str]:
    """Open a file of text, plain or gzip; bytes that are no UTF-8 become marks."""
    refuse_special(path, key="trace")
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="replace", newline="")
    return path.open(encoding="utf-8-sig", errors="replace", newline="")


def read_table(path: Path, *, heading: Sequence[str]) -> Table:
    """Return the table that a file, plain or gzip, holds, as far as it can be read.

    Lines before the heading, which names at least one of some quantities, are passed over. A row of
    another number of fields is left out and told of, as is what follows damage.
    """
    reader = _Reader(path, heading)
    # The limit is one for the whole process, and other readers count on it.
    former = csv.field_size_limit(LONGEST_FIELD)
    try:
        reader.read()
    finally:
        csv.field_size_limit(former)
    columns = tuple(
        _whole_column([chunk[place] for chunk in reader.chunks])
        for place in range(len(reader.headings))
    )
    if reader.untold:
        reader.problems.append(Problem(str(path), "", f"{reader.untold:,} more rows left out"))
    if not reader.headings:
        reader.tell(0, "no heading that is known, nothing read")
    lines = np.array(reader.lines, np.int64)
    return Table(str(path), reader.headings, columns, lines, tuple(reader.problems))


def _whole_column(parts: Sequence[Column]) -> Column:
    if parts and all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return [text for part in parts for text in texts(part)]


class _Reader:
    def __init__(self, path: Path, heading: Sequence[str]) -> None:
        self.path = path
        self.heading = heading
        self.headings: tuple[str, ...] = ()
        self.chunks: list[list[Column]] = []
        self.lines: list[int] = []
        self.problems: list[Problem] = []
        self.untold = 0
        self._known: dict[str, str] = {}
        """Texts by themselves: the same one is kept once."""

    def read(self) -> None:
        line = 0
        try:
            with open_text(self.path) as stream:
                while lines := list(itertools.islice(stream, CHUNK_ROWS)):
                    self._take(line, lines)
                    line += len(lines)
        except (EOFError, OSError) as error:
            self.tell(line + 1, f"{error}; what stands before it was read")

    def tell(self, line: int, text: str) -> None:
        where = f"line {line:,}" if line else ""
        if len(self.problems) == MOST_PROBLEMS:
            self.untold += 1
            return
        self.problems.append(Problem(str(self.path), where, text))

    def _take(self, before: int, lines: list[str]) -> None:
        """Take some lines, of which `before` stand before them.

        No field of these tools holds a line break, so a quotation mark that was lost damages its
        own line alone: where rows and lines do not agree, each line is read for itself.
        """
        while lines and not self.headings:
            before += 1
            self._single(before, lines.pop(0))
        try:
            rows = list(csv.reader(lines))
        except csv.Error:
            rows = []
        if lines and len(rows) == len(lines) and set(map(len, rows)) == {len(self.headings)}:
            self._keep(rows, range(before + 1, before + len(lines) + 1))
            return
        kept, places = [], []
        for line, text in enumerate(lines, before + 1):
            row = self._single(line, text)
            if row is not None:
                kept.append(row)
                places.append(line)
        self._keep(kept, places)

    def _keep(self, rows: list[list[str]], lines: Iterable[int]) -> None:
        if rows:
            self.chunks.append([self._column(column) for column in zip(*rows, strict=True)])
            self.lines.extend(lines)

    def _column(self, column: Sequence[str]) -> Column:
        try:
            return np.fromiter(map(int, column), np.int64, len(column))
        except (ValueError, OverflowError):
            return [self._known.setdefault(text, text) for text in column]

    def _single(self, line: int, text: str) -> list[str] | None:
        """Return the fields of a line, None if it is no row of the table."""
        try:
            row = next(csv.reader([text.replace("\0", "")]), [])
        except csv.Error as error:
            self.tell(line, f"{error}; left out")
            return None
        if not self.headings:
            if any(quantity_of(field) in self.heading for field in row):
                self.headings = tuple(field.strip() for field in row)
            return None
        if len(row) == len(self.headings) + 1 and not row[-1]:
            row.pop()
        if len(row) == len(self.headings):
            return row
        if row and not row[0].startswith("=="):
            # Tools write lines of their own, with such signs, between and after the rows.
            self.tell(line, f"a row of {len(row)} fields, not {len(self.headings)}, left out")
        return None


def texts(column: Column) -> list[str]:
    """Return a column as text."""
    return list(map(str, column.tolist())) if isinstance(column, np.ndarray) else column


def whole_numbers(column: Column) -> Ints:
    """Return texts such as ``Agent 1`` as int64, `NONE` for what is none of 64 bits."""
    if isinstance(column, np.ndarray):
        return column
    try:
        return np.fromiter(map(int, column), np.int64, len(column))
    except (ValueError, OverflowError):
        return np.array([_whole(text) for text in column], np.int64)


@lru_cache(maxsize=4096)
def _whole(text: str) -> int:
    found = re.search(r"-?\d+", text.replace(",", ""))
    number = int(found[0]) if found and len(found[0]) < 20 else NONE
    return number if abs(number) < 1 << 63 else NONE


def numbers(column: Column) -> Floats:
    """Return texts as float64, NaN where they are no number.

    Thousands may be grouped and a comma may stand before decimals, as locales have it: of two
    different signs the last is that of the decimals; commas before groups of three digits group.
    """
    if isinstance(column, np.ndarray):
        return column.astype(np.float64)
    try:
        return np.fromiter(map(float, column), np.float64, len(column))
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


US_NS = 1_000
LARGEST_NS = (1 << 63) // NS_PS - 1
"""Spans beyond it leave 64 bits of picoseconds: 106 days."""

_COLUMNS = (
    "kind", "name", "start_ns", "end_ns", "process", "thread", "correlation", "detail",
)  # fmt: skip


def copy_names(directions: Sequence[str]) -> list[str]:
    """Return how Kineto names copies of some directions."""
    words = load_formats().directions
    named = {
        each: next((word.value for key, word in words.items() if key in each), each)
        for each in set(directions)
    }
    return [named[each] for each in directions]


def call_kind(domain: str) -> int:
    """Return the kind of the calls of a domain, `NONE` for those that are left out."""
    formats = load_formats()
    if any(domain.startswith(each) for each in formats.skipped_domains.value):
        return NONE
    if domain.startswith("RCCL"):
        return ev.OPERATOR
    word = formats.marker_domains.get(domain)
    return ev.LAUNCH if word is None else ev.KINDS.index(word.value)


class Rows:
    """Takes columns and makes a trace of them.

    Stamps are int64 ns of the clock of the profiler. What has none, or ends before it starts, is
    left out and told of.
    """

    def __init__(self) -> None:
        self._parts: list[dict[str, Ints]] = []
        self._names: dict[str, int] = {}
        self._details: dict[tuple[Any, ...], int] = {}
        self._facts: list[Mapping[str, Any]] = []
        self._problems: list[Problem] = []
        self.skipped: Counter[str] = Counter()

    def add(
        self, *, kind: "int | Ints", names: Sequence[str], start_ns: Ints, end_ns: Ints,
        process: Ints, thread: Ints, correlation: Ints, detail: Ints | None = None,
        table: Table | None = None, keep: Flags | None = None,
    ) -> None:  # fmt: skip
        """Take columns of equal length, or the rows to keep of them.

        A kind is a place in ``events.KINDS``. Problems have their places in the table that rows
        come from.
        """
        count = len(start_ns)
        good = (start_ns > 0) & (end_ns >= start_ns)
        wanted = np.ones(count, bool) if keep is None else keep
        self._tell(np.flatnonzero(wanted & ~good), table)
        rows = np.flatnonzero(wanted & good)
        ids = self._names
        columns = {
            "kind": np.broadcast_to(np.asarray(kind, np.int64), count),
            "name": np.array([ids.setdefault(name, len(ids)) for name in names], np.int64),
            "start_ns": start_ns,
            "end_ns": end_ns,
            "process": process,
            "thread": thread,
            "correlation": correlation,
            "detail": np.full(count, NONE, np.int64) if detail is None else detail,
        }
        self._parts.append({name: columns[name][rows] for name in _COLUMNS})

    def _tell(self, rows: Ints, table: Table | None) -> None:
        if len(rows):
            line = 0 if table is None else int(table.lines[rows[0]])
            where = f"line {line:,}" if line else ""
            text = f"{len(rows):,} events without stamps, or that end before they start, left out"
            self._problems.append(Problem("" if table is None else table.path, where, text))

    def fact(self, **facts: Any) -> int:
        """Return the row of what further is known of an event."""
        row = self._details.setdefault(tuple(sorted(facts.items())), len(self._facts))
        if row == len(self._facts):
            self._facts.append(facts)
        return row

    def grids(self, work_items: Ints, group_items: Ints) -> Ints:
        """Return the details of launches, of the work items int64[n, 3] and those of a group."""
        both = np.concatenate([work_items, group_items], axis=1)
        same = group(*both.T)
        rows = [self._grid(*map(int, each)) for each in both[same.first]]
        return np.array(rows, np.int64)[same.of] if len(both) else both[:, 0]

    def _grid(self, x: int, y: int, z: int, bx: int, by: int, bz: int) -> int:
        if min(x, y, z, bx, by, bz) <= 0:
            return NONE
        return self.fact(grid=(-(-x // bx), -(-y // by), -(-z // bz)), block=(bx, by, bz))

    def trace(
        self, *, path: str, which: str, problems: Sequence[Problem] = (), **more: Any
    ) -> RankTrace:
        """Return all that was taken, in the order of starts, as the trace of an unknown rank."""
        columns = {
            name: np.concatenate([part[name] for part in self._parts] or [np.zeros(0, np.int64)])
            for name in _COLUMNS
        }
        order = np.argsort(columns["start_ns"], kind="stable")
        columns = {name: column[order] for name, column in columns.items()}
        start_ns, end_ns = columns["start_ns"], columns["end_ns"]
        zero_ns = int(start_ns[0]) // US_NS * US_NS if len(start_ns) else 0
        fits = end_ns - zero_ns < LARGEST_NS
        told = list(problems) + self._problems
        if not fits.all():
            text = f"{int((~fits).sum()):,} events more than 106 days after the first, left out"
            told.append(Problem(path, "", text))
            columns = {name: column[fits] for name, column in columns.items()}
        return RankTrace(
            path=path, format=which, rank=NONE, world_size=0, zero_ns=zero_ns,
            names=tuple(self._names), events=_events(columns, zero_ns),
            details=tuple(self._facts), vendor="AMD", skipped=dict(self.skipped),
            problems=tuple(told), **more,
        )  # fmt: skip


def _events(columns: Mapping[str, Ints], zero_ns: int) -> Events:
    nothing = np.full(len(columns["kind"]), NONE, np.int64)
    on_device = np.isin(columns["kind"], ev.ON_DEVICE)
    # A correlation of 0 stands for none.
    correlation = np.where(columns["correlation"] > 0, columns["correlation"], NONE)
    return Events(
        kind=columns["kind"],
        name=columns["name"],
        start_ps=(columns["start_ns"] - zero_ns) * NS_PS,
        duration_ps=(columns["end_ns"] - columns["start_ns"]) * NS_PS,
        process=np.where(on_device, np.maximum(columns["process"], 0), columns["process"]),
        thread=columns["thread"],
        correlation=correlation,
        external=nothing,
        sequence=nothing,
        forward_thread=nothing,
        detail=columns["detail"],
    )
