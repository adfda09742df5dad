"""Clock and power of a GPU while it works, through the library of its vendor."""

import statistics
from types import TracebackType
from typing import NamedTuple, Self


class Sample(NamedTuple):
    """What a library read at one moment."""

    at_s: float
    clock_mhz: float | None
    power_w: float | None


class Sampler:
    """Reads clock and power of one device in a thread, beside the load.

    Without a vendor's library, or on a CPU, it reads nothing and every span is ``(None, None)``.
    Times are those of ``time.perf_counter``.
    """

    def __init__(self, device_index: int | None, *, period_s: float = 0.01) -> None:
        """Look for a library; None as device, a CPU, looks for none."""
        self._device_index = device_index
        self._period_s = period_s
        self._samples: list[Sample] = []

    def __enter__(self) -> Self:
        """Begin to read."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the thread and let go of the library."""

    def between(self, start_s: float, end_s: float) -> tuple[float | None, float | None]:
        """Return the median clock in MHz and power in W of a span; None where none was read."""
        within = [each for each in self._samples if start_s <= each.at_s <= end_s]
        clocks = [each.clock_mhz for each in within if each.clock_mhz is not None]
        powers = [each.power_w for each in within if each.power_w is not None]
        return (
            statistics.median(clocks) if clocks else None,
            statistics.median(powers) if powers else None,
        )
