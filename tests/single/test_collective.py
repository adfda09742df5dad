import math

import numpy as np
import pytest

import projector as pj
from projector.config.formats.shape_table import byte_count
from projector.errors import ConfigError
from projector.kernels.collective_algorithms import ALGORITHMS, OPERATIONS
from projector.single.collective import (
    ALIASES,
    SWEEP_BYTES,
    AlgorithmTimes,
    bus_share,
    project_collective,
)

SIZE = 64 * 2**20


def ranks_of(operation):
    return 2 if operation == "send_recv" else 16


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("device", ["h100", "mi300x", "gb200"])
def test_each_algorithm_is_itself(operation, device):
    ranks = ranks_of(operation)
    found = project_collective(operation, SIZE, ranks, device=device, sweep=True)
    row = found.row
    assert found.times.num_bytes[row] == SIZE
    assert found.times.each_s
    for name, times in found.times.each_s.items():
        alone = project_collective(operation, SIZE, ranks, device=device, algorithm=name)
        assert alone.time_s == times[row]
        assert alone.algorithm == alone.asked == name
        named = pj.collective_time(operation, SIZE, ranks, device=device, algorithm=name)
        assert named == times[row]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_library_takes_its_fastest(operation):
    ranks = ranks_of(operation)
    found = project_collective(operation, SIZE, ranks, device="h100", sweep=True)
    expected = pj.collective_time(operation, found.times.num_bytes, ranks, device="h100")
    assert np.array_equal(found.times.best_s, expected)
    offered = [found.times.each_s[name] for name in found.served_by_library]
    assert np.array_equal(np.min(offered, axis=0), expected)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_algorithm_that_cannot_serve_is_refused(operation):
    ranks = ranks_of(operation)
    serving = project_collective(operation, SIZE, ranks, device="h100").times.each_s
    for name in set(ALGORITHMS) - set(serving):
        with pytest.raises(ConfigError) as caught:
            pj.collective_time(operation, SIZE, ranks, device="h100", algorithm=name)
        error = caught.value
        assert (error.key, error.value) == ("algorithm", name)
        assert error.allowed == list(serving)
        assert operation in error.message
        assert f"{ranks} GPUs" in error.message


def test_the_first_group_that_cannot_be_served_is_named():
    times = pj.collective_time("all_reduce", SIZE, [2, 8], device="h100", algorithm="direct")
    assert times.shape == (2,)
    with pytest.raises(ConfigError, match="over 16 GPUs with 8 in a scale-up domain"):
        pj.collective_time("all_reduce", SIZE, [8, 16, 32], device="h100", algorithm="direct")


@pytest.mark.parametrize("algorithm", [None, *ALGORITHMS])
def test_nothing_to_move_takes_no_time_with_any(algorithm):
    given = {"device": "h100", "algorithm": algorithm}
    assert pj.collective_time("all_gather", 0, 8, **given) == 0.0
    assert pj.collective_time("all_gather", SIZE, 1, **given) == 0.0


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_other_names(alias, name):
    given = {"device": "mi300x"}
    assert pj.collective_time("all_reduce", SIZE, 8, algorithm=alias, **given) == (
        pj.collective_time("all_reduce", SIZE, 8, algorithm=name, **given)
    )


@pytest.mark.parametrize("algorithm", ["gossip", "", 3, ["ring"]])
def test_unknown_names(algorithm):
    with pytest.raises(ConfigError) as caught:
        pj.collective_time("all_reduce", SIZE, 8, device="h100", algorithm=algorithm)
    assert caught.value.key == "algorithm"
    assert set(ALGORITHMS) | set(ALIASES) == set(caught.value.allowed)


def test_bus_bandwidth_is_that_of_nccl_tests():
    assert bus_share("all_reduce", 8) == 2 * 7 / 8
    for operation in ("all_gather", "reduce_scatter", "all_to_all"):
        assert bus_share(operation, 8) == 7 / 8
    for operation in ("broadcast", "reduce", "send_recv"):
        assert bus_share(operation, 2) == 1.0
    assert [bus_share(operation, 1) for operation in OPERATIONS] == [0.0] * len(OPERATIONS)
    found = project_collective("all_reduce", 8e9, 8, device="h100")
    rate = float(found.bus_bytes_per_s(8e9, found.time_s))
    assert rate == pytest.approx(8e9 / found.time_s * 1.75)


def test_stable_keys():
    found = project_collective("all_reduce", SIZE, 8, device="h100").to_dict()
    assert {"time_us", "algorithm", "bus_gb_per_s"} <= found.keys()
    assert "sizes" not in found
    assert found["algorithms"][found["algorithm"]]["time_us"] == found["time_us"]
    swept = project_collective("all_reduce", 3e6, 8, device="h100", sweep=True).to_dict()
    assert len(swept["sizes"]) == len(SWEEP_BYTES) + 1
    for row in swept["sizes"]:
        assert {"bytes", "time_us", "algorithm", "bus_gb_per_s"} <= row.keys()
    assert {key: swept[key] for key in ("bytes", "time_us", "algorithm")} == next(
        {key: row[key] for key in ("bytes", "time_us", "algorithm")}
        for row in swept["sizes"]
        if row["bytes"] == 3e6
    )


def test_crossovers_lie_where_two_algorithms_are_equal():
    found = project_collective("all_reduce", SIZE, 64, device="h100")
    assert found.crossovers_of_all
    for point in found.crossovers_of_all:
        before, after = (
            pj.collective_time("all_reduce", point.num_bytes, 64, device="h100", algorithm=name)
            for name in (point.before, point.after)
        )
        assert before == pytest.approx(after, rel=0.01)


def test_a_crossover_of_two_powers_of_the_size_is_exact():
    sizes = 2.0 ** np.arange(10)
    times = AlgorithmTimes(
        sizes, sizes, ("a",) * 10, {"a": sizes, "b": np.full(10, 24.0), "c": sizes * 0 + math.inf}
    )
    (point,) = times.crossovers(("a", "b", "c"))
    assert point == (pytest.approx(24.0), "a", "b")
    assert times.crossovers(()) == ()
    (late,) = AlgorithmTimes(
        sizes, sizes, ("a",) * 10, {"a": sizes, "c": np.where(sizes < 8, math.inf, 1.0)}
    ).crossovers(("a", "c"))
    assert (late.before, late.after) == ("a", "c")
    assert 4.0 <= late.num_bytes <= 8.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("65536", 65536),
        ("65_536", 65536),
        ("64MiB", 64 * 2**20),
        ("64 mib", 64 * 2**20),
        ("64M", 64e6),
        ("1.5GB", 1.5e9),
        ("1e9", 1e9),
        ("8 KiB", 8192),
        ("16b", 16),
    ],
)
def test_sizes_in_words(text, expected):
    assert byte_count("bytes", text) == expected


@pytest.mark.parametrize("text", ["", "many", "-1", "1XiB", "MiB", "1..5", "nan"])
def test_what_is_no_size(text):
    with pytest.raises(ConfigError) as caught:
        byte_count("bytes", text)
    assert caught.value.key == "bytes"


def test_groups_beyond_a_pod_cross_its_taper():
    flat = {"name": "flat", "nic_gbit_per_s": 400}
    tapered = {**flat, "pod_nodes": 4, "pod_oversubscription": 4.0, "spine_latency_us": 2.0}
    ranks = np.array([8, 32, 64, 1024])
    before, after = (
        pj.collective_time("all_to_all", 1e9, ranks, device="h100", network=network)
        for network in (flat, tapered)
    )
    assert np.array_equal(before[:2], after[:2])
    assert np.all(before[2:] < after[2:])


def test_a_long_stride_is_one_device_of_each_node():
    near, far = (
        pj.collective_time("all_gather", 1e9, [2, 64, 1 << 40], device="h100", stride=stride)
        for stride in (8, 1 << 40)
    )
    assert np.array_equal(near, far)


def test_blocks_beyond_64_bits_hold_all():
    most = {"extends": "hgx_h100", "pod_nodes": 1 << 30, "core_pods": 1 << 30}
    times = [
        pj.collective_time("all_reduce", 1e8, 4096, device="h100", stride=3, network=network)
        for network in (most, "hgx_h100")
    ]
    assert times[0] == times[1]


def test_a_node_with_too_few_devices_is_refused():
    network = {"extends": "hgx_h100", "scale_up_gpus": 16, "node": "h100"}
    with pytest.raises(ConfigError, match="8 devices, but a scale-up domain") as caught:
        pj.collective_time("all_reduce", 1e8, 16, device="h100", network=network)
    assert (caught.value.key, caught.value.value) == ("cluster.network.node", "h100")


@pytest.mark.parametrize("members", [2, 4, 8])
def test_collectives_of_mi250x_reach_the_floors_of_the_paper(members):
    # Twice the latency of a copy between two GCDs where a collective has two passes, else once.
    for operation in OPERATIONS:
        if operation == "send_recv" and members > 2:
            continue
        two = operation in {"all_reduce", "all_gather", "reduce_scatter"}
        floor_s = 17.4e-6 if two else 8.7e-6
        assert pj.collective_time(operation, 8, members, device="mi250x") >= floor_s


def test_an_all_gather_of_many_nodes_is_not_bound_by_hops():
    # 16,384 nodes: a ring of nodes alone would take 0.1 s.
    ring_s = pj.collective_time("all_gather", 1e9, 16384, device="h100", stride=8, algorithm="ring")
    assert ring_s > 0.05
    wire_s = 1e9 / 50e9
    assert pj.collective_time("all_gather", 1e9, 16384, device="h100", stride=8) < 2 * wire_s
