"""Norms and residual additions: memory-bound, replicated over TP or divided by SP."""

import numpy as np

from projector.arrays import Floats, Ints
from projector.operations.linear import emit_memory
from projector.operations.shapes import Shapes
from projector.operations.table import TableBuilder

Pair = tuple[float, float]

LAYERNORM_BIT = 1 << 1

EAGER_RMS = (36.0, 68.0)
"""Bytes of an element of a root-mean-square norm one operator after the other, both ways: it is
widened to FP32, squared, averaged, scaled, narrowed, times the weight; and the reverse of each."""

EAGER_RMS_KERNELS = (6.0, 12.0)

EAGER_LAYER = (4.0, 10.0)
"""The same of a layer norm, one kernel forward. Gradients of weights have a kernel of their own,
which reads gradient and input again."""

EAGER_LAYER_KERNELS = (1.0, 3.0)


def emit_norm(
    table: TableBuilder, shapes: Shapes, where: Ints, label: str, *, count: int | Ints = 1
) -> None:
    """Emit the norms of one place in the layer.

    A norm reads H and writes H elements of 16 bits; its backward reads the gradient and the
    saved input and writes one gradient. It saves its input; its output is saved by the linear
    layer that reads it. Eager PyTorch takes more passes.
    """
    forward, backward = _by_mode(shapes, (4.0, 6.0), EAGER_RMS, EAGER_LAYER)
    kernels = _by_mode(shapes, (1.0, 2.0), EAGER_RMS_KERNELS, EAGER_LAYER_KERNELS)
    number = np.asarray(count, np.float64)
    elements = shapes.outer_tokens * shapes.hidden * np.asarray(count, np.float64)
    emit_memory(
        table,
        where,
        label,
        forward_bytes=forward * elements,
        backward_bytes=backward * elements,
        launches=number * kernels[0],
        backward_launches=number * kernels[1],
        saved_bytes=2.0 * elements,
        parameters=shapes.hidden * shapes.norm_parameters * np.asarray(count, np.float64),
        recompute_bit=LAYERNORM_BIT,
    )


def _by_mode(shapes: Shapes, fused: Pair, rms: Pair, layer: Pair) -> tuple[Floats, Floats]:
    """Return what holds forward and backward: of a fused norm, or of an eager one by its kind."""
    is_layer_norm = shapes.norm_parameters == 2
    forward, backward = (
        np.where(shapes.eager == 0, of_fused, np.where(is_layer_norm, of_layer, of_rms))
        for of_fused, of_rms, of_layer in zip(fused, rms, layer, strict=True)
    )
    return forward, backward


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
