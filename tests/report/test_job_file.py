import re

import pytest

import projector
from projector.config.cluster import ClusterConfig
from projector.config.parallelism import ParallelismConfig
from projector.config.training import MoETrainingConfig, RecomputeConfig, TrainingConfig
from projector.report.job_file import field_docstrings, job_file

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


def test_lines_are_short():
    assert max(map(len, job_file().splitlines())) <= 100
