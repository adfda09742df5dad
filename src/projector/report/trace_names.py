"""Names under which a projected step is written: ``hardware/timeline_names.yaml``."""

import json
from functools import cache
from typing import Literal

from projector.config import resources
from projector.config._base import Config
from projector.operations.table import ATTENTION, FORWARD, GEMM, OperationTable


class CollectiveNames(Config):
    """How tools of real traces know one collective."""

    kernel: str
    collective: str
    buffer: Literal["in", "out", "both"]
    """Which message is the buffer; the other one is smaller by the size of the group."""
    source: str

    def messages(self, num_bytes: float, ranks: int) -> tuple[int, int]:
        """Return the elements of one byte that go in and come out on each rank."""
        whole, part = round(num_bytes), round(num_bytes / max(1, ranks))
        return (part if self.buffer == "out" else whole, part if self.buffer == "in" else whole)


class TimelineNames(Config):
    """The shipped table."""

    collectives: dict[str, CollectiveNames]
    labels: dict[str, str]
    otherwise: str
    compute: dict[str, str]
    operators: dict[str, str]
    launches: dict[str, str]
    sources: dict[str, str]

    def collective(self, label: str) -> CollectiveNames:
        """Return the collective that a label of a projection ends with."""
        last = label.rpartition(".")[2]
        name = self.labels.get(last, last)
        return self.collectives.get(name, self.collectives[self.otherwise])


@cache
def load_timeline_names() -> TimelineNames:
    """Return the shipped table of names."""
    return resources.shipped_table(TimelineNames, "timeline_names.yaml")


def operators_of(table: OperationTable) -> list[tuple[str, str] | None]:
    """Return name and extents (as JSON) of the operator around each row of an operation table."""
    names = load_timeline_names().operators
    rows = zip(
        *(getattr(table, name).tolist() for name in ("kind", "phase", *_EXTENTS)), strict=True
    )
    found: list[tuple[str, str] | None] = []
    for kind, phase, m, n, k, batch, heads, key_heads, d_v in rows:
        if kind == GEMM:
            several = [batch] if batch > 1 else []
            dims = [[*several, m, k], [*several, k, n]]
            found.append((names["gemms" if several else "gemm"], json.dumps(dims)))
        elif kind == ATTENTION:
            query, key, value = (
                [batch, m, heads, k],
                [batch, n, key_heads, k],
                [batch, n, key_heads, d_v],
            )
            back = phase != FORWARD
            # The gradient of the output comes first in the backward.
            gradient = [[batch, m, heads, d_v]] if back else []
            name = names["attention_backward" if back else "attention"]
            found.append((name, json.dumps([*gradient, query, key, value])))
        else:
            found.append(None)
    return found


_EXTENTS = ("m", "n", "k", "batch", "heads", "key_heads", "d_v")
