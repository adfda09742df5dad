"""What counters of serialised runs say of the kernels of a run."""

from typing import Any

import numpy as np

from projector.arrays import Floats
from projector.config.device import Device
from projector.trace.activity import Activities
from projector.trace.analysis import TraceAnalysis
from projector.trace.counter_join import join_counters
from projector.trace.derived import derive
from projector.trace.measures.gap import Counted

_METRICS = {
    "performed_flop": "matrix_flop", "utilisation": "matrix_utilisation", "cycles": "cycles",
}  # fmt: skip
"""Columns of `Counted` and the metrics of counters that they are."""


def counted_kernels(
    analysis: TraceAnalysis, activities: Activities, profile: Device | None
) -> tuple[Counted, dict[str, Any] | None]:
    """Return what counters say of each activity, and what of them was joined."""
    if not analysis.trace.counters:
        return Counted.none(len(activities)), None
    joined = join_counters(activities, analysis.trace.counters)
    metrics = derive(joined.values, device=profile, duration_ps=joined.duration_ps)
    unknown: Floats = np.full(len(activities), np.nan)
    columns = {
        column: metrics[metric].values if metric in metrics else unknown
        for column, metric in _METRICS.items()
    }
    told = {name: derived.to_dict() for name, derived in metrics.items()}
    return Counted(**columns), {**joined.to_dict(), "metrics": told}
