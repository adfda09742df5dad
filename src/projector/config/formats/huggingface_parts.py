"""What several keys of a ``config.json`` decide together: experts, windows, latent attention."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from projector.config.formats.huggingface_file import (
    MAX_LAYERS,
    REQUIRED,
    TABLE,
    ConfigFile,
    fields_of,
    read_fields,
    read_value,
)

# Rotations and norms: what many families call alike, and no projection hangs on.

_NAMES: Final = {kind: names.split() for kind, names in TABLE["numerics"].items()}


def _number(places: Iterable[Mapping[str, Any]], names: Iterable[str], most: float) -> float | None:
    """Return the first number above 0 and up to ``most`` under one of the names, or None."""
    for place in places:
        for name in names:
            value: Any = place.get(name)
            if type(value) in {int, float} and 0 < value <= most:
                return float(value)
    return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def numerics(config: ConfigFile) -> dict[str, Any]:
    """Read rotations and the epsilon of norms, where they are said in a common way."""
    inner = _mapping(config.data.get("rope_parameters") or config.data.get("rope_scaling"))
    # Where layers with and without windows rotate differently, each kind has a mapping.
    windowed = _mapping(inner.get("sliding_attention"))
    inner = _mapping(inner.get("full_attention")) or inner
    places = (config.data, inner)
    kind = inner.get("rope_type", inner.get("type"))
    factor = _number((inner,), ("factor",), 1e9)
    part = _number(places, _NAMES["parts"], 1)
    turned, head = (
        _number((config.data,), (name,), 1 << 30) for name in ("rotary_dim", "head_dim")
    )
    if part is None and turned and head:
        part = min(1.0, turned / head)
    found: dict[str, Any] = {
        "rotary_base": _number(places, _NAMES["bases"], 1e15),
        "rotary_base_local": _number((config.data,), ("rope_local_base_freq",), 1e15)
        or _number((windowed,), _NAMES["bases"], 1e15),
        "rotary_percent": None if part == 1 else part,
        "norm_epsilon": _number(places, _NAMES["epsilons"], 0.5),
    }
    if kind in ("llama3", "yarn", "linear") and factor is not None:
        length = "original_max_position_embeddings"
        known = inner.get(length, config.data.get(length))
        found["rope_scaling"] = {
            "kind": kind,
            "factor": factor,
            length: known if type(known) is int and 0 < known <= 1 << 30 else None,
        } | {name: value for name in _NAMES["scales"] if (value := _number((inner,), (name,), 1e9))}
        if inner.get("truncate") is False:
            found["rope_scaling"]["truncate"] = False
    return found


Part = Callable[[ConfigFile], dict[str, Any]]
"""Returns native fields; what it leaves out has the native default."""

# Which layers are mixtures of experts, and their dimensions.


def _mixture(
    is_moe: Iterable[bool], *, num_experts: int, router_topk: int, ffn_hidden_size: int, **more: Any
) -> dict[str, Any]:
    layers = tuple(map(int, is_moe))
    if not any(layers):
        return {}
    fields = {
        "num_experts": num_experts,
        "router_topk": router_topk,
        "ffn_hidden_size": ffn_hidden_size,
        "layer_freq": 1 if all(layers) else layers,
    }
    return {"moe": fields | more}


def expert_fields(config: ConfigFile, row: str) -> dict[str, Any]:
    """Read the fields of `MoEConfig` by a row."""
    return read_fields(fields_of(TABLE["experts"][row], TABLE["experts"]), config)


def experts(config: ConfigFile, row: str) -> dict[str, Any]:
    """Read which layers are mixtures of experts, then their fields, by a row."""
    layers = _LAYERS[TABLE["experts"][row]["layers"]](config)
    return _mixture(layers, **expert_fields(config, row))


def num_layers(config: ConfigFile) -> int:
    """Return the layers of the model."""
    return config.integer("num_hidden_layers", most=MAX_LAYERS)


def sparse_step(config: ConfigFile) -> list[bool]:
    """Qwen: every so many layers, but not those that are listed."""
    step = config.integer("decoder_sparse_step", 1)
    dense = set(config.sequence("mlp_only_layers", int))
    return [layer not in dense and (layer + 1) % step == 0 for layer in range(num_layers(config))]


def _interleaved(config: ConfigFile) -> list[bool]:
    """Llama 4: the layers that are listed, else every so many."""
    layers = range(num_layers(config))
    step = config.integer("interleave_moe_layer_step", 1)
    listed = set(config.sequence("moe_layers", int))
    if not config.has("moe_layers"):
        listed = set(layers[step - 1 :: step])
    return [layer in listed for layer in layers]


def _behind_dense(config: ConfigFile, default: Any = REQUIRED) -> list[bool]:
    """DeepSeek: the layers that are listed, else every so many layers behind some dense ones."""
    kinds = config.sequence("mlp_layer_types", str)
    layers = num_layers(config)
    if kinds:
        if len(kinds) != layers or set(kinds) - {"dense", "sparse"}:
            raise config.error(name="mlp_layer_types", allowed="dense or sparse for each layer")
        config.has("first_k_dense_replace")
        return [kind == "sparse" for kind in kinds]
    step = config.integer("moe_layer_freq", 1)
    dense = config.integer("first_k_dense_replace", default, least=0)
    return [layer >= dense and layer % step == 0 for layer in range(layers)]


def _ernie(config: ConfigFile) -> list[bool]:
    """Ernie: every so many layers between a first and a last one."""
    layers = num_layers(config)
    step = config.integer("moe_layer_interval", 1)
    first = config.integer("moe_layer_start_index", 1, least=0)
    last = config.integer("moe_layer_end_index", -1, least=-1)
    last = layers - 1 if last == -1 else last
    return [(layer + 1) % step == 0 and first <= layer <= last for layer in range(layers)]


def hunyuan(config: ConfigFile) -> dict[str, Any]:
    """Hunyuan: widths and counts may be lists with an item for each layer, all alike here."""
    if config.integer("num_experts", 1) == 1:
        return {}
    layers = num_layers(config)

    def of_layers(name: str, *default: int) -> int:
        value = config.data.get(name)
        if not isinstance(value, list):
            return config.integer(name, *default)
        values = config.sequence(name, int)
        if len(values) != layers or len(set(values)) > 1:
            why = "layers that differ in their experts are not modelled"
            raise config.unsupported(name=name, why=why, allowed="one number for all layers")
        return int(values[0])

    width = of_layers("moe_intermediate_size", config.integer("intermediate_size"))
    shared = of_layers("num_shared_expert", 1)
    if config.has("use_mixed_mlp_moe") and not config.flag("use_mixed_mlp_moe"):
        shared = 0
    return _mixture(
        [True] * layers,
        num_experts=config.integer("num_experts"),
        router_topk=of_layers("moe_topk"),
        ffn_hidden_size=width,
        shared_expert_ffn_hidden_size=shared * width,
        num_shared_experts=shared,
    )


_LAYERS: Final[Mapping[str, Callable[[ConfigFile], list[bool]]]] = {
    "every_layer": lambda config: [True] * num_layers(config),
    "sparse_step": sparse_step,
    "interleaved": _interleaved,
    "behind_dense": _behind_dense,
    "between": _ernie,
}


def granite_shared(config: ConfigFile) -> dict[str, Any]:
    """Granite: experts as Mixtral's, and one expert that every token visits."""
    width = config.integer("shared_intermediate_size", 0, least=0)
    fields: dict[str, Any] = experts(config, "mixtral")["moe"]
    shared = {"shared_expert_ffn_hidden_size": width, "num_shared_experts": 1} if width else {}
    return {"moe": fields | shared}


def dbrx(config: ConfigFile) -> dict[str, Any]:
    """DBRX: attention and experts have mappings of their own."""
    groups = config.child("attn_config").integer("kv_n_heads", 1)
    fields = expert_fields(config.child("ffn_config", required=True), "dbrx")
    layers = [True] * config.integer("n_layers", most=MAX_LAYERS)
    width = fields["ffn_hidden_size"]
    mixture = _mixture(layers, **fields)
    return {"num_query_groups": groups, "ffn_hidden_size": width, **mixture}


def deepseek(config: ConfigFile, topk_method: str, *, dense: Any = REQUIRED) -> dict[str, Any]:
    """DeepSeek and GLM (``noaux_tc``: a bias for each expert); ``dense`` layers by default."""
    if config.optional_integer("n_routed_experts", must=True) is None:
        return {}
    layers = _behind_dense(config, dense)
    width = config.integer("moe_intermediate_size")
    shared = config.optional_integer("n_shared_experts", must=True) or 0
    groups = config.optional_integer("n_group") or 1
    limits = {"num_groups": groups}
    biased = config.text("topk_method", topk_method) == "noaux_tc"
    if groups > 1:
        limits["group_topk"] = config.integer("topk_group")
    # How DeepSeek's router makes weights of logits.
    name = config.data.get("scoring_func")
    if name not in ("softmax", "sigmoid"):
        # Classes with a bias for each expert have sigmoids, whatever the key says.
        name = "sigmoid" if biased else "softmax"
    scale = _number((config.data,), ("routed_scaling_factor",), 1e9)
    early = (
        {"router_pre_softmax": config.is_not_true("norm_topk_prob")} if name == "softmax" else {}
    )
    return _mixture(
        layers,
        num_experts=config.integer("n_routed_experts"),
        router_topk=config.integer("num_experts_per_tok"),
        ffn_hidden_size=width,
        shared_expert_ffn_hidden_size=shared * width,
        num_shared_experts=shared,
        router_bias=biased,
        **{"router_score_function": name, "router_scaling_factor": scale, **early},
        **(limits if groups > 1 else {}),
    )


def _windows(width: int | None, layers: int) -> dict[str, Any]:
    if not width or not layers:
        return {}
    return {"sliding_window": width, "sliding_window_layers": layers}


def every_layer_windowed(config: ConfigFile, default: int | None) -> dict[str, Any]:
    """Mistral: one width for all layers."""
    return _windows(config.optional_integer("sliding_window", default), num_layers(config))


def last_layers_windowed(config: ConfigFile) -> dict[str, Any]:
    """Qwen: layers from ``max_window_layers`` on, and only when it is switched on."""
    width = config.optional_integer("sliding_window")
    if not config.flag("use_sliding_window", default=False):
        return {}
    full = config.integer("max_window_layers", least=0)
    return _windows(width, max(num_layers(config) - full, 0))


def listed_windows(config: ConfigFile) -> dict[str, Any]:
    """Windows only where ``layer_types`` lists them."""
    width = config.optional_integer("sliding_window")
    config.has("use_sliding_window")
    return _windows(width, config.sequence("layer_types", str).count("sliding_attention"))


def exaone_windows(config: ConfigFile) -> dict[str, Any]:
    """EXAONE: layers that are listed, else a period, or a word such as LLLG whose letters say so.

    The last layer sees all keys in any case.
    """
    pattern = config.data.get("sliding_window_pattern")
    config.used.add("sliding_window_pattern")
    width = config.optional_integer("sliding_window")
    if config.has("layer_types"):
        return listed_windows(config)
    if isinstance(pattern, str):
        if not pattern or set(pattern) - {"L", "G"}:
            raise config.error(name="sliding_window_pattern", allowed="a number, or L and G")
        word = pattern
    elif pattern is None:
        return {}
    else:
        word = "L" * (config.integer("sliding_window_pattern", most=MAX_LAYERS) - 1) + "G"
    behind_last = num_layers(config) - 1
    return _windows(width, sum(word[layer % len(word)] == "L" for layer in range(behind_last)))


def one_full_layer_in(config: ConfigFile, period: int, width: int) -> dict[str, Any]:
    """Every ``period``-th layer sees all keys, the others ``width``, unless listed."""
    stride = config.integer("sliding_window_pattern", period)
    layers = num_layers(config)
    kinds = config.sequence("layer_types", str)
    windowed = kinds.count("sliding_attention") if kinds else layers - layers // stride
    return _windows(config.optional_integer("sliding_window", width), windowed)


def every_fourth_unrotated(config: ConfigFile) -> dict[str, Any]:
    """Llama 4, SmolLM3: the list has 0 for a layer without rotations; without it each fourth."""
    listed = config.sequence("no_rope_layers", int)
    if not listed:
        return {"no_rope_freq": config.integer("no_rope_layer_interval", 4)}
    period = listed.index(0) + 1 if 0 in listed else None
    if any(bool(one) != bool(period is None or (i + 1) % period) for i, one in enumerate(listed)):
        config.warn("rotations in an irregular pattern of layers; a run would rotate in all")
        return {}
    return {"no_rope_freq": period}


def plain_in_windows(config: ConfigFile) -> dict[str, Any]:
    """OLMo 3: layers with a window do not stretch their rotations."""
    known = numerics(config)
    return {"rotary_base_local": known["rotary_base"]} if "rope_scaling" in known else {}


def unrotated_where_full(config: ConfigFile, part: Part) -> dict[str, Any]:
    """Cohere 2, EXAONE 4: beside layers with a window, those without do not rotate."""
    found = part(config)
    full = num_layers(config) - found.get("sliding_window_layers", 0)
    return found | ({"no_rope_freq": num_layers(config) // full} if found and full else {})


def local_base(config: ConfigFile, usual: float) -> dict[str, Any]:
    """Gemma 3: the base of rotations in layers with a window."""
    return {"rotary_base_local": numerics(config)["rotary_base_local"] or usual}


def recurrent(config: ConfigFile, row: str) -> dict[str, Any]:
    """Read the dimensions of mixers with a state by a row."""
    return {"recurrent": read_fields(TABLE["recurrent"][row], config)}


def chunked_attention(config: ConfigFile) -> dict[str, Any]:
    """Llama 4: chunks are not modelled, and its norm of queries and keys has no weights."""
    config.has("use_qk_norm")
    chunk = config.optional_integer("attention_chunk_size", 8192)
    if chunk:
        config.warn(f"attention within chunks of {chunk} tokens; every layer sees all keys")
    return {}


def warned(config: ConfigFile, row: str) -> dict[str, Any]:
    """Say what is not modelled, where a file has it."""
    how = TABLE["warned"][row]
    if read_value(config, how.get("where", True)):
        config.warn(how["what"])
    return {}


def latent_attention(config: ConfigFile) -> dict[str, Any]:
    """DeepSeek: the ranks and widths of multi-head latent attention."""
    why = "latent attention with biases is not modelled"
    refuse_unless(config, "attention_bias", why, usual=False, allowed=None)
    return {"mla": read_fields(TABLE["latent"], config)}


def token_prediction(config: ConfigFile) -> dict[str, Any]:
    """DeepSeek: modules of multi-token prediction are left out."""
    modules = config.integer("num_nextn_predict_layers", 0, least=0)
    if modules:
        _leave_out(config, modules)
    return {}


def minimax_m2(config: ConfigFile) -> dict[str, Any]:
    """MiniMax: modules of multi-token prediction are left out, and no layer may be linear."""
    if config.data.get("attn_type_list") and set(config.sequence("attn_type_list", int)) != {1}:
        why = "layers of lightning attention are not supported"
        raise config.unsupported(name="attn_type_list", why=why, allowed="1 for every layer")
    modules = config.integer("num_mtp_modules", 0, least=0)
    config.has("mtp_transformer_layers")
    if config.flag("use_mtp", default=False) and modules:
        _leave_out(config, modules)
    kind = config.text("qk_norm_type", "per_layer")
    if kind not in {"per_layer", "per_head"}:
        raise config.error(name="qk_norm_type", allowed="per_layer or per_head")
    normed = config.flag("use_qk_norm", default=True)
    width = "full" if kind == "per_layer" else "head"
    return {"qk_norm": width if normed else "none"}


def _leave_out(config: ConfigFile, modules: int) -> None:
    config.warnings.append(
        f"left out: {modules} multi-token-prediction module(s) of the checkpoint; "
        f"model.mtp_num_layers={modules} trains them"
    )


def biases(config: ConfigFile, query: str, output: str, *, default: bool) -> dict[str, Any]:
    """Attention whose output projection has a flag of its own for its bias."""
    inner, outer = config.flag(query, default), config.flag(output, default=False)
    if outer and not inner:
        why = "a bias of the output projection alone is not modelled"
        raise config.unsupported(name=output, why=why, allowed=False)
    return {"attention_bias": "qkv+out" if outer else "qkv" if inner else "none"}


def refuse_unless(
    config: ConfigFile, name: str, why: str, *, usual: bool, **shown: Any
) -> dict[str, Any]:
    """Refuse a flag that is not as it is where it is absent."""
    if config.flag(name, usual) is not usual:
        raise config.unsupported(name=name, why=why, **({"allowed": usual} | shown))
    return {}


def opt(config: ConfigFile) -> dict[str, Any]:
    """OPT: some models have a narrower embedding."""
    hidden = config.integer("hidden_size")
    if config.integer("word_embed_proj_dim", hidden) != hidden:
        why = f"an embedding projected to hidden_size ({hidden}) is not modelled"
        raise config.unsupported(name="word_embed_proj_dim", why=why, allowed=hidden)
    return {}


def falcon(config: ConfigFile) -> dict[str, Any]:
    """Falcon: key/value heads and norms of its three architectures."""
    heads = config.integer("num_attention_heads")
    new = config.flag("new_decoder_architecture", default=False)
    parallel = config.flag("parallel_attn", default=True) or new
    if new:
        groups = config.optional_integer("num_kv_heads") or heads
        norms = config.optional_integer("num_ln_in_parallel_attn") or 2
    else:
        groups = 1 if config.flag("multi_query", default=True) else heads
        norms = 1 if parallel else 2
    if parallel:
        warned(config, "always_parallel")
    hidden = config.integer("hidden_size")
    return {
        "ffn_hidden_size": config.optional_integer("ffn_hidden_size") or 4 * hidden,
        "num_query_groups": groups,
        "norms_per_layer": norms,
        "position_embedding": "alibi" if config.flag("alibi", default=False) else "rope",
    }


def mpt(config: ConfigFile) -> dict[str, Any]:
    """MPT: attention has a mapping of its own."""
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
