"""The settings that are taken over, by Megatron's name in code."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from projector.config.formats.read_job import Derived
from projector.config.formats.values import (
    Converter,
    flag,
    integer,
    layer_pattern,
    number,
    one_of,
    word,
)
from projector.errors import ConfigError, UnsupportedError


class Field(NamedTuple):
    """One setting that is one field here."""

    name: str
    """Megatron's name."""
    section: str
    """Dotted mapping of a native job that has the field."""
    convert: Converter
    native: str = ""
    """Native name of the field, where it is another one."""
    default: Any = None
    """Megatron's default, where it can differ from this package's."""

    @property
    def target(self) -> str:
        """Dotted field of a native job."""
        return f"{self.section}.{self.native or self.name}"


def _same(names: str) -> dict[str, str]:
    return {name: name for name in names.split()}


def _one_of(spellings: Mapping[Any, str]) -> Converter:
    """Return a converter from the names that Megatron has for each native value."""
    return one_of({name: value for value, names in spellings.items() for name in names.split()})


FIELDS = (
    Field("num_layers", "model", integer),
    Field("hidden_size", "model", integer),
    Field("ffn_hidden_size", "model", integer),
    Field("num_attention_heads", "model", integer),
    Field("kv_channels", "model", integer),
    Field("max_position_embeddings", "model", integer),
    Field("activation_func_clamp_value", "model", number, "activation_clamp"),
    Field("normalization", "model", _one_of(_same("rmsnorm layernorm")), default="LayerNorm"),
    Field("mtp_num_layers", "model", integer),
    Field("tensor_model_parallel_size", "parallelism", integer, "tp"),
    Field("pipeline_model_parallel_size", "parallelism", integer, "pp"),
    Field("context_parallel_size", "parallelism", integer, "cp"),
    Field("expert_model_parallel_size", "parallelism", integer, "ep"),
    Field("expert_tensor_parallel_size", "parallelism", integer, "etp"),
    Field("sequence_parallel", "parallelism", flag, default=False),
    Field("decoder_first_pipeline_num_layers", "parallelism", integer),
    Field("decoder_last_pipeline_num_layers", "parallelism", integer),
    Field("account_for_embedding_in_pipeline_split", "parallelism", flag),
    Field("account_for_loss_in_pipeline_split", "parallelism", flag),
    Field("ddp_bucket_size", "parallelism", integer),
    Field("num_distributed_optimizer_instances", "parallelism", integer),
    Field("microbatch_group_size_per_vp_stage", "parallelism", integer),
    Field("overlap_grad_reduce", "parallelism", flag, default=False),
    Field("overlap_param_gather", "parallelism", flag, default=False),
    Field("tp_comm_overlap", "parallelism", flag),
    Field("overlap_moe_expert_parallel_comm", "parallelism", flag),
    Field("moe_shared_expert_overlap", "parallelism", flag),
    Field("torch_fsdp2_reshard_after_forward", "parallelism", flag, "fsdp_reshard_after_forward"),
    Field("micro_batch_size", "training", integer),
    Field("global_batch_size", "training", integer),
    Field("seq_length", "training", integer),
    Field("fp8_param_gather", "training", flag),
    Field("gradient_accumulation_fusion", "training", flag),
    Field("cross_entropy_loss_fusion", "training", flag, "cross_entropy_fusion", default=False),
    Field("moe_permute_fusion", "training.moe", flag, "permute_fusion", default=False),
    Field("use_transformer_engine_op_fuser", "training.moe", flag, "fused_experts"),
    Field("moe_expert_capacity_factor", "training.moe", number, "capacity_factor"),
    Field("nnodes", "cluster", integer, "nodes"),
    Field("nproc_per_node", "cluster", integer, "gpus_per_node"),
)
"""Settings of any job; they are read in this order."""

EXPERT_FIELDS = (
    Field("num_experts", "model.moe", integer),
    Field("moe_router_topk", "model.moe", integer, "router_topk", default=2),
    Field("moe_ffn_hidden_size", "model.moe", integer, "ffn_hidden_size"),
    Field(
        "moe_shared_expert_intermediate_size", "model.moe", integer, "shared_expert_ffn_hidden_size"
    ),
    Field("moe_shared_expert_gate", "model.moe", flag, "shared_expert_gate"),
    Field("moe_layer_freq", "model.moe", layer_pattern, "layer_freq", default=1),
    Field("moe_router_num_groups", "model.moe", integer, "num_groups"),
    Field("moe_router_group_topk", "model.moe", integer, "group_topk"),
    Field("num_shared_experts", "model.moe", integer),
)
"""Settings of a mixture of experts."""

LATENT_FIELDS = (
    Field("q_lora_rank", "model.mla", integer),
    Field("kv_lora_rank", "model.mla", integer, default=32),
    Field("qk_head_dim", "model.mla", integer, default=128),
    Field("qk_pos_emb_head_dim", "model.mla", integer, default=64),
    Field("v_head_dim", "model.mla", integer, default=128),
)
"""Settings of multi-head latent attention."""

NONE_MEANS: dict[str, Any] = {
    "kv_channels": None,
    "mtp_num_layers": 0,
    "activation_func_clamp_value": 0.0,
    "moe_shared_expert_intermediate_size": 0,
    "moe_router_num_groups": 0,
    "moe_router_group_topk": 0,
}
"""What Megatron's own None, stated over a base architecture, means in the native field."""

MOMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
"""Number formats of an optimizer's moments."""

CHOICES = {
    "attention_backend": _one_of(_same("auto flash fused") | {"unfused": "unfused local"}),
    "cp_comm_type": _one_of(
        {"p2p": "p2p ring", "all_gather": "all_gather allgather", "a2a": "a2a a2a+p2p"}
    ),
    "data_parallel_sharding_strategy": _one_of(
        {0: "no_shard", 1: "optim", 2: "optim_grads", 3: "optim_grads_params"}
    ),
    "exp_avg_dtype": _one_of(_same(" ".join(MOMENT_BYTES))),
    "exp_avg_sq_dtype": _one_of(_same(" ".join(MOMENT_BYTES))),
    "fp8": _one_of(_same("hybrid e4m3")),
    "fp4_recipe": _one_of(_same("nvfp4 mxfp4")),
    "fp8_recipe": _one_of(_same("delayed tensorwise rowwise blockwise mxfp8")),
    "moe_flex_dispatcher_backend": _one_of(_same("deepep hybridep")),
    "moe_token_dispatcher_type": _one_of(
        {"alltoall": "alltoall alltoall_seq", "allgather": "allgather", "deepep": "flex"}
    ),
    "optimizer": _one_of(
        {"adam": "adam adamw", "sgd": "sgd", "muon": "muon dist_muon adaptive_muon"}
    ),
    "position_embedding_type": _one_of(
        {"rope": "rope mrope yarn", "learned": "learned_absolute relative"} | _same("alibi none")
    ),
    "pp_algorithm": _one_of(
        {
            "1f1b": "1f1b",
            "interleaved": "1f1b_interleaved",
            "gpipe": "gpipe",
            "zerobubble": "zero_bubble zerobubble",
            "seaailab": "zero_bubble_heuristic zerobubble_heuristic",
            "zbv-formatted": "zbv_formatted",
            "zbv-greedy-half": "zbv_greedy zbv_greedy_half v_half",
            "zbv-greedy-min": "v_min zbv_greedy_min",
            "seaailab-ilp": "seaailab_ilp",
        }
    ),
    "recompute_granularity": _one_of(_same("none selective full")),
    "recompute_method": _one_of(_same("uniform block")),
    "zero_bubble_v_schedule_mem_setup": _one_of(
        {"zbv-greedy-half": "half", "zbv-greedy-min": "min", "zbv-greedy-zb": "zb"}
    ),
}
"""What the names mean that a setting can take; rules read these settings with others."""

_OTHERS_TEXT = """
vocab_size padded_vocab_size make_vocab_size_divisible_by untie_embeddings_and_output_weights
swiglu quick_geglu squared_relu add_bias_linear add_qkv_bias group_query_attention
num_query_groups use_rotary_position_embeddings add_position_embedding enable_gpt_oss
qk_layernorm window_size window_attn_skip_freq softmax_type multi_latent_attention
use_sink_attention sink_sliding_window sink_window_even_layers_only
num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank
virtual_pipeline_model_parallel_size pipeline_model_parallel_layout
use_distributed_optimizer use_torch_fsdp2 use_megatron_fsdp
bf16 fp16 fp4 mxfp4_backward_precision first_last_layers_bf16 num_layers_at_start_in_bf16
num_layers_at_end_in_bf16 accumulate_allreduce_grads_in_fp32 grad_reduce_in_bf16
activations_checkpoint_method checkpoint_activations
main_grads_dtype main_params_dtype megatron_fsdp_main_grads_dtype megatron_fsdp_grad_comm_dtype
use_precision_aware_optimizer recompute_activations
recompute_num_layers recompute_modules recompute_layer_ids moe_layer_recompute
optimizer_cpu_offload optimizer_offload_fraction moe_enable_deepep
moe_deepep_num_sms moe_hybridep_num_sms turbo_deepep_num_cu
moe_pad_expert_input_to_capacity moe_router_force_load_balancing
moe_grouped_gemm use_turbo_deepep turbo_sync_free_moe_stage enable_primus_turbo
no_fp8_weight_transpose_cache enable_cuda_graph external_cuda_graph cuda_graph_impl
cuda_graph_scope use_flash_attn transformer_impl masked_softmax_fusion patch_zero_bubble
enable_zero_bubble zero_bubble_v_schedule enable_optimizer_post_validation
zero_bubble_max_pending_backward overlap_p2p_comm patch_primus_pipeline spec
use_tp_pp_dp_mapping
"""

_PLAIN = (*FIELDS, *EXPERT_FIELDS, *LATENT_FIELDS)
OPEN = {field.name: field.target for field in _PLAIN if field.convert is not flag} | {
    "cp_comm_type": "parallelism.cp_comm_type",
    "data_parallel_sharding_strategy": "parallelism.zero_stage",
    "fp8": "training.precision",
    "moe_token_dispatcher_type": "training.moe.dispatcher",
    "optimizer": "training.optimizer.name",
    "pipeline_model_parallel_layout": "parallelism.pipeline_model_parallel_layout",
    "position_embedding_type": "model.position_embedding",
    "recompute_granularity": "training.recompute.granularity",
    "recompute_method": "training.recompute.method",
    "recompute_num_layers": "training.recompute.num_layers",
    "vocab_size": "model.vocab_size",
    "padded_vocab_size": "model.vocab_size",
    "num_query_groups": "model.num_query_groups",
    "num_layers_per_virtual_pipeline_stage": "parallelism.vpp",
    "virtual_pipeline_model_parallel_size": "parallelism.vpp",
    "num_virtual_stages_per_pipeline_rank": "parallelism.vpp",
}
"""Settings that the user can give in the place of a file: setting -> dotted field. A switch has no
value: what follows it are further arguments."""

REQUIRED = {
    "num_layers": "model",
    "hidden_size": "model",
    "num_attention_heads": "model",
    "micro_batch_size": "training",
    "seq_length": "training",
}
"""Settings that a file must state or the user give: setting -> section of a native job."""

TAKEN_OVER = {field.name for field in _PLAIN} | CHOICES.keys() | set(_OTHERS_TEXT.split())
"""Every setting that a field or a rule reads."""

ALIASES = {
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_num_layers": "recompute_num_layers",
    "decoder_num_layers": "num_layers",
    "encoder_seq_length": "seq_length",
    "tensor_parallel_size": "tensor_model_parallel_size",
    "pipeline_parallel_size": "pipeline_model_parallel_size",
    "export_qk_l2_norm": "qk_l2_norm",
    "fp8_format": "fp8",
    "fp4_format": "fp4",
    "num_moe_experts": "num_experts",
    "use_custom_fsdp": "use_megatron_fsdp",
    "overlap_p2p_communication": "overlap_p2p_comm",
    "rope_fusion": "apply_rope_fusion",
    "use_turbo_grouped_mlp": "use_turbo_grouped_gemm",
    "microbatch_group_size_per_virtual_pipeline_stage": "microbatch_group_size_per_vp_stage",
}
"""Other names of the same setting."""

MEGATRON_DEFAULTS: dict[str, Any] = {
    **{field.name: field.default for field in _PLAIN if field.default is not None},
    "position_embedding_type": "learned_absolute",
    "add_bias_linear": True,
    "make_vocab_size_divisible_by": 128,
    "softmax_type": "vanilla",
    "moe_token_dispatcher_type": "allgather",
    "moe_grouped_gemm": False,
    "fp8_recipe": "delayed",
    "fp4_recipe": "nvfp4",
    "optimizer": "adam",
    "optimizer_offload_fraction": 1.0,
    "exp_avg_dtype": "fp32",
    "exp_avg_sq_dtype": "fp32",
    "main_params_dtype": "fp32",
    "recompute_granularity": "none",
    "data_parallel_sharding_strategy": "no_shard",
    "cuda_graph_impl": "none",
    "attention_backend": "auto",
    "transformer_impl": "transformer_engine",
    "zero_bubble_v_schedule_mem_setup": "half",
}
"""Megatron-LM's defaults where they can differ from this package's; other switches are off."""


# The settings of one job, and the native job that rules make of them.


@dataclass(frozen=True)
class Dialect:
    """How one tool writes Megatron's settings."""

    spell: Callable[[str], str]
    """Megatron's name -> how the user writes it."""
    defaults: Mapping[str, Any]
    """What holds where nothing is stated."""
    origin: str
    """How a value from ``defaults`` is marked."""
    label: str
    """What a setting is called in messages."""


class Settings:
    """The settings of one job, read by Megatron's name, and what has been made of them."""

    def __init__(
        self,
        stated: Mapping[str, Any],
        dialect: Dialect,
        base: Mapping[str, Any] | None,
        sources: Mapping[str, str],
    ) -> None:
        self.dialect = dialect
        self.base = base
        """A native architecture that settings override; without it they describe all of it."""
        self.job: dict[str, Any] = {}
        """Native job mapping."""
        self.warnings: list[str] = []
        """What is projected otherwise than stated."""
        self.origins: dict[str, str] = {}
        """Dotted field -> where its value came from, if not from the file."""
        self.ignored: list[str] = []
        """Settings that cannot change a projection, as they are written."""
        self.missing: dict[str, ConfigError] = {}
        """Dotted field that is left open -> the error where nobody else gives it."""
        self.derived: list[Callable[[dict[str, Any]], Derived]] = []
        """Fields that follow from others; each is called with the native job behind overrides."""
        self.stated: dict[str, Any] = {}
        """What the user's file states; None means Megatron's own None."""
        self._sources = sources
        for given, value in stated.items():
            name = ALIASES.get(given, given)
            if self.stated.get(name) is None:
                self.stated[name] = value

    def spell(self, name: str) -> str:
        """Return a setting as the user writes it."""
        return self.dialect.spell(name)

    def get(self, name: str) -> Any:
        """Return what a setting is, stated or by default."""
        value = self.stated.get(name)
        return self.dialect.defaults.get(name) if value is None else value

    def has(self, name: str) -> bool:
        """Whether a setting is stated and not None."""
        return self.stated.get(name) is not None

    def named(self, name: str) -> bool:
        """Whether a setting is stated, be it with a value that is left open."""
        return self.has(name) or OPEN.get(name) in self.missing

    def on(self, name: str) -> bool:
        """Whether a switch is on."""
        value = self.get(name)
        return value is not None and flag(self.spell(name), value)

    def read(self, name: str, convert: Converter) -> Any:
        """Return a setting as ``convert`` reads it."""
        return convert(self.spell(name), self.get(name))

    def integer(self, name: str, default: int = 0) -> int:
        """Return a whole number."""
        value = self.get(name)
        return default if value is None else integer(self.spell(name), value)

    def word(self, name: str) -> str:
        """Return a name, ``""`` where there is none."""
        value = self.get(name)
        return "" if value is None else word(self.spell(name), value)

    def choice(self, name: str) -> Any:
        """Return what the name means that a setting of `CHOICES` is set to; an error shows text."""
        return CHOICES[name](self.spell(name), self.word(name))

    def put(self, target: str, value: Any, *names: str) -> None:
        """Set a dotted field, unless it is left open; mark where it comes from.

        A field that one of ``names`` in the user's file states has no mark.
        """
        if target in self.missing:
            return
        node = self.job
        *path, last = target.split(".")
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
        given = [self._sources[name] for name in names if name in self._sources]
        if given:
            self.origins[target] = given[0]
        elif not any(self.has(name) for name in names):
            self.origins[target] = self.dialect.origin

    def put_none(self, target: str, value: Any) -> None:
        """Set a dotted field to what Megatron's own None, stated by the user, means."""
        self.put(target, value)
        self.origins.pop(target, None)

    def warn(self, name: str, text: str) -> None:
        """Add a warning, once: a setting as it is written, and ``text``."""
        self.warn_that(f"{self.spell(name)}{text}")

    def warn_that(self, text: str) -> None:
        """Add a warning, once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def fail(self, name: str, text: str, *, allowed: Any = None, value: Any = None) -> NoReturn:
        """Raise `ConfigError`: a setting as it is written, and ``text``."""
        msg = f"{self.spell(name)}{text}"
        raise ConfigError(msg, key=self.spell(name), value=value, allowed=allowed)

    def leave_open(self, target: str, name: str, text: str, *, allowed: Any = None) -> None:
        """Leave a dotted field to the user: a setting as it is written, and ``text``."""
        spelt = self.spell(name)
        msg = f"{spelt}{text}; or give {target}=..."
        self.missing.setdefault(target, ConfigError(msg, key=spelt, allowed=allowed))

    def derive(self, job: dict[str, Any]) -> Derived:
        """Return all fields that follow from others."""
        return {field: value for each in self.derived for field, value in each(job).items()}

    def refuse(self, name: str, text: str, *, allowed: Any = None, value: Any = None) -> NoReturn:
        """Raise `UnsupportedError`: a setting as it is written, and ``text``."""
        msg = f"{self.spell(name)}{text}"
        raise UnsupportedError(msg, key=self.spell(name), value=value, allowed=allowed)

    def applies(self, *names: str) -> bool:
        """Whether a model setting applies: always without a base, else only when stated."""
        return self.base is None or any(self.has(name) for name in names)

    def overrides(self, *names: str) -> bool:
        """Whether a setting is stated, maybe as None, over a base architecture."""
        return self.base is not None and any(name in self.stated for name in names)

    def base_section(self, name: str) -> Any:
        """Return a mapping of the base architecture, None if it has none."""
        return (self.base or {}).get(name)

    def native(self, section: str) -> dict[str, Any]:
        """Return what has been set of a section of the job."""
        fields: dict[str, Any] = self.job.get(section, {})
        return fields

    def num_layers(self) -> int:
        """Return the layers of the model, 0 where nothing says how many."""
        if self.has("num_layers"):
            return self.integer("num_layers")
        return int(self.base["num_layers"]) if self.base else 0

    def latent(self) -> bool:
        """Whether attention is multi-head latent attention."""
        if self.has("multi_latent_attention") or self.base is None:
            return self.on("multi_latent_attention")
        return self.base.get("mla") is not None


def section_of(job: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of a native job, an empty one where it is missing or a name."""
    section = job.get(name)
    return section if isinstance(section, Mapping) else {}
