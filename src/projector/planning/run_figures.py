"""What a run takes: the figures of a projection that a plan ranks and shows."""

from dataclasses import dataclass
from typing import Any

from projector.config.job import Job
from projector.projection.performance import PerformanceProjection
from projector.units import DAY, HOUR


@dataclass(frozen=True, slots=True)
class RunFigures:
    """Time, money and energy of one run; None is not known."""

    tokens: float
    days: float
    days_low: float
    days_high: float
    gpu_hours: float
    energy_mwh: float | None
    co2_t: float | None
    cost_usd: float | None
    goodput: float | None

    def of_high(self, value: float) -> float:
        """Return what grows with time at the upper end of the band of days."""
        return value * self.days_high / self.days

    def to_dict(self) -> dict[str, Any]:
        """Return the keys of ``plan --json``."""
        return {
            name: getattr(self, name)
            for name in (
                "days",
                "days_low",
                "days_high",
                "gpu_hours",
                "energy_mwh",
                "co2_t",
                "cost_usd",
                "goodput",
            )
        }


def run_figures(job: Job, step: PerformanceProjection, price: float | None) -> RunFigures:
    """Return what the run of a job takes."""
    training = job.training
    tokens = job.run.tokens or 0.0
    steps = tokens / (training.global_batch_size * training.seq_length)
    days = steps * step.iteration_time_s / DAY
    low, high = step.band.limits(90) or (1.0, 1.0)
    hours = days * DAY / HOUR * job.cluster.gpus
    return RunFigures(
        tokens=tokens,
        days=days,
        days_low=days * low,
        days_high=days * high,
        gpu_hours=hours,
        energy_mwh=None,
        co2_t=None,
        cost_usd=None if price is None else hours * price,
        goodput=None,
    )
