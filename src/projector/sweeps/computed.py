"""Constraints and computed fields of a space, for many of its points at once."""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Array, Ints
from projector.config.expression import Expression
from projector.config.space import DERIVED_FROM, Space, derived_number
from projector.errors import ProjectorError
from projector.sweeps.expressions import Unsupported, Values, evaluate

FEW = 8
"""Points that are sooner computed one by one."""


class Found(NamedTuple):
    """Values at some combinations of axes."""

    values: list[Any]
    """Values and errors, perhaps some of them equal."""
    numbers: Ints
    """int64[combinations]: which of them each combination has."""


Compute = Callable[[Mapping[int, Ints]], Found]
"""Returns the values at some combinations of places: axis -> int64[combinations]."""


class Computed:
    """One expression of a space, over the axes that it depends on.

    The same as `Space.overrides_at` and `Space.keeps` say of each point: they are asked where
    columns cannot say it.
    """

    def __init__(
        self,
        space: Space,
        expression: Expression,
        alone: Callable[[Mapping[int, int]], Any],
        *,
        truth: bool,
    ) -> None:
        """Keep an expression.

        Parameters
        ----------
        space : Space
        expression : Expression
            A constraint, or a computed field.
        alone : callable
            Returns its value where axes, axis -> place, stand; what is raised is the value too.
        truth : bool
            Whether only what is true matters.
        """
        self._space, self._expression = space, expression
        self._alone, self._one_by_one, self._truth = alone, one_by_one(alone), truth
        self._of_axis: dict[str, tuple[int, Values]] = {}

    @cached_property
    def in_columns(self) -> bool:
        """Whether columns can say it, which the types of what it reads decide."""
        first = {axis: np.zeros(1, np.int64) for axis in range(len(self._space.axes))}
        try:
            self._evaluated(self._expression, first, truth=self._truth)
        except Unsupported:
            return False
        return True

    def __call__(self, places: Mapping[int, Ints]) -> Found:
        """Return the values at some combinations of places, axis -> int64[combinations]."""
        count = _count(places)
        if count < FEW or not self.in_columns:
            return self._one_by_one(places)
        found = self._evaluated(self._expression, places, truth=self._truth)
        values, numbers = distinct(np.broadcast_to(found.array, count))
        unsure = np.flatnonzero(np.broadcast_to(found.unsure, count))
        numbers[unsure] = len(values) + np.arange(len(unsure))
        values += [_of_row(self._alone, places, row) for row in unsure.tolist()]
        return Found(values, numbers)

    def _evaluated(
        self, expression: Expression, places: Mapping[int, Ints], *, truth: bool
    ) -> Values:
        names = {name: self._named(name, places) for name in expression.names}
        found = evaluate(expression, names, truth=truth)
        # Python knows every name before it begins, also those that it then does not read.
        unsure = reduce(np.logical_or, (value.unsure for value in names.values()), found.unsure)
        return Values(found.array, unsure)

    def _named(self, name: str, places: Mapping[int, Ints]) -> Values:
        field = self._space.full_name(name)
        if field not in DERIVED_FROM:
            return self._field(field, places)
        given = {source: self._field(source, places) for source in DERIVED_FROM[field]}
        with np.errstate(all="ignore"):
            found: Values = derived_number(field, given)
        return found

    def _field(self, field: str, places: Mapping[int, Ints]) -> Values:
        """Return the values of a dotted field."""
        if field in self._space.derived:
            return self._evaluated(self._space.derived[field], places, truth=False)
        if field not in self._of_axis:
            self._of_axis[field] = self._read(field)
        axis, values = self._of_axis[field]
        return values.take(places[axis]) if axis >= 0 else values

    def _read(self, field: str) -> tuple[int, Values]:
        """Return the axis of a field, and its values there; -1 where all points have one value."""
        for number, axis in enumerate(self._space.axes):
            if field in axis.fields:
                position = axis.fields.index(field)
                return number, Values.of([point[position] for point in axis.points])
        if self._space.is_of_base(field):
            return -1, Values.constant(self._space.base_value(field))
        raise Unsupported


def distinct(array: Array) -> tuple[list[Any], Ints]:
    """Return the distinct values of a column, and which of them each row has."""
    if array.dtype == object:
        return array.tolist(), np.arange(len(array))
    # Zeros of both signs are two.
    bits = array.view(np.int64) if array.dtype == np.float64 else array
    _, first, numbers = np.unique(bits, return_index=True, return_inverse=True)
    return array[first].tolist(), numbers


def one_by_one(alone: Callable[[Mapping[int, int]], Any]) -> Compute:
    """Return what computes values of many combinations from what computes that of one."""

    def compute(places: Mapping[int, Ints]) -> Found:
        count = _count(places)
        return Found([_of_row(alone, places, row) for row in range(count)], np.arange(count))

    return compute


def _of_row(alone: Callable[[Mapping[int, int]], Any], places: Mapping[int, Ints], row: int) -> Any:
    try:
        return alone({axis: int(place[row]) for axis, place in places.items()})
    except ProjectorError as error:
        return error.with_traceback(None)


def _count(places: Mapping[int, Ints]) -> int:
    """Return the number of combinations: without axes there is one."""
    return len(next(iter(places.values()))) if places else 1


def decoded(keys: Ints, axes: Iterable[int], sizes: Iterable[int]) -> dict[int, Ints]:
    """Return axis -> places of numbered combinations of axes, of which the last varies fastest."""
    places = {}
    for axis, size in zip(reversed([*axes]), reversed([*sizes]), strict=True):
        keys, places[axis] = np.divmod(keys, size)
    return places
