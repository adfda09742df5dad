"""Overlap of computing with communication, and what it does to the durations of operations.

The overlap ratio of a kernel is the share of its duration that communication kernels of its device
cover, on any stream. Section V-C and equation 9 of Chopper (Kurzynski, Aga, Wu).

The curve of an operation (the study's figure 8) runs over its instances in the order of their
durations, each normalised to the least of its kind on its device. It cumulates overlap ratios, as
shares of their sum, and so climbs from 0 to 1. ``D50`` is the first duration at which it has
reached one half: the median duration, weighted by overlap. ``D0`` is the median of the instances
that no communication touches. Where there is no such instance, ``D0`` is the least duration, from
which the curve starts. The study does not say how it read its figures; this is our reading.

Of an operation, those kinds are compared that run both with and without overlap on one device. Else
the instances of one layer under overlap would be compared with those of another one without. If no
kind does both, the kinds that communication touches are taken, and D0 is the shortest of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.trace.activity import COMMUNICATION, PHASES, Activities
from projector.trace.events import NS_PS
from projector.trace.groups import group
from projector.trace.measures.breakdown import Instances, instances
from projector.trace.measures.statistics import Band, Measured, band
from projector.trace.measures.times import KernelTimes, covered

ALONE, SHORTEST, NOTHING = "alone", "shortest", "none"
"""Where `D0` comes from: instances without overlap, the shortest instance, or no instance."""


def overlap_ratios(activities: Activities) -> Floats:
    """Return the share of each activity that communication covers; NaN for communication itself."""
    duration_ps = activities.end_ps - activities.start_ps
    shares = np.full(len(activities), np.nan)
    counts = (duration_ps > 0) & (activities.klass != COMMUNICATION)
    np.divide(covered(activities, COMMUNICATION), duration_ps, out=shares, where=counts)
    return shares


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapCdf(Measured):
    """Overlap cumulated over instances in the order of their durations."""

    duration: Floats
    """float64[instances], ascending, normalised to the least of each kind."""
    cumulative: Floats
    """float64[instances]: 0 to 1; all 0 where nothing overlaps."""


def cdf(duration: Floats, overlap: Floats) -> OverlapCdf:
    """Return the curve of some instances; those without duration or overlap ratio are left out."""
    known = ~(np.isnan(duration) | np.isnan(overlap))
    duration, overlap = duration[known], overlap[known]
    order = np.lexsort((overlap, duration))
    total = overlap.sum()
    cumulative = np.cumsum(overlap[order]) / total if total > 0 else np.zeros(len(order))
    return OverlapCdf(duration=duration[order], cumulative=np.minimum(cumulative, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapEffect(Measured):
    """How much longer an operation takes under overlap (equation 9)."""

    also = ("ratio",)

    d50: float | None
    """Normalised; None where nothing overlaps."""
    d0: float | None
    """Normalised; None without instances."""
    d0_from: str
    """`ALONE`, `SHORTEST` or `NOTHING`."""
    instances: int
    overlapped: int
    """How many instances communication touches."""

    @property
    def ratio(self) -> float | None:
        """``D50 / D0``: 1 where nothing overlaps, None without instances."""
        if self.d0 is None:
            return None
        return 1.0 if self.d50 is None else self.d50 / self.d0


def d50_d0(duration: Floats, overlap: Floats) -> OverlapEffect:
    """Return normalised durations of an operation at half overlap (0 to 1) and at none."""
    known = ~(np.isnan(duration) | np.isnan(overlap))
    duration, overlap = duration[known], overlap[known]
    touched = overlap > 0
    if not len(duration):
        return OverlapEffect(d50=None, d0=None, d0_from=NOTHING, instances=0, overlapped=0)
    alone = duration[~touched]
    d0 = float(np.median(alone)) if len(alone) else float(duration.min())
    d50 = None
    if touched.any():
        curve = cdf(duration, overlap)
        # The last share is 1 up to rounding, so that one half is always reached.
        d50 = float(curve.duration[np.searchsorted(curve.cumulative, 0.5)])
    return OverlapEffect(
        d50=d50,
        d0=d0,
        d0_from=ALONE if len(alone) else SHORTEST,
        instances=len(duration),
        overlapped=int(touched.sum()),
    )


def effect_of(runs: Instances, members: Ints) -> OverlapEffect:
    """Return the durations at half of the overlap and at none, of kinds that can be compared."""
    members = comparable(runs, members)
    return d50_d0(runs.normalised[members], runs.overlap[members])


def comparable(runs: Instances, members: Ints) -> Ints:
    """Return the instances whose durations tell what overlap does: not those alone of a kind."""
    known = ~np.isnan(runs.overlap[members]) & (runs.alike[members] > 1)
    members = members[known]
    kinds = group(runs.kind[members])
    touched = kinds.sums(runs.overlap[members] > 0)
    both = (touched > 0) & (touched < kinds.sizes())
    for which in (both, touched > 0):
        if which.any():
            return members[which[kinds.of]]
    return members


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationOverlap(Measured):
    """Overlap against duration of one operation, over ranks, iterations and layers."""

    operation: str
    """Empty where nothing stands around its launch."""
    phase: str
    recompute: bool
    duration_ns: Band
    """Of one instance: its kernels and the bubbles between them."""
    overlap: Band | None
    """Overlap ratio of one instance; None where all take no time."""
    correlation: float | None
    """Pearson's, of overlap ratio and normalised duration; None where either is constant."""
    effect: OverlapEffect
    curve: OverlapCdf
    """Of the instances that `effect` compares; not in JSON unless asked for."""

    def to_dict(self) -> dict[str, Any]:
        """Return the object of JSON."""
        found = Measured.to_dict(self)
        del found["curve"]
        effect = found.pop("effect")
        return {**found, **effect}


def operation_overlaps(
    activities: Activities, times: KernelTimes | None = None, where: Flags | None = None
) -> list[OperationOverlap]:
    """Return overlap against duration of every operation, the longest in total first."""
    runs = instances(activities, times, where)
    rows = [
        (int(runs.kernel_ps[members].sum()), _operation_overlap(activities, runs, members))
        for members in operation_members(activities, runs)
    ]
    return [each for _, each in sorted(rows, key=lambda row: -row[0])]


def operation_members(activities: Activities, runs: Instances) -> Iterator[Ints]:
    """Yield the runs of each operation, as `OperationOverlap` tells operations apart."""
    columns = (activities.operation, activities.phase, activities.recompute)
    same = group(*(np.asarray(column[runs.row], np.int64) for column in columns))
    order = np.argsort(same.of, kind="stable")
    yield from np.split(order, np.cumsum(same.sizes())[:-1]) if len(order) else ()


def _operation_overlap(activities: Activities, runs: Instances, members: Ints) -> OperationOverlap:
    row = runs.row[members[0]]
    operation = int(activities.operation[row])
    overlap = runs.overlap[members]
    duration = np.where(runs.alike[members] > 1, runs.normalised[members], np.nan)
    compared = comparable(runs, members)
    spread = band(runs.duration_ps[members], NS_PS)
    assert spread is not None  # every operation has a run
    return OperationOverlap(
        operation=activities.operations[operation] if operation >= 0 else "",
        phase=PHASES[activities.phase[row]],
        recompute=bool(activities.recompute[row]),
        duration_ns=spread,
        overlap=band(overlap[~np.isnan(overlap)]),
        correlation=correlation(overlap, duration),
        effect=effect_of(runs, members),
        curve=cdf(runs.normalised[compared], runs.overlap[compared]),
    )


def correlation(a: Floats, b: Floats) -> float | None:
    """Return Pearson's correlation where both are known; None where either is constant."""
    known = ~(np.isnan(a) | np.isnan(b))
    a, b = a[known], b[known]
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.clip(np.corrcoef(a, b)[0, 1], -1.0, 1.0))
