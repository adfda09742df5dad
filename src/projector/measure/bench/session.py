"""One benchmark from its first look at the machine to its last row."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field

from projector.config.device import Device
from projector.config.device_file import load_device
from projector.errors import ConfigError
from projector.measure.bench.cases import BenchKind, Case
from projector.measure.bench.results import Results
from projector.measure.bench.rows import Machine, Measured
from projector.measure.bench.runner import Measuring, Run, Say, Settings, run_in, today
from projector.measure.devices import profile_of, stands_for
from projector.measure.task import Environment
from projector.measure.vendor import locked_clock

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

    Parameters
    ----------
    kind : str
    cases : sequence of Case
    device : str or None
        Profile to model beside; that of the device at hand, if it ships, for None.
    out : str or None
        Table of results.
    overwrite : bool
        Whether its rows are dropped.
    settings : Settings
    lock_mhz : float, optional
        Clock to hold while it is measured.
    run : callable, optional
        Stand-in for `projector.measure.process.run_task`.
    say : callable, optional
        Told of progress.
    """
    profile = None if device is None else load_device(device, key="device")
    # Says what runs before anything is measured, and refuses what cannot run at all.
    environment = run_in(settings, [], run, _unheard).environment
    gpu, modelled, warnings = _named(environment, device, profile)
    if lock_mhz is not None:
        _check_lock(lock_mhz, environment)
    results = Results(out, kind, overwrite=overwrite)
    machine = Machine(gpu, environment, lock_mhz, day=today())
    measuring = Measuring(cases, machine, results, settings, run, say)
    return Session(kind, measuring, modelled, warnings=warnings)


def _unheard(text: str) -> None:
    del text


def _check_lock(clock_mhz: float, environment: Environment) -> None:
    if not 1.0 <= clock_mhz <= MOST_MHZ:
        msg = f"lock-clocks must be from 1 to {MOST_MHZ:g} MHz, got {clock_mhz:g}"
        raise ConfigError(msg, key="lock-clocks", value=clock_mhz, allowed=f"1 to {MOST_MHZ:g}")
    if environment.backend == "cpu":
        msg = "lock-clocks: only the clock of a GPU is locked, and this runs on the CPU"
        raise ConfigError(msg, key="lock-clocks", value=clock_mhz, allowed="a GPU")


def _strayed(found: Sequence[Measured], locked_mhz: float | None) -> list[str]:
    """Say where a locked clock was not kept, as under a cap of power."""
    if locked_mhz is None:
        return []
    clocks = [each.spread.clock_mhz for each in found if each.spread.clock_mhz is not None]
    off = [clock for clock in clocks if abs(clock / locked_mhz - 1.0) > STRAYED]
    if not off:
        return []
    ran = f"{min(off):,.0f} to {max(off):,.0f} MHz"
    cases = f"{len(off)} of {len(clocks)} cases ran at {ran}"
    return [f"the clock was locked to {locked_mhz:g} MHz, and {cases}: a cap of power or heat"]


def _named(
    environment: Environment, device: str | None, profile: Device | None
) -> tuple[str, str, list[str]]:
    """Return the name that rows give the device, the profile to model, and warnings."""
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
    if backend not in BACKENDS:
        msg = f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}"
        raise ConfigError(msg, key="backend", value=backend, allowed=list(BACKENDS))
    if timeout_s is not None and not 1.0 <= timeout_s <= MOST_TIMEOUT_S:
        msg = f"timeout-s must be from 1 to {MOST_TIMEOUT_S:g}, got {timeout_s:g}"
        allowed = f"1 to {MOST_TIMEOUT_S:g}"
        raise ConfigError(msg, key="timeout-s", value=timeout_s, allowed=allowed)
    for key, value in (("ranks", ranks), ("repeats", repeats), ("threads", threads)):
        if value is not None and not 1 <= value <= MOST_COUNT:
            msg = f"{key} must be from 1 to {MOST_COUNT}, got {value}"
            raise ConfigError(msg, key=key, value=value, allowed=f"1 to {MOST_COUNT}")
    pace = Settings().pace.model_copy(update={"repeats": repeats})
    return Settings(backend, ranks, threads, pace, timeout_s=timeout_s)


MOST_COUNT = 4096
MOST_TIMEOUT_S = 86_400.0
MOST_MHZ = 20_000.0
