"""What limits a step, of each job of a batch."""

from collections.abc import Mapping

import numpy as np

from projector.arrays import Array, Ints32
from projector.kernels.grouping import group_rows
from projector.projection.breakdown import BREAKDOWN, LIMITS
from projector.projection.coded import Coded

TEXTS = (
    *(LIMITS[term] for term in BREAKDOWN),
    "too few microbatches ({} for {} pipeline stages)",
    "uneven pipeline stages: stage {} works {} % longer than the last to end",
)
"""What each limit is called, by its code (see `kernels.results`): terms of a step first."""


def bounds(limit: Ints32, numbers: Mapping[int, tuple[Array, Array]]) -> Coded:
    """Name what limits each of n steps.

    Parameters
    ----------
    limit : int32[n]
        Code of the limit.
    numbers : mapping
        Code -> the whole numbers of its text, [n] each.
    """
    code, texts = limit.copy(), list(TEXTS[: len(BREAKDOWN)])
    for kind, columns in numbers.items():
        rows = np.flatnonzero(limit == kind)
        of_rows = [column.take(rows).astype(np.int64) for column in columns]
        first, of_row = group_rows(*of_rows)
        code[rows] = len(texts) + of_row
        texts += [TEXTS[kind].format(*(column[row] for column in of_rows)) for row in first]
    return Coded(code, texts)
