from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from projector.trace import counter_join
from projector.trace.counter_join import pairs

row = st.lists(st.integers(0, 4), max_size=24)


def longest(first, second):
    """Length of the longest common subsequence, by the table of all prefixes."""
    table = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            table[i + 1][j + 1] = (
                table[i][j] + 1 if a == b else max(table[i][j + 1], table[i + 1][j])
            )
    return table[-1][-1]


@given(first=row, second=row)
@example(first=[], second=[1])
@example(first=[1, 2, 1], second=[1, 1, 2, 1])
def test_as_many_pairs_as_the_plain_table_finds(first, second):
    found = pairs(first, second)
    assert len(found) == longest(first, second)
    assert all(first[i] == second[j] for i, j in found)
    for (i, j), (k, m) in pairwise(found):
        assert i < k
        assert j < m


@pytest.mark.parametrize(
    ("second", "places"),
    [([7, 8, 9], [0, 1, 2]), ([7, 7, 8, 9], [1, 2, 3]), ([7, 8, 5, 7, 8, 9], [3, 4, 5])],
)
def test_the_latest_of_several_is_taken(second, places):
    assert [j for _, j in pairs([7, 8, 9], second)] == places


@given(first=row, second=row)
def test_rows_that_are_too_long_pair_by_occurrence(first, second):
    limit, counter_join.MOST_CELLS = counter_join.MOST_CELLS, 0
    try:
        found = pairs(first, second)
    finally:
        counter_join.MOST_CELLS = limit
    assert all(first[i] == second[j] for i, j in found)
    assert len({j for _, j in found}) == len(found)
    common = sum(min(first.count(token), second.count(token)) for token in set(first))
    assert len(found) == common


def test_long_rows_are_paired_in_a_moment():
    template = [n % 97 for n in range(3_000)]
    other = [n for n in template if n != 13]
    assert len(pairs(template, [5, 5, *other * 2])) == len(other)
