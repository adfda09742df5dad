"""The published eight-node runs: a change in what we project for them is always seen."""

from pathlib import Path

import pytest
import yaml

from projector.projection.api import project_memory, project_performance

RUNS = yaml.safe_load(
    (Path(__file__).resolve().parents[1] / "validation" / "eight_node_runs.yaml").read_text()
)


@pytest.mark.parametrize("run", RUNS, ids=[run["name"] for run in RUNS])
def test_recorded_projection_is_current(run):
    ours = project_performance(run["job"]).tokens_per_s_per_gpu
    # Rerun validation/eight_node_runs.py --record and explain the change in the CHANGELOG.
    assert ours == pytest.approx(run["projected_tokens_per_s_per_gpu"], rel=1e-3)


@pytest.mark.parametrize("run", RUNS, ids=[run["name"] for run in RUNS])
def test_published_runs_fit(run):
    assert project_memory(run["job"]).fits


WHOLE_RUNS = yaml.safe_load(
    (Path(__file__).resolve().parents[1] / "validation" / "published_run_times.yaml").read_text()
)


@pytest.mark.parametrize("run", WHOLE_RUNS, ids=[run["name"] for run in WHOLE_RUNS])
def test_recorded_run_time_is_current(run):
    ours = project_performance(run["job"]).run
    # Rerun validation/published_run_times.py --record and explain the change in the CHANGELOG.
    assert getattr(ours, run["measure"]) == pytest.approx(run["projected"], rel=2e-3)
