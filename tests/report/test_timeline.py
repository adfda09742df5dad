"""The Perfetto trace of a pipeline."""

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import projector
from projector.errors import ConfigError
from projector.report import timeline as traces
from projector.report.timeline import messages, timeline_text, trace_events, write_timeline
from projector.schedule.order import BACKWARD, FORWARD, Order
from projector.schedule.registry import ChosenOrder, Setting
from projector.schedule.replay.run import PipelineRun
from projector.schedule.simulate import pipeline_run

MIXTRAL = Path(__file__).parents[2] / "examples" / "mixtral_8x22b_mi355x.yaml"
NS_IN_US = 1e-3

RUNS = {
    "1f1b": ("1f1b", 4, 1, 8, 1e-3, 2e-3, 0.0, 1e-4),
    "interleaved": ("interleaved", 4, 2, 8, 1.1e-6, 1.3e-6, 0.7e-6, 1e-8),
    "zerobubble": ("zerobubble", 3, 1, 5, 0.123456789012, 0.2, 0.1, 0.0),
    "no time": ("1f1b", 2, 1, 3, 0.0, 0.0, 0.0, 0.0),
    "one rank": ("gpipe", 1, 1, 3, 1.0, 1.0, 1.0, 1.0),
}


@pytest.fixture(params=RUNS)
def run(request):
    name, pp, vpp, microbatches, *times = RUNS[request.param]
    return pipeline_run(name, pp, vpp, microbatches, *times)


def events_of(run, phase):
    return [event for event in trace_events(run) if event["ph"] == phase]


def test_operations_are_those_of_the_replay(run):
    order, timeline = run.order, run.timeline
    found = events_of(run, "X")
    assert len(found) == len(order.kind)
    assert [event["tid"] - 1 for event in found] == order.rank.tolist()
    assert [event["args"]["microbatch"] for event in found] == order.microbatch.tolist()
    assert [event["args"]["chunk"] for event in found] == order.chunk.tolist()
    assert [event["args"]["virtual_stage"] for event in found] == order.stage.tolist()
    assert [event["name"][0] for event in found] == ["FBW"[kind] for kind in order.kind]
    starts = np.array([event["ts"] for event in found])
    ends = starts + [event["dur"] for event in found]
    np.testing.assert_allclose(starts, timeline.start_ps / 1e6, rtol=1e-15)
    # Some end a nanosecond early, so that nothing overlaps on a viewer's grid.
    assert np.all(np.abs(ends - timeline.end_ps / 1e6) <= 1.001 * NS_IN_US + 1e-15 * ends)


def test_each_operation_stands_once(run):
    order = run.order
    keys = Counter(
        (event["name"][0], event["args"]["virtual_stage"], event["args"]["microbatch"])
        for event in events_of(run, "X")
    )
    kinds = 3 if order.splits_backward else 2
    assert len(keys) == kinds * order.pp * order.vpp * order.microbatches
    assert set(keys.values()) == {1}


def test_nothing_overlaps_where_times_are_cut_to_nanoseconds(run):
    free_ns = {}
    for event in events_of(run, "X"):
        begin = int(event["ts"] * 1e3)
        assert event["dur"] >= 0.0
        assert begin >= free_ns.get(event["tid"], 0)
        free_ns[event["tid"]] = begin + int(event["dur"] * 1e3)


def test_arrows_join_neighbours_of_the_model(run):
    order, timeline = run.order, run.timeline
    sender, receiver = messages(run)
    rank, stage = order.rank, order.stage
    assert np.all(rank[sender] != rank[receiver])
    assert np.array_equal(order.kind[sender], order.kind[receiver])
    assert np.array_equal(order.microbatch[sender], order.microbatch[receiver])
    step = np.where(order.kind[sender] == FORWARD, 1, -1)
    assert np.array_equal(stage[sender] + step, stage[receiver])
    assert np.all(timeline.end_ps[sender] <= timeline.start_ps[receiver])
    expected = 2 * (order.pp * order.vpp - 1) * order.microbatches if order.pp > 1 else 0
    assert len(sender) == expected
    begins, ends = events_of(run, "s"), events_of(run, "f")
    assert [event["id"] for event in begins] == [event["id"] for event in ends]
    assert [event["tid"] - 1 for event in begins] == rank[sender].tolist()
    assert [event["tid"] - 1 for event in ends] == rank[receiver].tolist()
    for event, row in zip(begins, sender.tolist(), strict=True):
        assert timeline.start_ps[row] <= event["ts"] * 1e6 + 1 <= timeline.end_ps[row] + 1


def test_arrows_of_a_split_backward_leave_w_out():
    run = pipeline_run("zerobubble", 4, 1, 8)
    sender, _ = messages(run)
    assert set(run.order.kind[sender].tolist()) == {FORWARD, BACKWARD}


def test_counters_show_what_the_ranks_hold():
    run = projector.project_performance(MIXTRAL).pipeline
    peak = {}
    for event in events_of(run, "C"):
        rank = int(event["name"].removeprefix("memory of rank "))
        peak[rank] = max(peak.get(rank, 0.0), event["args"]["GiB"])
    assert sorted(peak) == list(range(run.order.pp))
    np.testing.assert_allclose([peak[rank] * 2**30 for rank in sorted(peak)], run.peak_bytes)
    plain = pipeline_run("1f1b", 4, 1, 8)
    assert max(event["args"]["microbatches"] for event in events_of(plain, "C")) == 4.0


def test_ranks_have_names(run):
    names = {
        event["tid"]: event["args"]["name"]
        for event in events_of(run, "M")
        if event["name"] == "thread_name"
    }
    assert names == {rank + 1: f"rank {rank}" for rank in range(run.order.pp)}


def test_the_file_is_json_and_the_same_each_time(tmp_path, run):
    plain, packed = tmp_path / "a.json", tmp_path / "b.json.gz"
    write_timeline(run, plain, "Job “one”")
    write_timeline(run, packed, "Job “one”")
    content = plain.read_bytes()
    assert gzip.decompress(packed.read_bytes()) == content
    again = tmp_path / "c.json.gz"
    write_timeline(run, again, "Job “one”")
    assert again.read_bytes() == packed.read_bytes()
    found = json.loads(content)
    assert found["otherData"]["schedule"] == run.schedule
    assert found["traceEvents"] == list(trace_events(run, "Job “one”"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json.gz", "c.json.gz"]
    assert "NaN" not in timeline_text(run)


def test_a_place_that_cannot_be_written(tmp_path):
    run = pipeline_run("1f1b", 2)
    with pytest.raises(ConfigError, match="no folder") as raised:
        write_timeline(run, tmp_path / "nowhere" / "trace.json")
    assert raised.value.key == "timeline"
    with pytest.raises(ConfigError, match="it is a folder"):
        write_timeline(run, tmp_path)


@pytest.fixture
def both_ways():
    """Two copies of a model of two stages, the second entering at rank 1."""
    order = Order(
        microbatches=1,
        rank_offset=[0, 4, 8],
        kind=[FORWARD, FORWARD, BACKWARD, BACKWARD] * 2,
        chunk=[0, 1, 1, 0, 1, 0, 0, 1],
        microbatch=[0] * 8,
        stage_of=[[0, 3], [1, 2]],
        directions=2,
    )
    durations = np.full((2, 2, 3, 3), 10**9)
    chosen = ChosenOrder(Setting("dualpipe", 2, 1, 2, None), order)
    return PipelineRun("both", chosen, durations, np.zeros((2, 4), np.int64), np.full((2, 2), 0.5))


def test_messages_of_two_directions_stay_in_their_copy(both_ways):
    stage, kind = both_ways.order.stage, both_ways.order.kind
    found = {
        ("FB"[kind[first]], int(stage[first]), int(stage[second]))
        for first, second in zip(*messages(both_ways), strict=True)
    }
    assert found == {("F", 0, 1), ("F", 2, 3), ("B", 1, 0), ("B", 3, 2)}
    assert json.loads(timeline_text(both_ways))["otherData"]["microbatches"] == 2


def test_two_chunks_of_one_rank_send_no_message():
    order = Order(
        microbatches=1,
        rank_offset=[0, 4, 8],
        kind=[FORWARD, FORWARD, BACKWARD, BACKWARD] * 2,
        chunk=[0, 1, 1, 0, 0, 1, 1, 0],
        microbatch=[0] * 8,
        stage_of=[[0, 3], [1, 2]],
    )
    durations = np.full((2, 2, 3, 3), 10**9)
    chosen = ChosenOrder(Setting("1f1b-v", 2, 2, 1, None), order)
    run = PipelineRun("v", chosen, durations, np.zeros((2, 4), np.int64), np.full((2, 2), 0.5))
    stages = [
        (int(order.stage[a]), int(order.stage[b])) for a, b in zip(*messages(run), strict=True)
    ]
    assert sorted(stages) == [(0, 1), (1, 0), (2, 3), (3, 2)]


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("1f1b", 15),
        ("interleaved", 12),
        ("zerobubble", 15),
        ("dualpipe", 14),
        ("zbv-formatted", 15),
    ],
)
def test_a_timeline_that_is_too_long_is_refused(name, most, monkeypatch, tmp_path):
    run = pipeline_run(
        name, 4, 2 if name in ("interleaved", "zbv-formatted") else 1, 16, 1.0, 1.0, 1.0
    )
    operations = len(run.order.kind)
    monkeypatch.setattr(traces, "MOST_OPERATIONS", operations)
    write_timeline(run, tmp_path / "whole.json")
    monkeypatch.setattr(traces, "MOST_OPERATIONS", operations - 1)
    with pytest.raises(
        ConfigError, match=f"have {operations:,} operations.* give {most} .* or fewer"
    ):
        write_timeline(run, tmp_path / "long.json")
    shorter = pipeline_run(run.schedule, 4, run.chosen.setting.vpp, most, 1.0, 1.0, 1.0)
    write_timeline(shorter, tmp_path / "shorter.json")


def test_a_timeline_that_no_fewer_microbatches_shorten_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(traces, "MOST_OPERATIONS", 50)
    with pytest.raises(ConfigError, match="50 at most; give fewer ranks or smaller groups"):
        write_timeline(pipeline_run("dualpipe", 4, 1, 8, 1.0, 1.0, 1.0), tmp_path / "long.json")


def test_a_long_timeline_lists_nothing(monkeypatch, tmp_path):
    run = pipeline_run("1f1b", 4, 1, 10**6, 1e-6, 1e-6, 1e-6)
    monkeypatch.setattr(PipelineRun, "order", None)
    with pytest.raises(ConfigError, match="give 131,072 microbatches or fewer") as error:
        write_timeline(run, tmp_path / "long.json")
    assert error.value.key == "microbatches"
