"""All operations of all workloads, in model order."""

from projector.arrays import Records
from projector.lower.workload_columns import DENSE, EMBEDDING, HEAD, MOE, MTP
from projector.operations.attention import emit_attention
from projector.operations.embedding_and_head import emit_embedding, emit_head, emit_mtp
from projector.operations.mlp import emit_mlp
from projector.operations.moe import emit_moe
from projector.operations.norm import emit_norm, emit_residual
from projector.operations.shapes import Shapes
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
