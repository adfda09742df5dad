"""Settings that say what one step does: precision, optimizer, recompute, dispatch, kernels."""

from projector.config.formats.megatron_settings.fields import CHOICES, MOMENT_BYTES
from projector.config.formats.megatron_settings.settings import Settings
from projector.config.formats.megatron_settings.values import integers, number, words
from projector.config.training import FUSED_UNITS
from projector.errors import ConfigError


def precision(settings: Settings) -> None:
    """Set the number formats of the GEMMs and of gradients."""
    base = _wide(settings)
    names = ["bf16", "fp16"]
    narrow = base
    if settings.has("fp8"):
        settings.read("fp8", CHOICES["fp8"])
        names.append("fp8")
        narrow = _fp8(settings)
    if settings.has("fp4"):
        names.append("fp4")
        recipe = settings.word("fp4_recipe")
        if recipe != "nvfp4":
            text = f" {recipe!r} is not supported; only nvfp4 is"
            settings.refuse("fp4_recipe", text, value=recipe, allowed=["nvfp4"])
        narrow = "nvfp4"
    settings.put("training.precision", narrow, *names)
    if narrow != base and settings.on("first_last_layers_bf16"):
        _wide_layers(settings)
    _gradients(settings, base)


def _wide(settings: Settings) -> str:
    """Return the format of what is not narrowed."""
    fp16 = settings.on("fp16")
    if settings.on("bf16") and not (settings.has("fp16") and fp16 and not settings.has("bf16")):
        return "bf16"
    return "fp16" if fp16 else "fp32"


def _fp8(settings: Settings) -> str:
    recipe = settings.choice("fp8_recipe")
    if recipe != "mxfp8":
        settings.put("training.fp8_recipe", recipe, "fp8_recipe")
    name = "no_fp8_weight_transpose_cache"
    if settings.on(name):
        settings.put("training.fp8_weight_transpose_cache", False, name)
    if settings.on("use_torch_fsdp2"):
        settings.put("training.fp8_weight_cache", True, "use_torch_fsdp2")
    return "mxfp8" if recipe == "mxfp8" else "fp8"


def _wide_layers(settings: Settings) -> None:
    first, last = "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"
    start, end = settings.integer(first, 1), settings.integer(last, 1)
    mean = (start + end + 1) // 2
    settings.put("training.first_last_layers_bf16", mean, "first_last_layers_bf16")
    if start != end:
        other = f"{settings.spell(last)} ({end})"
        settings.warn(first, f" ({start}) and {other} are projected as {mean} at each end")


def _gradients(settings: Settings, base: str) -> None:
    names = ("grad_reduce_in_bf16", "accumulate_allreduce_grads_in_fp32", "main_grads_dtype")
    reduce, accumulate, main = names
    # Megatron turns accumulation in FP32 on with BF16 whatever a file says; only the
    # switch of the command line turns it off.
    off = settings.stated.get(accumulate) is False
    aware = settings.on("use_precision_aware_optimizer")
    narrow = (
        settings.on(reduce)
        or (off and settings.dialect.label == "argument")
        or (aware and settings.word(main) == "bf16")
        or (base == "fp16" and not settings.on(accumulate))
    )
    settings.put("training.gradient_dtype", "bf16" if narrow else "fp32", *names)


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
    if settings.on("moe_layer_recompute"):
        granularity, modules = "selective", [*(modules or ["core_attn"]), "moe"]
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
        ids = _global_layers(settings, settings.read(layers, integers))
        settings.put("training.recompute.layers", ids, layers)
    elif kind == "full":
        _whole_layers(settings)


def _whole_layers(settings: Settings) -> None:
    method, count = "recompute_method", "recompute_num_layers"
    if not settings.has(method):
        spelt = settings.spell(method)
        msg = f"{settings.spell('recompute_granularity')} full needs {spelt}"
        raise ConfigError(msg, key=spelt, allowed=["uniform", "block"])
    settings.put("training.recompute.method", settings.read(method, CHOICES[method]), method)
    if settings.has(count):
        settings.put("training.recompute.num_layers", settings.integer(count), count)


def _global_layers(settings: Settings, ids: list[int]) -> list[int]:
    """Primus counts recomputed layers within a pipeline stage; here they count overall."""
    name = "recompute_layer_ids"
    pp, layers = settings.integer("pipeline_model_parallel_size", 1), settings.num_layers()
    outside = [number for number in ids if not 0 <= number < max(layers, 1)]
    if outside:
        known = f"0 to {layers - 1}"
        text = f" names layer {outside[0]}, the model has {layers} ({known})"
        settings.fail(name, text, value=outside[0], allowed=known)
    if pp <= 1 or layers % pp or not ids or max(ids) >= layers // pp:
        return ids
    settings.warn(name, f" was taken to count within each of the {pp} pipeline stages")
    return [stage * (layers // pp) + number for stage in range(pp) for number in ids]


def dispatch(settings: Settings) -> None:
    """Set how tokens travel to the experts."""
    if not settings.has("num_experts") and not settings.base_section("moe"):
        _drop_dispatch(settings)
        return
    kind_name, backend, load = (
        "moe_token_dispatcher_type",
        "moe_flex_dispatcher_backend",
        "moe_router_force_load_balancing",
    )
    turbo = settings.on("enable_primus_turbo")
    stage = settings.integer("turbo_sync_free_moe_stage") if turbo else 0
    names = [kind_name]
    kind = settings.choice(kind_name)
    if kind == "deepep" and settings.has(backend):
        kind = settings.choice(backend)
        names.append(backend)
    deepep = settings.on("moe_enable_deepep")
    if deepep or (turbo and settings.on("use_turbo_deepep")) or stage >= 2:
        kind = "deepep"
        names += ["moe_enable_deepep", "use_turbo_deepep", "turbo_sync_free_moe_stage"]
    elif settings.on("use_turbo_deepep"):
        off = f"{settings.spell('enable_primus_turbo')} is off"
        settings.warn("use_turbo_deepep", f" was ignored: {off}")
    settings.put("training.moe.dispatcher", kind, *names)
    if kind in FUSED_UNITS:
        _dispatcher_units(settings, kind, turbo=turbo and settings.on("use_turbo_deepep"))
    if stage > 0:
        # Stage 1 has fused kernels for router and permutation, but still waits for counts.
        settings.put("training.moe.permute_fusion", True, "turbo_sync_free_moe_stage")
    if stage > 1:
        settings.put("training.moe.host_sync", False, "turbo_sync_free_moe_stage")
    elif settings.on("moe_pad_expert_input_to_capacity"):
        settings.put("training.moe.host_sync", False, "moe_pad_expert_input_to_capacity")
    if settings.on(load):
        settings.put("training.moe.load", "balanced", load)


def _dispatcher_units(settings: Settings, kind: str, *, turbo: bool) -> None:
    """Set how many compute units the exchange takes, where the user says it."""
    name = f"moe_{kind}_num_sms"
    if turbo and settings.has("turbo_deepep_num_cu"):
        name = "turbo_deepep_num_cu"
    if settings.has(name):
        settings.put("training.moe.dispatcher_sms", settings.integer(name), name)


def _drop_dispatch(settings: Settings) -> None:
    """Take back what is set of the experts of a dense model."""
    training = settings.native("training")
    for field in ("permute_fusion", "fused_experts", "capacity_factor"):
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
            text = f" {scope!r} is projected as graphs of whole layers"
            settings.warn("cuda_graph_scope", text)
    backend = settings.choice("attention_backend")
    local = settings.word("transformer_impl") == "local"
    by_default = local and not settings.on("use_flash_attn") and backend == "auto"
    if backend == "unfused" or by_default:
        names = ("attention_backend", "transformer_impl")
        settings.put("training.flash_attention", False, *names)
