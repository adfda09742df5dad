"""Nodes of a job whose file leaves them open."""

from pathlib import Path

import pytest

from projector.config.first_order_job import load_first_order_job
from projector.config.load import load_job
from projector.config.parallelism import ParallelismConfig
from projector.errors import ConfigError
from projector.projection.api import project_memory

EXAMPLES = Path(__file__).parents[2] / "examples" / "megatron" / "configs"
MIXTRAL = EXAMPLES / "MI355X" / "mixtral_8x22B_v0.1-BF16-pretrain.yaml"
"""TP 1, PP 4, EP 8: 32 GPUs at least."""


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in ("NNODES", "GPUS_PER_NODE", "PRIMUS_TP", "PRIMUS_PP", "PRIMUS_EP"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("degrees", "experts", "nodes"),
    [
        ({}, False, 1),
        ({"tp": 4, "pp": 4}, False, 2),
        ({"tp": 3}, False, 3),  # 24 GPUs are the first whole nodes that 3 divides
        ({"pp": 4, "ep": 8}, True, 4),
        ({"pp": 4, "ep": 8}, False, 1),
        ({"tp": 4, "ep": 8, "etp": 1}, True, 1),
        ({"tp": 2, "cp": 3, "pp": 2, "ep": 4}, True, 6),
    ],
)
def test_least_number_of_nodes(degrees, experts, nodes):
    split = ParallelismConfig.parse(degrees)
    assert split.least_nodes(8, experts=experts) == nodes


@pytest.mark.parametrize("nnodes", [None, "1"])
def test_open_nodes_are_the_least_that_the_layout_needs(monkeypatch, nnodes):
    if nnodes:
        monkeypatch.setenv("NNODES", nnodes)
    job = load_job(MIXTRAL)
    assert job.cluster.nodes == 4
    assert job.origins["cluster.nodes"] == "the least that the layout needs"
    assert any("4 nodes of 8 were taken" in note for note in job.notes)
    assert project_memory(job).peak_bytes > 0


@pytest.mark.parametrize(
    ("overrides", "nodes"),
    [
        ({"parallelism.pp": 8, "parallelism.vpp": 1}, 8),
        ({"parallelism.expert_parallel_size": 4}, 2),
        ({"cluster.gpus_per_node": 4}, 8),
        ({"model": "llama3.1_8b", "parallelism.vpp": 1, "parallelism.ep": 1}, 1),
        ({"cluster.nodes": 16}, 16),
        ({"cluster.num_nodes": 16}, 16),
    ],
)
def test_overrides_come_first(overrides, nodes):
    job = load_job(MIXTRAL, overrides)
    assert job.cluster.nodes == nodes
    assert ("cluster.nodes" in job.origins) == (nodes < 16)


def test_one_node_that_holds_the_layout_is_no_warning():
    job = load_job(MIXTRAL, {"parallelism.pp": 1, "parallelism.vpp": 1})
    assert job.cluster.nodes == 1
    assert job.notes == ()


def test_first_order_devices_count_their_own_hosts():
    job = load_first_order_job(MIXTRAL, {"cluster.device": "tpu_v5p", "parallelism.vpp": 1})
    assert job.cluster.gpus == 32
    assert job.cluster.gpus_per_node < 8


def test_other_errors_keep_their_place(tmp_path):
    with pytest.raises(ConfigError, match="device is missing"):
        load_job(_copy(tmp_path))
    with pytest.raises(ConfigError, match=r"parallelism\.pp"):
        load_job(MIXTRAL, {"parallelism.pp": "many"})


def _copy(folder):
    file = folder / "experiment.yaml"
    file.write_text(MIXTRAL.read_text())
    return file


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"cluster.nodes": 2}, "; 4 nodes of 8 would do (cluster.nodes=4)"),
        ({"cluster.nodes": 6}, "; a multiple of 4 nodes of 8 would do"),
        ({"cluster.nodes": 8, "parallelism.tp": 16}, "; 64 nodes of 8 would do (cluster.nodes=64)"),
        ({"cluster.nodes": 1, "parallelism.ep": 1, "parallelism.cp": 4}, "2 nodes of 8 would"),
    ],
)
def test_too_few_nodes_are_told_how_many_would_do(overrides, expected):
    job = load_job(MIXTRAL, overrides)
    with pytest.raises(ConfigError) as caught:
        project_memory(job)
    assert expected in caught.value.message


def test_nodes_that_the_environment_states_are_kept(monkeypatch):
    monkeypatch.setenv("NNODES", "2")
    job = load_job(MIXTRAL)
    assert job.cluster.nodes == 2
    with pytest.raises(ConfigError, match="4 nodes of 8 would do"):
        project_memory(job)
