"""What a comparison of real runs found, and factors that explain why one time is another.

The product of the factors is the ratio of the two times.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from projector.config.resources import hardware_table
from projector.envelope import envelope, told
from projector.projection.comparison import Pair, errors
from projector.units import to_ms

REST = "rest"
"""What no other factor explains."""

MEANINGS: Mapping[str, str] = hardware_table("report_words.yaml")["trace_factors"]
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
    """Time that it takes in a step."""
    runs: float | None = None
    """How often it runs in a step."""
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
    """Return the factors from the first time to the second, both above zero.

    Only what both sides know is a factor; `REST` is what they leave, so that the product of all is
    ``second.time_s / first.time_s``.
    """
    known = list(_known(first, second))
    ratio = second.time_s / first.time_s
    return (*known, Factor(REST, ratio / math.prod(factor.value for factor in known)))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One operation on both sides: the models and a run, or two runs."""

    operation: str
    phase: str
    kind: str
    """``gemm``, ``attention``, ``memory``, ``collective`` …"""
    pair: Pair
    """Of a step: measured (of two runs, the second) and simulated (the first)."""
    low_s: float
    """Quarter of the steps measured took less."""
    high_s: float
    """Quarter of the steps measured took more."""
    runs: float
    """In a measured step; kernels where runs cannot be told."""
    expected_runs: float
    factors: tuple[Factor, ...]
    """Their product is measured over simulated."""
    matched_by: Mapping[str, int]
    """How its activities were matched, and how many."""
    shape: str = ""

    @property
    def difference_s(self) -> float:
        """What the measured step takes longer."""
        return self.pair.measured_s - self.pair.simulated_s

    @property
    def slowdown(self) -> float:
        """Measured over simulated."""
        return self.pair.measured_s / self.pair.simulated_s

    @property
    def because(self) -> Factor:
        """The factor that explains most."""
        return largest(self.factors)

    def to_dict(self, names: "Names") -> dict[str, Any]:
        """Return the operation as ``--json`` prints it."""
        first, second = names.first, names.second
        return {
            **told(self, "operation phase kind shape"),
            **_times(self.pair, names),
            "difference_ms": to_ms(self.difference_s),
            f"{second}_low_ms": to_ms(self.low_s),
            f"{second}_high_ms": to_ms(self.high_s),
            f"{second}_runs": self.runs,
            f"{first}_runs": self.expected_runs,
            "factors": {factor.name: factor.value for factor in self.factors},
            "because": self.because.name,
            "matched_by": dict(self.matched_by),
        }


@dataclass(frozen=True, slots=True)
class Names:
    """What both sides are called in JSON."""

    first: str = "projected"
    second: str = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmatched:
    """What only one side has."""

    operation: str
    phase: str
    kind: str
    time_s: float
    """Time that it takes in a step."""
    runs: float
    """How often it runs in a step."""
    kernel: str = ""
    """The kernel that takes most of it, where it was measured."""

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as ``--json`` prints it."""
        return told(self, "operation phase kind time_ms runs kernel")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceComparison:
    """A run beside the models, or beside another run."""

    title: str
    names: Names
    operations: tuple[Difference, ...]
    """The largest difference first, either way."""
    only_first: tuple[Unmatched, ...]
    """What only the models, or the first run, have; the longest first."""
    only_second: tuple[Unmatched, ...]
    step: Mapping[str, Pair]
    """Terms of the step, and ``total``."""
    iterations: int
    ranks: tuple[int, ...]
    tokens: float = 1.0
    """Tokens of a micro-batch of the run over those of the job."""
    warnings: tuple[str, ...] = ()

    @property
    def matched_first(self) -> float:
        """Share of the first side's time that is compared, durations added."""
        return _share(sum(each.pair.simulated_s for each in self.operations), self.only_first)

    @property
    def matched_second(self) -> float:
        """Share of the second side's time that is compared, durations added."""
        return _share(sum(each.pair.measured_s for each in self.operations), self.only_second)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The operations, one mapping each."""
        return [each.to_dict(self.names) for each in self.operations]

    def to_dict(self) -> dict[str, Any]:
        """Return exactly the object that ``--json`` prints."""
        first, second = self.names.first, self.names.second
        return {
            **envelope(self.warnings),
            **told(self, "title iterations ranks"),
            "tokens_ratio": self.tokens,
            "matched_share": {first: self.matched_first, second: self.matched_second},
            "step": {name: _times(pair, self.names) for name, pair in self.step.items()},
            "operations": self.rows,
            f"{first}_only": [each.to_dict() for each in self.only_first],
            f"{second}_only": [each.to_dict() for each in self.only_second],
            "summary": errors(each.pair for each in self.operations),
        }

    def __repr__(self) -> str:
        first, second = self.names.first, self.names.second
        return (
            f"<{self.title}: {len(self.operations)} operations, {self.matched_first:.1%} of "
            f"{first} and {self.matched_second:.1%} of {second} time>"
        )

    def _repr_html_(self) -> str:
        from projector.frames import html_table

        return html_table(self.title, self.rows)


def _times(pair: Pair, names: Names) -> dict[str, Any]:
    return {
        f"{names.second}_ms": to_ms(pair.measured_s),
        f"{names.first}_ms": to_ms(pair.simulated_s),
        "ratio": pair.ratio,
    }


def _share(matched_s: float, rest: Iterable[Unmatched]) -> float:
    total_s = matched_s + sum(each.time_s for each in rest)
    return matched_s / total_s if total_s > 0.0 else 1.0
