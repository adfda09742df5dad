"""Memory of training and of a cache, in closed form.

Every function takes numbers or arrays that broadcast, and returns float64.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Flags, Floats
from projector.first_order.constants import Constants
from projector.first_order.roofline import column

SCORES_PER_HEAD = 5.0
"""Bytes of the formula for each score of a head: the softmax and its input in 16 bits, a mask."""

LINEAR_PER_CHANNEL = 34.0
"""Bytes of the formula for each channel of a token, everything but the scores."""


class StateBytes(NamedTuple):
    """Bytes of each parameter that mixed-precision AdamW keeps, or of a rank."""

    weights: Floats
    gradients: Floats
    optimizer: Floats

    @property
    def total(self) -> Floats:
        """All of them."""
        return np.asarray(self.weights + self.gradients + self.optimizer)


def bytes_per_parameter(
    constants: Constants, *, accumulates_beside: bool | Flags = False
) -> StateBytes:
    """Return what each parameter takes: 18 bytes, or 20 where gradients accumulate in a copy.

    2 (BF16 weight) + 4 (FP32 master) + 4 (FP32 gradient) + 4 (momentum) + 4 (variance) = 18. With
    ``accumulates_beside`` the 16-bit gradient lies beside its FP32 sum: +2.

    Source: the Roofline methodology, section 2.1; Loshchilov and Hutter, arXiv:1711.05101.
    """
    beside = np.where(accumulates_beside, constants.accumulation_bytes, 0.0)
    optimizer = constants.master_bytes + constants.momentum_bytes + constants.variance_bytes
    gradients = np.asarray(constants.gradient_bytes + beside)
    return StateBytes(constants.weight_bytes, gradients, np.asarray(optimizer))


def sharded_states(whole: StateBytes, ranks: ArrayLike, stage: ArrayLike) -> StateBytes:
    """Return the states of one of ``ranks`` data-parallel ranks.

    Stage 1 divides the optimizer's states by the ranks, stage 2 also the gradients, stage 3 (FSDP)
    also the weights; stage 0 nothing.

    Source: Rajbhandari et al., ZeRO, arXiv:1910.02054; the Roofline methodology, section 2.2.
    """
    stage, ranks = column(stage), column(ranks)

    def share(first_stage: int) -> Floats:
        return np.where(stage >= first_stage, 1.0 / ranks, 1.0)

    return StateBytes(
        whole.weights * share(3), whole.gradients * share(2), whole.optimizer * share(1)
    )


def activation_bytes(
    layers: ArrayLike,
    seq: ArrayLike,
    batch: ArrayLike,
    hidden: ArrayLike,
    heads: ArrayLike,
    *,
    keeps_scores: bool | Flags = True,
) -> Floats:
    """Return the activations of a microbatch: L s b h (34 + 5 a s / h), in 16 bits.

    The second term is the scores of attention, which a fused kernel does not keep.

    Source: Korthikanti et al., arXiv:2205.05198, equation 1; the Roofline methodology, section 2.3.
    """
    tokens = column(layers) * column(seq) * column(batch)
    scores = SCORES_PER_HEAD * column(heads) * column(seq)
    return tokens * (LINEAR_PER_CHANNEL * column(hidden) + np.where(keeps_scores, scores, 0.0))


def checkpointed_bytes(activations: ArrayLike, constants: Constants) -> Floats:
    """Return activations under checkpointing: 30 % of them, for one more forward pass.

    Source: the Roofline methodology, section 2.3; ``docs/first_order.md`` says what it leaves out.
    """
    return column(activations) * constants.checkpointed_share


def kv_cache_bytes(
    layers: ArrayLike,
    batch: ArrayLike,
    seq: ArrayLike,
    key_heads: ArrayLike,
    head_dim: ArrayLike,
    element_bytes: ArrayLike = 2.0,
) -> Floats:
    """Return the cache of keys and values: 2 L b s g d e.

    Source: the Roofline methodology, section 2.4.
    """
    tokens = column(layers) * column(batch) * column(seq)
    return 2.0 * tokens * column(key_heads) * column(head_dim) * column(element_bytes)
