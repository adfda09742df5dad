"""Dense MLP, also used for shared experts."""

import numpy as np

from projector.arrays import Array, Ints
from projector.operations.adapters import COLUMN, ROW, emit_adapted
from projector.operations.communication import emit_region_entry, emit_region_exit
from projector.operations.linear import emit_memory
from projector.operations.shapes import Shapes, ceil_div
from projector.operations.table import TableBuilder

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
    # The inner activations, and with TP the input that is gathered and its gradient.
    working_set = 2.0 * shapes.tokens * inner * (2.0 + shapes.gated)
    working_set = working_set + 2.0 * activations * (shapes.tp > 1)
    emit_region_entry(table, shapes, where, f"{label}.tp", activations, SEGMENT_FC1)
    outputs = {"fc1": inner * (1 + shapes.gated), "gate": inner, "up": inner}
    emit_adapted(
        table, shapes, where, f"{label}.fc1", outputs, COLUMN, tokens=shapes.tokens,
        n_in=shapes.hidden,
        n_out=inner * (1 + shapes.gated), saved_tokens=shapes.outer_tokens, bias=shapes.mlp_bias,
        segment=SEGMENT_FC1, recompute_bit=bit, transient_bytes=working_set,
    )  # fmt: skip
    emit_activation(
        table, shapes, where, f"{label}.act", shapes.tokens * inner.astype(np.float64), bit
    )
    emit_adapted(
        table, shapes, where, f"{label}.fc2", {"fc2": shapes.hidden}, ROW, tokens=shapes.tokens,
        n_in=inner,
        n_out=shapes.hidden, bias=shapes.mlp_bias, segment=SEGMENT_FC2, recompute_bit=bit,
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
    written = 2.0 * inputs + shapes.activation_bytes + 4.0 * apart
    emit_memory(
        table, where, label, forward_bytes=elements * written,
        backward_bytes=2.0 * elements * (2.0 * inputs + 1.0 + 4.0 * apart),
        saved_bytes=2.0 * elements * inputs, exponentials=elements, recompute_bit=bit,
        launches=1.0 + apart, backward_launches=1.0 + 2.0 * apart,
    )  # fmt: skip
