"""The columns of models, splits and trainings: the casts and units of everything they state."""

from collections.abc import Iterable
from operator import attrgetter

from projector.config.adapter import SITES, AdapterConfig, model_sites
from projector.config.model import ModelConfig
from projector.config.parallelism import ParallelismConfig
from projector.config.training import FUSED_UNITS, RECOMPUTE_MODULES, TrainingConfig
from projector.kernels.device import MATRIX_TYPES, OPERAND_BYTES
from projector.lower import sharing
from projector.lower.columns import Declare, SectionColumns
from projector.lower.placement import ORDERS
from projector.lower.stages import LayerSettings, LayerSplit, uses_fp8_attention, uses_narrow

FP8_RECIPES = ("delayed", "tensorwise", "rowwise", "blockwise")
TP_OVERLAPS = ("none", "user_buffers", "async_tp")
"""How tensor-parallel collectives hide beside their GEMM."""

CP_TYPES = ("p2p", "all_gather", "a2a")
DISPATCHERS = ("alltoall", "allgather", "deepep", "hybridep")
FUSED_DISPATCHERS = tuple(DISPATCHERS.index(name) for name in FUSED_UNITS)
ATTENTION_BIASES = ("none", "qkv", "qkv+out")
DROPOUTS = ("none", "pre", "post")
QK_NORMS = ("none", "head", "full")

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
    shared = training.optimizer.master_weights == "shared"
    return 4.0 if shared else parameter_bytes(training)


def _query_width(model: ModelConfig) -> int:
    mla = model.mla
    return mla.qk_head_dim + mla.qk_pos_emb_head_dim if mla else model.head_dim


def _moments_bytes(training: TrainingConfig) -> float:
    optimizer = training.optimizer
    return MOMENTS[optimizer.name] * DTYPE_BYTES[optimizer.moment_dtype]


def _state_bytes(training: TrainingConfig) -> float:
    """Bytes of optimizer state for each parameter."""
    master = MASTER_BYTES[training.optimizer.master_weights]
    return (master if parameter_bytes(training) < 4.0 else 0.0) + _moments_bytes(training)


def _quantise_bytes(training: TrainingConfig) -> float:
    """Traffic of quantising a weight row- and column-wise, once a step."""
    operand = float(OPERAND_BYTES[MATRIX_TYPES.index(training.precision)])
    return 2.0 + 2.0 * operand if uses_narrow(training) else 0.0


def _quantised_copies(training: TrainingConfig) -> float:
    """Bytes for each weight of a linear layer that its quantised copies hold through the step."""
    return (0.0 if training.fp8_param_gather else 1.0) + training.fp8_weight_transpose_cache


def _bits(sites: Iterable[str]) -> int:
    return sum(1 << SITES.index(site) for site in sites)


def _dropout(adapter: AdapterConfig | None) -> int:
    return DROPOUTS.index(adapter.dropout_position) if adapter and adapter.dropout > 0.0 else 0


def _recompute_unit(training: TrainingConfig) -> int:
    """Layers that are recomputed together."""
    recompute = training.recompute
    return recompute.num_layers or 1 if recompute.method == "uniform" else 1


_model = Declare[ModelConfig]()
_split = Declare[ParallelismConfig]()
_training = Declare[TrainingConfig]()


class ModelColumns(SectionColumns[ModelConfig]):
    """Architectures."""

    num_layers = _model.ints(lambda m: m.num_layers, "layers", "Without MTP modules.")
    hidden = _model.ints(lambda m: m.hidden_size, "elements", "Width of the residual stream.")
    ffn = _model.ints(lambda m: m.ffn_hidden_size, "elements", "Inner width of a dense MLP.")
    gated = _model.ints(lambda m: m.gated, "flag", "Whether an MLP has a gate projection.")
    mlp_bias = _model.ints(lambda m: m.mlp_bias, "flag", "Whether its projections have a bias.")
    clamped = _model.ints(
        lambda m: m.activation_clamp > 0.0, "flag", "Inputs of its activation are clamped."
    )
    heads = _model.ints(lambda m: m.num_attention_heads, "heads", "Query heads.")
    query_groups = _model.ints(lambda m: m.query_groups, "heads", "Key and value heads stated.")
    key_heads = _model.ints(
        lambda m: m.num_attention_heads if m.mla else m.query_groups,
        "heads",
        "Key and value heads of the attention kernel; latents are unfolded to all of them.",
    )
    d_qk = _model.ints(_query_width, "elements", "Width of a query or key head.")
    d_v = _model.ints(lambda m: m.head_dim, "elements", "Width of a value head.")
    rope = _model.ints(lambda m: m.position_embedding == "rope", "flag", "Rotates Q and K.")
    learned = _model.ints(
        lambda m: m.position_embedding == "learned", "flag", "Has a table of positions."
    )
    attention_bias = _model.ints(
        lambda m: ATTENTION_BIASES.index(m.attention_bias), "code", "Of `ATTENTION_BIASES`."
    )
    qk_norm = _model.ints(lambda m: QK_NORMS.index(m.qk_norm), "code", "Of `QK_NORMS`.")
    sinks = _model.ints(lambda m: m.attention_sinks, "flag", "Has one sink logit a head.")
    window = _model.ints(lambda m: m.sliding_window, "tokens", "Keys of a windowed layer.")
    norm_parameters = _model.ints(
        lambda m: 1 if m.normalization == "rmsnorm" else 2, "vectors", "Scale, and shift."
    )
    norms = _model.ints(lambda m: m.norms_per_layer, "norms", "On the residual path of a layer.")
    is_mla = _model.ints(lambda m: m.mla is not None, "flag", "Has latent attention.")
    q_lora = _model.ints(lambda m: m.mla.q_lora_rank if m.mla else 0, "elements", "Query latent.")
    kv_lora = _model.ints(lambda m: m.mla.kv_lora_rank if m.mla else 0, "elements", "Key latent.")
    d_nope = _model.ints(
        lambda m: m.mla.qk_head_dim if m.mla else 0, "elements", "Unrotated width of a head."
    )
    d_rope = _model.ints(
        lambda m: m.mla.qk_pos_emb_head_dim if m.mla else 0, "elements", "Its rotated width."
    )
    is_moe = _model.ints(lambda m: m.moe is not None, "flag", "Has mixture-of-experts layers.")
    all_moe = _model.ints(lambda m: all(m.moe_layers), "flag", "Has no dense MLP.")
    experts = _model.ints(lambda m: m.moe.num_experts if m.moe else 0, "experts", "Of a layer.")
    topk = _model.ints(lambda m: m.moe.router_topk if m.moe else 0, "experts", "Of a token.")
    expert_ffn = _model.ints(
        lambda m: m.moe.ffn_hidden_size if m.moe else 0, "elements", "Inner width of an expert."
    )
    shared_ffn = _model.ints(
        lambda m: m.moe.shared_expert_ffn_hidden_size if m.moe else 0,
        "elements",
        "Inner width of all shared experts together.",
    )
    shared_gate = _model.ints(
        lambda m: m.moe.shared_expert_gate if m.moe else 0, "flag", "Scales the shared experts."
    )
    router_bias = _model.ints(
        lambda m: m.moe.router_bias if m.moe else 0, "flag", "Whether the router has a bias."
    )
    groups = _model.ints(
        lambda m: m.moe.num_groups if m.moe else 0, "groups", "Of experts; 0 routes freely."
    )
    group_topk = _model.ints(
        lambda m: m.moe.group_topk if m.moe else 0, "groups", "Of experts that a token visits."
    )
    vocab = _model.ints(lambda m: m.vocab_size, "rows", "Of the embedding, without padding.")
    vocab_divisor = _model.ints(
        lambda m: m.make_vocab_size_divisible_by or 0, "rows", "Padding to it times TP; 0 none."
    )
    max_positions = _model.ints(lambda m: m.max_position_embeddings, "tokens", "Longest sequence.")
    tied = _model.ints(lambda m: m.tied_embeddings, "flag", "The head is the embedding.")
    sites = _model.ints(
        lambda m: _bits(model_sites(m)), "bits", "Bit i: it has the layer `SITES[i]`."
    )
    band_key = _model.key(lambda m: m.moe is None, "How far off a projection may be.")


class ParallelismColumns(SectionColumns[ParallelismConfig]):
    """Splits."""

    tp = _split.ints(lambda p: p.tp, "ranks", "Tensor parallelism.")
    pp = _split.ints(lambda p: p.pp, "ranks", "Pipeline parallelism.")
    vpp = _split.ints(lambda p: p.vpp, "chunks", "Model chunks of a pipeline rank.")
    cp = _split.ints(lambda p: p.cp, "ranks", "Context parallelism.")
    ep = _split.ints(lambda p: p.ep, "ranks", "Expert parallelism.")
    expert_tp = _split.ints(lambda p: p.expert_tp, "ranks", "Tensor parallelism of experts.")
    stated_dp = _split.ints(lambda p: p.dp or 0, "ranks", "Data parallelism; 0 is not stated.")
    splits_sequence = _split.ints(
        lambda p: p.splits_sequence, "flag", "Norms and residuals are divided over TP."
    )
    cp_type = _split.ints(lambda p: CP_TYPES.index(p.cp_comm_type), "code", "Of `CP_TYPES`.")
    tp_overlap = _split.ints(lambda p: TP_OVERLAPS.index(p.tp_overlap), "code", "Of `TP_OVERLAPS`.")
    ep_overlap = _split.ints(
        lambda p: p.overlap_moe_expert_parallel_comm, "flag", "Expert exchanges hide."
    )
    order = _split.ints(lambda p: ORDERS.index(p.rank_order), "code", "Of `ORDERS`.")
    pp_is_last = _split.ints(lambda p: p.rank_order.endswith("pp"), "flag", "Pipelines are apart.")
    optimizer_copies = _split.ints(
        lambda p: p.num_distributed_optimizer_instances, "copies", "Of what is sharded."
    )
    sharding_ranks = _split.ints(
        lambda p: p.sharding_group_size or 0, "ranks", "That share a copy; 0 is not stated."
    )
    shared_overlap = _split.ints(
        lambda p: p.moe_shared_expert_overlap, "flag", "They hide beside shared experts."
    )
    zero_stage = _split.ints(lambda p: p.sharding_stage, "stage", "ZeRO; FSDP is 3.")
    fsdp = _split.ints(lambda p: int(p.fsdp), "generation", "Of FSDP; 0 is none.")
    forward_ahead = _split.ints(
        lambda p: p.fsdp_forward_prefetch, "layers", "Gathered ahead of the one that computes."
    )
    backward_ahead = _split.ints(
        lambda p: p.fsdp_backward_prefetch, "layers", "The same in the backward."
    )
    regathers = _split.ints(
        lambda p: not p.fsdp or p.fsdp_reshard_after_forward, "flag", "Gathers in the backward."
    )
    overlap_grad_reduce = _split.ints(
        lambda p: p.overlap_grad_reduce, "flag", "Gradients go beside the last backward."
    )
    overlap_param_gather = _split.ints(
        lambda p: p.overlap_param_gather, "flag", "Parameters come beside the first forward."
    )
    bucket = _split.floats(
        lambda p: p.ddp_bucket_size or 0, "parameters", "Of a gradient bucket; 0 is not stated."
    )
    group_size = _split.ints(
        lambda p: min(p.microbatch_group_size_per_vp_stage or 0, MOST),
        "microbatches",
        "That a chunk takes in a row; 0 is not stated.",
    )
    overlap_p2p = _split.ints(
        lambda p: -1 if p.overlap_p2p_comm is None else int(p.overlap_p2p_comm),
        "flag",
        "Sends go beside compute; -1 is by schedule.",
    )
    layout_key = _split.key(LayerSplit.of, "Where layers lie.")
    place_key = _split.key(
        attrgetter(
            *("tp", "pp", "cp", "ep", "expert_tp", "rank_order"),
            *("num_distributed_optimizer_instances", "sharding_group_size"),
        ),
        "Where groups lie.",
    )
    pipeline_key = _split.key(sharing.PARALLELISM.pipeline_key(), "What a pipeline costs.")
    replica_key = _split.key(sharing.PARALLELISM.replica_key(), "What a replica adds to it.")
    band_key = _split.key(lambda p: bool(p.fsdp), "How far off a projection may be.")


class TrainingColumns(SectionColumns[TrainingConfig]):
    """Steps."""

    micro_batch = _training.ints(lambda t: t.micro_batch_size, "sequences", "Of a microbatch.")
    global_batch = _training.ints(lambda t: t.global_batch_size, "sequences", "Of a step.")
    seq = _training.ints(lambda t: t.seq_length, "tokens", "Of a sequence.")
    dtype = _training.ints(
        lambda t: MATRIX_TYPES.index(t.precision), "code", "Type of linear layers."
    )
    narrow = _training.ints(uses_narrow, "flag", "Linear layers have fewer than 16 bits.")
    fp8_recipe = _training.ints(
        lambda t: FP8_RECIPES.index(t.fp8_recipe), "code", "Of `FP8_RECIPES`."
    )
    fp8_transpose = _training.ints(
        lambda t: t.fp8_weight_transpose_cache, "flag", "Keeps a transpose of each weight."
    )
    accumulate_bytes = _training.ints(
        lambda t: 4 if t.gradient_dtype == "fp32" else 2, "bytes", "Of a main-gradient element."
    )
    fused_accumulation = _training.ints(
        lambda t: t.gradient_accumulation_fusion, "flag", "GEMMs add to the main gradients."
    )
    recompute_mask = _training.ints(
        lambda t: sum(1 << RECOMPUTE_MODULES.index(name) for name in set(t.recompute.modules)),
        "bits",
        "Bit i: `RECOMPUTE_MODULES[i]` is dropped by selective recomputation.",
    )
    recompute_unit = _training.floats(_recompute_unit, "layers", "Recomputed together.")
    stops_early = _training.ints(
        lambda t: t.recompute_early_stop and _recompute_unit(t) == 1,
        "flag",
        "Recomputing a layer ends before its last GEMM.",
    )
    flash = _training.ints(lambda t: t.flash_attention, "flag", "Attention is one kernel.")
    default_attention = _training.ints(
        lambda t: t.attention_kernel == "default" and not uses_fp8_attention(t),
        "flag",
        "It is the device's default one.",
    )
    fp8_attention = _training.ints(uses_fp8_attention, "flag", "It computes in FP8.")
    eager = _training.ints(
        lambda t: t.elementwise == "eager" and not t.torch_compile,
        "flag",
        "Element-wise operators run one by one.",
    )
    fused_loss = _training.ints(
        lambda t: t.cross_entropy_fusion, "flag", "The loss is one kernel on 16-bit logits."
    )
    graphs = _training.ints(lambda t: t.cuda_graphs, "flag", "Layers are replayed as graphs.")
    compiled = _training.ints(lambda t: t.torch_compile, "flag", "A compiler fuses operators.")
    offload = _training.floats(
        lambda t: t.activation_offload_fraction, "share", "Of activations that wait on the host."
    )
    dispatcher = _training.ints(
        lambda t: DISPATCHERS.index(t.moe.dispatcher), "code", "Of `DISPATCHERS`."
    )
    dispatch_bytes = _training.ints(
        lambda t: 1 if t.moe.dispatch_precision == "fp8" else 2, "bytes", "Of a sent element."
    )
    dispatcher_units = _training.ints(
        lambda t: t.moe.dispatcher_units, "units", "That a fused exchange takes."
    )
    permute_fusion = _training.ints(
        lambda t: t.moe.permute_fusion, "flag", "Permutation is one kernel."
    )
    fused_experts = _training.ints(
        lambda t: t.moe.fused_experts, "flag", "Biases and clamps are part of the GEMMs."
    )
    host_sync = _training.ints(lambda t: t.moe.host_sync, "flag", "The host waits for counts.")
    capacity = _training.floats(
        lambda t: t.moe.capacity_factor or 0.0, "share", "Kept of the balanced load; 0 drops none."
    )
    zipf = _training.floats(
        lambda t: t.moe.zipf_exponent if t.moe.load == "zipf" else -1.0,
        "exponent",
        "Of the load of experts; -1 is balanced.",
    )
    weight_bytes = _training.floats(parameter_bytes, "bytes", "Of a weight, used or sent.")
    held_weight_bytes = _training.floats(
        _held_weight_bytes, "bytes", "Of a weight as it is stored."
    )
    gradient_bytes = _training.floats(
        lambda t: DTYPE_BYTES[t.gradient_dtype], "bytes", "Of a gradient that is held."
    )
    reduce_bytes = _training.floats(
        lambda t: DTYPE_BYTES[t.reduce_dtype], "bytes", "Of a gradient that is sent."
    )
    state_bytes = _training.floats(_state_bytes, "bytes", "Of optimizer state, each parameter.")
    update_bytes = _training.floats(
        lambda t: t.optimizer.update_bytes, "bytes", "Made beside states, each updated parameter."
    )
    quantise_bytes = _training.floats(_quantise_bytes, "bytes", "Moved to quantise a weight.")
    keeps_quantised = _training.ints(
        lambda t: t.fp8_weight_cache and uses_narrow(t),
        "flag",
        "Keeps quantised copies of weights that FSDP gathers.",
    )
    quantised_copies = _training.floats(
        _quantised_copies, "bytes", "Of quantised copies, each weight of a linear layer."
    )
    optimizer_offload = _training.floats(
        lambda t: t.optimizer.offload_fraction, "share", "Of states that lie on the host."
    )
    adapted = _training.ints(
        lambda t: t.adapter is not None, "flag", "Adapters are trained, and no other weight."
    )
    adapter_sites = _training.ints(
        lambda t: _bits(t.adapter.sites if t.adapter else ()),
        "bits",
        "Bit i: an adapter stands beside `SITES[i]`.",
    )
    adapter_rank = _training.ints(
        lambda t: t.adapter.rank if t.adapter else 0, "elements", "Between A and B."
    )
    adapter_expert_rank = _training.ints(
        lambda t: t.adapter.rank_of_experts if t.adapter else 0, "elements", "Beside experts."
    )
    adapter_each = _training.ints(
        lambda t: t.adapter is not None and t.adapter.expert_adapters == "each",
        "flag",
        "Every expert has adapters of its own.",
    )
    adapter_dropout = _training.ints(lambda t: _dropout(t.adapter), "code", "Of `DROPOUTS`.")
    packed_base = _training.ints(
        lambda t: t.adapter is not None and t.adapter.base_precision == "nf4",
        "flag",
        "Frozen linear layers lie in 4 bits.",
    )
    adapter_key = _training.key(lambda t: t.adapter, "What is trained.")
    most_pending = _training.ints(
        lambda t: min(t.zero_bubble_max_pending_backward or 0, MOST),
        "microbatches",
        "That a planned order lets a rank hold; 0 is not stated.",
    )
    solver_work = _training.ints(
        lambda t: min(t.schedule_solver_work, MOST), "iterations", "That planning may take."
    )
    post_validation = _training.ints(
        lambda t: t.optimizer_post_validation, "flag", "Ranks begin the next step on their own."
    )
    layout_key = _training.key(LayerSettings.of, "Of which kind layers are.")
    family_key = _training.key(sharing.TRAINING.family_key(), "All but the global batch.")
    pipeline_key = _training.key(sharing.TRAINING.pipeline_key(), "What a pipeline costs.")
    replica_key = _training.key(sharing.TRAINING.replica_key(), "What a replica adds to it.")
    attention_key = _training.key(
        lambda t: (t.attention_kernel, uses_fp8_attention(t)), "Which attention runs."
    )
    rule_key = _training.key(
        lambda t: (t.seq_length, t.adapter), "What rules look at that see no machine."
    )
    schedule_key = _training.key(lambda t: t.schedule, "Which schedule is asked for.")
    band_key = _training.key(lambda t: t.precision, "How far off a projection may be.")
