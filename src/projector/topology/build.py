"""A node file turned into a graph: vertices and links, with the rates of its device and network."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from projector.config.device import Device
from projector.config.device_file import load_device
from projector.config.network import Network, load_network
from projector.errors import ConfigError
from projector.topology.node import End, Members, Node, Tier, is_file, read_node
from projector.units import GB, GBIT

if TYPE_CHECKING:
    from networkx import Graph


NO_LINK = "."
"""Entry of a matrix where two devices have no link."""

Kind = Literal["device", "switch", "port", "numa", "nic", "host"]
"""What a vertex of the graph is."""


class Link(NamedTuple):
    """Links side by side between two vertices of a graph."""

    a: End
    b: End
    tier: str
    width: int
    """How many."""
    gb_per_s: float
    """Of all of them together, per direction."""
    latency_us: float


class Vertex(NamedTuple):
    """A vertex of a graph."""

    end: End
    kind: Kind
    group: int
    """Package of a device, host of another vertex."""
    parts: int = 1
    """What it stands for: chips of a switch, hosts of a folded cluster."""


class Topology(NamedTuple):
    """A node with its rates: what graphs, matrices and drawings are made of."""

    node: Node
    device: Device
    network: Network
    packages: tuple[tuple[int, ...], ...]
    vertices: tuple[Vertex, ...]
    links: tuple[Link, ...]

    @property
    def num_devices(self) -> int:
        """Devices of the node."""
        return sum(vertex.kind == "device" for vertex in self.vertices)

    def device_links(self) -> tuple[Link, ...]:
        """Return the links that traffic between devices may use."""
        kinds = {vertex.end: vertex.kind for vertex in self.vertices}
        inner = ("device", "switch")
        return tuple(
            link for link in self.links if kinds[link.a] in inner and kinds[link.b] in inner
        )


def load_topology(
    name: str | Path | Mapping[str, Any],
    *,
    device: Device | None = None,
    network: Network | None = None,
    key: str = "node",
) -> Topology:
    """Return a node by shipped name, by path of a YAML file, or from a mapping.

    Its rates come from the device and network that it names, unless others are given; ``key`` is
    the name of the argument in messages.
    """
    if device is None and network is None and isinstance(name, str) and not is_file(name):
        return _shipped(name, key)
    return _resolve(read_node(name, key), device, network, key)


@lru_cache(maxsize=64)
def _shipped(name: str, key: str) -> Topology:
    return _resolve(read_node(name, key), None, None, key)


def _resolve(node: Node, device: Device | None, network: Network | None, key: str) -> Topology:
    device = device or load_device(node.device, key=f"{key}.device")
    network = network or load_network(node.network or device.network, key=f"{key}.network")
    resolver = _Resolver(node, device, network, key)
    vertices = tuple(resolver.vertices())
    links = tuple(resolver.links())
    topology = Topology(node, device, network, resolver.packages(), vertices, links)
    devices = [vertex.end for vertex in topology.vertices if vertex.kind == "device"]
    for ends, links, what in (
        (devices, topology.device_links(), "over links between devices"),
        ([vertex.end for vertex in topology.vertices], topology.links, "over any link"),
    ):
        reached = _reached(links)
        lost = [end for end in ends if end not in reached]
        if lost:
            vertex = f"device {lost[0]}" if isinstance(lost[0], int) else str(lost[0])
            msg = f"{key}.links: disconnected: {vertex} cannot be reached from device 0 {what}"
            raise ConfigError(msg, key=f"{key}.links", value=lost[0], allowed="a connected graph")
    slow = [link for link in topology.links if not (math.isfinite(link.gb_per_s) and link.gb_per_s)]
    if slow:
        link = slow[0]
        msg = f"{key}.tiers.{link.tier}: the link {link.a}-{link.b} has no bandwidth"
        raise ConfigError(msg, key=f"{key}.tiers.{link.tier}", value=link.gb_per_s, allowed="> 0")
    return topology


class _Resolver:
    """Turns the short forms of a node file into vertices and links."""

    def __init__(self, node: Node, device: Device, network: Network, key: str) -> None:
        self.node, self.device, self.network, self.key = node, device, network, key
        self.count = node.devices or network.scale_up_gpus

    def vertices(self) -> Iterator[Vertex]:
        """Yield the vertices of the graph: devices first, in order."""
        packages = self.packages()
        for number in range(self.count):
            group = next(i for i, members in enumerate(packages) if number in members)
            yield Vertex(number, "device", group)
        if self.node.switch is not None:
            yield Vertex(self.node.switch.name, "switch", 0, self.node.switch.chips)
        if self.node.host is not None:
            domains = self.domains()
            for i, members in enumerate(domains):
                yield Vertex(f"numa{i}", "numa", self._host_of(members))
            if self.node.host.port is not None:
                for i, members in enumerate(domains):
                    yield Vertex(f"port{i}", "port", self._host_of(members))
        for i, members in enumerate(self.adapters()):
            yield Vertex(f"nic{i}", "nic", self._host_of(members))

    def links(self) -> Iterator[Link]:
        yield from self._device_links()
        if (switch := self.node.switch) is not None:
            tier = self._tier(switch.tier, "switch.tier")
            for number in range(self.count):
                yield self._link(number, switch.name, switch.tier, tier, halves=2)
        yield from self._host_links()
        if (adapters := self.node.adapters) is not None:
            tier = self._tier(adapters.tier, "adapters.tier")
            for i, members in enumerate(self.adapters()):
                for number in members:
                    yield self._link(number, f"nic{i}", adapters.tier, tier)

    def packages(self) -> tuple[tuple[int, ...], ...]:
        return self._members(self.node.packages, "packages")

    def domains(self) -> tuple[tuple[int, ...], ...]:
        assert self.node.host is not None
        return self._members(self.node.host.numa, "host.numa")

    def adapters(self) -> tuple[tuple[int, ...], ...]:
        """Return the devices next to each adapter, as many adapters as the network says.

        A list must have as many. A number is that of the node as it is sold; with more or fewer
        adapters the devices share them evenly.
        """
        if self.node.adapters is None:
            return ()
        given = self.node.adapters.devices
        members = self._members(given, "adapters.devices", partial=True)
        nics = -(-self.count // self.network.gpus_per_node) * self.network.nics_per_node
        if isinstance(given, int):
            if nics % len(members) == 0:
                return tuple(group for group in members for _ in range(nics // len(members)))
            if self.count % nics == 0:
                return self._members(self.count // nics, "adapters.devices")
        if len(members) != nics:
            said = f"{len(members)} adapters, but the network has {nics}"
            raise self._error("adapters.devices", said, len(members), nics)
        return members

    def _host_of(self, members: tuple[int, ...]) -> int:
        return members[0] // self.network.gpus_per_node

    def _members(
        self, given: Members, place: str, *, partial: bool = False
    ) -> tuple[tuple[int, ...], ...]:
        """Return groups of devices, each device in one; with ``partial`` in none or several."""
        if isinstance(given, int):
            if given < 1 or self.count % given:
                said = f"{self.count} devices cannot be divided by {given}"
                raise self._error(place, said, given, f"a divisor of {self.count}")
            return tuple(
                tuple(range(first, first + given)) for first in range(0, self.count, given)
            )
        for i, members in enumerate(given):
            for number in members:
                self._check_device(number, f"{place}.{i}")
            if not members:
                raise self._error(f"{place}.{i}", "has no device", [*members], "device numbers")
        times = Counter(number for members in given for number in members)
        twice = [] if partial else [number for number, count in times.items() if count > 1]
        missing = [] if partial else [number for number in range(self.count) if number not in times]
        if twice or missing:
            what = f"device {twice[0]} stands twice" if twice else f"device {missing[0]} is missing"
            raise self._error(place, what, None, "each device once")
        return given

    def _device_links(self) -> Iterator[Link]:
        seen: dict[frozenset[End], str] = {}
        for place, name, a, b in self._pairs():
            tier = self._tier(name, place)
            self._check_device(a, place)
            self._check_device(b, place)
            if a == b:
                raise self._error(place, f"device {a} is linked to itself", [a, b], "two devices")
            before = seen.get(frozenset((a, b)))
            if before is not None:
                what = "twice" if before == name else f"in {before} and in {name}"
                said = f"the link {a}-{b} is given {what}"
                raise self._error(place, said, [a, b], "each pair once, it has both directions")
            seen[frozenset((a, b))] = name
            yield self._link(a, b, name, tier)

    def _pairs(self) -> Iterator[tuple[str, str, End, End]]:
        """Yield (place in the file, tier, device, device)."""
        for name, pairs in self.node.links.items():
            if pairs == "all":
                for a, b in combinations(range(self.count), 2):
                    yield f"links.{name}", name, a, b
            else:
                for i, (first, second) in enumerate(pairs):
                    yield f"links.{name}.{i}", name, first, second
        if self.node.matrix is not None:
            yield from self._matrix_pairs(self.node.matrix)

    def _matrix_pairs(
        self, matrix: tuple[tuple[str, ...], ...]
    ) -> Iterator[tuple[str, str, End, End]]:
        sizes = {len(matrix), *map(len, matrix)}
        if sizes != {self.count}:
            said = f"must have {self.count} rows and columns, one for each device"
            raise self._error("matrix", said, sorted(sizes), self.count)
        for i in range(self.count):
            if matrix[i][i] != NO_LINK:
                said = f"device {i} is linked to itself"
                raise self._error(f"matrix.{i}.{i}", said, matrix[i][i], NO_LINK)
        for i, j in combinations(range(self.count), 2):
            place = f"matrix.{i}.{j}"
            there, back = matrix[i][j], matrix[j][i]
            if there != back:
                said = f"{there!r} from {i} to {j}, but {back!r} from {j} to {i}"
                raise self._error(place, said, there, "the same in both directions")
            if there != NO_LINK:
                yield place, there, i, j

    def _host_links(self) -> Iterator[Link]:
        host = self.node.host
        if host is None:
            return
        tier = self._tier(host.tier, "host.tier")
        domains = self.domains()
        for i, members in enumerate(domains):
            end = f"numa{i}" if host.port is None else f"port{i}"
            if host.port is not None:
                yield self._link(end, f"numa{i}", host.port, self._tier(host.port, "host.port"))
            for number in members:
                yield self._link(number, end, host.tier, tier)
        if host.between is not None:
            between = self._tier(host.between, "host.between")
            for i, j in combinations(range(len(domains)), 2):
                if self._host_of(domains[i]) == self._host_of(domains[j]):
                    yield self._link(f"numa{i}", f"numa{j}", host.between, between)

    def _link(self, a: End, b: End, name: str, tier: Tier, *, halves: int = 1) -> Link:
        rates = {
            "peer": self.device.scale_up_peer_gb_per_s * tier.links,
            "scale_up": self.device.scale_up_gb_per_s,
            "nic": self.network.nic_gbit_per_s * GBIT / GB * tier.links,
        }
        rate = tier.gb_per_s * tier.links if tier.gb_per_s else rates[str(tier.rate_of)]
        latency_us = tier.latency_us
        if latency_us is None:
            latency_us = self.device.scale_up_latency_us / halves
        return Link(a, b, name, tier.links, rate, latency_us)

    def _tier(self, name: str, place: str) -> Tier:
        tier = self.node.tiers.get(name)
        if tier is None:
            known = sorted(self.node.tiers)
            said = f"unknown tier {name!r}; known: {', '.join(known)}"
            raise self._error(place, said, name, known)
        return tier

    def _check_device(self, number: End, place: str) -> None:
        if not isinstance(number, int) or not 0 <= number < self.count:
            said = f"there is no device {number!r}; devices are 0 to {self.count - 1}"
            raise self._error(place, said, number, f"0 to {self.count - 1}")

    def _error(self, place: str, said: str, value: Any, allowed: Any) -> ConfigError:
        key = f"{self.key}.{place}"
        return ConfigError(f"{key}: {said}", key=key, value=value, allowed=allowed)


def _reached(links: Iterable[Link]) -> set[End]:
    """Return what can be reached from device 0."""
    neighbours: dict[End, list[End]] = {}
    for link in links:
        neighbours.setdefault(link.a, []).append(link.b)
        neighbours.setdefault(link.b, []).append(link.a)
    reached: set[End] = {0}
    ends: list[End] = [0]
    while ends:
        for end in neighbours.get(ends.pop(), ()):
            if end not in reached:
                reached.add(end)
                ends.append(end)
    return reached


Directed = tuple[End, End]
"""A link in one direction."""


class Net(NamedTuple):
    """A graph as jobs need it, which takes no library to import."""

    kinds: dict[End, Kind]
    """Every vertex and what it is, in the order that decides between equal routes."""
    near: dict[End, dict[End, Link]]
    """Links of each vertex by neighbour."""

    def capacities(self) -> dict[Directed, float]:
        """Return the GB/s of every link in each of its directions."""
        return {
            (a, b): link.gb_per_s for a, links in self.near.items() for b, link in links.items()
        }


def net_of(vertices: Iterable[Vertex], links: Iterable[Link]) -> Net:
    """Return vertices and links as a plain graph."""
    kinds = {vertex.end: vertex.kind for vertex in vertices}
    near: dict[End, dict[End, Link]] = {end: {} for end in kinds}
    for link in links:
        near[link.a][link.b] = near[link.b][link.a] = link
    return Net(kinds, near)


def node_net(topology: Topology) -> Net:
    """Return the plain graph of a node."""
    return net_of(topology.vertices, topology.links)


def as_graph(vertices: Iterable[Vertex], links: Iterable[Link]) -> "Graph":
    """Return vertices and links (both directions at once) as a networkx graph with attributes."""
    from networkx import Graph

    graph = Graph()
    graph.add_nodes_from((vertex.end, vertex._asdict()) for vertex in vertices)
    graph.add_edges_from((link.a, link.b, link._asdict()) for link in links)
    return graph


def cut_rates(topology: Topology) -> dict[Directed, float]:
    """Return GB/s of every two devices over all routes: smallest cuts, from a Gomory-Hu tree."""
    from networkx import gomory_hu_tree, shortest_path

    inner = [vertex for vertex in topology.vertices if vertex.kind in {"device", "switch"}]
    devices = [vertex.end for vertex in inner if vertex.kind == "device"]
    tree = gomory_hu_tree(as_graph(inner, topology.device_links()), capacity="gb_per_s")
    rates = {}
    for a in devices:
        paths = shortest_path(tree, a)
        for b in devices:
            if a != b:
                rates[a, b] = min(tree.edges[edge]["weight"] for edge in pairwise(paths[b]))
    return rates
