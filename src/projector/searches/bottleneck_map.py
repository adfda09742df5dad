"""Which class bounds the step, over two fields of a job."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.config.job import Job
from projector.config.load import load_job
from projector.errors import ConfigError, ProjectorError
from projector.projection.evaluate import Evaluation
from projector.searches.bottleneck import CLASSES, class_seconds, class_shares
from projector.searches.fields import Lever, check_factor, levers_of, project
from projector.units import to_ms

RANGE = 4.0
MOST_RANGE = 1000.0
POINTS, MOST_POINTS = 17, 101


@dataclass(frozen=True, slots=True)
class Cell:
    """One job of a map."""

    iteration_time_s: float
    shares: Mapping[str, float]
    """Share of the step that each class has."""

    @property
    def bound(self) -> str:
        """The class with the largest share."""
        return max(self.shares, key=lambda name: self.shares[name])


@dataclass(frozen=True, slots=True)
class MapAxis:
    """A field and the values it takes, rising."""

    field: str
    value: float
    """Value in the job; for fields that move together, that of the first field, as in `values`."""
    values: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"field": self.field, "value": self.value, "values": list(self.values)}


@dataclass(frozen=True, slots=True)
class BottleneckMap:
    """A grid of jobs that differ in two fields."""

    job: Job
    x: MapAxis
    y: MapAxis
    cells: tuple[tuple[Cell | None, ...], ...]
    """One tuple for each value of y; None marks an illegal job."""
    infeasible: Mapping[str, int]
    """Reason -> number of illegal cells."""

    def to_dict(self) -> dict[str, Any]:
        """Return the value of ``map`` in ``--json``; rows are values of y, illegal jobs null."""
        return {
            "x": self.x.to_dict(),
            "y": self.y.to_dict(),
            "classes": list(CLASSES),
            "bound": self._grid(lambda cell: cell.bound),
            "iteration_time_ms": self._grid(lambda cell: to_ms(cell.iteration_time_s)),
            "shares": self._grid(lambda cell: dict(cell.shares)),
            "infeasible": dict(self.infeasible),
        }

    def _grid(self, read: Callable[[Cell], Any]) -> list[list[Any]]:
        return [[None if cell is None else read(cell) for cell in row] for row in self.cells]


def bottleneck_map(
    job: Job | Mapping[str, Any] | str,
    fields: Sequence[str],
    *,
    factor: float = RANGE,
    points: int = POINTS,
) -> BottleneckMap:
    """Project a job over two of its fields and say what bounds each step.

    Parameters
    ----------
    job : Job, mapping or str
        Anything that `load_job` reads.
    fields : two strings
        Dotted fields, of the x and the y axis; several that move together joined by ``+``.
    factor : float
        Fields go from value / factor to value * factor in even steps of the logarithm; whole
        numbers are halved and doubled as often as that allows.
    points : int
        Values of a field, odd, so that the job's own is among them.
    """
    factor = check_factor("range", factor, MOST_RANGE, least=1.0)
    if points % 2 == 0 or not 3 <= points <= MOST_POINTS:
        msg = f"points must be an odd number from 3 to {MOST_POINTS}, got {points!r}"
        raise ConfigError(msg, key="points", value=points, allowed=f"odd, 3 to {MOST_POINTS}")
    if len(fields) != 2:
        msg = f"map takes two fields, got {len(fields)}: {', '.join(fields)}"
        raise ConfigError(msg, key="map", value=list(fields), allowed="FIELD,FIELD")
    base = load_job(job)
    x, y = levers_of(base, fields)
    steps_x, steps_y = _factors(x, factor, points), _factors(y, factor, points)
    overrides = [{**x.times(right), **y.times(up)} for up in steps_y for right in steps_x]
    outcomes = project(base, overrides, _cells)
    reasons = Counter(
        outcome.message for outcome in outcomes if isinstance(outcome, ProjectorError)
    )
    if reasons.total() == len(outcomes):
        msg = f"map: no cell is a legal job: {next(iter(reasons))}"
        raise ConfigError(msg, key="map", value=list(fields), allowed="fields that can be varied")
    cells = [None if isinstance(outcome, ProjectorError) else outcome for outcome in outcomes]
    width = len(steps_x)
    return BottleneckMap(
        job=base,
        x=_axis(x, steps_x),
        y=_axis(y, steps_y),
        cells=tuple(tuple(cells[begin : begin + width]) for begin in range(0, len(cells), width)),
        infeasible=dict(reasons),
    )


def _factors(lever: Lever, factor: float, points: int) -> list[float]:
    """Return factors around 1; integers only move by powers of two, to stay divisible."""
    if not lever.whole:
        half = points // 2
        return [factor ** (step / half) for step in range(-half, half + 1)]
    most = int(np.log2(factor) + 1e-9)
    factors: list[float] = []
    for power in range(-most, most + 1):
        moved = lever.times(2.0**power)
        exact = all(
            moved[field] == value * 2.0**power
            for field, value in zip(lever.fields, lever.values, strict=True)
        )
        if exact:
            factors.append(2.0**power)
    return factors


def _axis(lever: Lever, factors: Sequence[float]) -> MapAxis:
    values = tuple(float(lever.times(factor)[lever.fields[0]]) for factor in factors)
    return MapAxis(lever.name, float(lever.value), values)


def _cells(evaluation: Evaluation) -> list[Cell]:
    times = evaluation.steps.iteration_s.tolist()
    seconds = class_seconds(evaluation)
    return [
        Cell(time, class_shares(job_seconds))
        for time, job_seconds in zip(times, seconds, strict=True)
    ]
