"""Space files: a base job, axes and constraints as YAML or as a mapping."""

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from projector.config import space
from projector.config._base import Config
from projector.config.names import is_field, job_field
from projector.config.yaml_file import check_nesting, read_yaml
from projector.errors import ConfigError, shown
from projector.units import unwrapped

KEYS = ("base", "axes", "best_of", "constraints")
KINDS = ("values", "range", "powers_of_two", "log", "scale", "expression")
"""How an axis may give its values instead of a list; see `_values`."""

MOST_VALUES = 1_000_000

MOST_COLLECTIONS = 2 * MOST_VALUES
"""Lists and mappings of a space that is given in Python: tied fields have one a point."""

LARGEST_NUMBER = 1e300
"""Numbers from which axes are made must be smaller; infinity and NaN are refused."""

MOST_CHOICES = 1 << 17
"""Combinations of which the best is kept; they are evaluated together."""


def read_space(
    source: str | Path | Mapping[str, Any] | space.Space,
    kind_of: Callable[[Any], type[space.Space]],
) -> space.Space:
    """Read a space (``load_space`` of ``sweeps/table.py``), of the kind that its base makes."""
    if isinstance(source, space.Space):
        return source
    folder = Path()
    if isinstance(source, str | Path):
        path = Path(source)
        data: Mapping[str, Any] = read_yaml(path, key="space")
        folder = path.parent
    elif isinstance(source, Mapping):
        data = source
        check_nesting(data, name="the space", most=MOST_COLLECTIONS)
    else:
        msg = f"a space is a file or a mapping, got {shown(source)}"
        raise ConfigError(msg, key="space", value=source, allowed="a file or a mapping")
    for key in data:
        if key not in KEYS:
            msg = f"a space has {', '.join(KEYS)}, not {key!r}"
            raise ConfigError(msg, key=str(key), allowed=list(KEYS))
    if "base" not in data:
        msg = "a space needs a base: a job file or a mapping"
        raise ConfigError(msg, key="base", allowed="a job file or a mapping")
    base = data["base"]
    base = folder / base if isinstance(base, str | Path) else base
    kind = kind_of(base)
    base = kind.read_base(base)
    flat = space.flat_fields(base)
    axes, derived = _read_axes(data.get("axes"), "axes", flat, base)
    fields, searched = list(derived), list[space.Axis]()
    if data.get("best_of") is not None:
        searched, computed = _read_axes(data["best_of"], "best_of", flat, base)
        fields += computed
        derived |= computed
        axes += searched
    choices = math.prod(len(axis.points) for axis in searched)
    if choices > MOST_CHOICES:
        msg = f"best_of has {choices:,} combinations; at most {MOST_CHOICES:,} are compared"
        raise ConfigError(msg, key="best_of", value=choices, allowed=f"<= {MOST_CHOICES}")
    fields = [*itertools.chain.from_iterable(axis.fields for axis in axes), *fields]
    for place, field in enumerate(fields):
        if field in fields[:place]:
            raise ConfigError(f"axes: {field} is on two axes", key=f"axes.{field}")
    constraints = [
        space.Expression(text, f"constraints[{number}]")
        for number, text in enumerate(_list(data.get("constraints") or [], "constraints"))
    ]
    names = space.readable_names(flat, kind.derived_from)
    known = {*names, *flat}
    for expression in (*derived.values(), *constraints):
        expression.check_names(known)
    _check_order(derived, names, kind.derived_from)
    return kind(base, axes, derived, constraints, len(searched))


def _read_axes(
    data: Any, key: str, flat: Mapping[str, Any], base: Config
) -> tuple[list[space.Axis], dict[str, space.Expression]]:
    """Return axes with their points, and fields that are computed."""
    axes: list[space.Axis] = []
    derived: dict[str, space.Expression] = {}
    if not isinstance(data, Mapping) or not data:
        msg = f"{key} is a mapping of dotted field -> values, got {shown(data)}"
        raise ConfigError(msg, key=key, value=data, allowed="a mapping")
    for name, given in data.items():
        fields = tuple(job_field(part.strip(), type(base)) for part in str(name).split(","))
        _check_known(fields, base)
        if isinstance(given, Mapping) and "expression" in given:
            derived[fields[0]] = _derived(fields, given, key)
        else:
            axes.append(space.Axis(fields, _points(fields, given, flat, key)))
    return axes, derived


def _list(value: Any, key: str) -> list[Any]:
    value = unwrapped(value)
    if isinstance(value, str) or not isinstance(value, Sequence):
        msg = f"{key} is a list, got {shown(value)}"
        raise ConfigError(msg, key=key, value=value, allowed="a list")
    return list(map(unwrapped, value))


def _derived(fields: tuple[str, ...], given: Mapping[str, Any], where: str) -> space.Expression:
    key = f"{where}.{fields[0]}"
    if len(fields) > 1 or len(given) > 1:
        msg = f"{key}: an expression computes one field and must be the only key"
        raise ConfigError(msg, key=key, value=dict(given))
    return space.Expression(given["expression"], key)


def _points(
    fields: tuple[str, ...], given: Any, flat: Mapping[str, Any], where: str
) -> tuple[Any, ...]:
    key = f"{where}.{', '.join(fields)}"
    values = _values(fields, given, flat, key)
    if not values:
        msg = f"{key} has no values"
        raise ConfigError(msg, key=key, value=given, allowed="at least one value")
    if len(fields) == 1:
        points = tuple((value,) for value in values)
    else:
        points = tuple(tuple(_list(value, key)) for value in values)
        for point in points:
            if len(point) != len(fields):
                msg = f"{key} ties {len(fields)} fields, but a point has {len(point)} values"
                raise ConfigError(msg, key=key, value=list(point), allowed=f"{len(fields)} values")
    seen = set()
    for point in points:
        try:
            text = json.dumps(point, sort_keys=True, default=str)
        except (ValueError, RecursionError):
            msg = f"{key} has a value that is no point: {shown(point)}"
            raise ConfigError(msg, key=key, value=shown(point), allowed="values") from None
        if text in seen:
            msg = f"{key} has {text} twice; no two points of a space may be equal"
            raise ConfigError(msg, key=key, value=text)
        seen.add(text)
    return points


def _values(fields: tuple[str, ...], given: Any, flat: Mapping[str, Any], key: str) -> list[Any]:
    if not isinstance(given, Mapping):
        return _list(given, key)
    kind = next(iter(given), None)
    if len(given) != 1 or kind not in KINDS:
        msg = f"{key} is a list or a mapping with one of {', '.join(KINDS)}, got {dict(given)!r}"
        raise ConfigError(msg, key=key, value=dict(given), allowed=list(KINDS))
    numbers = _list(given[kind], f"{key}.{kind}")
    if kind == "values":
        return numbers
    for number in numbers:
        known = isinstance(number, int | float) and not isinstance(number, bool)
        if not known or not abs(number) < LARGEST_NUMBER:
            msg = f"{key}: {kind} takes numbers, got {shown(number)}"
            raise ConfigError(msg, key=key, value=shown(number), allowed="finite numbers")
    if kind == "scale":
        value = flat.get(fields[0])
        if len(fields) > 1 or isinstance(value, bool) or not isinstance(value, int | float):
            msg = f"{key}: scale needs a number in the base job, which has {shown(value)}"
            raise ConfigError(msg, key=key, value=value, allowed="a number")
        scaled = [value * factor for factor in numbers]
        for factor, product in zip(numbers, scaled, strict=True):
            if not abs(product) < LARGEST_NUMBER:
                msg = f"{key}: {value} times {shown(factor)} is no number that a job has"
                raise ConfigError(msg, key=key, value=factor, allowed="smaller factors")
        return [round(product) for product in scaled] if isinstance(value, int) else scaled
    return _progression(str(kind), numbers, key)


def _progression(kind: str, numbers: list[Any], key: str) -> list[Any]:
    needed = {"range": "[first, last, step]", "powers_of_two": "[first, last]"}.get(
        kind, "[first, last, count]"
    )
    first, last, third = (*numbers, 1, 1, 1)[:3]
    fits = len(numbers) == (2 if kind == "powers_of_two" else 3) or (
        kind == "range" and len(numbers) == 2
    )
    whole = kind != "log" or third == int(third)
    rises = last >= first and third > 0 and (kind == "range" or first > 0)
    if not (fits and whole and rises):
        msg = f"{key}: {kind} takes {needed}, rising and above 0, got {numbers}"
        raise ConfigError(msg, key=key, value=numbers, allowed=needed)
    if kind == "powers_of_two":
        low, high = math.ceil(math.log2(first)), math.floor(math.log2(last))
        return [2**power for power in range(low, high + 1)]
    steps = third - 1 if kind == "log" else (last - first) / third + 1e-9
    # A step may be so small that their number is infinite.
    if steps >= MOST_VALUES:
        msg = f"{key} has {steps:,.0f} values, more than an axis may have"
        raise ConfigError(msg, key=key, value=str(steps), allowed=MOST_VALUES)
    count = math.floor(steps) + 1
    if kind == "range":
        return [first + step * third for step in range(count)]
    if count == 1:
        return [first]
    ratio = last / first
    if not ratio < LARGEST_NUMBER:
        msg = f"{key}: {last} is too many times {first} for a float"
        raise ConfigError(msg, key=key, value=numbers, allowed="ends that are closer")
    # The ends exactly, whatever the rounding between them.
    return [first, *[first * ratio ** (step / (count - 1)) for step in range(1, count - 1)], last]


def _check_order(
    derived: Mapping[str, space.Expression],
    names: Mapping[str, str],
    derived_from: Mapping[str, tuple[str, ...]],
) -> None:
    """Refuse a computed field that reads one which is computed after it."""
    done: set[str] = set()
    for field, expression in derived.items():
        read = {
            source
            for name in expression.names
            for source in derived_from.get(name, (names.get(name, name),))
        }
        for late in sorted(read & derived.keys() - done):
            msg = f"axes: {field} reads {late}, which is computed after it; put {late} before it"
            raise ConfigError(msg, key=f"axes.{field}", value=expression.text, allowed="earlier")
        done.add(field)


def _check_known(fields: tuple[str, ...], base: Config) -> None:
    """Refuse a field that the base does not have, saying what has it or which is near."""
    for field in fields:
        if _has_field(base, field):
            continue
        flat = space.flat_fields(base)
        section, _, name = field.rpartition(".")
        if is_field(field, type(base)) and section in flat and flat[section] is None:
            whole = f"{section}: {{{name}: ...}}"
            msg = (
                f"axes: the base has no {section}, of which {field} is a part; write {whole} in "
                f"the base, or make {section} an axis of such values"
            )
            raise ConfigError(msg, key=f"axes.{field}", allowed=whole)
        import difflib

        close = difflib.get_close_matches(field, flat, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        msg = f"axes: the base has no field {field!r}{hint}"
        raise ConfigError(msg, key=f"axes.{field}", allowed=close or "a dotted field of the base")


def _has_field(base: Config, field: str) -> bool:
    section: Any = base
    for part in field.split("."):
        fields = getattr(type(section), "model_fields", None)
        if fields is None or part not in fields:
            return isinstance(section, Mapping)
        section = getattr(section, part)
    return True
