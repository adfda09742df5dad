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


PER_OP = {"granularity": "selective", "modules": ["per_op"]}


def test_operators_make_every_second_product_again():
    whole, chosen = (
        project(**{"parallelism.tp": 1, "training.recompute": recompute}).recompute_flop
        for recompute in ("full", PER_OP)
    )
    # K, the output of attention and the second input of the gate. Full recomputation repeats all
    # of the 2048 * 29,696 of a layer, and attention, which has 2 * 2048 * 2048 causal ones.
    again = 512 + 2048 + 8192
    assert chosen / whole == pytest.approx(again / (29696 + 2 * 2048), rel=0.01)


def test_operators_keep_what_the_policy_names():
    kept, none = (
        project_memory(load_job(JOB, {"parallelism.tp": 1, "training.recompute": recompute}))
        for recompute in (PER_OP, "none")
    )
    tokens, layers = 4096, 16
    # Input of the layer, Q, V, output of attention, first input of the gate, and the log-sums.
    layer = 2 * tokens * (2048 + 2048 + 512 + 2048 + 8192) + 4 * tokens * 32
    ends = 2 * tokens * 2048
    saved = kept.stages[0].activations_bytes
    logits = 2 * tokens * 128256
    assert saved == pytest.approx(layers * layer + 2 * ends + logits, rel=0.01)
    assert saved < none.stages[0].activations_bytes


@pytest.mark.parametrize("ep", [1, 8])
def test_operators_never_exchange_tokens_again(ep):
    experts = {"model": "qwen3_30b_a3b", "parallelism.tp": 1, "parallelism.ep": ep}
    first, second = (
        project(**experts, **{"training.recompute": recompute}) for recompute in (PER_OP, "none")
    )
    assert first.breakdown_s["ep_comm"] == second.breakdown_s["ep_comm"]
    assert first.breakdown_s["compute_gemm"] > second.breakdown_s["compute_gemm"]


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
