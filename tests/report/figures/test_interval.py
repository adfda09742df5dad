"""The picture of what the interval between checkpoints costs."""

import pytest

from projector.config.load import load_job
from projector.errors import ConfigError

pytest.importorskip("matplotlib")
from projector.report.figures.interval import interval_figure, write_interval

JOB = {
    "model": "llama3.2_1b",
    "training": {"micro_batch_size": 1, "global_batch_size": 256, "seq_length": 2048},
    "cluster": {"device": "h100", "nodes": 2},
    "run": {"tokens": 1e12},
}


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_picture_is_written(tmp_path, asynchronous):
    path = tmp_path / "interval.png"
    write_interval(load_job(JOB, {"run.checkpoint.asynchronous": asynchronous}), path)
    assert path.stat().st_size > 10_000


def test_played_runs_lie_on_the_curve():
    from projector import project_performance
    from projector.report.figures.figure import style

    with style():
        axes = interval_figure(project_performance(JOB).run).axes[0]
    curve = next(line for line in axes.lines if line.get_label() == "expected")
    minutes, added = curve.get_data()
    dots = axes.containers[0].lines[0]
    for minute, value in zip(*dots.get_data(), strict=True):
        near = added[abs(minutes - minute).argmin()]
        assert value == pytest.approx(near, rel=0.2, abs=0.3)


@pytest.mark.parametrize(
    "change", [{"run.tokens": None}, {"run.failures": False}, {"run.checkpoint": False}]
)
def test_a_run_without_checkpoints_or_failures_has_none(tmp_path, change):
    with pytest.raises(ConfigError, match="needs a run"):
        write_interval(load_job(JOB, change), tmp_path / "interval.png")
