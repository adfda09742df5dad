"""Sizes, rates and times of measured rows, in the units that tables use."""

from projector.units import GB, GBIT, MEGA, MICROSECOND, MILLISECOND, TB
from projector.validate.kind import Row, number

MIN_VALUE, MAX_VALUE = 1e-9, 1e18
"""Range of measured sizes, rates and times."""

SECONDS = {"us": MICROSECOND, "ms": MILLISECOND, "s": 1.0}
BYTES_PER_S = {"MB/s": MEGA, "GB/s": GB, "TB/s": TB, "Gb/s": GBIT, "Gbit/s": GBIT}


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


def unit_of(text: str, units: dict[str, float]) -> float:
    """Return what one of a unit is in SI."""
    if text not in units:
        raise ValueError(f"unit must be one of {', '.join(units)}, got {text!r}")
    return units[text]
