"""Typed access to the keys of a ``config.json``, which names the key in every error."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, NamedTuple

from projector.config.formats.megatron_settings.fields import UNSUPPORTED as _OF_MEGATRON
from projector.config.formats.read_job import Unsupported
from projector.config.formats.values import is_off
from projector.config.resources import settings_of
from projector.errors import ConfigError, UnsupportedError, shown

MAX_LAYERS: Final = 10_000
"""Layers we expand patterns for; `ModelConfig` has the same bound."""

MAX_HEADS: Final = 10_000
"""Query heads of one layer; `ModelConfig` lists the divisors when key/value heads do not fit."""

MAX_EXTENT: Final = 10**12
"""Largest number that a dimension of a model may have."""

TABLE: Final = settings_of("huggingface")

REQUIRED: Final[Any] = object()
"""Default of a key that has to be there."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """One mapping of a ``config.json``."""

    data: Mapping[str, Any]
    path: str
    """Dotted position of the mapping, put before every key in an error."""
    warnings: list[str] = field(default_factory=list)
    """Sentences on what is not modelled; nested mappings add to the same list."""
    used: set[str] = field(default_factory=set)
    """Keys that were asked for."""

    @classmethod
    def of(cls, data: Any, path: str, warnings: list[str] | None = None) -> "ConfigFile":
        """Return the access to ``data``, or raise `ConfigError` if it is not a mapping."""
        if not isinstance(data, Mapping):
            msg = f"{path}: a Hugging Face config is a mapping, not {type(data).__name__}"
            raise ConfigError(msg, key=path, value=data, allowed="the contents of a config.json")
        return cls(data, path, [] if warnings is None else warnings)

    def has(self, name: str) -> bool:
        """Whether the key is there and not null."""
        self.used.add(name)
        return self.data.get(name) is not None

    def warn(self, what: str) -> None:
        """Note what would change the projection and is not modelled."""
        self.warnings.append(f"not modelled: {what}")

    def integer(
        self, name: str, default: Any = REQUIRED, *, least: int = 1, most: int = MAX_EXTENT
    ) -> int:
        """Return a whole number from ``least`` to ``most``; null is an error."""
        value = self._value(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(name, "a whole number")
        if not least <= value <= most:
            raise self.error(name, f"between {least} and {most}")
        return value

    def optional_integer(self, name: str, default: Any = None, *, must: bool = False) -> int | None:
        """Return a whole number, none where the key is null; or absent, unless it ``must`` be."""
        self.used.add(name)
        if self.data.get(name, default) is None and not (must and name not in self.data):
            return None
        return self.integer(name, REQUIRED if default is None else default, least=0)

    def number(self, name: str, default: Any = REQUIRED) -> float:
        """Return a number from 0 on; null is an error."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < inf:
            raise self.error(name, "a number, at least 0")
        return float(value)

    def flag(self, name: str, default: Any = REQUIRED) -> bool:
        """Return true or false; null is an error."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def text(self, name: str, default: Any = REQUIRED) -> str:
        """Return a string; null is an error."""
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self.error(name, "a string")
        return value

    def activation(self, name: str, default: str, *, gated: bool = False) -> Any:
        """Return the name of an activation, with a gate or without."""
        given = self.text(name, default)
        meanings = TABLE["activations"]["gated" if gated else "plain"]
        if given not in meanings:
            why = f"this activation is not modelled; known: {', '.join(meanings)}"
            raise self.unsupported(name=name, why=why, allowed=list(meanings))
        return meanings[given]

    def is_on(self, name: str) -> bool:
        """Whether the key is there and neither null, false nor 0."""
        return self.has(name) and bool(self.data[name])

    def is_not_true(self, name: str) -> bool:
        """Whether the key is absent or anything but true."""
        return self.data.get(name) is not True

    def sequence(self, name: str, kind: type) -> list[Any]:
        """Return a list whose items are all of one type; absent or null means empty."""
        self.used.add(name)
        value = self.data.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or any(type(item) is not kind for item in value):
            raise self.error(name, f"a list of {kind.__name__}")
        return value

    def first(self, *names: str) -> str:
        """Return the first of some spellings of a key that is there, else the first of all."""
        there = [name for name in names if self.has(name)]
        return there[0] if there else names[0]

    def child(self, name: str, *, required: bool = False) -> "ConfigFile":
        """Return a nested mapping; an absent one is empty."""
        value = self._value(name, REQUIRED if required else {})
        return ConfigFile.of(value, self.key(name), self.warnings)

    def key(self, name: str) -> str:
        """Return the dotted position of a key."""
        return f"{self.path}.{name}" if self.path else name

    def error(self, name: str, allowed: str) -> ConfigError:
        """Return the error of a value that is not ``allowed``."""
        value = self.data.get(name)
        msg = f"{self.key(name)} should be {allowed} (got {value!r:.60})"
        return ConfigError(msg, key=self.key(name), value=value, allowed=allowed)

    def unsupported(self, name: str, why: str, allowed: Any = None) -> UnsupportedError:
        """Return the error of a value that cannot be described."""
        value = self.data.get(name)
        msg = f"{self.key(name)} = {value!r:.60}: {why}"
        return UnsupportedError(msg, key=self.key(name), value=value, allowed=allowed)

    def _value(self, name: str, default: Any) -> Any:
        self.used.add(name)
        value = self.data.get(name, default)
        if value is REQUIRED:
            msg = f"{self.key(name)} is missing from the Hugging Face config"
            raise ConfigError(msg, key=self.key(name), allowed="a value, there is no default")
        return value


Fields = Mapping[str, Any]
"""Native field -> the value that an architecture fixes, or how a value is read."""


def fields_of(row: Mapping[str, Any], rows: Mapping[str, Any]) -> Fields:
    """Return the fields of a row: those of the rows that it names, then its own."""
    found: dict[str, Any] = {}
    for name in row.get("of", "").split():
        found |= fields_of(rows[name], rows)
    found |= row.get("fields", {})
    return {name: found[name] for name in found if name not in row.get("without", "").split()}


def read_fields(fields: Fields, config: ConfigFile) -> dict[str, Any]:
    """Return the value of every field, read in the order of the table."""
    return {name: read_value(config, how) for name, how in fields.items()}


def read_value(config: ConfigFile, how: Any) -> Any:
    """Return a value that is fixed, or what a method of `ConfigFile` reads of one key."""
    if not isinstance(how, Mapping):
        return how
    (method, spellings), *further = how.items()
    told = dict(further)
    means, otherwise = told.pop("means", None), told.pop("otherwise", None)
    times, plus = told.pop("times", 1), told.pop("plus", 0)
    value = getattr(config, method)(config.first(*spellings.split()), **told)
    if means is not None:
        value = read_value(config, means[value])
    if otherwise is not None and not value:
        value = read_value(config, otherwise)
    return value if (times, plus) == (1, 0) else value * read_value(config, times) + plus


# Keys that no architecture reads: other models, or no difference.

UNSUPPORTED: Final[Mapping[str, Unsupported]] = {
    name: entry for name, entry in _OF_MEGATRON.items() if name != "model_type"
} | {
    name: Unsupported(row["what"], row["instead"])
    for row in TABLE["unsupported"]
    for name in row["keys"].split()
}
"""Keys that make another model, in the order in which they are told."""


class Group(NamedTuple):
    """Keys that some model types read and that make another model of any other type."""

    field: str
    """Native field that the keys give; where a model type fixes it, the keys say nothing new."""
    entry: Unsupported
    keys: tuple[str, ...]


OF_OTHER_FAMILIES: Final = tuple(
    Group(row["field"], Unsupported(row["what"], row["instead"]), tuple(row["keys"].split()))
    for row in TABLE["of_other_families"]
)

HARMLESS: Final = frozenset(TABLE["harmless"].split())
"""Keys that change neither parameters nor work."""


def refusal(entry: Unsupported, value: Any, key: str) -> UnsupportedError | None:
    """Return the error of a key that makes another model, unless its value makes none."""
    if is_off(value) or any(value == one for one in entry.without_effect):
        return None
    got = f"{entry.what} not supported (got {shown(value)})"
    text = f"{key}: {got}; supported: {entry.instead}"
    return UnsupportedError(text, key=key, value=value, allowed=entry.instead)
