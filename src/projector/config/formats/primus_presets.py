"""What Primus' presets of models and trainers set, as tables of Megatron settings.

The facts were read in AMD-AGI/Primus at fd1eeabb: models from ``primus/configs/models/megatron``,
trainers from ``primus/configs/modules/megatron``. Where the files themselves are at hand, they are
read instead (`primus_files`).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from projector.config import resources
from projector.config.formats.megatron_settings.fields import MEGATRON_DEFAULTS

PRIMUS_DEFAULTS: dict[str, Any] = {
    **MEGATRON_DEFAULTS,
    "sequence_parallel": True,
    "use_distributed_optimizer": True,
    "bf16": True,
    "swiglu": True,
    "add_bias_linear": False,
    "untie_embeddings_and_output_weights": True,
    "moe_token_dispatcher_type": "allgather",
    "moe_permute_fusion": False,
    "moe_grouped_gemm": False,
}
"""What every trainer and model starts from (``trainer_base.yaml``, ``language_model.yaml``)."""

_TRAINERS: dict[str, dict[str, Any]] = {
    "pre_trainer": {"micro_batch_size": 2, "global_batch_size": 16, "seq_length": 1024},
    "sft_trainer": {"micro_batch_size": 1, "global_batch_size": 128, "seq_length": 2048},
}
"""What a trainer sets of a step, by the name of its file."""

_LLAMA = {
    "swiglu": True,
    "add_bias_linear": False,
    "untie_embeddings_and_output_weights": True,
    "position_embedding_type": "rope",
    "normalization": "RMSNorm",
}
_GROUPED = {**_LLAMA, "group_query_attention": True}
_EXCHANGE = {"moe_token_dispatcher_type": "alltoall", "moe_grouped_gemm": True}
_FUSED = {**_EXCHANGE, "moe_permute_fusion": True}
_DEEPSEEK_EXPERTS = {**_FUSED, "moe_shared_expert_overlap": True}
_DEEPSEEK = {**_LLAMA, **_DEEPSEEK_EXPERTS, "multi_latent_attention": True, "qk_layernorm": True}
_EIGHT = {"num_query_groups": 8, "num_experts": 8, "moe_router_topk": 2}

BASES: dict[str, dict[str, Any]] = {
    "primus_megatron_model": {},
    "language_model": {},
    "llama_base": _LLAMA,
    "llama2_base": {**_LLAMA, "max_position_embeddings": 4096},
    "llama3_base": {**_GROUPED, "max_position_embeddings": 8192},
    "llama4_base": {**_GROUPED, **_EXCHANGE, "num_query_groups": 8, "moe_router_topk": 1},
    "mixtral_base": {**_GROUPED, **_EXCHANGE, **_EIGHT},
    "grok_base": {**_GROUPED, **_EXCHANGE, **_EIGHT},
    "qwen2.5_base": {**_GROUPED, **_FUSED, "max_position_embeddings": 131072},
    "deepseek_v2_base": {**_DEEPSEEK, "moe_router_topk": 6},
    "deepseek_v3_base": {**_DEEPSEEK, "moe_router_topk": 6},
    "pre_trainer": {},
}
"""Presets that a model file may start from where their files are not at hand."""


class Preset(NamedTuple):
    """How a preset differs from the shipped architecture of its name."""

    model: Mapping[str, Any] = MappingProxyType({})
    """Settings that make another architecture of it, as it was published."""

    run: Mapping[str, Any] = MappingProxyType({})
    """Settings of the run that come with it."""


_UNTIED = {"untie_embeddings_and_output_weights": True}
_NO_BIAS = {"add_qkv_bias": False}
_NO_NORM = {"qk_layernorm": False}
_EVEN_HEADS = {"kv_channels": None}
_ON_A_NODE = {"expert_model_parallel_size": 8}
_DEEPSEEK_RUN = {**_DEEPSEEK_EXPERTS, "qk_layernorm": True}
"""The norm counts only where an experiment turns MLA off."""
_GPT_OSS = Preset(
    {
        "ffn_hidden_size": 10944,
        "add_bias_linear": False,
        "add_qkv_bias": False,
        "qk_layernorm": True,
        "softmax_type": "vanilla",
        "window_size": None,
        "activation_func_clamp_value": None,
        "moe_shared_expert_intermediate_size": 2880,
        "tokenizer_model": "deepseek-ai/DeepSeek-V2-Lite",
    },
    {**_DEEPSEEK_EXPERTS, **_ON_A_NODE},
)

_PRESETS: dict[str, Preset] = {
    "deepseek_v2": Preset({}, {**_DEEPSEEK_RUN, **_ON_A_NODE}),
    "deepseek_v2_lite": Preset({}, {**_DEEPSEEK_RUN, **_ON_A_NODE}),
    "deepseek_v3": Preset({"mtp_num_layers": 1}, {**_DEEPSEEK_RUN, **_ON_A_NODE}),
    "gpt_oss_20B": _GPT_OSS,
    "gpt_oss_120B": _GPT_OSS,
    "grok1": Preset(
        {
            **_UNTIED,
            "swiglu": True,
            "quick_geglu": False,
            "tokenizer_model": "mistralai/Mixtral-8x22B-v0.1",
        },
        _EXCHANGE,
    ),
    "kimi_k2": Preset({}, _DEEPSEEK_RUN),
    "llama3.2_1B": Preset(_UNTIED),
    "llama3.2_3B": Preset(_UNTIED),
    "llama4_17B16E": Preset({"qk_layernorm": True}, {**_DEEPSEEK_EXPERTS, **_ON_A_NODE}),
    "llama4_17B128E": Preset({"moe_layer_freq": 2}, {**_DEEPSEEK_EXPERTS, **_ON_A_NODE}),
    "minimax_m2.5": Preset({"qk_layernorm": True}, {**_FUSED, **_ON_A_NODE}),
    "mixtral_8x7B_v0.1": Preset({}, _EXCHANGE),
    "mixtral_8x22B_v0.1": Preset({}, _EXCHANGE),
    "qwen2.5_3B": Preset({**_UNTIED, **_NO_BIAS}, _FUSED),
    "qwen2.5_7B": Preset(_NO_BIAS, _FUSED),
    "qwen2.5_14B": Preset(_NO_BIAS, _FUSED),
    "qwen2.5_32B": Preset(_NO_BIAS, _FUSED),
    "qwen2.5_72B": Preset(_NO_BIAS, _FUSED),
    "qwen3_4B": Preset({**_UNTIED, **_EVEN_HEADS, **_NO_NORM}, _FUSED),
    "qwen3_8B": Preset(_NO_NORM, _FUSED),
    "qwen3_14B": Preset(_NO_NORM, _FUSED),
    "qwen3_32B": Preset({**_EVEN_HEADS, **_NO_NORM}, _FUSED),
    "qwen3_30B_A3B": Preset({}, _FUSED),
    "qwen3_235B_A22B": Preset({}, _FUSED),
}
_BY_NAME = {resources.normalise(name): preset for name, preset in _PRESETS.items()}


def preset(name: str) -> Preset:
    """Return how the preset of a name differs from the shipped architecture of that name."""
    return _BY_NAME.get(resources.normalise(name), Preset())


def trainer(config: str) -> dict[str, Any]:
    """Return what a trainer's file sets of a step; that of pre-training for an unknown name."""
    return _TRAINERS.get(config.removesuffix(".yaml"), _TRAINERS["pre_trainer"])
