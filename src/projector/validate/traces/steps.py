"""Where a measured step went, by the terms of a projected one."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from projector.arrays import Ints
from projector.operations.table import CATEGORIES
from projector.projection.breakdown import BREAKDOWN
from projector.projection.comparison import Pair
from projector.trace.activity import (
    ATTENTION,
    COMMUNICATION,
    COMPUTE,
    GEMM,
    MEMCPY,
    OPTIMIZER,
    Activities,
)
from projector.trace.intervals import Intervals, difference, union
from projector.units import PICOSECOND
from projector.validate.traces.expected import Expected
from projector.validate.traces.matching import Matching

IDLE, COPIES, OTHER_COMM, ALL_COMM = "idle", "copies", "other_comm", "communication"
"""Terms that a projection does not have: it knows why a device is idle."""

_IDLE_TERMS = ("pp_bubble", "launch", "stragglers")
_EXPOSED = (*CATEGORIES[3:], "pp_comm", "dp_comm", OTHER_COMM)


def step_terms(
    activities: Activities, matching: Matching, expected: Expected, iterations: int
) -> dict[str, float]:
    """Return the seconds of each term of a rank's mean step, as `added_terms` tells them."""
    return added_terms(activities, _terms(activities, matching, expected), iterations)


def added_terms(
    activities: Activities, parts: Iterable[tuple[str, Ints]], iterations: int
) -> dict[str, float]:
    """Return the seconds of each term of a rank's mean step; they add up to its span.

    What computes counts once where several streams compute; of communication only what no compute
    hides, of copies what neither hides. The rest of the span is idle.
    """
    if not len(activities):
        return {}
    # The span begins with the first activity and ends with the last.
    span_ps = int(activities.end_ps.max() - activities.start_ps.min())
    terms, busy_ps = {}, 0
    covered = Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))
    for name, rows in parts:
        own = union(activities.start_ps[rows], activities.end_ps[rows])
        length_ps = difference(own, covered).length_ps
        covered = union(
            np.concatenate([covered.start, own.start]), np.concatenate([covered.end, own.end])
        )
        busy_ps += length_ps
        terms[name] = length_ps * PICOSECOND / iterations
    terms[IDLE] = (span_ps - busy_ps) * PICOSECOND / iterations
    terms["total"] = span_ps * PICOSECOND / iterations
    return terms


def _terms(
    activities: Activities, matching: Matching, expected: Expected
) -> Iterator[tuple[str, Ints]]:
    """Yield the activities of each term; those of an earlier one hide those of a later one."""
    category = {row.name: row.category for row in expected.rows}
    of_name = [category[name] for name in matching.names]
    yield from _computing(activities)
    communicates = activities.klass == COMMUNICATION
    for term in _EXPOSED:
        names = [number for number, own in enumerate(of_name) if own == term]
        wanted = np.isin(matching.of, names) if term != OTHER_COMM else matching.of < 0
        yield term, np.flatnonzero(communicates & wanted)
    yield COPIES, np.flatnonzero(activities.klass == MEMCPY)


def _computing(activities: Activities) -> Iterator[tuple[str, Ints]]:
    """Yield the activities of each term that computes."""
    computes = activities.klass == COMPUTE
    update = activities.phase == OPTIMIZER
    gemm, attention = activities.type == GEMM, activities.type == ATTENTION
    yield "compute_gemm", np.flatnonzero(computes & ~update & gemm)
    yield "compute_attention", np.flatnonzero(computes & ~update & attention)
    yield "compute_other", np.flatnonzero(computes & ~update & ~gemm & ~attention)
    yield "optimizer", np.flatnonzero(computes & update)


def plain_terms(activities: Activities) -> Iterator[tuple[str, Ints]]:
    """Yield the activities of each term that needs no job: communication is one term."""
    yield from _computing(activities)
    yield ALL_COMM, np.flatnonzero(activities.klass == COMMUNICATION)
    yield COPIES, np.flatnonzero(activities.klass == MEMCPY)


def paired(measured: Mapping[str, float], expected: Expected) -> dict[str, Pair]:
    """Return the terms of the measured step beside those of the projected one.

    Bubbles, launches and stragglers are all idle time to a device.
    """
    projected = {name: expected.performance.breakdown_s[name] for name in BREAKDOWN}
    projected[IDLE] = sum(projected.pop(name) for name in _IDLE_TERMS)
    projected["total"] = expected.performance.iteration_time_s
    return in_pairs(measured, projected)


def in_pairs(measured: Mapping[str, float], projected: Mapping[str, float]) -> dict[str, Pair]:
    """Return the terms that either side has, the total last."""
    names = dict.fromkeys((*projected, *measured))
    pairs = {name: Pair(measured.get(name, 0.0), projected.get(name, 0.0)) for name in names}
    total = pairs.pop("total")
    shown = {
        name: pair
        for name, pair in pairs.items()
        if pair.measured_s > 0.0 or pair.simulated_s > 0.0
    }
    return {**shown, "total": total}
