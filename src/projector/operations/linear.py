"""A linear layer: three GEMMs, their quantising passes, its parameters and saved input."""

from functools import partial

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.kernels.device import MATRIX_TYPES
from projector.lower.workload_columns import ADDS_APART
from projector.operations.shapes import Shapes
from projector.operations.table import (
    BACKWARD,
    COMPUTE_GEMM,
    COMPUTE_OTHER,
    FORWARD,
    GEMM,
    MEMORY,
    WEIGHT,
    FloatValues,
    IntValues,
    TableBuilder,
)

NF4_BYTES = (4.0 + 8.0 / 64 + 32.0 / (64 * 256)) / 8.0
"""Bytes of a weight in NF4: 4 bits, a scale of 8 bits for 64 of them, and one of 32 bits for 256
scales (QLoRA, arXiv:2305.14314, section 3: 0.127 bits for the scales)."""

TENSORWISE, ROWWISE = 1, 2
FP8 = MATRIX_TYPES.index("fp8")


def emit_linear(
    table: TableBuilder,
    shapes: Shapes,
    where: Ints,
    label: str,
    *,
    tokens: IntValues,
    n_in: IntValues,
    n_out: IntValues,
    groups: IntValues = 1,
    saved_tokens: FloatValues | None = None,
    bias: IntValues = 0,
    wide: bool = False,
    expert: int = 0,
    segment: int = 0,
    recompute_bit: int = 0,
    saves_input: bool | Flags | Floats = True,
    adapter: int = 0,
    parameters: FloatValues | None = None,
    transient_bytes: FloatValues = 0.0,
    flop: FloatValues | None = None,
    out_bytes: float = 2.0,
) -> None:
    """Emit ``Y[tokens, n_out] = X[tokens, n_in] @ W`` with its backward.

    Parameters
    ----------
    tokens, n_in, n_out : int or int64[workloads]
        Extents on one rank; with ``groups`` > 1 tokens of one group (expert).
    groups : int or int64[workloads]
        Equal problems in one launch, each with its own weights.
    saved_tokens : int or int64[workloads], optional
        Rows of X kept for the weight gradient (fewer under sequence parallelism).
    bias : int or int64[workloads]
        1 where the layer has a bias.
    wide : bool
        Stay in 16 bits whatever the workload's linear type is.
    saves_input : bool, bool[workloads] or float64[workloads]
        Whether X is kept here, or how many times 16 bits.
    adapter : int
        1 for what is trained where weights are frozen.
    parameters : float or float64[workloads], optional
        Instead of ``groups * n_in * n_out`` plus the bias.
    flop : float or float64[workloads], optional
        Needed FLOP of one GEMM, where ``tokens`` is padded to whole rows.
    out_bytes : float
        Bytes of an element of Y.

    Notes
    -----
    Forward (t, out, in), input gradient (t, in, out), weight gradient (out, in, t), which adds
    to the main gradient in place, which a kernel of its own adds to it, or which FSDP reduces. A
    narrow GEMM quantises X row- and column-wise for the forward and the weight gradient, and dY
    alike; scales that depend on the whole tensor or row cost one more read. Weights are quantised
    once a step, see the optimizer. A frozen weight has no gradient, and X is not kept for it.
    """
    frozen = (shapes.frozen == 1) & (adapter == 0)
    operand = np.where(wide, 2.0, shapes.operand_bytes) if wide else shapes.operand_bytes
    size = np.multiply(groups, np.multiply(n_in, n_out)).astype(np.float64)
    if flop is None:
        flop = 2.0 * np.asarray(tokens, np.float64) * size
    stored_tokens = tokens if saved_tokens is None else saved_tokens
    stored = np.where(shapes.narrow & (not wide), operand, 2.0)
    saved = np.asarray(stored_tokens, np.float64) * np.multiply(groups, n_in) * stored * saves_input
    saved = np.where(frozen, 0.0, saved)
    if parameters is None:
        parameters = size + np.multiply(groups, np.multiply(n_out, bias))
    gemm = partial(
        table.add,
        kind=GEMM,
        category=COMPUTE_GEMM,
        dtype=shapes.wide_dtype if wide else shapes.dtype,
        batch=np.broadcast_to(groups, len(shapes)),
        segment=segment,
        flop=flop,
        expert=expert,
        adapter=adapter,
    )
    _emit_unpacking(table, shapes, where[frozen[where]], label, size, recompute_bit)
    trained = where[~frozen[where]]
    gemm(
        where,
        label,
        phase=FORWARD,
        m=tokens,
        n=n_out,
        k=n_in,
        saved_bytes=saved,
        parameters=parameters,
        recompute_bit=recompute_bit,
        transient_bytes=transient_bytes,
        out_bytes=out_bytes,
    )
    gemm(where, label, phase=BACKWARD, m=tokens, n=n_in, k=n_out)
    gemm(
        trained, label, phase=WEIGHT, m=n_out, n=n_in, k=tokens,
        out_bytes=shapes.gradient_out_bytes,
    )  # fmt: skip
    table.add(
        trained[shapes.accumulation[trained] == ADDS_APART], f"{label}.accumulate", kind=MEMORY,
        category=COMPUTE_OTHER, phase=WEIGHT, bytes=(2.0 + 2.0 * shapes.accumulate_bytes) * size,
    )  # fmt: skip
    if not wide and shapes.narrow.any():
        rows = np.asarray(tokens, np.float64) * groups
        _emit_quantisation(table, shapes, where, label, rows, n_in, n_out, recompute_bit)


def _emit_unpacking(
    table: TableBuilder, shapes: Shapes, where: Ints, label: str, size: Floats, recompute_bit: int
) -> None:
    """Emit how frozen weights of 4 bits are made 16 bits, before each GEMM that reads them."""
    packed = where[shapes.packed_base[where] == 1]
    moved = (NF4_BYTES + 2.0) * size
    emit_memory(
        table, packed, f"{label}.unpack", forward_bytes=moved, backward_bytes=moved,
        transient_bytes=2.0 * size, recompute_bit=recompute_bit,
    )  # fmt: skip


def _emit_quantisation(
    table: TableBuilder,
    shapes: Shapes,
    where: Ints,
    label: str,
    rows: Floats,
    n_in: IntValues,
    n_out: IntValues,
    recompute_bit: int,
) -> None:
    """Emit what narrow GEMMs quantise: X in the forward and dY in the backward."""
    one_more_read = np.isin(shapes.fp8_recipe, (TENSORWISE, ROWWISE)) & (shapes.dtype == FP8)
    # Nothing but the gradient of a weight reads them column-wise.
    copies = np.where(shapes.frozen == 1, 1.0, 2.0)
    per_element = 2.0 + copies * shapes.operand_bytes + 2.0 * one_more_read
    quantise = partial(
        table.add,
        where[shapes.narrow[where]],
        f"{label}.quantise",
        kind=MEMORY,
        category=COMPUTE_OTHER,
        launches=1.0 + one_more_read,
    )
    quantise(phase=FORWARD, bytes=rows * n_in * per_element, recompute_bit=recompute_bit)
    quantise(phase=BACKWARD, bytes=rows * n_out * per_element)


def emit_memory(
    table: TableBuilder,
    where: Ints,
    label: str,
    *,
    forward_bytes: FloatValues,
    backward_bytes: FloatValues,
    launches: FloatValues = 1.0,
    backward_launches: FloatValues | None = None,
    saved_bytes: FloatValues = 0.0,
    parameters: FloatValues = 0.0,
    recompute_bit: int = 0,
    exponentials: FloatValues = 0.0,
    transient_bytes: FloatValues = 0.0,
    syncs: FloatValues = 0.0,
    rate_share: FloatValues = 1.0,
) -> None:
    """Emit a memory-bound operator: its traffic forward and backward."""
    memory = partial(table.add, kind=MEMORY, category=COMPUTE_OTHER, rate_share=rate_share)
    memory(
        where,
        label,
        phase=FORWARD,
        bytes=forward_bytes,
        launches=launches,
        saved_bytes=saved_bytes,
        parameters=parameters,
        recompute_bit=recompute_bit,
        exponentials=exponentials,
        transient_bytes=transient_bytes,
        syncs=syncs,
    )
    memory(
        where,
        label,
        phase=BACKWARD,
        bytes=backward_bytes,
        launches=launches if backward_launches is None else backward_launches,
    )
