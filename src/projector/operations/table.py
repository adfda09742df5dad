"""The operation table: every kernel and collective of every workload, one row each.

It is read three ways: for time (kernels), for memory (saved bytes, parameters) and for
explanation (labels). Modules emit rows for all workloads at once; a module knows shapes, never
seconds.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from projector.arrays import Array

GEMM, ATTENTION, MEMORY, COLLECTIVE, EXCHANGE = range(5)
"""Row kinds: what kernel costs the row. An exchange is an all-to-all with given traffic."""

FORWARD, BACKWARD, WEIGHT = range(3)
"""Phases: forward, input gradient, weight gradient."""

CATEGORIES = ("compute_gemm", "compute_attention", "compute_other", "tp_comm", "cp_comm", "ep_comm")
"""Where a row's time is shown; the last three are communication."""

COMPUTE_GEMM, COMPUTE_ATTENTION, COMPUTE_OTHER, TP_COMM, CP_COMM, EP_COMM = range(6)

PP_COMM = CP_COMM
"""Category of the sends between pipeline stages of an inference step, which has no context
parallelism."""

WHOLE_LAYER = -1
"""Segment of a collective that may hide behind all compute of its layer and phase."""

_INT_COLUMNS = {
    "workload": 0,
    "kind": 0,
    "phase": 0,
    "category": 0,
    "label": 0,
    "m": 0,
    "n": 0,
    "k": 0,
    "batch": 1,
    "dtype": 0,
    "heads": 0,
    "key_heads": 0,
    "d_v": 0,
    "causal": 0,
    "window": 0,
    "operation": 0,
    "ranks": 1,
    "local": 1,
    "segment": 0,
    "recompute_bit": 0,
    "expert": 0,
}
_FLOAT_COLUMNS = {
    "out_bytes": 2.0,
    "bytes": 0.0,
    "exponentials": 0.0,
    "local_bytes": 0.0,
    "remote_bytes": 0.0,
    "flop": 0.0,
    "launches": 1.0,
    "syncs": 0.0,
    "repeats": 1.0,
    "exposed_share": 1.0,
    "partner_share": 0.0,
    "saved_bytes": 0.0,
    "parameters": 0.0,
    "transient_bytes": 0.0,
}


@dataclass(frozen=True, slots=True)
class OperationTable:
    """Columns of equal length, one row an operation of one workload.

    Rows of one workload stand in the order in which they were emitted, whatever other
    workloads share the table, so that sums over a workload do not depend on the batch.
    """

    workload: NDArray[np.int64]
    kind: NDArray[np.int64]
    phase: NDArray[np.int64]
    category: NDArray[np.int64]
    label: NDArray[np.int64]
    """Index into `labels`."""
    m: NDArray[np.int64]
    """GEMM rows; queries of an attention."""
    n: NDArray[np.int64]
    """GEMM columns; keys of an attention."""
    k: NDArray[np.int64]
    """GEMM depth; query/key width of an attention."""
    batch: NDArray[np.int64]
    """Equal GEMMs in one launch; sequences of an attention."""
    dtype: NDArray[np.int64]
    heads: NDArray[np.int64]
    key_heads: NDArray[np.int64]
    d_v: NDArray[np.int64]
    causal: NDArray[np.int64]
    window: NDArray[np.int64]
    operation: NDArray[np.int64]
    """Collective code."""
    ranks: NDArray[np.int64]
    local: NDArray[np.int64]
    segment: NDArray[np.int64]
    """A collective may hide behind the compute of its segment; 0 is none."""
    recompute_bit: NDArray[np.int64]
    """Bits of the selective-recompute modules that drop and repeat this row."""
    expert: NDArray[np.int64]
    """1 where parameters belong to routed experts."""
    out_bytes: NDArray[np.float64]
    """Bytes of one GEMM output element, read-modify-write counted twice."""
    bytes: NDArray[np.float64]
    """Traffic of a memory-bound row; buffer of a collective."""
    exponentials: NDArray[np.float64]
    local_bytes: NDArray[np.float64]
    remote_bytes: NDArray[np.float64]
    flop: NDArray[np.float64]
    """Matrix FLOP that the row needs (causal attention counts half)."""
    launches: NDArray[np.float64]
    """Kernels that the host launches."""
    syncs: NDArray[np.float64]
    """Times the host waits for the device."""
    repeats: NDArray[np.float64]
    exposed_share: NDArray[np.float64]
    """Share of a collective that nothing can hide."""
    partner_share: NDArray[np.float64]
    """Share of its segment's compute behind which the rest can hide."""
    saved_bytes: NDArray[np.float64]
    """Activation bytes kept for the backward."""
    parameters: NDArray[np.float64]
    """Parameters of one rank."""
    transient_bytes: NDArray[np.float64]
    """Working set while the row runs, beyond what is saved."""
    labels: tuple[str, ...]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.workload)


@dataclass(slots=True)
class TableBuilder:
    """Collects blocks of rows; a block is one operation over all workloads that have it."""

    num_workloads: int
    forward_only: bool = False
    """Whether rows of other phases are left out, as inference has none."""
    repeats: Array | None = None
    """How often the operations that are added run; once, unless stated."""
    _blocks: list[tuple[NDArray[np.int64], dict[str, Any]]] = field(default_factory=list)
    _labels: dict[str, int] = field(default_factory=dict)

    def add(self, where: NDArray[np.int64], label: str, **columns: ArrayLike) -> None:
        """Emit one row for each workload in ``where``.

        Parameters
        ----------
        where : int64[rows]
            Workloads that have this operation.
        label : str
            Dotted module path, e.g. ``attention.qkv``.
        **columns
            Columns of `OperationTable`; arrays have one entry for every workload of the table,
            not only for those in ``where``.
        """
        if len(where) == 0 or (self.forward_only and columns.get("phase", FORWARD) != FORWARD):
            return
        if self.repeats is not None:
            columns["repeats"] = np.multiply(self.repeats, columns.get("repeats", 1.0))
        code = self._labels.setdefault(label, len(self._labels))
        self._blocks.append((where, {"label": code, **columns}))

    def repeated(self, repeats: Array) -> "TableBuilder":
        """Return a builder of the same table whose operations run ``repeats`` times."""
        return replace(self, repeats=repeats)

    def build(self) -> OperationTable:
        """Assemble the table."""
        total = sum(len(where) for where, _ in self._blocks)
        columns: dict[str, NDArray[Any]] = {
            name: np.full(total, default, np.int64) for name, default in _INT_COLUMNS.items()
        }
        columns |= {
            name: np.full(total, value, np.float64) for name, value in _FLOAT_COLUMNS.items()
        }
        start = 0
        for where, values in self._blocks:
            rows = slice(start, start + len(where))
            columns["workload"][rows] = where
            for name, value in values.items():
                columns[name][rows] = value[where] if isinstance(value, np.ndarray) else value
            start += len(where)
        return OperationTable(**columns, labels=tuple(self._labels))
