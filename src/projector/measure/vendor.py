"""Reads clock and power beside a load, in a thread, and holds the clock where that is asked."""

import contextlib
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import NamedTuple, NoReturn, Self

from projector.errors import MeasurementError
from projector.measure.smi import Library, open_library


class Load(NamedTuple):
    """How a device is, or was over some spans: medians, and all that held its clock down."""

    clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    reasons: tuple[str, ...]


class ReadingThread:
    """Reads beside what runs, in a thread, until it is left."""

    def __init__(self, period_s: float) -> None:
        self.period_s = period_s
        self.stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, target: Callable[[], None], name: str) -> None:
        """Start the thread; the target ends soon after `stop` is set."""
        self.stop.clear()
        self._thread = threading.Thread(target=target, daemon=True, name=name)
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self.stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None


class Sampler(ReadingThread):
    """Reads clock and power of one device in a thread, beside the load.

    Without a vendor's library, or on a CPU, it reads nothing and every span is ``(None, None)``.
    Times are those of ``time.perf_counter``. A reading takes tens of microseconds of one thread.
    """

    def __init__(
        self, device_index: int | None, *, pci: str | None = None, period_s: float = 0.01,
        library: Library | None = None,
    ) -> None:  # fmt: skip
        """Look for a library of a GPU, by torch's number or its PCI address; a CPU (None) has none.

        ``period_s`` lies between two readings. A library that is given is not looked for.
        """
        super().__init__(period_s)
        self._device = device_index, pci
        self._library = library
        self._samples: list[tuple[float, Load]] = []

    def __enter__(self) -> Self:
        index, pci = self._device
        if self._library is None and index is not None:
            self._library = open_library(index, pci)
        if self._library is not None:
            self.begin(self._read, "clock")
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self._library is not None:
            self._library.close()
            self._library = None

    def load(self, spans: Sequence[tuple[float, float]]) -> Load:
        """Return how the device was over spans of seconds, such as all runs of one operation.

        A span that is shorter than the time between two readings has those next to it.
        """
        reach_s = 2.0 * self.period_s
        samples = list(self._samples)
        within: list[Load] = []
        for start_s, end_s in spans:
            inside = [each for at_s, each in samples if start_s <= at_s <= end_s]
            within += inside or [
                each for at_s, each in samples if start_s - reach_s <= at_s <= end_s + reach_s
            ]
        names = ("clock_mhz", "power_w", "temperature_c")
        medians = {name: _median([getattr(each, name) for each in within]) for name in names}
        reasons = dict.fromkeys(reason for each in within for reason in each.reasons)
        return Load(**medians, reasons=tuple(reasons))

    def _read(self) -> None:
        library = self._library
        while library is not None:
            at_s, read = time.perf_counter(), library.read
            numbers = read("clock_mhz"), read("power_w"), read("temperature_c")
            self._samples.append((at_s, Load(*numbers, library.reasons())))
            if self.stop.wait(self.period_s):
                return


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


@contextlib.contextmanager
def locked_clock(
    device_index: int, clock_mhz: float, *, pci: str | None = None, library: Library | None = None
) -> Iterator[None]:
    """Hold the clock of a GPU, and let it go whatever happens.

    A signal that ends the process (SIGTERM, SIGHUP) lets it go too, where this is entered in the
    main thread; no process can answer SIGKILL.
    """
    library = library or open_library(device_index, pci)
    if library is None:
        msg = "no library of a GPU's vendor is there, so no clock can be locked"
        raise MeasurementError(msg, key="lock_clocks", value=clock_mhz, allowed="no locked clock")
    try:
        # Signals that would end the process at once raise `SystemExit`, so that it cleans up.
        with signals_to(_leave, signal.SIGTERM, signal.SIGHUP):
            library.lock(clock_mhz)
            try:
                yield
            finally:
                library.unlock()
    finally:
        library.close()


@contextlib.contextmanager
def signals_to(handler: Callable[[int, FrameType | None], object], *numbers: int) -> Iterator[None]:
    """Give signals to a handler for a while, where this is entered in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in former.items():
            # None is a handler that is not Python's.
            signal.signal(number, signal.SIG_DFL if before is None else before)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    del frame
    raise SystemExit(128 + number)
