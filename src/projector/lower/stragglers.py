"""The slowest of many devices that differ a little."""

from functools import lru_cache
from math import erfc, sqrt

import numpy as np

from projector.arrays import Floats

_STEPS = 4096
_FURTHEST = 12.0
"""Standard deviations beyond which no normal number of 2**60 lies."""


@lru_cache(maxsize=4096)
def largest_of_normals(count: int) -> float:
    """Return the expected largest of ``count`` independent standard normal numbers.

    Notes
    -----
    ``E = integral of (1 - P(x)**n) over x > 0, less that of P(x)**n over x < 0`` with the normal
    distribution P, by the trapezoid rule, which converges faster than any power of its step for
    smooth integrands that vanish at both ends; each half has an end at 0 and its correction of
    Euler and Maclaurin cancels that of the other. ``sqrt(2 ln n)`` is its limit for many.
    """
    if count < 2:
        return 0.0
    x, below = _distribution()
    power = np.exp(count * below)
    step = 2.0 * _FURTHEST / _STEPS
    return float(step * (np.where(x > 0.0, 1.0 - power, -power).sum() + 0.5 * (x == 0.0).sum()))


@lru_cache(maxsize=1)
def _distribution() -> tuple[Floats, Floats]:
    """Return points and the logarithm of the normal distribution there."""
    x = np.linspace(-_FURTHEST, _FURTHEST, _STEPS + 1)
    # P(x) = 1 - Q(x): near 1 its logarithm is that of the small tail.
    tail = np.array([0.5 * erfc(value / sqrt(2.0)) for value in x.tolist()])
    head = np.maximum(tail[::-1], np.finfo(float).tiny)
    return x, np.where(x > 0.0, np.log1p(-np.minimum(tail, 0.5)), np.log(head))
