"""The script that measures and projects small jobs on the processor at hand, without torch."""

import csv
import importlib.util
import re
from pathlib import Path

import pytest
from tests.measure.synthetic import synthetic_record, timing

from projector.config.device_file import load_device
from projector.config.yaml_file import read_yaml
from projector.measure.probe import Processor, plan_probe
from projector.measure.reduction import reduce_job
from projector.measure.task import Environment, Outcome, Pace

FOLDER = Path(__file__).resolve().parents[1] / "validation"


def _script():
    spec = importlib.util.spec_from_file_location("probed_cpu", FOLDER / "probed_cpu.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


probed_cpu = _script()


@pytest.fixture(scope="module")
def probe():
    environment = Environment(
        device="Some Processor", backend="cpu", memory_bytes=2**34, threads=2, torch="2.13.0"
    )
    return plan_probe(environment, host=Processor(clock_mhz=2000.0))


@pytest.fixture(scope="module")
def jobs(probe):
    return probed_cpu.jobs_of(probe.jobs[0].cluster.device)


@pytest.fixture(scope="module")
def found(jobs):
    whole = Outcome(status="ok", times={"total": timing(0.25)})
    return [
        probed_cpu.compare(
            name, job, synthetic_record(reduce_job(job, 1), device="Some Processor"), whole
        )
        for name, job in jobs.items()
    ]


def test_the_step_of_the_whole_model_has_all_its_layers(jobs):
    kinds = {
        name: [layer.kind for layer in probed_cpu.whole_step(reduce_job(job, 1).job).layers]
        for name, job in jobs.items()
    }
    assert kinds == {
        "small Llama": ["embedding", *["dense"] * 4, "head"],
        "small mixture of experts": ["embedding", *["moe"] * 3, "head"],
    }


def test_no_job_has_a_size_that_the_probe_is_fitted_to(probe, jobs):
    known = {(job.model.hidden_size, job.training.seq_length) for job in probe.jobs}
    for job in jobs.values():
        assert (job.model.hidden_size, job.training.seq_length) not in known


def test_probe_and_jobs_take_turns_and_are_told_apart_again(probe, jobs):
    pace = Pace(repeats=5)
    tasks = [
        probe.task,
        *(probed_cpu.task_for(reduce_job(job, 1), pace, 2) for job in jobs.values()),
    ]
    mixed, places = probed_cpu.in_turns(tasks, pace)
    assert mixed.pace.repeats == 5
    assert sorted(place for own in places for place in own) == list(range(len(mixed.programs)))
    for task, own in zip(tasks, places, strict=True):
        assert [mixed.programs[place] for place in own] == task.programs


def test_everything_measured_is_a_row_of_the_table(found):
    lines = probed_cpu.table_text(found).splitlines()
    assert lines[0].split(",")[:3] == ["job", "what", "layer"]
    assert len(lines) == 1 + sum(len(each.rows) for each in found)
    for each in found:
        whats = {row.what for row in each.rows}
        assert whats == {"total", "restored", "step", "layer", "operation"}
        assert each.total.measured_us == pytest.approx(250_000.0)


def test_every_operation_that_may_differ_has_a_reason(found):
    reasons = read_yaml(probed_cpu.SETTINGS)["reasons"]
    for each in found:
        for row in each.rows:
            if row.what == "operation":
                assert len(probed_cpu.why(row, reasons)) > 20
    for reason in reasons:
        re.compile(reason["label"])


def test_what_is_recorded_has_the_columns_and_jobs_of_the_script():
    if not probed_cpu.TABLE.exists():
        pytest.skip("not recorded")
    with probed_cpu.TABLE.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [*probed_cpu.Row._fields, "ratio"]
    settings = read_yaml(probed_cpu.SETTINGS)
    totals = {row["job"]: float(row["ratio"]) for row in rows if row["what"] == "total"}
    assert totals.keys() == settings["jobs"].keys()
    assert all(abs(ratio - 1.0) <= settings["tolerance"] for ratio in totals.values())
    page = probed_cpu.PAGE.read_text(encoding="utf-8")
    assert all(f"## {name}" in page for name in totals)
    device = load_device(probed_cpu.PROFILE)
    assert device.name in page
    assert "measured by projector" in device.sources["matrix_peak_tflops.bf16"]
