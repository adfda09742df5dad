"""What an order that looks at times and memory is planned with."""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from projector.config.training import SOLVER_WORK

UNLIMITED = float("inf")

Objective = Literal["makespan", "period"]
"""What a planned order makes short: the time from the first start to the last end of all ranks, or
the longest span of one rank, which is the time of a step where nothing synchronises the ranks."""

OBJECTIVES: tuple[Objective, ...] = ("makespan", "period")


class Costs(NamedTuple):
    """Times and memory of the virtual stages of one model; hashable, so that plans are shared."""

    forward_ps: tuple[int, ...]
    """F of each virtual stage and microbatch, in model order."""
    backward_ps: tuple[int, ...]
    """B, the gradient of the input alone."""
    weight_ps: tuple[int, ...]
    """W, the gradient of the weights."""
    to_next_ps: tuple[int, ...]
    """Latency from each virtual stage to the next, where that lies on another rank."""
    to_previous_ps: tuple[int, ...]
    activation: tuple[float, ...]
    """What one microbatch leaves in each virtual stage from F on, in any unit."""
    w_share: float
    """Share of it that stays from B until W."""
    limit: tuple[float, ...]
    """The most that each rank may hold, in the same unit."""
    objective: Objective = "makespan"
    solver_work: int = SOLVER_WORK
    """What an integer program may be worth, see :data:`SOLVER_WORK`."""


def uniform_costs(pp: int, stages: int, limit: float = UNLIMITED, ps: int = 1) -> Costs:
    """Equal stages: F = B = W, no latency, one unit of memory until W."""
    same = (ps,) * stages
    nothing = (0,) * stages
    return Costs(same, same, same, nothing, nothing, (1.0,) * stages, 1.0, (limit,) * pp)


def costs_from(
    forward_ps: ArrayLike,
    backward_ps: ArrayLike,
    weight_ps: ArrayLike,
    p2p_ps: ArrayLike,
    activation: ArrayLike,
    w_share: float,
    limit: ArrayLike,
    objective: Objective = "makespan",
    solver_work: int = SOLVER_WORK,
) -> Costs:
    """Turn columns of stages (``p2p_ps`` int64[2, stages]) and ranks into tuples."""
    to_next, to_previous = np.asarray(p2p_ps, np.int64)
    return Costs(
        forward_ps=_integers(forward_ps),
        backward_ps=_integers(backward_ps),
        weight_ps=_integers(weight_ps),
        to_next_ps=_integers(to_next),
        to_previous_ps=_integers(to_previous),
        activation=tuple(np.asarray(activation, np.float64).tolist()),
        w_share=float(w_share),
        limit=tuple(np.asarray(limit, np.float64).tolist()),
        objective=objective,
        solver_work=int(solver_work),
    )


def _integers(values: ArrayLike) -> tuple[int, ...]:
    return tuple(np.asarray(values, np.int64).tolist())
