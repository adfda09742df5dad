"""What a user waits for: a projection in a session, and whole processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from projector import load_job, project_memory, project_performance

JOB = Path(__file__).parents[1] / "examples" / "deepseek_v3_h800.yaml"
COMMAND = [sys.executable, "-c", "from projector.cli.main import main; main()"]
PERFORMANCE = [*COMMAND, "performance", "--config", str(JOB), "--json"]


def run(command, **environment):
    subprocess.run(command, env=os.environ | environment, check=True, stdout=subprocess.DEVNULL)


def test_project_performance(benchmark):
    """DeepSeek-V3 on 16 stages, the job already read."""
    job = load_job(JOB)
    project_performance(job)  # compile outside the clock
    assert benchmark(project_performance, job).iteration_time_s > 0


@pytest.mark.parametrize("nodes", [8, 16_384])
def test_project_on_many_nodes(benchmark, nodes):
    """Llama 3.1 8B with the same work for each of 64 and of 131,072 GPUs."""
    job = load_job(
        {
            "model": "llama3.1_8b",
            "parallelism": {"tp": 2, "pp": 4},
            "training": {
                "micro_batch_size": 1,
                "global_batch_size": 32 * nodes,
                "seq_length": 8192,
            },
            "cluster": {"device": "h100", "nodes": nodes},
        }
    )
    project_performance(job)
    assert benchmark(project_performance, job).iteration_time_s > 0


def test_project_memory(benchmark):
    job = load_job(JOB)
    project_memory(job)
    assert benchmark(project_memory, job).peak_bytes > 0


def test_load_job(benchmark):
    load_job(JOB)
    benchmark(load_job, JOB)


def test_help_process(benchmark):
    benchmark.pedantic(run, ([*COMMAND, "--help"],), rounds=10, warmup_rounds=1)


@pytest.mark.thorough
def test_warm_process(benchmark):
    """Kernels come from the disk cache."""
    benchmark.pedantic(run, (PERFORMANCE,), rounds=5, warmup_rounds=1)


@pytest.mark.thorough
def test_cold_process(benchmark, new_cache):
    """The first projection after an installation runs kernels as Python."""

    def setup():
        return (PERFORMANCE,), {**new_cache(), "PROJECTOR_BACKGROUND": "0"}

    benchmark.pedantic(run, setup=setup, rounds=2)
