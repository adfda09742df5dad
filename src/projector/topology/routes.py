"""Routes between the vertices of a graph, what a message finds on them, and flows side by side."""

import heapq
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from projector.errors import ConfigError, shown
from projector.topology.build import Directed, Net, Topology, node_net
from projector.topology.node import End

Choice = Literal["widest", "shortest"]
"""Which route a message takes."""

CHOICES: tuple[Choice, ...] = ("widest", "shortest")

FORWARDING = frozenset({"device", "switch"})
"""Kinds of vertices that pass on traffic between devices; host memory and adapters do not."""

EVERYTHING = frozenset({"device", "switch", "port", "numa", "nic"})


class Route(NamedTuple):
    """One way from a vertex to another."""

    path: tuple[End, ...]
    """Vertices from the first to the last."""
    gb_per_s: float
    """Of the narrowest link, per direction; infinite where nothing is crossed."""
    latency_us: float
    """Of its links together, without the start of a message."""
    hops: int
    """Devices, domains and adapters that are reached one after another: a switch in between is
    no stop."""


class Matrices(NamedTuple):
    """What a message finds between every two devices, in order of their numbers."""

    devices: tuple[int, ...]
    hops: tuple[tuple[int, ...], ...]
    gb_per_s: tuple[tuple[float | None, ...], ...]
    """Per direction; none on the diagonal."""
    latency_us: tuple[tuple[float, ...], ...]
    """Of a message alone on the links, with its start; 0 on the diagonal."""
    routes: tuple[tuple[Route, ...], ...]


def find_routes(
    net: Net, source: End, choice: Choice = "widest", through: Collection[str] = FORWARDING
) -> dict[End, Route]:
    """Return the best route from a vertex to every other.

    The widest route has the largest narrowest link; of several the one with the fewest links, then
    the least latency, then the first in the order of vertices. The shortest has the fewest links;
    of several the widest, then as above. Vertices of the kinds ``through`` pass traffic on; the
    ends of a route may be of any kind.
    """
    if source not in net.kinds:
        known = [str(end) for end in net.kinds]
        msg = f"there is no {shown(source)} in the node; there are {', '.join(known[:24])}"
        raise ConfigError(msg, key="source", value=source, allowed=known)
    fewest = {end: len(path) for end, path in _least(net, source, through, 0.0).items()}
    routes = {source: _route(net, (source,))}
    # Wide links alone are tried first: what reaches a vertex at a rate is the widest way there.
    for rate in sorted(set(net.capacities().values()), reverse=True):
        for end, path in _least(net, source, through, rate).items():
            if end not in routes and (choice == "widest" or len(path) == fewest[end]):
                routes[end] = _route(net, path)
        if len(routes) == len(fewest):
            break
    return routes


def find_route(
    net: Net, source: End, target: End, choice: Choice = "widest",
    through: Collection[str] = FORWARDING,
) -> Route:  # fmt: skip
    """Return the best route between two vertices, as `find_routes` does."""
    routes = find_routes(net, source, choice, through)
    if target not in net.kinds:
        find_routes(net, target, choice, through)
    if target not in routes:
        msg = f"nothing leads from {shown(source)} to {target!r}"
        raise ConfigError(msg, key="target", value=target, allowed=[str(end) for end in routes])
    return routes[target]


def find_matrices(topology: Topology, choice: Choice = "widest") -> Matrices:
    """Return hops of the shortest, rates and latencies of the chosen routes between devices."""
    net = node_net(topology)
    devices = tuple(range(topology.num_devices))
    start_us = topology.node.start_us
    hops, rates, latencies, chosen = [], [], [], []
    for source in devices:
        shortest = find_routes(net, source, "shortest")
        routes = shortest if choice == "shortest" else find_routes(net, source, choice)
        hops.append(tuple(shortest[target].hops for target in devices))
        rates.append(tuple(None if t == source else routes[t].gb_per_s for t in devices))
        latencies.append(
            tuple(0.0 if t == source else start_us + routes[t].latency_us for t in devices)
        )
        chosen.append(tuple(routes[target] for target in devices))
    return Matrices(devices, tuple(hops), tuple(rates), tuple(latencies), tuple(chosen))


def _least(
    net: Net, source: End, through: Collection[str], least_gb_per_s: float
) -> dict[End, tuple[End, ...]]:
    """Return the paths with the fewest links of at least a rate, then by latency (Dijkstra)."""
    order = {end: position for position, end in enumerate(net.kinds)}
    paths: dict[End, tuple[End, ...]] = {}
    heap: list[tuple[int, float, tuple[int, ...], tuple[End, ...]]]
    heap = [(0, 0.0, (order[source],), (source,))]
    while heap:
        links, latency_us, places, path = heapq.heappop(heap)
        end = path[-1]
        if end in paths:
            continue
        paths[end] = path
        if end != source and net.kinds[end] not in through:
            continue
        for neighbour, link in net.near[end].items():
            if neighbour not in paths and link.gb_per_s >= least_gb_per_s:
                later_us = latency_us + link.latency_us
                step = (*places, order[neighbour]), (*path, neighbour)
                heapq.heappush(heap, (links + 1, later_us, *step))
    return paths


def _route(net: Net, path: tuple[End, ...]) -> Route:
    links = [net.near[a][b] for a, b in pairwise(path)]
    return Route(
        path,
        min((link.gb_per_s for link in links), default=float("inf")),
        sum(link.latency_us for link in links),
        sum(net.kinds[end] not in {"switch", "port"} for end in path[1:]),
    )


def fair_rates(
    routes: Sequence[Route],
    capacities: Mapping[Directed, float],
    most_gb_per_s: Sequence[float] | None = None,
) -> list[float]:
    """Return the max-min fair rate of each flow, in GB/s, over what links carry (`Net.capacities`).

    All rates grow alike until a link is full. Its flows stop there, the others grow on (Bertsekas
    and Gallager, Data Networks, 6.5.2). ``most_gb_per_s`` is what the sender of each flow makes at
    most; a flow of one vertex crosses no link, so that nothing else bounds it.
    """
    most = [float("inf")] * len(routes) if most_gb_per_s is None else list(most_gb_per_s)
    users: dict[Directed, set[int]] = {}
    for flow, route in enumerate(routes):
        for link in pairwise(route.path):
            users.setdefault(link, set()).add(flow)
    unlimited = [
        flow
        for flow, route in enumerate(routes)
        if len(route.path) < 2 and most[flow] == float("inf")
    ]
    if unlimited:
        msg = f"flow {unlimited[0]} crosses no link, so that nothing bounds its rate"
        raise ConfigError(msg, key="flows", value=list(routes[unlimited[0]].path))
    rates = [0.0] * len(routes)
    growing = set(range(len(routes)))
    while growing:
        # What each link has left for each flow that still grows on it.
        shares = {
            link: (capacities[link] - sum(rates[flow] for flow in flows - growing))
            / len(flows & growing)
            for link, flows in users.items()
            if flows & growing
        }
        level = min([*shares.values(), *(most[flow] for flow in growing)])
        full = {link for link, share in shares.items() if share <= level * (1.0 + 1e-12)}
        stopped = {flow for flow in growing if most[flow] <= level}
        stopped |= {flow for link in full for flow in users[link] & growing}
        for flow in stopped:
            rates[flow] = level
        growing -= stopped
    return rates
