"""Reading a device or network: sources, inheritance and errors."""

from pathlib import Path

import pytest

from projector.config import yaml_file
from projector.config._base import merge
from projector.config.cluster import ClusterConfig
from projector.config.device import Device
from projector.config.device_file import load_device
from projector.config.load import load_job
from projector.config.network import load_network, load_transport
from projector.config.resources import data_dir
from projector.errors import ConfigError


def test_a_mapping_replaces_a_sourced_one():
    measured = {"NVIDIA H100 SXM 80GB": [96]}
    kernels = {"fa3": {"forward_measured": measured}}
    device = load_device({"extends": "h100", "attention_kernels": kernels})
    assert device.attention_kernels["fa3"].forward_measured == {"NVIDIA H100 SXM 80GB": (96,)}


def test_number_may_be_bare_in_an_override():
    device = load_device({"extends": "h100", "name": "test", "tdp_w": 350})
    assert device.tdp_w == 350
    assert "tdp_w" not in device.sources
    assert device.hbm_gib == load_device("h100").hbm_gib


def test_override_of_one_type_keeps_the_others():
    base = load_device("h100")
    device = load_device({"extends": "h100", "sustained_clock_mhz": {"bf16": 1200}})
    assert device.sustained_clock_mhz["bf16"] == 1200
    assert device.sustained_clock_mhz["fp8"] == base.sustained_clock_mhz["fp8"]
    assert "sustained_clock_mhz.bf16" not in device.sources
    assert device.sources["sustained_clock_mhz.fp8"]


def test_source_key_is_replaced_by_its_text_and_note():
    device = load_device(
        {
            "extends": "h100",
            "tdp_w": {"value": 650, "source": "lab", "note": "one card"},
            "hbm_gib": {"value": 79, "source": "a log"},
            "sources": {"lab": "our own measurement"},
        }
    )
    assert device.sources["tdp_w"] == "our own measurement (one card)"
    assert device.sources["hbm_gib"] == "a log"
    assert device.sources["l2_mib"].startswith(
        "taken from NVIDIA H100 SXM 80GB: stas00/ml-engineering"
    )


def test_what_is_taken_twice_is_of_the_first_owner():
    device = load_device({"extends": "mi350x", "name": "ours", "tdp_w": 900})
    assert device.sources["gemm_efficiency.bf16"].startswith("taken from AMD Instinct MI355X: ")
    assert device.sources["hbm_peak_tb_per_s"].startswith("taken from AMD Instinct MI350X: ")
    assert "tdp_w" not in device.sources


def test_extends_from_a_file(tmp_path):
    path = tmp_path / "slow.yaml"
    path.write_text(
        "extends: mi300x\nname: slow\nhbm_efficiency: 0.5\nattention: {forward_rows: 128}\n"
    )
    device = load_device(str(path))
    base = load_device("mi300x")
    assert (device.name, device.hbm_efficiency) == ("slow", 0.5)
    assert device.attention.forward_rows == 128
    assert device.attention.backward_rows == base.attention.backward_rows
    assert load_device(path) == device
    second = tmp_path / "slower.yaml"
    second.write_text(f"extends: {path}\nhbm_efficiency: 0.25\n")
    assert load_device(str(second)).name == "slow"
    assert load_device(str(second)).hbm_efficiency == 0.25


def test_an_unknown_collective_algorithm_is_named_with_the_known_ones(tmp_path):
    path = tmp_path / "slip.yaml"
    path.write_text("extends: mi300x\nname: slip\ncollective_algorithms: [ring, rnig]\n")
    for given in (str(path), {"extends": "h100", "collective_algorithms": ["ring", "rnig"]}):
        with pytest.raises(ConfigError, match=r"ring, .*pairwise.*'rnig'") as error:
            load_device(given)
        assert error.value.key.endswith("collective_algorithms.1")
        assert error.value.value == "rnig"


def test_a_file_extends_another_from_its_own_folder(tmp_path, monkeypatch):
    folder = tmp_path / "devices"
    (folder / "base").mkdir(parents=True)
    (folder / "base" / "cool.yaml").write_text("extends: h100\nname: cool\ntdp_w: 500\n")
    (folder / "lab.yaml").write_text("extends: base/cool.yaml\nhbm_efficiency: 0.5\n")
    monkeypatch.chdir(tmp_path)
    # Once this one was taken, which lies in the working folder.
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "cool.yaml").write_text("extends: h100\nname: other\n")
    for file in (folder / "lab.yaml", "devices/lab.yaml", "devices/../devices/lab.yaml"):
        device = load_device(file)
        assert (device.name, device.tdp_w, device.hbm_efficiency) == ("cool", 500, 0.5)
    (folder / "base" / "cool.yaml").unlink()
    with pytest.raises(ConfigError, match=r"devices/base/cool\.yaml does not exist") as error:
        load_device("devices/lab.yaml")
    assert error.value.key == "cluster.device"


def test_a_family_brings_its_kernels_and_a_device_lays_its_own_over_them():
    base = load_device("h100")
    device = load_device({"extends": "h100", "attention_kernels": {"fa3": {"mask_exposed": 0.1}}})
    assert device.attention_kernels["fa3"].mask_exposed == 0.1
    same = {"mask_exposed"}
    assert device.attention_kernels["fa3"].model_dump(exclude=same) == base.attention_kernels[
        "fa3"
    ].model_dump(exclude=same)
    assert device.attention_kernels["fa2"] == base.attention_kernels["fa2"]
    other = load_device({"extends": "h100", "attention_family": "blackwell"})
    assert "fa4" in other.attention_kernels
    own = load_device({"extends": "mi250x", "name": "own"})
    assert (own.attention_family, own.attention_kernels) == (None, {})
    family = load_device({"extends": "mi250x", "attention_family": "cdna3"})
    assert "aiter" in family.attention_kernels


def test_a_family_brings_its_layers_of_experts():
    base = load_device("h800")
    assert base.expert_layer == load_device("h100").expert_layer
    assert "hopper family" in base.sources["expert_layer.kernels.bf16.start_us"]
    device = load_device(
        {"extends": "h800", "expert_layer": {"kernels": {"bf16": {"wave_clk": 3}}}}
    )
    kernels = device.expert_layer.kernels
    assert kernels["bf16"].wave_clk == 3
    assert kernels["bf16"].start_us == base.expert_layer.kernels["bf16"].start_us
    assert kernels["fp8"] == base.expert_layer.kernels["fp8"]
    other = load_device({"extends": "h800", "expert_family": "blackwell"})
    assert other.expert_layer == load_device("b200").expert_layer


def test_a_gemm_family_brings_its_libraries_and_a_device_lays_its_own_over_them():
    base = load_device("mi300x")
    device = load_device({"extends": "mi300x", "gemm_libraries": {"ck": {"overhead_us": 1.0}}})
    assert device.gemm_libraries["ck"].overhead_us == 1.0
    assert device.gemm_libraries["ck"].tiles == base.gemm_libraries["ck"].tiles
    assert device.gemm_libraries["triton"] == base.gemm_libraries["triton"]
    assert device.gemm_tiles == base.gemm_tiles
    other = load_device({"extends": "mi300x", "gemm_family": "cdna4"})
    assert "flydsl" in other.gemm_libraries
    few = [{"m": 64, "n": 64, "k_bytes": 128}]
    assert len(load_device({"extends": "mi300x", "gemm_tiles": few}).gemm_tiles) == 1


@pytest.mark.parametrize("member", ["aiter", "cublas"])
def test_members_are_libraries_with_kernels_of_their_own(member):
    libraries = {"aiter": {"members": ["ck", member]}}
    with pytest.raises(ConfigError, match=f"'{member}' is no library with kernels") as error:
        load_device({"extends": "mi300x", "gemm_libraries": libraries})
    assert "ck" in error.value.allowed
    assert "aiter" not in error.value.allowed


SMALL = {"m": 16, "n": 16, "k_bytes": 128}


@pytest.mark.parametrize(
    ("libraries", "match"),
    [
        ({"ours": {"tiles_of": {"bf16": [SMALL] * 65}}}, r"ours\.tiles_of\.bf16: .* at most 64"),
        (
            {"ours": {"tiles": [SMALL] * 40}, "both": {"members": ["ours", "ours"]}},
            r"both\.members: they have 80 tiles together, more than 64",
        ),
        ({"aiter": {"tiles": [SMALL]}}, r"aiter\.tiles: it takes the kernels of its members"),
        ({"aiter": {"efficiency": {"bf16": 0.5}}}, r"aiter\.efficiency: it takes the kernels"),
        ({"ours": {"split_k": [2, 65]}}, r"ours\.split_k\.1: should be less than or equal to 64"),
    ],
)
def test_a_library_that_cannot_be(libraries, match):
    with pytest.raises(ConfigError, match=match) as error:
        load_device({"extends": "mi300x", "gemm_libraries": libraries})
    assert error.value.allowed


@pytest.mark.parametrize("sources", [["a"], "a", 1])
def test_sources_are_a_table(sources):
    base = {"extends": "mi300x", "sources": sources}
    for given in (base, {"extends": base}):
        with pytest.raises(ConfigError, match="sources: must be a mapping") as error:
            load_device(given)
        assert error.value.key.endswith("sources")


def test_a_key_of_sources_may_be_a_number():
    noted = {"tdp_w": {"value": 700, "source": 1}, "sources": {1: "our lab"}}
    assert load_device({"extends": "mi300x", **noted}).sources["tdp_w"] == "our lab"


def test_extends_in_a_circle(tmp_path):
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text(f"extends: {two}\n")
    two.write_text(f"extends: {one}\n")
    with pytest.raises(ConfigError, match="circle") as error:
        load_device(str(one))
    assert error.value.key == "cluster.device.extends"


def test_unknown_device_names_the_nearest():
    with pytest.raises(ConfigError, match="mi300x") as error:
        load_device("mi30x")
    assert error.value.key == "cluster.device"
    assert error.value.value == "mi30x"
    assert "mi300x" in error.value.allowed


def test_unknown_base_of_extends():
    with pytest.raises(ConfigError, match="unknown GPU 'zzz'"):
        load_device({"extends": "zzz"})


def test_misspelt_key_is_suggested():
    with pytest.raises(ConfigError, match="did you mean 'hbm_gib'") as error:
        load_device({"extends": "h100", "hbm_gb": 80})
    assert "hbm_g" in str(error.value.key)


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ({"hbm_peak_tb_per_s": -1}, "hbm_peak_tb_per_s"),
        ({"hbm_peak_tb_per_s": {"value": -1, "source": "x"}}, "hbm_peak_tb_per_s"),
        ({"scale_up_gb_per_s": 0}, "scale_up_gb_per_s"),
        ({"hbm_efficiency": 1.5}, "hbm_efficiency"),
        ({"compute_units": 1.5}, "compute_units"),
        ({"tdp_w": float("inf")}, "tdp_w"),
        ({"gemm_tiles": []}, "gemm_tiles"),
        ({"gemm_tiles": [{"m": 128, "n": 0, "k_bytes": 128}]}, "gemm_tiles.0.n"),
        ({"attention": {"forward_efficiency": 1.2}}, "attention.forward_efficiency"),
        ({"gemm_family": "volta"}, "unknown family 'volta'; known: cdna2"),
        ({"attention_family": "volta"}, "unknown family 'volta'; known: ampere"),
        ({"expert_family": "volta"}, "unknown family 'volta'; known: ampere"),
        ({"attention_kernels": {"fa3": {"head_dims": {64: {"rows": 1}}}}}, "head_dims.64.rows"),
        ({"sustained_clock_mhz": {"bf16": -5}}, "sustained_clock_mhz.bf16"),
        ({"sustained_clock_mhz": {"bf16": 9999}}, "sustained_clock_mhz.bf16"),
        ({"scale_up_peer_gb_per_s": 9999}, "scale_up_peer_gb_per_s"),
        ({"matrix_flop_per_clk_per_cu": {"nvfp4": 16384}}, "lacks nvfp4"),
    ],
)
def test_bad_value_is_refused_by_name(override, key):
    with pytest.raises(ConfigError) as error:
        load_device({"extends": "h100", **override})
    assert key in f"{error.value.key} {error.value}"


@pytest.mark.parametrize("given", [3, None, ["h100"]])
def test_device_is_a_name_a_file_or_a_mapping(given):
    with pytest.raises(ConfigError, match="a name, a file or a mapping"):
        load_device(given)


def test_key_of_the_caller_is_used():
    with pytest.raises(ConfigError) as error:
        load_device({"extends": "h100", "tdp_w": -1}, key="job.gpu")
    assert error.value.key == "job.gpu.tdp_w"


def test_device_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        load_device("h100").tdp_w = 1


def test_merge_replaces_a_sourced_number_whole():
    base = {"a": {"value": 1, "source": "s", "note": "n"}, "b": {"x": 1, "y": 2}}
    assert merge(base, {"a": {"value": 2}, "b": {"y": 3}}) == {
        "a": {"value": 2},
        "b": {"x": 1, "y": 3},
    }
    assert merge(base, {"a": 5})["a"] == 5
    assert base["b"] == {"x": 1, "y": 2}


def test_missing_field_is_named():
    with pytest.raises(ConfigError, match=r"^gpu\.\w+: is required$") as error:
        Device.parse({"name": "x", "vendor": "other"}, path="gpu")
    assert str(error.value.key).startswith("gpu.")


def test_network_by_name_and_by_mapping():
    rack = load_network("gb200_nvl72")
    assert (rack.gpus_per_node, rack.scale_up_gpus, rack.nics_per_node) == (4, 72, 4)
    assert "unsourced" not in " ".join(rack.sources.values())
    own = load_network({"name": "own", "nic_gbit_per_s": 100})
    assert own.gpus_per_node == 8
    assert not own.sources


def test_a_network_takes_from_its_transport_what_it_does_not_state():
    transport = load_transport("efa_v2")
    network = load_network("p5_efa")
    assert (network.nics_per_node, network.nic_gbit_per_s) == (32, 100)
    assert network.nic_latency_us == transport.nic_latency_us
    assert "transport efa_v2" in network.sources["nic_latency_us"]
    own = {"name": "own", "nic_gbit_per_s": 100, "transport": "efa_v2", "nic_latency_us": 3}
    assert load_network(own).nic_latency_us == 3
    assert load_network(own).nic_efficiency == transport.nic_efficiency
    with pytest.raises(ConfigError, match="unknown transport 'efa'; known: efa_v1") as error:
        load_network(own | {"transport": "efa"})
    assert error.value.key == "cluster.network.transport"


def test_another_transport_brings_its_own_numbers():
    usual = ClusterConfig.parse({"device": "h100"}).network
    transport = load_transport("tcpxo")
    for network in ({"transport": "tcpxo"}, {"extends": "p5_efa", "transport": "tcpxo"}):
        found = ClusterConfig.parse({"device": "h100", "network": network}).network
        assert found.nic_latency_us == transport.nic_latency_us != usual.nic_latency_us
    assert found.nics_per_node == 32
    assert "tcpxo" in found.name


PROXY = "cluster.network.exchange_proxy"
RATE = "cluster.network.exchange_proxy_gb_per_s"
WRITE = "cluster.network.exchange_write_us"


def network_of(overrides, network="p5_efa"):
    job = {
        "model": "mixtral_8x7b",
        "training": {"micro_batch_size": 1, "global_batch_size": 16, "seq_length": 4096},
        "cluster": {"device": "h100", "nodes": 2, "network": network},
    }
    return load_job(load_job(job), overrides).cluster.network


def proxy_of(network):
    return (
        network.exchange_proxy,
        network.exchange_write_us,
        network.exchange_proxy_gb_per_s,
        network.exchange_wait_us,
    )


PROXIES = yaml_file.read_yaml(data_dir("hardware") / "exchange_proxies.yaml")
WAIT_US = load_transport("efa_v2").exchange_wait_us
WRITES_US, GB_PER_S = (
    {name: entry[field]["value"] for name, entry in PROXIES.items()}
    for field in ("exchange_write_us", "exchange_proxy_gb_per_s")
)
NVSHMEM, UCCL = ((name, WRITES_US[name], GB_PER_S[name], WAIT_US) for name in ("nvshmem", "uccl"))
# EFA of P5en and P6 waits less.
LATER_UCCL = (*UCCL[:3], load_transport("efa_v4").exchange_wait_us)


def test_adapters_of_efa_have_a_proxy_and_others_none():
    assert WAIT_US > 0.0
    assert WRITES_US["nvshmem"] > 0.0
    assert GB_PER_S["uccl"] > 0.0
    assert proxy_of(load_network("p5_efa")) == NVSHMEM
    assert proxy_of(load_network("hgx_h100")) == ("", 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        ({}, NVSHMEM),
        ({PROXY: "uccl"}, UCCL),
        ({PROXY: "nvshmem"}, NVSHMEM),
        ({PROXY: ""}, ("", 0.0, 0.0, WAIT_US)),
        ({RATE: 10}, ("nvshmem", WRITES_US["nvshmem"], 10.0, WAIT_US)),
        # A proxy brings its numbers, and what is said beside it wins, in either order.
        ({PROXY: "uccl", RATE: 10}, ("uccl", WRITES_US["uccl"], 10.0, WAIT_US)),
        ({RATE: 10, PROXY: "uccl"}, ("uccl", WRITES_US["uccl"], 10.0, WAIT_US)),
        ({WRITE: 3, PROXY: "uccl"}, ("uccl", 3.0, GB_PER_S["uccl"], WAIT_US)),
        ({PROXY: "uccl", "cluster.network": "p5en_efa"}, LATER_UCCL),
        ({PROXY: "uccl", "cluster.network.transport": "efa_v4"}, LATER_UCCL),
        ({"cluster.network.transport": "infiniband_ndr"}, ("", 0.0, 0.0, 0.0)),
        ({"cluster.network.transport": "infiniband_ndr", RATE: 10}, ("", 0.0, 10.0, 0.0)),
    ],
)
def test_a_proxy_is_read_by_name_and_its_own_numbers_win(overrides, found):
    assert proxy_of(network_of(overrides)) == found


@pytest.mark.parametrize(
    "network",
    [
        {"extends": "p5_efa", "exchange_proxy": "uccl", "exchange_proxy_gb_per_s": 10},
        {"extends": "p5_efa", "exchange_proxy_gb_per_s": 10, "exchange_proxy": "uccl"},
    ],
)
def test_a_mapping_of_a_network_has_the_same_order(network):
    assert proxy_of(network_of({}, network)) == ("uccl", WRITES_US["uccl"], 10.0, WAIT_US)
    # One override after another: the later proxy brings its own numbers again.
    assert proxy_of(network_of({PROXY: "nvshmem"}, network)) == NVSHMEM


def test_an_unknown_proxy_lists_the_known():
    with pytest.raises(ConfigError, match="unknown proxy 'ibgda'; known: nvshmem, uccl") as error:
        network_of({PROXY: "ibgda"})
    assert (error.value.key, error.value.value) == (PROXY, "ibgda")


def test_unknown_network_lists_the_known():
    with pytest.raises(ConfigError, match="hgx_h100") as error:
        load_network("hgx")
    assert error.value.key == "cluster.network"
    assert "hgx_h100" in error.value.allowed


@pytest.mark.parametrize(
    ("override", "key"), [({"nic_efficiency": 2}, "nic_efficiency"), ({"nics": 2}, "nics")]
)
def test_bad_network_is_refused(override, key):
    with pytest.raises(ConfigError) as error:
        load_network({"name": "own", "nic_gbit_per_s": 100, **override})
    assert key in f"{error.value.key} {error.value}"


def test_a_variant_of_a_device_reads_no_table_again(monkeypatch):
    given = {"device": {"extends": "mi300x", "hbm_gib": 96.0}, "network": {"scale_up_gpus": 4}}
    ClusterConfig.parse(given)
    read, parse = [], yaml_file.parse_yaml

    def noted(text, *, name):
        read.append(Path(name).name)
        return parse(text, name=name)

    monkeypatch.setattr(yaml_file, "parse_yaml", noted)
    ClusterConfig.parse(given)
    assert set(read) <= {"mi300x.yaml"}


def test_a_printed_device_is_its_name():
    device = load_device("h100")
    assert repr(device) == f"Device(name={device.name!r})"
    assert len(device.model_dump()) > 50
