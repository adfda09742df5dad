"""Local search for zero-bubble orders of one chunk a rank.

A rank's order is a text of F, B and W, since each kind runs by microbatch. A step moves one
operation by up to three places, and is undone where F, B and W of a microbatch fall out of order,
the memory does not suffice, the ranks would wait for ever, or the objective gets worse by more
than a threshold. The threshold is drawn before the replay, so that most replays end early; its
range falls to 0 over the search (threshold accepting: Dueck and Scheuer, J. Comp. Physics 90,
1990).

Shapes
    pp, microbatches  stages, each on a rank of its own, and microbatches
    each              operations of a rank, 3 * microbatches
Units: times int64 picoseconds; memory in any one unit, float64.
"""

import math
from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints, Ints8
from projector.kernels._jit import helper, kernel

FORWARD, BACKWARD, WEIGHT = 0, 1, 2
"""Kinds of operation: forward, gradient of the input, gradient of the weights."""

MAX_PS = 2**62
"""No order ends later."""

REACH = 3
"""Most places that an operation is moved at once."""

NONE = -1
"""No objective: the order is illegal, waits for ever, or is worse than asked for."""


class StageTimes(NamedTuple):
    """Times of stages, each on a rank of its own."""

    duration_ps: Ints
    """``int64[pp, 3]``: F, B and W."""
    to_next_ps: Ints
    """``int64[pp]``: latency to the next stage."""
    to_previous_ps: Ints
    """``int64[pp]``: latency to the stage before."""
    since_ps: Ints
    """``int64[pp]``: the objective is the largest ``end - since_ps`` of any rank."""


class StageMemory(NamedTuple):
    """Memory of stages, each on a rank of its own."""

    activation: Floats
    """``float64[pp]``: what F adds."""
    w_share: float
    """Share of it that W frees; B frees the rest."""
    limit: Floats
    """``float64[pp]``: the most that each rank may hold."""


@helper
def _next_random(state: int) -> int:
    """Return the next of 2**32 - 1 numbers (xorshift: Marsaglia, J. Stat. Software 8, 2003)."""
    state ^= (state << 13) & 0xFFFFFFFF
    state ^= state >> 17
    state ^= (state << 5) & 0xFFFFFFFF
    return state


@helper
def _is_legal(
    kind: Ints8, rank: int, begin: int, end: int, each: float, share: float, limit: float
) -> bool:
    """Whether a rank is in order and within its limit after its operations in ``begin:end``."""
    forward = 0
    backward = 0
    weight = 0
    for place in range(end):
        if kind[rank, place] == FORWARD:
            forward += 1
            if place >= begin:
                held = each * (forward - backward) + each * share * (backward - weight)
                if held > limit:
                    return False
        elif kind[rank, place] == BACKWARD:
            backward += 1
        else:
            weight += 1
        if place >= begin and (backward > forward or weight > backward):
            return False
    return True


@helper
def _move(kind: Ints8, rank: int, source: int, target: int) -> None:
    moved = kind[rank, source]
    step = 1 if target > source else -1
    for place in range(source, target, step):
        kind[rank, place] = kind[rank, place + step]
    kind[rank, target] = moved


@helper
def _objective(
    kind: Ints8,
    duration_ps: Ints,
    to_next_ps: Ints,
    to_previous_ps: Ints,
    since_ps: Ints,
    most_ps: int,
    end_ps: Ints,
    state: Ints,
) -> int:
    """Replay legal texts; ``NONE`` where they wait for ever or come to more than ``most_ps``.

    ``state`` int64[pp, 5] is scratch: operations done of each kind, the end of the last one, and
    the work left; ``end_ps`` int64[pp, 2, microbatches] has the ends of F and B.
    """
    pp, each = kind.shape
    microbatches = each // 3
    for rank in range(pp):
        for column in range(4):
            state[rank, column] = 0
        state[rank, 4] = microbatches * (
            duration_ps[rank, FORWARD] + duration_ps[rank, BACKWARD] + duration_ps[rank, WEIGHT]
        )
    left = pp * each
    while left > 0:
        before = left
        # F's go down the ranks and B's up, so sweeps of both directions get furthest.
        for turn in range(2 * pp):
            rank = turn if turn < pp else 2 * pp - 1 - turn
            place = state[rank, 0] + state[rank, 1] + state[rank, 2]
            while place < each:
                k = int(kind[rank, place])
                number = state[rank, k]
                start = state[rank, 3]
                if k == FORWARD and rank > 0:
                    if state[rank - 1, FORWARD] <= number:
                        break
                    start = max(start, end_ps[rank - 1, FORWARD, number] + to_next_ps[rank - 1])
                elif k == BACKWARD and rank < pp - 1:
                    if state[rank + 1, BACKWARD] <= number:
                        break
                    start = max(
                        start, end_ps[rank + 1, BACKWARD, number] + to_previous_ps[rank + 1]
                    )
                # On one rank, an operation stands behind what it waits for.
                end = start + duration_ps[rank, k]
                if k != WEIGHT:
                    end_ps[rank, k, number] = end
                state[rank, k] = number + 1
                state[rank, 3] = end
                state[rank, 4] -= duration_ps[rank, k]
                if end + state[rank, 4] - since_ps[rank] > most_ps:
                    return NONE
                place += 1
                left -= 1
        if left == before:
            return NONE
    objective = state[0, 3] - since_ps[0]
    for rank in range(1, pp):
        objective = max(objective, state[rank, 3] - since_ps[rank])
    return int(objective)


@helper
def _copy(source: Ints8, target: Ints8) -> None:
    for rank in range(source.shape[0]):
        for place in range(source.shape[1]):
            target[rank, place] = source[rank, place]


@kernel(python_us=math.inf)
def anneal(
    kind: Ints8,
    times: StageTimes,
    memory: StageMemory,
    least_ps: int,
    threshold_ps: float,
    moves: int,
    seed: int,
) -> int:
    """Improve the order of every rank.

    kind : int8[pp, each]. Operations of the rank of each stage; replaced by the best that was
        found.
    times : StageTimes. What the operations take.
    memory : StageMemory. What the ranks hold, and may hold.
    least_ps : int. A bound; the search ends where it is met.
    threshold_ps : float. The most that a step may make worse, at first.
    moves : int. Steps.
    seed : int. Of the random numbers, 1 to 2**32 - 1.
    Returns the objective of the best, ``NONE`` where the order to begin with is not legal.
    """
    duration_ps, to_next_ps, to_previous_ps, since_ps = times
    activation, w_share, limit = memory
    pp, each = kind.shape
    end_ps = np.empty((pp, 2, each // 3), np.int64)
    state = np.empty((pp, 5), np.int64)
    for rank in range(pp):
        if not _is_legal(kind, rank, 0, each, activation[rank], w_share, limit[rank]):
            return NONE
    current = _objective(
        kind, duration_ps, to_next_ps, to_previous_ps, since_ps, MAX_PS, end_ps, state
    )
    if current == NONE:
        return NONE
    best = current
    kept = kind.copy()
    random = seed
    for step in range(moves):
        if best <= least_ps:
            break
        random = _next_random(random)
        place = random % (pp * each)
        rank = place // each
        source = place % each
        random = _next_random(random)
        distance = 1 + random % REACH
        random = _next_random(random)
        target = source + distance if random % 2 == 0 else source - distance
        # Drawn in any case, so that every step uses as many numbers.
        random = _next_random(random)
        if target < 0 or target >= each or kind[rank, source] == kind[rank, target]:
            continue
        worse = threshold_ps * (1.0 - step / moves) * (random / 4294967296.0)
        _move(kind, rank, source, target)
        found = NONE
        begin, end = min(source, target), max(source, target) + 1
        if _is_legal(kind, rank, begin, end, activation[rank], w_share, limit[rank]):
            most_ps = current + int(worse)
            found = _objective(
                kind, duration_ps, to_next_ps, to_previous_ps, since_ps, most_ps, end_ps, state
            )
        if found == NONE:
            _move(kind, rank, target, source)
            continue
        current = found
        if current < best:
            best = current
            _copy(kind, kept)
    _copy(kept, kind)
    return best
