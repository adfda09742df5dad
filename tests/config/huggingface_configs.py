"""The config.json of published models, reduced to what is read."""

from typing import Any


def llama_like(
    model_type: str, layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, vocab: int
) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0,
        "use_cache": True,
    }


LLAMA_3_1_70B = llama_like("llama", 80, 8192, 28672, 64, 8, 128256) | {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "mlp_bias": False,
    "max_position_embeddings": 131072,
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
    "tie_word_embeddings": False,
}

LLAMA_3_2_1B = llama_like("llama", 16, 2048, 8192, 32, 8, 128256) | {
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}

LLAMA_2_7B = llama_like("llama", 32, 4096, 11008, 32, 32, 32000) | {
    "max_position_embeddings": 4096,
    "pretraining_tp": 1,
}

MISTRAL_7B = llama_like("mistral", 32, 4096, 14336, 32, 8, 32000) | {
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
}

MISTRAL_7B_V03 = llama_like("mistral", 32, 4096, 14336, 32, 8, 32768) | {
    "max_position_embeddings": 32768,
    "sliding_window": None,
}

MIXTRAL_8X7B = llama_like("mixtral", 32, 4096, 14336, 32, 8, 32000) | {
    "max_position_embeddings": 32768,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "sliding_window": None,
}

QWEN2_5_7B = llama_like("qwen2", 28, 3584, 18944, 28, 4, 152064) | {
    "max_position_embeddings": 131072,
    "max_window_layers": 28,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
}

QWEN3_8B = llama_like("qwen3", 36, 4096, 12288, 32, 8, 151936) | {
    "attention_bias": False,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
}

QWEN3_30B_A3B = llama_like("qwen3_moe", 48, 2048, 6144, 32, 4, 151936) | {
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
}

DEEPSEEK_V3 = llama_like("deepseek_v3", 61, 7168, 18432, 128, 128, 129280) | {
    "attention_bias": False,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
}

KIMI_K2 = DEEPSEEK_V3 | {
    "model_type": "kimi_k2",
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 131072,
    "n_group": 1,
    "n_routed_experts": 384,
    "num_nextn_predict_layers": 0,
    "topk_group": 1,
    "vocab_size": 163840,
}

DEEPSEEK_V2_LITE = llama_like("deepseek_v2", 27, 2048, 10944, 16, 16, 102400) | {
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 1408,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "topk_group": 1,
    "topk_method": "greedy",
    "v_head_dim": 128,
}

GLM_4_5_AIR = llama_like("glm4_moe", 46, 4096, 10944, 96, 8, 151552) | {
    "attention_bias": True,
    "first_k_dense_replace": 1,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 0.5,
    "topk_group": 1,
    "use_qk_norm": False,
}

GPT_OSS_20B = llama_like("gpt_oss", 24, 2880, 2880, 64, 8, 201088) | {
    "attention_bias": True,
    "experts_per_token": 4,
    "head_dim": 64,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "num_experts_per_tok": 4,
    "num_local_experts": 32,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
}

LLAMA_4_MAVERICK = {
    "model_type": "llama4",
    "vision_config": {"model_type": "llama4_vision_model", "hidden_size": 1408},
    "text_config": llama_like("llama4_text", 48, 5120, 8192, 40, 8, 202048)
    | {
        "attention_chunk_size": 8192,
        "head_dim": 128,
        "interleave_moe_layer_step": 2,
        "intermediate_size_mlp": 16384,
        "max_position_embeddings": 262144,
        "num_experts_per_tok": 1,
        "num_local_experts": 128,
        "use_qk_norm": False,
    },
}

GEMMA_2_9B = llama_like("gemma2", 42, 3584, 14336, 16, 8, 256000) | {
    "attn_logit_softcapping": 50.0,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
}

GEMMA_3_1B = llama_like("gemma3_text", 26, 1152, 6912, 4, 1, 262144) | {
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 32768,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
}

GEMMA_3_4B = {
    "model_type": "gemma3",
    "vision_config": {"model_type": "siglip_vision_model"},
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
}

PHI_4 = llama_like("phi3", 40, 5120, 17920, 40, 10, 100352) | {
    "max_position_embeddings": 16384,
    "sliding_window": None,
    "tie_word_embeddings": False,
}

INTERNLM2_7B = llama_like("internlm2", 32, 4096, 14336, 32, 8, 92544) | {
    "bias": False,
    "max_position_embeddings": 32768,
}

INTERNLM_7B = llama_like("internlm", 32, 4096, 11008, 32, 32, 103168) | {
    "bias": True,
    "max_position_embeddings": 2048,
}

NEMOTRON_4_340B = llama_like("nemotron", 96, 18432, 73728, 96, 8, 256000) | {
    "attention_bias": False,
    "head_dim": 192,
    "hidden_act": "relu2",
    "max_position_embeddings": 4096,
    "mlp_bias": False,
    "partial_rotary_factor": 0.5,
}

FALCON_7B = {
    "model_type": "falcon",
    "alibi": False,
    "bias": False,
    "hidden_size": 4544,
    "multi_query": True,
    "new_decoder_architecture": False,
    "num_attention_heads": 71,
    "num_hidden_layers": 32,
    "parallel_attn": True,
    "vocab_size": 65024,
}

FALCON_40B = FALCON_7B | {
    "hidden_size": 8192,
    "new_decoder_architecture": True,
    "num_attention_heads": 128,
    "num_hidden_layers": 60,
    "num_kv_heads": 8,
}

GPT2_XL = {
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "n_ctx": 1024,
    "n_embd": 1600,
    "n_head": 25,
    "n_layer": 48,
    "n_positions": 1024,
    "vocab_size": 50257,
}

OPT_1_3B = {
    "model_type": "opt",
    "activation_function": "relu",
    "do_layer_norm_before": True,
    "ffn_dim": 8192,
    "hidden_size": 2048,
    "max_position_embeddings": 2048,
    "num_attention_heads": 32,
    "num_hidden_layers": 24,
    "vocab_size": 50272,
    "word_embed_proj_dim": 2048,
}

SHIPPED = {
    "llama3.1_70b": LLAMA_3_1_70B,
    "llama3.2_1b": LLAMA_3_2_1B,
    "llama2_7b": LLAMA_2_7B,
    "mistral_7b_v0.1": MISTRAL_7B,
    "mistral_7b_v0.3": MISTRAL_7B_V03,
    "mixtral_8x7b": MIXTRAL_8X7B,
    "qwen2.5_7b": QWEN2_5_7B,
    "qwen3_8b": QWEN3_8B,
    "qwen3_30b_a3b": QWEN3_30B_A3B,
    "deepseek_v3": DEEPSEEK_V3,
    "kimi_k2": KIMI_K2,
    "deepseek_v2_lite": DEEPSEEK_V2_LITE,
    "glm4.5_air": GLM_4_5_AIR,
    "gpt_oss_20b": GPT_OSS_20B,
    "llama4_maverick": LLAMA_4_MAVERICK,
    "gemma2_9b": GEMMA_2_9B,
    "gemma3_1b": GEMMA_3_1B,
    "gemma3_4b": GEMMA_3_4B,
    "phi4": PHI_4,
    "internlm2_7b": INTERNLM2_7B,
    "internlm_7b": INTERNLM_7B,
    "nemotron4_340b": NEMOTRON_4_340B,
    "falcon_7b": FALCON_7B,
    "falcon_40b": FALCON_40B,
    "gpt2_xl": GPT2_XL,
    "opt_1.3b": OPT_1_3B,
}

MPT_7B = {
    "model_type": "mpt",
    "attn_config": {"alibi": True, "attn_type": "multihead_attention", "qk_ln": False},
    "d_model": 4096,
    "expansion_ratio": 4,
    "learned_pos_emb": True,
    "max_seq_len": 2048,
    "n_heads": 32,
    "n_layers": 32,
    "no_bias": True,
    "vocab_size": 50432,
}

STARCODER2_3B = llama_like("starcoder2", 30, 3072, 12288, 24, 2, 49152) | {
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 16384,
    "sliding_window": 4096,
    "use_bias": True,
}

GPT_NEOX_20B = llama_like("gpt_neox", 44, 6144, 24576, 64, 64, 50432) | {
    "hidden_act": "gelu_fast",
    "max_position_embeddings": 2048,
    "use_parallel_residual": True,
}

COMMAND_R = llama_like("cohere", 40, 8192, 22528, 64, 64, 256000) | {
    "max_position_embeddings": 131072,
    "use_qk_norm": False,
}

OLMO_2_7B = llama_like("olmo2", 32, 4096, 11008, 32, 32, 100352) | {
    "max_position_embeddings": 4096,
}

QWEN_1_5_MOE = llama_like("qwen2_moe", 24, 2048, 5632, 16, 16, 151936) | {
    "decoder_sparse_step": 1,
    "max_position_embeddings": 8192,
    "max_window_layers": 21,
    "moe_intermediate_size": 1408,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "shared_expert_intermediate_size": 5632,
    "use_sliding_window": False,
}

GEMMA_7B = llama_like("gemma", 28, 3072, 24576, 16, 16, 256000) | {
    "head_dim": 256,
    "max_position_embeddings": 8192,
}

PUBLISHED = [
    # config, parameters of the checkpoint on the Hugging Face hub
    ("mpt-7b", MPT_7B, 6_649_286_656),
    ("starcoder2-3b", STARCODER2_3B, 3_030_371_328),
    ("gpt-neox-20b", GPT_NEOX_20B, 20_554_567_680),
    ("c4ai-command-r-v01", COMMAND_R, 34_980_831_232),
    ("OLMo-2-1124-7B", OLMO_2_7B, 7_298_617_344),
    ("Qwen1.5-MoE-A2.7B", QWEN_1_5_MOE, 14_315_784_192),
    ("gemma-7b", GEMMA_7B, 8_537_680_896),
]
