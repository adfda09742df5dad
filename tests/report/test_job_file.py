import re
from pathlib import Path

import pytest

import projector
from projector.config.cluster import ClusterConfig
from projector.config.parallelism import ParallelismConfig
from projector.config.training import MoETrainingConfig, RecomputeConfig, TrainingConfig
from projector.report.job_file import (
    field_docstrings,
    fitting_job_file,
    job_file,
    job_mapping,
    write_job,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
JOBS = [("llama3.1_8b", "mi300x", 1), ("mixtral_8x7b", "gb200", 3), ("gpt3_175b", "a100", 2)]


@pytest.mark.parametrize(
    "owner", [ParallelismConfig, TrainingConfig, ClusterConfig, RecomputeConfig, MoETrainingConfig]
)
def test_every_field_is_documented(owner):
    assert field_docstrings(owner).keys() >= owner.model_fields.keys()


@pytest.mark.parametrize("arguments", JOBS)
def test_the_file_projects_as_it_is(arguments, tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(job_file(*arguments))
    result = projector.project_performance(path)
    assert result.job.cluster.nodes == arguments[2]
    assert result.iteration_time_s > 0


@pytest.mark.parametrize("arguments", JOBS)
def test_defaults_in_the_file_are_the_defaults(arguments, tmp_path):
    path, bare = tmp_path / "job.yaml", tmp_path / "bare.yaml"
    text = job_file(*arguments)
    bare.write_text(text)
    # A line '# name: value', and what is indented below it, comes alive without its sign.
    path.write_text(re.sub(r"(?m)^  # ([a-z0-9_]+:( |$)|  )", r"  \1", text))
    full, default = projector.load_job(path), projector.load_job(bare)
    for section in ("parallelism", "training", "cluster", "run", "first_order"):
        assert getattr(full, section) == getattr(default, section)
        fields = type(getattr(full, section)).model_fields.keys()
        assert getattr(full, section).model_fields_set >= fields - {"dp"}


@pytest.mark.parametrize(("model", "device", "chosen"), [
    ("llama3.1_8b", "mi300x", False), ("llama3.1_405b", "h100", True),
])  # fmt: skip
def test_a_minimal_file_is_the_same_job(model, device, chosen, tmp_path):
    found = []
    for minimal in (False, True):
        path = tmp_path / f"{minimal}.yaml"
        path.write_text(fitting_job_file(model, device, minimal=minimal).text)
        assert ("A small search chose" in path.read_text()) is chosen
        found.append(projector.load_job(path))
    assert found[0] == found[1]
    assert len(path.read_text().splitlines()) < 20


def test_lines_are_short():
    assert max(map(len, job_file().splitlines())) <= 100


WRITTEN = [
    file
    for file in sorted(EXAMPLES.glob("*_*.yaml"))
    if not file.stem.startswith(("space_", "serve_", "rl_"))
]
"""Jobs that are written are read as they were."""


@pytest.mark.parametrize("file", WRITTEN, ids=lambda file: file.stem)
def test_examples_come_back(file, tmp_path):
    job = projector.load_job(file)
    write_job(job, tmp_path / "job.yaml", "as it was")
    again = projector.load_job(tmp_path / "job.yaml")
    assert again.model == job.model
    assert again.parallelism == job.parallelism
    assert again.training == job.training
    assert again.cluster == job.cluster
    assert again.run == job.run


@pytest.mark.parametrize(
    "overrides",
    [
        {"cluster.device.hbm_peak_tb_per_s": 9.0},
        {"cluster.network": "p5_efa", "cluster.device": "h100"},
        {"cluster.network.nic_gbit_per_s": 800.0},
        {"model.num_layers": 12},
        {"training.recompute": "full", "parallelism.tp": 2, "run.tokens": 1e12},
        {"run.tokens": 1e12, "run.failures": False, "run.cost.usd_per_gpu_hour": 2.0},
        {"cluster.software.launch_us": 3.0},
    ],
    ids=str,
)
def test_what_was_changed_comes_back(overrides, tmp_path):
    job = projector.load_job(EXAMPLES / "mixtral_8x22b_mi355x.yaml", overrides)
    write_job(job, tmp_path / "job.yaml")
    again = projector.load_job(tmp_path / "job.yaml")
    assert again == job


def test_shipped_things_go_by_name():
    job = projector.load_job(EXAMPLES / "mixtral_8x22b_mi355x.yaml")
    data = job_mapping(job)
    assert data["model"] == "mixtral_8x22b"
    assert data["cluster"]["device"] == "mi355x"
    assert "network" not in data["cluster"]
