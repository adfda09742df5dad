"""Operations of inference steps, as rows of the operation table (forward only)."""

from typing import Any

import numpy as np

from projector.kernels.collective_algorithms import ALL_GATHER, ALL_REDUCE, SEND_RECV
from projector.operations.table import (
    ATTENTION,
    COLLECTIVE,
    COMPUTE_ATTENTION,
    COMPUTE_GEMM,
    COMPUTE_OTHER,
    GEMM,
    MEMORY,
    TP_COMM,
    OperationTable,
    TableBuilder,
)
from projector.serving.columns import Floats, Ints, StepColumns

HEAD = "head.output"
"""Label of the output layer, whose weights have a type of their own."""


def emit_steps(steps: StepColumns) -> OperationTable:
    """Emit all operations of all steps; a row stands for all layers that are equal."""
    table = TableBuilder(len(steps))
    every = np.arange(len(steps))
    dense = steps.layers - steps.moe_layers
    _emit_attention(table, steps, every)
    _emit_mlp(table, steps, every[dense > 0], "mlp", steps.ffn, dense)
    sparse = every[steps.moe_layers > 0]
    _emit_experts(table, steps, sparse)
    shared = sparse[steps.shared_ffn[sparse] > 0]
    _emit_mlp(table, steps, shared, "moe.shared", steps.shared_ffn, steps.moe_layers, reduce=False)
    _emit_ends(table, steps, every)
    return table.build()


def _linear(
    table: TableBuilder, steps: StepColumns, where: Ints, label: str, *,
    m: Any, n: Any, k: Any, repeats: Any, wide: bool = False, **columns: Any,
) -> None:  # fmt: skip
    table.add(
        where, label, kind=GEMM, category=COMPUTE_GEMM, m=m, n=n, k=k, repeats=repeats,
        dtype=steps.wide_dtype if wide else steps.dtype, **columns,
    )  # fmt: skip


def _memory(
    table: TableBuilder, where: Ints, label: str, *, num_bytes: Any, repeats: Any,
    launches: float = 1.0, category: int = COMPUTE_OTHER, flop: Any = 0.0,
) -> None:  # fmt: skip
    table.add(
        where, label, kind=MEMORY, category=category, bytes=num_bytes, repeats=repeats,
        launches=launches, flop=flop,
    )  # fmt: skip


def _all_reduce(
    table: TableBuilder, steps: StepColumns, where: Ints, label: str, repeats: Any
) -> None:
    """Emit the sum of 16-bit activations over the tensor-parallel ranks."""
    table.add(
        where[steps.tp[where] > 1], label, kind=COLLECTIVE, category=TP_COMM, operation=ALL_REDUCE,
        bytes=2.0 * steps.tokens * steps.hidden, ranks=steps.tp, local=steps.tp_local,
        repeats=repeats,
    )  # fmt: skip


def _emit_attention(table: TableBuilder, steps: StepColumns, every: Ints) -> None:
    tokens, hidden = steps.tokens.astype(np.float64), steps.hidden
    # Norm fused with the residual addition: two reads, two writes; it writes the operand type.
    _memory(
        table, every, "norm", num_bytes=tokens * hidden * (6.0 + steps.operand_bytes),
        repeats=steps.layers * steps.norms,
    )  # fmt: skip
    query, key = steps.heads * steps.d_qk, steps.key_heads * steps.d_qk
    value = steps.key_heads * steps.d_v
    grouped, latent = every[steps.mla[every] == 0], every[steps.mla[every] == 1]
    _linear(
        table, steps, grouped, "attention.qkv", m=steps.tokens, n=query + key + value, k=hidden,
        repeats=steps.layers,
    )  # fmt: skip
    _memory(
        table, grouped[steps.qk_norm[grouped] > 0], "attention.qk_norm",
        num_bytes=4.0 * tokens * (query + key), repeats=steps.layers, launches=2.0,
    )  # fmt: skip
    _memory(
        table, grouped[steps.rope[grouped] > 0], "attention.rope",
        num_bytes=4.0 * tokens * (query + key), repeats=steps.layers,
    )  # fmt: skip
    _emit_latent(table, steps, latent)
    _memory(
        table, every, "attention.cache",
        num_bytes=tokens * (2.0 * steps.cached + steps.cache_bytes), repeats=steps.layers,
    )  # fmt: skip
    _emit_core(table, steps, every)
    narrow = every[steps.operand_bytes[every] < 2.0]
    inner = steps.heads * steps.d_v
    _memory(
        table, narrow, "attention.quantise",
        num_bytes=tokens * inner * (2.0 + steps.operand_bytes), repeats=steps.layers,
    )  # fmt: skip
    _linear(
        table, steps, every, "attention.proj", m=steps.tokens, n=hidden, k=inner,
        repeats=steps.layers,
    )  # fmt: skip
    _all_reduce(table, steps, every, "attention.all_reduce", steps.layers)


def _emit_latent(table: TableBuilder, steps: StepColumns, where: Ints) -> None:
    """Emit the projections of latent attention; decode folds the up-projections into the heads."""
    tokens, layers = steps.tokens, steps.layers
    width = steps.heads * steps.d_qk
    compressed = where[steps.q_lora[where] > 0]
    direct = where[steps.q_lora[where] == 0]
    down = {"m": tokens, "k": steps.hidden, "repeats": layers}
    _linear(table, steps, compressed, "attention.q_down", n=steps.q_lora, **down)
    _linear(table, steps, where, "attention.kv_down", n=steps.kv_lora + steps.d_rope, **down)
    _memory(
        table, where, "attention.latent_norm", launches=2.0, repeats=layers,
        num_bytes=4.0 * tokens * (steps.q_lora + steps.kv_lora),
    )  # fmt: skip
    up = {"m": tokens, "n": width, "repeats": layers}
    _linear(table, steps, compressed, "attention.q_up", k=steps.q_lora, **up)
    _linear(table, steps, direct, "attention.q", k=steps.hidden, **up)
    _memory(
        table, where, "attention.rope", repeats=layers,
        num_bytes=4.0 * tokens * (steps.heads + 1) * steps.d_rope,
    )  # fmt: skip
    prefill = where[steps.new_tokens[where] > 1]
    decode = where[steps.new_tokens[where] == 1]
    _linear(
        table, steps, prefill, "attention.kv_up", m=tokens,
        n=steps.heads * (steps.d_nope + steps.d_v), k=steps.kv_lora, repeats=layers,
    )  # fmt: skip
    absorbed: dict[str, Any] = {"m": tokens, "batch": steps.heads, "repeats": layers, "wide": True}
    _linear(table, steps, decode, "attention.absorb_k", n=steps.kv_lora, k=steps.d_nope, **absorbed)
    _linear(table, steps, decode, "attention.absorb_v", n=steps.d_v, k=steps.kv_lora, **absorbed)


def _emit_core(table: TableBuilder, steps: StepColumns, every: Ints) -> None:
    full = (steps.layers - steps.windowed, np.zeros(len(steps), np.int64), "attention.core")
    windowed = (steps.windowed, steps.window, "attention.windowed")
    for layers, window, label in (full, windowed):
        here = every[layers[every] > 0]
        prefill, decode = here[steps.new_tokens[here] > 1], here[steps.new_tokens[here] == 1]
        keys = steps.context + steps.new_tokens
        table.add(
            prefill, label, kind=ATTENTION, category=COMPUTE_ATTENTION, dtype=steps.wide_dtype,
            batch=steps.batch, heads=steps.heads,
            key_heads=np.where(steps.mla == 1, steps.heads, steps.key_heads),
            m=steps.new_tokens, n=keys, k=steps.d_qk, d_v=steps.d_v, causal=1, window=window,
            repeats=layers,
        )  # fmt: skip
        seen = np.where(window > 0, np.minimum(keys, window), keys)
        pairs = steps.batch * seen.astype(np.float64)
        widths = np.where(steps.mla == 1, 2 * steps.kv_lora + steps.d_rope, steps.d_qk + steps.d_v)
        # Split over the context, then summed: two kernels.
        _memory(
            table, decode, label, num_bytes=pairs * steps.cache_bytes, repeats=layers,
            launches=2.0, category=COMPUTE_ATTENTION, flop=2.0 * pairs * steps.heads * widths,
        )  # fmt: skip


def _emit_mlp(
    table: TableBuilder, steps: StepColumns, where: Ints, label: str, inner: Ints, layers: Ints,
    *, reduce: bool = True,
) -> None:  # fmt: skip
    tokens, hidden = steps.tokens, steps.hidden
    _linear(
        table, steps, where, f"{label}.fc1", m=tokens, n=inner * (1 + steps.gated), k=hidden,
        repeats=layers,
    )  # fmt: skip
    _memory(
        table, where, f"{label}.act", repeats=layers,
        num_bytes=tokens * inner * (2.0 * (1 + steps.gated) + steps.operand_bytes),
    )  # fmt: skip
    _linear(table, steps, where, f"{label}.fc2", m=tokens, n=hidden, k=inner, repeats=layers)
    if reduce:
        _all_reduce(table, steps, where, f"{label}.all_reduce", layers)


def _emit_experts(table: TableBuilder, steps: StepColumns, where: Ints) -> None:
    """Emit routed experts, all on every rank, each split over TP.

    With uniform routing ``experts * (1 - (1 - topk / experts)**tokens)`` experts are active;
    only their weights are read.
    """
    if len(where) == 0:
        return
    tokens, layers, hidden = steps.tokens, steps.moe_layers, steps.hidden
    experts = np.maximum(1, steps.experts)
    scores = tokens * experts.astype(np.float64)
    pairs = tokens * steps.topk
    active = active_experts(experts, steps.topk, tokens)
    rows = -(-pairs // active)
    pairs_f = pairs.astype(np.float64)
    _linear(
        table, steps, where, "moe.router", m=tokens, n=experts, k=hidden, repeats=layers,
        wide=True, out_bytes=4.0,
    )  # fmt: skip
    _memory(
        table, where, "moe.route", num_bytes=4.0 * scores + 24.0 * pairs_f, repeats=layers,
        launches=3.0,
    )  # fmt: skip
    _memory(
        table, where, "moe.permute", num_bytes=2.0 * steps.operand_bytes * pairs_f * hidden,
        repeats=layers,
    )  # fmt: skip
    _linear(
        table, steps, where, "moe.fc1", m=rows, n=steps.expert_ffn * (1 + steps.gated), k=hidden,
        repeats=layers, batch=active, expert=1,
    )  # fmt: skip
    _memory(
        table, where, "moe.act", repeats=layers,
        num_bytes=pairs_f * steps.expert_ffn * (2.0 * (1 + steps.gated) + steps.operand_bytes),
    )  # fmt: skip
    _linear(
        table, steps, where, "moe.fc2", m=rows, n=hidden, k=np.maximum(1, steps.expert_ffn),
        repeats=layers, batch=active, expert=1,
    )  # fmt: skip
    _memory(
        table, where, "moe.finalise", num_bytes=2.0 * (pairs_f + tokens) * hidden, repeats=layers,
    )  # fmt: skip
    _all_reduce(table, steps, where, "moe.all_reduce", layers)


def active_experts(experts: Ints, topk: Ints, tokens: Ints) -> Ints:
    """Return the expected number of experts that some token picks, at least ``topk``."""
    missed: Floats = (1.0 - topk / np.maximum(1, experts)) ** tokens
    expected = np.rint(experts * (1.0 - missed)).astype(np.int64)
    return np.maximum(np.maximum(expected, topk), 1)


def _emit_ends(table: TableBuilder, steps: StepColumns, every: Ints) -> None:
    """Emit embedding, last norm, head of each sequence's last token, sampling, and stage sends."""
    tokens, batch = steps.tokens.astype(np.float64), steps.batch
    _memory(table, every, "embedding", num_bytes=4.0 * tokens * steps.hidden, repeats=1.0)
    _all_reduce(table, steps, every, "embedding.all_reduce", 1.0)
    _memory(table, every, "head.norm", num_bytes=4.0 * batch * steps.hidden, repeats=1.0)
    _linear(
        table, steps, every, HEAD, m=batch, n=steps.vocab, k=steps.hidden, repeats=1.0, wide=True
    )
    logits = batch * steps.vocab * steps.tp.astype(np.float64)
    table.add(
        every[steps.tp > 1], "head.all_gather", kind=COLLECTIVE, category=TP_COMM,
        operation=ALL_GATHER, bytes=2.0 * logits, ranks=steps.tp, local=steps.tp_local,
    )  # fmt: skip
    # Scale, softmax and pick, in FP32.
    _memory(table, every, "head.sample", num_bytes=14.0 * logits, repeats=1.0, launches=3.0)
    table.add(
        every[steps.pp > 1], "pipeline.send", kind=COLLECTIVE, category=PP_COMM,
        operation=SEND_RECV, bytes=2.0 * tokens * steps.hidden, ranks=2, local=steps.pp_local,
        repeats=steps.pp - 1,
    )  # fmt: skip


PP_COMM = TP_COMM + 1
"""Category of the sends between pipeline stages, in the place of the training's context
parallelism, which inference steps do not have."""
