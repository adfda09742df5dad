"""Orders of operations laid out by their times: F and B in a given sequence, W in the gaps.

A plan decides, for every rank, where the weight gradients (W) stand and checks that memory
suffices. The sequence of F and B of a rank is given by keys: the operation with the smallest key
comes next. Every rank runs its sequence; while the next F or B has not arrived, or an F finds no
room, it runs a W that waits.

Keys
    An F or B of chunk c and microbatch m has the key ``offset[rank, kind, c] + shift(m)`` with::

        shift(m) = interval * m - ramp_in * min(m, ramp_in_length)
                   - ramp_out * max(0, m - (microbatches - 1 - ramp_out_length))

    so that a schedule is a building block repeated every ``interval`` (arXiv:2405.15362,
    section 3), its first and last microbatches closer together, when nothing else fills the
    ranks.

Shapes
    n            candidates
    pp, vpp      ranks, and chunks (virtual stages) of a rank
    stages       pp * vpp virtual stages in model order
Units: times int64 picoseconds, memory in any one unit in float64.
"""

import math
from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints, Ints8
from projector.kernels._jit import helper, kernel

FORWARD, BACKWARD, WEIGHT = 0, 1, 2
"""Kinds of operation, as in `pipeline`."""

NEXT, NOTHING = -1, -3
"""What a rank does but `WEIGHT`: the next F or B of its sequence, or it waits for other ranks."""

UNKNOWN = -2
"""What comes next, where nobody has looked yet; -1 is nothing."""

NEVER = 2**62
"""A time that does not come; also the makespan of a candidate that waits for ever."""

INTERVAL, RAMP_IN, RAMP_IN_LENGTH, RAMP_OUT, RAMP_OUT_LENGTH, PATIENCE = range(6)
"""Columns of a candidate's shape. Patience: W starts when the next F or B is at least this many
quarters of W's own duration away; 0 starts it at once."""

ROUNDING = 1.0 + 2.0**-40
"""Sums of shares of memory may end a rounding error above a limit that they meet."""


class Candidates(NamedTuple):
    """Sequences of F and B, n of them."""

    offset: Ints
    """``int64[n, pp, 2, vpp]``: keys of F and B of the first microbatch."""
    shape: Ints
    """``int64[n, 6]``: ``INTERVAL`` to ``PATIENCE``."""

    def pick(self, index: Ints) -> "Candidates":
        """Return some of the candidates."""
        return Candidates(self.offset[index], self.shape[index])


class StageCosts(NamedTuple):
    """Times and memory of virtual stages in model order, and what ranks may hold."""

    duration_ps: Ints
    """``int64[3, stages]``: F, B and W of one microbatch. All of a plan together must end before
    ``NEVER // 8``."""
    to_next_ps: Ints
    """``int64[stages]``: latency from each virtual stage to the next, on another rank."""
    to_previous_ps: Ints
    """``int64[stages]``: the same to the one before."""
    activation: Floats
    """``float64[stages]``: what one microbatch leaves in a stage from F on."""
    w_share: float
    """Share of it that stays from B until W."""
    limit: Floats
    """``float64[pp]``: the most that a rank may hold."""


class OrderColumns(NamedTuple):
    """Operations of every rank, one after the other."""

    kind: Ints8
    """``int8[pp, 3 * vpp * microbatches]``"""
    chunk: Ints
    """``int64[pp, 3 * vpp * microbatches]``"""
    microbatch: Ints
    """``int64[pp, 3 * vpp * microbatches]``"""


@helper
def _shift(shape: Ints, microbatch: int, microbatches: int) -> int:
    squeezed = max(0, microbatch - (microbatches - 1 - shape[RAMP_OUT_LENGTH]))
    return int(
        shape[INTERVAL] * microbatch
        - shape[RAMP_IN] * min(microbatch, shape[RAMP_IN_LENGTH])
        - shape[RAMP_OUT] * squeezed
    )


@helper
def _next_in_sequence(rank: int, stage_of: Ints, key: Ints) -> tuple[int, int]:
    """Return kind and chunk of the rank's next F or B; kind -1 when there is none.

    ``key`` int64[2, stages] has the keys of the next of each stage. Of equal keys F comes before B,
    and each in the order in which a microbatch meets the chunks.
    """
    best, kind, chunk = NEVER, -1, -1
    num_chunks = stage_of.shape[1]
    for c in range(num_chunks):
        if key[FORWARD, stage_of[rank, c]] < best:
            best, kind, chunk = key[FORWARD, stage_of[rank, c]], FORWARD, c
    for c in range(num_chunks - 1, -1, -1):
        if key[BACKWARD, stage_of[rank, c]] < best:
            best, kind, chunk = key[BACKWARD, stage_of[rank, c]], BACKWARD, c
    return kind, chunk


@helper
def _waiting_weight(rank: int, stage_of: Ints, count: Ints) -> int:
    """Return the chunk whose W has waited longest by its microbatch, or -1."""
    found = -1
    for c in range(stage_of.shape[1]):
        stage = stage_of[rank, c]
        if count[WEIGHT, stage] < count[BACKWARD, stage] and (
            found < 0 or count[WEIGHT, stage] < count[WEIGHT, stage_of[rank, found]]
        ):
            found = c
    return found


@helper
def _reset(stage_of: Ints, offset: Ints, shape: Ints, ready: Ints, span: Ints) -> tuple[Ints, Ints]:
    """Forget the candidate before; return the rank of each virtual stage, and its first keys."""
    num_ranks, num_chunks = stage_of.shape
    rank_of = np.empty(num_ranks * num_chunks, np.int64)
    key = np.empty((2, num_ranks * num_chunks), np.int64)
    for rank in range(num_ranks):
        span[0, rank] = NEVER
        span[1, rank] = 0
        for c in range(num_chunks):
            rank_of[stage_of[rank, c]] = rank
            for k in range(2):
                key[k, stage_of[rank, c]] = offset[rank, k, c] + _shift(shape, 0, ready.shape[2])
    ready[:] = NEVER
    ready[FORWARD, 0] = 0
    return rank_of, key


@helper
def _held_by(kind: int, activation: float, w_share: float) -> float:
    if kind == FORWARD:
        return activation
    return -(activation * ((1.0 - w_share) if kind == BACKWARD else w_share))


@helper
def _waiting_for(kind: int, stage: int, stages: int) -> tuple[int, int]:
    """Return kind and stage of the F or B that waits for an operation; stage -1 without one."""
    if kind == FORWARD and stage + 1 < stages:
        return FORWARD, stage + 1
    if kind == FORWARD:
        return BACKWARD, stage
    return BACKWARD, stage - 1 if kind == BACKWARD else -1


@helper
def _first_with_weight(stage_of: Ints, count: Ints, decides: Ints) -> int:
    """Return the rank that decides first of those that have a W waiting; -1 without any."""
    first = -1
    for rank in range(stage_of.shape[0]):
        waits = _waiting_weight(rank, stage_of, count) >= 0
        if waits and (first < 0 or decides[rank] < decides[first]):
            first = rank
    return first


@helper
def _decide(now: int, arrives: int, sure: bool, laid_out: bool, known: bool, patience: int) -> int:
    """Return what a rank does: its next F or B, the `WEIGHT` that waits, or `NOTHING` yet.

    The next one ``arrives`` then if it is ``laid_out``, else no earlier, and the rank may be
    ``known`` to know it. ``sure`` is whether it cannot be laid out by now. ``patience`` is below 0
    where no W waits.
    """
    if laid_out and known and arrives <= now:
        return NEXT
    if patience < 0:
        return NEXT if laid_out and arrives < NEVER else NOTHING
    if not sure and known and (patience > 0 or arrives <= now):
        return NOTHING
    soon = laid_out and known and 4 * (min(arrives, NEVER // 8) - now) < patience
    return NEXT if soon else WEIGHT


@helper
def _plan(
    stage_of: Ints,
    offset: Ints,
    shape: Ints,
    costs: StageCosts,
    ready: Ints,
    order: OrderColumns,
    span: Ints,
    work_ps: Ints,
    most_ps: int,
    apart: bool,
) -> bool:
    """Lay out one candidate; ``span[2, pp]`` becomes the first start and last end of each rank.

    It is given up once a rank cannot end by ``most_ps``, from its own first start with ``apart``:
    what is left to do of its ``work_ps`` follows in any case.

    A rank knows of what is on its way to it: of operations that began before it decides, those of
    ranks before it at the same time included. It goes on until it could know of one that is not
    laid out yet; then the next rank does. Where none goes on, the one that decides first does.
    """
    # Arrays are local here: helpers with branches would count references, for most of the time.
    duration_ps, to_next_ps, to_previous_ps, activation, w_share, limit = costs
    kind, chunk, microbatch = order
    num_ranks, stages, microbatches = stage_of.shape[0], stage_of.size, ready.shape[2]
    rank_of, key = _reset(stage_of, offset, shape, ready, span)
    count = np.zeros((3, stages), np.int64)
    # When a rank decides next, at the earliest.
    decides = np.zeros(num_ranks, np.int64)
    held, position = np.zeros(num_ranks), np.zeros(num_ranks, np.int64)
    left_ps = work_ps.copy()
    # What comes next in the sequence of a rank changes when it has run.
    next_kind, next_chunk = np.full(num_ranks, UNKNOWN), np.zeros(num_ranks, np.int64)

    left, rank, step, visits = 3 * stages * microbatches, 0, 1, 0
    while left > 0:
        alone = visits > 2 * num_ranks
        if alone:
            rank = _first_with_weight(stage_of, count, decides)
            if rank < 0:
                return False
        if next_kind[rank] == UNKNOWN:
            next_kind[rank], next_chunk[rank] = _next_in_sequence(rank, stage_of, key)
        k, c, now = next_kind[rank], next_chunk[rank], decides[rank]
        stage = stage_of[rank, c]
        # When it arrives, at the earliest; whether that is laid out, and the rank may know of it.
        arrives, laid_out, known = NEVER, True, True
        # An F without room waits for a W.
        room = k != FORWARD or held[rank] + activation[stage] <= limit[rank] * ROUNDING
        if k >= 0 and room:
            arrives = ready[k, stage, count[k, stage]]
            source = stage - 1 if k == FORWARD else stage + 1
            if 0 <= source < stages and rank_of[source] != rank:
                latency = to_next_ps[source] if k == FORWARD else to_previous_ps[source]
                takes = duration_ps[k, source] + latency
                laid_out = arrives < NEVER
                begins = arrives - takes if laid_out else decides[rank_of[source]]
                arrives = begins + takes
                known = begins < now or (begins == now and rank_of[source] < rank)
        w = _waiting_weight(rank, stage_of, count)
        patience = shape[PATIENCE] * duration_ps[WEIGHT, stage_of[rank, w]] if w >= 0 else -1
        does = _decide(now, arrives, laid_out or alone, laid_out, known, patience)
        if does == NOTHING:
            decides[rank] = now if laid_out or w >= 0 else max(now, arrives)
            visits += 1
            step = step if 0 <= rank + step < num_ranks else -step
            rank = min(max(rank + step, 0), num_ranks - 1)
            continue
        visits = 0
        if does == WEIGHT:
            k, c, stage = WEIGHT, w, stage_of[rank, w]
        else:
            now = max(now, arrives)
        m = count[k, stage]
        end = now + duration_ps[k, stage]
        span[0, rank] = min(span[0, rank], now)
        span[1, rank] = end
        if kind.shape[1] > 0:
            place = position[rank]
            kind[rank, place], chunk[rank, place], microbatch[rank, place] = k, c, m
            position[rank] += 1
        left_ps[rank] -= duration_ps[k, stage]
        if end + left_ps[rank] - (span[0, rank] if apart else 0) > most_ps:
            return False
        count[k, stage] += 1
        held[rank] += _held_by(k, activation[stage], w_share)
        decides[rank] = end
        left -= 1
        if k != WEIGHT:
            next_kind[rank] = UNKNOWN
            later = offset[rank, k, c] + _shift(shape, m + 1, microbatches)
            key[k, stage] = later if m + 1 < microbatches else NEVER
            waiting, target = _waiting_for(k, stage, stages)
            if target >= 0:
                latency = to_next_ps[stage] if k == FORWARD else to_previous_ps[stage]
                ready[waiting, target, m] = end if rank_of[target] == rank else end + latency
    return True


@helper
def _work_ps(stage_of: Ints, duration_ps: Ints, microbatches: int) -> Ints:
    work_ps = np.zeros(stage_of.shape[0], np.int64)
    for rank in range(stage_of.shape[0]):
        for c in range(stage_of.shape[1]):
            work_ps[rank] += microbatches * duration_ps[:, stage_of[rank, c]].sum()
    return work_ps


@helper
def _remember(best_ps: Ints, value_ps: int) -> None:
    """Insert a time among the best, which rise."""
    place = best_ps.shape[0] - 1
    if value_ps >= best_ps[place]:
        return
    while place > 0 and best_ps[place - 1] > value_ps:
        best_ps[place] = best_ps[place - 1]
        place -= 1
    best_ps[place] = value_ps


@kernel(python_us=math.inf)
def plan_candidates(
    stage_of: Ints,
    candidates: Candidates,
    costs: StageCosts,
    kept: int,
    apart: bool,
    ready: Ints,
    order: OrderColumns,
    makespan_ps: Ints,
    period_ps: Ints,
) -> None:
    """Lay out candidates and time the best of them.

    stage_of : int64[pp, vpp]. Virtual stage, in model order, that a chunk of a rank holds.
    candidates : Candidates. The n sequences.
    costs : StageCosts. What they are laid out with.
    kept : int. How many of the best are timed; others are given up once so many are better.
    apart : bool. Whether the best are those of the least period, not of the least makespan.
    ready : int64[2, stages, microbatches]. Scratch.
    order : OrderColumns. Output: the operations of each rank in the last candidate, unless that was
        given up; nothing where it has no columns.
    makespan_ps, period_ps : int64[n]. Output: last end minus first start, and the longest span of
        one rank; ``NEVER`` where the memory does not suffice for the sequence, or ``kept`` others
        are better.
    """
    span = np.empty((2, stage_of.shape[0]), np.int64)
    best_ps = np.full(kept, NEVER)
    work_ps = _work_ps(stage_of, costs.duration_ps, ready.shape[2])
    for n in range(candidates.offset.shape[0]):
        offset, shape = candidates.offset[n], candidates.shape[n]
        most_ps = best_ps[kept - 1]
        done = _plan(stage_of, offset, shape, costs, ready, order, span, work_ps, most_ps, apart)
        makespan_ps[n] = NEVER
        period_ps[n] = NEVER
        if done:
            first, last, longest = span[0, 0], span[1, 0], np.int64(0)
            for rank in range(span.shape[1]):
                first = min(first, span[0, rank])
                last = max(last, span[1, rank])
                longest = max(longest, span[1, rank] - span[0, rank])
            makespan_ps[n] = last - first
            period_ps[n] = longest
            _remember(best_ps, int(longest if apart else last - first))


class Moving(NamedTuple):
    """Operations in the order of the slots that a building block gives them, ``int64[ops]``."""

    wanted: Ints
    """That slot."""
    kind: Ints
    stage: Ints
    rank: Ints
    microbatch: Ints
    """Those of a kind and stage ascend from 0 on."""


@kernel(python_us=3.0)
def place_in_slots(moving: Moving, most: int, held: Ints) -> Ints:
    """Let each operation begin in the first slot that is free for it; a B takes two of them.

    moving : Moving
    most : int. Microbatch-chunks that a rank may hold where an F moves ahead.
    held : int64[pp, slots]. Those that each rank holds behind each slot where all stand as wanted;
        overwritten.
    Returns int64[ops]: the slot of each.
    """
    wanted, kinds, stages, ranks, microbatches = moving
    num_stages = 2 * held.shape[0]
    used = np.zeros(held.shape, np.bool_)
    end = np.zeros((2, num_stages, wanted.shape[0] // (2 * num_stages) + 1), np.int64)
    placed = np.empty_like(wanted)
    for i in range(wanted.shape[0]):
        kind, stage, rank, after = kinds[i], stages[i], ranks[i], microbatches[i] + 1
        slot = end[kind, stage, after - 1]
        if kind == BACKWARD:
            slot = max(slot, end[FORWARD, stage, after])
        source = stage + 1 if kind == BACKWARD else stage - 1
        if 0 <= source < num_stages:
            slot = max(slot, end[kind, source, after])
        if kind == FORWARD:
            full = wanted[i] - 1
            while full >= slot and held[rank, full] < most:
                full -= 1
            slot = max(slot, full + 1)
        while used[rank, slot] or used[rank, slot + kind]:
            slot += 1
        used[rank, slot] = used[rank, slot + kind] = True
        for moved in range(slot + kind, wanted[i] + kind):
            held[rank, moved] += 1 - 2 * kind
        end[kind, stage, after] = slot + kind + 1
        placed[i] = slot
    return placed
