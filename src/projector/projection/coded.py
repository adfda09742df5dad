"""Columns of few different values, which stay codes until somebody needs them one by one."""

from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Array, Ints, Ints32


class Coded(NamedTuple):
    """A column of few different values."""

    code: Ints | Ints32
    """int[n]: position in ``values``."""
    values: list[str] | Array

    def expanded(self) -> Array:
        """Return the values one by one."""
        return np.asarray(self.values).take(self.code)

    def to_list(self) -> list[Any]:
        """Return the same as Python has them."""
        values: list[Any] = self.expanded().tolist()
        return values
