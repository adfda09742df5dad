"""What makes an operation of one table the same kernel as that of another, and of a record."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from projector.arrays import Ints
from projector.config._base import Config

if TYPE_CHECKING:
    from projector.operations.table import OperationTable

PhaseName = Literal["forward", "backward", "weight"]
KindName = Literal["gemm", "attention", "memory", "collective", "exchange"]


class OperationKey(Config):
    """One row of the operation table, by everything that its kernel sees.

    Names are those of `projector.operations.table.OperationTable`; codes are spelled out, so that
    a record is read by people and by later versions.
    """

    label: str
    phase: PhaseName
    kind: KindName
    dtype: str = ""
    """Matrix type of a GEMM or an attention."""
    m: int = 0
    n: int = 0
    k: int = 0
    batch: int = 1
    heads: int = 0
    key_heads: int = 0
    d_v: int = 0
    causal: bool = False
    window: int = 0
    operation: str = ""
    """Collective: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all`` …"""
    ranks: int = 1
    local: int = 1
    span: int = 0
    out_bytes: float = 2.0
    bytes: float = 0.0
    exponentials: float = 0.0
    rate_share: float = 1.0
    tokens: float = 0.0
    token_bytes: float = 0.0
    ranks_reached: float = 0.0
    domains_reached: float = 0.0
    units: float = 0.0
    expert: bool = False


KINDS: tuple[KindName, ...] = get_args(KindName)
"""Names of the table's kinds, by code."""

PHASES: tuple[PhaseName, ...] = get_args(PhaseName)

EXCHANGES = ("dispatch", "combine", "bulk_dispatch", "bulk_combine", "low_latency")
"""Names of fused exchanges, by the code of `projector.kernels.moe_exchange`."""

_GROUP = ("ranks", "local", "span")
_COLUMNS: dict[KindName, tuple[str, ...]] = {
    "gemm": ("m", "n", "k", "batch", "out_bytes", "expert"),
    "attention": ("m", "n", "k", "batch", "heads", "key_heads", "d_v", "causal", "window"),
    "memory": ("bytes", "exponentials", "rate_share"),
    "collective": (*_GROUP, "bytes"),
    "exchange": (*_GROUP, "tokens", "token_bytes", "ranks_reached", "domains_reached", "units"),
}
"""Columns that a kernel of each kind sees; `keys_of` spells its codes besides."""


def keys_of(table: "OperationTable", rows: Sequence[int] | Ints) -> list[OperationKey]:
    """Return the key of each row: equal ones are one kernel, ``repeats`` apart."""
    return [_key(table, int(row)) for row in rows]


def _key(table: "OperationTable", row: int) -> OperationKey:
    # A worker reads keys and makes none; it need not wait for the compiler of the kernels.
    from projector.kernels.collective_algorithms import OPERATIONS
    from projector.kernels.device import MATRIX_TYPES

    kind = KINDS[table.kind[row]]
    values: dict[str, Any] = {name: getattr(table, name)[row].item() for name in _COLUMNS[kind]}
    if kind in ("gemm", "attention"):
        values["dtype"] = MATRIX_TYPES[table.dtype[row]]
    elif kind != "memory":
        names = OPERATIONS if kind == "collective" else EXCHANGES
        values["operation"] = names[table.operation[row]]
    return OperationKey(
        label=table.labels[table.label[row]], phase=PHASES[table.phase[row]], kind=kind, **values
    )
