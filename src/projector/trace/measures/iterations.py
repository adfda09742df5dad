"""Where the time of devices goes: over all, in each iteration and its throughput, and in gaps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.arrays import Flags, Ints
from projector.errors import ConfigError
from projector.trace.activity import COMMUNICATION, COMPUTE, MEMCPY, PHASES, Activities
from projector.trace.events import COPY, FILL, KERNEL, NONE, NS_PS, OPERATOR
from projector.trace.groups import Groups, group
from projector.trace.intervals import Intervals, cover, union, unions
from projector.trace.measures import statistics
from projector.trace.measures.times import KernelTimes, kernel_times

MOST_TOKENS = 1e18
"""Tokens of an iteration; more are a slip of the keyboard, and their rates no numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationTimes(statistics.Measured):
    """One iteration of one device of one rank.

    An activity belongs to the iteration that launched it, also where it runs on into the next one.
    """

    also = ("duration_ns",)

    rank: int
    device: int
    iteration: int
    """-1 where the trace has none: then all of it is one."""
    start_ns: float
    """When its first activity starts."""
    span_ns: float
    """From its first activity to the end of its last."""
    idle_ns: float
    """What of the span nothing of the device runs in."""
    kernel_ns: float
    """Kernels that compute, added up."""
    compute_ns: float
    """While any kernel of it computes."""
    launch_ns: float
    """Bubbles before them."""
    preparation_ns: float
    call_ns: float
    communication_ns: float
    """While any of its communication runs."""
    exposed_communication_ns: float
    """What of that nothing of the device computes in."""
    memcpy_ns: float
    exposed_memcpy_ns: float
    """What of its copies nothing of the device computes or communicates in."""

    @property
    def duration_ns(self) -> float:
        """Computing and launch overhead: what throughput is made of."""
        return self.compute_ns + self.launch_ns


def iteration_times(
    activities: Activities, times: KernelTimes | None = None, where: Flags | None = None
) -> list[IterationTimes]:
    """Return the iterations of each device, in the order of devices and numbers.

    All iterations are looked at unless `where` chooses, or everything where there are none. What
    covers an activity counts, chosen or not.
    """
    times = kernel_times(activities) if times is None else times
    rows = np.flatnonzero(statistics.in_iterations(activities) if where is None else where)
    same = group(activities.rank[rows], activities.device[rows], activities.iteration[rows])
    start, end = same.least(activities.start_ps[rows]), same.most(activities.end_ps[rows])
    exposed = _exposed(activities, rows, same)
    columns = {
        "rank": same.keys[0],
        "device": same.keys[1],
        "iteration": same.keys[2],
        "start_ns": start,
        "span_ns": end - start,
        "idle_ns": end - start - _busy(activities, same, start, end),
        "kernel_ns": same.sums(np.where(activities.klass == COMPUTE, times.duration_ps, 0)[rows]),
        "launch_ns": same.sums(times.bubble_ps[rows]),
        "preparation_ns": same.sums(times.preparation_ps[rows]),
        "call_ns": same.sums(times.call_ps[rows]),
    } | exposed
    return [IterationTimes(**row) for row in _rows(columns)]


def _rows(columns: Mapping[str, Ints]) -> Iterator[dict[str, Any]]:
    """Yield rows of columns by name, times in ns."""
    plain = [
        [statistics.to_ns(value) if name.endswith("_ns") else value for value in column.tolist()]
        for name, column in columns.items()
    ]
    for values in zip(*plain, strict=True):
        yield dict(zip(columns, values, strict=True))


def _exposed(activities: Activities, rows: Ints, same: Groups) -> dict[str, Ints]:
    """Return what each class takes of each iteration, and what nothing above it hides."""
    found = {}
    names = {COMPUTE: "compute", COMMUNICATION: "communication", MEMCPY: "memcpy"}
    for klass, name in names.items():
        own = activities.klass[rows] == klass
        chosen = rows[own]
        sets, segment = unions(activities.start_ps[chosen], activities.end_ps[chosen], same.of[own])
        whole = np.zeros(same.count, np.int64)
        np.add.at(whole, segment, sets.end - sets.start)
        found[f"{name}_ns"] = whole
        if klass == COMPUTE:
            continue
        hidden = np.zeros(same.count, np.int64)
        for device, above in _by_device(activities, np.asarray(activities.klass < klass)):
            inside = (same.keys[0][segment] == device[0]) & (same.keys[1][segment] == device[1])
            covers = cover(sets.start[inside], sets.end[inside], above)
            np.add.at(hidden, segment[inside], covers)
        found[f"exposed_{name}_ns"] = whole - hidden
    return found


def _busy(activities: Activities, same: Groups, start: Ints, end: Ints) -> Ints:
    busy = np.zeros(same.count, np.int64)
    for (rank, device), everything in _by_device(activities, np.ones(len(activities), bool)):
        mine = (same.keys[0] == rank) & (same.keys[1] == device)
        busy[mine] = cover(start[mine], end[mine], everything)
    return busy


def _by_device(activities: Activities, which: Flags) -> list[tuple[tuple[int, int], Intervals]]:
    return [
        (
            (int(activities.rank[rows.start]), int(activities.device[rows.start])),
            union(activities.start_ps[rows][which[rows]], activities.end_ps[rows][which[rows]]),
        )
        for rows in statistics.device_slices(activities)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput(statistics.Measured):
    """Tokens a second that the slowest device of each iteration leaves."""

    tokens: float
    """Tokens of one iteration of the whole job."""
    iteration_ns: statistics.Band
    """The longest duration (computing and launch overhead) of any device, over iterations."""
    tokens_per_s: statistics.Band
    slowest: dict[int, int]
    """In how many iterations each rank was the slowest; ranks that never were are left out."""

    def to_dict(self) -> dict[str, Any]:
        """Return the object of JSON."""
        rows = [{"rank": r, "iterations": n} for r, n in sorted(self.slowest.items())]
        return statistics.Measured.to_dict(self) | {"slowest": rows}


def throughput(iterations: Sequence[IterationTimes], tokens: float) -> Throughput | None:
    """Return the throughput by the slowest device (Chopper, figure 4); None without time."""
    if not 0 < tokens <= MOST_TOKENS:
        msg = f"tokens: an iteration has a positive number of tokens, not {tokens}"
        msg += f"; {MOST_TOKENS:g} at most" if tokens > MOST_TOKENS else ""
        raise ConfigError(
            msg, key="tokens", value=tokens, allowed=f"a positive number up to {MOST_TOKENS:g}"
        )
    slowest: dict[int, IterationTimes] = {}
    for each in iterations:
        longest = slowest.get(each.iteration)
        if longest is None or each.duration_ns > longest.duration_ns:
            slowest[each.iteration] = each
    longest_ns = np.array([each.duration_ns for each in slowest.values() if each.duration_ns > 0])
    spread, rates = statistics.band(longest_ns), statistics.band(tokens / (longest_ns / 1e9))
    if spread is None or rates is None:
        return None
    ranks = [each.rank for each in slowest.values() if each.duration_ns > 0]
    return Throughput(
        tokens=tokens,
        iteration_ns=spread,
        tokens_per_s=rates,
        slowest={rank: ranks.count(rank) for rank in ranks},
    )


MOST_GAPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap(statistics.Measured):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleTimes(statistics.Measured):
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
    gap_ns: statistics.Band | None
    """Spread of the lengths of gaps; None without any."""
    longest: tuple[Gap, ...]


def idle_times(activities: Activities, most: int = MOST_GAPS) -> list[IdleTimes]:
    """Return the gaps of each device between its first and last activity, the longest singly."""
    return [_idle_times(activities, rows, most) for rows in statistics.device_slices(activities)]


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
    # A row that ends where the gap begins, or the last before that.
    order = np.argsort(end, kind="stable")
    ending = np.maximum(np.searchsorted(end[order], begins, side="right") - 1, 0)
    before = rows.start + order[ending]
    launch = activities.launch_ps[after]
    late = np.where(launch == NONE, -1, np.clip(launch - begins, 0, ends - begins))
    length = ends - begins
    known = late >= 0
    order = np.argsort(-length, kind="stable")[:most]
    return IdleTimes(
        rank=int(activities.rank[rows.start]),
        device=int(activities.device[rows.start]),
        idle_ns=statistics.to_ns(int(length.sum())),
        gaps=len(length),
        late_ns=statistics.to_ns(int(late[known].sum())),
        called_ns=statistics.to_ns(int((length - late)[known].sum())),
        unknown_ns=statistics.to_ns(int(length[~known].sum())),
        gap_ns=statistics.band(length, NS_PS),
        longest=tuple(
            _gap(activities, int(begins[g]), int(length[g]), int(late[g]), (before[g], after[g]))
            for g in order.tolist()
        ),
    )


def _gap(activities: Activities, start: int, length: int, late: int, rows: tuple[int, int]) -> Gap:
    before, after = rows
    return Gap(
        start_ns=statistics.to_ns(start),
        duration_ns=statistics.to_ns(length),
        late_ns=statistics.to_ns(late) if late >= 0 else None,
        before=activities.names[activities.name[before]],
        after=activities.names[activities.name[after]],
        iteration=int(activities.iteration[after]),
        phase=PHASES[activities.phase[after]],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSummary(statistics.Measured):
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


def rank_summaries(activities: Activities) -> list[RankSummary]:
    """Return where the time of each device of each rank went, in the order of the table."""
    kind, rows = activities.kind, np.arange(len(activities))
    same = group(activities.rank, activities.device)
    start, end = same.least(activities.start_ps), same.most(activities.end_ps)
    busy = _busy(activities, same, start, end)
    columns = {
        "rank": same.keys[0],
        "device": same.keys[1],
        "span_ns": end - start,
        "busy_ns": busy,
        "idle_ns": end - start - busy,
        "kernels": same.sums((kind == KERNEL) | (kind == OPERATOR)),
        "copies": same.sums(kind == COPY),
        "fills": same.sums(kind == FILL),
        "operators": same.sums(kind == OPERATOR),
    } | _exposed(activities, rows, same)
    return [RankSummary(**row) for row in _rows(columns)]
