"""Reports of restored jobs: what was measured, the origin of terms, measured beside simulated."""

from pathlib import Path

import pytest
from tests.measure.synthetic import synthetic_record

import projector as pj
from projector.measure.reduction import reduce_job
from projector.measure.task import Outcome
from projector.report.terminal.console import render
from projector.report.terminal.grid import gib, milliseconds
from projector.report.terminal.step import (
    MAX_OPERATIONS,
    both_report,
    memory_report,
    performance_report,
)

EXAMPLES = Path(__file__).parents[3] / "examples"
JOBS = [path.stem for path in sorted(EXAMPLES.glob("measure_*.yaml"))]
SCREEN = 56


@pytest.fixture(scope="module")
def records():
    known = {}

    def of(name):
        if name not in known:
            job = pj.load_job(EXAMPLES / f"{name}.yaml")
            record = synthetic_record(
                reduce_job(job, 1), slow=1.2, extra_s={"moe": 1e-4}, idle_bytes=2e9, live_bytes=1e9
            )
            known[name] = job, record
        return known[name]

    return of


@pytest.fixture(params=JOBS)
def measured(request, records):
    return records(request.param)


def test_a_restored_step_fits_a_screen_and_marks_every_term(measured):
    job, record = measured
    result = pj.project_performance(job, records=record)
    text = render(*performance_report(result), width=100)
    lines = text.splitlines()
    assert len(lines) <= SCREEN
    assert f"Measured on 1 x {record.environment.device}" in text
    assert "Benchmark: TP=1, PP=1" in text
    for name, seconds in result.breakdown_s.items():
        if seconds > 0.0:
            (line,) = [line for line in lines if line.startswith(f"  {name} ")]
            assert milliseconds(seconds) in line
            assert f" {result.origins[name]}" in line


def test_reasons_of_a_reduction_are_told(records):
    job, record = records("measure_mixtral_8x7b")
    text = render(*performance_report(pj.project_performance(job, records=record)), width=100)
    for words in ("PP 4 -> 1: 8 GPUs", "EP 8 -> 1: 1 GPU", "replayed", "One copy of the target"):
        assert words in text


@pytest.mark.parametrize("width", [80, 100, 140])
def test_both_shows_measured_beside_simulated(measured, width):
    job, record = measured
    result = pj.project_performance(job, records=record, profiling_mode="both")
    text = render(*both_report(result), width=width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    compared = result.comparison
    for pair in (*compared.target.values(), *compared.step.values()):
        if pair.measured_s > 0.0:
            assert milliseconds(pair.measured_s) in text
            assert milliseconds(pair.simulated_s) in text
    ranked = sorted(compared.operations, key=lambda one: -one.pair.measured_s * one.runs)
    shown = ranked[:MAX_OPERATIONS]
    assert all(milliseconds(one.pair.measured_s) in text for one in shown)
    assert f"{len(ranked) - len(shown)} shorter ones" in text
    assert "0.83" in text


def test_memory_says_what_its_peak_stands_on(measured):
    job, record = measured
    memory = pj.project_memory(job, records=record, profiling_mode="both")
    text = render(*memory_report(memory), width=100)
    anchor = memory.anchor
    for num_bytes in (anchor.analytic_bytes, anchor.live_bytes, anchor.idle_bytes):
        assert gib(num_bytes) in text
    assert f"held {gib(anchor.measured_bytes)} GiB" in text
    assert "simulated" in text


def test_what_was_not_measured_is_told_once_for_each_reason(records):
    job, record = records("measure_mixtral_8x7b")
    reason = Outcome(status="unsupported", message="this build has no such kernel")
    operations = [
        entry.model_copy(update={"outcome": reason}) if entry.key.kind == "gemm" else entry
        for entry in record.operations
    ]
    partly = record.model_copy(update={"operations": operations})
    result = pj.project_performance(job, records=partly, profiling_mode="both")
    text = render(*performance_report(result), width=100)
    assert text.count("this build has no such kernel") == 1
    assert "more" in text


def test_suggestions_are_those_of_models_alone(records):
    job, record = records("measure_llama3_8b")
    text = render(*performance_report(pj.project_performance(job, records=record)), width=100)
    assert "What to try next" not in text
