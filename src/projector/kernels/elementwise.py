"""Time of memory-bound operators: the longest of traffic, vector work and exponentials.

Shape suffixes
    G   operators in the batch
    D   devices
Units: time s, traffic bytes, rates bytes/s and FLOP/s; float64.
"""

import math

import numpy as np

from projector.arrays import Floats, Ints, Records
from projector.kernels._jit import kernel
from projector.kernels.columns import as_type

OK, INVALID = 0, 1


@kernel
def elementwise_times(
    bytes_G: Floats,
    flop_G: Floats,
    exponentials_G: Floats,
    device_G: Ints,
    devices_D: Records,
    time_s_G: Floats,
) -> int:
    """Time of each operator on the whole device; what surrounds a kernel is the caller's.

    bytes_G, flop_G, exponentials_G : float64[G]. Memory traffic, FP32 vector FLOP and exponentials.
    device_G : int64[G]. Row of ``devices_D``.
    devices_D : DEVICE[D]
    time_s_G : float64[G]. Output, seconds.
    Returns ``OK``, or ``INVALID`` where a row has no finite, non-negative time.
    """
    status = OK
    for g in range(bytes_G.shape[0]):
        d = device_G[g]
        if not 0 <= d < devices_D.shape[0]:
            time_s_G[g] = math.nan
            status = INVALID
            continue
        traffic_s = bytes_G[g] / devices_D[d]["elementwise_bytes_per_s"]
        vector_s = flop_G[g] / devices_D[d]["vector_flop_per_s"]
        exponential_s = exponentials_G[g] / devices_D[d]["transcendental_per_s"]
        time_s_G[g] = max(traffic_s, vector_s, exponential_s)
        # A NaN passes through max() or not by its place; the sum keeps it.
        if not (0.0 <= traffic_s + vector_s + exponential_s < math.inf and time_s_G[g] >= 0.0):
            status = INVALID
    return status


def elementwise_time_column(
    bytes_G: Floats, flop_G: Floats, exponentials_G: Floats, device_G: Ints, devices_D: Records
) -> Floats:
    """Return the column ``time_s`` of `elementwise_times`.

    Raises `ValueError` if a time is no finite, non-negative number.
    """
    time_s_G = np.empty(len(bytes_G))
    status = elementwise_times(
        *as_type(np.float64, bytes_G, flop_G, exponentials_G),
        *as_type(np.int64, device_G),
        devices_D,
        time_s_G,
    )
    if status != OK:
        raise ValueError("an operator has no finite, non-negative time")
    return time_s_G
