"""What the command line says about a node, as plain values for JSON."""

from itertools import permutations
from typing import Any

import numpy as np

from projector.errors import ConfigError
from projector.topology.build import Topology
from projector.topology.cluster import Cluster, find_reaches
from projector.topology.contention import fair_rates
from projector.topology.graph import cut_rates, node_net
from projector.topology.node import End
from projector.topology.rates import is_regular, local_rates
from projector.topology.routes import (
    CHOICES,
    EVERYTHING,
    FORWARDING,
    Choice,
    Route,
    find_matrices,
    find_routes,
)
from projector.topology.transfers import engine_matrices


def show_node(topology: Topology) -> dict[str, Any]:
    """Return the parts of a node: devices, vertices, tiers, links."""
    node = topology.node
    used = {link.tier: link for link in topology.links}
    return {
        "node": node.name,
        "device": topology.device.name,
        "network": topology.network.name,
        "devices": list(range(topology.num_devices)),
        "packages": [list(members) for members in topology.packages],
        "vertices": [
            {"name": vertex.end, "kind": vertex.kind, "group": vertex.group, "parts": vertex.parts}
            for vertex in topology.vertices
        ],
        "tiers": [
            {
                "tier": name,
                "links": link.width,
                "gb_per_s": link.gb_per_s,
                "latency_us": link.latency_us,
                "bundles": sum(other.tier == name for other in topology.links),
            }
            for name, link in used.items()
        ],
        "links": [
            {"a": link.a, "b": link.b, "tier": link.tier, "links": link.width,
             "gb_per_s": link.gb_per_s, "latency_us": link.latency_us}
            for link in topology.links
        ],
        "rates": _rates(topology),
        "sources": dict(node.sources),
    }  # fmt: skip


def _rates(topology: Topology) -> list[dict[str, Any]]:
    """Return what collectives among the first devices reach, where the node is irregular."""
    if is_regular(topology):
        return []
    rates = local_rates(topology)
    return [
        {
            "devices": int(n),
            "ring_gb_per_s": float(rates.ring_gb_per_s[n]),
            "exchange_gb_per_s": float(rates.exchange_gb_per_s[n]),
            "pair_gb_per_s": float(rates.pair_gb_per_s[n]),
        }
        for n in np.flatnonzero(rates.ring_gb_per_s)
    ]


def show_matrix(
    topology: Topology, choice: str = "widest", engine: str | None = None
) -> dict[str, Any]:
    """Return the matrices of hops, rates and latencies between devices, as square lists.

    Rates are those of links, or what an engine reaches over them.
    """
    checked = check_choice(choice)
    if engine is None:
        matrices = find_matrices(topology, checked)
    else:
        matrices = engine_matrices(topology, engine, choice=checked)
    return {
        "node": topology.node.name,
        "route": checked,
        "engine": engine,
        "devices": list(matrices.devices),
        "hops": [list(row) for row in matrices.hops],
        "bandwidth_gb_per_s": [list(row) for row in matrices.gb_per_s],
        "latency_us": [list(row) for row in matrices.latency_us],
    }


def show_routes(topology: Topology, ends: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the shortest and the widest route of one pair, or of every pair of devices.

    Two devices also have the rate of all their routes at once.

    Parameters
    ----------
    topology : Topology
        The node.
    ends : tuple of str
        None, or the two ends: numbers of devices or names of other vertices.
    """
    if len(ends) not in {0, 2}:
        msg = f"give two ends of a route, or none for all pairs; got {' '.join(ends)}"
        raise ConfigError(msg, key="ends", value=list(ends), allowed="none or two")
    net = node_net(topology)
    if ends:
        pairs = [_two_ends(topology, ends[0], ends[1], "ends")]
    else:
        pairs = list(permutations(range(topology.num_devices), 2))
        pairs = [(a, b) for a, b in pairs if a < b]  # type: ignore[operator]  # numbers
    numbers = all(isinstance(end, int) for pair in pairs for end in pair)
    through = FORWARDING if numbers else EVERYTHING
    together = cut_rates(topology) if numbers else {}
    found: dict[tuple[End, Choice], dict[End, Route]] = {}
    rows = []
    for source, target in pairs:
        for choice in CHOICES:
            if (source, choice) not in found:
                found[source, choice] = find_routes(net, source, choice, through)
        shortest, widest = (found[source, c][target] for c in ("shortest", "widest"))
        rows.append(
            {
                "source": source,
                "target": target,
                "widest_is_shortest": widest.hops == shortest.hops,
                "shortest": _route(shortest, topology.node.start_us),
                "widest": _route(widest, topology.node.start_us),
                "all_routes_gb_per_s": together.get((source, target)),
            }
        )
    return {"node": topology.node.name, "routes": rows}


def show_flows(topology: Topology, flows: tuple[str, ...], choice: str) -> dict[str, Any]:
    """Return the rates of flows that run at once, each given as ``A-B``."""
    checked = check_choice(choice)
    net = node_net(topology)
    routes = []
    for flow in flows:
        ends = flow.split("-")
        if len(ends) != 2:
            msg = f"--flow: a flow is two ends, such as 0-6; got {flow!r}"
            raise ConfigError(msg, key="flow", value=flow, allowed="A-B")
        source, target = _two_ends(topology, ends[0], ends[1], "flow")
        inner = isinstance(source, int) and isinstance(target, int)
        through = FORWARDING if inner else EVERYTHING
        routes.append(find_routes(net, source, checked, through)[target])
    rates = fair_rates(routes, net.capacities())
    rows = [
        {"flow": flow, "path": list(route.path), "alone_gb_per_s": route.gb_per_s, "gb_per_s": rate}
        for flow, route, rate in zip(flows, routes, rates, strict=True)
    ]
    return {"node": topology.node.name, "route": checked, "flows": rows}


def check_choice(choice: str) -> Choice:
    """Return a kind of route, or say which there are."""
    for known in CHOICES:
        if choice == known:
            return known
    msg = f"--route: unknown route {choice!r}; known: {', '.join(CHOICES)}"
    raise ConfigError(msg, key="route", value=choice, allowed=list(CHOICES))


def _two_ends(topology: Topology, first: str, last: str, key: str) -> tuple[End, End]:
    source, target = _end(topology, first), _end(topology, last)
    if source == target:
        msg = f"{key}: a route joins two different ends, got {first} twice"
        raise ConfigError(msg, key=key, value=[first, last], allowed="two different ends")
    return source, target


def _end(topology: Topology, text: str) -> End:
    end: End = int(text) if text.isdecimal() else text
    known = [vertex.end for vertex in topology.vertices]
    if end not in known:
        names = ", ".join(str(end) for end in known if isinstance(end, str))
        others = f", {names}" if names else ""
        most = topology.num_devices - 1
        msg = f"the node has no {text!r}; it has devices 0 to {most}{others}"
        raise ConfigError(msg, key="ends", value=text, allowed=[str(end) for end in known])
    return end


def _route(route: Route, start_us: float) -> dict[str, Any]:
    return {
        "path": list(route.path),
        "hops": route.hops,
        "gb_per_s": route.gb_per_s,
        "latency_us": start_us + route.latency_us,
    }


def show_cluster(cluster: Cluster) -> dict[str, Any]:
    """Return a cluster: its parts, what a host finds on its way to others, and its graph."""
    network = cluster.network
    return {
        "node": cluster.topology.node.name,
        "network": network.name,
        "hosts": cluster.hosts,
        "devices": cluster.hosts * network.gpus_per_node,
        "pods": cluster.pods,
        "zones": cluster.zones,
        "rail_optimised": network.rail_optimised,
        "adapters": network.nics_per_node,
        "adapter_gb_per_s": cluster.adapter_gb_per_s,
        "folded": cluster.folded,
        "reach": [reach._asdict() for reach in find_reaches(cluster)],
        "vertices": [
            {"name": vertex.end, "kind": vertex.kind, "group": vertex.group, "parts": vertex.parts}
            for vertex in cluster.vertices
        ],
        "links": [
            {"a": link.a, "b": link.b, "tier": link.tier, "links": link.width,
             "gb_per_s": link.gb_per_s, "latency_us": link.latency_us}
            for link in cluster.links
        ],
    }  # fmt: skip
