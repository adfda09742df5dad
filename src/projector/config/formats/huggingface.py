"""Reading the ``config.json`` of a Hugging Face model.

Each ``model_type`` is one row of `FAMILIES`: where the plain dimensions are, what the
architecture fixes, and the small functions ("parts") that read what several keys decide
together. A key that is absent takes the default of the Hugging Face class; where that is no
property of the architecture, the key is required.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from projector.config.formats import huggingface_file as hf
from projector.config.formats import huggingface_hybrid as hybrid
from projector.config.formats import huggingface_parts as parts
from projector.config.formats.read_job import Unsupported
from projector.config.formats.values import is_off
from projector.config.model import ModelConfig
from projector.config.resources import settings_of


class Family(NamedTuple):
    """How the configurations of one ``model_type`` are read."""

    fields: hf.Fields
    """Fields with their own key, and fields that the architecture fixes."""
    parts: tuple[parts.Part, ...]
    own_keys: frozenset[str] = frozenset()
    """Keys that make a model of another type where they are not read here."""


def _family(fields: hf.Fields, *further: parts.Part, **renamed: Any) -> Family:
    return Family(fields | renamed, further)


def _hybrid(fields: hf.Fields, *further: parts.Part, **renamed: Any) -> Family:
    return Family(fields | renamed, further, hybrid.OWN_KEYS)


_GATED: Final = dict.fromkeys(("silu", "swish"), "swiglu") | dict.fromkeys(
    ("gelu", "gelu_new", "gelu_pytorch_tanh"), "geglu"
)
_PLAIN: Final = dict.fromkeys(("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu") | {
    "relu": "relu",
    "relu2": "squared_relu",
}


def _plain(default: str, name: str = "hidden_act") -> hf.Reader:
    return hf.activation(name, _PLAIN, default)


def _bias(name: str, on: str = "qkv+out", *, default: bool) -> hf.Reader:
    return hf.switch(name, default=default, on=on, off="none")


def _qk_norm(on: str) -> hf.Reader:
    return hf.switch("use_qk_norm", default=False, on=on, off="none")


def _widths(layers: str, hidden: str, heads: str) -> hf.Fields:
    return {
        "num_layers": hf.integer(layers, most=hf.MAX_LAYERS),
        "hidden_size": hf.integer(hidden),
        "num_attention_heads": hf.integer(heads, most=hf.MAX_HEADS),
        "vocab_size": hf.integer("vocab_size"),
    }


_SILU: Final = {"activation": hf.activation("hidden_act", _GATED, "silu")}
_BIAS: Final = {"attention_bias": _bias("attention_bias", default=False)}
_MLP_BIAS: Final = {"mlp_bias": hf.switch("mlp_bias", default=False)}
_LAYERNORM: Final = {"normalization": "layernorm"}
_LEARNED: Final = {"position_embedding": "learned"}
_TIED: Final = {"tied_embeddings": hf.switch("tie_word_embeddings", default=True)}

_WIDTHS: Final = _widths("num_hidden_layers", "hidden_size", "num_attention_heads")
_ROPE: Final = _WIDTHS | {
    "ffn_hidden_size": hf.integer("intermediate_size"),
    "num_query_groups": hf.optional("num_key_value_heads"),
    "kv_channels": hf.optional("head_dim"),
    # Rotations know no longest sequence; some files leave it out.
    "max_position_embeddings": hf.optional("max_position_embeddings"),
}
_UNTIED: Final = _ROPE | {"tied_embeddings": hf.switch("tie_word_embeddings", default=False)}
_LLAMA: Final = _UNTIED | _SILU
_QWEN3: Final = _LLAMA | _BIAS | {"qk_norm": "head"}
_LATENT: Final = {
    name: value for name, value in _LLAMA.items() if name not in {"num_query_groups", "kv_channels"}
}
_GEGLU: Final = {"activation": hf.activation("hidden_activation", _GATED, "gelu_pytorch_tanh")}
_ONE_PLUS: Final[hf.Fields] = {"zero_centered_norms": True}
_GEMMA: Final = (
    _ROPE | _TIED | {"kv_channels": hf.integer("head_dim", 256)} | _GEGLU | _BIAS | _ONE_PLUS
)
_GEMMA3: Final = _GEMMA | {
    # Files of the multimodal models leave out what equals the default of the class.
    "num_attention_heads": hf.integer("num_attention_heads", 8, most=hf.MAX_HEADS),
    "num_query_groups": hf.integer("num_key_value_heads", 4),
    "vocab_size": hf.integer("vocab_size", 262_208),
    "max_position_embeddings": hf.integer("max_position_embeddings", 131_072),
    "rotary_base_local": lambda config: parts.numerics(config)["rotary_base_local"] or 10_000.0,
}

_QWEN2: Final = _family(_LLAMA, parts.last_layers_windowed, attention_bias="qkv")
_QWEN2_VL: Final = _family(_LLAMA, parts.last_layers_windowed, parts.SEEN, attention_bias="qkv")
_QWEN3_VL: Final = _family(_QWEN3, kv_channels=hf.optional("head_dim", 128))
_QWEN3_VL_MOE: Final = _family(_QWEN3, parts.QWEN3, kv_channels=hf.optional("head_dim", 128))
_GLM_BIAS: Final = {"attention_bias": _bias("attention_bias", "qkv", default=True)}
_NORMED: Final = {"qk_norm": "head"}
_ONE_BIAS: Final = {
    "attention_bias": _bias("use_bias", default=False),
    "mlp_bias": hf.switch("use_bias", default=False),
}
_LATENT_MOE: Final = (parts.latent_attention, parts.deepseek("noaux_tc"), parts.token_prediction)

_QWEN3_NEXT: Final = _hybrid(
    _QWEN3 | _ONE_PLUS,
    parts.QWEN2,
    hybrid.qwen3_next,
    kv_channels=hf.optional("head_dim", 256),
    attention_output_gate=True,
)
_LFM2: Final = _hybrid(
    {name: value for name, value in _ROPE.items() if name != "ffn_hidden_size"} | _TIED | _NORMED,
    hybrid.lfm2,
)
_NO_ATTENTION: Final[hf.Fields] = _TIED | {
    "num_layers": hf.integer("num_hidden_layers", most=hf.MAX_LAYERS),
    "hidden_size": hf.integer("hidden_size"),
    "vocab_size": hf.integer("vocab_size"),
    # No layer has an MLP.
    "ffn_hidden_size": lambda config: 4 * config.integer("hidden_size"),
    "position_embedding": "none",
}
_MAMBA: Final = _hybrid(_NO_ATTENTION, hybrid.mamba)

FAMILIES: Final[Mapping[str, Family]] = {
    "llama": _family(_UNTIED | _MLP_BIAS | _SILU | _BIAS),
    "mistral": _family(_LLAMA, parts.every_layer_windowed(4096)),
    "mixtral": _family(_LLAMA, parts.every_layer_windowed(None), parts.MIXTRAL),
    "ministral": _family(_LLAMA, parts.listed_windows),
    "ministral3": _family(_LLAMA, parts.every_layer_windowed(None)),
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2_VL,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl": _QWEN2_VL,
    "qwen2_5_vl_text": _QWEN2,
    "mimo": _family(
        _LLAMA, parts.last_layers_windowed, parts.token_prediction, attention_bias="qkv"
    ),
    "qwen2_moe": _family(
        _LLAMA,
        parts.last_layers_windowed,
        parts.QWEN2,
        attention_bias=_bias("qkv_bias", "qkv", default=True),
    ),
    "qwen3": _family(_QWEN3, parts.last_layers_windowed, kv_channels=hf.optional("head_dim", 128)),
    "qwen3_moe": _family(_QWEN3, parts.last_layers_windowed, parts.QWEN3),
    "qwen3_vl_text": _QWEN3_VL,
    "qwen3_vl_moe_text": _QWEN3_VL_MOE,
    "deepseek": _family(_LLAMA | _BIAS, parts.deepseek("greedy")),
    "deepseek_v2": _family(
        _LATENT, parts.latent_attention, parts.deepseek("greedy"), parts.token_prediction
    ),
    "deepseek_v3": _family(_LATENT, *_LATENT_MOE),
    "kimi_k2": _family(_LATENT, *_LATENT_MOE),
    "glm4_moe": _family(
        _LLAMA,
        parts.deepseek("noaux_tc"),
        parts.token_prediction,
        attention_bias=_bias("attention_bias", "qkv", default=False),
        qk_norm=_qk_norm("head"),
    ),
    "glm4v_moe_text": _family(
        _LLAMA, parts.deepseek("noaux_tc"), parts.token_prediction, **_GLM_BIAS
    ),
    "glm4_moe_lite": _family(_LATENT, *_LATENT_MOE),
    "glm": _family(_LLAMA, **_GLM_BIAS),
    "glm4": _family(_LLAMA, **_GLM_BIAS, norms_per_layer=4),
    "glm4v_text": _family(_LLAMA, attention_bias="qkv", norms_per_layer=4),
    "chatglm": _family(
        _widths("num_layers", "hidden_size", "num_attention_heads") | _SILU,
        parts.chatglm,
        vocab_size=hf.integer("padded_vocab_size"),
        ffn_hidden_size=hf.integer("ffn_hidden_size"),
        kv_channels=hf.optional("kv_channels"),
        max_position_embeddings=hf.optional("seq_length"),
        attention_bias=_bias("add_qkv_bias", "qkv", default=False),
        tied_embeddings=hf.switch("tie_word_embeddings", default=False),
    ),
    "dots1": _family(_LLAMA | _BIAS | _NORMED, parts.listed_windows, parts.deepseek("noaux_tc")),
    "youtu": _family(_LATENT | _TIED, parts.latent_attention),
    "minimax_m2": _family(_LLAMA, parts.minimax_prediction, parts.minimax),
    "solar_open": _family(
        _LLAMA | _BIAS,
        parts.deepseek("noaux_tc", dense=0),
        # No layer is dense, and files may leave that width out.
        ffn_hidden_size=lambda config: config.integer(
            config.first("intermediate_size", "moe_intermediate_size")
        ),
    ),
    "hunyuan_v1_dense": _family(_LLAMA | _BIAS | _NORMED),
    "hunyuan_v1_moe": _family(_LLAMA | _BIAS | _NORMED, parts.hunyuan),
    "ernie4_5": _family(_ROPE | _TIED | _SILU | _ONE_BIAS),
    "ernie4_5_moe": _family(_ROPE | _TIED | _SILU | _ONE_BIAS, parts.ERNIE),
    "exaone4": _family(_LLAMA | _NORMED, parts.unrotated_where_full(parts.exaone_windows)),
    "exaone_moe": _family(
        _LLAMA | _NORMED, parts.exaone_windows, parts.EXAONE, parts.token_prediction
    ),
    "granite": _family(_UNTIED | _MLP_BIAS | _SILU | _BIAS),
    "granitemoe": _family(_LLAMA | _BIAS, parts.MIXTRAL),
    "granitemoeshared": _family(_LLAMA | _BIAS, parts.granite_shared),
    "seed_oss": _family(
        _LLAMA | _MLP_BIAS, parts.biases("attention_bias", "attention_out_bias", default=True)
    ),
    "smollm3": _family(
        _ROPE | _TIED | _MLP_BIAS | _SILU | _BIAS,
        parts.listed_windows,
        parts.every_fourth_unrotated,
    ),
    "arcee": _family(_UNTIED | _MLP_BIAS | _BIAS | {"activation": _plain("relu2")}),
    "helium": _family(_LLAMA | _MLP_BIAS | _BIAS),
    "cwm": _family(_LLAMA | _MLP_BIAS, parts.listed_windows),
    "gpt_oss": _family(
        _LLAMA,
        parts.one_full_layer_in(2, 128),
        parts.GPT_OSS,
        kv_channels=hf.integer("head_dim", 64),
        attention_bias=_bias("attention_bias", default=True),
        mlp_bias=True,
        activation_clamp=hf.number("swiglu_limit", 7.0),
        attention_sinks=True,
    ),
    "llama4_text": _family(
        _LLAMA | _BIAS,
        parts.chunked_attention,
        parts.every_fourth_unrotated,
        parts.LLAMA4,
        # intermediate_size is the width of an expert there.
        ffn_hidden_size=hf.integer("intermediate_size_mlp"),
    ),
    "gemma": _family(_GEMMA),
    "gemma2": _family(
        _GEMMA, parts.one_full_layer_in(2, 4096), parts.LOGIT_SOFTCAP, norms_per_layer=4
    ),
    "gemma3_text": _family(
        _GEMMA3,
        parts.one_full_layer_in(6, 4096),
        parts.LOGIT_SOFTCAP,
        norms_per_layer=4,
        qk_norm="head",
    ),
    "phi3": _family(_LLAMA, parts.every_layer_windowed(None)),
    "olmo": _family(_LLAMA | _BIAS, parts.PLAIN_NORMS),
    "olmo2": _family(_LLAMA | _BIAS, qk_norm="full"),
    "olmo3": _family(
        _LLAMA | _BIAS, parts.one_full_layer_in(4, 4096), parts.plain_in_windows, qk_norm="full"
    ),
    "olmoe": _family(_LLAMA | _BIAS, parts.OLMOE, qk_norm="full"),
    "internlm": _family(_LLAMA, attention_bias=_bias("bias", default=True)),
    "internlm2": _family(_LLAMA, attention_bias=_bias("bias", default=True)),
    "internlm3": _family(
        _LLAMA,
        parts.biases("qkv_bias", "bias", default=False),
        mlp_bias=hf.switch("bias", default=False),
    ),
    "stablelm": _family(
        _LLAMA | _LAYERNORM,
        parts.no_head_norms,
        parts.stablelm,
        attention_bias=_bias("use_qkv_bias", "qkv", default=False),
    ),
    "phi": _family(
        _UNTIED | _LAYERNORM,
        parts.no_head_norms,
        parts.ALWAYS_PARALLEL,
        parts.HEAD_BIAS,
        norms_per_layer=1,
        attention_bias="qkv+out",
        mlp_bias=True,
        activation=_plain("gelu_new"),
    ),
    "phimoe": _family(
        _LLAMA | _LAYERNORM | _BIAS, parts.every_layer_windowed(None), parts.PHI, parts.HEAD_BIAS
    ),
    "dbrx": _family(
        # Its LayerNorm has the gain only, which is what RMSNorm counts.
        _widths("n_layers", "d_model", "n_heads"),
        parts.dbrx,
        tied_embeddings=hf.switch("tie_word_embeddings", default=False),
        max_position_embeddings=hf.integer("max_seq_len", 2048),
    ),
    "cohere2": _family(
        _ROPE | _TIED | _SILU | _BIAS,
        parts.ALWAYS_PARALLEL,
        parts.unrotated_where_full(parts.one_full_layer_in(4, 4096)),
        norms_per_layer=1,
    ),
    "cohere": _family(
        # Its LayerNorm has the gain only, which is what RMSNorm counts.
        _ROPE | _TIED | _SILU | _BIAS,
        parts.ALWAYS_PARALLEL,
        norms_per_layer=1,
        qk_norm=_qk_norm("full"),
    ),
    "nemotron": _family(
        _UNTIED | _MLP_BIAS | _LAYERNORM | {"activation": _plain("relu2")} | _BIAS | _ONE_PLUS
    ),
    "starcoder2": _family(
        _ROPE | _TIED | _LAYERNORM,
        parts.every_layer_windowed(None),
        activation=_plain("gelu_pytorch_tanh"),
        attention_bias=_bias("use_bias", default=True),
        mlp_bias=hf.switch("use_bias", default=True),
    ),
    "gpt_neox": _family(
        _UNTIED | _LAYERNORM,
        parts.PARALLEL,
        mlp_bias=True,
        activation=_plain("gelu"),
        attention_bias=_bias("attention_bias", default=True),
    ),
    "gpt2": _family(
        _TIED | _widths("n_layer", "n_embd", "n_head") | _LAYERNORM | _LEARNED,
        parts.gpt2_mlp,
        max_position_embeddings=hf.integer("n_positions"),
        attention_bias="qkv+out",
        mlp_bias=True,
        activation=_plain("gelu_new", "activation_function"),
    ),
    "gpt_bigcode": _family(
        _TIED | _widths("n_layer", "n_embd", "n_head") | _LAYERNORM | _LEARNED,
        parts.gpt2_mlp,
        num_query_groups=hf.switch("multi_query", default=True, on=1, off=None),
        max_position_embeddings=hf.integer("n_positions"),
        attention_bias="qkv+out",
        mlp_bias=True,
        activation=_plain("gelu_pytorch_tanh", "activation_function"),
    ),
    "opt": _family(
        _WIDTHS | _TIED | _LAYERNORM | _LEARNED,
        parts.opt,
        ffn_hidden_size=hf.integer("ffn_dim"),
        activation=_plain("relu", "activation_function"),
    ),
    "falcon": _family(
        _WIDTHS | _TIED | _LAYERNORM,
        parts.falcon,
        max_position_embeddings=hf.integer("max_position_embeddings", 2048),
        activation=_plain("gelu", "activation"),
        attention_bias=_bias("bias", default=False),
        mlp_bias=hf.switch("bias", default=False),
    ),
    "nemotron_h": _hybrid(
        _UNTIED | _MLP_BIAS | _BIAS | {"activation": _plain("relu2", "mlp_hidden_act")},
        hybrid.nemotron_h,
        position_embedding="none",
    ),
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5_moe_text": _QWEN3_NEXT,
    "qwen3_5_text": _hybrid(_QWEN3_NEXT.fields, hybrid.qwen3_next),
    "deepseek_v32": _hybrid(
        _LATENT, hybrid.chosen_keys, parts.deepseek("noaux_tc"), parts.token_prediction
    ),
    "kimi_linear": _hybrid(
        _LATENT, parts.latent_attention, hybrid.kimi_linear, position_embedding="none"
    ),
    "jamba": _hybrid(_LLAMA, hybrid.jamba, position_embedding="none"),
    "olmo_hybrid": _hybrid(_LLAMA | _BIAS, hybrid.olmo_hybrid, qk_norm="full"),
    "falcon_h1": _hybrid(_LLAMA | _BIAS | _MLP_BIAS, hybrid.falcon_h1),
    "bamba": _hybrid(_LLAMA | _BIAS | _MLP_BIAS, hybrid.bamba),
    "granitemoehybrid": _hybrid(_LLAMA | _BIAS, hybrid.granite_hybrid),
    "minimax": _hybrid(_LLAMA, hybrid.minimax),
    "mamba": _MAMBA,
    "falcon_mamba": _MAMBA,
    "mamba2": _hybrid(
        _NO_ATTENTION,
        hybrid.mamba2,
        # Heads are those of the mixers.
        num_attention_heads=hf.integer("num_heads", most=hf.MAX_HEADS),
        kv_channels=hf.integer("head_dim"),
    ),
    "rwkv7": _hybrid(
        _NO_ATTENTION | _LAYERNORM,
        hybrid.rwkv7,
        activation=_plain("relu2"),
        tied_embeddings=hf.switch("tie_word_embeddings", default=False),
    ),
    "lfm2": _LFM2,
    "lfm2_moe": _LFM2,
    "mpt": _family(
        _TIED | _widths("n_layers", "d_model", "n_heads"),
        parts.mpt,
        max_position_embeddings=hf.integer("max_seq_len"),
        activation="gelu",
    ),
}

REFUSED: Final = {
    kind: why
    for why, kinds in settings_of("huggingface")["refused"].items()
    for kind in kinds.split()
}
"""Architectures that cannot be described, and why."""


_OUTER_KEYS: Final = ("tie_word_embeddings", "quantization_config")
_NESTED_KEYS: Final = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where multimodal models keep their language model."""
_MOST_NESTED: Final = 8
_OTHER_PARTS: Final = ("vision_config", "audio_config")
_ATTENTION_KINDS: Final = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
_GROUPED: Final = frozenset(name for group in hf.OF_OTHER_FAMILIES for name in group.keys)
_MOST_NAMED: Final = 12
"""Unknown keys that a warning names."""


def read_huggingface(
    data: Mapping[str, Any], *, name: str = "", key: str = "model"
) -> tuple[ModelConfig, list[str]]:
    """Return the architecture of a parsed ``config.json``, and what of it is not modelled.

    That is a sentence for everything that would change the projection. Of a multimodal model only
    ``text_config`` is read. Without ``name`` reports show the file's own ``_name_or_path`` or
    ``model_type``; ``key`` is put before every key in an error.
    """
    config = _text_part(hf.ConfigFile.of(data, key))
    model_type = config.text("model_type")
    family = _family_of(model_type, config)
    other = set(config.sequence("layer_types", str)) - _ATTENTION_KINDS
    if other and not family.own_keys:
        why = f"layers of kind {', '.join(sorted(other))} are not supported"
        raise config.unsupported(name="layer_types", why=why, allowed=sorted(_ATTENTION_KINDS))
    for key_of_another, entry in hf.UNSUPPORTED.items():
        if key_of_another in config.data and key_of_another not in family.own_keys:
            _refuse(config, key_of_another, entry)
    if config.has("quantization_config"):
        config.warn("the quantised weights of the checkpoint; the training precision decides")

    fields = parts.numerics(config) | hf.read_fields(family.fields, config)
    for part in family.parts:
        fields |= part(config)
    _refuse_other_families(config, fields)
    _warn_of_unknown(config)
    fields = {target: value for target, value in fields.items() if value is not None}
    own = data.get("_name_or_path")
    fields["name"] = name or (own if isinstance(own, str) else "") or model_type
    fields["source"] = f"Hugging Face config.json ({model_type})"
    return ModelConfig.parse(fields, path=key), config.warnings


def _text_part(config: hf.ConfigFile, depth: int = 0) -> hf.ConfigFile:
    """Descend into the language model of a multimodal one."""
    if depth > _MOST_NESTED:
        raise config.unsupported(name=_NESTED_KEYS[0], why="a language model nests too deep")
    place = next((name for name in _NESTED_KEYS if config.has(name)), None)
    if place is None:
        return config
    nested = config.child(place, required=True)
    if any(map(config.has, _OTHER_PARTS)):
        nested.warn(f"the vision or audio part; only {place} is read")
    # The model ties its weights by what the outer mapping says.
    shared = {name: config.data[name] for name in _OUTER_KEYS if name in config.data}
    inner = hf.ConfigFile(dict(nested.data) | shared, nested.path, nested.warnings)
    return _text_part(inner, depth + 1)


def _family_of(model_type: str, config: hf.ConfigFile) -> Family:
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    import difflib

    known = sorted(FAMILIES)
    close = difflib.get_close_matches(model_type, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    why = REFUSED.get(model_type, f"unknown model type; {hint}known: {', '.join(known)}")
    raise config.unsupported(name="model_type", why=why, allowed=known)


def _refuse_other_families(config: hf.ConfigFile, fields: Mapping[str, Any]) -> None:
    """Refuse what makes a model of another type, where this type reads nothing of the kind."""
    for group in hf.OF_OTHER_FAMILIES:
        if group.field in fields or config.used & set(group.keys):
            continue
        for name in group.keys:
            if name in config.data:
                _refuse(config, name, group.entry)


def _refuse(config: hf.ConfigFile, name: str, entry: Unsupported) -> None:
    error = hf.refusal(entry, config.data[name], config.key(name))
    if error is not None:
        raise error


def _warn_of_unknown(config: hf.ConfigFile) -> None:
    """Name in one sentence the keys that nobody knows and that are not switched off."""
    unknown = [
        str(name)
        for name, value in config.data.items()
        if name not in config.used
        and name not in hf.HARMLESS
        and name not in _GROUPED
        and not str(name).startswith("_")
        and not is_off(value)
    ]
    if not unknown:
        return
    names = ", ".join(unknown[:_MOST_NAMED])
    more = f" and {len(unknown) - _MOST_NAMED} more" if len(unknown) > _MOST_NAMED else ""
    what = "an unknown key" if len(unknown) == 1 else f"{len(unknown)} unknown keys"
    config.warnings.append(f"{what} of the config.json cannot be followed: {names}{more}")
