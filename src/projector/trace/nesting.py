"""Which event of a thread stands within which: the call stack, found again from times alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from projector.arrays import Flags, Ints
from projector.trace.events import (
    ANNOTATION,
    LAUNCH,
    MODULE,
    NONE,
    OPERATOR,
    Events,
)

_OUTSIDE_FIRST = {ANNOTATION: 0, MODULE: 1, OPERATOR: 2, LAUNCH: 3}
"""Of kinds with one and the same span: a range holds a module, that an operator, that a call."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Events of the host as trees. All columns have one row an event of the trace."""

    parent: Ints
    """Event that stands directly around an event; `NONE` for the outermost ones."""
    levels: tuple[Ints, ...]
    """Events of the host by depth, the outermost ones first, each level in order of start."""
    thread: Ints
    """A small number for each pair of process and thread."""

    def nearest(self, marked: Flags, within: Flags | None = None) -> Ints:
        """Return the innermost marked event around each event, itself included.

        Parameters
        ----------
        marked : bool[events]
            Events to look for.
        within : bool[events], optional
            Events at which the search begins anew: what stands around them does not count.
        """
        found = np.full(len(self.parent), NONE, np.int64)
        for rows in self.levels:
            inherited = self._inherited(found, rows, within)
            found[rows] = np.where(marked[rows], rows, inherited)
        return found

    def outermost(self, marked: Flags, within: Flags | None = None) -> Ints:
        """Return the outermost marked event around each event, itself included.

        Parameters
        ----------
        marked : bool[events]
            Events to look for.
        within : bool[events], optional
            Events at which the search begins anew: what stands around them does not count.
        """
        found = np.full(len(self.parent), NONE, np.int64)
        for rows in self.levels:
            inherited = self._inherited(found, rows, within)
            own = np.where(marked[rows], rows, NONE)
            if within is not None:
                own[within[rows]] = NONE
            found[rows] = np.where(inherited >= 0, inherited, own)
        return found

    def _inherited(self, found: Ints, rows: Ints, within: Flags | None) -> Ints:
        """Return what was found around some events, nothing where the search begins anew."""
        above = self.parent[rows]
        inherited = np.where(above >= 0, found[above], NONE)
        if within is not None:
            inherited[within[rows]] = NONE
        return inherited

    def holders(self, marked: Flags) -> Flags:
        """Return which events hold a marked one, itself not included."""
        found = np.zeros(len(self.parent), np.bool_)
        for rows in reversed(self.levels):
            inner = rows[marked[rows] | found[rows]]
            above = self.parent[inner]
            found[above[above >= 0]] = True
        return found


def stack_events(events: Events, kinds: Sequence[int] = tuple(_OUTSIDE_FIRST)) -> Stack:
    """Find the event around each event of the host.

    An event stands within another of its thread if it begins and ends within it. Events that
    overlap without that stand side by side. Each pass takes the outermost events of what is left,
    so that the number of passes is the depth of the stack and each is a few sweeps of numpy.
    """
    parent = np.full(len(events), NONE, np.int64)
    rows = np.flatnonzero(np.isin(events.kind, kinds))
    start, end = events.start_ps[rows], events.start_ps[rows] + events.duration_ps[rows]
    order_of_kind = np.array([_OUTSIDE_FIRST.get(kind, 9) for kind in range(16)], np.int64)
    threads = thread_of(events)
    thread = threads[rows]
    order = np.lexsort((order_of_kind[events.kind[rows]], -end, start, thread))
    rows, thread, end = rows[order], thread[order], end[order]
    # Each thread is lifted above the one before it, so that one running maximum serves all.
    if len(rows):
        span = int(end.max() - start.min()) + 1
        if span * (int(thread[-1]) + 1) < 2**62:
            end = end + thread * span
        else:
            end = np.unique(end, return_inverse=True)[1].astype(np.int64) + thread * len(rows)
    levels: list[Ints] = []
    while len(rows):
        highest = np.maximum.accumulate(end)
        outer = np.empty(len(rows), np.bool_)
        outer[0] = True
        outer[1:] = end[1:] > highest[:-1]
        levels.append(rows[outer])
        holder = rows[np.maximum.accumulate(np.where(outer, np.arange(len(rows)), 0))]
        rest = ~outer
        parent[rows[rest]] = holder[rest]
        rows, end = rows[rest], end[rest]
    return Stack(parent, tuple(levels), threads)


def thread_of(events: Events) -> Ints:
    """Return a small number for each pair of process and thread."""
    count = len(events)
    new = np.ones(count, np.bool_)
    new[1:] = (np.diff(events.process) != 0) | (np.diff(events.thread) != 0)
    # Events of one thread stand together in a file, so there are far fewer runs than events.
    first = np.flatnonzero(new)
    _, number = distinct_rows(events.process[first], events.thread[first])
    return np.repeat(number, np.diff(np.append(first, count)))


def distinct_rows(*columns: Ints) -> tuple[Ints, Ints]:
    """Return where each distinct row of some columns stands first, and which one each row is.

    Sorting rows as a whole is slow, so each column becomes small numbers that are joined to those
    of the columns before.
    """
    first, number = np.zeros(0, np.int64), np.zeros(len(columns[0]), np.int64)
    for column in columns:
        _, own = np.unique(column, return_inverse=True)
        joined = number * (int(own.max(initial=0)) + 1) + own
        _, first, number = np.unique(joined, return_index=True, return_inverse=True)
    return first, number
