"""Reading the value of one setting; every error names the setting as it is written.

Patterns of layers and sums are small expressions, computed without ``eval``.
"""

import ast
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from projector.errors import ConfigError, shown

_ALPHABET = re.compile(r"[0-9\s,\[\]()+*/%-]*")
_MAX_TEXT = 8192
_MAX_LENGTH = 10_000
_MAX_INTEGER = 1 << 62


def int_expression(text: str) -> int:
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


Converter = Callable[[str, Any], Any]
"""Takes how a setting is written and what it is set to; returns the native value."""


def _first(value: Any) -> Any:
    """Return what counts of an argument with several words."""
    return value[0] if isinstance(value, list) and value else value


def is_unresolved(value: Any) -> bool:
    """Whether a value hangs on what the script itself does not set."""
    value = _first(value)
    return isinstance(value, str) and ("${" in value or "$(" in value)


def is_off(value: Any) -> bool:
    """Whether a setting of any kind switches off: none, 0, false, or a pattern of zeros."""
    if isinstance(value, list | tuple):
        return all(is_off(item) for item in value)
    text = str(value).strip().lower()
    if value in (None, False, 0) or text in {"", "0", "0.0", "false", "none", "null"}:
        return True
    try:
        pattern = int_or_list(text) if text[0] in "[(" else 1
    except ValueError:
        return False
    return not pattern or (isinstance(pattern, list) and not any(pattern))


def not_set(value: Any) -> str:
    """Return what is said of a value that hangs on what the script itself does not set."""
    return f" is {_first(value)!r}, which the script itself does not set"


def bad(name: str, value: Any, allowed: str) -> ConfigError:
    """Return the error of a value that is not ``allowed``."""
    msg = f"{name} should be {allowed} (got {shown(value)})"
    if value is True:
        return ConfigError(f"{name} needs a value: {allowed}", key=name, allowed=allowed)
    if is_unresolved(value):
        msg = f"{name}{not_set(value)}; write the value there"
    return ConfigError(msg, key=name, value=value, allowed=allowed)


def integer(name: str, value: Any) -> int:
    """Read a whole number."""
    value = _first(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            pass
    raise bad(name, value, "an integer")


def number(name: str, value: Any) -> float:
    """Read a finite number."""
    value = _first(value)
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            parsed = float(value)
        except ValueError:
            parsed = math.nan
        if math.isfinite(parsed):
            return parsed
    raise bad(name, value, "a number")


def flag(name: str, value: Any) -> bool:
    """Read a switch: a bare argument, a boolean, 0 or 1."""
    value = _first(value)
    text = str(value).strip().lower()
    if text in {"true", "1", "yes", "on"} or is_unresolved(value):
        return True
    if text in {"false", "0", "no", "off"}:
        return False
    raise bad(name, value, "true or false")


def word(name: str, value: Any) -> str:
    """Read a name."""
    value = _first(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float) or is_unresolved(value):
        raise bad(name, value, "a name")
    return str(value)


def one_of(words: Mapping[str, Any]) -> Converter:
    """Return a converter that maps Megatron's names to ours."""

    def convert(name: str, value: Any) -> Any:
        text = word(name, value).lower().replace("-", "_")
        if text not in words:
            msg = f"{name} should be one of {', '.join(filter(None, words))} (got {shown(value)})"
            raise ConfigError(msg, key=name, value=value, allowed=list(words))
        return words[text]

    return convert


def words(name: str, value: Any) -> list[str]:
    """Read names, given one by one or in one text."""
    given = value if isinstance(value, list) else re.split(r"[,\s]+", word(name, value).strip("[]"))
    return [str(part).strip(" '\"") for part in given if str(part).strip()]


def integers(name: str, value: Any) -> list[int]:
    """Read whole numbers, given one by one or in one text."""
    given = value if isinstance(value, list) else re.split(r"[,\s]+", str(value).strip("[]() "))
    return [integer(name, part) for part in given if str(part).strip()]


def layer_pattern(name: str, value: Any) -> int | list[int]:
    """Read Megatron's layer frequency: an integer, a list, or an expression of lists."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        value = value[0]
    if isinstance(value, list):
        return integers(name, value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return int_or_list(word(name, value))
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        allowed = "an integer, or a list such as ([0]*3+[1]*58)"
        msg = f"{name} should be {allowed}: {error} (got {str(value)[:80]!r})"
        raise ConfigError(msg, key=name, value=value, allowed=allowed) from None


def pipeline_layout(name: str, value: Any) -> str:
    """Return a layout string without its cosmetic commas and blanks."""
    if isinstance(value, list):
        letters = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
        try:
            return "|".join("".join(letters[str(item)] for item in stage) for stage in value)
        except (KeyError, TypeError):
            raise bad(name, value, "a layout such as Et*3|(t*4|)*6t*2L") from None
    text = re.sub(r"[,\s]", "", word(name, value))
    body = re.sub(r"\*\d+", "", text)
    if not text or not re.fullmatch(r"[EtmL|()]+", body) or text.count("(") != text.count(")"):
        raise bad(name, value, "a layout such as Et*3|(t*4|)*6t*2L")
    return text
