"""What no layout can beat: bounds that spare a plan the search of hopeless sizes."""

import math
from dataclasses import dataclass

from projector.config.job import Job
from projector.config.load import load_job
from projector.errors import ProjectorError
from projector.planning.question import Question
from projector.projection.api import project_memory
from projector.units import DAY, HOUR, TERA

STATES = ("weights_bytes", "gradients_bytes", "optimizer_bytes")


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


def bounds_of(question: Question, job: Job) -> Bounds:
    """Return the bounds of a question on the kind of cluster that a job runs on."""
    sequences = question.tokens / job.training.seq_length
    device, precision = job.cluster.device, job.training.precision
    if precision not in device.matrix_flop_per_clk_per_cu:
        # A projection says what is missing.
        project_memory(job)
    peak = device.peak_tflops(precision) * TERA
    state_bytes, usable_bytes = _memory(job)
    return Bounds(
        gpus_per_node=job.cluster.gpus_per_node,
        run_flop=sequences * question.counts.flop_per_sequence,
        peak_flop_per_s=peak,
        state_bytes=state_bytes,
        usable_bytes=usable_bytes,
    )


def _memory(job: Job) -> tuple[float, float]:
    """Return bytes of the states of all ranks of one sharded node, and what a rank may hold."""
    sharded = {
        "cluster.nodes": 1,
        **{f"parallelism.{name}": 1 for name in ("tp", "pp", "vpp", "cp", "ep")},
        "parallelism.etp": None,
        "parallelism.dp": None,
        "parallelism.zero_stage": 3,
        "parallelism.fsdp": False,
        "training.micro_batch_size": 1,
        "training.schedule": "auto",
    }
    try:
        memory = project_memory(load_job(job, sharded))
    except ProjectorError:
        # A bound that cannot be had spares nothing, and refuses nothing.
        return 0.0, 1.0
    stage = memory.stages[0]
    state_bytes = sum(float(getattr(stage, name)) for name in STATES)
    return state_bytes * job.cluster.gpus_per_node, memory.usable_bytes
