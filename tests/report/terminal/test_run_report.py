"""The block of a whole run."""

import pytest
from rich.console import Console

import projector as pj
from projector.report.terminal.step import duration, run_lines

JOB = {
    "model": "llama3.2_1b",
    "training": {"micro_batch_size": 1, "global_batch_size": 256, "seq_length": 2048},
    "cluster": {"device": "h100", "nodes": 2},
}


def shown(**run):
    console = Console(width=100, record=True, file=None, quiet=False)
    with console.capture() as capture:
        for line in run_lines(pj.project_performance({**JOB, "run": run}).run):
            console.print(line)
    return capture.get()


def test_no_tokens_no_lines():
    assert run_lines(pj.project_performance(JOB).run) == []


def test_days_hours_and_terms():
    text = shown(tokens=1e12)
    assert "1 T tokens in" in text
    assert "GPU-hours" in text
    assert "lost work" in text
    assert "a checkpoint every" in text
    assert len(text.splitlines()) <= 5


def test_what_is_off_is_not_named():
    text = shown(tokens=1e12, failures=False, checkpoint=False)
    for word in ("failures", "checkpoint", "restarts", "lost work"):
        assert word not in text


@pytest.mark.parametrize(
    ("seconds", "text"), [(30.0, "30 s"), (365.0, "6.08 minutes"), (36000.0, "10.0 hours")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text
