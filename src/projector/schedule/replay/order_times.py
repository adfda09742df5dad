"""Times and activations of orders, of one or of a series: the gate between arrays and kernels."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from projector.arrays import Flags, Floats, Ints
from projector.errors import NumericError
from projector.kernels import pipeline as kernels
from projector.kernels import pipeline_lanes
from projector.kernels.grouping import rows_by_number
from projector.kernels.pipeline import LAST, MIDDLE, Ends, OperationTimes, Replays
from projector.kernels.pipeline_forks import replay_forks
from projector.schedule.order import Order, Series, check_complete, kept_by_operations
from projector.schedule.registry import ChosenOrder
from projector.schedule.replay import programs
from projector.schedule.replay.programs import compile_line

PS_PER_S = 1e12

METHODS = ("auto", "direct", "lanes", "jump")
"""Ways to replay a batch. All give the same, bit for bit."""

MIN_BATCH = 32
"""Fewer configurations than this are replayed directly: compiling takes longer, once."""

JUMP_COST = 3
"""What an operation of a jump takes compared to one of lanes: it looks for a steady state."""


class Peaks(NamedTuple):
    """States that can be a peak; see :func:`projector.kernels.pipeline.compile_peaks`."""

    offset: Ints
    """``int64[pp + 1]``"""
    state: Ints
    """``int64[states, 2 * vpp]``"""
    key: tuple[bytes, bytes]
    """The same for orders with the same peaks."""


class Timeline(NamedTuple):
    """Every operation of one configuration, in the rows of its order."""

    start_ps: Ints
    """``int64[ops]``"""
    end_ps: Ints
    """``int64[ops]``"""
    summary: Replays
    """The batch of one it comes from."""


def to_ps(seconds: ArrayLike) -> Ints:
    """Round seconds to integer picoseconds, once, at the edge."""
    with np.errstate(over="ignore"):  # infinity is refused below
        picoseconds = np.rint(np.asarray(seconds, np.float64) * PS_PER_S)
    # NaN compares false, so it is refused as well.
    if not np.all((picoseconds >= 0) & (picoseconds <= kernels.MAX_DURATION_PS)):
        raise bad_time()
    return picoseconds.astype(np.int64)


def bad_time() -> NumericError:
    """Return what is raised where picoseconds do not count a time."""
    limit = kernels.MAX_DURATION_PS / PS_PER_S
    msg = f"a time is negative, not finite or longer than {limit:.3g} s"
    return NumericError(msg, key="time", allowed=f"0 <= time <= {limit:.3g} s")


@kept_by_operations()
def compile_peaks(order: Order) -> Peaks:
    """Find the states of each rank that can be its peak of memory."""
    check_complete(order)
    offset = np.empty(order.pp + 1, np.int64)
    state = kernels.compile_peaks(
        order.rank_offset, order.kind, order.chunk, order.vpp, order.splits_backward, offset
    )
    peaks = Peaks(offset, state, (offset.tobytes(), state.tobytes()))
    programs.freeze(peaks)
    return peaks


def replay_batch(
    order: Order,
    duration_ps: ArrayLike,
    p2p_ps: ArrayLike | None,
    method: str = "auto",
) -> Replays:
    """Run one order with the durations of n configurations.

    Durations are ``int64[n, pp, vpp, 3, 3]``: by rank, chunk, kind (F, B, W) and class. F of
    microbatch 0 is class 0, B and W of the last microbatch are class 2, everything else is class 1.
    A single microbatch has F in class 0 and B and W in class 2. Without W in the order, B lasts for
    both.

    ``p2p_ps`` (``int64[n, 2, pp * vpp]``) is the latency from each virtual stage to the next
    (row 0) and to the one before (row 1); nothing is added between two chunks of one rank, whatever
    stands here. None is no latency anywhere, which is faster than many of 0.

    The method does not change the result: ``direct`` runs one operation after the other; ``lanes``
    runs 16 configurations side by side; ``jump`` leaves out the steady state of long orders, where
    they have one that can be proven, and is ``direct`` where not; ``auto`` takes what should be
    fastest.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    times = operation_times(order.pp, order.vpp, duration_ps, p2p_ps)
    outputs = programs.empty_replays(order.pp, order.vpp, len(times.which))
    if method == "auto":
        method = fastest_method(order, len(times.which))
    _replay(order, times, method, outputs)
    return outputs


def replay_ends(order: Order, times: OperationTimes, rows: Ints, batch: "Wanted") -> None:
    """Run one order with the times of n configurations into their ``rows``; see `replay_batch`."""
    _, _, start_ps, end_ps, last_ps = batch.into
    method = fastest_method(order, len(rows))
    if method == "lanes":
        outputs = Replays(start_ps, end_ps, np.empty((0, order.pp), np.int64), last_ps)
        program = programs.with_columns(programs.compile_lanes(order), batch.column)
        if pipeline_lanes.replay_lanes(program, times, rows, outputs) == kernels.OK:
            return
    if batch.column is not None:
        duration_ps = times.duration_ps[times.which[:, None], batch.column.ravel()]
        p2p_ps = times.p2p_ps[times.which] if len(times.p2p_ps) else times.p2p_ps
        times = OperationTimes(duration_ps, p2p_ps, np.arange(len(rows)))
    replays = programs.empty_replays(order.pp, order.vpp, len(rows))
    _replay(order, times, method, replays)
    end_ps[rows] = replays.rank_end_ps
    for column, values in (
        (start_ps, replays.rank_start_ps),
        (last_ps, replays.last_backward_end_ps),
    ):
        if len(column):
            column[rows] = values


def _replay(order: Order, times: OperationTimes, method: str, outputs: Replays) -> None:
    status = kernels.UNSURE
    if method == "lanes":
        rows = np.arange(len(times.which))
        status = pipeline_lanes.replay_lanes(programs.compile_lanes(order), times, rows, outputs)
    elif method == "jump":
        status = _jump(order, times, outputs)
    if status == kernels.UNSURE:
        status, _ = _direct(order, times, outputs)
    check_status(status)


def fastest_method(order: Order, n: int) -> str:
    """Return the way that ``auto`` selects for n configurations."""
    if n < MIN_BATCH:
        return "direct"
    # A search for a period is spared where even one of a single microbatch would not pay.
    if order.microbatches > JUMP_COST * Series.MIN_PERIODS:
        forking = programs.compile_forks(order)
        if forking is not None and JUMP_COST * forking.expected_operations() < len(order.kind):
            return "jump"
    return "lanes"


def replay(order: Order, duration_ps: ArrayLike, p2p_ps: ArrayLike) -> Timeline:
    """Run one configuration and keep every operation; a batch of one of :func:`replay_batch`."""
    batch = np.asarray(duration_ps)[np.newaxis], np.asarray(p2p_ps)[np.newaxis]
    times = operation_times(order.pp, order.vpp, *batch)
    summary = programs.empty_replays(order.pp, order.vpp, 1)
    status, ends_ps = _direct(order, times, summary)
    check_status(status)
    line = compile_line(order)
    end_ps = ends_ps[line.slot]
    index = line.line[line.slot - 1, kernels.DURATION]
    return Timeline(end_ps - times.duration_ps[0, index], end_ps, summary)


def operation_times(
    pp: int,
    vpp: int,
    duration_ps: ArrayLike,
    p2p_ps: ArrayLike | None,
    which: ArrayLike | None = None,
    column: Ints | None = None,
) -> OperationTimes:
    """Check the times of :func:`replay_batch`, or of `Wanted`, and cast them."""
    durations = _column(duration_ps, np.int64)
    n = len(durations)
    latencies = np.empty((0, 2, pp * vpp), np.int64)
    if p2p_ps is not None:
        latencies = _column(p2p_ps, np.int64)
    expected = (0 if p2p_ps is None else n, 2, pp * vpp)
    shape = (pp, vpp, 3, 3) if column is None else (column.max() + 1,)
    if durations.shape != (n, *shape) or latencies.shape != expected:
        raise ValueError(
            f"durations of shape {durations.shape} and latencies of shape {latencies.shape} do "
            f"not fit {n} configurations of {pp} ranks with {vpp} chunks"
        )
    durations = durations.reshape(n, np.prod(shape))
    if which is None:
        return OperationTimes(durations, latencies, np.arange(n))
    rows = _column(which, np.int64)
    if len(rows) and not 0 <= rows.min() <= rows.max() < n:
        raise ValueError(f"rows of configurations must lie from 0 to {n - 1}")
    return OperationTimes(durations, latencies, rows)


def _direct(order: Order, times: OperationTimes, outputs: Replays) -> tuple[int, Ints]:
    """Return the status, and the end of each slot of the line in the last configuration."""
    end_ps = np.empty(len(order.kind) + 1, np.int64)
    return kernels.replay_batch(compile_line(order), times, end_ps, outputs), end_ps


def _jump(order: Order, times: OperationTimes, outputs: Replays) -> int:
    forking = programs.compile_forks(order)
    if forking is None:
        return kernels.UNSURE
    rows = np.arange(len(times.which))
    counts = np.full_like(rows, order.microbatches)
    # Each is a configuration of its own.
    forks, _ = programs.fork_runs(rows, (counts - forking.least) // forking.each, rows)
    start_ps, end_ps, work_ps, last_ps = outputs
    ends = Ends(rows.copy(), np.empty_like(rows), start_ps, end_ps, last_ps)
    status = replay_forks(forking.program, times, forks, ends)
    if status == kernels.OK:
        start_ps[:] = start_ps[ends.row]
        end_ps[:] = end_ps[ends.row] + ends.later_ps[:, None]
        last_ps[:] = last_ps[ends.row] + ends.later_ps[:, None, None]
        work_ps[:] = _work_ps(order, times)
    return status


def _work_ps(order: Order, times: OperationTimes) -> Ints:
    """Return what each rank works in each configuration, ``int64[n, pp]``."""
    line = compile_line(order)
    first = np.searchsorted(line.used, np.arange(order.pp) * order.vpp * 9)
    work_ps: Ints = np.add.reduceat(
        times.duration_ps[times.which[:, None], line.used] * line.uses, first, axis=1
    )
    return work_ps


def replay_of(ends: Ends, duration_ps: Ints, microbatches: int) -> Replays:
    """Return the one replay of some ends, whose work follows from ``int64[1, pp, vpp, 3, 3]``."""
    row, later_ps = slice(ends.row[0], ends.row[0] + 1), ends.later_ps[0]
    forward, backward, weight = (duration_ps[:, :, :, kind] for kind in range(3))
    least_ps = forward[..., 0] + backward[..., LAST] + weight[..., LAST]
    each_ps = forward[..., MIDDLE] + backward[..., MIDDLE] + weight[..., MIDDLE]
    return Replays(
        ends.rank_start_ps[row],
        ends.rank_end_ps[row] + later_ps,
        (least_ps + (microbatches - 1) * each_ps).sum(axis=2),
        ends.last_backward_end_ps[row] + later_ps,
    )


def check_status(status: int) -> None:
    """Raise where a kernel has met a time that is out of range."""
    if status != kernels.OK:
        limit = kernels.MAX_PS / PS_PER_S
        msg = f"a time of the schedule is negative or the step is longer than {limit:.3g} s"
        raise NumericError(msg, key="time", allowed=f"0 <= time <= {limit:.3g} s")


def peak_bytes(
    order: Order, activation_bytes: ArrayLike, w_share: ArrayLike = 0.0
) -> tuple[Floats, Ints]:
    """Return the largest memory of activations that each rank holds at one time.

    ``activation_bytes`` (``float64[n, pp, vpp]``) is what one microbatch leaves in one chunk from
    its F to its B; the share ``w_share`` of it stays until W, where the order has W. Returns the
    bytes at the peak, ``float64[n, pp]``, and the microbatches between F and B of each chunk then,
    ``int64[n, pp, vpp]``; the first such state where several hold the same.
    """
    held = _column(activation_bytes, np.float64)
    n = len(held)
    if held.shape != (n, order.pp, order.vpp):
        msg = f"bytes of shape {held.shape} do not fit {order.pp} ranks with {order.vpp} chunks"
        raise ValueError(msg)
    shares = np.broadcast_to(np.asarray(w_share, np.float64), n).copy()
    if not np.all((shares >= 0.0) & (shares <= 1.0)):
        raise ValueError(f"w_share must lie between 0 and 1, not {w_share!r}")
    peaks = compile_peaks(order)
    peak = np.empty((n, order.pp), np.float64)
    in_flight = np.empty((n, order.pp, 2, order.vpp), np.int64)
    kernels.peak_bytes(peaks.offset, peaks.state, held, shares, peak, in_flight)
    return peak, in_flight[:, :, 0]


def peak_in_flight(order: Order) -> Ints:
    """Return the most microbatch-chunks on each rank, F to B (or W), ``int64[pp]``."""
    ones = np.ones((1, order.pp, order.vpp))
    peak, _ = peak_bytes(order, ones, w_share=1.0 if order.splits_backward else 0.0)
    count: Ints = peak[0].astype(np.int64)
    return count


def _column(values: ArrayLike, dtype: type) -> NDArray[Any]:
    """Cast for a kernel. Never floats to integers; writable, or numba would compile once more."""
    given: NDArray[Any] = np.asarray(values)
    cast: NDArray[Any] = given.astype(dtype, order="C", casting="same_kind", copy=False)
    return cast if cast.flags.writeable else cast.copy()


FEW_OPERATIONS = 1 << 16
"""Few runs of orders no longer than this, all together, are replayed before a series of orders is
compiled."""


class Wanted(NamedTuple):
    """Times of all runs, and where their replays are written."""

    duration_ps: ArrayLike
    """``int64[rows, pp, vpp, 3, 3]``: by rank, chunk, kind and class, as in `replay_batch`; with
    ``column`` ``int64[rows, columns]``."""
    p2p_ps: ArrayLike | None
    """``int64[rows, 2, pp * vpp]``: latencies, as in `replay_batch`."""
    into: Ends
    """Output; of `empty_ends`, but for columns without rows, which are left out."""
    column: Ints | None = None
    """``int64[pp, vpp, 3, 3]``: which of the columns each duration has."""


def replay_chosen(
    orders: Sequence[ChosenOrder], order_of_run: Ints, times_of_run: Ints, batches: Sequence[Wanted]
) -> None:
    """Run many orders, each with the times of its row; runs with the same follow one another."""
    numbers: dict[Series | Order, int] = {}
    group_of_order = np.zeros(len(orders), np.int64)
    for number in np.flatnonzero(np.bincount(order_of_run)).tolist():
        chosen = orders[number]
        alike = chosen.setting.series() if chosen.planned is None else chosen.planned
        group_of_order[number] = numbers.setdefault(alike, len(numbers))
    counts = np.array([chosen.setting.microbatches for chosen in orders], np.int64)
    runs, begin = rows_by_number(group_of_order.take(order_of_run), len(numbers))
    for alike, number in numbers.items():
        some = runs[begin[number] : begin[number + 1]]
        which = times_of_run.take(some)
        if isinstance(alike, Series):
            replay_counts(alike, counts, order_of_run.take(some), which, some, batches)
        else:
            for batch in batches:
                times = operation_times(alike.pp, alike.vpp, *batch[:2], which, batch.column)
                replay_ends(alike, times, some, batch)


def replay_counts(
    series: Series,
    microbatches: Ints,
    order_of_run: Ints,
    which: Ints,
    rows: Ints,
    batches: Sequence[Wanted],
) -> None:
    """Run orders of a series, each with times of its own, bit for bit as each order alone.

    ``microbatches`` (``int64[orders]``) are those of any orders; ``order_of_run`` (``int64[n]``)
    says which of them each run has, all of this series. ``which`` is the row of the times that each
    run has; runs with the same times follow one another. ``rows`` says where each is written. All
    runs are run with the times of each of ``batches``.
    """
    times = [
        operation_times(series.pp, series.vpp, *batch[:2], which, batch.column) for batch in batches
    ]
    here = np.bincount(order_of_run, minlength=len(microbatches)) > 0
    left = np.ones((len(batches), len(rows)), np.bool_)
    for forking in _forking(series, np.unique(microbatches[here]), len(which)):
        periods, rest = np.divmod(microbatches - forking.least, forking.each)
        forked = here & (rest == 0) & (periods >= 0) & (microbatches >= series.least)
        program = programs.with_columns(forking.program, batches[0].column)
        pieces = [np.flatnonzero(forked.take(order_of_run))]
        while pieces:
            runs = pieces.pop()
            forks, chosen = programs.fork_runs(
                which.take(runs), periods.take(order_of_run.take(runs)), rows.take(runs)
            )
            status = [
                replay_forks(program, some._replace(which=chosen), forks, batch.into)
                for some, batch in zip(times, batches, strict=True)
            ]
            if kernels.UNSURE in status and len(runs) > 1:
                # Of runs side by side the longest time and the most periods may be of two.
                pieces += np.array_split(runs, 2)
            else:
                left[:, runs] = np.array(status)[:, None] != kernels.OK
    for batch, some, still in zip(batches, times, left, strict=True):
        _replay_orders(series, microbatches, still, order_of_run, some, rows, batch)


def _replay_orders(
    series: Series,
    microbatches: Ints,
    wanted: Flags,
    order_of_run: Ints,
    times: OperationTimes,
    rows: Ints,
    batch: Wanted,
) -> None:
    runs = np.flatnonzero(wanted)
    by_order, begin = rows_by_number(order_of_run.take(runs), len(microbatches))
    for number in np.flatnonzero(np.diff(begin)).tolist():
        some = runs.take(by_order[begin[number] : begin[number + 1]])
        batch.into.row[rows[some]], batch.into.later_ps[rows[some]] = rows[some], 0
        order = series.order(int(microbatches[number]))
        replay_ends(order, times._replace(which=times.which.take(some)), rows.take(some), batch)


def _forking(series: Series, counts: Ints, runs: int) -> list[programs.ForkingOrder]:
    """Return what orders of these lengths have in common, where it is worth its compilation."""
    if not series.every:
        return []
    few = FEW_OPERATIONS if runs < MIN_BATCH else 0
    found = []
    for rest in np.unique(counts % series.every).tolist():
        alike = counts[counts % series.every == rest]
        longest = series.with_period(rest)
        if alike.sum() > longest and alike.sum() * 3 * series.pp * series.vpp > few:
            found.append(_compiled(series, longest))
    return [forking for forking in found if forking is not None]


@lru_cache(maxsize=512)
def _compiled(series: Series, microbatches: int) -> programs.ForkingOrder | None:
    order = series.order(microbatches)
    forking = programs.compile_forks(order)
    if forking is None:
        return None
    # Each copy of the model runs a share of them.
    copies = microbatches // order.microbatches
    forking = forking._replace(least=copies * forking.least, each=copies * forking.each)
    return forking if forking.each == series.every else None
