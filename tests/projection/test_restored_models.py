"""Models of many kinds, measured by a device that behaves like the model, and restored."""

import pytest
from tests.measure.synthetic import project_measured, synthetic_record

from projector import load_job
from projector.measure.reduction import reduce_job
from projector.projection.api import project_performance

EXACT = 1e-9


@pytest.mark.rotated
@pytest.mark.parametrize("offered", [1, 8])
@pytest.mark.parametrize(
    ("model", "split"),
    [
        ("deepseek_v3", {"tp": 2, "etp": 1, "pp": 2, "ep": 16}),
        ("deepseek_v2_lite", {"pp": 3, "ep": 8, "cp": 1}),
        ("kimi_k2", {"pp": 2, "ep": 32}),
        ("glm4.5_air", {"tp": 4, "etp": 1, "pp": 2, "ep": 8}),
        ("gpt_oss_20b", {"tp": 2, "pp": 4, "vpp": 3, "ep": 4}),
        ("llama4_scout", {"tp": 8, "etp": 8, "pp": 2, "ep": 4}),
        ("qwen3_235b_a22b", {"pp": 2, "ep": 32, "vpp": 47}),
    ],
)
def test_experts_in_groups_beside_dense_layers_and_shared_experts_are_restored(
    model: str, split: dict[str, int], offered: int
) -> None:
    """With a module of multi-token prediction each, in FP8 with wide ends."""
    gpus = 8 * (3 if split["pp"] == 3 else 8)
    job = load_job({
        "model": model,
        "parallelism": split,
        "training": {
            "micro_batch_size": 1, "global_batch_size": 192, "seq_length": 1024,
            "precision": "fp8", "first_last_layers_bf16": 1, "recompute": "selective",
        },
        "cluster": {"device": "h200", "nodes": gpus // 8},
    }, {"model.mtp_num_layers": 1})  # fmt: skip
    direct = project_performance(job).iteration_time_s
    restored = project_measured(job, synthetic_record(reduce_job(job, offered)))
    assert restored.iteration_time_s == pytest.approx(direct, rel=EXACT)
