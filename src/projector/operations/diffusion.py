"""Layers and ends of diffusion transformers: modulated norms, two streams, text beside latents.

A norm has no weights. Scale, shift and the gate of what is added come from the time and the text of
a sample (adaLN-Zero, arXiv 2212.09748), by a projection that sees a sample once, not each of its
tokens: large in parameters, small in work. Parts, widths and saved tensors are those of Flux and
Wan as torchtitan (pytorch/torchtitan@7e4ab8599, models/flux) and Primus
(AMD-AGI/Primus@fd1eeabb, backends/megatron and backends/diffusion) have them. No measurement stands
behind the passes of norms and gates.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from projector.arrays import Floats, Ints
from projector.config.model import BLOCKS, Mixer
from projector.kernels.collective_algorithms import ALL_GATHER, REDUCE_SCATTER
from projector.lower.stages import has_part
from projector.operations import attention, mlp
from projector.operations import table as ops
from projector.operations.communication import emit_collective, emit_region_entry, group_row
from projector.operations.linear import Linear, emit_linear, emit_memory
from projector.operations.shapes import Shapes, ceil_div

Modes = tuple[float, float, float]
"""What holds of operators that a compiler fuses, of fused ones, and of eager ones."""

NORM_FORWARD: Modes = (4.0, 8.0, 12.0)
NORM_BACKWARD: Modes = (6.0, 12.0, 24.0)
NORM_KERNELS: Modes = (1.0, 2.0, 3.0)
"""Bytes of an element, and kernels, of a norm and its modulation: both at once; one behind the
other; or product and sum apart, whose backward sums the gradients of scale and shift apart too."""

GATE_FORWARD: Modes = (6.0, 6.0, 10.0)
GATE_BACKWARD: Modes = (8.0, 12.0, 16.0)
GATE_KERNELS: Modes = (1.0, 1.0, 2.0)
"""The same of a gated addition. It reads branch and stream; its backward writes the gradient of the
branch, and reads the branch for that of the gate."""


def _by_mode(shapes: Shapes, modes: Modes) -> Floats:
    compiled, fused, eager = modes
    return np.where(shapes.compiled == 1, compiled, np.where(shapes.eager == 1, eager, fused))


def emit_block(table: ops.TableBuilder, shapes: Shapes, where: Ints) -> None:
    """Emit the layers in ``where``, which are of `BLOCKS`."""
    for mixer, emit in _EMITTERS.items():
        chosen = where[has_part(shapes.kind[where], mixer)]
        if len(chosen):
            emit(table, shapes, chosen)


def _streams(
    table: ops.TableBuilder, shapes: Shapes
) -> tuple[tuple[ops.TableBuilder, Shapes], ...]:
    """Return latents and joined text, each with the builder of its labels."""
    text = shapes.micro_batch * shapes.joined_tokens // shapes.cp
    latents = shapes.of_tokens(shapes.tokens - text)
    return (table, latents), (table.under("text."), shapes.of_tokens(text))


def _emit_double_stream(table: ops.TableBuilder, shapes: Shapes, where: Ints) -> None:
    """Emit a layer whose text and latents have weights of their own and attend to each other."""
    streams = _streams(table, shapes)
    for builder, stream in streams:
        _emit_modulation(builder, stream, where, 6)
        _emit_modulated_norm(builder, stream, where, "attention.norm")
        attention.emit_projections(builder, stream, where)
    attention.emit_core(table, shapes, where)
    for builder, stream in streams:
        attention.emit_output(builder, stream, where)
        _emit_gate(builder, stream, where, "attention.residual")
        _emit_modulated_mlp(builder, stream, where)


def _emit_single_stream(table: ops.TableBuilder, shapes: Shapes, where: Ints) -> None:
    """Emit a layer whose attention and MLP read the same and are added together (Flux).

    Both have one projection before them and one behind.
    """
    inner = ceil_div(shapes.ffn, shapes.tp)
    _emit_modulation(table, shapes, where, 3)
    _emit_modulated_norm(table, shapes, where, "attention.norm")
    attention.emit_projections(table, shapes, where, inner * (1 + shapes.gated))
    attention.emit_core(table, shapes, where)
    elements = shapes.tokens * inner.astype(np.float64)
    mlp.emit_activation(table, shapes, where, "mlp.act", elements, ops.AGAIN)
    attention.emit_output(table, shapes, where, inner)
    _emit_gate(table, shapes, where, "attention.residual")


def _emit_dit(table: ops.TableBuilder, shapes: Shapes, where: Ints) -> None:
    """Emit a layer whose latents attend to each other, and then to text that stays as it is."""
    _emit_modulation(table, shapes, where, 6)
    _emit_modulated_norm(table, shapes, where, "attention.norm")
    attention.emit_projections(table, shapes, where)
    attention.emit_core(table, shapes, where)
    attention.emit_output(table, shapes, where)
    _emit_gate(table, shapes, where, "attention.residual")
    _emit_cross(table.under("text."), shapes, where[shapes.text_tokens[where] > 0])
    _emit_modulated_mlp(table, shapes, where)


def _emit_modulated_mlp(table: ops.TableBuilder, shapes: Shapes, where: Ints) -> None:
    _emit_modulated_norm(table, shapes, where, "mlp.norm")
    mlp.emit_mlp(table, shapes, where, "mlp", shapes.ffn)
    _emit_gate(table, shapes, where, "mlp.residual")


def _emit_modulation(table: ops.TableBuilder, shapes: Shapes, where: Ints, vectors: int) -> None:
    """Emit the ``vectors`` of a layer: a projection that tensor parallelism divides, or a table."""
    own = where[shapes.own_modulation[where] == 1]
    emit_linear(
        table, shapes, own, "modulation",
        Linear(
            tokens=shapes.micro_batch, n_in=shapes.hidden, bias=1, wide=True,
            n_out=ceil_div(vectors * shapes.hidden, shapes.tp),
        ),
    )  # fmt: skip
    moved = 2.0 * vectors * shapes.micro_batch * shapes.hidden
    for phase, operation in ((ops.FORWARD, ALL_GATHER), (ops.BACKWARD, REDUCE_SCATTER)):
        emit_collective(
            table, own[shapes.tp[own] > 1], "modulation.gather", phase=phase, category=ops.TP_COMM,
            operation=operation, num_bytes=moved, **group_row(shapes, "tp"),
        )  # fmt: skip
    emit_memory(
        table, where[shapes.own_modulation[where] == 0], "modulation", forward_bytes=2.0 * moved,
        backward_bytes=2.0 * moved, parameters=vectors * shapes.hidden,
    )  # fmt: skip


def _emit_modulated_norm(table: ops.TableBuilder, shapes: Shapes, where: Ints, label: str) -> None:
    """Emit a norm without weights, its scale and shift.

    Its input is kept, and what it makes of it for the gradient of the scale, unless a compiler
    makes that again.
    """
    elements = shapes.outer_tokens * shapes.hidden.astype(np.float64)
    forward, backward = (_by_mode(shapes, each) for each in (NORM_FORWARD, NORM_BACKWARD))
    kernels = _by_mode(shapes, NORM_KERNELS)
    emit_memory(
        table, where, label, forward_bytes=forward * elements, backward_bytes=backward * elements,
        launches=kernels, backward_launches=2.0 * kernels, recompute_bit=mlp.LAYERNORM_BIT,
        saved_bytes=np.where(shapes.compiled == 1, 2.0, 4.0) * elements,
    )  # fmt: skip


def _emit_gate(table: ops.TableBuilder, shapes: Shapes, where: Ints, label: str) -> None:
    """Emit the addition of a branch times its gate; the branch is kept for the gate's gradient."""
    elements = shapes.outer_tokens * shapes.hidden.astype(np.float64)
    forward, backward = (_by_mode(shapes, each) for each in (GATE_FORWARD, GATE_BACKWARD))
    emit_memory(
        table, where, label, forward_bytes=forward * elements, backward_bytes=backward * elements,
        launches=_by_mode(shapes, GATE_KERNELS), backward_launches=2.0,
        saved_bytes=2.0 * elements,
    )  # fmt: skip


def _emit_cross(table: ops.TableBuilder, shapes: Shapes, where: Ints) -> None:
    """Emit how latents attend to text: a norm with weights, no rotation, and no gate (Wan).

    Each rank of context parallelism has all of the text, and sends none of it.
    """
    if len(where) == 0:
        return
    heads, key_heads = attention.local_heads(shapes)
    query, key = heads * shapes.d_qk, key_heads * shapes.d_qk
    tokens, text = shapes.tokens, shapes.micro_batch * shapes.text_tokens
    mlp.emit_norm(table, shapes, where, "attention.norm")
    emit_region_entry(
        table, shapes, where, "attention.tp", 2.0 * tokens * shapes.hidden, attention.SEGMENT_QKV
    )
    linear = partial(
        Linear, n_in=shapes.hidden, bias=shapes.attention_bias >= 1, segment=attention.SEGMENT_QKV
    )
    emit_linear(
        table, shapes, where, "attention.q",
        linear(tokens=tokens, n_out=query, saved_tokens=shapes.outer_tokens),
    )  # fmt: skip
    # All layers share the text that they read.
    of_text = linear(tokens=text, n_out=key + key_heads * shapes.d_v, saves_input=False)
    emit_linear(table, shapes, where, "attention.kv", of_text)
    elements = tokens * query.astype(np.float64) + text * key
    emit_memory(
        table, where[shapes.qk_norm[where] > 0], "attention.qk_norm", forward_bytes=4.0 * elements,
        backward_bytes=6.0 * elements, launches=2.0, saved_bytes=2.0 * elements,
        parameters=np.where(shapes.qk_norm == 1, 2 * shapes.d_qk, query + key),
    )  # fmt: skip
    queries = ceil_div(shapes.seq, shapes.cp)
    pairs = shapes.micro_batch * heads * queries.astype(np.float64) * shapes.text_tokens
    flop = 2.0 * pairs * (shapes.d_qk + shapes.d_v)
    fused = where[shapes.flash[where] == 1]
    core = partial(
        table.add, fused, "attention.core", kind=ops.ATTENTION, category=ops.COMPUTE_ATTENTION,
        segment=attention.SEGMENT_CORE, dtype=shapes.wide_dtype, batch=shapes.micro_batch,
        heads=heads, key_heads=key_heads, m=queries, n=shapes.text_tokens, k=shapes.d_qk,
        d_v=shapes.d_v, causal=0,
    )  # fmt: skip
    core(
        phase=ops.FORWARD, flop=flop, recompute_bit=attention.CORE_ATTN_BIT,
        saved_bytes=4.0 * tokens * heads.astype(np.float64),
    )  # fmt: skip
    core(phase=ops.BACKWARD, flop=2.0 * flop, launches=3.0)
    unfused = where[shapes.flash[where] == 0]
    attention.emit_unfused_core(table, shapes, unfused, heads, queries, shapes.text_tokens, flop)
    emit_memory(
        table, where, "attention.kept", forward_bytes=0.0, backward_bytes=0.0, launches=0.0,
        saved_bytes=2.0 * (elements + text * key_heads * shapes.d_v),
        transient_bytes=2.0 * tokens * heads * (shapes.d_qk + 2.0 * shapes.d_v),
    )  # fmt: skip
    attention.emit_output(table, shapes, where)
    mlp.emit_residual(table, shapes, where, "attention.residual")


def emit_conditions(table: ops.TableBuilder, shapes: Shapes, where: Ints) -> None:
    """Emit what embeds latents, text, and the time and text of a sample, whole on every rank.

    The projections of a sample stand in one product, one above the other.
    """
    if len(where) == 0:
        return
    (_, latents), _ = _streams(table, shapes)
    text = np.where(
        shapes.joined_tokens > 0,
        shapes.tokens - latents.tokens,
        shapes.micro_batch * shapes.text_tokens,
    )
    for name, tokens, width, biases in (
        ("latent", latents.tokens, shapes.latent_size, shapes.embedder_biases),
        ("text", text, shapes.text_width, 0 * shapes.hidden),
        ("condition", shapes.micro_batch, shapes.condition_width, 0 * shapes.hidden),
    ):
        size = (width + biases) * shapes.hidden
        emit_linear(
            table, shapes, where[width[where] > 0], f"embedding.{name}",
            Linear(tokens=tokens, n_in=width, n_out=shapes.hidden, wide=True, parameters=size),
        )  # fmt: skip


def emit_denoised(table: ops.TableBuilder, shapes: Shapes, where: Ints) -> None:
    """Emit the modulated norm of latents, their projection, and the mean square of its error."""
    if len(where) == 0:
        return
    (_, latents), _ = _streams(table, shapes)
    _emit_modulation(table, shapes, where, 2)
    _emit_modulated_norm(table, latents, where, "head.norm")
    emit_linear(
        table, shapes, where, "head.output",
        Linear(
            tokens=latents.tokens, n_in=shapes.hidden, n_out=shapes.latent_out, bias=1, wide=True,
        ),
    )  # fmt: skip
    # Prediction and noise in 16 bits, widened and subtracted in FP32.
    elements = latents.tokens * shapes.latent_out.astype(np.float64)
    emit_memory(
        table, where, "head.loss", forward_bytes=16.0 * elements, backward_bytes=10.0 * elements,
        launches=3.0, saved_bytes=4.0 * elements,
    )  # fmt: skip


_EMITTERS: dict[Mixer, Callable[[ops.TableBuilder, Shapes, Ints], None]] = {
    "double_stream": _emit_double_stream,
    "single_stream": _emit_single_stream,
    "dit": _emit_dit,
}

assert _EMITTERS.keys() == BLOCKS
