"""Reading Primus' hardware files, and partial devices and networks."""

import pytest
import yaml

from projector.config.device_file import load_device
from projector.config.formats.primus_files import read_hardware_config
from projector.config.load import load_job
from projector.errors import ConfigError
from projector.projection.api import project_memory, project_performance

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
        ("pod_size: 20", "16 were assumed"),
        ("pod_size: 64, cluster_bw: 90", "cluster_bw exceeds pod_bw"),
        ("pod_size: 64, cluster_lat: 1", "cluster_lat is below pod_lat"),
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

    within, beyond = (dp_comm_s(MI300X.replace("pod_size: 64", size)) for size in LARGE_AND_SMALL)
    assert beyond > within


LARGE_AND_SMALL = "pod_size: 128", "pod_size: 8"


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        ("nodebw: 4", "nodebw", "did you mean 'node_bw'"),
        ("cluster_bw: 25", "cluster_bw", "needs pod_size"),
        ("cluster_lat: 9", "cluster_lat", "needs pod_size"),
        ("node_topology: mesh", "node_topology", "needs node_bw"),
        ("switch_topology: false, nics_per_node: 4", "nics_per_node", "or write 8"),
        ("node_lat: 1, intra_node_latency_us: 1", "intra_node_latency_us", "write one"),
        ("alltoall_intra_efficiency: 0.5", "alltoall_intra_efficiency", "intra_node_efficiency"),
        ("write_latency: 0.28", "write_latency", "write node_lat"),
        ("ar_overlap_factor: 0.9", "ar_overlap_factor", "collective_chunk_us"),
        ("nic_rdma_setup_us: 260", "nic_rdma_setup_us", "network.collective_start_us"),
        ("gpu_compute_tflops: 1307", "gpu_compute_tflops", "matrix_flop_per_clk_per_cu"),
    ],
)
def test_a_key_that_would_move_nothing_is_refused(tmp_path, text, key, says):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, f"hardware_config: {{{text}}}")
    assert caught.value.key == key
    assert says in str(caught.value)


# The keys of examples/hardware_configs/custom_hardware_example.yaml of AMD-AGI/Primus at 739a329b.
CUSTOM = {
    "gpu_memory_gb": 192,
    "gpu_compute_tflops": 1307,
    "intra_node_bandwidth_gbps": 896,
    "intra_node_latency_us": 1.0,
    "inter_node_bandwidth_gbps": 400,
    "inter_node_latency_us": 2.0,
    "gpus_per_node": 8,
    "nics_per_node": 8,
    "intra_node_efficiency": 0.85,
    "inter_node_efficiency": 0.70,
    "alltoall_intra_efficiency": 0.80,
    "alltoall_inter_efficiency": 0.60,
}
# Other keys that Primus' CollectiveArgs has and we read, at its values.
OTHERS = {
    "node_bw": 448, "node_lat": 0.45, "pod_bw": 50, "pod_lat": 2, "cluster_bw": 25,
    "cluster_lat": 10, "pod_size": 16, "hbm_latency": 0.09, "bw_eff": 0.7, "p2p_bw_eff": 0.4,
    "kernel_launch_latency": 2.8, "rccl_overhead_us": 200, "a2a_peer_lat": 0.45,
    "a2a_intra_node_peer_lat": 2.5, "a2a_mesh_contention": 0.12, "vector_flops": 3.2e12,
}  # fmt: skip


def projections(tmp_path, keys):
    """Return what a mixture of experts on 32 GPUs takes, with experts in a node and across two."""
    overrides, _ = read(tmp_path, yaml.safe_dump({"hardware_config": keys}))
    found = []
    for ep, tp in ((8, 1), (16, 1), (4, 2)):
        data = {
            "model": "mixtral_8x7b" if ep == 8 else "deepseek_v2_lite",
            "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 2048},
            "parallelism": {"ep": ep, "tp": tp, "pp": 2, "overlap_grad_reduce": False},
            "cluster": {"device": "mi300x", "nodes": 4},
        }
        gpus = overrides.get("cluster.gpus_per_node", 8)
        job = load_job(data, {**overrides, "cluster.nodes": 32 // gpus})
        memory = project_memory(job).to_dict()
        found += [project_performance(job).iteration_time_s, memory["headroom_gib"]]
    return found


def moves(tmp_path, keys, base):
    """Return whether keys move a projection, or the key that is refused."""
    try:
        return projections(tmp_path, keys) != base
    except ConfigError as error:
        return error.key


@pytest.mark.parametrize("table", [CUSTOM, OTHERS], ids=["custom", "others"])
def test_every_key_moves_a_projection_or_is_refused(tmp_path, table):
    before = {key: value for key, value in table.items() if key != "gpu_compute_tflops"}
    base = projections(tmp_path, before)
    for key, value in table.items():
        # Twice a share is mostly none.
        for factor in (2, 0.97) if key.endswith(("efficiency", "eff")) else (2,):
            found = moves(tmp_path, before | {key: factor * value}, base)
            assert found is True or (found, factor) == (key, 2), key


def test_sections_of_our_own_stand_beside_those_of_primus(tmp_path):
    text = "hardware_config: {pod_lat: 3}\nnetwork: {collective_start_us: 30}\n"
    assert read(tmp_path, text)[0] == {
        "cluster.network.nic_latency_us": 3,
        "cluster.network.collective_start_us": 30,
    }


def test_custom_example_in_our_fields(tmp_path):
    keys = {key: value for key, value in CUSTOM.items() if key != "gpu_compute_tflops"}
    overrides, warnings = read(tmp_path, yaml.safe_dump({"hardware_config": keys}))
    assert warnings == ["node_topology is missing; a switch was assumed, as Primus does"]
    assert overrides == {
        "cluster.device.hbm_gib": 192,
        "cluster.device.scale_up_gb_per_s": 448,
        "cluster.device.scale_up_peer_gb_per_s": 448,
        "cluster.device.scale_up_latency_us": 1,
        "cluster.device.scale_up_efficiency": 0.85,
        "cluster.device.collective_exchange_efficiency": pytest.approx(0.8 / 0.85),
        "cluster.network.nic_gbit_per_s": 400,
        "cluster.network.nic_latency_us": 2,
        "cluster.network.nic_efficiency": 0.7,
        "cluster.network.nic_p2p_efficiency": 0.6,
        "cluster.network.nics_per_node": 8,
        "cluster.network.gpus_per_node": 8,
        "cluster.network.scale_up_gpus": 8,
        "cluster.gpus_per_node": 8,
    }


def test_latency_of_memory_is_part_of_a_hop(tmp_path):
    overrides, _ = read(tmp_path, "hardware_config: {node_lat: 1.0, hbm_latency: 0.5}")
    assert overrides["cluster.device.scale_up_latency_us"] == 1.5
    assert overrides["cluster.device.hbm_latency_us"] == 0.5


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
