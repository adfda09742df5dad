"""The best zero-bubble schedule of one chunk a rank that an integer linear program finds.

The program is in :mod:`.ilp`, and what it cannot undercut in :mod:`.bounds`. A solver computes with
floats and tolerances, so nothing that it finds is believed: only its order is taken, and counts by
a replay in whole picoseconds and a walk through the memory of each rank. Nor is its proof, the
first time: it is asked once more, in another way, for anything better. Its bound has to be believed
where it ran out of work.
"""

import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from projector.arrays import Floats, Ints, Ints8
from projector.errors import ScheduleError
from projector.kernels import anneal as kernels
from projector.schedule.order import Order
from projector.schedule.planning.bounds import Windows
from projector.schedule.planning.costs import Costs, Objective
from projector.schedule.planning.heard import heard
from projector.schedule.planning.ilp import Answer, Model, grain_ps, run
from projector.schedule.planning.problem import (
    Problem,
    begin,
    objective_ps,
    order_of,
    sequence_of,
    verified,
)

MOVES = 100_000
"""Steps of a round; all rounds are 0.1 s for 4 ranks with 8 microbatches, 0.8 s for 8 with 32."""

MOST_STEPPED = 8000 * MOVES
"""Operations of an order times steps of a round: a step replays the order, and a round of more
would take longer than two seconds."""

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
    moves = min(moves, max(1, MOST_STEPPED // kind.size))
    for turn, threshold in enumerate(THRESHOLDS):
        worst_ps = threshold * float(problem.duration_ps.mean())
        search = kind, times, memory, least_ps, worst_ps, moves, SEED + turn
        best_ps = heard(kernels.anneal, *search)
    improved = order_of(kind, start)
    # The kernel keeps to the same rules; should it ever not, nothing is lost.
    if best_ps < start_ps and verified(problem, costs, improved) == best_ps:
        return improved
    return start


ROOT_NODES = 10
"""What the relaxation of a model, its cuts and its heuristics are worth, in nodes."""

MOST_NODES = 1 << 30
"""HiGHS counts them in 32 bits."""

VISIT_WORK = 40
"""What a visit of :class:`.bounds.Windows` is worth in units of `Costs.solver_work`."""

PROVEN = 1e-5
"""Gap below which the solver's proof counts as one; its floats are worth no more."""

Status = Literal[
    "start is optimal",
    "optimal",
    "unconfirmed",
    "work limit",
    "too large",
    "not verified",
    "solver failed",
]
"""How a search ended:

- ``start is optimal``: the order it began with meets the bound of :mod:`.bounds`;
- ``optimal``: proven the best twice, the second time by asking for anything better;
- ``unconfirmed``: proven the best once, with too little work left for the second proof;
- ``work limit``: the best of what the work was enough for;
- ``too large``: the order it began with, as the work is not enough to begin with the model;
- ``not verified``: as ``work limit``, but the solver has found or proven what the replay denies;
- ``solver failed``: the order it began with, as the solver gave up.
"""


@dataclass(frozen=True, eq=False, repr=False)
class Optimised:
    """The best order that was found, and what is known about it."""

    order: Order
    objective: Objective
    objective_ps: int
    """Of the order, by its replay."""
    start_ps: int
    """Of the order that the search began with."""
    bound_ps: int
    """No order has a smaller objective."""
    status: Status
    seconds: float
    """Wall clock, everything together."""
    work: int
    """What was allowed, in units of `Costs.solver_work`."""
    nodes: int = 0
    """Of the solver's search tree."""
    binaries: int = 0
    """Pairs of operations whose order was left to the solver."""

    @property
    def gap(self) -> float:
        """``(objective - bound) / objective``: the most that a better order could save."""
        return (self.objective_ps - self.bound_ps) / self.objective_ps if self.objective_ps else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for ``--json``."""
        return {
            "status": self.status,
            "objective": self.objective,
            "bound_s": self.bound_ps / 1e12,
            "gap": self.gap,
            "seconds": self.seconds,
            # Work is limited, not time, so that every machine finds the same.
            "time_limit_s": None,
            "work_limit": self.work,
        }

    def __repr__(self) -> str:
        return (
            f"Optimised({self.status}: {self.objective} {self.objective_ps} ps, bound "
            f"{self.bound_ps} ps, gap {self.gap:.2%}, from {self.start_ps} ps in "
            f"{self.seconds:.3g} s, {self.nodes} nodes, {self.binaries} binaries)"
        )


@lru_cache(maxsize=128)
def solve(
    costs: Costs, microbatches: int, start: Order, *, objective: Objective = "makespan"
) -> Optimised:
    """Return the best order of F, B and W that some work can find; never one that is worse.

    One chunk a rank. ``start`` is legal and within the limits. The same arguments give the same
    object, so that a report can ask for the gap of an order that was planned before.
    """
    began_s = time.perf_counter()
    work = costs.solver_work
    if work < 0:
        msg = f"solver_work must be a number >= 0, not {work!r}"
        raise ScheduleError(msg, key="solver_work", value=work, allowed=">= 0")
    problem, start, timeline = begin(costs, microbatches, start, objective)
    start_ps = objective_ps(problem, start, timeline)

    visits = work // VISIT_WORK
    windows = Windows(problem, sequence_of(start), max(BOUND_VISITS, visits))
    bound_ps = windows.lower_bound_ps()
    best, best_ps = start, start_ps
    status: Status = "start is optimal"
    nodes = binaries = 0
    if bound_ps < start_ps:
        windows.visits = visits
        # There is a schedule with this objective: the one at hand.
        assert windows.tighten(start_ps)
        bound_ps = max(bound_ps, windows.lower_bound_ps())
        binaries = windows.undecided
        most_nodes = _nodes(work, binaries)
        if most_nodes < 1:
            status = "too large"
        else:
            model = Model(windows, start_ps)
            known = model.values(*_by_operation(start, timeline.start_ps))
            answer = run(model, known, most_nodes)
            nodes = answer.nodes
            work_left = work - (ROOT_NODES + nodes) * binaries**2
            for order in _orders(model, answer, start):
                value = verified(problem, costs, order)
                if value is not None and value < best_ps:
                    best, best_ps = order, value
            best, best_ps, status, bound_ps = _confirmed(
                problem, costs, answer, best, best_ps, bound_ps, work_left
            )
    return Optimised(
        order=best,
        objective=objective,
        objective_ps=best_ps,
        start_ps=start_ps,
        bound_ps=bound_ps,
        status=status,
        seconds=time.perf_counter() - began_s,
        work=work,
        nodes=nodes,
        binaries=binaries,
    )


def _confirmed(
    problem: Problem,
    costs: Costs,
    answer: Answer,
    best: Order,
    best_ps: int,
    bound_ps: int,
    work: int,
) -> tuple[Order, int, Status, int]:
    """Prove once more that no order is better; return the best, its time, status and bound."""
    status, proven_ps = _judge(answer, best_ps, bound_ps)
    while status == "optimal":
        verdict = _anything_better(problem, costs, best, best_ps, work)
        if isinstance(verdict, int):
            return best, best_ps, status, max(proven_ps, verdict)
        if verdict is None:
            status = "unconfirmed"
        else:
            best, best_ps = verdict
            # The first proof was wrong, and so is its bound.
            proven_ps = bound_ps
    return best, best_ps, status, proven_ps


def _nodes(work: int, binaries: int) -> int:
    """Return the nodes that work is enough for; their time grows with the binaries squared."""
    return min(MOST_NODES, work // max(1, binaries) ** 2) - ROOT_NODES


def _anything_better(
    problem: Problem, costs: Costs, best: Order, best_ps: int, work: int
) -> int | tuple[Order, int] | None:
    """Return a bound that leaves nothing better, or a better order with its objective.

    None where there was no work left to tell. Most often the windows of a better order contradict
    each other, which is exact and needs no solver.
    """
    grain = grain_ps(problem)
    windows = Windows(problem, sequence_of(best), work // VISIT_WORK)
    if not windows.tighten(best_ps - grain):
        return best_ps
    # As much better as the solver can tell; an objective beyond that is a grain more at least.
    most_ps = best_ps - grain * max(1, int(PROVEN * best_ps / grain))
    if not windows.tighten(most_ps):
        return most_ps + grain
    nodes = _nodes(work, windows.undecided)
    if nodes < 1:
        return None
    model = Model(windows, best_ps, most_ps)
    answer = run(model, None, nodes, again=True)
    for order in _orders(model, answer, best):
        value = verified(problem, costs, order)
        if value is not None and value < best_ps:
            return order, value
    return most_ps + grain if answer.infeasible else None


def _judge(answer: Answer, best_ps: int, bound_ps: int) -> tuple[Status, int]:
    """Return how the search ended, and the bound that may be believed."""
    if answer.failed or answer.infeasible:
        # There is a solution: the order that it began with.
        return "solver failed", bound_ps
    slack_ps = PROVEN * best_ps
    if answer.bound_ps > best_ps + slack_ps:
        # A bound above an order that stands is wrong, and may be wrong anywhere.
        return "not verified", bound_ps
    bound_ps = min(best_ps, max(bound_ps, answer.bound_ps))
    if best_ps - bound_ps <= slack_ps:
        return "optimal", bound_ps
    return ("not verified" if answer.finished else "work limit"), bound_ps


def _by_operation(order: Order, start_ps: Ints) -> tuple[Ints, Ints]:
    """Return starts and positions in the rank as int64[pp, 3, microbatches], by stage and kind."""
    shape = (order.pp, 3, order.microbatches)
    starts, positions = np.empty(shape, np.int64), np.empty(shape, np.int64)
    index = order.stage, order.kind, order.microbatch
    starts[index] = start_ps
    positions[index] = np.arange(len(start_ps))
    return starts, positions


def _orders(model: Model, answer: Answer, like: Order) -> list[Order]:
    """Read a solution in two ways: by its starts, and by its binaries.

    Either can be ambiguous, within the solver's tolerance or between operations of no time.
    """
    if answer.values is None:
        return []
    starts = answer.values[: model.starts].reshape((like.pp, 3, like.microbatches))
    earlier = model.earlier(answer.values)
    return [_order_by(keys, like) for keys in ((earlier, starts), (starts, earlier))]


def _order_by(keys: tuple[Floats, Floats], like: Order) -> Order:
    """Sort the operations of each rank by two keys, float64[pp, 3, microbatches] by stage."""
    ranks = like.stage_of[:, 0]
    first, second = (key[ranks].reshape(like.pp, -1) for key in keys)
    sequence = np.lexsort((second, first), axis=1)
    by_stage = np.empty_like(sequence)
    by_stage[ranks] = sequence // like.microbatches
    return order_of(by_stage, like)
