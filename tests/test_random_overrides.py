"""Ten thousand random overrides of the example jobs: a projection or a clear refusal."""

import math
import random
from pathlib import Path

import pytest

from projector.config.load import load_job
from projector.errors import ProjectorError
from projector.projection.api import project_performance

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("[!s]*.yaml"))
ROUNDS, PER_ROUND = 10, 1000

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
    "training.fp8_recipe": ["delayed", "tensorwise", "rowwise", "blockwise"],
    "training.global_batch_size": [1, 8, 64, 128, 256, 1024, 4096, 15360],
    "training.gradient_dtype": ["fp32", "bf16"],
    "training.micro_batch_size": [1, 2, 4, 8],
    "training.moe.capacity_factor": [0.5, 1.0, None],
    "training.moe.dispatcher": ["alltoall", "allgather", "deepep", "hybridep"],
    "training.moe.dispatcher_sms": [None, 2, 64],
    "training.moe.load": ["balanced", "zipf"],
    "training.optimizer": ["adam", "sgd", {"moment_dtype": "bf16", "offload_fraction": 0.5}],
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


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_random_overrides(seed):
    rng = random.Random(seed)
    bases = [load_job(path) for path in EXAMPLES]
    projected, silent = 0, 0
    for _ in range(PER_ROUND):
        base, overrides = rng.choice(bases), random_overrides(rng)
        try:
            step = project_performance(load_job(base, overrides))
            step.to_dict()
        except ProjectorError as refusal:
            # Outside of pytest.raises, because most overrides are legal.
            silent += not refusal.message
            continue
        except Exception as error:
            error.add_note(f"{base!r} with {overrides}")
            raise
        check(step)
        projected += 1
    assert silent == 0
    # Enough of them must get through for the checks to mean something.
    assert projected > PER_ROUND // 5
