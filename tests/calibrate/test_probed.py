"""The fit of a probed device to what was measured of it."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
import yaml

from projector.calibrate.fit import changed
from projector.calibrate.probed import ProbeModel, fit_probe
from projector.cli.main import run
from projector.config.device_file import load_device
from projector.measure import probe as probes
from projector.measure.probe import Processor, plan_probe, read_off
from projector.measure.task import Answer, Environment, Outcome, Timing

TRUTH = {
    "gemm_efficiency.bf16": 0.95,
    "gemm_overhead_us": 20.0,
    "kernel_start_us": 12.0,
    "elementwise_efficiency": 0.3,
    "attention.forward_efficiency": 0.15,
    "training_gemm_share.16_bit": 0.6,
}
ALONE_S = 2e-6
"""Of a kernel by itself."""

NO_TIME = Outcome(status="unsupported", message="no such kernel")
PARTS = ("time", "forward", "backward", "optimizer", "total")


@pytest.fixture(scope="module")
def probe():
    environment = Environment(
        device="Some Processor", backend="cpu", memory_bytes=2**34, threads=1, torch="2.13.0"
    )
    settings = probes.settings_of("cpu")
    few = settings.model_copy(
        update={
            "jobs": {name: settings.jobs[name] for name in ("tiny", "narrow")},
            "fields": sorted(TRUTH),
            "evaluations": 8,
        }
    )
    return plan_probe(environment, host=Processor(clock_mhz=2000.0), settings=few)


def _flat(probe, seconds):
    timing = Timing(median_s=seconds, low_s=seconds, high_s=seconds, repeats=1)
    return [Outcome(status="ok", times=dict.fromkeys(PARTS, timing)) for _ in probe.task.programs]


def _answer(probe, truth=TRUTH, noise=0.0, rate=5e11, copy=2e10):
    """Answer as a machine would that is exactly as the models have it, but for noise."""
    outcomes = _flat(probe, 1.0)
    for place, program in enumerate(probe.task.programs):
        if program.program == "copy":
            seconds = program.bytes / copy
        elif _is_swept(program):
            key = program.key
            seconds = 2.0 * key.m * key.n * key.k / (rate if key.dtype == "bf16" else 0.2 * rate)
            seconds += 1e-6 * TRUTH["gemm_overhead_us"]
        else:
            continue
        outcomes[place] = Outcome(status="ok", times={"time": _timing(seconds)})
    rates = [
        outcome if program.program == "copy" or _is_swept(program) else NO_TIME
        for program, outcome in zip(probe.task.programs, outcomes, strict=True)
    ]
    start = load_device(read_off(probe, Answer(environment=probe.environment, outcomes=rates)))
    model = ProbeModel(probe, start)
    chance = random.Random(0)
    sights = list(model.sights(outcomes))
    truth_s = iter(model.times_s([changed(start, truth)], sights, ALONE_S)[0])
    for position, program in enumerate(probe.task.programs):
        parts = {
            "operation": ("time",), "layer": ("forward", "backward"), "step": ("optimizer", "total")
        }.get(program.program, ())  # fmt: skip
        times = {part: _timing(next(truth_s) * chance.lognormvariate(0.0, noise)) for part in parts}
        if parts and not _is_swept(program):
            outcomes[position] = Outcome(status="ok", times=times)
    return Answer(environment=probe.environment, outcomes=outcomes)


def _is_swept(program):
    return program.program == "operation" and program.key.label == probes.SWEPT


def _timing(seconds):
    return Timing(median_s=seconds, low_s=seconds, high_s=seconds, repeats=1)


@pytest.fixture(scope="module")
def hasty(probe):
    """The same probe with a fit that ends at once."""
    settings = probe.settings.model_copy(update={"evaluations": 1, "fields": ["kernel_start_us"]})
    return replace(probe, settings=settings)


@pytest.fixture(scope="module")
def probed(probe):
    return fit_probe(probe, _answer(probe, noise=0.03))


def test_a_machine_that_is_as_the_models_have_it_is_found(probed):
    values = {each.field: each.value for each in probed.fields}
    for path in ("kernel_start_us", "elementwise_efficiency", "gemm_overhead_us"):
        assert values[path] == pytest.approx(TRUTH[path], rel=0.15), path
    for what in ("gemm", "attention", "memory", "layer", "step"):
        assert probed.errors()[what][1] < 0.1, what


def test_the_profile_is_a_device_file_that_says_where_numbers_come_from(probed, tmp_path):
    path = tmp_path / "cpu.yaml"
    path.write_text(probed.text(), encoding="utf-8")
    device = load_device(path)
    assert device.kernel_start_us == probed.device.kernel_start_us
    assert "fitted by projector" in device.sources["kernel_start_us"]
    data = yaml.safe_load(probed.text())
    assert data["kernel_start_us"]["source"] == "fitted"
    assert data["attention"]["forward_efficiency"]["source"] == "fitted"


def test_the_json_object_holds_fields_errors_and_rows(probed):
    result = probed.to_dict()
    json.dumps(result, allow_nan=False)
    assert {row["what"] for row in result["rows"]} == result["errors"].keys()
    assert result["missing"] == {}


def test_what_could_not_be_measured_is_left_out_and_named(hasty):
    answer = _answer(hasty)
    outcomes = [
        NO_TIME if program.program == "step" else outcome
        for program, outcome in zip(hasty.task.programs, answer.outcomes, strict=True)
    ]
    fewer = fit_probe(hasty, Answer(environment=answer.environment, outcomes=outcomes))
    assert "step" not in fewer.errors()
    assert "no such kernel" in fewer.missing.values()


def test_a_gpu_gets_what_differs_from_its_shipped_profile():
    environment = Environment(
        device="NVIDIA H100 80GB HBM3", backend="cuda", memory_bytes=80 * 2**30, torch="2.13.0"
    )
    settings = probes.settings_of("cuda")
    few = settings.model_copy(
        update={
            "jobs": {name: settings.jobs[name] for name in ("tiny", "narrow")},
            "fields": ["elementwise_efficiency"],
            "evaluations": 8,
        }
    )
    gpu = plan_probe(environment, settings=few)
    answer = _answer(gpu, {"elementwise_efficiency": 0.6}, rate=6e14, copy=2.9e12)
    found = fit_probe(gpu, answer)
    values = {each.field: each.value for each in found.fields}
    assert values["elementwise_efficiency"] == pytest.approx(0.6, rel=0.1)
    assert found.data["extends"] == "h100"
    assert found.data.keys() == {
        "extends", "name", "sources", "hbm_efficiency", "elementwise_efficiency"
    }  # fmt: skip
    shipped = load_device("h100")
    assert found.device.matrix_peak_tflops == shipped.matrix_peak_tflops
    assert "taken from NVIDIA H100" in found.device.sources["tdp_w"]


def test_the_command_writes_a_profile_that_others_take(hasty, monkeypatch, tmp_path, capsys):
    answer = _answer(hasty)
    monkeypatch.setattr(probes, "identify", lambda *_, **__: hasty.environment)
    monkeypatch.setattr(probes, "plan_probe", lambda *_: hasty)
    monkeypatch.setattr("projector.measure.process.run_task", lambda *_, **__: answer)
    out = tmp_path / "cpu.yaml"
    assert run(["probe", "--out", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["output"] == str(out)
    assert result["device"] == "Some Processor"
    assert run(["probe", "--out", str(out)]) == 2
    assert "exists" in capsys.readouterr().err
    assert run(["probe", "--out", str(out), "--force", "--quiet"]) == 0
    assert "kernel_start_us" in capsys.readouterr().out
    assert run(["gemm", "256", "256", "256", "--gpu", str(out), "--json"]) == 0
    assert run(["hardware", str(out), "--json"]) == 0


@pytest.mark.parametrize(
    ("name", "told"), [("cpu.txt", ".yaml"), ("nowhere/cpu.yaml", "nowhere/cpu.yaml")]
)
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_measured(name, told, capsys):
    assert run(["probe", "--out", name]) == 2
    assert told in capsys.readouterr().err


def test_devices_are_timed_together_as_each_by_itself(probe):
    answer = _answer(probe, noise=0.0)
    start = load_device(read_off(probe, answer))
    model = ProbeModel(probe, start)
    sights = list(model.sights(answer.outcomes))
    # The first two share a record, as its rate within a step is the product of both.
    values = [
        {"training_memory_share": 0.5},
        {"elementwise_efficiency": 0.5 * start.elementwise_efficiency},
        {"gemm_overhead_us": 2.0 * start.gemm_overhead_us},
        {},
    ]
    devices = [changed(start, each) for each in values]
    together = model.times_s(devices, sights, ALONE_S)
    for device, time_s in zip(devices, together, strict=True):
        assert np.array_equal(model.times_s([device], sights, ALONE_S)[0], time_s)
    assert len(np.unique(together, axis=0)) == len(devices)
