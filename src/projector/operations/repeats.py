"""Which rows of the operation table recomputation drops, and which it repeats in the backward."""

from projector.arrays import Flags
from projector.lower.stages import RECOMPUTE_FULL, RECOMPUTE_SELECTIVE
from projector.lower.workloads import Workloads
from projector.operations.adapters import BITS
from projector.operations.mlp import MLP_BIT, SEGMENT_FC2
from projector.operations.table import COLLECTIVE, FORWARD, GEMM, OperationTable


def dropped_rows(table: OperationTable, workloads: Workloads) -> Flags:
    """Return the rows whose activations selective recomputation drops, bool[rows]."""
    columns = workloads.columns
    selective = columns.recompute[table.workload] == RECOMPUTE_SELECTIVE
    dropped: Flags = selective & (
        (columns.recompute_mask[table.workload] & table.recompute_bit) > 0
    )
    return dropped


def repeated_rows(table: OperationTable, workloads: Workloads) -> Flags:
    """Return the forward rows that run again in the backward, bool[rows].

    The output of the last GEMM of a dense layer, and what a collective makes of it, is no input of
    any backward: a recomputation that stops early leaves them out.
    """
    columns = workloads.columns
    full = columns.recompute[table.workload] == RECOMPUTE_FULL
    dense = columns.experts[table.workload] == 0
    is_last = ((table.kind == GEMM) & (table.recompute_bit == MLP_BIT)) | (
        (table.kind == COLLECTIVE) & dense
    )
    is_last &= (table.segment == SEGMENT_FC2) & (columns.stops_early[table.workload] == 1)
    # What an adapter beside it keeps is made behind it.
    is_last &= (columns.adapter_sites[table.workload] & BITS["fc2"]) == 0
    repeated: Flags = (table.phase == FORWARD) & (
        dropped_rows(table, workloads) | (full & ~is_last)
    )
    return repeated
