"""Orders of F and whole B: GPipe, 1F1B, and 1F1B over several chunks a rank, dealt or in a V."""

import numpy as np

from projector.arrays import Ints
from projector.errors import ScheduleError
from projector.schedule.order import (
    Order,
    one_forward_one_backward,
    round_robin_stages,
    v_shape,
)


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


def one_f_one_b_v(pp: int, vpp: int, microbatches: int) -> Order:
    """Return 1F1B-V: two chunks a rank in a V, with two thirds of the memory of 1F1B.

    Each microbatch runs through one building block, six slots after the one before: a slot for a
    chunk's F, two for its B (Qi et al., arXiv:2405.15362). Where ramps leave slots free, operations
    move into them, an F as far as its rank then holds no more than the block makes it hold. The
    rules are those of sail-sg/zero-bubble-pipeline-parallelism (``scheduler/v1f1b.py``), which
    Primus' ``enable_1f1b_v`` runs; the order does not depend on times.
    """
    from projector.kernels.planning import Moving, place_in_slots  # loads numba

    del vpp
    most = 2 * (2 * pp // 3 + 1)
    slot = _block_v(pp)[..., np.newaxis] + 6 * np.arange(microbatches)
    index = np.unravel_index(np.arange(slot.size), slot.shape)
    by_slot = np.lexsort((index[2], slot.ravel()))
    kind, chunk, rank, microbatch = (np.asarray(each[by_slot]) for each in index)
    wanted = slot.ravel()[by_slot]
    change = np.zeros((pp, int(slot.max()) + 3), np.int64)
    np.add.at(change, (rank, wanted + kind), 1 - 2 * kind)
    held = np.cumsum(change, axis=1)
    stage = v_shape(pp)[rank, chunk]
    placed = place_in_slots(Moving(wanted, kind, stage, rank, microbatch), most, held)
    by_rank = np.lexsort((placed, rank))
    return Order(
        microbatches=microbatches,
        rank_offset=np.arange(pp + 1) * 4 * microbatches,
        kind=kind[by_rank].astype(np.int8),
        chunk=chunk[by_rank],
        microbatch=microbatch[by_rank],
        stage_of=v_shape(pp),
    )


def _block_v(pp: int) -> Ints:
    """Return the slots of one microbatch, ``int64[2, 2, pp]`` by kind, chunk and rank.

    F's run down the ranks and back without a wait. B's do as well, but for three slots after every
    third, without which two of them would want the same slots of a rank.
    """
    rank, turn = np.arange(pp), np.arange(2 * pp)
    waited = (2 - (pp + 1) % 3 + turn) // 3 + (pp % 3 == 0)
    backward = 2 * pp + 2 * turn + 3 * waited
    return np.array([[rank, 2 * pp - 1 - rank], [backward[pp:][::-1], backward[:pp]]])
