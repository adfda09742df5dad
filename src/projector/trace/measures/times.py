"""What every activity took, waited and shared, worked out once on the whole table."""

from dataclasses import dataclass

import numpy as np

from projector.arrays import Flags, Ints
from projector.trace.activity import COMMUNICATION, COMPUTE, Activities
from projector.trace.intervals import cover, union
from projector.trace.measures.devices import device_slices
from projector.trace.measures.launch import bubbles, split_bubbles


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimes:
    """Columns beside those of the activities; all int64 picoseconds but the last two."""

    duration_ps: Ints
    bubble_ps: Ints
    """Before it nothing computed for so long; 0 where that is not known."""
    preparation_ps: Ints
    """Of the bubble; 0 where the launch is not known."""
    call_ps: Ints
    inner_ps: Ints
    """The bubble, where it lies within an operation."""
    under_communication_ps: Ints
    """What of it communication covers; 0 for communication itself."""
    under_compute_ps: Ints
    """What of it kernels that compute cover; 0 for these."""
    first: Flags
    """Whether an operation begins with it."""
    launch_known: Flags
    """Whether its bubble is split into preparation and call."""


def kernel_times(activities: Activities) -> KernelTimes:
    """Work out what every activity took, waited and shared."""
    bubble = bubbles(activities)
    preparation, call = split_bubbles(activities, bubble)
    first = operation_starts(activities)
    bubble = np.maximum(bubble, 0)
    return KernelTimes(
        duration_ps=activities.end_ps - activities.start_ps,
        bubble_ps=bubble,
        preparation_ps=np.maximum(preparation, 0),
        call_ps=np.maximum(call, 0),
        inner_ps=np.where(first, 0, bubble),
        under_communication_ps=covered(activities, COMMUNICATION),
        under_compute_ps=covered(activities, COMPUTE),
        first=first,
        launch_known=preparation >= 0,
    )


def covered(activities: Activities, by: int) -> Ints:
    """Return how much of each activity those of a class cover on its device, on any stream.

    Returns
    -------
    int64[activities]
        Picoseconds; 0 for activities of the class itself.
    """
    result = np.zeros(len(activities), np.int64)
    for rows in device_slices(activities):
        start, end = activities.start_ps[rows], activities.end_ps[rows]
        covering = activities.klass[rows] == by
        covers = union(start[covering], end[covering])
        result[rows] = np.where(covering, 0, cover(start, end, covers))
    return result


_SAME = ("rank", "device", "iteration", "phase", "layer", "operation", "instance", "recompute")


def operation_starts(activities: Activities) -> Flags:
    """Return where operations begin, among the kernels that compute.

    An operation is a run of such kernels, in the order of their starts, that agree in rank, device,
    iteration, phase, layer, operation, its instance and recomputation. Communication and copies do
    not end it.

    Returns
    -------
    bool[activities]
        False for what does not compute.
    """
    first = np.zeros(len(activities), bool)
    computing = np.flatnonzero(activities.klass == COMPUTE)
    if len(computing):
        first[computing[0]] = True
    for name in _SAME:
        column = getattr(activities, name)[computing]
        first[computing[1:]] |= column[1:] != column[:-1]
    return first
