"""Times of the stages of replicas with one placement: which are equal, and each distinct one once.

Shapes
    n       replicas, T distinct timings of theirs
    K       kinds of the stages of all replicas
    pp, C   ranks, and chunks of a rank
    3, 3    kind (F, B, W) and class (first, middle, last microbatch)
Units: int64 picoseconds.
"""

from typing import NamedTuple

import numpy as np

from projector.arrays import Flags, Floats, Ints, Ints32
from projector.kernels._jit import helper, inlined, kernel
from projector.kernels.grouping import SEED, free_slots, mixed
from projector.kernels.pipeline import MAX_DURATION_PS

PS_PER_S = 1e12

EVERY_FORWARD, EVERY_BACKWARD, LAST_BACKWARD, EVERY_WEIGHT, LAST_WEIGHT, KIND_TIMES = range(6)
"""Columns of ``kind_ps``: forward; backward, and that of the last microbatch; the same two of the
gradient of the weights, 0 where the backward has it."""

COLUMN = np.array([[0, 0, 0], [1, 1, 2], [3, 3, 4]])
"""Which of them each kind and class has, but for first forwards."""

LEAST, EACH = 0, 1
"""Rows of ``work_ps``: work of a rank with one microbatch, and what each further one adds."""


class StageDurations(NamedTuple):
    """What the stages of all replicas take."""

    pattern: Ints
    """``int64[replicas]``"""
    kind_first: Ints
    """``int64[replicas + 1]``: first kind of its stages."""
    first_row: Ints
    """``int64[replicas]``: row of ``first_forward_ps`` of its first stage, the others follow it; -1
    where each stage has the one of its kind (`StageTimes.first_row`)."""
    pattern_first: Ints
    """``int64[patterns + 1]``: first stage of each."""
    stage_kind: Ints
    """``int64[stages of patterns]``: kind of each stage."""
    first_forward_ps: Ints
    """``int64[K + any]``: forward of the first microbatch; see `StageTimes` for its rows."""
    kind_ps: Ints
    """``int64[K, KIND_TIMES]``: all other durations."""


class TimingColumns(NamedTuple):
    """What `write_timings` writes."""

    alone_ps: Ints
    """``int64[T, columns]``: ``KIND_TIMES`` of chunks that are alike, then all first forwards."""
    duration_ps: Ints
    """``int64[T, columns]``: the same of ranks that wait until what they send has arrived; may have
    no rows."""
    work_ps: Ints
    """``int64[T, 2, pp]``: ``LEAST`` and ``EACH``."""


@inlined
def _ticks(seconds: float) -> int:
    """Return a time in picoseconds, -1 if it is none that a replay can count."""
    ticks = np.rint(seconds * PS_PER_S)
    # NaN compares false.
    return int(ticks) if 0.0 <= ticks <= MAX_DURATION_PS else -1


@kernel(python_us=0.4)
def round_times(
    forward_s: Floats,
    backward_s: Floats,
    last_backward_s: Floats,
    weight_s: Floats,
    last_weight_s: Floats,
    kind_ps: Ints,
) -> bool:
    """Round what kinds of stages take to picoseconds; tell whether all are times.

    forward_s, backward_s, last_backward_s, weight_s, last_weight_s : float64[K]. Of `StageTimes`.
    kind_ps : int64[K, KIND_TIMES]. Output: -1 where a replay could not count it.
    """
    valid = True
    for kind in range(forward_s.shape[0]):
        kind_ps[kind, EVERY_FORWARD] = _ticks(forward_s[kind])
        kind_ps[kind, EVERY_BACKWARD] = _ticks(backward_s[kind])
        kind_ps[kind, LAST_BACKWARD] = _ticks(last_backward_s[kind])
        kind_ps[kind, EVERY_WEIGHT] = _ticks(weight_s[kind])
        kind_ps[kind, LAST_WEIGHT] = _ticks(last_weight_s[kind])
        for which in range(KIND_TIMES):
            valid = valid and kind_ps[kind, which] >= 0
    return valid


@helper
def _same_times(one: int, other: int, num_stages: int, stages: StageDurations) -> bool:
    """Whether the stages of two replicas are alike and take equally long."""
    first_ps, kind_ps, kind_first = stages.first_forward_ps, stages.kind_ps, stages.kind_first
    own, row = stages.first_row[one], stages.first_row[other]
    if stages.pattern[one] != stages.pattern[other] or (own < 0) != (row < 0):
        return False
    shift = kind_first[other] - kind_first[one]
    for kind in range(kind_first[one], kind_first[one + 1]):
        for which in range(KIND_TIMES):
            if kind_ps[kind, which] != kind_ps[kind + shift, which]:
                return False
        if own < 0 and first_ps[kind] != first_ps[kind + shift]:
            return False
    if own >= 0:
        for stage in range(num_stages):
            if first_ps[own + stage] != first_ps[row + stage]:
                return False
    return True


@helper
def _hash_times(replica: int, sends: int, num_stages: int, stages: StageDurations) -> np.uint64:
    """Hash what `_same_times` compares, and what is sent, in two strands side by side."""
    first_ps, kind_ps, kind_first = stages.first_forward_ps, stages.kind_ps, stages.kind_first
    own = stages.first_row[replica]
    one, other = mixed(SEED, sends), mixed(SEED, stages.pattern[replica])
    for kind in range(kind_first[replica], kind_first[replica + 1]):
        for which in range(1, KIND_TIMES, 2):
            one = mixed(one, kind_ps[kind, which - 1])
            other = mixed(other, kind_ps[kind, which])
        one = mixed(one, kind_ps[kind, LAST_WEIGHT])
        if own < 0:
            one = mixed(one, first_ps[kind])
    if own >= 0:
        for stage in range(own, own + num_stages):
            other = mixed(other, first_ps[stage])
    return mixed(one, other)


@kernel(python_us=0.3)
def number_timings(
    chosen: Ints,
    num_stages: int,
    sends: Ints,
    stages: StageDurations,
    slot: Ints32,
    timing: Ints,
    first: Ints,
) -> int:
    """Give each distinct timing a number, in the order in which they first appear.

    chosen : int64[n]. Replicas.
    num_stages : int. Stages of each.
    sends : int64[n]. Equal numbers where messages are alike.
    stages : StageDurations
    slot : int32[size]. Scratch, all -1; ``size`` is a power of two of at least 2 n.
    timing : int64[n]. Output: number of each replica.
    first : int64[n]. Output: first replica of each number; beyond the returned count it means
        nothing.
    Returns how many distinct timings there are.
    """
    last = np.uint64(slot.shape[0] - 1)
    count = 0
    for place in range(chosen.shape[0]):
        replica = chosen[place]
        where = _hash_times(replica, sends[place], num_stages, stages) & last
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
                replica, chosen[known], num_stages, stages
            ):
                timing[place] = number
                break
            where = (where + np.uint64(1)) & last
    return count


@kernel(python_us=0.2)
def write_timings(
    chosen: Ints,
    held: Ints,
    alike: Ints,
    stages: StageDurations,
    waits: Flags,
    sends: Ints,
    sent_ps: Ints,
    columns: TimingColumns,
) -> None:
    """Write the durations of T timings, and the work of their ranks.

    chosen : int64[T]. A replica that has each.
    held : int64[pp, C]. Stage of the model that each chunk of each rank holds.
    alike : int64[pp, C]. Equal numbers where chunks take as long in all, but for first forwards.
    stages : StageDurations
    waits : bool[T]. Whether ranks wait until what they send has arrived.
    sends : int64[T]. Row of what each sends.
    sent_ps : int64[rows, 2, pp, C]. What each chunk waits for then, behind a forward and behind a
        backward.
    columns : TimingColumns. Output.
    """
    alone_ps, duration_ps, work_ps = columns
    pattern_of, kind_first, first_row, pattern_first, stage_kind, first_ps, kind_ps = stages
    firsts = (alike.max() + 1) * KIND_TIMES
    for t in range(chosen.shape[0]):
        base, own_row = pattern_first[pattern_of[chosen[t]]], first_row[chosen[t]]
        for rank in range(held.shape[0]):
            least, each = 0, 0
            for c in range(held.shape[1]):
                kind = kind_first[chosen[t]] + stage_kind[base + held[rank, c]]
                first = first_ps[kind if own_row < 0 else own_row + held[rank, c]]
                mine, of_first = alike[rank, c] * KIND_TIMES, firsts + rank * held.shape[1] + c
                alone_ps[t, of_first] = first
                for which in range(KIND_TIMES):
                    alone_ps[t, mine + which] = kind_ps[kind, which]
                least += first + kind_ps[kind, LAST_BACKWARD] + kind_ps[kind, LAST_WEIGHT]
                each += kind_ps[kind, EVERY_FORWARD] + kind_ps[kind, EVERY_BACKWARD]
                each += kind_ps[kind, EVERY_WEIGHT]
                if duration_ps.shape[0] > 0:
                    on_ps = sent_ps[sends[t], 0, rank, c] if waits[t] else 0
                    back_ps = sent_ps[sends[t], 1, rank, c] if waits[t] else 0
                    duration_ps[t, of_first] = first + on_ps
                    for which in range(KIND_TIMES):
                        sent = (on_ps, back_ps, back_ps, 0, 0)[which]
                        duration_ps[t, mine + which] = kind_ps[kind, which] + sent
            work_ps[t, LEAST, rank], work_ps[t, EACH, rank] = least, each


def distinct_timings(
    chosen: Ints, num_stages: int, sends: Ints, stages: StageDurations
) -> tuple[Ints, Ints]:
    """Return the first replica of each distinct timing, and the number of that of each replica.

    Parameters are those of `number_timings`.
    """
    timing, first = np.empty_like(chosen), np.empty_like(chosen)
    slot = free_slots(len(chosen))
    count = number_timings(chosen, num_stages, sends, stages, slot, timing, first)
    return first[:count].copy(), timing
