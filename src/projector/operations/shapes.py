"""Workload columns with the extents every module needs, computed once.

Letters: t tokens of one rank inside the tensor-parallel region, s tokens outside it (divided by
TP as well under sequence parallelism).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from projector.kernels.device import OPERAND_BYTES

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

FIRST_NARROW = 4
"""Matrix type codes from fp8 on need a quantising pass."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """Columns of the distinct workloads (int64[workloads] unless named otherwise)."""

    rows: NDArray[np.void]
    """WORKLOAD[workloads]."""
    tokens: Ints
    """t: tokens of a microbatch on one rank inside the tensor-parallel region."""
    outer_tokens: Ints
    """s: tokens outside of it."""
    operand_bytes: Floats
    """Bytes of one operand element of the linear layers, scales included."""
    narrow: NDArray[np.bool_]
    """Whether the linear layers need quantising passes."""

    def __getattr__(self, name: str) -> Any:
        """Return a column of the workload record."""
        try:
            return self.rows[name]
        except ValueError:
            raise AttributeError(name) from None

    def where(self, mask: NDArray[np.bool_]) -> Ints:
        """Return the indices of the workloads that a mask selects."""
        return np.flatnonzero(mask)


def shapes_of(rows: NDArray[np.void]) -> Shapes:
    """Compute the shared extents of WORKLOAD[workloads]."""
    tokens = rows["micro_batch"] * rows["seq"] // rows["cp"]
    outer = np.where(rows["sequence_parallel"] == 1, tokens // rows["tp"], tokens)
    columns = np.ascontiguousarray
    return Shapes(
        rows=rows,
        tokens=columns(tokens),
        outer_tokens=columns(outer),
        operand_bytes=OPERAND_BYTES[rows["dtype"]],
        narrow=rows["dtype"] >= FIRST_NARROW,
    )


def ceil_div(value: Any, divisor: Any) -> Any:
    """Divide integers, rounding up."""
    return -(-value // divisor)
