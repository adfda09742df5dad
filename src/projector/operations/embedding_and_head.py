"""The ends of the model: embedding, output layer with loss, and the MTP projection."""

import numpy as np

from projector.arrays import Ints
from projector.config.engine import inference_operators
from projector.kernels.collective_algorithms import ALL_GATHER, ALL_REDUCE
from projector.lower.workload_columns import ADDS_NOTHING
from projector.operations import communication
from projector.operations.linear import Linear, emit_linear, emit_memory
from projector.operations.mlp import emit_norm
from projector.operations.shapes import InferenceShapes, Shapes, ceil_div
from projector.operations.table import FORWARD, TP_COMM, TableBuilder

SEGMENT_HEAD = 6


def emit_embedding(table: TableBuilder, shapes: Shapes, where: Ints) -> None:
    """Emit the look-up of tokens and learned positions; the backward scatters FP32 gradients."""
    if len(where) == 0:
        return
    elements = shapes.tokens * shapes.hidden.astype(np.float64)
    positions = shapes.positions * shapes.hidden
    trained = 1.0 - shapes.frozen
    emit_memory(
        table,
        where,
        "embedding",
        forward_bytes=4.0 * elements,
        backward_bytes=(2.0 + shapes.gradient_out_bytes) * elements * trained,
        backward_launches=trained,
        parameters=ceil_div(shapes.vocab, shapes.tp) * shapes.hidden + positions,
        saved_bytes=8.0 * shapes.tokens,
    )
    for flag in (0, 1):
        communication.emit_region_exit(
            table, shapes, where[shapes.frozen[where] == flag], "embedding.tp", 2.0 * elements, 0,
            has_backward=flag == 0,
        )  # fmt: skip


def emit_projector(table: TableBuilder, shapes: Shapes, where: Ints) -> None:
    """Emit what stands before and behind a vision tower: patches, positions, norm and projector.

    The projector is two linear layers, the first over the patches that become a token; each rank of
    tensor parallelism has all of it.
    """
    if len(where) == 0:
        return
    patches, merged = shapes.tokens, np.maximum(1, shapes.text_width)
    wide = shapes.hidden * merged
    positions = shapes.positions * shapes.hidden
    embed = Linear(
        tokens=patches, n_in=shapes.latent_size, n_out=shapes.hidden, wide=True,
        parameters=(shapes.latent_size + 1) * shapes.hidden + positions,
    )  # fmt: skip
    emit_linear(table, shapes, where, "vision.patches", embed)
    emit_norm(table, shapes, where, "vision.norm")
    for name, n_in, n_out in (
        ("fc1", wide, shapes.condition_width),
        ("fc2", shapes.condition_width, shapes.latent_out),
    ):
        layer = Linear(tokens=patches // merged, n_in=n_in, n_out=n_out, bias=1, wide=True)
        emit_linear(table, shapes, where, f"vision.{name}", layer)


def emit_head(table: TableBuilder, shapes: Shapes, where: Ints) -> None:
    """Emit final norm, output layer and cross-entropy over a vocabulary divided by TP."""
    if len(where) == 0:
        return
    emit_norm(table, shapes, where, "head.norm")
    activations = 2.0 * shapes.tokens * shapes.hidden
    columns = ceil_div(shapes.vocab, shapes.tp)
    logits = shapes.tokens * columns.astype(np.float64)
    communication.emit_region_entry(table, shapes, where, "head.tp", activations, SEGMENT_HEAD)
    # Its weight gradient in 16 bits, even where the GEMM adds to the main one (Megatron-LM hands
    # autograd an empty tensor), the gathered input and its gradient; FSDP counts its own.
    has_gradient = (shapes.accumulation != ADDS_NOTHING) & (shapes.frozen == 0)
    gradient = np.where(has_gradient, 2.0 * columns * shapes.hidden, 0.0)
    emit_linear(
        table, shapes, where, "head.output",
        Linear(
            tokens=shapes.tokens, n_in=shapes.hidden, n_out=columns,
            saved_tokens=shapes.kept_tokens, wide=True, segment=SEGMENT_HEAD,
            transient_bytes=gradient + activations * np.where(shapes.tp > 1, 2.0, 1.0),
            parameters=np.where(shapes.tied == 1, 0.0, columns * shapes.hidden),
        ),
    )  # fmt: skip
    # A chunk of the loss makes its gradient at once: what is kept of it lies there for a moment.
    chunked = (shapes.loss_chunk > 0) & (shapes.loss_chunk < shapes.tokens)
    chunks = np.where(chunked, shapes.tokens / np.maximum(1, shapes.loss_chunk), 1.0)
    saved = shapes.loss_saved_bytes * logits
    transient = (shapes.loss_transient_bytes + shapes.loss_divided_bytes * (shapes.tp > 1)) * logits
    emit_memory(
        table,
        where,
        "head.loss",
        forward_bytes=shapes.loss_forward_bytes * logits,
        backward_bytes=shapes.loss_backward_bytes * logits,
        launches=shapes.loss_launches * chunks,
        exponentials=logits,
        saved_bytes=np.where(chunked, 0.0, saved),
        transient_bytes=np.where(chunked, (saved + transient) / chunks, transient),
    )
    # Maximum, sum of exponentials and the target's logit of each token.
    communication.emit_collective(
        table, np.intersect1d(where, np.flatnonzero(shapes.tp > 1)), "head.tp.all_reduce",
        phase=FORWARD, category=TP_COMM, operation=ALL_REDUCE, num_bytes=4.0 * shapes.tokens,
        ranks=shapes.tp, local=shapes.tp_local, span=shapes.tp_span, repeats=3.0,
    )  # fmt: skip


def emit_sampling_head(table: TableBuilder, shapes: InferenceShapes, where: Ints) -> None:
    """Emit the head of an inference step: tokens that get logits, gathered logits, sampling."""
    last = InferenceShapes(shapes.rows, shapes.emitting, shapes.emitting)
    emit_norm(table, last, where, "head.norm")
    columns = ceil_div(shapes.vocab, shapes.tp)
    emit_linear(
        table, last, where, "head.output",
        Linear(tokens=last.tokens, n_in=shapes.hidden, n_out=columns, wide=True),
    )  # fmt: skip
    logits = last.tokens * columns * shapes.tp.astype(np.float64)
    communication.emit_collective(
        table, where[shapes.tp[where] > 1], "head.tp.all_gather", phase=FORWARD, category=TP_COMM,
        operation=ALL_GATHER, num_bytes=2.0 * logits, **communication.group_row(shapes, "tp"),
    )  # fmt: skip
    costs = inference_operators()
    emit_memory(
        table, where, "head.sample", forward_bytes=costs.sample_logit_bytes * logits,
        backward_bytes=0.0, launches=costs.sample_kernels,
    )  # fmt: skip


def emit_mtp(table: TableBuilder, shapes: Shapes, where: Ints) -> None:
    """Emit the joint projection of an MTP module: two norms and a 2H x H linear layer.

    See DeepSeek-V3, arXiv 2412.19437, section 2.2; its layer and head are workloads of their own.
    """
    if len(where) == 0:
        return
    emit_norm(table, shapes, where, "mtp.norm", count=2)
    emit_linear(
        table, shapes, where, "mtp.proj",
        Linear(tokens=shapes.outer_tokens, n_in=2 * shapes.hidden, n_out=shapes.hidden),
    )  # fmt: skip
