"""Names under which tools of real traces know a step: ``hardware/timeline_names.yaml``."""

import json
from typing import Literal

from projector.config._base import Config
from projector.config.resources import shipped_table
from projector.operations.table import ATTENTION, FORWARD, GEMM, OperationTable


class CollectiveNames(Config):
    """How tools of real traces know one collective."""

    kernel: str
    collective: str
    buffer: Literal["in", "out", "both"]
    """Which message is the buffer; the other one is smaller by the size of the group."""
    chakra: int
    """``CollectiveCommType`` of Chakra."""
    source: str

    def messages(self, num_bytes: float, ranks: int) -> tuple[int, int]:
        """Return the elements of one byte that go in and come out on each rank."""
        whole, part = round(num_bytes), round(num_bytes / max(1, ranks))
        return (part if self.buffer == "out" else whole, part if self.buffer == "in" else whole)


class TimelineNames(Config):
    """Names under which a step is written: ``hardware/timeline_names.yaml``."""

    groups: dict[str, str]
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
        return self.collectives.get(self.labels.get(last, last), self.collectives[self.otherwise])


load_timeline_names = shipped_table(TimelineNames, "timeline_names.yaml")


def operators_of(table: OperationTable) -> list[tuple[str, str] | None]:
    """Return name and extents (as JSON) of the operator around each row of an operation table."""
    names = load_timeline_names().operators
    fields = "kind", "phase", "m", "n", "k", "batch", "heads", "key_heads", "d_v"
    columns = (getattr(table, name).tolist() for name in fields)
    found: list[tuple[str, str] | None] = []
    for kind, phase, m, n, k, batch, heads, key_heads, d_v in zip(*columns, strict=True):
        if kind == GEMM:
            several = [batch] if batch > 1 else []
            dims = [[*several, m, k], [*several, k, n]]
            found.append((names["gemms" if several else "gemm"], json.dumps(dims)))
        elif kind == ATTENTION:
            query, key = [batch, m, heads, k], [batch, n, key_heads, k]
            back = phase != FORWARD
            # The gradient of the output comes first in the backward.
            gradient = [[batch, m, heads, d_v]] if back else []
            name = names["attention_backward" if back else "attention"]
            value = [batch, n, key_heads, d_v]
            found.append((name, json.dumps([*gradient, query, key, value])))
        else:
            found.append(None)
    return found
