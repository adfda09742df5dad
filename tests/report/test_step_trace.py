"""The trace of a whole step, and what the reader of traces makes of it."""

import json
from itertools import pairwise

import numpy as np
import pytest
from handmade import projected_terms, small_timeline

from projector.projection.terms import BREAKDOWN
from projector.report.step_trace import HOST, Head, Member, step_lines
from projector.trace.activity import PHASES, TYPES
from projector.trace.alignment import align
from projector.trace.read import load_trace

MEMBER = Member(rank=8, device=0, groups={"DP": tuple(range(8, 16))})
HEAD = Head("model on 16 x device", "amd", "device", 16, 8, (MEMBER,), {"producer": "projector 0"})


@pytest.fixture(scope="module")
def timeline():
    return small_timeline()


@pytest.fixture(scope="module")
def document(timeline):
    return json.loads("".join(step_lines(timeline, HEAD)))


@pytest.fixture(scope="module")
def trace(timeline, tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "step.json"
    path.write_text("".join(step_lines(timeline, HEAD)))
    return load_trace(path)


@pytest.fixture(scope="module")
def activities(trace):
    return align(trace)


def spans(document):
    """Return complete events by thread, on the grid of a viewer: whole nanoseconds."""
    threads = {}
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            begin = int(event["ts"] * 1e3)
            threads.setdefault((event["pid"], event["tid"]), []).append(
                (begin, begin + int(event["dur"] * 1e3), event["name"])
            )
    return threads


def test_events_of_a_thread_nest(document):
    for thread, events in spans(document).items():
        open_until = []
        for begin, end, name in sorted(events, key=lambda e: (e[0], -e[1])):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or end <= open_until[-1], (thread, name)
            open_until.append(end)


def test_nothing_overlaps_on_a_stream(document):
    for (process, _), events in spans(document).items():
        if process < HOST:
            for before, after in pairwise(sorted(events)):
                assert before[1] <= after[0]


def test_arrows_begin_and_end_in_events(document):
    begins = {}
    inside = spans(document)
    for event in document["traceEvents"]:
        if event["ph"] in "sf":
            now = int(event["ts"] * 1e3)
            assert any(a <= now <= b for a, b, _ in inside[event["pid"], event["tid"]])
            begins.setdefault((event["cat"], event["id"]), []).append((event["ph"], now))
    kinds = {category for category, _ in begins}
    assert kinds == {"ac2g", "fwdbwd"}
    for ends in begins.values():
        assert [phase for phase, _ in ends] == ["s", "f"]
        assert ends[0][1] <= ends[1][1]


def test_times_come_back_to_the_picosecond(timeline, activities):
    work = timeline.track != 8
    order = np.lexsort([(timeline.start_ps + timeline.duration_ps)[work], timeline.start_ps[work]])
    for column, expected in (
        (activities.start_ps, timeline.start_ps),
        (activities.end_ps, timeline.start_ps + timeline.duration_ps),
        (activities.launch_ps, timeline.launch_ps // 1000 * 1000),
        (activities.launch_end_ps, timeline.launch_end_ps // 1000 * 1000),
        (activities.layer, timeline.layer),
    ):
        np.testing.assert_array_equal(column, expected[work][order])


def test_the_breakdown_comes_back(timeline, trace):
    (terms,) = [projected_terms(rank) for rank in trace.ranks]
    assert terms.keys() == {0}
    expected = dict(zip(BREAKDOWN, timeline.terms_ps.tolist(), strict=True))
    assert terms[0] == {name: ps for name, ps in expected.items() if ps or name in terms[0]}
    assert sum(terms[0].values()) == timeline.step_ps


def test_what_an_activity_is_comes_back(activities):
    def of(row):
        return (
            activities.operations[activities.operation[row]],
            PHASES[activities.phase[row]],
            TYPES[activities.type[row]],
            int(activities.layer[row]),
            int(activities.iteration[row]),
        )

    found = [of(row) for row in range(len(activities))]
    assert found[0] == ("_allgather_base", "forward", "communication", 0, 0)
    assert found[1] == ("attention.qkv", "forward", "gemm", 0, 0)
    assert found[2] == ("attention.core", "forward", "attention", 0, 0)
    assert found[-3] == ("attention.qkv", "backward", "gemm", 0, 0)
    assert found[-2] == ("_reduce_scatter_base", "backward", "communication", 0, 0)
    assert found[-1] == ("adam", "optimizer", "vector", -1, 0)
    assert activities.forward[-3] == 1
    assert activities.groups[activities.group[0]] == "DP: ranks 8-15"
    assert activities.bytes[0] == 8_000_000
