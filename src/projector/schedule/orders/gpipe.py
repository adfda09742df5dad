"""GPipe: all forwards, then all backwards (Huang et al., 2019)."""

import numpy as np

from projector.schedule.order import Order, one_forward_one_backward, round_robin_stages


def order(pp: int, vpp: int, microbatches: int) -> Order:
    """Return the order; backwards run from the first microbatch, as in PyTorch."""
    step = np.arange(microbatches)
    work = (np.zeros_like(step), step)
    return one_forward_one_backward(
        np.full(pp, microbatches), work, work, round_robin_stages(pp, vpp), microbatches
    )
