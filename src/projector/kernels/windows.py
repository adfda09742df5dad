"""Earliest starts and least tails of zero-bubble orders of which something is known.

Shapes
    pp, microbatches  stages, each on a rank of its own, and microbatches
    n                 operations
Units: int64 picoseconds.
"""

import math

import numpy as np

from projector.arrays import Ints
from projector.kernels._jit import helper, kernel
from projector.kernels.anneal import FORWARD, MAX_PS, WEIGHT


@helper
def _one_at_a_time(
    ready_ps: Ints, duration_ps: Ints, first: Ints, last: Ints, step: int, room: Ints
) -> int:
    """Return when operations ``first:last`` of each kind, ready at these times, can all be done.

    The times of a kind rise with the step.
    """
    for kind in range(3):
        room[kind] = last[kind] - 1 if step > 0 else first[kind]
    work, done, latest_ps = 0, -MAX_PS, MAX_PS
    for _ in range((last - first).sum()):
        chosen, time_ps = 0, -MAX_PS
        for kind in range(3):
            if first[kind] <= room[kind] < last[kind] and ready_ps[kind, room[kind]] >= time_ps:
                chosen, time_ps = kind, ready_ps[kind, room[kind]]
        if time_ps > latest_ps:
            return _in_no_order(ready_ps, duration_ps, first, last)
        latest_ps = time_ps
        work += duration_ps[chosen]
        done = max(done, time_ps + work)
        room[chosen] -= step
    return done


@helper
def _in_no_order(ready_ps: Ints, duration_ps: Ints, first: Ints, last: Ints) -> int:
    """Return the same where times neither rise nor fall, as the pass before was not ended."""
    done = -MAX_PS
    for kind in range(3):
        for number in range(first[kind], last[kind]):
            work = 0
            for other in range(3):
                for each in range(first[other], last[other]):
                    if ready_ps[other, each] >= ready_ps[kind, number]:
                        work += duration_ps[other]
            done = max(done, ready_ps[kind, number] + work)
    return done


@kernel(python_us=math.inf)
def pass_over(
    sequence: Ints,
    first: Ints,
    last: Ints,
    duration_ps: Ints,
    latency_ps: Ints,
    step: int,
    visits: int,
    start_ps: Ints,
) -> int:
    """Raise earliest starts to what goes before each operation; with a step of -1, tails.

    sequence : int64[n, 3]. Stage, kind and microbatch of operations, in some legal order.
    first, last : int64[pp, 3, microbatches, 3]. Which of each kind must go before each.
    duration_ps : int64[pp, 3]. Of F, B and W.
    latency_ps : int64[2, pp]. Of what F and B of each stage wait for.
    visits : int. The most operations that are looked at.
    start_ps : int64[pp, 3, microbatches]. Replaced.
    Returns what is left of the visits, negative where they were not enough.
    """
    room = np.empty(3, np.int64)
    for place in range(sequence.shape[0]):
        visits -= 1
        if visits < 0:
            break
        stage, kind, number = sequence[place]
        least = _one_at_a_time(
            start_ps[stage],
            duration_ps[stage],
            first[stage, kind, number],
            last[stage, kind, number],
            step,
            room,
        )
        source = stage - step if kind == FORWARD else stage + step
        if kind != WEIGHT and 0 <= source < start_ps.shape[0]:
            ahead = start_ps[source, kind, number] + duration_ps[source, kind]
            least = max(least, ahead + latency_ps[kind, stage])
        start_ps[stage, kind, number] = max(least, start_ps[stage, kind, number])
    return visits


@kernel(python_us=math.inf)
def least_objective(
    thresholds_ps: Ints, start_ps: Ints, work_ps: Ints, tail_ps: Ints, visits: int
) -> tuple[int, int]:
    """Bound what a rank ends with: of all that start late enough, the first ones are done at best.

    thresholds_ps : int64[thresholds]. Of the starts.
    start_ps, work_ps, tail_ps : int64[n]. Operations of the rank, by falling tails.
    visits : int. The most thresholds that are looked at.
    Returns the bound, and what is left of the visits, negative where they were not enough.
    """
    bound = np.int64(0)
    for threshold_ps in thresholds_ps:
        visits -= 1
        if visits < 0:
            break
        done = threshold_ps
        for place in range(start_ps.shape[0]):
            if start_ps[place] >= threshold_ps:
                done += work_ps[place]
                bound = max(bound, done + tail_ps[place])
    return int(bound), visits
