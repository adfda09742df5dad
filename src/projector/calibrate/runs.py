"""Constants of training fitted to measured steps: all published runs, or a user's own.

A device calibrated to a user's own runs has constants that move within their priors.

The logarithm of a step's time is linear in those of the constants to good accuracy over the width
of their priors, so one matrix of derivatives serves a fit and all fits that leave runs out.
"""

import csv
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from projector.arrays import Flags, Floats
from projector.calibrate import profile
from projector.calibrate.fit import changed, on_device
from projector.config import constants, resources
from projector.config.device import Device
from projector.config.device_file import load_device
from projector.config.job import Job
from projector.config.load import load_job
from projector.errors import ConfigError
from projector.files import open_table
from projector.projection.bands import run_class
from projector.projection.evaluate import evaluate

__all__ = ["Run", "RunFit", "Slopes", "fit_runs", "slopes_of"]

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

    parameters: tuple[constants.Parameter, ...]
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

        A parameter that no run depends on follows those that are alike, as far as its prior says. A
        run stands for as many independent observations as its weight, 0 leaves it out; beyond an
        error of the logarithm of ``noise`` the loss is linear.
        """
        # The covariance of the priors: what is alike is unknown together.
        shared = np.array(
            [
                [
                    a.alike_log_width * b.alike_log_width * (a.alike == b.alike != "")
                    for b in self.parameters
                ]
                for a in self.parameters
            ]
        )
        own: Floats = np.diag([each.log_width**2 for each in self.parameters])
        total: Floats = own + shared
        prior = np.linalg.inv(total)
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
    parameters: Sequence[constants.Parameter] | None = None,
    *,
    noise: float = NOISE,
    source_weight: float = 4.0,
) -> RunFit:
    """Fit constants of training to measured steps; the shared ones unless ``parameters`` are given.

    The loss is linear beyond an error of the logarithm of ``noise``. The runs of one source are
    worth ``source_weight`` independent observations; fewer runs are worth as many as they are.
    """
    if not runs:
        msg = "runs: there is none to fit to"
        raise ConfigError(msg, key="runs", value=0, allowed="at least one run")
    chosen = tuple(constants.training_parameters() if parameters is None else parameters)
    weights = run_weights(runs, source_weight)
    changes = constants.Changes(chosen)
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


def slopes_of(runs: Sequence[Run], parameters: Sequence[constants.Parameter]) -> Slopes:
    """Project runs, and again with each parameter moved."""
    for run in runs:
        if not (math.isfinite(run.measured_s) and run.measured_s > 0.0):
            msg = f"a measured time is {run.measured_s!r}, not a positive number of seconds"
            raise ConfigError(msg, key="measured_s", value=run.measured_s, allowed="> 0")
    jobs = [run.loaded() for run in runs]
    base = _log_ratios(runs, jobs)
    changes = constants.Changes(tuple(parameters))
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


def _bounds(parameter: constants.Parameter) -> tuple[float, float]:
    lower = math.log(parameter.lower / parameter.prior) if parameter.lower > 0.0 else -math.inf
    return lower, math.log(parameter.upper / parameter.prior)


DIGITS = 4
"""Significant digits of a value in a profile."""


def read_table(path: str | Path) -> tuple[list[str], list[float]]:
    """Return job files, from a table's folder, and measured ms of its columns job, measured_ms."""
    try:
        with open_table(path, key="from-runs") as file:
            rows = list(csv.DictReader(file))
    except csv.Error as error:
        msg = f"from-runs: {path} cannot be read: {error}"
        raise ConfigError(msg, key="from-runs", value=str(path), allowed="a CSV file") from None
    jobs, measured_ms = [], []
    for line, row in enumerate(rows, start=2):
        job, text = row.get("job"), row.get("measured_ms")
        try:
            measured_ms.append(float(text or ""))
        except ValueError:
            job = None
        if not job:
            msg = f"from-runs: line {line} of {path} has no job, or no number in measured_ms"
            raise ConfigError(msg, key="from-runs", value=dict(row), allowed=["job", "measured_ms"])
        jobs.append(str(Path(path).parent / job))
    if not jobs:
        msg = f"from-runs: {path} has no row"
        raise ConfigError(msg, key="from-runs", value=str(path), allowed=["job", "measured_ms"])
    return jobs, measured_ms


def load_runs(
    paths: Sequence[str],
    measured_ms: Sequence[float],
    overrides: dict[str, Any] | None = None,
    device: str | None = None,
) -> tuple[profile.Base, list[Run]]:
    """Read job files, their measured step times and the device that they share.

    ``device``, a shipped one or a profile that extends one, replaces that of the jobs.
    """
    for each in measured_ms:
        if not (math.isfinite(each) and each > 0.0):
            msg = f"measured-ms is {each!r}, not a positive number of milliseconds"
            raise ConfigError(msg, key="measured-ms", value=str(each), allowed="> 0")
    changes = {**({"cluster.device": device} if device else {}), **(overrides or {})}
    jobs = [load_job(path, changes) for path in paths]
    base = profile.load_base(device or _shipped_as(jobs[0].cluster.device))
    for path, job in zip(paths, jobs, strict=True):
        if job.cluster.device != base.profile:
            msg = (
                f"device: {path} runs on {job.cluster.device.name} as its job describes it, not on "
                f"{base.device} as it is; name the device or profile with --device"
            )
            raise ConfigError(msg, key="device", value=path, allowed=base.device)
    runs = [
        Run(job, each / 1e3, "own", path)
        for path, job, each in zip(paths, jobs, measured_ms, strict=True)
    ]
    return base, runs


def calibrate_to_runs(base: profile.Base, runs: Sequence[Run]) -> profile.OwnCalibration:
    """Move the constants of a device within their priors until its jobs take what was measured.

    Runs are told apart by the path of their files.
    """
    parameters = constants.own_run_parameters(base.profile)
    noise = constants.own_run_noise()
    fitted = fit_runs(runs, parameters, noise=noise, source_weight=float(len(runs)))
    slopes = fitted.at_start.slopes
    widths = np.array([each.log_width for each in parameters])
    # The standard deviation of each coordinate given the runs, over that of its prior.
    information = np.diag(widths**-2.0) + slopes.T @ slopes / noise**2
    left = np.sqrt(np.diag(np.linalg.inv(information))) / widths
    fields = tuple(
        _moved(parameter, fitted, float(share))
        for parameter, share in zip(parameters, left, strict=True)
    )
    device = changed(base.profile, {each.field: each.value for each in fields if each.seen})
    jobs = [on_device(run.loaded(), device) for run in runs]
    measured_s = np.array([run.measured_s for run in runs])
    before_s, after_s = measured_s * np.exp(fitted.before), times_s(jobs)
    reach = np.sqrt(((slopes * widths) ** 2).sum(axis=1))
    needed = np.abs(fitted.before) / np.maximum(reach, 1e-6)
    return profile.OwnCalibration(
        base=base,
        runs=tuple(
            profile.OwnRun(run.configuration, run.measured_s, float(before), float(after))
            for run, before, after in zip(runs, before_s, after_s, strict=True)
        ),
        fields=fields,
        classes=_explained(runs, needed, after_s),
        widths_needed=float(np.max(needed)),
    )


def _explained(runs: Sequence[Run], needed: Floats, after_s: Floats) -> tuple[str, ...]:
    """Return the classes of runs all of whose runs the constants explain."""
    explained: dict[str, bool] = {}
    for run, widths, after in zip(runs, needed, after_s, strict=True):
        rest = abs(math.log(after / run.measured_s))
        name = run_class(run.loaded())
        is_explained = bool(widths <= profile.FURTHEST and rest <= profile.UNEXPLAINED)
        explained[name] = explained.get(name, True) and is_explained
    return tuple(name for name, is_explained in explained.items() if is_explained)


def _moved(parameter: constants.Parameter, fitted: RunFit, width_left: float) -> profile.Moved:
    seen = parameter.name not in fitted.unseen
    value = float(f"{fitted.values[parameter.name]:.{DIGITS}g}") if seen else parameter.prior
    return profile.Moved(
        field=parameter.field.removeprefix("cluster.device."),
        prior=parameter.prior,
        value=value,
        shift=fitted.shifts.get(parameter.name, 0.0),
        width_left=width_left,
        seen=seen,
    )


def _shipped_as(device: Device) -> str:
    """Return the shipped name of a device, whatever its job overrides: the nearest by name."""
    for name in resources.shipped("hardware"):
        if load_device(name).name == device.name:
            return name
    msg = (
        f"device: no shipped device is named {device.name!r}; name the one to extend with --device"
    )
    raise ConfigError(msg, key="device", value=device.name, allowed=resources.shipped("hardware"))
