"""Replays of orders of many lengths: what they have in common is run once."""

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Ints
from projector.kernels import pipeline as kernels
from projector.kernels.pipeline import Replays
from projector.schedule.replay.forks import (
    MIN_PERIODS,
    ForkingOrder,
    compile_forks,
    run_forks,
)
from projector.schedule.replay.order_times import MIN_BATCH, operation_times, replay_batch
from projector.schedule.series import Series

FEW_OPERATIONS = 1 << 16
"""Few runs of orders no longer than this, all together, are replayed before a series of orders is
compiled."""


def replay_counts(
    series: Series,
    microbatches: Ints,
    duration_ps: ArrayLike,
    p2p_ps: ArrayLike | None,
    which: Ints,
    rows: Ints,
    into: Replays,
) -> None:
    """Run orders of a series, each with times of its own.

    The result is that of a replay of each order alone, bit for bit.

    Parameters
    ----------
    series : Series
        The orders.
    microbatches : int64[n]
        Those of each run.
    duration_ps : int64[rows, pp, vpp, 3, 3]
        By rank, chunk, kind and class, as in `replay_batch`.
    p2p_ps : int64[rows, 2, pp * vpp] or None
        Latencies, as in `replay_batch`.
    which : int64[n]
        Row of both that each run has.
    rows : int64[n]
        Where each run is written.
    into : Replays
        Output.

    Raises
    ------
    NumericError
        If a time is negative or the step is too long.
    """
    times = operation_times(series.pp, series.vpp, duration_ps, p2p_ps, which)
    left = np.ones(len(microbatches), np.bool_)
    for forking in _forking(series, microbatches):
        periods, rest = np.divmod(microbatches - forking.least, forking.each)
        runs = np.flatnonzero((rest == 0) & (periods >= 0) & (microbatches >= series.least))
        some = times._replace(which=times.which[runs])
        status = run_forks(forking, some, microbatches[runs], rows[runs], into)
        left[runs] = status != kernels.OK
    for count in np.unique(microbatches[left]).tolist():
        runs = np.flatnonzero(left & (microbatches == count))
        alone = replay_batch(series.order(count), duration_ps, p2p_ps, which=times.which[runs])
        for column, values in zip(into, alone, strict=True):
            column[rows[runs]] = values


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
