"""Runs played from failure to failure: the spread of their time, and a check of the closed form."""

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from projector.arrays import Floats
from projector.errors import ConfigError, NumericError
from projector.kernels.failures import INVALID, simulate_failures
from projector.runs.checkpoints import Interruptions, expected_s
from projector.runs.time import MOST_SLOWER, RunInputs, RunTimes, interruptions_of

SAMPLES = 2000
"""Runs that are played for a band; its ends then move by about 2 % of its width."""

MOST_PLAYED = 5000.0
"""Expected failures beyond which runs are not played. Their moments then average out: they move the
time by a hundredth of what the rate of failures does."""

_NEVER = 1e9
"""Intervals of this many runs have no checkpoint in them."""

_SIDE_90 = 1.645
"""Standard deviations on each side that hold 90 % of a normal law."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """Runs as they were played; float64[runs, samples], NaN where one never ends."""

    total_s: Floats
    failures: Floats


@dataclass(frozen=True, slots=True)
class Spread:
    """What is not known of each run beside when it fails; float64[runs]."""

    low: Floats
    """Lower end of the 90 % band of the step, over its projected time."""
    high: Floats
    """Upper end."""
    rate_log: Floats
    """Standard deviation of the logarithm of the rate of failures."""


def simulate_segments(
    interruptions: Interruptions,
    work_s: Floats,
    interval_s: Floats,
    slower: Floats,
    more: Floats,
    seed: int = 0,
) -> Simulated:
    """Play runs of some work, each as often as there are samples.

    Parameters
    ----------
    interruptions : Interruptions
    work_s, interval_s : float64[runs]
        Work of the run, and between two checkpoints.
    slower, more : float64[runs, samples]
        Factors of the work and of the rate of failures.
    seed : int
        Equal seeds give equal failures, whatever else a batch holds.
    """
    if not 0 <= seed < 1 << 63:
        msg = f"seed should be an integer from 0 to 2**63 (got {seed!r})"
        raise ConfigError(msg, key="seed", value=seed, allowed="an integer >= 0")
    slower = _floats(slower)
    total_s, failures = np.empty_like(slower), np.empty_like(slower)
    status = simulate_failures(
        _floats(work_s),
        _floats(interval_s),
        _floats(interruptions.stall_s),
        _floats(interruptions.write_s),
        _floats(interruptions.restart_s),
        _floats(interruptions.rate_per_s),
        slower,
        _floats(more),
        seed,
        total_s,
        failures,
    )
    if status == INVALID:
        msg = "a run to simulate has a time or a rate that is negative or no number"
        raise NumericError(msg, key="run")
    return Simulated(total_s, failures)


def _floats(column: Floats) -> Floats:
    return np.ascontiguousarray(column, np.float64)


def simulate_runs(
    inputs: RunInputs,
    times: RunTimes,
    spread: Spread | None = None,
    samples: int = SAMPLES,
    seed: int = 0,
) -> Simulated:
    """Play runs that `run_times` has found possible.

    Without a spread only the moments of failures differ from sample to sample. Waiting for spare
    nodes is added as its expected share. A run with more than `MOST_PLAYED` failures takes the
    expected time of every sample.

    Parameters
    ----------
    inputs : RunInputs
    times : RunTimes
        Of the same runs; their intervals between checkpoints are kept.
    spread : Spread, optional
        What differs from sample to sample besides.
    samples : int
    seed : int
    """
    interruptions, _ = interruptions_of(inputs)
    work_s = times.compute_s + times.warm_up_s + times.evaluation_s + times.stragglers_s
    interval_s = np.where(inputs.saves != 0, times.checkpoint_interval_s, work_s * _NEVER)
    slower = more = np.ones((len(work_s), samples))
    if spread is not None:
        slower, more = _factors(spread, samples, seed)
    many = times.failures > MOST_PLAYED
    played = simulate_segments(
        interruptions, np.where(many, 0.0, work_s), interval_s, slower, more, seed
    )
    expected = _expected(interruptions, work_s, interval_s, slower, more)
    total_s = np.where(many[:, None], expected.total_s, played.total_s)
    failures = np.where(many[:, None], expected.failures, played.failures)
    waiting = times.total_s / (times.total_s - times.spares_s)
    return Simulated(total_s * waiting[:, None], failures)


def _expected(
    interruptions: Interruptions, work_s: Floats, interval_s: Floats, slower: Floats, more: Floats
) -> Simulated:
    """Return the expected time of every sample, NaN where it never ends."""
    each = Interruptions(
        rate_per_s=interruptions.rate_per_s[:, None] * more,
        restart_s=interruptions.restart_s[:, None],
        stall_s=interruptions.stall_s[:, None],
        write_s=interruptions.write_s[:, None],
    )
    longer_s = work_s[:, None] * slower
    total_s, checkpoints = expected_s(each, longer_s, np.minimum(interval_s[:, None], longer_s))
    undisturbed_s = longer_s + checkpoints * each.stall_s + each.write_s
    total_s = np.where(total_s < MOST_SLOWER * undisturbed_s, total_s, math.nan)
    return Simulated(total_s, each.rate_per_s * total_s)


def _factors(spread: Spread, samples: int, seed: int) -> tuple[Floats, Floats]:
    """Draw factors of the step and of the rate, the same normal numbers for every run.

    Each has the quantiles of a normal law in an order of its own (a Latin hypercube), so that the
    band of the step alone is met without noise.
    """
    draw = np.random.Generator(np.random.Philox(seed))
    quantiles = _normal_quantiles(samples)
    step, rate = draw.permutation(quantiles) / _SIDE_90, draw.permutation(quantiles)
    side = np.where(step > 0.0, np.log(spread.high)[:, None], -np.log(spread.low)[:, None])
    return np.exp(side * step), np.exp(spread.rate_log[:, None] * rate)


@lru_cache(maxsize=8)
def _normal_quantiles(count: int) -> Floats:
    """Return the middles of ``count`` equal shares of a normal law."""
    inverse = NormalDist().inv_cdf
    return np.array([inverse((number + 0.5) / count) for number in range(count)])


def band_of(played: Simulated, row: int = 0) -> tuple[float, float]:
    """Return the 5th and the 95th percentile of a run in seconds; inf where it may never end."""
    total_s = np.sort(np.where(np.isnan(played.total_s[row]), math.inf, played.total_s[row]))
    last = len(total_s) - 1
    return float(total_s[round(0.05 * last)]), float(total_s[round(0.95 * last)])
