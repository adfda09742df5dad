"""Memory snapshots: what torch and its viewer expect of one."""

import pickle
import pickletools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.errors import ConfigError
from projector.report.memory_snapshot import (
    ROUNDING,
    SEGMENT_ROUNDING,
    Allocation,
    Frame,
    save_snapshot,
    snapshot_of,
)

FRAMES = (Frame("forward", 0, "attention.qkv"), Frame("layer", 3, "layer 3"))

VIEWER_READS = {
    "PROTO", "APPEND", "APPENDS", "LIST", "TUPLE", "NEWFALSE", "NEWTRUE", "NONE", "BINGET",
    "BININT", "BININT1", "BININT2", "EMPTY_DICT", "EMPTY_LIST", "FRAME", "LONG1", "LONG_BINGET",
    "MARK", "MEMOIZE", "SETITEMS", "SETITEM", "DICT", "SHORT_BINUNICODE", "BINUNICODE", "STOP",
    "EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "BINFLOAT", "BINPUT", "LONG_BINPUT",
}  # fmt: skip
"""Operations of pickle that the viewer's own reader of them knows."""


def allocation(num_bytes, start_ps, end_ps, device=0, category="activations"):
    return Allocation(device, num_bytes, start_ps, end_ps, category, FRAMES)


times = st.integers(-5, 20)


@st.composite
def allocations(draw):
    start = draw(times)
    end = draw(st.none() | st.integers(start, 25))
    return allocation(draw(st.integers(0, 5000)), start, end, draw(st.integers(0, 1)))


def replayed(snapshot, device):
    """Replay the events as the viewer does; return bytes after each time and what is left."""
    live, after, held = {}, {}, 0
    segment = snapshot["segments"][device]
    first, *events = snapshot["device_traces"][device]
    assert first["action"] == "segment_alloc"
    assert (first["addr"], first["size"]) == (segment["address"], segment["total_size"])
    for event in events:
        if event["action"] == "alloc":
            end = event["addr"] + event["size"]
            assert all(a + size <= event["addr"] or a >= end for a, size in live.items())
            assert segment["address"] <= event["addr"]
            assert end <= segment["address"] + segment["total_size"]
            live[event["addr"]] = event["size"]
            held += event["size"]
        elif event["action"] == "free_requested":
            assert live[event["addr"]] == event["size"]
        else:
            assert event["action"] == "free_completed"
            held -= live.pop(event["addr"])
        after[event["time_us"]] = held
    return after, live


@given(st.lists(allocations(), max_size=30))
def test_events_tell_what_is_held(rows):
    rows = [row._replace(start_ps=row.start_ps * 10**6,
                         end_ps=None if row.end_ps is None else row.end_ps * 10**6)
            for row in rows]  # fmt: skip
    snapshot = snapshot_of(rows, [0, 10**7])
    for device in range(2):
        mine = [row for row in rows if row.device == device]
        after, live = replayed(snapshot, device)
        for time_us, held in after.items():
            now = time_us * 10**6
            assert held == sum(
                row.num_bytes
                for row in mine
                if row.start_ps <= now and (row.end_ps is None or row.end_ps > now)
            )
        segment = snapshot["segments"][device]
        assert segment["total_size"] % SEGMENT_ROUNDING == 0
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
        at = segment["address"]
        kept = {}
        for block in segment["blocks"]:
            assert block["address"] == at
            at += block["size"]
            if block["state"] == "active_allocated":
                assert block["size"] % ROUNDING == 0
                kept[block["address"]] = block["requested_size"]
        assert kept == live
        assert segment["allocated_size"] == sum(kept.values())
    assert snapshot["segments"][1]["total_size"] >= 10**7


def test_the_viewer_reads_the_pickle(tmp_path):
    rows = [allocation(3 << 30, i, None if i % 2 else i + 2) for i in range(3000)]
    path = tmp_path / "s.pickle"
    save_snapshot(snapshot_of(rows, [0]), path)
    content = path.read_bytes()
    assert {operation.name for operation, _, _ in pickletools.genops(content)} <= VIEWER_READS
    # Its numbers are floats of 64 bits.
    for _, argument, _ in pickletools.genops(content):
        assert not isinstance(argument, int) or abs(argument) < 2**53
    found = pickle.loads(content)
    assert found["segments"][0]["allocated_size"] == 1500 * (3 << 30)
    # A viewer that knows categories fails where this one is missing.
    assert "unknown" in {event["category"] for event in found["device_traces"][0]}


def test_room_is_used_again():
    rows = [allocation(1 << 20, i, i + 1) for i in range(50)]
    snapshot = snapshot_of(rows, [0])
    assert snapshot["segments"][0]["total_size"] == SEGMENT_ROUNDING
    assert {e["addr"] for e in snapshot["device_traces"][0]} == {snapshot["segments"][0]["address"]}


def test_what_ends_before_it_starts_is_refused():
    with pytest.raises(ConfigError, match="ends before it starts"):
        snapshot_of([allocation(1, 2, 1)], [0])


def test_a_place_that_cannot_be_written(tmp_path):
    with pytest.raises(ConfigError, match="no folder") as raised:
        save_snapshot({}, tmp_path / "nowhere" / "s.pickle")
    assert raised.value.key == "memory_snapshot"
