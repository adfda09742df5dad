import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projector.lower.cluster_columns import largest_of_normals
from reference import stragglers as reference
from thoroughness import examples


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, 0.0),
        (2, 1.0 / math.sqrt(math.pi)),
        (3, 1.5 / math.sqrt(math.pi)),
        # Tables of order statistics.
        (8, 1.42360),
        (100, 2.50759),
        (1000, 3.24144),
    ],
)
def test_known_values(count, expected):
    assert largest_of_normals(count) == pytest.approx(expected, rel=2e-6)


@settings(max_examples=examples(15))
@given(st.integers(1, 200_000))
def test_matches_reference(count):
    assert largest_of_normals(count) == pytest.approx(reference.largest_of_normals(count), rel=1e-7)


@given(st.integers(1, 1 << 24), st.integers(1, 1 << 24))
def test_more_devices_wait_longer_and_ever_less_so(one, other):
    few, many = sorted((one, other))
    assert largest_of_normals(few) <= largest_of_normals(many)
    assert largest_of_normals(many) <= math.sqrt(2.0 * math.log(many)) + 1e-12


def test_many_devices_come_close_to_the_limit():
    count = 1 << 24
    assert largest_of_normals(count) == pytest.approx(math.sqrt(2.0 * math.log(count)), rel=0.08)
