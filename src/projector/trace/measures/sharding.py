"""Where sharded data parallelism (FSDP, ZeRO) loses time in an iteration.

Sections V-D and II-B of Chopper (Kurzynski, Aga, Wu): an iteration first fills a pipeline of
all-gathers and at its end empties one of reduce-scatters; per-parameter sharding (FSDP 2) copies
around collectives in line with computing.
"""

import itertools
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from projector.arrays import Flags, Ints
from projector.trace.activity import (
    BACKWARD,
    COMMUNICATION,
    COMPUTE,
    FORWARD,
    GEMM,
    MOVE,
    Activities,
)  # fmt: skip
from projector.trace.intervals import cover, difference, union
from projector.trace.measures.devices import device_slices, in_iterations
from projector.trace.measures.numbers import PS_PER_NS, Band, band, group


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingTimes:
    """Exposed communication and copies of the iterations of one device."""

    rank: int
    device: int
    filling_ns: Band
    """Communication that nothing hides, before the first matrix product of the forward ends."""
    between_ns: Band
    """The same until the last matrix product of the backward begins: prefetching too late."""
    emptying_ns: Band
    """The same after that."""
    copies_ns: Band
    """Kernels that only copy, in line with computing."""
    communication_ns: Band
    """All communication, hidden or not."""

    def to_dict(self) -> dict[str, Any]:
        """Return the object of JSON."""
        return asdict(self)


def sharding_times(activities: Activities, where: Flags | None = None) -> list[ShardingTimes]:
    """Return where each device loses time to communication of its iterations.

    Iterations without a matrix product in both the forward and the backward are left out, and
    devices without any other.
    """
    chosen = in_iterations(activities) if where is None else where
    found = []
    for rows in device_slices(activities):
        columns = _iterations(activities, rows, np.flatnonzero(chosen[rows]))
        spreads: dict[str, Any] = {n: band(column, PS_PER_NS) for n, column in columns.items()}
        if all(spreads.values()):
            rank, device = int(activities.rank[rows.start]), int(activities.device[rows.start])
            found.append(ShardingTimes(rank=rank, device=device, **spreads))
    return found


def _iterations(activities: Activities, rows: slice, chosen: Ints) -> dict[str, Ints]:
    """Return the columns of `ShardingTimes`, a row an iteration of the device."""
    start, end = activities.start_ps[rows], activities.end_ps[rows]
    computing, communicating = (activities.klass[rows] == k for k in (COMPUTE, COMMUNICATION))
    exposed = difference(
        union(start[communicating], end[communicating]), union(start[computing], end[computing])
    )
    same = group(activities.iteration[rows][chosen])
    product = activities.type[rows] == GEMM
    forward, backward = (
        (product & (activities.phase[rows] == p))[chosen] for p in (FORWARD, BACKWARD)
    )
    start, end = start[chosen], end[chosen]
    both = (same.sums(forward) > 0) & (same.sums(backward) > 0)
    borders = [
        same.least(start),
        same.least(np.where(forward, end, end.max(initial=0))),
        same.most(np.where(backward, start, start.min(initial=0))),
        same.most(end),
    ]
    # Communication that runs on into the next iteration is exposed in this one.
    parts = [
        cover(begin, np.maximum(begin, finish), exposed)[both]
        for begin, finish in itertools.pairwise(borders)
    ]
    copying = computing & (activities.type[rows] == MOVE)
    return dict(zip(("filling_ns", "between_ns", "emptying_ns"), parts, strict=True)) | {
        "copies_ns": same.sums(np.where(copying[chosen], end - start, 0))[both],
        "communication_ns": same.sums(np.where(communicating[chosen], end - start, 0))[both],
    }
