"""Figures of merit of a step and what limits it, for one job or for columns of jobs."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from projector.kernels.grouping import group_rows
from projector.projection.step import BREAKDOWN
from projector.units import TERA

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FEW_MICROBATCHES = 4
"""Fewer microbatches than this for each pipeline stage leave a bubble worth naming."""

FEW_SHARE = 0.1
"""Share of the step that such a bubble must take."""

LIMITS = {
    "compute_gemm": "matrix multiplication",
    "compute_attention": "attention",
    "compute_other": "memory-bound operators",
    "tp_comm": "tensor-parallel communication",
    "cp_comm": "context-parallel communication",
    "ep_comm": "expert-parallel communication",
    "pp_bubble": "pipeline bubble",
    "pp_comm": "pipeline communication",
    "dp_comm": "data-parallel communication",
    "optimizer": "optimizer",
    "launch": "kernel launches and host",
}


FEW, UNEVEN = len(BREAKDOWN), len(BREAKDOWN) + 1
"""Codes of the limits that are no term of a step; a term has its place in `BREAKDOWN`."""

TEXTS = (
    *(LIMITS[term] for term in BREAKDOWN),
    "too few microbatches ({} for {} pipeline stages)",
    "uneven pipeline stages: stage {} works {} % longer than the last to end",
)
"""What each limit is called, by its code; the numbers are those of the step."""


def tokens_per_s_per_gpu(global_batch: Any, seq: Any, iteration_s: Any, gpus: Any) -> Any:
    """Trained tokens per second and device."""
    return global_batch * 1.0 * seq / iteration_s / gpus


def tflops_per_gpu(model_flop: Any, iteration_s: Any, gpus: Any) -> Any:
    """Needed TFLOP/s of each device, the numerator of MFU."""
    return model_flop / iteration_s / gpus / TERA


def hardware_utilisation(mfu: Any, recompute_flop: Any, model_flop: Any) -> Any:
    """MFU with the recomputed FLOP."""
    return mfu * (1.0 + recompute_flop / model_flop)


def bubble_fraction(pipeline_s: Any, busiest_s: Any) -> Any:
    """Idle time of the busiest pipeline rank relative to its work.

    (PP - 1) / (VPP * M) for equal stages. Other ranks idle longer where stages are uneven, which
    is no bubble.
    """
    return np.maximum(0.0, pipeline_s / busiest_s - 1.0)


class Coded(NamedTuple):
    """A column of few different texts."""

    code: Ints
    """int64[n]: row in ``texts``."""
    texts: list[str]


def bounds(
    breakdown_s: Floats,
    iteration_s: Floats,
    pp: Ints,
    microbatches: Ints,
    busiest_s: Floats,
    ending_s: Floats,
    busiest_rank: Ints,
) -> Coded:
    """Name what limits each of n steps: its largest term, uneven stages, or too few microbatches.

    Parameters
    ----------
    breakdown_s : float64[n, len(BREAKDOWN)]
    iteration_s, busiest_s, ending_s : float64[n]
        The step, and the work of the busiest rank and of the one that ends the step.
    pp, microbatches, busiest_rank : int64[n]
    """
    bubble_s = breakdown_s[:, BREAKDOWN.index("pp_bubble")]
    few = (pp > 1) & (bubble_s / iteration_s > FEW_SHARE) & (microbatches < FEW_MICROBATCHES * pp)
    largest = breakdown_s.argmax(axis=1)
    waiting = busiest_s - ending_s
    uneven = (largest == BREAKDOWN.index("pp_bubble")) & (waiting > 0.5 * bubble_s) & ~few
    percent = np.rint(100.0 * waiting / np.where(ending_s > 0.0, ending_s, 1.0)).astype(np.int64)
    reason = np.where(few, FEW, np.where(uneven, UNEVEN, largest))
    details = {FEW: (microbatches, pp), UNEVEN: (busiest_rank, percent)}
    code, texts = np.zeros(len(reason), np.int64), list[str]()
    for each in np.unique(reason).tolist():
        rows = np.flatnonzero(reason == each)
        numbers = [column[rows] for column in details.get(each, ())]
        first, of_row = group_rows(reason[rows], *numbers)
        code[rows] = len(texts) + of_row
        texts += [TEXTS[each].format(*(column[row] for column in numbers)) for row in first]
    return Coded(code, texts)
