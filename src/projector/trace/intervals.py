"""Sets of intervals on one axis of time: unions, what they share, and what they cover.

Times are int64 picoseconds. A set of intervals is two columns, ``start`` and ``end``; intervals are
half open. A disjoint set is sorted, its intervals neither meet nor are empty: what `union` returns.
"""

from typing import NamedTuple

import numpy as np

from projector.arrays import Ints


class Intervals(NamedTuple):
    """A disjoint set of intervals."""

    start: Ints
    end: Ints

    @property
    def length_ps(self) -> int:
        """What they cover together."""
        return int((self.end - self.start).sum())


def union(start: Ints, end: Ints) -> Intervals:
    """Return the disjoint set that covers what any of some intervals covers.

    Parameters
    ----------
    start, end : int64[n]
        In any order. Empty intervals cover nothing.
    """
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    kept = end > start
    start, end = start[kept], end[kept]
    if not len(start):
        return Intervals(start, end)
    latest = np.maximum.accumulate(end)
    first = np.concatenate([[True], start[1:] > latest[:-1]])
    last = np.concatenate([first[1:], [True]])
    return Intervals(start[first], latest[last])


def unions(start: Ints, end: Ints, segment: Ints) -> tuple[Intervals, Ints]:
    """Return the disjoint set of each of several segments, such as iterations of devices.

    Parameters
    ----------
    start, end, segment : int64[n]
        In any order. Segments are numbered from 0.

    Returns
    -------
    Intervals
        By segment and start; disjoint within a segment.
    int64[intervals]
        The segment of each.
    """
    kept = end > start
    order = np.lexsort((start[kept], segment[kept]))
    start, end, segment = start[kept][order], end[kept][order], segment[kept][order]
    if not len(start):
        return Intervals(start, end), segment
    latest = _latest(end, segment)
    first = np.ones(len(start), bool)
    first[1:] = (segment[1:] != segment[:-1]) | (start[1:] > latest[:-1])
    last = np.concatenate([first[1:], [True]])
    return Intervals(start[first], latest[last]), segment[first]


def _latest(end: Ints, segment: Ints) -> Ints:
    """Return the latest end so far within the segment; segments ascend."""
    ordered = np.sort(end)
    # Ranks of ends, beyond those of every segment before, ascend as the maximum within one does.
    rank = np.searchsorted(ordered, end) + segment * len(end)
    return ordered[np.maximum.accumulate(rank) - segment * len(end)]


def cover(start: Ints, end: Ints, by: Intervals) -> Ints:
    """Return how much of each interval a disjoint set covers.

    Returns
    -------
    int64[n]
        Picoseconds, at most the interval's length.
    """
    return np.asarray(_before(by, end) - _before(by, start), np.int64)


def _before(by: Intervals, time: Ints) -> Ints:
    """Return what the set covers before each time."""
    if not len(by.start):
        return np.zeros(len(time), np.int64)
    total = np.concatenate([[0], np.cumsum(by.end - by.start)])
    place = np.searchsorted(by.start, time, side="right")
    inside = np.minimum(time - by.start[place - 1], (by.end - by.start)[place - 1])
    return np.where(place > 0, total[place - 1] + inside, 0)


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """Return the disjoint set of what both sets cover."""
    return _where(a, b, 2)


def difference(a: Intervals, b: Intervals) -> Intervals:
    """Return the disjoint set of what the first set covers and the second does not."""
    if not len(a.start):
        return a
    low = min(a.start[0], b.start[0] if len(b.start) else a.start[0])
    high = max(a.end[-1], b.end[-1] if len(b.end) else a.end[-1])
    outside = Intervals(np.concatenate([[low], b.end]), np.concatenate([b.start, [high]]))
    kept = outside.end > outside.start
    return _where(a, Intervals(outside.start[kept], outside.end[kept]), 2)


def _where(a: Intervals, b: Intervals, depth: int) -> Intervals:
    """Return where as many of the two sets run at once."""
    times = np.concatenate([a.start, b.start, a.end, b.end])
    change = np.repeat([1, -1], len(a.start) + len(b.start))
    order = np.lexsort((change, times))
    times, running = times[order], np.cumsum(change[order])
    inside = np.flatnonzero(running[:-1] == depth) if len(times) else np.zeros(0, np.int64)
    return union(times[inside], times[inside + 1])
