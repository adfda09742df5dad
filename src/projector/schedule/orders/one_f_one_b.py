"""1F1B without interleaving (PipeDream-Flush, Narayanan et al., 2021)."""

import numpy as np

from projector.schedule.order import Order, one_forward_one_backward, round_robin_stages


def repeats(pp: int, vpp: int) -> tuple[int, int]:  # noqa: ARG001
    """Repeat each pair of F and B, once every rank has begun with them."""
    return 1, pp


def order(pp: int, vpp: int, microbatches: int) -> Order:
    """Return the order; rank r runs ``pp - 1 - r`` forwards ahead."""
    step = np.arange(microbatches)
    work = (np.zeros_like(step), step)
    warmup = np.arange(pp)[::-1]
    return one_forward_one_backward(warmup, work, work, round_robin_stages(pp, vpp), microbatches)
