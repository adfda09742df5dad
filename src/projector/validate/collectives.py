"""Rows that time a collective operation, or dispatch and combine of a mixture of experts.

Bandwidths are turned into times by the conventions of nccl-tests: the bus bandwidth is the bytes
of the whole buffer over the time, times the share that must cross a link. Ranks of a row lie evenly
in as few scale-up domains as hold them. Times are in microseconds.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints, Records
from projector.config.bands import collective_classes
from projector.config.cluster import ClusterConfig
from projector.config.device_file import load_device
from projector.config.network import Network, load_network
from projector.kernels.collective_algorithms import OPERATIONS
from projector.kernels.collectives import algorithm_mask, collective_time_columns
from projector.lower.fabrics import domain_gpus, exchange_record, fabric_record
from projector.units import MICROSECOND
from projector.validate.benchmarks import Loop, forced_algorithm, loop_of, with_loop_s
from projector.validate.clusters import network_of
from projector.validate.exchanges import (
    Routing,
    exchange_times_s,
    is_exchange,
    read_exchange,
    why_not_an_exchange,
)
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
    why_not_measured,
)
from projector.validate.measured import BYTES_PER_S, SECONDS, plausible, positive, unit_of
from projector.validate.names import device_of

MAX_RANKS = 1 << 20
MAX_NODE_GPUS = 16
"""Devices of the largest node."""

_OPERATIONS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all2all": "all_to_all",
    "sendrecv": "send_recv",
}
_METRICS = ("busbw", "algbw", "time", "latency")


class _Links(NamedTuple):
    """What decides the record of a row's links."""

    device: str
    adapters: tuple[int, float] | None
    """Adapters of a node and their rate [Gbit/s] where the row names them."""
    algorithm: str
    """The only one that the run was allowed; empty where the library chose."""
    network: tuple[str, str]
    """What names the network in a cluster (``extends`` or ``transport``), and its name; empty for
    the usual one of the device."""
    node_gpus: int
    """Devices of a node that holds more than the usual one; 0 where it does not."""


@dataclass(frozen=True, slots=True)
class _Case:
    """One row, read."""

    links: _Links
    ranks: int
    local: int
    work: tuple[str, float] | Routing
    """Operation and bytes of the whole buffer, or an exchange."""
    loop: Loop | None
    """Of the benchmark."""
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
            links: cluster.model_copy(update={"device": device_for(links.device)})
            for links, cluster in clusters.items()
        }
        return _times_s(cases, changed)

    return readings(parsed, times_s, MICROSECOND)


class Joined(NamedTuple):
    """Rows read once, so that they can be timed with other records of their links."""

    positions: tuple[int, ...]
    """Positions of the rows that could be read."""
    measured_s: Floats
    fabric: Ints
    """Each row's record among `fabrics`."""
    fabrics: Records
    networks: tuple[Network, ...]
    """Network of each record."""
    times_s: Callable[[Records], Floats]
    """Projected times with changed records."""


def read_joined(rows: Sequence[Row]) -> Joined:
    """Read rows, to be timed with other constants of a network."""
    clusters: dict[_Links, ClusterConfig] = {}
    parsed = read_cases(rows, lambda row: _read(row, clusters))
    cases = [case for case in parsed if not isinstance(case, str)]
    return Joined(
        tuple(i for i, case in enumerate(parsed) if not isinstance(case, str)),
        np.array([case.measured for case in cases]) * MICROSECOND,
        _positions(cases, clusters),
        _fabrics(clusters),
        tuple(cluster.network for cluster in clusters.values()),
        lambda fabrics: _times_s(cases, clusters, fabrics),
    )


def _fabrics(clusters: dict[_Links, ClusterConfig]) -> Records:
    return np.concatenate([_fabric(*item) for item in clusters.items()])


def _positions(cases: Sequence[_Case], clusters: dict[_Links, ClusterConfig]) -> Ints:
    position = {links: row for row, links in enumerate(clusters)}
    return np.array([position[case.links] for case in cases])


def _times_s(
    cases: Sequence[_Case], clusters: dict[_Links, ClusterConfig], changed: Records | None = None
) -> Floats:
    fabrics = _fabrics(clusters) if changed is None else changed
    fabric = _positions(cases, clusters)
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
            np.concatenate([exchange_record(cluster.device) for cluster in clusters.values()]),
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


def _read(row: Row, clusters: dict[_Links, ClusterConfig]) -> _Case:
    links = _links(row)
    if links not in clusters:
        clusters[links] = _cluster(links)
    cluster = clusters[links]
    nodes = _count(row, "n_nodes", 1)
    rules = [f"network {links.network[1] or cluster.device.network}"] if nodes > 1 else []
    per_node = cluster.network.gpus_per_node
    ranks = _count(row, "n_gpus", nodes * per_node)
    if not (row.get("n_gpus") or "").strip():
        rules.append(f"{per_node} ranks a node")
    domain = domain_gpus(cluster)
    # A domain larger than a node holds all its ranks; else each node is a domain.
    held = ranks if domain > per_node else -(-ranks // nodes)
    local = -(-held // -(-held // domain))
    if not is_exchange(row):
        operation, size = _operation(row), positive(row, "message_bytes")
        measured_s = plausible(_collective_s(row, operation, size, ranks))
        if operation == "send_recv":
            # Each rank sends to the next; the pair that lies furthest apart sets the time.
            ranks, local = min(ranks, 2), 2 if local == ranks > 1 else 1
        loop = loop_of(row)
        rules += [loop.name] if loop else []
        return _Case(
            links, ranks, local, (operation, size), loop, measured_s / MICROSECOND, "; ".join(rules)
        )
    routing, measured_s, rule = read_exchange(row, ranks, local)
    if rule:
        rules.append(rule)
    return _Case(links, ranks, local, routing, None, measured_s / MICROSECOND, "; ".join(rules))


def _links(row: Row) -> _Links:
    device = device_of(row.get("gpu") or "")
    usual = load_network(load_device(device).network)
    adapters, network = network_of(device, row.get("system") or "")
    ranks = integer(row, "n_gpus") or 0
    one_node = (integer(row, "n_nodes") or 1) == 1 and ranks > usual.scale_up_gpus
    held = min(ranks, MAX_NODE_GPUS) if one_node else 0
    return _Links(device, adapters, forced_algorithm(row), network, held)


def _cluster(links: _Links) -> ClusterConfig:
    network: dict[str, object] = {}
    if links.network[1]:
        network[links.network[0]] = links.network[1]
    if links.adapters:
        network["nics_per_node"], network["nic_gbit_per_s"] = links.adapters
    if links.node_gpus:
        network["gpus_per_node"] = network["scale_up_gpus"] = links.node_gpus
    return ClusterConfig.parse({"device": links.device, "network": network or None}, path="cluster")


def _operation(row: Row) -> str:
    return _OPERATIONS[_plain(row.get("collective") or "")]


def _plain(name: str) -> str:
    return re.sub(r"[\s_/-]", "", name.lower())


def _count(row: Row, column: str, default: int) -> int:
    value = integer(row, column)
    if value is None:
        return default
    if not 1 <= value <= MAX_RANKS:
        raise ValueError(f"{column} is {value}, not a count")
    return value


def _collective_s(row: Row, operation: str, size: float, ranks: int) -> float:
    value, unit = positive(row, "value"), (row.get("unit") or "").strip()
    metric = (row.get("metric") or "").strip().lower()
    if metric in {"time", "latency"}:
        return value * unit_of(unit, SECONDS)
    share = 1.0
    if metric == "busbw" and operation != "send_recv":
        share = (ranks - 1) / ranks * (2.0 if operation == "all_reduce" else 1.0)
    if share == 0.0:
        raise ValueError("a bus bandwidth of one rank")
    return size * share / (value * unit_of(unit, BYTES_PER_S))


def _why_not_eligible(row: Row) -> str:
    if is_exchange(row):
        return why_not_an_exchange(row)
    if why := why_not_measured(row):
        return why
    if _plain(row.get("collective") or "") not in _OPERATIONS:
        return "not one of the collectives"
    if not (row.get("message_bytes") or "").strip():
        return "no message size"
    if (row.get("metric") or "").strip().lower() not in _METRICS:
        return f"metric must be one of {', '.join(_METRICS)}"
    return ""


def _classes(row: Row) -> tuple[str, ...]:
    """Return the classes of a row that bands are kept for."""
    device = load_device(device_of(row.get("gpu") or ""))
    return collective_classes(device, number(row, "message_bytes"))


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
    quantity="collective",
    classes=_classes,
    read=read,
    precision="",
)
