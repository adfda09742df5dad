"""The replay against an event simulation, on orders that are schedules and on some made here."""

import numba
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernels.pipelines import (
    assert_same,
    greedy_order,
    order_from,
    planned_order,
    random_times,
    uniform_times,
)
from projector.errors import NumericError, ScheduleError
from projector.kernels import pipeline as kernels
from projector.schedule import order as order_module
from projector.schedule import registry
from projector.schedule.order import BACKWARD, FORWARD, WEIGHT, check_complete, check_order
from projector.schedule.orders.forward_backward import interleaved
from projector.schedule.replay.order_times import (
    compile_line,
    compile_peaks,
    peak_bytes,
    peak_in_flight,
    replay,
    replay_batch,
    to_ps,
)
from projector.schedule.replay.programs import empty_replays
from reference import pipeline as reference

# Without the JIT there is no time for a search for each example.
SCHEDULES = [
    entry.name
    for entry in registry.SCHEDULES.values()
    if not (entry.planned and numba.config.DISABLE_JIT)
]


@st.composite
def orders(draw):
    kind = draw(st.sampled_from(["greedy", "greedy-split", *SCHEDULES]))
    if kind.startswith("greedy"):
        return greedy_order(
            draw(st.integers(1, 4)),
            draw(st.integers(1, 5)),
            draw(st.integers(0, 99)),
            kind.endswith("split"),
        )
    if kind == "interleaved":
        pp = draw(st.integers(2, 4))
        return registry.build(kind, pp, draw(st.integers(2, 3)), pp * draw(st.integers(1, 3)))
    if kind == "dualpipe":
        pp = 2 * draw(st.integers(1, 3))
        return registry.build(kind, pp, 1, 2 * pp + 2 * draw(st.integers(0, 4)))
    entry = registry.SCHEDULES[kind]
    vpp = entry.chunks(1)
    pp, microbatches = draw(st.integers(vpp, 5)), draw(st.integers(1, 9))
    if entry.planned:
        return planned_order(kind, pp, microbatches, draw(st.integers(0, 99)))
    return registry.build(kind, pp, vpp, microbatches)


def assert_summary_fits(order, timeline):
    """The summary says what the timeline of the operations says."""
    summary = timeline.summary
    starts = np.split(timeline.start_ps, order.rank_offset[1:-1])
    ends = np.split(timeline.end_ps, order.rank_offset[1:-1])
    assert summary.makespan_ps[0] == timeline.end_ps.max()
    assert summary.rank_start_ps[0].tolist() == [min(times) for times in starts]
    assert summary.rank_end_ps[0].tolist() == [max(times) for times in ends]
    busy = [(end - start).sum() for start, end in zip(starts, ends, strict=True)]
    assert summary.rank_busy_ps[0].tolist() == busy
    closing = WEIGHT if order.splits_backward else BACKWARD
    for rank in range(order.pp):
        for chunk in range(order.vpp):
            mine = (order.rank == rank) & (order.chunk == chunk) & (order.kind == closing)
            assert summary.last_backward_end_ps[0, rank, chunk] == timeline.end_ps[mine].max()


@given(order=orders(), seed=st.integers(0, 2**32))
@example(order=registry.build("1f1b", 1, 1, 1), seed=0)
@example(order=registry.build("1f1b", 5, 1, 2), seed=0)  # fewer microbatches than ranks
def test_replay_matches_event_simulation(order, seed):
    durations, latencies = random_times(order, seed)
    last = order.microbatches - 1

    def duration(rank, chunk, kind, microbatch):
        index = 1
        if kind == "F" and microbatch == 0:
            index = 0
        elif kind != "F" and microbatch == last:
            index = 2
        return int(durations[0, rank, chunk, "FBW".index(kind), index])

    def latency(source, target):
        return int(latencies[0, 0 if target > source else 1, source])

    expected = reference.simulate(
        reference.tasks_of(order),
        order.stage_of.tolist(),
        duration,
        latency,
        order.microbatches,
        order.num_stages,
    )
    timeline = replay(order, durations[0], latencies[0])
    tasks = [
        expected["FBW"[kind], stage, microbatch]
        for kind, stage, microbatch in zip(order.kind, order.stage, order.microbatch, strict=True)
    ]
    assert timeline.start_ps.tolist() == [start for start, _ in tasks]
    assert timeline.end_ps.tolist() == [end for _, end in tasks]
    assert_summary_fits(order, timeline)
    for method in ("direct", "lanes", "jump"):
        replays = replay_batch(order, durations, latencies, method=method)
        assert_same(replays, timeline.summary)


@given(order=orders(), seed=st.integers(0, 2**32), n=st.integers(0, 4))
def test_batch_equals_singles(order, seed, n):
    durations, latencies = random_times(order, seed, n, high=10**9)
    batch = replay_batch(order, durations, latencies)
    for config in range(n):
        single = replay(order, durations[config], latencies[config]).summary
        for together, alone in zip(batch, single, strict=True):
            assert together[config].tolist() == alone[0].tolist()


@given(order=orders(), seed=st.integers(0, 2**32))
def test_longer_operations_and_latencies_never_help(order, seed):
    durations, latencies = random_times(order, seed)
    more, farther = random_times(order, seed + 1)
    base = replay(order, durations[0], latencies[0])
    for longer in (
        replay(order, (durations + more)[0], latencies[0]),
        replay(order, durations[0], (latencies + farther)[0]),
    ):
        assert np.all(longer.end_ps >= base.end_ps)


@given(order=orders(), seed=st.integers(0, 2**32), w_share=st.sampled_from([0.0, 0.25, 1.0]))
def test_peak_matches_walk(order, seed, w_share):
    sizes = np.random.default_rng(seed).integers(0, 100, (2, order.pp, order.vpp)) * 1.0
    peak, in_flight = peak_bytes(order, sizes, w_share)
    for config in range(2):
        for rank, tasks in enumerate(reference.tasks_of(order)):
            expected = reference.peak_bytes(
                tasks, sizes[config, rank].tolist(), order.splits_backward, w_share
            )
            assert peak[config, rank] == expected
            if not order.splits_backward:
                assert in_flight[config, rank] @ sizes[config, rank] == expected


@given(order=orders())
def test_drawn_orders_are_legal(order):
    check_order(order)


@pytest.mark.parametrize("seed", range(3))
def test_kernels_and_python_agree(seed):
    # The functions that numba compiles must run as Python too, for coverage and debuggers.
    order = greedy_order(3, 4, seed)
    durations, latencies = random_times(order, seed)
    line = compile_line(order)
    python = [np.empty_like(line.line), np.empty_like(line.slot)]
    columns = (order.rank_offset, order.kind, order.chunk)
    plain = getattr(kernels.compile_line, "py_func", kernels.compile_line)
    assert plain(*columns, order.microbatch, order.stage_of, 6, 4, *python) == kernels.OK
    np.testing.assert_array_equal(python[0], line.line)
    np.testing.assert_array_equal(python[1], line.slot)

    end = np.empty(len(order.kind) + 1, np.int64)
    replays = empty_replays(order.pp, order.vpp, 1)
    plain = getattr(kernels.replay_batch, "py_func", kernels.replay_batch)
    times = kernels.OperationTimes(durations.reshape(1, -1), latencies, np.zeros(1, np.int64))
    assert plain(line, times, end, replays) == kernels.OK
    compiled = replay_batch(order, durations, latencies)
    for mine, theirs in zip(replays, compiled, strict=True):
        np.testing.assert_array_equal(mine, theirs)

    offset = np.empty(4, np.int64)
    plain = getattr(kernels.compile_peaks, "py_func", kernels.compile_peaks)
    states = plain(*columns, 2, True, offset)
    np.testing.assert_array_equal(offset, compile_peaks(order).offset)
    np.testing.assert_array_equal(states, compile_peaks(order).state)


def test_more_states_than_fit_the_first_table():
    order = registry.build("interleaved", 8, 4, 16)
    assert len(compile_peaks(order).state) > 16
    sizes = np.random.default_rng(0).integers(1, 100, (1, 8, 4)) * 1.0
    expected = [
        reference.peak_bytes(tasks, sizes[0, rank].tolist(), False, 0.0)
        for rank, tasks in enumerate(reference.tasks_of(order))
    ]
    assert peak_bytes(order, sizes)[0][0].tolist() == expected


def test_only_states_that_can_be_a_peak_are_kept():
    assert len(compile_peaks(registry.build("1f1b", 8, 1, 32)).state) == 8


def test_first_of_equal_peaks_is_reported():
    order = registry.build("interleaved", 2, 2, 4)
    peaks = compile_peaks(order)
    first = peaks.state[peaks.offset[:-1], :2]
    peak, in_flight = peak_bytes(order, np.ones((1, 2, 2)))
    assert peaks.state.sum(axis=1).tolist() == np.repeat(peak[0], np.diff(peaks.offset)).tolist()
    assert np.all(np.diff(peaks.offset) > 1)
    assert in_flight[0].tolist() == first.tolist()


def test_single_microbatch_has_first_forward_and_last_backward():
    order = registry.build("1f1b", 2, 1, 1)
    durations = np.full((2, 1, 3, 3), 10**6)
    durations[:, 0, FORWARD, kernels.FIRST] = 3
    durations[:, 0, BACKWARD, kernels.LAST] = 5
    timeline = replay(order, durations, np.zeros((2, 2), np.int64))
    assert timeline.summary.makespan_ps.tolist() == [16]


def test_latency_only_between_ranks():
    # Stages 1 and 2 of a V with two ranks share rank 1.
    order = greedy_order(2, 1, 0, split=False)
    timeline = replay(order, *uniform_times(order, 0, 7))
    assert timeline.summary.makespan_ps.tolist() == [4 * 7]


def test_zero_durations_take_no_time():
    order = registry.build("interleaved", 4, 2, 8)
    timeline = replay(order, *uniform_times(order, 0))
    assert not timeline.end_ps.any()


def test_unused_durations_are_not_read():
    order = registry.build("1f1b", 2, 1, 2)
    durations, latencies = uniform_times(order, 1)
    durations[:, :, WEIGHT] = -1
    assert replay(order, durations, latencies).summary.makespan_ps.tolist() == [6]


@pytest.mark.parametrize("duration", [-1, kernels.MAX_DURATION_PS + 1])
def test_duration_out_of_range(duration):
    order = registry.build("1f1b", 2, 1, 2)
    durations, latencies = uniform_times(order, 1)
    durations[1, 0, BACKWARD, kernels.LAST] = duration
    with pytest.raises(NumericError, match="negative or the step is longer"):
        replay(order, durations, latencies)


@pytest.mark.parametrize("latency", [-1, kernels.MAX_DURATION_PS + 1])
def test_latency_out_of_range(latency):
    order = registry.build("1f1b", 2, 1, 2)
    with pytest.raises(NumericError):
        replay(order, *uniform_times(order, 1, latency))


def test_end_out_of_range_is_a_status_and_not_a_wrap():
    order = registry.build("1f1b", 1, 1, 2)
    quarter = kernels.MAX_PS // 4
    exact = replay(order, *uniform_times(order, quarter))
    assert exact.summary.makespan_ps.tolist() == [kernels.MAX_PS]
    durations, latencies = uniform_times(order, quarter)
    order = registry.build("1f1b", 1, 1, 3)
    with pytest.raises(NumericError):
        replay(order, durations, latencies)
    # One bad configuration refuses the batch: there is no partial result.
    good = np.ones_like(durations)
    with pytest.raises(NumericError):
        replay_batch(order, [good, durations], [latencies, latencies])


def test_deadlock_is_an_error():
    order = order_from(
        [[("F", 0, 0), ("B", 0, 0)], [("B", 0, 0), ("F", 0, 0)]], [[0], [1]], microbatches=1
    )
    check_complete(order)
    with pytest.raises(ScheduleError, match="waits for ever"):
        compile_line(order)


def test_wrong_shapes():
    order = registry.build("1f1b", 2, 1, 2)
    durations, latencies = uniform_times(order, 1)
    with pytest.raises(ValueError, match="do not fit"):
        replay(order, durations[:1], latencies)
    with pytest.raises(ValueError, match="do not fit"):
        replay(order, durations, latencies[:, :1])
    with pytest.raises(ValueError, match="do not fit"):
        peak_bytes(order, np.ones((1, 2, 2)))
    with pytest.raises(ValueError, match="w_share"):
        peak_bytes(order, np.ones((1, 2, 1)), w_share=1.5)


def test_fractions_of_a_picosecond_are_refused():
    order = registry.build("1f1b", 2, 1, 2)
    durations, latencies = uniform_times(order, 1)
    with pytest.raises(TypeError, match="same_kind"):
        replay(order, durations * 1.5, latencies)


def test_arguments_may_be_read_only_and_strided():
    order = registry.build("1f1b", 2, 1, 2)
    durations = np.broadcast_to(np.int64(1), (2, 1, 3, 3))
    latencies = np.zeros((4, 2), np.int64)[::2]
    latencies.setflags(write=False)
    assert replay(order, durations, latencies).summary.makespan_ps.tolist() == [6]


@pytest.mark.parametrize("seconds", [-1e-12, np.nan, np.inf, 1.2e6])
def test_seconds_out_of_range(seconds):
    with pytest.raises(NumericError):
        to_ps([0.0, seconds])


def test_seconds_are_rounded_once():
    assert to_ps([0.0, 1.0, 0.4e-12, 0.6e-12, 1e6]).tolist() == [0, 10**12, 0, 1, 10**18]


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("pp", "microbatches"), [(1, 1), (4, 3), (8, 32)])
def test_closed_form_of_uniform_stages(name, pp, microbatches):
    order = registry.build(name, pp, 1, microbatches)
    durations, latencies = uniform_times(order, 0)
    durations[:, :, FORWARD], durations[:, :, BACKWARD] = 3, 7
    makespan = replay(order, durations, latencies).summary.makespan_ps
    assert makespan.tolist() == [(microbatches + pp - 1) * 10]


@pytest.mark.parametrize(("pp", "vpp", "microbatches"), [(2, 2, 2), (4, 3, 8), (8, 4, 32)])
def test_closed_form_of_interleaved(pp, vpp, microbatches):
    order = registry.build("interleaved", pp, vpp, microbatches)
    durations, latencies = uniform_times(order, 0)
    durations[:, :, FORWARD], durations[:, :, BACKWARD] = 3, 7
    makespan = replay(order, durations, latencies).summary.makespan_ps
    assert makespan.tolist() == [(vpp * microbatches + pp - 1) * 10]


def test_gpipe_closed_form_with_latency():
    order = registry.build("gpipe", 4, 1, 6)
    timeline = replay(order, *uniform_times(order, 10, 4))
    # Latency delays the first microbatch on its way there and the last one on its way back.
    assert timeline.summary.makespan_ps.tolist() == [2 * (6 + 3) * 10 + 2 * 3 * 4]


def test_last_backward_of_each_chunk():
    # The gradients of the last chunk are complete first, those of the first chunk last.
    order = registry.build("interleaved", 4, 2, 8)
    summary = replay(order, *uniform_times(order, 10)).summary
    ends = summary.last_backward_end_ps[0]
    assert np.all(ends[:, 0] > ends[:, 1])
    assert ends[0, 0] == summary.makespan_ps[0]


def test_larger_groups_hold_more():
    small, large = (interleaved(4, 2, 16, group_size=size) for size in (4, 8))
    check_order(large)
    assert peak_in_flight(large)[0] == peak_in_flight(small)[0] + 4


def test_kinds_have_one_code():
    codes = (order_module.FORWARD, order_module.BACKWARD, order_module.WEIGHT)
    assert codes == (kernels.FORWARD, kernels.BACKWARD, kernels.WEIGHT)
