"""ZB-V, the handcrafted zero bubble of V shape (Qi et al., arXiv:2401.10241, section 6)."""

import numpy as np

from projector.arrays import Ints
from projector.schedule.order import BACKWARD, FORWARD, WEIGHT, Order, order_from_codes, v_shape


def repeats(pp: int, vpp: int) -> tuple[int, int]:  # noqa: ARG001
    """Repeat F, B and W of both chunks, once there are enough for every rank."""
    return 1, 2 * pp - 1


def order(pp: int, vpp: int, microbatches: int) -> Order:
    """Return the order, which needs no more memory than 1F1B.

    With F = B = W and at least ``2 * pp - 1`` microbatches no rank waits between its first and
    last operation but at the ramps, ``pp - 1`` chunks in all. With fewer microbatches the order is
    that of ``2 * pp - 1`` without the operations of those that there are not.
    """
    del vpp
    fill = max(microbatches, 2 * pp - 1)
    return order_from_codes(
        [_phases(pp, rank, fill) for rank in range(pp)], v_shape(pp), microbatches
    )


def _phases(pp: int, rank: int, microbatches: int) -> Ints:
    """Return the operations of one rank, each as ``2 * kind + chunk``."""
    f0, f1, b0, b1, w0, w1 = (
        2 * kind + chunk for kind in (FORWARD, BACKWARD, WEIGHT) for chunk in (0, 1)
    )
    # The warm-up runs 2 pp - 1 - rank forwards of chunk 0 and pp of chunk 1.
    full = microbatches - (2 * pp - 1 - rank)
    phases = (
        ((f0,), 2 * (pp - rank) - 1),
        ((f1, f0), rank),
        ((f1, b1, w1), pp - rank),
        ((f0, b0, w0, f1, b1, w1), full),
        ((b0, w0, f1, b1, w1), microbatches - pp - full),
        ((b0, b1), rank),
        ((b0, w0), pp - rank),
        ((w1,), rank),
        ((w0,), rank),
    )
    return np.concatenate([np.tile(np.array(block, np.int64), times) for block, times in phases])
