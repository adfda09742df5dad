"""Self-attention: grouped-query or latent, fused or not, over tensor and context parallelism."""

from functools import partial

import numpy as np

from projector.arrays import Floats, Ints
from projector.config.engine import inference_operators
from projector.kernels.collective_algorithms import (
    ALL_GATHER,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    SEND_RECV,
)
from projector.kernels.spans import pair_codes
from projector.operations import linear
from projector.operations import table as ops
from projector.operations.communication import (
    emit_collective,
    emit_region_entry,
    emit_region_exit,
    group_row,
)
from projector.operations.shapes import Shapes, StepShapes, ceil_div

CORE_ATTN_BIT, MLA_UP_BIT = 1 << 0, 1 << 2
MLA_MADE_AGAIN = MLA_UP_BIT | ops.AGAIN | ops.DROPS
SEGMENT_QKV, SEGMENT_PROJ, SEGMENT_CORE = 1, 2, 3
P2P, GATHER, EXCHANGE_HEADS = range(3)

EAGER_ROTATION, EAGER_ROTATION_KERNELS = 20.0, 8.0
"""Bytes of an element, and kernels, of a rotation one operator after the other: two products, a sum
(14), and halves that are negated and joined (6); each for Q and for K."""


def emit_attention(table: ops.TableBuilder, shapes: Shapes, where: Ints) -> None:
    """Emit the attention of all transformer layers in ``where``."""
    emit_projections(table, shapes, where[shapes.mla[where] == 0])
    _emit_latent_projections(table, shapes, where[shapes.mla[where] == 1])
    emit_core(table, shapes, where)
    emit_output(table, shapes, where)


def emit_cached_attention(
    table: ops.TableBuilder, shapes: Shapes, steps: StepShapes, where: Ints
) -> None:
    """Emit the attention of all layers of inference steps, but for `emit_cached_core`.

    Sequences that decode fold the up-projections of latent attention into the heads.
    """
    layers = table.repeated(steps.attention_layers)
    emit_projections(layers, shapes, where[shapes.mla[where] == 0])
    _emit_absorbed_projections(layers, shapes, steps, where[shapes.mla[where] == 1])
    tokens = shapes.tokens.astype(np.float64)
    linear.emit_memory(
        layers,
        where,
        "attention.cache",
        backward_bytes=0.0,
        forward_bytes=tokens * (2.0 * steps.cached + steps.cache_bytes),
    )
    linear.emit_memory(
        layers,
        where[(shapes.operand_bytes[where] < 2.0) & (steps.narrow_layers[where] == 0)],
        "attention.quantise",
        forward_bytes=tokens * (local_heads(shapes)[0] * shapes.d_v) * (2.0 + shapes.operand_bytes),
        backward_bytes=0.0,
    )
    emit_output(layers, shapes, where)


def local_heads(shapes: Shapes) -> tuple[Ints, Ints]:
    """Return the query and the key heads of one tensor-parallel rank."""
    return shapes.heads // shapes.tp, ceil_div(shapes.key_heads, shapes.tp)


def emit_output(
    table: ops.TableBuilder, shapes: Shapes, where: Ints, beside: ops.IntValues = 0
) -> None:
    """Emit the output projection, also of inputs ``beside``, and the sum of its parts."""
    heads, _ = local_heads(shapes)
    linear.emit_adapted(
        table, shapes, where, "attention.proj", {"proj": shapes.hidden}, linear.ROW,
        linear.Linear(
            tokens=shapes.tokens, n_in=heads * shapes.d_v + beside, n_out=shapes.hidden,
            bias=shapes.attention_bias == 2, segment=SEGMENT_PROJ, recompute_bit=ops.AGAIN,
            # Gradients of what is beside attention, before and behind its activation.
            transient_bytes=4.0 * shapes.tokens * beside,
        ),
        # The backward of fused attention keeps its output.
        keeps_input=shapes.flash == 0,
    )  # fmt: skip
    activations = 2.0 * shapes.tokens * shapes.hidden
    emit_region_exit(table, shapes, where, "attention.tp", activations, SEGMENT_PROJ)


def emit_projections(
    table: ops.TableBuilder, shapes: Shapes, where: Ints, beside: ops.IntValues = 0
) -> None:
    """Emit the projection to Q, K, V and outputs ``beside``, rotations and norms."""
    if len(where) == 0:
        return
    heads, key_heads = local_heads(shapes)
    query, key, value = heads * shapes.d_qk, key_heads * shapes.d_qk, key_heads * shapes.d_v
    emit_region_entry(
        table, shapes, where, "attention.tp", 2.0 * shapes.tokens * shapes.hidden, SEGMENT_QKV
    )
    gate = heads * shapes.d_v * shapes.output_gate
    whole = query + gate + key + value + beside
    outputs = {"qkv": whole, "q": query + gate, "k": key, "v": value}
    # Recomputation by operators keeps Q and V, and makes K again, a product of its own.
    apart = key * shapes.per_op * (shapes.adapter_sites == 0)
    for label, n_out, bit in (
        ("attention.qkv", whole - apart, ops.DROPS), ("attention.k", apart, ops.AGAIN),
    ):  # fmt: skip
        linear.emit_adapted(
            table, shapes, where[n_out[where] > 0], label, outputs, linear.COLUMN,
            linear.Linear(
                tokens=shapes.tokens, n_in=shapes.hidden, n_out=n_out, recompute_bit=bit,
                saved_tokens=shapes.kept_tokens, bias=shapes.attention_bias >= 1,
                segment=SEGMENT_QKV, saves_input=bit == ops.DROPS,
            ),
        )  # fmt: skip
    rotated = shapes.tokens * (query + key).astype(np.float64)
    rotation = np.where(shapes.eager == 1, EAGER_ROTATION, 4.0) * rotated
    linear.emit_memory(
        table,
        where[shapes.rope[where] == 1],
        "attention.rope",
        forward_bytes=rotation,
        backward_bytes=rotation,
        launches=np.where(shapes.eager == 1, EAGER_ROTATION_KERNELS, 1.0),
        recompute_bit=ops.AGAIN,
    )
    gated = shapes.tokens * gate.astype(np.float64)
    linear.emit_memory(
        table, where[shapes.output_gate[where] == 1], "attention.gate", forward_bytes=6.0 * gated,
        backward_bytes=10.0 * gated, saved_bytes=4.0 * gated,
    )  # fmt: skip
    eager = where[shapes.eager[where] == 1]
    projected = shapes.tokens * (query + key + value).astype(np.float64)
    linear.emit_memory(
        table, eager, "attention.qkv.join", forward_bytes=0.0, backward_bytes=4.0 * projected,
        launches=0.0, backward_launches=1.0,
    )  # fmt: skip
    normed = where[shapes.qk_norm[where] > 0]
    width = np.where(shapes.qk_norm == 1, shapes.d_qk * 2.0, query + key)
    linear.emit_memory(
        table, normed, "attention.qk_norm", forward_bytes=4.0 * rotated,
        backward_bytes=6.0 * rotated, launches=2.0, saved_bytes=2.0 * rotated, parameters=width,
        recompute_bit=ops.AGAIN | ops.DROPS,
    )  # fmt: skip


def _emit_latent_projections(table: ops.TableBuilder, shapes: Shapes, where: Ints) -> None:
    if len(where) == 0:
        return
    heads, _ = local_heads(shapes)
    emit_latents(table, shapes, where)
    _emit_latent_keys(table, shapes, where, "attention.kv_up", shapes.tokens)
    # Rotation touches the rope parts; assembling K copies the shared part to every head.
    moved = shapes.tokens * heads * (2.0 * shapes.d_rope + shapes.d_nope)
    linear.emit_memory(
        table, where, "attention.rope", forward_bytes=4.0 * moved, backward_bytes=4.0 * moved,
        launches=3.0, recompute_bit=MLA_MADE_AGAIN,
    )  # fmt: skip


def _emit_absorbed_projections(
    table: ops.TableBuilder, shapes: Shapes, steps: StepShapes, where: Ints
) -> None:
    """Emit latent projections beside a cache of latents.

    The up-projections of keys and values run for chunks of prompts. Sequences that decode multiply
    queries and outputs by them instead, head by head.
    """
    if len(where) == 0:
        return
    heads, _ = local_heads(shapes)
    emit_latents(table, shapes, where)
    moved = shapes.tokens.astype(np.float64) * (heads + 1) * shapes.d_rope
    linear.emit_memory(
        table, where, "attention.rope", forward_bytes=4.0 * moved, backward_bytes=0.0
    )
    sparse = shapes.index_heads > 0
    chunks = where[(steps.chunks[where] > 0) & ~sparse[where]]
    _emit_latent_keys(table, shapes, chunks, "attention.kv_up", steps.chunks * steps.chunk_tokens)
    absorbed = np.where(sparse, shapes.tokens, steps.decode_tokens)
    decode = where[absorbed[where] > 0]
    by_head = partial(linear.Linear, tokens=absorbed, groups=heads, wide=True)
    absorb = partial(linear.emit_linear, table, shapes, decode)
    absorb("attention.absorb_k", by_head(n_in=shapes.d_nope, n_out=shapes.kv_lora))
    absorb("attention.absorb_v", by_head(n_in=shapes.kv_lora, n_out=shapes.d_v))


def emit_latents(table: ops.TableBuilder, shapes: Shapes, where: Ints) -> None:
    """Emit the down-projections and that of the queries.

    The down-projections are replicated over TP and run before the sequence is gathered, so only
    the latents travel.
    """
    heads, _ = local_heads(shapes)
    query_width = heads * shapes.d_qk
    compressed = where[shapes.q_lora[where] > 0]
    direct = where[shapes.q_lora[where] == 0]
    outer, tokens = shapes.outer_tokens, shapes.tokens
    latent_width = shapes.q_lora + shapes.kv_lora + shapes.d_rope
    gathered = np.where(
        shapes.q_lora > 0, latent_width, shapes.hidden + shapes.kv_lora + shapes.d_rope
    )
    emit_region_entry(table, shapes, where, "attention.tp", 2.0 * tokens * gathered, SEGMENT_QKV)
    down = partial(linear.Linear, tokens=outer, n_in=shapes.hidden, recompute_bit=ops.DROPS)
    linear.emit_adapted(
        table, shapes, compressed, "attention.q_down", {"q_down": shapes.q_lora}, linear.WHOLE,
        down(n_out=shapes.q_lora),
    )  # fmt: skip
    latent = shapes.kv_lora + shapes.d_rope
    linear.emit_adapted(
        table, shapes, where, "attention.kv_down", {"kv_down": latent}, linear.WHOLE,
        # The queries' down-projection already keeps this input, where there is one.
        down(n_out=latent, saves_input=shapes.q_lora == 0),
        keeps_input=shapes.adapter_sites & linear.BITS["q_down"] == 0,
    )  # fmt: skip
    normed = (shapes.q_lora + shapes.kv_lora) * outer.astype(np.float64)
    linear.emit_memory(
        table, where, "attention.latent_norm", forward_bytes=4.0 * normed,
        backward_bytes=6.0 * normed, launches=2.0, saved_bytes=2.0 * normed,
        parameters=shapes.q_lora + shapes.kv_lora,
    )  # fmt: skip
    up = partial(linear.Linear, tokens=tokens, segment=SEGMENT_QKV, recompute_bit=MLA_MADE_AGAIN)
    linear.emit_adapted(
        table, shapes, compressed, "attention.q_up", {"q_up": query_width}, linear.COLUMN,
        up(n_in=shapes.q_lora, n_out=query_width),
    )  # fmt: skip
    linear.emit_adapted(
        table, shapes, direct, "attention.q", {"q": query_width}, linear.COLUMN,
        up(n_in=shapes.hidden, n_out=query_width),
    )  # fmt: skip


def _emit_latent_keys(
    table: ops.TableBuilder, shapes: Shapes, where: Ints, label: str, tokens: Ints
) -> None:
    heads, _ = local_heads(shapes)
    n_out = heads * (shapes.d_nope + shapes.d_v)
    linear.emit_adapted(
        table, shapes, where, label, {"kv_up": n_out}, linear.COLUMN,
        linear.Linear(
            tokens=tokens, n_in=shapes.kv_lora, n_out=n_out, segment=SEGMENT_QKV,
            recompute_bit=MLA_MADE_AGAIN,
        ),
    )  # fmt: skip


def emit_cached_core(
    table: ops.TableBuilder, shapes: Shapes, steps: StepShapes, where: Ints
) -> None:
    """Emit softmax(QK')V over cached and new keys, of layers with and without a window.

    Chunks of prompts project the latents that they cached before up again. Nothing else in a step
    depends on what is cached.
    """
    heads, key_heads = local_heads(shapes)
    latent = shapes.mla == 1
    again = steps.chunks * steps.chunk_context
    _emit_latent_keys(
        table.repeated(steps.attention_layers), shapes,
        where[latent[where] & (again[where] > 0) & (shapes.index_heads[where] == 0)],
        "attention.kv_up.cached", again,
    )  # fmt: skip
    widths = np.where(latent, 2 * shapes.kv_lora + shapes.d_rope, shapes.d_qk + shapes.d_v)
    keys = steps.context + steps.queries
    full = (steps.attention_layers - steps.windowed, np.zeros_like(shapes.window), "attention.core")
    windowed = (steps.windowed, shapes.window, "attention.windowed")
    for layers, window, label in (full, windowed):
        builder, present = table.repeated(layers), where[layers[where] > 0]
        dense = present[(steps.chunks[present] > 0) & (shapes.index_heads[present] == 0)]
        builder.add(
            dense, label, kind=ops.ATTENTION,
            category=ops.COMPUTE_ATTENTION, dtype=shapes.wide_dtype, batch=steps.chunks,
            heads=heads, key_heads=key_heads, m=steps.chunk_tokens, k=shapes.d_qk, d_v=shapes.d_v,
            n=steps.chunk_context + steps.chunk_tokens, causal=1, window=window,
        )  # fmt: skip
        seen = np.where(window > 0, np.minimum(keys, window + steps.queries - 1), keys)
        seen = np.where(shapes.index_heads > 0, np.minimum(seen, shapes.index_topk), seen)
        pairs = steps.sequences * seen.astype(np.float64)
        # Split over the context, then summed. Drafted tokens share what is read.
        builder.add(
            present[steps.sequences[present] > 0], label, kind=ops.MEMORY,
            category=ops.COMPUTE_ATTENTION, bytes=pairs * steps.cache_bytes,
            launches=inference_operators().decode_attention_kernels,
            flop=2.0 * pairs * heads * widths * steps.queries,
        )  # fmt: skip


def emit_core(table: ops.TableBuilder, shapes: Shapes, where: Ints) -> None:
    """Emit softmax(QK')V and the traffic of context parallelism.

    A rank of a balanced context-parallel group computes 1/CP of the causal work: its seq/CP
    queries meet half of all keys on average. With head exchange it sees whole sequences of
    1/CP of its heads. Latents that are denoised see all keys.
    """
    heads, key_heads = local_heads(shapes)
    full = shapes.latent_size > 0
    exchanged = shapes.cp_type == EXCHANGE_HEADS
    divided = (shapes.cp > 1) & ~exchanged
    own_heads = np.where(exchanged, heads // shapes.cp, heads)
    local_key_heads = np.where(exchanged, np.maximum(1, key_heads // shapes.cp), key_heads)
    queries = np.where(divided, shapes.seq // shapes.cp, shapes.seq)
    half = np.where(full, shapes.seq, ceil_div(shapes.seq, 2))
    windowed = shapes.window > 0
    keys = np.where(divided, np.where(windowed, np.minimum(half, shapes.window), half), shapes.seq)
    causal = (~divided & ~full).astype(np.int64)
    window = np.where(divided, 0, shapes.window)
    # Every pair of a query and a key it may see, on average over the sequence.
    width = np.minimum(np.where(windowed, shapes.window, shapes.seq), shapes.seq).astype(np.float64)
    pairs = shapes.seq * width - np.where(full, 0.0, 0.5) * width * width
    flop = 2.0 * shapes.micro_batch * shapes.heads * pairs * (shapes.d_qk + shapes.d_v)
    flop = flop / (shapes.tp * shapes.cp)
    _emit_context_traffic(table, shapes, where, heads, key_heads)
    tokens = shapes.tokens.astype(np.float64)
    size = np.where(shapes.fp8_attention == 1, 1.0, 2.0)
    query_bytes = size * tokens * heads * shapes.d_qk
    kept_keys = np.where((shapes.per_op == 1) & (shapes.mla == 0), 0, shapes.d_qk)
    key_bytes = size * tokens * key_heads * (kept_keys + shapes.d_v)
    # A narrow output projection keeps its own copy of O, and a frozen one none.
    frozen = (shapes.frozen == 1) & (shapes.flash == 1)
    output_bytes = np.where(shapes.narrow | frozen, 2.0 * tokens * heads * shapes.d_v, 0.0)
    copied = key_heads * (shapes.d_qk + shapes.d_v) + heads * shapes.d_v * (shapes.micro_batch > 1)
    log_sums = 4.0 * tokens * heads
    fused = where[shapes.flash[where] == 1]
    core = partial(
        table.add,
        kind=ops.ATTENTION,
        category=ops.COMPUTE_ATTENTION,
        segment=SEGMENT_CORE,
        dtype=np.where(shapes.fp8_attention == 1, linear.FP8, shapes.wide_dtype),
        batch=shapes.micro_batch,
        heads=own_heads,
        key_heads=local_key_heads,
        m=queries,
        n=keys,
        k=shapes.d_qk,
        d_v=shapes.d_v,
        causal=causal,
        window=window,
    )
    core(
        fused,
        "attention.core",
        phase=ops.FORWARD,
        flop=flop,
        recompute_bit=CORE_ATTN_BIT,
        saved_bytes=log_sums,
        parameters=shapes.sinks * heads,
    )
    core(fused, "attention.core", phase=ops.BACKWARD, flop=2.0 * flop, launches=3.0)
    linear.emit_memory(
        table, where, "attention.kept", forward_bytes=0.0, backward_bytes=0.0, launches=0.0,
        saved_bytes=query_bytes + key_bytes + output_bytes
        + shapes.attention_copy_bytes * tokens * copied,
        transient_bytes=query_bytes + 2.0 * tokens * heads * shapes.d_v,
        recompute_bit=MLA_UP_BIT | np.where(shapes.mla == 1, ops.DROPS, 0),
    )  # fmt: skip
    _emit_narrow_operands(table, shapes, where[shapes.fp8_attention[where] == 1], heads, key_heads)
    unfused = where[shapes.flash[where] == 0]
    emit_unfused_core(table, shapes, unfused, own_heads, queries, shapes.seq, flop)


def _emit_narrow_operands(
    table: ops.TableBuilder, shapes: Shapes, where: Ints, heads: Ints, key_heads: Ints
) -> None:
    """Emit what FP8 attention quantises: Q, K and V before the forward, dO before the backward.

    Each is read in 16 bits and written in 8; scales of a whole tensor cost one more read.
    """
    scaled_first = np.isin(shapes.fp8_recipe, (linear.TENSORWISE, linear.ROWWISE))
    one_more_read = scaled_first & (shapes.dtype == linear.FP8)
    per_element = 3.0 + 2.0 * one_more_read
    tokens = shapes.tokens.astype(np.float64)
    inputs = heads * shapes.d_qk + key_heads * (shapes.d_qk + shapes.d_v)
    linear.emit_memory(
        table, where, "attention.quantise", forward_bytes=tokens * inputs * per_element,
        backward_bytes=tokens * heads * shapes.d_v * per_element,
        launches=3.0 * (1.0 + one_more_read), backward_launches=1.0 + one_more_read,
        recompute_bit=CORE_ATTN_BIT,
    )  # fmt: skip


def emit_unfused_core(
    table: ops.TableBuilder, shapes: Shapes, where: Ints, heads: Ints, queries: Ints, keys: Ints,
    flop: Floats,
) -> None:  # fmt: skip
    """Emit attention that writes its scores: batched GEMMs and passes over queries times keys.

    Softmax, mask, scale and dropout make about 13 passes of 16 bits over the scores, 5 forward
    and 8 backward; 5 bytes of every score are kept (Korthikanti et al., arXiv 2205.05198), 2 by the
    softmax, and 3 by dropout for its mask and its result.
    """
    if len(where) == 0:
        return
    batch = shapes.micro_batch * heads
    scores = batch * queries.astype(np.float64) * keys
    kept = np.where(shapes.drops_scores == 1, 5.0, 2.0)
    gemm = partial(
        table.add, kind=ops.GEMM, category=ops.COMPUTE_ATTENTION, dtype=shapes.wide_dtype,
        batch=batch, segment=SEGMENT_CORE,
    )  # fmt: skip
    share_qk = shapes.d_qk / np.maximum(1, shapes.d_qk + shapes.d_v)
    scores_label, values_label = "attention.core.scores", "attention.core.values"
    forward = partial(gemm, where, phase=ops.FORWARD, m=queries, recompute_bit=CORE_ATTN_BIT)
    forward(
        scores_label, n=keys, k=shapes.d_qk, flop=flop * share_qk,
        parameters=shapes.sinks * heads,
    )  # fmt: skip
    forward(values_label, n=shapes.d_v, k=keys, flop=flop * (1.0 - share_qk))
    for width, share, label in (
        (shapes.d_qk, share_qk, scores_label),
        (shapes.d_v, 1.0 - share_qk, values_label),
    ):
        backward = partial(gemm, where, label, phase=ops.BACKWARD, n=width, flop=flop * share)
        backward(m=queries, k=keys)
        backward(m=keys, k=queries)
    for phase, passes in ((ops.FORWARD, 5.0), (ops.BACKWARD, 8.0)):
        table.add(
            where, "attention.core.softmax", phase=phase, kind=ops.MEMORY,
            category=ops.COMPUTE_ATTENTION, bytes=2.0 * passes * scores, exponentials=scores,
            launches=4.0, saved_bytes=kept * scores if phase == ops.FORWARD else 0.0,
            transient_bytes=4.0 * scores,
            recompute_bit=CORE_ATTN_BIT if phase == ops.FORWARD else 0,
        )  # fmt: skip


def _emit_context_traffic(
    table: ops.TableBuilder, shapes: Shapes, where: Ints, heads: Ints, key_heads: Ints
) -> None:
    """Emit what context parallelism moves.

    Keys and values go round a ring or are gathered at once, or heads are exchanged for sequence.
    """
    split = where[shapes.cp[where] > 1]
    if len(split) == 0:
        return
    tokens = shapes.tokens.astype(np.float64)
    shard_bytes = 2.0 * tokens * key_heads * (shapes.d_qk + shapes.d_v)
    # A ring of ranks that spans domains moves at the pace of its slowest link.
    ring = partial(
        emit_collective,
        table,
        category=ops.CP_COMM,
        operation=SEND_RECV,
        ranks=2,
        local=np.where(shapes.cp_local == shapes.cp, 2, 1),
        span=pair_codes(shapes.cp_span),
        repeats=shapes.cp - 1.0,
        exposed_share=0.0,
        partner_share=1.0 - 1.0 / shapes.cp,
        segment=SEGMENT_CORE,
    )
    label = "attention.cp"
    p2p = split[shapes.cp_type[split] == P2P]
    ring(p2p, f"{label}.send_recv", phase=ops.FORWARD, num_bytes=shard_bytes)
    ring(p2p, f"{label}.send_recv", phase=ops.BACKWARD, num_bytes=2.0 * shard_bytes)
    group = partial(emit_collective, table, category=ops.CP_COMM, **group_row(shapes, "cp"))
    gather = split[shapes.cp_type[split] == GATHER]
    gathers = partial(group, gather, num_bytes=shard_bytes * shapes.cp)
    for phase in (ops.FORWARD, ops.BACKWARD):
        gathers(f"{label}.all_gather", phase=phase, operation=ALL_GATHER)
    gathers(f"{label}.reduce_scatter", phase=ops.BACKWARD, operation=REDUCE_SCATTER)
    exchange = split[shapes.cp_type[split] == EXCHANGE_HEADS]
    moved = shard_bytes + 2.0 * tokens * heads * (shapes.d_qk + shapes.d_v)
    for phase in (ops.FORWARD, ops.BACKWARD):
        group(exchange, f"{label}.all_to_all", phase=phase, operation=ALL_TO_ALL, num_bytes=moved)
