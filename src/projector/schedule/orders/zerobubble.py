"""Handcrafted zero-bubble schedules (Qi et al., 2023, arXiv:2401.10241): ZB-H1, ZB-H2, ZB-V.

B is the gradient of the input alone; W, the gradient of the weights, waits until it fills what
would be a bubble. With one chunk a rank (section 2), rank r begins with some
forwards, then alternates F and B, and runs the W of a microbatch a fixed number of B's after its
own B. An activation is held until its W. No order depends on times.
"""

import numpy as np

from projector.arrays import Ints
from projector.schedule.order import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Order,
    order_from_codes,
    round_robin_stages,
    v_shape,
)


def order(pp: int, vpp: int, microbatches: int) -> Order:
    """Return ZB-H1: the warm-up of 1F1B, and no more memory than its first rank.

    Rank r runs ``pp - 1 - r`` forwards ahead and puts off r W's, so that every rank holds at most
    ``pp`` microbatches. With F = B = W = 1 and at least ``pp`` microbatches the makespan is
    ``3 * microbatches + pp - 1``, the least that one chunk a rank allows.
    """
    rank = np.arange(pp)
    return _order(rank[::-1], rank, round_robin_stages(pp, vpp), microbatches)


def order_h2(pp: int, vpp: int, microbatches: int) -> Order:
    """Return ZB-H2: twice the warm-up of 1F1B, so that no rank waits inside its own span.

    Rank r runs ``2 * (pp - 1 - r) + 1`` forwards before its first B and puts off ``2 * r`` W's, so
    that every rank holds at most ``2 * pp - 1`` microbatches. With F = B = W = 1 and at least
    ``2 * pp - 1`` microbatches each rank works for ``3 * microbatches`` without a gap. That is the
    period; but each rank starts and ends later than the one before it, and the makespan is that of
    ZB-H1. Only an optimizer that checks its norms afterwards (the paper's post-validation) lets a
    rank begin the next step without the others.

    Fewer microbatches leave nothing to gain from the whole of the second warm-up, which would
    delay the first B's; each beyond ``pp`` lengthens it by one forward, up to ``pp - 1 - r``.
    """
    rank = np.arange(pp)
    second = np.clip(microbatches - pp, 0, pp - 1)
    return _order(
        rank[::-1] + np.minimum(rank[::-1], second),
        rank + np.minimum(rank, second),
        round_robin_stages(pp, vpp),
        microbatches,
    )


def _order(ahead: Ints, put_off: Ints, stage_of: Ints, microbatches: int) -> Order:
    """Build an order from the forwards ahead of the first pair of F and B, and the W's put off."""
    pp = len(stage_of)
    step = np.arange(microbatches)
    ahead = np.minimum(ahead, microbatches)[:, np.newaxis]
    put_off = put_off[:, np.newaxis]
    # The place of an operation is the number of F, B and W of its rank before it. Pair j is F of
    # microbatch ahead + j (while there are any), B of j, and W of j - put_off (once there is one).
    pair = np.maximum(step - ahead, 0)
    forward_at = step + pair + np.maximum(pair - put_off, 0)
    backward_at = np.minimum(ahead + step + 1, microbatches) + step + np.maximum(step - put_off, 0)
    pair = np.minimum(step + put_off, microbatches - 1)  # What is left follows the last one.
    weight_at = np.minimum(ahead + pair + 1, microbatches) + pair + 1 + step

    operations = 3 * microbatches
    rank = np.arange(pp)[:, np.newaxis]
    kind = np.empty((pp, operations), np.int8)
    microbatch = np.empty((pp, operations), np.int64)
    for code, position in ((FORWARD, forward_at), (BACKWARD, backward_at), (WEIGHT, weight_at)):
        kind[rank, position] = code
        microbatch[rank, position] = step
    columns = kind, np.zeros_like(microbatch), microbatch
    return Order.of_ranks(stage_of, microbatches, *columns, splits_backward=True)


def order_v(pp: int, vpp: int, microbatches: int) -> Order:
    """Return ZB-V, two chunks a rank in a V (Qi et al., section 6), with no more memory than 1F1B.

    With F = B = W and at least ``2 * pp - 1`` microbatches no rank waits between its first and last
    operation but at the ramps, ``pp - 1`` chunks in all. With fewer microbatches the order is that
    of ``2 * pp - 1`` without the operations of those that there are not.
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
