"""Constraints and computed fields of a space, for many of its points at once.

Expressions over whole columns give exactly what Python computes one by one. Whatever might differ
from Python's own result is marked as unsure, and asked of Python: integers that a float cannot
hold, divisions by zero, infinities. What no column can say at all, such as a result that is now a
number and now a text, is `Unsupported` as a whole.
"""

import ast
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Array, Flags, Ints
from projector.config.space import Expression, Space
from projector.errors import ProjectorError

EXACT = float(1 << 53)
"""Integers below this are floats too, so that both kinds of arithmetic give the same."""


class Unsupported(Exception):  # noqa: N818  # not an error: Python is asked instead
    """Nothing that columns can say."""


@dataclass(frozen=True, eq=False)
class Values:
    """A column of values of one type, or one value for all rows."""

    array: Array
    """bool, int64, float64 or objects; without dimensions where it is one value."""
    unsure: Flags
    """Of which rows Python may say something else."""

    @classmethod
    def of(cls, values: Sequence[Any]) -> "Values":
        """Return the column of some values."""
        kinds = {*map(type, values)}
        if kinds == {bool}:
            array: Array = np.array(values, np.bool_)
        elif kinds == {int}:
            exact = [value if abs(value) < EXACT else 0 for value in values]
            unsure = np.array([abs(value) >= EXACT for value in values])
            return cls(np.array(exact, np.int64), unsure)
        elif kinds == {float}:
            array = np.array(values, np.float64)
        else:
            array = np.empty(len(values), object)
            for row, value in enumerate(values):  # at once, lists of one length would be rows
                array[row] = value
        return cls(array, np.zeros(len(values), np.bool_))

    @classmethod
    def constant(cls, value: Any) -> "Values":
        """Return the same value for all rows."""
        return cls.of([value]).take(np.int64(0))

    def take(self, places: Any) -> "Values":
        """Return the values at some places."""
        # The dots keep one text, or one list, an object in an array.
        return Values(self.array[places, ...], self.unsure[places, ...])

    @property
    def is_number(self) -> bool:
        """Whether these are numbers, or switches that count as numbers."""
        return self.array.dtype != object

    @property
    def is_float(self) -> bool:
        """Whether these are fractions."""
        return self.array.dtype == np.float64

    def number(self) -> "Values":
        """Return operands of arithmetic: switches become integers."""
        if not self.is_number:
            raise Unsupported
        if self.array.dtype == np.bool_:
            return Values(self.array.astype(np.int64), self.unsure)
        return self

    def truth(self) -> "Values":
        """Return which are true."""
        if not self.is_number:
            raise Unsupported
        return Values(self.array != 0, self.unsure)

    def where(self, condition: "Values", other: "Values") -> "Values":
        """Return these values where a condition holds, others elsewhere."""
        if self.array.dtype != other.array.dtype:
            raise Unsupported
        chosen = condition.array
        unsure = condition.unsure | np.where(chosen, self.unsure, other.unsure)
        return Values(np.where(chosen, self.array, other.array), unsure)

    def _with(self, other: Any, operate: Callable[[Any, Any], Array]) -> "Values":
        """Return the result of an operation that integers and fractions share."""
        left, right = self.number(), _values(other).number()
        unsure = left.unsure | right.unsure
        found = np.asarray(operate(left.array, right.array))
        if found.dtype == np.int64:
            # What wraps around is far beyond, and fractions say so.
            about = operate(left.array.astype(np.float64), right.array.astype(np.float64))
            unsure = unsure | ~(np.abs(about) < EXACT)
        return Values(found, unsure)

    def _divided(self, other: Any, operate: Callable[[Any, Any], Array]) -> "Values":
        left, right = self.number(), _values(other).number()
        by_zero = right.array == 0
        array = np.asarray(operate(left.array, np.where(by_zero, 1, right.array)))
        return Values(array, left.unsure | right.unsure | by_zero)

    def __add__(self, other: Any) -> "Values":
        return self._with(other, np.add)

    def __sub__(self, other: Any) -> "Values":
        return self._with(other, np.subtract)

    def __mul__(self, other: Any) -> "Values":
        return self._with(other, np.multiply)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> "Values":
        return self._divided(other, np.true_divide)

    def __floordiv__(self, other: Any) -> "Values":
        return _finite(self._divided(other, np.floor_divide))

    def __mod__(self, other: Any) -> "Values":
        return _finite(self._divided(other, np.remainder))

    def __neg__(self) -> "Values":
        operand = self.number()
        return Values(-operand.array, operand.unsure)

    def __abs__(self) -> "Values":
        operand = self.number()
        return Values(np.abs(operand.array), operand.unsure)


def _values(value: Any) -> Values:
    return value if isinstance(value, Values) else Values.constant(value)


def _finite(values: Values) -> Values:
    return Values(values.array, values.unsure | ~np.isfinite(values.array))


def _whole(function: Callable[[Any], Array]) -> Callable[[Values], Values]:
    """Return a function from fractions to integers; integers stay as they are."""

    def rounded(values: Values) -> Values:
        operand = values.number()
        if not operand.is_float:
            return operand
        small = np.abs(operand.array) < EXACT
        array = function(np.where(small, operand.array, 0.0)).astype(np.int64)
        return Values(array, operand.unsure | ~small)

    return rounded


def _log2(values: Values) -> Values:
    operand = values.number()
    distinct, place = np.unique(np.atleast_1d(operand.array), return_inverse=True)
    logarithms = [math.log2(each) if 0 < each < math.inf else 0.0 for each in distinct.tolist()]
    array = np.array(logarithms)[place].reshape(operand.array.shape)
    fine = (operand.array > 0) & np.isfinite(operand.array)
    return Values(array, operand.unsure | ~fine)


def _least(values: Sequence[Values], *, most: bool = False) -> Values:
    """Return the first of the least values, or of the greatest, as `min` and `max` do."""
    if len(values) < 2:  # of one list
        raise Unsupported
    best = values[0]
    for value in values[1:]:
        best = value.where(_compare(value, ast.Gt() if most else ast.Lt(), best), best)
    return best


_FUNCTIONS: Mapping[str, Callable[[Sequence[Values]], Values]] = {
    "min": _least,
    "max": lambda values: _least(values, most=True),
    "abs": lambda values: abs(_only(values)),
    "round": lambda values: _whole(np.rint)(_only(values)),
    "ceil": lambda values: _whole(np.ceil)(_only(values)),
    "floor": lambda values: _whole(np.floor)(_only(values)),
    "log2": lambda values: _log2(_only(values)),
}


def _only(values: Sequence[Values]) -> Values:
    if len(values) != 1:
        raise Unsupported
    return values[0]


_ARITHMETIC: Mapping[type[ast.operator], Callable[[Values, Values], Values]] = {
    ast.Add: Values.__add__,
    ast.Sub: Values.__sub__,
    ast.Mult: Values.__mul__,
    ast.Div: Values.__truediv__,
    ast.FloorDiv: Values.__floordiv__,
    ast.Mod: Values.__mod__,
}

_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Array]] = {
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
}


def _compare(left: Values, operator: ast.cmpop, right: Values) -> Values:
    ordered = not isinstance(operator, ast.Eq | ast.NotEq)
    if ordered and not (left.is_number and right.is_number):
        raise Unsupported
    array = np.asarray(_COMPARISONS[type(operator)](left.array, right.array))
    return Values(array.astype(np.bool_), left.unsure | right.unsure)


def _both(left: Values, right: Values) -> Values:
    """Return where both hold; the right is asked only where the left holds."""
    return Values(left.array & right.array, left.unsure | (left.array & right.unsure))


def _either(left: Values, right: Values) -> Values:
    """Return where either holds; the right is asked only where the left does not."""
    return Values(left.array | right.array, left.unsure | (~left.array & right.unsure))


class _Reader:
    def __init__(self, names: Mapping[str, Values]) -> None:
        self._names = names

    def value(self, node: ast.expr) -> Values:
        """Return the values of a part."""
        match node:
            case ast.Constant():
                found = Values.constant(node.value)
            case ast.Name():
                found = self._names[node.id]
            case ast.BinOp(op=ast.Pow(), right=ast.Constant(value=exponent)):
                operand = self.value(node.left).number()
                # Powers of fractions are rounded as the library of the machine likes.
                if type(exponent) is not int or operand.is_float:
                    raise Unsupported
                about = np.abs(operand.array.astype(np.float64)) ** exponent
                found = Values(operand.array**exponent, operand.unsure | ~(about < EXACT))
            case ast.BinOp():
                found = _ARITHMETIC[type(node.op)](self.value(node.left), self.value(node.right))
            case ast.UnaryOp(op=ast.USub()):
                found = -self.value(node.operand)
            case ast.UnaryOp(op=ast.UAdd()):
                found = self.value(node.operand).number()
            case ast.UnaryOp() | ast.Compare():
                found = self.truth(node)
            case ast.BoolOp():
                found = self._operand(node)
            case ast.IfExp():
                found = self.value(node.body).where(self.truth(node.test), self.value(node.orelse))
            case ast.Call(func=ast.Name(id=name)):
                found = _FUNCTIONS[name]([self.value(each) for each in node.args])
            case _:
                raise Unsupported
        return found

    def truth(self, node: ast.expr) -> Values:
        """Return where a part holds."""
        match node:
            case ast.UnaryOp(op=ast.Not()):
                operand = self.truth(node.operand)
                return Values(~operand.array, operand.unsure)
            case ast.BoolOp():
                join = _both if isinstance(node.op, ast.And) else _either
                return reduce(join, map(self.truth, node.values))
            case ast.IfExp():
                return self.truth(node.body).where(self.truth(node.test), self.truth(node.orelse))
            case ast.Compare():
                return self._compared(node)
        return self.value(node).truth()

    def _operand(self, node: ast.BoolOp) -> Values:
        """Return the operand that decides: Python's ``and`` and ``or`` are no switches."""
        *others, found = map(self.value, node.values)
        for value in reversed(others):
            first, second = (found, value) if isinstance(node.op, ast.And) else (value, found)
            found = first.where(value.truth(), second)
        return found

    def _compared(self, node: ast.Compare) -> Values:
        left, found = self.value(node.left), Values.constant(True)
        for operator, other in zip(node.ops, node.comparators, strict=True):
            if isinstance(operator, ast.In | ast.NotIn):
                if len(node.ops) > 1:
                    raise Unsupported
                return self._listed(left, operator, other)
            right = self.value(other)
            found, left = _both(found, _compare(left, operator, right)), right
        return found

    def _listed(self, value: Values, operator: ast.cmpop, listed: ast.expr) -> Values:
        if not isinstance(listed, ast.Tuple | ast.List):
            raise Unsupported
        if not all(isinstance(each, ast.Constant) for each in listed.elts):
            raise Unsupported
        equal = [_compare(value, ast.Eq(), self.value(each)) for each in listed.elts]
        found = reduce(_either, equal, Values.constant(False))
        return found if isinstance(operator, ast.In) else Values(~found.array, found.unsure)


def evaluate(expression: Expression, names: Mapping[str, Values], *, truth: bool) -> Values:
    """Return an expression's value for each row; with ``truth`` only what is true matters."""
    reader = _Reader(names)
    with np.errstate(all="ignore"):
        try:
            body = expression.tree.body
            return reader.truth(body) if truth else reader.value(body)
        except RecursionError:
            raise Unsupported from None


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
        """Keep a constraint or a computed field; with ``truth`` only what is true matters.

        ``alone`` returns its value where axes, axis -> place, stand; what is raised is the value
        too.
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
        sources = self._space.derived_from.get(field)
        if sources is None:
            return self._field(field, places)
        given = {source: self._field(source, places) for source in sources}
        with np.errstate(all="ignore"):
            found: Values = self._space.derived_number(field, given)
        return found

    def _field(self, field: str, places: Mapping[int, Ints]) -> Values:
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
