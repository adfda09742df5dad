"""Which memory-bound rows of the operation table a worker has an operator for; without torch."""

import numpy as np
import pytest

from projector.config.load import load_job
from projector.measure.memory_operators import known_label
from projector.measure.programs import lower_job
from projector.operations.table import MEMORY

MODELS = ("llama3_8b", "mixtral_8x7b", "deepseek_v2_lite", "gpt_oss_20b", "gemma2_2b", "gpt2_xl")
"""One of each kind of attention, MLP, norm and routing."""


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "training",
    [
        {"precision": "bf16"},
        # What is measured pads no rows (`AS_MEASURED`).
        {"precision": "fp8", "moe": {"padding_fusion": True}},
        {"elementwise": "eager", "flash_attention": False, "gradient_accumulation_fusion": False},
    ],
    ids=["bf16", "fp8", "eager"],
)
def test_every_memory_bound_row_of_a_step_has_an_operator(model, training):
    job = load_job(
        {
            "model": model,
            "training": {
                "micro_batch_size": 1, "global_batch_size": 8, "seq_length": 1024, **training
            },
            "cluster": {"device": "h100", "nodes": 1},
        }
    )  # fmt: skip
    table = lower_job(job).table
    rows = np.flatnonzero((table.kind == MEMORY) & (table.bytes > 0.0))
    labels = {table.labels[label] for label in table.label[rows]}
    assert {label for label in labels if not known_label(label)} == set()
