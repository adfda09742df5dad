"""Robust least squares over the logarithm of predicted over measured time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.arrays import Flags, Floats
from projector.calibrate.fields import Field
from projector.errors import ConfigError

NOISE = 0.1
"""Error of the logarithm beyond which a row counts less than quadratically."""

STEP = 0.03
"""Step of a derivative in a field's coordinate; the time has kinks where the best tile changes."""

UNSEEN = 1e-6
"""Greatest derivative of a log time below which no row depends on a field."""

MAX_EVALUATIONS = 60

Times = Callable[[dict[str, float]], Floats]
"""Projected time of every row [s] with these values of fields."""


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
    fields: Sequence[Field],
    times_s: Times,
    measured_s: Floats,
    evaluations: int = MAX_EVALUATIONS,
) -> Fit:
    """Fit fields to rows.

    Minimises the soft-L1 loss of log(predicted / measured) / `NOISE`, and of each coordinate
    over the spread of its prior.

    Parameters
    ----------
    fields : sequence of Field
        What moves.
    times_s : callable
        Projected time of the rows.
    measured_s : float64[R]
        Measured time of the rows.
    evaluations : int
        Points at which the slopes of all fields are taken, at most.
    """
    # Without stubs; its result has x, fun, jac and cost.
    from scipy.optimize import least_squares  # type: ignore[import-untyped,unused-ignore]

    spread = np.array([field.spread for field in fields])
    lower, upper = np.array([field.bounds for field in fields]).T
    log_measured = np.log(measured_s)

    def log_ratio(x: Floats) -> Floats:
        values = {field.path: field.value(float(v)) for field, v in zip(fields, x, strict=True)}
        time_s = times_s(values)
        if not (np.isfinite(time_s) & (time_s > 0.0)).all():
            msg = f"a projected time is not positive with {values}"
            raise ConfigError(msg, key="fields", value=values)
        ratio: Floats = np.log(time_s) - log_measured
        return ratio

    def slopes(x: Floats) -> Floats:
        columns = []
        for position in range(len(fields)):
            low, high = x.copy(), x.copy()
            low[position] = max(x[position] - STEP, lower[position])
            high[position] = min(x[position] + STEP, upper[position])
            width = high[position] - low[position]
            columns.append((log_ratio(high) - log_ratio(low)) / width)
        return np.stack(columns, axis=1)

    seen = np.abs(slopes(np.clip(np.zeros(len(fields)), lower, upper))).max(axis=0) > UNSEEN
    prior = np.diag(1.0 / spread)
    # The other bounded method stalls where a field starts at its bound, as shares of 0 do.
    solution: Any = least_squares(
        lambda x: np.concatenate([log_ratio(x) / NOISE, x / spread]),
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
