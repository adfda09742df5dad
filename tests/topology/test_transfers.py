"""Transfers in a node: engines, their rates and times, sharing, what is refused."""

import json
import math
from itertools import permutations

import numpy as np
import pytest
import yaml

from projector.cli.main import run
from projector.config import resources
from projector.errors import ConfigError
from projector.single.collective import mpi_collective_time, project_collective
from projector.topology.build import load_topology
from projector.topology.node import KIND
from projector.topology.transfers import (
    find_way,
    overlapped_seconds,
    serving_engines,
    shared_rates,
)

NODE = "mi250x"


def changed(**engines):
    """Return the node with other numbers of some engines."""
    data = yaml.safe_load(resources.find(KIND, NODE, key="node").read_text())
    for name, fields in engines.items():
        data["transfers"]["engines"].setdefault(name, {}).update(fields)
    return data


@pytest.mark.parametrize("engine", ["copy", "kernel", "mpi_copy", "mpi_kernel"])
@pytest.mark.parametrize("both", [False, True])
def test_a_message_is_its_latency_and_its_bytes(engine, both):
    way = find_way(NODE, 0, 6, engine, both_directions=both)
    size = 1e6
    expected = way.latency_us * 1e-6 + size / (way.gb_per_s * 1e9)
    assert way.seconds(size) == pytest.approx(expected, rel=1e-12)
    assert way.seconds(0) == 0.0


def test_sizes_may_be_an_array():
    way = find_way(NODE, 0, 1, "copy")
    sizes = np.array([0.0, 1e3, 1e9])
    assert way.seconds(sizes).tolist() == [float(way.seconds(size)) for size in sizes]
    assert way.seconds([]).shape == (0,)
    assert find_way(NODE, "host", 0, "pinned") == find_way(NODE, "numa3", 0, "pinned")


def test_an_engine_is_limited_by_its_link_or_by_itself():
    assert find_way(NODE, 0, 2, "copy").gb_per_s == pytest.approx(37.5)
    assert find_way(NODE, 0, 6, "copy").gb_per_s == 50.0
    slow = changed(copy={"most_gb_per_s": 20.0})
    assert find_way(slow, 0, 2, "copy").gb_per_s == 20.0
    assert find_way(slow, 0, 2, "mpi_copy").gb_per_s == pytest.approx(20.0 * 0.98)
    assert find_way(slow, 0, 2, "kernel") == find_way(NODE, 0, 2, "kernel")


def test_the_shortest_route_is_quicker_and_narrower_for_two_pairs():
    for pair in ((1, 7), (3, 5)):
        widest, shortest = (find_way(NODE, *pair, "copy", choice=c) for c in ("widest", "shortest"))
        assert shortest.latency_us < widest.latency_us
        assert shortest.gb_per_s < widest.gb_per_s


def test_what_a_kernel_reads_again():
    size, large = 4 * 2**20, 64 * 2**20
    for engine, at_small, at_large in (
        ("pinned", 1, 1),
        ("page_migration", 1, 1),
        ("zero_copy_noncoherent", 1, 3),
        ("zero_copy", 3, 3),
    ):
        for asked, times in ((size, at_small), (large, at_large)):
            way = find_way(NODE, "host", 0, engine)
            moved = way.moved_bytes(np.array(float(asked)), accesses=3)
            assert moved == times * asked
    way = find_way(NODE, "host", 0, "zero_copy")
    once, thrice = (way.seconds(size, accesses=count) for count in (1, 3))
    assert 2.5 < thrice / once < 3.0


def test_whole_pages_move():
    one, page, more = find_way(NODE, "host", 0, "page_migration").seconds([1, 4096, 4097])
    assert one == page < more


def test_a_rate_that_varies_has_bounds():
    way = find_way(NODE, "host", 0, "pageable")
    pinned = find_way(NODE, "host", 0, "pinned")
    assert way.low_gb_per_s < way.gb_per_s < way.high_gb_per_s <= pinned.gb_per_s
    assert pinned.low_gb_per_s == pinned.gb_per_s == pinned.high_gb_per_s


def test_flows_share_links():
    alone = find_way(NODE, 0, 2, "kernel").gb_per_s
    assert shared_rates(NODE, [(0, 2)], engine="kernel") == [pytest.approx(alone)]
    # 0-3 goes by 0-1-3 or 0-2-3: a flow that crosses the link halves it.
    path = find_way(NODE, 0, 3, "kernel").route.path
    assert shared_rates(NODE, [(0, 3), path[:2]], engine="kernel")[0] <= alone
    assert shared_rates(NODE, [(0, 2), (2, 0)], engine="kernel") == [pytest.approx(alone)] * 2
    assert shared_rates(NODE, [(0, 2)] * 2, engine="kernel") == [pytest.approx(alone / 2)] * 2
    assert shared_rates(NODE, [], engine="kernel") == []
    assert shared_rates(NODE, [(0, 1)], engine="copy") == [50.0]
    local = find_way(NODE, 0, 0, "kernel").gb_per_s
    assert shared_rates(NODE, [(0, 0)], engine="kernel") == [local]


def test_a_copy_engine_leaves_compute_alone():
    assert overlapped_seconds(NODE, "copy", 1.0, 3.0) == 3.0
    assert overlapped_seconds(NODE, "copy", 3.0, 1.0) == 3.0
    half = changed(kernel={"compute_units": 55})
    assert overlapped_seconds(half, "kernel", 1.0, 3.0) == pytest.approx(3.5)
    assert overlapped_seconds(half, "kernel", 4.0, 2.0) == pytest.approx(4.0)
    assert overlapped_seconds(NODE, "kernel", [1.0, 2.0], 3.0) == pytest.approx([4.0, 5.0])


def test_a_broadcast_of_mpi_is_a_ratio_of_the_library():
    ratio = load_topology(NODE).node.transfers.mpi_over_library["broadcast"]
    library = project_collective("broadcast", 1e6, 8, device="mi250x").time_s
    assert mpi_collective_time("broadcast", 1e6, 8, node=NODE) == pytest.approx(ratio * library)
    with pytest.raises(ConfigError) as caught:
        mpi_collective_time("reduce", 1, 9, node=NODE)
    assert caught.value.key == "ranks"


def test_other_collectives_of_mpi_are_its_messages():
    pairs = [*permutations(range(8), 2)]
    start_s = np.mean([find_way(NODE, *pair, "mpi_kernel").seconds(1e-9) for pair in pairs])
    slowest = 1e9 / (find_way(NODE, 0, 2, "mpi_kernel").seconds(1e9) - 10.7e-6)
    for operation, messages, moved in (
        ("all_gather", 3, 7 / 8), ("reduce_scatter", 3, 7 / 8), ("all_reduce", 6, 7 / 4),
        ("reduce", 7, 1.0),
    ):  # fmt: skip
        found = mpi_collective_time(operation, [2.0**20, 2.0**24], 8, node=NODE)
        sizes = np.array([2.0**20, 2.0**24])
        assert found == pytest.approx(messages * start_s + moved * sizes / slowest, rel=1e-6)


@pytest.mark.parametrize("name", resources.shipped(KIND))
def test_engines_of_shipped_nodes_work(name):
    topology = load_topology(name)
    if topology.node.transfers is None:
        return
    served = set()
    for ends in ((0, 1), ("host", 0), (0, "host"), (0, 0)):
        for engine in serving_engines(topology, *ends):
            way = find_way(topology, *ends, engine)
            assert 0.0 < way.gb_per_s < math.inf
            if way.place != "local":
                assert way.gb_per_s <= way.route.gb_per_s
            served.add(engine)
    assert served == set(topology.node.transfers.engines)
    # What is not verified says so where it stands.
    assert all(text.strip() for text in topology.node.sources.values())


def refused(*arguments):
    with pytest.raises(ConfigError) as caught:
        find_way(*arguments)
    return caught.value


def test_mistakes_are_named():
    assert refused(NODE, 0, 1, "horse").key == "engine"
    error = refused(NODE, "host", 0, "copy")
    assert error.allowed == serving_engines(NODE, "host", 0)
    assert "to host memory" in error.message
    assert refused(NODE, 0, 9, "copy").key == "target"
    assert refused(NODE, "nic0", 0, "copy").key == "source"
    for ends in (("host", "host"), ("numa0", "numa0"), ("numa0", "numa1"), ("", 0)):
        assert refused(NODE, *ends, "pinned").key == "source"
    way = find_way(NODE, 0, 1, "copy")
    for size in (-1.0, math.nan, math.inf, "many", [1.0, -1.0]):
        with pytest.raises(ConfigError, match="num_bytes"):
            way.seconds(size)
    for accesses in (0, 1.5, True):
        with pytest.raises(ConfigError, match="accesses"):
            way.seconds(1, accesses=accesses)
    bare = changed()
    del bare["transfers"]
    assert refused(bare, 0, 1, "copy").key == "node.transfers"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"base": "gossip", "between": ["devices"]}, "'gossip' is not an engine by itself"),
        ({"base": "mpi_copy", "between": ["devices"]}, "is not an engine by itself"),
        ({"between": []}, "between"),
        ({"between": ["moon"]}, "between"),
        ({"between": ["host"], "share": 0.5, "low_share": 0.6}, "must ascend"),
        ({"between": ["host"], "cached_mib": 1.0}, "together"),
        ({"between": ["host"], "share": 1.5}, "share"),
    ],
)
def test_a_wrong_engine_is_refused(fields, text):
    with pytest.raises(ConfigError) as caught:
        load_topology(changed(own=fields))
    assert text in caught.value.message
    assert caught.value.key.startswith("node.transfers")


@pytest.fixture
def transfer(capsys):
    def call(*arguments):
        code = run(["topology", "transfer", *(str(argument) for argument in arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_the_command_shows_every_engine(transfer):
    code, out, err = transfer(NODE, "--from", 0, "--to", 6)
    assert (code, err) == (0, "")
    for name in ("copy", "kernel", "mpi_copy", "mpi_kernel", "0-6 at 100 GB/s"):
        assert name in out
    _, out, _ = transfer(NODE, "--from", "host", "--to", 0, "--sweep")
    assert "Crossovers" not in out or "pinned" in out
    _, out, _ = transfer(NODE, "--from", 0, "--to", 0)
    assert "within its memory" in out


def test_json_is_one_object(transfer):
    code, out, err = transfer(
        NODE, "--from", 0, "--to", 6, "--bytes", "1MiB", "--engine", "copy", "--json"
    )
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert {
        "schema_version",
        "version",
        "warnings",
        "engine",
        "time_us",
        "gb_per_s",
    } <= found.keys()
    assert found["time_us"] == pytest.approx(1e6 * find_way(NODE, 0, 6, "copy").seconds(2**20))
    assert [row["engine"] for row in found["engines"]] == ["copy"]
    _, out, _ = transfer(NODE, "--from", "host", "--to", 0, "--sweep", "--json")
    found = json.loads(out)
    assert [row["bytes"] for row in found["sizes"]] == [2**power for power in range(8, 34)]
    assert found["engine"] == "pinned"


def test_several_targets_share(transfer):
    arguments = (NODE, "--from", "host", "--to", 0, "--to", 1, "--both")
    code, out, _ = transfer(*arguments)
    assert code == 0
    assert "together" in out
    _, out, _ = transfer(*arguments, "--json", "--engine", "zero_copy")
    (found,) = json.loads(out)["engines"]
    alone = find_way(NODE, "host", 0, "zero_copy", both_directions=True).gb_per_s
    assert found["total_gb_per_s"] == pytest.approx(2.0 * alone)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--from", 0, "--to", 9), "0, 1, 2"),
        (("--from", 0, "--to", 6, "--engine", "horse"), "mpi_kernel"),
        (("--from", 0, "--to", 6, "--bytes", "x"), "bytes"),
        (("--from", 0, "--to", 6, "--to", 1, "--bytes", "x"), "bytes"),
        (("--from", 0, "--to", 6, "--bytes", "1e400"), "at most 1e+24"),
        (("--from", "", "--to", 6), "source must be"),
        (("--from", 0, "--to", 6, "--to", "host"), "serves all of 0-6, 0-host"),
        (("--from", 0, "--to", 6, "--accesses", 0), "accesses"),
        (("--from", 0, "--to", 6, "--route", "scenic"), "widest"),
        (("--from", 0), "--to"),
    ],
)
def test_mistakes_of_the_command(transfer, arguments, text):
    code, out, err = transfer(NODE, *arguments)
    assert (code, out) == (2, "")
    assert text in err


def test_the_command_times_mpi_beside_the_library(capsys):
    arguments = ["collective", "all_reduce", "--gpus", "8", "--bytes", "1MiB", "--mpi"]
    assert run([*arguments, "--device", "mi250x", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["mpi_us"]
    assert found == 1e6 * mpi_collective_time("all_reduce", 2.0**20, 8, node=NODE)
    assert run([*arguments, "--device", "mi250x"]) == 0
    assert f"by MPI {found:,.1f} us" in " ".join(capsys.readouterr().out.split())
    for refused in (["--device", "h100"], ["--device", "mi250x", "--stride", "2"]):
        assert run([*arguments, *refused]) == 2
        assert "mi250x, --stride 1" in json.dumps(run_json(capsys, *arguments, *refused))


def run_json(capsys, *arguments):
    capsys.readouterr()
    run([*arguments, "--json"])
    return json.loads(capsys.readouterr().out)
