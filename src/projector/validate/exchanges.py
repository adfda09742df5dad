"""Rows that time the dispatch or combine of a mixture of experts.

A bandwidth counts all that is sent, the own node included. Times are in seconds.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from projector.arrays import Floats, Ints, Records
from projector.config.training import FUSED_UNITS
from projector.kernels.moe_exchange import (
    BULK_COMBINE,
    BULK_DISPATCH,
    COMBINE,
    DISPATCH,
    LOW_LATENCY,
    UNITS_OF_CHANNEL,
    moe_exchange_time_column,
)
from projector.lower.expert_routing import expected_parts
from projector.operations.moe import FP8_BYTES
from projector.validate.kind import Row
from projector.validate.measured import BYTES_PER_S, SECONDS, plausible, positive, unit_of

DISPATCHER_UNITS = FUSED_UNITS["deepep"]

NODES_OF_TOKEN = 4
"""Nodes a token may visit in DeepEP's tests (``num_topk_groups``), unless a row states it."""

EXPERTS = 256
"""Experts of the layer that DeepEP and MORI publish (DeepSeek-V3), unless a row states it."""

BF16_BYTES = 2.0

_MOE = re.compile(r"MoE (dispatch|combine)")


@dataclass(frozen=True, slots=True)
class Routing:
    """Tokens that one rank sends to experts."""

    tokens: int
    hidden: int
    topk: int
    experts: int
    max_nodes: int
    op: int
    """Of ``kernels.moe_exchange``."""
    deduplicates: bool
    """Sends a token once to each rank, rather than to each expert."""
    element_bytes: float
    units: int
    """Compute units that copy."""

    @property
    def token_bytes(self) -> float:
        """One token on its way, scales included."""
        return self.hidden * self.element_bytes

    def copies(self, ranks: int, local: int) -> float:
        """Return the ranks that a token reaches, one for each expert without de-duplication."""
        return self._parts(ranks, ranks / local) if self.deduplicates else float(self.topk)

    def nodes(self, ranks: int, local: int) -> float:
        """Return the nodes that a token reaches."""
        return self._parts(ranks / local, ranks / local)

    def _parts(self, parts: float, nodes: float) -> float:
        limited = nodes > self.max_nodes and nodes.is_integer()
        groups = (int(nodes), self.max_nodes) if limited else (0, 0)
        return expected_parts(parts, self.experts, self.topk, *groups)


def is_exchange(row: Row) -> bool:
    """Return whether a row times a dispatch or combine."""
    return _MOE.match(row.get("collective") or "") is not None


def why_not_an_exchange(row: Row) -> str:
    """Return why an exchange cannot be projected; empty where it can."""
    return "" if _sizes(row.get("notes") or "") else "no tokens, hidden and top-k"


def read_exchange(row: Row, ranks: int, local: int) -> tuple[Routing, float, str]:
    """Return the exchange of a row, its measured time in s and the rules that complete it."""
    routing, rules = _routing(row, one_node=ranks == local)
    if ranks < 2:
        raise ValueError("an exchange of one rank")
    return routing, plausible(_exchange_s(row, routing, ranks, local)), "; ".join(rules)


def exchange_times_s(
    routings: Sequence[Routing],
    ranks: Ints,
    local: Ints,
    fabric: Ints,
    fabrics: Records,
    exchanges: Records,
) -> Floats:
    """Return the projected time of each exchange."""
    groups = [(int(n), int(near)) for n, near in zip(ranks, local, strict=True)]
    pairs = list(zip(routings, groups, strict=True))
    return moe_exchange_time_column(
        [routing.op for routing in routings],
        [routing.tokens for routing in routings],
        [routing.token_bytes for routing in routings],
        [routing.copies(*group) for routing, group in pairs],
        [routing.nodes(*group) for routing, group in pairs],
        ranks,
        local,
        [routing.units / UNITS_OF_CHANNEL for routing in routings],
        fabric,
        fabrics,
        exchanges,
    )


def _routing(row: Row, *, one_node: bool) -> tuple[Routing, list[str]]:
    """Return the exchange that a row's notes describe, and the rules that complete it."""
    notes, collective = row.get("notes") or "", row.get("collective") or ""
    library = row.get("library") or ""
    sizes = _sizes(notes)
    if sizes is None or min(sizes) < 1 or max(sizes) > 1 << 30:
        raise ValueError(f"no tokens, hidden and top-k in {notes!r}")
    groups, experts = re.search(r"top-?(\d+) groups", notes), re.search(r"experts (\d+)", notes)
    units = re.search(r"(\d+) SMs", f"{notes} {library}")
    dispatches, few = "dispatch" in collective, "low latency" in collective
    # MORI's kernel for few tokens copies to ranks, as the bandwidth that it prints in a node shows.
    # Across nodes every copy sent apart would take more than its adapters have.
    mori = library.startswith("MORI")
    bulk = "DeepEP V2" in library
    fused = (DISPATCH, COMBINE, BULK_DISPATCH, BULK_COMBINE)[2 * bulk + (not dispatches)]
    routing = Routing(
        *sizes,
        experts=int(experts[1]) if experts else EXPERTS,
        max_nodes=int(groups[1]) if groups else NODES_OF_TOKEN,
        op=LOW_LATENCY if few and (one_node or not mori) else fused,
        deduplicates=not few or mori,
        element_bytes=FP8_BYTES if dispatches else BF16_BYTES,
        units=int(units[1]) if units else DISPATCHER_UNITS,
    )
    if routing.topk > routing.experts or routing.units < 1:
        raise ValueError(f"top-{routing.topk} of {routing.experts} experts on {routing.units} SMs")
    rules = [] if experts else [f"{EXPERTS} experts"]
    if not units and not few:
        rules.append(f"{DISPATCHER_UNITS} SMs")
    if not groups and routing.deduplicates and not one_node:
        rules.append(f"a token visits at most {NODES_OF_TOKEN} nodes")
    return routing, rules


def _sizes(notes: str) -> tuple[int, int, int] | None:
    """Return tokens of a rank, hidden width and top-k."""
    tokens = re.search(r"(\d+)(K?) tokens", notes)
    hidden = re.search(r"hidden (\d+)", notes)
    topk = re.search(r"top-?k? ?(\d+)\b(?! groups)", notes)
    if tokens is None or hidden is None or topk is None:
        return None
    return int(tokens[1]) * (1024 if tokens[2] else 1), int(hidden[1]), int(topk[1])


def _exchange_s(row: Row, routing: Routing, ranks: int, local: int) -> float:
    """Return the measured time; a bandwidth counts all that is sent, the own node included.

    Over scale-up links that is every rank that a token reaches, over adapters every node.
    """
    value, unit = positive(row, "value"), (row.get("unit") or "").strip()
    metric = (row.get("metric") or "").strip().lower()
    if metric in {"time", "latency"}:
        return value * unit_of(unit, SECONDS)
    if metric.endswith("bandwidth rdma") or metric == "rdma bandwidth (algo)":
        destinations = routing.nodes(ranks, local)
    elif metric.endswith("bandwidth nvlink") or metric == "xgmi bandwidth":
        destinations = routing.copies(ranks, local)
    else:
        raise ValueError(f"metric {metric!r} is not a time or bandwidth of an exchange")
    size = routing.tokens * destinations * routing.token_bytes
    return size / (value * unit_of(unit, BYTES_PER_S))
