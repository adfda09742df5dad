"""Workload columns with the extents every module needs, computed once.

Letters: t tokens of one rank inside the tensor-parallel region, s tokens outside it (divided by
TP as well under sequence parallelism).
"""

from functools import cached_property
from typing import Any

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.kernels.device import OPERAND_BYTES
from projector.lower.workload_columns import WorkloadColumns

FIRST_NARROW = 4
"""Matrix type codes from fp8 on need a quantising pass."""


class Shapes(WorkloadColumns):
    """Columns of the distinct workloads and what follows from them."""

    @cached_property
    def tokens(self) -> Ints:
        """t: tokens of a microbatch on one rank inside the tensor-parallel region."""
        return np.asarray(self.micro_batch * self.seq // self.cp)

    @cached_property
    def outer_tokens(self) -> Ints:
        """s: tokens outside of it."""
        return np.where(self.sequence_parallel == 1, self.tokens // self.tp, self.tokens)

    @cached_property
    def operand_bytes(self) -> Floats:
        """Bytes of one operand element of the linear layers, scales included."""
        return np.asarray(OPERAND_BYTES[self.dtype])

    @cached_property
    def narrow(self) -> Flags:
        """Whether the linear layers need quantising passes."""
        return np.asarray(self.dtype >= FIRST_NARROW)

    def where(self, mask: Flags) -> Ints:
        """Return the indices of the workloads that a mask selects."""
        return np.flatnonzero(mask)


def ceil_div(value: Any, divisor: Any) -> Any:
    """Divide integers, rounding up."""
    return -(-value // divisor)
