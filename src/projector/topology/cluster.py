"""Clusters of one kind of node: leaf, spine and core switches, rails, pods and their taper.

A graph of every host ends at `MOST_EXPLICIT`. A larger cluster is folded: all hosts that look alike
from the first host are one vertex that stands for them, and their links are one bundle. What one
host finds on its way to any other stays the same, and so does every cut between such groups.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from projector.config._base import put
from projector.config.cluster import ClusterConfig
from projector.config.load import parse_override
from projector.config.network import Network
from projector.errors import ConfigError
from projector.topology.build import Link, Topology, Vertex, load_topology
from projector.topology.node import End
from projector.units import GB, GBIT

MOST_EXPLICIT = 64
"""Hosts of which each is a vertex."""


class Pod(NamedTuple):
    """Hosts below one group of leaf switches, or all pods that look alike."""

    name: str
    hosts: tuple[tuple[str, int], ...]
    """Name of each vertex and the hosts that it stands for."""
    pods: int

    @property
    def num_hosts(self) -> int:
        """All of them."""
        return sum(count for _, count in self.hosts)


class Zone(NamedTuple):
    """Pods below one group of spine switches, or all zones that look alike."""

    name: str
    pods: tuple[Pod, ...]
    zones: int

    @property
    def num_hosts(self) -> int:
        """Hosts of all its pods."""
        return sum(pod.num_hosts for pod in self.pods)


class Cluster(NamedTuple):
    """A cluster as a graph."""

    topology: Topology
    """Of its nodes. A host is a node, or a tray where the scale-up domain spans several."""
    hosts: int
    pods: int
    zones: int
    folded: bool
    """Whether vertices stand for several hosts."""
    parts: tuple[Zone, ...]
    vertices: tuple[Vertex, ...]
    links: tuple[Link, ...]

    @property
    def network(self) -> Network:
        """What joins the hosts."""
        return self.topology.network

    @property
    def adapter_gb_per_s(self) -> float:
        """Rate of one adapter, per direction, before its efficiency."""
        return self.network.nic_gbit_per_s * GBIT / GB

    @property
    def host_gb_per_s(self) -> float:
        """Rate of all adapters of a host."""
        return self.adapter_gb_per_s * self.network.nics_per_node


def load_node(name: str, assignments: tuple[str, ...] = (), network: str | None = None) -> Topology:
    """Return a node changed by ``device.KEY=VALUE``, ``network.KEY=VALUE`` or a ``network``."""
    plain = load_topology(name)
    if not assignments and network is None:
        return plain
    changes: dict[str, dict[str, Any]] = {"device": {}, "network": {}}
    for text in assignments:
        key, value = parse_override(text)
        section, dot, field = key.partition(".")
        if not dot or section not in changes:
            msg = f"{key!r} is neither device.KEY nor network.KEY"
            raise ConfigError(msg, key=key, value=value, allowed=["device.KEY", "network.KEY"])
        put(changes[section], field, value)
    usual = network or plain.node.network or plain.device.network
    cluster = ClusterConfig.parse(
        {
            "device": {"extends": plain.node.device, **changes["device"]},
            "network": {"extends": usual, **changes["network"]},
        }
    )
    return load_topology(name, device=cluster.device, network=cluster.network)


def build_cluster(topology: Topology, hosts: int) -> Cluster:
    """Return a cluster of equal hosts as a graph.

    The network of the node gives pods, zones and rates. In a rail-optimised cluster adapter i of
    every host of a pod hangs on leaf i, and spine switches join the leaves; otherwise all adapters
    of a pod hang on one group of switches. Pods of a zone share their spine switches, zones their
    core switches. The links that leave a pod carry the rate of its adapters over
    ``pod_oversubscription``, those that leave a zone that over ``core_oversubscription``. A hop
    between hosts of a pod takes ``nic_latency_us``, half of it on each of its two links;
    ``spine_latency_us`` and ``core_latency_us`` are added above.
    """
    if hosts < 1:
        msg = f"nodes must be at least 1, got {hosts}"
        raise ConfigError(msg, key="nodes", value=hosts, allowed=">= 1")
    network = topology.network
    pod_hosts = min(network.pod_nodes or hosts, hosts)
    pods = -(-hosts // pod_hosts)
    zone_pods = min(network.core_pods or pods, pods)
    zones = -(-pods // zone_pods)
    folded = hosts > MOST_EXPLICIT
    parts = tuple(
        _folded(hosts, pod_hosts, zone_pods) if folded else _explicit(hosts, pod_hosts, zone_pods)
    )
    cluster = Cluster(topology, hosts, pods, zones, folded, parts, (), ())
    builder = _Builder(cluster)
    return cluster._replace(vertices=tuple(builder.vertices()), links=tuple(builder.links()))


def _explicit(hosts: int, pod_hosts: int, zone_pods: int) -> Iterator[Zone]:
    zone_hosts = pod_hosts * zone_pods
    for zone, first in enumerate(range(0, hosts, zone_hosts)):
        last = min(first + zone_hosts, hosts)
        pods = tuple(
            Pod(
                str(start // pod_hosts),
                tuple((f"host{host}", 1) for host in range(start, min(start + pod_hosts, last))),
                1,
            )
            for start in range(first, last, pod_hosts)
        )
        yield Zone(str(zone), pods, 1)


def _folded(hosts: int, pod_hosts: int, zone_pods: int) -> Iterator[Zone]:
    zone_hosts = min(pod_hosts * zone_pods, hosts)
    own = [("host0", 1), ("pod0", pod_hosts - 1)]
    pods = [Pod("0", tuple(item for item in own if item[1]), 1)]
    if zone_hosts > pod_hosts:
        others = zone_hosts - pod_hosts
        pods.append(Pod("other", (("other_pods", others),), -(-others // pod_hosts)))
    yield Zone("0", tuple(pods), 1)
    if hosts > zone_hosts:
        others = hosts - zone_hosts
        far = Pod("far", (("other_zones", others),), -(-others // pod_hosts))
        yield Zone("other", (far,), -(-others // zone_hosts))


class _Builder:
    """Makes vertices and links of the parts of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.network = cluster, cluster.network
        self.rails = self.network.nics_per_node if self.network.rail_optimised else 1
        # Leaves of one pod are joined above them too: that is how rails meet.
        self.has_spine = cluster.pods > 1 or self.rails > 1

    def vertices(self) -> Iterator[Vertex]:
        """Yield hosts, then the switches from below."""
        for place, zone in enumerate(self.cluster.parts):
            for pod in zone.pods:
                for name, count in pod.hosts:
                    yield Vertex(name, "host", place, count)
        for place, zone in enumerate(self.cluster.parts):
            for pod in zone.pods:
                for rail in range(self.rails):
                    yield Vertex(self._leaf(pod, rail), "switch", place, pod.pods)
        if self.has_spine:
            for place, zone in enumerate(self.cluster.parts):
                yield Vertex(f"spine_{zone.name}", "switch", place, zone.zones)
        if self.cluster.zones > 1:
            yield Vertex("core", "switch", 0)

    def links(self) -> Iterator[Link]:
        """Yield the links from below."""
        network = self.network
        near_us = 0.5 * network.nic_latency_us
        spine_us = 0.5 * network.spine_latency_us
        if not network.rail_optimised:
            near_us += spine_us
            spine_us = 0.0
        side = network.nics_per_node // self.rails
        for zone in self.cluster.parts:
            for pod in zone.pods:
                for rail in range(self.rails):
                    leaf = self._leaf(pod, rail)
                    for name, count in pod.hosts:
                        yield self._link(name, leaf, "adapter", count * side, 1.0, near_us)
                    if self.has_spine:
                        taper = network.pod_oversubscription
                        up = f"spine_{zone.name}"
                        yield self._link(leaf, up, "spine", pod.num_hosts * side, taper, spine_us)
            if self.cluster.zones > 1:
                yield self._link(
                    f"spine_{zone.name}", "core", "core",
                    zone.num_hosts * network.nics_per_node, network.core_oversubscription,
                    0.5 * network.core_latency_us,
                )  # fmt: skip

    def _link(
        self, a: End, b: End, tier: str, adapters: int, taper: float, latency_us: float
    ) -> Link:
        rate = adapters * self.cluster.adapter_gb_per_s / taper
        return Link(a, b, tier, adapters, rate, latency_us)

    def _leaf(self, pod: Pod, rail: int) -> str:
        return f"leaf_{pod.name}" if self.rails == 1 else f"leaf_{pod.name}_rail{rail}"


class Reach(NamedTuple):
    """What a host finds on its way to hosts of one kind."""

    where: str
    hosts: int
    """Hosts that it holds for."""
    switches: int
    """That a message crosses on one rail."""
    latency_us: float
    alone_gb_per_s: float
    """Of all adapters of one host, while nobody else sends."""
    shared_gb_per_s: float
    """Of one host, while every host sends to hosts of this kind."""


def find_reaches(cluster: Cluster) -> tuple[Reach, ...]:
    """Return what the first host finds on its way to others: in its pod, its zone, and beyond."""
    network, host = cluster.network, cluster.host_gb_per_s
    pod_hosts = cluster.parts[0].pods[0].num_hosts
    zone_hosts = cluster.parts[0].num_hosts
    spine_us = network.spine_latency_us
    near_us = network.nic_latency_us + (0.0 if network.rail_optimised else spine_us)
    far_us = network.nic_latency_us + spine_us
    pod_taper = network.pod_oversubscription
    kinds = (
        ("same pod", pod_hosts - 1, 1, near_us, 1.0),
        ("other pods", zone_hosts - pod_hosts, 3, far_us, pod_taper),
        (
            "other zones",
            cluster.hosts - zone_hosts,
            5,
            far_us + network.core_latency_us,
            max(pod_taper, network.core_oversubscription),
        ),
    )
    return tuple(
        Reach(where, hosts, switches, latency_us, host, host / taper)
        for where, hosts, switches, latency_us, taper in kinds
        if hosts > 0
    )
