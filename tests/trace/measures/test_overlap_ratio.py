"""Overlap ratios, curves and D50 over D0 (equation 9), on tables with known answers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.trace.activity import BACKWARD
from projector.trace.measures.overlap import (
    cdf,
    correlation,
    d50_d0,
    operation_overlaps,
    overlap_ratios,
)
from reference import trace_measures as reference
from synthetic import activities, collective, compute, copy

NAN = float("nan")


def ratios(*kernels):
    return overlap_ratios(activities(*kernels)).tolist()


def test_shares_of_one_device():
    assert ratios(
        compute(0, 100),
        collective(50, 120),
        collective(60, 110, stream=21),  # nested: counts once
        compute(100, 200),
        copy(115, 125),
        compute(100, 150, rank=1),  # another device
    ) == pytest.approx([0.5, NAN, NAN, 0.2, 0.5, 0.0], nan_ok=True)


def test_what_takes_no_time_has_no_share():
    assert np.isnan(ratios(compute(50, 50), collective(0, 100))[1])
    assert ratios(compute(50, 60), collective(55, 55)) == pytest.approx([0.0, NAN], nan_ok=True)


spans = st.tuples(st.integers(0, 60), st.integers(0, 25)).map(lambda s: (s[0], s[0] + s[1]))


@given(st.lists(spans, max_size=8), st.lists(spans, max_size=8))
def test_matches_reference(computing, communicating):
    kernels = [compute(*s) for s in computing] + [collective(*s) for s in communicating]
    expected = [
        reference.overlap_ratio(k.start, k.end, [] if "nccl" in k.name else communicating)
        if "nccl" not in k.name
        else None
        for k in sorted(kernels, key=lambda k: (k.start, k.end))
    ]
    found = [None if np.isnan(r) else r for r in ratios(*kernels)]
    # Rows that start and end together may stand in any order.
    assert sorted(map(str, found)) == sorted(map(str, expected))


def test_the_curve_climbs_by_overlap():
    curve = cdf(np.array([1.2, 1.0, 1.1, NAN]), np.array([0.5, 0.0, 0.5, 1.0]))
    assert curve.duration.tolist() == [1.0, 1.1, 1.2]
    assert curve.cumulative.tolist() == [0.0, 0.5, 1.0]


def test_equation_9_by_hand():
    # Two alone at 1.00 and 1.02; the others run 20 % to 30 % longer under full overlap.
    effect = d50_d0(np.array([1.0, 1.02, 1.2, 1.25, 1.3]), np.array([0.0, 0.0, 1.0, 1.0, 1.0]))
    assert (effect.d50, effect.d0, effect.d0_from) == (1.25, 1.01, "alone")
    assert effect.ratio == pytest.approx(1.25 / 1.01)


def test_where_everything_overlaps_the_shortest_stands_for_none():
    effect = d50_d0(np.array([1.0, 1.1, 1.4]), np.array([0.9, 1.0, 1.0]))
    assert (effect.d50, effect.d0, effect.d0_from) == (1.1, 1.0, "shortest")


def test_where_nothing_overlaps_the_factor_is_1():
    effect = d50_d0(np.array([1.0, 1.3]), np.array([0.0, 0.0]))
    assert (effect.d50, effect.d0, effect.ratio, effect.overlapped) == (None, 1.15, 1.0, 0)


def test_one_instance_and_none():
    assert d50_d0(np.array([1.0]), np.array([0.3])).ratio == 1.0
    assert d50_d0(np.array([]), np.array([])).ratio is None
    assert d50_d0(np.array([NAN]), np.array([NAN])).d0_from == "none"


# Eighths add up without rounding, so that the half is reached at the same instance.
eighths = st.integers(0, 8).map(lambda n: n / 8)
points = st.tuples(st.integers(100, 130).map(lambda n: n / 100), eighths)


@given(st.lists(points, min_size=1, max_size=12))
def test_equation_9_matches_reference(rows):
    duration, overlap = (np.array(column, float) for column in zip(*rows, strict=True))
    effect = d50_d0(duration, overlap)
    d50, d0 = reference.d50_d0(rows)
    assert effect.d50 == d50
    assert effect.d0 == pytest.approx(d0)


def test_correlation():
    assert correlation(np.array([0.0, 0.5, 1.0]), np.array([1.0, 1.1, 1.2])) == pytest.approx(1)
    assert correlation(np.array([0.5, 0.5]), np.array([1.0, 1.1])) is None
    assert correlation(np.array([0.5, NAN]), np.array([1.0, 1.1])) is None


def test_operations_are_normalised_to_the_least_of_their_device():
    # Rank 1 is twice as fast; under communication both take half as long again.
    table = activities(
        compute(0, 100, operation="mlp_up", phase=BACKWARD),
        compute(200, 350, operation="mlp_up", phase=BACKWARD, layer=1),
        collective(200, 350),
        compute(0, 50, operation="mlp_up", phase=BACKWARD, rank=1),
        compute(200, 275, operation="mlp_up", phase=BACKWARD, layer=1, rank=1),
        collective(190, 300, rank=1),
    )
    (row,) = operation_overlaps(table)
    assert (row.operation, row.phase, row.effect.instances) == ("mlp_up", "backward", 4)
    assert row.correlation == pytest.approx(1.0)
    assert row.effect.ratio == 1.5
    assert row.duration_ns.median == 87.5
    assert row.to_dict()["d0_from"] == "alone"


def test_what_is_alone_of_its_kind_is_compared_with_nothing():
    table = activities(compute(0, 10, operation="loss"), collective(0, 5))
    (row,) = operation_overlaps(table)
    assert (row.effect.instances, row.effect.ratio, row.overlap.median) == (0, None, 0.5)


def test_other_shapes_are_not_compared():
    small, large = {"dims": ((1, 2),)}, {"dims": ((8, 9),)}
    table = activities(
        compute(0, 10, operation="mm", detail=small),
        compute(20, 30, operation="mm", detail=small, layer=1),
        compute(100, 200, operation="mm", detail=large, layer=2),
        compute(300, 410, operation="mm", detail=large, layer=3),
        collective(300, 400),
    )
    (row,) = operation_overlaps(table)
    assert (row.effect.ratio, row.effect.instances) == (1.1, 2)


def test_kinds_that_are_always_covered_are_not_compared_with_others():
    small, large = {"dims": ((1, 2),)}, {"dims": ((8, 9),)}
    table = activities(
        compute(0, 10, operation="mm", detail=small),
        compute(20, 36, operation="mm", detail=small, layer=1),
        collective(100, 420),
        compute(100, 200, operation="mm", detail=large, layer=2),
        compute(300, 410, operation="mm", detail=large, layer=3),
    )
    (row,) = operation_overlaps(table)
    assert (row.effect.d50, row.effect.d0, row.effect.d0_from) == (1.0, 1.0, "shortest")
