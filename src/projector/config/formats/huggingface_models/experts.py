"""Which layers of an architecture are mixtures of experts, and their dimensions."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from projector.config.formats.huggingface_models.config_file import (
    MAX_LAYERS,
    REQUIRED,
    ConfigFile,
    Reader,
    integer,
    read_fields,
)


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


def _experts(layers: Callable[[ConfigFile], Iterable[bool]], **fields: Any) -> Reader:
    """Read which layers are mixtures of experts, then the fields of `MoEConfig`."""
    return lambda config: _mixture(layers(config), **read_fields(fields, config))


def num_layers(config: ConfigFile) -> int:
    """Return the layers of the model."""
    return config.integer("num_hidden_layers", most=MAX_LAYERS)


def _every_layer(config: ConfigFile) -> list[bool]:
    return [True] * num_layers(config)


def _sparse_step(config: ConfigFile) -> list[bool]:
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


def _behind_dense(config: ConfigFile) -> list[bool]:
    """DeepSeek: every so many layers behind some dense ones."""
    step = config.integer("moe_layer_freq", 1)
    dense = config.integer("first_k_dense_replace", least=0)
    return [layer >= dense and layer % step == 0 for layer in range(num_layers(config))]


def _gpt_oss_topk(config: ConfigFile) -> int:
    # The first public files say experts_per_token beside num_experts_per_tok.
    stated = config.has("num_experts_per_tok")
    return config.integer("num_experts_per_tok" if stated else "experts_per_token")


MIXTRAL: Final = _experts(
    _every_layer,
    num_experts=integer("num_local_experts", 8),
    router_topk=integer("num_experts_per_tok", 2),
    ffn_hidden_size=integer("intermediate_size"),
)
GPT_OSS: Final = _experts(
    _every_layer,
    num_experts=integer("num_local_experts"),
    router_topk=_gpt_oss_topk,
    ffn_hidden_size=integer("intermediate_size"),
    router_bias=True,
)
_QWEN: Final = {
    "num_experts": integer("num_experts"),
    "router_topk": integer("num_experts_per_tok"),
    "ffn_hidden_size": integer("moe_intermediate_size"),
}
QWEN3: Final = _experts(_sparse_step, **_QWEN)
QWEN2: Final = _experts(
    _sparse_step,
    **_QWEN,
    shared_expert_ffn_hidden_size=integer("shared_expert_intermediate_size"),
    num_shared_experts=1,
    shared_expert_gate=True,
)
LLAMA4: Final = _experts(
    _interleaved,
    ffn_hidden_size=integer("intermediate_size"),
    num_experts=integer("num_local_experts"),
    router_topk=integer("num_experts_per_tok", 1),
    shared_expert_ffn_hidden_size=integer("intermediate_size"),
    num_shared_experts=1,
)


def deepseek(topk_method: str) -> Reader:
    """Read DeepSeek and GLM; ``noaux_tc`` routing has a learned bias for each expert."""

    def part(config: ConfigFile) -> dict[str, Any]:
        if config.optional_integer("n_routed_experts", REQUIRED) is None:
            return {}
        layers = _behind_dense(config)
        width = config.integer("moe_intermediate_size")
        shared = config.optional_integer("n_shared_experts", REQUIRED) or 0
        groups = config.optional_integer("n_group") or 1
        limits = {"num_groups": groups, "group_topk": config.integer("topk_group")}
        return _mixture(
            layers,
            num_experts=config.integer("n_routed_experts"),
            router_topk=config.integer("num_experts_per_tok"),
            ffn_hidden_size=width,
            shared_expert_ffn_hidden_size=shared * width,
            num_shared_experts=shared,
            router_bias=config.text("topk_method", topk_method) == "noaux_tc",
            **(limits if groups > 1 else {}),
        )

    return part
