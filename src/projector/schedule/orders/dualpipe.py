"""DualPipe: two copies of the model, one fed from either end (DeepSeek-V3, arXiv:2412.19437).

Rank r holds stage r of the first copy and stage ``pp - 1 - r`` of the second, so that half of the
microbatches run down the ranks and half up, and every rank is early for one of them. Section 3.2.1
of the paper; the phases are those of the published implementation (deepseek-ai/DualPipe). Where
that runs F and B of two microbatches at once, so that the exchanges of one hide behind the work of
the other, they stand one after the other here: the order is the same, and what overlap saves is
for whoever sets the durations.
"""

import numpy as np

from projector.arrays import Ints
from projector.errors import ScheduleError
from projector.schedule import order as orders


def check(pp: int, vpp: int, microbatches: int) -> None:
    """Require an even number of ranks and an even number of microbatches, at least two a rank."""
    orders.one_chunk("dualpipe", pp, vpp, microbatches)
    if pp % 2:
        msg = f"schedule dualpipe needs an even number of ranks, but pp is {pp}"
        raise ScheduleError(msg, key="pp", value=pp, allowed="an even number")
    if microbatches % 2 or microbatches < 2 * pp:
        least = max(2 * pp, microbatches + microbatches % 2)
        msg = (
            f"schedule dualpipe needs an even number of microbatches, at least 2 * pp ({2 * pp}), "
            f"but there are {microbatches}; nearest that fits: {least}"
        )
        raise ScheduleError(msg, key="microbatches", value=microbatches, allowed=least)


def repeats(pp: int, vpp: int) -> tuple[int, int]:  # noqa: ARG001
    """Repeat one microbatch from either end."""
    return 2, 2 * pp


def order(pp: int, vpp: int, microbatches: int) -> orders.Order:
    """Return the order; each copy runs half of the microbatches.

    The placement is that of a V, whose way back is the second copy here: stages from ``pp`` on.
    """
    del vpp
    codes = [_phases(pp, rank, microbatches // 2) for rank in range(pp)]
    return orders.order_from_codes(codes, orders.v_shape(pp), microbatches // 2, directions=2)


def _phases(pp: int, rank: int, microbatches: int) -> Ints:
    """Return the operations of one rank, each as ``2 * kind + chunk``.

    Microbatches of the near end, the one the rank is closer to, run ahead; those of the far end
    follow. ``depth`` is the distance from the near end, ``inside`` that from the middle.
    """
    depth = min(rank, pp - 1 - rank)
    inside = pp // 2 - 1 - depth
    near = 0 if rank < pp // 2 else 1
    f0, f1, b0, b1, w0, w1 = (
        2 * kind + (near ^ far)
        for kind in (orders.FORWARD, orders.BACKWARD, orders.WEIGHT)
        for far in (0, 1)
    )
    # In the drain B's alternate. The first half have their W's at once, the others put them off;
    # those then fill the gaps between the last B's, in the order of their B's.
    drain = [(b1, w1), (b0, w0)] * (depth + 1)
    late = [w for _, w in drain[depth + 1 :]] + [w0] * inside
    phases = (
        [f0] * (2 * inside),
        [f0, f1] * (depth + 1),
        [b1, w1, f1] * inside,
        [f0, b1, w1, f1, b0, w0] * (microbatches - pp + depth + 1),
        [b1, w1, f1, b0, w0] * inside,
        [code for pair in drain[: depth + 1] for code in pair],
        [b for b, _ in drain[depth + 1 :]],
        [code for w in late[:inside] for code in (w, b0)],
        late[inside:],
    )
    return np.array([code for phase in phases for code in phase], np.int64)
