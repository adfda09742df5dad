"""One step of a pipeline with its times and its memory: what is compared, drawn and traced."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from projector.arrays import Floats, Ints
from projector.kernels.pipeline import MAX_PS, OK, OUT_OF_RANGE, Replays
from projector.schedule.order import BACKWARD, FORWARD, Order
from projector.schedule.registry import ChosenOrder
from projector.schedule.replay import order_times
from projector.schedule.replay.programs import empty_ends

if TYPE_CHECKING:
    from projector.schedule.planning.optimise import Optimised

SEARCHED = ("seaailab-ilp",)
"""Schedules whose plan says how far it may be from the best."""


class MemoryBand(NamedTuple):
    """How far the peak of the fullest rank may be off."""

    verdict: str
    """``fits``, ``at_risk`` or ``does_not_fit``."""
    low_bytes: float
    high_bytes: float


class MemoryCurve(NamedTuple):
    """What one rank holds over time: ``bytes[i]`` from ``time_ps[i]`` until ``time_ps[i + 1]``."""

    time_ps: Ints
    bytes: Floats


@dataclass(frozen=True, eq=False)
class PipelineRun:
    """An order with the durations, latencies and activations of one configuration."""

    schedule: str
    chosen: ChosenOrder
    duration_ps: Ints
    """``int64[pp, vpp, 3, 3]``: by rank, chunk, kind and class, as `replay_batch` takes them."""
    p2p_ps: Ints
    """``int64[2, pp * vpp]``: latency from each virtual stage to the next and the one before."""
    activation_bytes: Floats
    """``float64[pp, vpp]``: what one microbatch leaves in each chunk, from F on."""
    w_share: float = 1.0
    """Share of it that stays from B until W, where the order has W."""
    static_bytes: Floats | None = None
    """``float64[pp]``: everything else that a rank holds; None where it is not known."""
    limit_bytes: float | None = None
    """The most that a rank may hold altogether; None where there is no limit."""
    memory_band: MemoryBand | None = None
    """Of a job; None where nothing is known of what is off."""
    sends_ps: Ints | None = None
    """``int64[pp]``: what of the operations of each rank is waiting for its own messages to
    arrive; None where ranks work on meanwhile."""

    @property
    def search(self) -> "Optimised | None":
        """How the order was found, where that took a search."""
        if self.schedule not in SEARCHED:
            return None
        from projector.schedule.orders.seaailab import search_of

        return search_of(self.order)

    @property
    def order(self) -> Order:
        """Every operation; a long step has gigabytes of them."""
        return self.chosen.order()

    @cached_property
    def timeline(self) -> order_times.Timeline:
        """Start and end of every operation."""
        return order_times.replay(self.order, self.duration_ps, self.p2p_ps)

    @cached_property
    def summary(self) -> Replays:
        """Start, end and work of every rank, without a list of what repeats itself."""
        # Sums and maxima of multiples are multiples: long round times never come near an overflow.
        units = (np.gcd.reduce(times, axis=None) for times in (self.duration_ps, self.p2p_ps))
        unit = math.gcd(*map(int, units)) or 1
        pp, chunks = self.activation_bytes.shape
        one, ends = np.zeros(1, np.int64), empty_ends(pp, chunks, 1)
        duration_ps = self.duration_ps[np.newaxis] // unit
        wanted = order_times.Wanted(duration_ps, self.p2p_ps[np.newaxis] // unit, ends)
        order_times.replay_chosen([self.chosen], one, one, [wanted])
        replays = order_times.replay_of(ends, duration_ps, self.chosen.microbatches)
        order_times.check_status(OK if replays.makespan_ps[0] <= MAX_PS // unit else OUT_OF_RANGE)
        return Replays(*(times * unit for times in replays))

    @property
    def makespan_s(self) -> float:
        """Seconds from the first start to the last end of any rank."""
        return int(self.summary.makespan_ps[0]) / order_times.PS_PER_S

    @property
    def period_s(self) -> float:
        """Seconds of the longest span of one rank."""
        return (
            int((self.summary.rank_end_ps - self.summary.rank_start_ps).max())
            / order_times.PS_PER_S
        )

    @property
    def busiest_s(self) -> float:
        """Seconds of work of the busiest rank."""
        return self._work_ps / order_times.PS_PER_S

    @property
    def _work_ps(self) -> int:
        busy = self.summary.rank_busy_ps[0]
        return int((busy if self.sends_ps is None else busy - self.sends_ps).max())

    @property
    def bubble_fraction(self) -> float:
        """``(makespan - work) / work`` with the work of the busiest rank; 0 without work."""
        makespan, work = int(self.summary.makespan_ps[0]), self._work_ps
        return (makespan - work) / work if work else 0.0

    @cached_property
    def peak_in_flight(self) -> list[int]:
        """Most microbatch-chunks that each rank holds at one time."""
        return [int(count) for count in order_times.peak_in_flight(self.chosen.short())]

    @cached_property
    def peak_bytes(self) -> Floats:
        """Most that each rank holds at one time, ``float64[pp]``."""
        peaks, _ = order_times.peak_bytes(
            self.chosen.short(), self.activation_bytes[np.newaxis], self.w_share
        )
        peak = np.asarray(peaks[0], np.float64)
        return peak if self.static_bytes is None else peak + self.static_bytes

    @property
    def fits(self) -> bool:
        """Whether no rank holds more than its limit."""
        return self.limit_bytes is None or bool(np.all(self.peak_bytes <= self.limit_bytes))

    def memory_curve(self, rank: int) -> MemoryCurve:
        """Return what a rank holds from time 0 on: F allocates, B frees a part, W the rest."""
        order, timeline = self.order, self.timeline
        on_rank = slice(int(order.rank_offset[rank]), int(order.rank_offset[rank + 1]))
        kind = order.kind[on_rank]
        held = self.activation_bytes[rank, order.chunk[on_rank]]
        # An operation starts no earlier than the one before it ends, so that times only grow.
        time_ps = np.where(kind == FORWARD, timeline.start_ps[on_rank], timeline.end_ps[on_rank])
        later = self.w_share if order.splits_backward else 0.0
        change = np.where(
            kind == FORWARD, held, np.where(kind == BACKWARD, held * (later - 1.0), -held * later)
        )
        always = 0.0 if self.static_bytes is None else float(self.static_bytes[rank])
        return MemoryCurve(
            np.concatenate([[0], time_ps]), always + np.concatenate([[0.0], np.cumsum(change)])
        )
