"""Derived degrees, and every rule that spans sections."""

from types import SimpleNamespace

import pytest

from projector.config.load import Variants, load_job
from projector.config.parallelism import divisors
from projector.errors import ConfigError
from projector.lower.batch import JobBatch, JobColumns, job_columns, local_members
from projector.lower.rules import EVEN_STEP, RULES
from projector.projection.evaluate import check_exists, find_legal

BASE = {
    "model": "llama3.1_8b",
    "parallelism": {},
    "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 8192},
    "cluster": {"device": "h100", "nodes": 2},
}


def job(**overrides):
    return load_job(BASE, {key.replace("__", "."): value for key, value in overrides.items()})


def columns_of(job):
    return job_columns(JobBatch.of([job]))


def refused(**overrides):
    with pytest.raises(ConfigError) as caught:
        check_exists(job(**overrides))
    return caught.value


def test_degrees():
    columns = columns_of(job(parallelism__tp=2, parallelism__pp=2, parallelism__cp=2))
    assert columns.dp[0] == 2
    assert columns.micro_batch[0] == 1
    assert columns.tp_local[0] == 2
    assert columns.cp_local[0] == 2
    assert columns.shard_local[0] == 4


def test_expert_degrees_fold_over_dense_ranks():
    columns = columns_of(
        job(model="mixtral_8x7b", parallelism__tp=2, parallelism__ep=4, parallelism__etp=1)
    )
    assert (columns.dp[0], columns.edp[0], columns.ep_local[0]) == (8, 4, 4)


@pytest.mark.parametrize(
    ("overrides", "key", "says"),
    [
        ({"parallelism__tp": 3}, "parallelism.tp", "does not divide num_attention_heads"),
        ({"parallelism__ep": 2}, "parallelism.ep", "is a dense model"),
        (
            {"parallelism__cp": 4, "training__seq_length": 8196},
            "training.seq_length",
            "multiple of 8",
        ),
        ({"parallelism__dp": 4}, "parallelism.dp", "leaves dp = 16"),
        ({"parallelism__pp": 3}, "cluster.nodes", "must divide the 16 GPUs"),
        ({"training__global_batch_size": 40}, "training.global_batch_size", "nearest: 32 or 48"),
        ({"training__precision": "mxfp8"}, "training.precision", "has no native mxfp8"),
        ({"training__attention_kernel": "fa5"}, "training.attention_kernel", "it has default, "),
        (
            {"training__attention_kernel": "trtllm_fmha_fp8"},
            "training.attention_kernel",
            "supports only fp8",
        ),
        (
            {"model": "mixtral_8x7b", "parallelism__ep": 3},
            "parallelism.ep",
            "does not divide num_experts",
        ),
        (
            {
                "model": "mixtral_8x7b",
                "parallelism__tp": 2,
                "parallelism__sequence_parallel": False,
            },
            "parallelism.sequence_parallel",
            "need sequence_parallel",
        ),
        ({"model": "gpt3_175b"}, "training.seq_length", "learned position table"),
        (
            {"parallelism__sharding_group_size": 3},
            "parallelism.sharding_group_size",
            "does not divide the 16 ranks",
        ),
        (
            {"parallelism__num_distributed_optimizer_instances": 3},
            "parallelism.num_distributed_optimizer_instances",
            "does not divide the 16 ranks",
        ),
        (
            {
                "model": "mixtral_8x7b",
                "parallelism__ep": 8,
                "parallelism__num_distributed_optimizer_instances": 4,
            },
            "parallelism.num_distributed_optimizer_instances",
            "do not divide the 2 copies of each expert",
        ),
        (
            {
                "model": "mixtral_8x7b",
                "parallelism__pp": 2,
                "parallelism__ep": 4,
                "parallelism__rank_order": "tp-cp-ep-pp-dp",
            },
            "parallelism.rank_order",
            "does not end with pp",
        ),
    ],
)
def test_rules(overrides, key, says):
    error = refused(**overrides)
    assert error.key == key
    assert says in error.message
    assert error.allowed is not None


def test_jobs_of_a_batch_are_told_apart():
    variants = Variants(job())
    changes = (
        {},
        {"parallelism.tp": 3},
        {"parallelism.pp": 2, "parallelism.vpp": 32},
        {"parallelism.pp": 2, "training.schedule": "nothing"},
        {"parallelism.tp": 5},
    )
    broken = [variants.job(each) for each in changes]
    legal = find_legal(JobBatch.of(broken))
    assert legal.refused.tolist() == [-1, 0, 1, 2, 0]
    keys = [error.key for error in legal.errors]
    assert keys == ["parallelism.tp", "parallelism.pp", "schedule"]


def test_rules_of_no_machine_see_what_jobs_agree_in_that_share_their_answer():
    adapter = {"rank": 16, "targets": ["linear_qkv"]}
    batch = JobBatch.of([job(model="mixtral_8x7b", training__adapter=adapter)])
    degrees = job_columns(batch)
    of_training = [
        *("seq", "packed", "adapted", "adapter_sites", "adapter_rank", "adapter_expert_rank")
    ]
    seen = SimpleNamespace(
        model=batch.model,
        parallelism=batch.parallelism,
        training=SimpleNamespace(**{name: getattr(batch.training, name) for name in of_training}),
    )
    shared = [name for name in JobColumns.__annotations__ if name != "micro_batch"]
    columns = SimpleNamespace(**{name: getattr(degrees, name) for name in shared})
    for number, rule in enumerate(RULES):
        if not rule.of_machine and number != EVEN_STEP:
            rule.broken(seen, columns)


def test_divisors():
    assert divisors(12) == [1, 2, 3, 4, 6, 12]


def test_local_members():
    assert local_members(8, 1, 8) == 8
    assert local_members(8, 8, 8) == 1
    assert local_members(4, 4, 8) == 2
    assert local_members(4, 16, 8) == 1
