"""Models with layers of several kinds, as Hugging Face, Megatron and Primus name them."""

import pytest

from projector.config.formats.huggingface import read_huggingface
from projector.config.formats.megatron import read_megatron
from projector.config.load import load_job
from projector.config.model_file import load_model
from projector.errors import ConfigError
from reference.parameters import parameters_active, parameters_total

NANO = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
ATTENTION = {"num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False}

FILES = {
    "nemotron3_nano_30b_a3b": {
        **ATTENTION, "model_type": "nemotron_h", "hidden_size": 2688, "num_hidden_layers": 52,
        "hybrid_override_pattern": NANO, "num_key_value_heads": 2, "head_dim": 128,
        "intermediate_size": 1856, "mlp_hidden_act": "relu2", "vocab_size": 131072,
        "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128,
        "conv_kernel": 4, "chunk_size": 128, "n_routed_experts": 128, "num_experts_per_tok": 6,
        "moe_intermediate_size": 1856, "n_shared_experts": 1,
        "moe_shared_expert_intermediate_size": 3712, "expand": 2, "use_conv_bias": True,
    },
    "qwen3_next_80b_a3b": {
        **ATTENTION, "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 48,
        "full_attention_interval": 4, "num_attention_heads": 16, "num_key_value_heads": 2,
        "head_dim": 256, "intermediate_size": 5120, "vocab_size": 151936,
        "linear_num_value_heads": 32, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "num_experts": 512,
        "num_experts_per_tok": 10, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "decoder_sparse_step": 1,
    },
    "kimi_linear_48b_a3b": {
        **ATTENTION, "model_type": "kimi_linear", "hidden_size": 2304, "num_hidden_layers": 27,
        "intermediate_size": 9216, "vocab_size": 163840, "q_lora_rank": None, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "num_experts": 256,
        "num_experts_per_token": 8, "moe_intermediate_size": 1024, "num_shared_experts": 1,
        "first_k_dense_replace": 1,
        "linear_attn_config": {
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32,
            "short_conv_kernel_size": 4,
        },
    },
    "jamba_v0.1": {
        **ATTENTION, "model_type": "jamba", "hidden_size": 4096, "num_hidden_layers": 32,
        "intermediate_size": 14336, "vocab_size": 65536, "attn_layer_period": 8,
        "attn_layer_offset": 4, "expert_layer_period": 2, "expert_layer_offset": 1,
        "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": "auto",
        "num_experts": 16, "num_experts_per_tok": 2,
    },
    "bamba_9b": {
        **ATTENTION, "model_type": "bamba", "hidden_size": 4096, "num_hidden_layers": 32,
        "intermediate_size": 14336, "vocab_size": 128256, "attn_layer_indices": [9, 18, 27],
        "mamba_n_heads": 128, "mamba_d_head": "auto", "mamba_n_groups": 1, "mamba_d_state": 128,
        "mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 256,
    },
    "minimax_text_01": {
        **ATTENTION, "model_type": "minimax", "hidden_size": 6144, "num_hidden_layers": 80,
        "num_attention_heads": 64, "head_dim": 128, "intermediate_size": 9216,
        "vocab_size": 200064, "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10,
        "num_local_experts": 32, "num_experts_per_tok": 2, "block_size": 256,
    },
    "mamba2_2.7b": {
        "model_type": "mamba2", "hidden_size": 2560, "num_hidden_layers": 64, "num_heads": 80,
        "head_dim": 64, "n_groups": 1, "state_size": 128, "vocab_size": 50288,
        "tie_word_embeddings": True, "expand": 2, "chunk_size": 256,
    },
}  # fmt: skip


FILES |= {
    "falcon_h1_34b": {
        **ATTENTION, "model_type": "falcon_h1", "hidden_size": 5120, "num_hidden_layers": 72,
        "num_attention_heads": 20, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 261120,
        "intermediate_size": 21504, "mamba_d_ssm": 4096, "mamba_n_heads": 32, "mamba_d_head": 128,
        "mamba_n_groups": 2, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_rms_norm": False,
        "mamba_chunk_size": 256, "ssm_multipliers": [0.35, 0.25, 0.17, 0.5, 0.35],
    },
    "granite4_h_small": {
        **ATTENTION, "model_type": "granitemoehybrid", "hidden_size": 4096,
        "num_hidden_layers": 40, "intermediate_size": 768, "shared_intermediate_size": 1536,
        "vocab_size": 100352, "num_local_experts": 72, "num_experts_per_tok": 10,
        "layer_types": ["attention" if i % 10 == 5 else "mamba" for i in range(40)],
        "mamba_n_heads": 128, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 128,
        "tie_word_embeddings": True,
    },
    "lfm2_1.2b": {
        "model_type": "lfm2", "hidden_size": 2048, "num_hidden_layers": 16, "vocab_size": 65536,
        "num_attention_heads": 32, "num_key_value_heads": 8, "block_ff_dim": 12288,
        "block_auto_adjust_ff_dim": True, "block_multiple_of": 256, "conv_L_cache": 3,
        "block_ffn_dim_multiplier": 1.0, "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        "conv_dim": 2048,
    },
    "lfm2_8b_a1b": {
        "model_type": "lfm2_moe", "hidden_size": 2048, "num_hidden_layers": 24,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 7168,
        "vocab_size": 65536, "num_dense_layers": 2, "num_experts": 32, "num_experts_per_tok": 4,
        "moe_intermediate_size": 1792, "conv_L_cache": 3, "use_expert_bias": True,
        "layer_types": [
            "full_attention" if i in {2, 6, 10, 14, 18, 21} else "conv" for i in range(24)
        ],
    },
    "olmo_hybrid_7b": {
        "model_type": "olmo_hybrid", "hidden_size": 3840, "num_hidden_layers": 32,
        "num_attention_heads": 30, "intermediate_size": 11008, "vocab_size": 100352,
        "linear_allow_neg_eigval": True, "rope_parameters": None,
    },
    "mamba_2.8b": {
        "model_type": "mamba", "hidden_size": 2560, "num_hidden_layers": 64, "state_size": 16,
        "vocab_size": 50280, "conv_kernel": 4, "expand": 2, "time_step_rank": 160,
    },
    "rwkv7_2.9b": {
        "model_type": "rwkv7", "hidden_size": 2560, "num_hidden_layers": 32, "head_dim": 64,
        "vocab_size": 65536, "hidden_ratio": 4.0, "intermediate_size": None,
        "decay_low_rank_dim": 96, "a_low_rank_dim": 96, "v_low_rank_dim": 64,
        "gate_low_rank_dim": 320,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_config_json_is_the_shipped_model(name):
    shipped, (model, warnings) = load_model(name), read_huggingface(FILES[name])
    assert warnings == []
    assert model.layer_kinds == shipped.layer_kinds
    assert parameters_total(model) == parameters_total(shipped)
    assert parameters_active(model) == parameters_active(shipped)


def test_qwen3_5_may_have_no_experts():
    file = FILES["qwen3_next_80b_a3b"] | {"model_type": "qwen3_5_text"}
    file = {name: value for name, value in file.items() if "expert" not in name}
    model, _ = read_huggingface(file)
    assert model.layer_kinds[:4] == ("gdn_dense", "gdn_dense", "gdn_dense", "dense")
    assert model.moe is None


def test_ranks_of_rwkv_7_follow_from_its_width():
    file = {name: value for name, value in FILES["rwkv7_2.9b"].items() if "low_rank" not in name}
    model, _ = read_huggingface(file)
    # 2.5, 2.5, 1.7 and 5 times the root of 2560, in whole 32s.
    assert model.recurrent.dt_rank == 128 + 128 + 96 + 256


def test_granite_4_has_mamba_2_and_shared_experts():
    file = FILES["bamba_9b"] | {
        "model_type": "granitemoehybrid", "layer_types": ["mamba"] * 5 + ["attention"],
        "num_hidden_layers": 6, "num_local_experts": 8, "num_experts_per_tok": 2,
        "intermediate_size": 768, "shared_intermediate_size": 1536,
    }  # fmt: skip
    del file["attn_layer_indices"]
    model, _ = read_huggingface(file)
    assert model.layer_kinds == ("mamba2_moe",) * 5 + ("moe",)
    assert (model.moe.ffn_hidden_size, model.moe.shared_expert_ffn_hidden_size) == (768, 1536)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("nemotron3_nano_30b_a3b", {"hybrid_override_pattern": "M*"}, "52 layers"),
        ("nemotron3_nano_30b_a3b", {"hybrid_override_pattern": "X" * 52}, "52 layers"),
        ("qwen3_next_80b_a3b", {"layer_types": ["conv"] * 48}, "layer_types"),
        ("qwen3_next_80b_a3b", {"num_mem_blocks": 2}, "state-space"),
        ("kimi_linear_48b_a3b", {"linear_attn_config": None}, "linear_attn_config"),
    ],
)
def test_what_is_wrong_is_named(name, changes, words):
    with pytest.raises(ConfigError, match=words):
        read_huggingface(FILES[name] | changes)


SCRIPT = """torchrun pretrain_mamba.py --hidden-size 2688 --num-attention-heads 32
--group-query-attention --num-query-groups 2 --kv-channels 128 --ffn-hidden-size 1856
--squared-relu --untie-embeddings-and-output-weights --position-embedding-type none
--normalization RMSNorm --padded-vocab-size 131072 --seq-length 8192 --micro-batch-size 1
--global-batch-size 64 --max-position-embeddings 262144 --bf16 --disable-bias-linear
""".replace("\n", " ")
NANO_ARGUMENTS = f"""--hybrid-layer-pattern {NANO} --mamba-num-heads 64 --mamba-head-dim 64
--mamba-num-groups 8 --mamba-state-dim 128 --num-experts 128 --moe-router-topk 6
--moe-ffn-hidden-size 1856 --moe-shared-expert-intermediate-size 3712
--moe-router-enable-expert-bias --moe-router-score-function sigmoid""".replace("\n", " ")


def model_of(arguments):
    job, warnings, *_ = read_megatron(SCRIPT + arguments, name="job")
    data = {**job, "cluster": {"device": "h100", "nodes": 8}}
    return load_job(data).model, warnings


def test_megatron_names_a_pattern():
    model, _ = model_of(NANO_ARGUMENTS)
    shipped = load_model("nemotron3_nano_30b_a3b")
    assert model.layer_kinds == shipped.layer_kinds
    assert parameters_total(model) == parameters_total(shipped)


def test_stages_and_further_tokens_of_a_pattern_are_no_layers():
    model, warnings = model_of("--mamba-num-groups 4 --hybrid-override-pattern 'M-M-|M*-M-/*E'")
    assert model.layer_kinds == tuple(
        {"M": "mamba2", "*": "attention", "-": "mlp"}[letter] for letter in "M-M-M*-M-"
    )
    assert model.mtp_num_layers == 1
    assert not any("behind /" in text for text in warnings)
    _, warnings = model_of("--mamba-num-groups 4 --hybrid-layer-pattern 'M-*-/MM/MM'")
    assert any("behind /, MM, is projected with attention" in text for text in warnings)


@pytest.mark.parametrize(
    ("pattern", "vpp", "layout"),
    [
        ("M-|M-|M-|*-", 2, None),
        ("M-M|*-", 1, None),
        ("M-|M*-", 1, "Et*2|t*3L"),
        ("M-|M*-|M-|M/*-", 2, "Et*2|t*3|t*2|t*1mL"),
    ],
)
def test_stages_of_a_pattern_are_stages(pattern, vpp, layout):
    arguments = f"--hybrid-layer-pattern '{pattern}' --pipeline-model-parallel-size 2"
    job, *_ = read_megatron(SCRIPT + arguments, name="job")
    assert job["parallelism"]["vpp"] == vpp
    assert job["parallelism"].get("pipeline_model_parallel_layout") == layout


def test_stages_of_a_pattern_are_divided_by_ranks():
    with pytest.raises(ConfigError, match="3 stages, not a multiple of PP 2"):
        read_megatron(
            SCRIPT + "--hybrid-layer-pattern 'M|-|-' --pipeline-model-parallel-size 2", name="job"
        )


def test_a_gated_delta_net_by_its_letter_has_its_own_widths():
    model, _ = model_of("--hybrid-layer-pattern G-G- --linear-num-key-heads 8")
    assert (model.recurrent.num_groups, model.recurrent.num_heads) == (8, 32)


def test_a_share_of_attention_is_spread():
    model, _ = model_of(
        "--num-layers 52 --is-hybrid-model --hybrid-attention-ratio 0.08 --hybrid-mlp-ratio 0.5 "
        "--mamba-num-groups 4"
    )
    counts = {kind: model.layer_kinds.count(kind) for kind in ("mamba2", "attention", "mlp")}
    assert counts == {"mamba2": 22, "attention": 4, "mlp": 26}
    assert model.recurrent.num_heads == 2 * 2688 // 64


def test_linear_attention_in_most_layers():
    arguments = (
        "--num-layers 8 --swiglu --linear-attention-freq 4 --experimental-attention-variant gdn "
        "--attention-output-gate"
    )
    model, _ = model_of(arguments)
    assert model.layer_kinds == ("gdn_dense",) * 3 + ("dense",) + ("gdn_dense",) * 3 + ("dense",)
    assert model.attention_output_gate
    assert model.recurrent.num_heads == 32


def test_primus_has_an_mlp_behind_every_mixer():
    spec = "--spec primus.backends.megatron.core.models.hybrid.specs "
    ratio = "--num-layers 32 --is-hybrid-model --hybrid-attention-ratio 0.25 --mamba-num-groups 4 "
    model, _ = model_of(ratio + spec + "hybrid_stack_spec")
    assert model.layer_kinds == load_model("zebra_llama_1b").layer_kinds
    model, _ = model_of("--num-layers 4 --is-hybrid-model " + spec + "kda_hybrid_stack_spec")
    assert model.layer_kinds == ("kda", "mlp", "kda", "mlp")


@pytest.mark.parametrize("arguments", ["--hybrid-layer-pattern M?*", "--hybrid-layer-pattern '|'"])
def test_letters_that_nobody_knows(arguments):
    with pytest.raises(ConfigError, match="letters of"):
        model_of(arguments)
