"""Numbers of results from steps and memory, one row for each job.

Shape suffixes
    F   families of jobs
    N   jobs
Units
    seconds and bytes in, float64; milliseconds and GiB out.
"""

from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints, Ints32

from ._jit import helper, inlined, kernel
from .device_memory import Devices, RankBytes, allocator_bytes
from .step import (
    BREAKDOWN_TERMS,
    BUBBLE,
    BUSIEST,
    ENDING,
    LAST_OPERATION,
    PEAK,
    STEP,
    StepOutputs,
)

MS = 1e-3
GIB = 1024.0**3
TERA = 1e12

BLOCK = 64
"""Jobs whose terms are turned into columns at a time: their rows stay in the nearest cache."""

FEW_MICROBATCHES = 4
"""Fewer microbatches than this for each pipeline stage leave a bubble worth naming."""

FEW_SHARE = 0.1
"""Share of the step that such a bubble must take."""

FEW, UNEVEN = BREAKDOWN_TERMS, BREAKDOWN_TERMS + 1
"""Limits that are not terms of a step: few microbatches, uneven stages."""


class Families(NamedTuple):
    """What the jobs of a family share."""

    pp: Ints
    """``int64[F]``"""
    gpus: Ints
    """``int64[F]``"""
    seq: Ints
    """``int64[F]``: tokens of a sequence."""
    flop_per_sequence: Floats
    """``float64[F]``: that a model needs."""
    recompute_flop: Floats
    """``float64[F]``: that one microbatch computes again, on one device of each stage."""
    peak_tflops: Floats
    """``float64[F]``: datasheet peak of a device in the precision of the training."""
    band_low: Floats
    """``float64[F]``: lower end of the band of the peak of memory, relative to it."""
    band_high: Floats
    """``float64[F]``: upper end."""


class Jobs(NamedTuple):
    """Where the numbers of jobs stand, and what is their own."""

    family: Ints
    """``int64[N]``"""
    rank: Ints
    """``int64[N]``: the fullest, among those of all replicas."""
    global_batch: Ints
    """``int64[N]``"""
    microbatches: Ints
    """``int64[N]``"""


class ResultColumns(NamedTuple):
    """What `result_columns` writes, one entry for each of N jobs."""

    iteration_ms: Floats
    model_flop: Floats
    """Matrix FLOP of a step that the model needs."""
    recompute_flop: Floats
    """Those that recomputation repeats."""
    tokens_per_s_per_gpu: Floats
    tflops_per_gpu: Floats
    """Needed TFLOP/s of each device, the numerator of MFU."""
    mfu: Floats
    """Share of the dense datasheet peak."""
    hfu: Floats
    """The same with what is recomputed."""
    bubble_fraction: Floats
    """Idle time of the busiest pipeline rank relative to its work."""
    usable_gib: Floats
    allocator_gib: Floats
    """Idle in the allocator."""
    peak_gib: Floats
    peak_gib_low: Floats
    peak_gib_high: Floats
    headroom_gib: Floats
    """What is left at the peak; negative where a job does not fit."""
    breakdown_ms: Floats
    """``float64[BREAKDOWN_TERMS, N]``"""
    limit: Ints32
    """Largest term of the step, ``FEW`` or ``UNEVEN``."""
    late_percent: Ints
    """How much longer than the rank that ends the step the busiest one works."""

    @staticmethod
    def empty(num: int) -> "ResultColumns":
        """Return columns of ``num`` jobs to be written."""
        numbers = np.empty((len(ResultColumns._fields) - 3, num))
        limit, late_percent = np.empty(num, np.int32), np.empty(num, np.int64)
        breakdown_ms = np.empty((BREAKDOWN_TERMS, num))
        return ResultColumns._make([*numbers, breakdown_ms, limit, late_percent])


@inlined
def _limit(number: Floats, job: int, few: bool) -> int:
    """Return what limits a step: too few microbatches, uneven stages, or its largest term."""
    bubble_s = number[job, BUBBLE]
    if few and bubble_s / number[job, STEP] > FEW_SHARE:
        return FEW
    largest, most_s = 0, number[job, 0]
    for term in range(1, BREAKDOWN_TERMS):
        # Without a branch: which term is the largest differs from job to job.
        more = number[job, term] > most_s
        largest = term if more else largest
        most_s = number[job, term] if more else most_s
    late_s = number[job, BUSIEST] - number[job, ENDING]
    return UNEVEN if largest == BUBBLE and late_s > 0.5 * bubble_s else largest


@helper
def _bubble_fraction(pipeline_s: float, busiest_s: float) -> float:
    """Return the idle time of the busiest pipeline rank relative to its work.

    (PP - 1) / (VPP * M) for equal stages. Other ranks idle longer where stages are uneven, which
    is no bubble.
    """
    idle = pipeline_s / busiest_s - 1.0
    return max(idle, 0.0)


@kernel
def result_columns(
    jobs: Jobs,
    families: Families,
    steps: StepOutputs,
    devices: Devices,
    ranks: RankBytes,
    columns: ResultColumns,
) -> None:
    """Turn steps and peaks into the numbers of results.

    Parameters
    ----------
    jobs, steps
        Of N jobs.
    families, devices
        Of their families.
    ranks : RankBytes
        Of all ranks.
    columns : ResultColumns
        Output.
    """
    # Each array is taken out of its tuple once: that counts a reference.
    family_of, rank_of, global_batch, microbatches = jobs
    pp, gpus, seq, flop_per_sequence, recomputed, peak_tflops, band_low, band_high = families
    number, static = steps.number, ranks.static
    iteration_ms, model_flop, recompute_flop, tokens_per_s, tflops, mfu, hfu = columns[:7]
    bubble_fraction, usable_gib, allocator_gib, peak_gib, low_gib, high_gib = columns[7:13]
    headroom_gib, breakdown_ms, limit, late_percent = columns[13:]
    num = family_of.shape[0]
    for begin in range(0, num, BLOCK):
        for term in range(BREAKDOWN_TERMS):
            for job in range(begin, min(num, begin + BLOCK)):
                breakdown_ms[term, job] = number[job, term] / MS
        for job in range(begin, min(num, begin + BLOCK)):
            family, rank, step_s = family_of[job], rank_of[job], number[job, STEP]
            iteration_ms[job] = step_s / MS
            tokens = global_batch[job] * 1.0 * seq[family]
            tokens_per_s[job] = tokens / step_s / gpus[family]
            model_flop[job] = flop_per_sequence[family] * global_batch[job]
            in_stage = gpus[family] // pp[family]
            recompute_flop[job] = in_stage * microbatches[job] * recomputed[family]
            tflops[job] = model_flop[job] / step_s / gpus[family] / TERA
            mfu[job] = tflops[job] / peak_tflops[family]
            hfu[job] = mfu[job] * (1.0 + recompute_flop[job] / model_flop[job])

            busiest_s, ending_s = number[job, BUSIEST], number[job, ENDING]
            bubble_fraction[job] = _bubble_fraction(number[job, LAST_OPERATION], busiest_s)
            few = pp[family] > 1 and microbatches[job] < FEW_MICROBATCHES * pp[family]
            limit[job] = _limit(number, job, few)
            late_s = busiest_s - ending_s
            late_percent[job] = np.int64(
                np.rint(100.0 * late_s / (ending_s if ending_s > 0.0 else 1.0))
            )

            peak = number[job, PEAK]
            held = allocator_bytes(peak - static[rank], rank, ranks, family, devices)
            usable_gib[job] = held.usable / GIB
            allocator_gib[job] = held.idle / GIB
            peak_gib[job] = peak / GIB
            low_gib[job] = peak * band_low[family] / GIB
            high_gib[job] = peak * band_high[family] / GIB
            headroom_gib[job] = (held.usable - peak) / GIB
