"""Collectives and ranks: what each takes, what is exposed, who comes late and who waits.

The same collective of several ranks is recognised by its group, its name and its place among those
of the iteration. Its kernels wait for the rank that comes last and then transfer together. So the
shortest of them is the transfer, and what another takes longer it waited (if clocks agree, they end
together). Figure 6 of Chopper (Kurzynski, Aga, Wu) shows both without telling them apart.

Sharded data parallelism (FSDP, ZeRO) loses time in an iteration as sections V-D and II-B of Chopper
have it: an iteration first fills a pipeline of all-gathers and at its end empties one of
reduce-scatters; per-parameter sharding (FSDP 2) copies around collectives in line with computing.
"""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.trace import activity as act
from projector.trace.events import NS_PS
from projector.trace.groups import Groups, group, parts, places_within
from projector.trace.intervals import cover, difference, union
from projector.trace.measures import statistics
from projector.trace.measures.iterations import IterationTimes, iteration_times
from projector.trace.measures.statistics import Band, band, spreads
from projector.trace.measures.times import KernelTimes, kernel_times


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """Communication kernels, and which of them are one collective of several ranks."""

    row: Ints
    """int64[kernels]: rows of the table."""
    label: Ints
    """int64[kernels]: row of `labels`."""
    labels: tuple[str, ...]
    collective: Groups
    """Kernels that are one collective; of some, only one rank is in the trace."""
    alike: Flags
    """bool[kernels]: whether all ranks of its group have as many collectives like it."""
    ranks: Ints
    """int64[kernels]: how many ranks the kernel's collective has in the trace."""
    transfer_ps: Ints
    """int64[kernels]: the shortest kernel of the collective."""
    late_ps: Ints
    """int64[kernels]: how long after the first rank it began, on the common clock."""


def matches(activities: act.Activities, where: Flags | None = None) -> Matches:
    """Return communication kernels with the collectives that they are of.

    If the ranks of a group have different numbers of a collective in an iteration, which is which
    is not known, and each kernel stands for itself. So it is with kernels of an unknown group.
    """
    chosen = statistics.in_iterations(activities) if where is None else where
    row = np.flatnonzero(chosen & (activities.klass == act.COMMUNICATION))
    labels, label = _labels(activities, row)
    rank, start = activities.rank[row], activities.start_ps[row]
    kinds = group(activities.group[row], label, activities.iteration[row])
    place = places_within(group(kinds.of, rank, activities.device[row]).of, start)
    # Whether all ranks that have a kind of collective have as many of it.
    each = group(kinds.of, rank)
    sizes = each.sizes()
    of_kind = Groups(each.keys[0], (), kinds.first)
    alike = np.asarray(of_kind.least(sizes) == of_kind.most(sizes))[kinds.of]
    alone = np.where(alike & (activities.group[row] >= 0), -1, np.arange(len(row)))
    collective = group(kinds.of, place, alone)
    duration = activities.end_ps[row] - start
    return Matches(
        row=row,
        label=label,
        labels=labels,
        collective=collective,
        alike=alike,
        ranks=collective.sizes()[collective.of],
        transfer_ps=collective.least(duration)[collective.of],
        late_ps=start - collective.least(start)[collective.of],
    )


def _labels(activities: act.Activities, row: Ints) -> tuple[tuple[str, ...], Ints]:
    """Return names of collectives, and the name of each row: its kernel's where it has none."""
    pairs = group(activities.detail[row], activities.name[row])
    words = [
        str(
            (detail >= 0 and activities.details[detail].get("collective")) or activities.names[name]
        )
        for detail, name in zip(*(key.tolist() for key in pairs.keys), strict=True)
    ]
    labels = tuple(sorted(set(words)))
    place = np.array([labels.index(word) for word in words], np.int64)
    return labels, place[pairs.of] if len(row) else np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationRow(statistics.Measured):
    """One kind of collective of one group."""

    collective: str
    group: str
    """Empty where it is not known."""
    kernels: int
    bytes: int | None
    """Of one kernel, the median; None where none is known."""
    kernel_ns: Band
    """Duration of one kernel."""
    iteration_ns: Band
    """Its kernels of one iteration of a device, added up."""
    exposed_ns: Band
    """As `iteration_ns`, but only while nothing computes."""
    transfer_ns: Band | None
    """The shortest kernel of each collective; None where no other rank is in the trace."""
    waiting: float | None
    """Share of the kernels' time that they waited for the last rank; None likewise."""
    bytes_per_s: float | None
    """Buffer over transfer where that is known, else over the kernel; None without bytes."""


def communication_rows(
    activities: act.Activities, times: KernelTimes | None = None, where: Flags | None = None
) -> list[CommunicationRow]:
    """Return every kind of collective of every group, the longest in total first."""
    times = kernel_times(activities) if times is None else times
    found = matches(activities, where)
    kinds = group(activities.group[found.row], found.label)
    duration = times.duration_ps[found.row]
    order = np.argsort(-kinds.sums(duration), kind="stable").tolist()
    members = np.split(np.argsort(kinds.of, kind="stable"), np.cumsum(kinds.sizes())[:-1])
    return [_row(activities, times, found, members[kind]) for kind in order]


def _row(
    activities: act.Activities, times: KernelTimes, found: Matches, members: Ints
) -> CommunicationRow:
    row = found.row[members]
    duration = times.duration_ps[row]
    samples = group(activities.rank[row], activities.device[row], activities.iteration[row])
    several = found.ranks[members] > 1
    moved = activities.bytes[row]
    known = moved >= 0
    taken = np.where(several, found.transfer_ps[members], duration)[known]
    transfer = group(found.collective.of[members][several]).first
    whose = int(activities.group[row[0]])
    return CommunicationRow(
        collective=found.labels[found.label[members[0]]],
        group=activities.groups[whose] if whose >= 0 else "",
        kernels=len(members),
        bytes=int(np.median(moved[known])) if known.any() else None,
        kernel_ns=_band(duration),
        iteration_ns=_band(samples.sums(duration)),
        exposed_ns=_band(samples.sums(duration - times.under_compute_ps[row])),
        transfer_ns=band(found.transfer_ps[members][several][transfer], NS_PS),
        waiting=statistics.ratio(
            (duration - found.transfer_ps[members])[several].sum(), duration[several].sum()
        ),
        bytes_per_s=statistics.ratio(float(moved[known].sum()) * 1e12, taken.sum()),
    )


def _band(values_ps: Ints) -> Band:
    found = band(values_ps, NS_PS)
    assert found is not None  # every kind has a kernel
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingTimes(statistics.Measured):
    """Exposed communication and copies of the iterations of one device."""

    rank: int
    device: int
    filling_ns: Band
    """Communication that nothing hides, before the first matrix product of the forward ends."""
    between_ns: Band
    """The same until the last matrix product of the backward begins: prefetching too late."""
    emptying_ns: Band
    """Communication that nothing hides after that product has begun."""
    copies_ns: Band
    """Kernels that only copy, in line with computing."""
    communication_ns: Band
    """All communication, hidden or not."""


def sharding_times(activities: act.Activities, where: Flags | None = None) -> list[ShardingTimes]:
    """Return where each device loses time to communication of its iterations.

    Iterations without a matrix product in both the forward and the backward are left out, and
    devices without any other.
    """
    chosen = statistics.in_iterations(activities) if where is None else where
    found = []
    for rows in statistics.device_slices(activities):
        columns = _iterations(activities, rows, np.flatnonzero(chosen[rows]))
        spreads: dict[str, Any] = {n: band(column, NS_PS) for n, column in columns.items()}
        if all(spreads.values()):
            rank, device = int(activities.rank[rows.start]), int(activities.device[rows.start])
            found.append(ShardingTimes(rank=rank, device=device, **spreads))
    return found


def _iterations(activities: act.Activities, rows: slice, chosen: Ints) -> dict[str, Ints]:
    """Return the columns of `ShardingTimes`, a row an iteration of the device."""
    start, end = activities.start_ps[rows], activities.end_ps[rows]
    computing, communicating = (
        activities.klass[rows] == k for k in (act.COMPUTE, act.COMMUNICATION)
    )
    exposed = difference(
        union(start[communicating], end[communicating]), union(start[computing], end[computing])
    )
    same = group(activities.iteration[rows][chosen])
    product = activities.type[rows] == act.GEMM
    forward, backward = (
        (product & (activities.phase[rows] == p))[chosen] for p in (act.FORWARD, act.BACKWARD)
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
    copying = computing & (activities.type[rows] == act.MOVE)
    return dict(zip(("filling_ns", "between_ns", "emptying_ns"), parts, strict=True)) | {
        "copies_ns": same.sums(np.where(copying[chosen], end - start, 0))[both],
        "communication_ns": same.sums(np.where(communicating[chosen], end - start, 0))[both],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler(statistics.Measured):
    """How one device of a rank stands to the others."""

    rank: int
    device: int
    compute_ns: Band
    """While it computes, in an iteration. Launch overhead would hide who is slow: those that wait
    for others have bubbles instead."""
    relative: float | None
    """Its median over the median of all devices."""
    slowest: int
    """Iterations in which no other device computes longer."""
    waiting_ns: Band | None
    """What it waits for others in the collectives of an iteration; None without other ranks."""
    waiting_unknown: str | None
    """Why `waiting_ns` is None; None where it is known."""
    late_ns: Band | None
    """How long after the first rank it enters a collective; None likewise."""
    last: float | None
    """Share of the collectives that it enters last, and of no others; None likewise."""
    cost_ns: float | None
    """By how much an iteration would be shorter, the median, if it had computed as long as the
    median of the others: the longest computing less what would be the longest then. An upper
    bound where computing is not on the critical path; None for a device alone."""


def stragglers(
    activities: act.Activities,
    times: KernelTimes | None = None,
    where: Flags | None = None,
    iterations: Sequence[IterationTimes] | None = None,
) -> list[Straggler]:
    """Return how devices stand to others; ``times`` and ``iterations`` spare working them out."""
    times = kernel_times(activities) if times is None else times
    iterations = iteration_times(activities, times, where) if iterations is None else iterations
    devices = sorted({(each.rank, each.device) for each in iterations})
    of = {d: [e for e in iterations if (e.rank, e.device) == d] for d in devices}
    computing = {d: [each.compute_ns for each in own] for d, own in of.items()}
    medians = {d: float(np.median(own)) for d, own in computing.items()}
    middle = float(np.median(list(medians.values()))) if medians else 0.0
    alone = len({device[0] for device in devices}) < 2
    longest: dict[int, float] = {}
    for each in iterations:
        longest[each.iteration] = max(longest.get(each.iteration, 0.0), each.compute_ns)
    found = matches(activities, where)
    # Whether each kernel is the one of its collective that begins last.
    start = activities.start_ps[found.row]
    latest = start == found.collective.most(start)[found.collective.of]
    last = np.asarray(latest & (found.collective.sums(latest)[found.collective.of] == 1))
    costs = _costs(iterations)
    rows = []
    for device in devices:
        spread = band(computing[device])
        assert spread is not None  # the device has an iteration
        rows.append(
            Straggler(
                rank=device[0],
                device=device[1],
                compute_ns=spread,
                relative=statistics.ratio(medians[device], middle),
                slowest=sum(each.compute_ns >= longest[each.iteration] for each in of[device]),
                cost_ns=float(np.median(costs[device])) if device in costs else None,
                **_in_collectives(activities, times, found, last, device, alone=alone),
            )
        )
    return rows


def _costs(iterations: Sequence[IterationTimes]) -> dict[tuple[int, int], list[float]]:
    """Return, by device, what each iteration would lose with it at the median of its peers."""
    costs: dict[tuple[int, int], list[float]] = defaultdict(list)
    together: dict[int, list[IterationTimes]] = defaultdict(list)
    for each in iterations:
        together[each.iteration].append(each)
    for several in together.values():
        computing = np.array([each.compute_ns for each in several])
        for place, each in enumerate(several) if len(several) > 1 else ():
            # What is late is no measure of itself: of two ranks it would be half of it.
            peers = np.delete(computing, place)
            instead = min(computing[place], float(np.median(peers)))
            costs[each.rank, each.device].append(float(computing.max() - max(*peers, instead)))
    return costs


def _in_collectives(
    activities: act.Activities, times: KernelTimes, found: Matches, last: Flags,
    device: tuple[int, int], *, alone: bool,
) -> dict[str, Any]:  # fmt: skip
    own = (activities.rank[found.row] == device[0]) & (activities.device[found.row] == device[1])
    mine = own & (found.ranks > 1)
    row = found.row[mine]
    waited = times.duration_ps[row] - found.transfer_ps[mine]
    per_iteration = group(activities.iteration[row]).sums(waited)
    why = "" if len(row) else _ALONE if alone else _why_unknown(activities, found, own)
    return {
        "waiting_ns": band(per_iteration, NS_PS),
        "waiting_unknown": why or None,
        "late_ns": band(found.late_ps[mine], NS_PS),
        "last": float(last[mine].mean()) if len(row) else None,
    }


_ALONE = "no other rank is in the trace"


def _why_unknown(activities: act.Activities, found: Matches, own: Flags) -> str:
    """Return why none of a device's kernels is of a collective of several ranks."""
    no_group = activities.group[found.row[own]] < 0
    uneven = ~no_group & ~found.alike[own]
    reasons = {
        "no rank communicates in an iteration": not len(found.row),
        "it does not communicate in an iteration, other ranks do": len(found.row) and not own.any(),
        "the trace does not tell the groups of its collectives": no_group.any(),
        "ranks of its groups differ in the number of a collective": uneven.any(),
        "no other rank of its groups is in the trace": (~no_group & ~uneven).any(),
    }
    return "; ".join(reason for reason, holds in reasons.items() if holds)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpread(statistics.Measured):
    """How far ranks lie apart in one operation."""

    operation: str
    phase: str
    ranks: int
    median_ns: float
    """Over devices, of their medians over iterations."""
    spread: float | None
    """The slowest device's median over the fastest one's; None where that takes no time."""
    slowest: int
    """Rank of the slowest device."""
    fastest: int
    per_rank_ns: list[float]
    """The medians, in the order of ranks and devices."""
    cost_ns: float
    """What an iteration would be shorter, at most, if the slowest device took the median of the
    others: its time less that of the next slowest, which stays."""


def rank_spreads(
    activities: act.Activities, times: KernelTimes | None = None, where: Flags | None = None
) -> list[RankSpread]:
    """Return how far ranks lie apart in each operation that computes, the furthest apart first.

    The duration of an operation is that of its kernels and the bubbles between them, summed over
    layers, in one iteration of one device.
    """
    times = kernel_times(activities) if times is None else times
    chosen = statistics.in_iterations(activities) if where is None else where
    rows = np.flatnonzero(chosen & (activities.klass == act.COMPUTE))
    kinds = group(activities.operation[rows], activities.phase[rows])
    devices = group(activities.rank[rows], activities.device[rows])
    samples = group(kinds.of, devices.of, activities.iteration[rows])
    total = samples.sums((times.duration_ps + times.inner_ps)[rows])
    cells = group(samples.keys[0], samples.keys[1])
    medians = spreads(total, cells.of, cells.count)[:, 0] / NS_PS
    kind, device = cells.keys
    found = [
        _spread(
            activities, kinds.keys, int(kind[mine[0]]), devices.keys[0][device[mine]], medians[mine]
        )
        for mine in parts(np.arange(cells.count), kind)
        if len(mine)
    ]
    return sorted(found, key=lambda row: min(row.per_rank_ns) - max(row.per_rank_ns))


def _spread(
    activities: act.Activities, keys: tuple[Ints, ...], kind: int, ranks: Ints, medians: Floats
) -> RankSpread:
    operation = int(keys[0][kind])
    return RankSpread(
        operation=activities.operations[operation] if operation >= 0 else "",
        phase=act.PHASES[keys[1][kind]],
        ranks=len(ranks),
        median_ns=float(np.median(medians)),
        spread=statistics.ratio(float(medians.max()), float(medians.min())),
        slowest=int(ranks[medians.argmax()]),
        fastest=int(ranks[medians.argmin()]),
        per_rank_ns=medians.tolist(),
        cost_ns=float(medians.max() - np.sort(medians)[-2:].min()),
    )
