"""Durations by phase and the like, and how numbers spread over samples."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.errors import ConfigError
from projector.trace.activity import ATTENTION, BACKWARD, GEMM, PHASES, TYPES
from projector.trace.groups import group
from projector.trace.measures.breakdown import GRANULARITIES, breakdown, in_iterations, instances
from projector.trace.measures.statistics import band, to_ns
from reference import trace_measures as reference
from synthetic import activities, collective, compute


def iteration(number, begin, scale=1, **more):
    """A forward of two layers, a collective under the second, and a backward."""
    of = {"iteration": number, **more}
    return (
        compute(begin, begin + 10 * scale, type=GEMM, operation="up", layer=0, launch=0, **of),
        compute(begin + 12, begin + 12 + 8, type=GEMM, operation="up", layer=0, launch=0, **of),
        compute(begin + 30, begin + 40, type=ATTENTION, operation="fa", layer=1, launch=0, **of),
        collective(begin + 35, begin + 45, **of),
        compute(
            begin + 50, begin + 90, type=GEMM, operation="up", layer=0, launch=begin + 44,
            **of | {"phase": BACKWARD},
        ),
    )  # fmt: skip


TABLE = activities(*iteration(3, 0), *iteration(4, 100), *iteration(3, 7, rank=1, scale=0))


def test_by_phase():
    parts = {part.key["phase"]: part for part in breakdown(TABLE, ["phase"])}
    forward, backward = parts["forward"], parts["backward"]
    assert forward.duration_ns.samples == 3
    assert [forward.duration_ns.min, forward.duration_ns.median] == [18, 28]
    # Bubbles of 2 and 10, in iteration 4 also 10 since iteration 3; of rank 1 10 longer.
    assert (forward.launch_ns.min, forward.launch_ns.max) == (12, 22)
    assert backward.launch_ns.median == 10
    assert (backward.preparation_ns.median, backward.call_ns.median) == (4, 6)
    assert backward.duration_ns.median == 40
    assert sum(part.share for part in parts.values()) == pytest.approx(1)
    assert parts["other"].exposed_ns.median == 5
    assert parts["other"].overlap == 0.5


def test_an_operation_holds_its_inner_bubbles():
    (up, *_) = breakdown(TABLE, ["operation", "phase", "rank", "iteration"])
    assert up.key == {"operation": "up", "phase": "backward", "rank": 0, "iteration": 3}
    rows = breakdown(TABLE, ["operation", "phase", "rank", "iteration"])
    (first,) = [
        row
        for row in rows
        if row.key == {"operation": "up", "phase": "forward", "rank": 0, "iteration": 3}
    ]
    assert (first.duration_ns.median, first.operation_ns.median) == (18, 20)


def test_instances_of_operations():
    runs = instances(TABLE)
    first = [int(row) for row in runs.row[:3]]
    assert [TABLE.operations[TABLE.operation[row]] for row in first] == ["up", "fa", "up"]
    assert runs.kernels[:3].tolist() == [2, 1, 1]
    assert (runs.duration_ps[:3] // 1000).tolist() == [20, 10, 40]
    assert runs.overlap[:3].tolist() == [0.0, 0.5, 0.0]


@pytest.mark.parametrize("by", [[name] for name in GRANULARITIES] + [[], list(GRANULARITIES)])
def test_every_granularity_adds_up_to_all_kernels(by):
    parts = breakdown(TABLE, by)
    assert sum(part.activities for part in parts) == len(TABLE)
    assert sum(part.share for part in parts) == pytest.approx(1)
    json.dumps([part.to_dict() for part in parts])


def test_nothing_to_break_down():
    assert breakdown(activities()) == []


def test_an_unknown_granularity():
    with pytest.raises(ConfigError, match=r"goes by rank, device.*not by 'colour'"):
        breakdown(TABLE, ["colour"])


def test_what_lies_outside_iterations_is_left_out():
    assert in_iterations(activities(compute(0, 1), compute(2, 3, iteration=0))).tolist() == [0, 1]
    assert in_iterations(activities(compute(0, 1), compute(2, 3))).all()


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=9))
def test_bands_match_reference(values):
    found = band(values)
    for q, name in ((0.25, "p25"), (0.5, "median"), (0.75, "p75"), (0, "min"), (1, "max")):
        assert getattr(found, name) == pytest.approx(reference.quantile(values, q))
    assert found.samples == len(values)


def test_band_of_nothing():
    assert band([]) is None


wide = st.integers(-(2**61), 2**61)


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 2) | wide, wide), max_size=9))
def test_groups_agree_in_every_column(rows):
    columns = [np.array([row[i] for row in rows], np.int64) for i in range(2)]
    groups = group(*columns)
    keys = sorted({row[:2] for row in rows})
    assert list(zip(*(k.tolist() for k in groups.keys), strict=True)) == keys
    assert [keys[g] for g in groups.of] == [row[:2] for row in rows]
    assert groups.sizes().tolist() == [sum(row[:2] == key for row in rows) for key in keys]


def test_nanoseconds_are_whole_where_they_can_be():
    assert [to_ns(2000), to_ns(1), to_ns(np.int64(3000))] == [2, 0.001, 3]
    assert isinstance(to_ns(2000), int)


fields = st.tuples(
    st.integers(0, 3), st.integers(0, 4), st.integers(-1, 2), st.integers(0, 1), st.integers(0, 2)
)
lines = st.tuples(st.integers(0, 500), st.integers(0, 90), fields)


@given(st.lists(lines, min_size=1, max_size=12), st.sampled_from(["phase", "type", "layer"]))
def test_breakdown_matches_reference(rows, by):
    """Durations of parts: sums over samples, and how these spread."""
    kernels = [
        compute(start, start + length, phase=p, type=t, layer=layer, rank=rank, iteration=number)
        for start, length, (p, t, layer, rank, number) in rows
    ]
    plain = [((k.rank, k.iteration), k, k.end - k.start) for k in kernels]
    names = {"phase": PHASES, "type": TYPES, "layer": {n: n for n in range(-1, 3)}}[by]
    expected = reference.sums(plain, lambda kernel: names[getattr(kernel, by)])
    found = {part.key[by]: part.duration_ns for part in breakdown(activities(*kernels), [by])}
    assert found.keys() == expected.keys()
    for key, samples in expected.items():
        assert found[key].samples == len(samples)
        assert found[key].median == pytest.approx(reference.quantile(samples.values(), 0.5))
        assert found[key].p75 == pytest.approx(reference.quantile(samples.values(), 0.75))
