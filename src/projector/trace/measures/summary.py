"""Where the time of each device went: computing, communicating, copying, or idle."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from projector.trace.activity import COMMUNICATION, COMPUTE, MEMCPY, Activities
from projector.trace.events import COPY, FILL, KERNEL, OPERATOR
from projector.trace.intervals import Intervals, difference, union
from projector.trace.measures.devices import device_slices
from projector.trace.measures.numbers import to_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSummary:
    """The time of one device of one rank.

    ``compute + exposed_communication + exposed_memcpy + idle = span``, and all but the last are
    ``busy``. Times that run at once on several streams count once.
    """

    rank: int
    device: int
    span_ns: float
    """From the start of the first activity to the end of the last."""
    busy_ns: float
    """While anything runs."""
    idle_ns: float
    compute_ns: float
    communication_ns: float
    exposed_communication_ns: float
    """Communication while nothing computes."""
    memcpy_ns: float
    exposed_memcpy_ns: float
    """Copies while nothing computes nor communicates."""
    kernels: int
    """Of a trace without devices the operators of the host that stand for them."""
    copies: int
    fills: int
    operators: int
    """How many of `kernels` are operators of the host."""

    def to_dict(self) -> dict[str, Any]:
        """Return the object of JSON."""
        return asdict(self)


def rank_summaries(activities: Activities) -> list[RankSummary]:
    """Return where the time of each device of each rank went, in the order of the table."""
    return [_summary(activities, rows) for rows in device_slices(activities)]


def _summary(activities: Activities, rows: slice) -> RankSummary:
    start, end = activities.start_ps[rows], activities.end_ps[rows]
    klass, kind = activities.klass[rows], activities.kind[rows]

    def of(which: int) -> Intervals:
        chosen = klass == which
        return union(start[chosen], end[chosen])

    compute, communication, memcpy = of(COMPUTE), of(COMMUNICATION), of(MEMCPY)
    kernels_running = union(start[klass != MEMCPY], end[klass != MEMCPY])
    busy = union(start, end).length_ps
    span = int(end.max() - start.min())
    return RankSummary(
        rank=int(activities.rank[rows.start]),
        device=int(activities.device[rows.start]),
        span_ns=to_ns(span),
        busy_ns=to_ns(busy),
        idle_ns=to_ns(span - busy),
        compute_ns=to_ns(compute.length_ps),
        communication_ns=to_ns(communication.length_ps),
        exposed_communication_ns=to_ns(difference(communication, compute).length_ps),
        memcpy_ns=to_ns(memcpy.length_ps),
        exposed_memcpy_ns=to_ns(difference(memcpy, kernels_running).length_ps),
        kernels=int(np.count_nonzero((kind == KERNEL) | (kind == OPERATOR))),
        copies=int(np.count_nonzero(kind == COPY)),
        fills=int(np.count_nonzero(kind == FILL)),
        operators=int(np.count_nonzero(kind == OPERATOR)),
    )
