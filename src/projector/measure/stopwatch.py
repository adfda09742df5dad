"""Timing on a device of torch: events on a GPU, the processor's clock on a CPU.

The functions take torch as a parameter, so that this module loads without it.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from projector.measure.pace import Seconds

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
        """Keep what runs the operator on each set of operands."""
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
    """Times the parts of something, such as forward and backward, the host's work included.

    Parts without a name are run and not timed.
    """

    def __init__(self, watch: Stopwatch, parts: Sequence[Part]) -> None:
        """Keep the parts in the order in which they run."""
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
