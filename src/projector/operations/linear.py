"""A linear layer: three GEMMs, their quantising passes, its parameters and saved input.

Low-rank adapters beside it are divided over tensor parallelism as the layer is.
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.config.adapter import SITES
from projector.kernels.collective_algorithms import ALL_GATHER, ALL_REDUCE, OPERATIONS
from projector.kernels.device import MATRIX_TYPES
from projector.lower.sections import DROPOUTS
from projector.lower.workload_columns import ADDS_APART
from projector.operations import table as ops
from projector.operations.communication import emit_collective, group_row
from projector.operations.shapes import Shapes, ceil_div

NF4_BYTES = (4.0 + 8.0 / 64 + 32.0 / (64 * 256)) / 8.0
"""Bytes of a weight in NF4: 4 bits, a scale of 8 bits for 64 of them, and one of 32 bits for 256
scales (QLoRA, arXiv:2305.14314, section 3: 0.127 bits for the scales)."""

TENSORWISE, ROWWISE = 1, 2
FP8 = MATRIX_TYPES.index("fp8")


class Linear(NamedTuple):
    """``Y[tokens, n_out] = X[tokens, n_in] @ W`` on one rank, for every workload or for all."""

    tokens: ops.IntValues
    n_in: ops.IntValues
    n_out: ops.IntValues
    groups: ops.IntValues = 1
    """Equal problems in one launch, each with its own weights and its own tokens (experts)."""
    saved_tokens: ops.FloatValues | None = None
    """Rows of X kept for the weight gradient (fewer under sequence parallelism)."""
    bias: ops.IntValues = 0
    """1 where the layer has a bias."""
    wide: bool = False
    """It stays in 16 bits whatever the workload's linear type is."""
    expert: int = 0
    segment: int = 0
    recompute_bit: ops.IntValues = 0
    saves_input: bool | Flags | Floats = True
    """Whether X is kept here, or how many times 16 bits."""
    adapter: int = 0
    """1 for what is trained where weights are frozen."""
    parameters: ops.FloatValues | None = None
    """Instead of ``groups * n_in * n_out`` plus the bias."""
    transient_bytes: ops.FloatValues = 0.0
    flop: ops.FloatValues | None = None
    """Needed FLOP of one GEMM, where ``tokens`` is padded to whole rows."""
    out_bytes: float = 2.0
    """Bytes of an element of Y."""


def emit_linear(
    table: ops.TableBuilder, shapes: Shapes, where: Ints, label: str, layer: Linear
) -> None:
    """Emit a linear layer with its backward.

    Forward (t, out, in), input gradient (t, in, out), weight gradient (out, in, t), which adds to
    the main gradient in place, which a kernel of its own adds to it, or which FSDP reduces. A
    narrow GEMM quantises X for the forward and the weight gradient, and dY alike, in two layouts
    unless the device multiplies any. Weights are quantised once a step, see the optimizer. A frozen
    weight has no gradient, and X is not kept for it.
    """
    tokens, n_in, n_out, groups = layer[:4]
    wide, recompute_bit = layer.wide, layer.recompute_bit
    flop, parameters = layer.flop, layer.parameters
    frozen = (shapes.frozen == 1) & (layer.adapter == 0)
    size = np.multiply(groups, np.multiply(n_in, n_out)).astype(np.float64)
    if flop is None:
        flop = 2.0 * np.asarray(tokens, np.float64) * size
    stored_tokens = tokens if layer.saved_tokens is None else layer.saved_tokens
    stored = np.where(shapes.narrow & (not wide), shapes.operand_bytes, 2.0)
    saved = np.asarray(stored_tokens, np.float64) * np.multiply(groups, n_in) * stored
    saved = np.where(frozen, 0.0, saved * layer.saves_input)
    if parameters is None:
        parameters = size + np.multiply(groups, np.multiply(n_out, layer.bias))
    gemm = partial(
        table.add,
        kind=ops.GEMM,
        category=ops.COMPUTE_GEMM,
        dtype=shapes.wide_dtype if wide else shapes.dtype,
        batch=np.broadcast_to(groups, len(shapes)),
        segment=layer.segment,
        flop=flop,
        expert=layer.expert,
        adapter=layer.adapter,
    )
    _emit_unpacking(table, shapes, where[frozen[where]], label, size, recompute_bit)
    trained = where[~frozen[where]]
    gemm(
        where,
        label,
        phase=ops.FORWARD,
        m=tokens,
        n=n_out,
        k=n_in,
        saved_bytes=saved,
        parameters=parameters,
        recompute_bit=recompute_bit,
        transient_bytes=layer.transient_bytes,
        out_bytes=layer.out_bytes,
    )
    gemm(where, label, phase=ops.BACKWARD, m=tokens, n=n_in, k=n_out)
    gemm(
        trained, label, phase=ops.WEIGHT, m=n_out, n=n_in, k=tokens,
        out_bytes=shapes.gradient_out_bytes,
    )  # fmt: skip
    table.add(
        trained[shapes.accumulation[trained] == ADDS_APART], f"{label}.accumulate", kind=ops.MEMORY,
        category=ops.COMPUTE_OTHER, phase=ops.WEIGHT,
        bytes=(2.0 + 2.0 * shapes.accumulate_bytes) * size,
    )  # fmt: skip
    if not wide and shapes.narrow.any():
        _emit_quantisation(table, shapes, where, label, layer)


def _emit_unpacking(
    table: ops.TableBuilder,
    shapes: Shapes,
    where: Ints,
    label: str,
    size: Floats,
    bit: ops.IntValues,
) -> None:
    """Emit how frozen weights of 4 bits are made 16 bits, before each GEMM that reads them."""
    packed = where[shapes.packed_base[where] == 1]
    moved = (NF4_BYTES + 2.0) * size
    emit_memory(
        table, packed, f"{label}.unpack", forward_bytes=moved, backward_bytes=moved,
        transient_bytes=2.0 * size, recompute_bit=bit,
    )  # fmt: skip


def _emit_quantisation(
    table: ops.TableBuilder, shapes: Shapes, where: Ints, label: str, layer: Linear
) -> None:
    """Emit what narrow GEMMs quantise: X in the forward and dY in the backward.

    Scales of the whole tensor are found once for all layouts, those of rows for each layout, by a
    read of their own.
    """
    recipe, fp8, layouts = shapes.fp8_recipe, shapes.dtype == FP8, shapes.fp8_layouts
    passes = 1.0 + (fp8 & np.isin(recipe, (TENSORWISE, ROWWISE)))
    passes = passes * np.where(fp8 & (recipe == ROWWISE), layouts, 1)
    per_element = 2.0 * passes + layouts * shapes.operand_bytes
    rows = np.asarray(layer.tokens, np.float64) * layer.groups
    quantise = partial(
        table.add,
        where[shapes.narrow[where]],
        f"{label}.quantise",
        kind=ops.MEMORY,
        category=ops.COMPUTE_OTHER,
        launches=passes,
    )
    bit = layer.recompute_bit
    quantise(phase=ops.FORWARD, bytes=rows * layer.n_in * per_element, recompute_bit=bit)
    quantise(phase=ops.BACKWARD, bytes=rows * layer.n_out * per_element)


def emit_memory(
    table: ops.TableBuilder, where: Ints, label: str, *, forward_bytes: ops.FloatValues,
    backward_bytes: ops.FloatValues, launches: ops.FloatValues = 1.0,
    backward_launches: ops.FloatValues | None = None, backward_exponentials: ops.FloatValues = 0.0,
    rate_share: ops.FloatValues = 1.0, **forward: ops.FloatValues,
) -> None:  # fmt: skip
    """Emit a memory-bound operator: its traffic both ways, and further columns of its forward."""
    memory = partial(
        table.add, where, label, kind=ops.MEMORY, category=ops.COMPUTE_OTHER, rate_share=rate_share
    )
    memory(phase=ops.FORWARD, bytes=forward_bytes, launches=launches, **forward)
    again = launches if backward_launches is None else backward_launches
    memory(
        phase=ops.BACKWARD, bytes=backward_bytes, launches=again, exponentials=backward_exponentials
    )


BITS = {site: 1 << position for position, site in enumerate(SITES)}
"""Bit of each site in ``adapter_sites``."""

COLUMN, ROW, WHOLE = range(3)
"""How a linear layer is divided over tensor parallelism: its outputs, its inputs, or not at all."""

PRE, POST = DROPOUTS.index("pre"), DROPOUTS.index("post")

DROPPED_BYTES = 5.0
"""Bytes of an element that dropout moves: it reads and writes 16 bits, and a mask of 8."""


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
    recompute_bit: ops.IntValues


def emit_adapted(
    table: ops.TableBuilder, shapes: Shapes, where: Ints, label: str,
    outputs: Mapping[str, ops.IntValues], split: int, layer: Linear, *,
    keeps_input: bool | Flags = True,
) -> None:  # fmt: skip
    """Emit a linear layer as `emit_linear`, and the adapters beside it.

    ``outputs`` are the outputs on one rank that an adapter adds to, by its site of `SITES`; the
    whole layer comes first, its parts behind it. ``split`` is `COLUMN`, `ROW` or `WHOLE`.
    ``keeps_input`` says whether adapters have to keep X, which nothing else does.
    """
    emit_linear(table, shapes, where, label, layer)
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


def _beside(shapes: Shapes, split: int, layer: Linear) -> _Beside:
    """Describe a layer; one adapter stands beside all experts of a rank, or one beside each."""

    def column(value: ops.FloatValues) -> Floats:
        return np.broadcast_to(np.asarray(value), len(shapes))

    groups = column(layer.groups).astype(np.int64)
    joined = np.where(shapes.adapter_each == 1, 1, groups)
    tokens = column(layer.tokens).astype(np.int64)
    # Inputs that sequence parallelism divides are kept as they were gathered.
    stored = layer.saved_tokens if layer.expert else None
    kept = tokens.astype(np.float64) if stored is None else column(stored)
    return _Beside(
        tokens * joined, kept * joined, column(layer.n_in).astype(np.int64), groups // joined,
        split, layer.expert, layer.segment, layer.recompute_bit,
    )  # fmt: skip


def _emit_adapter(
    table: ops.TableBuilder, shapes: Shapes, where: Ints, label: str, beside: _Beside, n_out: Ints,
    keeps_input: Flags,
) -> None:  # fmt: skip
    """Emit ``Y += scale * B A dropout(X)`` and its backward.

    Megatron-Bridge's ``ParallelLinearAdapter``: beside a layer that divides its outputs A divides
    its rank, which is gathered before B. Beside one that divides its inputs the rank is summed, B
    divides the outputs, and those are gathered, but for experts: their outputs stay apart until
    tokens are combined. Beside one that is not divided adapters are not divided either.
    """
    tp = np.maximum(1, 1 if beside.split == WHOLE else shapes.etp if beside.expert else shapes.tp)
    rank = shapes.adapter_expert_rank if beside.expert else shapes.adapter_rank
    by_row = beside.split == ROW
    tokens, n_in = beside.tokens, beside.n_in
    before = shapes.adapter_dropout == PRE
    # A dropped copy and its mask belong to one adapter alone.
    kept = np.where(before, 1.5, keeps_input * 1.0)
    matrix = partial(
        Linear, tokens=tokens, groups=beside.groups, wide=True, adapter=1, expert=beside.expert,
        segment=beside.segment, recompute_bit=beside.recompute_bit,
    )  # fmt: skip
    first = matrix(
        n_in=n_in, n_out=rank if by_row else ceil_div(rank, tp), saved_tokens=beside.kept_tokens,
        saves_input=kept,
    )  # fmt: skip
    second = matrix(n_in=rank, n_out=ceil_div(n_out, tp) if by_row else n_out)
    emit_linear(table, shapes, where, f"{label}.lora_a", first)
    emit_linear(table, shapes, where, f"{label}.lora_b", second)
    rows = beside.groups * tokens.astype(np.float64)
    summed = rows
    if by_row and not beside.expert:
        summed = shapes.outer_tokens.astype(np.float64)
    moved = np.asarray(rows * n_in, np.float64), np.asarray(summed * n_out, np.float64)
    _emit_sum(table, shapes, where, label, beside, *moved)
    _emit_traffic(table, shapes, where, label, beside, rank, n_out)


def _emit_sum(
    table: ops.TableBuilder, shapes: Shapes, where: Ints, label: str, beside: _Beside,
    inputs: Floats, outputs: Floats,
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
    table: ops.TableBuilder, shapes: Shapes, where: Ints, label: str, beside: _Beside, rank: Ints,
    n_out: Ints,
) -> None:  # fmt: skip
    """Emit what an adapter moves over tensor parallelism, beside what its layer moves.

    The gradient of what B reads is summed over the ranks that divide its outputs. Without sequence
    parallelism so is the gradient of what A reads, apart from that of the layer.
    """
    expert, split = beside.expert, beside.split
    if split == WHOLE:
        return
    group = group_row(shapes, "etp" if expert else "tp")
    rows = 2.0 * beside.groups * beside.tokens
    low, high, inputs = rows * rank, rows * n_out, rows * beside.n_in
    divided = where[group["ranks"][where] > 1]
    together = divided[shapes.sequence_parallel[divided] == 1]
    apart = divided[shapes.sequence_parallel[divided] == 0]
    steps = [
        (divided, ops.FORWARD, ALL_REDUCE if split == ROW else ALL_GATHER, low),
        (divided, ops.BACKWARD, ALL_REDUCE, low),
    ]
    if split == ROW and not expert:
        steps.append((divided, ops.FORWARD, ALL_GATHER, high))
        steps.append((together, ops.BACKWARD, ALL_GATHER, high))
    if split == COLUMN and not expert:
        steps.append((apart, ops.BACKWARD, ALL_REDUCE, inputs))
    for chosen, phase, operation, num_bytes in steps:
        emit_collective(
            table, chosen, f"{label}.lora.{OPERATIONS[operation]}", phase=phase,
            category=ops.TP_COMM, operation=operation, num_bytes=num_bytes, **group,
            recompute_bit=beside.recompute_bit if phase == ops.FORWARD else 0,
        )  # fmt: skip
