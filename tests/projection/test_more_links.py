"""Faster links never make anything slower, except for what the pages name."""

import numpy as np
import pytest

import projector as pj
from projector.config.device_file import load_device
from projector.config.network import load_network
from projector.kernels.collective_algorithms import OPERATIONS

DEVICES = ("h100", "b200", "gb200", "mi250x", "mi300x", "mi355x", "a100")
SIZES, RANKS = (
    values.ravel()
    for values in np.meshgrid(2.0 ** np.arange(3.0, 34.0, 1.7), [2, 3, 8, 12, 16, 24, 64, 96, 256])
)


def times_s(operation, device, network):
    ranks = 2 if operation == "send_recv" else RANKS
    times = pj.collective_time(operation, SIZES, ranks, device=device, network=network)
    return np.asarray(times)


@pytest.mark.parametrize("name", DEVICES)
def test_collectives_on_faster_links(name):
    device = load_device(name)
    network = load_network(device.network).model_dump(exclude_unset=True)
    both = {
        field: 1.3 * getattr(device, field)
        for field in ("scale_up_gb_per_s", "scale_up_peer_gb_per_s")
    }
    of_group = {"scale_up_gb_per_s": both["scale_up_gb_per_s"]}
    for operation in OPERATIONS:
        before = times_s(operation, name, network)
        for faster in (both, of_group):
            after = times_s(operation, {"extends": name, **faster}, network)
            assert np.all(after <= before), (operation, faster)
        for field, factor in (("nic_gbit_per_s", 1.3), ("nics_per_node", 2)):
            after = times_s(operation, name, {**network, field: network[field] * factor})
            assert np.all(after <= before), (operation, field)


def steps_ms(field, values, **base):
    """Return float64[jobs, values] of jobs that differ in one field."""
    job = pj.load_job("examples/deepseek_v3_h800.yaml", overrides=base)
    axes = {
        "parallelism.tp": [1, 2],
        "parallelism.pp": [4, 8],
        "parallelism.ep": [1, 8],
        "training.recompute": ["none", "selective"],
        "training.seq_length": [2048, 8192],
        "cluster.nodes": [16, 32],
        "training.micro_batch_size": [2],
        "training.global_batch_size": [1024],
        field: values,
    }
    rows = pj.sweep({"base": job, "axes": axes}, workers=1).to_arrow()
    whole = rows.column("iteration_time_ms").to_numpy()
    assert len(whole) % len(values) == 0
    return whole.reshape(-1, len(values))


FASTER_GB_PER_S = [200.0, 204.0, 205.0, 260.0, 400.0]


def test_steps_on_faster_links(monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)
    field = "cluster.device.scale_up_gb_per_s"
    steps = steps_ms(field, FASTER_GB_PER_S, **{"cluster.variation.device_spread": 0.0})
    assert len(steps) > 10
    assert np.all(np.diff(steps) <= 0.0)
    # With the wait for the slowest device some can be longer: docs/step.md says why.
    longer = np.diff(steps_ms(field, FASTER_GB_PER_S), axis=1)
    assert np.count_nonzero(longer > 0.0) < 0.1 * longer.size


def test_steps_with_more_adapters(monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)
    steps = steps_ms("cluster.network.nics_per_node", [2, 4, 8, 16])
    assert np.all(np.diff(steps) <= 0.0)


def test_steps_in_larger_domains(monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)
    steps = steps_ms("cluster.network.scale_up_gpus", [8, 16, 32, 64])
    # docs/collectives.md names the reasons why some are slower, and how much the worst one is.
    assert (steps[:, 1:] / steps[:, :-1]).max() < 1.06
