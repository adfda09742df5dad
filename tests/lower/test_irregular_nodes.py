"""Rings of nodes whose devices are not all joined alike."""

import numpy as np
import pytest

from projector import collective_time
from projector.config.cluster import ClusterConfig
from projector.errors import ConfigError
from projector.lower.fabrics import fabric_record
from projector.units import GB


def record(**network):
    given = {"device": "mi250x", "nodes": 1}
    return fabric_record(
        ClusterConfig.parse({**given, **({"network": network} if network else {})})
    )


def test_a_node_file_lists_its_rings():
    row = record()[0]
    assert row["local_ring_bytes_per_s"][8] == 200.0 * GB
    assert row["local_pair_bytes_per_s"][8] == 50.0 * GB
    assert row["local_pair_bytes_per_s"][2] == 200.0 * GB
    without = record(node=None)[0]
    assert not np.any(without["local_ring_bytes_per_s"])
    assert not np.any(
        fabric_record(ClusterConfig.parse({"device": "h100"}))[0]["local_ring_bytes_per_s"]
    )


def test_eight_dies_are_faster_than_seven():
    """What the study of this node finds; its eighth die closes a second ring."""
    seven, eight = (
        collective_time("all_reduce", 1 << 28, gpus, device="mi250x") for gpus in (7, 8)
    )
    assert eight < 0.7 * seven


def test_small_gathers_and_scatters_have_one_ring():
    for operation in ("all_gather", "reduce_scatter"):
        sizes = 2.0 ** np.arange(10, 31)
        seven, eight = (collective_time(operation, sizes, gpus, device="mi250x") for gpus in (7, 8))
        assert np.all(eight[sizes <= 1 << 20] > seven[sizes <= 1 << 20])
        assert np.all(eight[sizes > 1 << 22] < seven[sizes > 1 << 22])
        assert np.all(np.diff(eight) >= 0.0)
        free = {"extends": "mi250x", "collective_gather_ring_kib": 0}
        unbound = collective_time(operation, sizes, 8, device=free)
        np.testing.assert_array_equal(eight[sizes >= 1 << 21], unbound[sizes >= 1 << 21])


def test_an_exchange_gets_no_more_than_its_fullest_link_lets_through():
    row = record()[0]
    assert row["local_exchange_bytes_per_s"][8] / GB == pytest.approx(116.7, abs=0.05)
    size = 1 << 34
    rate = size * 7 / 8 / collective_time("all_to_all", size, 8, device="mi250x") / GB
    assert rate == pytest.approx(0.7 * 116.67, rel=1e-3)


def test_both_fields_of_the_device_bound_it():
    def ring(**fields):
        device = {"extends": "mi250x", **fields}
        row = fabric_record(ClusterConfig.parse({"device": device}))[0]
        return row["local_ring_bytes_per_s"][8] / GB

    assert ring(scale_up_peer_gb_per_s=40.0) == pytest.approx(160.0)
    assert ring(scale_up_gb_per_s=150.0) == 150.0


def test_an_unknown_node_is_refused():
    with pytest.raises(ConfigError, match=r"cluster.network.node: unknown node 'mi251x'"):
        record(node="mi251x")
