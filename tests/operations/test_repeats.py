"""What recomputation repeats."""

import pytest

from projector.config.load import load_job
from projector.projection.api import project_memory, project_performance

JOB = {
    "model": "llama3.2_1b",
    "parallelism": {"tp": 2},
    "training": {
        "micro_batch_size": 1,
        "global_batch_size": 8,
        "seq_length": 4096,
        "recompute": "full",
    },
    "cluster": {"device": "h100", "nodes": 1},
}


def project(**changes):
    return project_performance(load_job(JOB, changes))


def gemm(**changes):
    return project(**changes).breakdown_s["compute_gemm"]


def test_early_stop_leaves_the_last_gemm_out():
    early = {"training.recompute_early_stop": True}
    whole, stopped, kept = gemm(), gemm(**early), gemm(**{"training.recompute": "none"})
    # Of the GEMMs of a layer of this model, the last one has 2048 * 8192 of 2048 * 29,696.
    assert (whole - stopped) / (whole - kept) == pytest.approx(8192 / 29696, abs=0.03)


def test_early_stop_leaves_its_collective_out():
    whole, stopped = (
        project(**{"training.recompute_early_stop": early}).breakdown_s["tp_comm"]
        for early in (False, True)
    )
    assert stopped < whole


def test_early_stop_keeps_no_more_memory():
    jobs = [load_job(JOB, {"training.recompute_early_stop": early}) for early in (False, True)]
    first, second = (project_memory(job).peak_bytes for job in jobs)
    assert first == second


@pytest.mark.parametrize(
    "recompute",
    ["none", "selective", {"granularity": "full", "method": "uniform", "num_layers": 2}],
)
def test_early_stop_is_for_single_layers(recompute):
    whole, stopped = (
        gemm(**{"training.recompute": recompute, "training.recompute_early_stop": early})
        for early in (False, True)
    )
    assert whole == stopped


def test_experts_are_repeated_whole():
    experts = {"model": "qwen3_30b_a3b", "parallelism.ep": 4, "parallelism.etp": 1}
    whole, stopped = (
        gemm(**experts, **{"training.recompute_early_stop": early}) for early in (False, True)
    )
    assert whole == stopped
