"""Reading DeepSpeed's JSON: batch, ZeRO, precision, degrees and what it leaves open."""

import json

import pytest

from projector.config.formats.deepspeed import read_deepspeed
from projector.config.load import load_job
from projector.errors import ConfigError

GIVEN = {"model": "llama3.1_8b", "cluster.device": "h100", "training.seq_length": 4096}


def job(tmp_path, config, **overrides):
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(config))
    given = {name.replace("__", "."): value for name, value in overrides.items()}
    return load_job(path, GIVEN | given)


def test_batch_tells_the_devices(tmp_path):
    found = job(
        tmp_path,
        {
            "train_batch_size": 256,
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 8,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 2},
        },
    )
    assert (found.cluster.nodes, found.cluster.gpus_per_node) == (2, 8)
    assert (found.training.micro_batch_size, found.training.global_batch_size) == (2, 256)
    assert found.parallelism.zero_stage == 2
    assert found.training.precision == "bf16"
    assert found.training.gradient_dtype == "bf16"
    assert found.training.optimizer.master_weights == "fp32"


def test_devices_tell_the_batch(tmp_path):
    config = {"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 4}
    assert job(tmp_path, config, cluster__nodes=2).training.global_batch_size == 3 * 4 * 16
    assert job(tmp_path, config).training.global_batch_size == 3 * 4 * 8
    halved = job(tmp_path, config, parallelism__tp=2)
    assert halved.training.global_batch_size == 3 * 4 * 4
    other = job(tmp_path, config, training__micro_batch_size=1)
    assert other.training.global_batch_size == 4 * 8


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_pipeline_beside_divided_gradients_is_told(tmp_path, stage):
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "pipeline": {"stages": 4},
        "zero_optimization": {"stage": stage},
    }
    told = "pipelines of DeepSpeed take no ZeRO 2 or 3: projected all the same"
    assert job(tmp_path, config).notes.count(told) == (stage > 1)
    # What the user says instead holds.
    assert told not in job(tmp_path, config, parallelism__pp=1).notes
    assert told not in job(tmp_path, config, parallelism__zero_stage=1).notes
    del config["pipeline"]
    assert (told in job(tmp_path, config, parallelism__pp=2).notes) == (stage > 1)
    with pytest.raises(ConfigError, match="pp"):
        job(tmp_path, config, parallelism__pp="many")


def test_a_global_batch_alone_is_one_microbatch(tmp_path):
    found = job(tmp_path, {"train_batch_size": 64}, cluster__nodes=2)
    assert found.training.micro_batch_size == 4


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ({"stage": 3}, "overlap_grad_reduce", True),
        ({"stage": 3}, "overlap_param_gather", True),
        ({"stage": 2}, "overlap_grad_reduce", False),
        ({"stage": 1, "overlap_comm": True}, "overlap_grad_reduce", True),
        ({"stage": 1, "overlap_comm": True}, "overlap_param_gather", False),
        ({"stage": 2, "reduce_bucket_size": 5e7}, "ddp_bucket_size", 50_000_000),
        ({"stage": 3, "mics_shard_size": 8}, "sharding_group_size", 8),
        (True, "zero_stage", 1),
        ({}, "zero_stage", 0),
    ],
)
def test_zero(tmp_path, section, field, value):
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": section}
    assert getattr(job(tmp_path, config, cluster__nodes=2).parallelism, field) == value


def test_degrees(tmp_path):
    split = job(
        tmp_path,
        {
            "train_micro_batch_size_per_gpu": 1,
            "tensor_parallel": {"autotp_size": 2},
            "sequence_parallel_size": 4,
        },
    ).parallelism
    assert (split.tp, split.cp, split.cp_comm_type) == (2, 4, "a2a")
    assert split.sequence_parallel is False


def test_states_of_the_optimizer(tmp_path):
    offload = {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}
    found = job(
        tmp_path,
        {
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": offload,
            "optimizer": {"type": "Lamb", "params": {"lr": 1}},
            "data_types": {"grad_accum_dtype": "fp32"},
            "communication_data_type": "bfp16",
            "bf16": {"enabled": True},
        },
    )
    assert found.training.optimizer.offload_fraction == 0.5
    assert (found.training.gradient_dtype, found.training.grad_reduce_dtype) == ("fp32", "bf16")
    assert found.notes == ("optimizer.type Lamb is projected as adam",)


@pytest.mark.parametrize(("stage", "dtype"), [(0, "fp32"), (1, "bf16")])
def test_gradients_in_bf16_are_wide_without_zero(tmp_path, stage, dtype):
    """`DeepSpeedEngine.get_data_types`: 32 bits where nothing is sharded."""
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    found = job(tmp_path, config | {"zero_optimization": {"stage": stage}})
    assert found.training.gradient_dtype == dtype


def test_what_is_not_modelled_is_said(tmp_path):
    section = {"stage": 3, "zero_hpz_partition_size": 8, "offload_param": {"device": "cpu"}}
    notes = job(
        tmp_path,
        {
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": section,
            "activation_checkpointing": {"partition_activations": True},
            "new_thing": 3,
            "steps_per_print": 10,
        },
    ).notes
    assert len(notes) == 4
    assert "offload_param is not modelled" in notes[0]
    assert "activation_checkpointing" in notes[1]
    assert notes[2].startswith("zero_optimization.zero_hpz_partition_size is not modelled")
    assert notes[3] == "an unknown setting of DeepSpeed was ignored: new_thing"


@pytest.mark.parametrize("field", ["model", "training.seq_length", "training.precision"])
def test_what_the_trainer_knows_is_asked_for(tmp_path, field):
    path = tmp_path / "ds.json"
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": "auto"}}
    path.write_text(json.dumps(config))
    given = {**GIVEN, "training.precision": "bf16"}
    del given[field]
    with pytest.raises(ConfigError, match=f"does not say {field}; give "):
        load_job(path, given)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage"),
        ({"zero_optimization": {"stage": "x"}}, "zero_optimization.stage"),
        ({"train_batch_size": -3}, "train_batch_size"),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "fp16.enabled"),
        (
            {
                "train_batch_size": 7,
                "train_micro_batch_size_per_gpu": 2,
                "gradient_accumulation_steps": 2,
            },
            "train_batch_size",
        ),
    ],
)
def test_malformed_settings_are_named(config, key):
    with pytest.raises(ConfigError) as caught:
        read_deepspeed(config)
    assert caught.value.key.removeprefix("deepspeed.") == key
