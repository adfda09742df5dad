"""Adapters as jobs and other tools state them: read, or refused by name; never dropped."""

import json

import pytest

from projector import emit_job
from projector.config.formats.megatron import read_megatron
from projector.config.load import load_job
from projector.errors import ConfigError, UnsupportedError
from projector.measure.programs import benchmark_record
from projector.projection.api import project_memory

JOB = {
    "model": "llama3.1_8b",
    "training": {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 4096},
    "cluster": {"device": "h100"},
}

PRIMUS = """
modules:
  post_trainer:
    framework: megatron
    config: sft_trainer.yaml
    model: llama3.1_8B.yaml
    overrides:
      micro_batch_size: 1
      global_batch_size: 8
      seq_length: 4096
      lora: {lora}
"""

PEFT = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": 16,
    "lora_alpha": 32,
    "lora_dropout": 0.05,
    "target_modules": ["q_proj", "v_proj"],
    "bias": "none",
    "modules_to_save": None,
    "use_dora": False,
    "rank_pattern": {},
    "fan_in_fan_out": False,
}


def adapter_of(value, **overrides):
    training = {**JOB["training"], "adapter": value}
    return load_job({**JOB, "training": training}, overrides).training.adapter


def primus(tmp_path, lora, **overrides):
    path = tmp_path / "h100" / "sft.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(PRIMUS.replace("{lora}", json.dumps(lora)), encoding="utf-8")
    return load_job(path, overrides)


def test_a_kind_a_mapping_and_an_override_state_adapters():
    assert load_job(JOB).training.adapter is None
    assert adapter_of("lora").rank == 32
    assert adapter_of({"rank": 8}).sites == {"qkv", "proj", "fc1", "fc2"}
    assert adapter_of("qlora").base_precision == "nf4"
    assert adapter_of("canonical_lora").sites == {"q", "k", "v", "proj", "gate", "up", "fc2"}
    assert adapter_of(False) is None
    stated = load_job(JOB, {"training.adapter.rank": 4, "training.adapter.targets": "o_proj"})
    assert (stated.training.adapter.rank, stated.training.adapter.sites) == (4, {"proj"})
    again = load_job(stated, {"training.adapter.lora_alpha": 8})
    assert (again.training.adapter.rank, again.training.adapter.alpha) == (4, 8.0)


def test_primus_states_lora_as_megatron_bridge_does(tmp_path):
    stated = {
        "enabled": True, "dim": 16, "alpha": 32, "dropout": 0.1, "dropout_position": "post",
        "lora_A_init_method": "xavier", "target_modules": ["linear_qkv", "linear_proj"],
    }  # fmt: skip
    job = primus(tmp_path, stated)
    adapter = job.training.adapter
    assert (adapter.rank, adapter.dropout, adapter.dropout_position) == (16, 0.1, "post")
    assert adapter.sites == {"qkv", "proj"}
    assert not [note for note in job.notes if "lora" in note]
    assert primus(tmp_path, {**stated, "enabled": False}).training.adapter is None
    assert primus(tmp_path, stated, **{"training.adapter.rank": 8}).training.adapter.rank == 8


@pytest.mark.parametrize(
    ("stated", "key"),
    [
        ({"_target_": "megatron.bridge.peft.dora.DoRA"}, "training.adapter.kind"),
        ({"a2a_experimental": True}, "lora"),
        ({"exclude_modules": ["linear_fc1"]}, "lora"),
        ({"some_new_switch": 1}, "lora"),
        ({"target_modules": ["*.layers.0.*.linear_qkv"]}, "training.adapter.targets"),
        ({"target_modules": ["router"]}, "training.adapter.targets"),
    ],
)
def test_primus_refuses_other_adapters_by_name(tmp_path, stated, key):
    with pytest.raises(UnsupportedError) as caught:
        primus(tmp_path, {"enabled": True, **stated})
    assert caught.value.key == key


def test_a_rank_of_primus_that_is_no_number(tmp_path):
    with pytest.raises(ConfigError, match=r"lora\.dim"):
        primus(tmp_path, {"dim": "wide", "normalize_moe_lora": True})


def test_rank_of_experts_divided_by_those_of_a_token(tmp_path):
    path = tmp_path / "h100" / "moe.yaml"
    path.parent.mkdir()
    lora = {"dim": 32, "normalize_moe_lora": True}
    text = PRIMUS.replace("{lora}", json.dumps(lora)).replace("llama3.1_8B", "mixtral_8x7B")
    path.write_text(text, encoding="utf-8")
    assert load_job(path).training.adapter.expert_rank == 16


def test_arguments_of_adapters_are_refused():
    with pytest.raises(UnsupportedError, match=r"--lora-rank.*training\.adapter"):
        read_megatron(
            "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 "
            "--micro-batch-size 1 --global-batch-size 1 --vocab-size 512 --lora-rank 8",
            name="arguments",
        )


def test_a_file_of_peft_is_an_adapter(tmp_path):
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(PEFT), encoding="utf-8")
    job = tmp_path / "job.yaml"
    job.write_text(
        "model: llama3.1_8b\n"
        "training: {micro_batch_size: 1, global_batch_size: 8, seq_length: 4096,\n"
        "  adapter: adapter_config.json}\n"
        "cluster: {device: h100}\n",
        encoding="utf-8",
    )
    adapter = load_job(job).training.adapter
    assert (adapter.rank, adapter.sites, adapter.expert_adapters) == (16, {"q", "v"}, "each")
    assert load_job(job, {"training.adapter.rank": 4}).training.adapter.sites == {"q", "v"}
    assert adapter_of(PEFT) == adapter


@pytest.mark.parametrize("place", ["job", "model"])
def test_a_file_of_peft_is_neither_job_nor_model(tmp_path, place):
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(PEFT), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"describes an adapter.*training\.adapter"):
        load_job(path if place == "job" else {**JOB, "model": str(path)})


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"peft_type": "PROMPT_TUNING"}, "kind"),
        ({"peft_type": "IA3"}, "kind"),
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern"),
        ({"layers_to_transform": [0, 1]}, "layers_to_transform"),
        ({"bias": "all"}, "bias"),
        ({"a_key_of_tomorrow": 3}, "a_key_of_tomorrow"),
        ({"target_modules": ".*self_attn.*"}, "targets"),
        ({"target_modules": ["embed_tokens"]}, "targets"),
    ],
)
def test_other_files_of_peft_are_refused_by_name(changed, key):
    with pytest.raises(UnsupportedError) as caught:
        adapter_of({**PEFT, **changed})
    assert caught.value.key == f"training.adapter.{key}"


@pytest.mark.parametrize("kind", ["dora", "DoRA", "prefix_tuning", "vera", "adalora"])
def test_other_adapters_are_refused_by_name(kind):
    with pytest.raises(UnsupportedError, match="is not modelled"):
        adapter_of(kind)


@pytest.mark.parametrize(
    "value",
    [
        "loraa", True, 3, {"rank": 0}, {"rank": 1 << 30}, {"dropout": 1.0}, {"targets": []},
        {"targets": ["linear_qkv", "q_proj"]}, {"targets": ["gate_up_proj", "up_proj"]},
        {"rank": 8, "dim": 8}, {"base_precision": "int8"}, {"kind": None},
    ],
)  # fmt: skip
def test_what_no_adapter_can_be_is_an_error(value):
    with pytest.raises(ConfigError) as caught:
        adapter_of(value)
    assert caught.value.key.startswith("training.adapter")


def test_primus_is_written_with_its_own_words():
    adapter = {"rank": 16, "alpha": 32, "targets": ["linear_qkv", "linear_proj"]}
    emitted = emit_job(load_job(JOB, {"training.adapter": adapter}), "primus")
    assert "config: sft_trainer.yaml" in emitted.text
    assert not [field for field in emitted.carried if field.startswith("training.adapter")]


def test_the_closed_forms_and_records_refuse_adapters():
    job = load_job(JOB, {"training.adapter": "lora"})
    with pytest.raises(UnsupportedError, match=r"training\.adapter"):
        project_memory(job, fidelity="first-order")
    with pytest.raises(UnsupportedError, match=r"training\.adapter"):
        benchmark_record(job, 1)
