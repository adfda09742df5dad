"""Durations by phase, type, operation, layer, kernel or any of them together, and of each run.

As in figure 4 of Chopper (Kurzynski, Aga, Wu): a duration is the sum of kernels, launch overhead
the sum of bubbles before them, and both are medians over samples. A sample is one iteration of one
device of one rank. A median is that of the samples that have the part at all, whose number is told.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.errors import ConfigError
from projector.trace.activity import CLASSES, COMMUNICATION, COMPUTE, PHASES, TYPES, Activities
from projector.trace.events import NS_PS
from projector.trace.groups import Groups, group
from projector.trace.measures.statistics import Band, Measured, bands, in_iterations, ratio
from projector.trace.measures.times import KernelTimes, kernel_times
from projector.trace.work import Works, works_of

GRANULARITIES = (
    "rank", "device", "iteration", "phase", "type", "class", "layer", "operation", "recompute",
    "kernel", "group", "stream",
)  # fmt: skip
"""What a breakdown can go by."""

_COLUMNS = {"class": "klass", "kernel": "name"}


def _label(activities: Activities, name: str) -> Callable[[int], Any]:
    names: Sequence[str] | None = {
        "phase": PHASES, "type": TYPES, "class": CLASSES, "operation": activities.operations,
        "kernel": activities.names, "group": activities.groups,
    }.get(name)  # fmt: skip
    if names is None:
        return bool if name == "recompute" else int
    return lambda place: names[place] if place >= 0 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Measured):
    """One part of a breakdown."""

    key: Mapping[str, Any]
    """What it is the part of, such as ``{"phase": "forward", "type": "gemm"}``."""
    activities: int
    """How many, in all samples."""
    share: float
    """Of the durations of all parts, all samples together."""
    overlap: float | None
    """Share that communication covers; of communication the share that computing covers."""
    duration_ns: Band
    """Kernels, added up."""
    operation_ns: Band
    """Kernels and the bubbles between the kernels of one operation."""
    launch_ns: Band
    """Bubbles before its kernels; 0 for what does not compute."""
    preparation_ns: Band
    call_ns: Band
    """With `preparation_ns` less than `launch_ns` where launches are not in the trace."""
    exposed_ns: Band
    """What of it no kernel that computes covers; all of what computes itself."""
    each_ns: Band
    """Of one activity; the other bands are of their sum in one sample."""
    tflop_per_s: float | None
    """FLOP that extents tell over the time of the kernels of those operators, all samples together.
    Causal masks are taken off attention. None where no extents tell any."""

    def to_dict(self) -> dict[str, Any]:
        """Return the object of JSON."""
        found = Measured.to_dict(self)
        return {**found.pop("key"), **found}


def breakdown(
    activities: Activities,
    by: Sequence[str] = ("phase", "type"),
    times: KernelTimes | None = None,
    where: Flags | None = None,
    works: Works | None = None,
) -> list[Part]:
    """Return the parts of some iterations (or all there is) by `GRANULARITIES`, longest first."""
    for name in by:
        if name not in GRANULARITIES:
            msg = f"a breakdown goes by {', '.join(GRANULARITIES)}, and not by {name!r}"
            raise ConfigError(msg, key="by", value=name, allowed=list(GRANULARITIES))
    times = kernel_times(activities) if times is None else times
    rows = np.flatnonzero(in_iterations(activities) if where is None else where)
    columns = (getattr(activities, _COLUMNS.get(name, name))[rows] for name in by)
    plain = (np.asarray(column, np.int64) for column in columns)
    parts = group(*plain, np.zeros(len(rows), np.int64))
    sample = group(*(getattr(activities, n)[rows] for n in ("rank", "device", "iteration")))
    both = group(parts.of, sample.of)
    measured = {
        "duration_ns": times.duration_ps,
        "operation_ns": times.duration_ps + times.inner_ps,
        "launch_ns": times.bubble_ps,
        "preparation_ns": times.preparation_ps,
        "call_ns": times.call_ps,
        "exposed_ns": times.duration_ps - times.under_compute_ps,
    }
    spreads: dict[str, list[Any]] = {
        name: bands(both.sums(values[rows]), both.keys[0], parts.count, NS_PS)
        for name, values in measured.items()
    }
    duration = times.duration_ps[rows]
    spreads["each_ns"] = bands(duration, parts.of, parts.count, NS_PS)
    communicating = activities.klass == COMMUNICATION
    under_ps = np.where(communicating, times.under_compute_ps, times.under_communication_ps)
    total, shared = parts.sums(duration), parts.sums(under_ps[rows])
    sizes, whole = parts.sizes(), int(total.sum())
    works = works_of(activities) if works is None else works
    flop = np.bincount(parts.of, works.flop()[rows], parts.count)
    told_ps = parts.sums(np.where(works.of[rows] >= 0, duration, 0))
    labels = [_label(activities, name) for name in by]
    return [
        Part(
            key={n: label(int(k[p])) for n, label, k in zip(by, labels, parts.keys, strict=False)},
            activities=int(sizes[p]),
            share=ratio(total[p], whole) or 0.0,
            overlap=ratio(shared[p], total[p]),
            tflop_per_s=ratio(flop[p], told_ps[p]) if flop[p] else None,
            **{name: spread[p] for name, spread in spreads.items()},
        )
        for p in np.argsort(-total, kind="stable").tolist()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """Runs of operations, in the order of the table; columns of equal length."""

    row: Ints
    """Row of its first kernel in the table, which tells its rank, iteration, layer and name."""
    kernels: Ints
    kernel_ps: Ints
    """Its kernels, added up."""
    duration_ps: Ints
    """Its kernels and the bubbles between them."""
    launch_ps: Ints
    """The bubbles before each of its kernels, also the first."""
    preparation_ps: Ints
    call_ps: Ints
    overlap: Floats
    """Share of its kernels that communication covers; NaN where they take no time."""
    normalised: Floats
    """`kernel_ps` over the least of those alike on its device; NaN where that is none."""
    kind: Ints
    """Number of its kind on its device: those that do the same work agree in it."""
    alike: Ints
    """How many there are of its kind on its device, with itself."""

    def __len__(self) -> int:
        return len(self.row)


def instances(
    activities: Activities, times: KernelTimes | None = None, where: Flags | None = None
) -> Instances:
    """Return each run of each operation that computes, as `operation_starts` delimits them.

    Runs are alike if they agree in operation, phase, recomputation, and in name and detail (which
    holds shapes) of their first kernel, and have as many kernels. What is compared with the least
    of its device, as in figure 8 of Chopper, is thus the same work. Runs whose first kernel `where`
    does not choose are left out; by default those outside iterations.
    """
    times = kernel_times(activities) if times is None else times
    computing = np.flatnonzero(activities.klass == COMPUTE)
    number = np.cumsum(times.first[computing]) - 1
    row = computing[times.first[computing]]
    runs = Groups(number, (), row)

    kept = (in_iterations(activities) if where is None else where)[row]
    kernel_ps = runs.sums(times.duration_ps[computing])[kept]
    covered_ps = runs.sums(times.under_communication_ps[computing])[kept]
    bubble_ps = runs.sums(times.bubble_ps[computing])[kept]
    kernels, row = runs.sizes()[kept], row[kept]
    columns = ("rank", "device", "operation", "phase", "recompute", "name", "detail")
    same = group(*(np.asarray(getattr(activities, c)[row], np.int64) for c in columns), kernels)
    least = same.least(kernel_ps)[same.of]
    return Instances(
        row=row,
        kernels=kernels,
        kernel_ps=kernel_ps,
        duration_ps=kernel_ps + runs.sums(times.inner_ps[computing])[kept],
        launch_ps=bubble_ps,
        preparation_ps=runs.sums(times.preparation_ps[computing])[kept],
        call_ps=runs.sums(times.call_ps[computing])[kept],
        overlap=_share(covered_ps, kernel_ps),
        normalised=_share(kernel_ps, least),
        kind=same.of,
        alike=same.sizes()[same.of],
    )


def _share(part: Ints, whole: Ints) -> Floats:
    result = np.full(len(part), np.nan)
    np.divide(part, whole, out=result, where=whole > 0)
    return result
