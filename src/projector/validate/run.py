"""Projecting a whole table: every row judged, every eligible row projected, none dropped.

A table is read in one pass, row by row; a bad row never stops the file.

Constants that were fitted without one source or one device are those of ``hardware/left_out.yaml``.
The scripts that fit constants write it with ``--record``.
"""

import csv
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from projector.config.bands import band_of, has_rows
from projector.config.device_file import load_device
from projector.config.resources import data_dir
from projector.config.yaml_file import read_yaml
from projector.errors import ConfigError, ProjectorError
from projector.files import MOST_TABLE_BYTES, read_bounded, refuse_special
from projector.validate import kind as kinds
from projector.validate.kind import Kind
from projector.validate.names import device_of, family_of, source_of


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a table, or why it could not be read."""

    number: int
    """Line of the file it ends on, the header being line 1."""
    row: kinds.Row
    error: str = ""
    """Error of the line itself, ``""`` if it has the table's columns."""
    fields: Sequence[str] = ()
    """The line as it stands."""


class Table:
    """A CSV file with a header, or a pipe, read in order: UTF-8, with or without a byte order mark.

    ``required`` are the columns that a table of this ``kind`` must have.
    """

    def __init__(self, path: str | Path, required: Sequence[str], kind: str) -> None:
        self.path = Path(path)
        self._kind = kind
        self._piped: str | None = None
        if self.path.is_fifo():
            # It can be read only once.
            content = read_bounded(path, MOST_TABLE_BYTES, key="file", allowed="a CSV table")
            self._piped = content.decode("utf-8-sig", "replace")
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
        padded = fields + [""] * (len(self.columns) - len(fields))
        return Line(number, dict(zip(self.columns, padded, strict=False)), error, fields)

    def _open(self) -> TextIO:
        if self._piped is not None:
            return StringIO(self._piped, newline="")
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


SOURCE, DEVICE = "source", "device"

_PART_OF = {"time": "training", "memory": "memory", "serving": "serving"}
"""Quantity -> its part of the file."""


def without(quantity: str, name: str, what: str = SOURCE) -> kinds.Without | None:
    """Return the constants that have not seen a source or a device (`SOURCE` or `DEVICE`).

    ``quantity`` is ``time``, ``memory`` or ``serving``. None where nothing was fitted to it: the
    constants that ship have not seen it either.
    """
    values = _file().get(_PART_OF.get(quantity, ""), {}).get(what, {}).get(name)
    if values is None:
        return None
    # A source may stand beside a value.
    plain = {
        key: float(value["value"] if isinstance(value, Mapping) else value)
        for key, value in values.items()
    }
    return kinds.Without(name, plain)


@lru_cache(maxsize=1)
def _file() -> dict[str, Any]:
    path = data_dir("hardware") / "left_out.yaml"
    return read_yaml(path) if path.is_file() else {}


BATCH = 4096
"""Rows projected together; bounds the memory of a long table."""

KNOWN_ROWS = 1 << 16
"""Distinct rows whose results are kept, so that a repeated row costs little."""

WITH_FAMILY = ("training_throughput", "memory")
"""Kinds with separate totals for dense and mixture-of-experts models."""


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one row, without its text."""

    line: int
    rule: str
    """The rule that leaves the row out, ``""`` where it is eligible."""
    outcome: kinds.Outcome
    model: str
    device: str
    precision: str
    source: str
    """Text of ``source`` before its first space."""
    doubt: str
    family: str
    """``dense``, ``moe`` or ``""``."""
    group: str = ""
    """Text of the columns that the caller groups by; ``""`` without any."""
    phase: str = ""
    """What the row times, of a kind that has several; ``""`` otherwise."""
    origin: str = ""
    """The source by one name for all its spellings (`names.source_of`)."""

    @property
    def eligible(self) -> bool:
        """Whether the row counts."""
        return not self.rule

    @property
    def projected(self) -> bool:
        """Whether the row has a ratio."""
        return not self.rule and self.outcome.status == kinds.OK and self.outcome.ratio is not None

    @property
    def status(self) -> str:
        """`OK`, why the row was left out, or why it failed."""
        return f"not eligible: {self.rule}" if self.rule else self.outcome.status

    @property
    def ape(self) -> float | None:
        """Absolute error as a fraction."""
        return abs(self.outcome.ratio - 1.0) if self.outcome.ratio is not None else None

    @property
    def as_named(self) -> "Result | None":
        """The same row with the kernel that it names, if that was projected beside the choice."""
        predicted, measured = self.outcome.as_named, self.outcome.measured
        if not self.projected or predicted is None or measured is None:
            return None
        ratio = predicted / measured
        outcome = replace(self.outcome, predicted=predicted, ratio=ratio, as_named=None)
        return replace(self, outcome=outcome)


@dataclass(frozen=True, slots=True)
class Validation:
    """A table and the outcome of each of its rows, in order."""

    kind: str
    path: str
    columns: tuple[str, ...]
    results: tuple[Result, ...]
    has_precision: bool


Sink = Callable[[Line, Result], None]


def validate(
    kind_name: str,
    path: str | Path,
    sink: Sink | None = None,
    begin: Callable[[tuple[str, ...]], None] | None = None,
    by: Sequence[str] = (),
) -> Validation:
    """Project every eligible row of a table.

    ``sink`` is called with each line and its result, in order; the text of a row is not kept.
    ``begin`` is called with the columns of the table before its first row. The texts of the columns
    ``by`` make the group of a row.
    """
    kind = kinds.kind_of(kind_name)
    table = Table(path, kind.columns, kind.name)
    for column in by:
        if column not in table.columns:
            msg = f"{path} has no column {column!r} to group by"
            raise ConfigError(msg, key="by", value=column, allowed=list(table.columns))
    if begin is not None:
        begin(table.columns)
    results: list[Result] = []
    stream = iter(table)
    known: dict[tuple[str, ...], Result] = {}
    while lines := list(islice(stream, BATCH)):
        for line, found in zip(lines, _once(kind, lines, known), strict=True):
            result = replace(found, group=_group(line.row, by)) if by else found
            results.append(result)
            if sink is not None:
                sink(line, result)
    return Validation(
        kind.name, str(path), table.columns, tuple(results), kind.precision in table.columns
    )


def _once(
    kind: Kind, lines: Sequence[Line], known: dict[tuple[str, ...], Result]
) -> Iterator[Result]:
    """Project each distinct row of a batch once; ``known`` carries rows from batch to batch."""
    if len(known) > KNOWN_ROWS:
        known.clear()
    texts = [(line.error, *line.row.values()) for line in lines]
    fresh = {text: line for text, line in zip(texts, lines, strict=True) if text not in known}
    known.update(zip(fresh, _project_batch(kind, list(fresh.values())), strict=True))
    for line, text in zip(lines, texts, strict=True):
        yield replace(known[text], line=line.number)


def _project_batch(kind: Kind, lines: Sequence[Line]) -> list[Result]:
    rules: list[str] = []
    outcomes: list[kinds.Outcome] = []
    waiting: list[int] = []
    for position, line in enumerate(lines):
        rule, outcome = "", kinds.failed(line.error)
        if not line.error:
            try:
                rule = kind.why_not_eligible(line.row)
            except (ValueError, ProjectorError) as error:
                outcome = kinds.failed(str(error))
            else:
                if not rule:
                    waiting.append(position)
        rules.append(rule)
        outcomes.append(outcome)
    projected = kinds.halved([lines[position].row for position in waiting], partial(_project, kind))
    for position, found in zip(waiting, projected, strict=True):
        outcomes[position] = kinds.failed(found) if isinstance(found, str) else found
    _leave_out(kind, lines, outcomes)
    return [
        _result(kind, line, rule, outcome)
        for line, rule, outcome in zip(lines, rules, outcomes, strict=True)
    ]


def _leave_out(kind: Kind, lines: Sequence[Line], outcomes: list[kinds.Outcome]) -> None:
    """Put beside the outcome of each row that of constants which have not seen its source."""
    if kind.project_without is None:
        return
    known: list[tuple[int, kinds.Without]] = []
    for position, (line, outcome) in enumerate(zip(lines, outcomes, strict=True)):
        source = source_of(_text(line.row, "source"))
        constants = without(kind.quantity, source)
        if constants is None and has_rows(source, kind.quantity):
            # No constant was fitted to it, but bands were.
            constants = kinds.Without(source, {})
        if constants is not None and outcome.ratio is not None:
            known.append((position, constants))
    rows = [lines[position].row for position, _ in known]
    others = kind.project_without(rows, [constants for _, constants in known]) if rows else []
    for (position, _), other in zip(known, others, strict=True):
        outcomes[position] = replace(outcomes[position], left_out=other)


def _project(kind: Kind, rows: Sequence[kinds.Row]) -> list[kinds.Outcome]:
    """Project rows together, with the bands of a kind whose rows say their classes."""
    outcomes = kind.project(rows)
    if kind.classes is None:
        return outcomes
    for position, (row, outcome) in enumerate(zip(rows, outcomes, strict=True)):
        if outcome.status == kinds.OK:
            device = load_device(device_of(_text(row, kind.device)))
            classes = kind.classes(row, device)
            band = band_of(kind.quantity, classes, device.name)
            outcomes[position] = replace(outcome, band=band, classes=classes)
    return outcomes


def _result(kind: Kind, line: Line, rule: str, outcome: kinds.Outcome) -> Result:
    row = line.row
    model = _text(row, "model")
    return Result(
        line=line.number,
        rule=sys.intern(rule),
        outcome=_NOT_PROJECTED if rule else outcome,
        model=model,
        device=_text(row, kind.device),
        precision=_text(row, kind.precision),
        source=sys.intern(_text(row, "source").partition(" ")[0]),
        doubt=_text(row, "doubt") or ("" if kind.doubt is None else sys.intern(kind.doubt(row))),
        family=family_of(model) if kind.name in WITH_FAMILY else "",
        phase=kind.phase(row) if kind.phase is not None and not rule else "",
        origin=sys.intern(source_of(_text(row, "source"))),
    )


def _group(row: kinds.Row, by: Sequence[str]) -> str:
    """Return the text of the columns; of a source its name, of a doubt that there is one."""
    texts = []
    for column in by:
        text = _text(row, column)
        if column == "source":
            text = source_of(text)
        if column == "doubt":
            text = "doubtful" if text else "certain"
        texts.append(text or "-")
    return sys.intern(", ".join(texts))


def _text(row: kinds.Row, column: str) -> str:
    return sys.intern((row.get(column) or "").strip())


_NOT_PROJECTED = kinds.Outcome(status="not eligible", mark=kinds.FROM_ROW)
