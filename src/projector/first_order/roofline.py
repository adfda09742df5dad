"""The roofline: what a device reaches at a given arithmetic intensity.

Every function takes numbers or arrays that broadcast, and returns float64.
"""

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Flags, Floats


def column(values: ArrayLike) -> Floats:
    """Return values as float64."""
    return np.asarray(values, np.float64)


def ridge_point(peak_flop_per_s: ArrayLike, bytes_per_s: ArrayLike) -> Floats:
    """Return the intensity, FLOP/byte, at which compute and memory bound alike: peak / bandwidth.

    Source: Williams, Waterman, Patterson, Roofline, CACM 2009; the Roofline methodology, section 1.
    """
    return column(peak_flop_per_s) / column(bytes_per_s)


def arithmetic_intensity(flop: ArrayLike, num_bytes: ArrayLike) -> Floats:
    """Return FLOP for each byte that memory moves.

    Source: the Roofline methodology, section 1.
    """
    return column(flop) / column(num_bytes)


def achieved_throughput(
    intensity: ArrayLike,
    peak_flop_per_s: ArrayLike,
    bytes_per_s: ArrayLike,
    derate: ArrayLike = 1.0,
) -> Floats:
    """Return FLOP/s under the roof: derate * min(peak, intensity * bandwidth).

    The derate lowers the whole roof, the slanted part too. Only so does a decode step of Llama 3
    70B in FP8 come out within the 12 to 18 tokens/s that the methodology states.

    Source: the Roofline methodology, section 1.
    """
    roof = np.minimum(column(peak_flop_per_s), column(intensity) * column(bytes_per_s))
    return column(derate) * roof


def is_memory_bound(
    intensity: ArrayLike, peak_flop_per_s: ArrayLike, bytes_per_s: ArrayLike
) -> Flags:
    """Return whether the intensity lies left of the ridge point.

    Source: the Roofline methodology, section 1.
    """
    return np.asarray(column(intensity) < ridge_point(peak_flop_per_s, bytes_per_s))


def roofline_time_s(
    flop: ArrayLike,
    num_bytes: ArrayLike,
    peak_flop_per_s: ArrayLike,
    bytes_per_s: ArrayLike,
    derate: ArrayLike = 1.0,
) -> Floats:
    """Return the seconds of some work: FLOP over the achieved throughput.

    Source: the Roofline methodology, section 1.
    """
    intensity = arithmetic_intensity(flop, num_bytes)
    return column(flop) / achieved_throughput(intensity, peak_flop_per_s, bytes_per_s, derate)
