"""How measures show their numbers and how these spread, and the rows that they look at."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from projector.arrays import Array, Flags, Floats, Ints
from projector.trace.activity import Activities
from projector.trace.events import NS_PS
from projector.trace.groups import MOST_CODES, begins


def to_ns(ps: float) -> int | float:
    """Return nanoseconds of picoseconds: a whole number where it is one."""
    whole, rest = divmod(ps, NS_PS)
    return ps / NS_PS if rest else int(whole)


def ratio(part: float, whole: float) -> float | None:
    """Return a share; None of nothing."""
    return float(part / whole) if whole else None


class Measured:
    """A dataclass with slots, an object of JSON: its fields, then the properties in `also`."""

    __slots__ = ()
    also: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the object of JSON."""
        return {name: plain(getattr(self, name)) for name in (*self.__slots__, *self.also)}


def plain(value: Any) -> Any:
    """Return what JSON has of a field: objects within it and columns as well."""
    if value is None or isinstance(value, int | float | str):
        return value
    if isinstance(value, Measured):
        return value.to_dict()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True, slots=True)
class Band(Measured):
    """How a number spreads over samples, such as iterations of ranks."""

    median: float
    p25: float
    p75: float
    min: float
    max: float
    samples: int


QUANTILES = (0.5, 0.25, 0.75, 0.0, 1.0)


def spreads(values: Array, of: Ints, count: int) -> Floats:
    """Return float64[count, 5]: `QUANTILES` of each group as ``numpy.quantile``; NaN if empty."""
    ordered = _ordered(np.asarray(values), of, count)
    sizes = np.bincount(of, minlength=count)
    some = sizes > 0
    begin, last = (np.cumsum(sizes) - sizes)[some], (sizes - 1)[some]
    found = np.full((count, len(QUANTILES)), np.nan)
    for column, quantile in enumerate(QUANTILES):
        below = np.floor(last * quantile).astype(np.int64)
        low, high = ordered[begin + below], ordered[begin + np.minimum(below + 1, last)]
        found[some, column] = low + (high - low) * (last * quantile - below)
    return found


def _ordered(values: Array, of: Ints, count: int) -> Floats:
    if len(values) and np.issubdtype(values.dtype, np.integer):
        low = int(values.min())
        width = int(values.max()) - low + 1
        if width * count < MOST_CODES:
            # One column of whole numbers is sorted ten times as fast as two.
            codes = np.sort(of * width + (values - low))
            return np.asarray(codes % width + low, np.float64)
    return np.asarray(values, np.float64)[np.lexsort((values, of))]


def bands(values: Array, of: Ints, count: int, unit: float = 1) -> list[Band | None]:
    """Return how the values of each group spread, in a unit; None for a group without any."""
    sizes = np.bincount(of, minlength=count).tolist()
    columns = (spreads(values, of, count).T / unit).tolist()
    return [
        Band(median, p25, p75, least, most, size) if size else None
        for median, p25, p75, least, most, size in zip(*columns, sizes, strict=True)
    ]


def band(values: Sequence[float] | Array, unit: float = 1) -> Band | None:
    """Return how some values spread, in a unit; None for no values."""
    return bands(np.asarray(values), np.zeros(len(values), np.int64), 1, unit)[0]


def device_slices(activities: Activities) -> Iterator[slice]:
    """Yield the rows of each device of each rank, in the order of the table."""
    borders = np.flatnonzero(begins(activities.rank, activities.device)).tolist()
    yield from map(slice, borders, [*borders[1:], len(activities)])


def in_iterations(activities: Activities) -> Flags:
    """Return which activities lie in iterations; all, where there are none."""
    inside = activities.iteration >= 0
    return inside if inside.any() else ~inside
