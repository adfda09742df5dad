"""Gain of a step from a faster, larger or quicker part of the hardware."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from projector.config.job import Job
from projector.config.load import load_job
from projector.errors import ProjectorError
from projector.projection.evaluate import Evaluation, evaluate
from projector.searches.bottleneck import class_seconds, class_shares
from projector.searches.fields import Lever, Number, check_factor, levers_of, project
from projector.units import to_gib, to_ms

CHANGE = 0.1
MOST_CHANGE = 10.0

STEP = 0.001
"""Far above the rounding of a step to picoseconds, far below what moves a tile or an algorithm."""

UNSEEN = 1e-6
"""Relative effects below are rounding."""

UNEVEN, UNEVEN_LEAST = 0.25, 0.02
"""Relative and absolute difference from which two slopes count as uneven."""


@dataclass(frozen=True, slots=True)
class Near:
    """A field moved by the small step."""

    below: float
    above: float
    below_s: float
    """Step with the value below."""
    above_s: float


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect of one field on a job."""

    field: str
    value: float
    low: float
    """The field less the change."""
    high: float
    low_s: float
    """Step with the low value."""
    high_s: float
    base_s: float
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

    @property
    def swing(self) -> float:
        """Longest step over the shortest, less 1: the width of a bar of the tornado."""
        times = (self.low_s, self.high_s, self.base_s)
        return max(times) / min(times) - 1.0

    @property
    def gain(self) -> float:
        """Share of the step that the better of the two values saves."""
        return 1.0 - min(self.low_s, self.high_s) / self.base_s

    def to_dict(self) -> dict[str, Any]:
        """Return plain values under the units of ``--json``."""
        return {
            "field": self.field,
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "low_ms": to_ms(self.low_s),
            "high_ms": to_ms(self.high_s),
            "elasticity": self.elasticity,
            "point_elasticity": self.point_elasticity,
            "uneven": self.uneven,
            "swing": self.swing,
            "gain": self.gain,
            "low_peak_gib": to_gib(self.low_peak_bytes),
            "high_peak_gib": to_gib(self.high_peak_bytes),
        }


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
            "iteration_time_ms": to_ms(self.iteration_time_s),
            "change": self.change,
            "point_step": self.step,
            "bound_shares": dict(self.bound_shares or {}),
            "effects": [effect.to_dict() for effect in self.effects],
            "without_effect": list(self.without_effect),
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
