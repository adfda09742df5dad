"""What limits a step, of each job of a batch."""

from typing import NamedTuple

import numpy as np

from projector.arrays import Ints
from projector.kernels.grouping import group_rows
from projector.projection.breakdown import BREAKDOWN, LIMITS
from projector.projection.step import Steps

FEW_MICROBATCHES = 4
"""Fewer microbatches than this for each pipeline stage leave a bubble worth naming."""

FEW_SHARE = 0.1
"""Share of the step that such a bubble must take."""


FEW, UNEVEN = len(BREAKDOWN), len(BREAKDOWN) + 1
"""Codes of the limits that are not terms of a step; a term has its position in `BREAKDOWN`."""

TEXTS = (
    *(LIMITS[term] for term in BREAKDOWN),
    "too few microbatches ({} for {} pipeline stages)",
    "uneven pipeline stages: stage {} works {} % longer than the last to end",
)
"""What each limit is called, by its code; the numbers are those of the step."""


class Coded(NamedTuple):
    """A column of few different texts."""

    code: Ints
    """int64[n]: row in ``texts``."""
    texts: list[str]


def bounds(steps: Steps, pp: Ints, microbatches: Ints) -> Coded:
    """Name what limits each of n steps: its largest term, uneven stages, or too few microbatches.

    Parameters
    ----------
    steps : Steps
    pp, microbatches : int64[n]
    """
    bubble_s = steps.breakdown_s[:, BREAKDOWN.index("pp_bubble")]
    share = bubble_s / steps.iteration_s
    few = (pp > 1) & (share > FEW_SHARE) & (microbatches < FEW_MICROBATCHES * pp)
    largest = steps.breakdown_s.argmax(axis=1)
    ending_s, busiest_rank = steps.ending_s, steps.busiest_rank
    waiting_s = steps.busiest_s - ending_s
    uneven = (largest == BREAKDOWN.index("pp_bubble")) & (waiting_s > 0.5 * bubble_s) & ~few
    percent = np.rint(100.0 * waiting_s / np.where(ending_s > 0.0, ending_s, 1.0)).astype(np.int64)
    reason = np.where(few, FEW, np.where(uneven, UNEVEN, largest))
    details = {FEW: (microbatches, pp), UNEVEN: (busiest_rank, percent)}
    code, texts = np.zeros(len(reason), np.int64), list[str]()
    for limit in np.unique(reason).tolist():
        rows = np.flatnonzero(reason == limit)
        numbers = [column[rows] for column in details.get(limit, ())]
        first, of_row = group_rows(reason[rows], *numbers)
        code[rows] = len(texts) + of_row
        texts += [TEXTS[limit].format(*(column[row] for column in numbers)) for row in first]
    return Coded(code, texts)
