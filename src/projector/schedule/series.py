"""Orders of one schedule and size, for any number of microbatches."""

from collections.abc import Callable
from dataclasses import dataclass

from projector.schedule.order import Order


@dataclass(frozen=True)
class Series:
    """Orders that differ in the number of microbatches alone.

    From ``least`` microbatches on, an order of ``every`` more is the same order with one more
    period in its middle: what precedes the period, the period itself and what follows it do not
    depend on how often it is repeated.
    """

    pp: int
    vpp: int
    """Chunks of a rank."""
    order: Callable[[int], Order]
    """The order of some microbatches; the same object for the same number."""
    every: int = 0
    """0 where orders of different lengths have nothing in common."""
    least: int = 1

    def with_all_peaks(self, microbatches: int) -> int:
        """Return the fewest microbatches with which ranks hold what they hold with more."""
        if not self.every:
            return microbatches
        return min(microbatches, self.alike(self.least + self.every, microbatches))

    def alike(self, least: int, microbatches: int) -> int:
        """Return the fewest microbatches >= least from which whole periods lead to some others."""
        return least + (microbatches - least) % self.every
