"""Routes, matrices and contention, compared with networkx on random graphs."""

from itertools import combinations, pairwise

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.errors import ConfigError
from projector.topology.build import (
    Link,
    Vertex,
    as_graph,
    cut_rates,
    load_topology,
    net_of,
    node_net,
)
from projector.topology.routes import EVERYTHING, fair_rates, find_matrices, find_route, find_routes

MI250X_HOPS = "01122212 10212122 12011222 21102221 22120112 21221021 12221201 22212110"
"""Figure 6a of the study of this node, row by row."""


def test_hops_of_mi250x_are_those_of_the_paper():
    expected = [[int(hop) for hop in row] for row in MI250X_HOPS.split()]
    assert [list(row) for row in find_matrices(load_topology("mi250x")).hops] == expected


def test_two_pairs_of_mi250x_have_a_widest_route_that_is_not_a_shortest():
    net = node_net(load_topology("mi250x"))
    longer = {}
    for a, b in combinations(range(8), 2):
        widest, shortest = find_route(net, a, b), find_route(net, a, b, "shortest")
        if widest.hops > shortest.hops:
            longer[a, b] = widest.path
    assert longer == {(1, 7): (1, 0, 6, 7), (3, 5): (3, 2, 4, 5)}


def test_latencies_of_mi250x_are_those_of_the_paper():
    """Ranges as printed (section V); the middle of each within 10 %."""
    latency = find_matrices(load_topology("mi250x")).latency_us
    ranges = dict.fromkeys([(0, 2), (1, 3), (1, 5), (3, 7), (4, 6), (5, 7)], (8.7, 10.0))
    ranges |= dict.fromkeys([(0, 1), (2, 3), (4, 5), (6, 7)], (10.5, 10.8))
    ranges |= dict.fromkeys([(1, 7), (3, 5)], (17.8, 18.2))
    for a, b in combinations(range(8), 2):
        assert latency[a][b] == latency[b][a]
        # What the paper says of the other pairs: not below 10, and no outliers.
        low, high = ranges.get((a, b), (10.0, 17.8))
        assert low <= latency[a][b] <= high
        if (a, b) in ranges:
            assert latency[a][b] == pytest.approx((low + high) / 2, rel=0.1)


def test_a_switch_is_not_a_stop():
    topology = load_topology("h100")
    matrices = find_matrices(topology)
    assert {hop for row in matrices.hops for hop in row} == {0, 1}
    assert matrices.latency_us[0][7] == topology.device.scale_up_latency_us
    assert matrices.gb_per_s[0][7] == topology.device.scale_up_gb_per_s
    assert matrices.gb_per_s[3][3] is None


def test_host_memory_is_reached_through_the_own_domain():
    net = node_net(load_topology("mi250x"))
    assert find_route(net, 0, "numa3", through=EVERYTHING).path == (0, "port3", "numa3")
    # Another domain costs a hop between domains and no bandwidth.
    far = find_route(net, 0, "numa1", through=EVERYTHING)
    assert far.path == (0, "port3", "numa3", "numa1")
    assert far.gb_per_s == 36.0
    # Traffic between devices never crosses the host.
    ends = [end for route in find_routes(net, 1).values() for end in route.path[:-1]]
    assert all(isinstance(end, int) or end.startswith("port") for end in ends)


def test_unknown_ends_are_named():
    net = node_net(load_topology("mi250x"))
    with pytest.raises(ConfigError, match="there is no 8 in the node"):
        find_route(net, 8, 0)
    with pytest.raises(ConfigError, match="there is no 'nic9'"):
        find_route(net, 0, "nic9")
    with pytest.raises(ConfigError, match="nothing leads from 'numa0' to 7"):
        find_route(net, "numa0", 7, through=())


@st.composite
def graphs(draw):
    count = draw(st.integers(2, 7))
    pairs = list(combinations(range(count), 2))
    kept = draw(st.lists(st.sampled_from(pairs), unique=True, min_size=1))
    rates = st.sampled_from([10.0, 20.0, 50.0, 100.0])
    links = [Link(a, b, "", 1, draw(rates), draw(st.integers(1, 4)) / 4) for a, b in sorted(kept)]
    return [Vertex(end, "device", 0) for end in range(count)], links


@given(graphs())
def test_routes_are_those_that_networkx_finds(drawn):
    vertices, links = drawn
    net, graph = net_of(vertices, links), as_graph(vertices, links)
    rate = dict.fromkeys(graph.edges)
    rate = {frozenset(edge): graph.edges[edge]["gb_per_s"] for edge in rate}
    tree = nx.maximum_spanning_tree(graph, weight="gb_per_s")
    widest, shortest = find_routes(net, 0), find_routes(net, 0, "shortest")
    reached = nx.node_connected_component(graph, 0)
    assert widest.keys() == shortest.keys() == reached

    def width(path):
        return min(rate[frozenset(edge)] for edge in pairwise(path))

    for end in reached - {0}:
        assert widest[end].gb_per_s == width(nx.shortest_path(tree, 0, end))
        wide = nx.Graph(
            edge for edge in graph.edges if rate[frozenset(edge)] >= widest[end].gb_per_s
        )
        assert widest[end].hops == nx.shortest_path_length(wide, 0, end)
        every = list(nx.all_shortest_paths(graph, 0, end))
        assert shortest[end].hops == len(every[0]) - 1
        assert shortest[end].gb_per_s == max(map(width, every))


@given(graphs(), st.data())
def test_shares_are_fair_and_fill_links(drawn, data):
    net = net_of(*drawn)
    routes = [route for route in find_routes(net, 0).values() if route.hops]
    if not routes:
        return
    flows = data.draw(st.lists(st.sampled_from(routes), min_size=1, max_size=6))
    capacities = net.capacities()
    rates = fair_rates(flows, capacities)
    used = {}
    for route, rate in zip(flows, rates, strict=True):
        assert 0.0 < rate <= route.gb_per_s * (1 + 1e-9)
        for link in pairwise(route.path):
            used.setdefault(link, []).append(rate)
    assert all(sum(shares) <= capacities[link] * (1 + 1e-9) for link, shares in used.items())
    # Every flow has a full link on which nobody gets more: to raise it takes from one with less.
    for route, rate in zip(flows, rates, strict=True):
        assert any(
            sum(used[link]) >= capacities[link] * (1 - 1e-9)
            and max(used[link]) <= rate * (1 + 1e-9)
            for link in pairwise(route.path)
        )


@pytest.mark.parametrize("name", ["mi250x", "mi300x", "gb200_nvl72"])
def test_rates_of_all_routes_are_largest_flows(name):
    topology = load_topology(name)
    inner = [vertex for vertex in topology.vertices if vertex.kind in {"device", "switch"}]
    graph = as_graph(inner, topology.device_links())
    rates = cut_rates(topology)
    for a, b in list(combinations(range(topology.num_devices), 2))[:28]:
        assert rates[a, b] == rates[b, a]
        assert rates[a, b] == pytest.approx(nx.maximum_flow_value(graph, a, b, capacity="gb_per_s"))
        assert rates[a, b] >= find_route(node_net(topology), a, b).gb_per_s


def test_a_limited_sender_leaves_the_rest_to_others():
    net = node_net(load_topology("mi250x"))
    routes = [find_route(net, 0, 2), find_route(net, 1, 2)]
    assert fair_rates(routes, net.capacities()) == [25.0, 25.0]
    assert fair_rates(routes, net.capacities(), [10.0, 100.0]) == [10.0, 40.0]
    # The other direction of a link is free.
    back = find_route(net, 2, 0)
    assert fair_rates([routes[0], back], net.capacities()) == [50.0, 50.0]
    with pytest.raises(ConfigError, match="crosses no link"):
        fair_rates([find_route(net, 0, 0)], net.capacities())
