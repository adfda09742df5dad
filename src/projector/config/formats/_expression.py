"""Small expressions inside configuration values, computed without ``eval``."""

import ast
import re
from collections.abc import Callable

_ALPHABET = re.compile(r"[0-9\s,\[\]()+*/%-]*")
_MAX_TEXT = 8192
_MAX_LENGTH = 10_000
_MAX_INTEGER = 1 << 62


def integer(text: str) -> int:
    """Return the value of an integer expression of ``+ - * / // %`` and parentheses."""
    value = int_or_list(text)
    if not isinstance(value, int):
        raise ValueError(f"{text!r} is not an integer expression")  # noqa: TRY004  # a wrong text, not a wrong type
    return value


def int_or_list(text: str) -> int | list[int]:
    """Return an integer, or the list that an expression such as ``[0]*3+[1]*58`` gives."""
    try:
        return _value(_parse(text))
    except RecursionError:
        raise ValueError("the expression is nested too deeply") from None


def _parse(text: str) -> ast.expr:
    if len(text) > _MAX_TEXT:
        raise ValueError(f"an expression of {len(text)} characters is too long for a layer pattern")
    if not _ALPHABET.fullmatch(text):
        raise ValueError("only integers, lists, + and * can be used")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text!r} is not an expression of integers and lists") from error


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
    raise ValueError("only integers, lists, + and * can be used")


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
    raise ValueError("lists can only be added, or multiplied by an integer")


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
        raise ValueError("only + - * / and % can be used with integers")
    try:
        return _bounded(chosen(left, right))
    except ZeroDivisionError:
        raise ValueError("division by zero") from None


def _bounded(number: int) -> int:
    if abs(number) > _MAX_INTEGER:
        raise ValueError("a number is too large")
    return number


def _short(items: list[int]) -> list[int]:
    if len(items) > _MAX_LENGTH:
        raise ValueError(f"a pattern of more than {_MAX_LENGTH} layers")
    return items
