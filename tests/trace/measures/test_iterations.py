"""Iterations of devices, throughput, collectives, stragglers, gaps and sharding, by hand."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.errors import ConfigError
from projector.trace.activity import BACKWARD, GEMM, MOVE
from projector.trace.measures.collectives import (
    communication_rows,
    matches,
    rank_spreads,
    sharding_times,
    stragglers,
)
from projector.trace.measures.iterations import (
    idle_times,
    iteration_times,
    rank_summaries,
    throughput,
)
from projector.trace.measures.links import link_times
from projector.trace.rank import group_name, rank_distances
from synthetic import activities, collective, compute, copy

REDUCE = {"group": "0: ranks 0-1", "detail": {"collective": "allreduce"}, "bytes": 1000}


def two_ranks():
    """Rank 1 computes 20 longer in iteration 1 and 10 shorter in iteration 2."""
    return activities(
        compute(0, 50, iteration=1, operation="up", launch=0),
        collective(50, 90, iteration=1, **REDUCE),
        compute(0, 70, iteration=1, operation="up", rank=1, launch=0),
        collective(70, 90, iteration=1, rank=1, **REDUCE),
        compute(100, 150, iteration=2, operation="up", launch=95),
        collective(145, 160, iteration=2, **REDUCE),
        compute(100, 140, iteration=2, operation="up", rank=1, launch=0),
        collective(140, 160, iteration=2, rank=1, **REDUCE),
        copy(160, 170, iteration=2),
    )


def test_iterations_of_devices():
    rows = iteration_times(two_ranks())
    assert [(r.rank, r.iteration) for r in rows] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    first, second, *_ = rows
    assert (first.span_ns, first.idle_ns, first.compute_ns, first.launch_ns) == (90, 0, 50, 0)
    assert (second.launch_ns, second.preparation_ns, second.call_ns) == (50, 45, 5)
    assert (second.communication_ns, second.exposed_communication_ns) == (15, 10)
    assert (second.memcpy_ns, second.exposed_memcpy_ns, second.duration_ns) == (10, 10, 100)


def test_what_the_next_iteration_hides_is_not_exposed():
    table = activities(
        compute(0, 10, iteration=1),
        collective(10, 40, iteration=1),
        compute(20, 50, iteration=2),
        copy(5, 15, iteration=1),
        compute(8, 8, iteration=2),
    )
    first, second = iteration_times(table)
    assert (first.exposed_communication_ns, first.exposed_memcpy_ns) == (10, 0)
    assert (second.start_ns, second.span_ns, second.idle_ns) == (8, 42, 0)


def test_a_trace_without_iterations_is_one():
    (row,) = iteration_times(activities(compute(5, 10), compute(20, 30)))
    assert (row.iteration, row.span_ns, row.idle_ns, row.kernel_ns) == (-1, 25, 10, 15)
    assert iteration_times(activities()) == []


spans = st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda s: (s[0], s[0] + s[1]))
kernels = st.builds(
    lambda make, span, rank: make(*span, rank=rank),
    st.sampled_from([compute, collective, copy]), spans, st.integers(0, 2),
)  # fmt: skip


@given(st.lists(kernels, min_size=1, max_size=12))
def test_one_iteration_is_the_summary(rows):
    table = activities(*rows)
    shared = [
        "rank", "device", "span_ns", "idle_ns", "compute_ns", "communication_ns",
        "exposed_communication_ns", "memcpy_ns", "exposed_memcpy_ns",
    ]  # fmt: skip
    found = [[getattr(r, name) for name in shared] for r in iteration_times(table)]
    assert found == [[getattr(r, name) for name in shared] for r in rank_summaries(table)]


@given(st.lists(st.tuples(spans, st.integers(0, 2)), min_size=1, max_size=12))
def test_computing_of_an_iteration_is_a_union(rows):
    table = activities(*(compute(*span, iteration=number) for span, number in rows))
    for found in iteration_times(table):
        mine = [span for span, number in rows if number == found.iteration]
        assert found.compute_ns == sum(any(s <= t < e for s, e in mine) for t in range(90))
        assert found.kernel_ns == sum(e - s for s, e in mine)


def test_throughput_is_that_of_the_slowest_device():
    found = throughput(iteration_times(two_ranks()), tokens=1000)
    # Iteration 1: 70 of rank 1. Iteration 2: 50 and 50 of bubble of rank 0, 40 and 30 of rank 1.
    assert (found.iteration_ns.min, found.iteration_ns.max) == (70, 100)
    assert found.tokens_per_s.max == pytest.approx(1000 / 70e-9)
    assert found.slowest == {1: 1, 0: 1}
    json.dumps(found.to_dict())


def test_throughput_of_nothing():
    assert throughput([], tokens=1) is None
    with pytest.raises(ConfigError, match="positive number of tokens, not 0"):
        throughput([], tokens=0)
    for many in (float("inf"), 1e308):
        with pytest.raises(ConfigError, match=r"not .*; 1e\+18 at most"):
            throughput([], tokens=many)


def test_collectives_are_matched_across_ranks():
    (row,) = communication_rows(two_ranks())
    assert (row.collective, row.group, row.kernels, row.bytes) == (
        "allreduce", "0: ranks 0-1", 4, 1000,
    )  # fmt: skip
    # The shortest of each: 20 and 15. Rank 0 waited 20 of its 40, rank 1 then 5 of its 20.
    assert (row.transfer_ns.samples, row.transfer_ns.min, row.transfer_ns.max) == (2, 15, 20)
    assert row.waiting == pytest.approx(25 / 95)
    assert row.bytes_per_s == pytest.approx(1000 / 17.5e-9)
    assert (row.iteration_ns.max, row.exposed_ns.min) == (40, 10)
    json.dumps(row.to_dict())


def test_collectives_that_cannot_be_matched_stand_alone():
    table = activities(
        collective(0, 10, **REDUCE),
        collective(20, 30, **REDUCE),
        collective(5, 15, rank=1, **REDUCE),
    )
    assert matches(table).ranks.tolist() == [1, 1, 1]
    assert communication_rows(table)[0].transfer_ns is None
    unknown = activities(collective(0, 10), collective(0, 20, rank=1))
    assert matches(unknown).ranks.tolist() == [1, 1]
    (row,) = communication_rows(unknown)
    assert (row.collective, row.group, row.bytes, row.bytes_per_s) == ("ncclKernel", "", None, None)


def test_no_communication():
    assert communication_rows(activities(compute(0, 10))) == []


def test_stragglers():
    first, second = stragglers(two_ranks())
    assert (first.compute_ns.median, second.compute_ns.median) == (50, 55)
    assert first.relative == pytest.approx(50 / 52.5)
    assert (first.slowest, second.slowest) == (1, 1)
    assert (first.waiting_ns.max, second.waiting_ns.max) == (20, 5)
    assert (first.late_ns.max, second.late_ns.max) == (5, 20)
    assert (first.last, second.last) == (0.5, 0.5)
    json.dumps([first.to_dict(), second.to_dict()])


def test_one_rank_waits_for_nobody_known():
    (row,) = stragglers(activities(compute(0, 10), collective(10, 20, **REDUCE)))
    assert (row.waiting_ns, row.late_ns, row.last, row.relative) == (None, None, None, 1.0)


def test_ranks_spread():
    (row,) = rank_spreads(two_ranks())
    assert (row.operation, row.ranks, row.per_rank_ns) == ("up", 2, [50, 55])
    assert (row.slowest, row.fastest, row.spread) == (1, 0, 1.1)
    assert rank_spreads(activities()) == []


def test_gaps():
    table = activities(
        compute(0, 10, launch=0),
        compute(4, 6, stream=8),
        collective(30, 40, launch=22),
        compute(60, 70),
        compute(100, 110, launch=50, iteration=3),
        compute(120, 120, launch=0),
    )
    (found,) = idle_times(table, most=2)
    assert (found.idle_ns, found.gaps) == (80, 4)
    assert (found.late_ns, found.called_ns, found.unknown_ns) == (12, 48, 20)
    assert [gap.to_dict() for gap in found.longest] == [
        {
            "start_ns": 70, "duration_ns": 30, "late_ns": 0, "before": "gemm", "after": "gemm",
            "iteration": 3, "phase": "forward",
        },
        {
            "start_ns": 10, "duration_ns": 20, "late_ns": 12, "before": "gemm",
            "after": "ncclKernel", "iteration": -1, "phase": "other",
        },
    ]  # fmt: skip
    json.dumps(found.to_dict())


@given(st.lists(kernels, min_size=1, max_size=12))
def test_gaps_are_what_is_idle(rows):
    table = activities(*rows)
    summaries, gaps = rank_summaries(table), idle_times(table)
    assert [s.idle_ns for s in summaries] == [g.idle_ns for g in gaps]
    assert all(g.late_ns + g.called_ns + g.unknown_ns == g.idle_ns for g in gaps)


def test_sharding_fills_and_empties_a_pipeline():
    more = {"iteration": 1, "type": GEMM}
    table = activities(
        collective(0, 30, iteration=1),
        compute(20, 25, iteration=1, type=MOVE),
        compute(30, 50, **more),
        collective(50, 60, iteration=1),
        compute(60, 80, **more),
        compute(80, 100, phase=BACKWARD, **more),
        collective(90, 140, iteration=1),
        compute(200, 210, iteration=2),
    )
    (row,) = sharding_times(table)
    assert (row.filling_ns.median, row.between_ns.median, row.emptying_ns.median) == (25, 10, 40)
    assert (row.copies_ns.median, row.communication_ns.median) == (5, 90)
    assert sharding_times(activities(compute(0, 10))) == []
    json.dumps(row.to_dict())


def test_operations_in_which_ranks_differ_most_come_first():
    rows = rank_spreads(
        activities(
            compute(0, 100, operation="long"), compute(0, 101, operation="long", rank=1),
            compute(200, 210, operation="short"), compute(200, 230, operation="short", rank=1),
        )
    )  # fmt: skip
    assert [(row.operation, row.spread) for row in rows] == [("short", 3.0), ("long", 1.01)]


def test_what_a_late_rank_costs():
    # Ranks compute 30, 10, 20 and 90 ns of 100: the last one costs what it has over the next.
    lengths = (30, 10, 20, 90)
    table = activities(
        *(compute(0, length, rank=rank, iteration=0) for rank, length in enumerate(lengths)),
        *(collective(95, 100, rank=rank, iteration=0, **REDUCE) for rank in range(4)),
    )
    assert [row.cost_ns for row in stragglers(table)] == [0.0, 0.0, 0.0, 60.0]
    (row,) = rank_spreads(table)
    # The next slowest stays.
    assert row.cost_ns == 90.0 - 30.0
    pair = activities(*(compute(0, 100 + 40 * rank, rank=rank, iteration=0) for rank in range(2)))
    assert [row.cost_ns for row in stragglers(pair)] == [0.0, 40.0]
    (alone,) = stragglers(activities(compute(0, 10, iteration=0)))
    assert alone.cost_ns is None


FSDP = {"detail": {"collective": "_allgather_base"}, "bytes": 1000, "iteration": 0}


def in_group(number, ranks, begin, lengths, **more):
    """A collective of two ranks: one waits, and both end together."""
    name = f"{number}: ranks {ranks[0]}-{ranks[1]}"
    end = begin + max(lengths)
    return [
        collective(end - length, end, **({"rank": rank, "group": name} | FSDP | more))
        for rank, length in zip(ranks, lengths, strict=True)
    ]


def test_why_waits_are_blank():
    def reasons(*kernels, **more):
        return [row.waiting_unknown for row in stragglers(activities(*kernels, **more))]

    ranks = range(2)
    work = [compute(0, 10, rank=rank, iteration=0) for rank in ranks]
    named = REDUCE | {"iteration": 0}
    both = [collective(10, 20, rank=rank, **named) for rank in ranks]
    assert reasons(*work, *both) == [None, None]
    assert reasons(work[0], both[0]) == ["no other rank is in the trace"]
    assert reasons(*work) == ["no rank communicates in an iteration"] * 2
    assert reasons(*work, both[0]) == [
        "no other rank of its groups is in the trace",
        "it does not communicate in an iteration, other ranks do",
    ]
    nameless = [collective(10, 20, rank=rank, iteration=0) for rank in ranks]
    assert set(reasons(*work, *nameless)) == {
        "the trace does not tell the groups of its collectives"
    }
    uneven = [*both, collective(30, 40, rank=1, **named)]
    assert set(reasons(*work, *uneven)) == {
        "ranks of its groups differ in the number of a collective"
    }
    assert reasons(*work, *uneven, nameless[0])[0] == (
        "the trace does not tell the groups of its collectives; "
        "ranks of its groups differ in the number of a collective"
    )


def test_what_a_late_link_costs():
    # The shortest kernels take 10, 30, 12 and 20.
    table = activities(
        *in_group(0, (0, 1), 0, (10, 25)), *in_group(1, (2, 3), 0, (30, 40)),
        *in_group(2, (4, 5), 0, (12, 12)), *in_group(3, (6, 7), 0, (20, 22)),
        *(compute(10, 34, rank=rank, iteration=0) for rank in (2, 3)),
    )  # fmt: skip
    late, *others = link_times(table)
    assert (late.group, late.peers, late.transfer_ns.median) == ("1: ranks 2-3", 3, 30.0)
    assert (late.peers_ns, late.relative) == (12.0, 2.5)
    # It takes 10 longer than the next slowest, and nothing hides 16 of the longer kernel's 40.
    assert late.cost_ns == 10.0
    assert [(row.group[0], row.cost_ns) for row in others] == [("3", 0.0), ("2", 0.0), ("0", 0.0)]
    json.dumps(late.to_dict())
    hidden = activities(
        *in_group(0, (0, 1), 0, (10, 10)), *in_group(1, (2, 3), 0, (30, 30)),
        *(compute(0, 27, rank=rank, iteration=0) for rank in (2, 3)),
    )  # fmt: skip
    assert [row.cost_ns for row in link_times(hidden)] == [3.0, 0.0]


def test_links_are_compared_with_those_alone_that_do_the_same():
    def costs(*others):
        table = activities(*in_group(0, (0, 1), 0, (30, 30)), *others)
        return [row.peers for row in link_times(table)]

    assert costs() == []
    assert costs(*in_group(1, (2, 3), 0, (10, 10))) == [1, 1]
    assert costs(*in_group(1, (2, 3), 0, (10, 10), bytes=999)) == []
    assert costs(*in_group(1, (2, 3), 0, (10, 10), iteration=1)) == []
    other = {"detail": {"collective": "allreduce"}}
    assert costs(*in_group(1, (2, 3), 0, (10, 10), **other)) == []
    far = {"group": "1: ranks 2,10"}
    assert costs(*in_group(1, (2, 10), 0, (10, 10), **far)) == []
    # One rank alone has no transfer.
    assert costs(in_group(1, (2, 3), 0, (10, 10))[0]) == []


@pytest.mark.parametrize(
    ("ranks", "distances"),
    [
        ((3,), "0"),
        ((4, 5, 6, 7), "0-3"),
        ((1, 9, 17), "0-16 by 8"),
        ((1, 2, 9), "0-1,8"),
        ((4, 12), "0,8"),
        ((), ""),
    ],
)
def test_the_name_of_a_group_tells_the_distances_of_its_ranks(ranks, distances):
    name = group_name({"group": "dp: ranks x", "group_ranks": ranks}, {})
    assert rank_distances(name) == distances
