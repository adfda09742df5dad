"""Iterations of each device, and the throughput that the slowest one leaves."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from projector.arrays import Flags, Ints
from projector.errors import ConfigError
from projector.trace.activity import COMMUNICATION, COMPUTE, MEMCPY, Activities
from projector.trace.intervals import Intervals, cover, union, unions
from projector.trace.measures.devices import device_slices, in_iterations
from projector.trace.measures.numbers import Band, Groups, band, group, to_ns
from projector.trace.measures.times import KernelTimes, kernel_times

MOST_TOKENS = 1e18
"""Tokens of an iteration; more are a slip of the keyboard, and their rates no numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationTimes:
    """One iteration of one device of one rank.

    An activity belongs to the iteration that launched it, also where it runs on into the next one.
    """

    rank: int
    device: int
    iteration: int
    """-1 where the trace has none: then all of it is one."""
    start_ns: float
    """Of its first activity."""
    span_ns: float
    """To the end of its last activity."""
    idle_ns: float
    """What of the span nothing of the device runs in."""
    kernel_ns: float
    """Kernels that compute, added up."""
    compute_ns: float
    """While any of them runs."""
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

    def to_dict(self) -> dict[str, Any]:
        """Return the object of JSON."""
        return asdict(self) | {"duration_ns": self.duration_ns}


def iteration_times(
    activities: Activities, times: KernelTimes | None = None, where: Flags | None = None
) -> list[IterationTimes]:
    """Return the iterations of each device, in the order of devices and numbers.

    Parameters
    ----------
    activities : Activities
    times : KernelTimes, optional
        Those of the whole table, where they are at hand.
    where : bool[activities], optional
        What is looked at; by default all iterations, or everything where there are none. What
        covers an activity counts, chosen or not.
    """
    times = kernel_times(activities) if times is None else times
    rows = np.flatnonzero(in_iterations(activities) if where is None else where)
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
        "kernel_ns": same.sums(_computing(activities, times.duration_ps)[rows]),
        "launch_ns": same.sums(times.bubble_ps[rows]),
        "preparation_ns": same.sums(times.preparation_ps[rows]),
        "call_ns": same.sums(times.call_ps[rows]),
    } | exposed
    plain = [
        [to_ns(value) if name.endswith("_ns") else value for value in column.tolist()]
        for name, column in columns.items()
    ]
    return [
        IterationTimes(**dict(zip(columns, values, strict=True)))
        for values in zip(*plain, strict=True)
    ]


def _computing(activities: Activities, values: Ints) -> Ints:
    return np.where(activities.klass == COMPUTE, values, 0)


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
    """Return how long anything of the device runs between two times of each iteration."""
    busy = np.zeros(same.count, np.int64)
    for (rank, device), everything in _by_device(activities, np.ones(len(activities), bool)):
        mine = (same.keys[0] == rank) & (same.keys[1] == device)
        busy[mine] = cover(start[mine], end[mine], everything)
    return busy


def _by_device(activities: Activities, which: Flags) -> list[tuple[tuple[int, int], Intervals]]:
    """Return when any of some activities runs, for each device."""
    return [
        (
            (int(activities.rank[rows.start]), int(activities.device[rows.start])),
            union(activities.start_ps[rows][which[rows]], activities.end_ps[rows][which[rows]]),
        )
        for rows in device_slices(activities)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Tokens a second that the slowest device of each iteration leaves."""

    tokens: float
    """Of one iteration of the whole job."""
    iteration_ns: Band
    """The longest duration (computing and launch overhead) of any device, over iterations."""
    tokens_per_s: Band
    slowest: dict[int, int]
    """In how many iterations each rank was the slowest; ranks that never were are left out."""

    def to_dict(self) -> dict[str, Any]:
        """Return the object of JSON."""
        return {
            "tokens": self.tokens,
            "iteration_ns": self.iteration_ns.to_dict(),
            "tokens_per_s": self.tokens_per_s.to_dict(),
            "slowest": [{"rank": r, "iterations": n} for r, n in sorted(self.slowest.items())],
        }


def throughput(iterations: Sequence[IterationTimes], tokens: float) -> Throughput | None:
    """Return the throughput by the slowest device, as figure 4 of Chopper has it.

    Parameters
    ----------
    iterations : sequence of IterationTimes
        Of all ranks.
    tokens : float
        Of one iteration of the whole job.

    Returns
    -------
    Throughput or None
        None where nothing takes any time.
    """
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
    spread, rates = band(longest_ns), band(tokens / (longest_ns / 1e9))
    if spread is None or rates is None:
        return None
    ranks = [each.rank for each in slowest.values() if each.duration_ns > 0]
    return Throughput(
        tokens=tokens,
        iteration_ns=spread,
        tokens_per_s=rates,
        slowest={rank: ranks.count(rank) for rank in ranks},
    )
