"""Times of the stages of replicas with one placement: which are equal, and each distinct one once.

Shapes
    n       replicas, T distinct timings of theirs
    pp, C   ranks, and chunks of a rank
    3, 3    kind (F, B, W) and class (first, middle, last microbatch)
Units
    int64 picoseconds.
"""

from typing import NamedTuple

import numpy as np

from projector.arrays import Flags, Ints, Ints32

from ._jit import helper, kernel
from .grouping import SEED, free_slots, mixed
from .pipeline import BACKWARD, FIRST, FORWARD, LAST, MIDDLE, WEIGHT

LEAST, EACH = 0, 1
"""Work of a rank: with one microbatch, and what each further one adds."""


class StageDurations(NamedTuple):
    """What the stages of all replicas take."""

    kind: Ints
    """``int64[stages]``: kind of each stage."""
    first_forward_ps: Ints
    """``int64[stages]``: forward of the first microbatch."""
    like_kind: Ints
    """``int64[kinds]``: equal numbers where kinds take as long, but for that."""
    kind_ps: Ints
    """``int64[kinds, 3, 3]``: all other durations."""


class TimingColumns(NamedTuple):
    """What `write_timings` writes."""

    alone_ps: Ints
    """``int64[T, pp, C, 3, 3]``"""
    duration_ps: Ints
    """``int64[T, pp, C, 3, 3]``: the same of ranks that wait until what they send has arrived; may
    have no rows."""
    work_ps: Ints
    """``int64[T, 2, pp]``: ``LEAST`` and ``EACH``."""


@helper
def _same_times(one: int, other: int, num_stages: int, stages: StageDurations) -> bool:
    """Whether stages from ``one`` on take as long as those from ``other`` on."""
    for step in range(num_stages):
        if stages.first_forward_ps[one + step] != stages.first_forward_ps[other + step]:
            return False
        if stages.like_kind[stages.kind[one + step]] != stages.like_kind[stages.kind[other + step]]:
            return False
    return True


@kernel
def number_timings(
    stage_first: Ints,
    num_stages: int,
    sends: Ints,
    stages: StageDurations,
    slot: Ints32,
    timing: Ints,
    first: Ints,
) -> int:
    """Give each distinct timing a number, in the order in which they first appear.

    Parameters
    ----------
    stage_first : int64[n]
        First stage of each replica.
    num_stages : int
        Stages of each.
    sends : int64[n]
        Equal numbers where messages are alike.
    stages : StageDurations
    slot : int32[size]
        Scratch, all -1; ``size`` is a power of two of at least 2 n.
    timing : int64[n]
        Output: number of each replica.
    first : int64[n]
        Output: first replica of each number; beyond the returned count it means nothing.

    Returns
    -------
    int
        Distinct timings.
    """
    last = np.uint64(slot.shape[0] - 1)
    count = 0
    for place in range(stage_first.shape[0]):
        begin = stage_first[place]
        one, other = mixed(SEED, sends[place]), SEED
        for stage in range(begin, begin + num_stages):
            one = mixed(one, stages.first_forward_ps[stage])
            other = mixed(other, stages.like_kind[stages.kind[stage]])
        where = mixed(one, other) & last
        while True:
            number = slot[where]
            if number < 0:
                slot[where] = count
                first[count] = place
                timing[place] = count
                count += 1
                break
            known = first[number]
            if sends[known] == sends[place] and _same_times(
                begin, stage_first[known], num_stages, stages
            ):
                timing[place] = number
                break
            where = (where + np.uint64(1)) & last
    return count


@kernel
def write_timings(
    stage_first: Ints,
    held: Ints,
    stages: StageDurations,
    waits: Flags,
    sends: Ints,
    sent_ps: Ints,
    columns: TimingColumns,
) -> None:
    """Write the durations of T timings, and the work of their ranks.

    Parameters
    ----------
    stage_first : int64[T]
        First stage of a replica that has each.
    held : int64[pp, C]
        Stage of the model that each chunk of each rank holds.
    stages : StageDurations
    waits : bool[T]
        Whether ranks wait until what they send has arrived.
    sends : int64[T]
        Row of what each sends.
    sent_ps : int64[rows, 2, pp, C]
        What each chunk waits for then, behind a forward and behind a backward.
    columns : TimingColumns
        Output.
    """
    alone_ps, duration_ps, work_ps = columns
    kind_of, first_forward_ps, _, kind_ps = stages
    for t in range(stage_first.shape[0]):
        for rank in range(held.shape[0]):
            least, each = 0, 0
            for c in range(held.shape[1]):
                stage = stage_first[t] + held[rank, c]
                row = kind_ps[kind_of[stage]]
                alone = alone_ps[t, rank, c]
                for kind in range(3):
                    for place in range(3):
                        alone[kind, place] = row[kind, place]
                alone[FORWARD, FIRST] = first_forward_ps[stage]
                least += alone[FORWARD, FIRST] + alone[BACKWARD, LAST] + alone[WEIGHT, LAST]
                each += row[FORWARD, MIDDLE] + row[BACKWARD, MIDDLE] + row[WEIGHT, MIDDLE]
                if duration_ps.shape[0] > 0:
                    duration = duration_ps[t, rank, c]
                    on_ps = sent_ps[sends[t], 0, rank, c] if waits[t] else 0
                    back_ps = sent_ps[sends[t], 1, rank, c] if waits[t] else 0
                    for place in range(3):
                        duration[FORWARD, place] = alone[FORWARD, place] + on_ps
                        duration[BACKWARD, place] = alone[BACKWARD, place] + back_ps
                        duration[WEIGHT, place] = alone[WEIGHT, place]
            work_ps[t, LEAST, rank], work_ps[t, EACH, rank] = least, each


def distinct_timings(
    stage_first: Ints, num_stages: int, sends: Ints, stages: StageDurations
) -> tuple[Ints, Ints]:
    """Return the first replica of each distinct timing, and the number of that of each replica.

    Parameters are those of `number_timings`.
    """
    timing, first = np.empty_like(stage_first), np.empty_like(stage_first)
    slot = free_slots(len(stage_first))
    count = number_timings(stage_first, num_stages, sends, stages, slot, timing, first)
    return first[:count].copy(), timing
