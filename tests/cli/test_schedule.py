"""``projector schedule`` and ``performance --timeline``."""

import gzip
import json
import pickle
from pathlib import Path

import pytest

import projector
from projector.cli.main import run
from projector.config.training import SOLVER_WORK
from projector.schedule.registry import SCHEDULES

EXAMPLES = Path(__file__).parents[2] / "examples"
MIXTRAL = str(EXAMPLES / "mixtral_8x22b_mi355x.yaml")
TOO_LARGE = str(EXAMPLES / "mixtral_8x22b_seed_sample.yaml")
NUMBERS = ("--pp", 4, "--microbatches", 8)

KEYS = {
    "search",
    "status", "reason", "vpp", "makespan_s", "period_s", "iteration_time_ms", "bubble_fraction",
    "peak_in_flight", "peak_microbatches", "peak_gib", "peak_gib_low", "peak_gib_high", "verdict",
}  # fmt: skip


@pytest.fixture
def schedule(capsys):
    def call(*arguments):
        code = run(["schedule", *(str(argument) for argument in arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def rows(text):
    """Return the names that begin the rows of the table, from the top."""
    return [line.split()[0] for line in text.splitlines() if line.split()[:1] and line[:2] == "  "
            and line.split()[0] in SCHEDULES]  # fmt: skip


def test_a_table_the_fastest_that_fits_first(schedule):
    code, out, err = schedule(*NUMBERS, "--memory-limit", 4)
    assert (code, err) == (0, "")
    # 3 M + (PP - 1) / 2 for the V's, which no schedule of one chunk reaches.
    assert rows(out)[:3] == ["zbv-formatted", "zbv-greedy-zb", "zbv-greedy-half"]
    assert rows(out).index("zerobubble") < rows(out).index("1f1b") < rows(out).index("gpipe")
    assert "FASTEST THAT FITS  zbv-formatted, 25.5 s" in out
    assert "seaailab-ilp" in rows(out)
    _, out, _ = schedule("--pp", 16, "--microbatches", 256)
    assert "seaailab-ilp  not tried" in out.partition("Left out")[2]
    assert "12,288 operations" in out
    _, out, _ = schedule("--pp", 3, "--microbatches", 8)
    assert "even number of ranks" in out.partition("Left out")[2]


def test_json_is_the_comparison(schedule):
    code, out, err = schedule(*NUMBERS, "--memory-limit", 4, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert {"schema_version", "version", "warnings", "pp", "vpp", "microbatches"} <= found.keys()
    assert found["schedules"].keys() == SCHEDULES.keys()
    assert next(iter(found["schedules"])) == found["best"] == "zbv-formatted"
    assert all(each.keys() == KEYS for each in found["schedules"].values())
    for name in ("zerobubble", "1f1b", "gpipe"):
        alone = projector.simulate_schedule(name, 4, 1, 8, memory_limit=4).to_dict()
        each = found["schedules"][name]
        for key in ("makespan_s", "period_s", "bubble_fraction", "peak_in_flight"):
            assert each[key] == alone[key]
        assert each["status"] == ("ok" if alone["fits"] else "does_not_fit")
        assert each["peak_gib"] is None
    assert found["schedules"]["interleaved"]["vpp"] == 2
    _, out, _ = schedule("--pp", 3, "--microbatches", 8, "--json")
    left_out = json.loads(out)["schedules"]["dualpipe"]
    assert (left_out["status"], left_out["makespan_s"]) == ("not_applicable", None)


def test_times_of_single_stages(schedule):
    times = "0.5,1,1,1,1,1,1,1.5"
    code, out, _ = schedule(*NUMBERS, "--vpp", 2, "--f", times, "--p2p", 0.1, "--json")
    found = json.loads(out)["schedules"]
    alone = projector.simulate_schedule(
        "interleaved", 4, 2, 8, [float(text) for text in times.split(",")], p2p=0.1
    )
    assert code == 0
    assert found["interleaved"]["makespan_s"] == alone.makespan_s
    assert found["1f1b"]["status"] == "not_applicable"


def test_one_schedule(schedule):
    code, out, _ = schedule(*NUMBERS, "--algorithm", "auto", "--json")
    assert code == 0
    assert list(json.loads(out)["schedules"]) == ["1f1b"]


@pytest.mark.parametrize(
    "arguments",
    [
        (*NUMBERS, "--memory-limit", 0.5),
        (*NUMBERS, "--memory-limit", 0.5, "--algorithm", "1f1b"),
        ("--pp", 3, "--vpp", 3, "--microbatches", 4, "--f", "1,1,1,1,1,1,1,1,1"),
    ],
)
def test_nothing_fits_or_nothing_runs(schedule, arguments):
    code, out, err = schedule(*arguments)
    assert (code, err) == (3, "")
    assert any(verdict in out for verdict in ("NOTHING FITS", "DOES NOT FIT", "NO SCHEDULE"))
    code, out, _ = schedule(*arguments, "--json")
    assert (code, json.loads(out)["best"]) == (3, None)


def test_a_job(schedule):
    code, out, err = schedule("--config", MIXTRAL, "parallelism.vpp=1", "--json")
    found = json.loads(out)
    expected = projector.project_performance(
        projector.load_job(MIXTRAL, {"parallelism.vpp": 1}), schedule="all"
    )
    best = found["schedules"][found["best"]]
    assert (code, err) == (0, "")
    assert found["best"] == expected.schedule
    assert found["uncertainty"] == expected.uncertainty
    assert best["iteration_time_ms"] == pytest.approx(expected.iteration_time_s * 1e3)
    assert best["peak_gib"] == pytest.approx(expected.memory.peak_bytes / 2**30)
    assert best["bubble_fraction"] == pytest.approx(expected.bubble_fraction)
    assert found["microbatches"] == expected.microbatches


def test_options_reach_the_job(schedule):
    code, out, _ = schedule(
        *("--config", MIXTRAL, "--target-nodes", 16, "--global-batch-size", 512),
        *("--pipeline-schedule-algorithm", "auto", "--json"),
    )
    found = json.loads(out)
    expected = projector.project_performance(
        projector.load_job(MIXTRAL, {"cluster.nodes": 16, "training.global_batch_size": 512})
    )
    assert code == 0
    assert list(found["schedules"]) == ["interleaved"]
    each = found["schedules"]["interleaved"]
    assert each["iteration_time_ms"] == pytest.approx(expected.iteration_time_s * 1e3)


def test_a_job_that_does_not_fit(schedule):
    code, out, err = schedule("--config", TOO_LARGE, "training.micro_batch_size=8")
    assert (code, err) == (3, "")
    assert "NOTHING FITS  the fastest is" in out


def test_warnings_of_a_job(schedule, tmp_path):
    hardware = tmp_path / "hardware.yaml"
    hardware.write_text("hardware_config:\n  node_bw: 500\n")
    job = ("--config", MIXTRAL, "--hardware-config", hardware)
    assert schedule(*job)[2].startswith("warning: node_topology is missing")
    assert schedule(*job, "--quiet")[2] == ""
    _, out, err = schedule(*job, "--json")
    assert err == ""
    assert any("node_topology" in warning for warning in json.loads(out)["warnings"])


def test_figure_and_trace_of_the_best(schedule, tmp_path):
    figure, trace = tmp_path / "gantt.svg", tmp_path / "trace.json.gz"
    arguments = (*NUMBERS, "--memory-limit", 4, "--plot", figure, "--timeline", trace)
    code, out, err = schedule(*arguments, "--json")
    assert code == 0
    assert json.loads(out)["best"] == "zbv-formatted"
    assert err == f"wrote {figure} and {trace}: zbv-formatted\n"
    assert figure.read_bytes().startswith(b"<?xml")
    found = json.loads(gzip.decompress(trace.read_bytes()))
    assert found["otherData"]["schedule"] == "zbv-formatted"
    assert sum(event["ph"] == "X" for event in found["traceEvents"]) == 3 * 2 * 4 * 8
    assert schedule(*arguments, "--quiet")[2] == ""


def test_no_figure_where_nothing_runs(schedule, tmp_path):
    figure = tmp_path / "gantt.svg"
    arguments = ("--pp", 3, "--vpp", 3, "--microbatches", 4, "--f", "1,1,1,1,1,1,1,1,1")
    code, _, err = schedule(*arguments, "--plot", figure)
    assert code == 3
    assert err.startswith("warning: no schedule can run")
    assert not figure.exists()


MISTAKES = {
    "nothing": ([], "pp", ["--pp", "--config"]),
    "no microbatches": (["--pp", 4], "microbatches", ["--microbatches"]),
    "numbers and a job": (["--config", MIXTRAL, "--vpp", 2], "vpp", ["--config", "leave"]),
    "limit and a job": (["--config", MIXTRAL, "--memory-limit", 2], "memory_limit", ["--config"]),
    "override without a job": ([*NUMBERS, "parallelism.pp=2"], "config", ["parallelism.pp=2"]),
    "device without a job": ([*NUMBERS, "--gpu-arch", "h100"], "config", ["--gpu-arch"]),
    "no number": ([*NUMBERS, "--f", "1,x"], "f", ["--f", "1,x"]),
    "too few numbers": ([*NUMBERS, "--b", "1,2"], "b", ["4"]),
    "no ranks": (["--pp", 0, "--microbatches", 8], "pp", [">= 1"]),
    "negative time": ([*NUMBERS, "--w", "-1"], "w", ["between 0"]),
    "no limit": ([*NUMBERS, "--memory-limit", 0], "memory_limit", ["above 0"]),
    "far too long": ([*NUMBERS, "--f", 5e5, "--microbatches", 99999], "time", ["longer than"]),
    "misspelt schedule": ([*NUMBERS, "--algorithm", "zerobuble"], "schedule", ["'zerobubble'"]),
    "one that cannot run": ([*NUMBERS, "--algorithm", "interleaved"], "vpp", ["at least two"]),
    "one that cannot run in a job": (
        ["--config", MIXTRAL, "--algorithm", "dualpipe", "training.global_batch_size=64"],
        "microbatches",
        ["2 * pp"],
    ),
    "a job that cannot exist": (
        ["--config", MIXTRAL, "parallelism.tp=5"], "parallelism.tp", ["48"]
    ),
    "a figure of another kind": ([*NUMBERS, "--plot", "gantt.gif"], "plot", [".png, .svg or .pdf"]),
    "a figure nowhere": ([*NUMBERS, "--plot", "nowhere/gantt.png"], "plot", ["no folder"]),
    "a trace nowhere": ([*NUMBERS, "--timeline", "nowhere/t.json"], "timeline", ["no folder"]),
    "a trace that cannot be written": (
        [*NUMBERS, "--timeline", "/proc/trace.json"], "timeline", ["cannot be written"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_clear_error(schedule, mistake):
    arguments, key, words = MISTAKES[mistake]
    code, out, err = schedule(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert all(word in err for word in words)
    code, out, err_of_json = schedule(*arguments, "--json")
    found = json.loads(out)
    assert code == 2
    assert found.keys() == {"error", "key", "value", "allowed"}
    assert found["key"] == key
    assert err_of_json == err == f"error: {found['error']}\n"


def test_performance_writes_the_trace_of_its_step(capsys, tmp_path):
    trace = tmp_path / "trace.json"
    job = ["performance", "--config", MIXTRAL]
    assert run([*job, "--timeline", str(trace), "--json"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert captured.err == f"wrote {trace}; ui.perfetto.dev opens it\n"
    found = json.loads(trace.read_text())
    assert found["otherData"]["schedule"] == result["schedule"]
    on_devices = [
        event
        for event in found["traceEvents"]
        if event.get("cat") in ("kernel", "gpu_user_annotation")
    ]
    first_us = min(event["ts"] for event in on_devices)
    last_us = max(event["ts"] + event["dur"] for event in on_devices)
    assert (last_us - first_us) / 1e3 == pytest.approx(result["iteration_time_ms"])
    snapshot = tmp_path / "step.pickle"
    assert run([*job, "--memory-snapshot", str(snapshot)]) == 0
    captured = capsys.readouterr()
    assert captured.err.endswith(f"wrote {snapshot}; pytorch.org/memory_viz opens it\n")
    assert pickle.loads(snapshot.read_bytes()).keys() >= {"segments", "device_traces"}
    assert run([*job, "--memory-snapshot", str(tmp_path / "nowhere" / "s")]) == 2
    assert capsys.readouterr().out == ""
    assert run([*job, "--timeline", str(tmp_path / "nowhere" / "t.json")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")


def test_a_search_says_how_far_it_may_be_from_the_best(schedule):
    arguments = (*NUMBERS, "--memory-limit", 3, "--algorithm", "seaailab-ilp")
    code, out, _ = schedule(*arguments)
    assert code == 0
    assert "seaailab-ilp: start is optimal" in out
    _, out, _ = schedule(*arguments, "--json")
    search = json.loads(out)["schedules"]["seaailab-ilp"]["search"]
    assert search["gap"] == 0.0
    assert search["bound_s"] == json.loads(out)["schedules"]["seaailab-ilp"]["makespan_s"]
    assert (search["time_limit_s"], search["work_limit"]) == (None, SOLVER_WORK)
    code, _, err = schedule(*NUMBERS, "--objective", "speed")
    assert (code, err.count("error")) == (2, 1)
    assert "makespan, period" in err
