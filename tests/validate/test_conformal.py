"""Bands from residuals: quantiles, classes pulled to wider ones, coverage without the source."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

VALIDATION = Path(__file__).resolve().parents[2] / "validation"
sys.path.insert(0, str(VALIDATION))
from conformal import (  # noqa: E402
    Method,
    Residual,
    bands_of,
    centre_and_spread,
    conformal_limits,
    conformal_share,
    nested_coverage,
    scores_of,
    weighted_quantile,
)

sys.path.remove(str(VALIDATION))


VALUES = st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 5)), min_size=1, max_size=30)


def quantile_by_definition(values, weights, share):
    """Go up the values until they hold the share of all weight."""
    total, reached = sum(weights), 0
    for value, weight in sorted(zip(values, weights, strict=True)):
        reached += weight
        if reached >= share * total - 1e-9:
            return value
    return max(values)


@given(VALUES, st.floats(0.0, 1.0))
def test_a_weighted_quantile_is_the_least_value_that_holds_the_share(pairs, share):
    values, weights = zip(*pairs, strict=True)
    found = weighted_quantile(np.array(values, float), np.array(weights, float), share)
    assert found == quantile_by_definition(values, weights, share)


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=60), st.sampled_from([0.5, 0.68, 0.9]))
def test_conformal_limits_of_equal_weights_leave_out_the_same_number_on_each_side(scores, share):
    # The plain rule: of n + 1 scores, a part (1 - share) / 2 may lie beyond each side.
    found = conformal_limits(np.array(scores, float), np.ones(len(scores)), share)
    n, ordered = len(scores), sorted(scores)
    beyond = max(0.0, (1.0 - min(1.0, share * (n + 1) / n)) / 2.0)
    low = ordered[max(0, math.ceil(n * beyond - 1e-9) - 1)]
    high = ordered[min(n - 1, max(0, math.ceil(n * (1.0 - beyond) - 1e-9) - 1))]
    assert (found.low, found.high) == (low, high)


def test_symmetric_limits_are_equally_far():
    found = conformal_limits(np.array([-3.0, 1.0, 2.0]), np.ones(3), 0.6, is_symmetric=True)
    assert (found.low, found.high) == (-3.0, 3.0)


@given(VALUES, st.floats(0.05, 0.95))
def test_limits_hold_at_least_the_share_that_they_are_made_for(pairs, share):
    scores, weights = (np.array(each, float) for each in zip(*pairs, strict=True))
    found = conformal_limits(scores, weights, share)
    held = weights[(scores >= found.low) & (scores <= found.high)].sum()
    assert held >= share * weights.sum() - 1e-9


def test_fewer_scores_ask_for_a_larger_share():
    assert conformal_share(np.ones(9), 0.68) == pytest.approx(0.68 * 10 / 9)
    assert conformal_share(np.ones(9), 0.95) == 1.0
    # One score that weighs nearly all counts as one.
    assert conformal_share(np.array([1.0, 1e-6]), 0.3) == pytest.approx(0.6, rel=1e-4)


def rows(source, errors, classes=("narrow", "all")):
    return [Residual(source, classes, error) for error in errors]


def test_the_centre_of_a_class_with_few_sources_is_pulled_to_the_wider_one():
    wide = [each for i in range(8) for each in rows(f"wide{i}", [0.0, 0.01], ("all",))]
    narrow = rows("narrow", [0.2, 0.2])
    centres = [
        centre_and_spread([*wide, *narrow], ("narrow", "all"), Method(pull))[0]
        for pull in (0.1, 2.0, 100.0)
    ]
    assert 0.2 > centres[0] > centres[1] > centres[2] > -0.01


def test_a_class_without_a_centre_of_its_own_has_that_of_the_wider_one():
    residuals = rows("a", [0.2, 0.3]) + rows("b", [0.0], ("all",)) + rows("c", [0.0], ("all",))
    method = Method(1.0, frozenset({"all"}))
    assert centre_and_spread(residuals, ("narrow", "all"), method)[0] == 0.0
    assert centre_and_spread(residuals, ("narrow", "all"), Method(1.0))[0] > 0.0


def test_many_rows_of_a_source_weigh_as_much_as_few():
    few = rows("a", [0.1]) + rows("b", [-0.1]) + rows("c", [0.0])
    many = rows("a", [0.1] * 50) + rows("b", [-0.1]) + rows("c", [0.0])
    for residuals in (few, many):
        centre, _ = centre_and_spread(residuals, ("narrow", "all"), Method(2.0))
        assert centre == 0.0


def test_a_score_knows_nothing_of_its_own_source():
    residuals = rows("a", [0.01]) + rows("b", [-0.01]) + rows("c", [0.02])
    moved = rows("a", [9.0]) + residuals[1:]
    first, second = scores_of(residuals, Method(2.0)), scores_of(moved, Method(2.0))
    assert second[0] == pytest.approx(first[0] + (9.0 - 0.01) * (second[0] - first[0]) / 8.99)
    assert first[1] != second[1]


def test_a_class_that_is_too_fast_has_a_longer_side_above():
    generator = np.random.default_rng(0)
    residuals = [
        each
        for i in range(12)
        for each in rows(f"s{i}", 0.1 + 0.03 * generator.standard_normal(10))
    ]
    narrow, wide = bands_of(residuals, (0.68, 0.9), Method(1.0))["narrow"]
    assert narrow.low == 0.0
    assert narrow.high > 0.1
    assert wide.low <= narrow.low
    assert wide.high >= narrow.high


@pytest.mark.parametrize("bias", [0.0, 0.08])
def test_nested_coverage_of_sources_of_one_kind_is_near_the_share(bias):
    generator = np.random.default_rng(3)
    residuals = [
        each
        for i in range(40)
        for each in rows(
            f"s{i}", bias + 0.05 * generator.standard_normal() + 0.03 * generator.standard_normal(6)
        )
    ]
    count, (held_68, held_90) = nested_coverage(residuals, (0.68, 0.9), Method(2.0))["narrow"]
    assert count == 240
    assert 0.6 <= held_68 <= 0.8
    assert 0.83 <= held_90 <= 0.97


def test_nested_coverage_is_not_flattered_by_the_source_itself():
    # Nine sources agree, the tenth is far off: bands made without it do not hold it.
    residuals = [each for i in range(9) for each in rows(f"s{i}", [0.0, 0.01, -0.01])]
    residuals += rows("far", [0.5] * 10, ("far", "all"))
    assert nested_coverage(residuals, (0.68, 0.9), Method(2.0))["far"] == (10, (0.0, 0.0))
