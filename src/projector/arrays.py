"""Array types, and arrays that grow, for every layer.

Shapes and units stand where an array is declared.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
"""Seconds, bytes, FLOP, rates and shares."""

Ints = NDArray[np.int64]
"""Counts, codes, indices, and picoseconds of schedules."""

Ints32 = NDArray[np.int32]
"""Columns of compiled schedules, which are read often and hold small numbers."""

Ints8 = NDArray[np.int8]
"""Kinds of operation."""

Flags = NDArray[np.bool_]

Records = NDArray[np.void]
"""Rows of a structured type."""

Array = NDArray[Any]
"""A column of any type."""


def bits(values: Floats) -> Ints:
    """Return floats as integers of their bits, which group NaN too and tell zeros of both signs."""
    return np.ascontiguousarray(values).view(np.int64)


def bytes_of_rows(rows: Ints) -> Iterator[bytes]:
    """Yield each row of int64[n, width] as a key that can be hashed."""
    size, whole = rows.itemsize * rows.shape[1], rows.tobytes()
    return (whole[begin : begin + size] for begin in range(0, len(whole), size))


def front_rows(first: Floats, second: Floats) -> Ints:
    """Return the rows that none beats in both (less is better), by ``first``; one of equals."""
    order = np.lexsort((second, first))
    best = np.minimum.accumulate(np.concatenate([[np.inf], second[order]]))[:-1]
    rows: Ints = order[second[order] < best]
    return rows


class KnownKeys:
    """Whole numbers, and in which row each was added."""

    def __init__(self) -> None:
        """Begin without any."""
        self._key, self._row = np.zeros(0, np.int64), np.zeros(0, np.int64)
        """Numbers, ascending, and the row of each."""

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._key)

    def _place(self, key: Ints) -> Ints:
        return np.minimum(np.searchsorted(self._key, key), len(self._key) - 1)

    def missing(self, key: Ints) -> Flags:
        """Return which of some numbers are not there."""
        if not len(self):
            return np.ones(len(key), np.bool_)
        return np.asarray(self._key[self._place(key)] != key)

    def add(self, key: Ints) -> None:
        """Add numbers that are not there, in rows behind the others."""
        keys = np.concatenate([self._key, key])
        rows = np.concatenate([self._row, np.arange(len(key)) + len(self)])
        order = np.argsort(keys, kind="stable")
        self._key, self._row = keys[order], rows[order]

    def rows(self, key: Ints) -> Ints:
        """Return the rows of numbers that are there."""
        rows: Ints = self._row[self._place(key)]
        return rows


class GrowingArray:
    """An array that gets more rows; each is written once."""

    def __init__(self, dtype: Any, *width: int) -> None:
        """Begin without rows, each of ``width``."""
        self._room, self._count = np.empty((8, *width), dtype), 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._count

    def add(self, rows: NDArray[Any]) -> None:
        """Add rows behind those that are there."""
        end = self._count + len(rows)
        if end > len(self._room):
            room = np.empty(
                (max(end, 2 * len(self._room)), *self._room.shape[1:]), self._room.dtype
            )
            room[: self._count] = self.all()
            self._room = room
        self._room[self._count : end] = rows
        self._count = end

    def all(self) -> NDArray[Any]:
        """Return the rows that are there; later ones do not change them."""
        return self._room[: self._count]
