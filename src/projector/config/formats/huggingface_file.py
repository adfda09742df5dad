"""Typed access to the keys of a ``config.json``, which names the key in every error."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, NamedTuple

from projector.config.formats.megatron_settings.fields import UNSUPPORTED as _OF_MEGATRON
from projector.config.formats.read_job import Unsupported
from projector.config.formats.values import is_off
from projector.errors import ConfigError, UnsupportedError, shown

MAX_LAYERS: Final = 10_000
"""Layers we expand patterns for; `ModelConfig` has the same bound."""

MAX_HEADS: Final = 10_000
"""Query heads of one layer; `ModelConfig` lists the divisors when key/value heads do not fit."""

MAX_EXTENT: Final = 10**12
"""Largest number that a dimension of a model may have."""

REQUIRED: Final[Any] = object()
"""Default of a key that has to be there."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """One mapping of a ``config.json``."""

    data: Mapping[str, Any]
    path: str
    """Dotted position of the mapping, put before every key in an error."""
    warnings: list[str] = field(default_factory=list)
    """Sentences on what is not modelled; nested mappings add to the same list."""
    used: set[str] = field(default_factory=set)
    """Keys that were asked for."""

    @classmethod
    def of(cls, data: Any, path: str, warnings: list[str] | None = None) -> "ConfigFile":
        """Return the access to ``data``, or raise `ConfigError` if it is not a mapping."""
        if not isinstance(data, Mapping):
            msg = f"{path}: a Hugging Face config is a mapping, not {type(data).__name__}"
            raise ConfigError(msg, key=path, value=data, allowed="the contents of a config.json")
        return cls(data, path, [] if warnings is None else warnings)

    def has(self, name: str) -> bool:
        """Whether the key is there and not null."""
        self.used.add(name)
        return self.data.get(name) is not None

    def warn(self, what: str) -> None:
        """Note what would change the projection and is not modelled."""
        self.warnings.append(f"not modelled: {what}")

    def integer(
        self, name: str, default: Any = REQUIRED, *, least: int = 1, most: int = MAX_EXTENT
    ) -> int:
        """Return a whole number from ``least`` to ``most``; null is an error."""
        value = self._value(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(name, "a whole number")
        if not least <= value <= most:
            raise self.error(name, f"between {least} and {most}")
        return value

    def optional_integer(self, name: str, default: Any = None) -> int | None:
        """Return a whole number, or none where the key is null."""
        self.used.add(name)
        if name in self.data and self.data[name] is None:
            return None
        if name not in self.data and default is None:
            return None
        return self.integer(name, default, least=0)

    def number(self, name: str, default: Any = REQUIRED) -> float:
        """Return a number from 0 on; null is an error."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < inf:
            raise self.error(name, "a number, at least 0")
        return float(value)

    def flag(self, name: str, default: Any = REQUIRED) -> bool:
        """Return true or false; null is an error."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def text(self, name: str, default: Any = REQUIRED) -> str:
        """Return a string; null is an error."""
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self.error(name, "a string")
        return value

    def sequence(self, name: str, kind: type) -> list[Any]:
        """Return a list whose items are all of one type; absent or null means empty."""
        self.used.add(name)
        value = self.data.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or any(type(item) is not kind for item in value):
            raise self.error(name, f"a list of {kind.__name__}")
        return value

    def first(self, *names: str) -> str:
        """Return the first of some spellings of a key that is there, else the first of all."""
        return next((name for name in names if self.has(name)), names[0])

    def child(self, name: str, *, required: bool = False) -> "ConfigFile":
        """Return a nested mapping; an absent one is empty."""
        value = self._value(name, REQUIRED if required else {})
        return ConfigFile.of(value, self.key(name), self.warnings)

    def key(self, name: str) -> str:
        """Return the dotted position of a key."""
        return f"{self.path}.{name}" if self.path else name

    def error(self, name: str, allowed: str) -> ConfigError:
        """Return the error of a value that is not ``allowed``."""
        value = self.data.get(name)
        msg = f"{self.key(name)} should be {allowed} (got {value!r:.60})"
        return ConfigError(msg, key=self.key(name), value=value, allowed=allowed)

    def unsupported(self, name: str, why: str, allowed: Any = None) -> UnsupportedError:
        """Return the error of a value that cannot be described."""
        value = self.data.get(name)
        msg = f"{self.key(name)} = {value!r:.60}: {why}"
        return UnsupportedError(msg, key=self.key(name), value=value, allowed=allowed)

    def refuse_unless(self, name: str, why: str, *, usual: bool) -> None:
        """Refuse a flag that is not as it is where it is absent."""
        if self.flag(name, usual) is not usual:
            raise self.unsupported(name=name, why=why, allowed=usual)

    def _value(self, name: str, default: Any) -> Any:
        self.used.add(name)
        value = self.data.get(name, default)
        if value is REQUIRED:
            msg = f"{self.key(name)} is missing from the Hugging Face config"
            raise ConfigError(msg, key=self.key(name), allowed="a value, there is no default")
        return value


Reader = Callable[[ConfigFile], Any]
"""Reads one value, which has its own key."""

Fields = dict[str, Any]
"""Native field -> its `Reader`, or the value that the architecture fixes."""


def integer(
    name: str, default: Any = REQUIRED, *, least: int = 1, most: int = MAX_EXTENT
) -> Reader:
    """Read a whole number."""
    return lambda config: config.integer(name, default, least=least, most=most)


def optional(name: str, default: Any = None) -> Reader:
    """Read a whole number or null."""
    return lambda config: config.optional_integer(name, default)


def number(name: str, default: Any = REQUIRED) -> Reader:
    """Read a number."""
    return lambda config: config.number(name, default)


def switch(name: str, *, default: bool, on: Any = True, off: Any = False) -> Reader:
    """Read a flag that selects one of two values."""
    return lambda config: on if config.flag(name, default) else off


def activation(name: str, meanings: Mapping[str, str], default: str) -> Reader:
    """Read the name of an activation."""

    def read(config: ConfigFile) -> str:
        given = config.text(name, default)
        if given not in meanings:
            why = f"this activation is not modelled; known: {', '.join(meanings)}"
            raise config.unsupported(name=name, why=why, allowed=list(meanings))
        return meanings[given]

    return read


def read_fields(fields: Fields, config: ConfigFile) -> dict[str, Any]:
    """Return the value of every field, read in the order of the table."""
    return {name: value(config) if callable(value) else value for name, value in fields.items()}


# Keys that no row of `FAMILIES` reads: other models, or no difference.

_ORDINARY: Final = "softmax attention in every layer: MHA, GQA or MLA"
_ALIKE: Final = "layers of two kinds: dense and with experts"
_GROUPS: Final = (
    ("state-space layers are", _ORDINARY,
     ("mamba_d_state mamba_d_conv mamba_expand mamba_d_ssm mamba_n_heads mamba_n_groups "
      "mamba_num_heads mamba_headdim mamba_ngroups mamba_dt_rank ssm_state_size ssm_cfg "
      "attn_layer_period attn_layer_indices attn_layer_offset layers_block_type "
      "hybrid_layer_ids num_mem_blocks use_mem_rope")),
    ("linear attention is", _ORDINARY,
     ("linear_attn_config linear_conv_kernel_dim linear_key_head_dim linear_value_head_dim "
      "linear_num_key_heads linear_num_value_heads linear_num_heads linear_head_dim "
      "full_attention_interval linear_attention_interval lightning_attention_layers "
      "layer_group_size lru_width kda_layers")),
    ("convolution layers are", _ORDINARY, "conv_L_cache full_attn_idxs conv_dim block_types"),
    ("sparse attention is", _ORDINARY,
     ("index_n_heads index_head_dim index_block_size index_topk_blocks indexer_types "
      "sparse_attention_config sparse_config compress_rates compress_rope_theta "
      "blocksparse_block_size moba_chunk_size nsa_block_size")),
    ("differential attention is", _ORDINARY, "lambda_std_dev"),
    ("attention with factorised queries is", _ORDINARY, "share_q_dim attention_dim"),
    ("cross-attention is", "decoder-only models",
     "cross_attention_layers add_cross_attention cross_attention_hidden_size is_encoder_decoder"),
    ("keys and values shared between layers are", "keys and values of each layer",
     "num_kv_shared_layers use_cla kv_share_layers"),
    ("layers that differ in their heads are", _ALIKE,
     ("num_attention_heads_per_layer num_key_value_heads_per_layer global_head_dim "
      "num_global_key_value_heads swa_num_attention_heads swa_num_key_value_heads swa_head_dim "
      "hybrid_layer_pattern attention_other_setting per_layer_config num_query_heads_per_layer")),
    ("layers that all differ are", _ALIKE, "block_configs layer_configs ffn_multipliers"),
    ("several residual streams are", "one residual stream, added to layer by layer",
     "altup_num_inputs laurel_rank hidden_size_per_layer_input hc_sinkhorn_iters"),
    ("experts that compute nothing are", "routed and shared experts",
     "zero_expert_num zero_expert_type copy_expert_num"),
    ("dense MLPs beside experts are", "dense layers, and layers with experts",
     "parallel_attn_mlp_res enable_moe_block moe_dense_residual residual_moe"),
    ("routing by a hash of the token is", "a router in every layer with experts",
     "hash_layers moe_hash_layers"),
    ("n-gram embeddings are", "one embedding of tokens",
     "ngram_vocab_size_ratio emb_neighbor_num oe_vocab_sizes vocab_size_per_layer_input"),
    ("layers that run several times are", "every layer once", "total_ut_steps num_loops loop_num"),
)  # fmt: skip
UNSUPPORTED: Final[Mapping[str, Unsupported]] = {
    name: entry for name, entry in _OF_MEGATRON.items() if name != "model_type"
} | {
    name: Unsupported(what, instead)
    for what, instead, names in _GROUPS
    for name in names.split()
}  # fmt: skip
"""Keys that make another model, in the order in which they are told."""


class Group(NamedTuple):
    """Keys that some model types read and that make another model of any other type."""

    field: str
    """Native field that the keys give; where a model type fixes it, the keys say nothing new."""
    entry: Unsupported
    keys: tuple[str, ...]


_BY_FIELD: Final = (
    ("moe", "mixtures of experts are", "the types that have them, such as mixtral and qwen3_moe",
     "num_experts num_local_experts n_routed_experts moe_num_experts"),
    ("mla", "latent attention is", "the types that have it, such as deepseek_v3", "kv_lora_rank"),
    ("norms_per_layer", "a parallel block is", "the types that have it, such as gpt_neox",
     "use_parallel_residual parallel_attn"),
    ("position_embedding", "ALiBi is", "the types that have it: falcon and mpt",
     "alibi use_alibi"),
    ("qk_norm", "a norm of queries and keys is", "the types that have it, such as qwen3",
     "qk_layernorm use_qk_norm qk_norm"),
    ("attention_bias", "a bias of attention is", "the types that have it, such as llama",
     "attention_bias use_qkv_bias qkv_bias add_qkv_bias attention_out_bias use_bias"),
    ("mlp_bias", "a bias of the MLP is", "the types that have it, such as llama", "mlp_bias"),
)  # fmt: skip
OF_OTHER_FAMILIES: Final = tuple(
    Group(field, Unsupported(what, instead), tuple(keys.split()))
    for field, what, instead, keys in _BY_FIELD
)

_HARMLESS_TEXT: Final = """
architectures auto_map transformers_version torch_dtype dtype use_cache return_dict problem_type
id2label label2id task_specific_params gradient_checkpointing chunk_size_feed_forward bos_token_id
eos_token_id pad_token_id unk_token_id sep_token_id cls_token_id mask_token_id
decoder_start_token_id forced_bos_token_id forced_eos_token_id bos_token eos_token pad_token
eod_token_id im_start_id im_end_id pad_id mask_init_id add_bos_token add_eos_token image_token_id
image_token_index image_break_token_id image_start_token_id image_end_token_id video_token_id
video_start_token_id video_end_token_id vision_start_token_id vision_end_token_id vision_token_id
audio_token_id boi_token_index eoi_token_index boi_token_id eoi_token_id mm_tokens_per_image
vision_config audio_config model_max_length tokenizer_class name_or_path rms_norm_eps
layer_norm_eps layer_norm_epsilon norm_eps norm_epsilon layernorm_epsilon layernorm_eps ln_eps
logit_scale scale_emb scale_depth dim_model_base initializer_range initializer_factor init_std
init_device init_config embd_pdrop attn_pdrop resid_pdrop emb_pdrop attention_dropout
attention_dropout_prob hidden_dropout hidden_dropout_prob residual_dropout embedding_dropout
dropout activation_dropout classifier_dropout summary_activation summary_first_dropout
summary_proj_to_labels summary_type summary_use_proj layerdrop scale_attn_weights
scale_attn_by_inverse_layer_idx reorder_and_upcast_attn attention_softmax_in_fp32
scale_attention_softmax_in_fp32 apply_query_key_layer_scaling rope_theta rope_scaling
rope_parameters rope_interleave rope_interleaved rope_ratio rope_local_base_freq rope_type
rope_dim partial_rotary_factor rotary_dim rotary_pct rotary_emb_base rotary_percentage rotary
original_max_position_embeddings position_embedding_type mrope_section no_rope_layers
no_rope_layer_interval nope_layer_interval attn_scale attn_temperature_tuning floor_scale
initial_context_length n_ctx pretraining_tp tp_size ep_size ep use_flash_attention use_flash_attn
flash_attention attn_implementation output_attentions output_hidden_states output_router_logits
is_decoder router_aux_loss_coef router_jitter_noise router_z_loss_coef input_jitter_noise
aux_loss_alpha aux_loss_free seq_aux norm_topk_prob scoring_func routed_scaling_factor route_scale
topk_method n_group topk_group moe_router_enable_expert_bias moe_router_use_sigmoid moe_norm_min
mtp_loss_weight aux_loss_weight router_scaling_factor embedding_multiplier attention_multiplier
residual_multiplier logits_scaling logit_softcapping query_pre_attn_scalar final_logit_softcapping
clip_qkv attention_value_scale max_window_layers use_sliding_window use_mrope is_causal
cache_implementation num_key_value_heads head_dim qk_head_dim hidden_act hidden_activation
intermediate_size max_position_embeddings use_bidirectional_attention use_bfloat16 bf16 fp16 fp32
weight_decay use_dynamic_ntk use_logn_attn softmax_in_fp32 seq_length onnx_safe multi_query
bias_dropout_fusion interleaved_qkv max_length min_length do_sample temperature top_k top_p
num_beams repetition_penalty language spatial_merge_size projector_hidden_act
multimodal_projector_bias vision_feature_layer vision_feature_select_strategy mlp_activation
verbose norm_type is_composition use_cache_quantization use_cache_kernel swiglu_alpha
post_layer_norm mlp_type cla_share_factor order_of_interleaved_layers use_embedding_sharing
use_gated_activation use_parallel_block use_parallel_embedding use_rms_norm quantization_config
"""

HARMLESS: Final = frozenset(_HARMLESS_TEXT.split())
"""Keys that change neither parameters nor work: initial values, tokens, rotations, losses, and
widths that a row of `FAMILIES` does not need."""


def refusal(entry: Unsupported, value: Any, key: str) -> UnsupportedError | None:
    """Return the error of a key that makes another model, None if its value makes none.

    ``entry`` is what the key is of, ``key`` how the user wrote it.
    """
    if is_off(value) or any(value == one for one in entry.without_effect):
        return None
    got = f"{entry.what} not supported (got {shown(value)})"
    text = f"{key}: {got}; supported: {entry.instead}"
    return UnsupportedError(text, key=key, value=value, allowed=entry.instead)
