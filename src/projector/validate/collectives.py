"""Rows that time a collective operation, or dispatch and combine of a mixture of experts.

What a loop of a benchmark adds to a collective belongs to the row. A device starts a collective
from a full queue, as a training step does.

Bandwidths are turned into times by the conventions of nccl-tests: the bus bandwidth is the bytes
of the whole buffer over the time, times the share that must cross a link. Ranks of a row lie evenly
in as few scale-up domains as hold them. Times are in microseconds.

Of a dispatch or combine a bandwidth counts all that is sent, the own node included; their times are
in seconds.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints, Records
from projector.config.bands import collective_classes
from projector.config.cluster import ClusterConfig
from projector.config.device import Device
from projector.config.device_file import load_device
from projector.config.network import load_network
from projector.config.training import FUSED_UNITS
from projector.kernels import moe_exchange
from projector.kernels.collective_algorithms import OPERATIONS
from projector.kernels.collectives import algorithm_mask, collective_time_columns
from projector.kernels.moe_exchange import COMBINE, DISPATCH
from projector.lower.fabrics import domain_gpus, exchange_record, fabric_record
from projector.lower.workload_columns import expected_parts
from projector.operations.moe import FP8_BYTES
from projector.units import MICROSECOND
from projector.validate import kind as kinds
from projector.validate.clusters import Stated, network_of
from projector.validate.kind import Kind, number, whole
from projector.validate.names import Loop, device_of, load_table_names
from projector.validate.words import named_loop, number_said, said

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


def is_exchange(row: kinds.Row) -> bool:
    """Return whether a row times a dispatch or combine."""
    return _MOE.match(row.get("collective") or "") is not None


def read_exchange(row: kinds.Row, ranks: int, local: int) -> tuple[Routing, float, str]:
    """Return the exchange of a row, its measured time in s and the rules that complete it."""
    routing, rules = _routing(row, one_node=ranks == local)
    if ranks < 2:
        raise ValueError("an exchange of one rank")
    return routing, kinds.plausible(_exchange_s(row, routing, ranks, local)), "; ".join(rules)


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
    return moe_exchange.moe_exchange_time_column(
        [routing.op for routing in routings],
        [routing.tokens for routing in routings],
        [routing.token_bytes for routing in routings],
        [routing.copies(*group) for routing, group in pairs],
        [routing.nodes(*group) for routing, group in pairs],
        ranks,
        local,
        [routing.units / moe_exchange.UNITS_OF_CHANNEL for routing in routings],
        fabric,
        fabrics,
        exchanges,
    )


def _routing(row: kinds.Row, *, one_node: bool) -> tuple[Routing, list[str]]:
    """Return the exchange that a row's notes describe, and the rules that complete it."""
    collective, library = row.get("collective") or "", row.get("library") or ""
    sizes = _sizes(row)
    if sizes is None or min(sizes) < 1 or max(sizes) > 1 << 30:
        raise ValueError(f"no tokens, hidden and top-k in {row.get('notes') or ''!r}")
    groups, experts, units = (said(row, name) for name in ("nodes_of_token", "experts", "sms"))
    dispatches, few = "dispatch" in collective, "low latency" in collective
    # MORI's kernel for few tokens copies to ranks, as the bandwidth that it prints in a node shows.
    # Across nodes every copy sent apart would take more than its adapters have.
    mori = library.startswith("MORI")
    bulk = "DeepEP V2" in library
    fused = (DISPATCH, COMBINE, moe_exchange.BULK_DISPATCH, moe_exchange.BULK_COMBINE)[
        2 * bulk + (not dispatches)
    ]
    routing = Routing(
        *sizes,
        experts=number_said(row, "experts", EXPERTS),
        max_nodes=number_said(row, "nodes_of_token", NODES_OF_TOKEN),
        op=moe_exchange.LOW_LATENCY if few and (one_node or not mori) else fused,
        deduplicates=not few or mori,
        element_bytes=FP8_BYTES if dispatches else BF16_BYTES,
        units=number_said(row, "sms", DISPATCHER_UNITS),
    )
    if routing.topk > routing.experts or routing.units < 1:
        raise ValueError(f"top-{routing.topk} of {routing.experts} experts on {routing.units} SMs")
    rules = [] if experts else [f"{EXPERTS} experts"]
    if not units and not few:
        rules.append(f"{DISPATCHER_UNITS} SMs")
    if not groups and routing.deduplicates and not one_node:
        rules.append(f"a token visits at most {NODES_OF_TOKEN} nodes")
    return routing, rules


def _sizes(row: kinds.Row) -> tuple[int, int, int] | None:
    tokens, hidden, topk = (said(row, name) for name in ("tokens", "hidden", "topk"))
    if not (tokens and hidden and topk):
        return None
    return int(tokens.removesuffix("K")) * (1024 if "K" in tokens else 1), int(hidden), int(topk)


def _exchange_s(row: kinds.Row, routing: Routing, ranks: int, local: int) -> float:
    """Return the measured time; a bandwidth counts all that is sent, the own node included.

    Over scale-up links that is every rank that a token reaches, over adapters every node.
    """
    value, unit = kinds.positive(row, "value"), (row.get("unit") or "").strip()
    metric = kinds.plain(row, "metric")
    if metric in {"time", "latency"}:
        return value * kinds.chosen("unit", unit, kinds.SECONDS)
    if metric.endswith("bandwidth rdma") or metric == "rdma bandwidth (algo)":
        destinations = routing.nodes(ranks, local)
    elif metric.endswith("bandwidth nvlink") or metric == "xgmi bandwidth":
        destinations = routing.copies(ranks, local)
    else:
        raise ValueError(f"metric {metric!r} is not a time or bandwidth of an exchange")
    size = routing.tokens * destinations * routing.token_bytes
    return size / (value * kinds.chosen("unit", unit, kinds.BYTES_PER_S))


def loop_of(row: kinds.Row) -> Loop | None:
    """Return the loop of a row's benchmark, None where it adds nothing."""
    return named_loop(row, "collective_loop", load_table_names().collective_loops)


def with_loop_s(time_s: float, loop: Loop | None, vendor: str, ranks: int) -> float:
    """Return the time that the loop shows for a collective of ``ranks`` in one node."""
    if loop is None:
        return time_s
    least_us = loop.least_us_of.get(vendor, 0.0) * ranks
    return max(time_s + loop.added_us * MICROSECOND, least_us * MICROSECOND)


MAX_RANKS = 1 << 20
MAX_NODE_GPUS = 16
"""Devices of the largest node."""

_METRICS = ("busbw", "algbw", "time", "latency")


class _Links(NamedTuple):
    device: str
    stated: Stated
    algorithm: str
    """The only one that the run was allowed; empty where the library chose."""
    node_gpus: int
    """Devices of a node that holds more than the usual one; 0 where it does not."""


@dataclass(frozen=True, slots=True)
class _Case:
    links: _Links
    cluster: ClusterConfig
    """That of the links."""
    ranks: int
    local: int
    work: tuple[str, float] | Routing
    """Operation and bytes of the whole buffer, or an exchange."""
    loop: Loop | None
    measured: float
    """In us."""
    note: str


def project(rows: Sequence[kinds.Row]) -> list[kinds.Outcome]:
    """Project rows: collectives in one batch, exchanges in another."""
    return kinds.outcomes(kinds.read_cases(rows, read_case), times_s, MICROSECOND)


def read(rows: Sequence[kinds.Row]) -> kinds.Readings:
    """Read rows, to be timed on any devices."""
    return kinds.readings(kinds.read_cases(rows, read_case), times_s, MICROSECOND)


def clusters_of(cases: Sequence[_Case]) -> tuple[dict[_Links, ClusterConfig], Ints]:
    """Return the cluster of each kind of links, and which of them each row has."""
    clusters = {case.links: case.cluster for case in cases}
    position = {links: row for row, links in enumerate(clusters)}
    return clusters, np.array([position[case.links] for case in cases])


def fabrics_of(clusters: dict[_Links, ClusterConfig]) -> Records:
    """Return the record of each kind of links."""
    return np.concatenate([_fabric(*item) for item in clusters.items()])


def times_s(
    cases: Sequence[_Case],
    device_for: kinds.DeviceFor | None = None,
    fabrics: Records | None = None,
) -> Floats:
    """Return the seconds of rows, by changed devices or records of their links where given."""
    clusters, fabric = clusters_of(cases)
    if device_for is not None:
        clusters = {
            links: cluster.model_copy(update={"device": device_for(links.device)})
            for links, cluster in clusters.items()
        }
    if fabrics is None:
        fabrics = fabrics_of(clusters)
    ranks = np.array([case.ranks for case in cases])
    local = np.array([case.local for case in cases])
    time_s = np.empty(len(cases))
    exchanges = np.array([isinstance(case.work, Routing) for case in cases])
    if not exchanges.all():
        plain = ~exchanges
        work = [case.work for case in cases if not isinstance(case.work, Routing)]
        time_s[plain], _ = collective_time_columns(
            [OPERATIONS.index(operation) for operation, _ in work],
            [size for _, size in work],
            ranks[plain],
            local[plain],
            fabric[plain],
            fabrics,
        )
    if exchanges.any():
        routings = [case.work for case in cases if isinstance(case.work, Routing)]
        time_s[exchanges] = exchange_times_s(
            routings,
            ranks[exchanges],
            local[exchanges],
            fabric[exchanges],
            fabrics,
            np.concatenate([exchange_record(cluster) for cluster in clusters.values()]),
        )
    shown_s = (
        with_loop_s(float(alone_s), case.loop, clusters[case.links].device.vendor, case.ranks)
        for case, alone_s in zip(cases, time_s, strict=True)
    )
    return np.fromiter(shown_s, np.float64, len(cases))


def _fabric(links: _Links, cluster: ClusterConfig) -> Records:
    record = fabric_record(cluster)
    if links.algorithm:
        record["algorithms"] = algorithm_mask(links.algorithm)
    return record


def read_case(row: kinds.Row) -> _Case:
    """Read one row."""
    device = device_of(row.get("gpu") or "")
    usual = load_network(load_device(device).network)
    stated = network_of(device, row.get("system") or "")
    ranks = kinds.integer(row, "n_gpus") or 0
    one_node = (kinds.integer(row, "n_nodes") or 1) == 1 and ranks > usual.scale_up_gpus
    held = min(ranks, MAX_NODE_GPUS) if one_node else 0
    links = _Links(device, stated, said(row, "algorithm"), held)
    cluster = _cluster(links)
    nodes = whole(row, "n_nodes", MAX_RANKS, 1)
    rules = [f"network {stated.network[1] or cluster.device.network}"] if nodes > 1 else []
    per_node = cluster.network.gpus_per_node
    ranks = whole(row, "n_gpus", MAX_RANKS, nodes * per_node)
    if not (row.get("n_gpus") or "").strip():
        rules.append(f"{per_node} ranks a node")
    domain = domain_gpus(cluster)
    # A domain larger than a node holds all its ranks; else each node is a domain.
    held = ranks if domain > per_node else -(-ranks // nodes)
    local = -(-held // -(-held // domain))
    if not is_exchange(row):
        operation = load_table_names().collectives[_plain(row.get("collective") or "")]
        size = kinds.positive(row, "message_bytes")
        measured_s = kinds.plausible(_collective_s(row, operation, size, ranks))
        if operation == "send_recv":
            # Each rank sends to the next; the pair that lies furthest apart sets the time.
            ranks, local = min(ranks, 2), 2 if local == ranks > 1 else 1
        loop = loop_of(row)
        work: tuple[str, float] | Routing = (operation, size)
        rule = loop.note if loop else ""
    else:
        loop = None
        work, measured_s, rule = read_exchange(row, ranks, local)
    note = "; ".join([*rules, rule] if rule else rules)
    return _Case(links, cluster, ranks, local, work, loop, measured_s / MICROSECOND, note)


@cache
def _cluster(links: _Links) -> ClusterConfig:
    network = links.stated.fields()
    if links.node_gpus:
        network["gpus_per_node"] = network["scale_up_gpus"] = links.node_gpus
    return ClusterConfig.parse({"device": links.device, "network": network or None}, path="cluster")


def _plain(name: str) -> str:
    return re.sub(r"[\s_/-]", "", name.lower())


def _collective_s(row: kinds.Row, operation: str, size: float, ranks: int) -> float:
    value, unit = kinds.positive(row, "value"), (row.get("unit") or "").strip()
    metric = kinds.plain(row, "metric")
    if metric in {"time", "latency"}:
        return value * kinds.chosen("unit", unit, kinds.SECONDS)
    share = 1.0
    if metric == "busbw" and operation != "send_recv":
        share = (ranks - 1) / ranks * (2.0 if operation == "all_reduce" else 1.0)
    if share == 0.0:
        raise ValueError("a bus bandwidth of one rank")
    return size * share / (value * kinds.chosen("unit", unit, kinds.BYTES_PER_S))


def _why_not_eligible(row: kinds.Row) -> str:
    if is_exchange(row):
        return "" if _sizes(row) else "no tokens, hidden and top-k"
    if why := kinds.why_not_measured(row):
        return why
    if _plain(row.get("collective") or "") not in load_table_names().collectives:
        return "not one of the collectives"
    if not (row.get("message_bytes") or "").strip():
        return "no message size"
    if kinds.plain(row, "metric") not in _METRICS:
        return f"metric must be one of {', '.join(_METRICS)}"
    return ""


def _classes(row: kinds.Row, device: Device) -> tuple[str, ...]:
    case = read_case(row)
    network = case.cluster.network if case.local < case.ranks else None
    return collective_classes(device, number(row, "message_bytes"), network)


KIND = Kind(
    name="collectives_measured",
    columns=(
        *("gpu", "n_nodes", "n_gpus", "collective", "message_bytes"),
        *("value", "unit", "metric", "notes"),
    ),
    why_not_eligible=_why_not_eligible,
    project=project,
    quantity="collective",
    classes=_classes,
    read=read,
    precision="",
)
