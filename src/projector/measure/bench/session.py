"""One benchmark from its first look at the machine to its last row.

Cases are measured in chunks, a process each. The table of results grows meanwhile, and is continued
after an interruption.
"""

import csv
import io
import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from projector.config.device import Device
from projector.config.device_file import load_device
from projector.errors import ConfigError, MeasurementError, one_of
from projector.files import check_place, not_written, open_table, write_whole
from projector.measure.bench import rows as bench_rows
from projector.measure.bench.cases import BenchKind, Case
from projector.measure.bench.rows import COLUMNS, Machine
from projector.measure.devices import profile_of, stands_for
from projector.measure.process import run_task
from projector.measure.task import Answer, Environment, Outcome, Pace, Progress, Task
from projector.measure.vendor import locked_clock

KEY = "out"


class Results:
    """Rows of one CSV table, by what they measure; a new one is begun where there is none.

    Without a path rows are kept in memory alone. ``overwrite`` drops the rows that are there.
    """

    def __init__(self, path: str | Path | None, kind: BenchKind, *, overwrite: bool) -> None:
        self._path = None if path is None else Path(path)
        self._kind = kind
        self._rows: list[bench_rows.Row] = []
        self._places: dict[tuple[str, ...], int] = {}
        """Place of the last row of each identity; rows that nobody can read have none."""
        if self._path is None:
            return
        check_place(self._path, key=KEY)
        if self._path.exists() and not overwrite:
            for row in self._read(self._path):
                self._put(row)
        self._write_all()

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, key: tuple[str, ...]) -> bench_rows.Row | None:
        """Return the row of an `identity`; None where there is none, or one to be tried again.

        Running out of memory counts as measured: it would be the same again, and takes long.
        """
        found = self.any_row(key)
        tried = found is not None and bench_rows.status_of(found)[0] in ("failed", "unsupported")
        return None if tried else found

    def any_row(self, key: tuple[str, ...]) -> bench_rows.Row | None:
        """Return the row of an `identity`, also of a case that failed."""
        place = self._places.get(key)
        return None if place is None else self._rows[place]

    def add(self, rows: list[bench_rows.Row]) -> None:
        """Append rows; they are on the disk when this returns."""
        replaced = False
        for row in rows:
            place = self._places.get(bench_rows.identity(self._kind, row))
            if place is None:
                self._put(row)
            else:
                self._rows[place], replaced = row, True
        if self._path is None:
            return
        if replaced:
            self._write_all()
            return
        try:
            with self._path.open("a", encoding="utf-8", newline="") as stream:
                stream.write(self._text(rows))
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise not_written(self._path, error.strerror or str(error), key=KEY) from None

    def _put(self, row: bench_rows.Row) -> None:
        if bench_rows.is_readable(self._kind, row):
            self._places[bench_rows.identity(self._kind, row)] = len(self._rows)
        self._rows.append(row)

    def _read(self, path: Path) -> list[bench_rows.Row]:
        columns = COLUMNS[self._kind]
        with open_table(path, key=KEY) as stream:
            text = stream.read()
        # A line that was cut off while it was written is measured again.
        lines = csv.reader(io.StringIO(text[: text.rfind("\n") + 1], newline=""))
        header = tuple(next(lines, ()))
        if header and header != columns:
            msg = (
                f"{path} is no table of this command: its columns are not {', '.join(columns)}; "
                f"name another file, or --overwrite it"
            )
            raise ConfigError(msg, key=KEY, value=str(path), allowed="another file")
        if not header and text.strip():
            msg = f"{path} is no table; name another file, or --overwrite it"
            raise ConfigError(msg, key=KEY, value=str(path), allowed="another file")
        return [
            dict(zip(columns, fields, strict=True))
            for fields in lines
            if len(fields) == len(columns)
        ]

    def _write_all(self) -> None:
        assert self._path is not None
        text = bench_rows.csv_text([COLUMNS[self._kind]]) + self._text(self._rows)
        write_whole(self._path, text.encode(), key=KEY)

    def _text(self, rows: list[bench_rows.Row]) -> str:
        return bench_rows.csv_text([row[name] for name in COLUMNS[self._kind]] for row in rows)


Run = Callable[[Task, Progress], Answer]
"""Runs a task; `projector.measure.process.run_task`, or a stand-in."""

Say = Callable[[str], None]

SAID_EVERY_S = 10.0
"""Seconds after which what a worker does now is said, if nothing else was."""

CHUNK = 16
"""Cases that take turns in one task. An interruption loses those of one task at most."""

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

    Rows that ``results`` know are not measured again. ``say`` is told of progress, one line at a
    time.
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
        rows = (self.results.row(bench_rows.identity_of(case, self.machine)) for case in self.cases)
        return [case for case, row in zip(self.cases, rows, strict=True) if row is None]

    def finished(self) -> list[bench_rows.Measured]:
        """Return what is there, in the order of the list."""
        rows = (
            (case, self.results.any_row(bench_rows.identity_of(case, self.machine)))
            for case in self.cases
        )
        return [bench_rows.from_row(case, row) for case, row in rows if row is not None]

    def go(self) -> list[bench_rows.Measured]:
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
            passed_s = time.perf_counter() - begun
            left_s = passed_s / done * (total - done)
            left = f", about {_span(left_s)} left" if done < total else ""
            self._tell(f"measured {done} of {total} in {_span(passed_s)}{left}")
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
        self.results.add(
            [bench_rows.measured(case, outcome, self.machine).row for case, outcome in pairs]
        )


def _parts(chunk: Sequence[Case], at_hand: int | None) -> tuple[Sequence[Case], Sequence[Case]]:
    """Return the cases of a process that ended, the last named one last and alone, or halves."""
    if at_hand is not None and at_hand < len(chunk):
        return [case for place, case in enumerate(chunk) if place != at_hand], [chunk[at_hand]]
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


def _span(seconds: float) -> str:
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min"


BACKENDS = ("auto", "cpu", "cuda")

STRAYED = 0.02
"""Share of a locked clock by which the sampled one may differ before it is said."""

Lock = Callable[[int, float], AbstractContextManager[None]]
"""Holds the clock of a device; `projector.measure.vendor.locked_clock`, or a stand-in."""


@dataclass(slots=True)
class Session:
    """A list, the machine it is measured on, and the profile that is modelled beside."""

    kind: BenchKind
    measuring: Measuring
    device: str
    """Shipped name or path of a profile, ``""`` for none."""
    lock: Lock = locked_clock
    warnings: list[str] = field(default_factory=list)

    def go(self) -> None:
        """Measure what is not there yet, with the clock held where that was asked for."""
        machine, measuring = self.measuring.machine, self.measuring
        with ExitStack() as held:
            if machine.locked_mhz is not None and measuring.todo():
                for device in range(measuring.settings.ranks):
                    held.enter_context(self.lock(device, machine.locked_mhz))
            measuring.go()
        self.warnings += _strayed(measuring.finished(), machine.locked_mhz)


def begin(
    kind: BenchKind,
    cases: Sequence[Case],
    *,
    device: str | None,
    out: str | None,
    overwrite: bool,
    settings: Settings,
    lock_mhz: float | None = None,
    run: Run | None = None,
    say: Say | None = None,
) -> Session:  # fmt: skip
    """Look at the machine, and at the rows that are there already.

    The profile to model beside is that of the device at hand, if it ships, unless named.
    ``overwrite`` drops the rows of the table ``out``; ``lock_mhz`` is a clock to hold while it is
    measured; ``run`` stands in for `projector.measure.process.run_task`.
    """
    profile = None if device is None else load_device(device, key="device")
    # Says what runs before anything is measured, and refuses what cannot run at all.
    environment = run_in(settings, [], run, lambda _: None).environment
    gpu, modelled, warnings = _named(environment, device, profile)
    if lock_mhz is not None:
        _check_range("lock-clocks", lock_mhz, MOST_MHZ, " MHz")
        if environment.backend == "cpu":
            msg = "lock-clocks: only the clock of a GPU is locked, and this runs on the CPU"
            raise ConfigError(msg, key="lock-clocks", value=lock_mhz, allowed="a GPU")
    results = Results(out, kind, overwrite=overwrite)
    machine = Machine(gpu, environment, lock_mhz, day=today())
    measuring = Measuring(cases, machine, results, settings, run, say)
    return Session(kind, measuring, modelled, warnings=warnings)


def _check_range(key: str, value: float | None, most: float, unit: str = "") -> None:
    if value is not None and not 1 <= value <= most:
        got = f"{value}" if type(value) is int else f"{value:g}"
        allowed = f"1 to {most:g}"
        msg = f"{key} must be from {allowed}{unit}, got {got}"
        raise ConfigError(msg, key=key, value=value, allowed=allowed)


def _strayed(found: Sequence[bench_rows.Measured], locked_mhz: float | None) -> list[str]:
    """Say where a locked clock was not kept, as under a cap of power."""
    clocks = [each.spread.clock_mhz for each in found if each.spread.clock_mhz is not None]
    off = [clock for clock in clocks if locked_mhz and abs(clock / locked_mhz - 1.0) > STRAYED]
    if not off:
        return []
    ran = f"{min(off):,.0f} to {max(off):,.0f} MHz"
    cases = f"{len(off)} of {len(clocks)} cases ran at {ran}"
    return [f"the clock was locked to {locked_mhz:g} MHz, and {cases}: a cap of power or heat"]


def _named(
    environment: Environment, device: str | None, profile: Device | None
) -> tuple[str, str, list[str]]:
    shipped = profile_of(environment.device) if environment.backend != "cpu" else None
    if device is None or profile is None:
        return shipped or environment.device, shipped or "", []
    if stands_for(profile, environment.device):
        return shipped or device, device, []
    warning = (
        f"this machine has {environment.device}, which the profile {device} ({profile.name}) "
        f"is not known to be; rows name the former"
    )
    return shipped or environment.device, device, [warning]


def settings_of(
    *,
    backend: str = "auto",
    ranks: int = 1,
    threads: int | None = None,
    repeats: int = 11,
    timeout_s: float | None = None,
) -> Settings:
    """Return settings from options."""
    one_of("backend", backend, BACKENDS)
    _check_range("timeout-s", timeout_s, MOST_TIMEOUT_S)
    for key, value in (("ranks", ranks), ("repeats", repeats), ("threads", threads)):
        _check_range(key, value, MOST_COUNT)
    pace = Settings().pace.model_copy(update={"repeats": repeats})
    return Settings(backend, ranks, threads, pace, timeout_s=timeout_s)


MOST_COUNT = 4096
MOST_TIMEOUT_S = 86_400.0
MOST_MHZ = 20_000.0
