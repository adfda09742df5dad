"""Primus experiments for torchtitan: presets, models, environment and device."""

import pytest

from projector.config.load import load_job
from projector.errors import ConfigError, UnsupportedError

EXPERIMENT = """
exp_name: ${{PRIMUS_EXP_NAME:titan}}
env:
  GPU_MAX_HW_QUEUES: "4"
modules:
  pre_trainer:
    framework: torchtitan
    config: pre_trainer.yaml
    model: {model}
    overrides:
      sink_level: null
      training:
        local_batch_size: ${{LOCAL:4}}
        seq_len: 8192
      metrics: {{log_freq: 1}}
{more}
"""


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in ("PRIMUS_TP", "PRIMUS_PP", "PRIMUS_EP", "NNODES", "GPUS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)


def job(tmp_path, preset="llama3.1_70B.yaml", more="", **overrides):
    folder = tmp_path / "MI355X"
    folder.mkdir(exist_ok=True)
    path = folder / "pretrain.yaml"
    path.write_text(EXPERIMENT.format(model=preset, more=more))
    return load_job(path, {name.replace("__", "."): value for name, value in overrides.items()})


def test_presets_of_primus_hold_where_the_file_says_nothing(tmp_path):
    found = job(tmp_path)
    assert found.name == "titan"
    assert found.cluster.device.name == "AMD Instinct MI355X"
    assert found.model.name == "Llama-3.1-70B"
    assert found.parallelism.fsdp == 2
    assert found.training.framework.name == "torchtitan"
    assert found.training.torch_compile
    assert found.training.cross_entropy_fusion
    assert found.training.recompute.granularity == "none"
    assert found.training.global_batch_size == 4 * 8
    for field in ("training.torch_compile", "training.recompute", "model"):
        assert found.origins[field] == "Primus preset (assumed)"
    assert found.notes == ()
    assert found.ignored == ("metrics.log_freq",)


@pytest.mark.parametrize(
    ("model", "name", "precision"),
    [
        ("llama3.1_405B-fp8.yaml", "Llama-3.1-405B", "fp8"),
        ("llama3_8B.yaml", "Llama-3.1-8B", "bf16"),
        ("deepseek_v3_16b-fp8.yaml", "DeepSeek-V2-Lite", "fp8"),
        ("deepseek_v3_671b.yaml", "DeepSeek-V3", "bf16"),
        ("gpt_oss_20B-fp8.yaml", "gpt-oss-20b", "fp8"),
        ("llama4_17Bx16E.yaml", "llama4 17bx16e", "bf16"),
        ("qwen3_30B_A3B.yaml", "Qwen3-30B-A3B", "bf16"),
        ("mixtral_8x7B.yaml", "Mixtral-8x7B", "bf16"),
    ],
)
def test_model_presets(tmp_path, model, name, precision):
    found = job(tmp_path, model)
    assert (found.model.name, found.training.precision) == (name, precision)


def test_what_the_experiment_states_wins(tmp_path):
    more = """
      activation_checkpoint: {mode: full}
      compile: {enable: false}
      model: {n_layers: 20, converters: [primus_turbo]}
      primus_turbo: {enable_attention_float8: true}
"""
    found = job(tmp_path, "llama3.1_405B-fp8.yaml", more)
    assert found.training.recompute.granularity == "full"
    assert not found.training.torch_compile
    assert (found.model.num_layers, found.training.precision) == (20, "bf16")
    assert found.training.fp8_attention
    assert "training.recompute" not in found.origins
    assert found.notes == ()


def test_the_environment_sets_degrees_and_devices(tmp_path, monkeypatch):
    monkeypatch.setenv("NNODES", "4")
    monkeypatch.setenv("PRIMUS_TP", "8")
    monkeypatch.setenv("LOCAL", "2")
    found = job(tmp_path)
    assert (found.cluster.nodes, found.parallelism.tp) == (4, 8)
    assert found.training.global_batch_size == 2 * 4
    assert found.origins["parallelism.tp"] == "environment variable PRIMUS_TP"


def test_stated_shards_need_their_nodes(tmp_path):
    more = "      parallelism: {data_parallel_shard_degree: 32}\n"
    assert job(tmp_path, more=more).cluster.nodes == 4


def test_an_unknown_model_can_be_given(tmp_path):
    with pytest.raises(ConfigError, match=r"nobody_7B\.yaml: no shipped model has that name"):
        job(tmp_path, "nobody_7B.yaml")
    assert job(tmp_path, "nobody_7B.yaml", model="llama2_7b").model.name == "Llama-2-7B"


def test_other_frameworks_are_refused(tmp_path):
    path = tmp_path / "pretrain.yaml"
    path.write_text(EXPERIMENT.format(model="x", more="").replace("torchtitan", "jax"))
    with pytest.raises(UnsupportedError, match="for megatron, torchtitan and maxtext are read"):
        load_job(path)
