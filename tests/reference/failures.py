"""Plain-Python twin of the played runs, written from their definition."""

from math import ceil, floor, inf, log, nan

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mixed(word):
    """Return the output function of splitmix64."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & WORD
    return word ^ (word >> 31)


def exponential(seed, sample, number):
    """Return a draw of mean 1; it depends on its three numbers alone."""
    stream = mixed((seed + mixed((sample + 1) * GOLDEN & WORD)) & WORD)
    word = mixed((stream + (number + 1) * GOLDEN) & WORD)
    return -log(((word >> 11) + 0.5) / (1 << 53))


def played(work_s, interval_s, stall_s, write_s, restart_s, rate, seed, sample, most=1_000_000):
    """Return wall clock and failures of one run; NaN where it never ends.

    Every failure takes the run to the last checkpoint that was complete: after each interval and
    stall one is taken, and it is complete a write later.
    """
    saved = total = 0.0
    ready = 0.0
    for failures in range(most):
        left = work_s - saved
        whole = left + ceil(left / interval_s) * stall_s + write_s
        until = exponential(seed, sample, failures) / rate if rate else inf
        if until - ready >= whole:
            return total + ready + whole, failures
        complete = floor((until - ready - write_s) / (interval_s + stall_s))
        saved += interval_s * max(0, complete)
        total += until
        ready = restart_s
    return nan, nan
