"""Vectors of eight integers: numba has none, and LLVM makes few of a loop over lanes.

It has to prove that what a loop writes is not what the loop reads, or to test it each time. The
test takes as long as 16 lanes do. A kernel that says what it loads before it stores needs none.

To Python a vector is an array of numpy, and `load` and `store` are functions like others. What
compares vectors returns a mask: -1 where it holds and 0 where not. All that is taken from numba is
in its documents on extending it.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import lower_builtin, models, register_model, type_callable

from projector.arrays import Ints

WIDTH = 8
"""Integers of a vector."""

ROW = 2 * WIDTH
"""Integers of a row that is loaded from and stored to; rows follow one another."""

_Type: Any = types.Type
_PrimitiveModel: Any = models.PrimitiveModel
_lowered: Any = lower_builtin
_typed: Any = type_callable
_struct: Any = cgutils.create_struct_proxy


class _Vector(_Type):  # type: ignore[misc]  # numba has no types
    def __init__(self) -> None:
        super().__init__("vector of int64")


_VECTOR = _Vector()
_PLACE = types.int64, types.int64
"""Types of a row and a lane."""
_CODE = ir.VectorType(ir.IntType(64), WIDTH)


@register_model(_Vector)
class _VectorModel(_PrimitiveModel):  # type: ignore[misc]
    """A vector is held in registers."""

    def __init__(self, manager: Any, vector: _Vector) -> None:
        super().__init__(manager, vector, _CODE)


def load(rows: Ints, row: int, lane: int) -> Ints:
    """Return the vector of a row that begins with a lane."""
    return rows[row, lane : lane + WIDTH].copy()


def store(vector: Ints, rows: Ints, row: int, lane: int) -> None:
    """Write a vector to the lanes of a row that begin with one."""
    rows[row, lane : lane + WIDTH] = vector


def spread(number: int) -> Ints:
    """Return a vector of one number."""
    return np.full(WIDTH, number, np.int64)


def larger(one: Ints, other: Ints) -> Ints:
    """Return the larger one in each lane."""
    vector: Ints = np.maximum(one, other)
    return vector


def less(one: Ints, other: Ints) -> Ints:
    """Return where ``one < other``, as a mask."""
    mask: Ints = -(one < other).astype(np.int64)
    return mask


def equal(one: Ints, other: Ints) -> Ints:
    """Return where ``one == other``, as a mask."""
    mask: Ints = -(one == other).astype(np.int64)
    return mask


def choose(mask: Ints, one: Ints, other: Ints) -> Ints:
    """Return ``one`` where a mask holds, and ``other`` elsewhere."""
    vector: Ints = np.where(mask != 0, one, other)
    return vector


def anywhere(mask: Ints) -> bool:
    """Whether a mask holds in some lane."""
    return bool(np.any(mask != 0))


def largest(vector: Ints) -> int:
    """Return the largest number of a vector."""
    return int(vector.max())


def total(vector: Ints) -> int:
    """Return the sum of a vector."""
    return int(vector.sum())


def _address(context: Any, builder: Any, rows_type: Any, rows: Any, row: Any, lane: Any) -> Any:
    """Return where a vector stands; indices are not tested, and count from the beginning."""
    array = _struct(rows_type)(context, builder, rows)
    # Multiplying by the strides of the array took 6 % of a replay.
    place = builder.add(builder.mul(row, ir.IntType(64)(ROW)), lane)
    return builder.bitcast(builder.gep(array.data, [place]), _CODE.as_pointer())


@_typed(load)
def _type_load(_: Any) -> Any:
    return lambda rows, row, lane: _VECTOR(rows, *_PLACE)  # noqa: ARG005  # numba names them


@_lowered(load, types.Array, *_PLACE)
def _lower_load(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    vector = builder.load(_address(context, builder, signature.args[0], *values))
    vector.align = 8
    return vector


@_typed(store)
def _type_store(_: Any) -> Any:
    return lambda vector, rows, row, lane: types.void(vector, rows, *_PLACE)  # noqa: ARG005


@_lowered(store, _Vector, types.Array, *_PLACE)
def _lower_store(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    vector, *place = values
    stored = builder.store(vector, _address(context, builder, signature.args[1], *place))
    stored.align = 8
    return context.get_dummy_value()


@_typed(spread)
def _type_spread(_: Any) -> Any:
    return lambda number: _VECTOR(types.int64)  # noqa: ARG005


@_lowered(spread, types.int64)
def _lower_spread(_: Any, builder: Any, __: Any, values: Any) -> Any:
    vector = ir.Constant(_CODE, ir.Undefined)
    for lane in range(WIDTH):
        vector = builder.insert_element(vector, values[0], ir.IntType(32)(lane))
    return vector


@_typed(anywhere)
def _type_anywhere(_: Any) -> Any:
    return lambda mask: types.boolean  # noqa: ARG005


@_lowered(anywhere, _Vector)
def _lower_anywhere(_: Any, builder: Any, __: Any, values: Any) -> Any:
    bits = builder.icmp_signed("!=", values[0], ir.Constant(_CODE, None))
    return builder.icmp_unsigned(
        "!=", builder.bitcast(bits, ir.IntType(WIDTH)), ir.IntType(WIDTH)(0)
    )


def _mask(relation: str, builder: Any, one: Any, other: Any) -> Any:
    return builder.sext(builder.icmp_signed(relation, one, other), _CODE)


def _larger(builder: Any, one: Any, other: Any) -> Any:
    return builder.select(builder.icmp_signed(">", one, other), one, other)


def _chosen(builder: Any, mask: Any, one: Any, other: Any) -> Any:
    holds = builder.icmp_signed("!=", mask, ir.Constant(_CODE, None))
    return builder.select(holds, one, other)


def _register(function: Callable[..., Any], operands: int, lowered: Callable[..., Any]) -> None:
    """Let kernels call a function that takes some vectors and gives one."""

    def two(one: Any, other: Any) -> Any:
        return _VECTOR if (one, other) == (_VECTOR, _VECTOR) else None

    def three(mask: Any, one: Any, other: Any) -> Any:
        return _VECTOR if mask == _VECTOR else two(one, other)

    def lower(_: Any, builder: Any, __: Any, values: Any) -> Any:
        return lowered(builder, *values)

    _typed(function)(lambda _: two if operands == 2 else three)
    _lowered(function, *(_Vector,) * operands)(lower)


def _register_folded(function: Callable[..., Any], fold: Callable[..., Any]) -> None:
    """Let kernels call a function that folds the lanes of a vector to one number."""

    def lower(_: Any, builder: Any, __: Any, values: Any) -> Any:
        lanes = [builder.extract_element(values[0], ir.IntType(32)(lane)) for lane in range(WIDTH)]
        return functools.reduce(functools.partial(fold, builder), lanes)

    _typed(function)(lambda _: lambda vector: types.int64)  # noqa: ARG005
    _lowered(function, _Vector)(lower)


_register_folded(largest, _larger)
_register_folded(total, ir.IRBuilder.add)
_register(operator.add, 2, ir.IRBuilder.add)
_register(operator.sub, 2, ir.IRBuilder.sub)
_register(operator.mul, 2, ir.IRBuilder.mul)
_register(operator.and_, 2, ir.IRBuilder.and_)
_register(operator.or_, 2, ir.IRBuilder.or_)
_register(operator.xor, 2, ir.IRBuilder.xor)
_register(larger, 2, _larger)
_register(less, 2, functools.partial(_mask, "<"))
_register(equal, 2, functools.partial(_mask, "=="))
_register(choose, 3, _chosen)
