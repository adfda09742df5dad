"""Collectives inside a layer: tensor parallelism's entry and exit of a parallel region."""

from typing import Any

import numpy as np

from projector.kernels.collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from projector.operations.shapes import Floats, Ints, Shapes
from projector.operations.table import BACKWARD, COLLECTIVE, FORWARD, TP_COMM, TableBuilder


def emit_collective(
    table: TableBuilder,
    where: Ints,
    label: str,
    *,
    phase: int,
    category: int,
    operation: int,
    num_bytes: Any,
    ranks: Any,
    local: Any,
    **columns: Any,
) -> None:
    """Emit one collective of ``num_bytes`` (the whole buffer, see ``docs/collectives.md``)."""
    table.add(
        where, label, kind=COLLECTIVE, phase=phase, category=category, operation=operation,
        bytes=num_bytes, ranks=ranks, local=local, **columns,
    )  # fmt: skip


def emit_region_entry(
    table: TableBuilder, shapes: Shapes, where: Ints, label: str, num_bytes: Floats, segment: int,
    *, gathers_again: bool = True,
) -> None:  # fmt: skip
    """Emit what happens where activations enter a tensor-parallel region.

    With sequence parallelism the forward gathers the sequence, the backward scatters the sum of
    the input gradients and gathers the saved input once more beside the input-gradient GEMM.
    Without it the forward is free and the backward sums the input gradients beside the
    weight-gradient GEMM (Megatron's asynchronous all-reduce).
    """
    tp = shapes.tp > 1
    split = shapes.where(tp & (shapes.sequence_parallel == 1))
    whole = shapes.where(tp & (shapes.sequence_parallel == 0))
    common = {
        "category": TP_COMM,
        "num_bytes": num_bytes,
        "ranks": shapes.tp,
        "local": shapes.tp_local,
        "segment": segment,
    }
    overlap = _overlap(shapes)
    # Two collectives of the backward share the compute of this segment.
    halved = {**overlap, "partner_share": 0.5 * overlap["partner_share"]}
    split, whole = np.intersect1d(split, where), np.intersect1d(whole, where)
    emit_collective(
        table,
        split,
        f"{label}.all_gather",
        phase=FORWARD,
        operation=ALL_GATHER,
        **common,
        **overlap,
    )
    emit_collective(
        table,
        split,
        f"{label}.reduce_scatter",
        phase=BACKWARD,
        operation=REDUCE_SCATTER,
        **common,
        **halved,
    )
    beside: dict[str, Any] = {"exposed_share": 0.0, "partner_share": 0.5}
    if gathers_again:
        emit_collective(
            table,
            split,
            f"{label}.all_gather",
            phase=BACKWARD,
            operation=ALL_GATHER,
            **common,
            **beside,
        )
    emit_collective(
        table,
        whole,
        f"{label}.all_reduce",
        phase=BACKWARD,
        operation=ALL_REDUCE,
        **common,
        **beside,
    )


def emit_region_exit(
    table: TableBuilder, shapes: Shapes, where: Ints, label: str, num_bytes: Floats, segment: int
) -> None:
    """Emit what happens where partial sums leave a tensor-parallel region.

    With sequence parallelism a reduce-scatter and a gather of gradients, without it one
    all-reduce in the forward.
    """
    tp = shapes.tp > 1
    split = np.intersect1d(shapes.where(tp & (shapes.sequence_parallel == 1)), where)
    whole = np.intersect1d(shapes.where(tp & (shapes.sequence_parallel == 0)), where)
    common = {
        "category": TP_COMM,
        "num_bytes": num_bytes,
        "ranks": shapes.tp,
        "local": shapes.tp_local,
        "segment": segment,
    }
    overlap = _overlap(shapes)
    emit_collective(
        table,
        split,
        f"{label}.reduce_scatter",
        phase=FORWARD,
        operation=REDUCE_SCATTER,
        **common,
        **overlap,
    )
    emit_collective(
        table,
        split,
        f"{label}.all_gather",
        phase=BACKWARD,
        operation=ALL_GATHER,
        **common,
        **overlap,
    )
    emit_collective(
        table,
        whole,
        f"{label}.all_reduce",
        phase=FORWARD,
        operation=ALL_REDUCE,
        **common,
        **overlap,
    )


def _overlap(shapes: Shapes) -> dict[str, Any]:
    """Return the shares of a collective beside the GEMM of its segment.

    With overlap it is cut into TP pieces: one stays exposed, the rest hide.
    """
    pieces = shapes.tp.astype(np.float64)
    on = shapes.tp_overlap == 1
    return {
        "exposed_share": np.where(on, 1.0 / pieces, 1.0),
        "partner_share": np.where(on, 1.0 - 1.0 / pieces, 0.0),
    }
