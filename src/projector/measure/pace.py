"""How often something is run until its time counts: settling, taking turns, quartiles.

The clock is that of events on a GPU, or the processor's on a CPU; torch is passed in, so that this
module loads without it.

Nothing here knows a device. A `Runner` says how long one of its runs took; clocks are passed in.
Where several ranks measure together they must decide alike, or one would wait for another for
ever: whatever decides how often something runs goes through ``agree`` first.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from projector.measure.task import Pace, Timing

Seconds = dict[str, float]
"""Name of a part, such as ``forward``, -> seconds of one run."""

MOST_RUNS = 256
"""Runs of one sample; more would outrun the queue of kernels that a device holds."""

IN_A_ROW = 3
"""Samples that must agree before something counts as settled."""

ENOUGH_SHARE = 0.2
"""Of what still counts as settled, by how much samples may differ that need no further ones."""


class Runner(Protocol):
    """Something that can be run again and again."""

    def sample(self, runs: int) -> Seconds:
        """Run so many times back to back and return the mean seconds of one run, by part."""
        ...


@dataclass(frozen=True, slots=True)
class Settled:
    """What warming up found."""

    runs: int
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
    """Return median and quartiles of at least one sample; below zero counts as zero."""
    kept = [max(0.0, value) for value in seconds]
    if len(kept) == 1:
        low = median = high = kept[0]
    else:
        low, median, high = statistics.quantiles(kept, n=4, method="inclusive")
    return Timing(
        median_s=median, low_s=low, high_s=high, repeats=len(kept), settled=settled,
        clock_mhz=clock_mhz, power_w=power_w,
    )  # fmt: skip


def _agree(seconds: Sequence[float], within: float) -> bool:
    """Return whether there are `IN_A_ROW` samples, and the last of them differ by so little."""
    last = seconds[-IN_A_ROW:]
    return len(last) == IN_A_ROW and max(last) / max(min(last), 1e-12) - 1.0 < within


def warm_up(
    runner: Runner, pace: Pace, now: Callable[[], float],
    agree: Callable[[float], float] = lambda value: value,
) -> Settled:  # fmt: skip
    """Run something until its time is stable, and find how many runs make a sample.

    It is stable when `IN_A_ROW` samples differ by less than ``pace.settled`` of the smallest, and
    ``warm_up_s`` have gone by. After ``most_warm_up_s`` it counts all the same. ``now`` gives
    seconds, ``agree`` the largest value of all ranks: the slowest one decides.
    """
    start = now()
    runs, last = 1, [math.inf]
    while True:
        seconds = agree(sum(runner.sample(runs).values()))
        last.append(seconds)
        if seconds * runs < pace.least_s and runs < MOST_RUNS:
            wanted = math.ceil(pace.least_s / max(seconds, pace.least_s / MOST_RUNS))
            if wanted > runs:
                runs, last = min(MOST_RUNS, wanted), []
        gone = agree(now() - start)
        if gone >= pace.warm_up_s and _agree(last, pace.settled):
            return Settled(runs, settled=True)
        if gone >= pace.most_warm_up_s:
            return Settled(runs, settled=False)


def take_turns(
    runners: Sequence[Runner],
    settled: Sequence[Settled],
    pace: Pace,
    now: Callable[[], float],
    before_sample: Callable[[int, int], None] | None = None,
) -> list[Samples]:
    """Sample every runner ``pace.repeats`` times, one after the other in rounds.

    What drifts, as a clock under load does, so meets all of them alike. After ``pace.enough_s`` of
    samples whose last ones agree a runner has no further turns. A sample of several runs
    has one more before it that does not count, since another runner left the caches its data.
    ``before_sample`` is told the round and the number of the runner.
    """
    samples = [Samples(each) for each in settled]
    for turn in range(pace.repeats):
        for number, (runner, each) in enumerate(zip(runners, samples, strict=True)):
            if _is_enough(each, pace):
                continue
            if before_sample is not None:
                before_sample(turn, number)
            runs = each.settled.runs
            if runs > 1:
                runner.sample(1)
            start = now()
            each.seconds.append(runner.sample(runs))
            each.spans.append((start, now()))
    return samples


def _is_enough(samples: Samples, pace: Pace) -> bool:
    # Ranks decide alike: their samples are those of the slowest one.
    seconds = [sum(sample.values()) for sample in samples.seconds]
    if pace.enough_s is None or samples.settled.runs * sum(seconds) < pace.enough_s:
        return False
    return _agree(seconds, pace.settled * ENOUGH_SHARE)


def groups_within(sizes: Sequence[float], budget: float) -> list[list[int]]:
    """Divide runners, in order, into groups whose sizes fit a device; a larger one is alone."""
    groups: list[list[int]] = []
    left = -1.0
    for index, size in enumerate(sizes):
        if not groups or size > left:
            groups.append([])
            left = budget
        groups[-1].append(index)
        left -= size
    return groups


Torch = Any
Part = tuple[str, Callable[[], object]]
"""Name of a part of a run, and what runs it."""

SPIN_CYCLES_PER_S = 2.5e9
"""Clocks that a GPU waits for each second that the host needs to queue what follows: more than any
GPU of today makes, so that it waits for longer than that."""

MOST_SPIN_S = 0.1


class Stopwatch:
    """Takes times on one device."""

    def __init__(self, torch: Torch, device: Any) -> None:
        """Choose events or the processor's clock by the kind of the device."""
        self.torch, self.device = torch, device
        self.has_events = device.type == "cuda"

    def wait(self) -> None:
        """Wait until the device has nothing left to do."""
        if self.has_events:
            self.torch.cuda.synchronize(self.device)

    def mark(self) -> Any:
        """Note a moment, on the device where it has a queue."""
        if not self.has_events:
            return time.perf_counter()
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start: Any, end: Any) -> float:
        """Return the seconds between two moments that the device has passed."""
        if self.has_events:
            return float(start.elapsed_time(end)) * 1e-3
        return float(end - start)

    def hold_back(self, seconds: float) -> None:
        """Keep a GPU waiting while the host queues runs, so that no gap lies between them.

        The time is then that of kernels alone; what launching costs is a term of its own.
        """
        if self.has_events and hasattr(self.torch.cuda, "_sleep"):
            cycles = int(SPIN_CYCLES_PER_S * min(seconds, MOST_SPIN_S))
            self.torch.cuda._sleep(cycles)  # noqa: SLF001


class KernelRunner:
    """Times one operator by itself, run after run, on several sets of operands in turn."""

    def __init__(self, watch: Stopwatch, sets: Sequence[Callable[[], object]]) -> None:
        self.watch, self.sets = watch, sets
        self._next = 0
        self._host_s = MOST_SPIN_S

    def sample(self, runs: int) -> Seconds:
        """Return the mean seconds of one run as ``time``."""
        watch, sets = self.watch, self.sets
        watch.wait()
        # What the host needs for a run is known from the samples before; the shortest counts, since
        # a host whose queue is full waits for the device.
        watch.hold_back(self._host_s * runs)
        start, host = watch.mark(), time.perf_counter()
        for run in range(self._next, self._next + runs):
            sets[run % len(sets)]()
        end = watch.mark()
        self._host_s = min(self._host_s, (time.perf_counter() - host) / runs)
        watch.wait()
        self._next = (self._next + runs) % len(sets)
        return {"time": watch.between(start, end) / runs}


class PartsRunner:
    """Times the parts of something, host's work included; parts without a name are not timed."""

    def __init__(self, watch: Stopwatch, parts: Sequence[Part]) -> None:
        self.watch, self.parts = watch, parts

    def sample(self, runs: int) -> Seconds:
        """Return the mean seconds of each part."""
        watch = self.watch
        watch.wait()
        marks: list[list[Any]] = []
        for _ in range(runs):
            of_run = [watch.mark()]
            for _, part in self.parts:
                part()
                of_run.append(watch.mark())
            marks.append(of_run)
        watch.wait()
        return {
            name: sum(watch.between(of_run[i], of_run[i + 1]) for of_run in marks) / runs
            for i, (name, _) in enumerate(self.parts)
            if name
        }
