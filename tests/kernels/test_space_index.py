import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from projector.kernels.space_index import combine_places, find_places

sizes = st.lists(st.integers(1, 4), min_size=1, max_size=5)


@given(sizes, st.data())
def test_places_are_those_of_the_product(size, data):
    combinations = list(itertools.product(*map(range, size)))
    number = st.integers(0, len(combinations) - 1)
    begin = data.draw(number)
    points = [*range(begin, len(combinations)), *data.draw(st.lists(number, max_size=6))]
    place = np.empty((len(size), len(points)), np.int32)
    find_places(np.array(points), np.array(size), place)
    assert [tuple(row) for row in place.T.tolist()] == [combinations[each] for each in points]
    axes = data.draw(st.lists(st.integers(0, len(size) - 1), unique=True))
    key = np.empty(len(points), np.int64)
    combine_places(place, np.array(axes, np.int64), np.array(size), key)
    known = list(itertools.product(*(range(size[axis]) for axis in axes)))
    expected = [known.index(tuple(combinations[each][axis] for axis in axes)) for each in points]
    assert key.tolist() == expected
