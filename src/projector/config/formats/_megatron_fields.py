"""What each Megatron-LM argument means here: one table for launch scripts and Primus files.

A setting is known by the name Megatron gives it in code (``args.tensor_model_parallel_size``).
It is either taken over (`FIELDS`, or a rule of `Translation`), or one of the tables beside this
file says why not: warned about because it changes the result and is not modelled, refused, or
of no consequence.
"""

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from projector.config.formats._expression import int_or_list
from projector.config.formats._megatron_others import (
    IGNORED,
    IGNORED_PREFIXES,
    UNMODELLED,
    UNSUPPORTED,
)
from projector.errors import ConfigError, UnsupportedError

Triple = tuple[dict[str, Any], tuple[str, ...], dict[str, str]]
Converter = Callable[[str, Any], Any]


def _unresolved(value: Any) -> bool:
    return isinstance(value, str) and ("${" in value or "$(" in value)


def _bad(name: str, value: Any, allowed: str) -> ConfigError:
    if value is True:
        return ConfigError(f"{name} needs a value: {allowed}", key=name, allowed=allowed)
    if _unresolved(value):
        msg = f"{name} is {value!r}, which the script itself does not set; write the value there"
        return ConfigError(msg, key=name, value=value, allowed=allowed)
    return ConfigError(
        f"{name} should be {allowed} (got {value!r})", key=name, value=value, allowed=allowed
    )


def _integer(name: str, value: Any) -> int:
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            pass
    raise _bad(name, value, "an integer")


def _number(name: str, value: Any) -> float:
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if math.isfinite(number):
            return number
    raise _bad(name, value, "a number")


def flag(name: str, value: Any) -> bool:
    """Read a switch: a bare argument, a boolean, 0 or 1."""
    if isinstance(value, list) and value:
        value = value[0]
    text = str(value).strip().lower()
    if text in {"true", "1", "yes", "on"} or _unresolved(value):
        return True
    if text in {"false", "0", "no", "off"}:
        return False
    raise _bad(name, value, "true or false")


def _text(name: str, value: Any) -> str:
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, str | int | float) or _unresolved(value):
        raise _bad(name, value, "a name")
    return str(value)


def one_of(**meanings: Any) -> Converter:
    """Return a converter that maps Megatron's names to ours."""

    def convert(name: str, value: Any) -> Any:
        text = _text(name, value).lower().replace("-", "_")
        if text not in meanings:
            msg = f"{name} should be one of {', '.join(meanings)} (got {value!r})"
            raise ConfigError(msg, key=name, value=value, allowed=list(meanings))
        return meanings[text]

    return convert


def _names(name: str, value: Any) -> list[str]:
    parts = (
        value if isinstance(value, list) else re.split(r"[,\s]+", _text(name, value).strip("[]"))
    )
    return [str(part).strip(" '\"") for part in parts if str(part).strip()]


def _integers(name: str, value: Any) -> list[int]:
    parts = value if isinstance(value, list) else re.split(r"[,\s]+", str(value).strip("[]() "))
    return [_integer(name, part) for part in parts if str(part).strip()]


def layer_pattern(name: str, value: Any) -> int | list[int]:
    """Read Megatron's layer frequency: an integer, a list, or an expression of lists."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        value = value[0]
    if isinstance(value, list):
        return _integers(name, value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return int_or_list(_text(name, value))
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        allowed = "an integer, or a list such as ([0]*3+[1]*58)"
        msg = f"{name} should be {allowed}: {error} (got {str(value)[:80]!r})"
        raise ConfigError(msg, key=name, value=value, allowed=allowed) from None


def pipeline_layout(name: str, value: Any) -> str:
    """Return a layout string without its cosmetic commas and blanks."""
    if isinstance(value, list):
        letters = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
        try:
            return "|".join("".join(letters[str(item)] for item in stage) for stage in value)
        except (KeyError, TypeError):
            raise _bad(name, value, "a layout such as Et*3|(t*4|)*6t*2L") from None
    text = re.sub(r"[,\s]", "", _text(name, value))
    body = re.sub(r"\*\d+", "", text)
    if not text or not re.fullmatch(r"[EtmL|()]+", body) or text.count("(") != text.count(")"):
        raise _bad(name, value, "a layout such as Et*3|(t*4|)*6t*2L")
    return text


def layout_stages(layout: str) -> int:
    """Count the stages (model chunks) of a layout string."""
    groups = re.finditer(r"\(([^()]*)\)\*(\d+)", layout)
    repeated = [match[1].count("|") * (int(match[2]) - 1) for match in groups]
    return layout.count("|") + sum(repeated) + 1


FIELDS: dict[str, tuple[str, Converter]] = {
    # model
    "num_layers": ("model.num_layers", _integer),
    "hidden_size": ("model.hidden_size", _integer),
    "ffn_hidden_size": ("model.ffn_hidden_size", _integer),
    "num_attention_heads": ("model.num_attention_heads", _integer),
    "kv_channels": ("model.kv_channels", _integer),
    "max_position_embeddings": ("model.max_position_embeddings", _integer),
    "normalization": ("model.normalization", one_of(rmsnorm="rmsnorm", layernorm="layernorm")),
    "mtp_num_layers": ("model.mtp_num_layers", _integer),
    # parallelism
    "tensor_model_parallel_size": ("parallelism.tp", _integer),
    "pipeline_model_parallel_size": ("parallelism.pp", _integer),
    "context_parallel_size": ("parallelism.cp", _integer),
    "expert_model_parallel_size": ("parallelism.ep", _integer),
    "expert_tensor_parallel_size": ("parallelism.etp", _integer),
    "sequence_parallel": ("parallelism.sequence_parallel", flag),
    "decoder_first_pipeline_num_layers": (
        "parallelism.decoder_first_pipeline_num_layers",
        _integer,
    ),
    "decoder_last_pipeline_num_layers": ("parallelism.decoder_last_pipeline_num_layers", _integer),
    "account_for_embedding_in_pipeline_split": (
        "parallelism.account_for_embedding_in_pipeline_split",
        flag,
    ),
    "account_for_loss_in_pipeline_split": (
        "parallelism.account_for_loss_in_pipeline_split",
        flag,
    ),
    "ddp_bucket_size": ("parallelism.ddp_bucket_size", _integer),
    "microbatch_group_size_per_vp_stage": (
        "parallelism.microbatch_group_size_per_vp_stage",
        _integer,
    ),
    "overlap_grad_reduce": ("parallelism.overlap_grad_reduce", flag),
    "overlap_param_gather": ("parallelism.overlap_param_gather", flag),
    "tp_comm_overlap": ("parallelism.tp_comm_overlap", flag),
    "overlap_moe_expert_parallel_comm": ("parallelism.overlap_moe_expert_parallel_comm", flag),
    "torch_fsdp2_reshard_after_forward": ("parallelism.fsdp_reshard_after_forward", flag),
    # training
    "micro_batch_size": ("training.micro_batch_size", _integer),
    "global_batch_size": ("training.global_batch_size", _integer),
    "seq_length": ("training.seq_length", _integer),
    "fp8_param_gather": ("training.fp8_param_gather", flag),
    "cross_entropy_loss_fusion": ("training.cross_entropy_fusion", flag),
    "moe_permute_fusion": ("training.moe.permute_fusion", flag),
    "moe_expert_capacity_factor": ("training.moe.capacity_factor", _number),
    # cluster
    "nnodes": ("cluster.nodes", _integer),
    "nproc_per_node": ("cluster.gpus_per_node", _integer),
}
"""Settings that are one field here: Megatron's name -> dotted field and converter."""

_MOE_FIELDS: dict[str, tuple[str, Converter]] = {
    "num_experts": ("num_experts", _integer),
    "moe_router_topk": ("router_topk", _integer),
    "moe_ffn_hidden_size": ("ffn_hidden_size", _integer),
    "moe_shared_expert_intermediate_size": ("shared_expert_ffn_hidden_size", _integer),
    "moe_shared_expert_gate": ("shared_expert_gate", flag),
    "moe_layer_freq": ("layer_freq", layer_pattern),
    "moe_router_num_groups": ("num_groups", _integer),
    "moe_router_group_topk": ("group_topk", _integer),
    "num_shared_experts": ("num_shared_experts", _integer),
}
_MLA_FIELDS = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")

ALIASES = {
    "decoder_num_layers": "num_layers",
    "encoder_seq_length": "seq_length",
    "tensor_parallel_size": "tensor_model_parallel_size",
    "pipeline_parallel_size": "pipeline_model_parallel_size",
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

_RULES_TEXT = """
vocab_size padded_vocab_size make_vocab_size_divisible_by untie_embeddings_and_output_weights
swiglu quick_geglu squared_relu add_bias_linear add_qkv_bias group_query_attention
num_query_groups position_embedding_type use_rotary_position_embeddings add_position_embedding
qk_layernorm window_size window_attn_skip_freq softmax_type multi_latent_attention
use_sink_attention sink_sliding_window sink_window_even_layers_only
num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank
virtual_pipeline_model_parallel_size pipeline_model_parallel_layout cp_comm_type
use_distributed_optimizer use_torch_fsdp2 use_megatron_fsdp data_parallel_sharding_strategy
bf16 fp16 fp8 fp8_recipe fp4 fp4_recipe first_last_layers_bf16 num_layers_at_start_in_bf16
num_layers_at_end_in_bf16 accumulate_allreduce_grads_in_fp32 grad_reduce_in_bf16
main_grads_dtype main_params_dtype exp_avg_dtype exp_avg_sq_dtype
use_precision_aware_optimizer recompute_activations recompute_granularity recompute_method
recompute_num_layers recompute_modules recompute_layer_ids moe_layer_recompute optimizer
optimizer_cpu_offload optimizer_offload_fraction moe_token_dispatcher_type moe_enable_deepep
moe_flex_dispatcher_backend moe_pad_expert_input_to_capacity moe_router_force_load_balancing
moe_grouped_gemm use_turbo_deepep turbo_sync_free_moe_stage enable_primus_turbo
no_fp8_weight_transpose_cache enable_cuda_graph external_cuda_graph cuda_graph_impl
cuda_graph_scope use_flash_attn attention_backend transformer_impl patch_zero_bubble
enable_zero_bubble zero_bubble_v_schedule zero_bubble_v_schedule_mem_setup
enable_optimizer_post_validation zero_bubble_max_pending_backward overlap_p2p_comm
patch_primus_pipeline pp_algorithm spec
"""
_RULES = frozenset(_RULES_TEXT.split())
"""Settings that a rule of `Translation` reads together with others."""


@dataclass(frozen=True)
class Dialect:
    """How one tool writes Megatron's settings.

    Attributes
    ----------
    spell : callable
        Megatron's name -> how the user writes it.
    defaults : mapping
        What holds where nothing is stated.
    origin : str
        How a value from ``defaults`` is marked.
    label : str
        What a setting is called in messages.
    """

    spell: Callable[[str], str]
    defaults: Mapping[str, Any]
    origin: str
    label: str


MEGATRON_DEFAULTS: dict[str, Any] = {
    "sequence_parallel": False,
    "use_distributed_optimizer": False,
    "overlap_grad_reduce": False,
    "overlap_param_gather": False,
    "normalization": "LayerNorm",
    "position_embedding_type": "learned_absolute",
    "swiglu": False,
    "add_bias_linear": True,
    "untie_embeddings_and_output_weights": False,
    "group_query_attention": False,
    "num_query_groups": 1,
    "make_vocab_size_divisible_by": 128,
    "moe_router_topk": 2,
    "moe_layer_freq": 1,
    "moe_token_dispatcher_type": "allgather",
    "moe_permute_fusion": False,
    "moe_grouped_gemm": False,
    "cross_entropy_loss_fusion": False,
    "kv_lora_rank": 32,
    "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64,
    "v_head_dim": 128,
    "bf16": False,
    "fp16": False,
    "optimizer": "adam",
    "recompute_granularity": "none",
}
"""Megatron-LM's defaults where they can differ from this package's."""


def translate(
    stated: Mapping[str, Any],
    dialect: Dialect,
    *,
    base: Mapping[str, Any] | None = None,
    sources: Mapping[str, str] | None = None,
) -> Triple:
    """Turn Megatron settings into a native job mapping.

    Parameters
    ----------
    stated : mapping
        Settings by Megatron's name in code; None stands for Megatron's own None.
    dialect : Dialect
        Defaults and spelling of the tool the settings come from.
    base : mapping, optional
        A native architecture that the settings override; without it they describe all of it.
    sources : mapping, optional
        Setting -> where it came from, if not from the file.

    Returns
    -------
    tuple
        Job mapping, warnings, and origins of values that the file does not state.
    """
    return Translation(stated, dialect, base, sources or {}).run()


class Translation:
    """One pass over the settings of one job."""

    def __init__(
        self,
        stated: Mapping[str, Any],
        dialect: Dialect,
        base: Mapping[str, Any] | None,
        sources: Mapping[str, str],
    ) -> None:
        self._dialect = dialect
        self._base = base
        self._sources = sources
        self._warnings: list[str] = []
        self._origins: dict[str, str] = {}
        self._job: dict[str, Any] = {}
        self._stated: dict[str, Any] = {}
        for given, value in stated.items():
            name = ALIASES.get(given, given)
            if self._stated.get(name) is None:
                self._stated[name] = value

    def run(self) -> Triple:
        """Apply every rule and return job mapping, warnings and origins."""
        for name, reason in UNSUPPORTED.items():
            value = self._stated.get(name)
            if value not in (None, False, 0, 0.0, "0", "0.0", "false"):
                msg = f"{self._spell(name)}: {reason}"
                raise UnsupportedError(msg, key=self._spell(name), value=value)
        self._layer_spec()
        for name, (target, convert) in FIELDS.items():
            value = self._get(name)
            if value is not None and not (self._base is not None and self._assumed_model(name)):
                self._put(target, convert(self._spell(name), value), name)
        self._parallel_sizes()
        self._architecture()
        self._experts()
        self._mla()
        self._vocabulary()
        self._pipeline()
        self._sharding()
        self._precision()
        self._optimizer()
        self._recompute()
        self._dispatch()
        self._execution()
        self._batch()
        self._report_rest()
        return self._job, tuple(self._warnings), self._origins

    # -- access ---------------------------------------------------------------------------

    def _spell(self, name: str) -> str:
        return self._dialect.spell(name)

    def _get(self, name: str) -> Any:
        value = self._stated.get(name)
        return self._dialect.defaults.get(name) if value is None else value

    def _has(self, name: str) -> bool:
        return self._stated.get(name) is not None

    def _on(self, name: str) -> bool:
        value = self._get(name)
        return value is not None and flag(self._spell(name), value)

    def _int(self, name: str, default: int = 0) -> int:
        value = self._get(name)
        return default if value is None else _integer(self._spell(name), value)

    def _word(self, name: str, default: str = "") -> str:
        value = self._get(name)
        return default if value is None else _text(self._spell(name), value)

    def _assumed_model(self, name: str) -> bool:
        """Whether a model setting is only a default, which a base architecture outranks."""
        return not self._has(name) and FIELDS[name][0].startswith("model.")

    def _put(self, target: str, value: Any, *names: str) -> None:
        """Set a dotted field; mark its origin unless one of ``names`` is in the user's file."""
        node = self._job
        *path, last = target.split(".")
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
        given = [self._sources[name] for name in names if name in self._sources]
        if given:
            self._origins[target] = given[0]
        elif not any(self._has(name) for name in names):
            self._origins[target] = self._dialect.origin

    def _warn(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.append(text)

    # -- model ----------------------------------------------------------------------------

    def _layer_spec(self) -> None:
        """Judge a specification of layers, which is Python code, by its name."""
        if not self._has("spec"):
            return
        text = " ".join(_names(self._spell("spec"), self._get("spec")))
        if re.search("mamba|hybrid", text, re.IGNORECASE):
            msg = f"{self._spell('spec')} {text}: hybrid Mamba models are not supported"
            raise UnsupportedError(msg, key=self._spell("spec"), value=text)
        if not re.search("gpt|^local$", text, re.IGNORECASE):
            self._warn(f"{self._spell('spec')} {text} is projected as Megatron's GPT layers")

    def _parallel_sizes(self) -> None:
        if self._base is None:
            for name in ("num_layers", "hidden_size", "num_attention_heads"):
                if not self._has(name):
                    msg = f"{self._spell(name)} is missing; it is needed to describe the model"
                    raise ConfigError(
                        msg, key=self._spell(name), allowed=f"{self._spell(name)} with an integer"
                    )

    def _model(self, name: str, *also: str) -> bool:
        """Whether a model setting applies: always without a base, else only when stated."""
        return self._base is None or any(self._has(one) for one in (name, *also))

    def _architecture(self) -> None:
        if self._model("swiglu", "squared_relu", "quick_geglu"):
            self._put(
                "model.activation", self._activation(), "swiglu", "squared_relu", "quick_geglu"
            )
        if self._base is None and not self._has("ffn_hidden_size"):
            hidden = self._int("hidden_size")
            gated = self._job["model"]["activation"] in {"swiglu", "geglu"}
            width = (
                int((4 * hidden * 2 / 3) / 64) * 64 if gated and self._on("swiglu") else 4 * hidden
            )
            self._put("model.ffn_hidden_size", width)
        if self._model("add_bias_linear", "add_qkv_bias"):
            bias = self._on("add_bias_linear")
            qkv = "qkv" if self._on("add_qkv_bias") else "none"
            names = ("add_bias_linear", "add_qkv_bias")
            self._put("model.attention_bias", "qkv+out" if bias else qkv, *names)
            if self._model("add_bias_linear"):
                self._put("model.mlp_bias", bias, "add_bias_linear")
        if self._model("untie_embeddings_and_output_weights"):
            name = "untie_embeddings_and_output_weights"
            self._put("model.tied_embeddings", not self._on(name), name)
        self._query_groups()
        self._positions()
        self._window()
        if (
            "mtp_num_layers" in self._stated
            and self._stated["mtp_num_layers"] is None
            and self._base
        ):
            self._put("model.mtp_num_layers", 0, "mtp_num_layers")
            self._origins.pop("model.mtp_num_layers", None)
        if self._on("qk_layernorm") and not self._latent():
            self._put("model.qk_norm", "head", "qk_layernorm")

    def _activation(self) -> str:
        if self._on("swiglu"):
            return "swiglu"
        if self._on("quick_geglu"):
            return "geglu"
        return "squared_relu" if self._on("squared_relu") else "gelu"

    def _query_groups(self) -> None:
        names = ("group_query_attention", "num_query_groups")
        if not self._model(*names):
            return
        if self._on("group_query_attention") or (self._base is not None and self._has(names[1])):
            self._put("model.num_query_groups", self._int("num_query_groups", 1), *names)
        elif self._base is None and self._has("num_query_groups"):
            self._warn(
                f"{self._spell('num_query_groups')} was ignored, as Megatron does without "
                f"{self._spell('group_query_attention')}"
            )

    def _positions(self) -> None:
        names = (
            "position_embedding_type",
            "use_rotary_position_embeddings",
            "add_position_embedding",
        )
        if not self._model("position_embedding_type", "use_rotary_position_embeddings"):
            return
        kinds = one_of(
            rope="rope", mrope="rope", yarn="rope", learned_absolute="learned", relative="learned",
            alibi="alibi", none="none",
        )  # fmt: skip
        kind = kinds(self._spell(names[0]), self._get(names[0]))
        if self._on("use_rotary_position_embeddings"):
            kind = "rope"
        elif kind == "learned" and self._stated.get("add_position_embedding") is False:
            kind = "none"
        self._put("model.position_embedding", kind, *names)

    def _window(self) -> None:
        softmax = self._word("softmax_type", "vanilla")
        if softmax == "learnable" or self._on("use_sink_attention"):
            self._put("model.attention_sinks", True, "softmax_type", "use_sink_attention")
        layers = self._layers()
        if self._has("window_size"):
            widths = _integers(self._spell("window_size"), self._get("window_size"))
            if not widths:
                raise _bad(self._spell("window_size"), self._get("window_size"), "two integers")
            width = max(0, widths[0])
            pattern: int | list[int] = 1
            if self._has("window_attn_skip_freq"):
                name = "window_attn_skip_freq"
                pattern = layer_pattern(self._spell(name), self._get(name))
            if isinstance(pattern, list):
                windowed = sum(1 for item in pattern if item)
            elif self._has("window_attn_skip_freq") and pattern > 0:
                windowed = sum(1 for layer in range(1, layers + 1) if layer % pattern)
            else:
                windowed = layers
        elif self._on("use_sink_attention") and self._int("sink_sliding_window"):
            width = self._int("sink_sliding_window")
            every_other = self._get("sink_window_even_layers_only") in (None, True)
            windowed = (layers + 1) // 2 if every_other else layers
        else:
            return
        if width:
            names = ("window_size", "sink_sliding_window")
            self._put("model.sliding_window", width, *names)
            self._put("model.sliding_window_layers", windowed, *names)

    def _layers(self) -> int:
        if self._has("num_layers"):
            return self._int("num_layers")
        return int(self._base["num_layers"]) if self._base else 0

    def _latent(self) -> bool:
        if self._has("multi_latent_attention") or self._base is None:
            return self._on("multi_latent_attention")
        return self._base.get("mla") is not None

    def _mla(self) -> None:
        base = (self._base or {}).get("mla")
        if self._base is not None and base and not self._latent():
            self._put("model.mla", None, "multi_latent_attention")
            if not self._has("kv_channels") and "kv_channels" not in self._base:
                self._put("model.kv_channels", base["v_head_dim"], "multi_latent_attention")
            return
        if not self._latent():
            return
        for name in _MLA_FIELDS:
            value = self._get(name) if base is None else self._stated.get(name)
            if value is not None:
                self._put(f"model.mla.{name}", _integer(self._spell(name), value), name)
            elif base is not None and name == "q_lora_rank" and name in self._stated:
                self._put("model.mla.q_lora_rank", 0)
                self._origins.pop("model.mla.q_lora_rank", None)

    def _experts(self) -> None:
        base = (self._base or {}).get("moe")
        if (
            self._base is not None
            and base
            and "num_experts" in self._stated
            and not self._has("num_experts")
        ):
            self._job.setdefault("model", {})["moe"] = None
            return
        if base is None and not self._has("num_experts"):
            return
        for name, (field, convert) in _MOE_FIELDS.items():
            value = self._get(name) if base is None else self._stated.get(name)
            if value is not None:
                self._put(f"model.moe.{field}", convert(self._spell(name), value), name)
        if base is None and not self._has("moe_ffn_hidden_size"):
            width = self._job["model"].get(
                "ffn_hidden_size", (self._base or {}).get("ffn_hidden_size")
            )
            self._put("model.moe.ffn_hidden_size", width, "moe_ffn_hidden_size")
        if self._get("moe_grouped_gemm") is not None and not self._on("moe_grouped_gemm"):
            self._warn(
                f"{self._spell('moe_grouped_gemm')} is off: Megatron runs the experts one by one, "
                "they are projected with grouped GEMMs"
            )

    def _vocabulary(self) -> None:
        if self._has("padded_vocab_size"):
            self._put("model.vocab_size", self._int("padded_vocab_size"), "padded_vocab_size")
            self._put("model.make_vocab_size_divisible_by", None, "padded_vocab_size")
            return
        if self._has("vocab_size"):
            self._put("model.vocab_size", self._int("vocab_size"), "vocab_size")
        elif self._base is None:
            name = self._spell("vocab_size")
            msg = (
                f"{name} is missing: the vocabulary's size cannot be read from a tokenizer's name; "
                f"add {name} (for example 128256 for Llama 3)"
            )
            raise ConfigError(msg, key=name, allowed=f"{name} with the number of tokens")
        multiple = "make_vocab_size_divisible_by"
        if self._get(multiple) is not None:
            self._put(f"model.{multiple}", self._int(multiple), multiple)

    # -- parallelism ----------------------------------------------------------------------

    def _pipeline(self) -> None:
        pp = self._int("pipeline_model_parallel_size", 1)
        if self._has("pipeline_model_parallel_layout"):
            name = "pipeline_model_parallel_layout"
            layout = pipeline_layout(self._spell(name), self._get(name))
            self._put(f"parallelism.{name}", layout, name)
            stages = layout_stages(layout)
            if stages % max(pp, 1):
                msg = f"{self._spell(name)} has {stages} stages, which is no multiple of PP {pp}"
                raise ConfigError(msg, key=self._spell(name), value=layout)
            self._put("parallelism.vpp", stages // max(pp, 1), name)
            return
        for name in (
            "num_virtual_stages_per_pipeline_rank",
            "virtual_pipeline_model_parallel_size",
        ):
            if self._has(name):
                self._put("parallelism.vpp", self._int(name), name)
                return
        name = "num_layers_per_virtual_pipeline_stage"
        if not self._has(name):
            return
        layers = self._layers() + self._on("account_for_embedding_in_pipeline_split")
        layers += self._on("account_for_loss_in_pipeline_split")
        length = self._int(name)
        if length < 1 or pp < 1 or layers % (pp * length):
            msg = f"{self._spell(name)} ({length}) times PP ({pp}) does not divide {layers} layers"
            raise ConfigError(msg, key=self._spell(name), value=length)
        self._put("parallelism.vpp", layers // (pp * length), name)

    def _sharding(self) -> None:
        if self._has("cp_comm_type"):
            kinds = one_of(
                p2p="p2p", ring="p2p", all_gather="all_gather", allgather="all_gather", a2a="a2a",
                **{"a2a+p2p": "a2a"},
            )  # fmt: skip
            given = self._word("cp_comm_type")
            self._put(
                "parallelism.cp_comm_type",
                kinds(self._spell("cp_comm_type"), given),
                "cp_comm_type",
            )
            if given == "a2a+p2p":
                self._warn(f"{self._spell('cp_comm_type')} a2a+p2p is projected as a2a")
        if self._on("use_torch_fsdp2"):
            self._put("parallelism.fsdp", 2, "use_torch_fsdp2")
            return
        strategy = "data_parallel_sharding_strategy"
        if self._on("use_megatron_fsdp"):
            stages = one_of(no_shard=0, optim=1, optim_grads=2, optim_grads_params=3)
            stage = stages(self._spell(strategy), self._word(strategy, "no_shard"))
            self._put("parallelism.zero_stage", stage, "use_megatron_fsdp")
            return
        if self._has(strategy) and self._word(strategy) != "no_shard":
            self._warn(
                f"{self._spell(strategy)} was ignored: it only works with "
                f"{self._spell('use_megatron_fsdp')}"
            )
        name = "use_distributed_optimizer"
        self._put("parallelism.zero_stage", int(self._on(name)), name)

    # -- training -------------------------------------------------------------------------

    def _precision(self) -> None:
        base = "bf16" if self._on("bf16") else "fp16" if self._on("fp16") else "fp32"
        if self._has("fp16") and self._on("fp16") and not self._has("bf16"):
            base = "fp16"
        names = ["bf16", "fp16"]
        narrow = base
        if self._has("fp8"):
            one_of(hybrid="hybrid", e4m3="e4m3")(self._spell("fp8"), self._get("fp8"))
            names.append("fp8")
            narrow = "fp8"
            recipes = one_of(
                delayed="delayed", tensorwise="tensorwise", rowwise="rowwise",
                blockwise="blockwise", mxfp8="mxfp8",
            )  # fmt: skip
            recipe = recipes(self._spell("fp8_recipe"), self._word("fp8_recipe", "delayed"))
            if recipe == "mxfp8":
                narrow = "mxfp8"
            else:
                self._put("training.fp8_recipe", recipe, "fp8_recipe")
            if self._on("no_fp8_weight_transpose_cache"):
                name = "no_fp8_weight_transpose_cache"
                self._put("training.fp8_weight_transpose_cache", False, name)
        if self._has("fp4"):
            names.append("fp4")
            recipe = self._word("fp4_recipe", "nvfp4")
            if recipe != "nvfp4":
                msg = f"{self._spell('fp4_recipe')} {recipe!r} is not supported; only nvfp4 is"
                raise UnsupportedError(
                    msg, key=self._spell("fp4_recipe"), value=recipe, allowed=["nvfp4"]
                )
            narrow = "nvfp4"
        self._put("training.precision", narrow, *names)
        if narrow != base and self._on("first_last_layers_bf16"):
            start = self._int("num_layers_at_start_in_bf16", 1)
            end = self._int("num_layers_at_end_in_bf16", 1)
            mean = (start + end + 1) // 2
            self._put("training.first_last_layers_bf16", mean, "first_last_layers_bf16")
            if start != end:
                self._warn(
                    f"{self._spell('num_layers_at_start_in_bf16')} ({start}) and "
                    f"{self._spell('num_layers_at_end_in_bf16')} ({end}) are projected as {mean} "
                    "at each end"
                )
        self._gradients(base)

    def _gradients(self, base: str) -> None:
        # Megatron turns accumulation in FP32 on with BF16 whatever a file says; only the
        # switch of the command line turns it off.
        off = self._stated.get("accumulate_allreduce_grads_in_fp32") is False
        aware = self._on("use_precision_aware_optimizer")
        narrow = (
            self._on("grad_reduce_in_bf16")
            or (off and self._dialect.label == "argument")
            or (aware and self._word("main_grads_dtype") == "bf16")
            or (base == "fp16" and not self._on("accumulate_allreduce_grads_in_fp32"))
        )
        names = ("grad_reduce_in_bf16", "accumulate_allreduce_grads_in_fp32", "main_grads_dtype")
        self._put("training.gradient_dtype", "bf16" if narrow else "fp32", *names)

    def _optimizer(self) -> None:
        rules = one_of(
            adam="adam",
            adamw="adam",
            sgd="sgd",
            muon="muon",
            dist_muon="muon",
            adaptive_muon="muon",
        )
        rule = rules(self._spell("optimizer"), self._word("optimizer", "adam"))
        self._put("training.optimizer.name", rule, "optimizer")
        types = ("exp_avg_dtype", "exp_avg_sq_dtype")
        aware = "use_precision_aware_optimizer"
        if self._on(aware):
            widths = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
            known = one_of(**{kind: kind for kind in widths})
            given = [known(self._spell(name), self._word(name, "fp32")) for name in types]
            moment = max(given, key=lambda kind: widths[kind])
            self._put("training.optimizer.moment_dtype", moment, aware, *types)
            if given[0] != given[1]:
                self._warn(
                    f"{self._spell(types[0])} {given[0]} and {self._spell(types[1])} {given[1]} "
                    f"are projected as {moment} both"
                )
            if self._word("main_params_dtype", "fp32") != "fp32":
                self._warn(f"{self._spell('main_params_dtype')} is projected as fp32")
            elif self._on("bf16"):
                # Megatron then keeps only the 16 bits that the BF16 weights lack.
                self._put("training.optimizer.master_weights", "split", aware)
        else:
            for name in types:
                if self._has(name) and self._word(name) != "fp32":
                    self._warn(f"{self._spell(name)} was ignored: it needs {self._spell(aware)}")
        if self._on("optimizer_cpu_offload"):
            name = "optimizer_offload_fraction"
            share = 1.0 if self._get(name) is None else _number(self._spell(name), self._get(name))
            self._put("training.optimizer.offload_fraction", share, "optimizer_cpu_offload")

    def _recompute(self) -> None:
        granularity = self._word("recompute_granularity", "none")
        names = ["recompute_granularity", "recompute_activations", "recompute_layer_ids"]
        modules = self._get("recompute_modules")
        if self._on("recompute_activations"):
            granularity = "selective"
        if self._on("moe_layer_recompute"):
            granularity, modules = "selective", [*(modules or ["core_attn"]), "moe"]
            names.append("moe_layer_recompute")
        if self._has("recompute_layer_ids"):
            granularity = "full"
        kinds = one_of(none="none", selective="selective", full="full")
        kind = kinds(self._spell("recompute_granularity"), granularity)
        self._put("training.recompute.granularity", kind, *names)
        if kind == "selective" and modules is not None:
            name = "recompute_modules"
            self._put(
                "training.recompute.modules", _names(self._spell(name), modules), name, *names
            )
        if kind != "full":
            return
        if self._has("recompute_layer_ids"):
            name = "recompute_layer_ids"
            ids = _integers(self._spell(name), self._get(name))
            self._put("training.recompute.layers", self._global_layers(ids), name)
            return
        name = "recompute_method"
        if not self._has(name):
            msg = f"{self._spell('recompute_granularity')} full needs {self._spell(name)}"
            raise ConfigError(msg, key=self._spell(name), allowed=["uniform", "block"])
        method = one_of(uniform="uniform", block="block")(self._spell(name), self._get(name))
        self._put("training.recompute.method", method, name)
        name = "recompute_num_layers"
        if self._has(name):
            self._put("training.recompute.num_layers", self._int(name), name)

    def _global_layers(self, ids: list[int]) -> list[int]:
        """Primus counts recomputed layers within a pipeline stage; here they count overall."""
        pp, layers = self._int("pipeline_model_parallel_size", 1), self._layers()
        name = self._spell("recompute_layer_ids")
        outside = [number for number in ids if not 0 <= number < max(layers, 1)]
        if outside:
            msg = f"{name} names layer {outside[0]}, the model has {layers} (0 to {layers - 1})"
            raise ConfigError(msg, key=name, value=outside[0], allowed=f"0 to {layers - 1}")
        if pp <= 1 or layers % pp or not ids or max(ids) >= layers // pp:
            return ids
        self._warn(f"{name} was taken to count within each of the {pp} pipeline stages")
        return [stage * (layers // pp) + number for stage in range(pp) for number in ids]

    def _dispatch(self) -> None:
        if not self._has("num_experts") and not (self._base or {}).get("moe"):
            for field in ("permute_fusion", "capacity_factor"):
                self._job.get("training", {}).get("moe", {}).pop(field, None)
                self._origins.pop(f"training.moe.{field}", None)
            if not self._job.get("training", {}).get("moe", True):
                del self._job["training"]["moe"]
            return
        turbo = self._on("enable_primus_turbo")
        stage = self._int("turbo_sync_free_moe_stage") if turbo else 0
        kinds = one_of(
            alltoall="alltoall", alltoall_seq="alltoall", allgather="allgather", flex="deepep"
        )
        names = ["moe_token_dispatcher_type"]
        kind = kinds(self._spell(names[0]), self._word(names[0], "alltoall"))
        backend = "moe_flex_dispatcher_backend"
        if kind == "deepep" and self._has(backend):
            one_of(deepep="deepep", hybridep="deepep")(self._spell(backend), self._word(backend))
        if self._on("moe_enable_deepep") or (turbo and self._on("use_turbo_deepep")) or stage >= 2:
            kind = "deepep"
            names += ["moe_enable_deepep", "use_turbo_deepep", "turbo_sync_free_moe_stage"]
        elif self._on("use_turbo_deepep"):
            self._warn(
                f"{self._spell('use_turbo_deepep')} was ignored: "
                f"{self._spell('enable_primus_turbo')} is off"
            )
        self._put("training.moe.dispatcher", kind, *names)
        if stage > 0:
            self._put("training.moe.host_sync", False, "turbo_sync_free_moe_stage")
            self._put("training.moe.permute_fusion", True, "turbo_sync_free_moe_stage")
        elif self._on("moe_pad_expert_input_to_capacity"):
            self._put("training.moe.host_sync", False, "moe_pad_expert_input_to_capacity")
        if self._on("moe_router_force_load_balancing"):
            self._put("training.moe.load", "balanced", "moe_router_force_load_balancing")

    def _execution(self) -> None:
        graphs = ("enable_cuda_graph", "external_cuda_graph", "cuda_graph_impl")
        impl = self._word(graphs[2], "none")
        if self._on(graphs[0]) or self._on(graphs[1]) or impl not in {"none", "None"}:
            self._put("training.cuda_graphs", True, *graphs)
            scope = self._get("cuda_graph_scope")
            if scope not in (None, "full", "full_iteration", ["full"], ["full_iteration"]):
                self._warn(
                    f"{self._spell('cuda_graph_scope')} {scope!r} is projected as graphs of "
                    "whole layers"
                )
        backends = one_of(
            auto="auto", flash="flash", fused="fused", unfused="unfused", local="unfused"
        )
        backend = backends(
            self._spell("attention_backend"), self._word("attention_backend", "auto")
        )
        local = self._word("transformer_impl", "transformer_engine") == "local"
        by_default = local and not self._on("use_flash_attn") and backend == "auto"
        if backend == "unfused" or by_default:
            names = ("attention_backend", "transformer_impl")
            self._put("training.flash_attention", False, *names)
        self._schedule()

    def _schedule(self) -> None:
        vpp = self._job.get("parallelism", {}).get("vpp", 1)
        if self._on("patch_primus_pipeline") and self._has("pp_algorithm"):
            kinds = one_of(
                **{"1f1b": "1f1b", "1f1b_interleaved": "interleaved" if vpp > 1 else "1f1b"},
                gpipe="gpipe",
                zero_bubble="zerobubble", zero_bubble_heuristic="zerobubble",
                zerobubble="zerobubble", zbv_formatted="zbv-formatted",
                zbv_greedy="zbv-greedy-half", zbv_greedy_half="zbv-greedy-half",
                v_half="zbv-greedy-half", v_min="zbv-greedy-min",
                zbv_greedy_min="zbv-greedy-min", seaailab_ilp="seaailab-ilp",
            )  # fmt: skip
            kind = kinds(self._spell("pp_algorithm"), self._get("pp_algorithm"))
            self._put("training.schedule", kind, "pp_algorithm")
        elif self._on("patch_zero_bubble") and self._on("zero_bubble_v_schedule"):
            setup = "zero_bubble_v_schedule_mem_setup"
            kinds = one_of(half="zbv-greedy-half", min="zbv-greedy-min", zb="zbv-greedy-zb")
            kind = kinds(self._spell(setup), self._word(setup, "half"))
            self._put("training.schedule", kind, "zero_bubble_v_schedule", setup)
            self._put("parallelism.vpp", 2, "zero_bubble_v_schedule")
        elif self._on("patch_zero_bubble") and self._on("enable_zero_bubble"):
            self._put("training.schedule", "zerobubble", "enable_zero_bubble")
        self._zero_bubble()
        # Without virtual stages Megatron turns it off; that is the default here as well.
        if self._has("overlap_p2p_comm") and not self._on("overlap_p2p_comm"):
            self._put("parallelism.overlap_p2p_comm", False, "overlap_p2p_comm")

    def _zero_bubble(self) -> None:
        """Read what only the zero-bubble runtime looks at."""
        if not self._on("patch_zero_bubble"):
            return
        if self._on("enable_optimizer_post_validation"):
            name = "enable_optimizer_post_validation"
            self._put("training.optimizer_post_validation", True, name)
        name = "zero_bubble_max_pending_backward"
        if self._has(name) and self._word(name, "auto") != "auto":
            self._put(f"training.{name}", _integer(self._spell(name), self._get(name)), name)

    def _batch(self) -> None:
        """Megatron's default global batch is one microbatch for each data-parallel rank."""
        cluster = self._job.get("cluster", {})
        if self._has("global_batch_size") or not self._has("micro_batch_size"):
            return
        if "gpus_per_node" not in cluster:
            return
        world = cluster["gpus_per_node"] * cluster.get("nodes", 1)
        sizes = (
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "context_parallel_size",
        )
        split = math.prod(max(1, self._int(name, 1)) for name in sizes)
        if world % split == 0:
            batch = self._int("micro_batch_size") * (world // split)
            self._put("training.global_batch_size", batch, "global_batch_size")

    def _report_rest(self) -> None:
        """Name what was not taken over, unless it cannot matter."""
        known = FIELDS.keys() | _MOE_FIELDS.keys() | set(_MLA_FIELDS) | _RULES | UNSUPPORTED.keys()
        for name, value in self._stated.items():
            if name in known or value is None:
                continue
            if name in UNMODELLED:
                without_effect, note = UNMODELLED[name]
                if not any(_same(value, one) for one in without_effect):
                    self._warn(f"{self._spell(name)} is not modelled: {note}")
            elif name not in IGNORED and not name.startswith(IGNORED_PREFIXES):
                close = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
                hint = f"; did you mean {self._spell(close[0])}?" if close else ""
                label = self._dialect.label
                self._warn(f"unknown Megatron {label} {self._spell(name)} was ignored{hint}")


def _same(value: Any, other: Any) -> bool:
    return value == other or str(value).lower() == str(other).lower()
