"""Factors that explain why one time is another: their product is the ratio of the two times."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

REST = "rest"
"""What no other factor explains."""

MEANINGS: Mapping[str, str] = {
    "count": "it runs more or fewer times a step",
    "shape": "one run works on other extents",
    "waiting": "ranks wait for the slowest of their group",
    "overlap": "communication runs beside it",
    "frequency": "the clock",
    "instruction": "more FLOP are performed than are needed",
    "utilisation": "the matrix units are less busy than assumed",
    REST: "not explained",
}
"""Factors in the order in which they are looked for, and what each is."""

EPSILON = 1e-12


@dataclass(frozen=True, slots=True)
class Factor:
    """By how much something makes a time longer."""

    name: str
    value: float

    @property
    def size(self) -> float:
        """How far it is from making no difference, either way."""
        return abs(math.log(max(self.value, EPSILON)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What is known of an operation in one run, or in the models; None is not known."""

    time_s: float
    """Of a step."""
    runs: float | None = None
    """In a step."""
    work: float | None = None
    """Of a step: FLOP, or bytes of collectives; both sides count the same."""
    waiting: float | None = None
    """Duration over that of the rank that waits least."""
    overlap: float | None = None
    """Duration over that without communication beside it."""
    clock_hz: float | None = None
    instruction: float | None = None
    """Performed over needed FLOP."""
    utilisation: float | None = None
    """Share of their peak that matrix units reach at the clock."""


def explain(first: Side, second: Side) -> tuple[Factor, ...]:
    """Return the factors from the first time to the second.

    Only what both sides know is a factor; `REST` is what they leave, so that the product of all is
    ``second.time_s / first.time_s``.

    Parameters
    ----------
    first, second : Side
        Times above zero.
    """
    known = list(_known(first, second))
    ratio = second.time_s / first.time_s
    product = math.prod(factor.value for factor in known)
    return (*known, Factor(REST, ratio / product))


def _known(first: Side, second: Side) -> Iterator[Factor]:
    if first.runs and second.runs:
        count = second.runs / first.runs
        yield Factor("count", count)
        if first.work and second.work:
            yield Factor("shape", second.work / first.work / count)
    elif first.work and second.work:
        yield Factor("shape", second.work / first.work)
    for name in ("waiting", "overlap", "instruction"):
        before, after = getattr(first, name), getattr(second, name)
        if before and after:
            yield Factor(name, after / before)
    # Slower with a lower clock, and with units that are less busy.
    if first.clock_hz and second.clock_hz:
        yield Factor("frequency", first.clock_hz / second.clock_hz)
    if first.utilisation and second.utilisation:
        yield Factor("utilisation", first.utilisation / second.utilisation)


def largest(factors: tuple[Factor, ...]) -> Factor:
    """Return the factor that explains most; what is not explained counts like any other."""
    return max(factors, key=lambda factor: factor.size, default=Factor(REST, 1.0))
