"""What files of torchtitan and DeepSpeed say of a job in their own words."""

import json
import tomllib
from pathlib import Path

import pytest

from projector import emit_job, load_job
from projector.config.formats.detect import carried_fields
from projector.config.formats.emit.emitted import unsaid
from projector.errors import ConfigError, UnsupportedError

JOB = {
    "name": "peer",
    "model": "llama3.1_8b",
    "parallelism": {"tp": 2, "fsdp": 2, "num_distributed_optimizer_instances": 2},
    "training": {
        "micro_batch_size": 2,
        "global_batch_size": 64,
        "seq_length": 4096,
        "framework": "torchtitan",
        "precision": "fp8",
        "fp8_recipe": "rowwise",
        "recompute": {"granularity": "full", "layers": list(range(3, 32, 4))},
        "torch_compile": True,
        "gradient_accumulation_fusion": False,
    },
    "cluster": {"device": "h100", "nodes": 2},
}
PIPELINE = {
    "parallelism.num_distributed_optimizer_instances": 1,
    "parallelism.pp": 2,
    "parallelism.vpp": 2,
    "parallelism.fsdp_reshard_after_forward": False,
}


def test_torchtitan_is_told_in_its_own_words():
    emitted = emit_job(load_job(JOB), "torchtitan")
    said = tomllib.loads(emitted.text)
    assert said["model"] == {
        "name": "llama3", "flavor": "8B", "converters": ["quantize.linear.float8"],
    }  # fmt: skip
    assert said["parallelism"] == {
        "data_parallel_replicate_degree": 2,
        "data_parallel_shard_degree": 4,
        "fsdp_reshard_after_forward": "always",
        "tensor_parallel_degree": 2,
        "context_parallel_degree": 1,
    }
    assert said["training"]["local_batch_size"] == 2
    assert said["training"]["global_batch_size"] == 64
    assert said["activation_checkpoint"]["selective_ac_option"] == "4"
    assert said["quantize"]["linear"]["float8"]["recipe_name"] == "rowwise"
    assert said["compile"] == {"enable": True, "components": ["model", "loss"]}
    assert emitted.carried.keys() == {"cluster.device", "name", "model.name"}


def test_torchtitan_has_words_for_recomputation_by_operators():
    per_op = {"training.recompute": {"granularity": "selective", "modules": ["per_op"]}}
    emitted = emit_job(load_job(JOB, per_op), "torchtitan")
    said = tomllib.loads(emitted.text)["activation_checkpoint"]
    assert (said["mode"], said["selective_ac_option"]) == ("selective", "op")
    assert "training.recompute" not in emitted.carried


def test_a_pipeline_of_torchtitan_takes_the_local_batch_in_parts():
    emitted = emit_job(load_job(JOB, PIPELINE), "torchtitan")
    said = tomllib.loads(emitted.text)
    assert said["training"]["local_batch_size"] == 16
    assert "global_batch_size" not in said["training"]
    assert said["parallelism"]["pipeline_parallel_schedule"] == "Interleaved1F1B"
    assert said["parallelism"]["pipeline_parallel_microbatch_size"] == 2
    assert said["parallelism"]["pipeline_parallel_layers_per_stage"] == 8
    assert emitted.carried.keys() == {"cluster.device", "name", "model.name"}


def test_a_layout_lists_the_modules_of_each_stage():
    layout = {"parallelism.pipeline_model_parallel_layout": "Et*7|t*9|t*9|t*7L"}
    said = tomllib.loads(emit_job(load_job(JOB, PIPELINE | layout), "torchtitan").text)
    parts = said["parallelism"]["module_fqns_per_model_part"]
    assert [len(part) for part in parts] == [8, 9, 9, 9]
    assert parts[0][:2] == ["tok_embeddings", "layers.0"]
    assert parts[-1][-2:] == ["norm", "output"]


def test_a_model_that_torchtitan_does_not_ship_is_refused():
    with pytest.raises(UnsupportedError, match="no flavour with the architecture of Mixtral-8x7B"):
        emit_job(load_job(JOB, {"model": "mixtral_8x7b"}), "torchtitan")
    shorter = load_job(JOB, {"model.num_layers": 8, "training.recompute": "none"})
    with pytest.raises(UnsupportedError, match="llama3 8B differs in num_layers"):
        emit_job(shorter, "torchtitan")
    own = emit_job(shorter, "deepspeed")
    assert own.carried["model"]["num_layers"] == 8
    # Narrow GEMMs of a framework's library run in a training in 16 bits.
    assert json.loads(own.text)["bf16"] == {"enabled": True}
    assert own.carried["training.precision"] == "fp8"


@pytest.mark.parametrize(
    ("kind", "changes", "why"),
    [
        ("torchtitan", {"parallelism.fsdp": False, "parallelism.zero_stage": 0}, "on one axis"),
        ("megatron", {"parallelism.fsdp": 1}, "no FSDP 1"),
        ("megatron", {"parallelism.pp": 2}, "no pipeline"),
        ("megatron", {"training.precision": "fp8"}, "no recipe rowwise"),
        ("primus", {"model.tied_embeddings": True}, "untied"),
        ("deepspeed", {"parallelism.pp": 2}, "no ZeRO 2 or 3"),
    ],
)
def test_what_a_framework_cannot_run_is_refused(kind, changes, why):
    plain = {"parallelism.num_distributed_optimizer_instances": 1, "training.precision": "bf16"}
    with pytest.raises(UnsupportedError, match=why):
        emit_job(load_job(JOB, plain | changes), kind)


def test_sharding_that_torchtitan_does_in_its_own_way_is_named():
    plain = {"parallelism.num_distributed_optimizer_instances": 1, "training.precision": "bf16"}
    job = load_job(JOB, plain | {"parallelism.fsdp": False, "parallelism.zero_stage": 3})
    assert "parallelism.fsdp=false" in unsaid(emit_job(job, "torchtitan"), job)


def test_a_layout_that_cannot_exist_is_refused_and_a_path_is_read(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(JOB), encoding="utf-8")
    assert emit_job(path, "torchtitan").text == emit_job(load_job(JOB), "torchtitan").text
    path.write_text(json.dumps(JOB | {"parallelism": {"tp": 3}}), encoding="utf-8")
    with pytest.raises(ConfigError, match="does not divide num_attention_heads"):
        emit_job(str(path), "megatron")


def test_deepspeed_is_told_in_its_own_words():
    changes = {
        "training.framework": "huggingface",
        "training.precision": "bf16",
        "training.fp8_recipe": "delayed",
        "training.torch_compile": False,
        "parallelism.fsdp": False,
        "parallelism.num_distributed_optimizer_instances": 1,
        "parallelism.zero_stage": 2,
        "parallelism.overlap_param_gather": False,
        "parallelism.ddp_bucket_size": 10_000_000,
        "parallelism.sequence_parallel": False,
        "training.optimizer.offload_fraction": 0.5,
        "training.optimizer.master_weights": "fp32",
    }
    emitted = emit_job(load_job(JOB, changes), "deepspeed")
    said = json.loads(emitted.text)
    assert said["train_batch_size"] == 64
    assert said["train_micro_batch_size_per_gpu"] == 2
    assert said["gradient_accumulation_steps"] == 4
    assert said["zero_optimization"] == {
        "stage": 2,
        "overlap_comm": True,
        "reduce_bucket_size": 10_000_000,
        "offload_optimizer": {"device": "cpu", "ratio": 0.5},
    }
    assert said["bf16"] == {"enabled": True}
    assert said["tensor_parallel"] == {"autotp_size": 2}
    assert emitted.carried == said["projector"]
    assert emitted.carried.keys() == {
        "cluster.device", "model", "model.name", "name", "training.recompute",
        "training.seq_length",
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["torchtitan", "deepspeed"])
@pytest.mark.parametrize(
    "changes",
    [
        {"training.schedule": "dualpipe", "parallelism.pp": 2},
        {"training.recompute": {"method": "block", "num_layers": 1}},
        {"name": 'a "title" \\ with \u2028 odd\tsigns'},
    ],
)
def test_what_the_framework_has_no_words_for_is_carried(kind, changes, tmp_path):
    plain = {"parallelism.num_distributed_optimizer_instances": 1}
    if kind == "deepspeed":
        plain |= {"parallelism.fsdp": False, "parallelism.zero_stage": 1}
    job = load_job(JOB, plain | changes)
    emitted = emit_job(job, kind)
    path = tmp_path / f"job{emitted.suffix}"
    path.write_text(emitted.text, encoding="utf-8")
    again = load_job(path)
    assert again.name == job.name
    assert again.training.schedule == job.training.schedule
    assert again.training.recompute.num_layers == job.training.recompute.num_layers
    assert again.parallelism.sharding_stage == job.parallelism.sharding_stage


@pytest.mark.parametrize(
    ("suffix", "text", "given"),
    [
        (
            ".toml",
            (
                '[model]\nname = "qwen3"\nflavor = "30B-A3B"\n[training]\nlocal_batch_size = 4\n'
                "[parallelism]\nexpert_parallel_degree = 8\npipeline_parallel_degree = 2\n"
                '[activation_checkpoint]\nselective_ac_option = "3"\n[compile]\nenable = true\n'
            ),
            {},
        ),
        (
            ".json",
            (
                '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3,'
                ' "zero_optimization": {"stage": 2, "overlap_comm": true},'
                ' "bf16": {"enabled": true},'
                ' "tensor_parallel": {"autotp_size": 2}}'
            ),
            {"model": "llama3_8b", "training.seq_length": 4096},
        ),
    ],
)
def test_a_file_of_its_own_is_written_as_it_was_meant(suffix, text, given, tmp_path):
    path = tmp_path / f"mine{suffix}"
    path.write_text(text)
    job = load_job(path, {"cluster.device": "h100", "cluster.nodes": 2, **given})
    emitted = emit_job(job, {".toml": "torchtitan", ".json": "deepspeed"}[suffix])
    assert (
        emitted.carried.keys()
        <= {"name", "model.name", "cluster.device", "training.framework"} | given.keys()
    )


def test_json_carries_fields_under_a_key():
    path = Path("ds.json")
    text = '{"projector": {"cluster.device": "h100"}}'
    assert carried_fields(text, path) == {"cluster.device": "h100"}
    with pytest.raises(ConfigError, match="projector should be a mapping"):
        carried_fields('{"projector": 3}', path)
