"""Names of array types that every layer uses; shapes and units stand where an array is declared."""

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
