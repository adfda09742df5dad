"""Megatron-LM arguments that a script lacks or leaves to its environment, and values instead."""

import pytest

from config.megatron_jobs import SMALL
from projector.config.load import load_job
from projector.errors import ConfigError


def test_a_vocabulary_that_is_missing_can_be_given(tmp_path):
    file = tmp_path / "run.sh"
    text = SMALL.replace("--vocab-size 50257", "--tokenizer-type HuggingFaceTokenizer")
    file.write_text(text)
    given = {"cluster.device": "h100"}
    with pytest.raises(
        ConfigError, match=r"--vocab-size is missing.*; or give model.vocab_size=\.\.\."
    ):
        load_job(file, given)
    job = load_job(file, {**given, "model.vocab_size": 50257})
    assert job.model.padded_vocab_size(1) == 50304


@pytest.mark.parametrize(("overrides", "batch"), [({}, 16), ({"cluster.nodes": 8}, 32)])
def test_global_batch_defaults_to_one_microbatch_per_replica(tmp_path, overrides, batch):
    text = SMALL.replace("--global-batch-size 8", "--tensor-model-parallel-size 2")
    file = tmp_path / "run.sh"
    file.write_text(f"torchrun --nproc_per_node 8 --nnodes 4 train.py {text}")
    job = load_job(file, {"cluster.device": "h100", **overrides})
    assert job.training.global_batch_size == batch
    assert job.origins["training.global_batch_size"] == "Megatron default"


@pytest.mark.parametrize(
    ("without", "field", "value", "says"),
    [
        ("--vocab-size 50257", "model.vocab_size", 50257, "--vocab-size is missing"),
        ("--num-layers 24", "model.num_layers", 12, "--num-layers is missing"),
        ("--num-attention-heads 16", "model.num_attention_heads", 8, "--num-attention-heads is"),
        ("--micro-batch-size 1", "training.micro_batch_size", 2, "--micro-batch-size is missing"),
        ("--seq-length 2048", "training.seq_length", 512, "--seq-length is missing"),
        ("--global-batch-size 8", "training.global_batch_size", 16, "--global-batch-size is"),
    ],
)
def test_what_is_missing_can_be_given(tmp_path, without, field, value, says):
    file = tmp_path / "run.sh"
    given = {"cluster.device": "h100"}
    for text in (
        SMALL.replace(without, ""),
        SMALL.replace(without, f"{without.split()[0]} $UNSET"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=rf"; or give {field}=\.\.\."):
            load_job(file, given)
        section, name = field.split(".")
        assert getattr(getattr(load_job(file, {**given, field: value}), section), name) == value
    file.write_text(SMALL.replace(without, ""))
    with pytest.raises(ConfigError, match=says):
        load_job(file, given)


def test_what_hangs_on_what_is_missing_follows_what_is_given(tmp_path):
    file = tmp_path / "run.sh"
    text = SMALL.replace("--hidden-size 1024", "--hidden-size $H --swiglu")
    file.write_text(f"{text} --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP")
    given = {"cluster.device": "h100", "parallelism.tp": 2, "parallelism.pp": 2}
    with pytest.raises(ConfigError, match=r"--hidden-size is '\$\{H\}', which the script .* set"):
        load_job(file, given)
    job = load_job(file, {**given, "model.hidden_size": 2048})
    assert job.model.ffn_hidden_size == 5440


@pytest.mark.parametrize(
    ("argument", "field", "value"),
    [
        ("--fp8-format $FP8", "training.precision", "fp8"),
        ("--normalization $NORM", "model.normalization", "rmsnorm"),
        ("--optimizer $OPTIMIZER", "training.optimizer.name", "sgd"),
        ("--recompute-granularity $GRANULARITY", "training.recompute.granularity", "selective"),
        ("--tensor-model-parallel-size $TP", "parallelism.tp", 2),
        ("--num-experts $E --moe-router-topk 3", "model.moe.num_experts", 8),
        ("--num-experts 8 --moe-router-topk $K", "model.moe.router_topk", 3),
    ],
)
def test_what_only_the_environment_has_is_neither_assumed_nor_lost(
    tmp_path, argument, field, value
):
    file = tmp_path / "run.sh"
    file.write_text(f"{SMALL} {argument}")
    given = {"cluster.device": "h100"}
    with pytest.raises(ConfigError, match=rf"the script itself does not set; or give {field}="):
        load_job(file, given)
    found = load_job(file, {**given, field: value})
    for part in field.split("."):
        found = getattr(found, part)
    assert found == value


def test_experts_keep_what_is_stated_beside_their_number(tmp_path):
    file = tmp_path / "run.sh"
    file.write_text(f"{SMALL} --num-experts $E --moe-router-topk 3 --moe-ffn-hidden-size 256")
    moe = load_job(file, {"cluster.device": "h100", "model.moe.num_experts": 8}).model.moe
    assert (moe.num_experts, moe.router_topk, moe.ffn_hidden_size) == (8, 3, 256)


def test_a_model_by_name_stands_for_all_that_is_missing_of_it(tmp_path):
    file = tmp_path / "run.sh"
    file.write_text("torchrun train.py --micro-batch-size 1 --seq-length 512 --bf16")
    given = {"cluster.device": "h100", "training.global_batch_size": 8, "model": "llama3.1_8b"}
    job = load_job(file, given)
    assert job.model.num_layers == 32
    assert not [field for field in job.origins if field.startswith("model.")]
