"""The graph of a node or a cluster: plain for routes, and as networkx holds it."""

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from projector.topology.build import Kind, Link, Topology, Vertex
from projector.topology.node import End

if TYPE_CHECKING:
    from networkx import Graph

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


def node_graph(topology: Topology) -> "Graph":
    """Return the networkx graph of a node.

    Vertices have ``kind``, ``group`` (package of a device, host of others) and ``parts`` (chips of
    a switch). Edges have ``tier``, ``width`` (links side by side), ``gb_per_s`` (all of them, per
    direction) and ``latency_us``. Links carry both directions at once, so that edges have none.
    """
    return as_graph(topology.vertices, topology.links)


def as_graph(vertices: Iterable[Vertex], links: Iterable[Link]) -> "Graph":
    """Return vertices and links as a networkx graph."""
    from networkx import Graph

    graph = Graph()
    for vertex in vertices:
        graph.add_node(vertex.end, kind=vertex.kind, group=vertex.group, parts=vertex.parts)
    for link in links:
        graph.add_edge(
            link.a,
            link.b,
            tier=link.tier,
            width=link.width,
            gb_per_s=link.gb_per_s,
            latency_us=link.latency_us,
        )
    return graph


def cut_rates(topology: Topology) -> dict[Directed, float]:
    """Return the GB/s that every two devices reach over all routes at once.

    That is their smallest cut (Ford and Fulkerson), found for all pairs in a Gomory-Hu tree.
    """
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
