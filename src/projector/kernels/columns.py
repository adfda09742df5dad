"""What the wrappers of kernels share: columns of one length, and the message of a bad row."""

from collections.abc import Collection, Mapping
from typing import Any, TypeVar, TypeVarTuple

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Array, Floats, Ints

Columns = TypeVarTuple("Columns")
Arrays = TypeVar("Arrays", bound=tuple[Any, ...])


def broadcast_columns(floats: Collection[str], **values: ArrayLike) -> dict[str, Array]:
    """Broadcast to one dimension: float64 what is among ``floats``, int64 the rest.

    Columns are writable, since numba compiles anew for read-only arrays.
    """
    shape = np.broadcast_shapes((1,), *map(np.shape, values.values()))
    return {
        name: np.require(
            np.broadcast_to(value, shape), np.float64 if name in floats else np.int64, ["C", "W"]
        )
        for name, value in values.items()
    }


def raise_first_invalid(what: str, time_s: Floats, columns: Mapping[str, Array]) -> None:
    """Raise with the values of the first row whose time is NaN.

    Raises `ValueError` always; a caller asks only where a kernel reported a bad row.
    """
    row = int(np.flatnonzero(np.isnan(time_s))[0])
    values = ", ".join(f"{name} {column[row]}" for name, column in columns.items())
    raise ValueError(f"{what} {row} has no valid time: {values}")


def as_type(dtype: type, *columns: *Columns) -> tuple[*Columns]:
    """Return columns as kernels take them: of one type, and one entry behind the other."""
    given: tuple[Any, ...] = columns
    return tuple(np.ascontiguousarray(column, dtype) for column in given)  # type: ignore[return-value]  # as many


def refuse_extents(what: str, names: str, time_s: Floats, extents: Ints) -> None:
    """Raise `ValueError` with the extents of the first row that has no finite time."""
    valid = np.isfinite(time_s) & (time_s >= 0.0) & (np.min(extents, axis=1) >= 0)
    row = int(np.argmin(valid))
    values = ", ".join(map(str, extents[row].tolist()))
    raise ValueError(f"{what} {row} ({names} = {values}) has no finite time")


def as_compiled(values: Arrays) -> Arrays:
    """Return a named tuple of arrays, and of such tuples, as kernels are compiled for it.

    What cannot be written to, or has gaps, is another type: a kernel would be compiled once more.
    """
    arrays = [
        as_compiled(each) if isinstance(each, tuple) else np.require(each, requirements=["C", "W"])
        for each in values
    ]
    return type(values)(*arrays)
