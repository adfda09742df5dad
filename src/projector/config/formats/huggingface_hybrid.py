"""Layers of several kinds in a ``config.json``: state-space, linear attention, attention.

A part returns ``layer_types`` and ``recurrent`` of the model. Keys and defaults are those of the
classes of huggingface/transformers (configuration_NAME.py).
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from projector.config.formats import huggingface_parts as parts
from projector.config.formats.huggingface_file import MAX_HEADS, TABLE, ConfigFile, read_fields
from projector.config.model import PATTERN


def _kinds(mixers: Iterable[str], has_experts: Iterable[bool]) -> dict[str, Any]:
    names = []
    for mixer, expert in zip(mixers, has_experts, strict=True):
        behind = "moe" if expert else "dense"
        names.append(behind if mixer == "attention" else f"{mixer}_{behind}")
    return {"layer_types": tuple(names)}


def _listed(config: ConfigFile, mixer: str, words: Mapping[str, str]) -> list[str]:
    """Read ``layer_types`` or an interval of full attention: a mixer or attention in each layer."""
    layers = parts.num_layers(config)
    given = config.sequence("layer_types", str)
    every = config.integer("full_attention_interval", 4)
    if not given:
        return ["attention" if (i + 1) % every == 0 else mixer for i in range(layers)]
    if len(given) < layers or set(given) - words.keys():
        raise config.error("layer_types", f"a list with one of {sorted(words)} for each layer")
    return [words[name] for name in given[:layers]]


def qwen3_next(config: ConfigFile) -> dict[str, Any]:
    """Qwen3-Next: a gated delta net in most layers, experts in every one that is not listed."""
    state = parts.recurrent(config, "qwen3_next")
    mixers = _listed(config, "gdn", {"linear_attention": "gdn", "full_attention": "attention"})
    # Qwen3.5 has models without experts.
    has_experts = parts.sparse_step(config) if config.has("num_experts") else [False] * len(mixers)
    return _kinds(mixers, has_experts) | state


def olmo_hybrid(config: ConfigFile) -> dict[str, Any]:
    """OLMo-Hybrid: a gated delta net in most layers, with as many heads as attention has."""
    heads = config.integer("num_attention_heads", most=MAX_HEADS)
    groups = config.optional_integer("linear_num_key_heads") or heads
    size = config.optional_integer("linear_key_head_dim")
    size = size or 3 * config.integer("hidden_size") // (4 * groups)
    state = {
        "num_heads": config.optional_integer("linear_num_value_heads") or heads,
        "head_dim": config.optional_integer("linear_value_head_dim") or 2 * size,
        "num_groups": groups,
        "state_size": size,
        "conv_kernel": config.integer("linear_conv_kernel_dim", 4),
    }
    mixers = _listed(config, "gdn", {"linear_attention": "gdn", "full_attention": "attention"})
    return _kinds(mixers, [False] * len(mixers)) | {"recurrent": state}


def chosen_keys(config: ConfigFile) -> dict[str, Any]:
    """DeepSeek-V3.2: latent attention to the keys that an indexer chooses."""
    latent: dict[str, Any] = parts.latent_attention(config)["mla"]
    return {"mla": latent | read_fields(TABLE["indexer"], config)}


def nemotron_h(config: ConfigFile) -> dict[str, Any]:
    """Nemotron-H and Nemotron 3: each layer is a mixer, an MLP, or experts."""
    words = {"mamba": "mamba2", "attention": "attention", "mlp": "mlp", "moe": "experts"}
    given = config.sequence("layers_block_type", str)
    kinds = [words.get(name) for name in given] or [
        PATTERN.get(letter) for letter in config.text("hybrid_override_pattern")
    ]
    if None in kinds or len(kinds) != parts.num_layers(config):
        allowed = f"{parts.num_layers(config)} layers of {', '.join(words)} (M, *, -, E)"
        raise config.error(config.first("layers_block_type", "hybrid_override_pattern"), allowed)
    fields = {"layer_types": tuple(kinds)} | parts.recurrent(config, "nemotron_h")
    if "experts" in kinds:
        shared = config.integer("n_shared_experts", 1, least=0)
        width = config.integer("moe_intermediate_size")
        wide = config.integer("moe_shared_expert_intermediate_size", shared * width, least=0)
        fields["moe"] = parts.expert_fields(config, "nemotron_h")
        fields["moe"]["shared_expert_ffn_hidden_size"] = wide if shared else 0
    return fields


def _unless_auto(config: ConfigFile, name: str, otherwise: int) -> int:
    """Read a width that the class works out where it is ``"auto"`` or absent."""
    return config.integer(name) if config.has(name) and config.data[name] != "auto" else otherwise


def _mamba2_of(config: ConfigFile) -> dict[str, Any]:
    heads = config.integer("mamba_n_heads", 128, most=MAX_HEADS)
    inner = config.integer("mamba_expand", 2) * config.integer("hidden_size")
    inner = config.optional_integer("mamba_d_ssm") or inner
    width = _unless_auto(config, "mamba_d_head", inner // heads)
    return {"recurrent": {"head_dim": width} | parts.recurrent(config, "of_hybrids")["recurrent"]}


def bamba(config: ConfigFile) -> dict[str, Any]:
    """Bamba: Mamba-2 in all layers but those listed; an MLP in each."""
    attends = set(config.sequence("attn_layer_indices", int))
    mixers = ["attention" if i in attends else "mamba2" for i in range(parts.num_layers(config))]
    return _kinds(mixers, [False] * len(mixers)) | _mamba2_of(config)


def falcon_h1(config: ConfigFile) -> dict[str, Any]:
    """Falcon-H1: attention and Mamba-2 side by side in each layer, and an MLP."""
    state = _mamba2_of(config)["recurrent"]
    state["gated_norm"] = config.flag("mamba_rms_norm", default=False)
    return {"layer_types": ("attention+mamba2_dense",), "recurrent": state}


def granite_hybrid(config: ConfigFile) -> dict[str, Any]:
    """Granite 4: Mamba-2 and attention, with experts and a shared one, or with an MLP."""
    mixers = _listed(config, "mamba2", {"mamba": "mamba2", "attention": "attention"})
    has_experts = config.integer("num_local_experts", 0, least=0) > 0
    moe = parts.granite_shared(config) if has_experts else {}
    width = config.integer("shared_intermediate_size")
    kinds = _kinds(mixers, [has_experts] * len(mixers))
    return kinds | _mamba2_of(config) | moe | {"ffn_hidden_size": width}


def jamba(config: ConfigFile) -> dict[str, Any]:
    """Jamba: Mamba-1, with attention and experts each in every so many layers."""

    def periodic(name: str, period: int, offset: int) -> list[bool]:
        every = config.integer(f"{name}_layer_period", period)
        first = config.integer(f"{name}_layer_offset", offset, least=0)
        return [i % every == first for i in range(parts.num_layers(config))]

    mixers = ["attention" if attends else "mamba1" for attends in periodic("attn", 8, 4)]
    names = ("mamba_expand", "mamba_d_state", "mamba_d_conv", "mamba_dt_rank")
    moe = parts.expert_fields(config, "jamba")
    return _kinds(mixers, periodic("expert", 2, 1)) | _mamba1_of(config, *names) | {"moe": moe}


def _mamba1_of(config: ConfigFile, expand: str, size: str, taps: str, rank: str) -> dict[str, Any]:
    hidden = config.integer("hidden_size")
    inner = config.integer(expand, 2) * hidden
    return {
        "recurrent": {
            # Channels alone count; heads are what tensor parallelism divides.
            "num_heads": inner // math.gcd(inner, 64),
            "head_dim": math.gcd(inner, 64),
            "num_groups": 1,
            "state_size": config.integer(size, 16),
            "conv_kernel": config.integer(taps, 4),
            "dt_rank": _unless_auto(config, rank, -(-hidden // 16)),
        }
    }


def mamba(config: ConfigFile) -> dict[str, Any]:
    """Mamba-1 in every layer, and nothing else."""
    names = ("expand", "state_size", "conv_kernel", "time_step_rank")
    fields = {"layer_types": ("mamba1",)} | _mamba1_of(config, *names)
    state = fields["recurrent"]
    return fields | {"num_attention_heads": state["num_heads"], "kv_channels": state["head_dim"]}


def rwkv7(config: ConfigFile) -> dict[str, Any]:
    """RWKV-7, with flash-linear-attention's ranks where a file states none."""
    hidden, width = config.integer("hidden_size"), config.integer("head_dim", 64)
    ranks = {"decay": 2.5 * width / 64, "a": 2.5 * width / 64, "v": 1.7 * width / 64, "gate": 5.0}
    rank = sum(
        config.optional_integer(f"{name}_low_rank_dim")
        or max(32, 32 * round(share * hidden**0.5 / 32))
        for name, share in ranks.items()
    )
    heads = hidden // width
    state = {"num_heads": heads, "head_dim": width, "num_groups": heads, "state_size": width}
    ratio = config.number("hidden_ratio", 4.0)
    wide = config.optional_integer("intermediate_size") or -(-int(hidden * ratio) // 32) * 32
    return {
        "layer_types": ("rwkv7_dense",),
        "recurrent": state | {"conv_kernel": 0, "dt_rank": rank},
        "num_attention_heads": heads,
        "ffn_hidden_size": wide,
    }


def lfm2(config: ConfigFile) -> dict[str, Any]:
    """LFM2: short convolutions and attention, with experts behind the first layers or none."""
    attends = set(config.sequence("full_attn_idxs", int))
    words = {"conv": "conv", "full_attention": "attention"}
    mixers = ["attention" if i in attends else "conv" for i in range(parts.num_layers(config))]
    mixers = mixers if attends else _listed(config, "conv", words)
    dense, width = len(mixers), config.integer(config.first("block_ff_dim", "intermediate_size"))
    fields: dict[str, Any] = {}
    if config.has("num_experts"):
        dense = config.integer("num_dense_layers", 2, least=0)
        fields["moe"] = parts.expert_fields(config, "lfm2")
    elif config.flag("block_auto_adjust_ff_dim", default=True):
        every = config.integer("block_multiple_of", 256)
        scaled = int(config.number("block_ffn_dim_multiplier", 1.0) * (2 * width // 3))
        width = -(-scaled // every) * every
    heads = config.integer("num_attention_heads", most=MAX_HEADS)
    head = config.integer("hidden_size") // heads
    # A convolution has no state; heads are what tensor parallelism divides.
    sizes = {"num_heads": heads, "head_dim": head, "num_groups": heads, "state_size": head}
    taps = config.integer("conv_L_cache", 3)
    kinds = _kinds(mixers, [i >= dense for i in range(len(mixers))])
    return kinds | fields | {"recurrent": sizes | {"conv_kernel": taps}, "ffn_hidden_size": width}


def minimax(config: ConfigFile) -> dict[str, Any]:
    """MiniMax-01: Lightning Attention and softmax attention, experts in every layer."""
    codes = config.sequence("attn_type_list", int)
    words = {"linear_attention": "linear", "full_attention": "attention"}
    mixers = [("linear", "attention")[code] for code in codes] or _listed(config, "linear", words)
    heads = config.integer("num_attention_heads", most=MAX_HEADS)
    width = config.optional_integer("head_dim") or config.integer("hidden_size") // heads
    state = {
        "num_heads": heads,
        "head_dim": width,
        "num_groups": heads,
        "state_size": width,
        "conv_kernel": 0,
        "chunk_size": config.integer("block_size", 256),
    }
    kinds = _kinds(mixers, [True] * len(mixers))
    return parts.experts(config, "mixtral") | kinds | {"recurrent": state}


def kimi_linear(config: ConfigFile) -> dict[str, Any]:
    """Kimi Linear: Kimi delta attention, and latent attention in the layers listed, from 1."""
    linear = config.child("linear_attn_config", required=True)
    attends = set(linear.sequence("full_attn_layers", int))
    layers = range(1, parts.num_layers(config) + 1)
    mixers = ["attention" if i in attends else "kda" for i in layers]
    dense = config.integer("first_k_dense_replace", 1, least=0)
    state, moe = parts.recurrent(linear, "kimi_linear"), parts.expert_fields(config, "kimi_linear")
    return _kinds(mixers, [i > dense for i in layers]) | state | {"moe": moe}
