"""Files of projected steps: what is written, read back and aligned is what was projected."""

import gzip
import json
import pickle

import numpy as np
import pytest
from handmade import projected_terms

import projector as pj
from projector.errors import ConfigError
from projector.operations.table import GEMM
from projector.projection.terms import BREAKDOWN
from projector.projection.timeline.build import Detail, build_timeline
from projector.projection.timeline.columns import WAIT
from projector.trace.activity import COMMUNICATION
from projector.trace.alignment import align
from projector.trace.intervals import difference, union
from projector.trace.measures.iterations import rank_summaries
from projector.trace.read import load_trace

SMALL = {
    "num_layers": 6, "hidden_size": 2048, "ffn_hidden_size": 5632, "num_attention_heads": 16,
    "num_query_groups": 4, "vocab_size": 32000,
}  # fmt: skip


def job(parallelism, **training):
    return {
        "model": SMALL,
        "parallelism": parallelism,
        "training": {"micro_batch_size": 1, "seq_length": 4096, **training},
        "cluster": {"device": "mi300x", "nodes": 1},
    }


JOBS = {
    "fsdp": job({"fsdp": 2}, global_batch_size=8),
    "fsdp, twice, recomputed": job({"fsdp": 2}, global_batch_size=16, recompute="full"),
    "zero 1": job({"zero_stage": 1}, global_batch_size=32),
    "tp, pp": job({"tp": 2, "pp": 2}, global_batch_size=16, recompute="selective"),
    "zero bubble": job({"pp": 2}, global_batch_size=32, schedule="zerobubble"),
    "two chunks": job({"pp": 2, "vpp": 3, "cp": 2}, global_batch_size=16),
}


class Exported:
    """A step, its timeline and both of its files."""

    def __init__(self, given, folder):
        self.result = pj.project_performance(given)
        self.timeline = build_timeline(self.result)
        self.trace_path, self.snapshot_path = folder / "step.json.gz", folder / "step.pickle"
        pj.write_timeline(self.result, self.trace_path)
        pj.write_memory_snapshot(self.result, self.snapshot_path)
        self.trace = load_trace(self.trace_path)
        self.activities = align(self.trace)
        self.snapshot = pickle.loads(self.snapshot_path.read_bytes())


@pytest.fixture(scope="module", params=JOBS)
def exported(request, tmp_path_factory):
    return Exported(JOBS[request.param], tmp_path_factory.mktemp("export"))


@pytest.mark.rotated
def test_the_breakdown_comes_back_to_the_picosecond(exported):
    timeline = exported.timeline
    assert exported.trace.problems == ()
    found = projected_terms(exported.trace.ranks[0])[timeline.ending_rank]
    for term, ps, seconds in zip(
        BREAKDOWN, timeline.terms_ps.tolist(), exported.result.breakdown.values(), strict=True
    ):
        assert found.get(term, 0) == ps
        assert ps == pytest.approx(seconds * 1e12, abs=1.0)
    assert sum(found.values()) == timeline.step_ps


def test_activities_come_back(exported):
    timeline, activities = exported.timeline, exported.activities
    works = (timeline.track != WAIT) & ((timeline.duration_ps > 0) | (timeline.launches > 0))
    end_ps = timeline.start_ps + timeline.duration_ps
    order = np.lexsort([end_ps[works], timeline.start_ps[works], timeline.rank[works]])
    np.testing.assert_array_equal(activities.device, timeline.rank[works][order])
    np.testing.assert_array_equal(activities.start_ps, timeline.start_ps[works][order])
    np.testing.assert_array_equal(activities.end_ps, end_ps[works][order])
    assert activities.recompute.sum() == timeline.recompute[works].sum()
    assert set(activities.iteration.tolist()) == {0}
    layer = timeline.layer[works][order]
    np.testing.assert_array_equal(activities.layer[layer >= 0], layer[layer >= 0])


def test_products_tell_their_extents(exported):
    timeline, activities = exported.timeline, exported.activities
    table, flop = timeline.table, []
    for row in range(len(activities)):
        detail = activities.details[activities.detail[row]]
        if "dims" in detail and detail["operator"] in ("aten::mm", "aten::bmm"):
            (*batch, m, k), (*_, n) = detail["dims"]
            flop.append(2 * m * n * k * (batch or [1])[0])
    told = timeline.row[timeline.row >= 0]
    rows = told[table.kind[told] == GEMM]
    expected = (2 * table.m * table.n * table.k * table.batch)[rows]
    assert sorted(flop) == sorted(expected.tolist())


def test_measures_agree_with_what_was_projected(exported):
    timeline, activities = exported.timeline, exported.activities
    for summary in rank_summaries(activities):
        mine = (timeline.rank == summary.device) & (timeline.track != WAIT)
        busy = union(timeline.start_ps[mine], (timeline.start_ps + timeline.duration_ps)[mine])
        assert summary.busy_ns == pytest.approx(busy.length_ps / 1e3, rel=1e-12)
        assert summary.kernels + summary.copies == (activities.device == summary.device).sum()
        parts = (
            summary.compute_ns, summary.exposed_communication_ns, summary.exposed_memcpy_ns,
            summary.idle_ns,
        )  # fmt: skip
        assert sum(parts) == pytest.approx(summary.span_ns, rel=1e-12)


def test_compute_less_its_slowdown_is_the_breakdown(exported):
    """The same terms from the lengths of kernels instead of what the file says they add."""
    activities, timeline = exported.activities, exported.timeline
    mine = (activities.klass != COMMUNICATION) & (activities.device == timeline.ending_rank)
    sums = dict.fromkeys(BREAKDOWN, 0)
    for row in np.flatnonzero(mine).tolist():
        detail = activities.details[activities.detail[row]]
        length = int(activities.end_ps[row] - activities.start_ps[row])
        sums[detail["term"]] += length - detail.get("slowed_ps", 0)
    for term in ("compute_gemm", "compute_attention", "compute_other"):
        assert sums[term] == timeline.terms_ps[BREAKDOWN.index(term)]


def test_exposed_communication_is_what_no_compute_covers(exported):
    """What the terms of communication have beyond the slowdown of compute stands uncovered."""
    activities, timeline = exported.activities, exported.timeline
    on_rank = activities.device == timeline.ending_rank
    talks = activities.klass == COMMUNICATION

    def of(rows):
        return union(activities.start_ps[rows], activities.end_ps[rows])

    exposed = difference(of(on_rank & talks), of(on_rank & ~talks)).length_ps
    rows = timeline.rank == timeline.ending_rank
    talked = np.isin(timeline.track, (1, 2, 3, 4, 5)) & rows
    assert exposed >= (timeline.exposed_ps - timeline.slowdown_ps)[talked].sum()


def test_the_snapshot_peaks_where_the_timeline_does(exported):
    stages = exported.result.memory.stages
    assert len(exported.snapshot["segments"]) == len(stages)
    for stage, memory, events in zip(
        stages, exported.timeline.memory, exported.snapshot["device_traces"], strict=True
    ):
        held = peak = 0
        for event in events:
            held += {"alloc": 1, "free_completed": -1}.get(event["action"], 0) * event["size"]
            peak = max(peak, held)
        assert peak == pytest.approx(memory.bytes.max(), rel=0.01)
        assert peak <= stage.peak_bytes + 64
        assert held == pytest.approx(memory.static_bytes, abs=64)
        assert held == pytest.approx(stage.static_bytes - stage.transient_bytes, abs=64)
        names = " ".join(frame["name"] for event in events for frame in event["frames"])
        assert "layers.1" in names or "layers.4" in names
        assert {event["category"] for event in events} >= {
            "weights", "activations", "transient", "unknown",
        }  # fmt: skip


def test_memory_is_a_counter(exported):
    events = json.loads(gzip.decompress(exported.trace_path.read_bytes()))["traceEvents"]
    for rank, memory in enumerate(exported.timeline.memory):
        held = [
            event
            for event in events
            if event["ph"] == "C" and event["name"] == f"memory of rank {rank}"
        ]
        peak = max(event["args"]["GiB"] for event in held)
        assert peak * 2**30 == pytest.approx(memory.bytes.max())
        times = [event["ts"] for event in held]
        assert times == sorted(set(times))


def test_the_same_step_gives_the_same_file(tmp_path):
    result = pj.project_performance(JOBS["fsdp"])
    for name in ("a.json.gz", "b.json.gz"):
        pj.write_timeline(result, tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    pj.write_timeline(result, tmp_path / "c.json")
    plain = (tmp_path / "c.json").read_bytes()
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == plain
    assert json.loads(plain)["otherData"]["breakdown_ps"].keys() == set(BREAKDOWN)


def test_places_that_cannot_be_written(tmp_path):
    result = pj.project_performance(JOBS["fsdp"])
    for write, key in (
        (pj.write_timeline, "timeline"), (pj.write_memory_snapshot, "memory_snapshot")
    ):  # fmt: skip
        with pytest.raises(ConfigError, match="no folder") as raised:
            write(result, tmp_path / "nowhere" / "file")
        assert raised.value.key == key


def test_a_timeline_that_tells_a_part_says_so(tmp_path):
    result = pj.project_performance(JOBS["tp, pp"])
    path = tmp_path / "step.json.gz"
    pj.write_timeline(result, path)
    assert load_trace(path).problems == ()
    pj.write_timeline(result, path, timeline=build_timeline(result, Detail(microbatches=(0, 1))))
    (problem,) = load_trace(path).problems
    blocks = 2 * result.pipeline.order.microbatches
    assert f"tells 4 of {blocks} blocks operation by operation" in problem.text
    assert problem.text in " ".join(pj.load_trace(path).warnings)


FOLDERS = {
    "tp, pp": (2, {"TP": [0, 1], "DP": [0, 2], "PP": [0, 4]}),
    "two chunks": (2, {"CP": [0, 1], "DP": [0, 1, 2, 3], "PP": [0, 4]}),
    "experts": (
        4, {"TP": [0, 1], "EP": [0, 1, 2, 3], "DP": [0, 2, 4, 6], "PP": [0, 8, 16, 24]},
    ),
}  # fmt: skip
"""Ranks that files tell of, and the groups of the first one."""

EXPERTS = job(
    {"tp": 2, "pp": 4, "ep": 4, "etp": 1, "sequence_parallel": True}, global_batch_size=16
)
EXPERTS["model"] = SMALL | {
    "num_layers": 8,
    "moe": {"num_experts": 8, "router_topk": 2, "ffn_hidden_size": 1024},
}
EXPERTS["cluster"] = {"device": "h100", "nodes": 4}


@pytest.fixture(scope="module", params=FOLDERS)
def in_files(request, tmp_path_factory):
    """A step, its timeline, and a folder with a file a rank."""
    result = pj.project_performance({**JOBS, "experts": EXPERTS}[request.param])
    folder = tmp_path_factory.mktemp("ranks") / "step"
    pj.write_timeline(result, f"{folder}/")
    return (*FOLDERS[request.param], build_timeline(result), folder)


def test_each_rank_has_a_file_with_its_groups(in_files):
    count, groups, _, folder = in_files
    stride = groups["PP"][1]
    names = [f"rank{stage * stride}.json.gz" for stage in range(count)]
    assert sorted(p.name for p in folder.iterdir()) == sorted(names)
    for stage, name in enumerate(names):
        document = json.loads(gzip.decompress((folder / name).read_bytes()))
        told = document["distributedInfo"]
        assert (told["rank"], told["world_size"]) == (stage * stride, stride * count)
        assert len(document["deviceProperties"]) == 8
        found = {group["pg_name"]: group["ranks"] for group in told["pg_config"]}
        shifted = {
            group: ranks if group == "PP" else [rank + stage * stride for rank in ranks]
            for group, ranks in groups.items()
        }
        assert found == shifted
        talks = [e["args"] for e in document["traceEvents"] if e.get("name", "")[:4] == "nccl"]
        assert talks
        for args in talks:
            ranks = found[args["Process Group Name"]]
            assert args["Process Group Ranks"] == str(ranks)
            assert args["Group size"] == len(ranks)
            assert args["device"] == stage * stride % 8


def test_a_file_of_a_rank_holds_its_terms(in_files):
    """Which is what HolisticTraceAnalysis and TraceLens sum of it; they know kernels by names."""
    count, groups, timeline, folder = in_files
    for stage in range(count):
        path = folder / f"rank{stage * groups['PP'][1]}.json.gz"
        lines = {}
        for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
            if event.get("cat") in ("kernel", "gpu_memcpy"):
                kind = "talk" if event["name"].startswith("ncclDevKernel") else "work"
                span = round(event["ts"] * 1e6), round(event["ts"] * 1e6 + event["dur"] * 1e6)
                lines.setdefault(kind, []).append(span)
        found = {kind: union(*np.array(spans).T) for kind, spans in lines.items()}
        mine = (timeline.rank == stage) & (timeline.track != WAIT) & (timeline.duration_ps > 0)
        talks = np.isin(timeline.track, (1, 2, 3, 4, 5))
        for kind, rows in (("talk", mine & talks), ("work", mine & ~talks)):
            start_ps = timeline.start_ps[rows]
            told = union(start_ps, start_ps + timeline.duration_ps[rows])
            assert found[kind].length_ps == pytest.approx(told.length_ps, abs=len(start_ps))


def test_a_folder_is_read_as_a_run(in_files):
    count, groups, timeline, folder = in_files
    trace = load_trace(folder)
    assert [rank.rank for rank in trace.ranks] == [groups["PP"][1] * i for i in range(count)]
    (terms,) = projected_terms(trace.ranks[timeline.ending_rank]).values()
    expected = dict(zip(BREAKDOWN, timeline.terms_ps.tolist(), strict=True))
    assert {name: terms.get(name, 0) for name in BREAKDOWN} == expected


def test_a_folder_is_replaced_only_where_it_holds_timelines(tmp_path):
    folder = tmp_path / "ranks"
    pj.write_timeline(pj.project_performance(EXPERTS), f"{folder}/")
    result = pj.project_performance(JOBS["tp, pp"])
    pj.write_timeline(result, folder)
    assert sorted(p.name for p in folder.iterdir()) == ["rank0.json.gz", "rank4.json.gz"]
    before = (folder / "rank4.json.gz").read_bytes()
    # A run that somebody recorded.
    (folder / "rank8.json.gz").write_bytes(gzip.compress(b'{"traceEvents": []}'))
    with pytest.raises(ConfigError, match=r"rank8\.json\.gz in it is no timeline of a projection"):
        pj.write_timeline(result, folder)
    assert (folder / "rank4.json.gz").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["ranks"]
    (tmp_path / "file").touch()
    for place, why in ((tmp_path / "no" / "where", "no folder"), (tmp_path / "file", "is a file")):
        with pytest.raises(ConfigError, match=why):
            pj.write_timeline(result, f"{place}/")


def test_arrows_join_operators(exported):
    operators, ends = {}, []
    for event in json.loads(gzip.decompress(exported.trace_path.read_bytes()))["traceEvents"]:
        place = (event["pid"], event.get("tid"))
        if event.get("cat") == "cpu_op":
            operators.setdefault(place, []).append((event["ts"], event["ts"] + event["dur"]))
        elif event.get("cat") == "fwdbwd":
            ends.append((place, event["ts"]))
    assert ends
    spans = {place: np.array(sorted(found)) for place, found in operators.items()}
    for place, now in ends:
        assert ((spans[place][:, 0] <= now) & (now < spans[place][:, 1])).any()
