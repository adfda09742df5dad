"""Sobol indices: how much of the spread of the step each field explains, alone and with others.

Fields are sampled together, which also shows effects that only combinations have. SALib, the
extra ``sensitivity``, lays the samples out and estimates the indices.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.arrays import Floats
from projector.distribution import install_command
from projector.errors import ConfigError, ProjectorError, UnsupportedError
from projector.projection.evaluate import Evaluation
from projector.searches.fields import Lever, check_factor, levers_of, project
from projector.searches.multi_job import Workload
from projector.searches.screening import sampled_fields
from projector.units import unwrapped

RANGE = 2.0
MOST_RANGE = 10.0
SAMPLES, MOST_SAMPLES = 512, 1 << 16
SEED, MOST_SEED = 1, (1 << 32) - 1

RESAMPLES = 100
"""Bootstrap samples behind the intervals."""

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

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "field": self.field,
            "s1": self.s1,
            "s1_interval": self.s1_interval,
            "st": self.st,
            "st_interval": self.st_interval,
        }


@dataclass(frozen=True, slots=True)
class SobolIndices:
    """Indices of several fields on one job or on the geometric mean of several."""

    workloads: tuple[Workload, ...]
    factor: float
    """Fields are sampled log-uniformly between value / factor and value * factor."""
    samples: int
    seed: int
    evaluations: int
    """Jobs that were projected."""
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
            "samples": self.samples,
            "seed": self.seed,
            "evaluations": self.evaluations,
            "log_step_std": self.spread,
            "indices": [index.to_dict() for index in self.indices],
            "left_out": dict(self.left_out),
        }
        if len(self.workloads) > 1:
            result["workloads"] = [
                {"workload": workload.name, "indices": [index.to_dict() for index in indices]}
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
    the logarithm of the geometric mean.

    Parameters
    ----------
    workloads : sequence of Workload
        See `workloads_of`.
    factor : float
        Each field is multiplied by a factor. Its logarithm is uniform between the logarithms of
        ``1 / factor`` and ``factor``; whole numbers are rounded.
    samples : int
        Base samples, a power of two; ``samples * (fields + 2)`` jobs are projected for each
        workload.
    seed : int
        Of the scrambled sequence and of the bootstrap; equal seeds give equal results.
    fields : sequence of str, optional
        Dotted fields, several that move together joined by ``+``; the eight with the largest
        effect over the range unless given.
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
    """Return ln(step) of a workload with its fields multiplied, ``float64[points]``.

    Parameters
    ----------
    factors : float64[points, fields]
    """
    levers = levers_of(workload.job, names)
    _check_range(workload, levers, factors)
    overrides = [
        dict(
            itertools.chain.from_iterable(
                lever.times(factor).items() for lever, factor in zip(levers, row, strict=True)
            )
        )
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
