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
Units
    times int64 picoseconds, memory in any one unit in float64.
"""

import numpy as np

from projector.arrays import Floats, Ints, Ints8

from ._jit import helper, kernel

FORWARD, BACKWARD, WEIGHT = 0, 1, 2
"""Kinds of operation, as in `pipeline`."""

NEVER = 2**62
"""A time that does not come; also the makespan of a candidate that waits for ever."""

INTERVAL, RAMP_IN, RAMP_IN_LENGTH, RAMP_OUT, RAMP_OUT_LENGTH, PATIENCE = range(6)
"""Columns of a candidate's shape. Patience: W starts when the next F or B is at least this many
quarters of W's own duration away; 0 starts it at once."""

ROUNDING = 1.0 + 2.0**-40
"""Sums of shares of memory may end a rounding error above a limit that they meet."""


@helper
def _shift(shape: Ints, microbatch: int, microbatches: int) -> int:
    squeezed = max(0, microbatch - (microbatches - 1 - shape[RAMP_OUT_LENGTH]))
    return int(
        shape[INTERVAL] * microbatch
        - shape[RAMP_IN] * min(microbatch, shape[RAMP_IN_LENGTH])
        - shape[RAMP_OUT] * squeezed
    )


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
def _next_in_sequence(
    rank: int,
    stage_of: Ints,
    offset: Ints,
    shape: Ints,
    count: Ints,
    microbatches: int,
) -> tuple[int, int]:
    """Return kind and chunk of the rank's next F or B; kind -1 when there is none.

    Of equal keys F comes before B, and each in the order in which a microbatch meets the chunks.
    """
    best, kind, chunk = NEVER, -1, -1
    num_chunks = stage_of.shape[1]
    for k in range(2):
        for step in range(num_chunks):
            c = step if k == FORWARD else num_chunks - 1 - step
            done = count[k, stage_of[rank, c]]
            if done < microbatches:
                key = offset[rank, k, c] + _shift(shape, done, microbatches)
                if key < best:
                    best, kind, chunk = key, k, c
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
def _reset(stage_of: Ints, ready: Ints, span: Ints) -> Ints:
    """Forget the candidate before; return the rank of each virtual stage."""
    num_ranks, num_chunks = stage_of.shape
    rank_of = np.empty(num_ranks * num_chunks, np.int64)
    for rank in range(num_ranks):
        span[0, rank] = NEVER
        span[1, rank] = 0
        for c in range(num_chunks):
            rank_of[stage_of[rank, c]] = rank
    for stage in range(rank_of.shape[0]):
        for m in range(ready.shape[2]):
            ready[FORWARD, stage, m] = 0 if stage == 0 else NEVER
            ready[BACKWARD, stage, m] = NEVER
    return rank_of


@helper
def _arrival(
    kind: int,
    stage: int,
    count: Ints,
    ready: Ints,
    has_room: bool,
) -> int:
    """Return when the next F or B of a stage can run; an F without room waits for a W."""
    if kind == FORWARD and not has_room:
        return NEVER
    return int(ready[kind, stage, count[kind, stage]])


@helper
def _plan(
    stage_of: Ints,
    offset: Ints,
    shape: Ints,
    duration_ps: Ints,
    to_next_ps: Ints,
    to_previous_ps: Ints,
    activation: Floats,
    w_share: float,
    limit: Floats,
    ready: Ints,
    kind: Ints8,
    chunk: Ints,
    microbatch: Ints,
    span: Ints,
) -> bool:
    """Lay out one candidate; ``span[2, pp]`` becomes the first start and last end of each rank."""
    num_ranks, num_chunks = stage_of.shape
    stages = num_ranks * num_chunks
    microbatches = ready.shape[2]
    rank_of = _reset(stage_of, ready, span)
    count = np.zeros((3, stages), np.int64)
    held = np.zeros(num_ranks)
    position = np.zeros(num_ranks, np.int64)
    leaves = 1
    while leaves < num_ranks:
        leaves *= 2
    clock = np.full(2 * leaves, NEVER)
    for rank in range(num_ranks):
        _decide_at(clock, rank, 0)
    waits = np.zeros(num_ranks, np.bool_)

    left = kind.shape[0] * kind.shape[1]
    while left > 0:
        # Ranks decide in the order of their times, so that everything that has arrived is known.
        rank = _earliest(clock)
        now = clock[leaves + rank]
        if now == NEVER:
            return False
        k, c = _next_in_sequence(rank, stage_of, offset, shape, count, microbatches)
        arrives = NEVER
        if k >= 0:
            stage = stage_of[rank, c]
            has_room = held[rank] + activation[stage] <= limit[rank] * ROUNDING
            arrives = _arrival(k, stage, count, ready, has_room)
        if arrives > now:
            c = _waiting_weight(rank, stage_of, count)
            patience = shape[PATIENCE] * duration_ps[WEIGHT, stage_of[rank, c]] if c >= 0 else 0
            if c < 0 or 4 * (min(arrives, NEVER // 8) - now) < patience:
                _decide_at(clock, rank, arrives)
                waits[rank] = True
                continue
            k = WEIGHT
        stage = stage_of[rank, c]
        m = count[k, stage]
        end = now + duration_ps[k, stage]
        if position[rank] == 0:
            span[0, rank] = now
        span[1, rank] = end
        kind[rank, position[rank]] = k
        chunk[rank, position[rank]] = c
        microbatch[rank, position[rank]] = m
        position[rank] += 1
        count[k, stage] += 1
        _decide_at(clock, rank, end)
        waits[rank] = False
        left -= 1
        target = stage
        latency = np.int64(0)
        if k == FORWARD:
            held[rank] += activation[stage]
            target = stage + 1
            latency = to_next_ps[stage]
        elif k == BACKWARD:
            held[rank] -= activation[stage] * (1.0 - w_share)
            target = stage - 1
            latency = to_previous_ps[stage]
        else:
            held[rank] -= activation[stage] * w_share
            continue
        if target == stages:
            ready[BACKWARD, stage, m] = end
        elif target >= 0:
            other = rank_of[target]
            arrival = end if other == rank else end + latency
            ready[k, target, m] = arrival
            if waits[other] and arrival < clock[leaves + other]:
                _decide_at(clock, other, arrival)
    return True


@kernel
def plan_candidates(
    stage_of: Ints,
    offset: Ints,
    shape: Ints,
    duration_ps: Ints,
    to_next_ps: Ints,
    to_previous_ps: Ints,
    activation: Floats,
    w_share: float,
    limit: Floats,
    ready: Ints,
    kind: Ints8,
    chunk: Ints,
    microbatch: Ints,
    makespan_ps: Ints,
    period_ps: Ints,
) -> None:
    """Lay out every candidate and time it.

    Parameters
    ----------
    stage_of : int64[pp, vpp]
        Virtual stage, in model order, that a chunk of a rank holds.
    offset : int64[n, pp, 2, vpp]
        Keys of F and B of the first microbatch.
    shape : int64[n, 6]
        ``INTERVAL`` to ``PATIENCE``.
    duration_ps : int64[3, stages]
        F, B and W of one microbatch. All of a plan together must end before ``NEVER // 8``.
    to_next_ps, to_previous_ps : int64[stages]
        Latency from each virtual stage to the next and the one before, on another rank.
    activation : float64[stages]
        What one microbatch leaves in a stage from F on.
    w_share : float
        Share of it that stays from B until W.
    limit : float64[pp]
        The most that a rank may hold.
    ready : int64[2, stages, microbatches]
        Scratch.
    kind, chunk, microbatch : [pp, 3 * vpp * microbatches]
        Output: the operations of each rank in the last candidate.
    makespan_ps, period_ps : int64[n]
        Output: last end minus first start, and the longest span of one rank; ``NEVER`` where the
        memory does not suffice for the sequence.
    """
    span = np.empty((2, stage_of.shape[0]), np.int64)
    for n in range(offset.shape[0]):
        done = _plan(
            stage_of, offset[n], shape[n], duration_ps, to_next_ps, to_previous_ps, activation,
            w_share, limit, ready, kind, chunk, microbatch, span,
        )  # fmt: skip
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
