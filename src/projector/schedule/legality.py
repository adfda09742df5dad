"""Whether an order is a schedule at all; shares nothing with the kernel that replays it."""

from collections import deque
from typing import NoReturn

import numpy as np

from projector.errors import ScheduleError

from .order import BACKWARD, FORWARD, Order


def check_complete(order: Order) -> None:
    """Raise unless every operation of every virtual stage and microbatch stands exactly once."""
    pp, vpp, microbatches = order.pp, order.vpp, order.microbatches
    num_ops = len(order.kind)
    kinds = 3 if order.splits_backward else 2
    if not (
        order.rank_offset.shape == (pp + 1,)
        and order.rank_offset[0] == 0
        and order.rank_offset[-1] == num_ops
        and np.all(np.diff(order.rank_offset) >= 0)
        and order.chunk.shape == order.microbatch.shape == (num_ops,)
    ):
        _refuse("its columns do not fit together")
    if order.directions < 1 or pp * vpp % order.directions:
        _refuse(f"{pp * vpp} virtual stages are not {order.directions} copies of a model")
    if not np.array_equal(np.sort(order.stage_of, axis=None), np.arange(pp * vpp)):
        _refuse("its placement does not hold every virtual stage once")
    for column, bound in (
        (order.kind, kinds),
        (order.chunk, vpp),
        (order.microbatch, microbatches),
    ):
        if np.any(column < 0) or np.any(column >= bound):
            _refuse("an operation has a kind, chunk or microbatch that does not exist")
    key = (order.kind.astype(np.int64) * (pp * vpp) + order.stage) * microbatches + order.microbatch
    count = np.bincount(key, minlength=kinds * pp * vpp * microbatches)
    if np.any(count != 1):
        wrong = int(np.argmax(count != 1))
        stage, microbatch = divmod(wrong % (pp * vpp * microbatches), microbatches)
        kind = "FBW"[wrong // (pp * vpp * microbatches)]
        _refuse(
            f"{kind} of virtual stage {stage} and microbatch {microbatch} stands "
            f"{count[wrong]} times"
        )


def check_executable(order: Order) -> None:
    """Raise unless the ranks can run their operations to the end without waiting for ever."""
    length = order.num_stages
    columns = (order.kind.tolist(), order.stage.tolist(), order.microbatch.tolist())
    queues = [
        deque(zip(*(column[begin:end] for column in columns), strict=True))
        for begin, end in zip(order.rank_offset[:-1], order.rank_offset[1:], strict=True)
    ]
    done: set[tuple[int, int, int]] = set()

    def ready(kind: int, stage: int, microbatch: int) -> bool:
        own_forward = (FORWARD, stage, microbatch) in done
        if kind == FORWARD:
            return stage % length == 0 or (FORWARD, stage - 1, microbatch) in done
        if kind == BACKWARD:
            last = (stage + 1) % length == 0
            return own_forward and (last or (BACKWARD, stage + 1, microbatch) in done)
        return (BACKWARD, stage, microbatch) in done

    progress = True
    while progress:
        progress = False
        for queue in queues:
            while queue and ready(*queue[0]):
                done.add(queue.popleft())
                progress = True
    for rank, queue in enumerate(queues):
        if queue:
            kind, stage, microbatch = queue[0]
            _refuse(
                f"rank {rank} waits for ever before {'FBW'[kind]} of virtual stage {stage} and "
                f"microbatch {microbatch}"
            )


def check_order(order: Order) -> None:
    """Raise :class:`ScheduleError` unless the order is complete and can run."""
    check_complete(order)
    check_executable(order)


def _refuse(why: str) -> NoReturn:
    msg = f"this order is not a schedule: {why}"
    raise ScheduleError(msg, key="schedule")
