"""What limits a step: compute, memory, links, or the host."""

import numpy as np

from projector.arrays import Floats
from projector.operations.table import ATTENTION, COLLECTIVE, EXCHANGE, GEMM, OperationTable
from projector.serving.columns import StepColumns
from projector.serving.step import CostedSteps
from projector.serving.totals import HOST, LAUNCH, StepTimes

LIMITS = ("compute", "memory", "communication", "launch", "host")
"""What a step may be limited by."""

COMPUTE, MEMORY, COMMUNICATION, GAPS, WAITS = range(5)


def limit_seconds(costed: CostedSteps, times: StepTimes) -> Floats:
    """Divide the seconds of each step by what limits its operations.

    Returns
    -------
    float64[steps, len(LIMITS)]
        Rows add up to the latency. The seconds of an operation belong to its higher roof: FLOP
        over the matrix rate, or bytes over the memory rate (Williams et al., Roofline, CACM
        2009).
    """
    num = len(costed.columns)
    divided = np.zeros((num, len(LIMITS)))
    for part in (costed.base, costed.core):
        table = part.table
        compute_s, memory_s = _compute_s(table, costed.columns), _memory_s(table, costed.columns)
        code = np.where(compute_s > memory_s, COMPUTE, MEMORY)
        linked = (table.kind == COLLECTIVE) | (table.kind == EXCHANGE)
        slot = table.workload * len(LIMITS) + np.where(linked, COMMUNICATION, code)
        seconds = np.bincount(slot, part.row_s * table.repeats, num * len(LIMITS))
        divided += seconds.reshape(num, len(LIMITS))
    divided[:, GAPS] = times.breakdown_s[:, LAUNCH]
    divided[:, WAITS] = times.breakdown_s[:, HOST]
    return divided


def _compute_s(table: OperationTable, columns: StepColumns) -> Floats:
    """Return the seconds of each row at the matrix rate."""
    device = columns.shapes.rows["device"][table.workload]
    flop = 2.0 * table.m.astype(np.float64) * table.n * table.k * table.batch
    flop = np.where(table.kind == ATTENTION, _attention_flop(table), flop)
    flop = np.where((table.kind == GEMM) | (table.kind == ATTENTION), flop, table.flop)
    wide = columns.shapes.wide_dtype[table.workload]
    of_gemm = columns.devices["matrix_flop_per_s"][device, table.dtype]
    of_attention = columns.devices["attention_flop_per_s"][device, wide]
    rate = np.where(table.kind == GEMM, of_gemm, of_attention)
    seconds: Floats = flop / rate
    return seconds


def _attention_flop(table: OperationTable) -> Floats:
    """Return the FLOP of fused attention; a causal one sees about half of its new keys."""
    seen = np.where(table.window > 0, np.minimum(table.n, table.window), table.n)
    pairs = table.m * (seen - np.where(table.causal == 1, np.minimum(table.m, seen) / 2.0, 0.0))
    flop: Floats = 2.0 * table.batch * table.heads * pairs * (table.k + table.d_v)
    return flop


def _memory_s(table: OperationTable, columns: StepColumns) -> Floats:
    """Return the seconds of each row at the memory rate; each operand moves once."""
    device = columns.shapes.rows["device"][table.workload]
    width = columns.shapes.operand_bytes[table.workload]
    share = columns.weight_share[table.workload]
    m, n, k = (column.astype(np.float64) for column in (table.m, table.n, table.k))
    gemm = table.batch * (width * (m * k + share * k * n) + table.out_bytes * m * n)
    widths = table.k + table.d_v
    attention = 2.0 * table.batch * (table.heads * m * widths + table.key_heads * n * widths)
    moved = np.where(table.kind == GEMM, gemm, table.bytes)
    moved = np.where(table.kind == ATTENTION, attention, moved)
    seconds: Floats = moved / columns.devices["hbm_bytes_per_s"][device]
    return seconds
