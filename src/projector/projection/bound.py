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
    plain = ~few & ~uneven
    first, code = group_rows(
        np.where(plain, largest, -1),
        np.where(few, microbatches, np.where(uneven, percent, 0)),
        np.where(few, pp, np.where(uneven, -1 - busiest_rank, 0)),
    )
    texts = []
    for row in first.tolist():
        if few[row]:
            numbers = f"{microbatches[row]} for {pp[row]} pipeline stages"
            texts.append(f"too few microbatches ({numbers})")
        elif uneven[row]:
            where = f"stage {busiest_rank[row]} works {percent[row]} % longer than the last to end"
            texts.append(f"uneven pipeline stages: {where}")
        else:
            texts.append(LIMITS[BREAKDOWN[largest[row]]])
    return Coded(code, texts)
