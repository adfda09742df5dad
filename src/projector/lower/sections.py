"""The columns of what a job says: the casts and units of its sections but its cluster."""

import math
from collections.abc import Iterable
from operator import attrgetter

from projector.config._base import values_of
from projector.config.adapter import SITES, model_sites
from projector.config.model import ModelConfig
from projector.config.parallelism import ParallelismConfig
from projector.config.run import RunConfig, run_default
from projector.config.training import (
    FUSED_UNITS,
    RECOMPUTE_MODULES,
    MoETrainingConfig,
    TrainingConfig,
)
from projector.kernels.device import MATRIX_TYPES, OPERAND_BYTES
from projector.lower import sharing
from projector.lower.columns import Declare, SectionColumns
from projector.lower.placement import ORDERS
from projector.lower.stages import LayerSettings, LayerSplit, uses_fp8_attention, uses_narrow

FP8_RECIPES = values_of(TrainingConfig, "fp8_recipe")
TP_OVERLAPS = ("none", "user_buffers", "async_tp")
"""How tensor-parallel collectives hide beside their GEMM."""

CP_TYPES = values_of(ParallelismConfig, "cp_comm_type")
DISPATCHERS = values_of(MoETrainingConfig, "dispatcher")
FUSED_DISPATCHERS = tuple(DISPATCHERS.index(name) for name in FUSED_UNITS)
ATTENTION_BIASES = values_of(ModelConfig, "attention_bias")
DROPOUTS = ("none", "pre", "post")
QK_NORMS = values_of(ModelConfig, "qk_norm")

DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
MASTER_BYTES = {"fp32": 4.0, "split": 2.0, "shared": 0.0, "none": 0.0}
MOMENTS = {"adam": 2, "sgd": 1, "muon": 1}

MOST = 1 << 62
"""What is beyond stands for as many as there can be."""


def parameter_bytes(training: TrainingConfig) -> float:
    """Bytes of a weight on the wire and where it is used."""
    if training.fp8_param_gather:
        return 1.0
    return 4.0 if training.precision == "fp32" else 2.0


def _held_weight_bytes(training: TrainingConfig) -> float:
    """Bytes of a weight as a rank stores it, which may be wider than what it gathers."""
    return 4.0 if training.optimizer.master_weights == "shared" else parameter_bytes(training)


def _state_bytes(training: TrainingConfig) -> float:
    """Bytes of optimizer state for each parameter."""
    optimizer = training.optimizer
    master = MASTER_BYTES[optimizer.master_weights]
    moments = MOMENTS[optimizer.name] * DTYPE_BYTES[optimizer.moment_dtype]
    return (master if parameter_bytes(training) < 4.0 else 0.0) + moments


def _quantise_bytes(training: TrainingConfig) -> float:
    """Traffic of quantising a weight row- and column-wise, once a step."""
    operand = float(OPERAND_BYTES[MATRIX_TYPES.index(training.precision)])
    return 2.0 + 2.0 * operand if uses_narrow(training) else 0.0


def _bits(sites: Iterable[str]) -> int:
    return sum(1 << SITES.index(site) for site in sites)


def _recompute_unit(training: TrainingConfig) -> int:
    """Layers that are recomputed together."""
    recompute = training.recompute
    return recompute.num_layers or 1 if recompute.method == "uniform" else 1


_model = Declare[ModelConfig, ModelConfig]()
_split = Declare[ParallelismConfig, ParallelismConfig]()
_training = Declare[TrainingConfig, TrainingConfig]()
_run = Declare[RunConfig, RunConfig]()


class ModelColumns(SectionColumns[ModelConfig]):
    """Architectures."""

    num_layers = _model.ints("num_layers")
    hidden = _model.ints("hidden_size")
    ffn = _model.ints("ffn_hidden_size")
    gated = _model.ints("gated")
    mlp_bias = _model.ints("mlp_bias")
    # Inputs of its activation are clamped. [flag]
    clamped = _model.ints(lambda m: m.activation_clamp > 0.0)
    heads = _model.ints("num_attention_heads")
    query_groups = _model.ints("query_groups")
    # Key and value heads of the attention kernel; latents are unfolded to all of them. [heads]
    key_heads = _model.ints(lambda m: m.num_attention_heads if m.mla else m.query_groups)
    # Width of a query or key head. [elements]
    d_qk = _model.ints(
        lambda m: m.mla.qk_head_dim + m.mla.qk_pos_emb_head_dim if m.mla else m.head_dim
    )
    d_v = _model.ints("head_dim")
    rope = _model.ints(lambda m: m.position_embedding == "rope")  # Rotates Q and K. [flag]
    # Has a table of positions. [flag]
    learned = _model.ints(lambda m: m.position_embedding == "learned")
    attention_bias = _model.code("attention_bias", ATTENTION_BIASES)
    qk_norm = _model.code("qk_norm", QK_NORMS)
    output_gate = _model.ints("attention_output_gate")
    sinks = _model.ints("attention_sinks")
    window = _model.ints("sliding_window")
    # Scale, and shift. [vectors]
    norm_parameters = _model.ints(lambda m: 1 if m.normalization == "rmsnorm" else 2)
    norms = _model.ints("norms_per_layer")
    is_mla = _model.ints(lambda m: m.mla is not None)  # Has latent attention. [flag]
    q_lora = _model.ints("mla.q_lora_rank", none=0)
    kv_lora = _model.ints("mla.kv_lora_rank", none=0)
    d_nope = _model.ints("mla.qk_head_dim", none=0)
    d_rope = _model.ints("mla.qk_pos_emb_head_dim", none=0)
    index_heads = _model.ints("mla.index_heads", none=0)
    index_width = _model.ints("mla.index_head_dim", none=0)
    index_topk = _model.ints("mla.index_topk", none=0)
    is_moe = _model.ints(lambda m: m.moe is not None)  # Has mixture-of-experts layers. [flag]
    # Has a dense MLP. [flag]
    has_mlp = _model.ints(lambda m: m.diffusion is not None or "dense" in m.feed_forwards)
    vision_hidden = _model.ints("vision.hidden_size", none=0)
    vision_ffn = _model.ints("vision.ffn_hidden_size", none=0)
    vision_heads = _model.ints("vision.num_attention_heads", none=0)
    vision_patch = _model.ints("vision.patch_size", none=0)
    vision_patches = _model.ints("vision.patches", none=0)
    vision_images = _model.ints("vision.images", none=0)
    vision_merge = _model.ints("vision.merge", none=0)
    vision_inner = _model.ints("vision.inner_size", none=0)
    vision_gated = _model.ints("vision.gated", none=0)
    # Scale, and shift. [vectors]
    vision_norm = _model.ints(
        lambda m: 1 + (m.vision.normalization == "layernorm") if m.vision else 0
    )
    vision_learned = _model.ints("vision.learned_positions", none=0)
    vision_frozen = _model.ints("vision.frozen", none=0)
    state_heads = _model.ints("recurrent.num_heads", none=0)
    state_width = _model.ints("recurrent.head_dim", none=0)
    state_groups = _model.ints("recurrent.num_groups", none=0)
    state_size = _model.ints("recurrent.state_size", none=0)
    state_conv = _model.ints("recurrent.conv_kernel", none=0)
    # 0 is what the kernels take. [tokens]
    state_chunk = _model.ints(lambda m: (m.recurrent.chunk_size or 0) if m.recurrent else 0)
    state_rank = _model.ints("recurrent.dt_rank", none=0)
    state_norm = _model.ints("recurrent.gated_norm", none=0)
    experts = _model.ints("moe.num_experts", none=0)
    topk = _model.ints("moe.router_topk", none=0)
    # Width of what experts read. [elements]
    expert_hidden = _model.ints(lambda m: (m.moe.latent_size if m.moe else 0) or m.hidden_size)
    expert_ffn = _model.ints("moe.ffn_hidden_size", none=0)
    shared_ffn = _model.ints("moe.shared_expert_ffn_hidden_size", none=0)
    shared_gate = _model.ints("moe.shared_expert_gate", none=0)
    router_bias = _model.ints("moe.router_bias", none=0)
    groups = _model.ints("moe.num_groups", none=0)
    group_topk = _model.ints("moe.group_topk", none=0)
    latent_size = _model.ints("diffusion.latent_size", none=0)
    # Of a latent that comes out. [elements]
    latent_out = _model.ints(lambda m: m.diffusion.out_size if m.diffusion else 0)
    text_tokens = _model.ints("diffusion.text_tokens", none=0)
    # Of text, part of a sequence. [tokens]
    joined_tokens = _model.ints(
        lambda m: m.diffusion.text_tokens if m.diffusion and m.joins_text else 0
    )
    # All inputs of what embeds a token of text. [elements]
    text_width = _model.ints(lambda m: m.diffusion.text_width(m.hidden_size) if m.diffusion else 0)
    # All inputs of what embeds a sample. [elements]
    condition_width = _model.ints(
        lambda m: m.diffusion.condition_width(m.hidden_size) if m.diffusion else 0
    )
    embedder_biases = _model.ints("diffusion.embedder_biases", none=0)
    # Each layer projects its modulation. [flag]
    own_modulation = _model.ints(
        lambda m: m.diffusion is not None and m.diffusion.modulation == "layer"
    )
    vocab = _model.ints("vocab_size")
    vocab_divisor = _model.ints("make_vocab_size_divisible_by", none=0)
    max_positions = _model.ints("max_position_embeddings")
    tied = _model.ints("tied_embeddings")
    # Bit i: it has the layer `SITES[i]`. [bits]
    sites = _model.ints(lambda m: _bits(model_sites(m)))
    # How far off a projection may be.
    band_key = _model.key(lambda m: (m.moe is None, m.has_unfamiliar_layers))


class ParallelismColumns(SectionColumns[ParallelismConfig]):
    """Splits; 0 is not stated."""

    tp = _split.ints("tp")
    pp = _split.ints("pp")
    vpp = _split.ints("vpp")
    cp = _split.ints("cp")
    ep = _split.ints("ep")
    expert_tp = _split.ints("expert_tp")
    stated_dp = _split.ints("dp", none=0)
    splits_sequence = _split.ints("splits_sequence")
    keeps_gathered = _split.ints("keep_gathered_input")
    cp_type = _split.code("cp_comm_type", CP_TYPES)
    tp_overlap = _split.code("tp_overlap", TP_OVERLAPS)
    ep_overlap = _split.ints("overlap_moe_expert_parallel_comm")
    order = _split.code("rank_order", ORDERS)
    pp_is_last = _split.ints(lambda p: p.rank_order.endswith("pp"))  # Pipelines are apart. [flag]
    optimizer_copies = _split.ints("num_distributed_optimizer_instances")
    sharding_ranks = _split.ints("sharding_group_size", none=0)
    shared_overlap = _split.ints("moe_shared_expert_overlap")
    zero_stage = _split.ints("sharding_stage")
    fsdp = _split.ints("fsdp")
    forward_ahead = _split.ints("fsdp_forward_prefetch")
    backward_ahead = _split.ints("fsdp_backward_prefetch")
    # Gathers in the backward. [flag]
    regathers = _split.ints(lambda p: not p.fsdp or p.fsdp_reshard_after_forward)
    overlap_grad_reduce = _split.ints("overlap_grad_reduce")
    overlap_param_gather = _split.ints("overlap_param_gather")
    bucket = _split.floats("ddp_bucket_size", none=0)
    # That a chunk takes in a row. [microbatches]
    group_size = _split.ints(lambda p: min(p.microbatch_group_size_per_vp_stage or 0, MOST))
    overlap_p2p = _split.ints("overlap_p2p_comm", none=-1)
    layout_key = _split.key(LayerSplit.of)  # Where layers lie.
    # Where groups lie.
    place_key = _split.key(
        attrgetter(
            *("tp", "pp", "cp", "ep", "expert_tp", "rank_order"),
            *("num_distributed_optimizer_instances", "sharding_group_size"),
        )
    )
    pipeline_key = _split.key(sharing.PARALLELISM.pipeline_key())  # What a pipeline costs.
    replica_key = _split.key(sharing.PARALLELISM.replica_key())  # What a replica adds to it.
    # How far off a projection may be.
    band_key = _split.key(lambda p: (bool(p.fsdp), p.ep, p.expert_tp))


class TrainingColumns(SectionColumns[TrainingConfig]):
    """Steps."""

    micro_batch = _training.ints("micro_batch_size")
    global_batch = _training.ints("global_batch_size")
    seq = _training.ints("seq_length")
    dtype = _training.code("precision", MATRIX_TYPES)
    narrow = _training.ints(uses_narrow)  # Linear layers have fewer than 16 bits. [flag]
    fp8_recipe = _training.code("fp8_recipe", FP8_RECIPES)
    fp8_transpose = _training.ints("fp8_weight_transpose_cache")
    # Of a main-gradient element. [bytes]
    accumulate_bytes = _training.ints(lambda t: 4 if t.gradient_dtype == "fp32" else 2)
    fused_accumulation = _training.ints("gradient_accumulation_fusion")
    # Bit i: `RECOMPUTE_MODULES[i]` is dropped by selective recomputation. [bits]
    recompute_mask = _training.ints(
        lambda t: sum(1 << RECOMPUTE_MODULES.index(name) for name in set(t.recompute.modules))
    )
    recompute_unit = _training.floats(_recompute_unit)  # Recomputed together. [layers]
    # Recomputing a layer ends before its last GEMM. [flag]
    stops_early = _training.ints(lambda t: t.recompute_early_stop and _recompute_unit(t) == 1)
    packed = _training.ints("packed_tokens", none=0)
    flash = _training.ints("flash_attention")
    drops_scores = _training.ints(lambda t: t.attention_dropout > 0.0)  # It has dropout. [flag]
    # It is the device's default one. [flag]
    default_attention = _training.ints(
        lambda t: t.attention_kernel == "default" and not uses_fp8_attention(t)
    )
    fp8_attention = _training.ints(uses_fp8_attention)  # It computes in FP8. [flag]
    # Element-wise operators run one by one. [flag]
    eager = _training.ints(lambda t: t.elementwise == "eager" and not t.torch_compile)
    fused_loss = _training.ints("cross_entropy_fusion")
    loss_chunk = _training.ints("loss_chunk_tokens", none=0)
    graphs = _training.ints("cuda_graphs")
    compiled = _training.ints("torch_compile")
    offload = _training.floats("activation_offload_fraction")
    dispatcher = _training.code("moe.dispatcher", DISPATCHERS)
    # Of a sent element. [bytes]
    dispatch_bytes = _training.ints(lambda t: 1 if t.moe.dispatch_precision == "fp8" else 2)
    dispatcher_units = _training.ints("moe.dispatcher_units")
    permute_fusion = _training.ints("moe.permute_fusion")
    fused_experts = _training.ints("moe.fused_experts")
    padding_fusion = _training.ints("moe.padding_fusion")
    host_sync = _training.ints("moe.host_sync")
    capacity = _training.floats("moe.capacity_factor", none=0.0)
    # Of the load of experts; -1 is balanced. [exponent]
    zipf = _training.floats(lambda t: t.moe.zipf_exponent if t.moe.load == "zipf" else -1.0)
    weight_bytes = _training.floats(parameter_bytes)  # Of a weight, used or sent. [bytes]
    held_weight_bytes = _training.floats(_held_weight_bytes)  # Of a weight as it is stored. [bytes]
    # Of a gradient that is held. [bytes]
    gradient_bytes = _training.floats(lambda t: DTYPE_BYTES[t.gradient_dtype])
    # Of a gradient that is sent. [bytes]
    reduce_bytes = _training.floats(lambda t: DTYPE_BYTES[t.reduce_dtype])
    state_bytes = _training.floats(_state_bytes)  # Of optimizer state, each parameter. [bytes]
    update_bytes = _training.floats("optimizer.update_bytes")
    quantise_bytes = _training.floats(_quantise_bytes)  # Moved to quantise a weight. [bytes]
    # Keeps quantised copies of weights that FSDP gathers. [flag]
    keeps_quantised = _training.ints(lambda t: t.fp8_weight_cache and uses_narrow(t))
    # That quantised copies of a weight of a linear layer hold through the step. [bytes]
    quantised_copies = _training.floats(
        lambda t: (0.0 if t.fp8_param_gather else 1.0) + t.fp8_weight_transpose_cache
    )
    optimizer_offload = _training.floats("optimizer.offload_fraction")
    # Adapters are trained, and no other weight. [flag]
    adapted = _training.ints(lambda t: t.adapter is not None)
    # Bit i: an adapter stands beside `SITES[i]`. [bits]
    adapter_sites = _training.ints(lambda t: _bits(t.adapter.sites if t.adapter else ()))
    adapter_rank = _training.ints("adapter.rank", none=0)
    adapter_expert_rank = _training.ints("adapter.rank_of_experts", none=0)
    # Every expert has adapters of its own. [flag]
    adapter_each = _training.ints(
        lambda t: t.adapter is not None and t.adapter.expert_adapters == "each"
    )
    # Of `DROPOUTS`. [code]
    adapter_dropout = _training.ints(
        lambda t: (
            DROPOUTS.index(t.adapter.dropout_position) if t.adapter and t.adapter.dropout else 0
        )
    )
    # Frozen linear layers lie in 4 bits. [flag]
    packed_base = _training.ints(
        lambda t: t.adapter is not None and t.adapter.base_precision == "nf4"
    )
    adapter_key = _training.key(lambda t: t.adapter)  # What is trained.
    # That a planned order lets a rank hold; 0 is not stated. [microbatches]
    most_pending = _training.ints(lambda t: min(t.zero_bubble_max_pending_backward or 0, MOST))
    # That planning may take. [iterations]
    solver_work = _training.ints(lambda t: min(t.schedule_solver_work, MOST))
    post_validation = _training.ints("optimizer_post_validation")
    layout_key = _training.key(LayerSettings.of)  # Of which kind layers are.
    family_key = _training.key(sharing.TRAINING.family_key())  # All but the global batch.
    pipeline_key = _training.key(sharing.TRAINING.pipeline_key())  # What a pipeline costs.
    replica_key = _training.key(sharing.TRAINING.replica_key())  # What a replica adds to it.
    # Which attention runs.
    attention_key = _training.key(lambda t: (t.attention_kernel, uses_fp8_attention(t)))
    # What rules look at that see no machine.
    rule_key = _training.key(lambda t: (t.seq_length, t.adapter, bool(t.packed_tokens)))
    schedule_key = _training.key(lambda t: t.schedule)  # Which schedule is asked for.
    # How far off a projection may be.
    band_key = _training.key(lambda t: (t.precision, t.framework and t.framework.name))


class RunColumns(SectionColumns[RunConfig]):
    """Whole runs; NaN is not stated."""

    tokens = _run.floats("tokens", none=math.nan)
    steps = _run.floats("steps", none=math.nan)
    samples = _run.floats("samples", none=math.nan)
    start_batch = _run.floats("warm_up.start_batch_size", none=math.nan)
    batch_increment = _run.floats("warm_up.increment", none=math.nan)
    warm_up_samples = _run.floats("warm_up.samples", none=math.nan)
    evaluates = _run.ints("evaluation.enabled")
    evaluation_interval = _run.floats("evaluation.interval_steps")
    evaluation_iterations = _run.floats("evaluation.iterations")
    forward_share = _run.floats("evaluation.forward_share", none=math.nan)
    saves = _run.ints("checkpoint.enabled")
    interval_s = _run.si("checkpoint.interval_s", math.nan)
    interval_steps = _run.floats("checkpoint.interval_steps", none=math.nan)
    asynchronous = _run.ints("checkpoint.asynchronous")
    checkpoint_bytes = _run.si("checkpoint.size_gib", math.nan)
    write_bytes_per_s = _run.si("checkpoint.write_gb_per_s", math.nan)
    node_write_bytes_per_s = _run.si("checkpoint.write_gb_per_s_per_node", run_default)
    read_bytes_per_s = _run.si("checkpoint.read_gb_per_s", math.nan)
    node_read_bytes_per_s = _run.si("checkpoint.read_gb_per_s_per_node", run_default)
    checkpoint_overhead_s = _run.si("checkpoint.overhead_s", run_default)
    fails = _run.ints("failures.enabled")
    gpu_mtbf_s = _run.si("failures.gpu_mtbf_hours", run_default)
    node_mtbf_s = _run.si("failures.node_mtbf_hours", run_default)
    detection_s = _run.si("failures.detection_s", run_default)
    restart_s = _run.si("failures.restart_s", run_default)
    spare_nodes = _run.floats("failures.spare_nodes", none=math.nan)
    repair_s = _run.si("failures.repair_hours", run_default)
    repaired_share = _run.floats("failures.repaired_share", none=run_default)
    # Of the steps' time that stragglers add. [share]
    slowdown = _run.floats(
        lambda r: _straggling(r.stragglers.slowdown) if r.stragglers.enabled else 0.0
    )


def _straggling(stated: float | None) -> float:
    return run_default("slowdown") if stated is None else stated
