"""Configurations side by side give what each of them gives alone."""

from collections import ChainMap

import numba
import numpy as np
import pytest

from kernels.pipelines import (
    PLANNED,
    assert_same,
    greedy_order,
    mixed_times,
    other_orders,
    periodic_orders,
    random_times,
    uniform_times,
)
from projector.errors import NumericError
from projector.kernels import pipeline as kernels
from projector.kernels import pipeline_lanes
from projector.schedule import registry
from projector.schedule.replay.order_times import (
    METHODS,
    Wanted,
    operation_times,
    replay_batch,
    replay_ends,
)
from projector.schedule.replay.programs import (
    compile_lanes,
    compile_line,
    empty_ends,
    empty_replays,
    line_program,
)
from reference import pipeline as reference

JIT = not numba.config.DISABLE_JIT
ORDERS = ChainMap(dict([*periodic_orders(), *other_orders()]), PLANNED)
N = 2000 if JIT else 3


@pytest.mark.parametrize("name", ORDERS)
def test_lanes_equal_direct(name):
    order = ORDERS[name]
    durations, latencies = mixed_times(order, len(order.kind), N)
    direct = replay_batch(order, durations, latencies, method="direct")
    assert_same(replay_batch(order, durations, latencies, method="lanes"), direct)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ORDERS)
def test_no_latencies_are_latencies_of_nothing(name, method):
    order = ORDERS[name]
    durations, latencies = mixed_times(order, len(order.kind), 70 if JIT else 3)
    none = replay_batch(order, durations, None, method=method)
    assert_same(none, replay_batch(order, durations, 0 * latencies, method="direct"))


def test_replays_are_written_where_they_are_wanted():
    order = registry.build("1f1b", 2, 1, 3)
    durations, latencies = random_times(order, 0, 5)
    ends = empty_ends(order.pp, order.vpp, 9)
    which, rows = np.array([4, 0, 2]), np.array([2, 5, 3])
    times = operation_times(order.pp, order.vpp, durations, latencies, which)
    replay_ends(order, times, rows, Wanted(durations, latencies, ends))
    found = replay_batch(order, durations[which], latencies[which])
    np.testing.assert_array_equal(ends.rank_start_ps[rows], found.rank_start_ps)
    np.testing.assert_array_equal(ends.rank_end_ps[rows], found.rank_end_ps)
    np.testing.assert_array_equal(ends.last_backward_end_ps[rows], found.last_backward_end_ps)


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 128, 130])
def test_any_number_of_configurations(n):
    order = registry.build("1f1b", 2, 1, 3)
    times = random_times(order, n, n)
    assert_same(
        replay_batch(order, *times, method="lanes"), replay_batch(order, *times, method="direct")
    )


@pytest.mark.parametrize("name", ORDERS)
def test_program_is_the_order(name):
    """Each operation reads its own predecessors, although places are taken again."""
    order = ORDERS[name]
    line, program = compile_line(order), compile_lanes(order)
    columns = program.program.copy()
    columns[:, kernels.DURATION] = program.used[columns[:, kernels.DURATION]]
    walk = reference.Walk(order.rank_offset, order.vpp * 9)
    walk.run(columns)

    operation_of = {slot: row for row, slot in enumerate(line.slot.tolist())}
    operation_of[0] = None
    for row, (previous, dependency, latency, duration) in enumerate(line.line.tolist()):
        operation, before, waits_for, *rest = walk.done[row]
        assert operation == operation_of[row + 1]
        assert before == operation_of[previous]
        assert rest == [latency, duration]
        if latency:
            assert waits_for == operation_of[dependency]
        else:
            # Waits for its own rank at most: the previous operation ends no earlier.
            assert waits_for == before
            assert dependency == 0 or order.rank[operation_of[dependency]] == order.rank[operation]
    for places, slots in (
        (program.last, line.last_slot),
        (program.first, line.first_slot),
        (program.last_backward, line.last_backward_slot),
    ):
        found = [walk.held[place] for place in places.ravel().tolist()]
        assert found == [operation_of[slot] for slot in slots.ravel().tolist()]


@pytest.mark.parametrize("name", ORDERS)
def test_places_never_coincide_within_an_operation(name):
    # A loop over lanes that writes what it reads is not run on vectors.
    columns = compile_lanes(ORDERS[name]).program
    output = columns[:, kernels.OUTPUT]
    assert np.all(output != columns[:, kernels.PREVIOUS])
    assert np.all(output != columns[:, kernels.DEPENDENCY])
    assert np.all(output != 0)


def test_few_places_however_long_the_order():
    places = [compile_lanes(registry.build("1f1b", 8, 1, m)).num_places for m in (16, 200)]
    assert places[0] == places[1] < 4 * 8


def test_kernels_and_python_agree():
    order = greedy_order(2, 2, 0)
    program = compile_lanes(order)
    line = compile_line(order)
    kept = np.concatenate([line.first_slot, line.last_slot, line.last_backward_slot.ravel()])
    kept = np.unique(kept)
    place = np.full(len(line.line) + 1, -1)
    place[0], place[kept] = 0, 1 + np.arange(len(kept))
    python = line_program(line, line.line, np.arange(1, len(line.line) + 1))
    plain = getattr(pipeline_lanes.allocate, "py_func", pipeline_lanes.allocate)
    assert plain(python, place, 1 + len(kept)) == program.num_places
    np.testing.assert_array_equal(python, program.program)
    np.testing.assert_array_equal(place[line.last_slot], program.last)

    durations, latencies = random_times(order, 1, 2)
    replays = empty_replays(order.pp, order.vpp, 2)
    plain = getattr(pipeline_lanes.replay_lanes, "py_func", pipeline_lanes.replay_lanes)
    times = kernels.OperationTimes(durations.reshape(2, -1), latencies, np.arange(2))
    assert plain(program, times, np.array([1, 0]), replays) == kernels.OK
    direct = replay_batch(order, durations, latencies, method="direct")
    for mine, theirs in zip(replays, direct, strict=True):
        np.testing.assert_array_equal(mine[::-1], theirs)


def test_unused_durations_are_not_read():
    order = registry.build("1f1b", 2, 1, 2)
    durations, latencies = uniform_times(order, 1)
    durations[:, :, 2] = -1
    replays = replay_batch(order, [durations], [latencies], method="lanes")
    assert replays.makespan_ps.tolist() == [6]


@pytest.mark.parametrize("value", [-1, kernels.MAX_DURATION_PS + 1])
@pytest.mark.parametrize("what", ["duration", "latency"])
def test_times_out_of_range(value, what):
    order = registry.build("1f1b", 2, 1, 2)
    durations, latencies = random_times(order, 0, 70)
    if what == "duration":
        durations[66, 1, 0, 1, 2] = value
    else:
        latencies[66, 1, 1] = value
    messages = []
    for method in ("direct", "lanes"):
        with pytest.raises(NumericError) as caught:
            replay_batch(order, durations, latencies, method=method)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_ends_near_the_limit_are_left_to_the_direct_replay():
    order = registry.build("1f1b", 1, 1, 2)
    quarter = kernels.MAX_PS // 4
    durations, latencies = uniform_times(order, quarter)
    batch = np.stack([durations, np.ones_like(durations)]), np.stack([latencies, latencies])
    replays = replay_batch(order, *batch, method="lanes")
    assert replays.makespan_ps.tolist() == [kernels.MAX_PS, 4]
    assert_same(replays, replay_batch(order, *batch, method="direct"))
    with pytest.raises(NumericError):
        replay_batch(registry.build("1f1b", 1, 1, 3), *batch, method="lanes")


def test_methods_have_names():
    order = registry.build("1f1b", 1, 1, 2)
    with pytest.raises(ValueError, match="direct, lanes, jump"):
        replay_batch(order, *random_times(order, 0), method="fast")
