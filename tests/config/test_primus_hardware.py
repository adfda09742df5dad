"""Reading Primus' hardware files, and partial devices and networks."""

import pytest

from projector.config.device import load_device
from projector.config.formats.primus_hardware import read_hardware_config
from projector.config.load import load_job
from projector.errors import ConfigError

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
        "cluster.network.nics_per_node": 8,
        "cluster.network.gpus_per_node": 8,
        "cluster.network.scale_up_gpus": 8,
        "cluster.gpus_per_node": 8,
    }
    named = {text.split()[0] for text in warnings}
    assert named == {"cluster_bw", "cluster_lat", "pod_size", "switch_topology"}


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
        ("hardware_config: {pod_lat: .nan}", "pod_lat"),
        ("hardware_config: {node_size: 7.5}", "node_size"),
        ("hardware_config: {node_bw: true}", "node_bw"),
        ("hardware_config: {node_bw: [1]}", "node_bw"),
        ("hardware_config: {node_topology: ring}", "node_topology"),
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
