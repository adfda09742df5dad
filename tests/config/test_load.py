"""Reading jobs: overrides, relative files, mistakes."""

import json

import pytest

from projector.config.load import Variants, load_job, parse_override
from projector.config.model_file import load_model
from projector.config.network import load_transport
from projector.errors import ConfigError, ProjectorError, UnsupportedError

BASE = {
    "model": "llama3.1_8b",
    "training": {"mbs": 1, "gbs": 8, "seq_length": 4096},
    "cluster": {"device": "h100"},
}


def fails(data, overrides=None, kind=ConfigError):
    with pytest.raises(kind) as caught:
        load_job(data, overrides)
    return caught.value


def test_names_are_expanded_where_a_field_is_overridden():
    job = load_job(BASE, {"model.num_layers": 4, "cluster.device.hbm_gib": 100.0})
    assert job.model.num_layers == 4
    assert job.model.hidden_size == 4096
    assert job.cluster.device.hbm_gib == 100.0
    assert job.cluster.device.compute_units == 132


def test_network_override_extends_the_usual_network():
    job = load_job(BASE, {"cluster.network.nic_gbit_per_s": 800})
    assert job.cluster.network.nic_gbit_per_s == 800
    assert job.cluster.network.gpus_per_node == 8


def test_short_forms_are_expanded():
    job = load_job(
        {**BASE, "training": {**BASE["training"], "recompute": "full"}},
        {"training.recompute.method": "block", "training.recompute.num_layers": 2},
    )
    assert job.training.recompute.granularity == "full"
    assert job.training.recompute.num_layers == 2


def test_megatron_names_are_aliases():
    job = load_job({**BASE, "parallelism": {"tensor_model_parallel_size": 2}})
    assert job.parallelism.tp == 2
    error = fails({**BASE, "parallelism": {"tensor_model_parallel_size": 2, "tp": 2}})
    assert "set twice" in error.message


def test_a_transport_comes_before_the_fields_that_override_it():
    overrides = {"cluster.network.nic_latency_us": 3.0, "cluster.network.transport": "efa_v2"}
    transport = load_transport("efa_v2")
    base = load_job(BASE)
    for job in (
        load_job(BASE, overrides),
        load_job(base, overrides),
        Variants(base).job(overrides),
    ):
        network = job.cluster.network
        assert (network.transport, network.nic_latency_us) == ("efa_v2", 3.0)
        assert network.nic_efficiency == transport.nic_efficiency
        assert network.nics_per_node == base.cluster.network.nics_per_node


def test_overrides_meet_aliases_in_either_spelling():
    data = {**BASE, "parallelism": {"tensor_model_parallel_size": 2}}
    assert load_job(data, {"parallelism.tp": 4}).parallelism.tp == 4
    overrides = {"parallelism.tensor-model-parallel-size": 8, "training.micro_batch_size": 2}
    job = load_job(data, overrides)
    assert (job.parallelism.tp, job.training.micro_batch_size) == (8, 2)


def test_a_job_can_be_overridden_again():
    job = load_job(load_job(BASE, {"parallelism.tp": 2}), {"parallelism.pp": 2})
    assert (job.parallelism.tp, job.parallelism.pp) == (2, 2)


def test_files_are_found_beside_the_job(tmp_path):
    (tmp_path / "tiny.yaml").write_text("extends: llama3.1_8b\nnum_layers: 2\n")
    (tmp_path / "gpu.yaml").write_text("extends: h100\nhbm_gib: 10\n")
    (tmp_path / "job.yaml").write_text(
        "model: tiny.yaml\ntraining: {mbs: 1, gbs: 8, seq_length: 64}\n"
        "cluster: {device: gpu.yaml}\n"
    )
    job = load_job(tmp_path / "job.yaml")
    assert job.model.num_layers == 2
    assert job.cluster.device.hbm_gib == 10


def test_what_a_file_extends_is_found_from_its_folder(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "base.yaml").write_text("extends: llama3.1_8b\nnum_layers: 2\n")
    (tmp_path / "sub" / "tiny.yaml").write_text("extends: base.yaml\nhidden_size: 1024\n")
    (tmp_path / "sub" / "gpu.yaml").write_text("extends: h100\nhbm_gib: 10\n")
    job = tmp_path / "job.yaml"
    job.write_text(
        "model: {extends: sub/tiny.yaml, num_layers: 3}\n"
        "training: {mbs: 1, gbs: 8, seq_length: 64}\n"
        "cluster: {device: {extends: sub/gpu.yaml, tdp_w: 500}}\n"
    )
    monkeypatch.chdir(tmp_path / "sub")
    assert load_model(tmp_path / "sub" / "tiny.yaml").num_layers == 2
    read = load_job("../job.yaml")
    assert (read.model.num_layers, read.model.hidden_size) == (3, 1024)
    assert (read.cluster.device.hbm_gib, read.cluster.device.tdp_w) == (10, 500)
    job.write_text(job.read_text().replace("sub/gpu", "nowhere/gpu"))
    assert "nowhere/gpu.yaml does not exist" in fails(job).message


def test_an_unknown_gpu_lists_the_nearest():
    error = fails(BASE, {"cluster.device": "mi35x"})
    assert "mi355x" in error.allowed
    assert error.key == "cluster.device"


def test_a_misspelt_key_is_suggested():
    error = fails(BASE, {"training.micro_batch_sise": 2})
    assert error.key == "training.micro_batch_sise"
    assert error.allowed == ["micro_batch_size"]


def test_a_negative_bandwidth_names_its_key_once():
    error = fails(BASE, {"cluster.network.nic_gbit_per_s": -1})
    assert error.message.startswith("cluster.network.nic_gbit_per_s: should be greater than 0")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("- 1\n- 2\n", "holds a list"),
        ("a: 1\na: 2\n", "given twice"),
        ("a: [1, 2\n", "not valid YAML"),
        ("a: &a [x, x]\nb: &b [*a, *a]\n" + "".join(
            f"k{i}: &k{i} [{', '.join(['*' + ('b' if i == 0 else f'k{i - 1}')] * 9)}]\n"
            for i in range(9)
        ), "expands to more than"),
        ("a: &a [*a]\n", "expands to more than"),
        ("\x00", "not valid YAML"),
    ],
)  # fmt: skip
def test_files_that_are_no_job(tmp_path, text, says):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    assert says in fails(path).message


def test_a_directory_and_a_missing_file(tmp_path):
    assert "is a directory" in fails(tmp_path).message
    assert "does not exist" in fails(tmp_path / "none.yaml").message


def test_an_architecture_is_no_job(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama"}))
    assert "name it as the model" in fails(path).message


def test_hybrid_models_are_refused(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "zamba2", "hidden_size": 4096}))
    with pytest.raises(UnsupportedError, match="not modelled"):
        load_model(path)
    error = fails({**BASE, "model": str(path)}, kind=ProjectorError)
    assert "not modelled" in error.message


def test_overrides_are_yaml():
    assert parse_override("training.recompute=full") == ("training.recompute", "full")
    assert parse_override("parallelism.tp=4") == ("parallelism.tp", 4)
    assert parse_override("training.recompute={method: block, num_layers: 2}")[1]["num_layers"] == 2
    with pytest.raises(ConfigError, match="key=value"):
        parse_override("tp")


def test_a_missing_device_is_named():
    assert fails({**BASE, "cluster": {}}).key == "cluster.device"


@pytest.mark.parametrize("source", [None, 1, [], b"x", "\0", object()])
def test_what_is_no_job_at_all(source):
    with pytest.raises(ConfigError) as caught:
        load_job(source)
    assert caught.value.key == "config"
    assert caught.value.allowed


def test_overrides_are_a_mapping():
    error = fails(BASE, ["a=b"])
    assert (error.key, error.allowed) == ("overrides", "a mapping")


@pytest.mark.parametrize("network", [[[1]], {"extends": [1]}, 5])
def test_a_network_is_a_name_or_a_mapping(network):
    assert fails(BASE, {"cluster.network": network}).key.startswith("cluster.network")


@pytest.mark.parametrize("name", ["../a100", "./a100", "a100/", "..a100", "x\\a100", "/a100"])
def test_a_path_is_no_name_of_a_device(name):
    error = fails(BASE, {"cluster.device": name})
    assert "unknown GPU" in error.message
    assert error.key == "cluster.device"


def test_owner_and_name_are_a_name_of_a_model():
    assert load_model("meta-llama/Llama-3.1-70B") == load_model("llama3.1_70b")
    assert load_model("meta-llama/llama-3.1-70b").num_layers == 80
    for name in ("../meta-llama/Llama-3.1-70B", "models/llama3.1_70b", "meta/llama3.1_70b"):
        with pytest.raises(ConfigError, match="unknown model"):
            load_model(name)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"parallelism.tp": 4, "training.micro_batch_size": 2, "parallelism.pp": 2},
        {"model": "llama3.1_70b", "cluster.device": "h200", "cluster.nodes": 2},
        {"cluster.device.hbm_gib": 96.0, "training.recompute": "full"},
        {"training.recompute": {"granularity": "full", "method": "block", "num_layers": 1}},
        {"name": "another"},
        {"training.schedule": "zbv-formatted", "parallelism.pp": 2},
        {"training.schedule": "zbv-formatted"},
        {"parallelism.pp": 2, "training.schedule": "zbv", "parallelism.vpp": 1},
    ],
)
def test_variants_are_the_jobs_that_load_job_reads(overrides):
    base = load_job(
        {
            "model": "llama3.1_8b",
            "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096},
            "cluster": {"device": "h100", "nodes": 1},
        }
    )
    variants = Variants(base)
    for _ in range(2):  # read, then remembered
        job = variants.job(overrides)
        assert job == load_job(base, overrides)
        assert job.model_dump(exclude_unset=True) == load_job(base, overrides).model_dump(
            exclude_unset=True
        )
        # What is derived from a variant is derived from the same statements.
        again = {"parallelism.cp": 2}
        assert load_job(job, again) == load_job(load_job(base, overrides), again)
    for _ in range(2):
        with pytest.raises(ConfigError, match="did you mean"):
            variants.job({"parallelism.ttp": 4})


def test_blockwise_fp8_has_a_short_name():
    job = load_job({**BASE, "training": {**BASE["training"], "precision": "fp8-blockwise"}})
    assert (job.training.precision, job.training.fp8_recipe) == ("fp8", "blockwise")


def test_a_short_name_and_another_recipe_contradict_each_other():
    training = {**BASE["training"], "precision": "fp8-blockwise", "fp8_recipe": "tensorwise"}
    error = fails({**BASE, "training": training})
    assert error.key == "training.fp8_recipe"
    assert error.allowed == "blockwise"
