"""SimuMax's JSON files: a strategy becomes a job, a model an architecture.

Fields and defaults: simumax/core/config.py of MooreThreads/SimuMax (2026). It takes Megatron-LM for
what runs, so a strategy is a job of ``megatron_lm``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from projector.config.formats.read_job import Derived, ReadJob, Stated, nodes_for
from projector.config.formats.values import Converter, flag, integer, word
from projector.errors import ConfigError

ASSUMED: Final = "world_size of SimuMax"

FIELDS: Final[tuple[tuple[str, str, Converter, Any], ...]] = (
    ("seq_len", "training.seq_length", integer, None),
    ("micro_batch_size", "training.micro_batch_size", integer, None),
    ("tp_size", "parallelism.tp", integer, 1),
    ("cp_size", "parallelism.cp", integer, 1),
    ("pp_size", "parallelism.pp", integer, 1),
    ("ep_size", "parallelism.ep", integer, 1),
    ("etp_size", "parallelism.etp", integer, 1),
    ("interleaving_size", "parallelism.vpp", integer, 1),
    ("zero_state", "parallelism.zero_stage", integer, 1),
    ("enable_sequence_parallel", "parallelism.sequence_parallel", flag, True),
    ("overlap_grad_reduce", "parallelism.overlap_grad_reduce", flag, True),
    ("order_of_paralielism", "parallelism.rank_order", word, None),
    ("num_layers_in_first_pipeline_stage", "parallelism.decoder_first_pipeline_num_layers",
     integer, None),
    ("num_layers_in_last_pipeline_stage", "parallelism.decoder_last_pipeline_num_layers",
     integer, None),
    ("account_for_embedding_in_pipeline_split",
     "parallelism.account_for_embedding_in_pipeline_split", flag, None),
    ("account_for_loss_in_pipeline_split", "parallelism.account_for_loss_in_pipeline_split", flag,
     None),
    ("microbatch_group_size_per_vp_stage", "parallelism.microbatch_group_size_per_vp_stage",
     integer, None),
    ("use_fused_grad_accumulation", "training.gradient_accumulation_fusion", flag, True),
    ("use_flash_sdp", "training.flash_attention", flag, True),
    ("cross_entropy_loss_fusion", "training.cross_entropy_fusion", flag, False),
)  # fmt: skip
"""Field of a strategy, our field, how it is read, and SimuMax's default where ours may differ."""

_SCHEDULES: Final = {
    "1f1b": "auto",
    "gpipe": "gpipe",
    "interleaved_1f1b": "interleaved",
    "zb_h1": "zerobubble",
    "zb_h2": "zerobubble-h2",
    "zb_v": "zbv-formatted",
}

_CP_TYPES: Final = {"a2a": "a2a", "p2p": "p2p", "all_gather": "all_gather"}

_DTYPES: Final = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}

_PARTIAL: Final[Mapping[str, tuple[str, ...]]] = {
    "attn_only": ("core_attn", "mla_up_proj"),
    "mlp_only": ("mlp", "moe"),
    "sdp_only": ("core_attn",),
}
"""Granularity -> modules that are recomputed."""

_SWITCHES: Final[Mapping[str, tuple[str, ...]]] = {
    "attn_recompute": ("core_attn", "mla_up_proj"),
    "mla_rms_recompute": ("layernorm",),
    "mlp_rms_recompute": ("layernorm",),
    "mlp_recompute": ("mlp", "moe"),
}
"""Switch of selective recomputation -> modules."""

_OFF: Final[tuple[Any, ...]] = (False, None, 0, 0.0)

_UNMODELLED: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = {
    "offload_groupgemm_col_inputs": (_OFF, "inputs of experts stay on the device"),
    "use_math_sdp": (_OFF, "attention is one kernel unless use_flash_sdp is off"),
    "fsdp_mode": (_OFF, "zero_state says what is divided"),
}

HARMLESS: Final = frozenset(
    {
        "tp_net", "cp_net", "pp_net", "dp_net", "ep_net", "etp_net", "edp_net", "mem_factor",
        "enable_dropout", "no_sync", "attention_sparse_ratio", "skip_ckpt_micro_batch_num",
        "use_fused_norm", "use_fused_swiglu", "use_accm_weight", "recompute_variance",
        "dispatch_probs", "te_", "enable_straggler_model", "cache_groupgemm_col_fp8_inputs",
        "pp_comm_async", "cp_a2a_mode", "recompute_layer_num", "recompute_granularity",
        "megatron_recompute", "megatron_recompute_modules", "efficiency_overrides.",
        "world_size", "collective_skew", "fused_mem_mode", "layout_transform_overhead_us",
        "attn_recompute", "mla_rms_recompute", "mlp_recompute", "mlp_rms_recompute",
    }
)  # fmt: skip
"""Fields that cannot change a projection, or that are read where another one says so."""


def read_strategy(data: Mapping[str, Any], *, path: Path = Path()) -> ReadJob:
    """Read a parsed strategy as a job with the name of its file, without model and device."""
    stated = Stated(data, TOOL)
    stated.put("name", path.stem, origin="the file's name")
    stated.put("training.framework", "megatron_lm", origin="assumed: SimuMax follows Megatron-LM")
    stated.ask_for("model", "model=FILE, a model of SimuMax, or model=NAME")
    for setting, target, convert, default in FIELDS:
        value = stated.get(setting, convert, default)
        if value is not None:
            stated.put(target, value, setting)
    name = "cp_comm_type"
    stated.put("parallelism.cp_comm_type", stated.choice(name, _CP_TYPES, "a2a"), name)
    stated.put("training.schedule", stated.choice("pp_schedule", _SCHEDULES, "1f1b"), "pp_schedule")
    _precision(stated)
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
    stated.unmodelled(_UNMODELLED)

    def derive(native: dict[str, Any]) -> Derived:
        given = (native.get("cluster") or {}).get("nodes")
        fields = {} if given else nodes_for(world, native)
        return {field: (value, ASSUMED) for field, value in fields.items()}

    return stated.read_job(HARMLESS, derive=derive)


def _precision(stated: Stated) -> None:
    """Set the types of GEMMs and gradients."""
    kind = stated.choice("dtype", _DTYPES, "bf16")
    narrow = stated.on("fp8")
    stated.put("training.precision", "fp8" if narrow else kind, "fp8" if narrow else "dtype")
    if narrow:
        stated.warn("fp8 does not say how scales are found: training.fp8_recipe is delayed")
    wide = stated.on("use_fp32_accum_grad", default=True)
    stated.put("training.gradient_dtype", "fp32" if wide else "bf16", "use_fp32_accum_grad")
    if stated.on("grad_reduce_in_bf16"):
        stated.put("training.grad_reduce_dtype", "bf16", "grad_reduce_in_bf16")


def _recompute(stated: Stated) -> None:
    """Set what the first layers of a stage compute again."""
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
    modules = set(_PARTIAL.get(kind, ()))
    if kind == "selective_recompute":
        modules = set(stated.words("megatron_recompute_modules"))
        if not stated.on("megatron_recompute"):
            chosen = [parts for name, parts in _SWITCHES.items() if stated.on(name)]
            modules = {part for parts in chosen for part in parts}
    elif kind not in _PARTIAL:
        stated.fail("recompute_granularity", "a granularity of SimuMax", ["full_block", *_PARTIAL])
    stated.warn(
        f"{kind} of the first {layers} layers of a stage is projected for all layers: "
        f"{', '.join(sorted(modules)) or 'nothing'}"
    )
    selective = {"granularity": "selective", "modules": sorted(modules)}
    stated.put("training.recompute", selective if modules else "none", *names)


# Models: fields and defaults as in the same file.

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
