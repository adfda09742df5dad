"""``projector collective``."""

import json

import pytest

import projector
from projector.cli.main import run
from projector.kernels.collective_algorithms import OPERATIONS


@pytest.fixture
def collective(capsys):
    def call(*arguments):
        code = run(["collective", *(str(argument) for argument in arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_every_algorithm_is_shown(collective):
    code, out, err = collective("all_reduce", "--bytes", "64MiB", "--gpus", 8)
    assert (code, err) == (0, "")
    time_us = projector.collective_time("all_reduce", 2**26, 8, device="h100") * 1e6
    assert f"{time_us:,.1f}" in out
    for name in ("ring", "direct", "halving_doubling", "in_network", "chosen", "Crossovers"):
        assert name in out


@pytest.mark.parametrize("operation", OPERATIONS)
def test_json_is_one_object(collective, operation):
    arguments = ("--bytes", 2**20, "--gpus", 2, "--device", "mi300x", "--json")
    code, out, err = collective(operation, *arguments)
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert {"schema_version", "version", "warnings"} <= found.keys()
    expected = projector.collective_time(operation, 2**20, 2, device="mi300x")
    assert found["time_us"] == pytest.approx(expected * 1e6)
    assert found["bus_gb_per_s"] > 0
    assert found["algorithm"] in found["algorithms"]


def test_a_sweep_lists_sizes(collective):
    code, out, _ = collective("all_gather", "--gpus", 16, "--sweep", "--json")
    sizes = json.loads(out)["sizes"]
    assert code == 0
    assert [row["bytes"] for row in sizes] == sorted(2**power for power in range(10, 35))
    _, out, _ = collective("all_gather", "--gpus", 16, "--sweep")
    assert "By size" in out
    assert "16 GiB" in out


def test_a_named_algorithm(collective):
    arguments = ("all_to_all", "--bytes", "1MiB", "--gpus", 8, "--algorithm")
    _, out, _ = collective(*arguments, "bruck", "--json")
    assert json.loads(out)["algorithm"] == "bruck"
    code, out, err = collective(*arguments, "tree", "--json")
    assert code == 2
    assert "cannot serve all_to_all" in err
    found = json.loads(out)
    assert (found["key"], found["value"]) == ("algorithm", "tree")
    assert "pairwise" in found["allowed"]


def test_bruck_reduces_where_it_is_asked_for(collective):
    arguments = ("all_reduce", "--bytes", "1MiB", "--gpus", 6, "--json")
    found = json.loads(collective(*arguments)[1])
    asked = json.loads(collective(*arguments, "--algorithm", "bruck")[1])
    assert "bruck" not in (found["algorithm"], *found["library"])
    assert asked["algorithm"] == "bruck"
    assert asked["time_us"] == found["algorithms"]["bruck"]["time_us"]


@pytest.mark.rotated
@pytest.mark.parametrize("suffix", ["png", "svg"])
@pytest.mark.parametrize("more", [(), ("--algorithm", "ring"), ("--bytes", 0)])
def test_a_picture_appears_whole(collective, tmp_path, suffix, more):
    target = tmp_path / f"collective.{suffix}"
    code, _, err = collective("all_reduce", "--gpus", 16, *more, "--plot", target)
    assert (code, err) == (0, "")
    assert target.stat().st_size > 10_000


def test_nothing_to_move(collective):
    for arguments in (("--gpus", 1), ("--gpus", 8, "--bytes", 0)):
        code, out, _ = collective("broadcast", *arguments)
        assert code == 0
        assert "nothing moves" in out
        _, out, _ = collective("broadcast", *arguments, "--json")
        found = json.loads(out)
        assert (found["time_us"], found["bus_gb_per_s"], found["algorithm"]) == (0, 0, None)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("gossip", "--gpus", 8), "all_reduce, all_gather"),
        (("all_reduce", "--gpus", 0), "ranks must be at least 1"),
        (("all_reduce", "--gpus", 8, "--bytes", "many"), "bytes must be bytes"),
        (("all_reduce", "--gpus", 8, "--device", "h1000"), "h1000"),
        (("all_reduce", "--gpus", 8, "--network", "carrier-pigeon"), "carrier-pigeon"),
        (("all_reduce", "--gpus", 8, "--algorithm", "gossip"), "hypercube"),
        (("all_reduce", "--gpus", 8, "--stride", 0), "stride"),
        (("send_recv", "--gpus", 3), "two ranks"),
        (("all_reduce",), "--gpus"),
        (("all_reduce", "--gpus", 8, "--plot", "x.gif"), "must end in"),
    ],
)
def test_mistakes_are_named(collective, arguments, text):
    code, out, err = collective(*arguments)
    assert (code, out) == (2, "")
    assert text in err
