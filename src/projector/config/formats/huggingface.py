"""Reading the ``config.json`` of a Hugging Face model.

Each ``model_type`` is one row of `_FAMILIES`: where the plain dimensions stand, what the
architecture fixes, and the small functions ("parts") that read what several keys decide
together. A key that is absent takes the default of the Hugging Face class; where that is no
property of the architecture, the key is required.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from projector.config.model import ModelConfig
from projector.errors import ConfigError, UnsupportedError

MAX_LAYERS: Final = 10_000
"""Layers we expand patterns for; `ModelConfig` has the same bound."""

MAX_HEADS: Final = 10_000
"""Query heads of one layer; `ModelConfig` lists the divisors when key/value heads do not fit."""

MAX_EXTENT: Final = 10**12
"""Above this a number is no dimension of a model."""

_REQUIRED: Final[Any] = object()


def read_huggingface(
    data: Mapping[str, Any], *, name: str = "", key: str = "model"
) -> tuple[ModelConfig, list[str]]:
    """Convert the contents of a ``config.json``.

    Parameters
    ----------
    data : mapping
        The parsed file; of a multimodal model only ``text_config`` is read.
    name : str
        Name shown in reports; the file's own ``_name_or_path`` or ``model_type`` by default.
    key : str
        Dotted position put before every key in an error.

    Returns
    -------
    tuple of ModelConfig and list of str
        The architecture, and a sentence for everything that would change the projection and
        is not modelled.

    Raises
    ------
    UnsupportedError
        If the ``model_type`` is unknown, or the architecture cannot be described exactly.
    ConfigError
        If a key is missing, of the wrong type, or contradicts another one.
    """
    config = _text_part(_Config.of(data, key))
    model_type = config.text("model_type")
    family = _family(model_type, config)
    _check_layer_types(config)
    if config.has("quantization_config"):
        config.warn("the quantised weights of the checkpoint; the training precision decides")

    fields: dict[str, Any] = {target: spec.read(config) for target, spec in family.keys.items()}
    fields |= family.fixed
    for part in family.parts:
        fields |= part(config)
    fields = {target: value for target, value in fields.items() if value is not None}
    fields["name"] = name or _own_name(data) or model_type
    fields["source"] = f"Hugging Face config.json ({model_type})"
    return ModelConfig.parse(fields, path=key), config.warnings


@dataclass(frozen=True, slots=True)
class _Config:
    """A ``config.json`` with typed access that names the key in every error."""

    data: Mapping[str, Any]
    path: str
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, data: Any, path: str, warnings: list[str] | None = None) -> "_Config":
        if not isinstance(data, Mapping):
            msg = f"{path}: a Hugging Face config is a mapping, not {type(data).__name__}"
            raise ConfigError(msg, key=path, value=data, allowed="the contents of a config.json")
        return cls(data, path, [] if warnings is None else warnings)

    def has(self, name: str) -> bool:
        return self.data.get(name) is not None

    def warn(self, what: str) -> None:
        self.warnings.append(f"not modelled: {what}")

    def integer(
        self, name: str, default: Any = _REQUIRED, *, least: int = 1, most: int = MAX_EXTENT
    ) -> int:
        """Return a whole number from ``least`` to ``most``; null is an error."""
        value = self._value(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(name, "a whole number")
        if not least <= value <= most:
            raise self.error(name, f"between {least} and {most}")
        return value

    def optional_integer(self, name: str, default: Any = None) -> int | None:
        """Return a whole number, or none where the key is null."""
        if name in self.data and self.data[name] is None:
            return None
        if name not in self.data and default is None:
            return None
        return self.integer(name, default, least=0)

    def flag(self, name: str, default: Any = _REQUIRED) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def text(self, name: str, default: Any = _REQUIRED) -> str:
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self.error(name, "a string")
        return value

    def sequence(self, name: str, kind: type) -> list[Any]:
        """Return a list whose items are all of one type; absent or null means empty."""
        value = self.data.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or any(type(item) is not kind for item in value):
            raise self.error(name, f"a list of {kind.__name__}")
        return value

    def child(self, name: str, *, required: bool = False) -> "_Config":
        """Return a nested mapping; an absent one is empty."""
        value = self._value(name, _REQUIRED if required else {})
        return _Config.of(value, self.key(name), self.warnings)

    def key(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def error(self, name: str, allowed: str) -> ConfigError:
        value = self.data.get(name)
        msg = f"{self.key(name)} should be {allowed} (got {value!r:.60})"
        return ConfigError(msg, key=self.key(name), value=value, allowed=allowed)

    def unsupported(self, name: str, why: str, allowed: Any = None) -> UnsupportedError:
        value = self.data.get(name)
        msg = f"{self.key(name)} = {value!r:.60}: {why}"
        return UnsupportedError(msg, key=self.key(name), value=value, allowed=allowed)

    def _value(self, name: str, default: Any) -> Any:
        value = self.data.get(name, default)
        if value is _REQUIRED:
            msg = f"{self.key(name)} is missing from the Hugging Face config"
            raise ConfigError(msg, key=self.key(name), allowed="a value, there is no default")
        return value


_Part = Callable[[_Config], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Key:
    """Where one field of `ModelConfig` stands in a ``config.json``."""

    name: str
    default: Any = _REQUIRED
    is_flag: bool = False
    optional: bool = False
    most: int = MAX_EXTENT

    def read(self, config: _Config) -> int | bool | None:
        if self.is_flag:
            return config.flag(self.name, self.default)
        if self.optional:
            return config.optional_integer(self.name, self.default)
        return config.integer(self.name, self.default, most=self.most)


@dataclass(frozen=True, slots=True)
class _Family:
    """How the configurations of one ``model_type`` are read."""

    keys: Mapping[str, _Key]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[_Part, ...] = ()


def _text_part(config: _Config) -> _Config:
    """Descend into the language model of a multimodal one."""
    if not config.has("text_config"):
        return config
    nested = config.child("text_config", required=True)
    if config.has("vision_config") or config.has("audio_config"):
        nested.warn("the vision or audio part; only text_config is read")
    shared = {name: config.data[name] for name in _OUTER_KEYS if name in config.data}
    return _Config(shared | dict(nested.data), nested.path, nested.warnings)


def _family(model_type: str, config: _Config) -> _Family:
    if model_type in _FAMILIES:
        return _FAMILIES[model_type]
    known = sorted(_FAMILIES)
    if model_type in _HYBRIDS:
        why = "hybrid Mamba / linear-attention models are not supported"
    else:
        why = _INEXACT.get(model_type, f"unknown model type; known: {', '.join(known)}")
    raise config.unsupported(name="model_type", why=why, allowed=known)


def _own_name(data: Mapping[str, Any]) -> str:
    name = data.get("_name_or_path")
    return name if isinstance(name, str) else ""


def _check_layer_types(config: _Config) -> None:
    other = set(config.sequence("layer_types", str)) - _ATTENTION_KINDS
    if other:
        why = f"layers of kind {', '.join(sorted(other))} are not supported"
        raise config.unsupported(name="layer_types", why=why, allowed=sorted(_ATTENTION_KINDS))


def _num_layers(config: _Config) -> int:
    return config.integer("num_hidden_layers", most=MAX_LAYERS)


# Activation and biases


def _activation(name: str, meanings: Mapping[str, str], default: Any = _REQUIRED) -> _Part:
    def part(config: _Config) -> dict[str, Any]:
        given = config.text(name, default)
        if given not in meanings:
            why = f"this activation is not modelled; known: {', '.join(meanings)}"
            raise config.unsupported(name=name, why=why, allowed=list(meanings))
        return {"activation": meanings[given]}

    return part


def _attention_bias(name: str, kind: str, *, default: bool) -> _Part:
    def part(config: _Config) -> dict[str, Any]:
        return {"attention_bias": kind if config.flag(name, default) else "none"}

    return part


def _all_biases(name: str, *, default: bool) -> _Part:
    """Read one flag that switches the biases of every projection."""

    def part(config: _Config) -> dict[str, Any]:
        biased = config.flag(name, default)
        return {"attention_bias": "qkv+out" if biased else "none", "mlp_bias": biased}

    return part


def _qk_norm(kind: str) -> _Part:
    def part(config: _Config) -> dict[str, Any]:
        return {"qk_norm": kind if config.flag("use_qk_norm", default=False) else "none"}

    return part


# Attention windows


def _windows(width: int | None, layers: int) -> dict[str, Any]:
    if not width or not layers:
        return {}
    return {"sliding_window": width, "sliding_window_layers": layers}


def _every_layer_windowed(default: int | None) -> _Part:
    def part(config: _Config) -> dict[str, Any]:
        width = config.optional_integer("sliding_window", default)
        return _windows(width, _num_layers(config))

    return part


def _last_layers_windowed(config: _Config) -> dict[str, Any]:
    """Qwen: layers from ``max_window_layers`` on, and only when it is switched on."""
    if not config.flag("use_sliding_window", default=False):
        return {}
    full = config.integer("max_window_layers", least=0)
    return _windows(config.optional_integer("sliding_window"), max(_num_layers(config) - full, 0))


def _one_full_layer_in(period: int, width: int) -> _Part:
    """Every ``period``-th layer sees all keys, the others ``width``, unless listed."""

    def part(config: _Config) -> dict[str, Any]:
        every = config.integer("sliding_window_pattern", period)
        layers = _num_layers(config)
        kinds = config.sequence("layer_types", str)
        windowed = kinds.count("sliding_attention") if kinds else layers - layers // every
        return _windows(config.optional_integer("sliding_window", width), windowed)

    return part


def _chunked_attention(config: _Config) -> dict[str, Any]:
    chunk = config.optional_integer("attention_chunk_size", 8192)
    if chunk:
        config.warn(f"attention within chunks of {chunk} tokens; every layer sees all keys")
    return {}


# Mixture of experts


def _moe(
    is_moe: Iterable[bool], *, experts: int, topk: int, width: int, **further: Any
) -> dict[str, Any]:
    layers = tuple(int(flag) for flag in is_moe)
    if not any(layers):
        return {}
    freq = 1 if all(layers) else layers
    fields = {"num_experts": experts, "router_topk": topk, "ffn_hidden_size": width}
    return {"moe": fields | {"layer_freq": freq} | further}


def _mixtral_moe(config: _Config) -> dict[str, Any]:
    return _moe(
        [True] * _num_layers(config),
        experts=config.integer("num_local_experts", 8),
        topk=config.integer("num_experts_per_tok", 2),
        width=config.integer("intermediate_size"),
    )


def _gpt_oss_moe(config: _Config) -> dict[str, Any]:
    # The first public files say experts_per_token beside num_experts_per_tok.
    topk = "num_experts_per_tok" if config.has("num_experts_per_tok") else "experts_per_token"
    return _moe(
        [True] * _num_layers(config),
        experts=config.integer("num_local_experts"),
        topk=config.integer(topk),
        width=config.integer("intermediate_size"),
        router_bias=True,
    )


def _qwen_moe(config: _Config) -> dict[str, Any]:
    step = config.integer("decoder_sparse_step", 1)
    dense = set(config.sequence("mlp_only_layers", int))
    layers = range(_num_layers(config))
    return _moe(
        [layer not in dense and (layer + 1) % step == 0 for layer in layers],
        experts=config.integer("num_experts"),
        topk=config.integer("num_experts_per_tok"),
        width=config.integer("moe_intermediate_size"),
    )


def _qwen2_moe(config: _Config) -> dict[str, Any]:
    fields = _qwen_moe(config)
    shared = {
        "shared_expert_ffn_hidden_size": config.integer("shared_expert_intermediate_size"),
        "num_shared_experts": 1,
        "shared_expert_gate": True,
    }
    return {name: moe | shared for name, moe in fields.items()}


def _deepseek_moe(topk_method: str) -> _Part:
    """DeepSeek and GLM; ``noaux_tc`` routing has a learned bias for each expert."""

    def part(config: _Config) -> dict[str, Any]:
        if config.optional_integer("n_routed_experts", _REQUIRED) is None:
            return {}
        step = config.integer("moe_layer_freq", 1)
        dense = config.integer("first_k_dense_replace", least=0)
        width = config.integer("moe_intermediate_size")
        shared = config.optional_integer("n_shared_experts", _REQUIRED) or 0
        groups = config.optional_integer("n_group") or 1
        limits = {"num_groups": groups, "group_topk": config.integer("topk_group")}
        return _moe(
            [layer >= dense and layer % step == 0 for layer in range(_num_layers(config))],
            experts=config.integer("n_routed_experts"),
            topk=config.integer("num_experts_per_tok"),
            width=width,
            shared_expert_ffn_hidden_size=shared * width,
            num_shared_experts=shared,
            router_bias=config.text("topk_method", topk_method) == "noaux_tc",
            **(limits if groups > 1 else {}),
        )

    return part


def _llama4_moe(config: _Config) -> dict[str, Any]:
    layers = range(_num_layers(config))
    step = config.integer("interleave_moe_layer_step", 1)
    listed = set(config.sequence("moe_layers", int))
    if not config.has("moe_layers"):
        listed = set(layers[step - 1 :: step])
    width = config.integer("intermediate_size")
    return _moe(
        [layer in listed for layer in layers],
        experts=config.integer("num_local_experts"),
        topk=config.integer("num_experts_per_tok", 1),
        width=width,
        shared_expert_ffn_hidden_size=width,
        num_shared_experts=1,
    )


# What only one or two families have


def _mla(config: _Config) -> dict[str, Any]:
    if config.flag("attention_bias", default=False):
        raise config.unsupported(
            name="attention_bias", why="latent attention with biases is not modelled"
        )
    fields = {
        "q_lora_rank": config.optional_integer("q_lora_rank", _REQUIRED) or 0,
        "kv_lora_rank": config.integer("kv_lora_rank"),
        "qk_head_dim": config.integer("qk_nope_head_dim"),
        "qk_pos_emb_head_dim": config.integer("qk_rope_head_dim"),
        "v_head_dim": config.integer("v_head_dim"),
    }
    return {"mla": fields}


def _mtp(config: _Config) -> dict[str, Any]:
    modules = config.integer("num_nextn_predict_layers", 0, least=0)
    if modules:
        config.warnings.append(
            f"left out: {modules} multi-token-prediction module(s) of the checkpoint; "
            f"model.mtp_num_layers={modules} trains them"
        )
    return {}


def _logit_softcap(config: _Config) -> dict[str, Any]:
    if config.data.get("attn_logit_softcapping"):
        config.warn("the soft cap of the attention logits (attn_logit_softcapping)")
    return {}


def _parallel_block(name: str, *, default: bool) -> _Part:
    def part(config: _Config) -> dict[str, Any]:
        if config.flag(name, default):
            config.warn(_PARALLEL)
        return {}

    return part


def _always_parallel(config: _Config) -> dict[str, Any]:
    config.warn(_PARALLEL)
    return {}


def _gpt2_mlp(config: _Config) -> dict[str, Any]:
    inner = config.optional_integer("n_inner") or 4 * config.integer("n_embd")
    return {"ffn_hidden_size": inner}


def _opt(config: _Config) -> dict[str, Any]:
    hidden = config.integer("hidden_size")
    if config.integer("word_embed_proj_dim", hidden) != hidden:
        why = f"an embedding projected to hidden_size ({hidden}) is not modelled"
        raise config.unsupported(name="word_embed_proj_dim", why=why, allowed=hidden)
    if not config.flag("do_layer_norm_before", default=True):
        why = "norms behind the block, without a final one, are not modelled"
        raise config.unsupported(name="do_layer_norm_before", why=why, allowed=True)
    biased = config.flag("enable_bias", default=True)
    return {
        # OPT's table of positions has an offset of 2.
        "max_position_embeddings": config.integer("max_position_embeddings") + 2,
        "attention_bias": "qkv+out" if biased else "none",
        "mlp_bias": biased,
    }


def _falcon(config: _Config) -> dict[str, Any]:
    heads = config.integer("num_attention_heads")
    new = config.flag("new_decoder_architecture", default=False)
    parallel = new or config.flag("parallel_attn", default=True)
    if new:
        groups = config.optional_integer("num_kv_heads") or heads
        norms = config.optional_integer("num_ln_in_parallel_attn") or 2
    else:
        groups = 1 if config.flag("multi_query", default=True) else heads
        norms = 1 if parallel else 2
    if parallel:
        config.warn(_PARALLEL)
    hidden = config.integer("hidden_size")
    alibi = config.flag("alibi", default=False)
    return {
        "ffn_hidden_size": config.optional_integer("ffn_hidden_size") or 4 * hidden,
        "num_query_groups": groups,
        "norms_per_layer": norms,
        "position_embedding": "alibi" if alibi else "rope",
    }


def _mpt(config: _Config) -> dict[str, Any]:
    attention = config.child("attn_config")
    groups = attention.optional_integer("kv_n_heads")
    kind = attention.text("attn_type", "multihead_attention")
    if kind == "grouped_query_attention" and groups is None:
        raise attention.error(name="kv_n_heads", allowed="the number of key/value heads")
    if attention.flag("qk_ln", default=False):
        raise attention.unsupported(
            name="qk_ln", why="this norm of queries and keys is not modelled"
        )
    hidden = config.integer("d_model")
    biased = not config.flag("no_bias", default=True)
    alibi = attention.flag("alibi", default=True)
    learned = config.flag("learned_pos_emb", default=True)
    return {
        "ffn_hidden_size": config.integer("expansion_ratio", 4) * hidden,
        "num_query_groups": {"multiquery_attention": 1}.get(kind, groups),
        "position_embedding": "alibi" if alibi else "learned" if learned else "none",
        "attention_bias": "qkv+out" if biased else "none",
        "mlp_bias": biased,
        # Without biases its LayerNorm has the gain only, which is what RMSNorm counts.
        "normalization": "layernorm" if biased else "rmsnorm",
    }


# The table

_OUTER_KEYS: Final = ("tie_word_embeddings", "quantization_config")
_ATTENTION_KINDS: Final = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
_PARALLEL: Final = "attention and MLP side by side in one block; they are projected in sequence"

_GATED: Final = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_new": "geglu",
    "gelu_pytorch_tanh": "geglu",
}
_PLAIN: Final = {
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "relu2": "squared_relu",
}
_SILU: Final = _activation("hidden_act", _GATED, "silu")

_WIDTHS: Final = {
    "num_layers": _Key("num_hidden_layers", most=MAX_LAYERS),
    "hidden_size": _Key("hidden_size"),
    "num_attention_heads": _Key("num_attention_heads", most=MAX_HEADS),
    "vocab_size": _Key("vocab_size"),
}
_ROPE: Final = _WIDTHS | {
    "ffn_hidden_size": _Key("intermediate_size"),
    "num_query_groups": _Key("num_key_value_heads", default=None, optional=True),
    "kv_channels": _Key("head_dim", default=None, optional=True),
    "max_position_embeddings": _Key("max_position_embeddings"),
}
_UNTIED: Final = {"tied_embeddings": _Key("tie_word_embeddings", default=False, is_flag=True)}
_TIED: Final = {"tied_embeddings": _Key("tie_word_embeddings", default=True, is_flag=True)}
_LLAMA: Final = _ROPE | _UNTIED
_LATENT: Final = {
    name: spec for name, spec in _LLAMA.items() if name not in {"num_query_groups", "kv_channels"}
}
_QWEN3: Final = _LLAMA | {"kv_channels": _Key("head_dim", default=128, optional=True)}
_GEMMA: Final = _ROPE | _TIED | {"kv_channels": _Key("head_dim", default=256)}
_GEMMA3: Final = _GEMMA | {
    # Files of the multimodal models leave out what equals the default of the class.
    "num_attention_heads": _Key("num_attention_heads", default=8, most=MAX_HEADS),
    "num_query_groups": _Key("num_key_value_heads", default=4),
    "vocab_size": _Key("vocab_size", default=262_208),
    "max_position_embeddings": _Key("max_position_embeddings", default=131_072),
}
_GPT2: Final = _TIED | {
    "num_layers": _Key("n_layer", most=MAX_LAYERS),
    "hidden_size": _Key("n_embd"),
    "num_attention_heads": _Key("n_head", most=MAX_HEADS),
    "vocab_size": _Key("vocab_size"),
    "max_position_embeddings": _Key("n_positions"),
}
_MPT: Final = _TIED | {
    "num_layers": _Key("n_layers", most=MAX_LAYERS),
    "hidden_size": _Key("d_model"),
    "num_attention_heads": _Key("n_heads", most=MAX_HEADS),
    "vocab_size": _Key("vocab_size"),
    "max_position_embeddings": _Key("max_seq_len"),
}
_LAYERNORM: Final = {"normalization": "layernorm"}
_OPTIONAL_BIAS: Final = _attention_bias("attention_bias", "qkv+out", default=False)

_DEEPSEEK_V3: Final = _Family(_LATENT, parts=(_SILU, _mla, _deepseek_moe("noaux_tc"), _mtp))

_FAMILIES: Final[Mapping[str, _Family]] = {
    "llama": _Family(
        _LLAMA | {"mlp_bias": _Key("mlp_bias", default=False, is_flag=True)},
        parts=(_SILU, _OPTIONAL_BIAS),
    ),
    "mistral": _Family(_LLAMA, parts=(_SILU, _every_layer_windowed(4096))),
    "mixtral": _Family(_LLAMA, parts=(_SILU, _every_layer_windowed(None), _mixtral_moe)),
    "qwen2": _Family(_LLAMA, {"attention_bias": "qkv"}, (_SILU, _last_layers_windowed)),
    "qwen2_moe": _Family(
        _LLAMA,
        parts=(
            _SILU,
            _attention_bias("qkv_bias", "qkv", default=True),
            _last_layers_windowed,
            _qwen2_moe,
        ),
    ),
    "qwen3": _Family(_QWEN3, {"qk_norm": "head"}, (_SILU, _OPTIONAL_BIAS, _last_layers_windowed)),
    "qwen3_moe": _Family(
        _LLAMA, {"qk_norm": "head"}, (_SILU, _OPTIONAL_BIAS, _last_layers_windowed, _qwen_moe)
    ),
    "deepseek_v2": _Family(_LATENT, parts=(_SILU, _mla, _deepseek_moe("greedy"), _mtp)),
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "glm4_moe": _Family(
        _LLAMA,
        parts=(
            _SILU,
            _attention_bias("attention_bias", "qkv", default=False),
            _qk_norm("head"),
            _deepseek_moe("noaux_tc"),
            _mtp,
        ),
    ),
    "gpt_oss": _Family(
        _LLAMA | {"kv_channels": _Key("head_dim", default=64)},
        {"mlp_bias": True, "attention_sinks": True},
        (
            _SILU,
            _attention_bias("attention_bias", "qkv+out", default=True),
            _one_full_layer_in(2, 128),
            _gpt_oss_moe,
        ),
    ),
    "llama4_text": _Family(
        # intermediate_size is the width of an expert there.
        _LLAMA | {"ffn_hidden_size": _Key("intermediate_size_mlp")},
        parts=(_SILU, _OPTIONAL_BIAS, _chunked_attention, _llama4_moe),
    ),
    "gemma": _Family(_GEMMA, {"activation": "geglu"}, (_OPTIONAL_BIAS,)),
    "gemma2": _Family(
        _GEMMA,
        {"activation": "geglu", "norms_per_layer": 4},
        (_OPTIONAL_BIAS, _one_full_layer_in(2, 4096), _logit_softcap),
    ),
    "gemma3_text": _Family(
        _GEMMA3,
        {"activation": "geglu", "norms_per_layer": 4, "qk_norm": "head"},
        (_OPTIONAL_BIAS, _one_full_layer_in(6, 4096), _logit_softcap),
    ),
    "phi3": _Family(_LLAMA, parts=(_SILU, _every_layer_windowed(None))),
    "olmo2": _Family(_LLAMA, {"qk_norm": "full"}, (_SILU, _OPTIONAL_BIAS)),
    "internlm": _Family(_LLAMA, parts=(_SILU, _attention_bias("bias", "qkv+out", default=True))),
    "internlm2": _Family(_LLAMA, parts=(_SILU, _attention_bias("bias", "qkv+out", default=True))),
    "cohere": _Family(
        # Its LayerNorm has the gain only, which is what RMSNorm counts.
        _ROPE | _TIED,
        {"norms_per_layer": 1},
        (_SILU, _OPTIONAL_BIAS, _qk_norm("full"), _always_parallel),
    ),
    "nemotron": _Family(
        _LLAMA | {"mlp_bias": _Key("mlp_bias", default=False, is_flag=True)},
        _LAYERNORM,
        (_activation("hidden_act", _PLAIN, "relu2"), _OPTIONAL_BIAS),
    ),
    "starcoder2": _Family(
        _ROPE | _TIED,
        _LAYERNORM,
        (
            _activation("hidden_act", _PLAIN, "gelu_pytorch_tanh"),
            _all_biases("use_bias", default=True),
            _every_layer_windowed(None),
        ),
    ),
    "gpt_neox": _Family(
        _LLAMA,
        _LAYERNORM | {"mlp_bias": True},
        (
            _activation("hidden_act", _PLAIN, "gelu"),
            _attention_bias("attention_bias", "qkv+out", default=True),
            _parallel_block("use_parallel_residual", default=True),
        ),
    ),
    "gpt2": _Family(
        _GPT2,
        _LAYERNORM
        | {"position_embedding": "learned", "attention_bias": "qkv+out", "mlp_bias": True},
        (_activation("activation_function", _PLAIN, "gelu_new"), _gpt2_mlp),
    ),
    "opt": _Family(
        _WIDTHS | _TIED | {"ffn_hidden_size": _Key("ffn_dim")},
        _LAYERNORM | {"position_embedding": "learned"},
        (_activation("activation_function", _PLAIN, "relu"), _opt),
    ),
    "falcon": _Family(
        _WIDTHS
        | _TIED
        | {"max_position_embeddings": _Key("max_position_embeddings", default=2048)},
        _LAYERNORM,
        (_activation("activation", _PLAIN, "gelu"), _all_biases("bias", default=False), _falcon),
    ),
    "mpt": _Family(_MPT, {"activation": "gelu"}, (_mpt,)),
}

_HYBRIDS: Final = frozenset(
    {
        "bamba",
        "falcon_h1",
        "falcon_mamba",
        "granitemoehybrid",
        "jamba",
        "kimi_linear",
        "lfm2",
        "mamba",
        "mamba2",
        "minimax",
        "minimax_text_01",
        "nemotron_h",
        "qwen3_next",
        "recurrent_gemma",
        "rwkv",
        "zamba",
        "zamba2",
    }
)

_INEXACT: Final = {
    "bloom": "the norm behind its embedding is not modelled",
    "deepseek_v32": "its sparse attention is not modelled; deepseek_v3 has the same dimensions",
    "deepseek_v4": "its compressed sparse attention is not modelled",
}
