"""Node files: what they hold, and what is refused."""

import re
from pathlib import Path

import pytest
import yaml

from projector.config import resources
from projector.errors import ConfigError
from projector.topology.build import load_topology
from projector.topology.node import KIND
from projector.topology.rates import is_regular, local_rates
from projector.topology.routes import find_matrices

SQUARE = {
    "name": "four in a square",
    "device": "mi250x",
    "devices": 4,
    "tiers": {"wide": {"links": 2, "rate_of": "peer", "latency_us": 1.0},
              "thin": {"gb_per_s": 20.0, "latency_us": 0.5}},
    "links": {"wide": [[0, 1], [2, 3]], "thin": [[1, 2], [3, 0]]},
}  # fmt: skip


def changed(**fields):
    return {**SQUARE, **fields}


@pytest.mark.parametrize("name", resources.shipped(KIND))
def test_every_shipped_node_is_whole(name):
    topology = load_topology(name)
    assert topology.num_devices == topology.network.scale_up_gpus
    degrees = {}
    for link in topology.links:
        assert link.gb_per_s > 0.0
        for end in (link.a, link.b):
            degrees[end] = degrees.get(end, 0) + 1
    assert degrees.keys() == {vertex.end for vertex in topology.vertices}
    kinds = [vertex.kind for vertex in topology.vertices]
    hosts = topology.num_devices // topology.network.gpus_per_node
    assert kinds.count("nic") == hosts * topology.network.nics_per_node
    assert "numa" in kinds


@pytest.mark.parametrize("name", resources.shipped(KIND))
def test_rates_agree_with_those_of_the_device(name):
    """Links between devices carry in total what the device file says of its fabric."""
    topology = load_topology(name)
    device, network = topology.device, topology.network
    for tier in topology.node.tiers.values():
        if tier.rate_of is None:
            assert tier.gb_per_s not in {device.scale_up_gb_per_s, network.nic_gbit_per_s / 8}
    inner = topology.device_links()
    if name == "mi250x":
        # Its device file states what leaves a package, which is less.
        packages = {d: i for i, group in enumerate(topology.packages) for d in group}
        cut = [link for link in inner if packages[link.a] != packages[link.b]]
        assert 2 * sum(link.gb_per_s for link in cut) / 4 == device.scale_up_gb_per_s
    else:
        leaving = sum(link.gb_per_s for link in inner if 0 in {link.a, link.b})
        assert leaving == pytest.approx(device.scale_up_gb_per_s)
    host = next(link for link in topology.links if link.tier == topology.node.host.tier)
    assert 0.4 * host.gb_per_s < device.host_link_gb_per_s <= host.gb_per_s


def test_a_file_may_stand_anywhere(tmp_path):
    path = tmp_path / "square.yaml"
    path.write_text(yaml.safe_dump(SQUARE, sort_keys=False), encoding="utf-8")
    topology = load_topology(str(path))
    assert [link.gb_per_s for link in topology.links] == [100.0, 100.0, 20.0, 20.0]
    assert load_topology(SQUARE).links == topology.links


ROWS = (
    (".", "wide", ".", "thin"),
    ("wide", ".", "thin", "."),
    (".", "thin", ".", "wide"),
    ("thin", ".", "wide", "."),
)


def test_a_matrix_says_the_same_as_lists():
    topology = load_topology(changed(links={}, matrix=ROWS))
    ends = {(frozenset((link.a, link.b)), link.gb_per_s) for link in topology.links}
    same = load_topology(SQUARE)
    assert ends == {(frozenset((link.a, link.b)), link.gb_per_s) for link in same.links}


@pytest.mark.parametrize(
    ("fields", "key", "text"),
    [
        ({"device": "mi999x"}, "node.device", "unknown GPU 'mi999x'"),
        ({"network": "carrier_pigeon"}, "node.network", "unknown network"),
        ({"colour": "red"}, "node.colour", "unknown key 'colour'"),
        ({"links": {"wide": [[0, 1], [2, 3]]}}, "node.links", "device 2 cannot be reached"),
        ({"links": {"wide": [[0, 9]]}}, "node.links.wide.0", "there is no device 9"),
        ({"links": {"wide": [[0, "numa0"]]}}, "node.links.wide.0", "there is no device 'numa0'"),
        ({"links": {"wide": [[0, 0]]}}, "node.links.wide.0", "linked to itself"),
        ({"links": {"wide": [[0, 1], [1, 0]]}}, "node.links.wide.1", "given twice"),
        ({"links": {"wide": [[0, 1]], "thin": [[1, 0]]}}, "node.links.thin.0",
         "given in wide and in thin"),
        ({"links": {"wide": 5}}, "node.links.wide", "must be a list of pairs or all"),
        ({"links": {"wide": [[0, 1], [2]]}}, "node.links.wide.1", "must be a pair of devices"),
        ({"links": [[0, 1]]}, "node.links", "should be a mapping"),
        ({"switch": {"name": "numa0", "tier": "thin"}}, "node.switch.name", "no other part has"),
        ({"switch": {"name": "a-b", "tier": "thin"}}, "node.switch.name", "no other part has"),
        ({"links": {"broad": [[0, 1]]}}, "node.links.broad.0", "unknown tier 'broad'"),
        ({"tiers": {"wide": {"latency_us": 1.0}}}, "node.tiers.wide.gb_per_s",
         "has no bandwidth"),
        ({"tiers": {"wide": {"gb_per_s": 0, "latency_us": 1.0}}}, "node.tiers.wide.gb_per_s",
         "greater than 0"),
        ({"tiers": {"wide": {"gb_per_s": 9, "rate_of": "peer", "latency_us": 1.0}}},
         "node.tiers.wide.gb_per_s", "has two bandwidths"),
        ({"tiers": {"wide": {"gb_per_s": 9}}}, "node.tiers.wide.latency_us", "has no latency"),
        ({"tiers": {"wide": {"gb_per_s": 9, "latency_us": -1}}}, "node.tiers.wide.latency_us",
         "greater than or equal to 0"),
        ({"packages": 3}, "node.packages", "cannot be divided by 3"),
        ({"packages": [[0, 1], [1, 2, 3]]}, "node.packages", "device 1 stands twice"),
        ({"packages": [[0, 1], [2]]}, "node.packages", "device 3 is missing"),
        ({"packages": [[0, 1], [2, 7]]}, "node.packages.1", "there is no device 7"),
        ({"host": {"numa": 2, "tier": "pcie"}}, "node.host.tier", "unknown tier 'pcie'"),
        ({"adapters": {"devices": [[0], [2]], "tier": "thin"}}, "node.adapters.devices",
         "2 adapters, but the network has 4"),
        ({"switch": {"name": "hub", "tier": "fast"}}, "node.switch.tier", "unknown tier 'fast'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_place(fields, key, text):
    with pytest.raises(ConfigError) as error:
        load_topology(changed(**fields))
    assert error.value.key == key
    assert text in error.value.message
    assert key in error.value.message


@pytest.mark.parametrize(
    ("place", "entry", "key", "text"),
    [
        ((1, 0), "thin", "node.matrix.0.1", "'wide' from 0 to 1, but 'thin' from 1 to 0"),
        ((1, 0), ".", "node.matrix.0.1", "'wide' from 0 to 1, but '.' from 1 to 0"),
        ((2, 2), "thin", "node.matrix.2.2", "linked to itself"),
        ((0, 1), "broad", "node.matrix.0.1", "'broad' from 0 to 1"),
    ],
)
def test_an_asymmetric_matrix_is_refused(place, entry, key, text):
    rows = [list(row) for row in ROWS]
    rows[place[0]][place[1]] = entry
    with pytest.raises(ConfigError) as error:
        load_topology(changed(links={}, matrix=rows))
    assert error.value.key == key
    assert text in error.value.message


def test_a_matrix_is_square():
    with pytest.raises(ConfigError, match="must have 4 rows and columns"):
        load_topology(changed(links={}, matrix=[[".", "wide"], ["wide", "."]]))


def test_an_unknown_name_brings_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown node 'h101'; nearest: h100"):
        load_topology("h101")
    with pytest.raises(ConfigError, match="does not exist"):
        load_topology("nowhere.yaml")


@pytest.mark.parametrize("name", resources.shipped(KIND))
def test_every_number_has_a_source(name):
    node = load_topology(name).node
    stated = {"packages": node.packages, "start_us": node.start_us}
    for tier_name, tier in node.tiers.items():
        stated |= {f"tiers.{tier_name}.{field}": getattr(tier, field)
                   for field in tier.model_fields_set - {"rate_of", "latency_of"}}  # fmt: skip
    stated |= {"host.numa": node.host.numa, "adapters.devices": node.adapters.devices}
    if node.switch is not None:
        stated["switch.chips"] = node.switch.chips
    for field, value in stated.items():
        if field.partition(".")[0] in node.model_fields_set:
            known = field in node.sources or field.partition(".")[0] in node.sources
            assert known, f"{field}: {value}"
            assert node.sources.get(field, "a source") not in {"", "unsourced"}


def test_a_node_may_extend_another(tmp_path):
    path = tmp_path / "half.yaml"
    path.write_text("extends: mi250x\nname: slow\ndevice: slow.yaml\n", encoding="utf-8")
    slow = "extends: mi250x\nscale_up_peer_gb_per_s: 25\n"
    (tmp_path / "slow.yaml").write_text(slow, encoding="utf-8")
    topology = load_topology(path)
    assert topology.links[0].gb_per_s == 100.0
    assert topology.node.start_us == load_topology("mi250x").node.start_us
    path.write_text("extends: half.yaml\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="goes in a circle"):
        load_topology(path)


@pytest.mark.parametrize(("nics", "beside"), [(8, [0, 1, 2]), (32, [0, 0, 0]), (2, [0, 4])])
def test_adapters_are_as_many_as_the_network_has(nics, beside):
    own = load_topology("h100").network.model_copy(update={"nics_per_node": nics})
    topology = load_topology("h100", network=own)
    links = [link for link in topology.links if link.tier == "nic"]
    first = [min(link.a for link in links if link.b == f"nic{i}") for i in range(len(beside))]
    assert first == beside
    assert len({link.b for link in links}) == nics


def test_the_node_of_the_page_has_twenty_lines_and_loads():
    page = (Path(__file__).parents[2] / "docs" / "topology.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    assert len(example.splitlines()) <= 20
    topology = load_topology(yaml.safe_load(example))
    assert topology.num_devices == 4


def test_rates_of_the_page_are_current():
    page = (Path(__file__).parents[2] / "docs" / "topology.md").read_text(encoding="utf-8")
    rates = local_rates(load_topology("mi250x"))
    for name, found in (("rings", rates.ring_gb_per_s), ("exchange", rates.exchange_gb_per_s),
                        ("slowest pair", rates.pair_gb_per_s)):  # fmt: skip
        (row,) = re.findall(rf"^\| {name}, GB/s \|(.*)\|$", page, flags=re.MULTILINE)
        assert [float(cell) for cell in row.split("|")] == pytest.approx(list(found[2:9]), abs=0.05)


@pytest.mark.parametrize("node", [None, 5, [], {**SQUARE, "extends": 5}])
def test_what_is_no_node_is_refused(node):
    with pytest.raises(ConfigError, match="a node is a name, a file or a mapping"):
        load_topology(node)


def test_one_device_is_a_node():
    topology = load_topology(changed(devices=1, links={}))
    assert topology.links == ()
    assert is_regular(topology)
    assert find_matrices(topology).hops == ((0,),)


def test_adapters_of_one_device_may_be_several():
    adapters = {"devices": [[0], [0], [2], [2]], "tier": "thin"}
    topology = load_topology(changed(adapters=adapters))
    assert [link.a for link in topology.links if str(link.b).startswith("nic")] == [0, 0, 2, 2]
