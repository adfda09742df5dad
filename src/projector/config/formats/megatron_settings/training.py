"""What one step does: precision, optimizer, recompute, dispatch, kernels, adapters."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from projector.config.adapter import AdapterConfig
from projector.config.formats.megatron_settings.fields import CHOICES, MOMENT_BYTES, Settings
from projector.config.formats.values import flag, integer, integers, number, words
from projector.config.resources import settings_of
from projector.config.training import FUSED_UNITS
from projector.errors import ConfigError, shown


def precision(settings: Settings) -> None:
    """Set the number formats of the GEMMs and of gradients."""
    base = _wide(settings)
    names = ["bf16", "fp16"]
    narrow = base
    if settings.has("fp8"):
        settings.read("fp8", CHOICES["fp8"])
        names.append("fp8")
        recipe = settings.choice("fp8_recipe")
        if recipe != "mxfp8":
            settings.put("training.fp8_recipe", recipe, "fp8_recipe")
        name = "no_fp8_weight_transpose_cache"
        if settings.on(name):
            settings.put("training.fp8_weight_transpose_cache", False, name)
        if settings.on("use_torch_fsdp2"):
            settings.put("training.fp8_weight_cache", True, "use_torch_fsdp2")
        narrow = "mxfp8" if recipe == "mxfp8" else "fp8"
    if settings.has("fp4"):
        names.append("fp4")
        narrow = settings.choice("fp4_recipe")
        backward = "mxfp4_backward_precision"
        if settings.has(backward) and settings.word(backward) != "mxfp4":
            given = settings.word(backward)
            text = f" {shown(given)} is not supported; both directions are projected in MXFP4"
            settings.refuse(backward, text, value=given, allowed=["mxfp4"])
    settings.put("training.precision", narrow, *names)
    if narrow != base and settings.on("first_last_layers_bf16"):
        first, last = "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"
        start, end = settings.integer(first, 1), settings.integer(last, 1)
        mean = (start + end + 1) // 2
        settings.put("training.first_last_layers_bf16", mean, "first_last_layers_bf16")
        if start != end:
            other = f"{settings.spell(last)} ({end})"
            settings.warn(first, f" ({start}) and {other} are projected as {mean} at each end")
    _gradients(settings, base)


def _wide(settings: Settings) -> str:
    fp16 = settings.on("fp16")
    if settings.on("bf16") and not (settings.has("fp16") and fp16 and not settings.has("bf16")):
        return "bf16"
    return "fp16" if fp16 else "fp32"


def _gradients(settings: Settings, base: str) -> None:
    names = ("grad_reduce_in_bf16", "accumulate_allreduce_grads_in_fp32", "main_grads_dtype")
    reduce, accumulate, main = names
    # Megatron turns accumulation in FP32 on with BF16 whatever a file says; only the
    # switch of the command line turns it off.
    off = settings.stated.get(accumulate) is False
    aware = settings.on("use_precision_aware_optimizer")
    fsdp_main = "megatron_fsdp_main_grads_dtype"
    of_fsdp = settings.on("use_megatron_fsdp") and settings.word(fsdp_main) in {"bf16", "fp16"}
    narrow = (
        settings.on(reduce)
        or (off and settings.dialect.label == "argument")
        or (aware and settings.word(main) == "bf16")
        or of_fsdp
        or (base == "fp16" and not settings.on(accumulate))
    )
    settings.put("training.gradient_dtype", "bf16" if narrow else "fp32", *names, fsdp_main)
    sent = "megatron_fsdp_grad_comm_dtype"
    if settings.on("use_megatron_fsdp") and not narrow and settings.word(sent) in {"bf16", "fp16"}:
        settings.warn(sent, " is not modelled: gradients travel as wide as they are kept")


def optimizer(settings: Settings) -> None:
    """Set the rule, the number formats of its states, and what of it the host holds."""
    settings.put("training.optimizer.name", settings.choice("optimizer"), "optimizer")
    if settings.on("use_precision_aware_optimizer"):
        _precision_aware(settings)
    else:
        for name in ("exp_avg_dtype", "exp_avg_sq_dtype"):
            if settings.word(name) != "fp32":
                aware = settings.spell("use_precision_aware_optimizer")
                settings.warn(name, f" was ignored: it needs {aware}")
    if settings.on("optimizer_cpu_offload"):
        share = settings.read("optimizer_offload_fraction", number)
        settings.put("training.optimizer.offload_fraction", share, "optimizer_cpu_offload")


def _precision_aware(settings: Settings) -> None:
    aware, mean, square = ("use_precision_aware_optimizer", "exp_avg_dtype", "exp_avg_sq_dtype")
    given = [settings.choice(name) for name in (mean, square)]
    moment = max(given, key=lambda kind: MOMENT_BYTES[kind])
    settings.put("training.optimizer.moment_dtype", moment, aware, mean, square)
    if given[0] != given[1]:
        other = f"{settings.spell(square)} {given[1]}"
        settings.warn(mean, f" {given[0]} and {other} are projected as {moment} both")
    if settings.word("main_params_dtype") != "fp32":
        settings.warn("main_params_dtype", " is projected as fp32")
    elif settings.on("bf16"):
        # Megatron then keeps only the 16 bits that the BF16 weights lack.
        settings.put("training.optimizer.master_weights", "split", aware)


def recompute(settings: Settings) -> None:
    """Set what the backward computes again."""
    kind_name, layers = "recompute_granularity", "recompute_layer_ids"
    names = [kind_name, "recompute_activations", layers]
    granularity = settings.word(kind_name)
    modules = settings.get("recompute_modules")
    if settings.on("recompute_activations"):
        granularity = "selective"
    old = [name for name in _OLD_RECOMPUTE if settings.has(name)]
    if old:
        granularity = "full"
        names += old
    if settings.on("moe_layer_recompute"):
        granularity = "selective"
        named = words(settings.spell("recompute_modules"), modules) if modules else ["core_attn"]
        modules = [*named, "moe"]
        names.append("moe_layer_recompute")
    if settings.has(layers):
        granularity = "full"
    kind = CHOICES[kind_name](settings.spell(kind_name), granularity)
    settings.put("training.recompute.granularity", kind, *names)
    if kind == "selective" and modules is not None:
        name = "recompute_modules"
        chosen = words(settings.spell(name), modules)
        settings.put("training.recompute.modules", chosen, name, *names)
    elif kind == "full" and settings.has(layers):
        settings.put("training.recompute.layers", _named_layers(settings), layers)
    elif kind == "full":
        _whole_layers(settings)


# From memory of old releases of Megatron-LM; not looked up.
_OLD_RECOMPUTE = ("activations_checkpoint_method", "checkpoint_activations")
"""Names of full recomputation before selective recomputation was known."""


def _whole_layers(settings: Settings) -> None:
    method, count = "recompute_method", "recompute_num_layers"
    if settings.on("checkpoint_activations"):
        settings.put("training.recompute.method", "uniform", "checkpoint_activations")
        return
    if settings.has(_OLD_RECOMPUTE[0]):
        method = _OLD_RECOMPUTE[0]
    elif not settings.has(method):
        spelt = settings.spell(method)
        msg = f"{settings.spell('recompute_granularity')} full needs {spelt}"
        raise ConfigError(msg, key=spelt, allowed=["uniform", "block"])
    kind = settings.read(method, CHOICES["recompute_method"])
    settings.put("training.recompute.method", kind, method)
    if settings.has(count):
        settings.put("training.recompute.num_layers", settings.integer(count), count)


def _named_layers(settings: Settings) -> list[int]:
    """Return the recomputed layers, counted from 0 over the whole model.

    MTP modules continue the numbers of the layers (Primus, ``recompute_layer_patches.py``).
    """
    name = "recompute_layer_ids"
    ids = settings.read(name, integers)
    layers = settings.num_layers()
    modules = int(settings.native("model").get("mtp_num_layers", 0))
    if not settings.has("mtp_num_layers") and settings.base is not None:
        modules = modules or int(settings.base.get("mtp_num_layers", 0))
    outside = [number for number in ids if not 0 <= number < max(layers + modules, 1)]
    if outside:
        known = f"0 to {layers - 1}"
        text = f" names layer {outside[0]}, the model has {layers} ({known})"
        settings.fail(name, text, value=outside[0], allowed=known)
    if any(number >= layers for number in ids):
        settings.warn(name, " names MTP modules, which are projected as not recomputed")
    return sorted({number for number in ids if number < layers})


def dispatch(settings: Settings) -> None:
    """Set how tokens travel to the experts."""
    if not settings.named("num_experts") and not settings.base_section("moe"):
        _drop_dispatch(settings)
        return
    kind_name, backend = "moe_token_dispatcher_type", "moe_flex_dispatcher_backend"
    turbo = settings.on("enable_primus_turbo")
    stage = _sync_free_stage(settings, turbo=turbo)
    names = [kind_name]
    kind = settings.choice(kind_name)
    if kind == "deepep" and settings.has(backend):
        kind = settings.choice(backend)
        names.append(backend)
    if settings.on("moe_enable_deepep") or (turbo and settings.on("use_turbo_deepep")):
        kind = "deepep"
        names += ["moe_enable_deepep", "use_turbo_deepep"]
    elif settings.on("use_turbo_deepep"):
        off = f"{settings.spell('enable_primus_turbo')} is off"
        settings.warn("use_turbo_deepep", f" was ignored: {off}")
    settings.put("training.moe.dispatcher", kind, *names)
    for field, value in sync_free(stage).items():
        settings.put(field, value, "turbo_sync_free_moe_stage")
    kind = settings.native("training")["moe"]["dispatcher"]
    if kind in FUSED_UNITS:
        name = f"moe_{kind}_num_sms"
        if (turbo and settings.on("use_turbo_deepep")) and settings.has("turbo_deepep_num_cu"):
            name = "turbo_deepep_num_cu"
        if settings.has(name):
            settings.put("training.moe.dispatcher_sms", settings.integer(name), name)
    if stage < 2 and settings.on("moe_pad_expert_input_to_capacity"):
        settings.put("training.moe.host_sync", False, "moe_pad_expert_input_to_capacity")
    if settings.on(name := "moe_router_force_load_balancing"):
        settings.put("training.moe.load", "balanced", name)


SYNC_FREE_STAGES: Sequence[Mapping[str, Any]] = settings_of("primus")["sync_free_stages"]
"""What each stage of Primus-Turbo's synchronisation-free experts sets."""


def sync_free(stage: int, name: str = "--sync-free-stage") -> dict[str, Any]:
    """Return the dotted fields that a stage of synchronisation-free experts sets."""
    if not 0 <= stage < len(SYNC_FREE_STAGES):
        legal = list(range(len(SYNC_FREE_STAGES)))
        msg = f"{name} is {stage}, not 0 to {legal[-1]}"
        raise ConfigError(msg, key=name, value=stage, allowed=legal)
    return {f"training.moe.{field}": value for field, value in SYNC_FREE_STAGES[stage].items()}


def _sync_free_stage(settings: Settings, *, turbo: bool) -> int:
    """Return the stage; without Primus-Turbo it is 0."""
    name = "turbo_sync_free_moe_stage"
    stage = settings.integer(name)
    sync_free(stage, settings.spell(name))
    if stage and not turbo:
        settings.warn(name, f" was ignored: {settings.spell('enable_primus_turbo')} is off")
        return 0
    return stage


def _drop_dispatch(settings: Settings) -> None:
    """Take back what is set of the experts of a dense model."""
    training = settings.native("training")
    for field in ("permute_fusion", "fused_experts", "padding_fusion", "capacity_factor"):
        training.get("moe", {}).pop(field, None)
        settings.origins.pop(f"training.moe.{field}", None)
    if not training.get("moe", True):
        del training["moe"]


def kernels(settings: Settings) -> None:
    """Set graphs and the kernel of attention."""
    graphs = ("enable_cuda_graph", "external_cuda_graph", "cuda_graph_impl")
    impl = settings.word("cuda_graph_impl")
    if any(map(settings.on, graphs[:2])) or impl not in {"none", "None"}:
        settings.put("training.cuda_graphs", True, *graphs)
        scope = settings.get("cuda_graph_scope")
        if scope not in (None, "full", "full_iteration", ["full"], ["full_iteration"]):
            settings.warn("cuda_graph_scope", f" {scope!r} is projected as graphs of whole layers")
    backend = settings.choice("attention_backend")
    local = settings.word("transformer_impl") == "local"
    by_default = local and not settings.on("use_flash_attn") and backend == "auto"
    if backend == "unfused" or by_default:
        names = ("attention_backend", "transformer_impl")
        settings.put("training.flash_attention", False, *names)
    softmax = "masked_softmax_fusion"
    if settings.stated.get(softmax) is not None and not settings.on(softmax):
        if settings.native("training").get("flash_attention") is False:
            settings.warn(softmax, " is not modelled: softmax is projected as one kernel")
        else:
            settings.ignored.append(settings.spell(softmax))  # attention is one kernel


# Adapters: the mapping ``lora`` of Primus, as Megatron-Bridge has it.

ADAPTERS: Final = frozenset({"lora", "peft"})
"""Settings that say what has adapters."""

_LORA: Final[Mapping[str, Any]] = settings_of("adapters")["megatron"]


def adapter(settings: Settings) -> None:
    """Set the adapters; a mapping that is not enabled has none."""
    for name in sorted(ADAPTERS):
        value = settings.stated.get(name)
        if value in (None, False, {}):
            continue
        if not isinstance(value, Mapping):
            settings.fail(name, " is a mapping of settings", value=value, allowed="a mapping")
        if flag(f"{settings.spell(name)}.enabled", value.get("enabled", True)):
            settings.put("training.adapter", _read_adapter(settings, name, value), name)


def _read_adapter(settings: Settings, name: str, stated: Mapping[str, Any]) -> dict[str, Any]:
    adapter: dict[str, Any] = {}
    target = str(stated.get("_target_", "")).rpartition(".")[2]
    if target:
        adapter["kind"] = _LORA["classes"].get(target, target)
    for key, value in stated.items():
        if key in _LORA["fields"].split():
            adapter[AdapterConfig.aliases.get(key, key)] = value
        elif key == "normalize_moe_lora":
            if value:
                adapter["expert_rank"] = _expert_rank(settings, name, stated)
        elif key not in _LORA["harmless"].split() and value:
            why = _LORA["refused"].get(key, "it is not known")
            settings.refuse(name, f".{key} is not modelled: {why}", value=value)
    return {field: value for field, value in adapter.items() if value is not None}


def _expert_rank(settings: Settings, name: str, stated: Mapping[str, Any]) -> int:
    """Return the rank beside routed experts, divided by how many of them a token visits."""
    moe = {**(settings.base_section("moe") or {}), **settings.native("model").get("moe", {})}
    dim = stated.get("dim")
    rank = 32 if dim is None else integer(f"{settings.spell(name)}.dim", dim)
    topk = max(1, int(moe.get("router_topk", 1)))
    if rank % topk:
        text = f".dim ({rank}) is divided by the {topk} experts of a token (normalize_moe_lora)"
        settings.fail(name, text, value=rank, allowed=f"a multiple of {topk}")
    return rank // topk
