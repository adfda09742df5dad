"""How often something is run until its time counts: settling, taking turns, quartiles.

Nothing here knows a device. A `Runner` says how long one of its runs took; clocks are passed in.
Where several ranks measure together they must decide alike, or one would wait for another for
ever: whatever decides how often something runs goes through ``agree`` first.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from projector.measure.task import Pace, Timing

Seconds = dict[str, float]
"""Name of a part, such as ``forward``, -> seconds of one run."""

MOST_RUNS = 256
"""Runs of one sample; more would outrun the queue of kernels that a device holds."""

IN_A_ROW = 3
"""Samples that must agree before something counts as settled."""


class Runner(Protocol):
    """Something that can be run again and again."""

    def sample(self, runs: int) -> Seconds:
        """Run so many times back to back and return the mean seconds of one run, by part."""
        ...


@dataclass(frozen=True, slots=True)
class Together:
    """What ranks that measure together say to each other; alone there is nothing to say."""

    agree: Callable[[float], float] = lambda value: value
    """The largest value of all ranks."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What warming up found."""

    runs: int
    """Runs of one sample."""
    settled: bool
    """Whether samples agreed before the time was up."""


@dataclass(slots=True)
class Samples:
    """What was timed of one runner."""

    settled: Settled
    seconds: list[Seconds] = field(default_factory=list)
    spans: list[tuple[float, float]] = field(default_factory=list)
    """When each sample began and ended, by the clock of the process."""

    def timings(
        self, *, clock_mhz: float | None = None, power_w: float | None = None
    ) -> dict[str, Timing]:
        """Return median and quartiles of each part, with how the device was meanwhile."""
        return {
            name: timing(
                [sample[name] for sample in self.seconds], settled=self.settled.settled,
                clock_mhz=clock_mhz, power_w=power_w,
            )
            for name in self.seconds[0]
        }  # fmt: skip


def timing(
    seconds: Sequence[float],
    *,
    settled: bool = True,
    clock_mhz: float | None = None,
    power_w: float | None = None,
) -> Timing:
    """Return median and quartiles of some samples.

    Parameters
    ----------
    seconds : float[repeats]
        At least one. A difference of two times may be below zero; it counts as zero.
    """
    kept = [max(0.0, value) for value in seconds]
    if len(kept) == 1:
        low = median = high = kept[0]
    else:
        low, median, high = statistics.quantiles(kept, n=4, method="inclusive")
    return Timing(
        median_s=median, low_s=low, high_s=high, repeats=len(kept), settled=settled,
        clock_mhz=clock_mhz, power_w=power_w,
    )  # fmt: skip


def warm_up(
    runner: Runner, pace: Pace, now: Callable[[], float], together: Together | None = None
) -> Settled:
    """Run something until its time is stable, and find how many runs make a sample.

    It is stable when `IN_A_ROW` samples differ by less than ``pace.settled`` of the smallest, and
    ``warm_up_s`` have gone by. After ``most_warm_up_s`` it counts all the same.

    Parameters
    ----------
    now : callable
        Seconds since some moment.
    together : Together
        With other ranks, whose slowest one decides.
    """
    agree = (together or Together()).agree
    start = now()
    runs, last = 1, [math.inf]
    while True:
        seconds = agree(sum(runner.sample(runs).values()))
        last = [*last, seconds][-IN_A_ROW:]
        if seconds * runs < pace.least_s and runs < MOST_RUNS:
            wanted = math.ceil(pace.least_s / max(seconds, pace.least_s / MOST_RUNS))
            if wanted > runs:
                runs, last = min(MOST_RUNS, wanted), []
        gone = agree(now() - start)
        spread = max(last) / max(min(last), 1e-12) - 1.0 if len(last) == IN_A_ROW else math.inf
        if gone >= pace.warm_up_s and spread < pace.settled:
            return Settled(runs, settled=True)
        if gone >= pace.most_warm_up_s:
            return Settled(runs, settled=False)


def take_turns(
    runners: Sequence[Runner],
    settled: Sequence[Settled],
    repeats: int,
    now: Callable[[], float],
    before_sample: Callable[[int, int], None] | None = None,
) -> list[Samples]:
    """Sample every runner ``repeats`` times, one after the other in rounds.

    What drifts, as a clock under load does, so meets all of them alike. A sample of several runs
    has one more before it that does not count, since another runner left the caches its data.

    Parameters
    ----------
    now : callable
        Seconds since some moment.
    before_sample : callable, optional
        Told the round and the number of the runner.
    """
    samples = [Samples(each) for each in settled]
    for turn in range(repeats):
        for number, (runner, each) in enumerate(zip(runners, samples, strict=True)):
            if before_sample is not None:
                before_sample(turn, number)
            runs = each.settled.runs
            if runs > 1:
                runner.sample(1)
            start = now()
            each.seconds.append(runner.sample(runs))
            each.spans.append((start, now()))
    return samples


def groups_within(sizes: Sequence[float], budget: float) -> list[list[int]]:
    """Divide runners into groups whose sizes fit a budget, in order; a larger one is alone.

    Only runners of one group take turns: those of all would not fit the memory of a device.
    """
    groups: list[list[int]] = []
    left = -1.0
    for index, size in enumerate(sizes):
        if not groups or size > left:
            groups.append([])
            left = budget
        groups[-1].append(index)
        left -= size
    return groups
