"""Workload columns with the extents every module needs, computed once.

Letters: t tokens of one rank inside the tensor-parallel region, s tokens outside it (divided by
TP as well under sequence parallelism).
"""

from dataclasses import dataclass, replace
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
    activation_bytes: Floats
    """Bytes of an element that an activation writes: 16 bits, or the operand of the next layer
    where the activation quantises it."""

    def __getattr__(self, name: str) -> Any:
        """Return a column of the workload record."""
        try:
            return self.rows[name]
        except ValueError:
            raise AttributeError(name) from None

    def of_last_tokens(self) -> "Shapes":
        """Return the extents of what sees only the last token of each sequence."""
        sequences = np.ascontiguousarray(self.rows["micro_batch"])
        return replace(self, tokens=sequences, outer_tokens=sequences)

    def where(self, mask: NDArray[np.bool_]) -> Ints:
        """Return the indices of the workloads that a mask selects."""
        return np.flatnonzero(mask)


def shapes_of(rows: NDArray[np.void], *, quantises_fused: bool = False) -> Shapes:
    """Compute the shared extents of WORKLOAD[workloads].

    Parameters
    ----------
    rows : WORKLOAD[workloads]
    quantises_fused : bool
        Whether what writes an operand of a linear layer also quantises it, as inference engines do.
    """
    tokens = rows["micro_batch"] * rows["seq"] // rows["cp"]
    outer = np.where(rows["sequence_parallel"] == 1, tokens // rows["tp"], tokens)
    columns = np.ascontiguousarray
    operand_bytes = OPERAND_BYTES[rows["dtype"]]
    return Shapes(
        rows=rows,
        tokens=columns(tokens),
        outer_tokens=columns(outer),
        operand_bytes=operand_bytes,
        narrow=(rows["dtype"] >= FIRST_NARROW) & (not quantises_fused),
        activation_bytes=operand_bytes if quantises_fused else np.full(len(rows), 2.0),
    )


@dataclass(frozen=True, slots=True)
class StepShapes:
    """What inference steps have beside the extents of their layers (int64[steps])."""

    layers: Ints
    windowed: Ints
    """Layers whose attention has a window."""
    moe_layers: Ints
    new_tokens: Ints
    """Tokens of each sequence that go through the model; 1 is a decode step."""
    context: Ints
    """Tokens of each sequence that are cached already."""
    cached: Ints
    """Elements that one layer caches of one token on a rank."""
    cache_bytes: Floats
    """float64[steps]: bytes of these."""
    pp: Ints
    pp_local: Ints
    """2 where neighbouring stages share a scale-up domain, 1 where they do not."""


def ceil_div(value: Any, divisor: Any) -> Any:
    """Divide integers, rounding up."""
    return -(-value // divisor)
