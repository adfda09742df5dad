"""Measures a list of cases in chunks, a process each, and keeps results as they come."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from projector.errors import MeasurementError
from projector.measure.bench.cases import Case
from projector.measure.bench.results import Results
from projector.measure.bench.rows import Machine, Measured, from_row, identity_of, measured
from projector.measure.process import run_task
from projector.measure.task import Answer, Outcome, Pace, Task

Run = Callable[[Task], Answer]
"""Runs a task; `projector.measure.process.run_task`, or a stand-in."""

Say = Callable[[str], None]

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
        """Measure what is not there yet, and return the whole list.

        Raises
        ------
        MeasurementError
            If several processes in a row end without an answer; rows so far are kept.
        """
        todo = self.todo()
        begun, total = time.perf_counter(), len(todo)
        known = len(self.cases) - total
        if known and self.say is not None:
            self.say(f"{known} of {len(self.cases)} are there already")
        for start in range(0, total, self.settings.chunk):
            chunk = todo[start : start + self.settings.chunk]
            self._measure(chunk)
            done = start + len(chunk)
            if self.say is not None:
                self.say(_progress(done, total, time.perf_counter() - begun))
        return self.finished()

    def _row(self, case: Case) -> dict[str, str] | None:
        return self.results.row(identity_of(case, self.machine))

    def _measure(self, chunk: Sequence[Case]) -> None:
        """Measure some cases; one that ends its process is found by halving and fails alone."""
        try:
            outcomes = run_in(self.settings, chunk, self.run).outcomes
            self._deaths = 0
        except MeasurementError as error:
            if len(chunk) > 1:
                middle = len(chunk) // 2
                self._measure(chunk[:middle])
                self._measure(chunk[middle:])
                return
            self._deaths += 1
            if self._deaths >= MOST_DEATHS:
                raise
            outcomes = [Outcome(status="failed", message=str(error))]
        pairs = zip(chunk, outcomes, strict=True)
        self.results.add([measured(case, outcome, self.machine).row for case, outcome in pairs])


def run_in(settings: Settings, cases: Sequence[Case], run: Run | None = None) -> Answer:
    """Run some cases in one process.

    Raises
    ------
    MeasurementError
        If there is no answer, or not one outcome for each case.
    """
    task = settings.task(cases)
    answer = run(task) if run is not None else run_task(task, timeout_s=settings.timeout_s)
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
