"""Memory-aware zero bubble: the automatic scheduler of Sea AI Lab, and its integer program.

Qi et al., arXiv:2401.10241, section 3: with the times of F, B and W, the latency and a memory
limit given, find how many forwards each rank runs ahead and where W's fill gaps. `plan` searches
over sequences: the forwards
ahead of the first B grow from the last rank to the first by a slope and an intercept, as far as
the memory of each rank goes; then F and B alternate, and W's stand where a rank would wait, or
where an F needs their memory. All slopes, intercepts and patiences of W are laid out with the
times at hand. The handcrafted ZB-H1 and ZB-H2, whose W's follow their B's at a fixed distance, run
beside the fastest of them where the memory allows, so that the plan is never slower.
"""

import itertools
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from projector.kernels.planning import Candidates
from projector.schedule.order import Order, round_robin_stages
from projector.schedule.orders import zerobubble
from projector.schedule.planning.candidates import best_order, check_memory, fastest
from projector.schedule.planning.costs import Costs

if TYPE_CHECKING:
    from projector.schedule.planning.optimise import Optimised

SLOPES = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)
"""Forwards ahead for each rank behind; 1 is 1F1B and ZB-H1, 2 is ZB-H2."""

INTERCEPTS = (0, 1, 2, 3, 4)
"""Forwards ahead of the last rank."""

PATIENCES = (0, 1, 2, 3, 4)
"""Quarters of a W that the next F or B must be away."""


def plan(pp: int, vpp: int, microbatches: int, costs: Costs) -> Order:
    """Return the fastest order that keeps to the memory limit."""
    stage_of = round_robin_stages(pp, vpp)
    check_memory(stage_of, costs)
    order = best_order(stage_of, _candidates(pp, microbatches, costs), costs, microbatches)
    assert order is not None, "a sequence that holds one microbatch at a time always fits"
    handcrafted = (zerobubble.order, zerobubble.order_h2)
    return fastest([order, *(order_of(pp, vpp, microbatches) for order_of in handcrafted)], costs)


def _candidates(pp: int, microbatches: int, costs: Costs) -> Candidates:
    held = np.array(costs.activation)
    # As many as the memory holds, one of them in the F of the first pair.
    room = np.full(pp, float(microbatches))
    np.divide(np.array(costs.limit), held, out=room, where=held > 0.0)
    most = np.clip(np.floor(room * (1.0 + 1e-9)), 1, microbatches).astype(np.int64) - 1
    behind = np.arange(pp)[::-1]
    ahead = np.array(
        [
            np.minimum(np.ceil(slope * behind).astype(np.int64) + intercept, most)
            for slope, intercept in itertools.product(SLOPES, INTERCEPTS)
        ]
    )
    # A rank that ran further ahead than the one before it would wait for ever.
    ahead = np.unique(np.minimum.accumulate(ahead, axis=1), axis=0)
    offset = np.ones((len(ahead), pp, 2, 1), np.int64)
    offset[:, :, 0, 0] = -2 * ahead
    shape = np.array([[2, 0, 0, 0, 0, patience] for patience in PATIENCES])
    return Candidates(np.repeat(offset, len(PATIENCES), axis=0), np.tile(shape, (len(ahead), 1)))


_FOUND: "WeakKeyDictionary[Order, Optimised]" = WeakKeyDictionary()


def plan_searched(pp: int, vpp: int, microbatches: int, costs: Costs) -> Order:
    """Return the best order that an integer linear program finds within `Costs.solver_work`.

    The plan of `plan` is made better by many small steps, and what comes out is where the solver
    begins. It stops when it has proven the order to be the best, or when its work is done; whatever
    it finds is replayed and walked through before it counts, so that the order is never worse.
    """
    from projector.schedule.planning import optimise

    start = plan(pp, vpp, microbatches, costs)
    start = optimise.improve(costs, microbatches, start, objective=costs.objective)
    solution = optimise.solve(costs, microbatches, start, objective=costs.objective)
    _FOUND[solution.order] = solution
    return solution.order


def search_of(order: Order) -> "Optimised | None":
    """Return how an order was found, None where it was not searched for."""
    return _FOUND.get(order)
