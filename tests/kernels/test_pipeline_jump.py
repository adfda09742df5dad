"""Jumps over the steady state give what running all of it gives."""

import itertools

import numba
import numpy as np
import pytest

from kernels.pipelines import (
    FAMILIES,
    assert_same,
    eager_order,
    mixed_times,
    order_from,
    other_orders,
    periodic_orders,
    planned_orders,
    random_times,
    uniform_times,
)
from projector.errors import NumericError
from projector.kernels import pipeline as kernels
from projector.kernels import pipeline_jump
from projector.kernels.pipeline_jump import CAPACITY, FIRST_ROW, HISTORY, PERIODS
from projector.schedule import registry
from projector.schedule.replay.order_times import MIN_BATCH, fastest_method, replay_batch
from projector.schedule.replay.programs import (
    MIN_PERIODS,
    compile_jump,
    compile_line,
    empty_replays,
)
from reference import pipeline as reference

JIT = not numba.config.DISABLE_JIT
PERIODIC = dict(periodic_orders())
OTHER = dict(other_orders())
PLANNED = dict(planned_orders())
N = 3500 if JIT else 2 * len(FAMILIES)


def run_kernel(order, durations, latencies, kernel=pipeline_jump.replay_jump):
    """Status, periods that were run, and outputs."""
    n = len(durations)
    replays = empty_replays(order, n)
    periods_run = np.empty(n, np.int64)
    times = kernels.OperationTimes(durations.reshape(n, -1), latencies, np.arange(n))
    status = kernel(compile_jump(order), times, periods_run, replays)
    return status, periods_run, replays


@pytest.mark.parametrize("name", PERIODIC)
def test_jump_equals_direct(name):
    order = PERIODIC[name]
    times = mixed_times(order, len(order.kind) + 1, N)
    direct = replay_batch(order, *times, method="direct")
    assert_same(replay_batch(order, *times, method="jump"), direct)
    assert_same(replay_batch(order, *times), direct)
    _, periods_run, _ = run_kernel(order, *times)
    assert np.all(periods_run >= 1)
    assert periods_run.min() < compile_jump(order).layout[PERIODS]


@pytest.mark.parametrize("name", OTHER)
def test_orders_without_a_period_are_run_directly(name):
    order = OTHER[name]
    assert compile_jump(order) is None
    times = mixed_times(order, 0, N)
    direct = replay_batch(order, *times, method="direct")
    for method in ("jump", "auto"):
        assert_same(replay_batch(order, *times, method=method), direct)


@pytest.mark.parametrize("name", PLANNED)
def test_planned_orders_are_jumped_where_they_repeat(name):
    order = PLANNED[name]
    times = mixed_times(order, 1, N)
    direct = replay_batch(order, *times, method="direct")
    for method in ("jump", "auto"):
        assert_same(replay_batch(order, *times, method=method), direct)


@pytest.mark.parametrize("name", PERIODIC)
def test_program_is_the_order(name):
    """Prologue, every period and epilogue are the operations of the order, once each."""
    order = PERIODIC[name]
    line, program = compile_line(order), compile_jump(order)
    periods, history, first_row = program.layout[[PERIODS, HISTORY, FIRST_ROW]].tolist()
    width = len(program.period)
    base = first_row + history * width
    walk = reference.Walk(order.rank_offset, order.vpp * 9)
    walk.run(program.prologue)
    assert [walk.held[place] for place in program.first.tolist()] == order.rank_offset[:-1].tolist()
    # Rows of different periods never meet here: the epilogue gets room behind all of them.
    for number in range(periods):
        walk.run(program.period, base + number * width)
    walk.move(base + (periods - history) * width, first_row, history * width)
    walk.run(program.epilogue)

    slot_of = line.slot.tolist()
    operation_of = {slot: row for row, slot in enumerate(slot_of)}
    operation_of[0] = None
    assert sorted(entry[0] for entry in walk.done) == list(range(len(slot_of)))
    for operation, before, waits_for, *rest in walk.done:
        previous, dependency, latency, duration = line.line[slot_of[operation] - 1].tolist()
        assert before == operation_of[previous]
        assert rest == [latency, duration]
        assert waits_for == (operation_of[dependency] if latency else before)
    for places, slots in (
        (program.last, line.last_slot),
        (program.last_backward, line.last_backward_slot),
    ):
        found = [walk.held[place] for place in places.ravel().tolist()]
        assert found == [operation_of[slot] for slot in slots.ravel().tolist()]


@pytest.mark.parametrize("name", PERIODIC)
def test_layout(name):
    program = compile_jump(PERIODIC[name])
    periods, history, max_cycle, capacity, first_row, _ = program.layout.tolist()
    assert periods >= MIN_PERIODS
    assert max_cycle >= history >= 1
    # Ends are kept by dropping the oldest only where two of the longest cycles remain.
    assert capacity >= min(history + periods, 2 * max_cycle + 1)
    output = program.period[:, kernels.OUTPUT]
    assert output.tolist() == list(range(len(output)))
    assert program.period[:, : kernels.LATENCY].min() >= -history * len(output)
    assert program.epilogue[:, kernels.OUTPUT].min() >= first_row + capacity * len(output)


def test_some_orders_read_more_than_one_period_back():
    histories = {int(compile_jump(order).layout[HISTORY]) for order in PERIODIC.values()}
    assert min(histories) == 1
    assert max(histories) > 1


def test_first_and_last_microbatch_are_outside_the_periods():
    order = registry.build("1f1b", 2, 1, 14)
    classes = compile_jump(order).period[:, kernels.DURATION] % 3
    assert np.all(classes == kernels.MIDDLE)


def test_operations_of_the_steady_state_are_not_run():
    order = registry.build("1f1b", 2, 1, 40)
    durations, latencies = uniform_times(order, 10, 1)
    status, periods_run, _ = run_kernel(order, durations[np.newaxis], latencies[np.newaxis])
    assert status == kernels.OK
    assert periods_run[0] < 12 < compile_jump(order).layout[PERIODS]


def test_a_faster_stage_is_jumped_to_where_it_overtakes():
    # After one slow forward, rank 1 catches up by one picosecond a microbatch: the ends of the
    # two ranks advance by different steps for a long time, and a jump must end where they meet.
    order = registry.build("1f1b", 2, 1, 60)
    durations, latencies = uniform_times(order, 100)
    durations[0] += 1
    for slow in (0, 5, 20, 57, 58, 59, 1000):
        durations[1, 0, 0, 0] = 100 + slow
        times = durations[np.newaxis], latencies[np.newaxis]
        direct = replay_batch(order, *times, method="direct")
        assert_same(replay_batch(order, *times, method="jump"), direct)


def random_period(rng, width, history):
    """A periodic program on one to three ranks, with waits for anything that may be waited for."""
    ranks = rng.integers(1, min(3, width) + 1)
    rank_of = np.concatenate([np.arange(ranks), rng.integers(0, ranks, width - ranks)])
    last = {int(rank): int(np.flatnonzero(rank_of == rank)[-1]) - width for rank in rank_of}
    period = np.empty((width, 5), np.int32)
    for i, rank in enumerate(rank_of.tolist()):
        period[i, kernels.PREVIOUS] = last[rank]
        period[i, kernels.DEPENDENCY] = rng.integers(-history * width, i) if i % 2 else last[rank]
        period[i, kernels.LATENCY] = rng.integers(0, 3)
        period[i, kernels.DURATION] = i
        period[i, kernels.OUTPUT] = i
        last[rank] = i
    return period


def test_no_jump_is_longer_than_the_line_is_straight():
    """On any program and any ends, also on those that no schedule has."""
    checked = [jumps_of_a_random_period(seed) for seed in range(400)]
    counts = np.concatenate(checked)
    assert np.all(counts[:, 0] <= counts[:, 1])
    # Where there is something to jump over, a jump is found nearly always.
    worth = counts[counts[:, 1] > 0]
    assert np.count_nonzero(worth[:, 0]) > 0.9 * len(worth)
    assert np.count_nonzero((worth[:, 0] > 0) & (worth[:, 0] < 20)) > 5


def jumps_of_a_random_period(seed):
    """For each cycle, the jumps that the kernel finds and those that can be made."""
    rng = np.random.default_rng(seed)
    history = int(rng.integers(1, 3))
    period = random_period(rng, int(rng.integers(1, 6)), history)
    width = len(period)
    latency = np.array([0, *rng.integers(0, 4, 2)])
    duration = rng.integers(0, 5, width)

    def advance(ends, periods=1):
        for _ in range(periods):
            base = len(ends)
            for previous, dependency, wait, length, _ in period.tolist():
                arrival = ends[base + dependency] + int(latency[wait])
                ends.append(max(ends[base + previous], arrival) + int(duration[length]))

    ends = rng.integers(0, 30, history * width).tolist()
    advance(ends, int(rng.integers(2, 12)))
    counts = []
    for periods in range(history, len(ends) // width // 2 + 1):
        cycle = periods * width
        count = pipeline_jump._jumps(period, np.array(ends), latency, len(ends), cycle, 20)
        straight = reference.linear_cycles(
            lambda grown, periods=periods: advance(grown, periods), ends, cycle, 20
        )
        counts.append((count, straight))
    return np.array(counts).reshape(-1, 2)


def test_kernel_and_python_agree():
    plain = getattr(pipeline_jump.replay_jump, "py_func", pipeline_jump.replay_jump)
    for name in ("1f1b-2", "eager-2"):
        order = PERIODIC[name]
        times = mixed_times(order, 5, len(FAMILIES))
        status, periods_run, outputs = run_kernel(order, *times)
        python = run_kernel(order, *times, kernel=plain)
        assert status == python[0] == kernels.OK
        np.testing.assert_array_equal(python[1], periods_run)
        for mine, theirs in zip(python[2], outputs, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_more_periods_are_run_than_are_kept():
    """Times with a cycle that is longer than those that are looked for."""
    order = eager_order(2, 40, 4)
    durations, latencies = mixed_times(order, 3, N)
    large = slice(FAMILIES.index("large"), None, len(FAMILIES))
    times = durations[large], latencies[large]
    _, periods_run, _ = run_kernel(order, *times)
    layout = compile_jump(order).layout
    assert periods_run.max() == layout[PERIODS] > layout[CAPACITY]
    direct = replay_batch(order, *times, method="direct")
    assert_same(replay_batch(order, *times, method="jump"), direct)


@pytest.mark.parametrize("value", [-1, kernels.MAX_DURATION_PS + 1])
@pytest.mark.parametrize("what", ["duration", "latency"])
def test_times_out_of_range(value, what):
    order = PERIODIC["1f1b-2"]
    durations, latencies = random_times(order, 0, 5)
    if what == "duration":
        durations[3, 1, 0, 1, 2] = value
    else:
        latencies[3, 1, 1] = value
    messages = []
    for method in ("direct", "jump"):
        with pytest.raises(NumericError) as caught:
            replay_batch(order, durations, latencies, method=method)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_ends_near_the_limit_are_left_to_the_direct_replay():
    order = registry.build("1f1b", 1, 1, 16)
    durations, latencies = uniform_times(order, kernels.MAX_PS // 32)
    times = durations[np.newaxis], latencies[np.newaxis]
    replays = replay_batch(order, *times, method="jump")
    assert replays.makespan_ps.tolist() == [kernels.MAX_PS]
    with pytest.raises(NumericError):
        replay_batch(order, times[0] + 1, times[1], method="jump")


def test_unused_durations_are_not_read():
    order = registry.build("1f1b", 1, 1, 16)
    durations, latencies = uniform_times(order, 1)
    durations[:, :, 2] = -1
    replays = replay_batch(order, [durations], [latencies], method="jump")
    assert replays.makespan_ps.tolist() == [32]


def test_no_configurations():
    order = PERIODIC["1f1b-2"]
    assert replay_batch(order, *random_times(order, 0, 0), method="jump").makespan_ps.size == 0


def swapped_in_the_middle(microbatches):
    """1F1B on one rank, but for one pair of operations in the middle."""
    tasks = [(kind, 0, m) for m in range(microbatches) for kind in "FB"]
    middle = microbatches - microbatches % 2
    tasks[middle - 1 : middle + 1] = reversed(tasks[middle - 1 : middle + 1])
    return order_from([tasks], [[0]], microbatches)


def test_a_period_is_proven_and_not_assumed():
    # Half of the order is left on either side, and only one side of it is jumped at most.
    order = swapped_in_the_middle(40)
    program = compile_jump(order)
    assert program is None or program.layout[PERIODS] < 20
    times = mixed_times(order, 1, len(FAMILIES))
    assert_same(
        replay_batch(order, *times, method="jump"), replay_batch(order, *times, method="direct")
    )


def test_the_fastest_way_is_chosen():
    chosen = [
        fastest_method(registry.build(name, 4, vpp, microbatches), n)
        for (name, vpp, microbatches), n in itertools.product(
            (("1f1b", 1, 400), ("1f1b", 1, 16), ("gpipe", 1, 100)), (1, MIN_BATCH, 1000)
        )
    ]
    assert chosen == ["direct", "jump", "jump"] + 2 * ["direct", "lanes", "lanes"]
