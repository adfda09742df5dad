"""Launch overhead: the bubbles before kernels that compute, and what the host did in them.

Equations 1 to 3 of Chopper (Kurzynski, Aga, Wu). With ``s`` the start of a kernel, ``l`` the start
of the call that launched it and ``e`` the end of the kernel before it::

    preparation = max(l - e, 0)          the host was late
    call        = min(s - l, s - e)      the launch was under way, or the device not ready
    launch      = preparation + call

Only kernels that compute count, on all streams of a device together, in the order of their starts.
Communication and copies in between count as bubbles. As in the study, a bubble thus also holds time
that a kernel waited for communication.

Where kernels run at once, ``e`` is the latest end of all that started before, so that no time is
counted twice; a kernel that starts before ``e`` has no bubble. A launch that is stamped behind its
kernel's start, as clocks that differ can do, counts as at the start. So neither part is ever
negative, and they add up to ``max(s - e, 0)``.
"""

import numpy as np

from projector.arrays import Ints
from projector.trace.activity import COMPUTE, Activities
from projector.trace.measures.devices import device_slices

UNKNOWN = -1


def bubbles(activities: Activities) -> Ints:
    """Return how long nothing had computed on its device when each kernel began to.

    Returns
    -------
    int64[activities]
        Picoseconds; `UNKNOWN` for the first kernel of a device and for what does not compute.
    """
    bubble = np.full(len(activities), UNKNOWN, np.int64)
    for rows in device_slices(activities):
        computing = rows.start + np.flatnonzero(activities.klass[rows] == COMPUTE)
        start = activities.start_ps[computing]
        ended = np.maximum.accumulate(activities.end_ps[computing])
        bubble[computing[1:]] = np.maximum(start[1:] - ended[:-1], 0)
    return bubble


def launch_overheads(activities: Activities) -> tuple[Ints, Ints]:
    """Return the preparation and the call of each kernel that computes.

    Returns
    -------
    preparation_ps, call_ps : int64[activities]
        Both `UNKNOWN` where the launch is not in the trace, for the first kernel of a device and
        for what does not compute.
    """
    return split_bubbles(activities, bubbles(activities))


def split_bubbles(activities: Activities, bubble_ps: Ints) -> tuple[Ints, Ints]:
    """Return what `launch_overheads` does, of bubbles that are known."""
    known = (bubble_ps >= 0) & (activities.launch_ps != UNKNOWN)
    waited = np.maximum(activities.start_ps - activities.launch_ps, 0)
    call = np.minimum(waited, bubble_ps)
    return np.where(known, bubble_ps - call, UNKNOWN), np.where(known, call, UNKNOWN)
