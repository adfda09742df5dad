"""Orders of F and whole B: GPipe, 1F1B, and 1F1B over several chunks a rank."""

import numpy as np

from projector.errors import ScheduleError
from projector.schedule.order import Order, one_forward_one_backward, round_robin_stages


def gpipe(pp: int, vpp: int, microbatches: int) -> Order:
    """All forwards, then all backwards from the first microbatch on (GPipe, Huang et al., 2019)."""
    step = np.arange(microbatches)
    work = (np.zeros_like(step), step)
    return one_forward_one_backward(
        np.full(pp, microbatches), work, work, round_robin_stages(pp, vpp), microbatches
    )


def one_f_one_b(pp: int, vpp: int, microbatches: int) -> Order:
    """1F1B (PipeDream-Flush, Narayanan et al., 2021): rank r is ``pp - 1 - r`` forwards ahead."""
    step = np.arange(microbatches)
    work = (np.zeros_like(step), step)
    warmup = np.arange(pp)[::-1]
    return one_forward_one_backward(warmup, work, work, round_robin_stages(pp, vpp), microbatches)


def check_interleaved(pp: int, vpp: int, microbatches: int, group_size: int | None = None) -> None:
    """Require two ranks, two chunks, and groups of at least pp microbatches.

    As Megatron does: a group, and what is left for the last one, must be at least ``pp``, and a
    group at most all microbatches. With groups of ``pp`` that is a multiple of ``pp``.
    """
    if pp < 2:
        msg = (
            f"schedule interleaved needs at least two ranks, but pp is {pp}; set pp >= 2 or vpp = 1"
        )
        raise ScheduleError(msg, key="pp", value=pp, allowed="pp >= 2")
    if vpp < 2:
        msg = (
            f"schedule interleaved needs at least two chunks a rank, but vpp is {vpp}; "
            "set vpp >= 2 or choose 1f1b"
        )
        raise ScheduleError(msg, key="vpp", value=vpp, allowed="vpp >= 2")
    if group_size is not None:
        if not pp <= group_size <= microbatches or 0 < microbatches % group_size < pp:
            msg = (
                f"a microbatch group of {group_size} does not fit {microbatches} microbatches on "
                f"{pp} ranks: the group, and what is left for the last one, must be at least pp"
            )
            raise ScheduleError(msg, key="group_size", value=group_size, allowed=f">= {pp}")
    elif microbatches % pp:
        below = microbatches // pp * pp
        nearest = [below, below + pp] if below else [pp]
        msg = (
            f"schedule interleaved needs a multiple of pp ({pp}) microbatches, but there are "
            f"{microbatches}; nearest that fit: {' or '.join(map(str, nearest))}"
        )
        raise ScheduleError(msg, key="microbatches", value=microbatches, allowed=nearest)


def repeat_groups(pp: int, vpp: int, group_size: int | None = None) -> tuple[int, int]:  # noqa: ARG001
    """Repeat each group, once there is one behind those of the warm-up."""
    group = pp if group_size is None else group_size
    return group, 2 * group


def interleaved(pp: int, vpp: int, microbatches: int, group_size: int | None = None) -> Order:
    """Return interleaved 1F1B in the order of Megatron-LM (Narayanan et al., 2021).

    ``group_size`` is Megatron's ``microbatch_group_size_per_vp_stage``: the consecutive
    microbatches that a chunk takes before the next chunk has its turn; ``pp`` unless given.
    """
    group = pp if group_size is None else group_size
    number = np.arange(microbatches)
    whole = microbatches // group * group
    chunk = [np.tile(np.repeat(np.arange(vpp), group), whole // group)]
    microbatch = [np.repeat(number[:whole].reshape(-1, group), vpp, axis=0).ravel()]
    if whole < microbatches:
        chunk.append(np.repeat(np.arange(vpp), microbatches - whole))
        microbatch.append(np.tile(number[whole:], vpp))
    forward = (np.concatenate(chunk), np.concatenate(microbatch))
    backward = (vpp - 1 - forward[0], forward[1])
    warmup = 2 * np.arange(pp)[::-1] + (vpp - 1) * group
    return one_forward_one_backward(
        warmup, forward, backward, round_robin_stages(pp, vpp), microbatches
    )
