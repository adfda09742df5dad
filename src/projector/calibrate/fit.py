"""Robust least squares over the logarithm of predicted over measured time, and what it fits.

A field of a device profile is a dotted path, ``hbm_efficiency``, ``sustained_clock_mhz.bf16`` or
``gemm_tiles.0.efficiency``, with the bounds its schema sets. The fit moves a coordinate x that is 0
at the shipped value: the logarithm of the ratio where a field must be positive, the difference
where it may be 0 and has an upper bound.
"""

import difflib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from projector.arrays import Flags, Floats
from projector.config.device import Device
from projector.config.job import Job
from projector.errors import ConfigError

LOG_SPREAD = 0.5
"""Prior standard deviation of the logarithm of a positive field: a factor 1.65 either way."""

SPREAD = 0.3
"""Prior standard deviation of a share that may be 0."""

FURTHEST = 20.0
"""Factor from its shipped value beyond which no positive field is sought."""

DIGITS = 4
"""Significant digits of a fitted value."""


@dataclass(frozen=True, slots=True)
class Field:
    """One number to fit."""

    path: str
    prior: float
    """The value of the device that the calibration starts from."""
    lower: float
    upper: float
    logarithmic: bool

    @property
    def spread(self) -> float:
        """Prior standard deviation of the coordinate."""
        return LOG_SPREAD if self.logarithmic else SPREAD

    @property
    def bounds(self) -> tuple[float, float]:
        """Bounds of the coordinate."""
        return self.coordinate(self.lower), self.coordinate(self.upper)

    def coordinate(self, value: float) -> float:
        """Return the coordinate of a value."""
        return math.log(value / self.prior) if self.logarithmic else value - self.prior

    def value(self, coordinate: float) -> float:
        """Return the value at a coordinate, within the bounds."""
        raw = self.prior * math.exp(coordinate) if self.logarithmic else self.prior + coordinate
        return min(max(raw, self.lower), self.upper)

    def rounded(self, coordinate: float) -> float:
        """Return the value at a coordinate with `DIGITS` significant digits, within the bounds."""
        value = float(f"{self.value(coordinate):.{DIGITS}g}")
        return min(max(value, self.lower), self.upper)

    def slope(self, coordinate: float) -> float:
        """Return the change of the value with the coordinate."""
        return self.value(coordinate) if self.logarithmic else 1.0


def field_of(device: Device, path: str) -> Field:
    """Return a field of a device with its bounds."""
    known = dict(_numbers(device.model_dump(exclude={"sources"})))
    if path not in known:
        close = difflib.get_close_matches(path, known, n=3, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"
        msg = f"fields: {device.name} has no number {path!r} to fit; {hint}"
        raise ConfigError(msg, key="fields", value=path, allowed=close or sorted(known))
    prior = known[path]
    schema = _schema()
    limits = _limits(schema, schema, path.split("."))
    least, most = _physical_limits(device, path)
    upper = max(min(float(limits.get("maximum", math.inf)), most), prior)
    positive = limits.get("minimum") is None
    if not positive and math.isfinite(upper):
        return Field(path, prior, float(limits["minimum"]), upper, logarithmic=False)
    if prior <= 0.0:
        msg = f"fields: {path} is {prior:g}, and a fit cannot start from 0; leave it out"
        raise ConfigError(msg, key="fields", value=path, allowed="a field that is not 0")
    lower, upper = max(least, prior / FURTHEST), min(upper, prior * FURTHEST)
    return Field(path, prior, lower, upper, logarithmic=True)


@cache
def _schema() -> dict[str, Any]:
    return Device.model_json_schema()


def changed(device: Device, values: Mapping[str, float]) -> Device:
    """Return the device with other values of some fields; its other sources stay."""
    data: Any = device.model_dump()
    for path, value in values.items():
        data = _replaced(data, path.split("."), value)
    return Device.parse(data, path="device")


def on_device(job: Job, device: Device) -> Job:
    """Return a job on another device."""
    return job.model_copy(update={"cluster": job.cluster.model_copy(update={"device": device})})


def _numbers(value: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, float):
        yield prefix.rstrip("."), value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _numbers(item, f"{prefix}{name}.")
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            yield from _numbers(item, f"{prefix}{position}.")


def _limits(root: Mapping[str, Any], schema: Mapping[str, Any], parts: Sequence[str]) -> Any:
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", maxsplit=1)[-1]
        return _limits(root, root["$defs"][name], parts)
    if "anyOf" in schema:
        return _limits(root, schema["anyOf"][0], parts)
    if not parts:
        return schema
    inner = schema.get("properties", {}).get(parts[0])
    if inner is None:
        inner = schema.get("items") or schema["additionalProperties"]
    return _limits(root, inner, parts[1:])


def _physical_limits(device: Device, path: str) -> tuple[float, float]:
    """Return the bounds that a field's meaning sets and its own schema cannot state."""
    if path == "scale_up_gb_per_s":
        return device.scale_up_peer_gb_per_s, math.inf
    most = {
        "sustained_clock_mhz": device.peak_clock_mhz,
        "gemm_efficiency": 1.0,
        "scale_up_peer_gb_per_s": device.scale_up_gb_per_s,
    }
    return 0.0, most.get(path.partition(".")[0], math.inf)


def _replaced(data: Any, parts: Sequence[str], value: float) -> Any:
    if not parts:
        return value
    if isinstance(data, Mapping):
        # A path spells out keys that are numbers.
        key = next(key for key in data if str(key) == parts[0])
        return {**data, key: _replaced(data[key], parts[1:], value)}
    items = list(data)
    items[int(parts[0])] = _replaced(items[int(parts[0])], parts[1:], value)
    return items


NOISE = 0.1
"""Error of the logarithm beyond which a row counts less than quadratically."""

STEP = 0.03
"""Step of a derivative in a field's coordinate; the time has kinks where the best tile changes."""

UNSEEN = 1e-6
"""Greatest derivative of a log time below which no row depends on a field."""

MAX_EVALUATIONS = 60

Times = Callable[[Sequence[dict[str, float]]], Sequence[Floats]]
"""Projected time of every row [s], with each of several values of the fields."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Where a fit ended."""

    coordinates: Floats
    """Of each field; 0 is the prior."""
    errors: Floats
    """Standard error of each coordinate; NaN at a bound or where no row depends on a field."""
    seen: Flags
    """Whether any row depends on a field."""


def fit(
    fields: Sequence[Field], times_s: Times, measured_s: Floats, evaluations: int = MAX_EVALUATIONS
) -> Fit:
    """Fit fields to rows: soft-L1 of log errors / `NOISE` and of coordinates / their priors."""
    # Without stubs; its result has x, fun, jac and cost.
    from scipy.optimize import least_squares  # type: ignore[import-untyped,unused-ignore]

    spread = np.array([field.spread for field in fields])
    lower, upper = np.array([field.bounds for field in fields]).T
    log_measured = np.log(measured_s)

    def log_ratios(points: Floats) -> Floats:
        values = [
            {field.path: field.value(float(v)) for field, v in zip(fields, x, strict=True)}
            for x in points
        ]
        time_s = np.stack(times_s(values))
        good = (np.isfinite(time_s) & (time_s > 0.0)).all(axis=1)
        if not good.all():
            bad = values[int(np.argmin(good))]
            msg = f"a projected time is not positive with {bad}"
            raise ConfigError(msg, key="fields", value=bad)
        ratio: Floats = np.log(time_s) - log_measured
        return ratio

    def slopes(x: Floats) -> Floats:
        steps = STEP * np.eye(len(fields))
        low, high = np.maximum(x - steps, lower), np.minimum(x + steps, upper)
        below, above = np.split(log_ratios(np.concatenate([low, high])), 2)
        columns: Floats = ((above - below) / np.diag(high - low)[:, None]).T
        return columns

    seen = np.abs(slopes(np.clip(np.zeros(len(fields)), lower, upper))).max(axis=0) > UNSEEN
    prior = np.diag(1.0 / spread)
    # The other bounded method stalls where a field starts at its bound, as shares of 0 do.
    solution: Any = least_squares(
        lambda x: np.concatenate([log_ratios(x[None])[0] / NOISE, x / spread]),
        np.zeros(len(fields)),
        lambda x: np.concatenate([slopes(x) / NOISE, prior]),
        bounds=(lower, upper),
        method="dogbox",
        loss="soft_l1",
        max_nfev=evaluations,
    )
    free = (solution.active_mask == 0) & seen
    errors = np.full(len(fields), np.nan)
    if free.any():
        jacobian = solution.jac[:, free]
        degrees = max(1, len(measured_s) - int(free.sum()))
        # The cost counts half of each squared residual.
        variance = 2.0 * solution.cost / degrees
        covariance = variance * np.linalg.inv(jacobian.T @ jacobian)
        errors[free] = np.sqrt(np.diag(covariance))
    return Fit(np.where(seen, solution.x, 0.0), errors, seen)
