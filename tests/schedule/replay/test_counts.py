"""Orders of many lengths in one replay give what each of them gives alone."""

import itertools

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.pipelines import assert_same, mixed_times, replays_of, without_work
from projector.errors import NumericError, ScheduleError
from projector.kernels import pipeline as kernels
from projector.schedule import registry
from projector.schedule.order import FORWARD
from projector.schedule.replay import order_times
from projector.schedule.replay.order_times import Wanted, compile_peaks, replay_batch, replay_counts
from projector.schedule.replay.programs import empty_ends, empty_replays
from reference import pipeline as reference
from thoroughness import examples

JIT = not numba.config.DISABLE_JIT
ONE_CHUNK = ("1f1b", "zerobubble", "zerobubble-h2")
SIZES = [
    *((name, pp, 1, None) for name in ONE_CHUNK for pp in range(1, 6)),
    ("gpipe", 3, 1, None),
    *(("zbv-formatted", pp, 2, None) for pp in range(2, 6)),
    *(("1f1b-v", pp, 2, None) for pp in range(2, 8)),
    *(("dualpipe", pp, 1, None) for pp in (2, 4, 6)),
    *(("interleaved", pp, vpp, None) for pp in range(2, 5) for vpp in (2, 3)),
    ("interleaved", 2, 2, 3),
    ("interleaved", 3, 2, 6),
]
ONE_OF_EACH = [size for index, size in enumerate(SIZES) if index % 4 == 1]
REPEATING = [size for size in (SIZES if JIT else ONE_OF_EACH) if registry.series(*size).every]


def legal(series, counts):
    """The orders of those numbers of microbatches that a schedule can run."""
    found = {}
    for count in counts:
        try:
            found[count] = series.order(count)
        except ScheduleError:
            continue
    return found


def replay_each(series, counts, durations, latencies, which):
    """Every run by itself."""
    replays = empty_replays(series.pp, series.vpp, len(counts))
    for run, count in enumerate(counts.tolist()):
        latency = None if latencies is None else latencies[which[run : run + 1]]
        alone = replay_batch(
            series.order(count), durations[which[run : run + 1]], latency, "direct"
        )
        for column, value in zip(replays, alone, strict=True):
            column[run] = value[0]
    return without_work(replays)


def replay_together(series, counts, durations, latencies, which):
    """All runs in one call, those with the same times one after the other."""
    ends = empty_ends(series.pp, series.vpp, len(counts))
    by_times = np.argsort(which, kind="stable")
    rows = np.random.default_rng(0).permutation(len(counts))[by_times]
    run_counts(series, counts[by_times], which[by_times], rows, Wanted(durations, latencies, ends))
    return replays_of(ends, rows[np.argsort(by_times)])


def run_counts(series, counts, which, rows, *batches):
    # Other orders may stand among those of the series.
    orders, order_of_run = np.unique(np.append(counts, 7), return_inverse=True)
    replay_counts(series, orders, order_of_run[:-1], which, rows, batches)


@settings(max_examples=examples(60 if JIT else 2), deadline=None)
@given(
    st.sampled_from(SIZES if JIT else ONE_OF_EACH),
    st.lists(st.integers(1, 90 if JIT else 12), min_size=1, max_size=40),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
def test_every_number_of_microbatches(size, counts, seed, silent):
    series = registry.series(*size)
    scale = 2 if size[0] == "dualpipe" else series.every or 1
    orders = legal(series, {count * factor for count in counts for factor in (1, scale)})
    if not orders:
        return
    rng = np.random.default_rng(seed)
    durations, latencies = mixed_times(next(iter(orders.values())), seed, 70 if JIT else 3)
    counts = rng.choice(list(orders), 200 if JIT else 4)
    which = rng.integers(0, len(durations), len(counts))
    times = durations, None if silent else latencies, which
    assert_same(replay_together(series, counts, *times), replay_each(series, counts, *times))


@pytest.mark.parametrize("size", REPEATING)
def test_longer_orders_have_one_more_period(size):
    """What stands before the period and behind it is the same in both."""
    series = registry.series(*size)
    begin = series.least
    orders = legal(series, range(begin, begin + 3 * series.every + 8))
    assert orders
    for count, order in orders.items():
        longer = series.order(count + series.every)
        more = longer.microbatches - order.microbatches
        for rank in range(order.pp):
            short, long = tasks_of(order, rank), tasks_of(longer, rank)
            pairs = zip(short, long, strict=False)
            before = list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            behind = [(kind, chunk, number + more) for kind, chunk, number in short[len(before) :]]
            assert long[len(long) - len(behind) :] == behind


def tasks_of(order, rank):
    rows = slice(order.rank_offset[rank], order.rank_offset[rank + 1])
    columns = order.kind[rows], order.chunk[rows], order.microbatch[rows]
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("size", REPEATING)
def test_short_orders_hold_as_much_as_long_ones(size):
    series = registry.series(*size)
    for count in legal(series, range(1, series.least + 4 * series.every + 8)):
        short = series.with_all_peaks(count)
        assert short <= count
        assert compile_peaks(series.order(short)).key == compile_peaks(series.order(count)).key


def test_one_job_is_a_batch_of_one():
    series = registry.series("1f1b", 3, 1)
    durations, latencies = mixed_times(series.order(3), 1, 1)
    for count in (1, 3, 40, 4000 if JIT else 41):
        counts, which = np.array([count]), np.zeros(1, np.int64)
        times = durations, latencies, which
        assert_same(replay_together(series, counts, *times), replay_each(series, counts, *times))


@pytest.mark.skipif(not JIT, reason="slow as Python")
def test_many_microbatches_beside_long_times_list_no_order(monkeypatch):
    """The longest time of some runs and the most microbatches of others would be too much."""
    series = registry.series("1f1b", 4, 1)
    durations, _ = mixed_times(series.order(40), 1, 40)
    durations = 1000 + durations % 1000
    durations[7] += kernels.MAX_PS // 2**17
    counts, which = np.full(40, 40), np.arange(40)
    counts[12] = 1 << 15
    times = durations, None, which
    each = replay_each(series, counts, *times)
    monkeypatch.setattr(order_times, "replay_ends", None)
    assert_same(replay_together(series, counts, *times), each)


def simulated_ends(order, durations, latencies):
    """When each rank ends, from a plain simulation of events."""
    last = order.microbatches - 1

    def duration(rank, chunk, kind, microbatch):
        index = (0 if microbatch == 0 else 1) if kind == "F" else 1 + (microbatch == last)
        return int(durations[rank, chunk, "FBW".index(kind), index])

    def latency(source, target):
        return int(latencies[int(target < source), source])

    ranks, placement = reference.tasks_of(order), order.stage_of.tolist()
    spans = reference.simulate(ranks, placement, duration, latency, order.microbatches)
    return [
        max(spans[kind, stages[chunk], number][1] for kind, chunk, number in tasks)
        for tasks, stages in zip(ranks, placement, strict=True)
    ]


@pytest.mark.parametrize("size", [("1f1b", 4, 1), ("zerobubble", 3, 1), ("interleaved", 2, 2)])
def test_runs_follow_the_events(size):
    series = registry.series(*size)
    lengths = [8, 30, 70, 600] if JIT else [8, 30]
    durations, latencies = mixed_times(series.order(8), 2, 7)
    counts, which = np.repeat(lengths, 7), np.tile(np.arange(7), len(lengths))
    replays = replay_together(series, counts, durations, latencies, which)
    for run, (count, row) in enumerate(zip(counts.tolist(), which.tolist(), strict=True)):
        ends = simulated_ends(series.order(count), durations[row], latencies[row])
        assert replays.rank_end_ps[run].tolist() == ends


def test_columns_without_rows_are_left_out():
    series = registry.series("zerobubble", 3, 1)
    durations, latencies = mixed_times(series.order(8), 4, 14)
    counts, which = np.tile([1, 9, 50, 300], 14), np.repeat(np.arange(14), 4)
    whole = replay_together(series, counts, durations, latencies, which)
    rows = np.arange(len(counts))
    for name in ("rank_start_ps", "last_backward_end_ps"):
        ends, part = empty_ends(3, 1, len(counts)), empty_ends(3, 1, len(counts))
        given = part._replace(**{name: getattr(part, name)[:0]})
        twice = Wanted(durations, None, ends), Wanted(durations, latencies, given)
        run_counts(series, counts, which, rows, *twice)
        getattr(part, name)[:] = 0
        found = replays_of(part)
        for field in {"rank_start_ps", "rank_end_ps", "last_backward_end_ps"} - {name}:
            np.testing.assert_array_equal(getattr(found, field), getattr(whole, field))
        assert_same(replays_of(ends), replay_together(series, counts, durations, None, which))


def test_runs_that_have_settled_share_a_row():
    series = registry.series("1f1b", 4, 1)
    durations = np.full((10, 4, 1, 3, 3), 1000)
    counts, which = np.tile([300, 9, 70, 20], 10), np.repeat(np.arange(10), 4)
    ends = empty_ends(4, 1, len(counts))
    run_counts(series, counts, which, np.arange(40), Wanted(durations, None, ends))
    assert_same(replays_of(ends), replay_each(series, counts, durations, None, which))
    assert len(np.unique(ends.row)) == 10


@pytest.mark.parametrize("size", [*ONE_OF_EACH, ("interleaved", 2, 5, None)])
@pytest.mark.parametrize("counts", [[1, 9, 70, 300], [24], [12, 13]])
def test_durations_that_are_equal_share_a_column(size, counts):
    """Of any columns, whoever has which; in lanes, in forks and where orders are run directly."""
    series = registry.series(*size)
    legal_counts = [count * (series.every or 2) for count in counts]
    rng = np.random.default_rng(sum(legal_counts))
    n, shape = (40 if len(counts) == 1 else 9), (series.pp, series.vpp, 3, 3)
    column = rng.integers(0, 6, shape)
    column.flat[-1] = 5
    columns, latencies = rng.integers(0, 90, (n, 6)), rng.integers(0, 9, (n, 2, column.size // 9))
    counts, which = np.tile(legal_counts, n), np.repeat(np.arange(n), len(legal_counts))
    for latency in (None, latencies):
        ends = empty_ends(series.pp, series.vpp, len(counts))
        wanted = Wanted(columns, latency, ends, column)
        run_counts(series, counts, which, np.arange(len(counts)), wanted)
        expected = replay_each(series, counts, columns[:, column], latency, which)
        assert_same(replays_of(ends), expected)


@pytest.mark.parametrize("count", [8, 200])
def test_what_is_out_of_range_is_refused(count):
    series = registry.series("1f1b", 2, 1)
    durations, latencies = mixed_times(series.order(8), 3, 5)
    counts, which = np.full(40, count), np.arange(40) // 8
    for value in (-1, kernels.MAX_DURATION_PS + 1, kernels.MAX_DURATION_PS):
        durations[2, 1, 0, FORWARD, 1] = value
        with pytest.raises(NumericError):
            replay_together(series, counts, durations, latencies, which)


def test_ends_near_the_limit_are_replayed_alone():
    series = registry.series("1f1b", 1, 1)
    durations = np.full((1, 1, 1, 3, 3), kernels.MAX_PS // 80)
    counts, which = np.array([40, 39, 38, 1]), np.zeros(4, np.int64)
    times = durations, None, which
    together = replay_together(series, counts, *times)
    assert together.makespan_ps.max() > kernels.SAFE_PS
    assert_same(together, replay_each(series, counts, *times))
