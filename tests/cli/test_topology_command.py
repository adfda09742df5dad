"""``projector topology``."""

import json

import pytest

from projector.cli.main import run


@pytest.fixture
def topology(capsys):
    def call(*arguments):
        code = run(["topology", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_matrix_json_has_square_lists(topology):
    code, out, err = topology("matrix", "mi250x", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert {"schema_version", "version", "warnings"} <= found.keys()
    assert found["devices"] == list(range(8))
    for key in ("hops", "bandwidth_gb_per_s", "latency_us"):
        assert [len(row) for row in found[key]] == [8] * 8
    assert found["bandwidth_gb_per_s"][1][7] == 100.0
    assert found["bandwidth_gb_per_s"][3][3] is None
    assert found["latency_us"][1][7] == pytest.approx(18.0)
    assert found["hops"][1][7] == 2
    _, out, _ = topology("matrix", "mi250x", "--route", "shortest", "--json")
    assert json.loads(out)["bandwidth_gb_per_s"][1][7] == 50.0


def test_a_matrix_of_the_copy_engine_has_two_levels(topology):
    code, out, _ = topology("matrix", "mi250x", "--engine", "copy", "--json")
    rates = json.loads(out)["bandwidth_gb_per_s"]
    levels = {round(rate, 1) for row in rates for rate in row if rate is not None}
    assert (code, levels) == (0, {37.5, 50.0})
    assert "by the engine copy" in topology("matrix", "mi250x", "--engine", "copy")[1]


def test_matrix_is_readable(topology):
    code, out, _ = topology("matrix", "mi250x")
    assert code == 0
    for text in ("Hops", "Bandwidth", "Latency", "along the widest route", "200"):
        assert text in out
    _, out, _ = topology("matrix", "gb200_nvl72")
    assert "56 more devices in --json" in out


def test_show_lists_tiers_and_rates(topology):
    code, out, _ = topology("show", "mi250x")
    assert code == 0
    for text in ("quad", "dual", "single", "0-6 2-4", "Among the first devices"):
        assert text in out
    _, out, _ = topology("show", "mi250x", "--json")
    found = json.loads(out)
    assert [row["devices"] for row in found["rates"]] == list(range(2, 9))
    assert {"tier": "dual", "links": 2, "gb_per_s": 100.0, "latency_us": 3.35, "bundles": 2} in (
        found["tiers"]
    )
    _, out, _ = topology("show", "h100", "--json")
    assert json.loads(out)["rates"] == []


def test_routes_show_where_the_widest_is_not_the_shortest(topology):
    code, out, _ = topology("routes", "mi250x", "--json")
    rows = json.loads(out)["routes"]
    assert code == 0
    assert len(rows) == 28
    longer = [row for row in rows if not row["widest_is_shortest"]]
    assert [(row["source"], row["target"]) for row in longer] == [(1, 7), (3, 5)]
    # Five links leave the package of 1.
    assert longer[0]["all_routes_gb_per_s"] == 250.0
    _, out, _ = topology("routes", "mi250x", 1, 7)
    assert "1-0-6-7" in out
    assert "1-3-7" in out
    _, out, _ = topology("routes", "mi250x", "numa0", "nic3", "--json")
    (row,) = json.loads(out)["routes"]
    assert row["widest"]["gb_per_s"] == 25.0


def test_flows_share_a_link(topology):
    code, out, _ = topology("routes", "mi250x", "--flow", "0-2", "--flow", "1-2", "--json")
    rows = json.loads(out)["flows"]
    assert code == 0
    assert [row["gb_per_s"] for row in rows] == [25.0, 25.0]
    assert [row["alone_gb_per_s"] for row in rows] == [50.0, 50.0]
    _, out, _ = topology("routes", "mi250x", "--flow", "0-2", "--flow", "1-2")
    assert "1-0-2" in out


def test_a_node_may_be_a_file(topology, tmp_path):
    path = tmp_path / "pair.yaml"
    path.write_text(
        "name: pair\ndevice: h100\ndevices: 2\n"
        "tiers: {link: {gb_per_s: 100, latency_us: 1}}\nlinks: {link: [[0, 1]]}\n",
        encoding="utf-8",
    )
    code, out, _ = topology("matrix", path, "--json")
    assert code == 0
    assert json.loads(out)["bandwidth_gb_per_s"] == [[None, 100.0], [100.0, None]]
    path.write_text(path.read_text().replace("[[0, 1]]", "[[0, 2]]"), encoding="utf-8")
    code, out, err = topology("show", path, "--json")
    assert code == 2
    assert "there is no device 2" in err
    assert json.loads(out)["key"] == "node.links.link.0"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["matrix", "h101"], "nearest: h100"),
        (["matrix", "h100", "--route", "scenic"], "known: widest, shortest"),
        (["matrix", "h100", "--engine", "pinned"], "known: copy, kernel"),
        (["routes", "h100", "1"], "give two ends"),
        (["routes", "h100", "1", "8"], "the node has no '8'"),
        (["routes", "h100", "--flow", "1"], "a flow is two ends"),
        (["routes", "h100", "1", "1"], "ends: a route joins two different ends"),
        (["routes", "h100", "--flow", "1-1"], "flow: a route joins two different ends"),
        (["plot", "h100", "--out", "h100.jpeg"], "must end in"),
        (["diagram", "h100"], "No such command"),
    ],
)
def test_what_is_wrong_is_said(topology, arguments, text):
    code, out, err = topology(*arguments)
    assert (code, out) == (2, "")
    assert text in err


def test_a_drawing_is_written(topology, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = topology("plot", "mi250x")
    assert (code, out, err) == (0, "", "wrote mi250x.png\n")
    code, out, err = topology("plot", "mi250x", "--out", "node.svg", "--json")
    assert json.loads(out)["figure"] == "node.svg"
    assert (code, err) == (0, "")
    assert (tmp_path / "mi250x.png").stat().st_size > 10_000
    assert (tmp_path / "node.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_a_cluster_is_shown_and_drawn(topology, tmp_path):
    taper = ["network.pod_nodes=32", "network.pod_oversubscription=2"]
    code, out, _ = topology("show", "h100", "--nodes", 16384, *taper, "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["hosts"], found["pods"], found["devices"]) == (16384, 512, 131072)
    assert [row["shared_gb_per_s"] for row in found["reach"]] == [400.0, 200.0]
    assert len(found["vertices"]) < 100
    code, out, _ = topology("show", "h100", "--nodes", 16384, *taper)
    assert "other pods" in out
    for network in ("rail_optimised=false", "core_pods=4"):
        figure = tmp_path / f"{network}.svg"
        code, _, err = topology(
            "plot", "h100", "--nodes", 512, *taper, f"network.{network}", "--out", figure
        )
        assert (code, err) == (0, f"wrote {figure}\n")
        assert figure.stat().st_size > 10_000
    code, _, err = topology("show", "h100", "pods=3")
    assert code == 2
    assert "neither device.KEY nor network.KEY" in err
