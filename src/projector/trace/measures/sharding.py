"""Where sharded data parallelism (FSDP, ZeRO) loses time in an iteration.

Sections V-D and II-B of Chopper (Kurzynski, Aga, Wu): an iteration first fills a pipeline of
all-gathers and at its end empties one of reduce-scatters; per-parameter sharding (FSDP 2) copies
around collectives in line with computing.
"""

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
from projector.trace.measures.numbers import PS_PER_NS, Band, band


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
        parts = _iterations(activities, rows, chosen)
        if not parts:
            continue
        columns = np.array(parts) / PS_PER_NS
        spreads = [band(column) for column in columns.T]
        filling, between, emptying, copies, communication = (s for s in spreads if s is not None)
        found.append(
            ShardingTimes(
                rank=int(activities.rank[rows.start]),
                device=int(activities.device[rows.start]),
                filling_ns=filling,
                between_ns=between,
                emptying_ns=emptying,
                copies_ns=copies,
                communication_ns=communication,
            )
        )
    return found


def _iterations(activities: Activities, rows: slice, chosen: Flags) -> list[tuple[int, ...]]:
    start, end = activities.start_ps[rows], activities.end_ps[rows]
    klass, kind = activities.klass[rows], activities.type[rows]
    phase, iteration = activities.phase[rows], activities.iteration[rows]
    computing, communicating = klass == COMPUTE, klass == COMMUNICATION
    exposed = difference(
        union(start[communicating], end[communicating]), union(start[computing], end[computing])
    )
    found = []
    for number in np.unique(iteration[chosen[rows]]):
        mine = (iteration == number) & chosen[rows]
        product = mine & (kind == GEMM)
        forward, backward = product & (phase == FORWARD), product & (phase == BACKWARD)
        if not forward.any() or not backward.any():
            continue
        own = mine & communicating
        borders = np.array([
            start[mine].min(), end[forward].min(), start[backward].max(), end[mine].max(),
        ])  # fmt: skip
        # Communication that runs on into the next iteration is exposed in this one.
        parts = cover(borders[:-1], np.maximum(borders[1:], borders[:-1]), exposed)
        copied = _length(end - start, mine & computing & (kind == MOVE))
        found.append((*parts.tolist(), copied, _length(end - start, own)))
    return found


def _length(duration: Ints, which: Flags) -> int:
    return int(duration[which].sum())
