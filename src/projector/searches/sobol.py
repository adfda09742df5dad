"""Sobol indices: how much of the spread of the step each field explains, alone and with others.

The fields to sample together are those with an effect of their own.

Fields are sampled together, which also shows effects that only combinations have. SALib, the
extra ``sensitivity``, lays the samples out and estimates the indices.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from projector.arrays import Floats
from projector.distribution import install_command
from projector.envelope import told
from projector.errors import ConfigError, ProjectorError, UnsupportedError
from projector.projection.evaluate import Evaluation
from projector.searches.fields import Lever, check_factor, levers_of, project
from projector.searches.sensitivity import SharedEffect, Workload, check_fields, shared_sensitivity
from projector.units import unwrapped

MOST_FIELDS = 8
"""Most fields that are sampled by default, the most effective ones."""

MOST_NAMED = 64

SAME = 1e-6
"""Fields whose effects are closer are one number under two names: the variance would be split."""


def sampled_fields(
    workloads: Sequence[Workload], factor: float, fields: Sequence[str] | None
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Choose the fields to sample together; those that were not taken are returned with the reason.

    Where no fields are named, every rate of the hardware is varied alone over the range first, and
    those with the largest effect are taken.
    """
    if fields is not None:
        check_fields(workloads, fields)
        if not 1 <= len(fields) <= MOST_NAMED:
            msg = f"field: 1 to {MOST_NAMED} fields can be sampled, got {len(fields)}"
            raise ConfigError(msg, key="field", value=len(fields), allowed=f"1 to {MOST_NAMED}")
        return tuple("+".join(part.strip() for part in name.split("+")) for name in fields), {}
    result = shared_sensitivity(workloads, change=factor - 1.0)
    # Of fields with the same effect, such as a rate and its efficiency, the rate comes first.
    ranked = sorted(
        result.effects, key=lambda effect: (-round(effect.swing, 6), "efficiency" in effect.field)
    )
    left_out = dict(result.illegal)
    chosen: dict[str, SharedEffect] = {}
    varied_by: dict[str, str] = {}
    for effect in ranked:
        parts = effect.field.split("+")
        others = [varied_by[part] for part in parts if part in varied_by]
        equal = [
            name
            for name, other in chosen.items()
            if math.isclose(effect.low_s, other.low_s, rel_tol=SAME)
            and math.isclose(effect.high_s, other.high_s, rel_tol=SAME)
        ]
        missing = [workload.name for workload in workloads if not _has(workload, effect.field)]
        if others:
            left_out[effect.field] = f"is varied by {others[0]}"
        elif equal:
            left_out[effect.field] = f"does the same as {equal[0]}"
        elif missing:
            left_out[effect.field] = f"{missing[0]} does not have it"
        elif len(chosen) == MOST_FIELDS:
            left_out[effect.field] = "smaller effect than those that are sampled"
        else:
            chosen[effect.field] = effect
            varied_by |= dict.fromkeys(parts, effect.field)
    if not chosen:
        msg = "no field changes the step over this range; name others"
        raise ConfigError(msg, key="field", value=[], allowed="a dotted field")
    return tuple(chosen), left_out


def _has(workload: Workload, field: str) -> bool:
    try:
        levers_of(workload.job, [field])
    except ConfigError:
        return False
    return True


RANGE = 2.0
MOST_RANGE = 10.0
SAMPLES, MOST_SAMPLES = 512, 1 << 16
SEED, MOST_SEED = 1, (1 << 32) - 1

RESAMPLES = 100

CONSTANT = 1e-9
"""A smaller standard deviation of ln(step) is rounding and has no causes."""


@dataclass(frozen=True, slots=True)
class SobolIndex:
    """Share of the variance of ln(step) that one field explains."""

    field: str
    s1: float
    """Alone."""
    s1_interval: float
    """Half width of the 95 % interval."""
    st: float
    """With every interaction it takes part in."""
    st_interval: float


@dataclass(frozen=True, slots=True)
class SobolIndices:
    """Indices of several fields on one job or on the geometric mean of several."""

    workloads: tuple[Workload, ...]
    factor: float
    """Fields are sampled log-uniformly between value / factor and value * factor."""
    samples: int
    seed: int
    evaluations: int
    spread: float
    """Standard deviation of ln(step) over the samples."""
    indices: tuple[SobolIndex, ...]
    """The largest total index first."""
    by_workload: tuple[tuple[SobolIndex, ...], ...]
    """Of each workload alone, in the same order of fields."""
    left_out: Mapping[str, str]
    """Fields that were not sampled, with the reason; empty where fields were named."""

    def to_dict(self) -> dict[str, Any]:
        """Return the value of ``sobol`` in ``--json``."""
        result: dict[str, Any] = {
            "range": self.factor,
            **told(self, "samples seed evaluations"),
            "log_step_std": self.spread,
            **told(self, "indices left_out"),
        }
        if len(self.workloads) > 1:
            result["workloads"] = [
                {"workload": workload.name, "indices": [asdict(index) for index in indices]}
                for workload, indices in zip(self.workloads, self.by_workload, strict=True)
            ]
        return result


def sobol_indices(
    workloads: Sequence[Workload],
    *,
    factor: float = RANGE,
    samples: int = SAMPLES,
    seed: int = SEED,
    fields: Sequence[str] | None = None,
) -> SobolIndices:
    """Estimate first-order and total Sobol indices of ln(step).

    The same samples serve every workload; what is ranked is the mean of their ln(step) by weight,
    the logarithm of the geometric mean. The logarithm of the factor of each field is uniform
    between those of ``1 / factor`` and ``factor``; whole numbers are rounded. ``samples`` is a
    power of two: ``samples * (fields + 2)`` jobs are projected for each workload. Equal seeds, of
    the scrambled sequence and of the bootstrap, give equal results. Without ``fields`` the eight
    with the largest effect over the range are taken.
    """
    factor = check_factor("range", factor, MOST_RANGE, least=1.0)
    samples = check_samples(samples)
    seed = _check_seed(seed)
    sample, analyze = _salib()
    names, left_out = sampled_fields(workloads, factor, fields)
    problem = {
        "num_vars": len(names),
        "names": list(names),
        "bounds": [[-math.log(factor), math.log(factor)]] * len(names),
    }
    points = sample(problem, samples, calc_second_order=False, seed=np.random.default_rng(seed))
    factors = np.exp(np.asarray(points, np.float64))
    logs = [_log_steps(workload, names, factors) for workload in workloads]

    def indices(values: Floats) -> list[SobolIndex]:
        if float(values.std()) < CONSTANT:
            return [SobolIndex(name, 0.0, 0.0, 0.0, 0.0) for name in names]
        # The estimator takes a seed of 0 for none, but not a generator.
        estimate = analyze(
            problem,
            values,
            calc_second_order=False,
            num_resamples=RESAMPLES,
            seed=np.random.default_rng(seed),
        )
        columns = (estimate[key].tolist() for key in ("S1", "S1_conf", "ST", "ST_conf"))
        return [SobolIndex(*row) for row in zip(names, *columns, strict=True)]

    mean = np.zeros(len(factors))
    for workload, values in zip(workloads, logs, strict=True):
        mean += workload.weight * values
    overall = indices(mean)
    order = sorted(
        range(len(names)), key=lambda field_index: (-overall[field_index].st, names[field_index])
    )
    per_workload = [indices(values) for values in logs]
    return SobolIndices(
        workloads=tuple(workloads),
        factor=factor,
        samples=samples,
        seed=seed,
        evaluations=len(factors) * len(workloads),
        spread=float(mean.std()),
        indices=tuple(overall[field_index] for field_index in order),
        by_workload=tuple(
            tuple(workload_indices[field_index] for field_index in order)
            for workload_indices in per_workload
        ),
        left_out=left_out,
    )


def check_samples(samples: Any) -> int:
    """Return the number of base samples: a power of two, which keeps the sequence balanced."""
    samples = unwrapped(samples)
    is_integer = isinstance(samples, int) and not isinstance(samples, bool)
    if not is_integer or not 2 <= samples <= MOST_SAMPLES or samples & (samples - 1):
        msg = f"samples must be a power of two from 2 to {MOST_SAMPLES}, got {samples!r}"
        allowed = f"a power of two, 2 to {MOST_SAMPLES}"
        raise ConfigError(msg, key="samples", value=samples, allowed=allowed)
    return int(samples)


def _check_seed(seed: Any) -> int:
    seed = unwrapped(seed)
    is_integer = isinstance(seed, int) and not isinstance(seed, bool)
    if not is_integer or not 0 <= seed <= MOST_SEED:
        msg = f"seed must be an integer from 0 to {MOST_SEED}, got {seed!r}"
        raise ConfigError(msg, key="seed", value=seed, allowed=f"0 to {MOST_SEED}")
    return int(seed)


def _salib() -> tuple[Any, Any]:
    """Return SALib's sampler and estimator."""
    try:
        from SALib.analyze import sobol as analyze
        from SALib.sample import sobol as sample
    except ImportError:
        msg = f"Sobol indices need SALib: {install_command('sensitivity')}"
        allowed = "an installed SALib (extra sensitivity)"
        raise UnsupportedError(msg, key="sobol", value="SALib", allowed=allowed) from None
    return sample.sample, analyze.analyze


def _log_steps(workload: Workload, names: Sequence[str], factors: Floats) -> Floats:
    """Return ln(step) of a workload with fields multiplied by factors, float64[points, fields]."""
    levers = levers_of(workload.job, names)
    _check_range(workload, levers, factors)
    overrides = [
        {
            field: number
            for lever, factor in zip(levers, row, strict=True)
            for field, number in lever.times(factor).items()
        }
        for row in factors.tolist()
    ]
    logs = np.empty(len(overrides))
    for point, outcome in enumerate(project(workload.job, overrides, _steps)):
        if isinstance(outcome, ProjectorError):
            changed = ", ".join(f"{name}={value:g}" for name, value in overrides[point].items())
            msg = (
                f"{workload.name} cannot be sampled: with {changed}: {outcome.message}; "
                "leave a field out, join fields by + or choose a smaller range"
            )
            raise ConfigError(msg, key="field", value=changed, allowed="fields that vary freely")
        logs[point] = math.log(outcome)
    return logs


def _check_range(workload: Workload, levers: Sequence[Lever], factors: Floats) -> None:
    """Refuse a field that cannot be varied that far, before thousands of points are projected."""
    columns = [(lever, factors[:, index]) for index, lever in enumerate(levers)]
    pairs = [
        (lever, float(end)) for lever, column in columns for end in (column.min(), column.max())
    ]
    outcomes = project(workload.job, [lever.times(end) for lever, end in pairs], _steps)
    for (lever, end), outcome in zip(pairs, outcomes, strict=True):
        if isinstance(outcome, ProjectorError):
            msg = (
                f"{lever.name} of {workload.name} cannot be multiplied by {end:.4g}: "
                f"{outcome.message}; choose a smaller range"
            )
            raise ConfigError(msg, key="field", value=lever.name, allowed="a smaller range")


def _steps(evaluation: Evaluation) -> list[float]:
    times_s: list[float] = evaluation.steps.iteration_s.tolist()
    return times_s
