"""Gaps in which nothing of a device runs, and whether the host was late."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from projector.arrays import Ints
from projector.trace.activity import PHASES, Activities
from projector.trace.events import NONE
from projector.trace.intervals import union
from projector.trace.measures.devices import device_slices
from projector.trace.measures.numbers import PS_PER_NS, Band, band, to_ns

MOST_GAPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One gap."""

    start_ns: float
    duration_ns: float
    late_ns: float | None
    """What of it passed before the host launched the activity behind it; None if unknown."""
    before: str
    """Name of the activity that ends where it begins."""
    after: str
    iteration: int
    """Of the activity behind it, -1 outside iterations."""
    phase: str

    def to_dict(self) -> dict[str, Any]:
        """Return the object of JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleTimes:
    """The gaps of one device of one rank."""

    rank: int
    device: int
    idle_ns: float
    gaps: int
    late_ns: float
    """What of them passed before the host launched what came next."""
    called_ns: float
    """What passed after that, while the launch was under way or waited for something."""
    unknown_ns: float
    """What lies before activities whose launch is not in the trace."""
    gap_ns: Band | None
    """Of one gap; None without any."""
    longest: tuple[Gap, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the object of JSON."""
        return asdict(self) | {"longest": [gap.to_dict() for gap in self.longest]}


def idle_times(activities: Activities, most: int = MOST_GAPS) -> list[IdleTimes]:
    """Return the gaps of each device of each rank, between its first and last activity.

    Parameters
    ----------
    activities : Activities
    most : int
        Number of gaps that are told one by one, the longest first.
    """
    return [_idle_times(activities, rows, most) for rows in device_slices(activities)]


def _idle_times(activities: Activities, rows: slice, most: int) -> IdleTimes:
    start, end = activities.start_ps[rows], activities.end_ps[rows]
    # An empty activity within a gap parts it nowhere: unions leave it out.
    busy = union(start, end)
    first, last = (int(start.min()), int(end.max())) if len(start) else (0, 0)
    begins = np.concatenate([[first], busy.end])
    ends = np.concatenate([busy.start, [last]])
    kept = ends > begins
    begins, ends = begins[kept], ends[kept]
    after = rows.start + np.minimum(np.searchsorted(start, ends), len(start) - 1)
    before = rows.start + _ending(end, begins)
    launch = activities.launch_ps[after]
    late = np.where(launch == NONE, -1, np.clip(launch - begins, 0, ends - begins))
    length = ends - begins
    known = late >= 0
    order = np.argsort(-length, kind="stable")[:most]
    return IdleTimes(
        rank=int(activities.rank[rows.start]),
        device=int(activities.device[rows.start]),
        idle_ns=to_ns(int(length.sum())),
        gaps=len(length),
        late_ns=to_ns(int(late[known].sum())),
        called_ns=to_ns(int((length - late)[known].sum())),
        unknown_ns=to_ns(int(length[~known].sum())),
        gap_ns=band(length, PS_PER_NS),
        longest=tuple(
            _gap(activities, int(begins[g]), int(length[g]), int(late[g]), (before[g], after[g]))
            for g in order.tolist()
        ),
    )


def _ending(end: Ints, times: Ints) -> Ints:
    """Return a row that ends at each time, or the last before it."""
    order = np.argsort(end, kind="stable")
    return order[np.maximum(np.searchsorted(end[order], times, side="right") - 1, 0)]


def _gap(activities: Activities, start: int, length: int, late: int, rows: tuple[int, int]) -> Gap:
    before, after = rows
    return Gap(
        start_ns=to_ns(start),
        duration_ns=to_ns(length),
        late_ns=to_ns(late) if late >= 0 else None,
        before=activities.names[activities.name[before]],
        after=activities.names[activities.name[after]],
        iteration=int(activities.iteration[after]),
        phase=PHASES[activities.phase[after]],
    )
