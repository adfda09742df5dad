"""Expressions over the fields of a job, as constraints and derived axes use them.

A subset of Python's syntax: arithmetic, comparisons, ``and``, ``or``, ``not``, ``in``,
``A if C else B`` and a few functions. Nothing else is compiled, so nothing else can run.
"""

import ast
import math
from collections.abc import Iterable, Mapping
from typing import Any

from projector.errors import ConfigError

FUNCTIONS = {
    "min": min,
    "max": max,
    "abs": abs,
    "round": round,
    "ceil": math.ceil,
    "floor": math.floor,
    "log2": math.log2,
}

_LOGIC = (ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.UAdd, ast.IfExp)
_ARITHMETIC = (ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
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
        """Compile ``text``; ``key`` names its position in errors.

        Raises
        ------
        ConfigError
            If it is not an expression, or says what is not known.
        """
        self.text, self.key = text, key
        if not isinstance(text, str) or not text.strip() or len(text) > LONGEST:
            msg = f"an expression is text of at most {LONGEST} characters, got {text!r}"
            raise ConfigError(msg, key=key, value=text, allowed="an expression such as 'tp <= 8'")
        try:
            tree = _Dotted().visit(ast.parse(text.strip(), mode="eval"))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            msg = f"{text!r} is not an expression: {error}"
            raise ConfigError(msg, key=key, value=text, allowed="Python's syntax") from None
        for node in ast.walk(tree):
            self._check(node)
        self.names = frozenset(
            node.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Name) and node.id not in FUNCTIONS
        )
        """Fields that it reads, as it spells them."""
        self._code = compile(tree, f"<{key}>", "eval")

    def _check(self, node: ast.AST) -> None:
        known = isinstance(node, _NODES)
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            known = name in FUNCTIONS and not node.keywords
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            # A power of a power would run for ever.
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
        """Return its value with those of its names.

        Raises
        ------
        ConfigError
            If it cannot be computed, for example divides by zero.
        """
        try:
            # Only nodes of the list above were compiled, and no builtin is within reach.
            return eval(self._code, {"__builtins__": {}, **FUNCTIONS}, dict(values))  # noqa: S307
        except (ArithmeticError, TypeError, ValueError) as error:
            shown = ", ".join(f"{name} = {values.get(name)!r}" for name in sorted(self.names))
            msg = f"{self.text!r} cannot be computed with {shown}: {error}"
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


class _Dotted(ast.NodeTransformer):
    """Turns ``parallelism.tp`` into one name."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        inner = self.visit(node.value)
        if isinstance(inner, ast.Name):
            return ast.copy_location(ast.Name(f"{inner.id}.{node.attr}", ast.Load()), node)
        return node
