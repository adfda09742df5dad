"""Low-rank adapters beside linear layers, divided over tensor parallelism as the layers are."""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple, TypedDict, Unpack

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.config.adapter import SITES
from projector.kernels.collective_algorithms import ALL_GATHER, ALL_REDUCE, OPERATIONS
from projector.lower.sections import DROPOUTS
from projector.operations.communication import emit_collective
from projector.operations.linear import emit_linear, emit_memory
from projector.operations.shapes import Shapes, ceil_div
from projector.operations.table import (
    BACKWARD,
    FORWARD,
    TP_COMM,
    FloatValues,
    IntValues,
    TableBuilder,
)

BITS = {site: 1 << position for position, site in enumerate(SITES)}
"""Bit of each site in ``adapter_sites``."""

COLUMN, ROW, WHOLE = range(3)
"""How a linear layer is divided over tensor parallelism: its outputs, its inputs, or not at all."""

PRE, POST = DROPOUTS.index("pre"), DROPOUTS.index("post")

DROPPED_BYTES = 5.0
"""Bytes of an element that dropout moves: it reads and writes 16 bits, and a mask of 8."""


class LinearRow(TypedDict, total=False):
    """What `emit_linear` is told of a layer that may have adapters."""

    tokens: IntValues
    n_in: IntValues
    n_out: IntValues
    groups: IntValues
    saved_tokens: FloatValues | None
    bias: IntValues
    expert: int
    segment: int
    recompute_bit: int
    saves_input: bool | Flags
    transient_bytes: FloatValues
    flop: FloatValues | None


class _Beside(NamedTuple):
    """The layer that an adapter stands beside; values for every workload."""

    tokens: Ints
    kept_tokens: Floats
    """Rows of X that are kept for the gradient of A."""
    n_in: Ints
    groups: Ints
    split: int
    expert: int
    segment: int
    recompute_bit: int


def emit_adapted(
    table: TableBuilder, shapes: Shapes, where: Ints, label: str, outputs: Mapping[str, IntValues],
    split: int, *, keeps_input: bool | Flags = True, **layer: Unpack[LinearRow],
) -> None:  # fmt: skip
    """Emit a linear layer, and the adapters beside it.

    Parameters
    ----------
    outputs : mapping
        Site of `SITES` -> the outputs on one rank that an adapter there adds to; the whole layer
        comes first, its parts behind it.
    split : int
        `COLUMN`, `ROW` or `WHOLE`.
    keeps_input : bool or bool[workloads]
        Whether adapters have to keep X, which nothing else does.
    **layer
        As `emit_linear` takes it.
    """
    emit_linear(table, shapes, where, label, **layer)
    sites = shapes.adapter_sites
    if not sites[where].any():
        return
    beside = _beside(shapes, split, layer)
    kept = np.broadcast_to(keeps_input, len(shapes))
    whole = next(iter(outputs))
    for site, n_out in outputs.items():
        chosen = where[sites[where] & BITS[site] > 0]
        if len(chosen):
            name = label if site == whole else f"{label}.{site}"
            outs = np.broadcast_to(np.asarray(n_out, np.int64), len(shapes))
            _emit_adapter(table, shapes, chosen, name, beside, outs, kept)
            # Adapters beside one layer share its input.
            kept = kept & (sites & BITS[site] == 0)


def _beside(shapes: Shapes, split: int, layer: LinearRow) -> _Beside:
    """Describe a layer; one adapter stands beside all experts of a rank, or one beside each."""

    def column(value: FloatValues) -> Floats:
        return np.broadcast_to(np.asarray(value), len(shapes))

    expert = layer.get("expert", 0)
    groups = column(layer.get("groups", 1)).astype(np.int64)
    joined = np.where(shapes.adapter_each == 1, 1, groups)
    tokens = column(layer["tokens"]).astype(np.int64)
    # Inputs that sequence parallelism divides are kept as they were gathered.
    stored = layer.get("saved_tokens") if expert else None
    kept = tokens.astype(np.float64) if stored is None else column(stored)
    return _Beside(
        tokens * joined, kept * joined, column(layer["n_in"]).astype(np.int64), groups // joined,
        split, expert, layer.get("segment", 0), layer.get("recompute_bit", 0),
    )  # fmt: skip


def _emit_adapter(
    table: TableBuilder, shapes: Shapes, where: Ints, label: str, beside: _Beside, n_out: Ints,
    keeps_input: Flags,
) -> None:  # fmt: skip
    """Emit ``Y += scale * B A dropout(X)`` and its backward.

    Megatron-Bridge's ``ParallelLinearAdapter``: beside a layer that divides its outputs A divides
    its rank, which is gathered before B. Beside one that divides its inputs the rank is summed, B
    divides the outputs, and those are gathered, but for experts: their outputs stay apart until
    tokens are combined. Beside one that is not divided adapters are not divided either.
    """
    whole = beside.split == WHOLE
    tp = np.maximum(1, 1 if whole else shapes.etp if beside.expert else shapes.tp)
    rank = shapes.adapter_expert_rank if beside.expert else shapes.adapter_rank
    by_row = beside.split == ROW
    tokens, n_in = beside.tokens, beside.n_in
    before = shapes.adapter_dropout == PRE
    # A dropped copy and its mask belong to one adapter alone.
    kept = np.where(before, 1.5, keeps_input * 1.0)
    matrix = partial(
        emit_linear, table, shapes, where, tokens=tokens, groups=beside.groups, wide=True,
        adapter=1, expert=beside.expert, segment=beside.segment,
        recompute_bit=beside.recompute_bit,
    )  # fmt: skip
    matrix(
        f"{label}.lora_a", n_in=n_in, n_out=rank if by_row else ceil_div(rank, tp),
        saved_tokens=beside.kept_tokens, saves_input=kept,
    )  # fmt: skip
    matrix(f"{label}.lora_b", n_in=rank, n_out=ceil_div(n_out, tp) if by_row else n_out)
    rows = beside.groups * tokens.astype(np.float64)
    summed = rows
    if by_row and not beside.expert:
        summed = shapes.outer_tokens.astype(np.float64)
    moved = np.asarray(rows * n_in, np.float64), np.asarray(summed * n_out, np.float64)
    _emit_sum(table, shapes, where, label, beside, *moved)
    _emit_traffic(table, shapes, where, label, beside, rank, n_out)


def _emit_sum(
    table: TableBuilder, shapes: Shapes, where: Ints, label: str, beside: _Beside, inputs: Floats,
    outputs: Floats,
) -> None:  # fmt: skip
    """Emit dropout, scale and addition, and in the backward the sum of two gradients of X.

    A compiler scales and adds in one pass.
    """
    fused = shapes.compiled == 1
    before, behind = shapes.adapter_dropout == PRE, shapes.adapter_dropout == POST
    dropped = DROPPED_BYTES * (before * inputs + behind * outputs)
    drops = (before | behind) * 1.0
    emit_memory(
        table, where, f"{label}.lora_add",
        forward_bytes=np.where(fused, 6.0, 10.0) * outputs + dropped,
        backward_bytes=4.0 * outputs + 6.0 * inputs + dropped,
        launches=np.where(fused, 1.0, 2.0) + drops, backward_launches=2.0 + drops,
        saved_bytes=behind * outputs, recompute_bit=beside.recompute_bit,
    )  # fmt: skip


def _emit_traffic(
    table: TableBuilder, shapes: Shapes, where: Ints, label: str, beside: _Beside, rank: Ints,
    n_out: Ints,
) -> None:  # fmt: skip
    """Emit what an adapter moves over tensor parallelism, beside what its layer moves.

    The gradient of what B reads is summed over the ranks that divide its outputs. Without sequence
    parallelism so is the gradient of what A reads, apart from that of the layer.
    """
    expert, split = beside.expert, beside.split
    if split == WHOLE:
        return
    ranks = np.maximum(1, shapes.etp if expert else shapes.tp)
    rows = 2.0 * beside.groups * beside.tokens
    low, high, inputs = rows * rank, rows * n_out, rows * beside.n_in
    divided = where[ranks[where] > 1]
    together = divided[shapes.sequence_parallel[divided] == 1]
    apart = divided[shapes.sequence_parallel[divided] == 0]
    steps = [
        (divided, FORWARD, ALL_REDUCE if split == ROW else ALL_GATHER, low),
        (divided, BACKWARD, ALL_REDUCE, low),
    ]
    if split == ROW and not expert:
        steps.append((divided, FORWARD, ALL_GATHER, high))
        steps.append((together, BACKWARD, ALL_GATHER, high))
    if split == COLUMN and not expert:
        steps.append((apart, BACKWARD, ALL_REDUCE, inputs))
    for chosen, phase, operation, num_bytes in steps:
        emit_collective(
            table, chosen, f"{label}.lora.{OPERATIONS[operation]}", phase=phase, category=TP_COMM,
            operation=operation, num_bytes=num_bytes, ranks=ranks,
            local=np.maximum(1, shapes.etp_local if expert else shapes.tp_local),
            span=shapes.etp_span if expert else shapes.tp_span,
            recompute_bit=beside.recompute_bit if phase == FORWARD else 0,
        )  # fmt: skip
