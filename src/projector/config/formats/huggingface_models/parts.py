"""What several keys of a ``config.json`` decide together: windows, latent attention, one family."""

from collections.abc import Callable
from typing import Any, Final

from projector.config.formats.huggingface_models.config_file import REQUIRED, ConfigFile
from projector.config.formats.huggingface_models.experts import num_layers

Part = Callable[[ConfigFile], dict[str, Any]]
"""Returns native fields; what it leaves out has the native default."""

_PARALLEL: Final = "attention and MLP side by side in one block; they are projected in sequence"


def _windows(width: int | None, layers: int) -> dict[str, Any]:
    if not width or not layers:
        return {}
    return {"sliding_window": width, "sliding_window_layers": layers}


def every_layer_windowed(default: int | None) -> Part:
    """Mistral: one width for all layers."""

    def part(config: ConfigFile) -> dict[str, Any]:
        width = config.optional_integer("sliding_window", default)
        return _windows(width, num_layers(config))

    return part


def last_layers_windowed(config: ConfigFile) -> dict[str, Any]:
    """Qwen: layers from ``max_window_layers`` on, and only when it is switched on."""
    if not config.flag("use_sliding_window", default=False):
        return {}
    full = config.integer("max_window_layers", least=0)
    return _windows(config.optional_integer("sliding_window"), max(num_layers(config) - full, 0))


def one_full_layer_in(period: int, width: int) -> Part:
    """Every ``period``-th layer sees all keys, the others ``width``, unless listed."""

    def part(config: ConfigFile) -> dict[str, Any]:
        stride = config.integer("sliding_window_pattern", period)
        layers = num_layers(config)
        kinds = config.sequence("layer_types", str)
        windowed = kinds.count("sliding_attention") if kinds else layers - layers // stride
        return _windows(config.optional_integer("sliding_window", width), windowed)

    return part


def chunked_attention(config: ConfigFile) -> dict[str, Any]:
    """Llama 4: chunks are not modelled."""
    chunk = config.optional_integer("attention_chunk_size", 8192)
    if chunk:
        config.warn(f"attention within chunks of {chunk} tokens; every layer sees all keys")
    return {}


def latent_attention(config: ConfigFile) -> dict[str, Any]:
    """DeepSeek: the ranks and widths of multi-head latent attention."""
    if config.flag("attention_bias", default=False):
        raise config.unsupported(
            name="attention_bias", why="latent attention with biases is not modelled"
        )
    fields = {
        "q_lora_rank": config.optional_integer("q_lora_rank", REQUIRED) or 0,
        "kv_lora_rank": config.integer("kv_lora_rank"),
        "qk_head_dim": config.integer("qk_nope_head_dim"),
        "qk_pos_emb_head_dim": config.integer("qk_rope_head_dim"),
        "v_head_dim": config.integer("v_head_dim"),
    }
    return {"mla": fields}


def token_prediction(config: ConfigFile) -> dict[str, Any]:
    """DeepSeek: modules of multi-token prediction are left out."""
    modules = config.integer("num_nextn_predict_layers", 0, least=0)
    if modules:
        config.warnings.append(
            f"left out: {modules} multi-token-prediction module(s) of the checkpoint; "
            f"model.mtp_num_layers={modules} trains them"
        )
    return {}


def logit_softcap(config: ConfigFile) -> dict[str, Any]:
    """Gemma: the soft cap is not modelled."""
    if config.data.get("attn_logit_softcapping"):
        config.warn("the soft cap of the attention logits (attn_logit_softcapping)")
    return {}


def parallel_block(name: str, *, default: bool) -> Part:
    """GPT-NeoX: a flag puts attention and MLP side by side."""

    def part(config: ConfigFile) -> dict[str, Any]:
        if config.flag(name, default):
            config.warn(_PARALLEL)
        return {}

    return part


def always_parallel(config: ConfigFile) -> dict[str, Any]:
    """Cohere: attention and MLP are side by side."""
    config.warn(_PARALLEL)
    return {}


def gpt2_mlp(config: ConfigFile) -> dict[str, Any]:
    """GPT-2: the inner width follows from the hidden one."""
    inner = config.optional_integer("n_inner") or 4 * config.integer("n_embd")
    return {"ffn_hidden_size": inner}


def opt(config: ConfigFile) -> dict[str, Any]:
    """OPT: norms before the blocks, and one flag for all biases."""
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


def falcon(config: ConfigFile) -> dict[str, Any]:
    """Falcon: key/value heads and norms of its three architectures."""
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
