"""Replays of orders of many lengths: what they have in common is run once."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Ints
from projector.kernels import pipeline as kernels
from projector.kernels.pipeline import Replays
from projector.kernels.pipeline_forks import replay_forks
from projector.schedule.order import Order
from projector.schedule.replay.forks import (
    MIN_PERIODS,
    ForkingOrder,
    compile_forks,
    fork_runs,
)
from projector.schedule.replay.order_times import MIN_BATCH, operation_times, replay_batch
from projector.schedule.series import Series

FEW_OPERATIONS = 1 << 16
"""Few runs of orders no longer than this, all together, are replayed before a series of orders is
compiled."""


class Wanted(NamedTuple):
    """Times of all runs, and where their replays are written."""

    duration_ps: ArrayLike
    """``int64[rows, pp, vpp, 3, 3]``: by rank, chunk, kind and class, as in `replay_batch`."""
    p2p_ps: ArrayLike | None
    """``int64[rows, 2, pp * vpp]``: latencies, as in `replay_batch`."""
    into: Replays
    """Output. Columns without rows are left out; ends of ranks are always there."""


def replay_counts(
    series: Series, microbatches: Ints, which: Ints, rows: Ints, batches: Sequence[Wanted]
) -> None:
    """Run orders of a series, each with times of its own.

    The result is that of a replay of each order alone, bit for bit.

    Parameters
    ----------
    series : Series
        The orders.
    microbatches : int64[n]
        Those of each run.
    which : int64[n]
        Row of the times that each run has.
    rows : int64[n]
        Where each run is written.
    batches : sequence of Wanted
        Times, and outputs: all runs are run with each of them.

    Raises
    ------
    NumericError
        If a time is negative or the step is too long.
    """
    times = [
        operation_times(series.pp, series.vpp, batch.duration_ps, batch.p2p_ps, which)
        for batch in batches
    ]
    left = np.ones((len(batches), len(microbatches)), np.bool_)
    for forking in _forking(series, microbatches):
        periods, rest = np.divmod(microbatches - forking.least, forking.each)
        runs = np.flatnonzero((rest == 0) & (periods >= 0) & (microbatches >= series.least))
        forks, chosen = fork_runs(forking, which[runs], microbatches[runs], rows[runs])
        for number, batch in enumerate(batches):
            some = times[number]._replace(which=chosen)
            status = replay_forks(forking.program, some, forks, batch.into)
            left[number, runs] = status != kernels.OK
    for batch, still in zip(batches, left, strict=True):
        for count in np.unique(microbatches[still]).tolist():
            runs = np.flatnonzero(still & (microbatches == count))
            replay_alone(series.order(count), which[runs], rows[runs], [batch])


def replay_alone(order: Order, which: Ints, rows: Ints, batches: Sequence[Wanted]) -> None:
    """Run one order, as `replay_counts` does those of a series."""
    for batch in batches:
        replays = replay_batch(order, batch.duration_ps, batch.p2p_ps, which=which)
        for column, values in zip(batch.into, replays, strict=True):
            if len(column):
                column[rows] = values


def _forking(series: Series, microbatches: Ints) -> list[ForkingOrder]:
    """Return what orders have in common, where that is worth its compilation."""
    if not series.every:
        return []
    counts = np.unique(microbatches)
    few = FEW_OPERATIONS if len(microbatches) < MIN_BATCH else 0
    found = []
    for rest in np.unique(counts % series.every).tolist():
        alike = counts[counts % series.every == rest]
        longest = _compiled_length(series, rest)
        if alike.sum() > longest and alike.sum() * 3 * series.pp * series.vpp > few:
            found.append(_compiled(series, longest))
    return [forking for forking in found if forking is not None]


def _compiled_length(series: Series, rest: int) -> int:
    """Return the microbatches of an order that repeats itself often enough to be seen to do so."""
    ramps = series.least + 3 * max(series.pp, series.every)
    return series.alike(ramps + (MIN_PERIODS + 1) * series.every, rest)


@lru_cache(maxsize=512)
def _compiled(series: Series, microbatches: int) -> ForkingOrder | None:
    order = series.order(microbatches)
    forking = compile_forks(order)
    if forking is None:
        return None
    # Each copy of the model runs a share of them.
    copies = microbatches // order.microbatches
    forking = forking._replace(least=copies * forking.least, each=copies * forking.each)
    return forking if forking.each == series.every else None
