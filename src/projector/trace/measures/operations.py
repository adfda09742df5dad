"""Activities put together by operation, layer, phase, type, kernel or iteration."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.errors import ConfigError, shown
from projector.trace.activity import COMPUTE, PHASES, TYPES, Activities
from projector.trace.measures.numbers import Groups, group, spreads

_KEYS: Mapping[str, tuple[str, ...]] = {
    "operation": ("operation", "phase", "type"),
    "layer": ("layer", "phase"),
    "phase": ("phase",),
    "type": ("type", "phase"),
    "kernel": ("name", "phase", "type"),
    "iteration": ("iteration",),
}
"""Columns of activities whose distinct values make the rows."""

GRANULARITIES = tuple(_KEYS)

_BAND = ("median", "p25", "p75", "min", "max")

OUTSIDE = "(outside operations)"
"""Name of the row of activities that no operation launched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRow:
    """Activities that have an operation, or another key, in common.

    Times of kernels that run at once are added, so that shares are shares of work, not of the span.
    """

    name: str
    phase: str | None
    type: str | None
    layer: int | None
    iteration: int | None
    count: int
    """Activities."""
    total_ns: float
    share: float
    """Of the duration of all selected activities."""
    duration_ns: Mapping[str, float]
    """Of one activity: ``median``, ``p25``, ``p75``, ``min``, ``max``."""
    per_iteration_ns: Mapping[str, float]
    """The same of the sum over an iteration of a rank, over those that have any."""
    recomputed: float
    """Share of the activities that repeat a forward within the backward."""
    preparation_ns: float | None
    """Mean over the activities whose launch is known; None where none is."""
    call_ns: float | None
    launch_ns: float | None
    """Sum of both over all activities whose launch is known."""
    overlap: float | None
    """Median share of a computing activity during which communication runs."""

    def to_dict(self) -> dict[str, Any]:
        """Return the object of JSON."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return {
            name: dict(value) if isinstance(value, Mapping) else value
            for name, value in found.items()
        }


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What neighbours decide, and what is therefore measured before rows are chosen."""

    preparation_ps: Ints
    """int64[activities], -1 where it is not known."""
    call_ps: Ints
    overlap: Floats
    """float64[activities], NaN where it means nothing."""

    def take(self, rows: Flags) -> "Neighbours":
        """Return those of some activities."""
        return Neighbours(self.preparation_ps[rows], self.call_ps[rows], self.overlap[rows])


def operation_rows(
    activities: Activities, neighbours: Neighbours, by: str = "operation"
) -> list[OperationRow]:
    """Return the rows of a table, the largest sum of durations first.

    Parameters
    ----------
    activities : Activities
        The activities that count.
    neighbours : Neighbours
        Their launch overhead and overlap.
    by : str
        One of `GRANULARITIES`. Layers and iterations come in their own order.

    Raises
    ------
    ConfigError
        If the granularity does not exist.
    """
    if by not in _KEYS:
        msg = f"by: there is no {shown(by)}; known: {', '.join(GRANULARITIES)}"
        raise ConfigError(msg, key="by", value=by, allowed=list(GRANULARITIES))
    if not len(activities):
        return []
    same = group(*(getattr(activities, name) for name in _KEYS[by]))
    first = same.first
    sums = _Sums.of(activities, neighbours, same)
    order = np.argsort(-sums.total_ps, kind="stable")
    if by in {"layer", "iteration"}:
        order = np.arange(len(first))
    keys = [getattr(activities, name)[first[order]].tolist() for name in _KEYS[by]]
    return [
        _row(activities, dict(zip(_KEYS[by], key, strict=True)), sums, place)
        for place, *key in zip(order.tolist(), *keys, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Sums:
    """What the groups come to; one value a group."""

    count: Ints
    total_ps: Ints
    duration_ps: Floats
    per_iteration_ps: Floats
    recomputed: Ints
    launched: Ints
    preparation_ps: Ints
    call_ps: Ints
    overlap: Floats

    @staticmethod
    def of(activities: Activities, near: Neighbours, same: Groups) -> "_Sums":
        duration = activities.end_ps - activities.start_ps
        known = (near.preparation_ps >= 0) & (near.call_ps >= 0)
        overlapped = (activities.klass == COMPUTE) & ~np.isnan(near.overlap)
        return _Sums(
            same.sizes(),
            same.sums(duration),
            spreads(duration, same.of, same.count),
            _per_iteration(activities, duration, same),
            same.sums(activities.recompute),
            same.sums(known),
            same.sums(np.where(known, near.preparation_ps, 0)),
            same.sums(np.where(known, near.call_ps, 0)),
            spreads(near.overlap[overlapped], same.of[overlapped], same.count)[:, 0],
        )


def _per_iteration(activities: Activities, duration: Ints, same: Groups) -> Floats:
    samples = group(same.of, activities.rank, activities.iteration)
    return spreads(samples.sums(duration), samples.keys[0], same.count)


def _row(activities: Activities, key: Mapping[str, int], sums: _Sums, place: int) -> OperationRow:
    launched = int(sums.launched[place])
    preparation, call = int(sums.preparation_ps[place]), int(sums.call_ps[place])
    overlap = float(sums.overlap[place])
    layer, iteration = key.get("layer", -1), key.get("iteration", -1)
    total = int(sums.total_ps.sum())
    return OperationRow(
        name=_name(activities, key),
        phase=PHASES[key["phase"]] if "phase" in key else None,
        type=TYPES[key["type"]] if "type" in key else None,
        layer=layer if layer >= 0 else None,
        iteration=iteration if iteration >= 0 else None,
        count=int(sums.count[place]),
        total_ns=int(sums.total_ps[place]) / 1000,
        share=int(sums.total_ps[place]) / total if total else 0.0,
        duration_ns=_band(sums.duration_ps[place]),
        per_iteration_ns=_band(sums.per_iteration_ps[place]),
        recomputed=int(sums.recomputed[place]) / int(sums.count[place]),
        preparation_ns=preparation / launched / 1000 if launched else None,
        call_ns=call / launched / 1000 if launched else None,
        launch_ns=(preparation + call) / 1000 if launched else None,
        overlap=None if np.isnan(overlap) else overlap,
    )


def _name(activities: Activities, key: Mapping[str, int]) -> str:
    if "operation" in key:
        code = key["operation"]
        return activities.operations[code] if code >= 0 else OUTSIDE
    if "name" in key:
        return activities.names[key["name"]]
    for name in ("layer", "iteration"):
        if name in key:
            return f"{name} {key[name]}" if key[name] >= 0 else f"outside {name}s"
    return TYPES[key["type"]] if "type" in key else PHASES[key["phase"]]


def _band(values_ps: Floats) -> dict[str, float]:
    return {name: float(each) / 1000 for name, each in zip(_BAND, values_ps, strict=True)}
