"""Norms and residual additions: memory-bound, replicated over TP or divided by SP."""

import numpy as np

from projector.arrays import Ints
from projector.operations.linear import emit_memory
from projector.operations.shapes import Shapes
from projector.operations.table import TableBuilder

LAYERNORM_BIT = 1 << 1


def emit_norm(
    table: TableBuilder, shapes: Shapes, where: Ints, label: str, *, count: int | Ints = 1
) -> None:
    """Emit the norms of one place in the layer.

    A norm reads H and writes H elements of 16 bits; its backward reads the gradient and the
    saved input and writes one gradient. It saves its input; its output is saved by the linear
    layer that reads it.
    """
    elements = shapes.outer_tokens * shapes.hidden * np.asarray(count, np.float64)
    emit_memory(
        table,
        where,
        label,
        forward_bytes=4.0 * elements,
        backward_bytes=6.0 * elements,
        launches=np.asarray(count, np.float64) * np.ones(len(shapes)),
        backward_launches=2.0 * np.asarray(count, np.float64) * np.ones(len(shapes)),
        saved_bytes=2.0 * elements,
        parameters=shapes.hidden * shapes.norm_parameters * np.asarray(count, np.float64),
        recompute_bit=LAYERNORM_BIT,
    )


def emit_fused_norm(table: TableBuilder, shapes: Shapes, where: Ints, label: str) -> None:
    """Emit a norm fused with the residual addition, as inference engines have it.

    It reads the sum and the addend, and writes the sum and an operand of the next linear layer.
    """
    elements = shapes.outer_tokens.astype(np.float64) * shapes.hidden
    num_bytes = elements * (6.0 + shapes.operand_bytes)
    emit_memory(table, where, label, forward_bytes=num_bytes, backward_bytes=0.0)


def emit_residual(table: TableBuilder, shapes: Shapes, where: Ints, label: str) -> None:
    """Emit one residual addition: two reads and a write.

    A compiler fuses it into the norm, which saves reading the sum again.
    """
    elements = shapes.outer_tokens.astype(np.float64) * shapes.hidden
    fused = shapes.compiled == 1
    emit_memory(
        table,
        where,
        label,
        forward_bytes=np.where(fused, 4.0, 6.0) * elements,
        backward_bytes=np.where(fused, 2.0, 6.0) * elements,
        launches=np.where(fused, 0.0, 1.0),
    )
