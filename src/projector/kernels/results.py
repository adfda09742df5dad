"""The steps of jobs, and the numbers of results from them, one row for each job.

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
    BUSIEST_RANK,
    ENDING,
    LAST_OPERATION,
    PEAK,
    PEAK_RANK,
    STEP,
    STEP_NUMBERS,
    STEP_RANKS,
    StepOutputs,
    StepRuns,
    StepScratch,
    end_replicas,
)

MS = 1e-3
GIB = 1024.0**3
TERA = 1e12

BLOCK = 128
"""Jobs whose steps are ended before they become results, unless one replica has more: few, so that
the nearest cache holds their numbers, and so many that arrays are seldom handed on."""

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


class Rated(NamedTuple):
    """What turns steps of N jobs into results."""

    global_batch: Ints
    """``int64[N]``"""
    microbatches: Ints
    """``int64[N]``"""
    families: Families
    devices: Devices
    """Of the families."""
    ranks: RankBytes
    """What kinds of ranks hold."""

    @staticmethod
    def nothing() -> "Rated":
        """Return what stands where no results are asked for."""
        ints, floats = np.empty(0, np.int64), np.empty(0)
        return Rated(
            ints,
            ints,
            Families(ints, ints, ints, *[floats] * 5),
            Devices(*[floats] * len(Devices._fields)),
            RankBytes(*[floats] * len(RankBytes._fields)),
        )


class ResultColumns(NamedTuple):
    """Numbers of results, one entry for each of N jobs."""

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
    busiest_rank: Ints
    peak_rank: Ints
    """The fullest."""

    @staticmethod
    def empty(num: int) -> "ResultColumns":
        """Return columns of ``num`` jobs to be written."""
        numbers = np.empty((len(ResultColumns._fields) - 5, num))
        breakdown_ms, limit = np.empty((BREAKDOWN_TERMS, num)), np.empty(num, np.int32)
        return ResultColumns._make([*numbers, breakdown_ms, limit, *np.empty((3, num), np.int64)])

    @staticmethod
    def ranking(num: int) -> "ResultColumns":
        """Return those by which jobs are ranked, to be written; the others have no rows."""
        ranked = dict(zip(RANKING, np.empty((len(RANKING), num)), strict=True))
        return ResultColumns(**(ResultColumns.empty(0)._asdict() | ranked))


RANKING = (
    "tokens_per_s_per_gpu",
    "usable_gib",
    "peak_gib",
    "peak_gib_low",
    "peak_gib_high",
    "headroom_gib",
)
"""The columns that say which of some jobs is the best: speed, and whether it fits."""


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


@helper
def _write_results(
    some: int, stop: int, runs: StepRuns, steps: StepOutputs, rated: Rated, columns: ResultColumns
) -> None:
    """Turn the steps and peaks of the jobs of some replicas into the numbers of results."""
    # Each array is taken out of its tuple once: that counts a reference.
    begin, row_of, family_of = runs.jobs.begin, runs.jobs.row, runs.jobs.family
    replicas = runs.replicas
    chosen, pattern, kind_first = replicas.chosen, replicas.pattern, replicas.rank_kind_first
    rank_first, rank_kind = runs.patterns.rank_first, runs.patterns.rank_kind
    global_batch, microbatches, families, devices, ranks = rated
    pp, gpus, seq, flop_per_sequence, recomputed, peak_tflops, band_low, band_high = families
    number, rank_of, static = steps.number, steps.rank, ranks.static
    iteration_ms, model_flop, recompute_flop, tokens_per_s, tflops, mfu, hfu = columns[:7]
    bubble_fraction, usable_gib, allocator_gib, peak_gib, low_gib, high_gib = columns[7:13]
    headroom_gib, breakdown_ms, limit, late_percent, busiest_rank, peak_rank = columns[13:]
    ranking_only = limit.shape[0] == 0
    for chosen_place in range(some, stop):
        replica = chosen[chosen_place]
        first_rank, first_kind = rank_first[pattern[replica]], kind_first[replica]
        for place in range(begin[chosen_place], begin[chosen_place + 1]):
            row, family, job = row_of[place], family_of[place], place - begin[some]
            step_s = number[job, STEP]
            tokens = global_batch[row] * 1.0 * seq[family]
            tokens_per_s[row] = tokens / step_s / gpus[family]
            peak = number[job, PEAK]
            rank = first_kind + rank_kind[first_rank + rank_of[job, PEAK_RANK]]
            held = allocator_bytes(peak - static[rank], rank, ranks, family, devices)
            usable_gib[row] = held.usable / GIB
            peak_gib[row] = peak / GIB
            low_gib[row] = peak * band_low[family] / GIB
            high_gib[row] = peak * band_high[family] / GIB
            headroom_gib[row] = (held.usable - peak) / GIB
            if ranking_only:
                continue

            for term in range(BREAKDOWN_TERMS):
                breakdown_ms[term, row] = number[job, term] / MS
            iteration_ms[row] = step_s / MS
            flop = flop_per_sequence[family] * global_batch[row]
            again = gpus[family] // pp[family] * microbatches[row] * recomputed[family]
            model_flop[row], recompute_flop[row] = flop, again
            tflops[row] = flop / step_s / gpus[family] / TERA
            mfu[row] = tflops[row] / peak_tflops[family]
            hfu[row] = mfu[row] * (1.0 + again / flop)

            busiest_s, ending_s = number[job, BUSIEST], number[job, ENDING]
            bubble_fraction[row] = _bubble_fraction(number[job, LAST_OPERATION], busiest_s)
            few = pp[family] > 1 and microbatches[row] < FEW_MICROBATCHES * pp[family]
            limit[row] = _limit(number, job, few)
            late_s = busiest_s - ending_s
            late_percent[row] = np.int64(
                np.rint(100.0 * late_s / (ending_s if ending_s > 0.0 else 1.0))
            )
            busiest_rank[row], peak_rank[row] = rank_of[job, BUSIEST_RANK], rank_of[job, PEAK_RANK]
            allocator_gib[row] = held.idle / GIB


@helper
def _copy_steps(row: Ints, first: int, stop: int, steps: StepOutputs, outputs: StepOutputs) -> None:
    """Copy the steps of some jobs to where all jobs have theirs.

    Number by number: to assign a row takes numba 2 s more to compile.
    """
    number, rank = outputs
    own_number, own_rank = steps
    for place in range(first, stop):
        for column in range(STEP_NUMBERS):
            number[row[place], column] = own_number[place - first, column]
        for column in range(STEP_RANKS):
            rank[row[place], column] = own_rank[place - first, column]


@kernel
def end_steps(runs: StepRuns, rated: Rated, outputs: StepOutputs, columns: ResultColumns) -> None:
    """End the steps of n jobs, and turn them into results: what is between them stays at hand.

    Parameters
    ----------
    runs : StepRuns
        Of the jobs.
    rated : Rated
        Of all jobs of the batch; nothing where ``columns`` are not asked for.
    outputs, columns
        Outputs, of all jobs; what has no rows is not asked for. Of ``columns`` those of a ranking
        can stand alone.
    """
    begin, row = runs.jobs.begin, runs.jobs.row
    steps_wanted, results_wanted = outputs.number.shape[0] > 0, columns.peak_gib.shape[0] > 0
    replicas = begin.shape[0] - 1
    most = BLOCK
    for chosen_place in range(replicas):
        most = max(most, begin[chosen_place + 1] - begin[chosen_place])
    num_ranks, num_chunks = runs.stage_held.shape
    steps = StepOutputs(np.empty((most, STEP_NUMBERS)), np.empty((most, STEP_RANKS), np.int64))
    scratch = StepScratch(
        steps,
        np.empty(num_ranks),
        np.empty(num_ranks, np.int64),
        np.empty(num_chunks, np.int64),
        np.empty(num_ranks * num_chunks, np.int64),
        np.empty(num_ranks * num_chunks),
        np.empty(num_ranks),
    )
    some = 0
    while some < replicas:
        stop = some + 1
        while stop < replicas and begin[stop + 1] - begin[some] <= BLOCK:
            stop += 1
        end_replicas(some, stop, runs, scratch)
        if steps_wanted:
            _copy_steps(row, begin[some], begin[stop], steps, outputs)
        if results_wanted:
            _write_results(some, stop, runs, steps, rated, columns)
        some = stop
