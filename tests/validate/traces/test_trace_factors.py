"""Factors of two times, whose product is their ratio."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.validate.traces.result import MEANINGS, REST, Factor, Side, explain, largest

KNOWN = st.none() | st.floats(0.01, 100.0)
SIDES = st.builds(
    Side, time_s=st.floats(1e-9, 1e3), runs=KNOWN, work=KNOWN, waiting=KNOWN, overlap=KNOWN,
    clock_hz=KNOWN, instruction=KNOWN, utilisation=KNOWN,
)  # fmt: skip


@given(SIDES, SIDES)
def test_the_product_is_the_ratio(first, second):
    factors = explain(first, second)
    product = math.prod(factor.value for factor in factors)
    assert product == pytest.approx(second.time_s / first.time_s, rel=1e-12)
    assert {factor.name for factor in factors} <= MEANINGS.keys()
    assert factors[-1].name == REST


def test_each_factor():
    first = Side(
        time_s=1.0, runs=2.0, work=10.0, waiting=1.0, overlap=1.0, clock_hz=2e9,
        instruction=1.0, utilisation=0.5,
    )  # fmt: skip
    second = Side(
        time_s=24.0, runs=4.0, work=60.0, waiting=1.0, overlap=1.25, clock_hz=1e9,
        instruction=1.1, utilisation=0.4,
    )  # fmt: skip
    found = {factor.name: factor.value for factor in explain(first, second)}
    assert found.pop(REST) == pytest.approx(24.0 / (2.0 * 3.0 * 1.25 * 2.0 * 1.1 * 1.25))
    assert found == pytest.approx(
        {
            "count": 2.0,
            "shape": 3.0,
            "waiting": 1.0,
            "overlap": 1.25,
            "instruction": 1.1,
            "frequency": 2.0,
            "utilisation": 1.25,
        }
    )


def test_what_one_side_does_not_know_is_in_the_rest():
    factors = explain(Side(time_s=1.0, runs=2.0), Side(time_s=3.0, clock_hz=1e9))
    assert factors == (Factor(REST, 3.0),)


def test_the_largest_goes_either_way():
    assert largest((Factor("count", 1.5), Factor(REST, 0.5))).name == REST
    assert largest(()) == Factor(REST, 1.0)
