import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.kernels.grouping import (
    concatenated_ranges,
    distinct_pairs,
    group_looked_up,
    group_rows,
    looked_up_sums,
    offsets,
    rows_by_number,
    segment_maxima,
    segment_sums,
)

# Without the JIT numpy warns of the wrap that a hash lives on.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered")

small = st.integers(-2, 2)
keys = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.tuples(*[small | st.integers(-(2**63), 2**63 - 1)] * width))
)
counts = st.lists(st.integers(0, 4), min_size=1, max_size=8)


@given(keys.filter(len))
def test_distinct_rows_are_numbered_as_they_appear(rows):
    first, group = group_rows(np.array(rows, np.int64))
    known = list(dict.fromkeys(rows))
    assert first.tolist() == [rows.index(row) for row in known]
    assert group.tolist() == [known.index(row) for row in rows]


@given(st.lists(st.tuples(small, small), min_size=1))
def test_columns_are_compared_like_rows(rows):
    table = np.array(rows, np.int64)
    together, apart = group_rows(table), group_rows(*table.T)
    assert [each.tolist() for each in together] == [each.tolist() for each in apart]


@given(
    st.lists(st.tuples(*[st.integers(0, 3)] * 3)),
    st.lists(st.lists(st.integers(0, 200), min_size=4, max_size=4), min_size=3, max_size=3),
)
def test_looked_up_numbers_are_compared_like_rows(rows, tables):
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    numbers = [np.array(table, np.int64) for table in tables]
    together = group_looked_up(columns, numbers)
    apart = group_rows(*(table[column] for table, column in zip(numbers, columns, strict=True)))
    assert [each.tolist() for each in together] == [each.tolist() for each in apart]


def test_many_rows():
    values = np.random.default_rng(0).integers(0, 3000, (20_000, 2))
    first, group = group_rows(values)
    assert np.array_equal(values[first][group], values)
    assert len(first) == len(set(map(tuple, values.tolist())))


def test_no_rows():
    first, group = group_rows(np.zeros(0, np.int64))
    assert len(first) == len(group) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5))))
def test_pairs_are_numbered_by_their_first_part(pairs):
    # Equal majors need only follow one another.
    rows = sorted(pairs, key=lambda pair: (3 * pair[0] + 1) % 4)
    major, minor = np.array(rows, np.int64).reshape(-1, 2).T
    first, pair = distinct_pairs(major.copy(), minor.copy())
    known = list(dict.fromkeys(rows))
    assert first.tolist() == [rows.index(row) for row in known]
    assert pair.tolist() == [known.index(row) for row in rows]


@given(st.lists(st.integers(0, 5)))
def test_rows_of_one_number_stay_in_their_order(numbers):
    row, begin = rows_by_number(np.array(numbers, np.int64), 6)
    assert row.tolist() == sorted(range(len(numbers)), key=numbers.__getitem__)
    assert begin.tolist() == [sum(number < each for number in numbers) for each in range(7)]


@given(counts, st.integers(0, 99))
def test_segments(count, seed):
    offset = offsets(np.array(count, np.int64))
    values = np.random.default_rng(seed).normal(size=offset[-1])
    parts = [values[begin:end].tolist() for begin, end in itertools.pairwise(offset)]
    assert segment_sums(offset, values).tolist() == [sum(part) for part in parts]
    assert segment_maxima(offset, values).tolist() == [max([0.0, *part]) for part in parts]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 4)), min_size=1))
def test_ranges_one_after_the_other(ranges):
    first, count = np.array(ranges, np.int64).T
    expected = [begin + step for begin, length in ranges for step in range(length)]
    assert concatenated_ranges(first, count).tolist() == expected


def sums_looked_up(count, row, times, values):
    """The twin of `sum_looked_up`: one number after the other."""
    sums, entry = [], 0
    for entries in count:
        of_columns = []
        for column in range(values.shape[2]):
            total = 0.0
            for part in range(values.shape[1]):
                of_part = 0.0
                for each in range(entry, entry + entries):
                    of_part += float(values[row[each], part, column] * times[each])
                total += of_part
            of_columns.append(total)
        sums.append(of_columns)
        entry += entries
    return sums


@given(counts, st.integers(1, 3), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_segments_add_up_what_their_entries_look_up(count, parts, width, seed):
    draw = np.random.default_rng(seed)
    values = draw.normal(size=(5, parts, width))
    row = draw.integers(0, 5, sum(count))
    times = draw.integers(0, 40, sum(count)).astype(np.float64)
    found = looked_up_sums(offsets(np.array(count)), row, times, values)
    assert found.tolist() == sums_looked_up(count, row.tolist(), times, values)
