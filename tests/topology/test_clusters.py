"""Clusters as graphs: rails, pods, taper, and folding."""

import networkx as nx
import pytest

from projector.errors import ConfigError
from projector.topology import cluster as clusters
from projector.topology.build import as_graph, net_of
from projector.topology.cluster import build_cluster, find_reaches, load_node
from projector.topology.routes import find_routes

THREE_TIERS = (
    "network.pod_nodes=4",
    "network.core_pods=2",
    "network.pod_oversubscription=2",
    "network.core_oversubscription=7",
    "network.spine_latency_us=1.5",
    "network.core_latency_us=2",
)


def three_tiers(hosts, *more):
    return build_cluster(load_node("h100", (*THREE_TIERS, *more)), hosts)


def flow_between(cluster, sources, targets):
    """Return the most that some hosts can send to others, adapters all busy."""
    graph = as_graph(cluster.vertices, cluster.links).to_directed()
    for side, ends in (("from", sources), ("to", targets)):
        for end in ends:
            pair = (side, end) if side == "from" else (end, side)
            graph.add_edge(*pair)  # without a capacity: no limit
    return nx.maximum_flow_value(graph, "from", "to", capacity="gb_per_s")


def test_a_host_in_three_tiers():
    cluster = three_tiers(16)
    assert (cluster.pods, cluster.zones, cluster.folded) == (4, 2, False)
    routes = find_routes(net_of(cluster.vertices, cluster.links), "host0")
    near, pod, zone = routes["host3"], routes["host4"], routes["host8"]
    assert near.path == ("host0", "leaf_0_rail0", "host3")
    assert pod.path == ("host0", "leaf_0_rail0", "spine_0", "leaf_1_rail0", "host4")
    assert zone.path[2:5] == ("spine_0", "core", "spine_1")
    nic = cluster.network.nic_latency_us
    assert [route.latency_us for route in (near, pod, zone)] == [nic, nic + 1.5, nic + 3.5]
    # A message on one rail gets one adapter, however tapered the bundles above are.
    assert {near.gb_per_s, pod.gb_per_s, zone.gb_per_s} == {50.0}


def test_reaches_are_those_of_the_graph():
    cluster = three_tiers(16)
    hosts = [f"host{i}" for i in range(16)]
    pod, zone, everything = hosts[:4], hosts[:8], hosts
    near, other_pods, other_zones = find_reaches(cluster)
    routes = find_routes(net_of(cluster.vertices, cluster.links), "host0")
    for reach, to in ((near, "host1"), (other_pods, "host5"), (other_zones, "host15")):
        assert reach.latency_us == routes[to].latency_us
        assert reach.switches == len(routes[to].path) - 2
        assert reach.alone_gb_per_s == flow_between(cluster, ["host0"], [to])
    shared = flow_between(cluster, pod, [host for host in everything if host not in pod]) / 4
    assert other_pods.shared_gb_per_s == pytest.approx(shared)
    shared = flow_between(cluster, zone, hosts[8:]) / 8
    assert other_zones.shared_gb_per_s == pytest.approx(shared)
    assert flow_between(cluster, pod[:2], pod[2:]) == 2 * near.shared_gb_per_s


@pytest.mark.parametrize("rails", ["true", "false"])
def test_a_folded_cluster_says_the_same(monkeypatch, rails):
    explicit = three_tiers(24, f"network.rail_optimised={rails}")
    monkeypatch.setattr(clusters, "MOST_EXPLICIT", 4)
    folded = three_tiers(24, f"network.rail_optimised={rails}")
    assert folded.folded
    assert len(folded.vertices) < len(explicit.vertices)
    assert find_reaches(folded) == find_reaches(explicit)
    stands_for = {"pod0": "host1", "other_pods": "host4", "other_zones": "host8"}
    one, all_of = (
        find_routes(net_of(each.vertices, each.links), "host0") for each in (folded, explicit)
    )
    for group, host in stands_for.items():
        assert one[group].latency_us == all_of[host].latency_us
        assert one[group].gb_per_s == all_of[host].gb_per_s
        assert len(one[group].path) == len(all_of[host].path)
    # Cuts between groups carry as much.
    hosts = [f"host{i}" for i in range(24)]
    assert flow_between(folded, ["host0", "pod0"], ["other_pods", "other_zones"]) == (
        pytest.approx(flow_between(explicit, hosts[:4], hosts[4:]))
    )
    assert flow_between(folded, ["host0", "pod0", "other_pods"], ["other_zones"]) == (
        pytest.approx(flow_between(explicit, hosts[:8], hosts[8:]))
    )


@pytest.mark.parametrize(
    ("hosts", "pod", "core", "rails"),
    [
        (hosts, pod, core, rails)
        for hosts in (1, 2, 31, 64, 65, 1000, 16_384, 131_072)
        for pod, core in ((0, 0), (1, 0), (1, 8), (32, 0), (32, 8))
        for rails in ("true", "false")
    ],
)
def test_every_size_is_connected_and_small(hosts, pod, core, rails):
    more = (f"network.pod_nodes={pod}", f"network.core_pods={core}",
            f"network.rail_optimised={rails}")  # fmt: skip
    cluster = build_cluster(load_node("mi300x", more), hosts)
    ends = [vertex for vertex in cluster.vertices if vertex.kind == "host"]
    assert sum(vertex.parts for vertex in ends) == hosts
    assert len(cluster.vertices) < 700
    graph = as_graph(cluster.vertices, cluster.links)
    assert nx.is_connected(graph)
    adapters = [link for link in cluster.links if link.tier == "adapter"]
    assert sum(link.width for link in adapters) == hosts * cluster.network.nics_per_node
    assert sum(reach.hosts for reach in find_reaches(cluster)) == hosts - 1


def test_trays_of_a_rack_are_hosts():
    cluster = build_cluster(load_node("gb200_nvl72"), 36)
    assert cluster.host_gb_per_s == 4 * 50.0


def test_overrides_reach_device_and_network():
    topology = load_node("mi250x", ("device.scale_up_peer_gb_per_s=40",))
    assert topology.links[0].gb_per_s == 160.0
    efa = build_cluster(load_node("h100", network="p5_efa"), 2)
    assert efa.host_gb_per_s == 32 * 12.5
    with pytest.raises(ConfigError, match="'pods' is neither"):
        load_node("h100", ("pods=3",))
    with pytest.raises(ConfigError, match="unknown key 'pod_size'"):
        load_node("h100", ("network.pod_size=3",))
    with pytest.raises(ConfigError, match="at least 1"):
        build_cluster(load_node("h100"), 0)
