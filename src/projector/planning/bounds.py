"""What no layout can beat: bounds that spare a plan the search of hopeless sizes."""

import math
from dataclasses import dataclass

from projector.config.first_order_job import AnyJob
from projector.errors import ProjectorError
from projector.planning.question import Question
from projector.units import DAY, HOUR


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of one kind of cluster, whatever its size and layout.

    A run takes at least the FLOP of its model at the dense peak of its precision (MFU 1), and all
    devices together hold at least one copy of weights, gradients and optimizer states.
    """

    gpus_per_node: int
    run_flop: float
    """FLOP of the whole run, as MFU counts them."""
    peak_flop_per_s: float
    """Of one device."""
    state_bytes: float
    """One copy of weights, gradients and optimizer states."""
    usable_bytes: float
    """What one device may hold."""

    @property
    def gpu_hours(self) -> float:
        """Least GPU-hours of the run."""
        return self.run_flop / self.peak_flop_per_s / HOUR

    def days(self, gpus: int) -> float:
        """Least days on so many devices."""
        return self.gpu_hours * HOUR / gpus / DAY

    def nodes_to_hold(self) -> int:
        """Return the least nodes that hold one copy of the states."""
        return max(1, math.ceil(self.state_bytes / self.usable_bytes / self.gpus_per_node))

    def nodes_within(self, days: float) -> int:
        """Return the least nodes that could end within so many days."""
        return max(1, math.ceil(self.days(1) / days / self.gpus_per_node))


def bounds_of(question: Question, job: AnyJob) -> Bounds:
    """Return the bounds of a question on the kind of cluster that a job runs on."""
    flop, peak = question.model.flop_and_peak(job)
    try:
        state_bytes, usable_bytes = question.model.states_and_room(job)
    except ProjectorError:
        # A bound that cannot be had spares nothing, and refuses nothing.
        state_bytes, usable_bytes = 0.0, 1.0
    return Bounds(
        gpus_per_node=job.cluster.gpus_per_node,
        run_flop=question.tokens / job.training.seq_length * flop,
        peak_flop_per_s=peak,
        state_bytes=state_bytes,
        usable_bytes=usable_bytes,
    )
