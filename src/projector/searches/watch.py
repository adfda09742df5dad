"""How long a search may take, how far it is, and what it expects."""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from projector.errors import ConfigError
from projector.units import unwrapped

CONFIGURATIONS, ORDERS = "configurations", "orders"
"""What is counted: static orders and bounds first, then orders that are planned one by one."""

OUT_OF_TIME, INTERRUPTED = "out of time", "interrupted"
"""Why a search was stopped."""


class Progress(NamedTuple):
    """How far a search is."""

    done: int
    total: int
    unit: str
    """What is counted, ``configurations`` or ``orders``; of orders at most so many are planned, as
    those found so far rule others out."""
    found: int
    """Configurations evaluated so far."""
    left_s: float
    """Seconds that the rest of them should take, by what was measured so far."""


class Watch:
    """Says when a search is to end, and tells how far it is.

    It may take ``most_seconds`` of wall clock from now on; ``progress`` is called now and then.
    """

    def __init__(
        self,
        most_seconds: float | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._begun = time.perf_counter()
        self.most_seconds = math.inf if most_seconds is None else most_seconds
        self.estimated_s: float | None = None
        """What the search was last expected to take at the most, before it planned anything."""
        self._progress = progress

    def quiet(self) -> "Watch":
        """Return one that ends when this one does, and tells nothing."""
        other = Watch(self.most_seconds)
        other._begun = self._begun
        return other

    @property
    def seconds(self) -> float:
        """Seconds passed."""
        return time.perf_counter() - self._begun

    @property
    def left_s(self) -> float:
        """Seconds left; infinite without a limit."""
        return self.most_seconds - self.seconds

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return math.isfinite(self.most_seconds)

    @property
    def is_over(self) -> bool:
        """Whether the search is to end."""
        return self.left_s <= 0.0

    def expects(self, left_s: float) -> None:
        """Note how long the rest should take."""
        self.estimated_s = self.seconds + left_s

    def told(self, progress: Progress) -> None:
        """Tell how far the search is."""
        if self._progress is not None:
            self._progress(progress)


def check_seconds(most_seconds: Any) -> float | None:
    """Return a limit of time."""
    seconds = unwrapped(most_seconds)
    if seconds is None:
        return None
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    # NaN compares false, so it is refused as well.
    if not number or not seconds > 0.0:
        msg = f"most_seconds must be a number of seconds above 0, got {seconds!r}"
        raise ConfigError(msg, key="most_seconds", value=str(seconds), allowed="> 0")
    return float(seconds)
