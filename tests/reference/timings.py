"""Plain-Python times of replicas: what each stage takes, and which replicas are alike."""

import math

FORWARD, BACKWARD = 0, 1


def rounded(forward_s, backward_s, last_s, weight_s):
    """Return the picoseconds of a kind of stage, None where a replay cannot count them."""
    split_s = [max(0.0, each - weight_s) for each in (backward_s, last_s)]
    seconds = [forward_s, backward_s, last_s, *split_s, weight_s]
    if not all(-0.5e-12 <= each < math.inf and round(each * 1e12) <= 2**60 for each in seconds):
        return None
    return [round(each * 1e12) for each in seconds]


def stage_times(first_forward_ps, kind_ps, splits):
    """Return what a stage takes, by kind and class."""
    forward, backward, last, split, last_split, weight = kind_ps
    if not splits:
        split, last_split, weight = backward, last, 0
    return [[first_forward_ps, forward, forward], [split, split, last_split], [weight] * 3]


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
