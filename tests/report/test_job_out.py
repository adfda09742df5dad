"""Jobs that are written are read as they were."""

from pathlib import Path

import pytest

import projector as pj
from projector.report.job_out import job_mapping, write_job

EXAMPLES = Path(__file__).parents[2] / "examples"


JOBS = [
    file
    for file in sorted(EXAMPLES.glob("*_*.yaml"))
    if not file.stem.startswith(("space_", "serve_"))
]


@pytest.mark.parametrize("file", JOBS, ids=lambda file: file.stem)
def test_examples_come_back(file, tmp_path):
    job = pj.load_job(file)
    write_job(job, tmp_path / "job.yaml", "as it was")
    again = pj.load_job(tmp_path / "job.yaml")
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
    job = pj.load_job(EXAMPLES / "mixtral_8x22b_mi355x.yaml", overrides)
    write_job(job, tmp_path / "job.yaml")
    again = pj.load_job(tmp_path / "job.yaml")
    assert again == job


def test_shipped_things_go_by_name():
    job = pj.load_job(EXAMPLES / "mixtral_8x22b_mi355x.yaml")
    data = job_mapping(job)
    assert data["model"] == "mixtral_8x22b"
    assert data["cluster"]["device"] == "mi355x"
    assert "network" not in data["cluster"]
