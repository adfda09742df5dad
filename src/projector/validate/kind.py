"""Kind of a measurement table: which rows count, and how a row is projected.

Kinds have names, and each is loaded when it is asked for. Sizes, rates and times are read in the
units that tables use.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, TypeVar

import numpy as np

from projector.arrays import Floats
from projector.config.bands import NOTHING, Band
from projector.config.device import Device
from projector.errors import ConfigError, ProjectorError
from projector.units import GB, GBIT, MEGA, MICROSECOND, MILLISECOND, TB

Row = Mapping[str, str]
"""One line of a table: column -> text, empty if the table has no value."""

OK = "ok"

FROM_ROW, FROM_RECIPE, FROM_RULE = "row", "recipe", "rule"
"""Where a row's settings came from: all from the row, some from its recipe columns, or some from
a stated rule. The weakest source of any setting marks the row."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one eligible row."""

    status: str
    """`OK`, or why the row could not be projected."""
    predicted: float | None = None
    """In the unit of the row."""
    measured: float | None = None
    """In the unit of the row."""
    ratio: float | None = None
    """Predicted over measured time (memory: GiB; serving: the row's unit)."""
    mark: str = FROM_ROW
    """`FROM_ROW`, `FROM_RECIPE` or `FROM_RULE`."""
    note: str = ""
    """Rules that filled settings in, for a reader."""
    as_named: float | None = None
    """Prediction for the kernel that the row names, in the unit of the row, where ``predicted`` is
    that of the model's own choice."""
    is_rate: bool = False
    """Whether the unit of the row is work over time, so that ``ratio`` is measured over predicted
    in that unit."""
    is_inverse: bool = False
    """Whether ``ratio`` is that of a rate; its inverse is that of the times."""
    band: Band = NOTHING
    """Where measured over predicted time (memory: GiB) of comparable rows lies."""
    classes: tuple[str, ...] = ()
    """Classes of the row that bands are kept for, the narrowest first."""
    verdict: str = ""
    """Of a row of memory, what its job is told: one of `projector.projection.bands.VERDICTS`."""
    of_limit: float | None = None
    """Of a row of memory, the measured value as a share of what would just fit."""
    left_out: "Outcome | None" = None
    """The same row with constants and band that have not seen its source; None where the source has
    no part in any."""

    def limits(self, share: int) -> tuple[float, float] | None:
        """Return the band for 68 or 90 % in the unit of the row; None where there is none."""
        factors = self.band.limits(share)
        if factors is None or self.predicted is None:
            return None
        low, high = factors
        if self.is_rate or self.is_inverse:
            low, high = 1.0 / high, 1.0 / low
        return self.predicted * low, self.predicted * high

    def covered(self, share: int) -> bool | None:
        """Whether the measured value lies in the band; None where there is none."""
        factors = self.band.limits(share)
        ratio = self.time_ratio
        if factors is None or ratio is None:
            return None
        return factors[0] <= 1.0 / ratio <= factors[1]

    @property
    def time_ratio(self) -> float | None:
        """Predicted over measured time (memory: GiB); None where there is none, or none above 0."""
        if self.ratio is None or self.ratio <= 0.0:
            return None
        return 1.0 / self.ratio if self.is_inverse else self.ratio


@dataclass(frozen=True, slots=True)
class Without:
    """Constants fitted without one source."""

    source: str
    values: Mapping[str, float]
    """Name of a parameter, or dotted field of a job -> value."""


DeviceFor = Callable[[str], Device]
"""Device of a shipped name; by default the shipped one."""


@dataclass(frozen=True, slots=True)
class Readings:
    """Rows read once, so that they can be timed on changed devices again and again."""

    positions: tuple[int, ...]
    """Positions of the rows that could be read."""
    measured_s: Floats
    """Measured time of each row that could be read."""
    times_s: Callable[[DeviceFor], Floats]
    """Projected time of the same rows, by the path that `Kind.project` takes."""
    failures: tuple[str, ...]
    """Reason for each of the other rows."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of measurement table."""

    name: str
    """The ``KIND`` of the command line and the stem of the published table."""
    columns: tuple[str, ...]
    """Columns that a table of this kind must have."""
    project: Callable[[Sequence[Row]], list[Outcome]]
    """Project eligible rows, one outcome each, in their order."""
    why_not_eligible: Callable[[Row], str] = lambda _: ""
    """The rule that leaves a row out, ``""`` where it counts. It looks at the table alone."""
    device: str = "gpu"
    """Column that names the device."""
    precision: str = "precision"
    """Column that names the precision; ``""`` where the table has none."""
    quantity: str = ""
    """Name of its bands in ``hardware/uncertainty.yaml``; ``""`` where there are none."""
    classes: Callable[[Row, Device], tuple[str, ...]] | None = None
    """Classes of a row on its device that bands are kept for, where `project` does not say."""
    project_without: Callable[[Sequence[Row], Sequence[Without]], list[Outcome]] | None = None
    """Project rows, each with the constants beside it; None where a kind has no such path."""
    phase: Callable[[Row], str] | None = None
    """What a row times, which totals are kept for; None where a kind has one alone."""
    doubt: Callable[[Row], str] | None = None
    """Why a row contradicts itself, ``""`` where it does not; None where a column says so."""
    read: Callable[[Sequence[Row]], Readings] | None = None
    """Read eligible rows for a calibration; None where a kind has no such path."""


def failed(why: str) -> Outcome:
    """Return the outcome of a row that could not be projected."""
    return Outcome(status=why)


class TimedCase(Protocol):
    """A row that was read, of a kind that times operations."""

    @property
    def measured(self) -> float:
        """Measured time in the unit of the kind."""

    @property
    def note(self) -> str:
        """Rules that filled settings in, for a reader; ``""`` if the row states all of them."""


CaseT = TypeVar("CaseT", bound=TimedCase)
RowT = TypeVar("RowT")
ReadT = TypeVar("ReadT")


def read_cases(rows: Iterable[RowT], read: Callable[[RowT], ReadT]) -> list[ReadT | str]:
    """Return each row as read, or why it cannot be read."""
    parsed: list[ReadT | str] = []
    for row in rows:
        try:
            parsed.append(read(row))
        except (ValueError, ProjectorError) as error:
            parsed.append(str(error))
    return parsed


def halved(
    rows: Sequence[RowT], project: Callable[[Sequence[RowT]], Sequence[ReadT]]
) -> list[ReadT | str]:
    """Project rows together; after an error, halve them until the failing row is found."""
    try:
        return [*project(rows)] if rows else []
    except (ValueError, ArithmeticError, ProjectorError) as error:
        if len(rows) == 1:
            return [str(error)]
        middle = len(rows) // 2
        return halved(rows[:middle], project) + halved(rows[middle:], project)


def outcomes(
    parsed: Sequence[CaseT | str], times_s: Callable[[list[CaseT]], Floats], unit_s: float
) -> list[Outcome]:
    """Project the result of `read_cases` in one call of ``times_s``, in units of ``unit_s``."""
    cases = [case for case in parsed if not isinstance(case, str)]
    times = iter(times_s(cases) / unit_s if cases else ())
    return [
        failed(case) if isinstance(case, str) else _outcome(case, float(next(times)))
        for case in parsed
    ]


def _outcome(case: TimedCase, predicted: float) -> Outcome:
    ratio = predicted / case.measured
    mark = FROM_RULE if case.note else FROM_ROW
    return Outcome(OK, predicted, case.measured, ratio, mark=mark, note=case.note)


def readings(
    parsed: Sequence[CaseT | str],
    times_s: Callable[[list[CaseT], DeviceFor], Floats],
    unit_s: float,
) -> Readings:
    """Return the cases of `read_cases`, to be timed on any devices."""
    cases = [case for case in parsed if not isinstance(case, str)]
    return Readings(
        positions=tuple(i for i, case in enumerate(parsed) if not isinstance(case, str)),
        measured_s=np.array([case.measured for case in cases]) * unit_s,
        times_s=lambda device_for: times_s(cases, device_for),
        failures=tuple(case for case in parsed if isinstance(case, str)),
    )


def plain(row: Row, column: str) -> str:
    """Return the text of a cell in small letters, ``""`` where it is empty or there is none."""
    return (row.get(column) or "").strip().lower()


def above_zero(row: Row, column: str) -> float:
    """Return a number of a row that must be positive."""
    value = number(row, column)
    if value is None or value <= 0.0:
        raise ValueError(f"{column} is {row.get(column)!r}, not a positive number")
    return value


NOT_MEASURED = "not measured"
"""How the doubt of a row begins whose benchmark found no time: out of memory, say."""


def why_not_measured(row: Row) -> str:
    """Return why a row has no time, ``""`` where its ``doubt`` does not say so."""
    doubt = (row.get("doubt") or "").strip()
    return doubt.partition(";")[0] if doubt.startswith(NOT_MEASURED) else ""


def number(row: Row, column: str) -> float | None:
    """Return a column as a number; None where it is empty."""
    text = (row.get(column) or "").strip().replace(",", "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{column} is {text!r}, not a number")
    return value


def integer(row: Row, column: str) -> int | None:
    """Return a column as an integer; None where it is empty."""
    value = number(row, column)
    if value is None:
        return None
    if value != int(value):
        raise ValueError(f"{column} is {value:g}, not a whole number")
    return int(value)


MIN_VALUE, MAX_VALUE = 1e-9, 1e18
"""Range of measured sizes, rates and times."""

MAX_KERNEL_VALUE = 1e15
"""Longest time, or highest rate, of a kernel."""

SECONDS = {"us": MICROSECOND, "ms": MILLISECOND, "s": 1.0}
BYTES_PER_S = {"MB/s": MEGA, "GB/s": GB, "TB/s": TB, "Gb/s": GBIT, "Gbit/s": GBIT}


def whole(
    row: Row, column: str, most: int, default: int | None = None, *, what: str = "a count"
) -> int:
    """Return a column as an integer from 1 to ``most``; ``default`` where it is empty."""
    value = integer(row, column)
    if value is None:
        value = default
    if value is None or not 1 <= value <= most:
        raise ValueError(f"{column} is {row.get(column)!r}, not {what}")
    return value


def time_or_rate(row: Row, column: str) -> tuple[float | None, float | None]:
    """Return the time of a kernel in ``column`` and its TFLOP/s; at least one is stated."""
    time, tflops = number(row, column), number(row, "tflops")
    if time is None and tflops is None:
        raise ValueError(f"neither {column} nor tflops")
    for value in (time, tflops):
        if value is not None and not MIN_VALUE <= value <= MAX_KERNEL_VALUE:
            raise ValueError(f"a time or rate of {value:g}")
    return time, tflops


def missing(row: Row, columns: Sequence[str]) -> str:
    """Return that a row leaves columns empty, ``""`` where it does not."""
    empty = [name for name in columns if not (row.get(name) or "").strip()]
    return f"no {', '.join(empty)}" if empty else ""


def positive(row: Row, column: str) -> float:
    """Return a number of a row."""
    value = number(row, column)
    if value is None or not MIN_VALUE <= value <= MAX_VALUE:
        raise ValueError(f"{column} is {row.get(column)!r}, not a size, rate or time")
    return value


def plausible(measured_s: float) -> float:
    """Return a time, checked."""
    if not MIN_VALUE <= measured_s <= MAX_VALUE:
        raise ValueError(f"a time of {measured_s:g} s")
    return measured_s


def chosen(name: str, text: str, known: Mapping[str, ReadT]) -> ReadT:
    """Return what stands for the text of a column, such as what one of a unit is in SI."""
    if text not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {text!r}")
    return known[text]


KINDS = (
    "training_throughput", "memory", "gemm_measured", "moe_measured", "attention_measured",
    "collectives_measured", "serving_measured", "param_counts",
)  # fmt: skip
"""Each is a module of `projector.validate`, by the name without what it measures."""


def kind_of(name: str) -> Kind:
    """Return a kind of table."""
    if name not in KINDS:
        msg = f"unknown kind of table {name!r}; known: {', '.join(KINDS)}"
        raise ConfigError(msg, key="kind", value=name, allowed=list(KINDS))
    home = name.removesuffix("_measured").removesuffix("_throughput")
    kind: Kind = import_module(f"projector.validate.{home}").KIND
    return kind
