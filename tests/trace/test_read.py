"""Reading traces: what is in the files, in whichever way they were written or packed."""

import gzip
import json
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from projector.errors import ConfigError
from projector.trace import events as ev
from projector.trace import pieces, read
from projector.trace.events import RankTrace, Trace
from projector.trace.read import load_trace, rank_of_name

DATA = Path(__file__).parent / "data"
NAMES = ("a100_ddp2", "b200_eager_rank0", "mi250_toy", "mi300x_resnet_ddp8")
KEPT = {
    "kernel", "gpu_memcpy", "gpu_memset", "cuda_profiler_range", "mtia_ccp_events", "cpu_op",
    "cuda_runtime", "cuda_driver",
    "user_annotation", "gpu_user_annotation",
}  # fmt: skip


def span(name: str = "k", ts: Any = 10, dur: Any = 2, cat: str = "kernel", **more: Any) -> Any:
    """Return an event of Kineto."""
    args = {"device": 0, "stream": 7, "correlation": 5} | more.pop("args", {})
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur,
            "args": args} | more  # fmt: skip


def one(path: Path, document: Any, **options: Any) -> RankTrace:
    """Write a document or a text, read it and return its only rank."""
    text = document if isinstance(document, str | bytes) else json.dumps(document)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    (rank,) = load_trace(path, **options).ranks
    return rank


def texts(trace: Trace | RankTrace) -> str:
    """Return all problems as one text."""
    return " | ".join(f"{p.where}: {p.text}" for p in trace.problems)


def assert_same(one: RankTrace, other: RankTrace) -> None:
    for field in ("names", "details", "links", "skipped", "zero_ns", "rank", "groups"):
        assert getattr(one, field) == getattr(other, field)
    for column in one.events.__slots__:
        np.testing.assert_array_equal(getattr(one.events, column), getattr(other.events, column))


@pytest.mark.parametrize(
    ("name", "world", "vendor", "device_events", "links"),
    [
        ("a100_ddp2", 2, "NVIDIA", 2700 + 960 + 114, 543),
        ("b200_eager_rank0", 8, "NVIDIA", 768 + 161, 0),
        ("mi250_toy", 0, "AMD", 14 + 2, 4),
        ("mi300x_resnet_ddp8", 8, "AMD", 2995 + 550 + 108, 213),
    ],
)
def test_every_event_of_a_device_is_read(
    name: str, world: int, vendor: str, device_events: int, links: int
) -> None:
    trace = load_trace(DATA / f"{name}.json.gz")
    (rank,) = trace.ranks
    assert (rank.rank, rank.world_size, rank.vendor) == (0, world, vendor)
    assert int((rank.events.kind <= ev.FILL).sum()) == device_events
    assert len(rank.links) == links
    assert not trace.problems


@pytest.mark.rotated
@pytest.mark.parametrize("name", NAMES)
def test_stamps_are_those_of_the_file_to_the_nanosecond(name: str) -> None:
    (rank,) = load_trace(DATA / f"{name}.json.gz").ranks
    with gzip.open(DATA / f"{name}.json.gz") as file:
        document = json.load(file, parse_float=Decimal)
    kept = [
        event
        for event in document["traceEvents"]
        if event["ph"] == "X" and (event["cat"] in KEPT or event["name"].startswith("nn.Module: "))
    ]
    base_ns = int(document["baseTimeNanoseconds"])
    starts = np.array([int(Decimal(event["ts"]) * 1000) + base_ns for event in kept])
    lengths = np.array([int(Decimal(event["dur"]) * 1000) for event in kept])
    np.testing.assert_array_equal(rank.events.start_ps, (starts - rank.zero_ns) * 1000)
    np.testing.assert_array_equal(rank.events.duration_ps, lengths * 1000)
    assert [rank.names[i] for i in rank.events.name] == [event["name"] for event in kept]


@pytest.mark.parametrize("size", [1 << 20, 50_000, 3_000])
def test_pieces_of_any_size_give_the_same(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = DATA / ("mi250_toy.json.gz" if size < 50_000 else "b200_eager_rank0.json.gz")
    whole = load_trace(path)
    monkeypatch.setattr(pieces, "PIECE_BYTES", size)
    assert_same(load_trace(path).ranks[0], whole.ranks[0])


@pytest.mark.thorough
def test_processes_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    path = DATA / "b200_eager_rank0.json.gz"
    whole = load_trace(path)
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1 << 20)
    monkeypatch.setattr(read, "LEAST_BYTES", 0)
    assert_same(load_trace(path).ranks[0], whole.ranks[0])


def test_dead_processes_are_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    path = DATA / "mi250_toy.json.gz"
    whole = load_trace(path)
    monkeypatch.setattr(pieces, "PIECE_BYTES", 10_000)
    monkeypatch.setattr(read, "LEAST_BYTES", 0)
    monkeypatch.setattr(pieces.sys, "executable", shutil.which("false"))
    assert_same(load_trace(path).ranks[0], whole.ranks[0])


def test_small_pieces_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    path = DATA / "mi250_toy.json.gz"
    whole = load_trace(path)
    monkeypatch.setattr(pieces, "PIECE_BYTES", 10_000)
    assert_same(load_trace(path).ranks[0], whole.ranks[0])


def test_details_of_kernels_copies_operators_and_collectives() -> None:
    (rank,) = load_trace(DATA / "mi300x_resnet_ddp8.json.gz").ranks
    told: dict[str, dict[str, Any]] = {}
    for kind, detail in zip(rank.events.kind, rank.events.detail, strict=True):
        if detail >= 0:
            told.setdefault(ev.KINDS[kind], {}).update(rank.details[detail])
    assert told["copy"]["bytes"] > 0
    assert len(told["kernel"]["grid"]) == len(told["kernel"]["block"]) == 3
    assert told["kernel"]["collective"] in {"allreduce", "broadcast"}
    assert told["kernel"]["group_ranks"] == tuple(range(8))
    assert {"dims", "types", "in_elements", "dtype"} <= told["operator"].keys()
    assert rank.groups == {"0": tuple(range(8))}


def test_our_own_files_keep_picoseconds(tmp_path: Path) -> None:
    head = {"otherData": {"producer": "projector 1", "time_grid_ps": 1}}
    document = head | {"traceEvents": [span(ts=0.000001, dur=12.345678), span(ts=1e6 + 0.000003)]}
    rank = one(tmp_path / "t.json", document)
    assert rank.events.start_ps.tolist() == [1, 10**12 + 3]
    assert rank.events.duration_ps.tolist() == [12_345_678, 2_000_000]


@pytest.mark.parametrize("size", [100, 1 << 23])
def test_stamps_since_1970_keep_their_nanoseconds(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", size)
    monkeypatch.setattr(pieces, "_WINDOW", 50)
    stamps = ("1711964646123456.789", "1711964646123456.790", "1711964646123460")
    events = ",".join(json.dumps(span(ts="AT")).replace('"AT"', stamp) for stamp in stamps)
    rank = one(tmp_path / "t.json", f'{{"traceEvents": [{events}]}}')
    assert rank.events.start_ps.tolist() == [789_000, 790_000, 4_000_000]
    assert rank.zero_ns == 1_711_964_646_123_456_000


def test_a_bare_list_of_events_may_end_anywhere(tmp_path: Path) -> None:
    events = [span(ts=at) for at in (1, 2, 3)]
    whole = one(tmp_path / "t.json", events)
    open_end = one(tmp_path / "u.json", json.dumps(events)[:-1])
    assert len(whole.events) == len(open_end.events) == 3
    assert not whole.problems
    assert not open_end.problems


def test_what_stands_behind_the_events_counts(tmp_path: Path) -> None:
    document = {
        "traceEvents": [span()],
        "distributedInfo": {"rank": 3, "world_size": 4, "pg_config": [{"pg_name": "0"}]},
        "baseTimeNanoseconds": 1000,
    }
    rank = one(tmp_path / "t.json", document)
    assert (rank.rank, rank.world_size, rank.zero_ns) == (3, 4, 1000 + 10_000)
    assert rank.groups == {"0": ()}


def test_begins_and_ends_are_joined(tmp_path: Path) -> None:
    line = {"cat": "cpu_op", "pid": 1, "tid": 1}
    events = [
        {"ph": "B", "name": "outer", "ts": 1.5, **line, "args": {"External id": 4}},
        {"ph": "B", "name": "inner", "ts": 2, **line},
        {"ph": "E", "ts": 3, "pid": 1, "tid": 1},
        {"ph": "B", "name": "other thread", "ts": 2.5, **line | {"tid": 2}},
        {"ph": "E", "ts": 9.25, "pid": 1, "tid": 1},
        {"ph": "E", "ts": 9.5, "pid": 1, "tid": 1},
    ]
    rank = one(tmp_path / "t.json", events)
    found = {
        rank.names[n]: int(d)
        for n, d in zip(rank.events.name, rank.events.duration_ps, strict=True)
    }
    assert found == {"inner": 1_000_000, "outer": 7_750_000}
    assert "does not end" in texts(rank)
    assert "has not begun" in texts(rank)


def test_numbers_may_be_texts_and_threads_may_have_names(tmp_path: Path) -> None:
    events = [
        span(ts="10.5", dur="2", pid="0", tid="stream 7", args={"device": "1", "stream": "0x1f"}),
        span("op", cat="cpu_op", pid="123", tid="stream 12", ts=11, args={"External id": "77"}),
        span("op", cat="cpu_op", pid="main", tid="worker", ts=12),
        span("hip", cat="cuda_runtime", args={"correlation": 4.0}),
        span("old", cat="Memcpy", args={"external id": 9, "stream": 2**64 - 1}),
    ]
    rank = one(tmp_path / "t.json", events)
    found = rank.events
    assert not rank.problems
    assert found.process.tolist()[:2] == [1, 123]
    assert found.thread.tolist()[:2] == [31, 12]
    assert found.process[2] < -1
    assert found.external[1] == 77
    assert found.correlation[3] == 4
    assert (found.kind[4], found.external[4], found.thread[4]) == (ev.COPY, 9, -1)
    assert found.start_ps[0] == 500_000


def test_traces_without_categories(tmp_path: Path) -> None:
    event = {"name": "aten::mm", "ph": "X", "ts": 1.5, "dur": 2, "tid": 1, "pid": "CPU functions"}
    rank = one(tmp_path / "t.json", [{**event, "args": {}}, event | {"pid": "else"}])
    assert rank.events.kind.tolist() == [ev.OPERATOR]
    assert rank.skipped == {"without category": 1}


def test_memory_and_counter_tracks_are_samples(tmp_path: Path) -> None:
    def memory(at: float, kind: int, held: int) -> dict[str, Any]:
        args = {"Device Type": kind, "Device Id": kind - 1, "Total Allocated": held,
                "Total Reserved": 0}  # fmt: skip
        return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": at, "pid": 1,
                "tid": 1, "args": args}  # fmt: skip

    track = {"ph": "C", "name": "load", "pid": 0, "ts": 12, "args": {"a": 1.5}}
    events = [span(), memory(11, 0, 100), memory(10.5, 1, 7), track]
    path = tmp_path / "t.json"
    path.write_text(json.dumps(events))
    held, load = load_trace(path).samples
    assert (held.what, held.columns) == (
        "memory_bytes", ("device 0", "device 0 reserved", "host", "host reserved"),
    )  # fmt: skip
    assert held.time_ps.tolist() == [500_000, 1_000_000]
    np.testing.assert_array_equal(held.values, [[7, 0, np.nan, np.nan], [7, 0, 100, 0]])
    assert (load.what, load.values.tolist(), load.rank) == ("load", [[1.5]], 0)


def test_several_devices_of_one_file_stay_apart(tmp_path: Path) -> None:
    events = [span(args={"device": i, "stream": i}) for i in (0, 3)]
    assert one(tmp_path / "t.json", events).events.process.tolist() == [0, 3]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.json", 3), ("trace_rank_12.json.gz", 12), ("Rank-7.json", 7), ("trace.2.json", 2),
        ("host_4242.1732333444555666.pt.trace.json", None), ("trace.json", None),
    ],
)  # fmt: skip
def test_rank_of_a_name(name: str, rank: int | None) -> None:
    assert rank_of_name(name) == rank


def test_a_folder_of_ranks_has_one_zero(tmp_path: Path) -> None:
    for rank, at in enumerate((50, 20.5)):
        document = {"traceEvents": [span(ts=at)], "baseTimeNanoseconds": 10**18}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    (tmp_path / "config.json").write_text('{"model": "llama"}')
    (tmp_path / "empty.json").write_text("")
    trace = load_trace(tmp_path)
    assert [rank.rank for rank in trace.ranks] == [0, 1]
    assert [rank.events.start_ps.tolist() for rank in trace.ranks] == [[30_000_000], [500_000]]
    assert {rank.zero_ns for rank in trace.ranks} == {10**18 + 20_000}
    assert "config.json" in texts(trace)
    assert "empty.json is empty" in texts(trace)
    assert len(load_trace(tmp_path, only=[1]).ranks) == 1
    assert len(load_trace(str(tmp_path / "rank*.json")).ranks) == 2


def test_ranks_without_numbers_take_those_that_are_free(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([span()]))
    told = {"traceEvents": [span()], "distributedInfo": {"rank": 0}}
    (tmp_path / "b.json").write_text(json.dumps(told))
    trace = load_trace(tmp_path)
    assert [Path(rank.path).name for rank in trace.ranks] == ["b.json", "a.json"]


def test_progress_counts_bytes_of_all_files(tmp_path: Path) -> None:
    for rank in range(2):
        shutil.copy(DATA / "mi250_toy.json.gz", tmp_path / f"rank{rank}.json.gz")
        with gzip.open(tmp_path / f"rank{rank}.json.gz", "wb") as file:
            file.write(json.dumps([span()] * 50).encode())
    calls: list[tuple[int, int, int]] = []
    load_trace(tmp_path, progress=lambda *done: calls.append(done))
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert calls[-1] == (size, size, 100)
    assert calls == sorted(calls)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("t.json", b"", "is empty"),
        ("t.json", b" \n", "is empty"),
        ("t.json", b"\xef\xbb\xbf", "no list of events"),
        ("t.json", b'{"a": 1}', "no list of events"),
        ("t.json", b"not JSON at all", "no list of events"),
        ("t.json", b'{"traceEvents": []}', "no events of a profiler"),
        ("t.json", b'{"traceEvents": [{"ph": "M"}]}', "no events of a profiler"),
        ("t.json", b"[1, 2, 3]", "no events of a profiler"),
        ("t.zip", b"PK\x03\x04abc", "zip archive; unpack it"),
        ("t.json.zst", b"\x28\xb5\x2f\xfdabc", "packed with zstd"),
        ("t.json", "{}".encode("utf-16"), "UTF-16"),
        ("t.json.gz", b"\x1f\x8b\x08", "is empty"),
        ("t.db", b"SQLite format 3\x00abc", "database"),
    ],
)
def test_what_is_no_trace_is_said(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=says) as error:
        load_trace(tmp_path / name)
    assert error.value.key == "trace"
    assert name in str(error.value.value)


def test_bad_paths_are_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_trace(tmp_path / "absent.json")
    with pytest.raises(ConfigError, match="no trace in"):
        load_trace(tmp_path)
    for name in "ab":
        told = {"traceEvents": [span()], "distributedInfo": {"rank": 1}}
        (tmp_path / f"{name}.json").write_text(json.dumps(told))
    with pytest.raises(ConfigError, match="both of rank 1"):
        load_trace(tmp_path)
    with pytest.raises(ConfigError, match="not among those") as error:
        load_trace(tmp_path / "a.json", only=[5])
    assert error.value.allowed == [1]


def of_jax(*events: Any) -> dict[str, Any]:
    """The Chrome JSON of JAX: no categories, and processes and streams by their names."""
    named = [
        {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
        for pid, name in ((1, "/device:GPU:0 NVIDIA"), (2, "/device:GPU:1"), (701, "/host:CPU"))
    ]
    named += [
        {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
        for pid in (1, 2)
        for tid, name in (
            (20, "Stream #20(Compute)"),
            (21, "Stream #21(MemcpyD2H)"),
            (9, "XLA Ops"),
        )
    ]
    return {"displayTimeUnit": "ns", "metadata": {}, "traceEvents": [*named, *events, {}]}


def test_kernels_of_jax_are_told_by_their_streams(tmp_path: Path) -> None:
    def event(pid: int, tid: int, name: str, begin: float) -> dict[str, Any]:
        return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": begin, "dur": 2.5,
                "args": {"hlo_op": "fusion", "correlation_id": "7"}}  # fmt: skip

    events = [
        event(1, 20, "loop_fusion", 10.0), event(1, 21, "MemcpyD2H", 14.0),
        event(1, 9, "fusion.1", 10.0), event(2, 20, "ncclDevKernel_AllReduce", 11.0),
        event(2, 20, "Memset 0", 9.0), event(701, 20, "PjitFunction(f)", 1.0),
    ]  # fmt: skip
    path = tmp_path / "host.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(of_jax(*events)).encode()))
    trace = load_trace(path)
    (rank,) = trace.ranks
    names = [rank.names[name] for name in rank.events.name.tolist()]
    assert names == ["loop_fusion", "MemcpyD2H", "ncclDevKernel_AllReduce", "Memset 0"]
    assert rank.events.kind.tolist() == [ev.KERNEL, ev.COPY, ev.KERNEL, ev.FILL]
    assert rank.events.process.tolist() == [0, 0, 1, 1]
    assert rank.events.thread.tolist() == [20, 21, 20, 20]
    assert rank.events.start_ps.tolist() == [1_000_000, 5_000_000, 2_000_000, 0]
    assert rank.skipped == {"without category": 2}
    assert not trace.problems


def test_protobufs_of_jax_are_refused_with_what_to_read_instead(tmp_path: Path) -> None:
    folder = tmp_path / "plugins" / "profile" / "2026_11_27"
    folder.mkdir(parents=True)
    plane = folder / "host.xplane.pb"
    plane.write_bytes(b"\n\x12\x08\x01")
    for given in (plane, folder, tmp_path, folder / "*.pb"):
        with pytest.raises(ConfigError, match="protobuf of JAX") as caught:
            load_trace(given)
        assert caught.value.key == "trace"
        assert str(plane) in caught.value.message
        assert "create_perfetto_trace=True" in caught.value.message
    beside = folder / "host.trace.json.gz"
    kernel = {"ph": "X", "pid": 1, "tid": 20, "name": "k", "ts": 1, "dur": 1}
    beside.write_bytes(gzip.compress(json.dumps(of_jax(kernel)).encode()))
    for given in (plane, tmp_path):
        with pytest.raises(ConfigError, match="lies beside it") as caught:
            load_trace(given)
        assert str(beside) in caught.value.message
    assert len(load_trace(beside).ranks) == len(load_trace(folder).ranks) == 1


@pytest.mark.parametrize("category", ["cuda_profiler_range", "mtia_ccp_events"])
def test_kernels_of_other_categories_are_kernels(tmp_path, category):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [span("k", cat=category)]}))
    (rank,) = load_trace(path).ranks
    assert rank.events.kind.tolist() == [ev.KERNEL]
    assert not rank.skipped
