"""The settings that are taken over or not, by Megatron's name in code."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from projector.config.formats.read_job import Derived, Unsupported
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
    """One setting, by the name that Megatron gives it, that is one field here."""

    name: str
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
    Field("rotary_base", "model", number),
    Field("rotary_percent", "model", number),
    Field("norm_epsilon", "model", number),
    Field("apply_layernorm_1p", "model", flag, "zero_centered_norms"),
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
    Field(
        "moe_router_score_function",
        "model.moe",
        one_of({"softmax": "softmax", "sigmoid": "sigmoid"}),
        "router_score_function",
    ),
    Field("moe_router_pre_softmax", "model.moe", flag, "router_pre_softmax"),
    Field("moe_router_topk_scaling_factor", "model.moe", number, "router_scaling_factor"),
)
LATENT_FIELDS = (
    Field("q_lora_rank", "model.mla", integer),
    Field("kv_lora_rank", "model.mla", integer, default=32),
    Field("qk_head_dim", "model.mla", integer, default=128),
    Field("qk_pos_emb_head_dim", "model.mla", integer, default=64),
    Field("v_head_dim", "model.mla", integer, default=128),
)
NONE_MEANS: dict[str, Any] = {
    "kv_channels": None,
    "mtp_num_layers": 0,
    "activation_func_clamp_value": 0.0,
    "moe_shared_expert_intermediate_size": 0,
    "moe_router_num_groups": 0,
    "moe_router_group_topk": 0,
    "moe_router_topk_scaling_factor": None,
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
use_tp_pp_dp_mapping moe_router_enable_expert_bias use_rope_scaling rope_scaling_factor
rotary_scaling_factor original_max_position_embeddings yarn_original_max_position_embeddings
mscale mscale_all_dim rotary_seq_len_interpolation_factor no_rope_freq
yarn_beta_fast yarn_beta_slow yarn_correction_range_round_to_int
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
    "layernorm_epsilon": "norm_epsilon",
    "layernorm_zero_centered_gamma": "apply_layernorm_1p",
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


# Settings that are not taken over: the warning about each, if any.

_WHERE_ON = {
    "activation offload is set by training.activation_offload_fraction": (
        "cpu_offload cpu_offloading cpu_offloading_num_layers "
        "fine_grained_activation_offloading offload_chunk_num"
    ),
    "the output layer's weight gradient is not deferred": "defer_embedding_wgrad_compute",
    "weight gradients are computed with the input gradients": "delay_wgrad_compute",
    "saved activations are not divided over TP again": "distribute_saved_activations",
    "this schedule is not available": "enable_1f1b_v",
    "the loss is projected on logits that are written out": "enable_fused_linear_ce",
    "parameters and gradients are projected to travel in collectives": "enable_odc",
    "every sequence is projected as one document": (
        "enable_packed_sequences packing use_packed_attention"
    ),
    "attention is projected in 16 bits": (
        "enable_turbo_attention_float8 fp8_dot_product_attention fp8_multi_head_attention"
    ),
    "the residual stream is projected in 16 bits": "fp32_residual_connection",
    "gathered weights are projected in buffers that are taken anew": "fsdp_double_buffer",
    "only the training step is projected, without rollouts": (
        "grpo_prompts_per_step perform_rl_step"
    ),
    "FSDP is projected without it": "keep_fp8_transpose_cache",
    "RoPE is projected on every layer": "mla_use_nope",
    "use expert_tensor_parallel_size": "moe_extended_tp",
    "the router is projected as separate kernels": (
        "moe_router_fusion moe_use_fused_router_with_aux_score"
    ),
    "batches of experts are projected without padding": (
        "moe_router_padding_for_fp8 moe_router_padding_for_quantization use_turbo_permute_padding"
    ),
    "the router is projected with one gate": "moe_split_feature_routing",
    "training from the first step is projected": "moe_upcycling_granularity",
    "experts are projected with the current grouped GEMM": "moe_use_legacy_grouped_gemm",
    "registered buffers are not modelled": "nccl_ub use_nccl_ub",
    "norms are projected as one kernel": "no_persist_layer_norm",
    "optimizer offload is projected without overlap": "overlap_cpu_optimizer_d2h_h2d",
    "pipeline transfers follow the schedule": "overlap_p2p_comm_warmup_flush",
    "the gather starts after the optimizer step": "overlap_param_gather_with_optimizer_step",
    "use overlap_moe_expert_parallel_comm": "patch_moe_overlap",
    "the parameter-free norm of queries and keys is not projected": "qk_l2_norm",
    "use pipeline_model_parallel_layout": "standalone_embedding_stage",
    "experts are projected with separate grouped GEMMs": "turbo_fused_grouped_gemm",
    "the checkpoint's arguments are not read": "use_checkpoint_args",
    "experts are projected with grouped GEMMs": "use_rocmoe use_turbo_mega_moe",
    "the network does not reduce": "use_sharp",
    "the norm's kernel is the device's usual one": "use_turbo_rms_norm",
}
"""What is done -> settings, where a switch is on or a number is not 0."""

_WHERE_OFF = {
    "apply_rope_fusion": "RoPE is projected as one kernel",
    "async_tensor_model_parallel_allreduce": "input gradients are projected as Megatron's default",
    "bias_dropout_fusion": "bias and dropout are projected as fused",
    "bias_gelu_fusion": "the activation is projected as fused",
    "bias_swiglu_fusion": "the activation is projected as fused",
    "fp8_wgrad": "weight gradients are projected in FP8",
}
"""What is done where a switch is off."""

_WHERE_STATED = {
    "activation_func": "use swiglu, quick_geglu or squared_relu",
    "ddp_num_buckets": "use ddp_bucket_size",
    "decoder_pipeline_manual_split_list": "use pipeline_model_parallel_layout",
    "hierarchical_context_parallel_sizes": "context parallelism is projected on one level",
    "pipeline_model_parallel_split_rank": "encoders are not modelled",
    "rampup_batch_size": "the final global batch is projected",
    "step_batch_size_schedule": "the final global batch is projected",
    "te_precision_config_file": "all linear layers are projected in one precision",
    "yaml_cfg": "the settings inside it are not read",
}
"""What is done with any value."""

UNMODELLED: dict[str, tuple[tuple[Any, ...], str]] = {
    name: (without_effect, note)
    for without_effect, table in (
        ((False, 0), {name: note for note, names in _WHERE_ON.items() for name in names.split()}),
        ((True, 1), _WHERE_OFF),
        ((1, "1"), {"num_seq_splits": "a sequence is not divided within the pipeline"}),
        (
            ("auto", "fp32"),
            {"megatron_fsdp_main_params_dtype": "master weights are projected in FP32"},
        ),
        ((), _WHERE_STATED),
    )
    for name, note in table.items()
}
"""Settings that change the result and are not modelled: values without effect, what is done."""


_ORDINARY = "softmax attention in every layer: MHA, GQA or MLA"
_RESIDUALS = "one residual stream, added to layer by layer"
_EXPERTS = "experts as wide as the model"
_DECODERS = "decoder-only models"
_UNSUPPORTED_GROUPS = (
    ("hybrid Mamba models are", "attention and MLP layers",
     ("is_hybrid_model hybrid_override_pattern hybrid_layer_pattern hybrid_attention_ratio "
      "hybrid_mlp_ratio mamba_state_dim mamba_head_dim mamba_num_groups mamba_num_heads")),
    ("encoders are", _DECODERS,
     ("encoder_num_layers encoder_tensor_model_parallel_size "
      "encoder_pipeline_model_parallel_size vision_pretraining")),
    ("vision-language models are", _DECODERS, "language_model_type vision_model_type"),
    ("models of this provider are", "Megatron's GPT models", "model_provider"),
    ("evaluations of a task are", "training", "task"),
    ("retrieval models are", _DECODERS, "retro_add_retriever"),
    ("models of convolution and attention layers are", _ORDINARY, "lfm_layer_types"),
    ("models whose layers all differ are", "layers of two kinds: dense and with experts",
     "heterogeneous_layers_config_path heterogeneous_layers_config_encoded_json"),
    ("linear attention is", _ORDINARY, "linear_attention_type linear_attention_freq"),
    ("compressed sparse attention is", _ORDINARY, "hybrid_attention_enabled compress_ratios"),
    ("sparse attention with an indexer is", _ORDINARY, "index_topk"),
    ("this variant of attention is", _ORDINARY, "experimental_attention_variant"),
    ("a low-rank output projection of attention is", "one output projection",
     "o_lora_rank o_groups"),
    ("a gate on the output of attention is", "attention without gates",
     "attention_output_gate mla_use_output_gate use_gated_attention"),
    ("hyper-connections are", _RESIDUALS, "hc_mult enable_hyper_connections"),
    ("residuals across blocks of layers are", _RESIDUALS, "attn_res_block_size"),
    ("memories of n-grams are", "one embedding of each token", "use_engram"),
    ("experts in a latent space are", _EXPERTS, "routed_expert_hidden_size moe_latent_size"),
    ("routing by a hash of the token is", "a router in every layer with experts",
     "num_hash_layers moe_n_hash_layers"),
    ("adapters by settings of their own are", "training.adapter, or lora of a Primus file",
     "lora_rank lora_r lora_dim lora_alpha lora_dropout lora_target_modules use_lora enable_lora"),
    ("models of this type are", "Megatron's GPT models", "model_type"),
)  # fmt: skip
_NOTHING_CHANGES = {
    "hc_mult": (1,),
    "o_groups": (1,),
    "model_type": ("gpt",),
    "model_provider": ("gpt",),
}
UNSUPPORTED = {
    name: Unsupported(what, instead, _NOTHING_CHANGES.get(name, ()))
    for what, instead, names in _UNSUPPORTED_GROUPS
    for name in names.split()
}
"""Settings without which the model would be another one, in the order in which they are told."""

_IGNORED_TEXT = """
activation_situ_beta activation_situ_linear_beta align_grad_reduce align_param_gather
allow_padding_num_layers apply_query_key_layer_scaling
apply_residual_connection_post_layernorm async_save attention_dropout attention_softmax_in_fp32
attn_logit_softcapping attn_sink attn_sliding_window auto_continue_train barrier_with_L1_time
batch_size calculate_per_token_loss check_for_large_grads check_for_nan_in_loss
check_for_nan_in_loss_and_grad check_for_spiky_loss clip_grad clone_scatter_output_in_embedding
compress_rope_theta conv_bias conv_L_cache create_attention_mask_in_dataloader
cross_entropy_fusion_impl cuda_graph_warmup_steps dataloader_type ddp_average_in_collective DDP_impl
ddp_pad_buckets_for_high_nccl_busbw decoder_seq_length decoupled_lr decoupled_min_lr
decrease_batch_size_if_needed delay_grad_reduce deprecated_use_mcore_models deterministic_mode
disable_bf16_reduced_precision_matmul disable_compile_dependencies disable_delayed_scaling_patches
disable_last_saving disable_mlflow disable_primus_topk_router
distrib_optim_fully_reshardable_mem_efficient distributed_backend dump_pp_data
empty_unused_memory_level enable_exactly_numeric_match enable_experimental enable_ft_package
enable_gloo_process_groups enable_odc_lb_mini enable_one_logger enable_zb_runtime end_weight_decay
eod_mask_loss error_injection_rate error_injection_type exit_duration_in_mins exit_interval
exit_on_missing_checkpoint exit_signal_handler export_force_local_attention
export_moe_apply_probs_on_input export_te_mcore_model file_sink_level final_logit_softcapping
finetune fp8_amax_compute_algo fp8_amax_history_len fp8_interval fp8_margin fsdp_manual_registration
full_validation glu_linear_offset gradient_reduce_div_fusion hf_path hidden_dropout
high_priority_stream_groups hysteresis inference_rng_tracker init_model_with_meta_device
initial_loss_scale iterations_to_skip latent_moe_use_norm lazy_mpu_init lb_mini_cost_model
legacy_tokenizer local_rank loss_scale loss_scale_window manual_gc manual_gc_eval manual_gc_interval
mask_prob merge_file min_loss_scale mmap_bin_files mock_data modelopt_enabled
moe_apply_probs_on_input moe_aux_loss_coeff moe_input_jitter_eps moe_per_layer_logging
moe_router_bias_update_rate moe_router_dtype moe_router_load_balancing_type moe_token_drop_policy
moe_token_dropping moe_use_upcycling moe_z_loss_coeff mtp_layer_type mtp_loss_scaling_factor
multiple_validation_sets multiprocessing_context num_dataset_builder_threads num_residual_streams
num_workers nvtx_ranges one_logger_async onnx_safe openai_gelu override_opt_param_scheduler
per_split_data_args_path perform_initialization pin_cpu_grads pin_cpu_params pp_warmup
pre_communication_optimization quick_gelu rampup_samples record_shapes rerun_mode
reset_attention_mask reset_position_ids result_rejected_tracker_filename router_logit_softcapping
sample_rate save_retain_interval scatter_gather_tensors_in_pipeline seed sft sgd_momentum
short_seq_prob sink_level skip_train split stage start_weight_decay stderr_sink_level
suggested_communication_unit_size swiglu_limit te_rng_tracker test_mode tiktoken_pattern
train_sync_interval trainable trust_remote_code turbo_grouped_gemm_without_padding
use_checkpoint_opt_param_scheduler use_cpu_initialization use_deprecated_20241209_moe_layer
use_fused_weighted_squared_relu use_kimi_k3_attention_backend use_legacy_models use_mcore_models
use_mp_args_from_checkpoint_args use_nsys_profiler use_persistent_ckpt_worker use_pytorch_profiler
use_ring_exchange_p2p use_rocm_mem_info use_rocm_mem_info_iters use_te_activation_func
use_tokenizer_model_from_checkpoint_args use_torch_optimizer_for_cpu_offload use_turbo_attention
use_turbo_autotune use_turbo_fused_act_with_probs use_turbo_gemm use_turbo_grouped_gemm
use_turbo_parallel_linear v4_grouped_experts_support_clamped_swiglu v4_indexer_distill_loss_coeff
vocab_extra_ids vocab_file weight_decay weight_decay_incr_style xavier_uniform
"""
IGNORED = frozenset(_IGNORED_TEXT.split())
"""Settings that cannot change memory or speed, that only choose a kernel library, or that size a
part of a model which `UNSUPPORTED` refuses where it is on."""

_PREFIX_TEXT = """
adam_ adlr_ app_tag_ auto_detect_ckpt bert_ ckpt_ config_logger csa_ data_ dataset_ decode_only_
dino_ disable_profiler disable_straggler disable_tensorboard disable_wandb dist_ckpt
distributed_timeout dsa_ enable_msc engram_ error_injection eval_ export_kd_ export_quant_
finetune_ grpo_ hc_ ict_ index_ inference_ init_method inprocess_ kda_ langrl_ linear_conv_
linear_key_ linear_num_ linear_value_ load log_ logging_ lr master_addr master_port max_restarts
memory_snapshot mhc_ min_lr mlflow_ monitor_interval msc muon_ mxfp4_ nccl_communicator no_load_
no_save_ node_rank non_persistent_ odc_ one_logger_ pretrained_checkpoint profile
pytorch_profiler_ quantile_balancing_ rdzv_ record_memory rerun_ retro_ rl_ rope_ rotary_ save
sft_ straggler_ swin_ tensorboard_ test_data tiktoken_ timing_ tokenizer_ torch_profiler tp_comm_
train_data train_iters train_samples turbo_deepep turbo_gemm_backend turbo_grouped_gemm_backend
use_dist_ckpt use_v4_ valid_data wandb_ warmup zero_bubble_adaptive zero_bubble_pipeline_timers
"""
IGNORED_PREFIXES = tuple(_PREFIX_TEXT.split())
"""Beginnings of names of further settings without consequence."""


def is_harmless(name: str) -> bool:
    """Whether a setting can change nothing; names in capitals are environment variables."""
    return name in IGNORED or name.startswith(IGNORED_PREFIXES) or name.isupper()
