"""SimuMax's JSON files: a strategy becomes a job, a model an architecture.

Fields and defaults: simumax/core/config.py of MooreThreads/SimuMax (2026). It takes Megatron-LM for
what runs, so a strategy is a job of ``megatron_lm``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from projector.config.formats.read_job import Derived, ReadJob, Stated, nodes_for
from projector.config.resources import settings_of
from projector.errors import ConfigError

ASSUMED: Final = "world_size of SimuMax"

_TABLE: Final = settings_of("simumax")


def read_strategy(data: Mapping[str, Any], *, path: Path = Path()) -> ReadJob:
    """Read a parsed strategy as a job with the name of its file, without model and device."""
    stated = Stated(data, TOOL)
    stated.put("name", path.stem, origin="the file's name")
    stated.put("training.framework", "megatron_lm", origin="assumed: SimuMax follows Megatron-LM")
    stated.ask_for("model", "model=FILE, a model of SimuMax, or model=NAME")
    stated.take(_TABLE["fields"])
    kind = stated.choice("dtype", _TABLE["dtypes"], "bf16")
    narrow = stated.on("fp8")
    stated.put("training.precision", "fp8" if narrow else kind, "fp8" if narrow else "dtype")
    if narrow:
        stated.warn("fp8 does not say how scales are found: training.fp8_recipe is delayed")
    _recompute(stated)
    dispatcher = stated.word("moe_dispatcher_policy", "all2all")
    if dispatcher not in {"all2all", "all2all-seq"}:
        stated.warn(f"moe_dispatcher_policy {dispatcher} is projected as an all-to-all")
    world = stated.integer("world_size", 8)
    degrees = [stated.integer(each, 1) for each in ("tp_size", "cp_size", "pp_size")]
    dp, rest = divmod(world, degrees[0] * degrees[1] * degrees[2])
    if rest or not dp:
        stated.fail("world_size", "a multiple of tp_size * cp_size * pp_size")
    if stated.has("micro_batch_num"):
        size = stated.integer("micro_batch_size", 1) * stated.integer("micro_batch_num", 1) * dp
        stated.put("training.global_batch_size", size, "micro_batch_num")
    stated.unmodelled(_TABLE)

    def derive(native: dict[str, Any]) -> Derived:
        fields = {} if (native.get("cluster") or {}).get("nodes") else nodes_for(world, native)
        return {field: (value, ASSUMED) for field, value in fields.items()}

    return stated.read_job(_TABLE["harmless"].split(), derive=derive)


def _recompute(stated: Stated) -> None:
    layers = stated.integer("recompute_layer_num", 0, least=0)
    kind = stated.word("recompute_granularity")
    names = ("enable_recompute", "recompute_granularity", "recompute_layer_num")
    if not stated.on("enable_recompute", default=True) or not layers or not kind:
        stated.put("training.recompute", "none", *names)
        return
    if kind == "full_block":
        block = {"granularity": "full", "method": "block", "num_layers": layers}
        stated.put("training.recompute", block, *names)
        return
    partial = _TABLE["partial"]
    modules = set(partial.get(kind, ()))
    if kind == "selective_recompute":
        modules = set(stated.words("megatron_recompute_modules"))
        if not stated.on("megatron_recompute"):
            chosen = [parts for name, parts in _TABLE["switches"].items() if stated.on(name)]
            modules = {part for parts in chosen for part in parts}
    elif kind not in partial:
        stated.fail("recompute_granularity", "a granularity of SimuMax", ["full_block", *partial])
    stated.warn(
        f"{kind} of the first {layers} layers of a stage is projected for all layers: "
        f"{', '.join(sorted(modules)) or 'nothing'}"
    )
    selective = {"granularity": "selective", "modules": sorted(modules)}
    stated.put("training.recompute", selective if modules else "none", *names)


# Models: fields and defaults as in the same file.

TOOL: Final = "SimuMax"


def read_model(data: Mapping[str, Any], *, key: str = "model") -> dict[str, Any]:
    """Read a model: no biases, RMSNorm, rotary positions and untied embeddings."""
    stated = Stated(data, TOOL)
    for name in ("hidden_size", "head_num", "layer_num", "vocab_size"):
        if not stated.has(name):
            msg = f"{key}: {name} is missing from the model of SimuMax"
            raise ConfigError(msg, key=f"{key}.{name}", allowed="an integer")
    layers, experts = stated.integer("layer_num", 1), stated.integer("expert_num", 1)
    width = stated.integer("intermediate_size", stated.integer("moe_ffn_hidden_size", 1))
    stated.job |= {"source": "SimuMax model", "make_vocab_size_divisible_by": 128}
    stated.put("ffn_hidden_size", width)
    stated.take(_TABLE["model"])
    if stated.word("attention_type") == "mla":
        stated.take(_TABLE["latent"])
    else:
        stated.put("num_query_groups", stated.integer("kv_head_num", stated.integer("head_num", 1)))
        stated.take(_TABLE["heads"])
    if experts > 1:
        dense = min(layers, stated.integer("dense_layers", 0, least=0))
        stated.put("moe.num_experts", experts)
        stated.put("moe.ffn_hidden_size", stated.integer("moe_ffn_hidden_size", width))
        stated.put("moe.layer_freq", [0] * dense + [1] * (layers - dense))
        stated.take(_TABLE["experts"])
    return stated.job
