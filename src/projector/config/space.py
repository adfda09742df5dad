"""A space: a base, a job where nothing else is said, axes over its fields, and constraints.

Constraints and derived axes are expressions in a subset of Python's syntax: arithmetic,
comparisons, ``and``, ``or``, ``not``, ``in``, ``A if C else B`` and a few functions. Nothing else
is compiled, so nothing else can run. Arithmetic takes numbers of a bounded size alone, so that it
takes neither long nor much memory.
"""

import ast
import hashlib
import itertools
import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple

from projector.config._base import Config
from projector.config.framework import decides_defaults, names_framework, profiles
from projector.config.load import load_job
from projector.config.model_file import load_model
from projector.config.names import shortened
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
            msg = f"{self.text!r} reads {name!r}, but the base has no such field{hint}"
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


_WORLD = ("cluster.nodes", "cluster.gpus_per_node")
_DENSE = ("parallelism.tp", "parallelism.pp", "parallelism.cp")
_BATCH = ("training.global_batch_size", "training.micro_batch_size")
DERIVED_FROM: Mapping[str, tuple[str, ...]] = {
    "gpus": _WORLD,
    "dp": _WORLD + _DENSE,
    "microbatches": _WORLD + _DENSE + _BATCH,
}
"""What expressions may read besides fields -> the fields it follows from; see `derived_number`."""


class Axis(NamedTuple):
    """Values that one field takes, or several fields together."""

    fields: tuple[str, ...]
    """Dotted fields; more than one are tied."""
    points: tuple[tuple[Any, ...], ...]
    """The value of each field at each point of the axis."""


class Space:
    """Every combination of the values of some axes, the last axis fastest; immutable.

    The base is a `Job`.
    """

    derived_from: ClassVar[Mapping[str, tuple[str, ...]]] = DERIVED_FROM

    def __init__(
        self,
        base: Any,
        axes: Sequence[Axis],
        derived: Mapping[str, Expression],
        constraints: Sequence[Expression],
        searched: int = 0,
    ) -> None:
        """Put together what `load_space` has read; the last ``searched`` axes are of `best_of`."""
        self.base = base
        self.axes = tuple(axes)
        self.derived = dict(derived)
        self.constraints = tuple(constraints)
        self.searched = searched
        self.size = math.prod(len(axis.points) for axis in self.axes)
        self.choices = math.prod(
            len(axis.points) for axis in self.axes[len(self.axes) - searched :]
        )
        """Points that follow one another of which only the best is kept."""
        given = itertools.chain.from_iterable(axis.fields for axis in self.axes)
        self.fields = (*given, *self.derived)
        """Dotted fields that points set, in the order of the axes; computed ones last."""

    @staticmethod
    def read_base(given: Any) -> Any:
        """Read the base of a space file."""
        return load_job(given)

    def variant(self, overrides: Mapping[str, Any]) -> Config:
        """Return the base with dotted fields replaced."""
        return load_job(self.base, overrides)

    @staticmethod
    def derived_number(name: str, given: Mapping[str, Any]) -> Any:
        """Return one of ``derived_from`` from the fields it follows from, perhaps columns."""
        return derived_number(name, given)

    def __repr__(self) -> str:
        axes = " x ".join(f"{', '.join(axis.fields)} ({len(axis.points)})" for axis in self.axes)
        return f"Space({self.size:,} points: {axes}; {len(self.constraints)} constraints)"

    def places(self, index: int) -> list[int]:
        """Return the position of point ``index``, from 0 on, on each axis."""
        if not 0 <= index < self.size:
            raise IndexError(f"point {index} of a space of {self.size}")
        positions = []
        for axis in reversed(self.axes):
            index, position = divmod(index, len(axis.points))
            positions.append(position)
        return positions[::-1]

    def overrides(self, index: int) -> dict[str, Any]:
        """Return dotted field -> value of point ``index``, from 0 on."""
        return self.overrides_at(dict(enumerate(self.places(index))), self.derived)

    def overrides_at(self, positions: Mapping[int, int], derived: Iterable[str]) -> dict[str, Any]:
        """Return dotted field -> value at positions of some axes, by their numbers.

        ``derived`` are computed fields to add; `axes_of` says which axes they need.
        """
        overrides: dict[str, Any] = {}
        for number, position in sorted(positions.items()):
            axis = self.axes[number]
            overrides.update(zip(axis.fields, axis.points[position], strict=True))
        for field in derived:
            expression = self.derived[field]
            overrides[field] = expression(self._read(expression, overrides))
        # A whole device or model goes before changes of its fields.
        depth = operator.methodcaller("count", ".")
        return {field: overrides[field] for field in sorted(overrides, key=depth)}

    def axes_of(self, fields: Iterable[str]) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Return the axes (all of their sections') that fields depend on, and computed fields."""
        wanted, axes, derived = list(fields), set[int](), set[str]()
        seen = set(wanted)
        while wanted:
            name = wanted.pop()
            further: set[str] = set()
            further |= set(self.derived_from.get(name, ()))
            section = name.partition(".")[0]
            for field, expression in self.derived.items():
                if field == name or field.startswith(f"{name}.") or name.startswith(f"{field}."):
                    derived.add(field)
                    further |= {self._names.get(used, used) for used in expression.names}
            for number, axis in enumerate(self.axes):
                if name in axis.fields or any(
                    field.partition(".")[0] == section
                    and (field.startswith(f"{name}.") or name.startswith(f"{field}."))
                    for field in axis.fields
                ):
                    axes.add(number)
            if any(name.startswith(f"{field}.") for field in self.fields):
                further.add(section)
            if name in self._of_frameworks:
                further |= {field for field in self.fields if decides_defaults(field)}
            wanted += further - seen
            seen |= further
        return tuple(sorted(axes)), tuple(field for field in self.derived if field in derived)

    def reads(self, expression: Expression) -> tuple[str, ...]:
        """Return the fields that an expression reads, in full."""
        return tuple(self.full_name(name) for name in sorted(expression.names))

    def full_name(self, name: str) -> str:
        """Return the field that an expression means, or one of ``derived_from``."""
        return self._names.get(name, name)

    def is_of_base(self, field: str) -> bool:
        """Whether every point has what the base has in a field: nothing that points set changes it.

        False also where it only cannot be told without reading a section.
        """
        return (
            field in self._base
            and field not in self.fields
            and field not in self._of_frameworks
            and not _around(field, self.fields)
        )

    def base_value(self, field: str) -> Any:
        """Return what the base has in a dotted field."""
        return self._base[field]

    def keeps(self, constraint: Expression, overrides: Mapping[str, Any]) -> bool:
        """Whether a point, or what a constraint needs of it, keeps the constraint."""
        return bool(constraint(self._read(constraint, overrides)))

    def _read(self, expression: Expression, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of what an expression reads, in a job with these overrides."""
        values = {}
        for name in expression.names:
            field = self.full_name(name)
            if field in self.derived_from:
                values[name] = self._derive(field, overrides)
            else:
                values[name] = self._value(field, overrides)
        return values

    def _value(self, field: str, overrides: Mapping[str, Any]) -> Any:
        if field in overrides:
            return overrides[field]
        decided = field in self._of_frameworks
        if decided or any(changed in overrides for changed in _around(field, self.fields)):
            # Another model, device or framework brings its own fields along.
            section = field.partition(".")[0]
            of_section = {
                key: value
                for key, value in overrides.items()
                if key.partition(".")[0] == section or (decided and decides_defaults(key))
            }
            return flat_fields(self.variant(of_section))[field]
        return self._base[field]

    @cached_property
    def _of_frameworks(self) -> frozenset[str]:
        """Fields whose defaults come from frameworks that points may differ in."""
        differ = any(decides_defaults(each) for each in self.fields) and (
            self.base.training.framework is not None
            or any(names_framework(each) for each in self.fields)
        )
        return profiles().fields if differ else frozenset()

    def _derive(self, name: str, overrides: Mapping[str, Any]) -> Any:
        given = {field: self._value(field, overrides) for field in self.derived_from[name]}
        try:
            # Lists and texts of an axis would be repeated.
            list(map(bounded, given.values()))
            return self.derived_number(name, given)
        except (ArithmeticError, TypeError, ValueError) as error:
            told = ", ".join(f"{field} = {shown(value)}" for field, value in given.items())
            msg = f"{name} cannot be computed with {told}: {error}"
            raise ConfigError(msg, key=name, value=name, allowed="degrees above 0") from None

    @cached_property
    def _base(self) -> dict[str, Any]:
        return flat_fields(self.base)

    @cached_property
    def _names(self) -> dict[str, str]:
        return readable_names(self._base, self.derived_from)

    def to_dict(self) -> dict[str, Any]:
        """Return the whole content as plain values."""
        searched = self.axes[len(self.axes) - self.searched :]
        best_of = [field for axis in searched for field in axis.fields]
        return {
            "base": self.base.model_dump(mode="json"),
            "axes": [
                {"fields": list(axis.fields), "points": [list(point) for point in axis.points]}
                for axis in self.axes
            ],
            "derived": {field: expression.text for field, expression in self.derived.items()},
            "constraints": [constraint.text for constraint in self.constraints],
            **({"best_of": best_of} if searched else {}),
        }

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Warnings of the base, and of every model that an axis names."""
        given = [
            point[axis.fields.index("model")]
            for axis in self.axes
            if "model" in axis.fields
            for point in axis.points
        ]
        if not given:
            return tuple(self.base.notes)
        of_models = (note for model in given for note in _notes_of(model))
        return tuple(dict.fromkeys((*self.base.own_notes, *of_models)))

    @cached_property
    def digest(self) -> str:
        """Hash of the content: equal for equal spaces, however they were written."""
        text = json.dumps(self.to_dict(), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()


class OtherSpace(Space):
    """A space with another base than a job, which says what its points are projected to."""

    most_points: int | None = None
    """Points of a chunk, where each takes long."""

    @property
    def results(self) -> Mapping[str, str]:
        """Every column of results with its kind."""
        raise NotImplementedError

    @cached_property
    def _of_frameworks(self) -> frozenset[str]:
        return frozenset()

    def points(self) -> Any:
        """Return what projects points (`Points` of ``sweeps/points.py``)."""
        raise NotImplementedError


def _notes_of(model: Any) -> tuple[str, ...]:
    """Return the notes of an architecture; one that cannot be read makes points illegal later."""
    try:
        return load_model(model).notes
    except ConfigError:
        return ()


def derived_number(name: str, given: Mapping[str, Any]) -> Any:
    """Return one of `DERIVED_FROM` from the fields it follows from: numbers, or columns of them."""
    gpus = given["cluster.nodes"] * given["cluster.gpus_per_node"]
    if name == "gpus":
        return gpus
    dp = gpus / math.prod(given[field] for field in _DENSE)
    if name == "dp":
        return dp
    whole, micro = (given[field] for field in _BATCH)
    return whole / (micro * dp)


@lru_cache(maxsize=1024)
def _around(field: str, fields: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of some fields that another field is a part of."""
    return tuple(outer for outer in fields if field.startswith(f"{outer}."))


def readable_names(
    flat: Mapping[str, Any], derived: Iterable[str] = DERIVED_FROM
) -> dict[str, str]:
    """Return short name -> dotted field, as `shortened`, and what is derived under its own name."""
    return {**shortened(flat), **{name: name for name in derived}}


def flat_fields(job: Config) -> dict[str, Any]:
    """Return dotted field -> value of everything in a job; where numbers come from is left out."""
    flat: dict[str, Any] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                if name == "sources":
                    continue
                walk(f"{prefix}.{name}" if prefix else str(name), inner)
        else:
            flat[prefix] = value

    walk("", job.model_dump(exclude={"notes", "origins", "ignored"}))
    return flat
