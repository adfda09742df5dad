"""Whether an order is a schedule at all; shares nothing with the kernel that replays it."""

from collections import deque
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike

from projector.errors import ScheduleError
from projector.schedule.order import BACKWARD, FORWARD, Order


def check_complete(order: Order) -> None:
    """Raise unless every operation of every virtual stage and microbatch occurs exactly once."""
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


def check_memory(order: Order, activation: ArrayLike, w_share: float, limit: ArrayLike) -> None:
    """Raise unless every rank keeps to its memory all the time.

    F holds what its chunk leaves: ``activation`` of each virtual stage of one copy of the model, in
    any unit. B frees it but for the share ``w_share`` that W needs, W frees the rest; an order
    without W frees all at B. Sums may end a rounding error above ``limit``, that of each rank.
    """
    size = np.broadcast_to(np.asarray(activation, np.float64), order.num_stages).tolist()
    limits = np.broadcast_to(np.asarray(limit, np.float64), order.pp).tolist()
    for rank, most in enumerate(limits):
        begin, end = order.rank_offset[rank], order.rank_offset[rank + 1]
        chunks = [size[stage % order.num_stages] for stage in order.stage_of[rank].tolist()]
        count = [[0] * order.vpp for _ in range(3)]
        operations = zip(
            order.kind[begin:end].tolist(), order.chunk[begin:end].tolist(), strict=True
        )
        for number, (kind, chunk) in enumerate(operations):
            count[kind][chunk] += 1
            # From the counts: a running sum would gather rounding errors.
            held = sum(
                chunk_size * (forwards - backwards)
                + (chunk_size * w_share * (backwards - weights) if order.splits_backward else 0.0)
                for chunk_size, forwards, backwards, weights in zip(chunks, *count, strict=True)
            )
            if held > most * (1.0 + 1e-9):
                msg = (
                    f"rank {rank} holds {held:g} after its operation {number}, more than its "
                    f"limit of {most:g}"
                )
                raise ScheduleError(msg, key="memory_limit", value=held, allowed=most)


def _refuse(why: str) -> NoReturn:
    raise ScheduleError(f"this order is not a schedule: {why}", key="schedule")
