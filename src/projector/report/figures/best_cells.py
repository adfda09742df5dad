"""The best of a column for each pair of values of two axes, from all rows of a sweep."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.errors import ConfigError
from projector.projection.results import TEXT
from projector.report.figures.rows import (
    axes_of,
    codes,
    more_is_better,
    numbers,
    resolve,
    unit_of,
)
from projector.sweeps.result import VERDICT_COLUMNS, SweepResult
from projector.sweeps.space import cell
from projector.sweeps.store import Plan

KEY = "plot"

MOST_CELLS = 4_000_000
"""Cells of a heat map, more than any screen has; their memory would have no bound."""


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The best of one column for each pair of values of two axes."""

    fields: tuple[str, str]
    """The axis from left to right and the one from bottom to top."""
    values: tuple[tuple[Any, ...], tuple[Any, ...]]
    column: str
    best: Floats
    """float64[values of the second, values of the first]; NaN where nothing fits."""
    rows: Ints
    """Rows of each cell, whether they fit or not."""
    over: tuple[str, ...]
    """The other axes, of whose values the best is taken."""

    @property
    def label(self) -> str:
        """Label of the value of a cell."""
        extreme = "largest" if more_is_better(self.column) else "least"
        return f"{unit_of(self.column)}: {extreme} that fits"


def check_fields(
    fields: Sequence[str], column: str, kinds: Mapping[str, str]
) -> tuple[str, str, str]:
    """Return the full names of two axes and a column.

    Raises
    ------
    ConfigError
        If there are not two fields, a name is unknown, or the column holds no numbers.
    """
    known = [*axes_of(kinds), *(name for name in ("gpus", "parallelism.dp") if name in kinds)]
    if len(fields) != 2:
        msg = f"{KEY}: a heat map has two axes, got {', '.join(fields) or 'none'}"
        raise ConfigError(msg, key=KEY, value=list(fields), allowed="two axes of the space")
    first, second = (resolve(name, known, key=KEY) for name in fields)
    if first == second:
        msg = f"{KEY}: a heat map has two different axes, got {first} twice"
        raise ConfigError(msg, key=KEY, value=first, allowed=known)
    plottable = [
        name for name, kind in kinds.items() if kind != TEXT and name not in axes_of(kinds)
    ]
    return first, second, resolve(column, plottable, key=KEY)


def heat_maps(
    result: SweepResult, requests: Sequence[tuple[str, str, str]]
) -> list[HeatMap | None]:
    """Read several heat maps of (axis, axis, column) at once, one chunk in memory at a time.

    A map with more than `MOST_CELLS` is None.
    """
    grids = [
        _Grid(*request, [values_of(result.plan, field) for field in request[:2]])
        for request in requests
    ]
    if grids:
        columns = dict.fromkeys(
            [*VERDICT_COLUMNS, *(name for request in requests for name in request)]
        )
        for table in result.tables(list(columns)):
            fits = result.is_ranked(table)
            coded = {name: codes(table, name) for request in requests for name in request[:2]}
            for grid in grids:
                grid.add(coded, numbers(table, grid.column), fits)
    axes = axes_of(result.columns)
    return [grid.finish(axes) for grid in grids]


class _Grid:
    """A heat map that grows with the values it meets."""

    def __init__(self, first: str, second: str, column: str, values: list[list[Any]]) -> None:
        self.fields, self.column = (first, second), column
        self._sign = 1.0 if more_is_better(column) else -1.0
        x, y = ({value: index for index, value in enumerate(axis_values)} for axis_values in values)
        self._indices: tuple[dict[Any, int], dict[Any, int]] = (x, y)
        self._best = np.full((0, 0), -np.inf)
        self._rows = np.zeros((0, 0), np.int64)
        self._grow()

    def add(self, coded: dict[str, tuple[Ints, list[Any]]], value: Floats, fits: Flags) -> None:
        """Take the rows of one chunk."""
        coordinates = []
        for field, known in zip(self.fields, self._indices, strict=True):
            code, chunk_values = coded[field]
            indices = np.array(
                [known.setdefault(item, len(known)) for item in chunk_values], np.int64
            )
            coordinates.append(indices[code])
        if not self._grow():
            return
        x, y = coordinates
        np.add.at(self._rows, (y, x), 1)
        valid = fits & ~np.isnan(value)
        np.maximum.at(self._best, (y[valid], x[valid]), self._sign * value[valid])

    def _grow(self) -> bool:
        """Make room for all known values; tell whether there are not too many."""
        if len(self._indices[0]) * len(self._indices[1]) > MOST_CELLS:
            self._best, self._rows = self._best[:0, :0], self._rows[:0, :0]
            return False
        grow = [
            (0, len(known) - size)
            for known, size in zip(self._indices[::-1], self._best.shape, strict=True)
        ]
        self._best = np.pad(self._best, grow, constant_values=-np.inf)
        self._rows = np.pad(self._rows, grow)
        return True

    def finish(self, axes: Iterable[str]) -> HeatMap | None:
        """Sort the values of both axes; None if there are too many."""
        if not self._grow():
            return None
        orders = [_order(list(known)) for known in self._indices]
        best = np.where(np.isinf(self._best), np.nan, self._sign * self._best)
        cells = np.ix_(orders[1], orders[0])
        first, second = (
            tuple(list(known)[index] for index in order)
            for known, order in zip(self._indices, orders, strict=True)
        )
        return HeatMap(
            self.fields,
            (first, second),
            self.column,
            best[cells],
            self._rows[cells],
            tuple(name for name in axes if name not in self.fields),
        )


def values_of(plan: Plan, field: str) -> list[Any]:
    """Return the values that a space lists for an axis, as its column holds them.

    Rows have further ones where a value is computed, or where it is left open.
    """
    kind, values = plan.kinds.get(field), []
    axes = plan.space.get("axes")
    for axis in axes if isinstance(axes, list) else []:
        if field in axis["fields"]:
            column = axis["fields"].index(field)
            for point in axis["points"]:
                # A value that the column cannot hold has no row either.
                with suppress(ConfigError):
                    values.append(cell(field, str(kind), point[column]))
    return list(dict.fromkeys(value for value in values if value is not None))


def _order(values: list[Any]) -> list[int]:
    """Sort numbers by size and leave words in their order; missing values come last."""
    words = any(isinstance(value, str) for value in values)
    return sorted(
        range(len(values)),
        key=lambda index: (
            values[index] is None,
            0 if words or values[index] is None else values[index],
            index,
        ),
    )
