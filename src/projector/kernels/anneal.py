"""Local search for zero-bubble orders of one chunk a rank.

A rank's order is a text of F, B and W, since each kind runs by microbatch. A step moves one
operation by up to three places, and is undone where F, B and W of a microbatch fall out of order,
the memory does not suffice, the ranks would wait for ever, or the objective gets worse by more
than a threshold. The threshold is drawn before the times are, so that most steps end early; its
range falls to 0 over the search (threshold accepting: Dueck and Scheuer, J. Comp. Physics 90,
1990).

A step computes only the ends that it changes, the earliest first, and ends once an operation is too
late for what follows it. What follows is known from the same pipeline run backwards: the last rank,
operation and microbatch first.

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
from projector.kernels.planning import NEVER

FORWARD, BACKWARD, WEIGHT = 0, 1, 2
"""Kinds of operation: forward, gradient of the input, gradient of the weights."""

MAX_PS = 2**62
"""No order ends later."""

REACH = 3
"""Most places that an operation is moved at once."""

NONE = -1
"""No objective: the order is illegal, waits for ever, or is worse than asked for."""

UNKNOWN = -2
"""Too many ends change for an objective to be found so."""


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
def _decide_at(clock: Ints, rank: int, time_ps: int) -> None:
    """Note when a rank decides next.

    The clock is a binary tree: entry n is the earlier of 2 n and 2 n + 1, ranks are its last half.
    """
    node = clock.shape[0] // 2 + rank
    clock[node] = time_ps
    while node > 1:
        node //= 2
        earlier = min(clock[2 * node], clock[2 * node + 1])
        if clock[node] == earlier:
            break
        clock[node] = earlier


@helper
def _earliest(clock: Ints) -> int:
    """Return the rank that decides first, of several the first one."""
    ranks = clock.shape[0] // 2
    node = 1
    while node < ranks:
        node *= 2
        if clock[node] > clock[node + 1]:
            node += 1
    return int(node - ranks)


@helper
def _new_clock(num_ranks: int, time_ps: int) -> Ints:
    """Return a clock of ranks that all decide next at one time."""
    leaves = 1
    while leaves < num_ranks:
        leaves *= 2
    clock = np.full(2 * leaves, NEVER)
    for rank in range(num_ranks):
        _decide_at(clock, rank, time_ps)
    return clock


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


class Run(NamedTuple):
    """An order with its times, forwards or backwards."""

    kind: Ints8
    """``int8[pp, each]``"""
    number: Ints
    """``int64[pp, each]``: how many of its kind go before the operation at each place."""
    place: Ints
    """``int64[pp, 3, microbatches]``: of each operation."""
    end_ps: Ints
    """``int64[pp, 3, microbatches]``"""
    duration_ps: Ints
    """As in `StageTimes`, like the next two."""
    to_next_ps: Ints
    to_previous_ps: Ints
    begin_ps: Ints
    """``int64[pp]``: when each rank may begin."""


@helper
def _run_of(
    kind: Ints8, duration_ps: Ints, to_next_ps: Ints, to_previous_ps: Ints, begin_ps: Ints
) -> Run:
    """Return a run whose ends are not known yet."""
    pp, each = kind.shape
    number, place = np.empty((pp, each), np.int64), np.empty((pp, 3, each // 3), np.int64)
    count = np.empty(3, np.int64)
    for rank in range(pp):
        for k in range(3):
            count[k] = 0
        for at in range(each):
            k = int(kind[rank, at])
            number[rank, at] = count[k]
            place[rank, k, count[k]] = at
            count[k] += 1
    end_ps = np.empty(place.shape, np.int64)
    return Run(kind, number, place, end_ps, duration_ps, to_next_ps, to_previous_ps, begin_ps)


@helper
def _backwards(
    kind: Ints8, duration_ps: Ints, to_next_ps: Ints, to_previous_ps: Ints, since_ps: Ints
) -> Run:
    """Return the run that begins with the last rank, operation and microbatch."""
    pp, each = kind.shape
    kinds, durations_ps = np.empty((pp, each), np.int8), np.empty((pp, 3), np.int64)
    next_ps, previous_ps = np.zeros(pp, np.int64), np.zeros(pp, np.int64)
    begin_ps = np.empty(pp, np.int64)
    for rank in range(pp):
        mirror = pp - 1 - rank
        for at in range(each):
            kinds[mirror, each - 1 - at] = kind[rank, at]
        for k in range(3):
            durations_ps[mirror, k] = duration_ps[rank, k]
        begin_ps[mirror] = -since_ps[rank]
        # A latency is that of the stage that sends, which is the other one now.
        if rank > 0:
            next_ps[mirror] = to_next_ps[rank - 1]
        if mirror > 0:
            previous_ps[mirror] = to_previous_ps[rank + 1]
    return _run_of(kinds, durations_ps, next_ps, previous_ps, begin_ps)


@helper
def _copy(source: Ints8, target: Ints8) -> None:
    for rank in range(source.shape[0]):
        for place in range(source.shape[1]):
            target[rank, place] = source[rank, place]


@helper
def _move(run: Run, rank: int, source: int, target: int) -> None:
    """Move an operation past its neighbours, one after the other."""
    kind, number, place = run.kind, run.number, run.place
    step = 1 if target > source else -1
    for at in range(source, target, step):
        low = min(at, at + step)
        first, second = kind[rank, low], kind[rank, low + 1]
        if first == second:
            continue
        kind[rank, low], kind[rank, low + 1] = second, first
        number[rank, low], number[rank, low + 1] = number[rank, low + 1], number[rank, low]
        place[rank, second, number[rank, low]] = low
        place[rank, first, number[rank, low + 1]] = low + 1


@helper
def _replay(run: Run, state: Ints) -> bool:
    """Find all ends of legal texts; return whether none waits for ever.

    ``state`` int64[pp, 4] is scratch: operations done of each kind, and the end of the last one.
    """
    kind, _, _, end_ps, duration_ps, to_next_ps, to_previous_ps, begin_ps = run
    pp, each = kind.shape
    for rank in range(pp):
        for column in range(3):
            state[rank, column] = 0
        state[rank, 3] = begin_ps[rank]
    left = pp * each
    while left > 0:
        before = left
        # F's go down the ranks and B's up, so sweeps of both directions get furthest.
        for turn in range(2 * pp):
            rank = turn if turn < pp else 2 * pp - 1 - turn
            place = state[rank, 0] + state[rank, 1] + state[rank, 2]
            while place < each:
                k = int(kind[rank, place])
                n = state[rank, k]
                if k == FORWARD and rank > 0 and state[rank - 1, FORWARD] <= n:
                    break
                if k == BACKWARD and rank < pp - 1 and state[rank + 1, BACKWARD] <= n:
                    break
                start = _arrival(end_ps, to_next_ps, to_previous_ps, rank, k, n, state[rank, 3])
                state[rank, 3] = end_ps[rank, k, n] = start + duration_ps[rank, k]
                state[rank, k] = n + 1
                place += 1
                left -= 1
        if left == before:
            return False
    return True


@helper
def _arrival(
    end_ps: Ints, to_next_ps: Ints, to_previous_ps: Ints, rank: int, k: int, n: int, start: int
) -> int:
    """Return when an operation can start whose rank is free at ``start``."""
    if k == FORWARD and rank > 0:
        start = max(start, end_ps[rank - 1, FORWARD, n] + to_next_ps[rank - 1])
    elif k == BACKWARD and rank < end_ps.shape[0] - 1:
        start = max(start, end_ps[rank + 1, BACKWARD, n] + to_previous_ps[rank + 1])
    # On one rank, an operation stands behind what it waits for.
    return start


@helper
def _note(due: Ints, rank: int, at: int, earlier: bool) -> int:
    """Note a place that is to be looked at; return whether it is the first that may be earlier."""
    due[rank, 1] = max(due[rank, 1], at)
    first = earlier and due[rank, 2] < 0
    if earlier:
        due[rank, 2] = max(due[rank, 2], at)
    return int(first)


@helper
def _settle(
    run: Run,
    behind_ps: Ints,
    most_ps: int,
    sure_ps: int,
    clock: Ints,
    due: Ints,
    undo: Ints,
    rank: int,
    begin: int,
    end: int,
) -> tuple[int, int]:
    """Bring the ends up to an order that has changed in the places ``begin:end`` of a rank.

    behind_ps : int64[pp, 3, microbatches]. Ends of the run backwards, before the change: what is
        less than ``sure_ps`` has not changed.
    most_ps : int. The most that the objective may be.
    clock, due : the ranks by what is to be looked at next, and int64[pp, 3] its first and last
        place and the last one that may become earlier; -1 without.
    undo : int64[n, 4]. Output: which ends were changed, and what they were.
    Returns ``NONE`` where the objective is more, ``UNKNOWN`` where more than n ends change, and
    else 0; and how many changed.
    """
    kind, number, place, end_ps, duration_ps, to_next_ps, to_previous_ps, begin_ps = run
    pp, each = kind.shape
    changes, falling, outcome = 0, 1, 0
    # The operation behind them follows another one.
    last = min(end, each - 1)
    due[rank, 0], due[rank, 1], due[rank, 2] = begin, last, last
    _decide_at(clock, rank, 0)
    while outcome == 0 and clock[1] != NEVER:
        rank = _earliest(clock)
        at = due[rank, 0]
        k, n = int(kind[rank, at]), number[rank, at]
        start = begin_ps[rank]
        if at > 0:
            start = end_ps[rank, kind[rank, at - 1], number[rank, at - 1]]
        start = _arrival(end_ps, to_next_ps, to_previous_ps, rank, k, n, start)
        now, before = start + duration_ps[rank, k], end_ps[rank, k, n]
        if now != before and changes == undo.shape[0]:
            outcome = UNKNOWN
        elif now != before:
            undo[changes, 0], undo[changes, 1], undo[changes, 2] = rank, k, n
            undo[changes, 3] = before
            changes += 1
            end_ps[rank, k, n] = now
            other = rank + 1 if k == FORWARD else rank - 1
            if k != WEIGHT and 0 <= other < pp:
                waits = place[other, k, n]
                if due[other, 0] < 0 or waits < due[other, 0]:
                    due[other, 0] = waits
                    _decide_at(clock, other, end_ps[other, k, n])
                falling += _note(due, other, waits, now < before)
            if at + 1 < each:
                falling += _note(due, rank, at + 1, now < before)
        if 0 <= due[rank, 2] <= at:
            due[rank, 2] = -1
            falling -= 1
        if due[rank, 1] > at:
            due[rank, 0] = at + 1
            _decide_at(clock, rank, end_ps[rank, kind[rank, at + 1], number[rank, at + 1]])
        else:
            due[rank, 0], due[rank, 1] = -1, -1
            _decide_at(clock, rank, NEVER)
        # With nothing left that may become earlier, no end is later than it will be.
        left = behind_ps[pp - 1 - rank, k, each // 3 - 1 - n]
        if falling == 0 and left < sure_ps and start + left > most_ps:
            outcome = NONE
    for rank in range(pp if outcome < 0 else 0):
        _decide_at(clock, rank, NEVER)
        for column in range(3):
            due[rank, column] = -1
    return outcome, changes


@helper
def _latest(run: Run, since_ps: Ints) -> int:
    """Return the objective of a run whose ends are known."""
    latest = -MAX_PS
    for rank in range(since_ps.shape[0]):
        end = run.end_ps[rank, run.kind[rank, -1], run.number[rank, -1]]
        latest = max(latest, end - since_ps[rank])
    return latest


@helper
def _move_if(
    run: Run,
    back: Run,
    since_ps: Ints,
    most_ps: int,
    clock: Ints,
    due: Ints,
    undo: Ints,
    state: Ints,
    rank: int,
    source: int,
    target: int,
) -> int:
    """Bring the ends up to a move; where the objective is too large, take it back."""
    each = run.kind.shape[1]
    mirror = run.kind.shape[0] - 1 - rank
    begin, end = min(source, target), max(source, target) + 1
    # The run backwards has the order before the move: what lay behind its last place is sure.
    at = each - end
    sure_ps = back.end_ps[mirror, back.kind[mirror, at], back.number[mirror, at]]
    found, changes = _settle(run, back.end_ps, most_ps, sure_ps, clock, due, undo, rank, begin, end)
    if found == 0:
        found = _latest(run, since_ps)
    if found > most_ps:
        found = NONE
    if found == UNKNOWN:
        found = _latest(run, since_ps) if _replay(run, state) else NONE
        if found == NONE or found > most_ps:
            found = NONE
            _move(run, rank, target, source)
            _replay(run, state)
    elif found == NONE:
        for change in range(changes - 1, -1, -1):
            other, k, n, end_ps = undo[change]
            run.end_ps[other, k, n] = end_ps
        _move(run, rank, target, source)
    return found


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
    zero = np.zeros(pp, np.int64)
    run = _run_of(kind, duration_ps, to_next_ps, to_previous_ps, zero)
    back = _backwards(kind, duration_ps, to_next_ps, to_previous_ps, since_ps)
    state = np.empty((pp, 4), np.int64)
    for rank in range(pp):
        if not _is_legal(kind, rank, 0, each, activation[rank], w_share, limit[rank]):
            return NONE
    if not (_replay(run, state) and _replay(back, state)):
        return NONE
    current = _latest(run, since_ps)
    clock = _new_clock(pp, NEVER)
    # Where more ends change, a replay of everything is faster.
    due, room = np.empty((pp, 3), np.int64), pp * each // 8
    for rank in range(pp):
        for column in range(3):
            due[rank, column] = -1
            # Operations of no time could wait for each other without growing late.
            if duration_ps[rank, column] == 0:
                room = 0
    undo = np.empty((room, 4), np.int64)
    best = current
    kept = np.empty((pp, each), np.int8)
    _copy(kind, kept)
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
        begin, end = min(source, target), max(source, target) + 1
        _move(run, rank, source, target)
        if not _is_legal(kind, rank, begin, end, activation[rank], w_share, limit[rank]):
            _move(run, rank, target, source)
            continue
        most_ps = current + int(worse)
        found = _move_if(
            run, back, since_ps, most_ps, clock, due, undo, state, rank, source, target
        )
        if found == NONE:
            continue
        mirror = pp - 1 - rank
        _move(back, mirror, each - 1 - source, each - 1 - target)
        settled, _ = _settle(
            back, run.end_ps, MAX_PS, -MAX_PS, clock, due, undo, mirror, each - end, each - begin
        )
        if settled == UNKNOWN:
            _replay(back, state)
        current = found
        if current < best:
            best = current
            _copy(kind, kept)
    _copy(kept, kind)
    return best
