"""Sets of intervals on one axis of time: unions, what they share, and what they cover.

Times are int64 picoseconds. A set of intervals is two columns, ``start`` and ``end``; intervals are
half open. A disjoint set is sorted, its intervals neither meet nor are empty: what `union` returns.
The work is done by `projector.kernels.intervals`, in one pass over sorted columns.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from projector.arrays import Ints
from projector.kernels import intervals as kernels


class Intervals(NamedTuple):
    """A disjoint set of intervals."""

    start: Ints
    end: Ints

    @property
    def length_ps(self) -> int:
        """What they cover together."""
        return int((self.end - self.start).sum())


def union(start: Ints, end: Ints) -> Intervals:
    """Return the disjoint set that covers what any of some intervals, in any order, covers."""
    return unions(start, end, np.zeros(len(start), np.int64))[0]


def unions(start: Ints, end: Ints, segment: Ints) -> tuple[Intervals, Ints]:
    """Return the disjoint set of each of several segments, and the segment of each interval.

    Segments, such as iterations, are numbered from 0. Intervals ascend and are disjoint within
    each; segments may take turns.
    """
    out = np.empty((len(start), 3), np.int64)
    scratch = np.empty(int(segment.max(initial=-1)) + 1, np.int64)
    count = kernels.union(_whole(start), _whole(end), _whole(segment), out, scratch)
    if count == kernels.UNSORTED:
        order = np.argsort(start, kind="stable")
        count = kernels.union(start[order], end[order], segment[order], out, scratch)
    columns = np.ascontiguousarray(out[:count].T)
    return Intervals(columns[0], columns[1]), columns[2]


def cover(start: Ints, end: Ints, by: Intervals) -> Ints:
    """Return how much of each interval a disjoint set covers."""
    out = np.empty(len(start), np.int64)
    scratch = np.empty(len(by.start), np.int64)
    kernels.cover(_whole(start), _whole(end), _whole(by.start), _whole(by.end), scratch, out)
    return out


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """Return the disjoint set of what both sets cover."""
    return _of_two(kernels.intersection, a, b)


def difference(a: Intervals, b: Intervals) -> Intervals:
    """Return the disjoint set of what the first set covers and the second does not."""
    return _of_two(kernels.difference, a, b)


def _of_two(kernel: Callable[..., int], a: Intervals, b: Intervals) -> Intervals:
    out = np.empty((len(a.start) + len(b.start), 2), np.int64)
    count = kernel(_whole(a.start), _whole(a.end), _whole(b.start), _whole(b.end), out)
    columns = np.ascontiguousarray(out[:count].T)
    return Intervals(columns[0], columns[1])


def _whole(column: Ints) -> Ints:
    """Return a column in one piece, so that one compiled form of a kernel does."""
    return np.ascontiguousarray(column, np.int64)
