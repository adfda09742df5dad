"""What every configuration class shares: closed, frozen, helpful; and numbers with their sources.

A number may be given as ``{value: 304, source: name}``, and files are laid over each other.
"""

import difflib
from ast import literal_eval
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import Annotated, Any, ClassVar, Literal, Self, TypeGuard, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from projector.errors import ConfigError, shown
from projector.units import read_amount, unwrapped

MOST_COUNT = 1 << 30
"""Counts beyond this are of no device, and their products leave 64 bits."""

MOST = 1e15
"""Numbers beyond this are of no device in any unit, and the products of some leave a float."""


def _not_a_switch(value: Any) -> Any:
    """Refuse true and false, which Python takes for one and zero."""
    if isinstance(value, bool):
        raise ConfigError("should be a number, not true or false", value=value, allowed="a number")
    return value


NUMBER = BeforeValidator(_not_a_switch)
"""Of a field that takes numbers alone."""

Count = Annotated[int, Field(gt=0, le=MOST_COUNT), NUMBER]
"""How many of something hardware has."""

CountOrNone = Annotated[int, Field(ge=0, le=MOST_COUNT), NUMBER]
"""The same, where it may have none."""

# The schema keeps quiet about MOST: a calibration takes its bounds for those of the meaning.
Positive = Annotated[
    float, Field(gt=0, le=MOST), WithJsonSchema({"exclusiveMinimum": 0, "type": "number"}), NUMBER
]
"""A rate, a size or a time of hardware."""

NotNegative = Annotated[
    float, Field(ge=0, le=MOST), WithJsonSchema({"minimum": 0, "type": "number"}), NUMBER
]
"""The same, where it may be none."""

AtLeastOne = Annotated[
    float, Field(ge=1, le=MOST), WithJsonSchema({"minimum": 1, "type": "number"}), NUMBER
]
"""A ratio of what is asked for to what is there."""


@dataclass(frozen=True)
class Label:
    """What figures call a field, and its unit where its name does not end with it."""

    name: str
    unit: str = ""


@dataclass(frozen=True)
class Shares:
    """What jobs share although they differ in a field, and why; without this a field is compared.

    It is a pipeline, but not what a replica adds to it; or also the replica, so that each job looks
    at the field on its own; or all that a family has in common (``lower/batch.py``).
    """

    what: Literal["pipeline", "replica", "family"]
    why: str


GATHERS = Shares("pipeline", "shards and gathers between replicas; a pipeline is one of them")
REDUCES = Shares("pipeline", "what gradients are sent as, and how; a pipeline accumulates its own")
UPDATES = Shares("pipeline", "the update follows the last microbatch")
SENDS = Shares("pipeline", "ranks of a pipeline meet in the replay, which follows its stages")
PLACES = Shares("pipeline", "where groups of a layer lie is compared beside it")
ORDER = Shares("replica", "decides the order, which is found for each job")
USABLE = Shares(
    "replica", "usable memory is a column of its own, compared where an order is planned for it"
)
OF_STEP = Shares("replica", "added to the step of each job")
SHOWN = Shares("replica", "shown in reports alone")


class Config(BaseModel):
    """Immutable, closed configuration; the docstring under a field documents it.

    A class may list ``aliases``: other spellings of its fields that users of Megatron-LM
    know. A field and its alias together are an error. `Label` and `Shares` in the type of a field
    say what figures call it, and which jobs share costs although they differ in it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    aliases: ClassVar[Mapping[str, str]] = {}
    """Accepted spelling -> name of the field."""

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Name what has a name: a device is 1,000 numbers and sources, which `model_dump` has."""
        return [("name", self.name)] if hasattr(self, "name") else super().__repr_args__()

    @model_validator(mode="before")
    @classmethod
    def _resolve_names(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, Mapping):
            return data
        resolved: dict[str, Any] = {}
        spelled: dict[str, str] = {}
        known = cls.model_fields  # asked once: it is found anew every time
        for given, value in data.items():
            name = given
            if name not in known:
                name = cls.aliases.get(str(given).replace("-", "_"), given)
            if name not in known:
                raise UnknownKeyError(str(given), cls)
            if name in resolved:
                alias = next(each for each in (str(given), spelled[name]) if each != name)
                raise ValueError(f"{name!r} is set twice, also under its alias {alias!r}")
            resolved[name] = unwrapped(value)
            spelled[name] = str(given)
            is_text = isinstance(resolved[name], str) and info.mode == "python"
            if is_text and name in _numbers(cls, str):  # a record keeps to numbers
                resolved[name] = read_amount(resolved[name], name)
            if resolved[name] is True and name in _numbers(cls):
                # Python takes it for one, which nobody means; false may mean none.
                msg = f"{name}: should be a number, not true or false"
                raise ConfigError(msg, key=name, value=True, allowed="a number")
        return resolved

    @classmethod
    def parse(cls, data: Any, *, path: str = "") -> Self:
        """Validate ``data``, turning pydantic's report into one `ConfigError`.

        ``path`` is its dotted position in the job, put before every key.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise config_error(error, path) from None


def values_of(section: type[Config], field: str) -> tuple[str, ...]:
    """Return the words that a field takes one of."""
    return get_args(section.model_fields[field].annotation)


class UnknownKeyError(ValueError):
    """A key that a configuration class does not have."""

    def __init__(self, key: str, owner: type[Config]) -> None:
        names = [*owner.model_fields, *owner.aliases]
        close = difflib.get_close_matches(key, names, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(sorted(names))}"
        super().__init__(f"unknown key {key!r}{hint}")
        self.key = key
        self.allowed = close or sorted(names)


def check_most(key: str, value: float, what: str, most: float) -> None:
    """Refuse a value beyond that of another field."""
    if value > most:
        raise ConfigError(f"{key} ({value}) exceeds {what} ({most})", key=key, value=value)


def config_error(error: ValidationError, path: str) -> ConfigError:
    """Turn the first entry of a pydantic report into a `ConfigError`."""
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    location = [str(part) for part in first["loc"] if not _is_union_tag(str(part))]
    key = ".".join(filter(None, [path, *location]))
    value: Any = first.get("input")
    allowed: Any = None
    if isinstance(cause, ConfigError):
        within = f"{cause.key}.".startswith(f"{key}.")
        inner = cause.key if within else ".".join(filter(None, [key, cause.key]))
        plain = cause.message.removeprefix(f"{cause.key}: ")
        text = plain if plain.startswith(inner) else f"{inner}: {plain}"
        return type(cause)(text, key=inner, value=cause.value, allowed=cause.allowed)
    if isinstance(cause, UnknownKeyError):
        value = value.get(cause.key) if isinstance(value, Mapping) else value
        key = ".".join(filter(None, [key, cause.key]))
        allowed, text = cause.allowed, str(cause)
    elif cause is not None:
        text = str(cause)
    elif first["type"] == "missing":
        return ConfigError(f"{key}: is required", key=key, allowed="a value")
    elif first["type"] in _WANTED:
        allowed = _WANTED[first["type"]]
        text = f"should be {allowed}"
    elif first["type"] == "literal_error":
        allowed = [literal_eval(each) for each in _choices(first["ctx"]["expected"])]
        text = f"should be {_or(allowed)}"
    else:
        text = first["msg"].replace("Input should be", "should be").replace("Input", "value")
        allowed = first.get("ctx", {}).get("expected", text)
    got = f" (got {shown(value)})" if cause is None else ""
    return ConfigError(
        f"{key}: {text}{got}" if key else text, key=key, value=value, allowed=allowed
    )


_WANTED = {
    **dict.fromkeys(("model_type", "dict_type", "mapping_type"), "a mapping"),
    **dict.fromkeys(
        ("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "a whole number"
    ),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("tuple_type", "list_type", "set_type", "frozen_set_type"), "a list"),
    "string_type": "text",
    "finite_number": "a finite number",
}
"""What a field takes, by the kind of pydantic's error."""


def _choices(expected: str) -> list[str]:
    """Split what pydantic expects of one of several values: ``'a', 'b' or 'c'``."""
    *others, last = expected.split(" or ")
    return [*", ".join(others).split(", "), last] if others else [last]


def _or(values: list[Any]) -> str:
    texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in values]
    return " or ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


@cache
def _numbers(owner: type[BaseModel], but: type = bool) -> frozenset[str]:
    """Return the fields of a class that take numbers, and nothing of another type."""
    return frozenset(
        name
        for name, field in owner.model_fields.items()
        if (kinds := set(_leaves(field.annotation))) & {int, float} and but not in kinds
    )


def _leaves(annotation: Any) -> Iterator[Any]:
    """Yield the types that an annotation is made of, those of literals too."""
    if get_origin(annotation) is Literal:
        yield from map(type, get_args(annotation))
        return
    parts = get_args(annotation)
    if get_origin(annotation) is Annotated:
        parts = parts[:1]
    if not parts:
        yield annotation
    for part in parts:
        yield from _leaves(part)


def _is_union_tag(part: str) -> bool:
    return "[" in part or "(" in part or part in {"int", "float", "str", "bool", "constrained-str"}


SOURCED = {"value", "source", "note"}
"""Keys of a number with its source."""


class Sourced(Config):
    """Configuration whose numbers may be given with their source: ``{value, source, note}``."""

    sources: Annotated[dict[str, str], SHOWN] = Field(default_factory=dict)
    """Where each number comes from, by dotted field."""

    @model_validator(mode="before")
    @classmethod
    def _split_sources(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        table = source_table(data)
        noted: dict[str, str] = {}
        body = {
            str(name): _strip(value, str(name), table, noted)
            for name, value in data.items()
            if name not in {"sources", "extends"}
        }
        return {**body, "sources": {**of_fields(cls, table), **noted}}


def source_table(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the texts that fields cite by a key."""
    table = data.get("sources") or {}
    if isinstance(table, Mapping):
        return {str(key): text for key, text in table.items()}
    msg = f"sources: must be a mapping of keys to texts (got {shown(table)})"
    raise ConfigError(msg, key="sources", value=table, allowed="a mapping of keys to texts")


def of_fields(owner: type[Sourced], table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sources of fields: other keys of a table are those that fields cite."""
    fields = owner.model_fields
    return {key: text for key, text in table.items() if key in fields or "." in key}


_PLAIN = (str, int, float, list, tuple, type(None))


def is_mapping(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether a value is a mapping; a device has hundreds of values, nearly all of them plain."""
    plain = isinstance(value, _PLAIN)
    return isinstance(value, dict) or (not plain and isinstance(value, Mapping))


def merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Lay ``override`` over ``base``, mapping by mapping; sourced numbers are replaced whole."""
    merged = dict(base)
    for name, value in override.items():
        old = merged.get(name)
        if is_mapping(value) and is_mapping(old) and "value" not in value and "source" not in old:
            merged[name] = merge(old, value)
        else:
            merged[name] = value
    return merged


def put(data: dict[str, Any], dotted: str, value: Any) -> None:
    """Set a dotted name, within the mappings that it names before."""
    *path, last = dotted.split(".")
    reduce(lambda node, part: node.setdefault(part, {}), path, data)[last] = value


def nested(path: Sequence[str], leaf: Any) -> dict[str, Any]:
    """Return a mapping of mappings that has one value, ``leaf``, at a path."""
    return reduce(lambda inner, name: {name: inner}, reversed(path), leaf)


def _strip(value: Any, path: str, table: Mapping[str, str], sources: dict[str, str]) -> Any:
    """Replace every ``{value, source}`` below ``value`` by its value, noting the source."""
    if is_mapping(value):
        if "value" in value and value.keys() <= SOURCED:
            text = str(table.get(str(value.get("source")), value.get("source") or "unsourced"))
            note = f" ({value['note']})" if value.get("note") else ""
            sources[path] = f"{text}{note}"
            return value["value"]
        return {key: _strip(item, f"{path}.{key}", table, sources) for key, item in value.items()}
    if isinstance(value, list):
        return [_strip(item, f"{path}.{i}", table, sources) for i, item in enumerate(value)]
    return value
