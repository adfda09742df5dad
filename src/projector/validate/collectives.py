"""Rows that time a collective operation, or dispatch and combine of a mixture of experts.

Bandwidths are turned into times by the conventions of nccl-tests: the bus bandwidth is the bytes
of the whole buffer over the time, times the share that must cross a link. Ranks of a row fill the
scale-up domains of the device's usual network. Times are in microseconds.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from projector.arrays import Floats
from projector.config.cluster import ClusterConfig
from projector.kernels.collective_algorithms import OPERATIONS
from projector.kernels.collectives import collective_time_columns, moe_exchange_time_column
from projector.lower.hardware import domain_gpus, fabric_record
from projector.units import GB, GBIT, MEGA, MICROSECOND, MILLISECOND, TB
from projector.validate.kind import (
    DeviceFor,
    Kind,
    Outcome,
    Readings,
    Row,
    integer,
    number,
    outcomes,
    read_cases,
    readings,
)
from projector.validate.names import device_of

MAX_RANKS = 1 << 20
MIN_VALUE, MAX_VALUE = 1e-9, 1e18
"""Range of measured sizes, rates and times."""

FP8_BYTES, BF16_BYTES = 1.0 + 4.0 / 128.0, 2.0
"""An element of a dispatch (FP8 with an FP32 scale for every 128) and of a combine."""

NODES_OF_TOKEN = 4
"""Nodes a token may visit in DeepEP's tests (``num_topk_groups``), unless a row states it."""

_OPERATIONS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all2all": "all_to_all",
    "sendrecv": "send_recv",
}
_METRICS = ("busbw", "algbw", "time", "latency")
_SECONDS = {"us": MICROSECOND, "ms": MILLISECOND, "s": 1.0}
_BYTES_PER_S = {"MB/s": MEGA, "GB/s": GB, "TB/s": TB, "Gb/s": GBIT, "Gbit/s": GBIT}
_MOE = re.compile(r"MoE (dispatch|combine)")

_Links = tuple[str, tuple[int, float] | None]
"""Device, and the adapters of a node and their rate [Gbit/s] where the row names them."""


@dataclass(frozen=True, slots=True)
class _Routing:
    """Tokens that one rank sends to experts."""

    tokens: int
    hidden: int
    topk: int
    max_nodes: int
    deduplicates: bool
    element_bytes: float


@dataclass(frozen=True, slots=True)
class _Case:
    """One row, read."""

    links: _Links
    ranks: int
    local: int
    work: tuple[str, float] | _Routing
    """Operation and bytes of the whole buffer, or an exchange."""
    measured: float
    """In us."""
    note: str


def project(rows: Sequence[Row]) -> list[Outcome]:
    """Project rows: collectives in one batch, exchanges in another."""
    clusters: dict[_Links, ClusterConfig] = {}
    parsed = read_cases(rows, lambda row: _read(row, clusters))
    return outcomes(parsed, lambda cases: _times_s(cases, clusters), MICROSECOND)


def read(rows: Sequence[Row]) -> Readings:
    """Read rows, to be timed on any devices."""
    clusters: dict[_Links, ClusterConfig] = {}
    parsed = read_cases(rows, lambda row: _read(row, clusters))

    def times_s(cases: Sequence[_Case], device_for: DeviceFor) -> Floats:
        changed = {
            links: cluster.model_copy(update={"device": device_for(links[0])})
            for links, cluster in clusters.items()
        }
        return _times_s(cases, changed)

    return readings(parsed, times_s, MICROSECOND)


def _times_s(cases: Sequence[_Case], clusters: dict[_Links, ClusterConfig]) -> Floats:
    fabrics = np.concatenate([fabric_record(cluster) for cluster in clusters.values()])
    position = {links: row for row, links in enumerate(clusters)}
    fabric = np.array([position[case.links] for case in cases])
    ranks = np.array([case.ranks for case in cases])
    local = np.array([case.local for case in cases])
    time_s = np.empty(len(cases))
    exchanges = np.array([isinstance(case.work, _Routing) for case in cases])
    if not exchanges.all():
        plain = ~exchanges
        work = [case.work for case in cases if not isinstance(case.work, _Routing)]
        time_s[plain], _ = collective_time_columns(
            [OPERATIONS.index(operation) for operation, _ in work],
            [size for _, size in work],
            ranks[plain],
            local[plain],
            fabric[plain],
            fabrics,
        )
    if exchanges.any():
        sent = np.array(
            [
                _sent(case.work, case.ranks, case.local)
                for case in cases
                if isinstance(case.work, _Routing)
            ]
        )
        time_s[exchanges] = moe_exchange_time_column(
            sent[:, 0], sent[:, 1], ranks[exchanges], local[exchanges], fabric[exchanges], fabrics
        )
    return time_s


def _sent(routing: _Routing, ranks: int, local: int) -> tuple[float, float]:
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


def _visited_nodes(routing: _Routing, nodes: float) -> float:
    return min(_expected_distinct(nodes, routing.topk), float(routing.max_nodes))


def _read(row: Row, clusters: dict[_Links, ClusterConfig]) -> _Case:
    links = (device_of(row.get("gpu") or ""), _adapters(row))
    if links not in clusters:
        clusters[links] = _cluster(*links)
    cluster = clusters[links]
    nodes = _count(row, "n_nodes", 1)
    rules = []
    per_node = cluster.network.gpus_per_node
    ranks = _count(row, "n_gpus", nodes * per_node)
    if not (row.get("n_gpus") or "").strip():
        rules.append(f"{per_node} ranks a node")
    domain = domain_gpus(cluster)
    # A domain larger than a node holds all its ranks; else each node is a domain.
    held = ranks if domain > per_node else -(-ranks // nodes)
    local = max(1, min(held, domain, ranks))
    if not _MOE.match(row.get("collective") or ""):
        operation, size = _operation(row), _positive(row, "message_bytes")
        measured_s = _plausible(_collective_s(row, operation, size, ranks))
        if operation == "send_recv":
            # Each rank sends to the next; the pair that lies furthest apart sets the time.
            ranks, local = min(ranks, 2), 2 if local == ranks > 1 else 1
        return _Case(
            links, ranks, local, (operation, size), measured_s / MICROSECOND, "; ".join(rules)
        )
    routing, rule = _routing(row)
    if ranks < 2:
        msg = "an exchange of one rank"
        raise ValueError(msg)
    if routing.deduplicates and ranks > local and rule:
        rules.append(rule)
    measured_s = _plausible(_exchange_s(row, routing, ranks, local))
    return _Case(links, ranks, local, routing, measured_s / MICROSECOND, "; ".join(rules))


def _adapters(row: Row) -> tuple[int, float] | None:
    """Return number and rate [Gbit/s] of a system's adapters: ``8x200Gb`` or ``8x50GB/s``."""
    match = re.search(r"\b(\d+)x(\d+) ?(Gb|GB/s)\b", row.get("system") or "")
    if match is None:
        return None
    return int(match[1]), float(match[2]) * (8.0 if match[3] == "GB/s" else 1.0)


def _cluster(device: str, adapters: tuple[int, float] | None) -> ClusterConfig:
    data: dict[str, object] = {"device": device}
    if adapters:
        data["network"] = {"nics_per_node": adapters[0], "nic_gbit_per_s": adapters[1]}
    return ClusterConfig.parse(data, path="cluster")


def _operation(row: Row) -> str:
    return _OPERATIONS[_plain(row.get("collective") or "")]


def _plain(name: str) -> str:
    return re.sub(r"[\s_/-]", "", name.lower())


def _count(row: Row, column: str, default: int) -> int:
    value = integer(row, column)
    if value is None:
        return default
    if not 1 <= value <= MAX_RANKS:
        msg = f"{column} is {value}, not a count"
        raise ValueError(msg)
    return value


def _positive(row: Row, column: str) -> float:
    value = number(row, column)
    if value is None or not MIN_VALUE <= value <= MAX_VALUE:
        msg = f"{column} is {row.get(column)!r}, not a size, rate or time"
        raise ValueError(msg)
    return value


def _collective_s(row: Row, operation: str, size: float, ranks: int) -> float:
    value, unit = _positive(row, "value"), (row.get("unit") or "").strip()
    metric = (row.get("metric") or "").strip().lower()
    if metric in {"time", "latency"}:
        return value * _unit(unit, _SECONDS)
    share = 1.0
    if metric == "busbw" and operation != "send_recv":
        share = (ranks - 1) / ranks * (2.0 if operation == "all_reduce" else 1.0)
    if share == 0.0:
        msg = "a bus bandwidth of one rank"
        raise ValueError(msg)
    return size * share / (value * _unit(unit, _BYTES_PER_S))


def _plausible(measured_s: float) -> float:
    if not MIN_VALUE <= measured_s <= MAX_VALUE:
        msg = f"a time of {measured_s:g} s"
        raise ValueError(msg)
    return measured_s


def _unit(text: str, units: dict[str, float]) -> float:
    if text not in units:
        msg = f"unit must be one of {', '.join(units)}, got {text!r}"
        raise ValueError(msg)
    return units[text]


def _routing(row: Row) -> tuple[_Routing, str]:
    """Return the exchange that a row's notes describe, and the rule that completes it."""
    notes, collective = row.get("notes") or "", row.get("collective") or ""
    sizes = _sizes(notes)
    if sizes is None or min(sizes) < 1 or max(sizes) > 1 << 30:
        msg = f"no tokens, hidden and top-k in {notes!r}"
        raise ValueError(msg)
    groups = re.search(r"top-?(\d+) groups", notes)
    max_nodes = int(groups[1]) if groups else NODES_OF_TOKEN
    dispatches = "dispatch" in collective
    routing = _Routing(
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


def _exchange_s(row: Row, routing: _Routing, ranks: int, local: int) -> float:
    """Return the measured time; a bandwidth counts all that is sent, the own node included."""
    value, unit = _positive(row, "value"), (row.get("unit") or "").strip()
    metric = (row.get("metric") or "").strip().lower()
    if metric in {"time", "latency"}:
        return value * _unit(unit, _SECONDS)
    if metric.endswith("bandwidth rdma"):
        destinations = _visited_nodes(routing, ranks / local)
    elif metric.endswith("bandwidth nvlink"):
        destinations = _expected_distinct(ranks, routing.topk)
    else:
        msg = f"metric {metric!r} is not a time or bandwidth of an exchange"
        raise ValueError(msg)
    size = routing.tokens * destinations * routing.hidden * routing.element_bytes
    return size / (value * _unit(unit, _BYTES_PER_S))


def _why_not_eligible(row: Row) -> str:
    if _MOE.match(row.get("collective") or ""):
        return "" if _sizes(row.get("notes") or "") else "no tokens, hidden and top-k"
    if _plain(row.get("collective") or "") not in _OPERATIONS:
        return "not one of the collectives"
    if not (row.get("message_bytes") or "").strip():
        return "no message size"
    if (row.get("metric") or "").strip().lower() not in _METRICS:
        return f"metric must be one of {', '.join(_METRICS)}"
    return ""


KIND = Kind(
    name="collectives_measured",
    columns=(
        "gpu",
        "n_nodes",
        "n_gpus",
        "collective",
        "message_bytes",
        "value",
        "unit",
        "metric",
        "notes",
    ),
    why_not_eligible=_why_not_eligible,
    project=project,
    read=read,
    precision="",
)
