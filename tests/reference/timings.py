"""Plain-Python times of replicas: what each stage takes, and which replicas are alike."""

import math

FORWARD, BACKWARD = 0, 1


def rounded(*seconds):
    """Return the picoseconds of a kind of stage, None where a replay cannot count them."""
    if not all(-0.5e-12 <= each < math.inf and round(each * 1e12) <= 2**60 for each in seconds):
        return None
    return [round(each * 1e12) for each in seconds]


def stage_times(first_forward_ps, kind_ps):
    """Return what a stage takes, by kind and class."""
    forward, *backwards = kind_ps
    gradients = [[every, every, last] for every, last in (backwards[:2], backwards[2:])]
    return [[first_forward_ps, forward, forward], *gradients]


def waiting(times, sent_ps):
    """Return the same of a stage that waits for what it has sent on and back."""
    return [
        [each + (sent_ps[kind] if kind in {FORWARD, BACKWARD} else 0) for each in row]
        for kind, row in enumerate(times)
    ]


def work(stages, microbatches):
    """Return the work of a rank with these stages: F begins, B and W end a chunk."""
    total = 0
    for times in stages:
        for number in range(microbatches):
            last = number == microbatches - 1
            total += times[0][0 if number == 0 else 1]
            total += sum(times[kind][2 if last else 1] for kind in (1, 2))
    return total
