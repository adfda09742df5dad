"""Spoilt traces: read as far as possible, with the place of what is wrong."""

import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import projector as pj
from mutilations import DATA, NAMES, excerpt, mutilate, read_mutilated
from projector.errors import ConfigError
from projector.trace import pieces
from projector.trace.events import Trace
from projector.trace.read import load_trace

MUTILATIONS = int(os.environ.get("PROJECTOR_MUTILATIONS", "240"))
"""How many spoilt traces are read; the whole count was 10,000."""

CHUNKS = 8


def span(**more: Any) -> dict[str, Any]:
    return {
        "ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 10, "dur": 2,
        "args": {"device": 0, "stream": 7, "correlation": 5},
    } | more  # fmt: skip


def read_text(path: Path, text: str | bytes) -> Trace:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_trace(path)


def texts(trace: Trace) -> str:
    return " | ".join(f"{p.where}: {p.text}" for p in trace.problems)


@pytest.mark.rotated
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_mutilated_traces_are_survived(chunk: int, tmp_path: Path) -> None:
    seeds = range(chunk, MUTILATIONS, CHUNKS)
    found = [read_mutilated(seed, tmp_path) for seed in seeds]
    assert sum(trace is not None for trace in found) > len(seeds) / 2


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_what_is_left_can_be_measured(chunk: int, tmp_path: Path) -> None:
    for seed in range(chunk, MUTILATIONS // 6, CHUNKS):
        data, name = mutilate(seed)
        (tmp_path / name).write_bytes(data)
        try:
            found = pj.load_trace(tmp_path / name)
        except ConfigError:
            continue
        for result in (found.summary(), found.operations(), found.overlap(), found.launch()):
            json.dumps(result.to_dict(), allow_nan=False)


@pytest.mark.parametrize("name", NAMES)
def test_one_lost_byte_costs_one_event(name: str, tmp_path: Path) -> None:
    data = excerpt(name)
    whole = read_text(tmp_path / "whole.json", data).ranks[0].events
    first, last = data.index(b'"traceEvents"') + 20, data.rindex(b"]")
    r = random.Random(name)
    for _ in range(20):
        at = r.randrange(first, last)
        trace = read_text(tmp_path / "t.json", data[:at] + data[at + 1 :])
        assert len(whole) - len(trace.ranks[0].events) in {0, 1}


@pytest.mark.parametrize("size", [2_000, 1 << 23])
def test_reading_goes_on_behind_a_broken_event(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", size)
    events = [json.dumps(span(ts=at)) for at in range(100)]
    events[40] = events[40].replace('"name": "k"', '"name": "k')
    events[60] = events[60][:-30]
    text = '{"traceEvents": [' + ", ".join(events) + "]}"
    trace = read_text(tmp_path / "t.json", text)
    kept = [at for at in range(100) if at not in {40, 60}]
    assert (trace.ranks[0].events.start_ps // 10**6).tolist() == kept
    first, second = (text.index(event) for event in (events[40], events[60]))
    assert f"byte {first:,}, byte {second:,}: an event cannot be parsed" in texts(trace)
    assert "98 events could be read" in texts(trace)


@pytest.mark.parametrize("size", [2_000, 1 << 23])
def test_truncated_file(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", size)
    text = '{"baseTimeNanoseconds": 5, "traceEvents": [' + ", ".join([json.dumps(span())] * 100)
    trace = read_text(tmp_path / "t.json", text[:-20])
    assert len(trace.ranks[0].events) == 99
    begin = text.rindex('{"ph"')
    assert texts(trace).startswith(f"byte {begin:,}: the file breaks off here")
    assert trace.ranks[0].zero_ns == 10_005


def test_truncated_and_damaged_gzip(tmp_path: Path) -> None:
    packed = (DATA / "mi300x_resnet_ddp8.json.gz").read_bytes()
    path = tmp_path / "t.json.gz"
    half = read_text(path, packed[: len(packed) // 2])
    assert len(half.ranks[0].events) > 100
    assert f"byte {len(packed) // 2:,} of the packed file: the packed file is cut off" in texts(
        half
    )
    spoilt = bytearray(packed)
    spoilt[700_000:700_050] = bytes(50)
    trace = read_text(path, bytes(spoilt))
    assert len(trace.ranks[0].events) > 100
    assert "the packed file is damaged" in texts(trace)


def test_gzip_of_several_members_and_zeros_behind(tmp_path: Path) -> None:
    text = json.dumps([span()] * 50).encode()
    packed = gzip.compress(text[:777]) + gzip.compress(text[777:])
    for behind, problems in ((b"", 0), (bytes(512), 0), (b"garbage", 2)):
        trace = read_text(tmp_path / "t.json.gz", packed + behind)
        assert len(trace.ranks[0].events) == 50
        assert len(trace.problems) == problems


def test_events_without_end_of_their_list(tmp_path: Path) -> None:
    one = json.dumps(span())
    tail = '"baseTimeNanoseconds": 7}'
    lost_end = read_text(tmp_path / "t.json", f'{{"traceEvents": [{one}, {one}, {tail}')
    assert (len(lost_end.ranks[0].events), lost_end.ranks[0].zero_ns) == (2, 10_007)
    early_end = read_text(tmp_path / "t.json", f'{{"traceEvents": [{one}], {one}], {tail}')
    assert (len(early_end.ranks[0].events), early_end.ranks[0].zero_ns) == (2, 10_007)
    no_begin = read_text(tmp_path / "t.json", f'{{"traceEvents": {one}, {one}], {tail}')
    assert (len(no_begin.ranks[0].events), no_begin.ranks[0].zero_ns) == (2, 10_007)
    for trace in (lost_end, early_end, no_begin):
        assert trace.problems


def test_head_that_cannot_be_parsed_still_tells_its_rank(tmp_path: Path) -> None:
    text = (
        '{"schemaVersion": 1,, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}], '
        '"distributedInfo": {"rank": 5, "world_size": 8}, "traceEvents": '
    )
    trace = read_text(tmp_path / "t.json", text + json.dumps([span()]) + "}")
    rank = trace.ranks[0]
    assert (rank.rank, rank.world_size, rank.devices) == (5, 8, ("NVIDIA H100",))
    assert "before the events cannot be parsed" in texts(trace)


@pytest.mark.parametrize("size", [700, 1 << 23])
def test_numbers_that_are_not_finite(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # github.com/pytorch/kineto/issues/105: the bandwidth of a copy that took no time.
    monkeypatch.setattr(pieces, "PIECE_BYTES", size)
    monkeypatch.setattr(pieces, "_WINDOW", 100)
    args = '{"device": 0, "stream": 7, "bytes": 200, "memory bandwidth (GB/s)": %s}'
    events = [
        json.dumps(span(args="ARGS")).replace('"ARGS"', args % value)
        for value in ("inf", "-inf", "nan", "-nan", "NaN", "Infinity")
    ]
    trace = read_text(tmp_path / "t.json", '{"traceEvents": [' + ",\n".join(events) + "]}")
    assert len(trace.ranks[0].events) == 6
    assert not trace.problems


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    good = json.dumps(span(name="größe"), ensure_ascii=False).encode()
    bad = good.replace("ö".encode(), b"\xff")
    half = json.dumps(span(name="\ud800")).encode()
    trace = read_text(tmp_path / "t.json", b"[" + b", ".join((good, bad, half)) + b"]")
    assert trace.ranks[0].names == ("größe", "gr?ße", "?")
    assert "not UTF-8" in texts(trace)


def test_nothing_is_cut_within_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of objects within an event look like events to whoever cuts the file."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", 900)
    monkeypatch.setattr(pieces, "_WINDOW", 100)
    inside = [{"name": f"object {i}", "id": i} for i in range(40)]
    events = [span(ts=at, args={"device": 0, "stream": 7, "x": inside}) for at in range(10)]
    trace = read_text(tmp_path / "t.json", json.dumps({"traceEvents": events}))
    assert len(trace.ranks[0].events) == 10
    assert not trace.problems


@pytest.mark.parametrize(
    ("spoilt", "says", "kept"),
    [
        ({"ts": None}, "without a stamp", 2),
        ({"ts": "soon"}, "without a stamp", 2),
        ({"ts": 1e300}, "without a stamp|far from the others", 2),
        ({"ts": 1e17}, "far from the others", 2),
        ({"dur": None}, "no duration", 3),
        ({"dur": -5}, "a duration that cannot be", 3),
        ({"dur": 1e16}, "a duration that cannot be", 3),
        ({"ph": None}, "without a phase", 2),
        ({"name": None}, "no name", 3),
        ({"name": ["k"]}, "", 3),
        ({"args": 7}, "arguments", 3),
        ({"args": {"correlation": "x"}}, "'correlation'", 3),
        ({"args": {"grid": "wide", "bytes": "many"}}, "", 3),
        ({"pid": {}, "tid": []}, "", 3),
    ],
)
def test_values_that_cannot_be(
    spoilt: dict[str, Any], says: str, kept: int, tmp_path: Path
) -> None:
    trace = read_text(tmp_path / "t.json", json.dumps([span(), span(**spoilt), span(ts=20)]))
    rank = trace.ranks[0]
    assert len(rank.events) == kept
    assert bool(trace.problems) == bool(says)
    if says:
        assert any(part in texts(trace) for part in says.split("|"))
        assert "event 2" in texts(trace)
    assert rank.events.duration_ps.min() >= 0
    np.testing.assert_array_equal(rank.events.start_ps[[0, -1]], [0, 10_000_000])


def test_what_is_wrong_is_said_once(tmp_path: Path) -> None:
    trace = read_text(tmp_path / "t.json", json.dumps([span(dur=-1)] * 1000 + [span()]))
    problem, count = trace.problems
    assert problem.where == "event 1, event 2, event 3, ..."
    assert problem.text.endswith("(1,000 times)")
    assert count.text == "1,001 events could be read"


def test_a_trace_without_anything_left_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="without a phase"):
        read_text(tmp_path / "t.json", '{"traceEvents": [{"ts": 1}]}')


@pytest.mark.parametrize("filler", [b" ", b'{"ph": "X", "name": "' + b"x" * 1000])
def test_a_gap_that_never_ends_is_not_read_to_its_end(
    filler: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1 << 16)
    monkeypatch.setattr(pieces, "LONGEST_GAP", 1 << 20)
    events = b",".join(json.dumps(span(ts=10 * k)).encode() for k in range(20))
    gap = filler * ((1 << 24) // len(filler)) if len(filler) == 1 else filler + b"x" * (1 << 24)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents":[' + events + b"," + gap + b"]}"))
    read: list[int] = []
    unpatched = pieces.cut
    monkeypatch.setattr(
        "projector.trace.kineto.cut",
        lambda *given: (read.append(len(each.data)) or each for each in unpatched(*given)),
    )
    trace = load_trace(path)
    assert len(trace.ranks[0].events.start_ps) == 20
    assert sum(read) < 1 << 22
    assert "breaks off" in texts(trace) or "is no event" in texts(trace)
