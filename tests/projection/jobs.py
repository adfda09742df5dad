"""Random legal jobs for property tests, small enough to project thousands of them."""

from hypothesis import strategies as st

from projector.config.load import load_job

MODELS = [
    "llama3.2_1b",
    "llama3.1_8b",
    "mixtral_8x7b",
    "deepseek_v2_lite",
    "gpt_oss_20b",
    "qwen3_30b_a3b",
    "gpt3_5b",
]
DEVICES = ["mi300x", "mi325x", "mi355x", "mi250x", "a100", "h100", "h200", "b200", "gb200", "gb300"]
RECOMPUTE = [
    "none",
    "selective",
    "full",
    {"granularity": "full", "method": "block", "num_layers": 1},
    {"granularity": "selective", "modules": ["layernorm", "mlp", "moe_act", "mla_up_proj"]},
]


ADAPTERS = [
    None,
    None,
    "lora",
    {"kind": "qlora", "dropout": 0.1},
    {"rank": 16, "targets": ["all-linear"], "expert_adapters": "each", "expert_rank": 8},
    {"rank": 8, "targets": ["o_proj", "down_proj"], "dropout": 0.1, "dropout_position": "post"},
]


@st.composite
def jobs(draw, **fixed):
    """Draw a job in which every degree fits; ``fixed`` dotted fields are laid over it."""
    name = draw(st.sampled_from(MODELS))
    moe = name in {"mixtral_8x7b", "deepseek_v2_lite", "gpt_oss_20b", "qwen3_30b_a3b"}
    tp = draw(st.sampled_from([1, 2, 4, 8]))
    pp = draw(st.sampled_from([1, 2, 4]))
    cp = draw(st.sampled_from([1, 2]))
    vpp = draw(st.sampled_from([1, 2])) if pp > 1 else 1
    dp = draw(st.sampled_from([1, 2, 8]))
    world = tp * pp * cp * dp
    etp = draw(st.sampled_from([1, tp])) if moe else None
    widest = tp * cp * dp // (etp or 1)
    ep = draw(st.sampled_from([e for e in (1, 2, 4, 8) if widest % e == 0])) if moe else 1
    device = draw(st.sampled_from(DEVICES))
    narrow = {
        "mi250x": [],
        "a100": [],
        "b200": ["fp8", "mxfp8", "nvfp4"],
        "mi355x": ["fp8", "mxfp8", "mxfp6", "mxfp4"],
    }
    precision = draw(st.sampled_from(["bf16", "fp16", *narrow.get(device, ["fp8"])]))
    micro = draw(st.sampled_from([1, 2]))
    microbatches = draw(st.sampled_from([1, 2, 3, 4, 8])) * (pp if vpp > 1 else 1)
    gpus_per_node = next(g for g in (8, 4, 2, 1) if world % g == 0)
    job = {
        "model": name,
        "parallelism": {
            "tp": tp, "pp": pp, "cp": cp, "vpp": vpp, "ep": ep, "etp": etp,
            "sequence_parallel": True if moe else draw(st.booleans()),
            "zero_stage": draw(st.integers(0, 3)),
            "cp_comm_type": draw(st.sampled_from(["p2p", "all_gather"])),
            "overlap_grad_reduce": draw(st.booleans()),
            "overlap_param_gather": draw(st.booleans()),
            "tp_comm_overlap": draw(st.sampled_from([False, True, "user_buffers", "async_tp"])),
            "fsdp_forward_prefetch": draw(st.integers(0, 3)),
            "fsdp_backward_prefetch": draw(st.integers(0, 3)),
            "overlap_moe_expert_parallel_comm": draw(st.booleans()),
        },
        "training": {
            "micro_batch_size": micro,
            "global_batch_size": micro * dp * microbatches,
            "seq_length": draw(st.sampled_from([512, 1024, 2048])),
            "precision": precision,
            "fp8_recipe": draw(st.sampled_from(["delayed", "tensorwise", "rowwise", "blockwise"])),
            "recompute": draw(st.sampled_from(RECOMPUTE)),
            "adapter": draw(st.sampled_from(ADAPTERS)),
            "cuda_graphs": draw(st.booleans()),
            "torch_compile": draw(st.booleans()),
            "flash_attention": draw(st.booleans()),
            "activation_offload_fraction": draw(st.sampled_from([0.0, 0.5])),
            "moe": {
                "dispatcher": draw(
                    st.sampled_from(["alltoall", "allgather", "deepep", "hybridep"])
                ),
                "load": draw(st.sampled_from(["balanced", "zipf"])),
            },
        },
        "cluster": {
            "device": device, "nodes": world // gpus_per_node, "gpus_per_node": gpus_per_node,
        },
    }  # fmt: skip
    return load_job(job, fixed)
