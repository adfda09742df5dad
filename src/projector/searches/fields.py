"""Numbers of a job that are multiplied, and the projection of the jobs that this gives."""

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from projector.config.job import Job
from projector.config.load import Variants
from projector.config.names import job_field
from projector.config.space import flat_fields
from projector.errors import ConfigError, ProjectorError, shown
from projector.lower.hardware import attention_name
from projector.projection.evaluate import Evaluation, evaluate
from projector.units import unwrapped

T = TypeVar("T")
Number = int | float

SECTIONS = ("cluster.device.", "cluster.network.", "cluster.software.")
"""Default sections to vary: silicon, links and the host's software."""

KERNELS = "cluster.device.attention_kernels."
"""Attention implementations; a job runs one of them."""

LEAST_WHOLE = 32
"""Smaller integers do not count as rates: one die or node more is another machine."""

TOGETHER = ("cluster.device.scale_up_gb_per_s", "cluster.device.scale_up_peer_gb_per_s")
"""A device's link and the share of it that one peer gets, which cannot exceed it: where both are
equal neither can be varied alone."""

BATCH = 2048
"""Jobs that are evaluated at once."""


@dataclass(frozen=True, slots=True)
class Lever:
    """One number of a job, or several that are multiplied by the same factor."""

    fields: tuple[str, ...]
    values: tuple[Number, ...]

    @property
    def name(self) -> str:
        """The dotted fields, joined by ``+``."""
        return "+".join(self.fields)

    @property
    def value(self) -> Number:
        """Value in the job; of several fields the first's."""
        return self.values[0]

    @property
    def whole(self) -> bool:
        """Whether it moves in whole steps."""
        return any(isinstance(value, int) for value in self.values)

    def times(self, factor: float) -> dict[str, Number]:
        """Return the fields multiplied by ``factor``, whole numbers rounded."""
        return {
            field: round(value * factor) if isinstance(value, int) else value * factor
            for field, value in zip(self.fields, self.values, strict=True)
        }

    def beside(self, step: float) -> tuple[dict[str, Number], dict[str, Number]]:
        """Return the fields divided and multiplied by ``1 + step``, whole ones by at least one."""
        below, above = self.times(1.0 / (1.0 + step)), self.times(1.0 + step)
        for field, value in zip(self.fields, self.values, strict=True):
            if isinstance(value, int):
                below[field] = min(below[field], value - 1)
                above[field] = max(above[field], value + 1)
        return below, above


def levers_of(job: Job, fields: Sequence[str] | None = None) -> list[Lever]:
    """Return dotted fields, joined by ``+``, to vary: by default every rate of the hardware."""
    numbers = flat_fields(job)
    if fields is None:
        chosen_kernel = f"{KERNELS}{attention_name(job.training)}."
        rates = [
            field
            for field, value in numbers.items()
            if field.startswith(SECTIONS)
            and _is_rate(value)
            and (isinstance(value, float) or value >= LEAST_WHOLE)
            and (not field.startswith(KERNELS) or field.startswith(chosen_kernel))
        ]
        chosen = [Lever((field,), (numbers[field],)) for field in rates]
        return [*chosen, Lever(TOGETHER, tuple(numbers[field] for field in TOGETHER))]
    levers = [_lever(text, numbers) for text in fields]
    named = [field for lever in levers for field in lever.fields]
    for index, field in enumerate(named):
        if field in named[:index]:
            msg = f"{field!r} is named twice; a field is varied once"
            raise ConfigError(msg, key="field", value=field, allowed="each field once")
    return levers


def _lever(text: str, numbers: Mapping[str, Any]) -> Lever:
    fields = tuple(job_field(part.strip()) for part in str(text).split("+"))
    for field in fields:
        if not _is_rate(numbers.get(field)):
            known = [name for name, value in numbers.items() if _is_rate(value)]
            close = difflib.get_close_matches(field, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            msg = f"{field!r} is not a field of the job with a number above 0{hint}"
            raise ConfigError(msg, key="field", value=field, allowed=close or "a dotted field")
    return Lever(fields, tuple(numbers[field] for field in fields))


def _is_rate(value: Any) -> bool:
    """Whether it is a number that can be multiplied to get another."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def project(
    base: Job, overrides: Sequence[Mapping[str, Any]], read: Callable[[Evaluation], Sequence[T]]
) -> list[T | ProjectorError]:
    """Evaluate variants of a job in batches, each with its dotted overrides.

    ``read`` reads one entry per job from an evaluated batch. A variant that is illegal has the
    reason instead.
    """
    results: dict[int, T | ProjectorError] = {}
    for begin in range(0, len(overrides), BATCH):
        # Variants remember every section they have read: new ones for each batch bound them.
        variants, jobs = Variants(base), dict[int, Job]()
        for index, fields in enumerate(overrides[begin : begin + BATCH], begin):
            try:
                jobs[index] = variants.job(fields)
            except ProjectorError as error:
                results[index] = error
        results.update(zip(jobs, _read_all([*jobs.values()], read), strict=True))
    return [results[index] for index in range(len(overrides))]


def _read_all(
    jobs: Sequence[Job], read: Callable[[Evaluation], Sequence[T]]
) -> list[T | ProjectorError]:
    """Evaluate jobs together; if one of them is illegal, evaluate each half."""
    if not jobs:
        return []
    try:
        return list(read(evaluate(jobs)))
    except ProjectorError as error:
        if len(jobs) == 1:
            return [error]
    half = len(jobs) // 2
    return [*_read_all(jobs[:half], read), *_read_all(jobs[half:], read)]


def check_factor(name: str, value: Any, most: float, least: float = 0.0) -> float:
    """Return a number above ``least`` and at most ``most``."""
    value = unwrapped(value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not least < value <= most:
        msg = f"{name} is a number above {least:g}, at most {most:g}, got {shown(value)}"
        allowed = f"{least:g} < {name} <= {most:g}"
        raise ConfigError(msg, key=name, value=value, allowed=allowed)
    return float(value)
