"""Memory-aware zero bubble by an integer linear program (Qi et al., arXiv:2401.10241, section 3).

The plan of `seaailab` is made better by many small steps, and what comes out is where the solver
begins. It stops when it has proven the order to be the best, or when its work is done; whatever it
finds is replayed and walked through before it counts, so that the order is never worse than that
of `seaailab`.
"""

from weakref import WeakKeyDictionary

from projector.schedule.order import Order
from projector.schedule.orders import seaailab
from projector.schedule.planning import anneal, optimise
from projector.schedule.planning.costs import Costs
from projector.schedule.planning.optimise import Optimised

_FOUND: WeakKeyDictionary[Order, Optimised] = WeakKeyDictionary()


def plan(pp: int, vpp: int, microbatches: int, costs: Costs) -> Order:
    """Return the best order that is found within `Costs.solver_work`."""
    start = seaailab.plan(pp, vpp, microbatches, costs)
    start = anneal.improve(costs, microbatches, start, objective=costs.objective)
    solution = optimise.solve(costs, microbatches, start, objective=costs.objective)
    _FOUND[solution.order] = solution
    return solution.order


def search_of(order: Order) -> Optimised | None:
    """Return how an order was found, None where it was not searched for."""
    return _FOUND.get(order)
