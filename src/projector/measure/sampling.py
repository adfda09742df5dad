"""Samples of cores, clocks and power beside a run, written line by line as JSON.

A run that is killed leaves whatever was sampled before. Times are those of the system's clock, as
the stamps of a Kineto trace are, so that both lie on one axis.
"""

import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from projector.measure.smi import Library, Reading, text_of
from projector.measure.vendor import ReadingThread
from projector.trace.samples import OWN_FORMAT

VERSION = 1

Reader = Callable[[], Sequence[float | None]]
"""Reads one quantity: one value a column, None where it could not be read."""


class Quantity(NamedTuple):
    """Something that is sampled."""

    name: str
    """As in `projector.trace.events.Samples`."""
    columns: tuple[str, ...]
    read: Reader


class RunSampler(ReadingThread):
    """Writes samples from a thread of its own until it is left."""

    def __init__(
        self, path: Path, quantities: Sequence[Quantity], *, period_s: float,
        about: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Write nothing yet; without quantities no file of JSON lines is written.

        Its first line says what is sampled, and what ``about`` adds, such as the rank.
        """
        super().__init__(period_s)
        self.path = path
        self._quantities = tuple(quantities)
        self._about = dict(about or {})

    def __enter__(self) -> Self:
        if self._quantities:
            head = {
                "format": OWN_FORMAT,
                "version": VERSION,
                **self._about,
                "host": platform.node(),
                "columns": {each.name: each.columns for each in self._quantities},
            }
            self.path.write_text(json.dumps(head) + "\n", encoding="utf-8")
            self.begin(self._sample, "samples")
        return self

    def _sample(self) -> None:
        with self.path.open("a", encoding="utf-8", buffering=1) as stream:
            while not self.stop.wait(self.period_s):
                line: dict[str, Any] = {"time_ns": time.time_ns()}
                for quantity in self._quantities:
                    values = quantity.read()
                    if any(value is not None for value in values):
                        line[quantity.name] = values
                stream.write(json.dumps(line) + "\n")


def core_quantities() -> tuple[list[Quantity], dict[str, Any]]:
    """Return the use of logical cores and what is said of them; nothing without psutil."""
    try:
        import psutil
    except ImportError:
        return [], {}
    cores = len(psutil.cpu_percent(percpu=True))

    def read() -> Sequence[float | None]:
        percent: list[float] = psutil.cpu_percent(percpu=True)
        return percent

    quantity = Quantity("cpu_percent", tuple(f"cpu{core}" for core in range(cores)), read)
    physical = physical_cores(cores)
    return [quantity], {"physical_core": physical} if physical else {}


def physical_cores(cores: int, root: Path = Path("/sys/devices/system/cpu")) -> list[int]:
    """Return the physical core of each logical one, nothing where the kernel does not say."""
    found: list[tuple[str, str]] = []
    for core in range(cores):
        topology = root / f"cpu{core}" / "topology"
        package, number = text_of(topology / "physical_package_id"), text_of(topology / "core_id")
        if not package or not number:
            return []
        found.append((package, number))
    numbers = {each: number for number, each in enumerate(dict.fromkeys(found))}
    return [numbers[each] for each in found]


def device_quantities(library: Library | None, label: str) -> list[Quantity]:
    """Return clocks and power of one device, those that its library knows."""
    if library is None:
        return []
    names: tuple[Reading, ...] = ("clock_mhz", "memory_clock_mhz", "power_w")
    return [
        Quantity(name, (label,), lambda name=name: [library.read(name)])  # type: ignore[misc]
        for name in names
        if library.read(name) is not None
    ]
