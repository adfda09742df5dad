"""Collectives inside a layer: tensor parallelism's entry and exit of a parallel region."""

from typing import TypedDict

import numpy as np

from projector.arrays import Array, Ints
from projector.kernels.collective_algorithms import (
    ALL_GATHER,
    ALL_REDUCE,
    OPERATIONS,
    REDUCE_SCATTER,
    SEND_RECV,
)
from projector.lower.cluster_columns import LOAD_ONE
from projector.lower.hardware import SIXTEEN_BIT_BYTES
from projector.lower.sections import FP8_RECIPES, TP_OVERLAPS
from projector.operations.shapes import Shapes, StepShapes
from projector.operations.table import (
    BACKWARD,
    COLLECTIVE,
    FORWARD,
    PP_COMM,
    TP_COMM,
    FloatValues,
    Row,
    TableBuilder,
)

ROWWISE = FP8_RECIPES.index("rowwise")
ASYNC_TP = TP_OVERLAPS.index("async_tp")


class GroupRow(TypedDict):
    """The group of a collective."""

    ranks: Ints
    local: Ints
    span: Ints


def group_row(shapes: Shapes, degree: str) -> GroupRow:
    """Return the group of a parallel degree: ``tp``, ``cp``, ``ep`` or ``etp``."""
    return {
        "ranks": np.maximum(1, getattr(shapes, degree)),
        "local": np.maximum(1, getattr(shapes, f"{degree}_local")),
        "span": getattr(shapes, f"{degree}_span"),
    }


def emit_collective(
    table: TableBuilder, where: Ints, label: str, *, num_bytes: FloatValues, **row: FloatValues
) -> None:
    """Emit one collective of ``num_bytes`` (the whole buffer, see ``docs/collectives.md``)."""
    table.add(where, label, kind=COLLECTIVE, bytes=num_bytes, **row)


def emit_gather_and_scatter(
    table: TableBuilder, shapes: Shapes, where: Ints, labels: tuple[str, str], category: int,
    degree: str, num_bytes: FloatValues, recompute_bit: int,
) -> None:  # fmt: skip
    """Emit a gather and the reduce-scatter behind it; each is the backward of the other."""
    for label, operations in zip(
        labels, ((ALL_GATHER, REDUCE_SCATTER), (REDUCE_SCATTER, ALL_GATHER)), strict=True
    ):
        for phase, operation in zip((FORWARD, BACKWARD), operations, strict=True):
            emit_collective(
                table, where, label, phase=phase, category=category, operation=operation,
                num_bytes=num_bytes, recompute_bit=recompute_bit if phase == FORWARD else 0,
                **group_row(shapes, degree),
            )  # fmt: skip


def emit_region_entry(
    table: TableBuilder, shapes: Shapes, where: Ints, label: str, num_bytes: Array, segment: int
) -> None:
    """Emit what happens where activations enter a tensor-parallel region.

    With sequence parallelism the forward gathers the sequence, the backward scatters the sum of
    the input gradients and gathers the saved input once more beside the input-gradient GEMM.
    Without it the forward is free and the backward sums the input gradients beside the
    weight-gradient GEMM (Megatron's asynchronous all-reduce). A frozen weight has no such GEMM: the
    input is not gathered for it, and nothing hides the sum. Nor is one that was kept gathered.
    """
    pieces = _pieces(shapes)
    # Two collectives of the backward share the compute of this segment.
    halved: Row = {**pieces, "partner_share": 0.5 * pieces["partner_share"]}
    beside: Row = {"exposed_share": 0.0, "partner_share": 0.5}
    once = (shapes.frozen[where] == 1) | (shapes.keeps_gathered[where] == 1)
    _emit_region(
        table, shapes, where[~once], label, num_bytes, segment,
        split=(
            (FORWARD, ALL_GATHER, pieces),
            (BACKWARD, REDUCE_SCATTER, halved),
            (BACKWARD, ALL_GATHER, beside),
        ),
        whole=((BACKWARD, ALL_REDUCE, beside),),
    )  # fmt: skip
    _emit_region(
        table, shapes, where[once], label, num_bytes, segment,
        split=((FORWARD, ALL_GATHER, pieces), (BACKWARD, REDUCE_SCATTER, pieces)),
        whole=((BACKWARD, ALL_REDUCE, {"exposed_share": 1.0, "partner_share": 0.0}),),
    )  # fmt: skip


def emit_region_exit(
    table: TableBuilder, shapes: Shapes, where: Ints, label: str, num_bytes: Array, segment: int, *,
    has_backward: bool = True,
) -> None:  # fmt: skip
    """Emit what happens where partial sums leave a tensor-parallel region.

    With sequence parallelism a reduce-scatter and a gather of gradients, unless nothing before it
    is trained; without it one all-reduce in the forward.
    """
    pieces = _pieces(shapes)
    gathers = ((BACKWARD, ALL_GATHER, pieces),) if has_backward else ()
    split = ((FORWARD, REDUCE_SCATTER, pieces), *gathers)
    whole = ((FORWARD, ALL_REDUCE, pieces),)
    _emit_region(table, shapes, where, label, num_bytes, segment, split=split, whole=whole)


def emit_stage_sends(table: TableBuilder, shapes: Shapes, steps: StepShapes, where: Ints) -> None:
    """Emit the sends of activations from one pipeline stage of an inference step to the next."""
    emit_collective(
        table.repeated(steps.pp - 1), where[steps.pp[where] > 1], "pipeline.send", phase=FORWARD,
        category=PP_COMM, operation=SEND_RECV, ranks=2, local=steps.pp_local,
        num_bytes=2.0 * shapes.tokens.astype(np.float64) * shapes.hidden,
    )  # fmt: skip


_Step = tuple[int, int, Row]
"""Phase, operation, and the shares of what hides it."""


def _emit_region(
    table: TableBuilder, shapes: Shapes, where: Ints, label: str, num_bytes: Array, segment: int, *,
    split: tuple[_Step, ...], whole: tuple[_Step, ...],
) -> None:  # fmt: skip
    """Emit one end of a region, with (``split``) and without sequence parallelism."""
    # Layers in a narrow type quantise inputs and gradients first and gather the result (Transformer
    # Engine's `gather_along_first_dim` with a quantizer; torchao for tensor-wise scales alone: a
    # row of a gathered tensor has its own scale on each rank). Sums are in 16 bits.
    quantised = shapes.narrow & (shapes.fp8_recipe != ROWWISE)
    gathered_bytes = num_bytes * np.where(quantised, shapes.operand_bytes / SIXTEEN_BIT_BYTES, 1.0)
    parallel = where[shapes.tp[where] > 1]
    divided = shapes.sequence_parallel[parallel] == 1
    for workloads, steps in ((parallel[divided], split), (parallel[~divided], whole)):
        for phase, operation, shares in steps:
            emit_collective(
                table, workloads, f"{label}.{OPERATIONS[operation]}", phase=phase, segment=segment,
                num_bytes=gathered_bytes if operation == ALL_GATHER else num_bytes,
                category=TP_COMM, operation=operation, **group_row(shapes, "tp"), **shares,
            )  # fmt: skip


def _pieces(shapes: Shapes) -> Row:
    """Return the shares of a collective beside the GEMM of its segment.

    With overlap it is cut into TP pieces: one stays exposed, the rest hide; of AsyncTP less.
    """
    piece = 1.0 / shapes.tp.astype(np.float64)
    on = shapes.tp_overlap > 0
    left = np.maximum(piece, shapes.async_tp_exposed_2e20 / LOAD_ONE)
    return {
        "exposed_share": np.where(on, np.where(shapes.tp_overlap == ASYNC_TP, left, piece), 1.0),
        "partner_share": np.where(on, 1.0 - piece, 0.0),
    }
