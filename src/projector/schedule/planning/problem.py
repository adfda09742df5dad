"""Zero-bubble scheduling of one chunk a rank: what is given, and what an order is worth.

The problem is that of arXiv:2401.10241, section 3: F, B and W of each stage and microbatch, one
operation at a time on a rank, activations within a limit.

Shapes
    pp, microbatches  stages (each on a rank of its own) and microbatches
    3                 kind: F, B, W
Units: times int64 picoseconds; memory in the unit of `Costs`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from projector.arrays import Ints
from projector.errors import NumericError, ScheduleError
from projector.schedule.order import FORWARD, Order, check_order
from projector.schedule.planning.costs import OBJECTIVES, Costs, Objective
from projector.schedule.replay.order_times import Timeline, peak_bytes, replay
from projector.schedule.replay.programs import compile_line

Operation = tuple[int, int, int]
"""Stage, kind, microbatch."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Times and memory of a pipeline by stage, and what is minimised."""

    microbatches: int
    duration_ps: Ints
    """``int64[pp, 3]``"""
    to_next_ps: Ints
    """``int64[pp]``"""
    to_previous_ps: Ints
    """``int64[pp]``"""
    activation: tuple[float, ...]
    w_share: float
    limit: tuple[float, ...]
    """By stage, not by rank."""
    first_ps: Ints
    """``int64[pp]``: when F of microbatch 0 arrives; no rank does anything earlier."""
    since_ps: Ints
    """``int64[pp]``: the time of each stage from which its last end counts. The objective is
    ``max(end - since_ps)``: since 0 for the makespan, since ``first_ps`` for the period."""

    @property
    def pp(self) -> int:
        """Stages, each on a rank of its own."""
        return len(self.duration_ps)

    def held(self, stage: int, whole: int, waiting: int) -> float:
        """Memory of activations before B and of those between B and W, summed as in a replay."""
        activation = self.activation[stage]
        return activation * whole + activation * self.w_share * waiting


def problem_of(
    costs: Costs, microbatches: int, objective: Objective, rank_of: Ints | None = None
) -> Problem:
    """Turn costs into a problem; ``rank_of`` int64[pp] says which rank has which stage.

    Raises :class:`ScheduleError` where there is no such objective, or a rank has no room for one
    microbatch. With room for one, the microbatches can always follow one another.
    """
    if objective not in OBJECTIVES:
        msg = f"objective must be one of {', '.join(OBJECTIVES)}, not {objective!r}"
        raise ScheduleError(msg, key="objective", value=objective, allowed=OBJECTIVES)
    duration = np.array([costs.forward_ps, costs.backward_ps, costs.weight_ps], np.int64).T
    to_next = np.array(costs.to_next_ps, np.int64)
    pp = len(duration)
    ranks = list(range(pp)) if rank_of is None else rank_of.tolist()
    for activation, rank in zip(costs.activation, ranks, strict=True):
        # NaN compares false, so it is refused as well.
        if not activation <= costs.limit[rank]:
            least = f"{max(costs.activation):.6g}"
            msg = (
                f"rank {rank} may hold {costs.limit[rank]:.6g}, but one microbatch takes "
                f"{activation:.6g} there; the least that works on every rank is {least}"
            )
            raise ScheduleError(
                msg, key="memory_limit", value=costs.limit[rank], allowed=f">= {least}"
            )
    first = np.concatenate([[0], np.cumsum((duration[:, FORWARD] + to_next)[:-1])])
    return Problem(
        microbatches=microbatches,
        duration_ps=duration,
        to_next_ps=to_next,
        to_previous_ps=np.array(costs.to_previous_ps, np.int64),
        activation=costs.activation,
        w_share=costs.w_share,
        limit=tuple(costs.limit[rank] for rank in ranks),
        first_ps=first,
        since_ps=first if objective == "period" else np.zeros_like(first),
    )


def begin(
    costs: Costs, microbatches: int, start: Order, objective: Objective
) -> tuple[Problem, Order, Timeline]:
    """Return the problem of a search, the order that it begins with, and its replay.

    The order is ``start`` where each kind runs by microbatch. Otherwise its operations are
    renumbered; none then starts later, see :mod:`.bounds`.
    """
    stages = len(costs.forward_ps)
    if not (
        start.vpp == 1
        and start.directions == 1
        and start.splits_backward
        and start.pp == stages
        and start.microbatches == microbatches
    ):
        msg = (
            f"the start must be an order of F, B and W of {stages} ranks with one chunk each "
            f"and {microbatches} microbatches, not with {start!r}"
        )
        raise ScheduleError(msg, key="schedule")
    problem = problem_of(costs, microbatches, objective, np.argsort(start.stage_of[:, 0]))
    check_order(start)
    for rank, held in enumerate(_peaks(costs, start)):
        if held > costs.limit[rank]:
            msg = (
                f"the start holds {held:.6g} on rank {rank}, which may hold at most "
                f"{costs.limit[rank]:.6g}"
            )
            raise ScheduleError(
                msg, key="memory_limit", value=costs.limit[rank], allowed=f">= {held:.6g}"
            )
    renumbered = order_of(start.kind.reshape(stages, -1)[np.argsort(start.stage_of[:, 0])], start)
    if not np.array_equal(renumbered.microbatch, start.microbatch):
        start = renumbered
    return problem, start, timeline_of(problem, start)


def _peaks(costs: Costs, order: Order) -> list[float]:
    activation = np.array(costs.activation)[order.stage_of]
    peaks: list[float] = peak_bytes(order, activation[np.newaxis], costs.w_share)[0][0].tolist()
    return peaks


def timeline_of(problem: Problem, order: Order) -> Timeline:
    """Replay an order, whatever rank each stage is on."""
    duration_ps = problem.duration_ps[order.stage_of]
    return replay(
        order,
        np.repeat(duration_ps[..., np.newaxis], 3, axis=3),
        np.stack([problem.to_next_ps, problem.to_previous_ps]),
    )


def objective_ps(problem: Problem, order: Order, timeline: Timeline) -> int:
    """Return what is minimised, from a replay."""
    end_ps = timeline.summary.rank_end_ps[0]
    return int((end_ps - problem.since_ps[order.stage_of[:, 0]]).max())


def verified(problem: Problem, costs: Costs, order: Order) -> int | None:
    """Return the objective of an order by its replay; None where it is illegal or does not fit."""
    try:
        check_order(order)
        timeline = timeline_of(problem, order)
    except (ScheduleError, NumericError):
        return None
    if any(held > costs.limit[rank] for rank, held in enumerate(_peaks(costs, order))):
        return None
    return objective_ps(problem, order, timeline)


def sequence_of(order: Order) -> list[Operation]:
    """List the operations of an order so that each follows what it waits for."""
    in_line = np.argsort(compile_line(order).slot)
    columns = (order.stage[in_line], order.kind[in_line], order.microbatch[in_line])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def order_of(kind: NDArray[np.integer], like: Order) -> Order:
    """Return the order of kinds by stage, int[pp, 3 * microbatches]; each kind by microbatch."""
    by_rank = kind[like.stage_of[:, 0]]
    number = np.zeros_like(by_rank, np.int64)
    for code in range(3):
        of_kind = by_rank == code
        number[of_kind] = np.cumsum(of_kind, axis=1)[of_kind] - 1
    columns = by_rank.astype(np.int8), np.zeros_like(number), number
    return Order.of_ranks(like.stage_of, like.microbatches, *columns, splits_backward=True)
