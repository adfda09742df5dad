"""Sets of intervals on one axis of time: unions, what two share, what they cover.

A disjoint set is two columns whose intervals ascend, do not meet and are not empty.

Units: Times are int64 picoseconds. Counts and places are int64.
"""

from projector.arrays import Ints
from projector.kernels._jit import helper, kernel

UNSORTED = -1
"""Status: starts do not ascend where they must."""


@kernel
def union(start: Ints, end: Ints, segment: Ints, out: Ints, open_at: Ints) -> int:
    """Unite intervals within segments.

    start, end, segment : int64[n]. Starts ascend within each segment; segments may take turns.
        Empty intervals cover nothing.
    out : int64[n, 3]. Output: starts, ends and segments of the disjoint sets; ascending within each
        segment.
    open_at : int64[segments]. Scratch, overwritten.
    Returns how many rows were written, or `UNSORTED`.
    """
    open_at[:] = -1
    count = 0
    for i in range(len(start)):
        at = open_at[segment[i]]
        if at >= 0 and start[i] < out[at, 0]:
            return UNSORTED
        if end[i] <= start[i]:
            continue
        if at >= 0 and start[i] <= out[at, 1]:
            out[at, 1] = max(out[at, 1], end[i])
            continue
        out[count, 0] = start[i]
        out[count, 1] = end[i]
        out[count, 2] = segment[i]
        open_at[segment[i]] = count
        count += 1
    return count


@helper
def _first_behind(times: Ints, time: int, hint: int) -> int:
    """Return the first place whose time lies behind ``time``, looking from a hint onwards.

    Steps double, so that neighbours are found at once and strangers in few steps.
    """
    n = len(times)
    low = hint if 0 < hint <= n and times[hint - 1] <= time else 0
    step = 1
    high = low
    while high < n and times[high] <= time:
        low = high + 1
        high += step
        step *= 2
    high = min(high, n)
    while low < high:
        middle = (low + high) // 2
        if times[middle] <= time:
            low = middle + 1
        else:
            high = middle
    return low


@helper
def _before(by_start: Ints, by_end: Ints, total: Ints, time: int, behind: int) -> int:
    """Return what a disjoint set covers before a time, of the first interval behind it."""
    if behind == 0:
        return 0
    last = behind - 1
    return int(total[last] + min(time, by_end[last]) - by_start[last])


@kernel
def cover(start: Ints, end: Ints, by_start: Ints, by_end: Ints, total: Ints, out: Ints) -> None:
    """Measure how much of each interval a disjoint set covers.

    start, end : int64[n]. In any order; fastest where starts ascend.
    by_start, by_end : int64[m]. The disjoint set.
    total : int64[m]. Scratch, overwritten with what the set covers before each of its intervals.
    out : int64[n]. Output, in picoseconds. 0 for intervals that are empty.
    """
    so_far = 0
    for i in range(len(by_start)):
        total[i] = so_far
        so_far += by_end[i] - by_start[i]
    hint = 0
    for i in range(len(start)):
        if end[i] <= start[i]:
            out[i] = 0
            continue
        hint = _first_behind(by_start, start[i], hint)
        last = _first_behind(by_start, end[i], hint)
        until = _before(by_start, by_end, total, end[i], last)
        out[i] = until - _before(by_start, by_end, total, start[i], hint)


@kernel
def intersection(a_start: Ints, a_end: Ints, b_start: Ints, b_end: Ints, out: Ints) -> int:
    """Find what two disjoint sets share.

    a_start, a_end : int64[n]
    b_start, b_end : int64[m]
    out : int64[n + m, 2]. Output: a disjoint set.
    Returns how many rows were written.
    """
    i = j = count = 0
    while i < len(a_start) and j < len(b_start):
        begin, finish = max(a_start[i], b_start[j]), min(a_end[i], b_end[j])
        if begin < finish:
            out[count, 0], out[count, 1] = begin, finish
            count += 1
        if a_end[i] < b_end[j]:
            i += 1
        else:
            j += 1
    return count


@kernel
def difference(a_start: Ints, a_end: Ints, b_start: Ints, b_end: Ints, out: Ints) -> int:
    """Find what the first disjoint set covers and the second does not.

    Parameters and result are those of `intersection`.
    """
    j = count = 0
    for i in range(len(a_start)):
        reached = a_start[i]
        while j < len(b_start) and b_end[j] <= reached:
            j += 1
        k = j
        while k < len(b_start) and b_start[k] < a_end[i]:
            if b_start[k] > reached:
                out[count, 0], out[count, 1] = reached, b_start[k]
                count += 1
            reached = b_end[k]
            k += 1
        if reached < a_end[i]:
            out[count, 0], out[count, 1] = reached, a_end[i]
            count += 1
    return count
