"""Checkpoints and failures in closed form: how long work takes, and the best interval.

Failures are a Poisson process of rate ``rate_per_s``. After each the run is set up again for
``restart_s``, in which it can fail as well, and goes on from the last checkpoint that is complete.
A segment is ``interval_s`` of work followed by a stall of ``stall_s``. Where steps go on while a
checkpoint is written, it is complete ``write_s`` after its segment.

J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
Generation Computer Systems 22 (2006), has the segment without ``write_s``; docs/run.md derives it.
"""

from dataclasses import dataclass

import numpy as np

from projector.arrays import Floats

_NEWTON_STEPS = 5
"""From Young's interval 4 reach the last digits, with stalls of 1e-12 to 50 times the time between
failures."""


@dataclass(frozen=True, slots=True)
class Interruptions:
    """What interrupts each run, and what it costs; float64[runs]."""

    rate_per_s: Floats
    """Failures of the whole job."""
    restart_s: Floats
    """From a failure to the next step."""
    stall_s: Floats
    """Time that steps stand still for a checkpoint."""
    write_s: Floats
    """From there until it is complete, while steps go on."""


def expm1_over(rate_per_s: Floats, seconds: Floats) -> Floats:
    """Return ``(exp(rate * seconds) - 1) / rate``, which is ``seconds`` without failures."""
    exponent = rate_per_s * seconds
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        factor = np.where(exponent > 0.0, np.expm1(exponent) / exponent, 1.0)
        return np.asarray(seconds * factor)


def segment_s(interruptions: Interruptions, interval_s: Floats) -> Floats:
    """Return the expected time until one more checkpoint is complete.

    ``exp(rate (restart + write)) (exp(rate (interval + stall)) - 1) / rate``.
    """
    with np.errstate(over="ignore"):
        again = np.exp(interruptions.rate_per_s * (interruptions.restart_s + interruptions.write_s))
        # Segments that are never complete take forever.
        return again * expm1_over(interruptions.rate_per_s, interval_s + interruptions.stall_s)


def last_write_s(interruptions: Interruptions) -> Floats:
    """Return the expected time from the last step until its checkpoint is complete."""
    # Runs that never end have none, which says the same.
    with np.errstate(over="ignore", invalid="ignore"):
        again = np.exp(interruptions.rate_per_s * interruptions.restart_s)
        return again * expm1_over(interruptions.rate_per_s, interruptions.write_s)


def expected_s(
    interruptions: Interruptions, work_s: Floats, interval_s: Floats
) -> tuple[Floats, Floats]:
    """Return the expected time of a whole run, and its checkpoints.

    ``work_s`` are steps with nothing lost. Between two checkpoints lie ``interval_s`` of work, at
    most all of it; the last segment takes the rest.
    """
    segments = np.ceil(work_s / interval_s * (1.0 - 1e-12))
    rest_s = work_s - (segments - 1.0) * interval_s
    whole_s = np.zeros_like(work_s)
    # No segment of infinite time takes none, where the product is no number.
    np.multiply(segments - 1.0, segment_s(interruptions, interval_s), whole_s, where=segments > 1.0)
    total_s = whole_s + segment_s(interruptions, rest_s) + last_write_s(interruptions)
    return total_s, segments


def young_interval_s(interruptions: Interruptions) -> Floats:
    """Return Young's interval, ``sqrt(2 stall / rate)``.

    J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications
    of the ACM 17 (1974).
    """
    with np.errstate(divide="ignore"):
        return np.sqrt(2.0 * interruptions.stall_s / interruptions.rate_per_s)


def daly_interval_s(interruptions: Interruptions) -> Floats:
    """Return Daly's interval of higher order, equation (37) of his paper."""
    stall_s = interruptions.stall_s
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_s = 1.0 / interruptions.rate_per_s
        ratio = np.sqrt(stall_s / (2.0 * mean_s))
        higher = np.sqrt(2.0 * stall_s * mean_s) * (1.0 + ratio / 3.0 + ratio**2 / 9.0) - stall_s
        return np.where(stall_s < 2.0 * mean_s, higher, mean_s)


def best_interval_s(interruptions: Interruptions) -> Floats:
    """Return the interval of least expected time for each second of work; inf without failures.

    With ``x = rate * interval`` the derivative of `segment_s` over the interval is zero where
    ``x - 1 + exp(-x - rate * stall) = 0``. Its left side is convex, so that Newton's method falls
    to the root from Young's interval, which lies above it.
    """
    rate = interruptions.rate_per_s
    stall = rate * interruptions.stall_s
    x = np.minimum(1.0, np.sqrt(2.0 * stall))
    for _ in range(_NEWTON_STEPS):
        slope = -np.expm1(-(x + stall))
        left = x + np.expm1(-(x + stall))
        with np.errstate(divide="ignore", invalid="ignore"):
            x = np.where(slope > 0.0, np.maximum(0.0, x - left / slope), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(rate > 0.0, x / rate, np.inf)
