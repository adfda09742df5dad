"""Fitted constants of training that jobs share: their priors, and jobs with other values of them.

They stand in ``hardware/training.yaml``: each parameter names a field and the architectures that
share its value.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from projector.config import resources
from projector.config.device import Device
from projector.config.job import Job
from projector.errors import ConfigError, shown

FILE = "training.yaml"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number that jobs share, with what was known of it before any run was looked at."""

    name: str
    field: str
    """Dotted field of a job; one that begins with ``cluster.device.`` may lead into a mapping."""
    prior: float
    log_width: float
    """Standard deviation of the prior of the logarithm of value over centre."""
    architectures: tuple[str, ...] = ()
    """Devices that have it; empty means all."""
    lower: float = 0.0
    upper: float = math.inf
    alike: str = ""
    """Group of parameters that share what nobody knows about all of them; empty for none."""
    alike_log_width: float = 0.0
    """Standard deviation of that share, beside `log_width` of the parameter's own."""

    def concerns(self, job: Job) -> bool:
        """Whether a job's device has this parameter."""
        return not self.architectures or job.cluster.device.architecture in self.architectures

    def of(self, job: Job) -> float:
        """Return the value that a job has."""
        value: Any = job
        for part in self.field.split("."):
            value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
        if not isinstance(value, int | float) or isinstance(value, bool):
            msg = f"{self.name}: {self.field} is {shown(value)}, not a number"
            raise ConfigError(msg, key=self.field, value=value, allowed="a number")
        return float(value)


MOST_SHARE = 2.0
"""Largest share of a kernel's own rate within a step that a device may state."""


@cache
def training_parameters() -> tuple[Parameter, ...]:
    """Return the fitted constants of training, as ``hardware/training.yaml`` lists them."""
    table = resources.hardware_table(FILE)
    return tuple(
        Parameter(
            name=name,
            field=entry["field"],
            prior=float(entry["prior"]),
            log_width=float(entry["log_width"]),
            architectures=tuple(entry.get("architectures", ())),
            lower=float(entry.get("lower", 0.0)),
            upper=float(entry.get("upper", math.inf)),
            alike=entry.get("alike", ""),
            alike_log_width=float(table["alike"].get(entry.get("alike", ""), 0.0)),
        )
        for name, entry in table["parameters"].items()
    )


def own_run_parameters(device: Device) -> tuple[Parameter, ...]:
    """Return what a calibration to a user's runs moves; the priors are the device's own values."""
    table = resources.hardware_table(FILE)["own_runs"]["log_widths"]
    most = {"scale_up_efficiency": 1.0}
    parameters = []
    for field, log_width in table.items():
        name, _, key = field.partition(".")
        value = getattr(device, name)
        prior = value.get(key) if key else value
        if prior is not None:
            upper = most.get(name, MOST_SHARE)
            parameters.append(
                Parameter(field, f"cluster.device.{field}", prior, log_width, upper=upper)
            )
    return tuple(parameters)


def own_run_noise() -> float:
    """Return what is left of the logarithm of a run's time once a calibration has moved them."""
    return float(resources.hardware_table(FILE)["own_runs"]["noise"])


class Changes:
    """Jobs with other values of parameters; equal devices stay one object, which costs once."""

    def __init__(self, parameters: tuple[Parameter, ...] | None = None) -> None:
        chosen = training_parameters() if parameters is None else parameters
        self._parameters = {parameter.name: parameter for parameter in chosen}
        self._devices: dict[tuple[Any, ...], tuple[Device, Device]] = {}

    def of(self, job: Job, values: Mapping[str, float]) -> Job:
        """Return a job with values of those parameters, by their names, that concern it."""
        unknown = values.keys() - self._parameters.keys()
        if unknown:
            name = min(unknown)
            known = sorted(self._parameters)
            msg = f"unknown parameter {name!r}; known: {', '.join(known)}"
            raise ConfigError(msg, key=name, allowed=known)
        named = [self._parameters[name] for name in values]
        mine = {p.field: values[p.name] for p in named if p.concerns(job)}
        prefix = "cluster.device."
        of_device = {f.removeprefix(prefix): v for f, v in mine.items() if f.startswith(prefix)}
        for field, value in mine.items():
            if not field.startswith(prefix):
                job = _replaced(job, field.split("."), value)
        return job if not of_device else self._with_device(job, of_device)

    def _with_device(self, job: Job, values: Mapping[str, float]) -> Job:
        device = job.cluster.device
        key = (id(device), *sorted(values.items()))
        if key not in self._devices:
            other = device
            for field, value in values.items():
                other = _replaced(other, field.split("."), value)
            # The first is kept as well: its identity must not pass to another device.
            self._devices[key] = device, other
        cluster = job.cluster.model_copy(update={"device": self._devices[key][1]})
        return job.model_copy(update={"cluster": cluster})


def _replaced(owner: Any, parts: list[str], value: Any) -> Any:
    if not parts:
        return value
    if isinstance(owner, Mapping):
        return {**owner, parts[0]: _replaced(owner.get(parts[0]), parts[1:], value)}
    if parts[0] not in type(owner).model_fields:
        msg = f"{type(owner).__name__} has no field {parts[0]!r}"
        raise ConfigError(msg, key=parts[0], allowed=sorted(type(owner).model_fields))
    return owner.model_copy(
        update={parts[0]: _replaced(getattr(owner, parts[0]), parts[1:], value)}
    )
