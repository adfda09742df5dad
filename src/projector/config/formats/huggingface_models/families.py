"""The architectures that are read: one row for each ``model_type``."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from projector.config.formats.huggingface_models import experts, parts
from projector.config.formats.huggingface_models.config_file import (
    MAX_HEADS,
    MAX_LAYERS,
    Fields,
    Reader,
    activation,
    integer,
    number,
    optional,
    switch,
)


class Family(NamedTuple):
    """How the configurations of one ``model_type`` are read."""

    fields: Fields
    """Fields with their own key, and fields that the architecture fixes."""
    parts: tuple[parts.Part, ...]
    """What several keys decide together."""


def _family(fields: Fields, *further: parts.Part, **renamed: Any) -> Family:
    return Family(fields | renamed, further)


_GATED: Final = dict.fromkeys(("silu", "swish"), "swiglu") | dict.fromkeys(
    ("gelu", "gelu_new", "gelu_pytorch_tanh"), "geglu"
)
_PLAIN: Final = dict.fromkeys(("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu") | {
    "relu": "relu",
    "relu2": "squared_relu",
}


def _plain(default: str, name: str = "hidden_act") -> Reader:
    return activation(name, _PLAIN, default)


def _bias(name: str, on: str = "qkv+out", *, default: bool) -> Reader:
    return switch(name, default=default, on=on, off="none")


def _qk_norm(on: str) -> Reader:
    return switch("use_qk_norm", default=False, on=on, off="none")


def _widths(layers: str, hidden: str, heads: str) -> Fields:
    return {
        "num_layers": integer(layers, most=MAX_LAYERS),
        "hidden_size": integer(hidden),
        "num_attention_heads": integer(heads, most=MAX_HEADS),
        "vocab_size": integer("vocab_size"),
    }


_SILU: Final = {"activation": activation("hidden_act", _GATED, "silu")}
_BIAS: Final = {"attention_bias": _bias("attention_bias", default=False)}
_MLP_BIAS: Final = {"mlp_bias": switch("mlp_bias", default=False)}
_LAYERNORM: Final = {"normalization": "layernorm"}
_LEARNED: Final = {"position_embedding": "learned"}
_TIED: Final = {"tied_embeddings": switch("tie_word_embeddings", default=True)}

_WIDTHS: Final = _widths("num_hidden_layers", "hidden_size", "num_attention_heads")
_ROPE: Final = _WIDTHS | {
    "ffn_hidden_size": integer("intermediate_size"),
    "num_query_groups": optional("num_key_value_heads"),
    "kv_channels": optional("head_dim"),
    "max_position_embeddings": integer("max_position_embeddings"),
}
_UNTIED: Final = _ROPE | {"tied_embeddings": switch("tie_word_embeddings", default=False)}
_LLAMA: Final = _UNTIED | _SILU
_QWEN3: Final = _LLAMA | _BIAS | {"qk_norm": "head"}
_LATENT: Final = {
    name: value for name, value in _LLAMA.items() if name not in {"num_query_groups", "kv_channels"}
}
_GEMMA: Final = (
    _ROPE | _TIED | {"kv_channels": integer("head_dim", 256), "activation": "geglu"} | _BIAS
)
_GEMMA3: Final = _GEMMA | {
    # Files of the multimodal models leave out what equals the default of the class.
    "num_attention_heads": integer("num_attention_heads", 8, most=MAX_HEADS),
    "num_query_groups": integer("num_key_value_heads", 4),
    "vocab_size": integer("vocab_size", 262_208),
    "max_position_embeddings": integer("max_position_embeddings", 131_072),
}

_LATENT_MOE: Final = (parts.latent_attention, experts.deepseek("noaux_tc"), parts.token_prediction)

FAMILIES: Final[Mapping[str, Family]] = {
    "llama": _family(_UNTIED | _MLP_BIAS | _SILU | _BIAS),
    "mistral": _family(_LLAMA, parts.every_layer_windowed(4096)),
    "mixtral": _family(_LLAMA, parts.every_layer_windowed(None), experts.MIXTRAL),
    "qwen2": _family(_LLAMA, parts.last_layers_windowed, attention_bias="qkv"),
    "qwen2_moe": _family(
        _LLAMA,
        parts.last_layers_windowed,
        experts.QWEN2,
        attention_bias=_bias("qkv_bias", "qkv", default=True),
    ),
    "qwen3": _family(_QWEN3, parts.last_layers_windowed, kv_channels=optional("head_dim", 128)),
    "qwen3_moe": _family(_QWEN3, parts.last_layers_windowed, experts.QWEN3),
    "deepseek_v2": _family(
        _LATENT, parts.latent_attention, experts.deepseek("greedy"), parts.token_prediction
    ),
    "deepseek_v3": _family(_LATENT, *_LATENT_MOE),
    "kimi_k2": _family(_LATENT, *_LATENT_MOE),
    "glm4_moe": _family(
        _LLAMA,
        experts.deepseek("noaux_tc"),
        parts.token_prediction,
        attention_bias=_bias("attention_bias", "qkv", default=False),
        qk_norm=_qk_norm("head"),
    ),
    "gpt_oss": _family(
        _LLAMA,
        parts.one_full_layer_in(2, 128),
        experts.GPT_OSS,
        kv_channels=integer("head_dim", 64),
        attention_bias=_bias("attention_bias", default=True),
        mlp_bias=True,
        activation_clamp=number("swiglu_limit", 7.0),
        attention_sinks=True,
    ),
    "llama4_text": _family(
        _LLAMA | _BIAS,
        parts.chunked_attention,
        experts.LLAMA4,
        # intermediate_size is the width of an expert there.
        ffn_hidden_size=integer("intermediate_size_mlp"),
    ),
    "gemma": _family(_GEMMA),
    "gemma2": _family(
        _GEMMA, parts.one_full_layer_in(2, 4096), parts.logit_softcap, norms_per_layer=4
    ),
    "gemma3_text": _family(
        _GEMMA3,
        parts.one_full_layer_in(6, 4096),
        parts.logit_softcap,
        norms_per_layer=4,
        qk_norm="head",
    ),
    "phi3": _family(_LLAMA, parts.every_layer_windowed(None)),
    "olmo2": _family(_LLAMA | _BIAS, qk_norm="full"),
    "internlm": _family(_LLAMA, attention_bias=_bias("bias", default=True)),
    "internlm2": _family(_LLAMA, attention_bias=_bias("bias", default=True)),
    "cohere": _family(
        # Its LayerNorm has the gain only, which is what RMSNorm counts.
        _ROPE | _TIED | _SILU | _BIAS,
        parts.always_parallel,
        norms_per_layer=1,
        qk_norm=_qk_norm("full"),
    ),
    "nemotron": _family(_UNTIED | _MLP_BIAS | _LAYERNORM | {"activation": _plain("relu2")} | _BIAS),
    "starcoder2": _family(
        _ROPE | _TIED | _LAYERNORM,
        parts.every_layer_windowed(None),
        activation=_plain("gelu_pytorch_tanh"),
        attention_bias=_bias("use_bias", default=True),
        mlp_bias=switch("use_bias", default=True),
    ),
    "gpt_neox": _family(
        _UNTIED | _LAYERNORM,
        parts.parallel_block("use_parallel_residual", default=True),
        mlp_bias=True,
        activation=_plain("gelu"),
        attention_bias=_bias("attention_bias", default=True),
    ),
    "gpt2": _family(
        _TIED | _widths("n_layer", "n_embd", "n_head") | _LAYERNORM | _LEARNED,
        parts.gpt2_mlp,
        max_position_embeddings=integer("n_positions"),
        attention_bias="qkv+out",
        mlp_bias=True,
        activation=_plain("gelu_new", "activation_function"),
    ),
    "opt": _family(
        _WIDTHS | _TIED | _LAYERNORM | _LEARNED,
        parts.opt,
        ffn_hidden_size=integer("ffn_dim"),
        activation=_plain("relu", "activation_function"),
    ),
    "falcon": _family(
        _WIDTHS | _TIED | _LAYERNORM,
        parts.falcon,
        max_position_embeddings=integer("max_position_embeddings", 2048),
        activation=_plain("gelu", "activation"),
        attention_bias=_bias("bias", default=False),
        mlp_bias=switch("bias", default=False),
    ),
    "mpt": _family(
        _TIED | _widths("n_layers", "d_model", "n_heads"),
        parts.mpt,
        max_position_embeddings=integer("max_seq_len"),
        activation="gelu",
    ),
}

_HYBRID: Final = "hybrid Mamba / linear-attention models are not supported"
_HYBRIDS_TEXT: Final = """
bamba falcon_h1 falcon_mamba granitemoehybrid jamba kimi_linear lfm2 mamba mamba2 minimax
minimax_text_01 nemotron_h qwen3_next recurrent_gemma rwkv zamba zamba2
"""

REFUSED: Final[Mapping[str, str]] = dict.fromkeys(_HYBRIDS_TEXT.split(), _HYBRID) | {
    "bloom": "the norm behind its embedding is not modelled",
    "deepseek_v32": "its sparse attention is not modelled; deepseek_v3 has the same dimensions",
    "deepseek_v4": "its compressed sparse attention is not modelled",
}
"""Architectures that cannot be described, and why."""
