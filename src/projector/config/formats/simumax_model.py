"""SimuMax's JSON files of models: one becomes an architecture.

Fields and defaults: simumax/core/config.py of MooreThreads/SimuMax (2026).
"""

from collections.abc import Mapping
from typing import Any, Final

from projector.config.formats.stated import Stated
from projector.errors import ConfigError

TOOL: Final = "SimuMax"

_LATENT: Final = ("kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")


def is_model(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a model of SimuMax."""
    return {"layer_num", "head_num", "hidden_size"} <= data.keys()


def read_model(data: Mapping[str, Any], *, key: str = "model") -> dict[str, Any]:
    """Read a model: no biases, RMSNorm, rotary positions and untied embeddings."""
    stated = Stated(data, TOOL)
    for name in ("hidden_size", "head_num", "layer_num", "vocab_size"):
        if not stated.has(name):
            msg = f"{key}: {name} is missing from the model of SimuMax"
            raise ConfigError(msg, key=f"{key}.{name}", allowed="an integer")
    layers, experts = stated.integer("layer_num", 1), stated.integer("expert_num", 1)
    width = stated.integer("intermediate_size", stated.integer("moe_ffn_hidden_size", 1))
    model: dict[str, Any] = {
        "name": stated.word("model_name", "custom"),
        "source": "SimuMax model",
        "num_layers": layers,
        "hidden_size": stated.integer("hidden_size", 1),
        "num_attention_heads": stated.integer("head_num", 1),
        "vocab_size": stated.integer("vocab_size", 1),
        "make_vocab_size_divisible_by": 128,
        "ffn_hidden_size": width,
        "activation": "swiglu" if stated.on("use_swiglu", default=True) else "gelu",
    }
    if stated.word("attention_type") == "mla":
        model["mla"] = {
            "q_lora_rank": stated.integer("q_lora_rank", 0, least=0),
            **{field: stated.integer(field, 1) for field in _LATENT},
        }
    else:
        model["num_query_groups"] = stated.integer("kv_head_num", model["num_attention_heads"])
        if stated.has("head_size"):
            model["kv_channels"] = stated.integer("head_size", 1)
    if experts > 1:
        dense = min(layers, stated.integer("dense_layers", 0, least=0))
        model["moe"] = {
            "num_experts": experts,
            "router_topk": stated.integer("topk", 1),
            "ffn_hidden_size": stated.integer("moe_ffn_hidden_size", width),
            "shared_expert_ffn_hidden_size": stated.integer(
                "moe_shared_expert_intermediate_size", 0, least=0
            ),
            "layer_freq": [0] * dense + [1] * (layers - dense),
        }
    return model
