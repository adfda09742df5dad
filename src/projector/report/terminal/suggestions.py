"""Changes to try next: candidates from a result, each projected before it is suggested."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from projector.config.job import Job
from projector.config.load import load_job
from projector.config.resources import hardware_table
from projector.config.space import Expression
from projector.errors import ProjectorError
from projector.projection.api import project_jobs
from projector.projection.bands import FITS, VERDICTS
from projector.projection.memory import MemoryProjection
from projector.projection.performance import PerformanceProjection
from projector.report.terminal.grid import assignments
from projector.report.terminal.job import setting

MAX_CANDIDATES = 6
"""Jobs projected to find the suggestions of one report."""

MAX_SHOWN = 4

WORTH_NAMING = 0.01
"""Least gain in tokens per second, or of memory that is missing, for a suggestion."""

Overrides = Mapping[str, Any]

WORTH_TRYING = 0.02
"""Least share of the step that a term has before changes against it are projected."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change that was projected and helps."""

    overrides: dict[str, Any]
    speed: float
    """Change of tokens per second and device, as a fraction."""
    peak_bytes: float
    """Change of the peak."""
    verdict: str

    @property
    def fits(self) -> bool:
        """Whether the changed job fits with the band of its memory."""
        return self.verdict == FITS

    @property
    def change(self) -> str:
        """The change as it is written on the command line."""
        return assignments(self.overrides)

    @property
    def changes_training(self) -> bool:
        """Whether the job would also train differently, not only elsewhere or in other order."""
        return bool(self.overrides.keys() & _TRAINS_DIFFERENTLY)


_TRAINS_DIFFERENTLY = {"training.global_batch_size", "training.grad_reduce_dtype"}


def suggest(result: PerformanceProjection) -> list[Suggestion]:
    """Return up to four changes that make the job fit, or faster while it still fits.

    A job at risk gets what lowers its peak, as one that does not fit. Every candidate is
    projected; those that are illegal or do not help are left out. Where no single change makes it
    fit, the first is a layout that does, on more devices if it must be.
    """
    options = _projected(
        result, faster(result) if result.memory.verdict == FITS else smaller(result.memory)
    )
    if result.memory.verdict == FITS:
        helpful = [option for option in options if option.fits and option.speed >= WORTH_NAMING]
        helpful.sort(key=lambda option: -option.speed)
    else:
        missing = result.memory.peak_high_bytes - result.memory.usable_bytes
        helpful = [option for option in options if -option.peak_bytes >= WORTH_NAMING * missing]
        # What makes the job fit goes alone; else what leaves it at risk, with what it needs less.
        if any(option.fits for option in helpful):
            helpful = [option for option in helpful if option.fits]
        helpful.sort(
            key=lambda option: (
                VERDICTS.index(option.verdict),
                -option.speed if option.fits else option.peak_bytes,
            )
        )
        if not any(option.fits for option in helpful):
            from projector.searches.configurations import fitting_overrides

            overrides = fitting_overrides(result.job)
            helpful = [*([] if overrides is None else _projected(result, [overrides])), *helpful]
    return helpful[:MAX_SHOWN]


def _projected(result: PerformanceProjection, candidates: Sequence[Overrides]) -> list[Suggestion]:
    legal = _legal(result.job, candidates)
    return [
        Suggestion(
            overrides=dict(change),
            speed=other.tokens_per_s_per_gpu / result.tokens_per_s_per_gpu - 1.0,
            peak_bytes=other.memory.peak_bytes - result.memory.peak_bytes,
            verdict=other.memory.verdict,
        )
        for (_, change), other in zip(legal, _project([job for job, _ in legal]), strict=True)
        if other is not None
    ]


def smaller(memory: MemoryProjection) -> list[Overrides]:
    """Return changes that may lower the peak, the least intrusive first."""
    stage, job = memory.stages[memory.peak_stage], memory.job
    activations = stage.activations_bytes + stage.transient_bytes
    states = stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes
    stated = {"stated": "granularity" in job.training.recompute.model_fields_set}
    order = ("activations", "devices", "states")
    parts = order if activations > states else order[::-1]
    return [change for part in parts for _, change in _changes(job, f"smaller_{part}", stated)]


def faster(result: PerformanceProjection) -> list[Overrides]:
    """Return changes that may shorten the step, against the largest losses first."""
    split, layers = result.job.parallelism, result.job.model.num_layers // result.degrees["pp"]
    shares = {name: each / result.iteration_time_s for name, each in result.breakdown_s.items()}
    chunks = (vpp for vpp in range(split.vpp + 1, layers + 1) if layers % vpp == 0)
    known = {
        **shares,
        "worth": WORTH_TRYING,
        "next_vpp": next(chunks, None),
        "roomy": result.memory.headroom_bytes > 0.25 * result.memory.usable_bytes,
    }
    ranked = _changes(result.job, "faster", known)
    return [change for _, change in sorted(ranked, key=lambda entry: -entry[0])]


def _changes(job: Job, rules: str, known: Mapping[str, Any]) -> list[tuple[float, Overrides]]:
    """Return the changes of a table of rules that apply, with the gain that each estimates."""

    def value(text: Any) -> Any:
        expression = Expression(str(text), rules)
        others = {name: setting(job, name) for name in expression.names if name not in known}
        return expression({name: known.get(name, others.get(name)) for name in expression.names})

    found: list[tuple[float, Overrides]] = []
    for rule in hardware_table("report_words.yaml")[rules]:
        if value(rule.get("when", True)):
            change = {name: value(text) for name, text in rule["set"].items()}
            if not rule.get("whole"):
                change = {name: new for name, new in change.items() if new != setting(job, name)}
            if change:
                found.append((value(rule.get("gain", 0)), change))
    return found


def _legal(job: Job, candidates: Sequence[Overrides]) -> list[tuple[Job, Overrides]]:
    """Keep the first few candidates that give a legal job."""
    from projector.projection.evaluate import check_exists

    found: list[tuple[Job, Overrides]] = []
    for change in candidates:
        if len(found) < MAX_CANDIDATES and all(change != kept for _, kept in found):
            with suppress(ProjectorError):
                changed = load_job(job, change)
                check_exists(changed)
                found.append((changed, change))
    return found


def _project(jobs: list[Job]) -> list[PerformanceProjection | None]:
    """Project all at once; where one of them turns out illegal, one by one without it."""
    try:
        return [*project_jobs(jobs)] if jobs else []
    except ProjectorError:
        return [each for job in jobs for each in _project([job])] if len(jobs) > 1 else [None]
