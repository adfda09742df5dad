"""Which points of a factorial space are legal, and what they have.

What a point has is looked up: a look-up depends on some axes, and every combination of them has a
number and an entry. Points that follow one another and differ in inner axes alone are a stretch:
what depends on outer axes is looked up once for all of it.

Shapes
    N   points
    A   axes, the last of which varies fastest
    B   inner axes, the last ones
    R   combinations of inner axes
    L   look-ups
    T   entries of all look-ups that have a table
    S   look-ups without a table, which have an entry for each point
    K   look-ups whose values are shown
    V   values of all look-ups
    J   legal points of a stretch
"""

import numpy as np

from projector.arrays import Flags, Ints, Ints32

from ._jit import helper, inlined, kernel

UNKNOWN = 0
"""Entry of a combination that was not looked up yet."""

REFUSED = 1
"""Part of the entry of a value that no legal point has: ``2 + 2 * value + REFUSED``."""

_WANTED = -1


@inlined
def _stretch(point_N: Ints, begin: int, most: int) -> int:
    """Return how many points follow one another from one on, at most so many."""
    most = min(most, point_N.shape[0] - begin)
    length = 1
    while length < most and point_N[begin + length] == point_N[begin] + length:
        length += 1
    return length


@inlined
def _find_place(number: int, num_outer: int, size_A: Ints, place_A: Ints) -> None:
    """Find the place of a combination of the outer axes on each of them."""
    for back in range(num_outer):
        axis = num_outer - 1 - back
        place_A[axis] = number % size_A[axis]
        number //= size_A[axis]


@inlined
def _read_entries(
    entry_T: Ints32, key_R: Ints, at: int, slot: int, entry_SN: Ints32, begin: int, entry_R: Ints32
) -> bool:
    """Read the entry of each point of a stretch; return whether all are legal."""
    all_legal = True
    for i in range(entry_R.shape[0]):
        entry = entry_T[at + key_R[i]] if slot < 0 else entry_SN[slot, begin + i]
        entry_R[i] = entry
        all_legal &= (entry > UNKNOWN) & (entry & REFUSED == 0)
    return all_legal


@helper
def _sift(
    look: int,
    entry_R: Ints32,
    begin: int,
    legal_R: Ints,
    refused_V: Ints,
    wanted_N2: Ints,
    num_wanted: int,
) -> tuple[int, int]:
    """Keep the legal points of a stretch; return how many, and how many entries are wanted."""
    last, legal = entry_R.shape[0] - 1, 0
    for j in range(legal_R.shape[0]):
        i = min(legal_R[j], last)
        entry = entry_R[i]
        if entry > UNKNOWN and entry & REFUSED:
            refused_V[(entry >> 1) - 1] += 1
        elif entry > UNKNOWN:
            legal_R[legal] = legal_R[j]
            legal += 1
        elif entry == UNKNOWN:
            entry_R[i] = _WANTED
            wanted_N2[num_wanted, 0] = look
            wanted_N2[num_wanted, 1] = begin + i
            num_wanted += 1
    return legal, num_wanted


@helper
def _show(entry_LR: Ints32, varies_L: Flags, shown_L: Ints, legal_J: Ints, number_KJ: Ints) -> None:
    """Write the values of the legal points of a stretch."""
    for look in range(shown_L.shape[0]):
        if shown_L[look] < 0:
            continue
        number_J = number_KJ[shown_L[look]]
        if varies_L[look]:
            for j in range(legal_J.shape[0]):
                number_J[j] = (entry_LR[look, legal_J[j]] >> 1) - 1
        else:
            number = (entry_LR[look, 0] >> 1) - 1
            for j in range(legal_J.shape[0]):
                number_J[j] = number


@kernel
def choose_points(
    point_N: Ints,
    size_A: Ints,
    stride_AL: Ints,
    inner_place_BR: Ints32,
    key_LR: Ints,
    varies_L: Flags,
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
    inner_place_BR : int32[B, R]
        Places of each combination of the inner axes.
    key_LR : int64[L, R]
        What they add to the number of a combination.
    varies_L : bool[L]
        Whether points of a stretch may have different entries.
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
        Output: look-up and position of a point whose entry is unknown, for each such entry.

    Returns
    -------
    tuple of int
        Legal points, and entries that are wanted. Only where none are is the rest complete.
    """
    num_axes, num_lookups = stride_AL.shape
    num_outer = num_axes - inner_place_BR.shape[0]
    num_inner = inner_place_BR.shape[1]
    place_A = np.zeros(num_axes, np.int64)
    entry_LR = np.zeros((num_lookups, num_inner), np.int32)
    legal_R = np.zeros(num_inner, np.int64)
    num_legal = 0
    num_wanted = 0
    begin = 0
    while begin < point_N.shape[0]:
        inner = point_N[begin] % num_inner
        length = _stretch(point_N, begin, num_inner - inner)
        _find_place(point_N[begin] // num_inner, num_outer, size_A, place_A)
        for i in range(length):
            legal_R[i] = i
        legal = length
        for look in range(num_lookups):
            at = first_L[look]
            for axis in range(num_outer):
                at += place_A[axis] * stride_AL[axis, look]
            # What does not vary has one entry.
            count = length if varies_L[look] else 1
            key_R = key_LR[look, inner : inner + count]
            entry_R = entry_LR[look, :count]
            slot = slot_L[look]
            if _read_entries(entry_T, key_R, at, slot, entry_SN, begin, entry_R):
                continue
            known = num_wanted
            legal, num_wanted = _sift(
                look, entry_R, begin, legal_R[:legal], refused_V[value_L[look] :], wanted_N2, known
            )
            for new in range(known, num_wanted if slot < 0 else known):
                entry_T[at + key_R[wanted_N2[new, 1] - begin]] = _WANTED
        end = num_legal + legal
        for j in range(legal):
            row_N[num_legal + j] = begin + legal_R[j]
        for axis in range(num_outer):
            place_AN[axis, num_legal:end] = place_A[axis]
        for axis in range(num_outer, num_axes):
            for j in range(legal):
                place = inner_place_BR[axis - num_outer, inner + legal_R[j]]
                place_AN[axis, num_legal + j] = place
        _show(entry_LR, varies_L, shown_L, legal_R[:legal], number_KN[:, num_legal:end])
        num_legal = end
        begin += length
    return num_legal, num_wanted
