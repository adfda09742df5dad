"""Gain of a step from a faster, larger or quicker part of the hardware, for one job or several.

The step of several jobs is the weighted geometric mean of their steps, so that a job counts by
its weight and not by how long its step is.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from projector.config.job import Job
from projector.config.load import load_job
from projector.envelope import told
from projector.errors import ConfigError, ProjectorError, shown
from projector.projection.evaluate import Evaluation, evaluate
from projector.searches.bottleneck import class_seconds, class_shares
from projector.searches.fields import Lever, Number, check_factor, levers_of, project
from projector.units import unwrapped

CHANGE = 0.1
MOST_CHANGE = 10.0

STEP = 0.001
"""Far above the rounding of a step to picoseconds, far below what moves a tile or an algorithm."""

UNSEEN = 1e-6

UNEVEN, UNEVEN_LEAST = 0.25, 0.02
"""Relative and absolute difference from which two slopes count as uneven."""


_OF_EFFECT = "low_ms high_ms elasticity point_elasticity uneven swing gain"
"""What ``--json`` has of the effect of a field, on one job or on several."""


@dataclass(frozen=True, slots=True)
class Near:
    """A field moved by the small step."""

    below: float
    above: float
    below_s: float
    above_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BothWays:
    """The steps with both values of a field, and with its own."""

    field: str
    low_s: float
    high_s: float
    base_s: float

    @property
    def swing(self) -> float:
        """Longest step over the shortest, less 1: the width of a bar of the tornado."""
        times = (self.low_s, self.high_s, self.base_s)
        return max(times) / min(times) - 1.0

    @property
    def gain(self) -> float:
        """Share of the step that the better of the two values saves."""
        return 1.0 - min(self.low_s, self.high_s) / self.base_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect(BothWays):
    """Effect of one field on a job."""

    value: float
    low: float
    """The field less the change."""
    high: float
    low_peak_bytes: float
    high_peak_bytes: float
    near: Near | None = None
    """None if so small a change gives an illegal job."""

    @property
    def elasticity(self) -> float:
        """Percent of the step for one of the field: d ln(step) / d ln(field), over the change."""
        return math.log(self.high_s / self.low_s) / math.log(self.high / self.low)

    @property
    def point_elasticity(self) -> float | None:
        """The same at the point: a central difference over the small step."""
        near = self.near
        if near is None:
            return None
        return math.log(near.above_s / near.below_s) / math.log(near.above / near.below)

    @property
    def uneven(self) -> bool:
        """Whether slopes below and above the point, or over the change, differ much.

        The step then jumps or bends here, with tiles, waves, algorithms or what hides behind
        what, and the slope at the point says little about a change of a useful size.
        """
        near = self.near
        if near is None:
            return False
        slopes = (
            math.log(self.base_s / near.below_s) / math.log(self.value / near.below),
            math.log(near.above_s / self.base_s) / math.log(near.above / self.value),
            self.elasticity,
        )
        spread = max(slopes) - min(slopes)
        return spread > max(UNEVEN_LEAST, UNEVEN * max(abs(slope) for slope in slopes))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values under the units of ``--json``."""
        return told(self, f"field value low high {_OF_EFFECT} low_peak_gib high_peak_gib")


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Effects of one field at a time on a job, the largest first."""

    job: Job
    iteration_time_s: float
    change: float
    effects: tuple[Effect, ...]
    without_effect: tuple[str, ...]
    """Fields that were varied and changed nothing."""
    illegal: Mapping[str, str]
    """Fields that cannot be varied that far, with the reason."""
    step: float = STEP
    """Relative step of the slopes at the point."""
    bound_shares: Mapping[str, float] | None = None
    """Share of the step that each class of `bottleneck` bounds."""

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``projector sensitivity --json`` prints, without its envelope."""
        return {
            **told(self, "iteration_time_ms change"),
            "point_step": self.step,
            "bound_shares": dict(self.bound_shares or {}),
            **told(self, "effects without_effect"),
            "infeasible": dict(self.illegal),
        }


def sensitivity(
    job: Job | Mapping[str, Any] | str,
    *,
    change: float = CHANGE,
    step: float = STEP,
    fields: Sequence[str] | None = None,
) -> Sensitivity:
    """Vary one field of a job at a time, up and down by the same factor ``1 + change``.

    The job runs in the same configuration throughout: a better one for other hardware is for
    `search`. ``step`` stands for ``change`` in the slope at the point; whole numbers move by at
    least one. Fields are those of `levers_of`.
    """
    change = check_factor("change", change, MOST_CHANGE)
    step = check_factor("step", step, MOST_CHANGE)
    base = load_job(job)
    levers = levers_of(base, fields)
    start = evaluate([base])
    base_s = float(start.steps.iteration_s[0])
    overrides: list[dict[str, Number]] = []
    for lever in levers:
        overrides += [lever.times(1.0 / (1.0 + change)), lever.times(1.0 + change)]
        overrides += lever.beside(step)
    points = project(base, overrides, _points)
    effects: list[Effect] = []
    without_effect: list[str] = []
    illegal: dict[str, str] = {}
    for index, lever in enumerate(levers):
        around = slice(4 * index, 4 * index + 4)
        effect = _effect(lever, base_s, overrides[around], points[around])
        if isinstance(effect, str):
            illegal[lever.name] = effect
        elif effect.swing > UNSEEN or effect.low_peak_bytes != effect.high_peak_bytes:
            effects.append(effect)
        else:
            without_effect.append(lever.name)
    effects.sort(key=lambda effect: (-effect.swing, effect.field))
    return Sensitivity(
        job=base,
        iteration_time_s=base_s,
        change=change,
        effects=tuple(effects),
        without_effect=tuple(without_effect),
        illegal=illegal,
        step=step,
        bound_shares=class_shares(class_seconds(start)[0]),
    )


_Point = tuple[float, float]
"""Step in seconds and peak memory in bytes."""


def _points(evaluation: Evaluation) -> list[_Point]:
    steps = evaluation.steps
    return list(zip(steps.iteration_s.tolist(), steps.peak_bytes.tolist(), strict=True))


def _effect(
    lever: Lever,
    base_s: float,
    overrides: Sequence[Mapping[str, Number]],
    points: Sequence[_Point | ProjectorError],
) -> Effect | str:
    """Return the effect of a lever, or the reason why it cannot be varied that far.

    Both sequences are: less the change, more the change, less the step, more the step.
    """
    low, high, below, above = (float(override[lever.fields[0]]) for override in overrides)
    less, more, just_less, just_more = points
    if isinstance(less, ProjectorError):
        return less.message
    if isinstance(more, ProjectorError):
        return more.message
    if not low < high:
        return f"{lever.value} is a whole number and rounds back to itself"
    near = None
    if not isinstance(just_less, ProjectorError) and not isinstance(just_more, ProjectorError):
        near = Near(below, above, just_less[0], just_more[0])
    return Effect(
        field=lever.name,
        value=float(lever.value),
        low=low,
        high=high,
        low_s=less[0],
        high_s=more[0],
        base_s=base_s,
        low_peak_bytes=less[1],
        high_peak_bytes=more[1],
        near=near,
    )


MOST_JOBS = 100


@dataclass(frozen=True, slots=True)
class Workload:
    """A job with its name and its share of the mean."""

    name: str
    job: Job
    weight: float
    """Weights add up to 1."""

    def to_dict(self) -> dict[str, Any]:
        """Return the identity of a workload in ``--json``."""
        return {
            "workload": self.name,
            "model": self.job.model.name,
            "device": self.job.cluster.device.name,
            "gpus": self.job.cluster.gpus,
            "weight": self.weight,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedEffect(BothWays):
    """Effect of one field on several jobs; seconds are geometric means."""

    elasticity: float
    """Weighted mean over the workloads, which is the elasticity of the geometric mean."""
    point_elasticity: float | None
    uneven: bool
    by_workload: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values under the names that an effect on one job has."""
        found = told(self, f"field {_OF_EFFECT}")
        return found | {"elasticity_by_workload": list(self.by_workload)}


@dataclass(frozen=True, slots=True)
class SharedSensitivity:
    """Effects of one field at a time on several jobs, the largest on their mean first."""

    workloads: tuple[Workload, ...]
    sensitivities: tuple[Sensitivity, ...]
    iteration_time_s: float
    effects: tuple[SharedEffect, ...]
    without_effect: tuple[str, ...]
    """Fields that change nothing in any workload."""
    illegal: Mapping[str, str]
    """Fields that some workload cannot vary that far, with the reason."""

    @property
    def change(self) -> float:
        """Relative change of the fields."""
        return self.sensitivities[0].change

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``projector sensitivity --json`` prints, without its envelope."""
        pairs = zip(self.workloads, self.sensitivities, strict=True)
        return {
            **told(self, "iteration_time_ms change"),
            "point_step": self.sensitivities[0].step,
            **told(self, "effects without_effect"),
            "infeasible": dict(self.illegal),
            "workloads": [{**workload.to_dict(), **result.to_dict()} for workload, result in pairs],
        }


def workloads_of(
    jobs: Sequence[Job | Mapping[str, Any] | str],
    weights: Sequence[float] | None = None,
    names: Sequence[str] | None = None,
) -> tuple[Workload, ...]:
    """Read several jobs and share the mean out among them by weights above 0, of any sum.

    In reports jobs are called by ``names`` or by their models; equal names get a number.
    """
    if not 1 <= len(jobs) <= MOST_JOBS:
        msg = f"jobs: give from 1 to {MOST_JOBS} jobs, got {len(jobs)}"
        raise ConfigError(msg, key="config", value=len(jobs), allowed=f"1 to {MOST_JOBS}")
    if weights is not None and len(weights) != len(jobs):
        msg = f"weight: {len(weights)} weights for {len(jobs)} jobs; give one for each, in order"
        raise ConfigError(msg, key="weight", value=list(weights), allowed=f"{len(jobs)} numbers")
    shares = [1.0] * len(jobs) if weights is None else [_weight(weight) for weight in weights]
    loaded = [load_job(job) for job in jobs]
    named = list(names) if names is not None else [job.model.name for job in loaded]
    unique = [
        name if named.count(name) == 1 else f"{name} #{1 + named[:index].count(name)}"
        for index, name in enumerate(named)
    ]
    total = math.fsum(shares)
    return tuple(
        Workload(name, job, share / total)
        for name, job, share in zip(unique, loaded, shares, strict=True)
    )


def shared_sensitivity(
    workloads: Sequence[Workload],
    *,
    change: float = CHANGE,
    step: float = STEP,
    fields: Sequence[str] | None = None,
) -> SharedSensitivity:
    """Vary one field of several jobs at a time, and rank the effects on their mean step.

    Parameters are those of `sensitivity`. A default field that only some jobs have, such as the
    rate of a number format, changes nothing in the others; a named one must be in all.
    """
    check_fields(workloads, fields)
    sensitivities = tuple(
        sensitivity(workload.job, change=change, step=step, fields=fields) for workload in workloads
    )
    illegal: dict[str, str] = {}
    varied: dict[str, None] = {}
    for workload, result in zip(workloads, sensitivities, strict=True):
        for field, reason in result.illegal.items():
            where = f"{workload.name}: " if len(workloads) > 1 else ""
            illegal.setdefault(field, f"{where}{reason}")
        varied |= dict.fromkeys(
            [*(effect.field for effect in result.effects), *result.without_effect]
        )
    by_field = [{effect.field: effect for effect in result.effects} for result in sensitivities]
    weights = [workload.weight for workload in workloads]
    logs = [math.log(result.iteration_time_s) for result in sensitivities]
    mean_s = math.exp(_mean(weights, logs))
    shared = [
        _shared(field, mean_s, weights, [effects.get(field) for effects in by_field])
        for field in varied
        if field not in illegal
    ]
    # A field that only moves memory has no place in a ranking of the mean step.
    effects = [effect for effect in shared if effect.swing > UNSEEN]
    effects.sort(key=lambda effect: (-effect.swing, effect.field))
    return SharedSensitivity(
        workloads=tuple(workloads),
        sensitivities=sensitivities,
        iteration_time_s=mean_s,
        effects=tuple(effects),
        without_effect=tuple(effect.field for effect in shared if effect.swing <= UNSEEN),
        illegal=illegal,
    )


def sensitivity_of(
    workloads: Sequence[Workload],
    *,
    change: float = CHANGE,
    step: float = STEP,
    fields: Sequence[str] | None = None,
) -> Sensitivity | SharedSensitivity:
    """Return `sensitivity` of one workload, `shared_sensitivity` of several."""
    if len(workloads) == 1:
        return sensitivity(workloads[0].job, change=change, step=step, fields=fields)
    return shared_sensitivity(workloads, change=change, step=step, fields=fields)


def check_fields(workloads: Sequence[Workload], fields: Sequence[str] | None) -> None:
    """Refuse a named field that some workload does not have, naming the workload."""
    for workload in workloads:
        try:
            levers_of(workload.job, fields)
        except ConfigError as error:
            if len(workloads) == 1:
                raise
            msg = f"{workload.name}: {error.message}"
            raise ConfigError(
                msg, key=error.key, value=error.value, allowed=error.allowed
            ) from None


def _shared(
    field: str, mean_s: float, weights: Sequence[float], effects: Sequence[Effect | None]
) -> SharedEffect:
    """Combine the effects of one field; None marks a job that it does not affect."""
    pairs = zip(weights, effects, strict=True)
    known = [(weight, effect) for weight, effect in pairs if effect is not None]
    shares, moved = [weight for weight, _ in known], [effect for _, effect in known]
    slopes = [each.point_elasticity for each in moved]
    at_point = [slope for slope in slopes if slope is not None]
    return SharedEffect(
        field=field,
        low_s=mean_s * math.exp(_mean(shares, [math.log(e.low_s / e.base_s) for e in moved])),
        high_s=mean_s * math.exp(_mean(shares, [math.log(e.high_s / e.base_s) for e in moved])),
        base_s=mean_s,
        elasticity=_mean(shares, [each.elasticity for each in moved]),
        point_elasticity=_mean(shares, at_point) if len(at_point) == len(slopes) else None,
        uneven=any(each.uneven for each in moved),
        by_workload=tuple(0.0 if each is None else each.elasticity for each in effects),
    )


def _mean(weights: Sequence[float], values: Sequence[float]) -> float:
    return math.fsum(weight * value for weight, value in zip(weights, values, strict=True))


def _weight(value: Any) -> float:
    value = unwrapped(value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= 0.0:
        msg = f"weight: a weight is a number above 0, got {shown(value)}"
        raise ConfigError(msg, key="weight", value=value, allowed="above 0")
    return float(value)
