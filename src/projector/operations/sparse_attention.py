"""DeepSeek Sparse Attention: an indexer chooses the keys that each query of latent attention sees.

The indexer has heads of its own over one shared key. Its scores of all pairs are summed over heads,
and the best keys of each query are kept. Attention then reads their latents, with queries and
outputs multiplied by the up-projections head by head, so that all heads share what is read.
Operations are those of Megatron-LM's experimental_attention_variant/dsa.py (@d98e8a64) with fused
kernels (tilelang, cudnn), read from their code.
"""

from functools import partial

import numpy as np

from projector.arrays import Ints
from projector.kernels.collective_algorithms import ALL_GATHER, REDUCE_SCATTER
from projector.operations import attention
from projector.operations import table as ops
from projector.operations.communication import emit_collective, group_row
from projector.operations.linear import Linear, emit_linear, emit_memory
from projector.operations.shapes import Shapes, StepShapes, ceil_div


def emit_sparse_attention(table: ops.TableBuilder, shapes: Shapes, where: Ints) -> None:
    """Emit the sparse attention of the layers in ``where``."""
    if len(where) == 0:
        return
    heads, _ = attention.local_heads(shapes)
    tokens = shapes.tokens.astype(np.float64)
    attention.emit_latents(table, shapes, where)
    moved = tokens * heads * 2.0 * shapes.d_rope
    emit_memory(
        table, where, "attention.rope", forward_bytes=4.0 * moved, backward_bytes=4.0 * moved
    )
    _emit_indexer(table, shapes, where)
    _emit_context(table, shapes, where)
    # A causal query sees half of the sequence on average, whatever rank has it.
    _emit_choice(table, shapes, where, shapes.tokens, ceil_div(shapes.seq, 2), shapes.micro_batch)
    by_head = partial(
        Linear, tokens=shapes.tokens, groups=heads, wide=True, recompute_bit=attention.MLA_UP_BIT
    )
    absorb = partial(emit_linear, table, shapes, where)
    absorb("attention.absorb_k", by_head(n_in=shapes.d_nope, n_out=shapes.kv_lora))
    width = shapes.kv_lora + shapes.d_rope
    # A query sees all keys before it, up to those that are chosen.
    most = np.minimum(shapes.index_topk, shapes.seq).astype(np.float64)
    seen = np.maximum(1, np.rint(most - most * most / (2.0 * shapes.seq))).astype(np.int64)
    flop = 2.0 * tokens * heads * seen * (width + shapes.kv_lora)
    core = partial(
        table.add, where, "attention.core", kind=ops.ATTENTION, category=ops.COMPUTE_ATTENTION,
        segment=attention.SEGMENT_CORE, dtype=shapes.wide_dtype, batch=shapes.tokens, heads=1,
        key_heads=1, m=heads, n=seen, k=width, d_v=shapes.kv_lora, causal=0,
    )  # fmt: skip
    core(phase=ops.FORWARD, flop=flop, saved_bytes=tokens * heads * (2.0 * width + 4.0))
    core(phase=ops.BACKWARD, flop=2.0 * flop, launches=3.0)
    absorb("attention.absorb_v", by_head(n_in=shapes.kv_lora, n_out=shapes.d_v))
    attention.emit_output(table, shapes, where)


def emit_cached_indexer(
    table: ops.TableBuilder, shapes: Shapes, steps: StepShapes, where: Ints
) -> None:
    """Emit the indexer of inference steps, and the attention of prompts to the keys it chose.

    Sequences that decode read an index key for each cached token; their attention is part of
    `emit_cached_core`.
    """
    sparse = where[shapes.index_heads[where] > 0]
    if len(sparse) == 0:
        return
    layers = table.repeated(steps.attention_layers)
    _emit_indexer(layers, shapes, sparse)
    keys = steps.sequences * (steps.context + steps.queries).astype(np.float64)
    emit_memory(
        layers, sparse[steps.sequences[sparse] > 0], "attention.index.scores",
        forward_bytes=2.0 * keys * shapes.index_width + 8.0 * keys * steps.queries,
        backward_bytes=0.0, launches=2.0,
    )  # fmt: skip
    prompts = sparse[steps.chunks[sparse] > 0]
    tokens = steps.chunks * steps.chunk_tokens
    visible = np.maximum(1, steps.chunk_context + ceil_div(steps.chunk_tokens, 2))
    _emit_choice(layers, shapes, prompts, tokens, visible, steps.chunks)
    heads, _ = attention.local_heads(shapes)
    layers.add(
        prompts, "attention.core", kind=ops.ATTENTION, category=ops.COMPUTE_ATTENTION,
        dtype=shapes.wide_dtype, batch=tokens, heads=1, key_heads=1, m=heads,
        n=np.minimum(visible, shapes.index_topk), k=shapes.kv_lora + shapes.d_rope,
        d_v=shapes.kv_lora, causal=0,
    )  # fmt: skip


def _emit_indexer(table: ops.TableBuilder, shapes: Shapes, where: Ints) -> None:
    """Emit the projections of the indexer, which every tensor-parallel rank has whole."""
    linear = partial(Linear, tokens=shapes.tokens, saves_input=False)
    inner = shapes.index_heads * shapes.index_width
    for name, n_in, n_out in (
        ("queries", np.where(shapes.q_lora > 0, shapes.q_lora, shapes.hidden), inner),
        ("keys", shapes.hidden, shapes.index_width),
        ("weights", shapes.hidden, shapes.index_heads),
    ):
        emit_linear(table, shapes, where, f"attention.index.{name}", linear(n_in=n_in, n_out=n_out))
    elements = shapes.tokens * (inner + shapes.index_width).astype(np.float64)
    emit_memory(
        table, where, "attention.index.norm", forward_bytes=4.0 * elements,
        backward_bytes=6.0 * elements, launches=3.0, saved_bytes=2.0 * elements,
        parameters=2 * shapes.index_width,
    )  # fmt: skip


def _emit_choice(
    table: ops.TableBuilder, shapes: Shapes, where: Ints, tokens: Ints, keys: Ints, batch: Ints
) -> None:
    """Emit the scores of all pairs of a query and a key, and the choice among them.

    Scores are summed over heads as they are made, and written once in FP32. The loss of the indexer
    looks at chosen keys alone (``dsa_indexer_use_sparse_loss``).
    """
    rows = ceil_div(tokens, np.maximum(1, batch)) * shapes.index_heads
    pairs = tokens.astype(np.float64) * keys
    scores = partial(
        table.add, where, "attention.index.scores", kind=ops.GEMM, category=ops.COMPUTE_ATTENTION,
        dtype=shapes.dtype, batch=batch, m=rows, k=shapes.index_width,
        out_bytes=4.0 / np.maximum(1, shapes.index_heads),
    )  # fmt: skip
    flop = 2.0 * pairs * shapes.index_heads * shapes.index_width
    scores(phase=ops.FORWARD, n=keys, flop=flop)
    chosen = np.minimum(keys, shapes.index_topk)
    scores(
        phase=ops.BACKWARD, n=chosen, flop=2.0 * flop * chosen / np.maximum(1, keys), repeats=2.0
    )
    kept = 4.0 * tokens * shapes.index_topk.astype(np.float64)
    emit_memory(
        table, where, "attention.index.topk", forward_bytes=4.0 * pairs + kept,
        backward_bytes=2.0 * kept, launches=2.0, saved_bytes=kept, transient_bytes=4.0 * pairs,
    )  # fmt: skip


def _emit_context(table: ops.TableBuilder, shapes: Shapes, where: Ints) -> None:
    """Emit how context parallelism gathers latents and index keys; it can do nothing else here."""
    split = where[shapes.cp[where] > 1]
    width = shapes.kv_lora + shapes.d_rope + shapes.index_width
    whole = 2.0 * shapes.tokens * width.astype(np.float64) * shapes.cp
    for phase, operation in ((ops.FORWARD, ALL_GATHER), (ops.BACKWARD, REDUCE_SCATTER)):
        emit_collective(
            table, split, "attention.cp.all_gather", phase=phase, category=ops.CP_COMM,
            operation=operation, num_bytes=whole, **group_row(shapes, "cp"),
        )  # fmt: skip
