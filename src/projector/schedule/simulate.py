"""Simulation of a schedule from the times of its chunks."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from projector.errors import NumericError, ScheduleError

from .order import BACKWARD, FORWARD, WEIGHT, Order
from .registry import SCHEDULES, build, check
from .replay import peak_in_flight, replay_batch, to_ps

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
) -> ScheduleResult:
    """Simulate one step of a pipeline.

    Parameters
    ----------
    name : str
        Name of the schedule; ``auto`` is 1f1b, or interleaved with virtual stages.
    pp, vpp, microbatches : int
        Ranks, chunks (virtual stages) of a rank, microbatches of the step.
    f, b, w : float or float[pp * vpp]
        Seconds of the forward, of the gradient of the input and of the gradient of the weights,
        for one chunk and one microbatch; arrays are in model order. A schedule that does not
        split the backward runs ``b + w`` as one.
    p2p : float
        Seconds from the end of an operation to its arrival on another rank.

    Raises
    ------
    ScheduleError
        Where the schedule cannot run or an argument is out of range.
    """
    if not isinstance(name, str):
        msg = f"a schedule is named by text, not {name!r}"
        raise ScheduleError(msg, key="schedule", value=name, allowed=["auto", *SCHEDULES])
    entry = check(name, pp, vpp, microbatches)
    forward_s, input_s, weight_s = (
        _times(key, value, (pp * vpp,)) for key, value in (("f", f), ("b", b), ("w", w))
    )
    latency_s = _times("p2p", p2p, ())
    order = build(name, pp, vpp, microbatches)

    duration_ps = np.zeros((1, pp, vpp, 3, 3), np.int64)
    if order.splits_backward:
        _place(duration_ps, order, BACKWARD, input_s)
        _place(duration_ps, order, WEIGHT, weight_s)
    else:
        _place(duration_ps, order, BACKWARD, input_s + weight_s)
    _place(duration_ps, order, FORWARD, forward_s)
    p2p_ps = np.full((1, 2, pp * vpp), to_ps(latency_s))

    try:
        times = replay_batch(order, duration_ps, p2p_ps)
    except NumericError as error:
        raise ScheduleError(error.message, key=error.key, allowed=error.allowed) from error
    makespan = int(times.makespan_ps[0])
    work = int(times.rank_busy_ps[0].max())
    return ScheduleResult(
        schedule=entry.name,
        pp=int(pp),
        vpp=int(vpp),
        microbatches=int(microbatches),
        makespan_s=makespan / 1e12,
        period_s=int((times.rank_end_ps - times.rank_start_ps).max()) / 1e12,
        bubble_fraction=(makespan - work) / work if work else 0.0,
        peak_in_flight=peak_in_flight(order).tolist(),
    )


def _place(
    duration_ps: NDArray[np.int64], order: Order, kind: int, seconds: NDArray[np.float64]
) -> None:
    """Write times in model order to the rank and chunk that run them, for every class."""
    duration_ps[0, :, :, kind, :] = to_ps(seconds)[order.stage_of][:, :, np.newaxis]


def _times(key: str, value: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float64]:
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
        msg = f"{key} must lie {rule}, not {value!r}"
        raise ScheduleError(msg, key=key, value=str(value), allowed=rule)
    return np.broadcast_to(seconds, shape)
