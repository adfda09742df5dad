"""Rows of columns: which agree, where runs of them begin, and what is known around each."""

from dataclasses import dataclass

import numpy as np

from projector.arrays import Array, Flags, Ints


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

MOST_CODES = 1 << 62


def group(*columns: Array) -> Groups:
    """Return the groups of rows that agree in some columns of whole numbers."""
    code, radix = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
        place, places = column, high - low + 1
        if radix * places >= MOST_CODES:
            (code, radix), (place, places) = _numbered(code), _numbered(column)
            low = 0
        code, radix = code * places + (place - low), radix * places
    code, first = _ranked(code, radix)
    return Groups(code, tuple(np.asarray(c[first], np.int64) for c in columns), first)


def _numbered(column: Array) -> tuple[Ints, int]:
    values, place = np.unique(column, return_inverse=True)
    return place.astype(np.int64), len(values)


def _ranked(code: Ints, radix: int) -> tuple[Ints, Ints]:
    if radix > _MOST_BINS:
        _, first, code = np.unique(code, return_index=True, return_inverse=True)
        return code, first
    row = np.full(radix, -1, np.int64)
    row[code[::-1]] = np.arange(len(code))[::-1]
    present = row >= 0
    return (np.cumsum(present) - 1)[code], row[present]


def begins(*columns: Array) -> Flags:
    """Return which rows differ from the row before them in any column; the first one does."""
    found = np.ones(len(columns[0]), np.bool_)
    found[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return found


def parts(order: Ints, *columns: Array) -> list[Ints]:
    """Return the runs of an order in whose rows some columns agree; an empty order is one run."""
    return np.split(order, np.flatnonzero(begins(*(column[order] for column in columns)))[1:])


def last_known(known: Flags) -> Ints:
    """Return the last known row up to each row, -1 without one."""
    return np.maximum.accumulate(np.where(known, np.arange(len(known)), -1))


def next_known(known: Flags) -> Ints:
    """Return the first known row from each row on, the number of rows without one."""
    count = len(known)
    return np.minimum.accumulate(np.where(known, np.arange(count), count)[::-1])[::-1]


def places_within(of: Ints, start: Ints) -> Ints:
    """Return the place of each row among those of its group, in the order of starts."""
    order = np.lexsort((start, of))
    place = np.empty(len(of), np.int64)
    place[order] = np.arange(len(of)) - last_known(begins(of[order]))
    return place


def values_at(column: Ints, rows: Ints) -> Ints:
    """Return the values of a column at some rows, -1 where a row is -1."""
    return np.where(rows >= 0, column[np.maximum(rows, 0)], -1)
