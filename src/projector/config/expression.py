"""Expressions over the fields of a job, as constraints and derived axes use them.

A subset of Python's syntax: arithmetic, comparisons, ``and``, ``or``, ``not``, ``in``,
``A if C else B`` and a few functions. Nothing else is compiled, so nothing else can run.
Arithmetic takes numbers of a bounded size alone, so that it takes neither long nor much memory.
"""

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from projector.errors import ConfigError, shown

MOST_BITS = 4096
"""Bits of an integer on the way; what a float cannot hold has 1024."""

MOST_PLACES = 400
"""Places to round to, on either side of the point."""


def bounded(value: Any) -> Any:
    """Return a number with which arithmetic goes on."""
    if isinstance(value, int):
        if value.bit_length() > MOST_BITS:
            raise OverflowError(f"an integer of more than {MOST_BITS} bits")
    elif not isinstance(value, float):
        raise TypeError(f"arithmetic takes numbers, not {shown(value)}")
    return value


def _power(base: Any, exponent: int) -> Any:
    if isinstance(bounded(base), int) and base.bit_length() * exponent > MOST_BITS:
        raise OverflowError(f"an integer of more than {MOST_BITS} bits")
    return base**exponent


def _rounded(value: Any, places: Any = None) -> Any:
    if places is None:
        return round(bounded(value))
    if abs(bounded(places)) > MOST_PLACES:
        raise OverflowError(f"round takes at most {MOST_PLACES} places")
    return round(bounded(value), places)


def _of_bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: function(*map(bounded, values))


FUNCTIONS = {
    "min": min,
    "max": max,
    "abs": _of_bounded(abs),
    "round": _rounded,
    "ceil": _of_bounded(math.ceil),
    "floor": _of_bounded(math.floor),
    "log2": _of_bounded(math.log2),
}

OPERATORS: Mapping[type[ast.operator], tuple[str, Callable[..., Any]]] = {
    ast.Add: ("+", _of_bounded(operator.add)),
    ast.Sub: ("-", _of_bounded(operator.sub)),
    ast.Mult: ("*", _of_bounded(operator.mul)),
    ast.Div: ("/", _of_bounded(operator.truediv)),
    ast.FloorDiv: ("//", _of_bounded(operator.floordiv)),
    ast.Mod: ("%", _of_bounded(operator.mod)),
    ast.Pow: ("**", _power),
}
"""What stands for an operator when it is compiled: a name that no text can spell, a function."""

_LOGIC = (ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.UAdd, ast.IfExp)
_ARITHMETIC: tuple[type[ast.AST], ...] = (ast.BinOp, *OPERATORS)
_EQUALITY = (ast.Compare, ast.Eq, ast.NotEq, ast.In, ast.NotIn)
_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_OPERANDS = (ast.Expression, ast.Constant, ast.Name, ast.Load, ast.Tuple, ast.List, ast.Call)
_NODES = _LOGIC + _ARITHMETIC + _EQUALITY + _ORDER + _OPERANDS

LONGEST = 1000
"""Characters of an expression; a longer one is a mistake, or nests deeper than Python compiles."""

LARGEST_POWER = 64


class Expression:
    """An expression, compiled once; see the module for what it may say."""

    def __init__(self, text: Any, key: str) -> None:
        """Compile ``text``; ``key`` names its position in errors."""
        self.text, self.key = text, key
        if not isinstance(text, str) or not text.strip() or len(text) > LONGEST:
            msg = f"an expression is text of at most {LONGEST} characters, got {shown(text)}"
            raise ConfigError(msg, key=key, value=text, allowed="an expression such as 'tp <= 8'")
        try:
            tree = self.tree
            for node in ast.walk(tree):
                self._check(node)
            code = compile(_Guarded().visit(tree), f"<{key}>", "eval")
        except ConfigError:
            raise
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            why = "it nests too deep" if isinstance(error, RecursionError) else error
            msg = f"{text!r} is not an expression: {why}"
            raise ConfigError(msg, key=key, value=text, allowed="Python's syntax") from None
        self.names = frozenset(
            node.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Name) and node.id not in _KNOWN
        )
        """Fields that it reads, as it spells them."""
        self._code = code

    @property
    def tree(self) -> ast.Expression:
        """The syntax, a tree of its own each time; a dotted field is one name."""
        tree: ast.Expression = _Dotted().visit(ast.parse(self.text.strip(), mode="eval"))
        return tree

    def _check(self, node: ast.AST) -> None:
        known = isinstance(node, _NODES)
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            known = name in FUNCTIONS and not node.keywords
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            # The work of a power grows with its exponent.
            known = isinstance(node.right, ast.Constant) and node.right.value in range(
                LARGEST_POWER
            )
        if not known:
            msg = (
                f"{self.text!r} uses {type(node).__name__}, which expressions do not support; they "
                f"have arithmetic, comparisons, and, or, not, in, if-else, {', '.join(FUNCTIONS)}"
            )
            raise ConfigError(msg, key=self.key, value=self.text, allowed=list(FUNCTIONS))

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Return its value with those of its names."""
        try:
            # Only nodes of the list above were compiled, and no builtin is within reach.
            return eval(self._code, _SCOPE, dict(values))  # noqa: S307
        except (ArithmeticError, TypeError, ValueError, RecursionError, MemoryError) as error:
            given = ", ".join(f"{name} = {shown(values.get(name))}" for name in sorted(self.names))
            msg = f"{self.text!r} cannot be computed{given and f' with {given}'}: {error}"
            raise ConfigError(msg, key=self.key, value=self.text) from None

    def __reduce__(self) -> tuple[Any, ...]:
        """Go to another process as text; code cannot."""
        return Expression, (self.text, self.key)

    def check_names(self, known: Iterable[str]) -> None:
        """Raise where it reads a field that is not known."""
        known = set(known)
        for name in sorted(self.names - known):
            import difflib

            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            msg = f"{self.text!r} reads {name!r}, but the job has no such field{hint}"
            raise ConfigError(msg, key=self.key, value=name, allowed=sorted(known)[:40])


_KNOWN = {**FUNCTIONS, **dict(OPERATORS.values())}

_SCOPE = {"__builtins__": {}, **_KNOWN}
"""Globals of an expression, which cannot assign any."""


class _Guarded(ast.NodeTransformer):
    """Turns arithmetic into calls of functions that look at what they take."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        name, _ = OPERATORS[type(node.op)]
        sides = [self.visit(node.left), self.visit(node.right)]
        call = ast.Call(ast.Name(name, ast.Load()), sides, [])
        return ast.fix_missing_locations(ast.copy_location(call, node))


class _Dotted(ast.NodeTransformer):
    """Turns ``parallelism.tp`` into one name."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        inner = self.visit(node.value)
        if isinstance(inner, ast.Name):
            return ast.copy_location(ast.Name(f"{inner.id}.{node.attr}", ast.Load()), node)
        return node
