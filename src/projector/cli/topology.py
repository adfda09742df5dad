"""``projector topology``."""

from typing import Any

import click

from projector.cli.given import refuse_idle
from projector.cli.job_options import output_options
from projector.cli.output import plain_envelope, print_json, print_report, say

_NODE = click.argument("node", metavar="NODE")
_ASSIGNMENTS = click.argument("assignments", nargs=-1, metavar="[KEY=VALUE]...")
_NODES = click.option(
    "--nodes", type=int, metavar="N", help="A cluster of N nodes (hosts) instead of one."
)
_NETWORK = click.option("--network", metavar="NAME", help="Network instead of the node's own.")
_ROUTE = click.option(
    "--route",
    default="widest",
    show_default=True,
    metavar="widest|shortest",
    help="Route whose rate and latency are shown.",
)


@click.group("topology")
def command() -> None:
    """Show a node as a graph: parts, routes, matrices, drawing.

    NODE is a shipped name (mi250x, h100, gb200_nvl72, ...) or a file; docs/topology.md says how to
    write one. Rates are those of links, per direction, before any efficiency.
    """


@command.command("show")
@_NODE
@_ASSIGNMENTS
@_NODES
@_NETWORK
@output_options
def show(
    node: str,
    assignments: tuple[str, ...],
    nodes: int | None,
    network: str | None,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Show the parts of a node and its tiers of links, or with --nodes a cluster of it.

    KEY=VALUE changes a number of the device or network: device.scale_up_peer_gb_per_s=40,
    network.pod_nodes=32, network.pod_oversubscription=2.
    """
    del quiet
    from projector.topology.cluster import build_cluster, load_node
    from projector.topology.shown import show_cluster, show_node

    topology = load_node(node, assignments, network)
    if nodes is not None:
        shown = show_cluster(build_cluster(topology, nodes))
    else:
        shown = show_node(topology)
    if as_json:
        print_json({**plain_envelope(), **shown})
        return
    from projector.report.terminal.topology import cluster_report, node_report

    print_report(node_report(shown) if nodes is None else cluster_report(shown))


@command.command("matrix")
@_NODE
@_ROUTE
@click.option("--engine", metavar="E", help="What this engine of the node file reaches.")
@output_options
def matrix(node: str, route: str, engine: str | None, *, as_json: bool, quiet: bool) -> None:
    """Show hops, bandwidth and latency between every two devices.

    Hops are those of the shortest route. Bandwidth and latency are those of the widest one, or of
    the shortest with --route shortest. The bandwidth is that of the links, or with --engine what
    an engine reaches over them.
    """
    del quiet
    from projector.topology.build import load_topology
    from projector.topology.shown import show_matrix

    shown = show_matrix(load_topology(node), route, engine)
    if as_json:
        print_json({**plain_envelope(), **shown})
        return
    from projector.report.terminal.topology import matrix_report

    print_report(matrix_report(shown))


@command.command("routes")
@_NODE
@click.argument("ends", nargs=-1, metavar="[A B]")
@click.option(
    "--flow",
    "flows",
    multiple=True,
    metavar="A-B",
    help="Show the rate of this flow beside the others that are given; may be repeated.",
)
@_ROUTE
@output_options
def routes(
    node: str,
    ends: tuple[str, ...],
    flows: tuple[str, ...],
    route: str,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Show the shortest and the widest route between A and B, or between all devices.

    A and B are numbers of devices, or names such as numa0 and nic3. Flows that share a link share
    its rate in the max-min fair way; they take the route of --route.
    """
    del quiet
    from projector.topology.build import load_topology
    from projector.topology.shown import show_flows, show_routes

    if flows:
        refuse_idle("ends", needs="to be given without --flow")
    else:
        refuse_idle("route", needs="--flow")
    topology = load_topology(node)
    shown = show_flows(topology, flows, route) if flows else show_routes(topology, ends)
    if as_json:
        print_json({**plain_envelope(), **shown})
        return
    from projector.report.terminal.topology import flow_report, route_report

    print_report(flow_report(shown) if flows else route_report(shown))


@command.command("transfer")
@_NODE
@click.option("--from", "source", required=True, metavar="A", help="Device, host or numa0.")
@click.option(
    "--to",
    "targets",
    required=True,
    multiple=True,
    metavar="B",
    help="The same; several B receive at the same time.",
)
@click.option("--engine", metavar="E", help="Engine of the node file; every one by default.")
@click.option(
    "--bytes", "size", default="1GiB", show_default=True, metavar="N", help="Message, e.g. 64MiB."
)
@click.option("--both", "both_directions", is_flag=True, help="As much moves the other way.")
@click.option(
    "--accesses", default=1, show_default=True, metavar="N", help="How often a kernel reads it."
)
@click.option("--sweep", is_flag=True, help="Also show sizes from 256 bytes to 8 GiB.")
@_ROUTE
@output_options
def transfer(
    node: str,
    source: str,
    targets: tuple[str, ...],
    engine: str | None,
    size: str,
    route: str,
    *,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Time a transfer from A to B with the engines that can make it.

    A and B are numbers of devices, host (memory next to the other end) or a NUMA domain such as
    numa0. The same device twice is a copy within its memory. With several B the rates of large
    messages at the same time are shown, which share links fairly.
    """
    del quiet
    from projector.config.formats.shape_table import byte_count
    from projector.report.terminal.transfer import sharing_report, transfer_report
    from projector.topology.build import load_topology
    from projector.topology.shown import check_choice, show_sharing, show_transfer

    topology, choice = load_topology(node), check_choice(route)
    length = byte_count("bytes", size)
    if len(targets) > 1:
        refuse_idle("size", "accesses", "sweep", "route", needs="one --to alone")
        flows = [(source, target) for target in targets]
        both = bool(options["both_directions"])
        shown = show_sharing(topology, flows, engine=engine, both_directions=both)
    else:
        shown = show_transfer(
            topology, source, targets[0], length, engine=engine, choice=choice, **options
        )
    if as_json:
        print_json({**plain_envelope(), **shown})
        return
    print_report(sharing_report(shown) if len(targets) > 1 else transfer_report(shown))


@command.command("plot")
@_NODE
@_ASSIGNMENTS
@_NODES
@_NETWORK
@click.option(
    "--out",
    metavar="FIGURE.png|.svg|.pdf",
    help="Figure to write; NODE.png in the working folder when left out.",
)
@output_options
def plot(
    node: str,
    assignments: tuple[str, ...],
    nodes: int | None,
    network: str | None,
    out: str | None,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Draw a node: devices by package, links by tier, host memory, adapters.

    With --nodes draw a cluster: hosts, rails, leaf, spine and core switches. KEY=VALUE is as in
    show.
    """
    from pathlib import Path

    from projector.report.figures.figure import check_figure
    from projector.topology.cluster import build_cluster, load_node

    target = out or f"{Path(node).stem}.png"
    check_figure(target)
    topology = load_node(node, assignments, network)
    if nodes is None:
        from projector.report.figures.topology import write_node_figure

        write_node_figure(topology, target)
    else:
        cluster = build_cluster(topology, nodes)
        from projector.report.figures.cluster import write_cluster_figure

        write_cluster_figure(cluster, target)
    if as_json:
        print_json({**plain_envelope(), "node": topology.node.name, "figure": target})
    elif not quiet:
        say(f"wrote {target}")
