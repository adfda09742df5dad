"""Settings that describe the architecture, over a base one or without, and how it is split."""

import math
import re
from collections.abc import Mapping
from typing import Any

from projector.config.formats import values
from projector.config.formats.megatron_settings import fields
from projector.config.formats.megatron_settings.fields import Settings
from projector.config.formats.read_job import Derived, section_of
from projector.config.formats.values import flag, number, words
from projector.config.model import PATTERN
from projector.config.resources import settings_of

_TABLE = settings_of("megatron")

WIDTHS: Mapping[str, Mapping[str, tuple[str, int]]] = _TABLE["widths"]
"""Part of a model -> its field -> setting and Megatron's default."""


def layer_spec(settings: Settings) -> None:
    """Judge a specification of layers, which is Python code, by its name."""
    if not settings.has("spec"):
        return
    text = " ".join(settings.read("spec", words))
    if not re.search("gpt|^local$|mamba|hybrid", text, re.IGNORECASE):
        settings.warn("spec", f" {text} is projected as Megatron's GPT layers")


def required(settings: Settings) -> None:
    """Leave to the user what the file must state and does not."""
    for name, section in fields.REQUIRED.items():
        if settings.has(name) or (section == "model" and settings.base is not None):
            continue
        spelt = settings.spell(name)
        needed = "to describe the model" if section == "model" else "to describe a step"
        text = f" is missing; it is needed {needed}"
        settings.leave_open(fields.OPEN[name], name, text, allowed=f"{spelt} with an integer")


def mlp(settings: Settings) -> None:
    """Set activation and width of the dense MLP."""
    names = ("swiglu", "squared_relu", "quick_geglu")
    if settings.applies(*names):
        meanings = {"swiglu": "swiglu", "quick_geglu": "geglu", "squared_relu": "squared_relu"}
        kind = next((ours for name, ours in meanings.items() if settings.on(name)), "gelu")
        settings.put("model.activation", kind, *names)
    if settings.base is not None or settings.has("ffn_hidden_size"):
        return
    if settings.has("hidden_size"):
        settings.put(
            "model.ffn_hidden_size", _usual_width(settings, settings.integer("hidden_size"))
        )
    elif "model.ffn_hidden_size" not in settings.missing:
        settings.derived.append(lambda job: _derived_width(settings, job))


def _usual_width(settings: Settings, hidden: int) -> int:
    return int((4 * hidden * 2 / 3) / 64) * 64 if settings.on("swiglu") else 4 * hidden


def _derived_width(settings: Settings, job: dict[str, Any]) -> Derived:
    hidden = section_of(job, "model").get("hidden_size")
    if not isinstance(hidden, int):
        return {}
    return {"model.ffn_hidden_size": (_usual_width(settings, hidden), settings.dialect.origin)}


def biases(settings: Settings) -> None:
    """Set which projections of attention have a bias."""
    names = ("add_bias_linear", "add_qkv_bias")
    if settings.applies(*names):
        bias = settings.on("add_bias_linear")
        qkv = "qkv" if settings.on("add_qkv_bias") else "none"
        settings.put("model.attention_bias", "qkv+out" if bias else qkv, *names)


def query_groups(settings: Settings) -> None:
    """Set the key/value heads."""
    switch, groups = names = ("group_query_attention", "num_query_groups")
    if not settings.applies(*names):
        return
    off = settings.has(switch) and not settings.on(switch)
    if settings.on(switch) or (settings.base is not None and settings.has(groups) and not off):
        settings.put("model.num_query_groups", settings.integer(groups, 1), *names)
    elif settings.base is not None and off:
        settings.put("model.num_query_groups", None, switch)
    elif settings.base is None and settings.has(groups):
        settings.warn(groups, f" was ignored, as Megatron does without {settings.spell(switch)}")


def positions(settings: Settings) -> None:
    """Set the kind of position information."""
    kind, rotary, learned, gpt_oss = names = (
        "position_embedding_type",
        "use_rotary_position_embeddings",
        "add_position_embedding",
        "enable_gpt_oss",
    )
    if not settings.applies(kind, rotary, gpt_oss):
        return
    embedding = settings.read(kind, fields.CHOICES[kind])
    # That switch brings YaRN along: NVIDIA/Megatron-LM, megatron/post_training/arguments.py.
    if settings.on(rotary) or (settings.on(gpt_oss) and not settings.has(kind)):
        embedding = "rope"
    elif embedding == "learned" and settings.stated.get(learned) is False:
        embedding = "none"
    settings.put("model.position_embedding", embedding, *names)


LATENT_LENGTH = 4096
"""Length that YaRN of multi-head latent attention starts from; no argument of Megatron-LM sets it
(``MLATransformerConfig`` of megatron/core/transformer/transformer_config.py)."""


def layers_of_period(freq: int, layers: int) -> list[int]:
    """Return 1 for the last of every so many layers, 0 for others; 0 means none."""
    return [int(freq > 0 and layer % freq == 0) for layer in range(1, layers + 1)]


def rotations(settings: Settings) -> None:
    """Set how rotations reach longer sequences, and the layers that have none."""
    name = "no_rope_freq"
    freq = settings.read(name, values.layer_pattern) if settings.has(name) else 0
    if isinstance(freq, list):
        pattern, freq = freq, freq.index(1) + 1 if 1 in freq else 0
        if pattern != layers_of_period(freq, len(pattern)):
            settings.warn(name, " is no period of layers; a file written again has none")
            freq = 0
    if freq or settings.overrides(name):
        settings.put("model.no_rope_freq", freq or None, name)
    kind = "position_embedding_type"
    if settings.applies("use_rope_scaling") and settings.on("use_rope_scaling"):
        name = "rope_scaling_factor"
        factor = settings.read(name, number) if settings.has(name) else 8.0
        # megatron/core/models/common/embeddings/rotary_pos_embedding.py has this length.
        found = {"kind": "llama3", "factor": factor, "original_max_position_embeddings": 8192}
        settings.put("model.rope_scaling", found, "use_rope_scaling")
        return
    name = "rotary_seq_len_interpolation_factor"
    if settings.has(name) and settings.read(name, number) > 1:
        found = {"kind": "linear", "factor": settings.read(name, number)}
        settings.put("model.rope_scaling", found, name)
        return
    factor_name = "rotary_scaling_factor"
    yarn = settings.word(kind) == "yarn" or settings.latent()
    if not yarn or not settings.has(factor_name) or settings.read(factor_name, number) <= 1:
        return
    prefix = "yarn_" if settings.word(kind) == "yarn" else ""
    length = f"{prefix}original_max_position_embeddings"
    found = {"kind": "yarn", "factor": settings.read(factor_name, number)}
    if settings.has(length):
        found["original_max_position_embeddings"] = settings.integer(length)
    elif settings.latent():
        found["original_max_position_embeddings"] = LATENT_LENGTH
    # Latent attention has no argument of these.
    bounds = ("yarn_beta_fast", "yarn_beta_slow") if prefix else ()
    for name in ("mscale", "mscale_all_dim", *bounds):
        if settings.has(name):
            found[name.removeprefix(prefix)] = settings.read(name, number)
    name = "yarn_correction_range_round_to_int"
    if prefix and settings.has(name):
        found["truncate"] = settings.on(name)
    settings.put("model.rope_scaling", found, factor_name)


def window(settings: Settings) -> None:
    """Set attention sinks and sliding windows."""
    names = ("softmax_type", "use_sink_attention")
    sinks = settings.word("softmax_type") == "learnable" or settings.on("use_sink_attention")
    if sinks or settings.overrides(*names):
        settings.put("model.attention_sinks", sinks, *names)
    found = _window(settings, settings.num_layers())
    names = ("window_size", "sink_sliding_window")
    if found is not None and (found[0] or settings.overrides(*names)):
        width, windowed = found
        settings.put("model.sliding_window", width, *names)
        settings.put("model.sliding_window_layers", windowed if width else 0, *names)


def _window(settings: Settings, layers: int) -> tuple[int, int] | None:
    """Return width and number of the windowed layers, None where nothing is said of them."""
    if settings.has("window_size"):
        widths = settings.read("window_size", values.integers)
        if not widths:
            given = settings.get("window_size")
            raise values.bad(settings.spell("window_size"), given, "two integers")
        return max(0, widths[0]), _windowed_layers(settings, layers)
    if settings.on("use_sink_attention") and settings.has("sink_sliding_window"):
        every_other = settings.get("sink_window_even_layers_only") in (None, True)
        windowed = (layers + 1) // 2 if every_other else layers
        return settings.integer("sink_sliding_window"), windowed
    return (0, 0) if "window_size" in settings.stated else None


def _windowed_layers(settings: Settings, layers: int) -> int:
    name = "window_attn_skip_freq"
    pattern = settings.read(name, values.layer_pattern) if settings.has(name) else 0
    if isinstance(pattern, list):
        return sum(1 for item in pattern if item)
    if pattern > 0:
        return sum(1 for layer in range(1, layers + 1) if layer % pattern)
    return layers


def further(settings: Settings) -> None:
    """Set the norms of queries and keys, and what Megatron's own None means."""
    name = "qk_layernorm"
    if settings.latent():
        pass
    elif settings.on(name):
        settings.put("model.qk_norm", "head", name)
    elif settings.overrides(name):
        settings.put("model.qk_norm", "none", name)
    for field in fields.FIELDS:
        if settings.overrides(field.name) and not settings.has(field.name):
            settings.put_none(field)


def experts(settings: Settings) -> None:
    """Set the mixture of experts, or take it out of the base architecture."""
    base = settings.base_section("moe")
    named = settings.named("num_experts")
    if base and "num_experts" in settings.stated and not named:
        settings.job.setdefault("model", {})["moe"] = None
        return
    if base is None and not named:
        return
    settings.take(fields.EXPERT_FIELDS, over=base)
    if base is None and not settings.has("moe_ffn_hidden_size"):
        dense = settings.base_section("ffn_hidden_size")
        width = settings.native("model").get("ffn_hidden_size", dense)
        if width is not None:
            settings.put("model.moe.ffn_hidden_size", width, "moe_ffn_hidden_size")
    bias, expert_bias = "add_bias_linear", "moe_router_enable_expert_bias"
    if settings.applies(bias) or settings.has(expert_bias):
        # A projection with a bias where linear layers have one, and a buffer beside it that
        # balances experts (TopKRouter of megatron/core/transformer/moe/router.py).
        settings.put(
            "model.moe.router_bias", any(map(settings.on, (bias, expert_bias))), expert_bias
        )
    name = "moe_grouped_gemm"
    if settings.get(name) is not None and not settings.on(name):
        text = "Megatron runs the experts one by one, they are projected with grouped GEMMs"
        settings.warn(name, f" is off: {text}")


def latent_attention(settings: Settings) -> None:
    """Set multi-head latent attention, or take it out of the base architecture."""
    base: dict[str, Any] | None = settings.base_section("mla")
    if not settings.latent():
        if base:
            switch = "multi_latent_attention"
            settings.put("model.mla", None, switch)
            if not settings.has("kv_channels") and "kv_channels" not in (settings.base or {}):
                settings.put("model.kv_channels", base["v_head_dim"], switch)
        return
    settings.take(fields.LATENT_FIELDS, over=base)


def chosen_keys(settings: Settings) -> None:
    """Set the indexer of DeepSeek Sparse Attention."""
    if settings.word("experimental_attention_variant") != "dsa" or not settings.latent():
        return
    for field, (name, usual) in WIDTHS["indexer"].items():
        settings.put(f"model.mla.{field}", settings.integer(name, usual), name)


def hybrid(settings: Settings) -> None:
    """Set layers of several kinds: a pattern of letters, a share of attention, or linear attention.

    ``--spec`` says what M is: Mamba-2, or with Primus also a gated delta net or Kimi's.
    """
    spec = " ".join(settings.read("spec", words)).lower() if settings.has("spec") else ""
    mixer = next((name for name in ("gdn", "kda") if name in spec), "mamba2")
    letters = _letters(settings, spec)
    hidden = settings.base_section("hidden_size") or settings.integer("hidden_size")
    if letters:
        kinds = [mixer if letter == "M" else PATTERN[letter] for letter in letters]
        mixer = "mamba2" if "mamba2" in kinds else "gdn"
    elif settings.has("linear_attention_freq"):
        kinds, mixer = _linear_layers(settings), "gdn"
    else:
        return
    settings.put("model.layer_types", kinds, *_PATTERNS, "linear_attention_freq")
    if {"attention", "mlp", "experts"}.issuperset(kinds):
        return
    named = WIDTHS["states" if mixer == "mamba2" else "linear"]
    found = {field: settings.integer(name, usual) for field, (name, usual) in named.items()}
    if not found["num_heads"]:
        found["num_heads"] = max(1, 2 * hidden // found["head_dim"])
    settings.put("model.recurrent", found, *(name for name, _ in named.values()))


_PATTERNS = ("hybrid_layer_pattern", "hybrid_override_pattern", "hybrid_attention_ratio")


def _letters(settings: Settings, spec: str) -> str:
    """Return a letter for each layer, ``""`` for a model of transformer layers."""
    for name in _PATTERNS[:2]:
        if settings.has(name):
            stages, _, modules = settings.word(name).partition("/")
            letters = stages.replace("|", "")
            if set(letters) - PATTERN.keys() or not letters:
                raise values.bad(
                    settings.spell(name), settings.get(name), f"letters of {''.join(PATTERN)}"
                )
            behind = modules.split("/") if modules else []
            if behind:
                settings.put("model.mtp_num_layers", len(behind), name)
            if {*behind} - {"*E", "+E", "*-", "+-"}:
                text = "is projected with attention and a feed-forward"
                settings.warn(name, f": a module behind /, {behind[0]}, {text}")
            if not settings.has("num_layers"):
                settings.missing.pop("model.num_layers", None)
                settings.put("model.num_layers", len(letters), name)
            return letters
    layers, is_mamba = settings.num_layers(), "mamba" in settings.word("model_type")
    if not settings.on("is_hybrid_model"):
        return "M" * layers if is_mamba or "mamba_stack" in spec else ""
    share = settings.read(_PATTERNS[2], number) if settings.has(_PATTERNS[2]) else 0.0
    if "primus" in spec:
        # Every mixer has an MLP behind it (hybrid_block.py of Primus).
        blocks = layers // 2
        attending = int(blocks * share)
        each = blocks // attending if attending else blocks
        pairs = "".join("*-" if attending and i % each == 0 else "M-" for i in range(blocks))
        return pairs + "M" * (layers % 2)
    # Kinds are spread evenly; where exactly changes no stage by much.
    fed = settings.read("hybrid_mlp_ratio", number) if settings.has("hybrid_mlp_ratio") else 0.0
    kinds = [
        letter
        for letter, part in (("*", share), ("-", fed), ("M", 1.0 - share - fed))
        for _ in range(round(layers * part))
    ]
    return "".join(kinds[i] for i in sorted(range(len(kinds)), key=lambda i: i * 7 % len(kinds)))


def _linear_layers(settings: Settings) -> list[str]:
    """Return kinds of layers: each so many have softmax attention, or a list of 0 and 1 says it."""
    name, variant = "linear_attention_freq", "experimental_attention_variant"
    if settings.word(variant) not in {"gdn", "gated_delta_net"}:
        settings.refuse(variant, ": of linear attention only gated_delta_net is modelled")
    freq, layers = settings.read(name, values.layer_pattern), settings.num_layers()
    linear = (
        [layer % freq != 0 for layer in range(1, layers + 1)]
        if isinstance(freq, int) and freq > 0
        else [bool(flag) for flag in freq]
    )
    moe = settings.native("model").get("moe")
    pattern = moe.get("layer_freq", 1) if moe else 0
    is_moe = (
        [moe is not None and layer % pattern == 0 for layer in range(layers)]
        if isinstance(pattern, int)
        else pattern
    )
    behind = ["moe" if flag else "dense" for flag in is_moe]
    return [f"gdn_{b}" if flag else b for flag, b in zip(linear, behind, strict=False)]


_NO_TOKENIZER = "NullTokenizer"


def vocabulary(settings: Settings) -> None:
    """Set the vocabulary, as it is or to be padded."""
    padded, size, multiple = "padded_vocab_size", "vocab_size", "make_vocab_size_divisible_by"
    if settings.has(padded):
        settings.put("model.vocab_size", settings.integer(padded), padded)
        settings.put("model.make_vocab_size_divisible_by", None, padded)
        return
    if settings.has(size):
        # Megatron's stand-in for a tokenizer adds the end of a document to the tokens.
        ended = settings.get("tokenizer_type") == _NO_TOKENIZER
        settings.put("model.vocab_size", settings.integer(size) + ended, size)
    elif settings.base is None:
        name = settings.spell(size)
        text = (
            " is missing: the vocabulary's size cannot be read from a tokenizer's name; "
            f"add {name} (for example 128256 for Llama 3)"
        )
        allowed = f"{name} with the number of tokens"
        settings.leave_open("model.vocab_size", size, text, allowed=allowed)
    if settings.get(multiple) is not None:
        settings.put(f"model.{multiple}", settings.integer(multiple), multiple)


def diffusion(settings: Settings) -> None:
    """Set the layers of Flux, as Primus trains it, and what they are told beside the latents.

    Widths that a file leaves out are those of ``FluxConfig``. Sequences come from the data: text as
    long as the encoder makes it, and latents of an image, of 16 pixels each way.
    """
    kind, base = settings.word("model_type").lower(), settings.base_section("diffusion")
    joint, single = "num_joint_layers", "num_single_layers"
    if base is None and not settings.has(joint):
        if kind in _TABLE["diffusion_types"].split():
            settings.refuse("model_type", f": of diffusion models only Flux is read ({joint})")
        return
    model = settings.native("model")
    for name in ("vocab_size", "make_vocab_size_divisible_by", "num_layers"):
        model.pop(name, None)
        settings.missing.pop(f"model.{name}", None)
    text = 256 if "schnell" in kind else 512
    if base is None:
        layers = {name: settings.integer(name) for name in (joint, single)}
        kinds = ["double_stream"] * layers[joint] + ["single_stream"] * layers[single]
        settings.put("model.layer_types", kinds, joint)
        settings.put("model.num_layers", len(kinds), joint)
        widths = {
            field: settings.integer(name, usual) for field, (name, usual) in WIDTHS["flux"].items()
        }
        settings.put("model.diffusion", widths | {"text_tokens": text}, joint)
        hidden = settings.integer("hidden_size", 3072)
        for field, value in {**_TABLE["flux_layers"], "ffn_hidden_size": 4 * hidden}.items():
            if not settings.has(field):
                settings.put(f"model.{field}", value)
    elif kind:
        settings.put("model.diffusion.text_tokens", text, "model_type")
    if settings.has("guidance_embed"):
        settings.put("model.diffusion.guidance", settings.on("guidance_embed"), "guidance_embed")
    mock = settings.get("mock_dataset")
    side = mock.get("params", {}).get("image_size") if isinstance(mock, Mapping) else None
    if isinstance(side, int) and settings.on("mock_data"):
        tokens = text + (side // 16) ** 2
        settings.put("training.seq_length", tokens, "mock_dataset")
        settings.warn("mock_dataset", f": images of {side} make sequences of {tokens} tokens")
    compiled = settings.get("torch_compile")
    if isinstance(compiled, Mapping) and flag("torch_compile.enable", compiled.get("enable")):
        settings.put("training.torch_compile", True, "torch_compile")


RULES = (
    required,
    mlp,
    biases,
    query_groups,
    positions,
    rotations,
    window,
    further,
    experts,
    latent_attention,
    chosen_keys,
    hybrid,
    vocabulary,
    diffusion,
)
"""The order in which the rules look at the settings."""


# How a job is split, and the schedule of its pipeline.


def layout_stages(layout: str) -> int:
    """Count the stages (model chunks) of a layout string."""
    groups = re.finditer(r"\(([^()]*)\)\*(\d+)", layout)
    repeated = [match[1].count("|") * (int(match[2]) - 1) for match in groups]
    return layout.count("|") + sum(repeated) + 1


def virtual_stages(settings: Settings) -> None:
    """Set the model chunks of a rank: by a layout, by their number, or by their layers."""
    pp = settings.integer("pipeline_model_parallel_size", 1)
    name = "pipeline_model_parallel_layout"
    if settings.has(name):
        layout = settings.read(name, values.pipeline_layout)
        settings.put(f"parallelism.{name}", layout, name)
        stages = layout_stages(layout)
        if stages % max(pp, 1):
            text = f" has {stages} stages, not a multiple of PP {pp}"
            settings.fail(name, text, value=layout)
        settings.put("parallelism.vpp", stages // max(pp, 1), name)
        return
    for name in ("num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size"):
        if settings.has(name):
            settings.put("parallelism.vpp", settings.integer(name), name)
            return
    name = next(filter(settings.has, _PATTERNS[:2]), "")
    cut = [len(part) for part in settings.word(name).partition("/")[0].split("|")]
    if pp > 1 and len(cut) > 1:
        _cut_pattern(settings, name, cut, pp)
        return
    name = "num_layers_per_virtual_pipeline_stage"
    if not settings.has(name):
        return
    if settings.missing.keys() & {"model.num_layers", "parallelism.pp"}:
        settings.leave_open("parallelism.vpp", name, " hangs on the layers of a stage")
        return
    layers = settings.num_layers() + settings.on("account_for_embedding_in_pipeline_split")
    layers += settings.on("account_for_loss_in_pipeline_split")
    length = settings.integer(name)
    if length < 1 or pp < 1 or layers % (pp * length):
        text = f" ({length}) times PP ({pp}) does not divide {layers} layers"
        settings.fail(name, text, value=length)
    settings.put("parallelism.vpp", layers // (pp * length), name)


def _cut_pattern(settings: Settings, name: str, stages: list[int], pp: int) -> None:
    """Set the stages that | cuts a pattern of layers into."""
    if len(stages) % pp:
        text = f" has {len(stages)} stages, not a multiple of PP {pp}"
        settings.fail(name, text, value=settings.get(name))
    settings.put("parallelism.vpp", len(stages) // pp, name)
    least, longer = divmod(sum(stages), len(stages))
    if stages != [least + (stage < longer) for stage in range(len(stages))]:
        modules = "m" * int(settings.native("model").get("mtp_num_layers") or 0)
        layout = "|".join(f"t*{layers}" for layers in stages)
        layout = f"E{layout}{modules}L"
        settings.put("parallelism.pipeline_model_parallel_layout", layout, name)


def context(settings: Settings) -> None:
    """Warn of an exchange of keys and values on two levels."""
    if settings.word("cp_comm_type") == "a2a+p2p":
        settings.warn("cp_comm_type", " a2a+p2p is projected as a2a")


def sharding(settings: Settings) -> None:
    """Set what data parallelism divides."""
    strategy, fsdp = "data_parallel_sharding_strategy", "use_megatron_fsdp"
    if settings.on("use_torch_fsdp2"):
        settings.put("parallelism.fsdp", 2, "use_torch_fsdp2")
        return
    if settings.on(fsdp):
        settings.put("parallelism.zero_stage", settings.choice(strategy), fsdp)
        return
    if settings.word(strategy) != "no_shard":
        settings.warn(strategy, f" was ignored: it only works with {settings.spell(fsdp)}")
    name = "use_distributed_optimizer"
    settings.put("parallelism.zero_stage", int(settings.on(name)), name)


def schedule(settings: Settings) -> None:
    """Set the order of the pipeline's work."""
    zero_bubble = settings.on("patch_zero_bubble")
    if settings.on("patch_primus_pipeline") and settings.has("pp_algorithm"):
        kind = settings.read("pp_algorithm", fields.CHOICES["pp_algorithm"])
        if kind == "interleaved" and settings.native("parallelism").get("vpp", 1) <= 1:
            kind = "1f1b"
        settings.put("training.schedule", kind, "pp_algorithm")
    elif zero_bubble and settings.on(name := "enable_1f1b_v"):
        settings.put("training.schedule", "1f1b-v", name)
        settings.put("parallelism.vpp", 2, name)
    elif zero_bubble and settings.on(name := "zero_bubble_v_schedule"):
        setup = f"{name}_mem_setup"
        settings.put("training.schedule", settings.choice(setup), name, setup)
        settings.put("parallelism.vpp", 2, name)
    elif zero_bubble and settings.on(name := "enable_zero_bubble"):
        settings.put("training.schedule", "zerobubble", name)
    # Only the zero-bubble runtime looks at these.
    if zero_bubble and settings.on(name := "enable_optimizer_post_validation"):
        settings.put("training.optimizer_post_validation", True, name)
    name = "zero_bubble_max_pending_backward"
    if zero_bubble and settings.has(name) and settings.word(name) != "auto":
        settings.put(f"training.{name}", settings.integer(name), name)


def batch(settings: Settings) -> None:
    """Megatron's default global batch is one microbatch for each data-parallel rank."""
    name = "global_batch_size"
    if settings.has(name):
        return
    text = " is missing, and nothing says how many GPUs a node has"
    settings.leave_open("training.global_batch_size", name, text, allowed="an integer")
    settings.derived.append(lambda job: _one_microbatch_each(settings, job))


def _one_microbatch_each(settings: Settings, job: dict[str, Any]) -> Derived:
    """Return the global batch of a job with one microbatch on each data-parallel rank."""
    cluster, split = section_of(job, "cluster"), section_of(job, "parallelism")
    world = _count(cluster, "gpus_per_node", 0) * _count(cluster, "nodes", 1)
    ranks = math.prod(_count(split, name, 1) for name in ("tp", "pp", "cp"))
    micro = _count(section_of(job, "training"), "micro_batch_size", 0)
    if not world or not micro or ranks < 1 or world % ranks:
        return {}
    return {"training.global_batch_size": (micro * (world // ranks), settings.dialect.origin)}


def _count(section: Mapping[str, Any], name: str, default: int) -> int:
    value = section.get(name, default)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
