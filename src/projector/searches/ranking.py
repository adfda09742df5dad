"""Which configurations a search ranks, and what another one has to beat to matter."""

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from projector.arrays import Flags, Floats
from projector.projection.bands import FITS
from projector.searches.configuration import Configuration
from projector.searches.limits import Limits
from projector.units import GIB


class Goal(NamedTuple):
    """What a search has to find."""

    limits: Limits
    objective: str
    top: int
    """How many of the best."""


def roomy(evaluated: Iterable[Configuration], limits: Limits) -> list[Configuration]:
    """Return the configurations that leave enough memory by their projected peaks."""
    return [each for each in evaluated if each.headroom_bytes >= limits.headroom_gib * GIB]


def within(evaluated: Iterable[Configuration], limits: Limits) -> list[Configuration]:
    """Return the configurations that a search ranks."""
    chosen = roomy(evaluated, limits)
    return chosen if limits.allow_risk else [each for each in chosen if each.verdict == FITS]


def ranked(evaluated: Iterable[Configuration], limits: Limits) -> list[Configuration]:
    """Return the configurations within the limits, the best first."""
    chosen = within(evaluated, limits)
    # Runs that never end come into no ranking, unless none ends: then the first says why.
    chosen = [each for each in chosen if np.isfinite(each.value)] or chosen
    # Equally good ones are sorted by memory, then by the order in which they were tried.
    return sorted(chosen, key=lambda each: (each.value, each.peak_bytes))


def front(best_first: Iterable[Configuration]) -> list[Configuration]:
    """Return configurations that no better one beats in memory."""
    chosen, least_bytes = [], float("inf")
    for configuration in best_first:
        if configuration.peak_bytes < least_bytes:
            least_bytes = configuration.peak_bytes
            chosen.append(configuration)
    return chosen


class Standing:
    """The best of what was found so far."""

    def __init__(self, goal: Goal) -> None:
        """Begin with nothing found."""
        self._goal = goal
        self._best: list[float] = []
        """Values of the best that fit, negative, a heap whose first is the worst."""
        self._front: list[Configuration] = []
        self.is_empty = True
        """Whether nothing is within the limits."""
        self.least_high_bytes = np.inf
        """Where the lowest band of a peak ends."""

    def add(self, configurations: Sequence[Configuration]) -> None:
        """Take more configurations into account."""
        for each in configurations:
            self.least_high_bytes = min(self.least_high_bytes, each.peak_high_bytes)
        chosen = ranked(configurations, self._goal.limits)
        self.is_empty = self.is_empty and not chosen
        chosen = [each for each in chosen if np.isfinite(each.value)]
        self._front = front(
            sorted([*self._front, *chosen], key=lambda each: (each.value, each.peak_bytes))
        )
        # Whoever ranks what is at risk may look for the first that is not.
        for each in chosen:
            if each.verdict != FITS:
                continue
            if len(self._best) < self._goal.top:
                heapq.heappush(self._best, -each.value)
            elif each.value < -self._best[0]:
                heapq.heapreplace(self._best, -each.value)

    def may_matter(self, value: Floats, peak_bytes: Floats) -> Flags:
        """Return which of n bounds leave room to be among the best, or on the front, bool[n].

        A configuration is beaten where one that was found is better than its bound and needs no
        more memory than it does at the least.
        """
        last = -self._best[0] if len(self._best) == self._goal.top else np.inf
        values = np.array([-np.inf, *(each.value for each in self._front)])
        peaks = np.array([np.inf, *(each.peak_bytes for each in self._front)])
        # The front falls in memory: of all that are better, the last one needs least.
        better = np.searchsorted(values, value, side="left") - 1
        beaten = peaks[np.maximum(better, 0)] <= peak_bytes
        return np.asarray((value <= last) | ~beaten)
