"""Small expressions inside configuration values, computed without ``eval``."""

import ast
import re
from collections.abc import Callable

_ALPHABET = re.compile(r"[0-9\s,\[\]()+*/%-]*")
_MAX_TEXT = 8192
_MAX_LENGTH = 10_000
_MAX_INTEGER = 1 << 62


def integer(text: str) -> int:
    """Return the value of an integer expression of ``+ - * / // %`` and parentheses.

    Raises
    ------
    ValueError
        If it is anything else.
    """
    value = int_or_list(text)
    if not isinstance(value, int):
        msg = f"{text!r} is not an integer expression"
        raise ValueError(msg)  # noqa: TRY004  # a wrong text, not a wrong type
    return value


def int_or_list(text: str) -> int | list[int]:
    """Return an integer, or the list that an expression such as ``[0]*3+[1]*58`` gives.

    Raises
    ------
    ValueError
        If it is anything else, or longer than any model.
    """
    try:
        return _value(_parse(text))
    except RecursionError:
        msg = "the expression is nested too deeply"
        raise ValueError(msg) from None


def _parse(text: str) -> ast.expr:
    if len(text) > _MAX_TEXT:
        msg = f"an expression of {len(text)} characters is too long for a layer pattern"
        raise ValueError(msg)
    if not _ALPHABET.fullmatch(text):
        msg = "only integers, lists, + and * can be used"
        raise ValueError(msg)
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        msg = f"{text!r} is not an expression of integers and lists"
        raise ValueError(msg) from error


def _value(node: ast.expr) -> int | list[int]:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return _bounded(number)
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            items = [_value(element) for element in elements]
            if all(isinstance(item, int) for item in items):
                return [item for item in items if isinstance(item, int)]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = _value(operand)
            if isinstance(value, int):
                return -value
        case ast.BinOp(left=left, op=operation, right=right):
            return _combine(_value(left), operation, _value(right))
        case _:
            pass
    msg = "only integers, lists, + and * can be used"
    raise ValueError(msg)


def _combine(
    left: int | list[int], operation: ast.operator, right: int | list[int]
) -> int | list[int]:
    if isinstance(left, int) and isinstance(right, int):
        return _arithmetic(left, operation, right)
    if isinstance(operation, ast.Add) and isinstance(left, list) and isinstance(right, list):
        return _short([*left, *right])
    if isinstance(operation, ast.Mult):
        pattern, count = (left, right) if isinstance(left, list) else (right, left)
        if isinstance(pattern, list) and isinstance(count, int):
            if len(pattern) * count > _MAX_LENGTH:
                return _short([0] * (_MAX_LENGTH + 1))
            return pattern * count
    msg = "lists can only be added, or multiplied by an integer"
    raise ValueError(msg)


def _arithmetic(left: int, operation: ast.operator, right: int) -> int:
    operations: dict[type[ast.operator], Callable[[int, int], int]] = {
        ast.Add: lambda a, b: a + b,
        ast.Sub: lambda a, b: a - b,
        ast.Mult: lambda a, b: a * b,
        ast.Div: lambda a, b: a // b,
        ast.FloorDiv: lambda a, b: a // b,
        ast.Mod: lambda a, b: a % b,
    }
    chosen = operations.get(type(operation))
    if chosen is None:
        msg = "only + - * / and % can be used with integers"
        raise ValueError(msg)
    try:
        return _bounded(chosen(left, right))
    except ZeroDivisionError:
        msg = "division by zero"
        raise ValueError(msg) from None


def _bounded(number: int) -> int:
    if abs(number) > _MAX_INTEGER:
        msg = "a number is too large"
        raise ValueError(msg)
    return number


def _short(items: list[int]) -> list[int]:
    if len(items) > _MAX_LENGTH:
        msg = f"a pattern of more than {_MAX_LENGTH} layers"
        raise ValueError(msg)
    return items
