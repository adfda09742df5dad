"""The operation table: every kernel and collective of every workload, one row each.

It is read three ways: for time (kernels), for memory (saved bytes, parameters) and for
explanation (labels). Modules emit rows for all workloads at once; a module knows shapes, never
seconds.
"""

from dataclasses import dataclass, field, fields, replace

import numpy as np

from projector.arrays import Array, Floats, Ints

GEMM, ATTENTION, MEMORY, COLLECTIVE, EXCHANGE = range(5)
"""Row kinds: what kernel costs the row. An exchange is a fused dispatch or combine of experts."""

FORWARD, BACKWARD, WEIGHT = range(3)
"""Phases: forward, input gradient, weight gradient."""

CATEGORIES = ("compute_gemm", "compute_attention", "compute_other", "tp_comm", "cp_comm", "ep_comm")
"""Where a row's time is shown; the last three are communication."""

COMPUTE_GEMM, COMPUTE_ATTENTION, COMPUTE_OTHER, TP_COMM, CP_COMM, EP_COMM = range(6)

PP_COMM = CP_COMM
"""Category of the sends between pipeline stages of an inference step, which has no context
parallelism."""

AGAIN, DROPS = 1 << 7, 1 << 8
"""Bits of rows that recomputation by operators runs again, and whose activations it drops."""

WHOLE_LAYER = -1
"""Segment of a collective that may hide behind all compute of its layer and phase."""

IntValues = int | Array
FloatValues = float | Array
"""What a block of rows may give for a column: one value, or one for every workload."""

Row = dict[str, FloatValues]
"""Values by the column of `OperationTable`."""


def _default(value: float) -> dict[str, float]:
    """Say what rows have that do not state a column."""
    return {"default": value}


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationTable:
    """Columns of equal length, one row an operation of one workload.

    Rows of one workload are in the order in which they were emitted, whatever other
    workloads share the table, so that sums over a workload do not depend on the batch.
    """

    workload: Ints = field(metadata=_default(0))
    kind: Ints = field(metadata=_default(0))
    phase: Ints = field(metadata=_default(0))
    category: Ints = field(metadata=_default(0))
    label: Ints = field(metadata=_default(0))
    """Index into `labels`."""
    m: Ints = field(metadata=_default(0))
    """GEMM rows; queries of an attention."""
    n: Ints = field(metadata=_default(0))
    """GEMM columns; keys of an attention."""
    k: Ints = field(metadata=_default(0))
    """GEMM depth; query/key width of an attention."""
    batch: Ints = field(metadata=_default(1))
    """Equal GEMMs in one launch; sequences of an attention."""
    dtype: Ints = field(metadata=_default(0))
    """Matrix type code."""
    heads: Ints = field(metadata=_default(0))
    """Query heads of an attention."""
    key_heads: Ints = field(metadata=_default(0))
    """Key and value heads of an attention."""
    d_v: Ints = field(metadata=_default(0))
    """Value width of an attention."""
    causal: Ints = field(metadata=_default(0))
    """1 where an attention is causal."""
    window: Ints = field(metadata=_default(0))
    """Keys that a query of an attention sees; 0 is all."""
    operation: Ints = field(metadata=_default(0))
    """Code of a collective, or of an exchange (`kernels.moe_exchange`)."""
    ranks: Ints = field(metadata=_default(1))
    """Members of the group of a collective or exchange."""
    local: Ints = field(metadata=_default(1))
    """Those of them in one scale-up domain."""
    span: Ints = field(metadata=_default(0))
    """How the rest lies beyond it, a code of ``kernels.spans``."""
    segment: Ints = field(metadata=_default(0))
    """A collective may hide behind the compute of its segment; 0 is none."""
    recompute_bit: Ints = field(metadata=_default(0))
    """Bits of the selective-recompute modules that drop and repeat this row."""
    expert: Ints = field(metadata=_default(0))
    """1 where parameters belong to routed experts."""
    adapter: Ints = field(metadata=_default(0))
    """1 where parameters belong to adapters."""
    out_bytes: Floats = field(metadata=_default(2.0))
    """Bytes of one GEMM output element, read-modify-write counted twice."""
    bytes: Floats = field(metadata=_default(0.0))
    """Traffic of a memory-bound row; buffer of a collective; what a rank sends in an exchange."""
    exponentials: Floats = field(metadata=_default(0.0))
    """Exponentials of a memory-bound row."""
    tokens: Floats = field(metadata=_default(0.0))
    """What a rank sends in an exchange, times the load of the fullest rank."""
    token_bytes: Floats = field(metadata=_default(0.0))
    """One of these tokens on its way, scales included."""
    ranks_reached: Floats = field(metadata=_default(0.0))
    """Distinct ranks that it reaches, its own included."""
    domains_reached: Floats = field(metadata=_default(0.0))
    """Distinct scale-up domains that it reaches, its own included."""
    units: Floats = field(metadata=_default(0.0))
    """Compute units that the exchange takes."""
    flop: Floats = field(metadata=_default(0.0))
    """Matrix FLOP that the row needs (causal attention counts half)."""
    launches: Floats = field(metadata=_default(1.0))
    """Kernels that the host launches."""
    calls: Floats = field(metadata=_default(0.0))
    """Operators that it dispatches besides, which add no gap between kernels."""
    rate_share: Floats = field(metadata=_default(1.0))
    """Rate that a memory-bound row, or a GEMM, reaches over that of the device's others."""
    syncs: Floats = field(metadata=_default(0.0))
    """Times the host waits for the device."""
    repeats: Floats = field(metadata=_default(1.0))
    """Times the row runs, one after the other."""
    exposed_share: Floats = field(metadata=_default(1.0))
    """Share of a collective that nothing can hide."""
    partner_share: Floats = field(metadata=_default(0.0))
    """Share of its segment's compute behind which the rest can hide."""
    saved_bytes: Floats = field(metadata=_default(0.0))
    """Activation bytes kept for the backward."""
    parameters: Floats = field(metadata=_default(0.0))
    """Parameters of one rank."""
    transient_bytes: Floats = field(metadata=_default(0.0))
    """Working set while the row runs, beyond what is saved."""
    labels: tuple[str, ...]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.workload)

    def take(self, rows: Ints, workload: Ints) -> "OperationTable":
        """Return some of the rows as those of other workloads, int64[rows taken]."""
        columns = {name: getattr(self, name).take(rows) for name in COLUMNS if name != "workload"}
        return OperationTable(workload=workload, **columns, labels=self.labels)

    def joined(self, other: "OperationTable") -> "OperationTable":
        """Return the rows of both, with the workloads that they state; labels are those here."""
        columns = {
            name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in COLUMNS
        }
        return OperationTable(**columns, labels=self.labels)


COLUMNS: dict[str, tuple[type[np.generic], float]] = {
    column.name: (np.int64 if column.type == Ints else np.float64, column.metadata["default"])
    for column in fields(OperationTable)
    if column.name != "labels"
}
"""Column of the table -> its type and default."""


@dataclass(slots=True)
class TableBuilder:
    """Collects blocks of rows; a block is one operation over all workloads that have it."""

    forward_only: bool = False
    """Whether rows of other phases are left out, as inference has none."""
    repeats: Array | None = None
    """How often the operations that are added run; once, unless stated."""
    prefix: str = ""
    """What labels of these begin with."""
    _blocks: list[tuple[Ints, int, Row]] = field(default_factory=list)
    _labels: dict[str, int] = field(default_factory=dict)

    def add(self, where: Ints, label: str, **row: FloatValues) -> None:
        """Emit one row for each workload in ``where``; labels are dotted: ``attention.qkv``.

        Arrays of ``row``, columns of `OperationTable`, have one entry for every workload of the
        table, not only for those in ``where``.
        """
        if len(where) == 0 or (self.forward_only and row.get("phase", FORWARD) != FORWARD):
            return
        if self.repeats is not None:
            row["repeats"] = np.multiply(self.repeats, row.get("repeats", 1.0))
        code = self._labels.setdefault(self.prefix + label, len(self._labels))
        self._blocks.append((where, code, row))

    def repeated(self, repeats: Array) -> "TableBuilder":
        """Return a builder of the same table whose operations run ``repeats`` times."""
        return replace(self, repeats=repeats)

    def under(self, prefix: str) -> "TableBuilder":
        """Return a builder of the same table whose labels begin with ``prefix``."""
        return replace(self, prefix=prefix)

    def build(self) -> OperationTable:
        """Assemble the table."""
        total = sum(len(where) for where, _, _ in self._blocks)
        columns = {
            name: np.full(total, default, dtype) for name, (dtype, default) in COLUMNS.items()
        }
        start = 0
        for where, code, row in self._blocks:
            rows = slice(start, start + len(where))
            columns["workload"][rows] = where
            columns["label"][rows] = code
            for name, value in row.items():
                columns[name][rows] = value[where] if isinstance(value, np.ndarray) else value
            start += len(where)
        return OperationTable(**columns, labels=tuple(self._labels))
