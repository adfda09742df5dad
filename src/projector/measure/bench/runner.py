"""Measures a list of cases in chunks, a process each, and keeps results as they come."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from projector.errors import MeasurementError
from projector.measure.bench.cases import Case
from projector.measure.bench.results import Results
from projector.measure.bench.rows import Machine, Measured, from_row, identity_of, measured
from projector.measure.process import run_task
from projector.measure.progress import Progress
from projector.measure.task import Answer, Outcome, Pace, Task

Run = Callable[[Task, Progress], Answer]
"""Runs a task; `projector.measure.process.run_task`, or a stand-in."""

Say = Callable[[str], None]

SAID_EVERY_S = 10.0
"""Seconds after which what a worker does now is said, if nothing else was."""

CHUNK = 16
"""Cases of one process, which take turns. An interruption loses those of one process at most."""

MOST_DEATHS = 3
"""Processes that end without an answer, one case each and in a row, before all is given up."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How cases are measured."""

    backend: str = "auto"
    """``auto``, ``cpu`` or ``cuda``."""
    ranks: int = 1
    threads: int | None = None
    pace: Pace = field(default_factory=Pace)
    chunk: int = CHUNK
    timeout_s: float | None = 600.0
    """Longest time of one process."""

    def task(self, cases: Sequence[Case]) -> Task:
        """Return the task of some cases."""
        return Task.parse(
            {
                "device": self.backend,
                "ranks": self.ranks,
                "tp": self.ranks,
                "threads": self.threads,
                "pace": self.pace.model_dump(),
                "programs": [case.program.model_dump() for case in cases],
            }
        )


@dataclass(slots=True)
class Measuring:
    """A list that is measured; what is there stays when it is interrupted.

    Parameters
    ----------
    cases : sequence of Case
    machine : Machine
    results : Results
        Rows that are known are not measured again.
    settings : Settings
    run : callable, optional
    say : callable, optional
        Told of progress, one line at a time.
    """

    cases: Sequence[Case]
    machine: Machine
    results: Results
    settings: Settings = field(default_factory=Settings)
    run: Run | None = None
    say: Say | None = None
    _deaths: int = 0
    _said_s: float = 0.0
    _at_hand: int | None = None
    """Place in its process of the case that the worker named last."""

    def todo(self) -> list[Case]:
        """Return the cases that no row has yet."""
        return [case for case in self.cases if self._row(case) is None]

    def finished(self) -> list[Measured]:
        """Return what is there, in the order of the list."""
        rows = (
            (case, self.results.any_row(identity_of(case, self.machine))) for case in self.cases
        )
        return [from_row(case, row) for case, row in rows if row is not None]

    def go(self) -> list[Measured]:
        """Measure what is not there yet, and return the whole list."""
        todo = self.todo()
        begun, total = time.perf_counter(), len(todo)
        known = len(self.cases) - total
        if known:
            self._tell(f"{known} of {len(self.cases)} are there already")
        self._said_s = time.perf_counter()
        for start in range(0, total, self.settings.chunk):
            chunk = todo[start : start + self.settings.chunk]
            self._measure(chunk)
            done = start + len(chunk)
            self._tell(_progress(done, total, time.perf_counter() - begun))
        return self.finished()

    def _tell(self, text: str) -> None:
        self._said_s = time.perf_counter()
        if self.say is not None:
            self.say(text)

    def _heard(self, text: str) -> None:
        """Remember which case a worker names, and say so where nothing was said for long."""
        found = re.match(r"(\d+) of \d+: ", text)
        if found:
            self._at_hand = int(found[1]) - 1
        if time.perf_counter() - self._said_s > SAID_EVERY_S:
            self._tell(f"in this process {text}")

    def _row(self, case: Case) -> dict[str, str] | None:
        return self.results.row(identity_of(case, self.machine))

    def _measure(self, chunk: Sequence[Case]) -> None:
        """Measure some cases; one that ends its process is found, and fails alone."""
        self._at_hand = None
        try:
            outcomes = run_in(self.settings, chunk, self.run, self._heard).outcomes
            self._deaths = 0
        except MeasurementError as error:
            if len(chunk) > 1:
                for part in _parts(chunk, self._at_hand):
                    self._measure(part)
                return
            self._deaths += 1
            if self._deaths >= MOST_DEATHS:
                raise
            outcomes = [Outcome(status="failed", message=str(error))]
        pairs = zip(chunk, outcomes, strict=True)
        self.results.add([measured(case, outcome, self.machine).row for case, outcome in pairs])


def _parts(chunk: Sequence[Case], at_hand: int | None) -> tuple[Sequence[Case], Sequence[Case]]:
    """Return the cases of a process that ended, to be tried apart.

    The one that the worker named last comes alone and after the others, for it may end its process
    again, or hang again. Halves are tried where it named none.
    """
    if at_hand is not None and at_hand < len(chunk):
        others = [case for place, case in enumerate(chunk) if place != at_hand]
        return others, [chunk[at_hand]]
    middle = len(chunk) // 2
    return chunk[:middle], chunk[middle:]


def run_in(settings: Settings, cases: Sequence[Case], run: Run | None, heard: Progress) -> Answer:
    """Run some cases in one process; ``heard`` is told what the worker does."""
    task = settings.task(cases)
    if run is None:
        answer = run_task(task, timeout_s=settings.timeout_s, progress=heard)
    else:
        answer = run(task, heard)
    if len(answer.outcomes) != len(cases):
        msg = f"the worker answered {len(answer.outcomes)} outcomes for {len(cases)} programs"
        raise MeasurementError(msg, key="worker", value=len(answer.outcomes))
    return answer


def today() -> str:
    """Return the date, as rows say it."""
    return datetime.now(UTC).date().isoformat()


def _progress(done: int, total: int, passed_s: float) -> str:
    left_s = passed_s / done * (total - done)
    left = f", about {_span(left_s)} left" if done < total else ""
    return f"measured {done} of {total} in {_span(passed_s)}{left}"


def _span(seconds: float) -> str:
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min"
