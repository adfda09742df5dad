"""``--fidelity first-order`` at the command line."""

import json
from pathlib import Path

import pytest

import projector as pj
from projector.cli.main import run
from projector.config.first_order_job import load_first_order_job

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
JOB = str(EXAMPLES / "llama3.1_8b_fp8_mi325x.yaml")
TPU = ("--gpu-arch", "tpu_v6e", "training.precision=bf16", "cluster.gpus_per_node=8")


@pytest.fixture
def projector_run(capsys):
    def call(*arguments):
        code = run([*arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.mark.parametrize("command", ["memory", "performance", "both"])
def test_reports_say_what_they_are(command, projector_run):
    arguments = (command, "--config", JOB, "--fidelity", "first-order")
    code, out, _ = projector_run(*arguments)
    assert code in {0, 3}
    assert "FIRST-ORDER MODEL" in out
    assert len(out.splitlines()) <= 56
    code, out, _ = projector_run(*arguments, "--json")
    found = json.loads(out)
    parts = [found["memory"], found["performance"]] if command == "both" else [found]
    assert {part["fidelity"] for part in parts} == {"first-order"}
    assert all(part["provenance"]["times"] == "first-order" for part in parts)


def test_a_device_without_compute_units(projector_run):
    arguments = ("performance", "--config", JOB, *TPU)
    code, out, err = projector_run(*arguments, "--json")
    assert code == 2
    assert "--fidelity first-order" in err
    assert json.loads(out)["allowed"] == "--fidelity first-order"
    code, out, _ = projector_run(*arguments, "--json", "--quiet", "--fidelity", "first-order")
    changed = {"cluster.device": "tpu_v6e", "training.precision": "bf16"}
    job = load_first_order_job(JOB, {**changed, "cluster.gpus_per_node": 8})
    step = pj.project_performance(job, fidelity="first-order").to_dict()
    assert json.loads(out) == json.loads(json.dumps(step))


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (("--fidelity", "exact"), "fidelity"),
        (("--fidelity", "first-order", "--timeline", "x.json"), "timeline"),
        (("--fidelity", "first-order", "--memory-snapshot", "x.pickle"), "memory_snapshot"),
        (("--fidelity", "first-order", "--chakra", "et"), "chakra"),
        (("--fidelity", "first-order", "--plot", "roofline=x.png"), "plot"),
        (("--fidelity", "first-order", "--gpu-clock-mhz", "900"), "gpu_clock_mhz"),
        (("--fidelity", "first-order", "--pipeline-schedule-algorithm", "all"), "schedule"),
        (("--fidelity", "first-order", "first_order.overlap=2"), "first_order.overlap"),
        (("--fidelity", "first-order", "first_order.overlp=1"), "first_order.overlp"),
    ],
)
def test_what_closed_forms_do_not_have_is_refused(arguments, key, projector_run):
    code, out, _ = projector_run("performance", "--config", JOB, *arguments, "--json")
    assert code == 2
    assert json.loads(out)["key"] == key


def test_devices_are_listed(projector_run):
    _, out, _ = projector_run("hardware")
    assert "tpu_v5p" in out
    assert "--fidelity first-order" in out
    _, out, _ = projector_run("hardware", "--json")
    assert "trainium2" in json.loads(out)["first_order_devices"]
    _, out, _ = projector_run("hardware", "trn2", "--json")
    assert json.loads(out)["device"]["scale_up_domain"] == 16
    _, out, _ = projector_run("hardware", "trillium")
    assert "Google Cloud" in out


def test_a_plan_of_any_device(projector_run):
    arguments = ("plan", "--model", "llama3.1_70b", "--tokens", "1T", "--fidelity", "first-order")
    devices = ("--device", "tpu_v5p", "--device", "h100")
    code, out, err = projector_run(*arguments, *devices, "--deadline-days", "30")
    assert code == 0
    assert "FIRST-ORDER MODEL" in out
    assert "steps alone" in err
    code, out, _ = projector_run(*arguments, *devices, "--deadline-days", "30", "--json")
    found = json.loads(out)
    assert found["met"]
    assert found["fidelity"] == "first-order"
    assert {choice["device"] for choice in found["choices"]} <= {"tpu_v5p", "h100"}
    assert found["choices"][0]["days"] <= 30
    assert not {"days_low", "goodput", "energy_mwh"} & found["choices"][0].keys()
    code, out, _ = projector_run(
        *arguments, "--device", "tpu_v5p", "--gpus", "256", "--deadline-days", "3", "--json"
    )
    assert (code, json.loads(out)["met"]) == (3, False)


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (("--budget-usd", "5"), "usd_per_gpu_hour"),
        (("--html", "no/such/x.html"), "html"),
        (("--gpus", "3"), "gpus"),
        (("--deadline-days", "-1"), "deadline_days"),
        (("--usd-per-gpu-hour", "-1"), "usd_per_gpu_hour"),
    ],
)
def test_plans_that_are_no_question(arguments, key, projector_run):
    question = ("--model", "llama3.1_8b", "--tokens", "1T", "--device", "tpu_v5p")
    code, out, _ = projector_run(
        "plan", *question, "--fidelity", "first-order", *arguments, "--json"
    )
    assert code == 2
    assert json.loads(out)["key"] == key


def test_a_deployment(projector_run, tmp_path):
    arguments = ("serve", "--model", "llama3_70b", "--device", "tpu_v6e", "--tp", "8")
    code, out, _ = projector_run(*arguments)
    assert code == 2
    arguments = (*arguments, "--fidelity", "first-order")
    code, out, _ = projector_run(*arguments, "first_order.decode_mfu=0.5")
    assert code == 0
    assert "FIRST-ORDER MODEL" in out
    code, out, _ = projector_run(*arguments, "--json")
    assert json.loads(out)["bound_decode"] == "memory"
    code, out, _ = projector_run(*arguments, "decode_graph=false", "--json")
    assert (code, json.loads(out)["key"]) == (2, "decode_graph")
    file = tmp_path / "serving.yaml"
    file.write_text(
        "model: llama3_70b\ndevice: trn2\ntp: 8\ndecode_graph: true\nload: {batch: 4}\n"
    )
    code, out, err = projector_run("serve", "--config", str(file), "--fidelity", "first-order")
    assert code == 0
    assert "decode_graph has no meaning" in err
    code, out, _ = projector_run("serve", "--device", "trn2", "--fidelity", "first-order", "--json")
    assert (code, json.loads(out)["key"]) == (2, "model")


def test_a_cache_may_be_of_a_named_type(projector_run):
    arguments = ("serve", "--config", str(EXAMPLES / "serve_llama70b.yaml"), "--json")
    found = {}
    for cached in ("fp8", "bf16"):
        code, out, _ = projector_run(
            *arguments, "--fidelity", "first-order", f"kv_cache_bytes={cached}"
        )
        assert code == 0
        found[cached] = json.loads(out)["kv_cache_gib"]
    assert found["bf16"] == pytest.approx(2.0 * found["fp8"])
    code, _, err = projector_run(*arguments, "--fidelity", "first-order", "kv_cache_bytes=int3")
    assert code == 2
    assert "kv_cache_bytes: unknown type 'int3'" in err
