"""What the wrappers of kernels share: columns of one length, and the message of a bad row."""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Array, Floats

Arrays = TypeVar("Arrays", bound=tuple[Any, ...])


def broadcast_columns(values: tuple[ArrayLike, ...], dtypes: tuple[type, ...]) -> tuple[Array, ...]:
    """Broadcast to one dimension; writable, since numba compiles anew for read-only arrays."""
    shape = np.broadcast_shapes((1,), *map(np.shape, values))
    return tuple(
        np.require(np.broadcast_to(value, shape), dtype, ["C", "W"])
        for value, dtype in zip(values, dtypes, strict=True)
    )


def raise_first_invalid(what: str, time_s: Floats, **columns: Any) -> None:
    """Raise with the values of the first row whose time is NaN.

    Raises `ValueError` always; a caller asks only where a kernel reported a bad row.
    """
    row = int(np.flatnonzero(np.isnan(time_s))[0])
    values = ", ".join(f"{name} {column[row]}" for name, column in columns.items())
    raise ValueError(f"{what} {row} has no valid time: {values}")


def as_compiled(values: Arrays) -> Arrays:
    """Return a named tuple of arrays, and of such tuples, as kernels are compiled for it.

    What cannot be written to, or has gaps, is another type: a kernel would be compiled once more.
    """
    arrays = [
        as_compiled(each) if isinstance(each, tuple) else np.require(each, requirements=["C", "W"])
        for each in values
    ]
    return type(values)(*arrays)
