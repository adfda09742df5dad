"""Choosing the best of many orders that keep to a memory limit: the gate to the kernel.

A planner proposes candidates, each a sequence of F and B for every rank. The kernel lays them out
with the times at hand, with W in the gaps, and the fastest that keeps to the memory is taken.
"""

import math
from collections.abc import Iterable

import numpy as np

from projector.arrays import Ints
from projector.errors import ScheduleError
from projector.kernels import planning as kernels
from projector.kernels.planning import Candidates, OrderColumns, StageCosts
from projector.schedule.order import Order
from projector.schedule.planning.costs import Costs
from projector.schedule.replay.order_times import peak_bytes, replay_batch

FINALISTS = 12
"""Candidates that are laid out with all microbatches; the others drop out with fewer."""

MOST_OPERATIONS = 2**24
"""Operations laid out for one ranking, which takes about a second; few candidates of many ranks
are that many. Up to 64 ranks no candidate is left out."""


def best_order(
    stage_of: Ints, candidates: Candidates, costs: Costs, microbatches: int
) -> Order | None:
    """Return the order with the least makespan, and of those the least period, or as asked.

    None where the memory suffices for no candidate. Equals go to the first candidate.
    """
    probe = min(microbatches, 4 * len(stage_of))
    ranking = rank(stage_of, candidates, costs, probe, FINALISTS if probe < microbatches else 1)
    if probe < microbatches:
        ranking = ranking[rank(stage_of, candidates.pick(ranking), costs, microbatches, 1)]
    if len(ranking) == 0:
        return None
    _, _, columns = _run(
        stage_of, candidates.pick(ranking[:1]), costs, microbatches, 1, listed=True
    )
    return Order.of_ranks(stage_of, microbatches, *columns, splits_backward=True)


def fastest(orders: Iterable[Order], costs: Costs) -> Order:
    """Return the first order of the least makespan, then period (or as asked) within the memory."""
    limit = np.array(costs.limit) * kernels.ROUNDING
    activation = np.array(costs.activation)
    best, least = None, None
    for order in orders:
        held, _ = peak_bytes(order, activation[order.stage_of][np.newaxis], costs.w_share)
        if best is not None and np.any(held[0] > limit):
            continue
        durations, latencies = _countable(costs, order.microbatches)
        duration_ps = np.repeat(durations.T[order.stage_of][..., np.newaxis], 3, axis=-1)
        summary = replay_batch(order, duration_ps[np.newaxis], latencies[np.newaxis])
        makespan = int(summary.makespan_ps[0])
        period = int((summary.rank_end_ps - summary.rank_start_ps).max())
        time = (makespan, period) if costs.objective == "makespan" else (period, makespan)
        if least is None or time < least:
            best, least = order, time
    assert best is not None, "there is at least one order"
    return best


def rank(
    stage_of: Ints, candidates: Candidates, costs: Costs, microbatches: int, most: int
) -> Ints:
    """Return the ``most`` fastest candidates that memory suffices for; of too many, some."""
    count = len(candidates.shape)
    affordable = max(1, MOST_OPERATIONS // (3 * stage_of.size * microbatches))
    looked_at = np.linspace(0, count - 1, min(count, affordable)).astype(np.int64)
    makespan, period, _ = _run(stage_of, candidates.pick(looked_at), costs, microbatches, most)
    first, second = (makespan, period) if costs.objective == "makespan" else (period, makespan)
    order = np.lexsort((second, first))
    return looked_at[order[makespan[order] < kernels.NEVER]][:most]


def check_memory(stage_of: Ints, costs: Costs) -> None:
    """Refuse a limit below what one microbatch alone needs on some rank."""
    needed = np.array(costs.activation)[stage_of].sum(axis=1)
    limit = np.array(costs.limit)
    short = needed > limit * kernels.ROUNDING
    if np.any(short):
        worst = int(np.argmax(short))
        least = float(needed.max())
        msg = (
            f"the memory limit of {limit[worst]:g} is less than one microbatch leaves on rank "
            f"{worst} ({needed[worst]:g}); set at least {least:g}"
        )
        raise ScheduleError(msg, key="memory_limit", value=float(limit[worst]), allowed=least)


def _countable(costs: Costs, microbatches: int) -> tuple[Ints, Ints]:
    """Return durations ``[3, stages]`` and latencies ``[2, stages]`` that a kernel can add up.

    They are in picoseconds, or in a power of two of them where all operations of the step take
    days: the order is none the worse, and whether such a step can be timed is for its replay.
    """
    times = np.array([*costs[:5]], np.int64)
    total = float(times.sum(dtype=np.float64)) * microbatches
    times >>= max(0, math.frexp(total / (kernels.NEVER // 8))[1])
    return times[:3], times[3:]


def _run(
    stage_of: Ints,
    candidates: Candidates,
    costs: Costs,
    microbatches: int,
    most: int,
    *,
    listed: bool = False,
) -> tuple[Ints, Ints, OrderColumns]:
    pp, vpp = stage_of.shape
    durations, latencies = _countable(costs, microbatches)
    operations = (pp, 3 * vpp * microbatches if listed else 0)
    columns = OrderColumns(np.empty(operations, np.int8), *np.empty((2, *operations), np.int64))
    makespan, period = np.empty((2, len(candidates.shape)), np.int64)
    kernels.plan_candidates(
        np.ascontiguousarray(stage_of),
        Candidates(*map(np.ascontiguousarray, candidates)),
        StageCosts(
            durations,
            latencies[0],
            latencies[1],
            np.array(costs.activation, np.float64),
            float(costs.w_share),
            np.array(costs.limit, np.float64),
        ),
        most,
        costs.objective == "period",
        np.empty((2, pp * vpp, microbatches), np.int64),
        columns,
        makespan,
        period,
    )
    return makespan, period, columns
