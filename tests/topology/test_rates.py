"""Rates of rings, pairs and exchanges in irregular nodes."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog

from projector.config.device_file import load_device
from projector.topology.build import load_topology
from projector.topology.rates import is_regular, largest_sum, local_rates


@given(
    arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 12)),
           elements=st.sampled_from([0.0, 1.0, 2.0])),
    st.data(),
)  # fmt: skip
def test_the_best_mix_is_that_of_scipy(loads, data):
    loads[0] += loads.sum(axis=0) == 0.0  # every ring crosses some link
    limits = data.draw(
        arrays(np.float64, loads.shape[0], elements=st.sampled_from([1.0, 2.0, 4.0]))
    )
    best = linprog(-np.ones(loads.shape[1]), A_ub=loads, b_ub=limits)
    assert largest_sum(loads, limits) == pytest.approx(-best.fun, rel=1e-9)


def test_rings_of_mi250x_are_those_that_rccl_ships():
    """Two rings through all eight, each in both directions, one link wide: rome_model_73."""
    topology = load_topology("mi250x")
    rings = local_rates(topology).ring_gb_per_s
    widths = {frozenset((link.a, link.b)): link.width for link in topology.device_links()}
    load = dict.fromkeys(widths, 0)
    for order in ([0, 1, 3, 2, 4, 5, 7, 6], [0, 1, 5, 4, 6, 7, 3, 2]):
        for a, b in pairwise([*order, 0]):
            load[frozenset((a, b))] += 1
    assert all(load[link] <= widths[link] for link in widths)
    assert rings[8] == 2 * 2 * 50.0
    # One ring less with one device less: what the study sees between 7 and 8.
    assert rings[7] == 100.0
    assert rings[2] == 200.0
    assert np.all(rings[9:] == 0.0)


def test_rates_follow_those_of_the_device():
    slow = load_device({"extends": "mi250x", "scale_up_peer_gb_per_s": 25.0})
    once, half = (
        local_rates(load_topology("mi250x", device=device))
        for device in (load_device("mi250x"), slow)
    )
    for a, b in zip(once, half, strict=True):
        np.testing.assert_allclose(b, 0.5 * a)


def test_pairs_and_exchanges_of_mi250x():
    rates = local_rates(load_topology("mi250x"))
    assert list(rates.pair_gb_per_s[2:9]) == [200.0, *[50.0] * 6]
    # All eight at once: no more than the six single links between the halves {0, 1, 6, 7} and
    # {2, 3, 4, 5} let through, which 16 of the 56 flows cross each way.
    assert rates.exchange_gb_per_s[8] <= 6 * 50.0 / 16 * 7
    assert np.all(rates.exchange_gb_per_s[2:9] > 0.0)


def test_regular_nodes_need_no_list():
    topology = load_topology("h100")
    assert is_regular(topology)
    assert not np.any(local_rates(topology))


def test_a_ring_of_equal_links_is_irregular():
    """Few links, all alike: not every pair is joined, so that the form of a mesh does not hold."""
    count = 12
    ring = [[i, (i + 1) % count] for i in range(count)]
    node = {
        "name": "ring", "device": "mi250x", "devices": count,
        "tiers": {"link": {"gb_per_s": 10.0, "latency_us": 1.0}}, "links": {"link": ring},
    }  # fmt: skip
    rates = local_rates(load_topology(node))
    # Both directions of the one ring; shorter groups are forwarded along an arc.
    assert rates.ring_gb_per_s[count] == 20.0
    assert np.all(rates.ring_gb_per_s[2:count] > 0.0)
    assert rates.pair_gb_per_s[count] == 10.0


def test_rings_of_a_torus_use_most_links():
    """Two rings of a 4 x 4 torus cover all its links, so that 400 GB/s is the most."""
    across = [[4 * row + i, 4 * row + (i + 1) % 4] for row in range(4) for i in range(4)]
    down = [[4 * i + column, 4 * ((i + 1) % 4) + column] for column in range(4) for i in range(4)]
    node = {
        "name": "torus", "device": "mi250x", "devices": 16,
        "tiers": {"link": {"gb_per_s": 100.0, "latency_us": 1.0}},
        "links": {"link": across + down},
    }  # fmt: skip
    assert 360.0 < local_rates(load_topology(node)).ring_gb_per_s[16] <= 400.0 * (1.0 + 1e-9)


def test_a_full_mesh_agrees_with_its_closed_form():
    """The search finds all links of a mesh, of which the closed form knows."""
    count = 5
    others = [[i, j] for j in range(2, count) for i in range(j)]
    node = {
        "name": "mesh", "device": "mi250x", "devices": count,
        "tiers": {"a": {"gb_per_s": 10.0, "latency_us": 1.0},
                  "b": {"gb_per_s": 10.0, "latency_us": 1.1}},
        "links": {"a": [[0, 1]], "b": others},
    }  # fmt: skip
    rates = local_rates(load_topology(node))
    np.testing.assert_allclose(rates.ring_gb_per_s[2:6], [10.0, 20.0, 30.0, 40.0])
    np.testing.assert_allclose(rates.exchange_gb_per_s[2:6], [10.0, 20.0, 30.0, 40.0])
