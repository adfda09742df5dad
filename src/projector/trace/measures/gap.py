"""The gap between what an operation needs in theory and what it takes, as factors.

Equations 6 to 10 of Chopper (Kurzynski, Aga, Wu), section V-G::

    theory      = needed FLOP / peak FLOP/s                                    (6)
    instruction = performed FLOP / needed FLOP                                 (7)
    utilisation = 1 / share of the time that matrix units are busy             (8)
    overlap     = D50 / D0                                                     (9)
    frequency   = actual / (cycles / peak clock) / overlap                     (10)

Performed FLOP, utilisation and cycles are counters of a serialised run. If the utilisation is that
of the performed FLOP at the counted cycles, theory times all factors is what the operation takes.
Counters of busy units need not agree with that; what they leave is told as a rest of its own, so
that the product is always exact. What is not known is named, and is then part of the rest.

Where cycles were not counted and the clock was sampled, the frequency factor is the peak clock over
the mean sampled one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from projector.arrays import Floats, Ints
from projector.trace.activity import Activities
from projector.trace.events import NS_PS
from projector.trace.measures.breakdown import instances
from projector.trace.measures.overlap import OverlapEffect, effect_of
from projector.trace.measures.statistics import Measured

FACTORS = ("instruction", "utilisation", "overlap", "frequency")
"""In the order of the study; `REST` follows."""

REST = "rest"

COUNTED, SAMPLED = "cycles", "samples"
"""Where a frequency factor comes from."""

_PS_PER_S = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What counters say of each activity; NaN where nothing was counted."""

    performed_flop: Floats
    utilisation: Floats
    """Share of its time that the matrix units are busy, 0 to 1."""
    cycles: Floats
    """Cycles of the device's clock, from begin to end."""

    @staticmethod
    def none(activities: int) -> "Counted":
        """Return that nothing was counted."""
        unknown = np.full(activities, np.nan)
        return Counted(performed_flop=unknown, utilisation=unknown, cycles=unknown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """What is known of an operation besides its trace."""

    operation: str
    phase: str
    type: str
    flop: float
    """FLOP that a step needs; 0 where it is not known."""
    flop_from: str
    """``job``, ``extents``, ``counters``, or empty."""
    peak_flop_per_s: float
    """Of the matrix type; 0 where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationGap(Measured):
    """Why an operation takes longer than its FLOP at the peak rate."""

    operation: str
    phase: str
    type: str
    theory_ns: float | None
    """Of a step; None where FLOP or peak are not known."""
    actual_ns: float
    """Its kernels in a step, added up."""
    ratio: float | None
    """Actual over theoretical time; None likewise."""
    factors: Mapping[str, float]
    """Those that are known, and `REST`; theory times all of them is the actual time."""
    flop: float
    flop_from: str
    frequency_from: str
    """`COUNTED`, `SAMPLED`, or empty."""
    overlap: OverlapEffect
    missing: tuple[str, ...] = field(default=())
    """What would be needed to know the other factors."""


def operation_gaps(
    activities: Activities,
    of: Ints,
    needed: Sequence[Needed],
    *,
    steps: int,
    counted: Counted,
    clock_hz: Floats | None = None,
    peak_clock_hz: float = 0.0,
) -> list[OperationGap]:
    """Return the gap of each operation, the largest in time first.

    Activities are those of whole steps: `steps` iterations of all ranks together. `of` is the row
    of `needed`, -1 for what is left out; `clock_hz` the sampled clock while each ran, NaN where it
    was not sampled; a peak clock of 0 is not known.
    """
    runs = instances(activities)
    clock = np.full(len(activities), np.nan) if clock_hz is None else clock_hz
    found = []
    for number, each in enumerate(needed):
        rows = np.flatnonzero(of == number)
        duration_ps = activities.end_ps[rows] - activities.start_ps[rows]
        if duration_ps.sum() > 0:
            parts = _Parts.of(rows, duration_ps, counted, clock, steps)
            effect = effect_of(runs, np.flatnonzero(of[runs.row] == number))
            found.append(_gap(each, parts, effect, peak_clock_hz))
    return sorted(found, key=lambda gap: (gap.theory_ns or 0.0) - gap.actual_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Sums of a step over the kernels of an operation; None where some kernel was not counted."""

    actual_s: float
    performed_flop: float | None
    utilisation: float | None
    cycles: float | None
    clock_hz: float | None

    @staticmethod
    def of(
        rows: Ints, duration_ps: Ints, counted: Counted, clock_hz: Floats, steps: int
    ) -> "_Parts":
        def known(values: Floats, weights: Any = None) -> float | None:
            """Return the sum, or the mean by weight, that the known part of the time stands for."""
            here = ~np.isnan(values[rows])
            time = float(duration_ps[here].sum())
            # Kernels that only help are often left out of a counted run; most must be there.
            if time < 0.5 * float(duration_ps.sum()):
                return None
            if weights is None:
                return float(values[rows][here].sum()) * float(duration_ps.sum()) / time / steps
            weight = weights[here]
            total = float(weight.sum())
            return float((values[rows][here] * weight).sum()) / total if total > 0.0 else None

        cycles = np.nan_to_num(counted.cycles[rows])
        weights = cycles if cycles.any() else duration_ps.astype(np.float64)
        return _Parts(
            actual_s=float(duration_ps.sum()) / steps / _PS_PER_S,
            performed_flop=known(counted.performed_flop),
            utilisation=known(counted.utilisation, weights),
            cycles=known(counted.cycles),
            clock_hz=known(clock_hz, duration_ps.astype(np.float64)),
        )


def _gap(
    needed: Needed, parts: _Parts, effect: OverlapEffect, peak_clock_hz: float
) -> OperationGap:  # fmt: skip
    flop, source = needed.flop, needed.flop_from
    if not flop and parts.performed_flop:
        flop, source = parts.performed_flop, "counters"
    theory_s = flop / needed.peak_flop_per_s if flop and needed.peak_flop_per_s else None
    factors: dict[str, float] = {}
    missing = []
    if not flop:
        missing.append("needed FLOP: a job, or a trace with shapes")
    if not needed.peak_flop_per_s:
        missing.append("peak FLOP/s: the device and the matrix type")
    if parts.performed_flop and flop and source != "counters":
        factors["instruction"] = parts.performed_flop / flop
    else:
        missing.append("performed FLOP: counters")
    if parts.utilisation:
        factors["utilisation"] = 1.0 / parts.utilisation
    else:
        missing.append("utilisation of matrix units: counters")
    overlap = effect.ratio
    if overlap:
        factors["overlap"] = overlap
    frequency_from = ""
    if parts.cycles and peak_clock_hz:
        factors["frequency"] = parts.actual_s / (parts.cycles / peak_clock_hz) / (overlap or 1.0)
        frequency_from = COUNTED
    elif parts.clock_hz and peak_clock_hz:
        factors["frequency"] = peak_clock_hz / parts.clock_hz
        frequency_from = SAMPLED
    else:
        missing.append("frequency: counted cycles, or sampled clocks, and the device")
    if theory_s:
        product = theory_s * float(np.prod(list(factors.values())))
        factors[REST] = parts.actual_s / product
    to_ns = _PS_PER_S / NS_PS
    theory_ns, actual_ns = theory_s * to_ns if theory_s else None, parts.actual_s * to_ns
    return OperationGap(
        operation=needed.operation, phase=needed.phase, type=needed.type, theory_ns=theory_ns,
        actual_ns=actual_ns, ratio=actual_ns / theory_ns if theory_ns else None, factors=factors,
        flop=flop, flop_from=source, frequency_from=frequency_from, overlap=effect,
        missing=tuple(missing),
    )  # fmt: skip
