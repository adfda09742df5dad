"""Which reader a file belongs to, and what readers leave for overrides to settle."""

from pathlib import Path

import pytest

from projector.config.formats.detect import kind_of, read_job_text
from projector.config.formats.read_job import ReadJob
from projector.config.load import job_data, load_job
from projector.config.model_file import load_model
from projector.errors import ConfigError, UnsupportedError


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        (("modules", "work_group"), "a Primus experiment"),
        (("model_type", "hidden_size"), "an architecture"),
        (("zero_optimization", "bf16"), "a DeepSpeed configuration"),
        (("train_batch_size",), "a DeepSpeed configuration"),
        (("model_name_or_path", "deepspeed"), "arguments of a Hugging Face trainer"),
        (("base_model", "sequence_len"), "arguments of a Hugging Face trainer"),
        (("distributed_type", "num_processes"), "a file of accelerate"),
        (("tp_size", "world_size", "micro_batch_num"), "a strategy of SimuMax"),
        (("layer_num", "head_num", "hidden_size"), "an architecture"),
        (("model", "training", "cluster"), None),
        ((), None),
    ],
)
def test_keys_tell_the_kind_of_a_file(keys, name):
    kind = kind_of(keys)
    assert (kind and kind.name) == name


def test_programs_are_not_executed():
    with pytest.raises(UnsupportedError, match="nothing is executed"):
        read_job_text("raise SystemExit('executed')", Path("recipe.py"))


def test_an_architecture_is_no_job():
    with pytest.raises(ConfigError, match="name it as the model of a job"):
        read_job_text('{"model_type": "llama"}', Path("config.json"))


def read_with(monkeypatch, file, derive, overrides):
    data = {"model": "llama3.1_8b", "cluster": {"device": "h100"}, "training": {"seq_length": 8}}
    read = ReadJob(data, derive=derive)
    monkeypatch.setattr("projector.config.load.read_job_text", lambda *_: read)
    return job_data(file, overrides)


def test_derived_fields_see_overrides_and_yield_to_them(monkeypatch, tmp_path):
    file = tmp_path / "job.foreign"
    file.touch()

    def derive(data):
        return {"training.global_batch_size": (64 * data["cluster"].get("nodes", 1), "derived")}

    derived = read_with(monkeypatch, file, derive, {"cluster.nodes": 2})
    assert derived["training"]["global_batch_size"] == 128
    assert derived["origins"] == {"training.global_batch_size": "derived"}
    stated = read_with(monkeypatch, file, derive, {"training.global_batch_size": 7})
    assert stated["training"]["global_batch_size"] == 7
    assert stated["origins"] == {}
    # Null is stated as well: there is nothing to derive.
    none = read_with(monkeypatch, file, derive, {"training.global_batch_size": None})
    assert none["training"]["global_batch_size"] is None


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ("trainer model exp_manager", "NeMo"),
        ("model train optimizer ddp checkpoint", "Megatron-Bridge"),
        ("step_scheduler model", "AutoModel"),
        ("checkpointer tokenizer model", "torchtune"),
        ("device_train_microbatch_size max_seq_len", "LLM Foundry"),
        ("pipe-parallel-size", "GPT-NeoX"),
        ("num_procs tensor_par pipeline_par data_par", "execution of Calculon"),
        ("hidden attn_heads num_blocks", "application of Calculon"),
        ("matrix vector mem1 mem2", "system of Calculon"),
        ("sys_name accelerator networks", "system of Calculon or SimuMax"),
    ],
)
def test_files_that_are_not_read_are_named(keys, name):
    text = "".join(f"{key}: {{}}\n" for key in keys.split())
    with pytest.raises(UnsupportedError, match=f"{name}.*is not read; ") as caught:
        read_job_text(text, Path("recipe.yaml"))
    assert "a DeepSpeed configuration" in caught.value.allowed
    assert "an architecture" not in caught.value.allowed


def test_all_that_is_missing_is_named_at_once(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text('{"zero_optimization": {"stage": 1}}')
    with pytest.raises(ConfigError) as caught:
        load_job(path)
    assert caught.value.key == "model"
    assert caught.value.message.endswith(
        "also to be given: training.seq_length, training.micro_batch_size, cluster.device"
    )
    given = {"model": "llama3_8b", "training.seq_length": 128, "training.micro_batch_size": 1}
    with pytest.raises(ConfigError, match=r"DeepSpeed does not say cluster\.device; give"):
        load_job(path, given)
    assert load_job(path, {**given, "cluster.gpu": "h100"}).cluster.nodes == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("base: job.yaml\naxes: {parallelism.tp: [1]}\n", "a space of jobs.*projector sweep"),
        ("extends: mi355x\ncompute_units: 192\n", "describes a device.*cluster.device="),
        ("extends: llama3.1_8b\nnum_layers: 8\n", "describes an architecture.*model="),
    ],
)
def test_other_files_of_ours_are_told_apart_from_jobs(text, told, tmp_path):
    path = tmp_path / "file.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=told):
        load_job(path)


def test_a_job_is_not_an_architecture(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("model: llama3.1_8b\ntraining: {seq_length: 8}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="describes a job"):
        load_model(path)
