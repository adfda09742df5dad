"""All operations of all workloads, in model order."""

import numpy as np

from projector.arrays import Records
from projector.lower.workload_columns import DENSE, EMBEDDING, HEAD, MOE, MTP
from projector.operations.attention import emit_attention, emit_cached_attention
from projector.operations.communication import emit_stage_sends
from projector.operations.embedding_and_head import (
    emit_embedding,
    emit_head,
    emit_mtp,
    emit_sampling_head,
)
from projector.operations.mlp import emit_mlp
from projector.operations.moe import emit_moe, emit_replicated_experts
from projector.operations.norm import emit_fused_norm, emit_norm, emit_residual
from projector.operations.shapes import Shapes, StepShapes
from projector.operations.table import OperationTable, TableBuilder


def emit_operations(rows: Records) -> OperationTable:
    """Return the operation table of WORKLOAD[workloads]."""
    shapes = Shapes(rows)
    table = TableBuilder(len(rows))
    kind = shapes.kind
    layers = shapes.where((kind == DENSE) | (kind == MOE))
    emit_embedding(table, shapes, shapes.where(kind == EMBEDDING))
    emit_mtp(table, shapes, shapes.where(kind == MTP))
    if len(layers):
        # Sandwich norms come in pairs around attention and MLP.
        before, after = (shapes.norms + 1) // 2, shapes.norms // 2
        emit_norm(table, shapes, layers, "attention.norm", count=before)
        emit_attention(table, shapes, layers)
        emit_residual(table, shapes, layers, "attention.residual")
        emit_norm(table, shapes, layers, "mlp.norm", count=after)
        emit_mlp(table, shapes, shapes.where(kind == DENSE), "mlp", shapes.ffn)
        emit_moe(table, shapes, shapes.where(kind == MOE))
        emit_residual(table, shapes, layers, "mlp.residual")
    emit_head(table, shapes, shapes.where(kind == HEAD))
    return table.build()


def emit_inference(shapes: Shapes, steps: StepShapes) -> OperationTable:
    """Return the operation table of inference steps; a row represents all layers that are equal."""
    table = TableBuilder(len(shapes.rows), forward_only=True)
    rows = np.arange(len(shapes.rows))
    dense_layers = steps.layers - steps.moe_layers
    emit_fused_norm(table.repeated(steps.layers * shapes.norms), shapes, rows, "norm")
    emit_cached_attention(table, shapes, steps, rows)
    dense = table.repeated(dense_layers)
    emit_mlp(dense, shapes, rows[dense_layers > 0], "mlp", shapes.ffn)
    emit_replicated_experts(table, shapes, steps, rows[steps.moe_layers > 0])
    emit_embedding(table, shapes, rows)
    emit_sampling_head(table, shapes, rows)
    emit_stage_sends(table, shapes, steps, rows)
    return table.build()
