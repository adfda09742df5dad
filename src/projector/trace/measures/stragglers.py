"""Ranks against each other: who computes longer, who comes late, who waits."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.trace.activity import COMPUTE, PHASES, Activities
from projector.trace.events import NS_PS
from projector.trace.measures.collectives import Matches, matches
from projector.trace.measures.iterations import IterationTimes, iteration_times
from projector.trace.measures.statistics import (
    Band,
    band,
    group,
    in_iterations,
    ratio,
    spreads,
)
from projector.trace.measures.times import KernelTimes, kernel_times


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
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
    late_ns: Band | None
    """How long after the first rank it enters a collective; None likewise."""
    last: float | None
    """Share of the collectives that it enters last, and of no others; None likewise."""

    def to_dict(self) -> dict[str, Any]:
        """Return the object of JSON."""
        return asdict(self)


def stragglers(
    activities: Activities,
    times: KernelTimes | None = None,
    where: Flags | None = None,
    iterations: Sequence[IterationTimes] | None = None,
) -> list[Straggler]:
    """Return how each device stands to the others, in the order of the table.

    What is left out is worked out: ``times`` of the whole table, ``iterations`` of what is chosen.
    """
    times = kernel_times(activities) if times is None else times
    iterations = iteration_times(activities, times, where) if iterations is None else iterations
    devices = sorted({(each.rank, each.device) for each in iterations})
    medians = {d: float(np.median(_computing(iterations, d))) for d in devices}
    middle = float(np.median(list(medians.values()))) if medians else 0.0
    longest: dict[int, float] = {}
    for each in iterations:
        longest[each.iteration] = max(longest.get(each.iteration, 0.0), each.compute_ns)
    found = matches(activities, where)
    last = _last(activities, found)
    rows = []
    for device in devices:
        spread = band(_computing(iterations, device))
        assert spread is not None  # the device has an iteration
        mine = [e for e in iterations if (e.rank, e.device) == device]
        rows.append(
            Straggler(
                rank=device[0],
                device=device[1],
                compute_ns=spread,
                relative=ratio(medians[device], middle),
                slowest=sum(each.compute_ns >= longest[each.iteration] for each in mine),
                **_in_collectives(activities, times, found, last, device),
            )
        )
    return rows


def _computing(iterations: Sequence[IterationTimes], device: tuple[int, int]) -> list[float]:
    return [each.compute_ns for each in iterations if (each.rank, each.device) == device]


def _last(activities: Activities, found: Matches) -> Flags:
    """Return whether each kernel is the one of its collective that begins last."""
    start = activities.start_ps[found.row]
    latest = start == found.collective.most(start)[found.collective.of]
    return np.asarray(latest & (found.collective.sums(latest)[found.collective.of] == 1))


def _in_collectives(
    activities: Activities,
    times: KernelTimes,
    found: Matches,
    last: Flags,
    device: tuple[int, int],
) -> dict[str, Any]:
    mine = (activities.rank[found.row] == device[0]) & (activities.device[found.row] == device[1])
    mine &= found.ranks > 1
    row = found.row[mine]
    waited = times.duration_ps[row] - found.transfer_ps[mine]
    per_iteration = group(activities.iteration[row]).sums(waited)
    return {
        "waiting_ns": band(per_iteration, NS_PS),
        "late_ns": band(found.late_ps[mine], NS_PS),
        "last": float(last[mine].mean()) if len(row) else None,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpread:
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

    def to_dict(self) -> dict[str, Any]:
        """Return the object of JSON."""
        return asdict(self)


def rank_spreads(
    activities: Activities, times: KernelTimes | None = None, where: Flags | None = None
) -> list[RankSpread]:
    """Return how far ranks lie apart in each operation that computes, the furthest apart first.

    The duration of an operation is that of its kernels and the bubbles between them, summed over
    layers, in one iteration of one device.
    """
    times = kernel_times(activities) if times is None else times
    chosen = in_iterations(activities) if where is None else where
    rows = np.flatnonzero(chosen & (activities.klass == COMPUTE))
    kinds = group(activities.operation[rows], activities.phase[rows])
    devices = group(activities.rank[rows], activities.device[rows])
    samples = group(kinds.of, devices.of, activities.iteration[rows])
    total = samples.sums((times.duration_ps + times.inner_ps)[rows])
    cells = group(samples.keys[0], samples.keys[1])
    medians = spreads(total, cells.of, cells.count)[:, 0] / NS_PS
    found = [
        _spread(activities, kinds.keys, kind, devices.keys[0][device], medians[mine])
        for kind, device, mine in _cells(cells.keys)
    ]
    return sorted(found, key=lambda row: min(row.per_rank_ns) - max(row.per_rank_ns))


def _cells(keys: tuple[Ints, ...]) -> list[tuple[int, Ints, Ints]]:
    """Return each operation with its devices and their rows."""
    kind, device = keys
    borders = np.flatnonzero(np.diff(kind)) + 1
    rows = np.split(np.arange(len(kind)), borders) if len(kind) else []
    return [(int(kind[mine[0]]), device[mine], mine) for mine in rows]


def _spread(
    activities: Activities, keys: tuple[Ints, ...], kind: int, ranks: Ints, medians: Floats
) -> RankSpread:
    operation = int(keys[0][kind])
    return RankSpread(
        operation=activities.operations[operation] if operation >= 0 else "",
        phase=PHASES[keys[1][kind]],
        ranks=len(ranks),
        median_ns=float(np.median(medians)),
        spread=ratio(float(medians.max()), float(medians.min())),
        slowest=int(ranks[medians.argmax()]),
        fastest=int(ranks[medians.argmin()]),
        per_rank_ns=medians.tolist(),
    )
