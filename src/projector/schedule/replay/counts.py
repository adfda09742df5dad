"""Replays of orders of many lengths: what they have in common is run once."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Flags, Ints
from projector.kernels import pipeline as kernels
from projector.kernels.grouping import rows_by_number
from projector.kernels.pipeline import Ends, OperationTimes
from projector.kernels.pipeline_forks import replay_forks
from projector.schedule.order import Order
from projector.schedule.replay.forks import (
    MIN_PERIODS,
    ForkingOrder,
    compile_forks,
    fork_runs,
)
from projector.schedule.replay.order_times import MIN_BATCH, operation_times, replay_ends
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
    into: Ends
    """Output; of `empty_ends`, but for columns without rows, which are left out."""


def replay_counts(
    series: Series,
    microbatches: Ints,
    order_of_run: Ints,
    which: Ints,
    rows: Ints,
    batches: Sequence[Wanted],
) -> None:
    """Run orders of a series, each with times of its own.

    The result is that of a replay of each order alone, bit for bit.

    Parameters
    ----------
    series : Series
        The orders.
    microbatches : int64[orders]
        Those of any orders.
    order_of_run : int64[n]
        Which of them each run has; all of these are of the series.
    which : int64[n]
        Row of the times that each run has; runs with the same times follow one another.
    rows : int64[n]
        Where each run is written.
    batches : sequence of Wanted
        Times, and outputs: all runs are run with each of them.
    """
    times = [
        operation_times(series.pp, series.vpp, batch.duration_ps, batch.p2p_ps, which)
        for batch in batches
    ]
    here = np.bincount(order_of_run, minlength=len(microbatches)) > 0
    left = np.tile(here, (len(batches), 1))
    for forking in _forking(series, np.unique(microbatches[here]), len(which)):
        periods, rest = np.divmod(microbatches - forking.least, forking.each)
        forked = here & (rest == 0) & (periods >= 0) & (microbatches >= series.least)
        runs = np.flatnonzero(forked.take(order_of_run))
        forks, chosen = fork_runs(
            which.take(runs), periods.take(order_of_run.take(runs)), rows.take(runs)
        )
        for number, batch in enumerate(batches):
            some = times[number]._replace(which=chosen)
            if replay_forks(forking.program, some, forks, batch.into) == kernels.OK:
                left[number] &= ~forked
    for batch, some, still in zip(batches, times, left, strict=True):
        _replay_orders(series, microbatches, still, order_of_run, some, rows, batch.into)


def _replay_orders(
    series: Series,
    microbatches: Ints,
    wanted: Flags,
    order_of_run: Ints,
    times: OperationTimes,
    rows: Ints,
    into: Ends,
) -> None:
    """Run some orders of a series, one after the other."""
    runs = np.flatnonzero(wanted.take(order_of_run))
    by_order, begin = rows_by_number(order_of_run.take(runs), len(microbatches))
    for number in np.flatnonzero(wanted).tolist():
        some = runs.take(by_order[begin[number] : begin[number + 1]])
        into.row[rows[some]], into.later_ps[rows[some]] = rows[some], 0
        order = series.order(int(microbatches[number]))
        replay_ends(order, times._replace(which=times.which.take(some)), rows.take(some), into)


def replay_alone(order: Order, which: Ints, rows: Ints, batches: Sequence[Wanted]) -> None:
    """Run one order, as `replay_counts` does those of a series."""
    for batch in batches:
        times = operation_times(order.pp, order.vpp, batch.duration_ps, batch.p2p_ps, which)
        replay_ends(order, times, rows, batch.into)


def _forking(series: Series, counts: Ints, runs: int) -> list[ForkingOrder]:
    """Return what orders of these lengths have in common, where it is worth its compilation."""
    if not series.every:
        return []
    few = FEW_OPERATIONS if runs < MIN_BATCH else 0
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
