"""A launch script of Megatron-LM."""

import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from projector.config.formats.detect import comment_lines
from projector.config.formats.emit import layer_words as letters
from projector.config.formats.megatron import ARGUMENT, NEGATED
from projector.config.formats.megatron_settings.model import LATENT_LENGTH, layers_of_period
from projector.config.job import Job
from projector.config.model import ModelConfig, parts_of
from projector.config.resources import settings_of
from projector.config.training import FUSED_UNITS
from projector.distribution import package_version
from projector.errors import UnsupportedError

SUFFIX: Final = ".sh"

_TABLE: Final = settings_of("megatron")
_SPELLINGS: Final = ARGUMENT | _TABLE["argument_names"]
_ON: Final = _TABLE["on_by_default"].split()
_SWITCHES_OFF: Final = {setting: switch for switch, setting in NEGATED.items() if setting in _ON}
"""Settings that are on unless this argument turns them off; others are off unless given."""


def own(job: Job) -> dict[str, Any]:
    """Return nothing, as the launcher names the nodes; refuse ALiBi and strange layers."""
    check_model(job.model, "Megatron-LM", letters.LETTERS)
    return {}


def check_model(model: ModelConfig, title: str, known: Iterable[str]) -> None:
    """Refuse ALiBi, and kinds of layers that a framework has no letter for."""
    known = [*known]
    strange = sorted({*model.layer_kinds} - {*known})
    if strange and letters.has_pattern(model):
        pairs = any(all(parts_of(kind)) for kind in strange)
        hint = "; a mixer and its feed-forward are two layers there" if pairs else ""
        msg = (
            f"{title} has no layers {', '.join(strange)} in a pattern of {model.name}; it has "
            f"{', '.join(known)}{hint}"
        )
        raise UnsupportedError(msg, key="model.layer_types", value=strange, allowed=known)
    if model.position_embedding == "alibi":
        key, legal = "model.position_embedding", ["rope", "learned", "none"]
        msg = f"Megatron-LM has no ALiBi ({key}); it has {', '.join(legal)}"
        raise UnsupportedError(msg, key=key, value="alibi", allowed=legal)


def write(job: Job, carried: Mapping[str, Any]) -> str:
    """Return the script of a job; see `projector.config.formats.emit.emitted.Writer`."""
    title = " ".join((job.name or job.model.name).split())
    text: str = _TABLE["script_head"].format(
        title=title,
        version=package_version(),
        carried=comment_lines(carried),
        connections=_connections(job),
    )
    groups = megatron_arguments(job)
    if letters.has_pattern(job.model):
        latent = {"attention": "+"} if job.model.mla is not None else {}
        groups["model"]["hybrid_layer_pattern"] = letters.layer_pattern(
            job, {**letters.LETTERS, **latent}
        )
        groups["model"]["spec"] = _SPECIFICATION
    if "padded_vocab_size" not in groups["model"]:
        # The NullTokenizer of the script adds the end of a document before Megatron pads.
        groups["model"]["vocab_size"] -= 1
    for group, settings in groups.items():
        lines = [f"  {line}\n" for name, value in settings.items() if (line := _line(name, value))]
        text += f"\n{_array(group)}=(\n{''.join(lines)})\n"
    end: str = _TABLE["script_end"].format(
        nodes=job.cluster.nodes,
        gpus_per_node=job.cluster.gpus_per_node,
        program="hybrid" if letters.has_pattern(job.model) else "gpt",
        arrays=" ".join(f'"${{{_array(group)}[@]}}"' for group in groups),
    )
    return f"{text}\n{end}"


_SPECIFICATION: Final = ["megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"]


def _connections(job: Job) -> str:
    """Return the line that sets the queues of a device, which Megatron checks, or nothing.

    With one queue kernels start in the order of their launch, as the overlap of tensor and context
    parallelism needs before Blackwell; FSDP and the overlap of experts need several.
    """
    split = job.parallelism
    if split.fsdp == 2 or (not split.fsdp and split.zero_stage in STRATEGIES):
        return "unset CUDA_DEVICE_MAX_CONNECTIONS\n"
    if (split.tp == 1 and split.cp == 1) or job.cluster.device.architecture == "blackwell":
        return ""
    queues = 32 if split.overlap_moe_expert_parallel_comm else 1
    return f"export CUDA_DEVICE_MAX_CONNECTIONS={queues}\n"


def _array(group: str) -> str:
    return f"{group.upper()}_ARGS"


def _line(name: str, value: Any) -> str:
    """Return one argument, nothing for a switch that is off by default."""
    if value is False:
        switch = _SWITCHES_OFF.get(name)
        return "" if switch is None else _argument(switch)
    argument = _argument(_SPELLINGS.get(name, name))
    if value is True:
        return "" if name in _SWITCHES_OFF else argument
    words = value if isinstance(value, list) else [value]
    return " ".join([argument, *(shlex.quote(str(word)) for word in words)])


def _argument(name: str) -> str:
    return f"--{name.replace('_', '-')}"


# The settings that make a job, by Megatron's name in code: for its arguments and for Primus.

Arguments = dict[str, Any]
"""Setting -> value: true and false for switches, lists for several words."""

POSITIONS = {"rope": "rope", "learned": "learned_absolute"}
"""Ours -> Megatron's name, where it is another one."""

STRATEGIES = {2: "optim_grads", 3: "optim_grads_params"}
"""ZeRO stage -> sharding strategy of Megatron FSDP."""


def megatron_arguments(job: Job) -> dict[str, Arguments]:
    """Return the settings of a job that Megatron has a name for, by group, none of them empty.

    Switches are there whether they are on or off, so that no default of a tool decides. What
    Megatron cannot say is not there.
    """
    found: dict[str, Arguments] = {}
    for group, parts in _TABLE["written"].items():
        if group == "experts" and job.model.moe is None:
            continue
        settings: Arguments = {}
        for part in parts:
            if isinstance(part, str):
                settings |= _RULES[part](job)
            else:
                add_rows(settings, part, job)
        found[group] = settings
    return found


def add_rows(settings: Arguments, rows: Mapping[str, Any], job: Job) -> None:
    """Add what rows of ``written`` say of a job; ``hardware/settings/megatron.yaml`` says how."""
    for name, row in rows.items():
        how: Mapping[str, Any] = {"field": row} if isinstance(row, str) else row
        value: Any = job
        for part in how["field"].split("."):
            value = getattr(value, part, None)
        if "is" in how:
            value = value == how["is"]
        if "is_one_of" in how:
            value = value in how["is_one_of"].split()
        if "is_not" in how:
            value = value != how["is_not"]
        if "means" in how:
            value = how["means"].get(value)
        left_out = value is None or ("unless" in how and value == how["unless"])
        if not left_out and ("with" not in how or settings.get(how["with"])):
            settings[name] = value


def _same(section: Any, names: str) -> Arguments:
    """Return the fields of a section that Megatron calls the same, without those of no value."""
    found = {name: getattr(section, name) for name in names.split()}
    return {name: value for name, value in found.items() if value is not None}


def _positions(job: Job) -> Arguments:
    model = job.model
    kind, scaling = model.position_embedding, model.rope_scaling
    settings: Arguments = {}
    if model.mla is not None and model.kv_channels is None:
        # Latent attention does not look at it; without it Megatron divides the width by the heads.
        settings["kv_channels"] = model.mla.qk_head_dim
    settings["position_embedding_type"] = POSITIONS.get(kind, kind)
    if kind != "rope":
        return settings
    if model.rotary_base is not None and model.rotary_base.is_integer():
        settings["rotary_base"] = int(model.rotary_base)
    settings |= _same(model, "rotary_percent")
    freq = model.no_rope_freq
    if freq is not None:
        # Megatron takes a number where it divides the layers, a list otherwise.
        pattern = tuple(layers_of_period(freq, model.num_layers))
        settings["no_rope_freq"] = letters.layer_list(pattern) if model.num_layers % freq else freq
    if scaling is None or model.rotary_base_local is not None:
        # Megatron would stretch the layers with a window, too.
        return settings
    length = scaling.original_max_position_embeddings
    if scaling.kind == "llama3" and length == _LLAMA3_LENGTH and model.mla is None:
        settings["use_rope_scaling"] = True
        settings["rope_scaling_factor"] = scaling.factor
    elif scaling.kind == "linear" and scaling.factor.is_integer() and model.mla is None:
        settings["rotary_seq_len_interpolation_factor"] = int(scaling.factor)
    elif scaling.kind == "yarn":
        if model.mla is None:
            # Multi-token prediction there knows plain rotations alone.
            if model.mtp_num_layers:
                return settings
            settings["position_embedding_type"] = "yarn"
            if length is not None:
                settings["yarn_original_max_position_embeddings"] = length
            settings["yarn_beta_fast"] = scaling.beta_fast
            settings["yarn_beta_slow"] = scaling.beta_slow
            settings["yarn_correction_range_round_to_int"] = scaling.truncate
        elif length != LATENT_LENGTH:
            return settings
        settings["rotary_scaling_factor"] = scaling.factor
        settings |= _same(scaling, "mscale mscale_all_dim")
    return settings


_LLAMA3_LENGTH: Final = 8192
"""The first length that Megatron's rule of Llama 3 is written for."""


def _windows(job: Job) -> Arguments:
    model = job.model
    windowed, layers = model.sliding_window_layers, model.num_layers
    if not windowed:
        return {}
    settings: Arguments = {"window_size": f"{model.sliding_window},0"}
    if windowed < layers:
        full = layers - windowed
        # Megatron leaves each n-th layer whole; what that cannot say is listed.
        each = layers // full if layers // (layers // full) == full else 0
        pattern = letters.layer_list((1,) * windowed + (0,) * full)
        settings["window_attn_skip_freq"] = each if each > 1 else pattern
    return settings


def _padded_vocabulary(job: Job) -> Arguments:
    whole = job.model.make_vocab_size_divisible_by is None
    return {"padded_vocab_size": job.model.vocab_size} if whole else {}


def _layer_freq(job: Job) -> Arguments:
    assert job.model.moe is not None
    freq = job.model.moe.layer_freq
    if job.model.layer_types is not None:
        freq = tuple(map(int, job.model.moe_layers))
    return {"moe_layer_freq": freq if isinstance(freq, int) else letters.layer_list(freq)}


def _router(job: Job) -> Arguments:
    moe = job.model.moe
    assert moe is not None
    is_sigmoid = moe.router_score_function == "sigmoid"
    # A softmax of one score is 1 and has no gradient.
    alone = moe.router_topk == 1 and not is_sigmoid
    return {
        "moe_router_pre_softmax": bool(moe.router_pre_softmax) or alone,
        "moe_router_enable_expert_bias": moe.router_bias and is_sigmoid,
    }


def _dispatcher(job: Job) -> Arguments:
    choice = job.training.moe
    settings: Arguments = {"moe_grouped_gemm": True}
    if choice.dispatcher not in FUSED_UNITS:
        return settings | {"moe_token_dispatcher_type": choice.dispatcher}
    settings |= {
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": choice.dispatcher,
    }
    if choice.dispatcher_sms is not None:
        settings[f"moe_{choice.dispatcher}_num_sms"] = choice.dispatcher_sms
    return settings


def _stages(job: Job) -> Arguments:
    split = job.parallelism
    if letters.has_pattern(job.model):
        return {}  # which has the stages
    layout = split.pipeline_model_parallel_layout or _uneven_layout(job)
    if layout:
        return {"pipeline_model_parallel_layout": layout}
    return {"num_virtual_stages_per_pipeline_rank": split.vpp} if split.vpp > 1 else {}


def _ranks(job: Job) -> Arguments:
    split = job.parallelism
    settings: Arguments = {"cp_comm_type": split.cp_comm_type} if split.cp > 1 else {}
    settings["use_tp_pp_dp_mapping"] = split.rank_order == "tp-cp-ep-pp-dp"
    if split.vpp > 1 and split.overlap_p2p_comm is False:
        settings["overlap_p2p_comm"] = False
    return settings


def _uneven_layout(job: Job) -> str:
    """Return the layout that Megatron needs where stages differ, ``""`` where they do not.

    Where layers are divided evenly the first stages take one more, as they are projected.
    """
    split, layers = job.parallelism, job.model.num_layers
    stages = split.pp * split.vpp
    placed = (
        split.decoder_first_pipeline_num_layers,
        split.decoder_last_pipeline_num_layers,
        split.account_for_embedding_in_pipeline_split or None,
        split.account_for_loss_in_pipeline_split or None,
        job.model.mtp_num_layers or None,
    )
    least, longer = divmod(layers, stages)
    counts = [least + (stage < longer) for stage in range(stages)]
    if split.divide_pipeline_by_work:
        counts = job.model.layers_by_work(stages)
    if len({*counts}) == 1 or not least or placed != (None,) * len(placed):
        return ""
    return f"E{'|'.join(f't*{count}' for count in counts)}L"


def _sharding(job: Job) -> Arguments:
    split = job.parallelism
    strategy = None if split.fsdp else STRATEGIES.get(split.zero_stage)
    settings: Arguments = {"use_megatron_fsdp": strategy is not None}
    if strategy is not None:
        settings |= {"data_parallel_sharding_strategy": strategy, "ckpt_format": "fsdp_dtensor"}
    settings["use_distributed_optimizer"] = _shards(job)
    return settings


def _shards(job: Job) -> bool:
    """Whether Megatron's own optimizer or FSDP divides states."""
    return not job.parallelism.fsdp and job.parallelism.zero_stage >= 1


def _narrow(job: Job) -> Arguments:
    layers = job.training.first_last_layers_bf16
    if not layers or job.training.precision in {"fp32", "fp16", "bf16"}:
        return {}
    ends = ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")
    return {"first_last_layers_bf16": True, **dict.fromkeys(ends, layers)}


def _recompute(job: Job) -> Arguments:
    kind = job.training.recompute
    if kind.granularity == "none" or "per_op" in kind.modules:
        return {}
    settings: Arguments = {"recompute_granularity": kind.granularity}
    if kind.granularity == "selective":
        settings["recompute_modules"] = [*kind.modules]
    else:
        settings["recompute_method"] = kind.method
        settings["recompute_num_layers"] = 1 if kind.num_layers is None else kind.num_layers
    return settings


def _states(job: Job) -> Arguments:
    optimizer = job.training.optimizer
    narrow = optimizer.moment_dtype != "fp32" or optimizer.master_weights == "split"
    kinds = dict.fromkeys(("exp_avg_dtype", "exp_avg_sq_dtype"), optimizer.moment_dtype)
    # Megatron moves states to the host by the code of that optimizer alone.
    aware = {"use_precision_aware_optimizer": narrow or optimizer.offload_fraction > 0}
    return aware | (kinds if narrow else {})


_RULES: Final[Mapping[str, Callable[[Job], Arguments]]] = {
    "positions": _positions,
    # Latents are normed as they are projected: DeepSeek's attention has these norms.
    "qk_norms": lambda job: {
        "qk_layernorm": job.model.qk_norm != "none" or job.model.mla is not None
    },
    "padded_vocabulary": _padded_vocabulary,
    "windows": _windows,
    "layers": lambda job: letters.layer_words(job.model),
    "layer_freq": _layer_freq,
    "router": _router,
    "dispatcher": _dispatcher,
    "stages": _stages,
    "ranks": _ranks,
    "sharding": _sharding,
    # Megatron refuses to gather ahead what it does not shard itself.
    "gathers": lambda job: {
        "overlap_param_gather": job.parallelism.overlap_param_gather and _shards(job)
    },
    "narrow": _narrow,
    # Megatron starts FSDP 2 only without it, and nothing accumulates there.
    "accumulation": lambda job: {
        "gradient_accumulation_fusion": job.training.gradient_accumulation_fusion
        and job.parallelism.fsdp != 2
    },
    "recompute": _recompute,
    "states": _states,
}
"""What is written of a job that no row says."""
