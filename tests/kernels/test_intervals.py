"""Sets of intervals against sets of instants."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from projector.kernels.intervals import UNSORTED, cover, difference, intersection, union
from reference import intervals as reference

BIG = 10**15
"""Times of long traces: quarters of an hour in picoseconds."""

spans = st.tuples(st.integers(0, 40), st.integers(-2, 12)).map(lambda s: (s[0], s[0] + s[1]))
many = st.lists(spans, max_size=9)
disjoint = many.map(reference.union)
shifts = st.sampled_from([0, BIG, -BIG])


def columns(rows, width=2, shift=0):
    table = np.array(rows, np.int64).reshape(-1, width)
    return [np.ascontiguousarray(table[:, i]) + shift for i in range(2)]


def found(out, count, shift=0):
    assert count >= 0
    return [(start - shift, end - shift) for start, end, *_ in out[:count].tolist()]


@given(rows=st.lists(st.tuples(spans, st.integers(0, 2)), max_size=12), shift=shifts)
@example(rows=[((0, 5), 0), ((5, 9), 0), ((5, 9), 1)], shift=0)  # they meet, in one of two
@example(rows=[((0, 9), 0), ((2, 3), 0), ((4, 4), 0), ((9, 9), 0)], shift=0)  # nested, empty
def test_unions_of_segments(rows, shift):
    rows = sorted(rows, key=lambda row: row[0])
    start, end = columns([span for span, _ in rows], shift=shift)
    segment = np.array([number for _, number in rows], np.int64)
    out = np.empty((len(rows), 3), np.int64)
    count = union(start, end, segment, out, np.empty(3, np.int64))
    for number in range(3):
        mine = out[:count][out[:count, 2] == number]
        expected = reference.union(span for span, other in rows if other == number)
        assert found(mine, len(mine), shift) == expected


def test_starts_that_do_not_ascend_are_told():
    start, end = columns([(5, 6), (3, 4)])
    out, scratch = np.empty((2, 3), np.int64), np.empty(2, np.int64)
    assert union(start, end, np.zeros(2, np.int64), out, scratch) == UNSORTED
    assert union(start, end, np.arange(2), out, scratch) == 2


@given(rows=many, by=disjoint, shift=shifts)
@example(rows=[(0, 40), (10, 10), (39, 60), (12, 11)], by=[(5, 10), (20, 30)], shift=0)
@example(rows=[(0, 4)], by=[], shift=0)
def test_cover(rows, by, shift):
    out, scratch = np.empty(len(rows), np.int64), np.empty(len(by), np.int64)
    cover(*columns(rows, shift=shift), *columns(by, shift=shift), scratch, out)
    assert out.tolist() == reference.cover(rows, by)


def test_cover_in_any_order_of_many():
    rng = np.random.default_rng(3)
    start = np.sort(rng.choice(10**6, 4000, replace=False)) * 10
    by = start, start + rng.integers(1, 10, 4000)
    inside = rng.integers(0, 10**7, 3000)
    spans_ = inside, inside + rng.integers(0, 10**5, 3000)
    out, scratch = np.empty(3000, np.int64), np.empty(4000, np.int64)
    cover(*spans_, *by, scratch, out)
    lengths = np.minimum(by[1], spans_[1][:, None]) - np.maximum(by[0], spans_[0][:, None])
    assert (out == np.maximum(lengths, 0).sum(axis=1)).all()


@pytest.mark.parametrize("name", ["intersection", "difference"])
@given(a=disjoint, b=disjoint, shift=shifts)
@example(a=[(0, 10)], b=[(0, 10)], shift=0)
@example(a=[(0, 10), (12, 20)], b=[(5, 15)], shift=0)
def test_two_sets(name, a, b, shift):
    kernel = {"intersection": intersection, "difference": difference}[name]
    out = np.empty((len(a) + len(b), 2), np.int64)
    count = kernel(*columns(a, shift=shift), *columns(b, shift=shift), out)
    assert found(out, count, shift) == getattr(reference, name)(a, b)
