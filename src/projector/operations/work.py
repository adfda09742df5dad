"""Which rows recomputation drops and repeats, and what kernels of a workload do, by kind.

That is seconds, FLOP and bytes; their power follows from it.
"""

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.kernels.device import OPERAND_BYTES
from projector.lower.stages import RECOMPUTE_FULL, RECOMPUTE_SELECTIVE
from projector.lower.workloads import Workloads
from projector.operations import table as ops
from projector.operations.linear import BITS
from projector.operations.mlp import MLP_BIT, SEGMENT_FC2

KINDS = ("gemm", "wide_gemm", "attention", "memory", "communication")
"""Kinds of kernels: GEMMs in the type of linear layers, in other types, and the rest."""

LINEAR, WIDE, OF_ATTENTION, OF_MEMORY, OF_COMMUNICATION = range(5)

SECONDS, FLOP, BYTES = range(3)
"""What is counted of a kind."""

EXECUTED_BACKWARD = 1.25
"""A fused attention's backward runs five products where four are needed: it makes the scores
anew."""

PASSES_OF_A_BUFFER = 2.0
"""A collective reads its buffer and writes one."""


def work_of_workloads(table: ops.OperationTable, again: Flags, workloads: Workloads) -> Floats:
    """Return what one microbatch of each workload makes a device do, forward and backward together.

    The result is float64[workloads, kinds, 3]: seconds, left 0, FLOP and bytes. Rows in ``again``
    run once more. Operands of a GEMM are counted once, whatever its tiles load again; so are those
    of attention.
    """
    num, kinds = len(workloads), kinds_of_rows(table, workloads)
    work = np.zeros((num, len(KINDS), 3))
    repeated = np.flatnonzero(again)
    num_bytes = np.where(table.kind == ops.MEMORY, 1.0, PASSES_OF_A_BUFFER) * table.bytes
    rows = np.flatnonzero(table.kind == ops.GEMM)
    m, n, k = (extent[rows].astype(np.float64) for extent in (table.m, table.n, table.k))
    operands = (m * k + k * n) * OPERAND_BYTES[table.dtype[rows]]
    num_bytes[rows] = (operands + m * n * table.out_bytes[rows]) * table.batch[rows]
    rows = np.flatnonzero(table.kind == ops.ATTENTION)
    widths = (table.k[rows] + table.d_v[rows]) * OPERAND_BYTES[table.dtype[rows]]
    elements = table.m[rows] * table.heads[rows] + table.n[rows] * table.key_heads[rows]
    num_bytes[rows] = elements * widths * table.batch[rows]
    repeats = (table.kind == ops.ATTENTION) & (table.phase == ops.BACKWARD)
    flop = table.flop * np.where(repeats, EXECUTED_BACKWARD, 1.0)
    for column, values in ((FLOP, flop), (BYTES, num_bytes)):
        work[:, :, column] = sum_kinds(table.workload, kinds, repeated, values * table.repeats, num)
    return work


def with_seconds(work: Floats, seconds: Floats) -> Floats:
    """Return work, float64[n, kinds, 3], with float64[n, kinds] as its seconds."""
    return np.concatenate([seconds[:, :, np.newaxis], work[:, :, FLOP:]], axis=2)


def sum_kinds(workload: Ints, kind: Ints, again: Ints, values: Floats, num: int) -> Floats:
    """Add values of rows up by workload and kind, the rows ``again`` twice: float64[num, kinds]."""
    slot, size = workload * len(KINDS) + kind, num * len(KINDS)
    summed = np.bincount(slot, values, size).astype(np.float64, copy=False)
    summed += np.bincount(slot[again], values[again], size)
    return summed.reshape(num, len(KINDS))


def kinds_of_rows(table: ops.OperationTable, workloads: Workloads) -> Ints:
    """Return the kind of each row, int64[rows]."""
    of_gemm = np.where(table.dtype == workloads.columns.dtype[table.workload], LINEAR, WIDE)
    kinds = np.array([0, OF_ATTENTION, OF_MEMORY, OF_COMMUNICATION, OF_COMMUNICATION], np.int64)
    return np.where(table.kind == ops.GEMM, of_gemm, kinds[table.kind])


def dropped_rows(table: ops.OperationTable, workloads: Workloads) -> Flags:
    """Return the rows whose activations selective recomputation drops, bool[rows]."""
    columns = workloads.columns
    selective = columns.recompute[table.workload] == RECOMPUTE_SELECTIVE
    mask = columns.recompute_mask[table.workload]
    dropped: Flags = selective & (((mask + (mask & ops.AGAIN)) & table.recompute_bit) > 0)
    return dropped


def repeated_rows(table: ops.OperationTable, workloads: Workloads) -> Flags:
    """Return the forward rows that run again in the backward, bool[rows].

    The output of the last GEMM of a dense layer, and what a collective makes of it, is no input of
    any backward: a recomputation that stops early leaves them out.
    """
    columns = workloads.columns
    full = columns.recompute[table.workload] == RECOMPUTE_FULL
    is_last = ((table.kind == ops.GEMM) & (table.recompute_bit & MLP_BIT > 0)) | (
        (table.kind == ops.COLLECTIVE) & (columns.experts[table.workload] == 0)
    )
    is_last &= (table.segment == SEGMENT_FC2) & (columns.stops_early[table.workload] == 1)
    # What an adapter beside it keeps is made behind it.
    is_last &= (columns.adapter_sites[table.workload] & BITS["fc2"]) == 0
    chosen = (columns.recompute_mask[table.workload] & table.recompute_bit) > 0
    repeated: Flags = (table.phase == ops.FORWARD) & (chosen | (full & ~is_last))
    return repeated
