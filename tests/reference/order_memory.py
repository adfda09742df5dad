"""The memory of an order, operation by operation."""

import numpy as np

from projector.errors import ScheduleError


def check_memory(order, activation, w_share, limit):
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
