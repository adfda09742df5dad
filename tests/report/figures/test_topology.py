"""Drawings of nodes."""

from itertools import combinations

import pytest

from projector.config import resources
from projector.report.figures.figure import style
from projector.report.figures.topology import arranged, node_figure, tier_styles
from projector.topology.build import load_topology
from projector.topology.node import KIND


@pytest.mark.rotated
@pytest.mark.parametrize("name", resources.shipped(KIND))
def test_every_node_is_drawn_with_all_it_has(name):
    topology = load_topology(name)
    with style():
        figure = node_figure(topology)
        figure.draw_without_rendering()
    (axes,) = figure.axes
    texts = [text.get_text() for text in axes.texts]
    assert {str(number) for number in range(topology.num_devices)} <= set(texts)
    numa = sum(vertex.kind == "numa" for vertex in topology.vertices)
    assert sum(text.startswith("NUMA ") for text in texts) == numa
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert len(legend) == len(tier_styles(topology))
    assert topology.node.name in figure.get_suptitle()


def test_texts_of_the_drawing_do_not_overlap():
    with style():
        figure = node_figure(load_topology("mi250x"))
        figure.draw_without_rendering()
    (axes,) = figure.axes
    boxes = [text.get_window_extent() for text in axes.texts if not text.get_rotation() % 90]
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))


def test_packages_stand_together_and_few_links_cross():
    topology = load_topology("mi250x")
    order = arranged(topology)
    assert sorted(order) == list(range(8))
    groups = [next(i for i, group in enumerate(topology.packages) if n in group) for n in order]
    assert [groups[i] == groups[i + 1] for i in range(0, 8, 2)] == [True] * 4
    # Wide links join neighbours on the circle.
    place = {number: i for i, number in enumerate(order)}
    for link in topology.device_links():
        if link.tier != "single":
            assert (place[link.a] - place[link.b]) % 8 in {1, 7}


def test_wide_links_are_drawn_wide():
    styles = tier_styles(load_topology("mi250x"))
    widths = [styles[name].width for name in ("quad", "dual", "single", "nic")]
    assert widths == sorted(widths, reverse=True)
    assert len({each.colour for each in styles.values()}) == len(styles)


def test_links_beside_a_switch_are_drawn():
    node = {
        "name": "mixed", "device": "h100", "devices": 4,
        "tiers": {"hub": {"gb_per_s": 10, "latency_us": 1},
                  "pair": {"gb_per_s": 5, "latency_us": 1}},
        "switch": {"tier": "hub"}, "links": {"pair": [[0, 3]]},
    }  # fmt: skip
    with style():
        figure = node_figure(load_topology(node))
        figure.draw_without_rendering()
    assert {"pair: 5 GB/s", "hub: 10 GB/s"} == {
        text.get_text() for text in figure.axes[0].get_legend().get_texts()
    }
