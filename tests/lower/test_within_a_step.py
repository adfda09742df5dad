"""What a training step makes of attention and memory-bound operators."""

import pytest

from projector.config.load import load_job
from projector.projection.api import project_performance
from projector.single.attention import attention_time

JOB = {
    "model": "llama3.2_1b",
    "training": {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 8192},
    "cluster": {"device": "h100", "nodes": 1},
}


@pytest.mark.parametrize(
    ("field", "term", "others"),
    [
        ("training_attention_share", "compute_attention", ("compute_gemm", "compute_other")),
        ("training_memory_share", "compute_other", ("compute_gemm",)),
    ],
)
def test_share_slows_its_term(field, term, others):
    base = project_performance(load_job(JOB)).breakdown_s
    slow = project_performance(load_job(JOB, {f"cluster.device.{field}": 0.5})).breakdown_s
    assert 1.5 * base[term] < slow[term] <= 2.0 * base[term] * (1.0 + 1e-12)
    assert {name: slow[name] for name in others} == {name: base[name] for name in others}


def test_kernel_alone_is_as_fast():
    base, own = ({"extends": "h100", **given} for given in ({}, {"training_attention_share": 0.5}))
    times = [attention_time(1, 32, 8192, head_dim=128, device=device) for device in (base, own)]
    assert times[0] == times[1]
