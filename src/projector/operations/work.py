"""What kernels of a workload do, by kind: seconds, FLOP and bytes. Their power follows from it."""

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.kernels.device import OPERAND_BYTES
from projector.lower.workloads import Workloads
from projector.operations.table import (
    ATTENTION,
    BACKWARD,
    GEMM,
    MEMORY,
    OperationTable,
)

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


def work_of_workloads(
    table: OperationTable, time_s: Floats, again: Flags, workloads: Workloads
) -> Floats:
    """Return what one microbatch of each workload makes a device do.

    Operands of a GEMM are counted once, whatever its tiles load again; so are those of attention.

    Parameters
    ----------
    time_s : float64[rows]
        Seconds of all repeats of each row.
    again : bool[rows]
        Rows that recomputation runs once more.

    Returns
    -------
    float64[workloads, kinds, 3]
        Seconds, FLOP and bytes, forward and backward together.
    """
    flop, num_bytes = _flop(table), _bytes(table)
    slot = table.workload * len(KINDS) + _kinds(table, workloads)
    size = len(workloads.rows) * len(KINDS)
    work = np.empty((size, 3))
    for column, values in enumerate((time_s, flop * table.repeats, num_bytes * table.repeats)):
        work[:, column] = np.bincount(slot, values, size)
        work[:, column] += np.bincount(slot[again], values[again], size)
    return work.reshape(len(workloads.rows), len(KINDS), 3)


def _kinds(table: OperationTable, workloads: Workloads) -> Ints:
    linear = workloads.columns.dtype[table.workload]
    of_gemm = np.where(table.dtype == linear, LINEAR, WIDE)
    kinds = np.array([0, OF_ATTENTION, OF_MEMORY, OF_COMMUNICATION, OF_COMMUNICATION], np.int64)
    return np.where(table.kind == GEMM, of_gemm, kinds[table.kind])


def _flop(table: OperationTable) -> Floats:
    again = (table.kind == ATTENTION) & (table.phase == BACKWARD)
    return table.flop * np.where(again, EXECUTED_BACKWARD, 1.0)


def _bytes(table: OperationTable) -> Floats:
    num_bytes = np.where(table.kind == MEMORY, 1.0, PASSES_OF_A_BUFFER) * table.bytes
    rows = np.flatnonzero(table.kind == GEMM)
    m, n, k = (extent[rows].astype(np.float64) for extent in (table.m, table.n, table.k))
    operands = (m * k + k * n) * OPERAND_BYTES[table.dtype[rows]]
    num_bytes[rows] = (operands + m * n * table.out_bytes[rows]) * table.batch[rows]
    rows = np.flatnonzero(table.kind == ATTENTION)
    widths = (table.k[rows] + table.d_v[rows]) * OPERAND_BYTES[table.dtype[rows]]
    elements = table.m[rows] * table.heads[rows] + table.n[rows] * table.key_heads[rows]
    num_bytes[rows] = elements * widths * table.batch[rows]
    return num_bytes
