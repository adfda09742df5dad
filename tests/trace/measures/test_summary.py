"""Where the time of a device went, on tables whose answer can be seen."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.trace.measures.iterations import rank_summaries
from synthetic import Kernel, activities, collective, compute, copy


def test_one_of_each():
    table = activities(
        compute(100, 200),
        compute(150, 180, stream=8),  # within the first one
        collective(190, 260),
        copy(250, 300),
        Kernel(name="Memset", start=320, end=330),
        compute(310, 310),  # takes no time, and yet was there
    )
    (summary,) = rank_summaries(table)
    assert summary.to_dict() == {
        "rank": 0,
        "device": 0,
        "span_ns": 230,
        "busy_ns": 210,
        "idle_ns": 20,
        "compute_ns": 110,
        "communication_ns": 70,
        "exposed_communication_ns": 60,
        "memcpy_ns": 50,
        "exposed_memcpy_ns": 40,
        "kernels": 4,
        "copies": 1,
        "fills": 1,
        "operators": 0,
    }


def test_devices_and_ranks_are_apart():
    table = activities(
        compute(0, 10), compute(50, 60, device=1), compute(20, 30), collective(5, 40, rank=1)
    )
    spans = [(s.rank, s.device, s.span_ns, s.idle_ns) for s in rank_summaries(table)]
    assert spans == [(0, 0, 30, 10), (0, 1, 10, 0), (1, 1, 35, 0)]


def test_nothing():
    assert rank_summaries(activities()) == []


spans = st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda s: (s[0], s[0] + s[1]))
kernels = st.builds(
    lambda make, span: make(*span), st.sampled_from([compute, collective, copy]), spans
)


@given(st.lists(kernels, min_size=1, max_size=12))
def test_matches_a_count_of_every_nanosecond(rows):
    (summary,) = rank_summaries(activities(*rows))
    running = [{k.klass_() for k in rows if k.start <= t < k.end} for t in range(100)]
    first, last = min(k.start for k in rows), max(k.end for k in rows)
    inside = running[first:last]
    assert summary.span_ns == last - first
    assert summary.idle_ns == sum(not r for r in inside)
    assert summary.busy_ns == sum(bool(r) for r in inside)
    for klass, name in enumerate(("compute", "communication", "memcpy")):
        assert getattr(summary, f"{name}_ns") == sum(klass in r for r in inside)
    assert summary.exposed_communication_ns == sum(1 in r and 0 not in r for r in inside)
    assert summary.exposed_memcpy_ns == sum(r == {2} for r in inside)
    parts = ("compute_ns", "exposed_communication_ns", "exposed_memcpy_ns", "idle_ns")
    assert sum(getattr(summary, p) for p in parts) == summary.span_ns


@pytest.mark.parametrize("order", list(itertools.permutations(range(3)))[:3])
def test_the_order_of_lines_does_not_matter(order):
    rows = [compute(0, 10), collective(5, 20), compute(30, 40)]
    assert rank_summaries(activities(*[rows[i] for i in order])) == rank_summaries(
        activities(*rows)
    )
