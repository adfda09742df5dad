"""Time of memory-bound operators: the longest of traffic, vector work and exponentials.

Shape suffixes
    G   operators in the batch, D devices
Units
    time s, traffic bytes, rates bytes/s and FLOP/s; float64.
"""

import numpy as np
from numpy.typing import NDArray

from ._jit import kernel


@kernel
def elementwise_times(
    bytes_G: NDArray[np.float64],
    flop_G: NDArray[np.float64],
    exponentials_G: NDArray[np.float64],
    device_G: NDArray[np.int64],
    devices_D: NDArray[np.void],
    time_s_G: NDArray[np.float64],
) -> None:
    """Time of each operator on the whole device; what surrounds a kernel is the caller's.

    Parameters
    ----------
    bytes_G, flop_G, exponentials_G : float64[G]
        Memory traffic, FP32 vector FLOP and exponentials.
    device_G : int64[G]
        Row of ``devices_D``.
    devices_D : DEVICE[D]
    time_s_G : float64[G]
        Output.
    """
    for g in range(bytes_G.shape[0]):
        device = devices_D[device_G[g]]
        traffic_s = bytes_G[g] / device.hbm_bytes_per_s
        vector_s = flop_G[g] / device.vector_flop_per_s
        exponential_s = exponentials_G[g] / device.transcendental_per_s
        time_s_G[g] = max(traffic_s, vector_s, exponential_s)


def elementwise_time_column(
    bytes_G: NDArray[np.float64],
    flop_G: NDArray[np.float64],
    exponentials_G: NDArray[np.float64],
    device_G: NDArray[np.int64],
    devices_D: NDArray[np.void],
) -> NDArray[np.float64]:
    """Return the column ``time_s`` of `elementwise_times`."""
    time_s_G = np.empty(len(bytes_G))
    elementwise_times(
        np.ascontiguousarray(bytes_G), np.ascontiguousarray(flop_G),
        np.ascontiguousarray(exponentials_G), np.ascontiguousarray(device_G), devices_D, time_s_G,
    )  # fmt: skip
    return time_s_G
