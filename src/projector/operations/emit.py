"""All operations of all workloads, in model order."""

from collections.abc import Callable, Iterable

import numpy as np

from projector.arrays import Ints, Records
from projector.config.model import BLOCKS
from projector.lower.stages import Kind, has_part, is_layer
from projector.operations import embedding_and_head as ends
from projector.operations.attention import emit_attention, emit_cached_attention, emit_cached_core
from projector.operations.communication import emit_stage_sends
from projector.operations.diffusion import emit_block, emit_conditions, emit_denoised
from projector.operations.mlp import emit_fused_norm, emit_mlp, emit_norm, emit_residual
from projector.operations.moe import emit_moe, emit_served_experts
from projector.operations.recurrent import RECURRENT, emit_cached_recurrent, emit_recurrent
from projector.operations.shapes import InferenceShapes, Shapes, StepShapes, is_narrow
from projector.operations.sparse_attention import emit_cached_indexer, emit_sparse_attention
from projector.operations.table import COMPUTE_OTHER, FORWARD, MEMORY, OperationTable, TableBuilder

Emitter = Callable[[TableBuilder, Shapes, Ints], None]
"""Writes the rows of the workloads at some indices."""


def _emit_attention(table: TableBuilder, shapes: Shapes, where: Ints) -> None:
    sparse = shapes.index_heads[where] > 0
    emit_attention(table, shapes, where[~sparse])
    emit_sparse_attention(table, shapes, where[sparse])


_MIXERS: tuple[tuple[Emitter, Iterable[str]], ...] = (
    (_emit_attention, ("attention",)),
    (emit_recurrent, RECURRENT),
    (emit_block, BLOCKS),
)
_FEED_FORWARDS: tuple[tuple[Emitter, Iterable[str]], ...] = (
    (lambda table, shapes, where: emit_mlp(table, shapes, where, "mlp", shapes.ffn), ("dense",)),
    (emit_moe, ("moe",)),
)
"""What emits the parts of layers, with the parts that it serves."""


def _emit_parts(
    table: TableBuilder, shapes: Shapes, emitters: tuple[tuple[Emitter, Iterable[str]], ...]
) -> None:
    """Let each emitter write the layers that it serves."""
    for emit, parts in emitters:
        where = np.flatnonzero(has_part(shapes.kind, *parts))
        if len(where):
            emit(table, shapes, where)


def emit_operations(rows: Records) -> OperationTable:
    """Return the operation table of WORKLOAD[workloads]."""
    shapes = Shapes(rows)
    table = TableBuilder()
    kind = shapes.kind
    layers = np.flatnonzero(is_layer(kind))
    denoises = shapes.latent_size > 0
    ends.emit_embedding(table, shapes, np.flatnonzero((kind == Kind.EMBEDDING) & ~denoises))
    emit_conditions(table, shapes, np.flatnonzero((kind == Kind.EMBEDDING) & denoises))
    ends.emit_mtp(table, shapes, np.flatnonzero(kind == Kind.MTP))
    ends.emit_projector(table, shapes, np.flatnonzero(kind == Kind.PROJECTOR))
    if len(layers):
        # Sandwich norms come in pairs around attention and MLP.
        before, after = (shapes.norms + 1) // 2, shapes.norms // 2
        mixed = np.flatnonzero(has_part(kind, "attention", *RECURRENT))
        fed = np.flatnonzero(has_part(kind, "dense", "moe"))
        emit_norm(table, shapes, mixed, "attention.norm", count=before)
        _emit_parts(table, shapes, _MIXERS)
        both = mixed[has_part(kind[mixed], "attention") & has_part(kind[mixed], *RECURRENT)]
        emit_residual(table, shapes, both, "mixers.sum")
        emit_residual(table, shapes, mixed, "attention.residual")
        emit_norm(table, shapes, fed, "mlp.norm", count=after)
        _emit_parts(table, shapes, _FEED_FORWARDS)
        emit_residual(table, shapes, fed, "mlp.residual")
    ends.emit_head(table, shapes, np.flatnonzero((kind == Kind.HEAD) & ~denoises))
    emit_denoised(table, shapes, np.flatnonzero((kind == Kind.HEAD) & denoises))
    built = table.build()
    # Nothing goes back through a frozen tower, nor is anything kept for it.
    still = ((kind == Kind.VISION) & (shapes.frozen == 1))[built.workload]
    if still.any():
        built.saved_bytes[still] = 0.0
        kept = np.flatnonzero(~(still & (built.phase != FORWARD)))
        built = built.take(kept, built.workload[kept])
    return built


def _emit_unfused(table: TableBuilder, shapes: Shapes, steps: StepShapes, where: Ints) -> None:
    """Emit what an eager framework runs by itself in each layer of an inference step."""
    if len(where) == 0:
        return
    emit_norm(table, shapes, where, "norm", count=_norms(shapes, steps) / steps.layers)
    for place, layers in (("attention", steps.mixed_layers), ("mlp", steps.fed_layers)):
        emit_residual(table.repeated(layers), shapes, where[layers[where] > 0], f"{place}.residual")
    table.add(
        where, "unfused", kind=MEMORY, category=COMPUTE_OTHER, launches=steps.layer_kernels,
        calls=steps.layer_calls,
    )  # fmt: skip


def emit_inference(
    shapes: InferenceShapes, steps: StepShapes, *, base: bool = True, core: bool = True
) -> OperationTable:
    """Return the operation table of inference steps; a row represents all layers that are equal.

    The ``base`` depends on the tokens of a step alone, the ``core`` on what is cached.
    """
    builder = TableBuilder(forward_only=True)
    if base:
        _emit_base(builder, shapes, steps)
    if core:
        rows = np.arange(len(shapes))
        emit_cached_core(builder, shapes, steps, rows)
        emit_cached_indexer(builder, shapes, steps, rows)
    table = builder.build()
    # Linear layers that are not narrow have 16 bits.
    wide = np.flatnonzero(~is_narrow(table, steps.narrow_layers[table.workload]))
    table.dtype[wide] = shapes.wide_dtype[table.workload[wide]]
    return table


def _emit_base(table: TableBuilder, shapes: InferenceShapes, steps: StepShapes) -> None:
    rows = np.arange(len(shapes))
    ends.emit_mtp(table, shapes, rows[steps.joins == 1])
    eager = shapes.eager == 1
    emit_fused_norm(table.repeated(_norms(shapes, steps)), shapes, rows[~eager], "norm")
    _emit_unfused(table.repeated(steps.layers), shapes, steps, rows[eager])
    emit_cached_attention(table, shapes, steps, rows[steps.attention_layers > 0])
    emit_cached_recurrent(table, shapes, steps, rows)
    dense = table.repeated(steps.dense_layers)
    emit_mlp(dense, shapes, rows[steps.dense_layers > 0], "mlp", shapes.ffn)
    emit_served_experts(table, shapes, steps, rows[steps.moe_layers > 0])
    ends.emit_embedding(table, shapes, rows)
    ends.emit_sampling_head(table, shapes, rows)
    emit_stage_sends(table, shapes, steps, rows)


def _norms(shapes: Shapes, steps: StepShapes) -> Ints:
    """Return the norms of all layers; sandwich norms come in pairs around each part."""
    before, after = (shapes.norms + 1) // 2, shapes.norms // 2
    return np.asarray(steps.mixed_layers * before + steps.fed_layers * after)
