"""Failures of training runs, drawn one by one.

Shape suffixes
    R   runs
    S   samples of each run
Units: time s, rates 1/s; float64.
"""

import math

import numpy as np

from projector.arrays import Floats
from projector.kernels._jit import helper, kernel

OK, INVALID, ENDLESS = 0, 1, 2

MOST_FAILURES = 1_000_000
"""A sample with more has no time."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_BITS = 1.0 / (1 << 53)


@helper
def _mixed(word: np.uint64) -> np.uint64:
    """Return the output function of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    word = (word ^ (word >> np.uint64(30))) * _FIRST
    word = (word ^ (word >> np.uint64(27))) * _SECOND
    return word ^ (word >> np.uint64(31))


@helper
def _exponential(stream: np.uint64, number: int) -> float:
    """Return draw ``number`` of a stream, of mean 1: it depends on nothing drawn before."""
    word = _mixed(stream + np.uint64(number + 1) * _GOLDEN)
    return -math.log((float(word >> np.uint64(11)) + 0.5) * _BITS)


@kernel(python_us=math.inf)
def simulate_failures(
    work_s_R: Floats,
    interval_s_R: Floats,
    stall_s_R: Floats,
    write_s_R: Floats,
    restart_s_R: Floats,
    rate_R: Floats,
    slower_RS: Floats,
    more_RS: Floats,
    seed: int,
    total_s_RS: Floats,
    failures_RS: Floats,
) -> int:
    """Play each run to its end, from failure to failure.

    A run works for ``interval_s``, stands still for ``stall_s``, and its checkpoint is complete
    ``write_s`` later. A failure takes it back to the last complete one; it is set up for
    ``restart_s``, in which it may fail again. Sample ``s`` of every run has the same random
    numbers, so that what a batch holds changes nothing and two runs compare without their noise.

    work_s_R, interval_s_R, stall_s_R, write_s_R, restart_s_R : float64[R]. Intervals of work are
        positive.
    rate_R : float64[R]. Failures a second.
    slower_RS, more_RS : float64[R, S]. Factors of the work and of the rate.
    seed : int
    total_s_RS, failures_RS : float64[R, S]. Outputs: wall clock and failures.
    Returns ``OK``, ``INVALID`` where an input is negative or no number, ``ENDLESS`` where a sample
        has more than `MOST_FAILURES`; such samples are NaN.
    """
    status = OK
    for r in range(work_s_R.shape[0]):
        interval, stall, write = interval_s_R[r], stall_s_R[r], write_s_R[r]
        for s in range(slower_RS.shape[1]):
            work, rate = work_s_R[r] * slower_RS[r, s], rate_R[r] * more_RS[r, s]
            total_s_RS[r, s] = failures_RS[r, s] = math.nan
            least = min(work, stall, write, restart_s_R[r], rate)
            # A NaN passes through min() or not by its place; the sum keeps it.
            known = work + interval + stall + write + restart_s_R[r] + rate < math.inf
            if not (known and least >= 0.0 and interval > 0.0):
                status = INVALID
                continue
            stream = _mixed(np.uint64(seed) + _mixed(np.uint64(s + 1) * _GOLDEN))
            saved, total, ready, failures = 0.0, 0.0, 0.0, 0
            while failures < MOST_FAILURES:
                left = work - saved
                whole = left + math.ceil(left / interval) * stall + write
                # From one failure to the next, of which the first part is the set-up.
                until = math.inf if rate == 0.0 else _exponential(stream, failures) / rate
                steps = until - ready
                if steps >= whole:
                    total_s_RS[r, s] = total + ready + whole
                    failures_RS[r, s] = failures
                    break
                if steps > write:
                    saved += interval * math.floor((steps - write) / (interval + stall))
                total += until
                ready = restart_s_R[r]
                failures += 1
            else:
                status = max(status, ENDLESS)
    return status
