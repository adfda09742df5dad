"""Points are chosen as plain Python chooses them."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from projector.kernels.space_index import (
    REFUSED,
    UNKNOWN,
    Axes,
    Found,
    LookupColumns,
    choose_points,
)
from reference.points import choose

sizes = st.lists(st.integers(1, 4), min_size=1, max_size=5)
VALUES = 4


@st.composite
def lookups(draw, size):
    """Return axes, value of each combination or none, and the values that are refused."""
    axes = sorted(draw(st.sets(st.integers(0, len(size) - 1))))
    combinations = list(itertools.product(*(range(size[axis]) for axis in axes)))
    value = st.one_of(st.integers(0, VALUES - 1), st.sampled_from([0, None]))
    values = draw(st.lists(value, min_size=len(combinations), max_size=len(combinations)))
    refused = draw(st.sets(st.integers(0, VALUES - 1), max_size=1))
    return axes, dict(zip(combinations, values, strict=True)), refused


def entry(value, refused):
    return UNKNOWN if value is None else 2 + 2 * value + (value in refused) * REFUSED


@given(st.data())
def test_points_are_chosen_as_in_plain_python(data):
    size = data.draw(sizes)
    number = st.integers(0, int(np.prod(size)) - 1)
    begin = data.draw(number)
    points = [*range(begin, int(np.prod(size))), *data.draw(st.lists(number, max_size=6))]
    asked = data.draw(st.lists(lookups(size), min_size=1, max_size=4))
    dense = data.draw(st.lists(st.booleans(), min_size=len(asked), max_size=len(asked)))
    every = list(itertools.product(*map(range, size)))
    outer = data.draw(st.integers(0, len(size)))
    inner = list(itertools.product(*map(range, size[outer:])))
    inner = np.array(inner, np.int32).reshape(len(inner), -1).T.copy()
    stride = np.zeros((len(size), len(asked)), np.int64)
    first, slot, table, of_points = [], [], [], []
    for look, (axes, values, refused) in enumerate(asked):
        step = 1
        for axis in reversed(axes):
            stride[axis, look] = step
            step *= size[axis]
        first.append(len(table))
        slot.append(-1 if dense[look] else len(of_points))
        if dense[look]:
            table += [entry(value, refused) for value in values.values()]
        else:
            met = [tuple(every[point][axis] for axis in axes) for point in points]
            of_points.append([entry(values[each], refused) for each in met])
    count = len(points)
    row, place = np.empty(count, np.int64), np.empty((len(size), count), np.int32)
    found, refusals = np.empty((len(asked), count), np.int64), np.zeros(VALUES * len(asked), int)
    wanted, entries = np.empty((count, 2), np.int64), np.array(table, np.int32)
    legal, unknown = choose_points(
        np.array(points),
        Axes(np.array(size), inner),
        LookupColumns(
            stride,
            np.ascontiguousarray(stride[outer:].T @ inner.astype(np.int64)),
            (stride[outer:] != 0).any(axis=0) | ~np.array(dense),
            np.array(first),
            entries,
            np.array(slot),
            np.array(of_points, np.int32).reshape(-1, count),
            np.arange(len(asked)),
            VALUES * np.arange(len(asked)),
        ),
        Found(row, place, found, refusals, wanted),
    )
    rows, expected_places, expected, refused, missing = choose(points, size, asked)
    assert row[:legal].tolist() == rows
    assert place[:, :legal].T.tolist() == [list(each) for each in expected_places]
    assert found[:, :legal].T.tolist() == expected
    assert {divmod(at, VALUES): n for at, n in enumerate(refusals.tolist()) if n} == refused
    assert {
        (look, tuple(every[points[row]][axis] for axis in asked[look][0]))
        for look, row in wanted[:unknown].tolist()
    } == missing
    assert unknown <= count
