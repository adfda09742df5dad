"""Rows of one device of one rank at a time, which stand together in the table."""

from collections.abc import Iterator

import numpy as np

from projector.arrays import Flags, Ints
from projector.trace.activity import Activities


def device_slices(activities: Activities) -> Iterator[slice]:
    """Yield the rows of each device of each rank, in the order of the table."""
    borders = device_borders(activities)
    for begin, end in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        yield slice(begin, end)


def device_borders(activities: Activities) -> Ints:
    """Return where the rows of each device begin, and after them the number of rows."""
    rank, device = activities.rank, activities.device
    if not len(rank):
        return np.zeros(1, np.int64)
    changes = (rank[1:] != rank[:-1]) | (device[1:] != device[:-1])
    return np.concatenate([[0], np.flatnonzero(changes) + 1, [len(rank)]])


def in_iterations(activities: Activities) -> Flags:
    """Return which activities lie in iterations; all, where there are none."""
    inside = activities.iteration >= 0
    return inside if inside.any() else ~inside
