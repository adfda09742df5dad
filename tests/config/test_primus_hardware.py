"""Reading Primus' hardware files, and partial devices and networks."""

import pytest

from projector.config.device_file import load_device
from projector.config.formats.primus_files import read_hardware_config
from projector.config.load import load_job
from projector.errors import ConfigError
from projector.projection.api import project_performance

MI300X = """
hardware_config:
  node_bw: 448
  node_lat: 0.45
  pod_bw: 50
  pod_lat: 2.0
  cluster_bw: 25
  cluster_lat: 10
  node_size: 8
  pod_size: 64
  nics_per_node: 8
  switch_topology: false
  node_topology: mesh
  vector_flops: 163e12
"""


def read(tmp_path, text):
    file = tmp_path / "hardware.yaml"
    file.write_text(text)
    return read_hardware_config(file)


def test_primus_file(tmp_path):
    overrides, warnings = read(tmp_path, MI300X)
    assert overrides == {
        "cluster.device.scale_up_gb_per_s": 448,
        "cluster.device.scale_up_peer_gb_per_s": 64,
        "cluster.device.scale_up_latency_us": 0.45,
        "cluster.device.vector_tflops": pytest.approx(163),
        "cluster.network.nic_gbit_per_s": 400,
        "cluster.network.nic_latency_us": 2,
        "cluster.network.pod_nodes": 8,
        "cluster.network.pod_oversubscription": 2,
        "cluster.network.spine_latency_us": 8,
        "cluster.network.exchange_peer_us": 0.25,
        "cluster.network.nics_per_node": 8,
        "cluster.network.gpus_per_node": 8,
        "cluster.network.scale_up_gpus": 8,
        "cluster.gpus_per_node": 8,
    }
    assert warnings == []


def test_overrides_reach_the_job(tmp_path):
    overrides, _ = read(tmp_path, MI300X)
    data = {
        "model": "llama3_8b",
        "training": {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 4096},
        "cluster": {"device": "mi300x", "network": load_device("mi300x").network},
    }
    job = load_job(data, overrides)
    assert job.cluster.device.scale_up_peer_gb_per_s == 64
    assert job.cluster.network.nic_gbit_per_s == 400
    assert job.cluster.network.pod_nodes == 8


def test_switch_gives_a_pair_the_whole_rate(tmp_path):
    overrides, warnings = read(tmp_path, "hardware_config: {node_bw: 450, node_topology: switch}")
    assert overrides["cluster.device.scale_up_peer_gb_per_s"] == 450
    assert warnings == []
    _, warnings = read(tmp_path, "hardware_config: {node_bw: 450}")
    assert "switch was assumed" in warnings[0]


def test_efficiency_and_start(tmp_path):
    text = "hardware_config: {bw_eff: 0.7, kernel_launch_latency: 2.8, rccl_overhead_us: 200}"
    overrides, _ = read(tmp_path, text)
    assert overrides["cluster.network.nic_efficiency"] == 0.7
    assert overrides["cluster.device.scale_up_efficiency"] == 0.7
    assert overrides["cluster.device.collective_start_us"] == pytest.approx(202.8)


def test_cluster_links_are_those_beyond_a_pod(tmp_path):
    text = "hardware_config: {pod_size: 256, node_size: 4, pod_bw: 40, cluster_bw: 10"
    overrides, _ = read(tmp_path, f"{text}, pod_lat: 3, cluster_lat: 4.5}}")
    network = {key.split(".")[-1]: value for key, value in overrides.items() if "network" in key}
    assert network["pod_nodes"] == 64
    assert network["pod_oversubscription"] == 4
    assert network["spine_latency_us"] == 1.5


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cluster_bw: 25", "cluster_bw was ignored: without pod_size"),
        ("cluster_lat: 9", "cluster_lat was ignored: without pod_size"),
        ("pod_size: 20", "16 were assumed"),
        ("pod_size: 64, cluster_bw: 90", "cluster_bw exceeds pod_bw"),
        ("pod_size: 64, cluster_lat: 1", "cluster_lat is below pod_lat"),
        ("switch_topology: false, nics_per_node: 4", "nics_per_node 4 was ignored"),
    ],
)
def test_what_does_not_fit_the_other_keys_is_named(tmp_path, text, says):
    overrides, warnings = read(tmp_path, f"hardware_config: {{{text}}}")
    assert any(says in warning for warning in warnings)
    assert overrides.get("cluster.network.pod_oversubscription", 1.0) >= 1.0


def test_exchanges_and_messages_have_constants_of_their_own(tmp_path):
    text = "hardware_config: {p2p_bw_eff: 0.8, a2a_peer_lat: 0.45, switch_topology: true}"
    overrides, warnings = read(tmp_path, text)
    assert warnings == []
    assert overrides == {
        "cluster.network.nic_p2p_efficiency": 0.8,
        "cluster.network.exchange_peer_us": 0.45,
    }


def test_a_group_beyond_its_pod_pays_for_the_cluster(tmp_path):
    data = {
        "model": "llama3_8b",
        "training": {"micro_batch_size": 1, "global_batch_size": 128, "seq_length": 4096},
        "cluster": {"device": "mi300x", "nodes": 16},
    }

    def dp_comm_s(text):
        overrides, _ = read(tmp_path, text)
        job = load_job(data, {**overrides, "parallelism.overlap_grad_reduce": False})
        return project_performance(job).breakdown["dp_comm"]

    within, beyond = (dp_comm_s(MI300X.replace("pod_size: 64", size)) for size in ("", SMALL_PODS))
    assert beyond > within


SMALL_PODS = "pod_size: 8"


def test_unknown_key_warns_with_a_suggestion(tmp_path):
    _, warnings = read(tmp_path, "hardware_config: {pod_bandwith: 3, nodebw: 4}")
    assert "pod_bandwith" in warnings[0]
    assert "did you mean 'node_bw'" in warnings[1]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("hardware_config: {node_bw: -1}", "node_bw"),
        ("hardware_config: {pod_bw: fast}", "pod_bw"),
        ("hardware_config: {pod_bw: 0}", "pod_bw"),
        ("hardware_config: {bw_eff: 1.4}", "bw_eff"),
        ("hardware_config: {p2p_bw_eff: 1.4}", "p2p_bw_eff"),
        ("hardware_config: {switch_topology: 3}", "switch_topology"),
        ("hardware_config: {pod_size: 64, cluster_bw: 0}", "cluster_bw"),
        ("hardware_config: {pod_size: 0}", "pod_size"),
        ("hardware_config: {a2a_peer_lat: -1}", "a2a_peer_lat"),
        ("hardware_config: {pod_lat: .nan}", "pod_lat"),
        ("hardware_config: {node_size: 7.5}", "node_size"),
        ("hardware_config: {node_bw: true}", "node_bw"),
        ("hardware_config: {node_bw: [1]}", "node_bw"),
        ("hardware_config: {node_topology: ring}", "node_topology"),
        ("hardware_config: {node_topology: [mesh]}", "node_topology"),
        ("hardware_config: 3", "hardware_config"),
        ("something: 3", "hardware_config"),
        ("device: {hbm_gb: 3}", "device.hbm_gb"),
        ("device: {tdp_w: -3}", "device.tdp_w"),
        ("network: [1]", "network"),
    ],
)
def test_bad_values(tmp_path, text, key):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert caught.value.key == key
    assert caught.value.allowed


def test_own_format(tmp_path):
    overrides, warnings = read(
        tmp_path,
        "device: {tdp_w: {value: 900, source: measured}, sustained_clock_mhz: {bf16: 1500}}\n"
        "network: {nic_gbit_per_s: 800}\n",
    )
    assert warnings == []
    assert overrides == {
        "cluster.device.tdp_w": {"value": 900, "source": "measured"},
        "cluster.device.sustained_clock_mhz.bf16": 1500,
        "cluster.network.nic_gbit_per_s": 800,
    }
    overrides, _ = read(tmp_path, "device: mi325x\nnetwork: {nics_per_node: 4}\n")
    assert overrides == {"cluster.device": "mi325x", "cluster.network.nics_per_node": 4}


@pytest.mark.parametrize("text", ["device: gpu.yaml\n", "device: {extends: gpu.yaml}\n"])
def test_files_that_a_hardware_file_names_lie_beside_it(tmp_path, text):
    (tmp_path / "gpu.yaml").write_text("extends: h100\nhbm_gib: 10\n")
    overrides, _ = read(tmp_path, text)
    assert load_device(overrides["cluster.device"]).hbm_gib == 10
