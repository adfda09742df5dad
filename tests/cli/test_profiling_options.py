"""Measuring at the door: what is printed from records, and every way in which it cannot be."""

import json
import sys

import pytest
from tests.measure.synthetic import synthetic_record

import projector as pj
from projector.cli.main import run
from projector.measure import process
from projector.measure.devices import cpu_name
from projector.measure.reduction import reduce_job
from projector.measure.task import Outcome
from projector.projection import profiling
from projector.projection.terms import BREAKDOWN

JOB = {
    "model": "mixtral_8x7b",
    "parallelism": {"pp": 4, "ep": 8},
    "training": {"micro_batch_size": 1, "global_batch_size": 256, "seq_length": 4096},
    "cluster": {"device": "h100", "nodes": 8},
}


@pytest.fixture(autouse=True)
def machine_without_a_gpu(monkeypatch):
    monkeypatch.setattr(profiling, "gpus_at_hand", lambda: None)


@pytest.fixture(scope="module")
def record():
    job = pj.load_job(JOB)
    return synthetic_record(reduce_job(job, 1), slow=1.1, idle_bytes=1e9, live_bytes=5e8)


@pytest.fixture
def saved(record, tmp_path):
    path = tmp_path / "record.json"
    record.save(path)
    return str(path)


@pytest.fixture
def command(tmp_path, capsys):
    """Run a command on a job; return its exit code and what it printed and said."""

    def call(name, *options, job=JOB):
        config = tmp_path / "job.json"
        config.write_text(json.dumps(job), encoding="utf-8")
        code = run([name, "--config", str(config), *options])
        printed, said = capsys.readouterr()
        return code, printed, said

    return call


def test_json_of_a_restored_step(command, saved):
    code, printed, said = command("performance", "--load-benchmark", saved, "--json")
    found = json.loads(printed)
    assert code == 0
    assert "times from a record of 1 x NVIDIA H100" in said
    assert command("performance", "--load-benchmark", saved, "--quiet")[2] == ""
    provenance = found["provenance"]
    assert provenance["times"] == "hybrid"
    assert provenance["profiling_mode"] == "benchmark"
    assert provenance["why"] == "a record was given"
    assert provenance["terms"].keys() == found["breakdown_ms"].keys() == {*BREAKDOWN}
    assert {*provenance["terms"].values()} == {"measured", "scaled", "analytic"}
    assert provenance["record"]["reduction"]["steps"][0]["dimension"] == "pp"
    assert provenance["record"]["environment"]["torch"] == "2.13.0"
    assert sum(found["breakdown_ms"].values()) == pytest.approx(found["iteration_time_ms"])
    assert "comparison" not in found


def test_python_gives_the_same_object(command, saved, record):
    options = ["--load-benchmark", saved, "--profiling-mode", "both", "--json"]
    _, printed, _ = command("performance", *options)
    found = pj.project_performance(JOB, records=record, profiling_mode="both").to_dict()
    assert json.loads(printed) == json.loads(json.dumps(found))


def test_without_records_nothing_changes(command):
    code, printed, said = command("performance", "--json")
    assert (code, said) == (0, "")
    assert command("performance", "--json", "--profiling-mode", "simulate")[1] == printed
    provenance = json.loads(printed)["provenance"]
    assert provenance["times"] == "analytic"
    assert not {"profiling_mode", "terms", "record"} & provenance.keys()


def test_memory_and_performance_together_take_the_mode(command, saved):
    options = ["--load-benchmark", saved, "--profiling-mode", "both", "--json"]
    code, printed, _ = command("both", *options)
    found = json.loads(printed)
    assert code == 0
    assert found["memory"]["comparison"]["target"]["measured_gib"] == found["memory"]["peak_gib"]
    total = found["performance"]["comparison"]["target"]["total"]
    assert total["measured_ms"] == found["performance"]["iteration_time_ms"]
    code, printed, _ = command("memory", *options)
    assert json.loads(printed) == found["memory"]


def test_a_restored_job_takes_other_degrees_and_nodes(command, saved):
    options = ["--load-benchmark", saved, "--json", "parallelism.pp=8", "--target-nodes", "16"]
    code, printed, _ = command("performance", *options)
    found = json.loads(printed)
    assert code == 0
    assert (found["parallelism"]["pp"], found["nodes"]) == (8, 16)
    assert found["provenance"]["record"]["reduction"]["target"]["pp"] == 8


def test_every_schedule_of_a_restored_job(command, saved):
    options = ["--load-benchmark", saved, "--json", "--pipeline-schedule-algorithm", "all"]
    code, printed, _ = command("performance", *options)
    found = json.loads(printed)
    assert code == 0
    assert found["provenance"]["times"] == "hybrid"
    assert found["alternatives"]


def test_a_job_that_outgrows_its_device_by_measured_memory(command, record, saved):
    step = record.step
    numbers = {name: 5.0 * value for name, value in step.outcome.numbers.items()}
    larger = step.outcome.model_copy(update={"numbers": {**step.outcome.numbers, **numbers}})
    larger = record.model_copy(update={"step": step.model_copy(update={"outcome": larger})})
    larger.save(saved)
    code, printed, _ = command("memory", "--load-benchmark", saved, "--json")
    assert code == 3
    assert not json.loads(printed)["fits"]
    assert command("memory", "--json")[0] == 0


def test_out_of_memory_is_an_outcome(command, record, saved):
    full = Outcome(status="out_of_memory", message="79 GiB were not enough")
    step = record.step.model_copy(update={"outcome": full})
    record.model_copy(update={"step": step}).save(saved)
    options = ["--load-benchmark", saved, "--profiling-mode", "both"]
    code, printed, _ = command("performance", *options)
    assert code == 0
    assert "out of memory" in printed
    assert "79 GiB were not enough" in " ".join(printed.split())
    found = json.loads(command("performance", *options, "--json")[1])
    assert found["provenance"]["terms"]["optimizer"] == "analytic"
    assert found["comparison"]["step"] == {}
    assert found["comparison"]["not_measured"][0]["status"] == "out_of_memory"


def refused(command, options, key, *words, job=JOB):
    """Check that a command ends with one message, as text and as JSON."""
    code, printed, said = command("performance", "--quiet", *options, job=job)
    assert (code, printed) == (2, "")
    assert said.startswith("error: ")
    for word in words:
        assert word in said
    code, printed, _ = command("performance", "--quiet", *options, "--json", job=job)
    found = json.loads(printed)
    assert code == 2
    assert found.keys() == {"error", "key", "value", "allowed"}
    assert found["key"].startswith(key)
    assert said == f"error: {found['error']}\n"


def test_another_device(command, saved):
    options = ["--load-benchmark", saved, "--gpu-arch", "mi300x"]
    refused(command, options, "load_benchmark", "H100", "MI300X")


def test_another_type(command, saved):
    options = ["--load-benchmark", saved, "training.precision=fp8"]
    refused(command, options, "load_benchmark", "training.precision bf16", "fp8")


def test_another_model(command, saved):
    options = ["--load-benchmark", saved, "model.hidden_size=2048"]
    refused(command, options, "load_benchmark", "hidden_size 4096", "2048")


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.999], ids=["empty", "half", "end"])
def test_a_truncated_file(command, saved, tmp_path, kept):
    whole = (tmp_path / "record.json").read_bytes()
    (tmp_path / "record.json").write_bytes(whole[: int(kept * len(whole))])
    refused(command, ["--load-benchmark", saved], "load_benchmark", saved)


def test_too_few_gpus(command):
    options = ["--benchmark-gpus", "1", "parallelism.cp=2"]
    on_processor = {**JOB, "cluster": {**JOB["cluster"], "device": here()}}
    refused(command, options, "benchmark_gpus", "at least 2", job=on_processor)


@pytest.mark.parametrize("options", [["--profiling-mode", "both"], ["--benchmark-gpus", "1"]])
def test_no_gpu(command, options):
    refused(command, options, "profiling_mode", "no GPU is at hand", "--load-benchmark")


def here():
    return {"extends": "h100", "name": cpu_name()}


SMALL = {
    "model": {
        "name": "small",
        "num_layers": 4,
        "hidden_size": 64,
        "ffn_hidden_size": 128,
        "num_attention_heads": 4,
        "vocab_size": 256,
        "max_position_embeddings": 64,
    },
    "parallelism": {"pp": 4},
    "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 64},
    "cluster": {"device": here(), "nodes": 1},
}


def test_no_torch(command, monkeypatch):
    monkeypatch.setattr(process, "find_spec", lambda name: None)
    options = ["--profiling-mode", "benchmark"]
    refused(command, options, "torch", "not installed", ".[torch]", job=SMALL)


def test_an_old_torch(command, monkeypatch):
    monkeypatch.setattr(process, "installed_version", lambda name: "1.13.1")
    monkeypatch.setattr(process, "find_spec", lambda name: object())
    options = ["--profiling-mode", "benchmark"]
    refused(command, options, "torch", "1.13.1", "or newer", job=SMALL)


WORKERS = {
    "dies": ("import os; os.abort()", "killed by SIGABRT"),
    "fails": ("raise SystemExit('the device fell off the bus')", "the device fell off the bus"),
    "answers nothing": ("pass", "without an answer"),
    "answers rubbish": (
        "import sys; open(sys.argv[2], 'w').write('{\"outcomes\": 3')",
        "cannot be read",
    ),
}


@pytest.mark.parametrize("how", WORKERS)
def test_a_worker_that_does_not_answer(command, monkeypatch, tmp_path, how):
    program, word = WORKERS[how]
    monkeypatch.setattr(process, "check_torch", lambda: None)
    monkeypatch.setattr(process, "WORKER", (sys.executable, "-c", program))
    path = tmp_path / "kept.json"
    options = ["--save-benchmark", str(path)]
    code, printed, said = command("performance", "--quiet", *options, job=SMALL)
    assert (code, printed) == (2, "")
    assert said.startswith("error: ")
    assert word in said
    assert not path.exists()
