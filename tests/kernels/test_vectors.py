"""Vectors give in kernels what they give in Python."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from projector.kernels._jit import kernel
from projector.kernels._vectors import (
    WIDTH,
    anywhere,
    choose,
    equal,
    larger,
    largest,
    less,
    load,
    spread,
    store,
    total,
)

NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2)


@kernel
def every_function(given_rows, number, made, folded):
    """Use every function on two rows of two vectors."""
    for lane in range(0, 2 * WIDTH, WIDTH):
        one, other = load(given_rows, 0, lane), load(given_rows, 1, lane)
        store(one + other * spread(number), made, 0, lane)
        store((one & other) - (one ^ other), made, 1, lane)
        store(larger(one, other) | one, made, 2, lane)
        mask = less(one, other)
        store(mask, made, 3, lane)
        store(equal(one, other), made, 4, lane)
        store(choose(mask, one, other), made, 5, lane)
        folded[lane] = largest(one)
        folded[lane + 1] = total(one)
        folded[lane + 2] = anywhere(mask)


def outputs(function, rows, number):
    made, folded = np.zeros((6, 2 * WIDTH), np.int64), np.zeros(2 * WIDTH, np.int64)
    function(rows, number, made, folded)
    return made, folded


@given(st.lists(NUMBERS, min_size=4 * WIDTH, max_size=4 * WIDTH), st.integers(-3, 2**40))
def test_kernels_and_python_agree(numbers, number):
    rows = np.array(numbers, np.int64).reshape(2, 2 * WIDTH)
    with np.errstate(over="ignore"):
        python = outputs(getattr(every_function, "py_func", every_function), rows, number)
    for one, other in zip(outputs(every_function, rows, number), python, strict=True):
        np.testing.assert_array_equal(one, other)
