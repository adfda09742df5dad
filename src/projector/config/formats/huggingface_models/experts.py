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


def _gpt_oss_topk(config: ConfigFile) -> int:
    # The first public files say experts_per_token beside num_experts_per_tok.
    config.has("experts_per_token")
    stated = config.has("num_experts_per_tok")
    return config.integer("num_experts_per_tok" if stated else "experts_per_token")


def _num_experts(config: ConfigFile) -> int:
    # Some files of the same models follow Mixtral's spelling.
    return config.integer(config.first("num_experts", "num_local_experts"))


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
    "num_experts": _num_experts,
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
OLMOE: Final = _experts(_every_layer, **_QWEN | {"ffn_hidden_size": integer("intermediate_size")})
_SHARED_WIDTH: Final = integer("shared_intermediate_size", 0, least=0)


def granite_shared(config: ConfigFile) -> dict[str, Any]:
    """Granite: experts as Mixtral's, and one expert that every token visits."""
    width = _SHARED_WIDTH(config)
    fields: dict[str, Any] = MIXTRAL(config)["moe"]
    shared = {"shared_expert_ffn_hidden_size": width, "num_shared_experts": 1} if width else {}
    return {"moe": fields | shared}


def minimax(config: ConfigFile) -> dict[str, Any]:
    """MiniMax: experts as Mixtral's, whose router has a learned bias for each."""
    biased = config.flag("use_routing_bias", default=True)
    return {"moe": MIXTRAL(config)["moe"] | {"router_bias": biased}}


def dbrx(config: ConfigFile) -> dict[str, Any]:
    """DBRX: experts have a mapping of their own."""
    experts = config.child("ffn_config", required=True)
    width = experts.integer("ffn_hidden_size")
    return {
        "ffn_hidden_size": width,
        **_mixture(
            [True] * config.integer("n_layers", most=MAX_LAYERS),
            num_experts=experts.integer("moe_num_experts"),
            router_topk=experts.integer("moe_top_k"),
            ffn_hidden_size=width,
        ),
    }


def ernie(config: ConfigFile) -> dict[str, Any]:
    """Ernie: routed and shared experts of one width."""
    return _mixture(
        _ernie(config),
        num_experts=config.integer("moe_num_experts"),
        router_topk=config.integer("moe_k"),
        **_of_one_width(config, "moe_num_shared_experts"),
    )


def _of_one_width(config: ConfigFile, shared_key: str) -> dict[str, Any]:
    """Return what routed and shared experts of one width have, behind a router with a bias."""
    width = config.integer("moe_intermediate_size")
    shared = config.integer(shared_key, 0, least=0)
    return {
        "ffn_hidden_size": width,
        "shared_expert_ffn_hidden_size": shared * width,
        "num_shared_experts": shared,
        "router_bias": True,
    }


LLAMA4: Final = _experts(
    _interleaved,
    ffn_hidden_size=integer("intermediate_size"),
    num_experts=integer("num_local_experts"),
    router_topk=integer("num_experts_per_tok", 1),
    shared_expert_ffn_hidden_size=integer("intermediate_size"),
    num_shared_experts=1,
)


def exaone(config: ConfigFile) -> dict[str, Any]:
    """K-EXAONE: as DeepSeek, in Qwen's words."""
    return _mixture(
        _behind_dense(config),
        num_experts=config.integer("num_experts"),
        router_topk=config.integer("num_experts_per_tok"),
        **_of_one_width(config, "num_shared_experts"),
    )


def deepseek(topk_method: str, *, dense: Any = REQUIRED) -> Reader:
    """Read DeepSeek and GLM; ``noaux_tc`` routing has a learned bias for each expert.

    ``dense`` is the default of the dense layers that come first.
    """

    def part(config: ConfigFile) -> dict[str, Any]:
        if config.optional_integer("n_routed_experts", REQUIRED) is None:
            return {}
        layers = _behind_dense(config, dense)
        width = config.integer("moe_intermediate_size")
        shared = config.optional_integer("n_shared_experts", REQUIRED) or 0
        groups = config.optional_integer("n_group") or 1
        limits = {"num_groups": groups}
        if groups > 1:
            limits["group_topk"] = config.integer("topk_group")
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
