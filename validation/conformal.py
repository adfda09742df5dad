"""Bands of ``hardware/uncertainty.yaml`` from the residuals of validated tables.

A residual is the logarithm of measured over projected. Sources weigh the same, not rows: a source
that publishes many rows has one bias, which says as much as that of a source with few.

1. Each class has a centre and a spread, pulled towards those of the wider classes as if `pull`
   further sources said the same there (shrinkage).
2. Each residual is standardised with the centre and spread of its class, made without its source.
3. Quantiles of all standardised residuals, over sources of the same weight, times the spread of a
   class give its band. The two sides have quantiles of their own.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.arrays import Floats
from projector.config.bands import SHARES
from projector.config.device_file import load_device
from projector.validate.names import device_of
from projector.validate.run import Result

LEAST_SPREAD = 1e-3
"""Smallest spread, so that rows without any error divide nothing by zero."""


@dataclass(frozen=True, slots=True)
class Residual:
    """One measured row."""

    source: str
    classes: tuple[str, ...]
    """Names of its classes, the narrowest first."""
    error: float
    """Logarithm of measured over projected."""
    device: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """A band as logarithms of measured over projected; it holds 0, the projection itself."""

    low: float
    high: float

    def holds(self, error: float) -> bool:
        """Whether a residual lies within."""
        return self.low <= error <= self.high


@dataclass(frozen=True, slots=True)
class Method:
    """How strongly classes are pulled to wider ones."""

    pull: float
    """Sources that the wider class counts as."""
    centred: frozenset[str] | None = None
    """Classes that have a centre of their own; None means all."""
    is_symmetric: bool = False
    """Whether both sides have one quantile, of absolute scores: sides of their own take more
    sources."""


def weighted_quantile(values: Floats, weights: Floats, share: float) -> float:
    """Return the least value up to which values have at least ``share`` of all weight.

    There is at least one value, and weights are positive. A share beyond 0 and 1 gives the least or
    the largest value.
    """
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    # A share that is reached up to rounding is reached.
    place = int(np.searchsorted(reached, share * reached[-1] * (1.0 - 1e-12)))
    return float(values[order[min(place, len(values) - 1)]])


def conformal_share(weights: Floats, share: float) -> float:
    """Return the share that n scores must hold so that one more is held with chance ``share``.

    The next score is one of n + 1, and nothing is known of it: (n + 1) / n times the share
    (conformal prediction). n is their effective number, (sum w)^2 / sum w^2. With the number of
    sources in its place, 90 % would be the largest of all scores with fewer than 10 sources.
    """
    effective = float(np.sum(weights) ** 2 / np.sum(weights**2))
    return min(1.0, share * (effective + 1.0) / effective)


def conformal_limits(
    scores: Floats, weights: Floats, share: float, *, is_symmetric: bool = False
) -> Limits:
    """Return the quantiles of scores between which one more lies with chance ``share``.

    What they leave out is split between both sides, unless both are to be equally far.
    """
    if is_symmetric:
        side = weighted_quantile(np.abs(scores), weights, conformal_share(weights, share))
        return Limits(-side, side)
    beyond = (1.0 - conformal_share(weights, share)) / 2.0
    return Limits(
        weighted_quantile(scores, weights, beyond),
        weighted_quantile(scores, weights, 1.0 - beyond),
    )


def source_weights(residuals: Sequence[Residual]) -> tuple[Floats, int]:
    """Return weights that add up to 1 for each source, float64[n], and how many there are."""
    counts: dict[str, int] = defaultdict(int)
    for residual in residuals:
        counts[residual.source] += 1
    return np.array([1.0 / counts[each.source] for each in residuals]), len(counts)


def centre_and_spread(
    residuals: Sequence[Residual], classes: Sequence[str], method: Method
) -> tuple[float, float]:
    """Return the median of a class, and the distance from it within which 68 % of its rows lie.

    Both are pulled towards the wider classes, the spread as a logarithm. The widest class is pulled
    towards no bias.
    """
    centre, spread = 0.0, 0.0
    for name in reversed(classes):
        members = [each for each in residuals if name in each.classes]
        if not members:
            continue
        weights, sources = source_weights(members)
        errors = np.array([each.error for each in members])
        own = sources / (sources + method.pull)
        if method.centred is None or name in method.centred:
            centre += own * (weighted_quantile(errors, weights, 0.5) - centre)
        distance = max(LEAST_SPREAD, weighted_quantile(np.abs(errors - centre), weights, 0.68))
        spread = distance if spread == 0.0 else spread ** (1.0 - own) * distance**own
    return centre, max(spread, LEAST_SPREAD)


def scores_of(residuals: Sequence[Residual], method: Method) -> Floats:
    """Return each residual in spreads of its class, which is made without its source."""
    made: dict[tuple[str, tuple[str, ...]], tuple[float, float]] = {}
    for each in residuals:
        key = each.source, each.classes
        if key not in made:
            others = [other for other in residuals if other.source != each.source]
            made[key] = centre_and_spread(others, each.classes, method)
    pairs = [made[each.source, each.classes] for each in residuals]
    return np.array(
        [
            (each.error - centre) / spread
            for each, (centre, spread) in zip(residuals, pairs, strict=True)
        ]
    )


def bands_of(
    residuals: Sequence[Residual], shares: Iterable[float], method: Method
) -> dict[str, tuple[Limits, ...]]:
    """Return the band of every class for each share, each within the next wider one.

    Residuals come from two sources or more.
    """
    scores = scores_of(residuals, method)
    weights, _ = source_weights(residuals)
    limits = [
        conformal_limits(scores, weights, share, is_symmetric=method.is_symmetric)
        for share in shares
    ]
    chains = {each.classes[i:] for each in residuals for i in range(len(each.classes))}
    found = {}
    for chain in sorted(chains):
        centre, spread = centre_and_spread(residuals, chain, method)
        found[chain[0]] = tuple(
            Limits(min(0.0, centre + spread * each.low), max(0.0, centre + spread * each.high))
            for each in limits
        )
    return found


def bands_without(
    residuals: Sequence[Residual], shares: Sequence[float], method: Method
) -> dict[str, dict[str, tuple[Limits, ...]]]:
    """Return the bands of every class as they are without one source, for each source."""
    return {
        source: bands_of([each for each in residuals if each.source != source], shares, method)
        for source in sorted({each.source for each in residuals})
    }


def limits_of(bands: dict[str, tuple[Limits, ...]], classes: Sequence[str]) -> tuple[Limits, ...]:
    """Return the bands of the narrowest class that has any."""
    for name in classes:
        if name in bands:
            return bands[name]
    raise KeyError(classes)


def nested_coverage(
    residuals: Sequence[Residual],
    shares: Sequence[float],
    method: Method,
    widening: float = 1.0,
) -> dict[str, tuple[int, tuple[float, ...]]]:
    """Return rows of each class, and which share of them the bands hold made without their source.

    Neither the residual nor the band of a row has seen its source.
    """
    without = bands_without(residuals, shares, method)
    held: dict[str, list[tuple[bool, ...]]] = defaultdict(list)
    for each in residuals:
        limits = limits_of(without[each.source], each.classes)
        for name in each.classes:
            held[name].append(tuple(limit.holds(each.error / widening) for limit in limits))
    return {
        name: (len(rows), tuple(float(share) for share in np.mean(np.array(rows), axis=0)))
        for name, rows in sorted(held.items())
    }


FRACTIONS = tuple(share / 100.0 for share in SHARES)


def residuals_of(results: Iterable[Result], *, by_device: bool = False) -> list[Residual]:
    """Return the residuals of the rows of a table, without doubtful ones.

    Constants that have not seen the source of a row give its residual, where there are any.
    ``by_device`` takes the devices of one source for sources of their own, for kernels: a source
    that times many devices has a bias on each.
    """
    found = []
    for result in results:
        outcome = result.outcome.left_out or result.outcome
        ratio = outcome.time_ratio
        if not result.projected or result.doubt or ratio is None:
            continue
        device = load_device(device_of(result.device)).name
        origin = f"{result.origin}, {device}" if by_device else result.origin
        error = -math.log(ratio)
        found.append(Residual(origin, result.outcome.classes, error, device))
    return found


def tables_of(
    residuals: Sequence[Residual], method: Method, widening: float | Sequence[float] = 1.0
) -> dict[str, dict[str, Any]]:
    """Return the entries of every class.

    ``widening`` is a factor on logarithms, or one a share, where the constants have seen the rows.
    """
    counts: dict[str, list[Residual]] = {}
    for each in residuals:
        for name in each.classes:
            counts.setdefault(name, []).append(each)
    return {
        name: {
            **_entry(limits, widening),
            "runs": len(counts[name]),
            "sources": len({each.source for each in counts[name]}),
        }
        for name, limits in bands_of(residuals, FRACTIONS, method).items()
    }


def tables_without(
    residuals: Sequence[Residual],
    method: Method,
    unseen: Mapping[str, Any] | None,
    widening: float = 1.0,
) -> dict[str, dict[str, Any]]:
    """Return the entries of every class as they are without each source, by source."""
    found: dict[str, dict[str, Any]] = {}
    for source in sorted({each.source for each in residuals}):
        others = [each for each in residuals if each.source != source]
        found[source] = dict(tables_of(others, method, widening))
        if unseen is not None:
            devices = sorted({each.device for each in others})
            found[source]["unseen"] = {**unseen, "devices": devices}
    return found


def unseen_factors(
    residuals: Sequence[Residual], method: Method, at_least: float
) -> dict[str, float]:
    """Return how much wider bands must be to hold rows of a device left out.

    Every device weighs the same. Residuals are those of constants that have not seen the device,
    which is their ``source``. The least factor is ``at_least``: what is modelled was chosen with
    rows of all devices in sight.
    """
    without = bands_without(residuals, FRACTIONS, method)
    weights, _ = source_weights(residuals)
    found = {}
    for place, share in enumerate(FRACTIONS):
        beyond = np.array(
            [
                _beyond(each.error, limits_of(without[each.source], each.classes)[place])
                for each in residuals
            ]
        )
        held = conformal_share(weights, share)
        factor = max(at_least, weighted_quantile(beyond, weights, held))
        found[f"factor_{SHARES[place]}"] = round(factor, 2)
    return found


def _beyond(error: float, limits: Limits) -> float:
    """Return by which factor a band must grow to hold a residual."""
    side = limits.high if error > 0.0 else limits.low
    return abs(error) / max(abs(side), 1e-6)


def _entry(limits: Sequence[Limits], widening: float | Sequence[float]) -> dict[str, float]:
    sides = {}
    factors = np.broadcast_to(widening, len(SHARES)).tolist()
    for share, limit, factor in zip(SHARES, limits, factors, strict=True):
        sides[f"low_{share}"] = round(math.exp(factor * limit.low), 3)
        sides[f"high_{share}"] = round(math.exp(factor * limit.high), 3)
    return sides
