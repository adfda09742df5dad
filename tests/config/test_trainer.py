"""Reading arguments of Hugging Face trainers: files, commands, DeepSpeed beside them, adapters."""

import json

import pytest

from projector.config.formats.trainer import shipped_model
from projector.config.load import load_job
from projector.errors import ConfigError, UnsupportedError

AUTO = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"},
}
ARGUMENTS = {
    "model_name_or_path": "meta-llama/Meta-Llama-3-8B-Instruct",
    "max_seq_length": 2048,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "bf16": True,
    "learning_rate": 1e-5,
}
GIVEN = {"cluster.device": "h100"}


def job(tmp_path, **changes):
    path = tmp_path / "train.json"
    stated = {name: value for name, value in (ARGUMENTS | changes).items() if value is not None}
    path.write_text(json.dumps(stated))
    return load_job(path, GIVEN)


def test_data_parallelism_of_pytorch(tmp_path):
    found = job(tmp_path)
    assert found.model.name == "Llama-3-8B"
    assert (found.parallelism.zero_stage, found.parallelism.fsdp) == (0, False)
    assert (found.training.micro_batch_size, found.training.global_batch_size) == (2, 2 * 4 * 8)
    # Autocast keeps weights, gradients and states in FP32.
    assert found.training.precision == "bf16"
    assert found.training.optimizer.master_weights == "shared"
    assert found.training.gradient_dtype == "fp32"
    assert found.training.recompute.granularity == "none"
    assert found.notes == ()
    assert found.ignored == ("learning_rate",)


def test_deepspeed_takes_what_the_trainer_says(tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps(AUTO))
    found = job(tmp_path, deepspeed="configs/ds.json", gradient_checkpointing=True)
    assert found.parallelism.zero_stage == 3
    assert found.training.precision == "bf16"
    assert found.training.optimizer.master_weights == "fp32"
    assert found.training.gradient_dtype == "bf16"
    assert found.training.global_batch_size == 64
    assert found.training.recompute.granularity == "full"


@pytest.mark.parametrize(
    ("changes", "fsdp", "reshard"),
    [
        ({"fsdp": "full_shard auto_wrap"}, 1, True),
        ({"fsdp": ["shard_grad_op"]}, 1, False),
        ({"fsdp": "full_shard", "fsdp_config": {"fsdp_version": 2}}, 2, True),
        ({"fsdp_version": 2, "fsdp_config": {"fsdp_reshard_after_forward": False}}, 2, False),
    ],
)
def test_fsdp(tmp_path, changes, fsdp, reshard):
    split = job(tmp_path, **changes).parallelism
    assert (split.fsdp, split.fsdp_reshard_after_forward) == (fsdp, reshard)


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"optim": "adamw_torch"}, "update_bytes", 4.0),
        ({"optim": "adamw_torch_fused"}, "update_bytes", 0.0),
        ({"optim": "paged_adamw_8bit"}, "moment_dtype", "fp8"),
        ({"torch_dtype": "bfloat16"}, "master_weights", "none"),
        ({"torch_dtype": "bfloat16"}, "moment_dtype", "bf16"),
    ],
)
def test_states(tmp_path, changes, field, value):
    assert getattr(job(tmp_path, **changes).training.optimizer, field) == value


@pytest.mark.parametrize(
    ("changes", "adapter"),
    [
        ({"finetuning_type": "lora", "template": "llama3"}, ("lora", 8, ("all-linear",), None)),
        (
            {"use_peft": True, "lora_r": 16, "lora_target_modules": ["q_proj", "v_proj"]},
            ("lora", 16, ("q_proj", "v_proj"), None),
        ),
        ({"adapter": "qlora", "lora_r": 32, "lora_target_linear": True},
         ("lora", 32, ("all-linear",), "nf4")),
    ],
)  # fmt: skip
def test_adapters_are_not_full_training(tmp_path, changes, adapter):
    found = job(tmp_path, **changes).training.adapter
    assert (found.kind, found.rank, found.targets, found.base_precision) == adapter


@pytest.mark.parametrize(
    ("changes", "adapted", "recompute"),
    [
        ({"stage": "pt", "finetuning_type": "full"}, False, "full"),
        ({"stage": "pt", "finetuning_type": "lora"}, True, "full"),
        ({"stage": "sft", "template": "llama3"}, True, "full"),
        (
            {"finetuning_type": "full", "disable_gradient_checkpointing": True},
            False,
            "none",
        ),
        ({}, False, "none"),
    ],
)
def test_llama_factory_has_defaults_of_its_own(tmp_path, changes, adapted, recompute):
    """LoRA and checkpoints, also of a pretraining, which has no template."""
    training = job(tmp_path, **changes).training
    assert (training.adapter is not None) == adapted
    assert training.recompute.granularity == recompute


def test_axolotl_trains_in_bf16_unless_told_otherwise(tmp_path):
    path = tmp_path / "axolotl.yaml"
    text = "base_model: meta-llama/Llama-3.2-1B\nsequence_len: 8192\nmicro_batch_size: 4\n"
    for line, precision in (("", "bf16"), ("fp16: true\n", "fp16"), ("bf16: false\n", "fp32")):
        path.write_text(text + line)
        assert load_job(path, GIVEN).training.precision == precision


def test_axolotl_has_names_of_its_own(tmp_path):
    path = tmp_path / "axolotl.yaml"
    path.write_text(
        "base_model: NousResearch/Llama-3.2-1B\nsequence_len: 8192\nmicro_batch_size: 4\n"
        "gradient_accumulation_steps: 2\nbf16: auto\nflash_attention: true\n"
        "optimizer: adamw_8bit\ngradient_checkpointing: true\n"
        "datasets:\n  - path: x\n    type: alpaca\n"
    )
    found = load_job(path, GIVEN)
    assert found.model.name == "Llama-3.2-1B"
    assert (found.training.seq_length, found.training.micro_batch_size) == (8192, 4)
    assert found.training.global_batch_size == 64
    assert found.training.precision == "bf16"
    assert found.notes == ()


def test_a_command_gives_arguments_and_devices(tmp_path):
    script = tmp_path / "run.sh"
    (tmp_path / "ds.json").write_text(json.dumps(AUTO))
    script.write_text(
        "MODEL=/data/Qwen3-8B\n"
        "deepspeed --num_gpus 4 --num_nodes 2 train.py --deepspeed ds.json \\\n"
        "  --model_name_or_path ${MODEL} --per_device_train_batch_size=2 --bf16 True \\\n"
        "  --model_max_length 4096 --do_train --lora_target_modules q_proj k_proj\n"
    )
    found = load_job(script, GIVEN)
    assert found.model.name == "Qwen3-8B"
    assert (found.cluster.nodes, found.cluster.gpus_per_node) == (2, 4)
    assert (found.parallelism.zero_stage, found.training.precision) == (3, "bf16")
    assert (found.training.micro_batch_size, found.training.global_batch_size) == (2, 16)
    assert found.training.adapter is None


def test_accelerate_names_devices_and_stage(tmp_path):
    path = tmp_path / "accelerate.yaml"
    path.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nmixed_precision: bf16\n"
        "num_machines: 2\nnum_processes: 16\n"
        "deepspeed_config:\n  zero_stage: 2\n  gradient_accumulation_steps: 4\n"
        "  offload_optimizer_device: cpu\n"
    )
    given = {**GIVEN, "model": "llama3_8b", "training.seq_length": 4096}
    with pytest.raises(ConfigError, match=r"does not say training\.micro_batch_size"):
        load_job(path, given)
    found = load_job(path, {**given, "training.micro_batch_size": 1})
    assert (found.cluster.nodes, found.cluster.gpus_per_node) == (2, 8)
    assert (found.parallelism.zero_stage, found.training.global_batch_size) == (2, 64)
    assert found.training.optimizer.offload_fraction == 1.0
    assert found.training.precision == "bf16"


def test_a_checkpoint_beside_the_file_is_the_model(tmp_path):
    (tmp_path / "mine").mkdir()
    config = {
        "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 4,
        "intermediate_size": 4096, "num_attention_heads": 16, "vocab_size": 32000,
        "max_position_embeddings": 2048,
    }  # fmt: skip
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config))
    assert job(tmp_path, model_name_or_path="mine").model.num_layers == 4


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "llama3.1_70b"),
        ("Qwen/Qwen3-8B-Base", "qwen3_8b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama2_7b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5_7b"),
        ("someone/else", None),
        ("", None),
    ],
)
def test_models_of_the_hub(name, stem):
    assert shipped_model(name) == stem


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"stage": "dpo"}, "stage 'dpo'"),
        ({"rl": "grpo"}, "rl 'grpo'"),
        ({"finetuning_type": "freeze"}, "finetuning_type 'freeze'"),
        ({"use_dora": True}, "use_dora"),
        ({"finetuning_type": "lora", "quantization_bit": 8}, "4 bits"),
    ],
)
def test_other_trainings_are_refused(tmp_path, changes, match):
    with pytest.raises(UnsupportedError, match=match):
        job(tmp_path, **changes)


def test_a_rank_alone_asks_for_adapters_unless_they_are_off(tmp_path):
    targets = {"lora_target_modules": ["q_proj"], "lora_r": 4}
    assert job(tmp_path, **targets).training.adapter.rank == 4
    assert job(tmp_path, **targets, use_peft=False).training.adapter is None
    assert job(tmp_path, **targets, finetuning_type="full").training.adapter is None


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "/dev/zero", ".."])
def test_names_that_no_file_can_have(tmp_path, name):
    with pytest.raises(ConfigError, match="is not a shipped model"):
        job(tmp_path, model_name_or_path=name)
    with pytest.raises(ConfigError):
        job(tmp_path, deepspeed=name)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model_name_or_path": "someone/else"}, "'someone/else' is not a shipped model; give mod"),
        ({"max_seq_length": None}, r"does not say training\.seq_length"),
        ({"per_device_train_batch_size": "many"}, "per_device_train_batch_size should be an int"),
        ({"deepspeed": "missing.json"}, "missing.json does not exist"),
    ],
)
def test_what_is_missing_or_malformed_is_named(tmp_path, changes, match):
    with pytest.raises(ConfigError, match=match):
        job(tmp_path, **changes)
