"""A device calibrated to a user's own runs: constants of training move within their priors."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from projector.arrays import Floats
from projector.calibrate.fields import changed
from projector.calibrate.profile import load_base
from projector.calibrate.result import (
    FURTHEST,
    UNEXPLAINED,
    Base,
    Moved,
    OwnCalibration,
    OwnRun,
)
from projector.calibrate.runs import Run, RunFit, fit_runs, times_s
from projector.config import resources
from projector.config.constants import Parameter, own_run_noise, own_run_parameters
from projector.config.device import Device
from projector.config.device_file import load_device
from projector.config.job import Job
from projector.config.load import load_job
from projector.errors import ConfigError
from projector.files import open_table
from projector.projection.bands import run_class

DIGITS = 4
"""Significant digits of a value in a profile."""


def read_table(path: str | Path) -> tuple[list[str], list[float]]:
    """Return job files and measured milliseconds of a CSV file with columns job, measured_ms.

    A job file is found from the folder of the table.
    """
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
) -> tuple[Base, list[Run]]:
    """Read jobs and the device that they share.

    Parameters
    ----------
    paths : sequence of str
        Job files.
    measured_ms : sequence of float
        Step time of each.
    overrides : dict, optional
        Dotted fields of every job.
    device : str, optional
        A shipped device or a profile that extends one; replaces that of the jobs.
    """
    for each in measured_ms:
        if not (math.isfinite(each) and each > 0.0):
            msg = f"measured-ms is {each!r}, not a positive number of milliseconds"
            raise ConfigError(msg, key="measured-ms", value=str(each), allowed="> 0")
    changes = {**({"cluster.device": device} if device else {}), **(overrides or {})}
    jobs = [load_job(path, changes) for path in paths]
    base = load_base(device) if device else load_base(_shipped_as(jobs[0].cluster.device))
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


def calibrate_to_runs(base: Base, runs: Sequence[Run]) -> OwnCalibration:
    """Move the constants of a device within their priors until its jobs take what was measured.

    Parameters
    ----------
    base : Base
        The device.
    runs : sequence of Run
        Jobs on it, by the path of their files.
    """
    parameters = own_run_parameters(base.profile)
    noise = own_run_noise()
    fitted = fit_runs(runs, parameters, noise=noise, source_weight=float(len(runs)))
    slopes = fitted.at_start.slopes
    widths = np.array([each.log_width for each in parameters])
    left = _widths_left(slopes, widths, noise)
    fields = tuple(
        _moved(parameter, fitted, float(share))
        for parameter, share in zip(parameters, left, strict=True)
    )
    device = changed(base.profile, {each.field: each.value for each in fields if each.seen})
    jobs = [_on(run.loaded(), device) for run in runs]
    measured_s = np.array([run.measured_s for run in runs])
    before_s, after_s = measured_s * np.exp(fitted.before), times_s(jobs)
    reach = np.sqrt(((slopes * widths) ** 2).sum(axis=1))
    needed = np.abs(fitted.before) / np.maximum(reach, 1e-6)
    return OwnCalibration(
        base=base,
        runs=tuple(
            OwnRun(run.configuration, run.measured_s, float(before), float(after))
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
        is_explained = bool(widths <= FURTHEST and rest <= UNEXPLAINED)
        explained[name] = explained.get(name, True) and is_explained
    return tuple(name for name, is_explained in explained.items() if is_explained)


def _widths_left(slopes: Floats, widths: Floats, noise: float) -> Floats:
    """Return the standard deviation of each coordinate given the runs, over that of its prior."""
    information = np.diag(widths**-2.0) + slopes.T @ slopes / noise**2
    left: Floats = np.sqrt(np.diag(np.linalg.inv(information))) / widths
    return left


def _moved(parameter: Parameter, fitted: RunFit, width_left: float) -> Moved:
    seen = parameter.name not in fitted.unseen
    value = float(f"{fitted.values[parameter.name]:.{DIGITS}g}") if seen else parameter.prior
    return Moved(
        field=parameter.field.removeprefix("cluster.device."),
        prior=parameter.prior,
        value=value,
        shift=fitted.shifts.get(parameter.name, 0.0),
        width_left=width_left,
        seen=seen,
    )


def _on(job: Job, device: Device) -> Job:
    return job.model_copy(update={"cluster": job.cluster.model_copy(update={"device": device})})


def _shipped_as(device: Device) -> str:
    """Return the shipped name of a device, whatever its job overrides: the nearest by name."""
    for name in resources.shipped("hardware"):
        if load_device(name).name == device.name:
            return name
    msg = (
        f"device: no shipped device is named {device.name!r}; name the one to extend with --device"
    )
    raise ConfigError(msg, key="device", value=device.name, allowed=resources.shipped("hardware"))
