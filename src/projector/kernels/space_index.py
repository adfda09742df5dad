"""Which points of a factorial space are legal, and what they have.

What a point has is looked up: a look-up depends on some axes, and every combination of them has a
number and an entry.

Shapes
    N   points
    A   axes, the last of which varies fastest
    L   look-ups
    T   entries of all look-ups that have a table
    S   look-ups without a table, which have an entry for each point
    K   look-ups whose values are shown
    V   values of all look-ups
"""

import numpy as np

from projector.arrays import Ints, Ints32

from ._jit import inlined, kernel

UNKNOWN = 0
"""Entry of a combination that was not looked up yet."""

REFUSED = 1
"""Part of the entry of a value that no legal point has: ``2 + 2 * value + REFUSED``."""

_WANTED = -1


@inlined
def _steps(size_A: Ints, stride_AL: Ints) -> Ints:
    """Return what a step on an axis adds where all axes after it go back to the first place."""
    num_axes, num_lookups = stride_AL.shape
    step_AL = stride_AL.copy()
    for axis in range(num_axes):
        for later in range(axis + 1, num_axes):
            for look in range(num_lookups):
                step_AL[axis, look] -= (size_A[later] - 1) * stride_AL[later, look]
    return step_AL


@inlined
def _find_place(point: int, size_A: Ints, stride_AL: Ints, place_A: Ints, key_L: Ints) -> None:
    """Find the place of a point on each axis, and its combination for each look-up."""
    num_axes, num_lookups = stride_AL.shape
    key_L[:] = 0
    for back in range(num_axes):
        axis = num_axes - 1 - back
        place_A[axis] = point % size_A[axis]
        point //= size_A[axis]
        for look in range(num_lookups):
            key_L[look] += place_A[axis] * stride_AL[axis, look]


@inlined
def _count_on(size_A: Ints, step_AL: Ints, place_A: Ints, key_L: Ints) -> None:
    """Go to the next point, like an odometer: divisions are slow."""
    num_axes, num_lookups = step_AL.shape
    axis = num_axes - 1
    place_A[axis] += 1
    while place_A[axis] == size_A[axis] and axis > 0:
        place_A[axis] = 0
        axis -= 1
        place_A[axis] += 1
    for look in range(num_lookups):
        key_L[look] += step_AL[axis, look]


@kernel
def choose_points(
    point_N: Ints,
    size_A: Ints,
    stride_AL: Ints,
    first_L: Ints,
    entry_T: Ints32,
    slot_L: Ints,
    entry_SN: Ints32,
    shown_L: Ints,
    value_L: Ints,
    row_N: Ints,
    place_AN: Ints32,
    number_KN: Ints,
    refused_V: Ints,
    wanted_N2: Ints,
) -> tuple[int, int]:
    """Find the points that no look-up refuses, and count the others by the first that does.

    Parameters
    ----------
    point_N : int64[N]
        From 0 to the product of the sizes.
    size_A : int64[A]
        Values of each axis.
    stride_AL : int64[A, L]
        What a step on an axis adds to the number of a combination.
    first_L : int64[L]
        Entry of combination 0 in the table.
    entry_T : int32[T]
        Entries of combinations; `UNKNOWN` ones that are wanted are marked.
    slot_L : int64[L]
        Row of ``entry_SN``; -1 with a table.
    entry_SN : int32[S, N]
    shown_L : int64[L]
        Row of ``number_KN``; -1 for look-ups that are not shown.
    value_L : int64[L]
        Position of value 0 in ``refused_V``.
    row_N : int64[N]
        Output: position of each legal point.
    place_AN : int32[A, N]
        Output: places of the legal points on the axes.
    number_KN : int64[K, N]
        Output: their values.
    refused_V : int64[V]
        Output: how many points each value refuses; begins with zeros.
    wanted_N2 : int64[N, 2]
        Output: look-up and combination, without a table the point, whose entry is unknown.

    Returns
    -------
    tuple of int
        Legal points, and entries that are wanted. Only where none are is the rest complete.
    """
    num_axes, num_lookups = stride_AL.shape
    step_AL = _steps(size_A, stride_AL)
    place_A = np.zeros(num_axes, np.int64)
    key_L = np.zeros(num_lookups, np.int64)
    found_L = np.zeros(num_lookups, np.int64)
    num_legal = 0
    num_wanted = 0
    for n in range(point_N.shape[0]):
        if n > 0 and point_N[n] == point_N[n - 1] + 1:
            _count_on(size_A, step_AL, place_A, key_L)
        else:
            _find_place(point_N[n], size_A, stride_AL, place_A, key_L)
        is_legal = True
        for look in range(num_lookups):
            slot = slot_L[look]
            at = first_L[look] + key_L[look]
            entry = entry_T[at] if slot < 0 else entry_SN[slot, n]
            found_L[look] = (entry >> 1) - 1
            if entry > UNKNOWN and not entry & REFUSED:
                continue
            is_legal = False
            if entry > UNKNOWN:
                refused_V[value_L[look] + found_L[look]] += 1
            elif entry == UNKNOWN:
                wanted_N2[num_wanted, 0] = look
                wanted_N2[num_wanted, 1] = key_L[look] if slot < 0 else n
                num_wanted += 1
                if slot < 0:
                    entry_T[at] = _WANTED
            break
        if is_legal:
            row_N[num_legal] = n
            for axis in range(num_axes):
                place_AN[axis, num_legal] = place_A[axis]
            for look in range(num_lookups):
                if shown_L[look] >= 0:
                    number_KN[shown_L[look], num_legal] = found_L[look]
            num_legal += 1
    return num_legal, num_wanted
