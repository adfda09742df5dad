"""Best zero-bubble schedules of small pipelines by search in plain Python.

Written from arXiv:2401.10241, section 3, and independent of the package: stage s is rank s,
``times[s]`` are F, B and W, a latency applies between neighbours, and every F adds 1 unit of
``size[s]``, of which B frees ``1 - w_share`` and W the rest.
"""

import itertools


def interleavings(microbatches, size, w_share, limit):
    """All orders of one rank as text of F, B and W, each kind by microbatch, within the limit."""

    def extend(text, f, b, w):
        if w == microbatches:
            yield text
        if f < microbatches and size * (f + 1 - b) + size * w_share * (b - w) <= limit:
            yield from extend(text + "F", f + 1, b, w)
        if b < f:
            yield from extend(text + "B", f, b + 1, w)
        if w < b:
            yield from extend(text + "W", f, b, w + 1)

    return list(extend("", 0, 0, 0))


def objectives(texts, times, to_next, to_previous):
    """Makespan and longest span of a rank, everything as early as possible; None if stuck."""
    stages = len(texts)
    at = [0] * stages
    free = [0] * stages
    begin = [None] * stages
    ends = {}
    moved = True
    while moved:
        moved = False
        for s, text in enumerate(texts):
            while at[s] < len(text):
                kind = text[at[s]]
                m = text[: at[s]].count(kind)
                if kind == "F":
                    needs = ("F", s - 1, m) if s else None
                    delay = to_next[s - 1] if s else 0
                elif kind == "W":
                    needs, delay = ("B", s, m), 0
                elif s == stages - 1:
                    needs, delay = ("F", s, m), 0
                else:
                    needs, delay = ("B", s + 1, m), to_previous[s + 1]
                if needs is not None and needs not in ends:
                    break
                start = max(free[s], 0 if needs is None else ends[needs] + delay)
                if begin[s] is None:
                    begin[s] = start
                free[s] = ends[kind, s, m] = start + times[s]["FBW".index(kind)]
                at[s] += 1
                moved = True
    if any(at[s] < len(text) for s, text in enumerate(texts)):
        return None
    return max(free) - min(begin), max(end - start for end, start in zip(free, begin, strict=True))


def exhaustive(microbatches, times, to_next, to_previous, size, w_share, limit):
    """Least makespan and least longest span over all orders of all ranks."""
    choices = [interleavings(microbatches, size[s], w_share, limit[s]) for s in range(len(times))]
    found = [
        values
        for texts in itertools.product(*choices)
        if (values := objectives(texts, times, to_next, to_previous)) is not None
    ]
    return min(value for value, _ in found), min(value for _, value in found)


def branch_and_bound(
    microbatches, times, to_next, to_previous, size, w_share, limit, objective="makespan"
):
    """Least objective over active schedules (Giffler and Thompson, 1960).

    Take the operation that could end first. Its rank runs next one of those that it could start
    before that end: whatever starts later could let that operation go first, which delays nothing.
    Going first, an F that has room takes room from no other F, since F's keep their order; B and W
    only free. A branch ends where a rank cannot do what is left to it in less than the best.
    """
    stages = len(times)
    since = [0] * stages
    if objective == "period":
        for s in range(1, stages):
            since[s] = since[s - 1] + times[s - 1][0] + to_next[s - 1]
    best = float("inf")
    done = [[0, 0, 0] for _ in range(stages)]
    free = [0] * stages
    ends = {}

    def ready(s, kind):
        f, b, w = done[s]
        m = done[s][kind]
        if m == microbatches:
            return None
        if kind == 0:
            if size[s] * (f + 1 - b) + size[s] * w_share * (b - w) > limit[s]:
                return None
            arrival = ends.get((0, s - 1, m)) if s else 0
            delay = to_next[s - 1] if s else 0
        elif kind == 2 or s == stages - 1:
            arrival, delay = ends.get((kind - 1, s, m)), 0
        else:
            arrival = ends.get((1, s + 1, m)) if f > m else None
            delay = to_previous[s + 1]
        return None if arrival is None else max(free[s], arrival + delay)

    def search():
        nonlocal best
        bound = max(
            free[s]
            + sum(t * (microbatches - n) for t, n in zip(times[s], done[s], strict=True))
            - since[s]
            for s in range(stages)
        )
        if bound >= best:
            return
        able = [
            (start + times[s][kind], start, s, kind)
            for s in range(stages)
            for kind in range(3)
            if (start := ready(s, kind)) is not None
        ]
        if not able:
            best = bound
            return
        first_end, _, rank, _ = min(able)
        for end, start, s, kind in sorted(able, key=lambda item: item[1]):
            # An operation of no time starts at its own end, and is the only choice then.
            if s != rank or (start >= first_end and end > first_end):
                continue
            m = done[s][kind]
            before = free[s]
            done[s][kind] += 1
            free[s] = ends[kind, s, m] = end
            search()
            del ends[kind, s, m]
            free[s] = before
            done[s][kind] -= 1

    search()
    return best
