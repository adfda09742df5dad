"""Measures of a table of activities: 3.5 million of them should take seconds."""

import numba
import numpy as np
import pytest

from projector.trace.activity import Activities
from projector.trace.measures.breakdown import breakdown
from projector.trace.measures.iterations import iteration_times, rank_summaries
from projector.trace.measures.overlap import operation_overlaps
from projector.trace.measures.times import kernel_times

# A hundred thousand rows take a while where the kernels run as Python.
ROWS = [1000] if numba.config.DISABLE_JIT else [1000, 100_000]

MEASURES = {
    "summary": rank_summaries,
    "times": kernel_times,
    "breakdown": breakdown,
    "iterations": iteration_times,
    "overlap": operation_overlaps,
}


def table(rows: int, ranks: int = 8) -> Activities:
    """Return kernels of several ranks, every eighth a collective beside others."""
    rng = np.random.default_rng(0)
    place = np.arange(rows) % (rows // ranks)
    klass = (place % 8 == 7).astype(np.int64)
    duration = rng.integers(1_000_000, 20_000_000, rows)
    start = np.cumsum((duration // 2 + 1_000_000).reshape(ranks, -1), axis=1).ravel()
    unknown = np.full(rows, -1)
    return Activities(
        rank=np.arange(rows) // (rows // ranks),
        device=np.arange(rows) // (rows // ranks),
        stream=7 + 13 * klass,
        name=place % 50,
        kind=np.zeros(rows, np.int64),
        klass=klass,
        type=np.where(klass == 1, 3, place % 3),
        start_ps=start,
        end_ps=start + duration,
        launch_ps=start - 5_000_000,
        launch_end_ps=start,
        operation=place // 3 % 40,
        instance=place // 3,
        layer=place // 100 % 32,
        phase=place // 400 % 3,
        iteration=place // (rows // ranks // 5),
        recompute=np.zeros(rows, bool),
        forward=unknown,
        group=unknown,
        bytes=unknown,
        detail=unknown,
        names=tuple(f"kernel {n}" for n in range(50)),
        operations=tuple(f"operation {n}" for n in range(40)),
        groups=(),
        details=(),
    )


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("measure", MEASURES.values(), ids=list(MEASURES))
def test_measures(benchmark, measure, rows):
    activities = table(rows)
    measure(activities)  # compile outside the clock

    benchmark(measure, activities)
    benchmark.extra_info["activities"] = rows
    if benchmark.stats is not None:
        benchmark.extra_info["activities_per_s"] = rows / benchmark.stats.stats.median
