"""What a step would gain from a faster, larger or quicker part of the hardware."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from projector.config.job import Job
from projector.config.load import Variants, load_job
from projector.config.space import flat_fields
from projector.errors import ConfigError, ProjectorError
from projector.projection.evaluate import evaluate
from projector.units import to_gib, to_ms

SECTIONS = ("cluster.device.", "cluster.network.", "cluster.software.")
"""What is varied unless fields are named: silicon, links and the host's software."""

CHANGE = 0.1
LEAST_WHOLE = 32
"""Whole numbers below are no rates: a die or a node more or less is another machine."""

UNSEEN = 1e-6
"""Relative effects below are rounding."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What one field does to a job."""

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

    @property
    def elasticity(self) -> float:
        """Change of the step in percent for one percent of the field: d ln(step) / d ln(field)."""
        return math.log(self.high_s / self.low_s) / math.log(self.high / self.low)

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
    """Fields that cannot be varied by as much, with the reason."""

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``projector sensitivity --json`` prints, without its envelope."""
        return {
            "iteration_time_ms": to_ms(self.iteration_time_s),
            "change": self.change,
            "effects": [each.to_dict() for each in self.effects],
            "without_effect": list(self.without_effect),
            "infeasible": dict(self.illegal),
        }


def sensitivity(
    job: Job | Mapping[str, Any] | str,
    *,
    change: float = CHANGE,
    fields: Sequence[str] | None = None,
) -> Sensitivity:
    """Vary one field of a job at a time, up and down by the same factor.

    The job runs in the same configuration throughout: a better one for other hardware is for
    `search`.

    Parameters
    ----------
    job : Job, mapping or str
        Anything that `load_job` reads.
    change : float
        A field is divided and multiplied by ``1 + change``.
    fields : sequence of str, optional
        Dotted fields with numbers above 0; every such number of the device, the network and the
        host's software unless given.

    Raises
    ------
    ConfigError
        If the job cannot be read or an argument is out of range.
    """
    _check_change(change)
    base = load_job(job)
    numbers = flat_fields(base)
    chosen = _fields(numbers) if fields is None else [_checked(each, numbers) for each in fields]
    variants = Variants(base)
    jobs, illegal = [base], dict[str, str]()
    moves: list[tuple[str, float, float, float]] = []
    for field in chosen:
        value = numbers[field]
        try:
            pair = [_moved(value, value / (1 + change)), _moved(value, value * (1 + change))]
            varied = [variants.job({field: each}) for each in pair]
            evaluate(varied)
        except ProjectorError as error:
            illegal[field] = error.message
            continue
        if pair[0] < pair[1]:
            jobs += varied
            moves.append((field, float(value), float(pair[0]), float(pair[1])))
    found = evaluate(jobs)
    times = found.steps.iteration_s.tolist()
    peaks = found.steps.peak_bytes.tolist()
    effects: list[Effect] = []
    without: list[str] = []
    for place, (field, value, low, high) in enumerate(moves):
        row = 1 + 2 * place
        effect = Effect(
            field=field,
            value=value,
            low=low,
            high=high,
            low_s=times[row],
            high_s=times[row + 1],
            base_s=times[0],
            low_peak_bytes=peaks[row],
            high_peak_bytes=peaks[row + 1],
        )
        moved = effect.swing > UNSEEN or effect.low_peak_bytes != effect.high_peak_bytes
        if moved:
            effects.append(effect)
        else:
            without.append(field)
    effects.sort(key=lambda each: (-each.swing, each.field))
    return Sensitivity(base, times[0], float(change), tuple(effects), tuple(without), illegal)


def _check_change(change: Any) -> None:
    number = isinstance(change, int | float) and not isinstance(change, bool)
    if not number or not 0.0 < change <= 10.0:
        msg = f"change is a share above 0, at most 10, got {change!r}"
        raise ConfigError(msg, key="change", value=str(change), allowed="0 < change <= 10")


def _moved(value: float, to: float) -> float:
    return round(to) if isinstance(value, int) else to


def _fields(numbers: Mapping[str, Any]) -> list[str]:
    return [
        field
        for field, value in numbers.items()
        if field.startswith(SECTIONS) and _is_rate(value)
        and (isinstance(value, float) or value >= LEAST_WHOLE)
    ]  # fmt: skip


def _checked(field: str, numbers: Mapping[str, Any]) -> str:
    if not _is_rate(numbers.get(field)):
        import difflib

        known = [name for name, each in numbers.items() if _is_rate(each)]
        close = difflib.get_close_matches(field, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        msg = f"{field!r} is no number above 0 of the job{hint}"
        raise ConfigError(msg, key="field", value=field, allowed=close or "a dotted field")
    return field


def _is_rate(value: Any) -> bool:
    """Whether it is a number that can be multiplied to get another."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
