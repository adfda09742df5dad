"""One worker's way through its programs: memory first, then times in rounds.

The clock that a device sustains is measured under a load of GEMMs.

Layers and steps are run once by themselves for what they take at their peak. Then all programs
are timed, as many at a time as fit a part of the memory, in rounds in which each has its turn.
What a program cannot do, or has no memory for, is its outcome, and the others go on.
"""

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass

from projector.measure import runners, task
from projector.measure.devices import clock_mhz, memory_bytes
from projector.measure.exchange import InStep
from projector.measure.keys import OperationKey
from projector.measure.operators import operation_bytes, prepare_operation
from projector.measure.pace import Runner, Samples, Settled, groups_within, take_turns, warm_up
from projector.measure.parts import UnsupportedError, is_out_of_memory
from projector.measure.vendor import Sampler

EXTENT = 8192
CPU_EXTENT = 1024
"""Extent of the square GEMM: large enough to keep a whole device busy."""

SAMPLES = 20


def measure_clock(
    bench: runners.Bench, program: task.ClockProgram, sampler: Sampler
) -> task.Outcome:
    """Keep a device busy for some seconds; clock and rate are those of the second half.

    The outcome has the ``time`` of one GEMM and its ``extent``, ``flop_per_s`` that the load
    reached, and ``clock_mhz`` and ``power_w`` where the vendor's library reads them, of a CPU what
    Linux says.
    """
    extent = EXTENT if bench.watch.has_events else CPU_EXTENT
    key = OperationKey(
        label="clock", phase="forward", kind="gemm", dtype=program.dtype,
        m=extent, n=extent, k=extent,
    )  # fmt: skip
    prepared = prepare_operation(bench, task.OperationProgram(key=key))
    runner = prepared.runner
    runner.sample(1)  # The first loads kernels and libraries, which takes as long as many runs.
    one_s = max(1e-9, sum(runner.sample(1).values()))
    runs = int(bench.ranks.agree(max(1.0, program.seconds / SAMPLES / one_s)))
    samples, clocks = Samples(Settled(runs, settled=True)), []
    end = time.perf_counter() + program.seconds
    while not samples.seconds or time.perf_counter() < end:
        start = time.perf_counter()
        samples.seconds.append(runner.sample(runs))
        samples.spans.append((start, time.perf_counter()))
        clocks.append(None if bench.watch.has_events else clock_mhz())
    half = len(samples.seconds) // 2
    samples.seconds, samples.spans = samples.seconds[half:], samples.spans[half:]
    load = sampler.load(samples.spans)
    clock = load.clock_mhz if bench.watch.has_events else clocks[-1]
    times = samples.timings(clock_mhz=clock, power_w=load.power_w)
    numbers = {
        "flop_per_s": 2.0 * extent**3 / times["time"].median_s,
        "extent": float(extent),
        "seconds": program.seconds,
    }
    numbers |= {} if clock is None else {"clock_mhz": clock}
    numbers |= {} if load.power_w is None else {"power_w": load.power_w}
    return task.Outcome(status="ok", times=times, numbers=numbers, backend=prepared.backend)


GROUP_SHARE = 0.25
"""Of the memory that is left, what programs that take turns may hold together."""

TOLD_EVERY_S = 5.0
"""A worker that says nothing for long counts as hung."""

FAILURES = (UnsupportedError, RuntimeError, NotImplementedError, MemoryError, TypeError, ValueError)
"""What torch raises; a program that fails with one of these has an outcome that says so."""


@dataclass(slots=True)
class Ready:
    """A program that is warm."""

    number: int
    prepared: runners.Prepared
    runner: Runner
    settled: Settled


class Session:
    """Measures programs in one process."""

    def __init__(self, bench: runners.Bench, pace: task.Pace, sampler: Sampler) -> None:
        self.bench, self.pace, self.sampler = bench, pace, sampler
        self.outcomes: dict[int, task.Outcome] = {}
        self.memory: dict[int, dict[str, float]] = {}
        self.programs: Sequence[task.Program] = ()
        self._told = time.monotonic()

    def measure(self, programs: Sequence[task.Program]) -> list[task.Outcome]:
        """Return one outcome for each program, in their order."""
        self.programs = programs
        for number, program in enumerate(programs):
            if isinstance(program, task.LayerProgram | task.StepProgram):
                self._count_memory(number, program)
        timed = [
            number
            for number, program in enumerate(programs)
            if number not in self.outcomes and not isinstance(program, task.ClockProgram)
        ]
        # Ranks must form the same groups.
        sizes = self.bench.ranks.largest([self._bytes(number) for number in timed])
        for group in groups_within(sizes, self._budget()):
            self._time([timed[index] for index in group])
        for number, program in enumerate(programs):
            if isinstance(program, task.ClockProgram):
                self._tell(number)
                try:
                    self.outcomes[number] = measure_clock(self.bench, program, self.sampler)
                except FAILURES as error:
                    self._fail(number, error)
                self._clean()
        for program, outcome in zip(programs, self._ordered(), strict=True):
            if isinstance(program, task.StepProgram) and outcome.status == "ok":
                outcome.numbers.update(self._sum_of_layers(program))
        return self._ordered()

    def _ordered(self) -> list[task.Outcome]:
        return [self.outcomes[number] for number in range(len(self.programs))]

    def _tell(self, number: int, more: str = "") -> None:
        self._told = time.monotonic()
        if self.bench.ranks.rank == 0:
            program = self.programs[number]
            task.tell(f"{number + 1} of {len(self.programs)}: {task.name_of(program)}{more}")

    def _tell_late(self, number: int, more: str) -> None:
        if time.monotonic() - self._told > TOLD_EVERY_S:
            self._tell(number, more)

    def _fail(self, number: int, error: Exception) -> None:
        """Keep why a program has no time, and let go of what it held."""
        status: task.Status = "failed"
        if is_out_of_memory(error):
            status = "out_of_memory"
        elif isinstance(error, UnsupportedError):
            status = "unsupported"
        lines = str(error).splitlines() or [type(error).__name__]
        message = lines[0] if status != "failed" else f"{type(error).__name__}: {lines[0]}"
        known = self.memory.get(number, {})
        self.outcomes[number] = task.Outcome(status=status, message=message, numbers=known)

    def _clean(self) -> None:
        gc.collect()
        if self.bench.watch.has_events:
            self.bench.kit.torch.cuda.empty_cache()

    def _count_memory(self, number: int, program: task.LayerProgram | task.StepProgram) -> None:
        self._tell_late(number, ", its memory")
        try:
            with self.bench.ranks.all_or_none():
                numbers = runners.MEMORY[program.program](self.bench, program)
            # Ranks that disagreed would take other turns, and wait for each other for ever.
            most = self.bench.ranks.largest(list(numbers.values()))
            self.memory[number] = dict(zip(numbers, most, strict=True))
        except FAILURES as error:
            self._fail(number, error)
        self._clean()

    def _bytes(self, number: int) -> float:
        program = self.programs[number]
        if isinstance(program, task.OperationProgram):
            return operation_bytes(program)
        if isinstance(program, task.CopyProgram):
            return float(program.bytes)
        return self.memory.get(number, {}).get("peak_allocated_bytes", 0.0)

    def _budget(self) -> float:
        torch, device = self.bench.kit.torch, self.bench.kit.device
        if device.type == "cuda":
            left = float(torch.cuda.mem_get_info(device)[0])
        else:
            left = memory_bytes().available / max(1, self.bench.ranks.count)
        # The rank with the least decides.
        return -self.bench.ranks.agree(-GROUP_SHARE * left) or float("inf")

    def _time(self, numbers: Sequence[int]) -> None:
        """Time programs in rounds; what has no room among others is tried again alone."""
        ready, crowded = [], []
        for number in numbers:
            self._tell(number)
            try:
                ranks = self.bench.ranks
                with ranks.all_or_none():
                    prepared = _prepare(self.bench, self.programs[number])
                runner: Runner = prepared.runner
                if ranks.count > 1:
                    runner = InStep(runner, ranks)
                settled = warm_up(runner, self.pace, time.perf_counter, ranks.agree)
                ready.append(Ready(number, prepared, runner, settled))
            except FAILURES as error:
                if is_out_of_memory(error) and len(numbers) > 1:
                    crowded.append(number)
                else:
                    self._fail(number, error)
            if number in crowded or number in self.outcomes:
                self._clean()
        if ready and not self._take_turns(ready):
            crowded += [each.number for each in ready]
        ready.clear()
        self._clean()
        for number in crowded:
            self._time([number])

    def _take_turns(self, ready: Sequence[Ready]) -> bool:
        """Return whether all had their turns; one alone that fails has an outcome all the same."""
        rounds = self.pace.repeats
        try:
            samples = take_turns(
                [each.runner for each in ready],
                [each.settled for each in ready],
                self.pace,
                time.perf_counter,
                lambda turn, index: self._tell_late(
                    ready[index].number, f", round {turn + 1} of {rounds}"
                ),
            )
        except FAILURES as error:
            if len(ready) > 1:
                return False
            self._fail(ready[0].number, error)
            return True
        for each, found in zip(ready, samples, strict=True):
            load = self.sampler.load(found.spans)
            self.outcomes[each.number] = task.Outcome(
                status="ok",
                times=found.timings(clock_mhz=load.clock_mhz, power_w=load.power_w),
                numbers=self.memory.get(each.number, {}) | each.prepared.numbers,
                backend=each.prepared.backend,
            )
        return True

    def _sum_of_layers(self, step: task.StepProgram) -> dict[str, float]:
        """Return the time of a step's layers, and of the step beyond them: framework, allocator."""
        of_layer = {
            program.layer.model_dump_json(): self.outcomes[number]
            for number, program in enumerate(self.programs)
            if isinstance(program, task.LayerProgram) and not program.delay_s
        }
        outcomes = [of_layer.get(layer.model_dump_json()) for layer in step.layers]
        known = [each for each in outcomes if each is not None and each.status == "ok"]
        if len(known) < len(outcomes):
            return {}
        number = next(i for i, program in enumerate(self.programs) if program is step)
        times = self.outcomes[number].times
        found = {}
        for part in ("forward", "backward"):
            alone = sum(each.times[part].median_s for each in known)
            found[f"layers_{part}_s"] = alone
            found[f"beyond_layers_{part}_s"] = times[part].median_s - alone
        return found


def _prepare(bench: runners.Bench, program: task.Program) -> runners.Prepared:
    match program:
        case task.OperationProgram():
            return prepare_operation(bench, program)
        case task.LayerProgram():
            return runners.prepare_layer(bench, program)
        case task.StepProgram():
            step = runners.StepRunner(bench, program)
            return runners.Prepared(step, step.backend)
        case task.CopyProgram():
            return runners.prepare_copy(bench, program)
        case task.ClockProgram():
            raise AssertionError
