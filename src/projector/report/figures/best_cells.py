"""The best of a column for each pair of values of two axes, from all rows of a sweep."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.errors import ConfigError
from projector.projection.results import TEXT
from projector.report.figures.axes import (
    axis_name,
    device_name,
    tied_fields,
    workload_fields,
    workload_name,
)
from projector.report.figures.rows import (
    axes_of,
    codes,
    more_is_better,
    numbers,
    resolve,
)
from projector.report.figures.words import HARDWARE, base_value, label_of, words_of
from projector.sweeps.result import VERDICT_COLUMNS, SweepResult
from projector.sweeps.space import cell
from projector.sweeps.store import Plan

KEY = "plot"

MOST_CELLS = 4_000_000
"""Cells of a heat map, more than any screen has; their memory would have no bound."""


@dataclass(frozen=True, slots=True)
class Panel:
    """The best of one column for one workload."""

    name: str
    best: Floats
    """float64[values of the second axis, values of the first]; NaN where nothing fits."""
    rows: Ints


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
    """The other axes, of whose values the best is taken; tied ones once, joined by ``=``."""
    base: tuple[float | None, float | None] = (None, None)
    """What the base job has on both axes, None where that is not a number."""
    chip: str = ""
    """Name of the base job's device."""
    names: tuple[str, str] = ("", "")
    """Words for both axes, with those that are tied to them; dotted names where empty."""
    workloads: tuple[Panel, ...] = ()
    """Where the rows are of several workloads: each of them, in the column's own unit."""

    @property
    def label(self) -> str:
        """Label of the value of a cell."""
        extreme = "largest" if more_is_better(self.column) else "least"
        return f"{label_of(self.column)}: {extreme} that fits"

    @property
    def reference(self) -> tuple[int, int] | None:
        """Cell of the base chip, row and column, where both axes are numbers of hardware."""
        place = []
        for field, values, base in zip(self.fields, self.values, self.base, strict=True):
            found = [
                index
                for index, value in enumerate(values)
                if base is not None
                and isinstance(value, int | float)
                and abs(value - base) <= 1e-9 * abs(base)
            ]
            if not field.startswith(HARDWARE) or not found:
                return None
            place.append(found[0])
        return place[1], place[0]

    @property
    def relative_label(self) -> str:
        """Label of the value of a cell of `relative`."""
        one = f"1 = {self.chip}" if self._is_to_chip else "1 = best cell of the workload"
        extreme = "largest" if more_is_better(self.column) else "least"
        return f"{words_of(self.column).name}, {extreme} that fits: {one}"

    @property
    def _is_to_chip(self) -> bool:
        reference = self.reference
        return reference is not None and all(
            np.isfinite(panel.best[reference]) or not np.isfinite(panel.best).any()
            for panel in self.workloads
        )

    def relative(self) -> tuple[Panel, ...]:
        """Return the geometric mean over the workloads, and each of them, as multiples.

        A workload's cells are divided by its cell of the base chip where every workload has one,
        else by its best cell. The mean is empty where a workload does not fit; workloads that fit
        nowhere do not take part.
        """
        sign = 1.0 if more_is_better(self.column) else -1.0
        panels = []
        for panel in self.workloads:
            finite = panel.best[np.isfinite(panel.best)]
            if not len(finite):
                panels.append(panel)
                continue
            one = sign * float((sign * finite).max())
            if self._is_to_chip and self.reference is not None:
                one = float(panel.best[self.reference])
            panels.append(Panel(panel.name, panel.best / one if one else panel.best, panel.rows))
        return (self._mean(panels), *panels)

    def _mean(self, panels: Sequence[Panel]) -> Panel:
        taking_part = [panel for panel in panels if np.isfinite(panel.best).any()] or panels
        stacked = np.array([panel.best for panel in taking_part])
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.exp(np.log(stacked).mean(axis=0))
        left_out = len(panels) - len(taking_part)
        name = f"geometric mean of {len(taking_part)} workloads"
        if left_out:
            name += f"; {left_out} fit{'s' if left_out == 1 else ''} nowhere"
        # A cell counts as legal where some workload has a job in it.
        return Panel(name, mean, np.sum([panel.rows for panel in panels], axis=0))


def check_fields(
    fields: Sequence[str], column: str, kinds: Mapping[str, str]
) -> tuple[str, str, str]:
    """Return the full names of two axes and a column."""
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
    axes = axes_of(result.columns)
    workloads = workload_fields(result.plan, axes)
    grids = [
        _Grid(
            *request,
            [values_of(result.plan, field) for field in request[:2]],
            [field for field in workloads if field not in request[:2]],
        )
        for request in requests
    ]
    if grids:
        columns = dict.fromkeys(
            [*VERDICT_COLUMNS, *workloads, *(name for request in requests for name in request)]
        )
        axis_columns = dict.fromkeys(
            [*workloads, *(name for request in requests for name in request[:2])]
        )
        for table in result.tables(list(columns)):
            fits = result.is_ranked(table)
            coded = {name: codes(table, name) for name in axis_columns}
            for grid in grids:
                grid.add(coded, numbers(table, grid.column), fits)
    return [grid.finish(result.plan, axes) for grid in grids]


class _Grid:
    """A heat map that grows with the values and workloads it meets."""

    def __init__(
        self, first: str, second: str, column: str, values: list[list[Any]], workloads: list[str]
    ) -> None:
        self.fields, self.column, self._workloads = (first, second), column, workloads
        self._sign = 1.0 if more_is_better(column) else -1.0
        x, y = ({value: index for index, value in enumerate(axis_values)} for axis_values in values)
        names: dict[Any, int] = {}
        self._indices: tuple[dict[Any, int], dict[Any, int], dict[Any, int]] = (x, y, names)
        self._best = np.full((0, 0, 0), -np.inf)
        self._rows = np.zeros((0, 0, 0), np.int64)
        self._grow()

    def add(self, coded: dict[str, tuple[Ints, list[Any]]], value: Floats, fits: Flags) -> None:
        """Take the rows of one chunk."""
        if not len(value):
            return
        coordinates = []
        for field, known in zip(self.fields, self._indices[:2], strict=True):
            code, chunk_values = coded[field]
            indices = np.array(
                [known.setdefault(item, len(known)) for item in chunk_values], np.int64
            )
            coordinates.append(indices[code])
        workload = self._workload(coded, len(value))
        if not self._grow():
            return
        x, y = coordinates
        np.add.at(self._rows, (workload, y, x), 1)
        valid = fits & ~np.isnan(value)
        cells = workload[valid], y[valid], x[valid]
        np.maximum.at(self._best, cells, self._sign * value[valid])

    def _workload(self, coded: dict[str, tuple[Ints, list[Any]]], rows: int) -> Ints:
        """Return the number of the workload of each row of a chunk, in the order of rows."""
        known = self._indices[2]
        if not self._workloads:
            known.setdefault((), 0)
            return np.zeros(rows, np.int64)
        stacked = np.column_stack([coded[field][0] for field in self._workloads])
        distinct, first, of_row = np.unique(stacked, axis=0, return_index=True, return_inverse=True)
        number = np.zeros(len(distinct), np.int64)
        for place in np.argsort(first).tolist():
            key = tuple(
                coded[field][1][code]
                for field, code in zip(self._workloads, distinct[place].tolist(), strict=True)
            )
            number[place] = known.setdefault(key, len(known))
        return number[of_row.reshape(-1)]

    def _grow(self) -> bool:
        """Make room for all known values; tell whether there are not too many."""
        shape = tuple(len(known) for known in self._indices[::-1])
        if max(1, shape[0]) * shape[1] * shape[2] > MOST_CELLS:
            self._best, self._rows = self._best[:0, :0, :0], self._rows[:0, :0, :0]
            return False
        grow = [(0, size - now) for size, now in zip(shape, self._best.shape, strict=True)]
        self._best = np.pad(self._best, grow, constant_values=-np.inf)
        self._rows = np.pad(self._rows, grow)
        return True

    def finish(self, plan: Plan, axes: Sequence[str]) -> HeatMap | None:
        """Sort the values of both axes; None if there are too many."""
        if not self._grow():
            return None
        orders = [_order(list(known)) for known in self._indices[:2]]
        best = np.where(np.isinf(self._best), np.nan, self._sign * self._best)
        cells = np.ix_(range(len(best)), orders[1], orders[0])
        best, rows = best[cells], self._rows[cells]
        first, second = (
            tuple(list(known)[index] for index in order)
            for known, order in zip(self._indices[:2], orders, strict=True)
        )
        several = len(best) > 1
        panels = tuple(
            Panel(workload_name(dict(zip(self._workloads, key, strict=True))), best[row], rows[row])
            for key, row in self._indices[2].items()
        )
        job, tied = plan.space.get("base"), tied_fields(plan)
        return HeatMap(
            self.fields,
            (first, second),
            self.column,
            _best_of(best, self._sign),
            rows.sum(axis=0),
            _others(axes, [*self.fields, *(self._workloads if several else [])], tied),
            (base_value(job, self.fields[0]), base_value(job, self.fields[1])),
            device_name(job),
            (axis_name(self.fields[0], tied), axis_name(self.fields[1], tied)),
            panels if several else (),
        )


def _best_of(best: Floats, sign: float) -> Floats:
    """Return the best over the first axis, NaN where all are missing."""
    if not len(best):
        return best.reshape(best.shape[1:]) if best.size else np.zeros(best.shape[1:])
    filled = np.where(np.isnan(best), -np.inf, sign * best).max(axis=0)
    return np.where(np.isinf(filled), np.nan, sign * filled)


def _others(
    axes: Sequence[str], used: Sequence[str], tied: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """Return the axes that a map does not show, tied ones once."""
    seen = {fellow for field in used for fellow in (field, *tied.get(field, ()))}
    others = []
    for field in axes:
        if field not in seen:
            fellows = (field, *tied.get(field, ()))
            others.append(" = ".join(fellows))
            seen.update(fellows)
    return tuple(others)


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
