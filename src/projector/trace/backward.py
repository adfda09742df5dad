"""Which operator of the forward each operator of the backward belongs to."""

from collections import Counter

import numpy as np

from projector.arrays import Flags, Ints
from projector.trace.events import NONE, OPERATOR, Events, RankTrace
from projector.trace.nesting import Stack

MOST_ARROWS = 10_000
"""Arrows that are looked at to learn which thread is which; a few hundred would do."""


def is_node(events: Events) -> Flags:
    """Return which operators are of the backward: they know the thread of their forward."""
    node: Flags = (events.kind == OPERATOR) & (events.sequence >= 0) & (events.forward_thread > 0)
    return node


def forward_operators(trace: RankTrace, stack: Stack) -> Ints:
    """Return the operator of the forward that each event of the backward belongs to.

    Both have one sequence number, which each thread of a forward counts by itself. Of operators
    that share a number the last one made the node. How the framework numbers its threads is learned
    from the profiler's arrows, else from which thread has the numbers.
    """
    events = trace.events
    node = is_node(events)
    rows = np.flatnonzero(node)
    candidates = np.flatnonzero(
        (events.kind == OPERATOR) & (events.sequence >= 0) & (events.forward_thread <= 0)
    )
    found = np.full(len(events), NONE, np.int64)
    if len(rows) and len(candidates):
        found[rows] = _linked(trace, rows, candidates)
    nearest = stack.nearest(node)
    return np.where(nearest >= 0, found[np.maximum(nearest, 0)], NONE)


def _linked(trace: RankTrace, rows: Ints, candidates: Ints) -> Ints:
    events = trace.events
    sequence, start = events.sequence, events.start_ps
    freely = latest_before(
        (sequence[rows],), start[rows], (sequence[candidates],), start[candidates]
    )
    guess = np.where(freely >= 0, candidates[np.maximum(freely, 0)], NONE)
    votes = Counter(
        zip(
            events.forward_thread[rows][guess >= 0].tolist(),
            events.thread[guess[guess >= 0]].tolist(),
            strict=True,
        )
    )
    votes.update({pair: count * len(rows) for pair, count in _arrows(trace, rows).items()})
    thread_of: dict[int, int] = {}
    for (number, thread), _ in sorted(votes.items(), key=lambda item: -item[1]):
        thread_of.setdefault(number, thread)
    numbers = np.unique(events.forward_thread[rows])
    threads = np.array([thread_of.get(number, NONE) for number in numbers.tolist()], np.int64)
    thread = threads[np.searchsorted(numbers, events.forward_thread[rows])]
    exact = latest_before(
        (sequence[rows], thread), start[rows],
        (sequence[candidates], events.thread[candidates]), start[candidates],
    )  # fmt: skip
    return np.where(exact >= 0, candidates[np.maximum(exact, 0)], NONE)


def _arrows(trace: RankTrace, rows: Ints) -> Counter[tuple[int, int]]:
    """Count which thread the arrows of each numbered thread of a forward come from."""
    events = trace.events
    step = max(1, len(trace.links) // MOST_ARROWS)
    links = trace.links[::step]
    wanted = {(link.backward_thread, link.backward_ps): link.forward_thread for link in links}
    ends = np.array([link.backward_ps for link in links], np.int64)
    near = rows[np.isin(events.start_ps[rows], ends)]
    votes: Counter[tuple[int, int]] = Counter()
    for row in near.tolist():
        origin = wanted.get((int(events.thread[row]), int(events.start_ps[row])))
        if origin is not None:
            votes[int(events.forward_thread[row]), origin] += 1
    return votes


def latest_before(
    keys: tuple[Ints, ...], time: Ints, among_keys: tuple[Ints, ...], among_time: Ints
) -> Ints:
    """Return, of some rows with the same keys, the last that starts before each time.

    Parameters
    ----------
    keys : tuple of int64[wanted]
        What both must share.
    time : int64[wanted]
        Before which the row starts.
    among_keys : tuple of int64[rows]
        The same of the rows.
    among_time : int64[rows]
        When they start.

    Returns
    -------
    int64[wanted]
        Positions among the rows, `NONE` where there is none.
    """
    count = len(among_time)
    both = [np.concatenate(pair) for pair in zip(among_keys, keys, strict=True)]
    when = np.concatenate([among_time, time])
    asks = np.concatenate([np.zeros(count, np.int64), np.ones(len(time), np.int64)])
    order = np.lexsort((asks, when, *both))
    last = np.maximum.accumulate(np.where(asks[order] == 0, np.arange(len(order)), -1))
    answer = np.full(len(order), NONE, np.int64)
    answer[order] = np.where(last >= 0, order[np.maximum(last, 0)], NONE)
    found = answer[count:]
    same = found >= 0
    for column in both:
        same &= column[np.maximum(found, 0)] == column[count:]
    return np.where(same, found, NONE)
