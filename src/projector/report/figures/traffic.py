"""FLOP and compulsory memory traffic of rows of the operation table.

*Compulsory* is what any kernel must move: every operand once, whatever its tiles read again and
whatever a cache keeps. FLOP per compulsory byte therefore bounds what a row can reach.
"""

import numpy as np

from projector.arrays import Floats
from projector.kernels.device import OPERAND_BYTES
from projector.operations.table import ATTENTION, BACKWARD, GEMM, MEMORY, OperationTable

NOMINAL_FLOP_PER_BYTE = 0.5
"""Memory-bound operators have no matrix FLOP. To have a place in a roofline they count one FLOP
for each 16-bit element that they move; nothing but the place depends on it."""

_OUTPUT_BYTES, _STATISTIC_BYTES = 2.0, 4.0
"""Of an element of O or of a gradient, and of a log-sum, in fused attention."""


def row_flop(table: OperationTable) -> Floats:
    """Return the FLOP that the model needs for every row, nominal ones for memory-bound rows."""
    nominal = NOMINAL_FLOP_PER_BYTE * table.bytes * table.repeats
    return np.where(table.kind == MEMORY, nominal, table.flop)


def row_bytes(table: OperationTable) -> Floats:
    """Return the compulsory device-memory traffic of every row; 0 for collectives.

    GEMM: ``batch * ((m + n) * k * w + m * n * out_bytes)`` with operands of ``w`` bytes.
    Attention forward: Q, K and V in, O and the log-sums out; backward: these, dO and a second
    statistic in, dQ, dK and dV out. Memory-bound rows state their traffic.
    """
    operand = OPERAND_BYTES[table.dtype]
    m, n, k, batch = (
        column.astype(np.float64) for column in (table.m, table.n, table.k, table.batch)
    )
    gemm = batch * ((m + n) * k * operand + m * n * table.out_bytes)
    traffic = np.where(table.kind == GEMM, gemm, 0.0)
    traffic = np.where(table.kind == ATTENTION, _attention(table, operand, m, n, k, batch), traffic)
    return np.where(table.kind == MEMORY, table.bytes, traffic) * table.repeats


def _attention(
    table: OperationTable,
    operand: Floats,
    queries: Floats,
    keys: Floats,
    d_qk: Floats,
    batch: Floats,
) -> Floats:
    query_rows = batch * table.heads * queries
    # A window reaches back from the first query; with as many keys as queries it reaches all.
    visible_keys = np.where(table.window > 0, np.minimum(keys, queries + table.window - 1.0), keys)
    key_rows = batch * table.key_heads * visible_keys
    inputs = query_rows * d_qk * operand + key_rows * (d_qk + table.d_v) * operand
    output = query_rows * table.d_v * _OUTPUT_BYTES
    forward = inputs + output + query_rows * _STATISTIC_BYTES
    gradients = (query_rows * d_qk + key_rows * (d_qk + table.d_v)) * _OUTPUT_BYTES
    backward = inputs + 2.0 * output + 2.0 * query_rows * _STATISTIC_BYTES + gradients
    return np.asarray(np.where(table.phase == BACKWARD, backward, forward), np.float64)
