"""Replay of a pipeline schedule, and the activations it holds.

An order lists the operations of each rank. It does not depend on time, so it is compiled once
into a *line*: one topological list in which every operation knows where its two predecessors
stand. A replay walks the line once for each configuration. The activations in flight do not
depend on time either; what is kept of them are the states of a rank that no other state of the
same rank dominates, and the peak of a configuration is a maximum over those.

Shapes
    n        configurations that share one order
    pp, vpp  ranks, and chunks (virtual stages) of a rank
    stages   pp * vpp virtual stages in model order
    ops      operations of all ranks, rank by rank
    used     durations that some operation has
    3, 3     kind (F, B, W) and class (first, middle, last microbatch)
Units: times int64 picoseconds, memory bytes in float64.
"""

from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints, Ints8, Ints32
from projector.kernels._jit import helper, kernel

FORWARD, BACKWARD, WEIGHT = 0, 1, 2
"""Kinds of operation: forward, backward, gradient of the weights where it stands alone."""

FIRST, MIDDLE, LAST = 0, 1, 2
"""Classes of duration: F of microbatch 0 is first, B and W of the last microbatch are last,
everything else is middle; a single microbatch has F first and B and W last."""

PREVIOUS, DEPENDENCY, LATENCY, DURATION, OUTPUT = 0, 1, 2, 3, 4
"""Columns of a line; a program made from one also says where an end is written."""

OK, DEADLOCK, OUT_OF_RANGE, UNSURE = 0, 1, 2, 3
"""Status of a kernel. A fast replay is unsure where some end might be out of range: it does not
look at each of them, so the direct one has to."""

MAX_PS = 2**62
"""No operation may end later than this, which is 53 days."""

MAX_DURATION_PS = 2**60
"""Longest duration and latency; one more of each on top of ``MAX_PS`` still fits an int64."""

SAFE_PS = float(MAX_PS // 2)
"""Where all operations and latencies together, summed in float64, take no longer than this, no
end is out of range: every path visits each of them once at most, and rounding is far below the
factor of 2."""


class Line(NamedTuple):
    """An order compiled for replay; see :func:`compile_line`."""

    line: Ints32
    """``int32[ops, 4]``"""
    slot: Ints
    """``int64[ops]``: where an operation of the order stands in the line, plus one."""
    used: Ints
    """``int64[used]``: durations that operations have, as indices into the flattened ones,
    ascending."""
    uses: Ints
    """``int64[used]``: how many operations have each of them."""
    latency_uses: Ints
    """``int64[1 + 2 * stages]``: how many operations wait for each latency; entry 0 is none."""
    first_slot: Ints
    """``int64[pp]``: slot of the first operation of each rank."""
    last_slot: Ints
    """``int64[pp]``: slot of the last one."""
    last_backward_slot: Ints
    """``int64[pp, vpp]``: slot of the last B (W, where it stands alone) of each chunk."""


class OperationTimes(NamedTuple):
    """Durations and latencies of n configurations, each distinct one once."""

    duration_ps: Ints
    """``int64[rows, pp * vpp * 9]``: flattened from ``[rows, pp, vpp, kind, class]``."""
    p2p_ps: Ints
    """``int64[rows, 2, stages]``: latency from each virtual stage to the next (row 0) and to the
    one before (row 1). Not read between chunks of one rank. Without rows, nothing takes any
    time."""
    which: Ints
    """``int64[n]``: row of both that each configuration has."""


class Replays(NamedTuple):
    """Times of n configurations, int64 picoseconds from the start of the first operation."""

    rank_start_ps: Ints
    """``int64[n, pp]``: start of the first operation of each rank."""
    rank_end_ps: Ints
    """``int64[n, pp]``: end of the last operation of each rank."""
    rank_busy_ps: Ints
    """``int64[n, pp]``: time each rank spends in operations."""
    last_backward_end_ps: Ints
    """``int64[n, pp, vpp]``: end of the last B (W, where it stands alone) of each chunk."""

    @property
    def makespan_ps(self) -> Ints:
        """``int64[n]``: end of the last operation."""
        longest: Ints = self.rank_end_ps.max(axis=1)
        return longest


class Ends(NamedTuple):
    """When the ranks of n replays end; of replays that are equal but for a shift, one is kept.

    Of the arrays of int64 picoseconds, rows that no replay has mean nothing.
    """

    row: Ints
    """``int64[n]``: row of each replay."""
    later_ps: Ints
    """``int64[n]``: by how much the ends, not the starts, of each replay are later than its row."""
    rank_start_ps: Ints
    """``int64[n, pp]``, or without rows where nobody reads it; as in `Replays`."""
    rank_end_ps: Ints
    """``int64[n, pp]``"""
    last_backward_end_ps: Ints
    """``int64[n, pp, vpp]``, or without rows where nobody reads it."""


@helper
def _dependency(
    kind: int, stage: int, microbatch: int, microbatches: int, stages: int, num_stages: int
) -> tuple[int, int, int]:
    """Return kind, virtual stage and key of what an operation waits for; key -1 is nothing."""
    if kind == FORWARD:
        if stage % num_stages == 0:
            return FORWARD, stage, -1
        needed, source = FORWARD, stage - 1
    elif kind == WEIGHT:
        needed, source = BACKWARD, stage
    elif (stage + 1) % num_stages == 0:
        needed, source = FORWARD, stage
    else:
        needed, source = BACKWARD, stage + 1
    return needed, source, (needed * stages + source) * microbatches + microbatch


@helper
def _duration_class(kind: int, microbatch: int, microbatches: int) -> int:
    if kind == FORWARD:
        return FIRST if microbatch == 0 else MIDDLE
    return LAST if microbatch == microbatches - 1 else MIDDLE


@kernel
def compile_line(
    rank_offset: Ints,
    kind: Ints8,
    chunk: Ints,
    microbatch: Ints,
    stage_of: Ints,
    num_stages: int,
    microbatches: int,
    line: Ints32,
    slot: Ints,
) -> int:
    """Turn the orders of the ranks into one topological list.

    Ranks take turns with one operation each, so that neighbours in the line rarely wait for one
    another and the processor can overlap them.

    rank_offset : int64[pp + 1]. Where the operations of a rank begin in the three columns below.
    kind : int8[ops]. ``FORWARD``, ``BACKWARD`` or ``WEIGHT``.
    chunk, microbatch : int64[ops]. What the operation works on.
    stage_of : int64[pp, vpp]. Virtual stage, in model order, that a chunk of a rank holds.
    num_stages : int. Virtual stages of one copy of the model; every ``num_stages`` the next copy
        begins.
    microbatches : int. Microbatches that pass through each virtual stage.
    line : int32[ops, 4]. Output. Slots of the previous operation of the rank and of the dependency
        (0: none), index of the latency (0: none, ``1 + s`` from stage s to the next, ``1 + stages +
        s`` to the one before), index into the flattened durations.
    slot : int64[ops]. Output. Slot of each operation: its position in the line plus one.
    Returns ``OK``, or ``DEADLOCK`` where some operation waits for ever.
    """
    num_ranks, num_chunks = stage_of.shape
    stages = num_ranks * num_chunks
    num_ops = kind.shape[0]
    rank_of = np.empty(stages, np.int64)
    for rank in range(num_ranks):
        for c in range(num_chunks):
            rank_of[stage_of[rank, c]] = rank
    done = np.zeros(3 * stages * microbatches, np.int32)
    following = np.empty(num_ranks, np.int64)
    for rank in range(num_ranks):
        following[rank] = rank_offset[rank]
    previous = np.zeros(num_ranks, np.int32)

    count = 0
    while count < num_ops:
        before = count
        for rank in range(num_ranks):
            op = following[rank]
            if op == rank_offset[rank + 1]:
                continue
            k, c, m = int(kind[op]), chunk[op], microbatch[op]
            stage = stage_of[rank, c]
            needed, source, key = _dependency(k, stage, m, microbatches, stages, num_stages)
            dependency = 0
            latency = 0
            if key >= 0:
                dependency = int(done[key])
                if dependency == 0:
                    continue
                if rank_of[source] != rank:
                    latency = 1 + source + (stages if needed == BACKWARD else 0)
            line[count, PREVIOUS] = previous[rank]
            line[count, DEPENDENCY] = dependency
            line[count, LATENCY] = latency
            line[count, DURATION] = ((rank * num_chunks + c) * 3 + k) * 3 + _duration_class(
                k, m, microbatches
            )
            count += 1
            done[(k * stages + stage) * microbatches + m] = count
            slot[op] = count
            previous[rank] = count
            following[rank] = op + 1
        if count == before:
            return DEADLOCK
    return OK


@helper
def at(index: int) -> np.uint64:
    """Return an index that is known to be >= 0.

    A signed one is tested for counting from the end, which doubled the time of a replay.
    """
    return np.uint64(index)


@helper
def load_latencies(p2p_ps: Ints, config: int, latency_ps: Ints) -> bool:
    """Copy the latencies of one configuration to int64[1 + 2 * stages]; say whether they fit.

    Where there are no rows there is no latency.
    """
    stages = p2p_ps.shape[2]
    latency_ps[0] = 0
    if p2p_ps.shape[0] == 0:
        for stage in range(2 * stages):
            latency_ps[1 + stage] = 0
        return True
    for direction in range(2):
        for stage in range(stages):
            latency = p2p_ps[config, direction, stage]
            if latency < 0 or latency > MAX_DURATION_PS:
                return False
            latency_ps[1 + direction * stages + stage] = latency
    return True


@helper
def total_ps(
    duration_ps: Ints, config: int, used: Ints, uses: Ints, latency_ps: Ints, latency_uses: Ints
) -> float:
    """Sum all operations and latencies of one configuration; -1 where one is out of range.

    Durations that no operation has are not read.
    """
    total = 0.0
    fits = True
    for i in range(used.shape[0]):
        duration = duration_ps[at(config), at(used[i])]
        fits = fits and 0 <= duration <= MAX_DURATION_PS
        total += float(uses[i]) * float(duration)
    for i in range(latency_uses.shape[0]):
        total += float(latency_uses[i]) * float(latency_ps[i])
    return total if fits else -1.0


@helper
def write_busy(
    duration_ps: Ints,
    row: int,
    used: Ints,
    uses: Ints,
    per_rank: int,
    config: int,
    rank_busy_ps: Ints,
) -> None:
    """Sum the operations of each rank, which has ``per_rank`` durations, of one configuration."""
    i = 0
    for rank in range(rank_busy_ps.shape[1]):
        busy = np.int64(0)
        while i < used.shape[0] and used[i] < (rank + 1) * per_rank:
            busy += uses[i] * duration_ps[at(row), at(used[i])]
            i += 1
        rank_busy_ps[config, rank] = busy


@kernel
def replay_batch(line: Line, times: OperationTimes, end_ps: Ints, replays: Replays) -> int:
    """Run one order with the durations of each configuration.

    An operation starts when the one before it on its rank has ended and its dependency has
    ended and, from another rank, has arrived: F of a stage waits for F of the stage before, B
    for B of the stage behind (in the last stage for its own F), W for its own B. A transfer is
    pure latency, it occupies nobody.

    line : Line. From :func:`compile_line`.
    times : OperationTimes. Of n configurations.
    end_ps : int64[ops + 1]. Scratch; afterwards the end of each slot in the last configuration.
    replays : Replays. Output.
    Returns ``OK``, or ``OUT_OF_RANGE`` where a time is negative or too long; outputs then mean
        nothing.
    """
    columns, used, uses, latency_uses = line.line, line.used, line.uses, line.latency_uses
    first_slot, last_slot = line.first_slot, line.last_slot
    last_backward_slot = line.last_backward_slot
    duration_ps, p2p_ps, which = times
    rank_start_ps, rank_end_ps, rank_busy_ps, last_backward_end_ps = replays
    num_ranks, num_chunks = last_backward_slot.shape
    latency_ps = np.empty(1 + 2 * num_ranks * num_chunks, np.int64)
    end_ps[0] = 0
    for config in range(which.shape[0]):
        row = which[config]
        if not load_latencies(p2p_ps, row, latency_ps):
            return OUT_OF_RANGE
        if total_ps(duration_ps, row, used, uses, latency_ps, latency_uses) < 0.0:
            return OUT_OF_RANGE

        for i in range(columns.shape[0]):
            arrival = end_ps[at(columns[i, DEPENDENCY])] + latency_ps[at(columns[i, LATENCY])]
            started = max(end_ps[at(columns[i, PREVIOUS])], arrival)
            end = started + duration_ps[at(row), at(columns[i, DURATION])]
            if end > MAX_PS:
                return OUT_OF_RANGE
            end_ps[i + 1] = end

        write_busy(duration_ps, row, used, uses, num_chunks * 9, config, rank_busy_ps)
        for rank in range(num_ranks):
            first = first_slot[rank]
            rank_start_ps[config, rank] = (
                end_ps[first] - duration_ps[row, columns[first - 1, DURATION]]
            )
            rank_end_ps[config, rank] = end_ps[last_slot[rank]]
            for c in range(num_chunks):
                last = last_backward_slot[rank, c]
                last_backward_end_ps[config, rank, c] = end_ps[last]
    return OK


@helper
def _dominates(states: Ints, larger: int, smaller: int) -> bool:
    for i in range(states.shape[1]):  # noqa: SIM110  numba knows no all() of a generator
        if states[larger, i] < states[smaller, i]:
            return False
    return True


@helper
def _copy_state(source: Ints, row: int, target: Ints, target_row: int) -> None:
    # Scalar loops throughout: assignments of slices took 3 s to compile.
    for i in range(source.shape[1]):
        target[target_row, i] = source[row, i]


@helper
def _find_dominating(states: Ints, begin: int, end: int, latest: int) -> int:
    """Return a state in ``begin:end`` that dominates state 0, or -1.

    States repeat in cycles: the search begins behind the one that was met last.
    """
    for step in range(end - begin):
        index = begin + (latest - begin + 1 + step) % (end - begin)
        if _dominates(states, index, 0):
            return index
    return -1


@helper
def _drop_dominated(states: Ints, begin: int, end: int) -> int:
    """Close the ranks of the states in ``begin:end`` that state 0 does not dominate."""
    kept = begin
    for index in range(begin, end):
        if not _dominates(states, 0, index):
            _copy_state(states, index, states, kept)
            kept += 1
    return kept


@kernel(python_us=40.0)
def compile_peaks(
    rank_offset: Ints,
    kind: Ints8,
    chunk: Ints,
    num_chunks: int,
    splits_backward: bool,
    peak_offset: Ints,
) -> Ints:
    """Find the states of each rank that can be its peak of memory.

    A state counts the activations of each chunk that wait for B and those that wait for W only.
    Memory grows at F alone, so the candidates are the states after an F that no F follows; one
    that another dominates in every count can never be larger.

    rank_offset, kind, chunk. As in :func:`compile_line`.
    num_chunks : int. Chunks of a rank.
    splits_backward : bool. Whether W stands alone; otherwise B frees everything.
    peak_offset : int64[pp + 1]. Output. Where the states of a rank begin.
    Returns int64[states, 2 * vpp]: activations of each chunk that wait for B, then those that wait
        for W only.
    """
    width = 2 * num_chunks
    # Row 0 is the state at hand.
    found = np.zeros((16, width), np.int64)
    total = 1
    for rank in range(rank_offset.shape[0] - 1):
        begin = total
        peak_offset[rank] = begin - 1
        latest = begin
        for i in range(width):
            found[0, i] = 0
        for op in range(rank_offset[rank], rank_offset[rank + 1]):
            c = chunk[op]
            if kind[op] == BACKWARD:
                found[0, c] -= 1
                if splits_backward:
                    found[0, num_chunks + c] += 1
                continue
            if kind[op] == WEIGHT:
                found[0, num_chunks + c] -= 1
                continue
            found[0, c] += 1
            if op + 1 < rank_offset[rank + 1] and kind[op + 1] == FORWARD:
                continue

            dominating = _find_dominating(found, begin, total, latest)
            if dominating >= 0:
                latest = dominating
                continue
            kept = _drop_dominated(found, begin, total)
            if kept == found.shape[0]:
                grown = np.zeros((2 * kept, width), np.int64)
                for index in range(kept):
                    _copy_state(found, index, grown, index)
                found = grown
            _copy_state(found, 0, found, kept)
            latest = kept
            total = kept + 1
    peak_offset[rank_offset.shape[0] - 1] = total - 1
    states = np.empty((total - 1, width), np.int64)
    for index in range(1, total):
        _copy_state(found, index, states, index - 1)
    return states


@kernel
def peak_bytes(
    peak_offset: Ints,
    peak_state: Ints,
    activation_bytes: Floats,
    w_share: Floats,
    peak: Floats,
    in_flight: Ints,
) -> None:
    """Largest memory of activations that each rank holds at one time.

    peak_offset, peak_state : int64[pp + 1], int64[states, 2 * vpp]. From :func:`compile_peaks`.
    activation_bytes : float64[n, pp, vpp]. Bytes that one microbatch leaves in one chunk between
        its F and its B.
    w_share : float64[n]. Share of those bytes that stays until W where W stands alone.
    peak : float64[n, pp]. Output.
    in_flight : int64[n, pp, 2, vpp]. Output. Activations of each chunk at the peak: before B, and
        between B and W.
    """
    num_chunks = activation_bytes.shape[2]
    for config in range(activation_bytes.shape[0]):
        for rank in range(activation_bytes.shape[1]):
            best = 0.0
            winner = peak_offset[rank]
            for state in range(peak_offset[rank], peak_offset[rank + 1]):
                held = 0.0
                for c in range(num_chunks):
                    each = activation_bytes[config, rank, c]
                    held += each * peak_state[state, c]
                    held += each * w_share[config] * peak_state[state, num_chunks + c]
                if state == peak_offset[rank] or held > best:
                    best = held
                    winner = state
            peak[config, rank] = best
            for c in range(num_chunks):
                in_flight[config, rank, 0, c] = peak_state[winner, c]
                in_flight[config, rank, 1, c] = peak_state[winner, num_chunks + c]
