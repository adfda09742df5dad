"""Where points of a factorial space stand on its axes.

Shapes
    N   points, A axes, the last of which varies fastest
"""

import numpy as np

from projector.arrays import Ints, Ints32

from ._jit import kernel


@kernel
def find_places(point_N: Ints, size_A: Ints, place_AN: Ints32) -> None:
    """Turn numbers of points into places on the axes.

    A point that follows on the one before it is counted on, like an odometer: divisions are slow.

    Parameters
    ----------
    point_N : int64[N]
        From 0 to the product of the sizes.
    size_A : int64[A]
        Values of each axis.
    place_AN : int32[A, N]
        Output.
    """
    num_axes = size_A.shape[0]
    here = np.zeros(num_axes, np.int64)
    for n in range(point_N.shape[0]):
        if n > 0 and point_N[n] == point_N[n - 1] + 1:
            axis = num_axes - 1
            here[axis] += 1
            while here[axis] == size_A[axis] and axis > 0:
                here[axis] = 0
                axis -= 1
                here[axis] += 1
        else:
            rest = point_N[n]
            for step in range(num_axes):
                axis = num_axes - 1 - step
                here[axis] = rest % size_A[axis]
                rest //= size_A[axis]
        for axis in range(num_axes):
            place_AN[axis, n] = here[axis]


@kernel
def combine_places(
    place_AN: Ints32,
    axis_K: Ints,
    size_A: Ints,
    key_N: Ints,
) -> None:
    """Give each combination of some axes a number.

    Parameters
    ----------
    place_AN : int32[A, N]
    axis_K : int64[K]
        The axes, of which the last varies fastest.
    size_A : int64[A]
    key_N : int64[N]
        Output.
    """
    for n in range(key_N.shape[0]):
        key = np.int64(0)
        for k in range(axis_K.shape[0]):
            key = key * size_A[axis_K[k]] + place_AN[axis_K[k], n]
        key_N[n] = key
