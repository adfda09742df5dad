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

from typing import NamedTuple

import numpy as np

from projector.arrays import Flags, Ints, Ints32
from projector.kernels._jit import helper, inlined, kernel

UNKNOWN = 0
"""Entry of a combination that was not looked up yet."""

REFUSED = 1
"""Part of the entry of a value that no legal point has: ``2 + 2 * value + REFUSED``."""

_WANTED = -1


class Axes(NamedTuple):
    """Axes of a factorial space."""

    size: Ints
    """``int64[A]``: values of each axis."""
    inner_place: Ints32
    """``int32[B, R]``: places of each combination of the inner axes."""


class LookupColumns(NamedTuple):
    """What look-ups depend on and what they know."""

    stride: Ints
    """``int64[A, L]``: what a step on an axis adds to the number of a combination."""
    key: Ints
    """``int64[L, R]``: what each combination of the inner axes adds to it."""
    varies: Flags
    """``bool[L]``: whether points of a stretch may have different entries."""
    first: Ints
    """``int64[L]``: entry of combination 0 in the table."""
    entry: Ints32
    """``int32[T]``: entries of combinations; `UNKNOWN` ones that are wanted are marked."""
    slot: Ints
    """``int64[L]``: row of ``entry_of_point``; -1 with a table."""
    entry_of_point: Ints32
    """``int32[S, N]``: entries of the points, of look-ups without a table; marked likewise."""
    shown: Ints
    """``int64[L]``: row of `Found.number`; -1 for look-ups that are not shown."""
    value: Ints
    """``int64[L]``: position of value 0 in `Found.refused`."""


class Found(NamedTuple):
    """What is found of points, overwritten."""

    row: Ints
    """``int64[N]``: position of each legal point."""
    place: Ints32
    """``int32[A, N]``: places of the legal points on the axes."""
    number: Ints
    """``int64[K, N]``: their values."""
    refused: Ints
    """``int64[V]``: how many points each value refuses; begins with zeros."""
    wanted: Ints
    """``int64[N, 2]``: look-up and position of a point, for each entry that is unknown."""


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


@kernel(python_us=0.2)
def choose_points(
    point_N: Ints, axes: Axes, lookups: LookupColumns, found: Found
) -> tuple[int, int]:
    """Find the points that no look-up refuses, and count the others by the first that does.

    point_N : int64[N]. From 0 to the product of the sizes.
    axes : Axes
    lookups : LookupColumns
    found : Found. Output.
    Returns legal points, and entries that are wanted. Only where none are is the rest complete.
    """
    num_axes, num_lookups = lookups.stride.shape
    num_outer = num_axes - axes.inner_place.shape[0]
    num_inner = axes.inner_place.shape[1]
    place_A = np.zeros(num_axes, np.int64)
    entry_LR = np.zeros((num_lookups, num_inner), np.int32)
    legal_R = np.zeros(num_inner, np.int64)
    num_legal = 0
    num_wanted = 0
    begin = 0
    while begin < point_N.shape[0]:
        inner = point_N[begin] % num_inner
        length = _stretch(point_N, begin, num_inner - inner)
        _find_place(point_N[begin] // num_inner, num_outer, axes.size, place_A)
        for i in range(length):
            legal_R[i] = i
        legal = length
        for look in range(num_lookups):
            at = lookups.first[look]
            for axis in range(num_outer):
                at += place_A[axis] * lookups.stride[axis, look]
            # What does not vary has one entry.
            count = length if lookups.varies[look] else 1
            key_R = lookups.key[look, inner : inner + count]
            entry_R = entry_LR[look, :count]
            slot = lookups.slot[look]
            if _read_entries(
                lookups.entry, key_R, at, slot, lookups.entry_of_point, begin, entry_R
            ):
                continue
            known = num_wanted
            refused_V = found.refused[lookups.value[look] :]
            legal, num_wanted = _sift(
                look, entry_R, begin, legal_R[:legal], refused_V, found.wanted, known
            )
            for new in range(known, num_wanted if slot < 0 else known):
                lookups.entry[at + key_R[found.wanted[new, 1] - begin]] = _WANTED
        legal_J, end = legal_R[:legal], num_legal + legal
        for j in range(legal):
            found.row[num_legal + j] = begin + legal_J[j]
        for axis in range(num_outer):
            found.place[axis, num_legal:end] = place_A[axis]
        for axis in range(num_outer, num_axes):
            for j in range(legal):
                place = axes.inner_place[axis - num_outer, inner + legal_J[j]]
                found.place[axis, num_legal + j] = place
        number_KJ = found.number[:, num_legal:end]
        _show(entry_LR, lookups.varies, lookups.shown, legal_J, number_KJ)
        num_legal = end
        begin += length
    return num_legal, num_wanted
