"""Keys by which devices share records read all that these records are made from."""

import pytest

from lower.watched import READ, watched
from projector.config.cluster import ClusterConfig
from projector.lower.fabrics import exchange_record, fabric_record
from projector.lower.hardware import device_record, slowdowns, under_fsdp1, within_a_step
from projector.lower.sharing import LINKS, NOT_IN_RECORD

DEVICES = ("a100", "h100", "gb300", "mi210", "mi355x")


@pytest.fixture(params=DEVICES)
def cluster(request):
    """Return a cluster whose device is watched."""
    device = watched(request.param)
    cluster = ClusterConfig(device=device, nodes=2, gpu_clock_mhz=900.0)
    READ.clear()
    return cluster


def test_records_of_links_are_made_from_the_fields_of_links(cluster):
    fabric_record(cluster)
    exchange_record(cluster)
    assert {*LINKS} == READ


def test_the_record_of_a_device_is_made_from_no_field_that_is_left_out(cluster):
    for device in (cluster.device, under_fsdp1(cluster.device)):
        slowdowns(device)
        for name in ("default", *device.attention_kernels):
            within_a_step(device_record(device, cluster.gpu_clock_mhz, name), device)
    assert "hbm_peak_tb_per_s" in READ
    assert not READ & {*NOT_IN_RECORD}
