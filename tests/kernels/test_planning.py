"""The layout of weight gradients against a plain one, and what every plan must keep to."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.pipelines import random_costs
from projector.errors import NumericError, ScheduleError
from projector.kernels import planning as kernels
from projector.kernels.planning import Candidates
from projector.schedule import registry
from projector.schedule.order import check_order, round_robin_stages, v_shape
from projector.schedule.planning import candidates as planning
from projector.schedule.planning.costs import Costs
from projector.schedule.replay.order_times import replay
from reference import pipeline
from reference import planning as reference


def sequences_of(offset, shape, microbatches):
    """Sort the F and B of every rank by their keys, as the kernel's docstring says."""
    interval, ramp_in, length_in, ramp_out, length_out, _ = shape.tolist()

    def shift(m):
        squeezed = max(0, m - (microbatches - 1 - length_out))
        return interval * m - ramp_in * min(m, length_in) - ramp_out * squeezed

    ranks = []
    for keys in offset:
        chunks = keys.shape[1]
        tasks = [
            (keys[k, c] + shift(m), k, c if k == 0 else chunks - 1 - c, c, m)
            for k in range(2)
            for c in range(chunks)
            for m in range(microbatches)
        ]
        ranks.append([("FB"[k], c, m) for _, k, _, c, m in sorted(tasks)])
    return ranks


@st.composite
def problems(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    pp = draw(st.integers(1, 4))
    stage_of = v_shape(pp) if draw(st.booleans()) else round_robin_stages(pp, 1)
    microbatches = draw(st.integers(1, 6))
    chunks = stage_of.shape[1]
    # F's of later ranks and chunks later, B's the other way round: most such sequences run.
    forward = np.sort(rng.integers(0, 12, stage_of.size))[stage_of]
    backward = (12 + np.sort(rng.integers(0, 12, stage_of.size))[::-1])[stage_of]
    offset = np.stack([forward, backward], axis=1).reshape(1, pp, 2, chunks)
    # Steps stay above 0, so that the microbatches of an operation keep their order.
    shape = np.array([[rng.integers(3, 9), *rng.integers(0, 2, 4), rng.integers(0, 5)]])
    room = rng.integers(1, 4, pp) if draw(st.booleans()) else np.full(pp, 100)
    costs = random_costs(rng, stage_of, room)
    return stage_of, Candidates(offset, shape), costs, microbatches


@given(problem=problems())
def test_plan_equals_the_plain_layout(problem):
    stage_of, candidates, costs, microbatches = problem
    times = dict(zip("FBW", costs[:3], strict=True))

    def latency(stage, target):
        return (costs.to_next_ps if target > stage else costs.to_previous_ps)[stage]

    done = reference.lay_out(
        sequences_of(candidates.offset[0], candidates.shape[0], microbatches),
        stage_of.tolist(),
        times,
        latency,
        costs.activation,
        costs.w_share,
        costs.limit,
        int(candidates.shape[0, kernels.PATIENCE]),
    )
    order = planning.best_order(stage_of, candidates, costs, microbatches)
    if done is None:
        assert order is None
        return
    check_order(order)
    assert pipeline.tasks_of(order) == [[task[:3] for task in tasks] for tasks in done]
    # The replay of the order finds the same times, and no rank holds more than it may.
    durations = np.array(costs[:3]).T[stage_of][..., np.newaxis].repeat(3, axis=-1)
    timeline = replay(order, durations, np.array([costs.to_next_ps, costs.to_previous_ps]))
    assert timeline.summary.makespan_ps[0] == max(tasks[-1][4] for tasks in done)
    for rank, tasks in enumerate(pipeline.tasks_of(order)):
        held = np.array(costs.activation)[stage_of[rank]]
        peak = pipeline.peak_bytes(tasks, held, splits_backward=True, w_share=costs.w_share)
        assert peak <= costs.limit[rank] + 1e-9


def test_kernel_runs_as_python():
    stage_of = v_shape(2)
    offset = np.array([[[[0, 3], [7, 4]], [[1, 2], [6, 5]]]])
    shape = np.array([[6, 0, 0, 0, 0, 0]])
    results = []
    for function in (
        kernels.plan_candidates,
        getattr(kernels.plan_candidates, "py_func", kernels.plan_candidates),
    ):
        columns = kernels.OrderColumns(
            np.empty((2, 18), np.int8), *(np.empty((2, 18), np.int64) for _ in range(2))
        )
        makespan, period = np.empty(1, np.int64), np.empty(1, np.int64)
        nothing = np.zeros(4, np.int64)
        function(
            stage_of,
            Candidates(offset, shape),
            kernels.StageCosts(
                np.ones((3, 4), np.int64), nothing, nothing, np.ones(4), 1.0, np.full(2, 9.0)
            ),
            1,
            False,
            np.empty((2, 4, 3), np.int64),
            columns,
            makespan,
            period,
        )
        results.append([each.tolist() for each in (*columns, makespan, period)])
    assert results[0] == results[1]


def test_limits_are_checked():
    stage_of = round_robin_stages(2, 1)
    same = (10,) * 2
    costs = Costs(same, same, same, (0, 0), (0, 0), (2.0, 1.0), 1.0, (1.5, 1.5))
    with pytest.raises(ScheduleError, match=r"rank 0 .*at least 2") as caught:
        planning.check_memory(stage_of, costs)
    assert (caught.value.key, caught.value.allowed) == ("memory_limit", 2.0)


@pytest.mark.parametrize("name", ["seaailab", "zbv-greedy-half"])
def test_steps_too_long_to_time_are_planned_all_the_same(name):
    # Such a sum once left the range of an integer, and no interval was long enough.
    entry = registry.SCHEDULES[name]
    vpp = entry.chunks(1)
    short = random_costs(np.random.default_rng(0), entry.stages(2, vpp), np.full(2, 2))
    long = Costs(*(tuple(time << 57 for time in times) for times in short[:5]), *short[5:])
    orders = [registry.build(name, 2, vpp, 4, costs) for costs in (short, long)]
    assert pipeline.tasks_of(orders[0]) == pipeline.tasks_of(orders[1])
    with pytest.raises(NumericError, match="longer than"):
        replay(orders[1], np.full((2, vpp, 3, 3), 2**60), np.zeros((2, 2 * vpp), np.int64))


@pytest.mark.parametrize("affordable", [0, 1, 3, 10, 99])
def test_of_too_many_candidates_some_are_looked_at(monkeypatch, affordable):
    stage_of, microbatches = round_robin_stages(2, 1), 4
    same = (10,) * 2
    costs = Costs(same, same, same, (0, 0), (0, 0), (1.0, 1.0), 1.0, (9.0, 9.0))
    # Ever more forwards ahead on rank 0: only the first candidates leave it a bubble.
    offset = np.ones((10, 2, 2, 1), np.int64)
    offset[:, 0, 0, 0] = np.arange(0, -10, -1)
    candidates = Candidates(offset, np.array([[2, 0, 0, 0, 0, 0]] * 10))
    every = planning.rank(stage_of, candidates, costs, microbatches, 10).tolist()
    assert sorted(every) == list(range(10))
    monkeypatch.setattr(planning, "MOST_OPERATIONS", affordable * 3 * 2 * microbatches)
    some = planning.rank(stage_of, candidates, costs, microbatches, 10).tolist()
    assert len(some) == min(10, max(1, affordable))
    assert some == [index for index in every if index in some]
    assert 0 in some


@given(problem=problems(), seed=st.integers(0, 2**32), most=st.integers(1, 6))
@pytest.mark.parametrize("objective", ["makespan", "period"])
def test_candidates_that_are_given_up_are_not_among_the_best(objective, problem, seed, most):
    stage_of, candidates, costs, microbatches = problem
    rng = np.random.default_rng(seed)
    offset = candidates.offset + rng.integers(-2, 3, (12, *candidates.offset.shape[1:]))
    shape = np.repeat(candidates.shape, 12, axis=0)
    shape[:, kernels.PATIENCE] = rng.integers(0, 5, 12)
    many, costs = Candidates(offset, shape), costs._replace(objective=objective)
    whole = planning.rank(stage_of, many, costs, microbatches, 12)
    best = planning.rank(stage_of, many, costs, microbatches, most)
    assert best.tolist() == whole[:most].tolist()
