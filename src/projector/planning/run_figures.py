"""What a run takes: the figures of a projection that a plan ranks and shows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from projector.first_order.run import FirstOrderRun
from projector.projection.run import RunProjection

SHOWN = (
    "days",
    "days_low",
    "days_high",
    "gpu_hours",
    "energy_mwh",
    "co2_t",
    "cost_usd",
    "goodput",
    "failures",
    "checkpoint_interval_s",
    "terms_days",
)
"""Keys of ``plan --json``."""

_BAND = ("days_low", "days_high")


@dataclass(frozen=True, slots=True)
class RunFigures:
    """Time, money and energy of one run; None is not known."""

    tokens: float
    days: float
    days_low: float
    """Lower end of the 90 % band; the days themselves where nothing is known of it."""
    days_high: float
    gpu_hours: float
    energy_mwh: float | None
    co2_t: float | None
    cost_usd: float | None
    goodput: float | None
    failures: float | None
    checkpoint_interval_s: float | None
    terms_days: Mapping[str, float]
    """Days by term, which add up."""
    assumptions: tuple[str, ...]
    """What the job does not state."""
    has_band: bool = True
    """Whether the model that made them has bands."""

    def of_high(self, value: float) -> float:
        """Return what grows with time at the upper end of the band of days."""
        return value * self.days_high / self.days

    def to_dict(self) -> dict[str, Any]:
        """Return the keys of ``plan --json``."""
        figures = {name: getattr(self, name) for name in SHOWN}
        # A price may be missing; what else is not known does not exist at this fidelity.
        known = {
            name: value
            for name, value in figures.items()
            if (value is not None or name == "cost_usd") and (self.has_band or name not in _BAND)
        }
        return {**known, "terms_days": dict(self.terms_days)}


def run_figures(run: RunProjection) -> RunFigures:
    """Return the figures of a projected run."""
    days = run.days
    return RunFigures(
        tokens=run.tokens,
        days=days,
        days_low=days if run.days_low is None else run.days_low,
        days_high=days if run.days_high is None else run.days_high,
        gpu_hours=run.gpu_hours,
        energy_mwh=run.energy_mwh,
        co2_t=run.co2_t,
        cost_usd=run.cost_usd,
        goodput=run.goodput,
        failures=run.failures,
        checkpoint_interval_s=run.checkpoint_interval_s,
        terms_days=run.terms_days,
        assumptions=tuple(run.assumptions),
    )


def first_order_figures(run: FirstOrderRun) -> RunFigures:
    """Return the figures of a run at the first order: its steps alone, without a band."""
    return RunFigures(
        tokens=run.tokens,
        days=run.days,
        days_low=run.days,
        days_high=run.days,
        gpu_hours=run.gpu_hours,
        energy_mwh=None,
        co2_t=None,
        cost_usd=run.cost_usd,
        goodput=None,
        failures=None,
        checkpoint_interval_s=None,
        terms_days={"compute": run.days},
        assumptions=("steps alone: no warm-up, failures, checkpoints or stragglers",),
        has_band=False,
    )
