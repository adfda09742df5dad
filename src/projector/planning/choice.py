"""One cluster with one layout, and what the run takes on it: what a plan ranks and shows."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from projector.config.bands import Band
from projector.config.first_order_job import AnyJob
from projector.envelope import told
from projector.first_order.results import FirstOrderRun
from projector.projection.bands import FITS
from projector.projection.run import RunProjection
from projector.units import to_gib

_BAND = ("days_low", "days_high")
_NOT_SHOWN = ("tokens", "assumptions", "has_band")
"""Fields that are no keys of ``plan --json``."""


@dataclass(frozen=True, slots=True)
class RunFigures:
    """Time, money and energy of one run; None is not known."""

    tokens: float
    days: float
    days_low: float
    """Lower end of the 90 % band; the days themselves where nothing is known of it."""
    days_high: float
    gpu_hours: float
    energy_mwh: float | None = None
    co2_t: float | None = None
    cost_usd: float | None = None
    goodput: float | None = None
    failures: float | None = None
    checkpoint_interval_s: float | None = None
    terms_days: Mapping[str, float] = field(default_factory=dict)
    """Days by term, which add up."""
    assumptions: tuple[str, ...] = ()
    """What the job does not state."""
    has_band: bool = True
    """Whether the model that made them has bands."""

    def of_high(self, value: float) -> float:
        """Return what grows with time at the upper end of the band of days."""
        return value * self.days_high / self.days

    def to_dict(self) -> dict[str, Any]:
        """Return the keys of ``plan --json``."""
        figures = {each.name: getattr(self, each.name) for each in fields(self)}
        # A price may be missing; what else is not known does not exist at this fidelity.
        known = {
            name: value
            for name, value in figures.items()
            if (value is not None or name == "cost_usd")
            and name not in _NOT_SHOWN
            and (self.has_band or name not in _BAND)
        }
        return {**known, "terms_days": dict(self.terms_days)}


def run_figures(run: RunProjection) -> RunFigures:
    """Return the figures of a projected run."""
    names = {each.name for each in fields(RunFigures)} - {"has_band", "assumptions", *_BAND}
    return RunFigures(
        **{name: getattr(run, name) for name in names},
        days_low=run.days if run.days_low is None else run.days_low,
        days_high=run.days if run.days_high is None else run.days_high,
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
        cost_usd=run.cost_usd,
        terms_days={"compute": run.days},
        assumptions=("steps alone: no warm-up, failures, checkpoints or stragglers",),
        has_band=False,
    )


MEETS, UNCERTAIN, MISSES = "meets", "uncertain", "misses"
"""Whether a choice keeps a limit: with the upper end of its band, with its middle alone, or not."""


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """One cluster with one layout."""

    job: AnyJob = field(repr=False)
    """The job of the choice, ready to be projected."""
    overrides: Mapping[str, Any] = field(repr=False)
    """Dotted fields that make it of the job that was asked about."""
    run: RunFigures
    iteration_time_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    peak_bytes: float
    peak_low_bytes: float
    peak_high_bytes: float
    usable_bytes: float
    verdict: str
    """``fits`` or ``at_risk``, by the band of the peak."""
    degrees: Mapping[str, int]
    schedule: str
    bound: str
    band: Band = field(repr=False)
    """Of the step time."""
    label: str = ""
    """What the kind of cluster is called."""
    warnings: tuple[str, ...] = field(default=(), repr=False)
    """What may not be as it was meant."""
    status: str = MEETS
    """Whether it keeps deadline and budget: ``meets``, ``uncertain`` or ``misses``."""
    group: int = 0
    """Choices of one group cannot be told apart by what they are ranked by; 1 has the first."""
    on_front: bool = False
    """Whether no other choice beats it in both time and money (or GPU-hours)."""
    is_knee: bool = False
    beaten_by: str = ""
    """A choice that is faster and cheaper, with its band too, and no riskier."""
    remark: str = ""
    """Why it is where it is."""

    @property
    def gpus(self) -> int:
        """Devices of the cluster."""
        return self.job.cluster.gpus

    @property
    def batch(self) -> int:
        """Sequences of a step."""
        return self.job.training.global_batch_size

    @property
    def fits(self) -> bool:
        """Whether it fits with the band of its memory."""
        return self.verdict == FITS

    @property
    def name(self) -> str:
        """The cluster in words."""
        return f"{self.gpus:,} x {self.label}"

    @property
    def layout(self) -> str:
        """The layout in short."""
        split = [f"{name}{self.degrees[name]}" for name in ("tp", "pp", "vpp", "cp", "ep")]
        chosen = [text for text in split if not text.endswith("p1")]
        training = self.job.training
        recompute = training.recompute.granularity
        return " ".join(
            [
                *(chosen or ["dp only"]),
                f"mbs{training.micro_batch_size}",
                f"zero{self.job.parallelism.sharding_stage}",
                *([] if recompute == "none" else [f"{recompute} recompute"]),
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of ``plan --json``."""
        return {
            "device": self.label,
            "gpus": self.gpus,
            "nodes": self.job.cluster.nodes,
            "global_batch_size": self.batch,
            **self.run.to_dict(),
            **told(self, "tokens_per_s_per_gpu mfu"),
            "iteration_time_ms": self.iteration_time_s * 1e3,
            **told(self, "verdict peak_gib"),
            "peak_gib_low": to_gib(self.peak_low_bytes),
            "peak_gib_high": to_gib(self.peak_high_bytes),
            "usable_gib": to_gib(self.usable_bytes),
            "parallelism": dict(self.degrees),
            **told(self, "schedule bound status group"),
            "front": self.on_front,
            "knee": self.is_knee,
            **told(self, "remark overrides"),
        }
