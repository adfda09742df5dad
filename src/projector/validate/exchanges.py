"""Rows that time the dispatch or combine of a mixture of experts.

A bandwidth counts all that is sent, the own node included. Times are in seconds.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from projector.arrays import Floats, Ints, Records
from projector.kernels.moe_exchange import moe_exchange_time_column
from projector.validate.kind import Row
from projector.validate.measured import BYTES_PER_S, SECONDS, plausible, positive, unit_of

FP8_BYTES, BF16_BYTES = 1.0 + 4.0 / 128.0, 2.0
"""An element of a dispatch (FP8 with an FP32 scale for every 128) and of a combine."""

NODES_OF_TOKEN = 4
"""Nodes a token may visit in DeepEP's tests (``num_topk_groups``), unless a row states it."""

_MOE = re.compile(r"MoE (dispatch|combine)")


@dataclass(frozen=True, slots=True)
class Routing:
    """Tokens that one rank sends to experts."""

    tokens: int
    hidden: int
    topk: int
    max_nodes: int
    deduplicates: bool
    element_bytes: float


def is_exchange(row: Row) -> bool:
    """Return whether a row times a dispatch or combine."""
    return _MOE.match(row.get("collective") or "") is not None


def why_not_an_exchange(row: Row) -> str:
    """Return why an exchange cannot be projected; empty where it can."""
    return "" if _sizes(row.get("notes") or "") else "no tokens, hidden and top-k"


def read_exchange(row: Row, ranks: int, local: int) -> tuple[Routing, float, str]:
    """Return the exchange of a row, its measured time in s and the rule that completes it.

    Raises
    ------
    ValueError
        If the row does not say what was sent, or how long it took.
    """
    routing, rule = _routing(row)
    if ranks < 2:
        msg = "an exchange of one rank"
        raise ValueError(msg)
    if not routing.deduplicates or ranks == local:
        rule = ""
    return routing, plausible(_exchange_s(row, routing, ranks, local)), rule


def exchange_times_s(
    routings: Sequence[Routing], ranks: Ints, local: Ints, fabric: Ints, fabrics: Records
) -> Floats:
    """Return the projected time of each exchange."""
    sent = np.array(
        [
            _sent(routing, int(group), int(near))
            for routing, group, near in zip(routings, ranks, local, strict=True)
        ]
    )
    return moe_exchange_time_column(sent[:, 0], sent[:, 1], ranks, local, fabric, fabrics)


def _sent(routing: Routing, ranks: int, local: int) -> tuple[float, float]:
    """Return the bytes that a rank sends within its domain and through its adapter.

    The expected copies of ``topk`` uniform draws, as a training step counts them.
    """
    copies = float(routing.tokens * routing.topk)
    near, far = copies * (local - 1.0) / ranks, copies * (ranks - local) / ranks
    if routing.deduplicates:
        nodes = ranks / local
        visited = _visited_nodes(routing, nodes)
        reached = _expected_distinct(ranks, routing.topk)
        near = min(routing.tokens * reached * (local - 1.0) / local, copies)
        far = min(routing.tokens * visited * (1.0 - 1.0 / nodes), far)
    size = routing.hidden * routing.element_bytes
    return near * size, far * size


def _expected_distinct(destinations: float, draws: int) -> float:
    """Return the expected number of distinct destinations of uniform draws."""
    return float(destinations * (1.0 - (1.0 - 1.0 / destinations) ** draws))


def _visited_nodes(routing: Routing, nodes: float) -> float:
    return min(_expected_distinct(nodes, routing.topk), float(routing.max_nodes))


def _routing(row: Row) -> tuple[Routing, str]:
    """Return the exchange that a row's notes describe, and the rule that completes it."""
    notes, collective = row.get("notes") or "", row.get("collective") or ""
    sizes = _sizes(notes)
    if sizes is None or min(sizes) < 1 or max(sizes) > 1 << 30:
        msg = f"no tokens, hidden and top-k in {notes!r}"
        raise ValueError(msg)
    groups = re.search(r"top-?(\d+) groups", notes)
    max_nodes = int(groups[1]) if groups else NODES_OF_TOKEN
    dispatches = "dispatch" in collective
    routing = Routing(
        *sizes,
        max_nodes=max_nodes,
        deduplicates="low latency" not in collective,
        element_bytes=FP8_BYTES if dispatches else BF16_BYTES,
    )
    rule = "" if groups else f"a token visits at most {NODES_OF_TOKEN} nodes"
    return routing, rule


def _sizes(notes: str) -> tuple[int, int, int] | None:
    """Return tokens of a rank, hidden width and top-k."""
    tokens = re.search(r"(\d+)(K?) tokens", notes)
    hidden = re.search(r"hidden (\d+)", notes)
    topk = re.search(r"top-?k? ?(\d+)\b(?! groups)", notes)
    if tokens is None or hidden is None or topk is None:
        return None
    return int(tokens[1]) * (1024 if tokens[2] else 1), int(hidden[1]), int(topk[1])


def _exchange_s(row: Row, routing: Routing, ranks: int, local: int) -> float:
    """Return the measured time; a bandwidth counts all that is sent, the own node included."""
    value, unit = positive(row, "value"), (row.get("unit") or "").strip()
    metric = (row.get("metric") or "").strip().lower()
    if metric in {"time", "latency"}:
        return value * unit_of(unit, SECONDS)
    if metric.endswith("bandwidth rdma"):
        destinations = _visited_nodes(routing, ranks / local)
    elif metric.endswith("bandwidth nvlink"):
        destinations = _expected_distinct(ranks, routing.topk)
    else:
        msg = f"metric {metric!r} is not a time or bandwidth of an exchange"
        raise ValueError(msg)
    size = routing.tokens * destinations * routing.hidden * routing.element_bytes
    return size / (value * unit_of(unit, BYTES_PER_S))
