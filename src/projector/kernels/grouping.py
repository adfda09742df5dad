"""Which rows of a table of keys are equal, and what the segments of a column add up to.

Shapes
    N   rows, K keys of a row, S segments; ``offset`` cuts rows into segments (CSR)
"""

import math
from collections.abc import Sequence

import numpy as np

from projector.arrays import Flags, Floats, Ints, Ints32
from projector.kernels._jit import helper, inlined, kernel

_MIX = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)
SEED = np.uint64(0x243F6A8885A308D3)

MOST_SLOTS = 8
"""Places of a table for each row, up to which rows are looked up in it rather than hashed."""


@helper
def mixed(one: np.uint64, value: np.uint64 | int) -> np.uint64:
    """Return a hash of a value behind others, whose hash is given; ``SEED`` is that of none."""
    product = (one ^ np.uint64(value)) * _MIX
    return product ^ (product >> _SHIFT)


@helper
def _hash(key_NK: Ints, row: int) -> np.uint64:
    """Hash one row in four strands, as each step waits for the one before."""
    columns = key_NK.shape[1]
    a = b = c = d = SEED
    for column in range(0, columns - 3, 4):
        a = mixed(a, key_NK[row, column])
        b = mixed(b, key_NK[row, column + 1])
        c = mixed(c, key_NK[row, column + 2])
        d = mixed(d, key_NK[row, column + 3])
    for column in range(columns - columns % 4, columns):
        a = mixed(a, key_NK[row, column])
    if columns < 4:
        return a
    return mixed(mixed(mixed(a, b), c), d)


@kernel
def number_distinct(key_NK: Ints, slot: Ints32, group_N: Ints, first_N: Ints) -> int:
    """Give each distinct row a number, in the order in which they first appear.

    key_NK : int64[N, K]
    slot : int32[size]. Scratch, all -1; ``size`` is a power of two of at least 2 N.
    group_N : int64[N]. Output: number of each row.
    first_N : int64[N]. Output: first row of each number; beyond the returned count it means
        nothing.
    Returns how many distinct rows there are.
    """
    last = np.uint64(slot.shape[0] - 1)
    count = 0
    for row in range(key_NK.shape[0]):
        place = _hash(key_NK, row) & last
        while True:
            number = slot[place]
            if number < 0:
                slot[place] = count
                first_N[count] = row
                group_N[row] = count
                count += 1
                break
            known = first_N[number]
            same = True
            for column in range(key_NK.shape[1]):
                same = same and key_NK[row, column] == key_NK[known, column]
            if same:
                group_N[row] = number
                break
            place = (place + np.uint64(1)) & last
    return count


@kernel
def number_pairs(
    major_N: Ints, minor_N: Ints, seen: Ints, number: Ints, pair_N: Ints, first_N: Ints
) -> int:
    """Give each distinct pair a number, those with one ``major`` one after the other.

    major_N : int64[N]. From 0 on; equal ones follow one another.
    minor_N : int64[N]. From 0 on.
    seen, number : int64[larger than any of ``minor_N``]. Scratch; ``seen`` all -1.
    pair_N : int64[N]. Output: number of each pair.
    first_N : int64[N]. Output: first row of each number; beyond the returned count it means
        nothing.
    Returns how many distinct pairs there are.
    """
    count = 0
    for row in range(major_N.shape[0]):
        minor = minor_N[row]
        if seen[minor] != major_N[row]:
            seen[minor] = major_N[row]
            number[minor] = count
            first_N[count] = row
            count += 1
        pair_N[row] = number[minor]
    return count


@kernel
def sort_by_number(number_N: Ints, place: Ints, row_N: Ints) -> None:
    """Sort rows by their numbers; those with one number stay in their order.

    number_N : int64[N]
    place : int64[numbers]. Where the first row of each number goes; afterwards, where the next one
        would.
    row_N : int64[N]. Output.
    """
    for row in range(number_N.shape[0]):
        number = number_N[row]
        row_N[place[number]] = row
        place[number] += 1


@kernel
def number_slots(code_N: Ints, slot: Ints32, group_N: Ints, first_N: Ints) -> int:
    """Give each distinct code a number, in the order in which they first appear.

    code_N : int64[N]. From 0 on.
    slot : int32[larger than any code]. Scratch, all -1.
    group_N : int64[N]. Output: number of each row.
    first_N : int64[N]. Output: first row of each number; beyond the returned count it means
        nothing.
    Returns how many distinct codes there are.
    """
    count = 0
    for row in range(code_N.shape[0]):
        number = slot[code_N[row]]
        if number < 0:
            number = count
            slot[code_N[row]] = number
            first_N[number] = row
            count += 1
        group_N[row] = number
    return count


@kernel
def sum_segments(offset: Ints, value_N: Floats, sum_S: Floats) -> None:
    """Add the values of each segment up, one after the other.

    offset : int64[S + 1]. First row of each segment.
    value_N : float64[N]
    sum_S : float64[S]. Output: 0 for a segment without rows.
    """
    for segment in range(offset.shape[0] - 1):
        total = 0.0
        for row in range(offset[segment], offset[segment + 1]):
            total += value_N[row]
        sum_S[segment] = total


@kernel(python_us=0.8)
def sum_looked_up(
    offset: Ints, row_N: Ints, times_N: Floats, value_RPK: Floats, sum_SK: Floats
) -> None:
    """Add up, part by part, what the entries of each segment look up.

    offset : int64[S + 1]. First entry of each segment.
    row_N : int64[N]. Row of ``value_RPK`` that each entry looks up.
    times_N : float64[N]. How often it counts.
    value_RPK : float64[R, P, K]. P parts of K numbers.
    sum_SK : float64[S, K]. Output: the sums of each part, added up.
    """
    parts, width = value_RPK.shape[1], value_RPK.shape[2]
    of_part = np.empty(width)
    for segment in range(offset.shape[0] - 1):
        for column in range(width):
            sum_SK[segment, column] = 0.0
        for part in range(parts):
            for column in range(width):
                of_part[column] = 0.0
            for entry in range(offset[segment], offset[segment + 1]):
                row, times = row_N[entry], times_N[entry]
                for column in range(width):
                    of_part[column] += value_RPK[row, part, column] * times
            for column in range(width):
                sum_SK[segment, column] += of_part[column]


@kernel
def largest_of_segments(offset: Ints, value_N: Floats, largest_S: Floats) -> None:
    """Find the largest value of each segment, 0 where none is larger.

    offset : int64[S + 1]. First row of each segment.
    value_N : float64[N]
    largest_S : float64[S]. Output.
    """
    for segment in range(offset.shape[0] - 1):
        most = 0.0
        for row in range(offset[segment], offset[segment + 1]):
            most = max(most, value_N[row])
        largest_S[segment] = most


def free_slots(rows: int) -> Ints32:
    """Return the scratch of a kernel that numbers distinct rows."""
    return np.full(1 << max(1, (2 * rows - 1).bit_length()), -1, np.int32)


def group_rows(*columns: Ints) -> tuple[Ints, Ints]:
    """Return the first row of each distinct combination, and the number of that of each row.

    *columns : int64[N] or int64[N, K]. What rows are compared by.
    Returns first, int64[groups], ascending, and group, int64[N].
    """
    if all(column.ndim == 1 for column in columns):
        # Stacked as they are and turned: written row by row they would take twice as long.
        key_NK = np.stack(columns, dtype=np.int64).T
    else:
        key_NK = np.ascontiguousarray(np.column_stack(columns), np.int64)
    rows = len(key_NK)
    slot = free_slots(rows)
    group_N, first_N = np.empty(rows, np.int64), np.empty(rows, np.int64)
    count = number_distinct(key_NK, slot, group_N, first_N)
    return first_N[:count].copy(), group_N


def group_numbers(code_N: Ints, size: int) -> tuple[Ints, Ints]:
    """Return the same as ``group_rows(code_N)``, of int64[N] from 0 on, below ``size``."""
    rows = len(code_N)
    if size > MOST_SLOTS * (rows + 64):
        return group_rows(code_N)
    group_N, first_N = np.empty(rows, np.int64), np.empty(rows, np.int64)
    count = number_slots(
        np.ascontiguousarray(code_N), np.full(size, -1, np.int32), group_N, first_N
    )
    return first_N[:count].copy(), group_N


def group_looked_up(rows: Sequence[Ints], tables: Sequence[Ints | None]) -> tuple[Ints, Ints]:
    """Return the same as ``group_rows(tables[0][rows[0]], tables[1][rows[1]], ...)``.

    rows : sequence of int64[N]
    tables : sequence of int64[any]. Numbers from 0 on, not much larger than N; None for the rows
        themselves.
    """
    size, code_N = 1, np.zeros(len(rows[0]), np.int64)
    for row_N, table in zip(rows, tables, strict=True):
        if table is not None and len(table) == 1:
            continue
        used = np.zeros(int(row_N.max(initial=0)) + 1 if table is None else len(table), np.bool_)
        used[row_N] = True
        # Numbers without gaps, so that few products of them have no row.
        if table is None:
            place = np.cumsum(used) - 1
        else:
            met = np.zeros(int(table.max(initial=0)) + 1, np.bool_)
            met[table[used]] = True
            place = (np.cumsum(met) - 1).take(table)
        count = int(place.max()) + 1
        if count > 1:
            code_N += (size * place).take(row_N)
            size *= count
        if size > MOST_SLOTS * (len(code_N) + 64):
            return group_rows(
                *(
                    row_N if table is None else table.take(row_N)
                    for row_N, table in zip(rows, tables, strict=True)
                )
            )
    return group_numbers(code_N, size)


def distinct_pairs(major: Ints, minor: Ints) -> tuple[Ints, Ints]:
    """Return the first row of each distinct pair, and the number of the pair of each row.

    major : int64[N]. From 0 on; equal ones follow one another.
    minor : int64[N]. From 0 on, and not much larger than N: there is a place for every number.
    Returns first, int64[pairs], ascending, and pair, int64[N].
    """
    size = int(minor.max(initial=-1)) + 1
    pair_N, first_N = np.empty(len(major), np.int64), np.empty(len(major), np.int64)
    count = number_pairs(
        major, minor, np.full(size, -1, np.int64), np.empty(size, np.int64), pair_N, first_N
    )
    return first_N[:count].copy(), pair_N


def rows_by_number(number: Ints, size: int) -> tuple[Ints, Ints]:
    """Sort rows by numbers below ``size``, those with one number in their order.

    Returns row, int64[N], and begin, int64[size + 1]: where the rows of each number begin.
    """
    begin, row = offsets(np.bincount(number, minlength=size)), np.empty(len(number), np.int64)
    sort_by_number(number, begin.copy(), row)
    return row, begin


def segment_sums(offset: Ints, values: Floats) -> Floats:
    """Return what `sum_segments` writes, for float64[N]."""
    sums = np.empty(len(offset) - 1)
    sum_segments(offset, np.ascontiguousarray(values, np.float64), sums)
    return sums


def looked_up_sums(offset: Ints, row: Ints, times: Floats, values: Floats) -> Floats:
    """Return what `sum_looked_up` writes, for float64[R, P, K]."""
    sums = np.empty((len(offset) - 1, values.shape[2]))
    sum_looked_up(offset, row, times, np.ascontiguousarray(values), sums)
    return sums


def segment_maxima(offset: Ints, values: Floats) -> Floats:
    """Return what `largest_of_segments` writes, for float64[N]."""
    largest = np.empty(len(offset) - 1)
    largest_of_segments(offset, np.ascontiguousarray(values, np.float64), largest)
    return largest


def concatenated_ranges(first: Ints, count: Ints) -> Ints:
    """Return ``first[i], first[i] + 1, ...``, ``count[i]`` numbers for each i, in one array."""
    offset = offsets(count)
    return np.repeat(first - offset[:-1], count) + np.arange(offset[-1])


def offsets(count: Ints) -> Ints:
    """Return where segments of ``count`` rows begin, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(count, dtype=np.int64)])


@inlined
def _order(value: float, other: float) -> int:
    """Return -1 where a value goes before another, 1 behind it; what is not finite goes last."""
    if not math.isfinite(value):
        return 1 if math.isfinite(other) else 0
    if value < other or not math.isfinite(other):
        return -1
    return 1 if value > other else 0


@kernel
def best_of_groups(
    group_N: Ints, fits_N: Flags, safe_N: Flags, rate_N: Floats, peak_N: Floats, best_G: Ints
) -> int:
    """Find the best row of each group: the first of equal ones.

    What fits goes before what does not, and of these what is safe before what is not. Then the
    highest rate of rows that fit, the lowest peak of others; then the lowest peak.

    group_N : int64[N]. Equal ones follow one another.
    fits_N, safe_N : bool[N]
    rate_N, peak_N : float64[N]
    best_G : int64[N]. Output: row of each group, in their order; beyond the returned count it means
        nothing.
    Returns how many groups there are.
    """
    count = 0
    for row in range(group_N.shape[0]):
        if row == 0 or group_N[row] != group_N[row - 1]:
            best_G[count] = row
            count += 1
            continue
        best = best_G[count - 1]
        fits = fits_N[row]
        if fits != fits_N[best]:
            better = fits
        elif safe_N[row] != safe_N[best]:
            better = safe_N[row]
        else:
            order = _order(-rate_N[row], -rate_N[best]) if fits else 0
            if order == 0:
                order = _order(peak_N[row], peak_N[best])
            better = order < 0
        if better:
            best_G[count - 1] = row
    return count
