"""What the wrappers of kernels share: columns of one length, and the message of a bad row."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Array, Floats


def broadcast_columns(values: tuple[ArrayLike, ...], dtypes: tuple[type, ...]) -> tuple[Array, ...]:
    """Broadcast to one dimension; writable, since numba compiles anew for read-only arrays."""
    shape = np.broadcast_shapes((1,), *map(np.shape, values))
    return tuple(
        np.require(np.broadcast_to(value, shape), dtype, ["C", "W"])
        for value, dtype in zip(values, dtypes, strict=True)
    )


def raise_first_invalid(what: str, time_s: Floats, **columns: Any) -> None:
    """Raise with the values of the first row whose time is NaN.

    Raises
    ------
    ValueError
        Always; a caller asks only where a kernel reported a bad row.
    """
    row = int(np.flatnonzero(np.isnan(time_s))[0])
    values = ", ".join(f"{name} {column[row]}" for name, column in columns.items())
    msg = f"{what} {row} has no valid time: {values}"
    raise ValueError(msg)
