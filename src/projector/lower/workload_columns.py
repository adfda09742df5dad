"""Columns of workloads, each declared once: where it is read, for which kinds, and its meaning.

A workload is one layer of one kind, an embedding, a head or an MTP projection. Its columns are
whole numbers, so that records compare exactly; what does not matter to a kind stays 0.
"""

from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from math import comb
from operator import attrgetter

import numpy as np

from projector.arrays import Array, Flags, Floats, Ints, Records, bits
from projector.config.model import BLOCKS
from projector.config.recurrence import WEIGHTS
from projector.kernels.device import MATRIX_TYPES
from projector.kernels.grouping import group_rows
from projector.lower.batch import JobBatch, JobColumns
from projector.lower.cluster_columns import CALLS, LOAD_ONE, LOSS, PASSES, SoftwareColumns
from projector.lower.columns import Declared
from projector.lower.sections import FP8_RECIPES, FUSED_DISPATCHERS
from projector.lower.stages import RECOMPUTE_FULL, RECOMPUTE_SELECTIVE, Kind, has_part, is_layer

BY_TENSOR = ("delayed", "tensorwise")
"""Recipes whose FP8 tensors have one scale."""

ADDS, ADDS_APART, ADDS_NOTHING = range(3)
"""Codes of ``accumulation``."""

KIND = np.dtype([(name, np.int64) for name in ("kind", "windowed", "recompute", "narrow")])


class Pieces:
    """One kind of layer of each of n jobs: what workloads are read from."""

    def __init__(self, batch: JobBatch, jobs: JobColumns, kinds: Records) -> None:
        """Keep jobs with their columns, and the kind of a layer of each, KIND[n]."""
        self.batch, self.jobs, self.kinds = batch, jobs, kinds
        self.model, self.split, self.training = batch.model, batch.parallelism, batch.training
        self.cluster: SoftwareColumns = batch.cluster

    @cached_property
    def is_moe(self) -> Flags:
        """Mixture-of-experts layers."""
        return has_part(self.kinds["kind"], "moe")

    @cached_property
    def is_dense(self) -> Flags:
        """Layers that have an MLP."""
        return has_part(self.kinds["kind"], "dense", *BLOCKS)

    @cached_property
    def is_recurrent(self) -> Flags:
        """Layers whose mixer has a state of fixed size."""
        return has_part(self.kinds["kind"], *WEIGHTS)

    @cached_property
    def is_layer(self) -> Flags:
        """Layers."""
        return is_layer(self.kinds["kind"])

    @cached_property
    def loss(self) -> Array:
        """What the loss does to a logit: [n, len(LOSS)]."""
        fused = self.training.fused_loss[:, np.newaxis] == 1
        return np.where(fused, self.cluster.fused_loss, self.cluster.unfused_loss)

    @cached_property
    def wide_dtype(self) -> Ints:
        """Type of attention, head and router."""
        asked, cluster = self.training.dtype, self.cluster
        wide = np.where(
            asked == MATRIX_TYPES.index("fp16"), cluster.native_fp16, cluster.native_bf16
        )
        return np.where(asked == MATRIX_TYPES.index("fp32"), cluster.native_fp32, wide)

    @cached_property
    def loads(self) -> Ints:
        """Kept tokens of the fullest expert rank and of a mean one, in parts of `LOAD_ONE`."""
        in_parts = np.full((2, len(self.kinds)), LOAD_ONE, np.int64)
        rows = np.flatnonzero(self.is_moe)
        batch, ep = self.batch.take(rows), self.jobs.ep[rows]
        training, experts = batch.training, batch.model.experts
        # Counts are known beforehand where every expert is padded to its capacity.
        padded = (training.capacity > 0.0) & (training.host_sync == 0)
        exponent, capacity = np.maximum(training.zipf, 0.0), training.capacity
        first, group = group_rows(experts, ep, bits(exponent), bits(capacity), padded)
        loads = [
            kept_loads(
                np.arange(1.0, experts[row] + 1.0) ** -exponent[row],
                int(ep[row]), float(capacity[row]), padded=bool(padded[row]),
            )
            for row in first
        ]  # fmt: skip
        in_parts[:, rows] = np.rint(np.reshape(loads, (-1, 2)).T * LOAD_ONE)[:, group]
        return in_parts


def padded_vocab(batch: JobBatch, columns: JobColumns) -> Ints:
    """Return the vocabulary of each job as laid out over tensor ranks."""
    model = batch.model
    # Without a divisor nothing is padded.
    multiple = np.maximum(1, model.vocab_divisor * columns.tp)
    return np.asarray(-(-model.vocab // multiple) * multiple)


def kept_loads(load: Floats, ep: int, capacity: float, *, padded: bool) -> tuple[float, float]:
    """Tokens of the fullest expert rank, and of a mean one, over a balanced one that drops nothing.

    ``load`` has the tokens of each expert, the fullest first. Experts are dealt to ranks in turn,
    so rank 0 is the fullest. With a capacity an expert has at most so many times the balanced
    tokens; padded, it has as many, whatever its load (Megatron-LM, ``apply_router_token_dropping``:
    tokens of no weight fill it up).
    """
    kept = np.minimum(load * (len(load) / load.sum()), capacity or np.inf)
    if padded:
        kept[:] = capacity
    return float(kept[::ep].mean()), float(kept.mean())


def _linear_dtype(pieces: Pieces) -> Ints:
    """Return the type of linear layers; MTP projections are as narrow as the job."""
    training, blocks = pieces.training, MATRIX_TYPES.index("fp8_block")
    is_projection = (pieces.kinds["kind"] == Kind.MTP) & (training.narrow == 1)
    narrow = (pieces.kinds["narrow"] == 1) | is_projection
    # FP8 scaled by blocks is a type where a device has it.
    by_blocks = training.fp8_recipe == FP8_RECIPES.index("blockwise")
    by_blocks &= training.dtype == MATRIX_TYPES.index("fp8")
    by_blocks &= pieces.cluster.native_mask >> blocks & 1 == 1
    return np.where(narrow, np.where(by_blocks, blocks, training.dtype), pieces.wide_dtype)


@lru_cache(maxsize=4096)
def expected_parts(
    parts: float, experts: int, topk: int, groups: int = 0, group_topk: int = 0
) -> float:
    """Return the expected number of distinct parts on which a token's experts lie.

    Parts are ranks or domains that share the experts evenly and in order; a fraction, as of 12
    ranks over domains of 8, is that many parts of a whole part's size. Routing is uniform: a token
    picks ``topk`` distinct experts, so the number it reaches follows the hypergeometric law. With
    group-limited routing it first picks some groups of experts (DeepSeek-V3: 4 of 8), 0 of 0
    routes freely.

    It is ``parts * (1 - P)`` with P the probability that a part has none of the picked experts.
    Freely that is ``C(experts - share, topk) / C(experts, topk)``, ``share = experts / parts``.
    """
    if parts <= 1.0:
        return 1.0
    if not 0 < group_topk < groups:
        return parts * (1.0 - _missed(experts, experts / parts, topk))
    eligible, group = experts * group_topk / groups, experts / groups
    if parts >= groups:
        # A part lies inside one group, which is visited or not.
        return parts * group_topk / groups * (1.0 - _missed(eligible, experts / parts, topk))
    held = groups / parts
    if not held.is_integer():
        # Groups straddle parts: at least as many as the visited groups would fill.
        return min(parts * (1.0 - _missed(experts, experts / parts, topk)), float(group_topk))
    whole = int(held)
    missed = sum(
        comb(whole, visited)
        * comb(groups - whole, group_topk - visited)
        / comb(groups, group_topk)
        * _missed(eligible, visited * group, topk)
        for visited in range(min(whole, group_topk) + 1)
    )
    return parts * (1.0 - missed)


def _missed(experts: float, share: float, topk: int) -> float:
    """Return the probability that none of ``topk`` distinct experts lies among ``share``."""
    missed = 1.0
    for picked in range(topk):
        if experts - share - picked <= 0.0:
            return 0.0
        missed *= (experts - share - picked) / (experts - picked)
    return missed


def kept_parts(parts: float, experts: int, kept: int, topk: int, *groups: int) -> float:
    """Return the parts that the experts of a token lie on which are left, or added by padding."""
    picked = min(topk * kept / LOAD_ONE, experts)
    whole = int(picked)
    reached = expected_parts(parts, experts, whole, *groups)
    if picked > whole:
        reached += (picked - whole) * (expected_parts(parts, experts, whole + 1, *groups) - reached)
    return reached


def _parts_reached(pieces: Pieces, parts_of: Callable[["JobColumns"], Floats]) -> Ints:
    """Return how many parts of the ranks a token's experts lie on, in parts of `LOAD_ONE`."""
    in_parts = np.full(len(pieces.kinds), LOAD_ONE, np.int64)
    rows = np.flatnonzero(pieces.is_moe)
    model, jobs = pieces.batch.take(rows).model, pieces.jobs.take(rows)
    columns = (model.experts, pieces.loads[1, rows], model.topk, model.groups, model.group_topk)
    parts = parts_of(jobs)
    first, group = group_rows(bits(parts), *columns)
    reached = [
        kept_parts(float(parts[row]), *(int(column[row]) for column in columns))
        for row in first.tolist()
    ]
    in_parts[rows] = np.rint(np.array(reached, np.float64) * LOAD_ONE).astype(np.int64)[group]
    return in_parts


Read = str | Callable[[Pieces], Array]
"""Name of what pieces have, or what reads it."""


class WorkloadColumn(Declared[Ints]):
    """One whole number of a workload: an attribute of `WorkloadColumns`."""

    def __init__(self, read: Read, where: Callable[[Pieces], Flags] | None = None) -> None:
        """Declare what is read, and which kinds have it; all without ``where``.

        A plain read names a column of sections or jobs, which says what it is.
        """
        self.read: Callable[[Pieces], Array] = attrgetter(read) if isinstance(read, str) else read
        self.where = where

    def values_of(self, columns: "WorkloadColumns") -> Ints:
        """Return int64[workloads]."""
        return columns.read(self.name)

    def values(self, pieces: Pieces) -> Array:
        """Return the column of some pieces, 0 for kinds that do not have it."""
        values = self.read(pieces)
        return values if self.where is None else values * self.where(pieces)


def _beside() -> WorkloadColumn:
    """Declare what no piece has: it stands beside the shape of a workload."""
    return WorkloadColumn(lambda p: np.zeros(len(p.kinds), np.int64))


def _layer(read: Read) -> WorkloadColumn:
    return WorkloadColumn(read, lambda p: p.is_layer)


def _experts(read: Read) -> WorkloadColumn:
    return WorkloadColumn(read, lambda p: p.is_moe)


def _state(read: Read) -> WorkloadColumn:
    return WorkloadColumn(read, lambda p: p.is_recurrent)


def _loss(name: str) -> WorkloadColumn:
    position = LOSS.index(name)
    return WorkloadColumn(lambda p: p.loss[:, position], lambda p: p.kinds["kind"] == Kind.HEAD)


def _pass(name: str) -> WorkloadColumn:
    position = PASSES.index(name)
    return _experts(lambda p: p.cluster.expert_passes[:, position])


def _fp8_layouts(pieces: Pieces) -> Ints:
    """Return the layouts of a quantised operand: one alone where nothing reads the other."""
    training = pieces.training
    by_tensor = np.isin(training.fp8_recipe, [FP8_RECIPES.index(name) for name in BY_TENSOR])
    by_tensor &= training.dtype == MATRIX_TYPES.index("fp8")
    one = by_tensor & (pieces.cluster.fp8_transposes == 0)
    return np.where(one | (training.adapted == 1), 1, 2)


def _window(pieces: Pieces) -> Ints:
    """Return the keys that a query sees in a kind of layer.

    Packed sequences stand for a window with as many pairs of a query and a key: of lengths P in one
    of S, P S / 2 = W S - W^2 / 2.
    """
    of_layer = pieces.model.window * pieces.kinds["windowed"]
    seq, packed = pieces.jobs.seq, np.minimum(pieces.training.packed, pieces.jobs.seq)
    width = np.rint(seq - np.sqrt((seq - packed).astype(np.float64) * seq)).astype(np.int64)
    narrower = np.where(of_layer > 0, np.minimum(of_layer, width), width)
    return np.where(packed > 0, np.maximum(1, narrower), of_layer)


def _calls(phase: int) -> WorkloadColumn:
    return _experts(lambda p: _expert_calls(p, phase))


def _expert_calls(pieces: Pieces, phase: int) -> Ints:
    """Return the operators of a layer of experts beside its kernels, forward (0) or backward."""
    jobs, training, model = pieces.jobs, pieces.training, pieces.model
    count = dict(zip(CALLS, pieces.cluster.expert_calls[:, phase::2].T, strict=True))
    fused = training.permute_fusion == 1
    local = np.maximum(1, model.experts // np.maximum(1, jobs.ep))
    calls = np.where(fused, count["fused"], count["route"])
    apart = (model.mlp_bias == 1) & (training.fused_experts == 0)
    calls = calls + local * (count["expert"] + count["biased"] * apart)
    chunks = np.where(fused | np.isin(training.dispatcher, FUSED_DISPATCHERS), 0, local * jobs.ep)
    exchanges = count["exchange"] + count["chunk"] * chunks
    total: Ints = np.rint(calls + exchanges * (jobs.ep > 1)).astype(np.int64)
    return total


_shared = WorkloadColumn
"""Declares what all kinds have."""


class WorkloadColumns:
    """Columns of WORKLOAD[workloads], int64[workloads] each."""

    def __init__(self, rows: Records) -> None:
        """Keep the records."""
        self.rows = rows

    def __len__(self) -> int:
        """Return the number of workloads."""
        return len(self.rows)

    def read(self, name: str) -> Ints:
        """Return the column with some name."""
        return np.asarray(self.rows[name])

    kind = _shared(lambda p: p.kinds["kind"])  # A `Kind`. [code]
    device = _beside()  # Of the table of devices. [row]
    fabric = _beside()  # Of the table of fabrics. [row]

    # Batch, sequence and the degrees that divide them.
    micro_batch = _shared("jobs.micro_batch")
    seq = _shared("jobs.seq")
    tp = _shared("jobs.tp")
    cp = _shared("jobs.cp")
    ep = _experts("jobs.ep")
    etp = _experts("jobs.etp")
    tp_local = _shared("jobs.tp_local")
    cp_local = _shared("jobs.cp_local")
    ep_local = _experts("jobs.ep_local")
    etp_local = _experts("jobs.etp_local")
    tp_span = _shared("jobs.tp_span")
    cp_span = _shared("jobs.cp_span")
    ep_span = _experts("jobs.ep_span")
    etp_span = _experts("jobs.etp_span")
    sequence_parallel = _shared("split.splits_sequence")
    keeps_gathered = _shared(lambda p: p.split.keeps_gathered * p.split.splits_sequence)

    # Architecture.
    hidden = _shared("model.hidden")
    # Inner width of the MLP. [elements]
    ffn = _shared(lambda p: p.model.ffn, lambda p: p.is_dense)
    gated = _shared("model.gated")
    mlp_bias = _shared("model.mlp_bias")
    clamped = _experts("model.clamped")
    heads = _shared("model.heads")
    # Key and value heads of the attention kernel. [heads]
    key_heads = _shared(lambda p: np.where(p.is_layer, p.model.key_heads, p.model.query_groups))
    d_qk = _layer("model.d_qk")
    d_v = _layer("model.d_v")
    rope = _shared("model.rope")
    attention_bias = _shared("model.attention_bias")
    qk_norm = _shared("model.qk_norm")
    output_gate = _shared("model.output_gate")
    sinks = _shared("model.sinks")
    window = _shared(_window)  # Keys it sees; 0 is all. [tokens]
    norm_parameters = _shared("model.norm_parameters")
    norms = _shared("model.norms")
    mla = _layer("model.is_mla")
    q_lora = _layer("model.q_lora")
    kv_lora = _layer("model.kv_lora")
    d_nope = _layer("model.d_nope")
    d_rope = _layer("model.d_rope")
    index_heads = _layer("model.index_heads")
    index_width = _layer("model.index_width")
    index_topk = _layer("model.index_topk")
    state_heads = _state("model.state_heads")
    state_width = _state("model.state_width")
    state_groups = _state("model.state_groups")
    state_size = _state("model.state_size")
    state_conv = _state("model.state_conv")
    state_chunk = _state("model.state_chunk")
    state_rank = _state("model.state_rank")
    state_norm = _state("model.state_norm")
    experts = _experts("model.experts")
    topk = _experts("model.topk")
    expert_hidden = _experts("model.expert_hidden")
    expert_ffn = _experts("model.expert_ffn")
    shared_ffn = _experts("model.shared_ffn")
    shared_gate = _experts("model.shared_gate")
    router_bias = _experts("model.router_bias")
    # Distinct ranks of EP that hold a token's experts. [2**-20]
    ranks_reached_2e20 = _experts(
        lambda p: _parts_reached(p, lambda jobs: jobs.ep.astype(np.float64))
    )
    # Distinct scale-up domains that hold them. [2**-20]
    domains_reached_2e20 = _experts(
        lambda p: _parts_reached(p, lambda jobs: jobs.ep / jobs.ep_local)
    )
    latent_size = _shared("model.latent_size")
    latent_out = _shared("model.latent_out")
    text_tokens = _shared("model.text_tokens")
    joined_tokens = _shared("model.joined_tokens")
    text_width = _shared("model.text_width")
    condition_width = _shared("model.condition_width")
    embedder_biases = _shared("model.embedder_biases")
    own_modulation = _shared("model.own_modulation")
    vocab = _shared(lambda p: padded_vocab(p.batch, p.jobs))  # Of the padded vocabulary. [rows]
    # Of a learned position table. [rows]
    positions = _shared(lambda p: p.model.max_positions * p.model.learned)
    # The head is the embedding; with a pipeline it holds a copy. [flag]
    tied = _shared(lambda p: p.model.tied * (p.jobs.pp == 1))

    # Training switches.
    dtype = _shared(_linear_dtype)  # Matrix type of linear layers. [code]
    # Attention computes in FP8. [flag]
    fp8_attention = _layer(lambda p: p.training.fp8_attention * (p.kinds["narrow"] == 1))
    eager = _shared("training.eager")
    gate_copy_bytes = _layer(lambda p: p.cluster.gate_copy_bytes * p.training.eager)
    attention_copy_bytes = _layer(lambda p: p.cluster.attention_copy_bytes * p.training.eager)
    grouped_gemm_share_2e20 = _experts("cluster.grouped_gemm_share_2e20")
    rowwise_gemm_share_2e20 = _shared("cluster.rowwise_gemm_share_2e20")
    wide_dtype = _shared("wide_dtype")
    fp8_recipe = _shared("training.fp8_recipe")
    fp8_transpose = _shared("training.fp8_transpose")
    fp8_layouts = _shared(_fp8_layouts)  # In which narrow GEMMs read what is quantised. [copies]
    accumulate_bytes = _shared("training.accumulate_bytes")
    # What weight gradients do: add to the main ones, have a kernel add them, or nothing. [code]
    accumulation = _shared(
        lambda p: np.where(
            p.split.fsdp > 0,
            ADDS_NOTHING,
            np.where(p.training.fused_accumulation, ADDS, ADDS_APART),
        )
    )
    recompute = _shared(lambda p: p.kinds["recompute"])  # 0 none, 1 selective, 2 full. [code]
    # Bit i: `RECOMPUTE_MODULES[i]` is dropped. [bits]
    recompute_mask = _shared(
        lambda p: p.training.recompute_mask * (p.kinds["recompute"] == RECOMPUTE_SELECTIVE)
    )
    # Recomputation ends before the last GEMM. [flag]
    stops_early = _shared(
        lambda p: p.training.stops_early * (p.kinds["recompute"] == RECOMPUTE_FULL)
    )
    frozen = _shared("training.adapted")
    # Bit i: of `SITES[i]`. [bits]
    adapter_sites = _layer(lambda p: p.training.adapter_sites & p.model.sites)
    adapter_rank = _layer("training.adapter_rank")
    adapter_expert_rank = _experts("training.adapter_expert_rank")
    adapter_each = _experts("training.adapter_each")
    adapter_dropout = _layer("training.adapter_dropout")
    packed_base = _layer("training.packed_base")
    flash = _shared("training.flash")
    drops_scores = _layer(lambda p: p.training.drops_scores * (p.training.flash == 0))
    loss_forward_bytes = _loss("forward_bytes")  # Of a logit, moved by the loss. [bytes]
    loss_backward_bytes = _loss("backward_bytes")  # The same in the backward. [bytes]
    loss_saved_bytes = _loss("saved_bytes")  # Of a logit, kept for the backward. [bytes]
    loss_transient_bytes = _loss("transient_bytes")  # The same while the loss runs. [bytes]
    # The same, where TP divides the vocabulary. [bytes]
    loss_divided_bytes = _loss("divided_bytes")
    # Tokens of a chunk of it; 0 is all at once. [tokens]
    loss_chunk = WorkloadColumn("training.loss_chunk", lambda p: p.kinds["kind"] == Kind.HEAD)
    loss_launches = _loss("launches")  # Of the loss in one pass. [kernels]
    cp_type = _shared("split.cp_type")
    dispatcher = _experts("training.dispatcher")
    dispatch_bytes = _experts("training.dispatch_bytes")
    dispatcher_units = _experts("training.dispatcher_units")
    permute_fusion = _experts("training.permute_fusion")
    fused_experts = _experts("training.fused_experts")
    padding_fusion = _experts("training.padding_fusion")
    calls_forward = _calls(0)  # Beside its kernels, dispatched by the host. [operators]
    calls_backward = _calls(1)  # The same in the backward. [operators]
    bias_forward_bytes = _pass("bias_forward_bytes")  # Of an output, moved for its bias. [bytes]
    bias_backward_bytes = _pass("bias_backward_bytes")  # The same in the backward. [bytes]
    # Of an output, held while it is added. [bytes]
    bias_transient_bytes = _pass("bias_transient_bytes")
    # Of an activation, moved to clamp it. [bytes]
    clamp_forward_bytes = _pass("clamp_forward_bytes")
    clamp_backward_bytes = _pass("clamp_backward_bytes")  # The same in the backward. [bytes]
    atomic_bytes = _experts("cluster.atomic_bytes")
    eager_share_2e20 = _experts("cluster.eager_share_2e20")
    host_sync = _experts("training.host_sync")
    compiled = _shared("training.compiled")
    tp_overlap = _shared("split.tp_overlap")
    async_tp_exposed_2e20 = _shared("cluster.async_tp_exposed_2e20")
    ep_overlap = _experts("split.ep_overlap")
    shared_overlap = _experts("split.shared_overlap")
    # Tokens of the fullest expert rank over those of one whose load is balanced. [2**-20]
    load_2e20 = _shared(lambda p: p.loads[0])
    # The same of a mean rank: what capacity leaves, or pads to. [2**-20]
    kept_2e20 = _shared(lambda p: p.loads[1])


class PlacedColumns(WorkloadColumns):
    """Columns of workloads whose shapes several devices and fabrics share."""

    def __init__(self, shapes: Records, shape: Ints, device: Ints, fabric: Ints) -> None:
        """Keep WORKLOAD[shapes], and the shape, device and fabric of each workload."""
        super().__init__(shapes)
        self._shape = shape
        self.__dict__ |= {"device": device, "fabric": fabric}

    def __len__(self) -> int:
        """Return the number of workloads."""
        return len(self._shape)

    def read(self, name: str) -> Ints:
        """Return the column with some name."""
        return np.asarray(self.rows[name]).take(self._shape)


COLUMNS: tuple[WorkloadColumn, ...] = tuple(
    column for column in vars(WorkloadColumns).values() if isinstance(column, WorkloadColumn)
)

WORKLOAD = np.dtype([(column.name, np.int64) for column in COLUMNS])
"""All columns of one workload."""


VISION: Mapping[str, Callable[[Pieces], Array]] = {
    "hidden": lambda p: p.model.vision_hidden,
    "ffn": lambda p: p.model.vision_ffn,
    "gated": lambda p: p.model.vision_gated,
    "heads": lambda p: p.model.vision_heads,
    "key_heads": lambda p: p.model.vision_heads,
    "d_qk": lambda p: p.model.vision_hidden // np.maximum(1, p.model.vision_heads),
    "d_v": lambda p: p.model.vision_hidden // np.maximum(1, p.model.vision_heads),
    "norm_parameters": lambda p: p.model.vision_norm,
    "rope": lambda p: 1 - p.model.vision_learned,
    "seq": lambda p: p.model.vision_patches,
    "micro_batch": lambda p: p.jobs.micro_batch * p.model.vision_images,
    "positions": lambda p: p.model.vision_patches * p.model.vision_learned,
    # Numbers of a patch, width of a token, inner width of the projector, patches of a token.
    "latent_size": lambda p: p.model.vision_patch,
    "latent_out": lambda p: p.model.hidden,
    "condition_width": lambda p: p.model.vision_inner,
    "text_width": lambda p: p.model.vision_merge,
    "frozen": lambda p: np.where(
        p.kinds["kind"] == Kind.VISION, p.model.vision_frozen | p.training.adapted,
        p.training.adapted,
    ),
    **{name: lambda p: np.full(len(p.kinds), 2) for name in ("norms", "attention_bias")},
    **{name: lambda p: np.ones(len(p.kinds), np.int64) for name in ("cp", "cp_local", "mlp_bias")},
    **{
        name: lambda p: np.zeros(len(p.kinds), np.int64)
        for name in (
            "mla", "index_heads", "qk_norm", "output_gate", "sinks", "window", "adapter_sites",
            "packed_base", "joined_tokens", "text_tokens",
        )
    },
}  # fmt: skip
"""What a tower and its projector have of a layer's columns: their own widths and tokens. Each rank
of context parallelism has all images."""


def workload_records(pieces: Pieces) -> Records:
    """Return WORKLOAD[n] of one kind of layer of each of n jobs, device and fabric left 0."""
    records = np.zeros(len(pieces.kinds), WORKLOAD)
    for column in COLUMNS:
        records[column.name] = column.values(pieces)
    seen = np.isin(pieces.kinds["kind"], (Kind.VISION, Kind.PROJECTOR))
    if seen.any():
        for name, read in VISION.items():
            records[name] = np.where(seen, read(pieces), records[name])
    return records
