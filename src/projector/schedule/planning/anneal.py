"""A zero-bubble order made better by many small steps: the quick way to what :mod:`.ilp` finds."""

import numpy as np

from projector.arrays import Ints8
from projector.kernels import anneal as kernels
from projector.schedule.order import Order
from projector.schedule.planning.bounds import Windows
from projector.schedule.planning.costs import Costs, Objective
from projector.schedule.planning.problem import begin, objective_ps, order_of, sequence_of, verified

MOVES = 100_000
"""Steps of a round; all rounds are 0.1 s for 4 ranks with 8 microbatches, 0.8 s for 8 with 32."""

THRESHOLDS = (1.0, 0.3, 0.1, 0.1)
"""What the first steps of a round may make worse, as a share of the mean duration of an
operation. A round begins with the best of the one before. Large ones find a way out of a short
order that is the best of all its neighbours, small ones do more for long orders."""

BOUND_VISITS = 150_000
"""Most visits (see :class:`.bounds.Windows`) for the bound that ends a search early; 32 ranks with
256 microbatches need 100,000."""

SEED = 2401
"""Of the first round, so that the same order is found again."""


def improve(
    costs: Costs,
    microbatches: int,
    start: Order,
    *,
    objective: Objective = "makespan",
    moves: int = MOVES,
    thresholds: tuple[float, ...] = THRESHOLDS,
) -> Order:
    """Return an order that is at least as good as ``start``, which is legal and within the limits.

    It is ``start`` itself where none is found, or where ``start`` is known to be the best.
    """
    problem, start, timeline = begin(costs, microbatches, start, objective)
    start_ps = objective_ps(problem, start, timeline)
    # The search would end a little later without; it would not find another order.
    least_ps = Windows(problem, sequence_of(start), BOUND_VISITS).lower_bound_ps()
    if least_ps >= start_ps:
        return start
    kind: Ints8 = np.empty((problem.pp, 3 * microbatches), np.int8)
    kind[start.stage_of[:, 0]] = start.kind.reshape(problem.pp, -1)
    times = kernels.StageTimes(
        problem.duration_ps, problem.to_next_ps, problem.to_previous_ps, problem.since_ps
    )
    memory = kernels.StageMemory(
        np.array(problem.activation, np.float64),
        float(problem.w_share),
        np.array(problem.limit, np.float64),
    )
    best_ps = start_ps
    for turn, threshold in enumerate(thresholds):
        worst_ps = threshold * float(problem.duration_ps.mean())
        best_ps = kernels.anneal(kind, times, memory, least_ps, worst_ps, moves, SEED + turn)
    improved = order_of(kind, start)
    # The kernel keeps to the same rules; should it ever not, nothing is lost.
    if best_ps < start_ps and verified(problem, costs, improved) == best_ps:
        return improved
    return start
