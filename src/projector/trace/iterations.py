"""Which iteration each activity is of: as annotated, else as optimizer steps tell."""

from collections.abc import Sequence

import numpy as np

from projector.arrays import Flags, Ints
from projector.trace import names as tables
from projector.trace.events import ANNOTATION, NONE, Events

UNKNOWN = -2
"""Stands where a value is still to be found, apart from -1, which says that there is none."""


def annotated_iterations(events: Events, names: Sequence[str]) -> tuple[Ints, Ints, Ints]:
    """Return start, end and number of the ranges that count iterations, in order of start.

    Of several ways to count, the first of the table that stands in the trace is taken.
    """
    rows = np.flatnonzero(events.kind == ANNOTATION)
    used = np.unique(events.name[rows])
    texts = [names[row] for row in used]
    for pattern in tables.load_trace_names().iterations:
        found = tables.numbers(texts, [pattern])
        if not (found >= 0).any():
            continue
        number = np.full(len(names), NONE, np.int64)
        number[used] = found
        rows = rows[number[events.name[rows]] >= 0]
        rows = rows[np.argsort(events.start_ps[rows], kind="stable")]
        start = events.start_ps[rows]
        return start, start + events.duration_ps[rows], number[events.name[rows]]
    none = np.zeros(0, np.int64)
    return none, none, none


def within(times: Ints, start: Ints, end: Ints, number: Ints) -> Ints:
    """Return the number of the range around each time, -1 outside ranges.

    Ranges are in order of start and do not overlap; a time at an end is outside.
    """
    found = np.full(len(times), NONE, np.int64)
    if len(start) == 0:
        return found
    place = np.searchsorted(start, times, "right") - 1
    inside = (place >= 0) & (times < end[np.maximum(place, 0)])
    found[inside] = number[place[inside]]
    return found


def steps_as_iterations(optimizer_ends: Ints, forwards: Ints) -> tuple[Ints, Ints, Ints]:
    """Return iterations that end with a step of the optimizer: start, end, number from 0.

    Parameters
    ----------
    optimizer_ends : int64[steps]
        When steps end. Several optimizers may step one after the other.
    forwards : int64[calls]
        When calls of the forward start, in order: a new iteration needs one.
    """
    ends = np.sort(optimizer_ends)
    last = np.ones(len(ends), np.bool_)
    if len(forwards):
        last[:-1] = np.diff(np.searchsorted(forwards, ends)) > 0
    ends = ends[last]
    low = np.iinfo(np.int64).min // 2
    starts = np.concatenate([[low], ends[:-1]]).astype(np.int64)
    return starts, ends.astype(np.int64), np.arange(len(ends), dtype=np.int64)


def fill_from_neighbours(values: Ints, known: Flags, stream: Ints) -> Ints:
    """Give unknown values those of the neighbours on the stream, where both agree.

    Parameters
    ----------
    values : int64[activities]
        In order of stream and start, since a stream runs its work in the order of launches.
    known : bool[activities]
        Which values are known.
    stream : int64[activities]
        A number for each stream.

    Returns
    -------
    int64[activities]
        Values; unchanged where the neighbours differ, or one of them is not there.
    """
    count = len(values)
    if count == 0:
        return values
    index = np.arange(count)
    before = np.maximum.accumulate(np.where(known, index, -1))
    after = np.minimum.accumulate(np.where(known, index, count)[::-1])[::-1]
    usable = ~known & (before >= 0) & (after < count)
    left, right = values[np.maximum(before, 0)], values[np.minimum(after, count - 1)]
    same = (stream[np.maximum(before, 0)] == stream) & (
        stream[np.minimum(after, count - 1)] == stream
    )
    return np.where(usable & same & (left == right), left, values)
