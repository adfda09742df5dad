"""How measures group, add and show their numbers, and the rows that they look at."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.arrays import Array, Flags, Floats, Ints
from projector.trace.activity import Activities
from projector.trace.events import NS_PS


def to_ns(ps: float) -> int | float:
    """Return nanoseconds of picoseconds: a whole number where it is one."""
    whole, rest = divmod(ps, NS_PS)
    return ps / NS_PS if rest else int(whole)


def ratio(part: float, whole: float) -> float | None:
    """Return a share; None of nothing."""
    return float(part / whole) if whole else None


@dataclass(frozen=True, slots=True)
class Band:
    """How a number spreads over samples, such as iterations of ranks."""

    median: float
    p25: float
    p75: float
    min: float
    max: float
    samples: int

    def to_dict(self) -> dict[str, Any]:
        """Return the object of JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows that agree in some columns."""

    of: Ints
    """int64[rows]: the group of each row."""
    keys: tuple[Ints, ...]
    """int64[groups] of each column; groups are in the order of the columns."""
    first: Ints
    """int64[groups]: the first row of each group."""

    @property
    def count(self) -> int:
        """Number of groups."""
        return len(self.first)

    def sums(self, values: Array) -> Ints:
        """Return the exact sum of whole numbers in each group."""
        total = np.zeros(self.count, np.int64)
        np.add.at(total, self.of, values)
        return total

    def least(self, values: Ints) -> Ints:
        """Return the smallest number of each group."""
        least = np.full(self.count, np.iinfo(np.int64).max)
        np.minimum.at(least, self.of, values)
        return least

    def most(self, values: Ints) -> Ints:
        """Return the largest number of each group."""
        most = np.full(self.count, np.iinfo(np.int64).min)
        np.maximum.at(most, self.of, values)
        return most

    def sizes(self) -> Ints:
        """Return how many rows each group has."""
        return np.bincount(self.of, minlength=self.count).astype(np.int64)


_MOST_BINS = 1 << 22
"""Codes below this are counted in bins, which is faster than sorting them."""

_MOST_CODES = 1 << 62


def group(*columns: Array) -> Groups:
    """Return the groups of rows that agree in some columns of whole numbers."""
    code, radix = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
        place, places = column, high - low + 1
        if radix * places >= _MOST_CODES:
            (code, radix), (place, places) = _numbered(code), _numbered(column)
            low = 0
        code, radix = code * places + (place - low), radix * places
    code, first = _ranked(code, radix)
    return Groups(code, tuple(np.asarray(c[first], np.int64) for c in columns), first)


def _numbered(column: Array) -> tuple[Ints, int]:
    """Return the place of each value among those that occur, and how many do."""
    values, place = np.unique(column, return_inverse=True)
    return place.astype(np.int64), len(values)


def _ranked(code: Ints, radix: int) -> tuple[Ints, Ints]:
    """Return codes as 0, 1, 2 in their order, and a row of each."""
    if radix > _MOST_BINS:
        _, first, code = np.unique(code, return_index=True, return_inverse=True)
        return code, first
    row = np.full(radix, -1, np.int64)
    row[code[::-1]] = np.arange(len(code))[::-1]
    present = row >= 0
    return (np.cumsum(present) - 1)[code], row[present]


QUANTILES = (0.5, 0.25, 0.75, 0.0, 1.0)


def spreads(values: Array, of: Ints, count: int) -> Floats:
    """Return float64[count, 5]: `QUANTILES` of each group, NaN for a group without values.

    Quantiles lie on straight lines between the ordered values, as those of ``numpy.quantile``.
    """
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
    """Return the values by group and size."""
    if len(values) and np.issubdtype(values.dtype, np.integer):
        low = int(values.min())
        width = int(values.max()) - low + 1
        if width * count < _MOST_CODES:
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
    borders = device_borders(activities)
    for begin, end in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        yield slice(begin, end)


def device_borders(activities: Activities) -> Ints:
    """Return where the rows of each device begin, and after them the number of rows."""
    rank, device = activities.rank, activities.device
    if not len(rank):
        return np.zeros(1, np.int64)
    changes = (rank[1:] != rank[:-1]) | (device[1:] != device[:-1])
    return np.concatenate([[0], np.flatnonzero(changes) + 1, [len(rank)]])


def in_iterations(activities: Activities) -> Flags:
    """Return which activities lie in iterations; all, where there are none."""
    inside = activities.iteration >= 0
    return inside if inside.any() else ~inside
