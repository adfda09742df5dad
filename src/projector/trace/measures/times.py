"""What every activity took, waited and shared, worked out once on the whole table.

Launch overhead is the bubbles before kernels that compute: equations 1 to 3 of Chopper (Kurzynski,
Aga, Wu). With ``s`` the start of a kernel, ``l`` the start of the call that launched it and ``e``
the end of the kernel before it::

    preparation = max(l - e, 0)             the host was late
    call = min(s - l, s - e)                the launch was under way, or the device not ready
    launch = preparation + call

Only kernels that compute count, on all streams of a device together, in the order of their starts.
Communication and copies in between count as bubbles. As in the study, a bubble thus also holds time
that a kernel waited for communication. Where kernels run at once, ``e`` is the latest end of all
that started before, so that no time is counted twice; a kernel that starts before ``e`` has no
bubble. A launch that is stamped behind its kernel's start, as clocks that differ can do, counts as
at the start. So neither part is ever negative, and they add up to ``max(s - e, 0)``.
"""

from dataclasses import dataclass

import numpy as np

from projector.arrays import Flags, Ints
from projector.trace.activity import COMMUNICATION, COMPUTE, Activities
from projector.trace.intervals import cover, union
from projector.trace.measures.statistics import device_slices

UNKNOWN = -1


def bubbles(activities: Activities) -> Ints:
    """Return idle time before each computing kernel; `UNKNOWN` for the first and for others."""
    bubble = np.full(len(activities), UNKNOWN, np.int64)
    for rows in device_slices(activities):
        computing = rows.start + np.flatnonzero(activities.klass[rows] == COMPUTE)
        start = activities.start_ps[computing]
        ended = np.maximum.accumulate(activities.end_ps[computing])
        bubble[computing[1:]] = np.maximum(start[1:] - ended[:-1], 0)
    return bubble


def split_bubbles(activities: Activities, bubble_ps: Ints) -> tuple[Ints, Ints]:
    """Return preparation and call of each kernel's bubble; `UNKNOWN` where either is not known."""
    known = (bubble_ps >= 0) & (activities.launch_ps != UNKNOWN)
    waited = np.maximum(activities.start_ps - activities.launch_ps, 0)
    call = np.minimum(waited, bubble_ps)
    return np.where(known, bubble_ps - call, UNKNOWN), np.where(known, call, UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimes:
    """Columns beside those of the activities; all int64 picoseconds but the last two."""

    duration_ps: Ints
    bubble_ps: Ints
    """Before it nothing computed for so long; 0 where that is not known."""
    preparation_ps: Ints
    """What of the bubble the host was late by; 0 where the launch is not known."""
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
    """Return how much of each activity a class covers on its device; 0 for the class itself."""
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
    """
    first = np.zeros(len(activities), bool)
    computing = np.flatnonzero(activities.klass == COMPUTE)
    if len(computing):
        first[computing[0]] = True
    for name in _SAME:
        column = getattr(activities, name)[computing]
        first[computing[1:]] |= column[1:] != column[:-1]
    return first
