"""What the command line says about a node, a cluster and transfers, as plain values for JSON."""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np

from projector.arrays import Floats
from projector.envelope import told
from projector.errors import ConfigError
from projector.topology import routes as paths
from projector.topology import transfers
from projector.topology.build import Link, Topology, Vertex, cut_rates, node_net
from projector.topology.cluster import Cluster, find_reaches
from projector.topology.node import End
from projector.topology.rates import is_regular, local_rates
from projector.units import GB, MICROSECOND


def show_node(topology: Topology) -> dict[str, Any]:
    """Return the parts of a node: devices, vertices, tiers, links."""
    node = topology.node
    return {
        "node": node.name,
        "device": topology.device.name,
        "network": topology.network.name,
        "devices": list(range(topology.num_devices)),
        "packages": [list(members) for members in topology.packages],
        "vertices": _vertices(topology.vertices),
        "tiers": [
            _link(link) | {"bundles": sum(other.tier == link.tier for other in topology.links)}
            for link in {link.tier: link for link in topology.links}.values()
        ],
        "links": _links(topology.links),
        "rates": _rates(topology),
        "sources": dict(node.sources),
    }


def _vertices(vertices: Iterable[Vertex]) -> list[dict[str, Any]]:
    return [{"name": each.end, **told(each, "kind group parts")} for each in vertices]


def _links(links: Iterable[Link]) -> list[dict[str, Any]]:
    return [told(each, "a b") | _link(each) for each in links]


def _link(link: Link) -> dict[str, Any]:
    return {"tier": link.tier, "links": link.width, **told(link, "gb_per_s latency_us")}


_RATES = ("ring_gb_per_s", "exchange_gb_per_s", "pair_gb_per_s")


def _rates(topology: Topology) -> list[dict[str, Any]]:
    """Return what collectives among the first devices reach, where the node is irregular."""
    if is_regular(topology):
        return []
    rates = local_rates(topology)
    return [
        {"devices": int(n), **{name: float(getattr(rates, name)[n]) for name in _RATES}}
        for n in np.flatnonzero(rates.ring_gb_per_s)
    ]


def show_matrix(
    topology: Topology, choice: str = "widest", engine: str | None = None
) -> dict[str, Any]:
    """Return hops, rates (of links or an engine) and latencies of devices as square lists."""
    checked = check_choice(choice)
    if engine is None:
        matrices = paths.find_matrices(topology, checked)
    else:
        matrices = transfers.engine_matrices(topology, engine, choice=checked)
    return {
        "node": topology.node.name,
        "route": checked,
        "engine": engine,
        **told(matrices, "devices hops"),
        "bandwidth_gb_per_s": [list(row) for row in matrices.gb_per_s],
        **told(matrices, "latency_us"),
    }


def show_routes(topology: Topology, ends: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the shortest and the widest route of two ends, or of every pair of devices.

    Ends are numbers of devices or names of other vertices. Two devices also have the rate of all
    their routes at once.
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
    through = paths.FORWARDING if numbers else paths.EVERYTHING
    together = cut_rates(topology) if numbers else {}
    found: dict[tuple[End, paths.Choice], dict[End, paths.Route]] = {}
    rows = []
    for source, target in pairs:
        for choice in paths.CHOICES:
            if (source, choice) not in found:
                found[source, choice] = paths.find_routes(net, source, choice, through)
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
        through = paths.FORWARDING if inner else paths.EVERYTHING
        routes.append(paths.find_routes(net, source, checked, through)[target])
    rates = paths.fair_rates(routes, net.capacities())
    rows = [
        {"flow": flow, "path": list(route.path), "alone_gb_per_s": route.gb_per_s, "gb_per_s": rate}
        for flow, route, rate in zip(flows, routes, rates, strict=True)
    ]
    return {"node": topology.node.name, "route": checked, "flows": rows}


def check_choice(choice: str) -> paths.Choice:
    """Return a kind of route, or say which there are."""
    for known in paths.CHOICES:
        if choice == known:
            return known
    msg = f"--route: unknown route {choice!r}; known: {', '.join(paths.CHOICES)}"
    raise ConfigError(msg, key="route", value=choice, allowed=list(paths.CHOICES))


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


def _route(route: paths.Route, start_us: float) -> dict[str, Any]:
    return {**told(route, "path hops gb_per_s"), "latency_us": start_us + route.latency_us}


def show_cluster(cluster: Cluster) -> dict[str, Any]:
    """Return a cluster: its parts, what a host finds on its way to others, and its graph."""
    network = cluster.network
    return {
        "node": cluster.topology.node.name,
        "network": network.name,
        "hosts": cluster.hosts,
        "devices": cluster.hosts * network.gpus_per_node,
        **told(cluster, "pods zones"),
        "rail_optimised": network.rail_optimised,
        "adapters": network.nics_per_node,
        "adapter_gb_per_s": cluster.adapter_gb_per_s,
        "folded": cluster.folded,
        "reach": [reach._asdict() for reach in find_reaches(cluster)],
        "vertices": _vertices(cluster.vertices),
        "links": _links(cluster.links),
    }


def show_transfer(
    topology: Topology,
    source: str,
    target: str,
    num_bytes: float,
    *,
    engine: str | None = None,
    both_directions: bool = False,
    accesses: int = 1,
    choice: paths.Choice = "widest",
    sweep: bool = False,
) -> dict[str, Any]:
    """Return a transfer by one engine or by every engine that works there, the fastest first.

    An end is the number of a device, ``host``, or the name of a NUMA domain. ``sweep`` adds other
    sizes, and the sizes at which the fastest engine changes.
    """
    first, last = end_named(source), end_named(target)
    names = [engine] if engine is not None else transfers.serving_engines(topology, first, last)
    if not names:
        msg = f"{topology.node.name} describes no engine between {source} and {target}"
        raise ConfigError(msg, key="engine", value=None, allowed="an engine of the node file")
    ways = [
        transfers.find_way(
            topology, first, last, name, both_directions=both_directions, choice=choice
        )
        for name in names
    ]
    shows = partial(_row, both_directions=both_directions, accesses=accesses)
    rows = sorted((shows(way, num_bytes) for way in ways), key=lambda row: float(row["time_us"]))
    shown = {
        "node": topology.node.name,
        "from": ways[0].route.path[0],
        "to": ways[0].route.path[-1],
        "bytes": int(num_bytes),
        "both_directions": both_directions,
        "accesses": accesses,
        **rows[0],
        "engines": rows,
    }
    if sweep:
        sizes = []
        for size in transfers.SWEEP_BYTES:
            rows = [shows(way, float(size)) for way in ways]
            fastest = min(rows, key=lambda row: float(row["time_us"]))
            times = {
                row["engine"]: {key: row[key] for key in ("time_us", "gb_per_s")} for row in rows
            }
            told = {key: fastest[key] for key in ("engine", "time_us", "gb_per_s")}
            sizes.append({"bytes": int(size), **told, "engines": times})
        shown |= {"sizes": sizes, "crossovers": _crossovers(ways, accesses)}
    return shown


def show_sharing(
    topology: Topology,
    flows: Sequence[tuple[str, str]],
    *,
    engine: str | None = None,
    both_directions: bool = False,
) -> dict[str, Any]:
    """Return the rates of large messages that move at the same time, for one engine or all."""
    ends = [(end_named(first), end_named(last)) for first, last in flows]
    serving = [transfers.serving_engines(topology, *flow) for flow in ends]
    common = [name for name in serving[0] if all(name in each for each in serving)]
    names = [engine] if engine is not None else common
    if not names:
        between = ", ".join(f"{first}-{last}" for first, last in flows)
        msg = f"no engine of {topology.node.name} serves all of {between}"
        raise ConfigError(msg, key="to", value=between, allowed="flows of one engine")
    found = []
    for name in names:
        rates = transfers.shared_rates(topology, ends, engine=name, both_directions=both_directions)
        alone = [
            transfers.find_way(topology, *flow, name, both_directions=both_directions).gb_per_s
            for flow in ends
        ]
        total = sum(rates) * (2.0 if both_directions else 1.0)
        each = [
            {"from": first, "to": last, "gb_per_s": rate, "alone_gb_per_s": single}
            for (first, last), rate, single in zip(flows, rates, alone, strict=True)
        ]
        found.append({"engine": name, "total_gb_per_s": total, "flows": each})
    return {"node": topology.node.name, "both_directions": both_directions, "engines": found}


def end_named(text: str) -> End:
    """Return an end as the command line names it: a number, ``host`` or a name."""
    return int(text) if text.isascii() and text.isdigit() else text


def _row(
    way: transfers.Way, num_bytes: float, *, both_directions: bool, accesses: int
) -> dict[str, Any]:
    seconds = float(way.seconds(num_bytes, accesses=accesses))
    rate = num_bytes / seconds / GB if seconds else 0.0
    # A copy within a device reads and writes the same memory.
    return {
        "engine": way.engine,
        "what": way.numbers.what,
        "time_us": seconds / MICROSECOND,
        "gb_per_s": rate,
        "total_gb_per_s": rate * (2.0 if both_directions or way.place == "local" else 1.0),
        "peak_gb_per_s": way.gb_per_s,
        **told(way, "low_gb_per_s high_gb_per_s"),
        "link_gb_per_s": way.route.gb_per_s if np.isfinite(way.route.gb_per_s) else None,
        "latency_us": way.latency_us,
        **told(way.route, "path hops"),
        "compute_units": way.numbers.compute_units,
    }


def _crossovers(ways: Sequence[transfers.Way], accesses: int) -> list[dict[str, Any]]:
    """Return the sizes at which the fastest engine changes; equal engines do not change."""
    fine = 2.0 ** np.arange(8.0, 33.001, 1.0 / 64.0)
    times: Floats = np.stack([way.seconds(fine, accesses=accesses) for way in ways])
    least = times.min(axis=0)
    found: list[dict[str, Any]] = []
    current = int(np.argmin(times[:, 0]))
    for column in range(1, len(fine)):
        if times[current, column] <= least[column] * (1.0 + 1e-9):
            continue
        following = int(np.argmin(times[:, column]))
        size = float(fine[column - 1])
        found.append(
            {"bytes": round(size), "from": ways[current].engine, "to": ways[following].engine}
        )
        current = following
    return found
