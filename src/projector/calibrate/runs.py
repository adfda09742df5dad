"""Constants of training fitted to measured steps: all published runs, or a user's own.

The logarithm of a step's time is linear in those of the constants to good accuracy over the width
of their priors, so one matrix of derivatives serves a fit and all fits that leave runs out.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from projector.arrays import Flags, Floats
from projector.config.constants import Changes, Parameter, training_parameters
from projector.config.job import Job
from projector.config.load import load_job
from projector.errors import ConfigError
from projector.projection.evaluate import evaluate

__all__ = ["Parameter", "Run", "RunFit", "Slopes", "fit_runs", "slopes_of", "training_parameters"]

NOISE = 0.08
"""Error of the logarithm of a group of published runs, beyond which it counts less than
quadratically. It is the bias of a group (source, model, device, precision), not that of a run."""

STEP = 0.03
"""Step of a derivative in the logarithm of a constant; times have kinks where the best tile
changes."""

UNSEEN = 1e-3
"""Greatest derivative of a log time below which runs say nothing about a constant."""

BATCH = 96
"""Jobs evaluated together."""

LINEARISATIONS = 2
"""Times that slopes are taken anew where a fit ended."""

ROUNDS = 100
CONVERGED = 1e-9


@dataclass(frozen=True, slots=True)
class Run:
    """One measured step."""

    job: Job | Mapping[str, Any]
    measured_s: float
    source: str = ""
    """Runs of one source weigh as much together as those of any other."""
    configuration: str = ""
    """Runs of a source that share it count once together; empty counts by itself."""

    def loaded(self) -> Job:
        """Return the job, read where it is a mapping."""
        return self.job if isinstance(self.job, Job) else load_job(self.job)


@dataclass(frozen=True)
class Slopes:
    """Log times of runs, linear about the values that their jobs have."""

    parameters: tuple[Parameter, ...]
    start: Floats
    """float64[parameters]: logarithm of the present value over the prior's centre; 0 where no run
    has the parameter."""
    log_ratio: Floats
    """float64[runs]: logarithm of projected over measured time at the start."""
    slopes: Floats
    """float64[runs, parameters]: change of a log time with the logarithm of a value."""

    def residuals(self, coordinates: Floats) -> Floats:
        """Return the log ratio of every run at other values, to first order."""
        moved: Floats = self.log_ratio + self.slopes @ (coordinates - self.start)
        return moved

    def seen(self, weights: Floats) -> Flags:
        """Whether any run that counts depends on a parameter."""
        counts = weights > 0.0
        if not counts.any():
            return np.zeros(len(self.parameters), bool)
        found: Flags = np.abs(self.slopes[counts]).max(axis=0, initial=0.0) > UNSEEN
        return found

    def solve(self, weights: Floats, noise: float = NOISE) -> Floats:
        """Return the coordinates of least loss: Gauss-Newton over soft-L1, with priors.

        A parameter that no run depends on follows those that are alike, as far as its prior says.

        Parameters
        ----------
        weights : float64[runs]
            Independent observations that a run stands for; 0 leaves it out.
        noise : float
            Error of the logarithm beyond which the loss is linear.
        """
        prior = np.linalg.inv(_covariance(self.parameters))
        lower, upper = np.array([_bounds(each) for each in self.parameters]).T
        point, matrix = self.start, self.slopes
        for _ in range(ROUNDS):
            error = self.residuals(point) / noise
            # The soft-L1 loss as a quadratic one about the present errors.
            trust = weights / np.sqrt(1.0 + error**2) / noise**2
            normal = matrix.T @ (trust[:, np.newaxis] * matrix) + prior
            pull = matrix.T @ (trust * error * noise) + prior @ point
            moved = np.clip(point - np.linalg.solve(normal, pull), lower, upper)
            done = np.abs(moved - point).max(initial=0.0) < CONVERGED
            point = moved
            if done:
                break
        return point

    def values(self, coordinates: Floats) -> dict[str, float]:
        """Return the value of each parameter, by name."""
        return {
            each.name: each.prior * math.exp(at)
            for each, at in zip(self.parameters, coordinates.tolist(), strict=True)
        }


@dataclass(frozen=True)
class RunFit:
    """Where a fit ended."""

    values: dict[str, float]
    """By name of a parameter, of those that the runs say something about."""
    shifts: dict[str, float]
    """How far each of them lies from its prior's centre, in widths of the prior."""
    at_start: Slopes
    """Log times about the present values."""
    after: Floats
    """float64[runs]: logarithm of projected over measured time with the fitted values."""
    unseen: tuple[str, ...] = field(default=())
    """Parameters that no run depends on; they keep their values."""

    @property
    def before(self) -> Floats:
        """float64[runs]: logarithm of projected over measured time with the present values."""
        return self.at_start.log_ratio


def fit_runs(
    runs: Sequence[Run],
    parameters: Sequence[Parameter] | None = None,
    *,
    noise: float = NOISE,
    source_weight: float = 4.0,
) -> RunFit:
    """Fit constants of training to measured steps.

    Parameters
    ----------
    runs : sequence of Run
    parameters : sequence of Parameter, optional
        What moves; the shared constants of training by default.
    noise : float
        Error of the logarithm beyond which the loss is linear.
    source_weight : float
        Independent observations that the runs of one source are worth; fewer runs are worth as
        many as they are.
    """
    if not runs:
        msg = "runs: there is none to fit to"
        raise ConfigError(msg, key="runs", value=0, allowed="at least one run")
    chosen = tuple(training_parameters() if parameters is None else parameters)
    weights = run_weights(runs, source_weight)
    changes = Changes(chosen)
    there, moved = list(runs), dict[str, float]()
    at_start = linear = slopes_of(runs, chosen)
    point, seen = linear.start, linear.seen(weights)
    for round_ in range(LINEARISATIONS):
        if round_:
            linear = slopes_of(there, chosen)
        point = linear.solve(weights, noise)
        values = linear.values(point)
        moved = {each.name: values[each.name] for each, s in zip(chosen, seen, strict=True) if s}
        there = [replace(run, job=changes.of(run.loaded(), moved)) for run in runs]
    return RunFit(
        values=moved,
        shifts={
            each.name: float(at) / each.log_width
            for each, at in zip(chosen, point, strict=True)
            if each.name in moved
        },
        at_start=at_start,
        after=_log_ratios(there, [run.loaded() for run in there]),
        unseen=tuple(each.name for each in chosen if each.name not in moved),
    )


def run_weights(runs: Sequence[Run], source_weight: float) -> Floats:
    """Return the observations that each run stands for.

    Equal configurations of a source share one, and all of a source at most `source_weight`.
    """
    keys = [(run.source, run.configuration or str(i)) for i, run in enumerate(runs)]
    alike = Counter(keys)
    distinct = Counter(source for source, _ in alike)
    return np.array(
        [
            min(1.0, source_weight / distinct[source]) / alike[source, configuration]
            for source, configuration in keys
        ]
    )


def slopes_of(runs: Sequence[Run], parameters: Sequence[Parameter]) -> Slopes:
    """Project runs, and again with each parameter moved."""
    for run in runs:
        if not (math.isfinite(run.measured_s) and run.measured_s > 0.0):
            msg = f"a measured time is {run.measured_s!r}, not a positive number of seconds"
            raise ConfigError(msg, key="measured_s", value=run.measured_s, allowed="> 0")
    jobs = [run.loaded() for run in runs]
    base = _log_ratios(runs, jobs)
    changes = Changes(tuple(parameters))
    start = np.zeros(len(parameters))
    slopes = np.zeros((len(jobs), len(parameters)))
    for column, parameter in enumerate(parameters):
        mine = [row for row, job in enumerate(jobs) if parameter.concerns(job)]
        if not mine:
            continue
        present = [parameter.of(jobs[row]) for row in mine]
        start[column] = math.log(float(np.median(present)) / parameter.prior)
        moved = [
            changes.of(jobs[row], {parameter.name: value * math.exp(STEP)})
            for row, value in zip(mine, present, strict=True)
        ]
        slopes[mine, column] = (_log_ratios([runs[row] for row in mine], moved) - base[mine]) / STEP
    return Slopes(tuple(parameters), start, base, slopes)


def _log_ratios(runs: Sequence[Run], jobs: Sequence[Job]) -> Floats:
    """Return the logarithm of the projected time of each job over the measured one of its run."""
    return np.log(times_s(jobs)) - np.log([run.measured_s for run in runs])


def times_s(jobs: Sequence[Job]) -> Floats:
    """Return the projected time of a step of each job [s]."""
    # Jobs of one shape next to each other share most of their work.
    order = sorted(
        range(len(jobs)), key=lambda row: (jobs[row].model.name, jobs[row].cluster.device.name)
    )
    times = np.zeros(len(jobs))
    for begin in range(0, len(order), BATCH):
        rows = order[begin : begin + BATCH]
        times[rows] = evaluate([jobs[row] for row in rows]).steps.iteration_s
    return times


def _covariance(parameters: Sequence[Parameter]) -> Floats:
    """Return the covariance of the priors: what is alike is unknown together."""
    shared = np.array(
        [
            [a.alike_log_width * b.alike_log_width * (a.alike == b.alike != "") for b in parameters]
            for a in parameters
        ]
    )
    own: Floats = np.diag([each.log_width**2 for each in parameters])
    total: Floats = own + shared
    return total


def _bounds(parameter: Parameter) -> tuple[float, float]:
    """Return the bounds of a coordinate."""
    lower = math.log(parameter.lower / parameter.prior) if parameter.lower > 0.0 else -math.inf
    return lower, math.log(parameter.upper / parameter.prior)
