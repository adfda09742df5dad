"""Orders made better by small steps."""

import numpy as np
import pytest

from projector.errors import ScheduleError
from projector.schedule import registry
from projector.schedule.order import Order
from projector.schedule.planning import optimise
from projector.schedule.planning import problem as problems
from projector.schedule.planning.costs import costs_from, uniform_costs


def one_after_another(pp, microbatches, placement=None):
    """Each microbatch through F, B and W before the next."""
    each = 3 * microbatches
    return Order(
        microbatches=microbatches,
        rank_offset=np.arange(pp + 1) * each,
        kind=np.tile([0, 1, 2], pp * microbatches),
        chunk=np.zeros(pp * each),
        microbatch=np.tile(np.repeat(np.arange(microbatches), 3), pp),
        stage_of=np.arange(pp)[:, np.newaxis] if placement is None else placement,
        splits_backward=True,
    )


def value(order, costs, objective="makespan"):
    """Objective of an order that is legal and fits."""
    return problems.objective_ps(*problems.begin(costs, order.microbatches, order, objective))


@pytest.mark.rotated
@pytest.mark.parametrize("objective", ["makespan", "period"])
@pytest.mark.parametrize("w_share", [0.5, 1.0])
def test_steps_find_what_is_proven_to_be_the_best(objective, w_share):
    random = np.random.default_rng(4)
    met = 0
    for _ in range(10):
        costs = costs_from(
            *random.integers(60, 141, (3, 3)),
            np.full((2, 3), 5),
            np.ones(3),
            w_share,
            random.integers(2, 5, 3),
        )
        start = one_after_another(3, 4, np.array([[1], [2], [0]]))
        order = optimise.improve(costs, 4, start, objective=objective)
        found = value(order, costs, objective)
        assert order.stage_of.tolist() == [[1], [2], [0]]
        assert found < value(start, costs, objective)
        # The same is found again.
        again = optimise.improve(costs, 4, start, objective=objective)
        assert again.kind.tolist() == order.kind.tolist()
        proven = optimise.solve(costs, 4, order, objective=objective)
        assert found <= 1.02 * proven.objective_ps
        met += found == proven.objective_ps
    assert met >= 8


@pytest.mark.thorough
def test_long_orders_come_near_the_bound():
    random = np.random.default_rng(8)
    times = random.integers(90, 111, (3, 8)) * 10**7
    costs = costs_from(*times, np.full((2, 8), 10**6), np.ones(8), 1.0, np.full(8, 8.0))
    start = registry.build("zerobubble", 8, 1, 32)
    order = optimise.improve(costs, 32, start)
    result = optimise.solve(costs._replace(solver_work=0), 32, order)
    assert result.objective_ps == value(order, costs) < value(start, costs)
    assert result.gap < 0.02


def test_the_best_stays():
    costs = uniform_costs(4, 4, ps=10)
    start = registry.build("zerobubble", 4, 1, 8)
    assert optimise.improve(costs, 8, start) is start
    # Nothing better is found in no time.
    costs = uniform_costs(3, 3, limit=2.0, ps=10)
    start = one_after_another(3, 4)
    assert optimise.improve(costs, 4, start, moves=0) is start


def test_too_little_memory():
    with pytest.raises(ScheduleError, match=r"rank 0 may hold 0\.5"):
        optimise.improve(uniform_costs(3, 3, limit=0.5), 4, one_after_another(3, 4))


def test_long_orders_take_fewer_steps(monkeypatch):
    times = np.random.default_rng(8).integers(90, 111, (3, 64)) * 10**7
    costs = costs_from(*times, np.full((2, 64), 10**6), np.ones(64), 1.0, np.full(64, 64.0))
    start = registry.build("zerobubble", 64, 1, 128)
    taken = []

    def noticed(kind, times, memory, least_ps, worst_ps, moves, seed):
        taken.append(moves * kind.size)
        return 1 << 62

    monkeypatch.setattr(optimise.kernels, "anneal", noticed)
    assert optimise.improve(costs, 128, start) is start
    assert len(taken) == len(optimise.THRESHOLDS)
    assert optimise.MOST_STEPPED / 2 < max(taken) <= optimise.MOST_STEPPED
