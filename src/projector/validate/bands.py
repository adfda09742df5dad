"""Bands of ``hardware/uncertainty.yaml`` from validated tables (`projector.validate.conformal`)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from projector.config.bands import SHARES
from projector.config.device_file import load_device
from projector.validate.conformal import (
    Limits,
    Method,
    Residual,
    bands_of,
    bands_without,
    conformal_share,
    limits_of,
    source_weights,
    weighted_quantile,
)
from projector.validate.names import device_of
from projector.validate.run import Result

FRACTIONS = tuple(share / 100.0 for share in SHARES)


def residuals_of(results: Iterable[Result], *, by_device: bool = False) -> list[Residual]:
    """Return the residuals of the rows of a table, without doubtful ones.

    Constants that have not seen the source of a row give its residual, where there are any.

    Parameters
    ----------
    results : iterable of Result
    by_device : bool
        Whether the devices of one source count as sources of their own, for kernels: a source that
        times many devices has a bias on each.
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
    residuals: Sequence[Residual], method: Method, widening: float = 1.0
) -> dict[str, dict[str, Any]]:
    """Return the entries of every class.

    Parameters
    ----------
    residuals : sequence of Residual
    method : Method
    widening : float
        Factor on logarithms, where the constants have seen the rows.
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
    residuals: Sequence[Residual], method: Method, unseen: Mapping[str, Any] | None
) -> dict[str, dict[str, Any]]:
    """Return the entries of every class as they are without each source, by source."""
    found: dict[str, dict[str, Any]] = {}
    for source in sorted({each.source for each in residuals}):
        others = [each for each in residuals if each.source != source]
        found[source] = dict(tables_of(others, method))
        if unseen is not None:
            devices = sorted({each.device for each in others})
            found[source]["unseen"] = {**unseen, "devices": devices}
    return found


def unseen_factors(
    residuals: Sequence[Residual], method: Method, at_least: float
) -> dict[str, float]:
    """Return how much wider bands must be to hold rows of a device left out.

    Every device weighs the same.

    Parameters
    ----------
    residuals : sequence of Residual
        Of rows projected with constants that have not seen their device, whose ``source`` is it.
    method : Method
    at_least : float
        Least factor: what is modelled was chosen with rows of all devices in sight.
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


def _entry(limits: Sequence[Limits], widening: float) -> dict[str, float]:
    sides = {}
    for share, limit in zip(SHARES, limits, strict=True):
        sides[f"low_{share}"] = round(math.exp(widening * limit.low), 3)
        sides[f"high_{share}"] = round(math.exp(widening * limit.high), 3)
    return sides
