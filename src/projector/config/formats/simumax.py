"""SimuMax's JSON files: a strategy becomes a job, a model an architecture.

Fields and defaults: simumax/core/config.py of MooreThreads/SimuMax (2026). It takes Megatron-LM for
what runs, so a strategy is a job of ``megatron_lm``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from projector.config.formats.read_job import Derived, ReadJob, Stated, nodes_for
from projector.config.formats.values import Converter, flag, integer, word
from projector.config.resources import settings_of
from projector.errors import ConfigError

ASSUMED: Final = "world_size of SimuMax"

_TABLE: Final = settings_of("simumax")

_READERS: Final[Mapping[str, Converter]] = {"integer": integer, "flag": flag, "word": word}

_CP_TYPES: Final = {"a2a": "a2a", "p2p": "p2p", "all_gather": "all_gather"}

_DTYPES: Final = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}


def read_strategy(data: Mapping[str, Any], *, path: Path = Path()) -> ReadJob:
    """Read a parsed strategy as a job with the name of its file, without model and device."""
    stated = Stated(data, TOOL)
    stated.put("name", path.stem, origin="the file's name")
    stated.put("training.framework", "megatron_lm", origin="assumed: SimuMax follows Megatron-LM")
    stated.ask_for("model", "model=FILE, a model of SimuMax, or model=NAME")
    for setting, row in _TABLE["fields"].items():
        value = stated.get(setting, _READERS[row["reads"]], row.get("default"))
        if value is not None:
            stated.put(row["field"], value, setting)
    name = "cp_comm_type"
    stated.put("parallelism.cp_comm_type", stated.choice(name, _CP_TYPES, "a2a"), name)
    stated.put(
        "training.schedule",
        stated.choice("pp_schedule", _TABLE["schedules"], "1f1b"),
        "pp_schedule",
    )
    kind = stated.choice("dtype", _DTYPES, "bf16")
    narrow = stated.on("fp8")
    stated.put("training.precision", "fp8" if narrow else kind, "fp8" if narrow else "dtype")
    if narrow:
        stated.warn("fp8 does not say how scales are found: training.fp8_recipe is delayed")
    wide = stated.on("use_fp32_accum_grad", default=True)
    stated.put("training.gradient_dtype", "fp32" if wide else "bf16", "use_fp32_accum_grad")
    if stated.on("grad_reduce_in_bf16"):
        stated.put("training.grad_reduce_dtype", "bf16", "grad_reduce_in_bf16")
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

_LATENT: Final = ("kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")


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
