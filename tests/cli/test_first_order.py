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
