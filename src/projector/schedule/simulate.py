"""Simulation of a schedule from the times of its chunks."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Floats
from projector.envelope import told
from projector.errors import NumericError, ScheduleError, shown
from projector.schedule.order import BACKWARD, FORWARD, WEIGHT, Placement
from projector.schedule.planning.costs import OBJECTIVES, UNLIMITED, Objective, costs_from
from projector.schedule.registry import SCHEDULES, ChosenOrder, check, check_sizes
from projector.schedule.replay.order_times import to_ps
from projector.schedule.replay.run import PipelineRun
from projector.units import unwrapped

MAX_TIME_S = 5e5
"""Longest time of an argument; b and w together still fit :func:`to_ps`."""


@dataclass(frozen=True, repr=False)
class ScheduleResult:
    """Times of one step of a pipeline, in seconds, and the activations it holds."""

    schedule: str
    pp: int
    vpp: int
    microbatches: int
    makespan_s: float
    """From the first start to the last end of any rank."""
    period_s: float
    """Largest span of one rank: the time of a step where nothing synchronises the ranks."""
    bubble_fraction: float
    """``(makespan - work) / work`` with the work of the busiest rank; 0 where there is none."""
    peak_in_flight: list[int]
    """Most microbatch-chunks that each rank holds at one time."""
    fits: bool = True
    """Whether every rank keeps to the memory limit; true where none was given."""

    def __repr__(self) -> str:
        return (
            f"ScheduleResult({self.schedule}, pp={self.pp}, vpp={self.vpp}, "
            f"microbatches={self.microbatches}: makespan {self.makespan_s:.6g} s, "
            f"period {self.period_s:.6g} s, bubble {self.bubble_fraction:.2%} of the work, "
            f"peak in flight {max(self.peak_in_flight)})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values under the names of the attributes."""
        return asdict(self)


def simulate_schedule(
    name: str,
    pp: int,
    vpp: int = 1,
    microbatches: int = 1,
    f: ArrayLike = 1.0,
    b: ArrayLike = 1.0,
    w: ArrayLike = 1.0,
    p2p: float = 0.0,
    memory_limit: float | None = None,
    group_size: int | None = None,
    overlap_p2p: bool = True,
    objective: Objective = "makespan",
) -> ScheduleResult:
    """Simulate one step of a pipeline.

    Args:
        name (str): Name of the schedule; ``auto`` is 1f1b, or interleaved with virtual stages.
        pp, vpp, microbatches (int): Ranks, chunks (virtual stages) of a rank, microbatches of the
            step.
        f, b, w (float or float[pp * vpp]): Seconds of the forward, of the gradient of the input and
            of the gradient of the weights, for one chunk and one microbatch; arrays are in model
            order. A schedule that does not split the backward runs ``b + w`` as one.
        p2p (float): Seconds from the end of an operation to its arrival on another rank.
        memory_limit (float, optional): Most microbatches whose activations one rank may hold, all
            its chunks together. Schedules that are planned keep to it; the others run as they are
            and say whether they fit.
        group_size (int, optional): Microbatches that a chunk takes before the next chunk's turn,
            where the schedule is interleaved; ``pp`` unless given.
        overlap_p2p (bool): Whether a rank works on while it sends; otherwise its operation lasts
            ``p2p`` longer.
        objective (one of "makespan", "period"): What planned schedules make short.

    Raises:
        ScheduleError: Where the schedule cannot run or an argument is out of range.
    """
    further = (memory_limit, group_size, overlap_p2p, objective)
    run = pipeline_run(name, pp, vpp, microbatches, f, b, w, p2p, *further)
    found = told(run, "schedule makespan_s period_s bubble_fraction peak_in_flight fits")
    return ScheduleResult(pp=int(pp), vpp=int(vpp), microbatches=int(microbatches), **found)


def pipeline_run(
    name: str,
    pp: int,
    vpp: int = 1,
    microbatches: int = 1,
    f: ArrayLike = 1.0,
    b: ArrayLike = 1.0,
    w: ArrayLike = 1.0,
    p2p: float = 0.0,
    memory_limit: float | None = None,
    group_size: int | None = None,
    overlap_p2p: bool = True,
    objective: Objective = "makespan",
) -> PipelineRun:
    """Return the replay of :func:`simulate_schedule`; a chunk holds 1 / ``vpp`` of a microbatch."""
    if not isinstance(name, str):
        msg = f"a schedule is named by text, not {shown(name)}"
        raise ScheduleError(msg, key="schedule", value=name, allowed=["auto", *SCHEDULES])
    setting = check(name, pp, vpp, microbatches, group_size)
    stages = pp * vpp
    times_s, limit, aim = read_arguments(
        pp, vpp, microbatches, f, b, w, p2p, memory_limit, objective
    )
    forward_s, input_s, weight_s, latency_s = times_s
    latency_ps = np.full((2, stages), to_ps(latency_s))
    costs = None
    if setting.planned:
        costs = costs_from(
            forward_ps=to_ps(forward_s),
            backward_ps=to_ps(input_s),
            weight_ps=to_ps(weight_s),
            p2p_ps=latency_ps,
            activation=np.full(stages, 1.0 / vpp),
            w_share=1.0,
            limit=np.full(pp, UNLIMITED if limit is None else limit),
            objective=aim,
        )
    chosen = ChosenOrder(setting, setting.order(costs) if setting.planned else None)
    order = chosen.short()

    if order.splits_backward:
        times = {FORWARD: forward_s, BACKWARD: input_s, WEIGHT: weight_s}
    else:
        times = {FORWARD: forward_s, BACKWARD: input_s + weight_s}
    duration_ps = np.zeros((order.pp, order.vpp, 3, 3), np.int64)
    model_stage = order.stage_of % order.num_stages
    for kind, seconds in times.items():
        duration_ps[:, :, kind, :] = to_ps(seconds)[model_stage][:, :, np.newaxis]
    p2p_ps = np.tile(latency_ps, order.directions)
    sends_ps = None
    if not overlap_p2p:
        placement = Placement(order.stage_of, order.directions)
        sends_ps = placement.sends_ps(p2p_ps, chosen.microbatches)
        duration_ps, p2p_ps = placement.block(duration_ps, p2p_ps)
    run = PipelineRun(
        setting.name,
        chosen,
        duration_ps,
        p2p_ps,
        np.full((pp, order.vpp), 1.0 / vpp),
        limit_bytes=limit,
        sends_ps=sends_ps,
    )
    try:
        run.summary  # noqa: B018  its errors belong here
    except NumericError as error:
        raise ScheduleError(error.message, key=error.key, allowed=error.allowed) from error
    return run


def read_arguments(
    pp: int,
    vpp: int,
    microbatches: int,
    f: ArrayLike,
    b: ArrayLike,
    w: ArrayLike,
    p2p: float,
    memory_limit: float | None,
    objective: Objective,
) -> tuple[list[Floats], float | None, Objective]:
    """Return times, limit and objective, or raise what is wrong with them under every schedule."""
    check_sizes(pp, vpp, microbatches)
    stages = pp * vpp
    times_s = [_times(key, value, (stages,)) for key, value in (("f", f), ("b", b), ("w", w))]
    return [*times_s, _times("p2p", p2p, ())], _limit(memory_limit), _objective(objective)


def _objective(value: Any) -> Objective:
    for known in OBJECTIVES:
        if value == known:
            return known
    msg = f"objective must be one of {', '.join(OBJECTIVES)}, not {shown(value)}"
    raise ScheduleError(msg, key="objective", value=str(value), allowed=OBJECTIVES)


def _limit(value: Any) -> float | None:
    value = unwrapped(value)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        msg = f"memory_limit must be a number of microbatches above 0, not {shown(value)}"
        raise ScheduleError(msg, key="memory_limit", value=str(value), allowed="> 0")
    return float(value)


def _times(key: str, value: ArrayLike, shape: tuple[int, ...]) -> Floats:
    try:
        given = np.asarray(value)
        seconds = given.astype(np.float64) if given.dtype.kind in "iuf" else np.array(np.nan)
    except (TypeError, ValueError, OverflowError):
        seconds = np.array(np.nan)
    if seconds.shape not in ((), shape):
        rule = f"one number or {shape[0]} of them (pp * vpp)" if shape else "one number"
        msg = f"{key} must be {rule}, but has the shape {seconds.shape}"
        raise ScheduleError(msg, key=key, value=list(seconds.shape), allowed=rule)
    # NaN compares false, so it is refused as well.
    if not np.all((seconds >= 0) & (seconds <= MAX_TIME_S)):
        rule = f"between 0 and {MAX_TIME_S:g} seconds"
        msg = f"{key} must lie {rule}, not {shown(value)}"
        raise ScheduleError(msg, key=key, value=str(value), allowed=rule)
    return np.broadcast_to(seconds, shape)
