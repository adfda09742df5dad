"""The benchmark job: what is given up, in which order, and what is refused."""

import pytest

from projector.config.load import load_job
from projector.errors import ConfigError
from projector.measure.reduction import reduce_job
from projector.projection.evaluate import check_exists


def _small(**overrides):
    return load_job(
        {
            "model": "mixtral_8x7b",
            "training": {"micro_batch_size": 1, "global_batch_size": 256, "seq_length": 2048},
            "cluster": {"device": "mi355x", "nodes": 8},
            "parallelism": {"pp": 4, "vpp": 2, "ep": 8},
        },
        overrides,
    )


def test_the_pipeline_goes_first_and_then_experts():
    reduction = reduce_job(_small(**{"model.moe.num_experts": 32}), 1)
    assert [(step.dimension, step.before, step.after, step.gpus) for step in reduction.steps] == [
        ("pp", 4, 1, 8),
        ("ep", 8, 1, 1),
    ]
    assert reduction.job.model.moe.num_experts == 4
    assert (reduction.least_gpus, reduction.gpus) == (32, 1)
    assert (reduction.min_dp, reduction.target_dp) == (8, 16)
    check_exists(reduction.job)


def test_context_parallelism_is_never_reduced():
    job = _small(**{"parallelism.cp": 4})
    assert reduce_job(job, 4).job.parallelism.cp == 4
    with pytest.raises(ConfigError, match="at least 4 would do") as raised:
        reduce_job(job, 2)
    assert raised.value.key == "benchmark_gpus"
