"""What makes an operation of one table the same kernel as that of another, and of a record."""

from typing import Literal

from projector.config._base import Config

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
    tokens: float = 0.0
    token_bytes: float = 0.0
    expert: bool = False
