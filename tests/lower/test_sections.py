"""Columns of sections."""

import numpy as np
import pytest

from projector.config.training import TrainingConfig
from projector.lower.sections import TRAINING, TRAINING_PARTS, training_table

SECTIONS = [
    TrainingConfig(micro_batch_size=size, global_batch_size=64, seq_length=4096, **more)
    for size, more in enumerate(
        [
            {},
            {"precision": "fp8"},
            {"recompute": "full", "activation_offload_fraction": 0.5},
            {},
        ],
        start=1,
    )
]


@pytest.mark.parametrize("asked", [0, 1, 3])
def test_a_table_that_grows_is_the_table_of_all(asked):
    """Whether its columns were ``asked`` for before."""
    whole, grown = training_table(SECTIONS), training_table(SECTIONS[:1])
    for count in range(1, len(SECTIONS)):
        if count <= asked:
            for name in TRAINING:
                grown.column(name)
            for name in TRAINING_PARTS:
                grown.part(name)
        grown.grow(SECTIONS[count : count + 1])
    assert grown.items == whole.items
    for name in TRAINING:
        assert grown.column(name).dtype == whole.column(name).dtype
        np.testing.assert_array_equal(grown.column(name), whole.column(name))
    for name in TRAINING_PARTS:
        np.testing.assert_array_equal(grown.part(name), whole.part(name))
