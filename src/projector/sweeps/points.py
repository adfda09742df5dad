"""Points of a space become batches of jobs, without a job for each of them.

What a point sets in a section of its job depends on a few axes, and so does every constraint and
every computed field. Each is read once for each combination of those axes and then looked up.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Flags, Ints
from projector.config.device import Device
from projector.config.framework import decides_defaults
from projector.config.job import Job
from projector.config.load import Variants
from projector.config.space import Space
from projector.errors import ProjectorError
from projector.kernels.space_index import combine_places, find_places
from projector.lower.batch import SECTIONS, JobBatch, Sections
from projector.lower.columns import SectionTable

DENSE_TABLE = 1 << 22
"""Combinations of axes up to which each has a place in a table; beyond, those that are met are
kept in a dictionary."""

MOST_VALUES = 1 << 17
"""Values that are kept of one look-up; beyond, it begins anew."""

_UNKNOWN = -1
_DEVICE = "cluster.device."


class Lookup:
    """Values that depend on some axes of a space, computed when they are first met.

    A value is anything; where it cannot be computed it is the error.
    """

    def __init__(self, space: Space, axes: Sequence[int], compute: Callable[..., Any]) -> None:
        """Keep what is looked up: ``compute`` takes axis -> place."""
        self.axes = tuple(axes)
        self._axes = np.array(self.axes, np.int64)
        self._sizes = [len(space.axes[axis].points) for axis in self.axes]
        self._compute = compute
        self._combinations = int(np.prod(np.array(self._sizes, object))) if self.axes else 1
        self._clear()

    def _clear(self) -> None:
        self.values: list[Any] = []
        self._flags: dict[str, Flags] = {}
        self._dense: Ints | None = None
        if self._combinations <= DENSE_TABLE:
            self._dense = np.full(self._combinations, _UNKNOWN, np.int64)
        self._sparse: dict[int, int] = {}

    def numbers(self, positions: "Places") -> Ints:
        """Return the number of each point's value in ``values``."""
        if len(self.values) > MOST_VALUES:
            self._clear()
        if not self.axes:
            if not self.values:
                self._add(0)
            return np.zeros(len(positions), np.int64)
        keys = positions.combined(self._axes)
        if self._dense is not None:
            of_point = self._dense.take(keys)
            if len(of_point) and of_point.min() == _UNKNOWN:
                new = np.unique(keys[of_point == _UNKNOWN])
                self._dense[new] = [self._add(key) for key in new.tolist()]
                of_point = self._dense.take(keys)
            return of_point
        unique_keys, inverse = np.unique(keys, return_inverse=True)
        numbers = [
            self._sparse[key] if key in self._sparse else self._remember(key)
            for key in unique_keys.tolist()
        ]
        return np.array(numbers, np.int64)[inverse]

    def _remember(self, key: int) -> int:
        self._sparse[key] = number = self._add(key)
        return number

    def _add(self, key: int) -> int:
        positions = {}
        for axis, size in zip(reversed(self.axes), reversed(self._sizes), strict=True):
            key, positions[axis] = divmod(key, size)
        try:
            value = self._compute(positions)
        except ProjectorError as error:
            value = error
        self.values.append(value)
        return len(self.values) - 1

    def failed(self, numbers: Ints) -> Flags:
        """Return which of the values with these numbers are errors."""
        return self._flag("failed", lambda value: isinstance(value, ProjectorError))[numbers]

    def false(self, numbers: Ints) -> Flags:
        """Return which of the values with these numbers are anything but true."""
        return self._flag("false", lambda value: value is not True)[numbers]

    def _flag(self, name: str, test: Callable[[Any], bool]) -> Flags:
        known = self._flags.get(name, np.zeros(0, np.bool_))
        if len(known) < len(self.values):
            more = [test(value) for value in self.values[len(known) :]]
            known = self._flags[name] = np.concatenate([known, np.array(more, np.bool_)])
        return known


class Places:
    """Positions of points on each axis of a space."""

    def __init__(self, space: Space, points: Ints) -> None:
        """Find the positions of some points."""
        self._sizes = np.array([len(axis.points) for axis in space.axes], np.int64)
        self._positions = np.empty((len(self._sizes), len(points)), np.int32)
        find_places(points, self._sizes, self._positions)

    def __len__(self) -> int:
        """Return the number of points."""
        return int(self._positions.shape[1])

    def keep(self, chosen: Flags) -> None:
        """Leave points out."""
        self._positions = self._positions.take(np.flatnonzero(chosen), axis=1)

    def on(self, axis: int) -> Ints:
        """Return the positions on one axis."""
        return np.asarray(self._positions[axis], np.int64)

    def combined(self, axes: Ints) -> Ints:
        """Return the number of each point's combination of some axes."""
        key = np.empty(len(self), np.int64)
        combine_places(self._positions, axes, self._sizes, key)
        return key


class PointBatch(NamedTuple):
    """Points of a space as jobs."""

    rows: Ints
    """int64[jobs]: position among the points asked for."""
    jobs: JobBatch
    columns: dict[str, tuple[Ints, list[Any]]]
    """Field of an axis -> which value each job has, and the values."""
    left_out: list[tuple[ProjectorError | str, int]]
    """Why points are not legal jobs, as an error or the text of a broken constraint; how many."""


class PointReader:
    """Reads points of one space."""

    def __init__(self, space: Space) -> None:
        """Find out what depends on which axes."""
        self.space = space
        self._variants = Variants(space.base)
        self._devices: dict[tuple[tuple[str, str], ...], Device] = {}
        self._derived = {
            field: self._lookup([field], lambda overrides, field=field: overrides[field])
            for field in space.derived
        }
        self._constraints = [
            (
                constraint.text,
                self._lookup(
                    space.reads(constraint),
                    lambda overrides, constraint=constraint: space.keeps(constraint, overrides),
                ),
            )
            for constraint in space.constraints
        ]
        self._fields_of = {name: self._read_by(name) for name in SECTIONS}
        self._sections = [
            self._lookup(
                self._fields_of[name],
                lambda overrides, name=name: self._section(name, overrides),
            )
            for name in SECTIONS
        ]
        other = [field for field in space.fields if field.partition(".")[0] not in SECTIONS]
        self._others = self._lookup(other, self._other)
        self._tables = [_Table(name) for name in SECTIONS]

    def _read_by(self, section: str) -> list[str]:
        """Return the fields of a space that change a section."""
        decisive = (
            {field for field in self.space.fields if decides_defaults(field)}
            if section != "model" and self._variants.has_framework(self.space.fields)
            else set()
        )
        return [
            field
            for field in self.space.fields
            if field.partition(".")[0] == section or field in decisive
        ]

    def _lookup(self, fields: Sequence[str], compute: Callable[..., Any]) -> Lookup:
        axes, derived = self.space.axes_of(fields)
        return Lookup(
            self.space,
            axes,
            lambda positions: compute(self.space.overrides_at(positions, derived)),
        )

    def _section(self, name: str, overrides: Mapping[str, Any]) -> Any:
        stated = {
            field: value for field, value in overrides.items() if field in self._fields_of[name]
        }
        if name == "cluster":
            stated = self._with_device(stated)
        return self._variants.section(name, stated) if stated else getattr(self.space.base, name)

    def _with_device(self, stated: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the fields of a device by the device, one object for all its clusters."""
        said = {field: value for field, value in stated.items() if f"{field}.".startswith(_DEVICE)}
        if not said:
            return dict(stated)
        key = tuple((field, repr(value)) for field, value in said.items())
        if key not in self._devices:
            if len(self._devices) > MOST_VALUES:
                self._devices.clear()
            self._devices[key] = self._variants.section("cluster", said).device
        rest = {field: value for field, value in stated.items() if field not in said}
        return {_DEVICE[:-1]: self._devices[key], **rest}

    def _other(self, overrides: Mapping[str, Any]) -> None:
        """Raise what fields outside of the sections break; they change no result."""
        stated = {
            field: value
            for field, value in overrides.items()
            if field.partition(".")[0] not in SECTIONS
        }
        self._variants.job(stated)

    def read(self, points: Ints) -> PointBatch:
        """Return some points, int64[points], as jobs."""
        positions = Places(self.space, points)
        rows = np.arange(len(points))
        left_out: list[tuple[ProjectorError | str, int]] = []
        sections: list[Ints] = []

        def drop(numbers: Ints, bad: Flags, why: Callable[[int], ProjectorError | str]) -> None:
            nonlocal rows
            if not bad.any():
                return
            refused, counts = np.unique(numbers[bad], return_counts=True)
            left_out.extend(
                (why(number), count)
                for number, count in zip(refused.tolist(), counts.tolist(), strict=True)
            )
            rows = rows[~bad]
            positions.keep(~bad)
            sections[:] = [section[~bad] for section in sections]

        for lookup in self._derived.values():
            numbers = lookup.numbers(positions)
            drop(numbers, lookup.failed(numbers), lookup.values.__getitem__)
        for text, lookup in self._constraints:
            numbers = lookup.numbers(positions)
            drop(numbers, lookup.false(numbers), partial(_broken, lookup, text))
        for lookup in self._sections:
            numbers = lookup.numbers(positions)
            sections.append(numbers)
            drop(numbers, lookup.failed(numbers), lookup.values.__getitem__)
        numbers = self._others.numbers(positions)
        drop(numbers, self._others.failed(numbers), self._others.values.__getitem__)
        return PointBatch(rows, self._batch(np.stack(sections)), self._columns(positions), left_out)

    def _batch(self, numbers: Ints) -> JobBatch:
        tables = Sections(
            *(
                table.of(lookup.values, getattr(self.space.base, table.name))
                for table, lookup in zip(self._tables, self._sections, strict=True)
            )
        )

        def job(row: int) -> Job:
            sections = {
                name: getattr(tables, name).items[numbers[position, row]]
                for position, name in enumerate(SECTIONS)
            }
            return self._variants.put_together(sections, self.space.fields)

        return JobBatch(tables, numbers, job)

    def _columns(self, positions: Places) -> dict[str, tuple[Ints, list[Any]]]:
        columns = {}
        for number, axis in enumerate(self.space.axes):
            for position, field in enumerate(axis.fields):
                columns[field] = (positions.on(number), [point[position] for point in axis.points])
        for field, lookup in self._derived.items():
            columns[field] = (lookup.numbers(positions), lookup.values)
        return columns


class _Table:
    """The table of what a look-up of sections has found, which grows with it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._values: list[Any] | None = None
        self._table: SectionTable[Any]

    def of(self, values: list[Any], base: Any) -> SectionTable[Any]:
        """Return the table of these values, a list that only grows.

        An error has no fields. The base takes its row, but no job uses it.
        """
        known = len(self._table.items) if values is self._values else 0
        more = [base if isinstance(value, ProjectorError) else value for value in values[known:]]
        if not known:
            self._values, self._table = values, SectionTable(more)
        elif more:
            self._table.grow(more)
        return self._table


def _broken(lookup: Lookup, text: str, number: int) -> ProjectorError | str:
    value = lookup.values[number]
    return value if isinstance(value, ProjectorError) else f"constraint: {text}"
