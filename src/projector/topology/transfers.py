"""Time and bandwidth of moving data between devices of a node, and to and from host memory.

A message takes the start of its engine, the latency of the links on its way, and its bytes over a
rate. The rate is a share of the narrowest link, and at most what the engine itself moves. The
engines and their numbers stand under ``transfers`` in the file of a node.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Floats
from projector.errors import ConfigError, shown
from projector.topology import routes as paths
from projector.topology.build import Topology, load_topology, node_net
from projector.topology.node import End, Engine, Place, Transfers
from projector.units import GB, KIB, MIB, MICROSECOND, TB, unwrapped

HOST = "host"
"""Host memory next to the device at the other end."""

HOST_FABRIC = frozenset({"port", "numa"})
"""Kinds of vertices that pass on traffic to host memory."""

SWEEP_BYTES = 2.0 ** np.arange(8, 34)
"""Sizes of a sweep: powers of two from 256 bytes to 8 GiB."""

NodeLike = str | Path | Mapping[str, Any] | Topology


class Way(NamedTuple):
    """A route and the engine that uses it."""

    engine: str
    numbers: Engine
    place: Place
    route: paths.Route
    gb_per_s: float
    """Of a large message, per direction."""
    cached_gb_per_s: float
    """Of the part that caches of the host serve."""
    latency_us: float
    """Of a message without bytes: start and links."""
    l2_bytes: float
    """Cache of the device that reads."""

    def seconds(self, num_bytes: ArrayLike, *, accesses: int = 1) -> Floats:
        """Return the seconds of messages; nothing takes no time.

        ``accesses``: how often a kernel reads the data.
        """
        accesses = unwrapped(accesses)
        if type(accesses) is not int or accesses < 1:
            msg = f"accesses must be an integer of at least 1, got {shown(accesses)}"
            raise ConfigError(msg, key="accesses", value=accesses, allowed=">= 1")
        try:
            asked = np.asarray(num_bytes, np.float64)
        except (TypeError, ValueError):
            asked = np.array(np.nan)
        if not ((asked >= 0.0) & np.isfinite(asked)).all():
            msg = f"num_bytes must be finite and not negative, got {shown(num_bytes)}"
            raise ConfigError(msg, key="num_bytes", value=num_bytes, allowed=">= 0")
        moved = self.moved_bytes(asked, accesses=accesses)
        fast = np.minimum(moved, self.numbers.cached_mib * MIB)
        wire_s = fast / (self.cached_gb_per_s * GB) + (moved - fast) / (self.gb_per_s * GB)
        return np.where(asked > 0.0, self.latency_us * MICROSECOND + wire_s, 0.0)

    def moved_bytes(self, num_bytes: Floats, *, accesses: int = 1) -> Floats:
        """Return what crosses the links: whole pages, and again with each access or not."""
        moved = num_bytes
        page = self.numbers.page_kib * KIB
        if page > 0.0:
            moved = np.ceil(moved / page) * page
        if self.numbers.repeats == "always":
            return moved * accesses
        if self.numbers.repeats == "cached":
            return np.where(moved <= self.l2_bytes, moved, moved * accesses)
        return moved

    @property
    def low_gb_per_s(self) -> float:
        """The least rate to expect where it varies."""
        return self.gb_per_s * (self.numbers.low_share or self.numbers.share) / self.numbers.share

    @property
    def high_gb_per_s(self) -> float:
        """The largest rate to expect where it varies."""
        return self.gb_per_s * (self.numbers.high_share or self.numbers.share) / self.numbers.share


def topology_of(node: NodeLike) -> Topology:
    """Return a node as it was given, or by name, file or mapping."""
    return node if isinstance(node, Topology) else load_topology(node)


def transfers_of(topology: Topology) -> Transfers:
    """Return the engines of a node."""
    transfers = topology.node.transfers
    if transfers is None:
        msg = f"{topology.node.name}: its file has no transfers section"
        raise ConfigError(msg, key="node.transfers", value=None, allowed="a mapping with engines")
    return transfers


def find_way(
    node: NodeLike,
    source: End,
    target: End,
    engine: str,
    *,
    both_directions: bool = False,
    choice: paths.Choice = "widest",
) -> Way:
    """Return how an engine of a node moves data from one place to another.

    A device is a number, host memory is ``host`` (next to the other end) or ``numa0``; the same
    device twice is a copy within its memory. ``both_directions`` says that as much moves the other
    way at the same time. The route is the ``widest`` or ``shortest``; hipMemcpyPeer takes the
    widest for small messages too.
    """
    topology = topology_of(node)
    numbers = _engine(topology, engine)
    source, target = _ends(topology, source, target)
    place = _place(topology, source, target)
    if place not in numbers.between:
        legal = serving_engines(topology, source, target)
        where = {"devices": "between devices", "host": "to host memory", "local": "in one device"}
        others = ", ".join(legal) or "none"
        msg = f"engine {engine!r} does not work {where[place]}; known: {others}"
        raise ConfigError(msg, key="engine", value=engine, allowed=legal)
    through = HOST_FABRIC if place == "host" else paths.FORWARDING
    route = paths.find_route(node_net(topology), source, target, choice, through)
    most = numbers.most_gb_per_s
    if place == "local":
        # A copy reads and writes the same memory. What a kernel reaches there is the device's.
        device = topology.device
        rate = device.hbm_peak_tb_per_s * device.hbm_efficiency * TB / GB / 2.0
    else:
        rate = _reached(numbers, route.gb_per_s, both_directions=both_directions)
    cached = route.gb_per_s * numbers.cached_share if numbers.cached_share else rate
    return Way(
        engine,
        numbers,
        place,
        route,
        rate,
        min(cached, most or np.inf),
        _start_us(topology, numbers) + route.latency_us,
        topology.device.l2_mib * MIB,
    )


def engine_matrices(
    node: NodeLike, engine: str, *, choice: paths.Choice = "widest"
) -> paths.Matrices:
    """Return hops, and the rates and latencies that an engine reaches between every two devices."""
    topology = topology_of(node)
    matrices = paths.find_matrices(topology, choice)
    numbers = find_way(topology, 0, matrices.devices[-1], engine, choice=choice).numbers
    later_us = _start_us(topology, numbers) - topology.node.start_us
    rates = tuple(
        tuple(None if rate is None else _reached(numbers, rate) for rate in row)
        for row in matrices.gb_per_s
    )
    latencies = tuple(
        tuple(time_us if a == b else time_us + later_us for b, time_us in enumerate(row))
        for a, row in enumerate(matrices.latency_us)
    )
    return matrices._replace(gb_per_s=rates, latency_us=latencies)


def serving_engines(node: NodeLike, source: End, target: End) -> list[str]:
    """Return the names of the engines that work between two places."""
    topology = topology_of(node)
    transfers = transfers_of(topology)
    place = _place(topology, *_ends(topology, source, target))
    return [name for name in transfers.engines if place in transfers.resolved(name).between]


def shared_rates(
    node: NodeLike, flows: Sequence[tuple[End, End]], *, engine: str, both_directions: bool = False
) -> list[float]:
    """Return the GB/s per direction of large messages that move at the same time.

    Flows that cross a link share it fairly. Two dies of a package read host memory through one
    port, so that both together read no faster than one.
    """
    topology = topology_of(node)
    ways = [find_way(topology, *flow, engine, both_directions=both_directions) for flow in flows]
    if not ways:
        return []
    share = _share(ways[0].numbers, both_directions=both_directions)
    capacities = {link: share * rate for link, rate in node_net(topology).capacities().items()}
    routes = [way.route for way in ways]
    most = [way.numbers.most_gb_per_s or np.inf for way in ways]
    for row, way in enumerate(ways):
        if way.place == "local":
            most[row] = way.gb_per_s
    if both_directions:
        back = [route._replace(path=route.path[::-1]) for route in routes]
        return paths.fair_rates(routes + back, capacities, most * 2)[: len(routes)]
    return paths.fair_rates(routes, capacities, most)


def overlapped_seconds(
    node: NodeLike, engine: str, transfer_s: ArrayLike, compute_s: ArrayLike
) -> Floats:
    """Return seconds of a transfer beside a kernel; a copying kernel takes some of its units."""
    topology = topology_of(node)
    units = transfers_of(topology).resolved(engine).compute_units
    kept = 1.0 - min(units / topology.device.compute_units, 1.0)
    copy_s, alone_s = np.asarray(transfer_s, np.float64), np.asarray(compute_s, np.float64)
    # While the copy runs the kernel does `kept` of the work that it would do alone.
    return copy_s + np.maximum(alone_s - kept * copy_s, 0.0)


def _engine(topology: Topology, name: str) -> Engine:
    """Return an engine with what it takes from its base and from the device."""
    numbers = transfers_of(topology).resolved(name)
    given: dict[str, float] = {}
    if numbers.share_of is not None:
        given["share"] = numbers.share * topology.device.scale_up_efficiency
    if numbers.most_of is not None:
        given["most_gb_per_s"] = topology.device.host_link_gb_per_s
    return numbers.model_copy(update=given) if given else numbers


def _start_us(topology: Topology, numbers: Engine) -> float:
    return topology.node.start_us if numbers.start_us is None else numbers.start_us


def _reached(numbers: Engine, link_gb_per_s: float, *, both_directions: bool = False) -> float:
    """Return the rate of a large message over links of a rate, per direction."""
    share = _share(numbers, both_directions=both_directions)
    return float(min(share * link_gb_per_s, numbers.most_gb_per_s or np.inf))


def _share(numbers: Engine, *, both_directions: bool) -> float:
    if both_directions and numbers.share_both is not None:
        return numbers.share_both
    return numbers.share


def _ends(topology: Topology, source: End, target: End) -> tuple[End, End]:
    """Return both ends with host memory by the name of its domain."""
    if source == HOST and target == HOST:
        msg = "a transfer from host to host has no device"
        raise ConfigError(msg, key="source", value=source, allowed="a device at one end")
    if source == HOST:
        return _domain(topology, target), target
    if target == HOST:
        return source, _domain(topology, source)
    return source, target


def _domain(topology: Topology, device: End) -> End:
    """Return the NUMA domain next to a device."""
    if topology.node.host is None:
        msg = f"{topology.node.name} describes no host memory"
        raise ConfigError(msg, key="host", value=None, allowed="a host section")
    net = node_net(topology)
    routes = paths.find_routes(net, device, "shortest", HOST_FABRIC)
    domains = [end for end, kind in net.kinds.items() if kind == "numa" and end in routes]
    return min(domains, key=lambda end: (len(routes[end].path), domains.index(end)))


def _place(topology: Topology, source: End, target: End) -> Place:
    kinds = {vertex.end: vertex.kind for vertex in topology.vertices}
    for key, end in (("source", source), ("target", target)):
        if kinds.get(end) not in {"device", "numa"}:
            known = [str(name) for name, kind in kinds.items() if kind in {"device", "numa"}]
            msg = f"{key} must be a device or a NUMA domain, got {end!r}; known: {', '.join(known)}"
            raise ConfigError(msg, key=key, value=end, allowed=known)
    if kinds[source] == kinds[target] == "numa":
        msg = f"a transfer from host to host has no device, got {source} to {target}"
        raise ConfigError(msg, key="source", value=source, allowed="a device at one end")
    if source == target:
        return "local"
    return "devices" if kinds[source] == kinds[target] == "device" else "host"
