"""Replays that fork and jump over the steady state give what running everything gives."""

import itertools

import numba
import numpy as np
import pytest

from kernels.pipelines import (
    FAMILIES,
    PLANNED,
    assert_same,
    eager_order,
    mixed_times,
    order_from,
    other_orders,
    periodic_orders,
    random_times,
    replays_of,
    uniform_times,
)
from projector.errors import NumericError
from projector.kernels import pipeline as kernels
from projector.kernels import pipeline_forks
from projector.kernels.pipeline_forks import MOST_RUNS, Forks
from projector.kernels.pipeline_periods import FRAME, LIVE, MAX_CYCLE, PeriodicProgram
from projector.schedule import registry
from projector.schedule.order import Series
from projector.schedule.replay.order_times import MIN_BATCH, fastest_method, replay_batch
from projector.schedule.replay.programs import compile_forks, compile_line, empty_ends
from reference import pipeline as reference

JIT = not numba.config.DISABLE_JIT
PERIODIC = dict(periodic_orders())
OTHER = dict(other_orders())
N = 3500 if JIT else 2 * len(FAMILIES)


def run_kernel(order, durations, latencies, periods, kernel=pipeline_forks.replay_forks):
    """Status and outputs of every configuration with every number of periods."""
    n, runs = len(durations), len(periods)
    ends = empty_ends(order.pp, order.vpp, n * runs)
    times = kernels.OperationTimes(durations.reshape(n, -1), latencies, np.arange(n))
    forks = Forks(np.arange(0, n * runs + 1, runs), np.tile(periods, n), np.arange(n * runs))
    return kernel(compile_forks(order).program, times, forks, ends), replays_of(ends)


@pytest.mark.parametrize("name", PERIODIC)
def test_jump_equals_direct(name):
    order = PERIODIC[name]
    times = mixed_times(order, len(order.kind) + 1, N)
    direct = replay_batch(order, *times, method="direct")
    assert_same(replay_batch(order, *times, method="jump"), direct)
    assert_same(replay_batch(order, *times), direct)


@pytest.mark.parametrize("name", OTHER)
def test_orders_without_a_period_are_run_directly(name):
    order = OTHER[name]
    assert compile_forks(order) is None
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
    line, forking = compile_line(order), compile_forks(order)
    program = with_durations(forking.program)
    live, frame = program.sizes[[LIVE, FRAME]].tolist()
    walk = reference.Walk(order.rank_offset, order.vpp * 9)
    walk.held[live] = None
    walk.run(program.prologue)
    assert [walk.held[place] for place in program.first.tolist()] == order.rank_offset[:-1].tolist()
    # Frames of different periods never meet here: there is one for each.
    for number in range(forking.periods):
        walk.run(program.period, number * frame)
        for source, target in (program.moved + number * frame).tolist():
            walk.move(source, target, 1)
    walk.move(forking.periods * frame, 0, live)
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


def with_durations(program):
    """A program whose columns of durations say which they are."""
    columns = [program.prologue.copy(), program.period.copy(), program.epilogue.copy()]
    for part in columns:
        part[:, kernels.DURATION] = program.used[part[:, kernels.DURATION]]
    prologue, period, epilogue = columns
    return program._replace(prologue=prologue, period=period, epilogue=epilogue)


@pytest.mark.parametrize("name", PERIODIC)
def test_layout(name):
    forking = compile_forks(PERIODIC[name])
    assert forking.periods >= Series.MIN_PERIODS
    assert forking.least + forking.periods * forking.each == PERIODIC[name].microbatches
    program = forking.program
    assert program.sizes[MAX_CYCLE] >= 1
    for columns in (program.prologue, program.period, program.epilogue):
        # A loop over lanes that writes what it reads is not run on vectors.
        output = columns[:, kernels.OUTPUT]
        assert np.all(output != columns[:, kernels.PREVIOUS])
        assert np.all(output != columns[:, kernels.DEPENDENCY])


def test_some_orders_read_more_than_one_period_back():
    moved = {len(compile_forks(order).program.moved) for order in PERIODIC.values()}
    assert min(moved) == 0 < max(moved)


def test_first_and_last_microbatch_are_outside_the_periods():
    order = registry.build("1f1b", 2, 1, 14)
    classes = with_durations(compile_forks(order).program).period[:, kernels.DURATION] % 3
    assert np.all(classes == kernels.MIDDLE)


@pytest.mark.parametrize("latency", [0, 1])
def test_operations_of_the_steady_state_are_not_run(latency):
    """A thousand million periods are over at once."""
    times = [
        each[np.newaxis] for each in uniform_times(registry.build("1f1b", 2, 1, 1), 10, latency)
    ]
    order, later = (registry.build("1f1b", 2, 1, microbatches) for microbatches in (40, 42))
    short, longer = (int(replay_batch(o, *times).makespan_ps[0]) for o in (order, later))
    periods = compile_forks(order).periods + 2 * np.array([0, 1, 10**9])
    status, replays = run_kernel(order, *times, periods)
    assert status == kernels.OK
    expected = [short, longer, short + 10**9 * (longer - short)]
    assert replays.makespan_ps.tolist() == expected


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


def random_program(rng, width, history):
    """A program on one to three ranks whose operations wait for anything that may be waited for.

    The prologue gives each end of the state a duration of its own, the epilogue does nothing.
    """
    ranks = rng.integers(1, min(3, width) + 1)
    rank_of = np.concatenate([np.arange(ranks), rng.integers(0, ranks, width - ranks)])
    live = width * history
    last = {int(rank): int(np.flatnonzero(rank_of == rank)[-1]) * history for rank in rank_of}
    period = np.empty((width, 5), np.int32)
    for i, rank in enumerate(rank_of.tolist()):
        sources = [*range(live), *(live + j * history for j in range(i))]
        period[i, kernels.PREVIOUS] = last[rank]
        period[i, kernels.DEPENDENCY] = rng.choice(sources) if i % 2 else last[rank]
        # What waits for its own rank alone has no latency.
        alone = period[i, kernels.DEPENDENCY] == period[i, kernels.PREVIOUS]
        period[i, kernels.LATENCY] = 0 if alone else rng.integers(0, 3)
        period[i, kernels.DURATION] = live + i
        period[i, kernels.OUTPUT] = last[rank] = live + i * history
    older = [row for row in range(live) if row % history]
    start = np.full(live, live)
    prologue = np.stack([start, start, 0 * start, np.arange(live), np.arange(live)], axis=1)
    durations = live + width
    pp = -(-max(durations, 9 * live) // 9)
    max_cycle, after = 5, int(rng.choice([0, 4, 48]))
    frames = 2 * max_cycle + 1
    return PeriodicProgram(
        prologue=prologue.astype(np.int32),
        period=period,
        moved=np.array([(row - 1, live + row) for row in older], np.int32).reshape(-1, 2),
        epilogue=np.empty((0, 5), np.int32),
        sizes=np.array([live, live, frames, max_cycle, (frames + 1) * live + 1, live, after]),
        used=np.arange(durations),
        first=np.arange(pp) % live,
        first_duration=np.arange(pp) % live,
        last=np.arange(pp) % live,
        last_backward=np.arange(pp)[:, np.newaxis] % live,
    )


def run_plainly(program, durations, latencies, most):
    """States after 0, 1, ... periods of one configuration."""
    live = int(program.sizes[LIVE])
    waits = [0, *latencies.ravel().tolist()]
    ends = {row: int(durations[row]) for row in range(live)}
    states = [[ends[row] for row in range(live)]]
    for _ in range(most):
        for previous, dependency, latency, duration, output in program.period.tolist():
            arrival = ends[dependency] + waits[latency]
            ends[output] = max(ends[previous], arrival) + int(durations[duration])
        for source, target in program.moved.tolist():
            ends[target] = ends[source]
        ends.update({row: ends[live + row] for row in range(live)})
        states.append([ends[row] for row in range(live)])
    return np.array(states)


@pytest.mark.rotated
@pytest.mark.parametrize("seed", range(200 if JIT else 2))
def test_any_program_and_any_state(seed):
    """Also on those that no schedule has, with drifts of all kinds."""
    rng = np.random.default_rng(seed)
    program = random_program(rng, int(rng.integers(1, 6)), int(rng.integers(1, 3)))
    n, live, pp = (70 if JIT else 3), int(program.sizes[LIVE]), len(program.last)
    durations = np.zeros((n, pp * 9), np.int64)
    durations[:, :live] = rng.integers(
        0, [[3], [30], [400]] * (n // 3) + [[9]] * (n % 3), (n, live)
    )
    durations[:, live : len(program.used)] = rng.integers(0, 5, (n, len(program.used) - live))
    latencies = rng.integers(0, 4, (n, 2, pp))
    counts = [rng.choice(120, rng.integers(1, MOST_RUNS + 1)) for _ in range(n)]
    offset = np.concatenate([[0], np.cumsum([len(count) for count in counts])])
    row = rng.permutation(offset[-1])
    ends = empty_ends(pp, 1, offset[-1])
    times = kernels.OperationTimes(durations, latencies, np.arange(n))
    forks = Forks(offset, np.concatenate(counts), row.copy())
    assert pipeline_forks.replay_forks(program, times, forks, ends) == kernels.OK
    for config, (begin, end) in enumerate(itertools.pairwise(offset)):
        states = run_plainly(program, durations[config], latencies[config], 120)
        expected = states[counts[config]][:, program.last]
        np.testing.assert_array_equal(replays_of(ends, row[begin:end]).rank_end_ps, expected)


def test_kernel_and_python_agree():
    plain = getattr(pipeline_forks.replay_forks, "py_func", pipeline_forks.replay_forks)
    for name in ("1f1b-2", "eager-2"):
        order = PERIODIC[name]
        times = mixed_times(order, 5, len(FAMILIES))
        periods = np.array([3, 0, 40, 3])
        status, outputs = run_kernel(order, *times, periods)
        python_status, python = run_kernel(order, *times, periods, kernel=plain)
        assert status == python_status == kernels.OK
        assert_same(python, outputs)


def test_more_periods_are_run_than_are_kept():
    """Times with a cycle that is longer than those that are looked for."""
    order = eager_order(2, 40, 4)
    durations, latencies = mixed_times(order, 3, N)
    large = slice(FAMILIES.index("large"), None, len(FAMILIES))
    times = durations[large], latencies[large]
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
    forking = compile_forks(order)
    assert forking is None or forking.periods < 20
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
