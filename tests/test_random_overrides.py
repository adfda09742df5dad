"""Ten thousand random overrides of the example jobs: a projection or a clear refusal."""

import math
import random
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from projector.config.load import load_job
from projector.errors import ProjectorError
from projector.lower.batch import JobBatch
from projector.projection.api import project_performance
from projector.projection.evaluate import evaluate_possible, find_legal
from projector.projection.performance import performance_projection
from projector.projection.results import Results

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("[!rs]*.yaml"))
ROUNDS, PER_ROUND = 10, 1000
ALONE = 100
"""Jobs of a round that are projected one by one; the others are one batch, which is cheaper."""

ODD = [
    -1, 0, 1, 2, 3, 5, 7, 24, 1000, 131072, 10**6, 10**12, 10**30, 0.5, 2.5, 1e300, "8", "x", "",
    None, True, [1], [], {"a": 1}, {}, math.nan, math.inf, "2026-01-01",
]  # fmt: skip
FIELDS = {
    "model": ["llama3.1_8b", "mixtral_8x7b", "deepseek_v3", "gpt_oss_20b", "gpt3_175b", "mpt_7b"],
    "model.hidden_size": [64, 100, 4096],
    "model.make_vocab_size_divisible_by": [128, None],
    "model.moe.router_topk": [1, 2, 8],
    "model.moe.num_experts": [4, 8, 256],
    "model.mtp_num_layers": [0, 1, 2],
    "model.num_attention_heads": [1, 8, 48],
    "model.num_layers": [1, 2, 5, 61, 1000],
    "model.num_query_groups": [1, 3, 8],
    "model.vocab_size": [1, 50257, 10**9],
    "parallelism.cp": [1, 2, 4, 8],
    "parallelism.cp_comm_type": ["p2p", "all_gather", "a2a", "ring"],
    "parallelism.decoder_first_pipeline_num_layers": [1, 2, 10, None],
    "parallelism.decoder_last_pipeline_num_layers": [1, 2, 10, None],
    "parallelism.dp": [None, 1, 8, 16],
    "parallelism.ep": [1, 2, 4, 8, 16, 64],
    "parallelism.etp": [1, 2, 4, None],
    "parallelism.fsdp": [False, 1, 2, True],
    "parallelism.overlap_grad_reduce": [True, False],
    "parallelism.overlap_moe_expert_parallel_comm": [True, False],
    "parallelism.moe_shared_expert_overlap": [True, False],
    "parallelism.overlap_param_gather": [True, False],
    "parallelism.pipeline_model_parallel_layout": ["E(t*14|)*3t*14L", "Et|tL", "(((("],
    "parallelism.pp": [1, 2, 3, 4, 7, 8, 16],
    "parallelism.sequence_parallel": [True, False, None],
    "parallelism.tp": [1, 2, 3, 4, 8, 16],
    "parallelism.tp_comm_overlap": [True, False, "user_buffers", "async_tp"],
    "parallelism.vpp": [1, 2, 3, 4, 7],
    "parallelism.zero_stage": [0, 1, 2, 3, 4],
    "training.activation_offload_fraction": [0, 0.5, 1],
    "training.cross_entropy_fusion": [True, False],
    "training.cuda_graphs": [True, False],
    "training.first_last_layers_bf16": [0, 1, 100],
    "training.flash_attention": [True, False],
    "training.framework": ["trl", "nanotron", "mlperf", "huggingface", "megatron_lm", None],
    "training.fp8_recipe": ["delayed", "tensorwise", "rowwise", "blockwise"],
    "training.global_batch_size": [1, 8, 64, 128, 256, 1024, 4096, 15360],
    "training.gradient_dtype": ["fp32", "bf16"],
    "training.loss_chunk_tokens": [1, 256, 10**6, None],
    "training.micro_batch_size": [1, 2, 4, 8],
    "training.moe.capacity_factor": [0.5, 1.0, None],
    "training.moe.dispatcher": ["alltoall", "allgather", "deepep", "hybridep"],
    "training.moe.dispatcher_sms": [None, 2, 64],
    "training.moe.load": ["balanced", "zipf"],
    "training.optimizer": ["adam", "sgd", {"moment_dtype": "bf16", "offload_fraction": 0.5}],
    "training.packed_tokens": [1, 250, 4096, 10**6, None],
    "training.precision": ["bf16", "fp16", "fp8", "mxfp8", "nvfp4", "mxfp4", "fp32", "int4"],
    "training.recompute": [
        "none", "selective", "full", {"method": "block", "num_layers": 2}, {"layers": [0, 1]},
        {"modules": ["moe_act", "core_attn", "mlp", "layernorm"]},
    ],
    "training.schedule": ["auto", "1f1b", "gpipe", "interleaved", "zerobubble", "zbv-formatted"],
    "training.seq_length": [1, 128, 1024, 2048, 4096, 8192, 16384, 131072],
    "training.torch_compile": [True, False],
    "cluster.device": ["mi300x", "mi355x", "h100", "a100", "b200", "gb200", "mi250x", "rtx9090"],
    "cluster.device.compute_units": [1, 10, 1000],
    "cluster.device.hbm_gib": [80, 1e6, 0],
    "cluster.device.scale_up_efficiency": [0.1, 1, 2],
    "cluster.gpu_clock_mhz": [1000, 1500, 1e9, 0.001],
    "cluster.gpus_per_node": [1, 3, 4, 8],
    "cluster.memory_reserve_gib": [0, 10, 1e9],
    "cluster.network": ["p5_efa", "p6_b200_efa", "hgx_h100", "nowhere"],
    "cluster.network.exchange_proxy": ["", "nvshmem", "uccl", "ibgda"],
    "cluster.network.exchange_proxy_gb_per_s": [0, 2, 1e9],
    "cluster.network.exchange_wait_us": [0, 3600, -1],
    "cluster.network.nic_gbit_per_s": [1, 400, -4],
    "cluster.nodes": [1, 2, 4, 8, 16, 256, 2048],
    "cluster.software.launch_us": [0, 100],
}  # fmt: skip


def random_overrides(rng):
    fields = rng.sample(list(FIELDS), rng.choice([1, 1, 2, 2, 3, 4, 6]))
    return {f: rng.choice(FIELDS[f] if rng.random() < 0.9 else ODD) for f in fields}


def check(step):
    assert math.isfinite(step.iteration_time_s)
    assert step.iteration_time_s > 0.0
    assert all(math.isfinite(value) and value >= 0.0 for value in step.breakdown.values())
    assert sum(step.breakdown.values()) == pytest.approx(step.iteration_time_s, rel=1e-9)
    assert 0.0 < step.mfu <= 1.0
    for stage in step.memory.to_dict()["stages"]:
        assert all(math.isfinite(value) and value >= 0.0 for value in stage.values())
    assert step.memory.peak_bytes > 0.0


def draw(rng, bases, count, refusals):
    """Return the jobs that can be read, of as many draws."""
    jobs = []
    for _ in range(count):
        base, overrides = rng.choice(bases), random_overrides(rng)
        with noted(base, overrides), refused(refusals):
            jobs.append(load_job(base, overrides))
    return jobs


@contextmanager
def refused(refusals):
    """Keep a refusal; ``pytest.raises`` would want one."""
    try:
        yield
    except ProjectorError as refusal:
        refusals.append(refusal)


@contextmanager
def noted(*words):
    """Add the words to an error that is no refusal."""
    try:
        yield
    except ProjectorError:
        raise
    except Exception as error:
        error.add_note(" with ".join(map(repr, words)))
        raise


def projected_together(jobs, refusals):
    """Return the steps of jobs that can exist, projected as one batch."""
    batch = JobBatch.of(jobs)
    legal = find_legal(batch)
    refusals += [legal.errors[number] for number in legal.refused.tolist() if number >= 0]
    kept = np.flatnonzero(legal.refused < 0)
    parts = evaluate_possible(batch.take(kept), legal.take(kept), refusals.append)
    steps = []
    for rows, evaluation in parts:
        results = Results(evaluation)
        for row in range(len(rows)):
            with noted(evaluation.job(row)), refused(refusals):
                steps.append(performance_projection(results, row))
    return steps


def projected_alone(jobs, refusals):
    steps = []
    for job in jobs:
        with noted(job), refused(refusals):
            steps.append(project_performance(job))
    return steps


@pytest.mark.rotated
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_random_overrides(seed):
    rng, refusals = random.Random(seed), []
    bases = [load_job(path) for path in EXAMPLES]
    steps = projected_alone(draw(rng, bases, ALONE, refusals), refusals)
    steps += projected_together(draw(rng, bases, PER_ROUND - ALONE, refusals), refusals)
    for step in steps:
        with noted(step.job):
            step.to_dict()
            check(step)
    assert len(steps) + len(refusals) == PER_ROUND
    assert all(refusal.message for refusal in refusals)
    # Enough of them must get through for the checks to mean something.
    assert len(steps) > PER_ROUND // 5
