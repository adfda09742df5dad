"""Activities put together, on tables whose answer can be seen."""

import numpy as np
import pytest

from projector.errors import ConfigError
from projector.trace.activity import BACKWARD, GEMM
from projector.trace.measures.numbers import group as group_of
from projector.trace.measures.numbers import spreads
from projector.trace.measures.operations import (
    GRANULARITIES,
    Neighbours,
    operation_rows,
)
from synthetic import activities, collective, compute

UNKNOWN = -1


def near(table, preparation=UNKNOWN, call=UNKNOWN, overlap=np.nan):
    n = len(table)
    whole = lambda value: np.broadcast_to(np.asarray(value), n)  # noqa: E731
    return Neighbours(whole(preparation) * 1, whole(call) * 1, whole(overlap) * 1.0)


@pytest.fixture
def table():
    mm = {"operation": "aten::mm", "type": GEMM}
    return activities(
        compute(0, 10, iteration=1, layer=0, **mm),
        compute(10, 40, iteration=1, layer=1, **mm),
        compute(40, 60, iteration=2, layer=0, **mm),
        compute(60, 70, iteration=2, layer=0, phase=BACKWARD, recompute=True, **mm),
        collective(70, 80, iteration=2),
    )


def test_rows_by_operation(table):
    rows = operation_rows(table, near(table, 1000, [2000] * 4 + [-1], [0.5, 0, 1, 1, np.nan]))
    assert [(row.name, row.phase, row.type) for row in rows] == [
        ("aten::mm", "forward", "gemm"),
        ("(outside operations)", "other", "communication"),
        ("aten::mm", "backward", "gemm"),
    ]
    first, outside, backward = rows
    assert (first.count, first.total_ns, first.share) == (3, 60.0, 0.75)
    assert first.duration_ns == {"median": 20, "p25": 15, "p75": 25, "min": 10, "max": 30}
    # 10 + 30 in iteration 1, 20 in iteration 2.
    assert first.per_iteration_ns == {"median": 30, "p25": 25, "p75": 35, "min": 20, "max": 40}
    assert (first.preparation_ns, first.call_ns, first.launch_ns) == (1.0, 2.0, 9.0)
    assert first.overlap == 0.5
    assert (outside.launch_ns, outside.overlap) == (None, None)
    assert (first.recomputed, backward.recomputed) == (0.0, 1.0)
    assert sum(row.share for row in rows) == pytest.approx(1.0)


def test_every_granularity_counts_everything(table):
    for by in GRANULARITIES:
        rows = operation_rows(table, near(table), by)
        assert sum(row.count for row in rows) == len(table)
        assert sum(row.total_ns for row in rows) == 80.0
    assert [row.name for row in operation_rows(table, near(table), "iteration")] == [
        "iteration 1", "iteration 2"
    ]  # fmt: skip
    layers = operation_rows(table, near(table), "layer")
    assert [(row.layer, row.phase) for row in layers] == [
        (None, "other"), (0, "forward"), (0, "backward"), (1, "forward")
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="known: operation, layer"):
        operation_rows(table, near(table), "colour")
    assert operation_rows(activities(), near(activities())) == []


def test_bands_are_numpys_quantiles():
    rng = np.random.default_rng(7)
    group = rng.integers(0, 20, 500)
    group = group[group != 3]
    values = rng.integers(0, 10**12, len(group))
    found = spreads(values, group, 20)
    assert np.isnan(found[3]).all()
    for each in set(range(20)) - {3}:
        expected = np.quantile(values[group == each], [0.5, 0.25, 0.75, 0.0, 1.0])
        np.testing.assert_allclose(found[each], expected, rtol=1e-12)


def test_distinct_combinations():
    found = group_of(np.array([5, -1, 5, 5]), np.array([0, 2**62, 0, 1]))
    assert found.first.tolist() == [1, 0, 3]
    assert found.of.tolist() == [1, 0, 1, 2]
