"""The dense MLP, also of shared experts, and norms and residual additions around layers.

Norms and residuals are memory-bound, and replicated over TP or divided by sequence parallelism.
"""

import numpy as np

from projector.arrays import Array, Floats, Ints
from projector.operations.communication import emit_region_entry, emit_region_exit
from projector.operations.linear import COLUMN, ROW, Linear, emit_adapted, emit_memory
from projector.operations.shapes import Shapes, ceil_div
from projector.operations.table import AGAIN, DROPS, TableBuilder

MLP_BIT, SHARED_BIT = 1 << 3, 1 << 6
SEGMENT_FC1, SEGMENT_FC2 = 4, 5


def emit_mlp(
    table: TableBuilder, shapes: Shapes, where: Ints, label: str, width: Ints, *,
    bit: int = MLP_BIT, reduces: bool = True,
) -> None:  # fmt: skip
    """Emit fc1, activation and fc2 of ``width`` inner channels divided over TP.

    Unless ``reduces``, the partial sums stay with the ranks, who add something to them first.
    """
    if len(where) == 0:
        return
    inner = ceil_div(width, shapes.tp)
    activations = 2.0 * shapes.tokens * shapes.hidden
    whole = inner * (1 + shapes.gated)
    # The half that recomputation by operators makes again, a product of its own.
    apart = inner * shapes.gated * shapes.per_op * (shapes.adapter_sites == 0)
    # The inner activations, and with TP the input that is gathered and its gradient.
    working_set = 2.0 * shapes.tokens * inner * (2.0 + shapes.gated)
    working_set = working_set + 2.0 * activations * (shapes.tp > 1)
    emit_region_entry(table, shapes, where, f"{label}.tp", activations, SEGMENT_FC1)
    outputs = {"fc1": whole, "gate": inner, "up": inner}
    for part, n_out, of_op in (("fc1", whole - apart, DROPS), ("up", apart, AGAIN)):
        emit_adapted(
            table, shapes, where[n_out[where] > 0], f"{label}.{part}", outputs, COLUMN,
            Linear(
                tokens=shapes.tokens, n_in=shapes.hidden, n_out=n_out, bias=shapes.mlp_bias,
                saved_tokens=shapes.kept_tokens, saves_input=of_op == DROPS,
                segment=SEGMENT_FC1, recompute_bit=bit | of_op, transient_bytes=working_set,
            ),
        )  # fmt: skip
    emit_activation(
        table, shapes, where, f"{label}.act", shapes.tokens * inner.astype(np.float64), bit | AGAIN
    )
    emit_adapted(
        table, shapes, where, f"{label}.fc2", {"fc2": shapes.hidden}, ROW,
        Linear(
            tokens=shapes.tokens, n_in=inner, n_out=shapes.hidden, bias=shapes.mlp_bias,
            segment=SEGMENT_FC2, recompute_bit=bit | DROPS,
        ),
    )  # fmt: skip
    if reduces:
        emit_region_exit(table, shapes, where, f"{label}.tp", activations, SEGMENT_FC2)


def emit_activation(
    table: TableBuilder, shapes: Shapes, where: Ints, label: str, elements: Array, bit: int
) -> None:
    """Emit the activation of ``elements`` outputs.

    It reads one or two inputs for each and keeps them; the backward reads inputs and gradient and
    writes the inputs' gradients. Eager PyTorch writes and reads the activated gate in between: 4
    more bytes forward, and 8 backward, where it also stands for one of the gradients.
    """
    inputs = 1.0 + shapes.gated
    apart = ((shapes.eager == 1) & (shapes.gated == 1)).astype(np.float64)
    copied = shapes.gate_copy_bytes * shapes.gated
    written = 2.0 * inputs + shapes.activation_bytes + 4.0 * apart
    emit_memory(
        table, where, label, forward_bytes=elements * written,
        backward_bytes=2.0 * elements * (2.0 * inputs + 1.0 + 4.0 * apart),
        saved_bytes=elements * (np.where(shapes.per_op == 1, 2.0, 2.0 * inputs) + copied),
        exponentials=elements, recompute_bit=bit,
        launches=1.0 + apart, backward_launches=1.0 + 2.0 * apart,
    )  # fmt: skip


Pair = tuple[float, float]

LAYERNORM_BIT = 1 << 1

BY_OPERATORS = {"attention.norm": AGAIN, "attention.residual": AGAIN, "mlp.norm": AGAIN | DROPS}
"""What is made again around a layer's parts; the first norm keeps the input of the layer."""

EAGER_RMS = (36.0, 68.0)
"""Bytes of an element of a root-mean-square norm one operator after the other, both ways: it is
widened to FP32, squared, averaged, scaled, narrowed, times the weight; and the reverse of each."""

EAGER_RMS_KERNELS = (6.0, 12.0)

EAGER_LAYER = (4.0, 10.0)
"""The same of a layer norm, one kernel forward. Gradients of weights have a kernel of their own,
which reads gradient and input again."""

EAGER_LAYER_KERNELS = (1.0, 3.0)


def emit_norm(
    table: TableBuilder, shapes: Shapes, where: Ints, label: str, *, count: int | Ints | Floats = 1
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
        recompute_bit=LAYERNORM_BIT | BY_OPERATORS.get(label, 0),
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
        recompute_bit=BY_OPERATORS.get(label, 0),
    )
