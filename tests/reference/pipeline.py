"""Plain-Python pipelines: an event simulation, and memory by walking through each rank."""

import heapq
import itertools


def tasks_of(order):
    """Operations of each rank of an order of arrays, as (kind, chunk, microbatch)."""
    names = ["FBW"[kind] for kind in order.kind]
    tasks = list(zip(names, order.chunk.tolist(), order.microbatch.tolist(), strict=True))
    return [tasks[begin:end] for begin, end in itertools.pairwise(order.rank_offset.tolist())]


def simulate(ranks, placement, duration, latency, microbatches, num_stages=None):
    """Run ordered operations through an event queue.

    ``num_stages`` is the number of virtual stages of one copy of the model; without, there is one
    copy. Every copy has its own microbatches, which meet nothing but the ranks of the others.

    ``ranks[r]`` lists (kind, chunk, microbatch) with kind "F", "B" or "W"; ``placement[r][c]`` is
    a virtual stage; ``duration(rank, chunk, kind, microbatch)`` and ``latency(source, target)``
    (virtual stages) are integers. Returns {(kind, stage, microbatch): (start, end)}.
    """
    home = {stage: rank for rank, row in enumerate(placement) for stage in row}
    length = num_stages or len(home)
    firsts = range(0, len(home), length)
    lasts = range(length - 1, len(home), length)
    arrived = {("F", first, m) for first in firsts for m in range(microbatches)}
    position = [0] * len(ranks)
    busy = [False] * len(ranks)
    spans = {}
    events = []

    def start_next(rank, now):
        if busy[rank] or position[rank] == len(ranks[rank]):
            return
        kind, chunk, microbatch = ranks[rank][position[rank]]
        task = (kind, placement[rank][chunk], microbatch)
        if task not in arrived:
            return
        busy[rank] = True
        position[rank] += 1
        end = now + duration(rank, chunk, kind, microbatch)
        spans[task] = (now, end)
        heapq.heappush(events, (end, "end", rank, task))

    def consequences(task):
        kind, stage, microbatch = task
        if kind == "F" and stage not in lasts:
            yield "F", stage + 1, microbatch
        elif kind == "F":
            yield "B", stage, microbatch
        elif kind == "B":
            yield "W", stage, microbatch
            if stage not in firsts:
                yield "B", stage - 1, microbatch

    for rank in range(len(ranks)):
        start_next(rank, 0)
    while events:
        now, what, rank, task = heapq.heappop(events)
        if what == "end":
            busy[rank] = False
            for message in consequences(task):
                target = home[message[1]]
                delay = 0 if target == rank else latency(task[1], message[1])
                heapq.heappush(events, (now + delay, "message", target, message))
        else:
            arrived.add(task)
        start_next(rank, now)
    if any(position[rank] < len(tasks) for rank, tasks in enumerate(ranks)):
        msg = "deadlock"
        raise RuntimeError(msg)
    return spans


def one_forward_one_backward(pp, microbatches):
    """Operations of each rank in 1F1B, by the rule that each rank follows on its own."""
    ranks = []
    for rank in range(pp):
        forwards, backwards, tasks = 0, 0, []
        while backwards < microbatches:
            if forwards < microbatches and forwards - backwards < pp - rank:
                tasks.append(("F", 0, forwards))
                forwards += 1
            else:
                tasks.append(("B", 0, backwards))
                backwards += 1
        ranks.append(tasks)
    return ranks


def one_forward_one_backward_v(pp, microbatches):
    """Tasks of each rank of 1F1B-V: blocks side by side, then each operation as early as it may be.

    The block of a microbatch is found by looking: F's one after the other along the V, then B's,
    each as soon as no slot that it takes, of six that repeat, is taken on its rank.
    """
    home = [*range(pp), *range(pp - 1, -1, -1)]
    taken = [set() for _ in range(pp)]
    block, now = {}, 0
    for kind, stages in (("F", range(2 * pp)), ("B", range(2 * pp - 1, -1, -1))):
        length = "FB".index(kind) + 1
        if kind == "B" and pp % 3 == 0:
            now += 3
        for stage in stages:
            while any((now + i) % 6 in taken[home[stage]] for i in range(length)):
                now += 1
            taken[home[stage]] |= {(now + i) % 6 for i in range(length)}
            block[kind, stage] = now
            now += length
    planned = sorted(
        (slot + 6 * m, home[stage], kind, stage, m)
        for (kind, stage), slot in block.items()
        for m in range(microbatches)
    )
    begun = {(kind, stage, m): slot for slot, _, kind, stage, m in planned}

    def held(rank, slot):
        """Chunks that a rank holds in a slot: begun, and not in the last slot of their B."""
        mine = [stage for stage in range(2 * pp) if home[stage] == rank]
        starts = sum(begun["F", s, m] <= slot for s in mine for m in range(microbatches))
        ends = sum(begun["B", s, m] + 1 <= slot for s in mine for m in range(microbatches))
        return starts - ends

    most = max(held(rank, slot) for slot, rank, *_ in planned)
    busy = [set() for _ in range(pp)]
    done = {}
    for slot, rank, kind, stage, m in planned:
        length = "FB".index(kind) + 1
        after = [done[kind, stage, m - 1]] if m else [0]
        if kind == "B":
            after.append(done["F", stage, m])
        source = stage + (1 if kind == "B" else -1)
        if source in range(2 * pp):
            after.append(done[kind, source, m])
        earliest = max(after)
        if kind == "F":
            full = [s for s in range(earliest, slot) if held(rank, s) >= most]
            earliest = max([earliest, *(s + 1 for s in full)])
        while any(earliest + i in busy[rank] for i in range(length)):
            earliest += 1
        busy[rank] |= {earliest + i for i in range(length)}
        begun[kind, stage, m] = earliest
        done[kind, stage, m] = earliest + length
    ranks = [[] for _ in range(pp)]
    for (kind, stage, m), _ in sorted(begun.items(), key=lambda item: item[1]):
        ranks[home[stage]].append((kind, int(stage >= pp), m))
    return ranks


def interleaved(pp, vpp, microbatches):
    """Operations of each rank as Megatron-LM's loops issue them, microbatch groups of ``pp``."""
    total = vpp * microbatches

    def unit(step, forward):
        group, inside = divmod(step, pp * vpp)
        chunk = inside // pp
        return chunk if forward else vpp - 1 - chunk, group * pp + inside % pp

    ranks = []
    for rank in range(pp):
        warmup = min((pp - rank - 1) * 2 + (vpp - 1) * pp, total)
        tasks = [("F", *unit(step, forward=True)) for step in range(warmup)]
        for step in range(total - warmup):
            tasks.append(("F", *unit(step + warmup, forward=True)))
            tasks.append(("B", *unit(step, forward=False)))
        tasks += [("B", *unit(step, forward=False)) for step in range(total - warmup, total)]
        ranks.append(tasks)
    return ranks


def peak_bytes(tasks, bytes_of_chunk, splits_backward, w_share):
    """Largest sum of held bytes on one rank, looked at after every operation."""
    forward_only, awaiting_w = [0] * len(bytes_of_chunk), [0] * len(bytes_of_chunk)
    peak = 0
    for kind, chunk, _ in tasks:
        if kind == "F":
            forward_only[chunk] += 1
        elif kind == "B":
            forward_only[chunk] -= 1
            awaiting_w[chunk] += splits_backward
        else:
            awaiting_w[chunk] -= 1
        held = sum(
            size * (full + w_share * part)
            for size, full, part in zip(bytes_of_chunk, forward_only, awaiting_w, strict=True)
        )
        peak = max(peak, held)
    return peak


class Walk:
    """Straight programs run on names of operations instead of times.

    What an operation of a program is follows from what its rank did before it, which the caller
    compares with the order. ``rank_offset`` is that of the order, ``per_rank`` the number of
    durations of one rank. Place 0 holds None, the start of the step.
    """

    def __init__(self, rank_offset, per_rank):
        self.rank_offset = rank_offset
        self.per_rank = per_rank
        self.held = {0: None}
        self.done = []

    def run(self, program, base=0):
        """Run rows of (previous, dependency, latency, duration, output)."""
        for previous, dependency, latency, duration, output in program.tolist():
            before = self.held[base + previous]
            if before is None:
                operation = int(self.rank_offset[duration // self.per_rank])
            else:
                operation = before + 1
            waits_for = self.held[base + dependency]
            self.held[base + output] = operation
            self.done.append((operation, before, waits_for, latency, duration))

    def move(self, source, target, count):
        """Keep places under other numbers, as if they had been there."""
        moved = [self.held[source + i] for i in range(count)]
        self.held.update((target + i, operation) for i, operation in enumerate(moved))
