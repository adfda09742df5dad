"""Drawings of clusters."""

from itertools import combinations

import pytest

from projector.report.figures.cluster import cluster_figure, pod_places
from projector.report.figures.figure import style
from projector.topology.cluster import build_cluster, load_node

CASES = {
    "one host": ("mi250x", 1, ()),
    "two tiers": ("h100", 4, ()),
    "tapered pods": ("mi300x", 512, ("network.pod_nodes=32", "network.pod_oversubscription=2")),
    "plain": ("mi300x", 100, ("network.pod_nodes=32", "network.rail_optimised=false")),
    "three tiers": ("h100", 16_384, ("network.pod_nodes=32", "network.core_pods=8")),
    "racks": ("gb200_nvl72", 72, ("network.pod_nodes=18",)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_cluster_is_drawn_without_texts_on_texts(name):
    node, hosts, assignments = CASES[name]
    cluster = build_cluster(load_node(node, assignments), hosts)
    with style():
        figure = cluster_figure(cluster)
        figure.draw_without_rendering()
    (axes,) = figure.axes
    texts = [text.get_text() for text in axes.texts]
    assert f"host {hosts - 1:,}" in texts
    assert ("core switches" in texts) == (cluster.zones > 1)
    boxes = [text.get_window_extent() for text in axes.texts if text.get_text() != "· · ·"]
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))


def test_the_last_pod_may_be_smaller():
    places = pod_places(build_cluster(load_node("mi300x", CASES["plain"][2]), 100))
    assert [place.pod for place in places] == [0, 1, 2, 3]
    assert places[-1].hosts == (96, 97, 98, 99)
