"""``projector topology``."""

from pathlib import Path

import click

from projector.cli.job import ASSIGNMENTS
from projector.cli.options import argument, command, flag, option, refuse_idle
from projector.cli.output import Printer, check_files, draw, print_plain

_NODE = argument("NODE")
_NODES = option("N", "A cluster of N nodes (hosts) instead of one.")
_NETWORK = option("NAME", "Network instead of the node's own.")
_ROUTE = option("widest|shortest", "Route whose rate and latency are shown.", shown="widest")


@click.group("topology")
def topology() -> None:
    """Show a node as a graph: parts, routes, matrices, drawing.

    NODE is a shipped name (mi250x, h100, gb200_nvl72, ...) or a file; docs/topology.md says how to
    write one. Rates are those of links, per direction, before any efficiency.
    """


@command(topology)
def show(
    *,
    node: str = _NODE,
    assignments: tuple[str, ...] = ASSIGNMENTS,
    nodes: int | None = _NODES,
    network: str | None = _NETWORK,
    printer: Printer,
) -> None:
    """Show the parts of a node and its tiers of links, or with --nodes a cluster of it.

    KEY=VALUE changes a number of the device or network: device.scale_up_peer_gb_per_s=40,
    network.pod_nodes=32, network.pod_oversubscription=2.
    """
    from projector.report.terminal.network import cluster_report, node_report
    from projector.topology.cluster import build_cluster, load_node
    from projector.topology.shown import show_cluster, show_node

    graph = load_node(node, assignments, network)
    if nodes is None:
        printer.show(show_node(graph), node_report)
    else:
        printer.show(show_cluster(build_cluster(graph, nodes)), cluster_report)


@command(topology)
def matrix(
    *,
    node: str = _NODE,
    route: str = _ROUTE,
    engine: str | None = option("E", "What this engine of the node file reaches."),
    printer: Printer,
) -> None:
    """Show hops, bandwidth and latency between every two devices.

    Hops are those of the shortest route. Bandwidth and latency are those of the widest one, or of
    the shortest with --route shortest. The bandwidth is that of the links, or with --engine what
    an engine reaches over them.
    """
    from projector.report.terminal.network import matrix_report
    from projector.topology.build import load_topology
    from projector.topology.shown import show_matrix

    printer.show(show_matrix(load_topology(node), route, engine), matrix_report)


@command(topology)
def routes(
    *,
    node: str = _NODE,
    ends: tuple[str, ...] = argument("[A B]"),
    flows: tuple[str, ...] = option(
        "A-B",
        "Show the rate of this flow beside the others that are given; may be repeated.",
        names="--flow",
    ),
    route: str = _ROUTE,
    printer: Printer,
) -> None:
    """Show the shortest and the widest route between A and B, or between all devices.

    A and B are numbers of devices, or names such as numa0 and nic3. Flows that share a link share
    its rate in the max-min fair way; they take the route of --route.
    """
    from projector.report.terminal.network import flow_report, route_report
    from projector.topology.build import load_topology
    from projector.topology.shown import show_flows, show_routes

    if flows:
        refuse_idle("ends", needs="to be given without --flow")
        printer.show(show_flows(load_topology(node), flows, route), flow_report)
    else:
        refuse_idle("route", needs="--flow")
        printer.show(show_routes(load_topology(node), ends), route_report)


@command(topology)
def transfer(
    *,
    node: str = _NODE,
    source: str = option("A", "Device, host or numa0.", names="--from", required=True),
    targets: tuple[str, ...] = option(
        "B", "The same; several B receive at the same time.", names="--to", required=True
    ),
    engine: str | None = option("E", "Engine of the node file; every one by default."),
    size: str = option("N", "Message, e.g. 64MiB.", shown="1GiB", names="--bytes"),
    both_directions: bool = flag("As much moves the other way.", "--both"),
    accesses: int = option("N", "How often a kernel reads it.", shown=1),
    sweep: bool = flag("Also show sizes from 256 bytes to 8 GiB."),
    route: str = _ROUTE,
    printer: Printer,
) -> None:
    """Time a transfer from A to B with the engines that can make it.

    A and B are numbers of devices, host (memory next to the other end) or a NUMA domain such as
    numa0. The same device twice is a copy within its memory. With several B the rates of large
    messages at the same time are shown, which share links fairly.
    """
    from projector.config.formats.shape_table import byte_count
    from projector.report.terminal.network import sharing_report, transfer_report
    from projector.topology.build import load_topology
    from projector.topology.shown import check_choice, show_sharing, show_transfer

    graph, choice = load_topology(node), check_choice(route)
    length = byte_count("bytes", size)
    if len(targets) > 1:
        refuse_idle("size", "accesses", "sweep", "route", needs="one --to alone")
        flows = [(source, target) for target in targets]
        shown = show_sharing(graph, flows, engine=engine, both_directions=both_directions)
        printer.show(shown, sharing_report)
    else:
        shown = show_transfer(
            graph,
            source,
            targets[0],
            length,
            engine=engine,
            choice=choice,
            both_directions=both_directions,
            accesses=accesses,
            sweep=sweep,
        )
        printer.show(shown, transfer_report)


@command(topology)
def plot(
    *,
    node: str = _NODE,
    assignments: tuple[str, ...] = ASSIGNMENTS,
    nodes: int | None = _NODES,
    network: str | None = _NETWORK,
    out: str | None = option(
        "FIGURE.png|.svg|.pdf", "Figure to write; NODE.png in the working folder when left out."
    ),
    printer: Printer,
) -> None:
    """Draw a node: devices by package, links by tier, host memory, adapters.

    With --nodes draw a cluster: hosts, rails, leaf, spine and core switches. KEY=VALUE is as in
    show.
    """
    from projector.topology.cluster import build_cluster, load_node

    target = out or f"{Path(node).stem}.png"
    check_files(target)
    graph = load_node(node, assignments, network)
    if nodes is None:
        draw(target, "figures.topology.node_figure", graph)
    else:
        cluster = build_cluster(graph, nodes)
        draw(target, "figures.cluster.cluster_figure", cluster)
    if printer.as_json:
        print_plain({"node": graph.node.name, "figure": target})
    else:
        printer.wrote(target)
