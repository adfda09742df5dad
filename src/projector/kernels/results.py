"""The steps of jobs, and the numbers of results from them.

Shape suffixes
    F   families of jobs
    N   jobs
Units: seconds and bytes in, float64; milliseconds and GiB out.
"""

from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints, Ints32
from projector.kernels._jit import helper, inlined, kernel
from projector.kernels.memory import Devices, RankBytes, allocator_bytes
from projector.kernels.step import (
    BREAKDOWN_TERMS,
    BUBBLE,
    BUSIEST,
    BUSIEST_RANK,
    ENDING,
    FAMILY,
    LAST_OPERATION,
    PATTERN,
    PEAK,
    PEAK_RANK,
    RANK_KIND_FIRST,
    ROW,
    STEP,
    STEP_NUMBERS,
    STEP_RANKS,
    StepBlock,
    StepOutputs,
    StepRuns,
    empty_block,
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

GPUS, STAGE_GPUS, SEQ, FLOP, AGAIN_FLOP, DATASHEET_TFLOPS, LOW, HIGH, FEW_BELOW, RATED_NUMBERS = (
    range(10)
)
"""Rows of `Rated.families`: devices, and those of a pipeline stage; tokens of a sequence; FLOP that
the model needs for a sequence; FLOP that one microbatch computes again, on one device of each
stage; datasheet peak of a device in the precision of the training; both ends of the band of the
peak of memory, relative to the peak; the number of microbatches below which they are few."""

TOKENS_PER_S, USABLE_GIB, PEAK_GIB, PEAK_GIB_LOW, PEAK_GIB_HIGH, HEADROOM_GIB, RANKED = range(7)
"""Rows of `ResultColumns.number` that say which of some jobs is the best: tokens per second and
device; what may be allocated; peak, and both ends of its band; what is left at the peak, negative
where a job does not fit."""

(
    ALLOCATOR_GIB, ITERATION_MS, MODEL_FLOP, RECOMPUTE_FLOP, TFLOPS, MFU, HFU, BUBBLE_FRACTION,
    LATE_PERCENT, BREAKDOWN_MS,
) = range(RANKED, RANKED + 10)  # fmt: skip
"""The other rows of it: what is idle in the allocator; the step; matrix FLOP of a step that the
model needs, and those that recomputation repeats; TFLOP/s of each device that the model needs,
their share of the datasheet peak, and that share with what is recomputed; idle time of the busiest
pipeline rank relative to its work; how much longer it works than the rank that ends the step; the
first of the terms of the step."""

RESULT_NUMBERS = BREAKDOWN_MS + BREAKDOWN_TERMS
"""All rows of it."""

LINE_NUMBERS = 8
"""Float64 numbers in a cache line of 64 bytes."""


class Rated(NamedTuple):
    """What turns steps of N jobs into results."""

    global_batch: Ints
    """``int64[N]``"""
    microbatches: Ints
    """``int64[N]``: of a step; an order that runs both ways counts those of one way."""
    families: Floats
    """``float64[RATED_NUMBERS, F]``"""
    devices: Devices
    """Of the families."""
    ranks: RankBytes
    """What kinds of ranks hold."""

    @staticmethod
    def nothing() -> "Rated":
        """Return what stands where no results are asked for."""
        floats = np.empty(0)
        return Rated(
            np.empty(0, np.int64),
            np.empty(0, np.int64),
            np.empty((RATED_NUMBERS, 0)),
            Devices(*[floats] * len(Devices._fields)),
            RankBytes(*[floats] * len(RankBytes._fields)),
        )


class ResultColumns(NamedTuple):
    """Results of N jobs."""

    number: Floats
    """``float64[RESULT_NUMBERS, at least N]``, or of a ranking ``float64[RANKED, at least N]``."""
    limit: Ints32
    """``int32[N]``: largest term of the step, ``FEW`` or ``UNEVEN``."""
    busiest_rank: Ints
    """``int64[N]``: pipeline rank that works the longest."""
    peak_rank: Ints
    """``int64[N]``: the fullest."""

    @staticmethod
    def empty(num: int, *, ranking: bool = False) -> "ResultColumns":
        """Return columns of ``num`` jobs to be written; of a ranking nothing else will be."""
        # The numbers of one job stand an odd count of cache lines apart. With an even count they
        # would fall into few sets of the nearest cache, and drive each other out of it.
        lines = (num + LINE_NUMBERS - 1) // LINE_NUMBERS | 1 if num else 0
        return ResultColumns(
            np.empty((RANKED if ranking else RESULT_NUMBERS, lines * LINE_NUMBERS)),
            np.empty(num, np.int32),
            *np.empty((2, num), np.int64),
        )

    def column(self, number: int) -> Floats:
        """Return ``float64[N]``: one number of each job."""
        return self.number[number, : len(self.limit)]


@inlined
def _limit(number: Floats, step: int | np.uint64, few: bool) -> int:
    """Return what limits a step: too few microbatches, uneven stages, or its largest term."""
    bubble_s = number[step, BUBBLE]
    if few and bubble_s / number[step, STEP] > FEW_SHARE:
        return FEW
    largest, most_s = 0, number[step, 0]
    for term in range(1, BREAKDOWN_TERMS):
        # Without a branch: which term is the largest differs from job to job.
        more = number[step, term] > most_s
        largest = term if more else largest
        most_s = number[step, term] if more else most_s
    late_s = number[step, BUSIEST] - number[step, ENDING]
    return UNEVEN if largest == BUBBLE and late_s > 0.5 * bubble_s else largest


@helper
def _write_memory(
    some: int, stop: int, runs: StepRuns, block: StepBlock, rated: Rated, result: Floats
) -> None:
    # To take an array out of a tuple counts a reference, so each is taken out once.
    begin, jobs, of_replica = runs.begin, runs.jobs, runs.replicas.number
    rank_first, rank_kind = runs.patterns.rank_first, runs.patterns.rank_kind
    families, devices, ranks = rated.families, rated.devices, rated.ranks
    number, rank_of, step_of = block.number, block.rank, block.of_job
    static = ranks.static
    all_results = result.shape[0] == RESULT_NUMBERS
    for replica in range(some, stop):
        first_rank = rank_first[of_replica[PATTERN, replica]]
        first_kind = of_replica[RANK_KIND_FIRST, replica]
        for place in range(begin[replica], begin[replica + 1]):
            # Numba looks whether an index is negative, which takes time, unless it is unsigned.
            row, step = np.uint64(jobs[ROW, place]), np.uint64(step_of[place - begin[some]])
            family = np.uint64(jobs[FAMILY, place])
            peak = number[step, PEAK]
            rank = first_kind + rank_kind[first_rank + rank_of[step, PEAK_RANK]]
            held = allocator_bytes(peak - static[rank], rank, ranks, family, devices)
            result[USABLE_GIB, row] = held.usable / GIB
            result[PEAK_GIB, row] = peak / GIB
            result[PEAK_GIB_LOW, row] = peak * families[LOW, family] / GIB
            result[PEAK_GIB_HIGH, row] = peak * families[HIGH, family] / GIB
            result[HEADROOM_GIB, row] = (held.usable - peak) / GIB
            if all_results:
                result[ALLOCATOR_GIB, row] = held.idle / GIB


@helper
def _write_tokens(
    first: int, stop: int, jobs: Ints, block: StepBlock, rated: Rated, result: Floats
) -> None:
    global_batch, families = rated.global_batch, rated.families
    number, step_of = block.number, block.of_job
    for place in range(first, stop):
        row, step = np.uint64(jobs[ROW, place]), np.uint64(step_of[place - first])
        family = np.uint64(jobs[FAMILY, place])
        tokens = global_batch[row] * 1.0 * families[SEQ, family]
        result[TOKENS_PER_S, row] = tokens / number[step, STEP] / families[GPUS, family]


@helper
def _write_speed(
    first: int,
    stop: int,
    jobs: Ints,
    block: StepBlock,
    number_ms: Floats,
    rated: Rated,
    columns: ResultColumns,
) -> None:
    """Write what the steps of some jobs consist of and what they compute, and what limits them.

    ``number_ms`` has the numbers of the block in milliseconds.
    """
    global_batch, microbatches_of, families = rated.global_batch, rated.microbatches, rated.families
    number, rank_of, step_of = block.number, block.rank, block.of_job
    result, limit, busiest_rank, peak_rank = columns
    for place in range(first, stop):
        row, step = np.uint64(jobs[ROW, place]), np.uint64(step_of[place - first])
        family, microbatches = np.uint64(jobs[FAMILY, place]), microbatches_of[row]
        result[ITERATION_MS, row] = number_ms[step, STEP]
        for term in range(BREAKDOWN_TERMS):
            result[BREAKDOWN_MS + term, row] = number_ms[step, term]
        flop = families[FLOP, family] * global_batch[row]
        again = families[STAGE_GPUS, family] * microbatches * families[AGAIN_FLOP, family]
        result[MODEL_FLOP, row], result[RECOMPUTE_FLOP, row] = flop, again
        tflops = flop / number[step, STEP] / families[GPUS, family] / TERA
        mfu = tflops / families[DATASHEET_TFLOPS, family]
        result[TFLOPS, row], result[MFU, row] = tflops, mfu
        result[HFU, row] = mfu * (1.0 + again / flop)

        busiest_s, ending_s = number[step, BUSIEST], number[step, ENDING]
        # (PP - 1) / (VPP * M) for equal stages. Other ranks idle longer where stages are uneven,
        # which is no bubble.
        result[BUBBLE_FRACTION, row] = max(number[step, LAST_OPERATION] / busiest_s - 1.0, 0.0)
        late = 100.0 * (busiest_s - ending_s) / (ending_s if ending_s > 0.0 else 1.0)
        result[LATE_PERCENT, row] = np.rint(late)
        limit[row] = _limit(number, step, microbatches < families[FEW_BELOW, family])
        busiest_rank[row], peak_rank[row] = rank_of[step, BUSIEST_RANK], rank_of[step, PEAK_RANK]


@helper
def _copy_steps(first: int, stop: int, jobs: Ints, block: StepBlock, outputs: StepOutputs) -> None:
    """Copy the steps of some jobs to where all jobs have theirs.

    Number by number: to assign a row takes numba 2 s more to compile.
    """
    number, rank = outputs
    for place in range(first, stop):
        row, step = jobs[ROW, place], block.of_job[place - first]
        for column in range(STEP_NUMBERS):
            number[row, column] = block.number[step, column]
        for column in range(STEP_RANKS):
            rank[row, column] = block.rank[step, column]


@kernel
def end_steps(runs: StepRuns, rated: Rated, outputs: StepOutputs, columns: ResultColumns) -> None:
    """End the steps of n jobs, and turn them into results: what is between them stays at hand.

    runs : StepRuns. Of the jobs.
    rated : Rated. Of all jobs of the batch; nothing where ``columns`` are not asked for.
    outputs, columns. Outputs, of all jobs; what has no rows is not asked for.
    """
    begin, jobs, result = runs.begin, runs.jobs, columns.number
    replicas = begin.shape[0] - 1
    most = BLOCK
    for replica in range(replicas):
        most = max(most, begin[replica + 1] - begin[replica])
    block = empty_block(most, BLOCK, runs.stage_held.shape[0], runs.stage_held.shape[1])
    # All numbers are divided in one loop over a flat array, so that LLVM divides several at once.
    number, number_ms = block.number.reshape(most * STEP_NUMBERS), np.empty(most * STEP_NUMBERS)
    some = 0
    while some < replicas:
        stop = some + 1
        while stop < replicas and begin[stop + 1] - begin[some] <= BLOCK:
            stop += 1
        first, last = begin[some], begin[stop]
        steps = end_replicas(some, stop, runs, block)
        if outputs.number.shape[0] > 0:
            _copy_steps(first, last, jobs, block, outputs)
        if result.shape[1] > 0:
            _write_memory(some, stop, runs, block, rated, result)
            _write_tokens(first, last, jobs, block, rated, result)
        if result.shape[1] > 0 and result.shape[0] == RESULT_NUMBERS:
            for place in range(steps * STEP_NUMBERS):
                number_ms[place] = number[place] / MS
            of_step_ms = number_ms.reshape((most, STEP_NUMBERS))
            _write_speed(first, last, jobs, block, of_step_ms, rated, columns)
        some = stop
