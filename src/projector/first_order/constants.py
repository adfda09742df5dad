"""Constants of the first-order model as columns."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from projector.arrays import Floats
from projector.config.first_order import FirstOrderConfig


class Constants(NamedTuple):
    """Fields of `FirstOrderConfig`, where they are explained; float64[jobs] or of no dimension."""

    training_mfu: Floats
    decode_mfu: Floats
    prefill_mfu: Floats
    overlap: Floats
    tp_crossing: Floats
    weight_bytes: Floats
    master_bytes: Floats
    gradient_bytes: Floats
    accumulation_bytes: Floats
    momentum_bytes: Floats
    variance_bytes: Floats
    checkpointed_share: Floats

    @classmethod
    def of(cls, config: FirstOrderConfig | None = None) -> Self:
        """Return those of one configuration, by default the methodology's."""
        one = config or FirstOrderConfig()
        return cls(*(np.asarray(getattr(one, name), np.float64) for name in cls._fields))

    @classmethod
    def of_jobs(cls, configs: Sequence[FirstOrderConfig]) -> Self:
        """Return a column of each, in the order of the jobs."""
        return cls(
            *(
                np.array([getattr(config, name) for config in configs], np.float64)
                for name in cls._fields
            )
        )
