"""The settings that are taken over or not, by Megatron's name in code."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from projector.config._base import put
from projector.config.formats.read_job import Derived, Unsupported
from projector.config.formats.values import (
    Converter,
    flag,
    integer,
    layer_pattern,
    number,
    one_of,
    word,
)
from projector.config.resources import settings_of
from projector.errors import ConfigError, UnsupportedError


class Field(NamedTuple):
    """One setting, by the name that Megatron gives it, that is one field here."""

    name: str
    section: str
    """Dotted mapping of a native job that has the field."""
    convert: Converter
    native: str = ""
    """Native name of the field, where it is another one."""
    default: Any = None
    """Megatron's default, where it can differ from this package's."""
    is_switch: bool = False

    @property
    def target(self) -> str:
        """Dotted field of a native job."""
        return f"{self.section}.{self.native or self.name}"


def _one_of(spellings: Mapping[Any, str]) -> Converter:
    return one_of({name: value for value, names in spellings.items() for name in names.split()})


_TABLE = settings_of("megatron")
_READERS = {"integer": integer, "number": number, "flag": flag, "layer_pattern": layer_pattern}


def _converter(row: Mapping[str, Any]) -> Converter:
    if not isinstance(row["reads"], str):
        return _one_of(row["reads"])
    read = _READERS[row["reads"]]
    if "means" not in row:
        return read
    return lambda name, value: row["means"].get(read(name, value))


def _fields(rows: Mapping[str, Mapping[str, Any]]) -> tuple[Field, ...]:
    return tuple(
        Field(
            name,
            row["section"],
            _converter(row),
            row.get("field", ""),
            row.get("default"),
            row["reads"] == "flag",
        )
        for name, row in rows.items()
    )


FIELDS = _fields(_TABLE["fields"])
"""Settings of any job; they are read in this order."""

EXPERT_FIELDS = _fields(_TABLE["expert_fields"])
LATENT_FIELDS = _fields(_TABLE["latent_fields"])
NONE_MEANS: Mapping[str, Any] = _TABLE["none_means"]
"""What Megatron's own None, stated over a base architecture, means in the native field."""

MOMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
"""Number formats of an optimizer's moments."""

CHOICES = {name: _one_of(spellings) for name, spellings in _TABLE["choices"].items()}
"""What the names mean that a setting can take; rules read these settings with others."""

_PLAIN = (*FIELDS, *EXPERT_FIELDS, *LATENT_FIELDS)
OPEN: Mapping[str, str] = {
    field.name: field.target for field in _PLAIN if not field.is_switch
} | _TABLE["open"]
"""Settings that the user can give in the place of a file: setting -> dotted field."""

REQUIRED: Mapping[str, str] = _TABLE["required"]
"""Settings that a file must state or the user give: setting -> section of a native job."""

TAKEN_OVER = {field.name for field in _PLAIN} | CHOICES.keys() | set(_TABLE["others"].split())
"""Every setting that a field or a rule reads."""

_ALIASES: Mapping[str, str] = _TABLE["aliases"]

MEGATRON_DEFAULTS: Mapping[str, Any] = {
    field.name: field.default for field in _PLAIN if field.default is not None
} | _TABLE["defaults"]
"""Megatron-LM's defaults where they can differ from this package's; other switches are off."""


# The settings of one job, and the native job that rules make of them.


@dataclass(frozen=True)
class Dialect:
    """How one tool writes Megatron's settings."""

    spell: Callable[[str], str]
    """Megatron's name -> how the user writes it."""
    defaults: Mapping[str, Any]
    """What holds where nothing is stated."""
    origin: str
    """How a value from ``defaults`` is marked."""
    label: str
    """What a setting is called in messages."""


class Settings:
    """The settings of one job, read by Megatron's name, and what has been made of them."""

    def __init__(
        self,
        stated: Mapping[str, Any],
        dialect: Dialect,
        base: Mapping[str, Any] | None,
        sources: Mapping[str, str],
    ) -> None:
        self.dialect = dialect
        self.base = base
        """A native architecture that settings override; without it they describe all of it."""
        self.job: dict[str, Any] = {}
        self.warnings: list[str] = []
        """What is projected otherwise than stated."""
        self.origins: dict[str, str] = {}
        """Dotted field -> where its value came from, if not from the file."""
        self.ignored: list[str] = []
        """Settings that cannot change a projection, as they are written."""
        self.missing: dict[str, ConfigError] = {}
        """Dotted field that is left open -> the error where nobody else gives it."""
        self.derived: list[Callable[[dict[str, Any]], Derived]] = []
        """Fields that follow from others; each is called with the native job behind overrides."""
        self.stated: dict[str, Any] = {}
        """What the user's file states; None means Megatron's own None."""
        self._sources = sources
        for given, value in stated.items():
            name = _ALIASES.get(given, given)
            if self.stated.get(name) is None:
                self.stated[name] = value

    def spell(self, name: str) -> str:
        """Return a setting as the user writes it."""
        return self.dialect.spell(name)

    def get(self, name: str) -> Any:
        """Return what a setting is, stated or by default."""
        value = self.stated.get(name)
        return self.dialect.defaults.get(name) if value is None else value

    def has(self, name: str) -> bool:
        """Whether a setting is stated and not None."""
        return self.stated.get(name) is not None

    def named(self, name: str) -> bool:
        """Whether a setting is stated, be it with a value that is left open."""
        return self.has(name) or OPEN.get(name) in self.missing

    def on(self, name: str) -> bool:
        """Whether a switch is on."""
        value = self.get(name)
        return value is not None and flag(self.spell(name), value)

    def read(self, name: str, convert: Converter) -> Any:
        """Return a setting as ``convert`` reads it."""
        return convert(self.spell(name), self.get(name))

    def integer(self, name: str, default: int = 0) -> int:
        """Return a whole number."""
        value = self.get(name)
        return default if value is None else integer(self.spell(name), value)

    def word(self, name: str) -> str:
        """Return a name, ``""`` where there is none."""
        value = self.get(name)
        return "" if value is None else word(self.spell(name), value)

    def choice(self, name: str) -> Any:
        """Return what the name means that a setting of `CHOICES` is set to; an error shows text."""
        return CHOICES[name](self.spell(name), self.word(name))

    def put(self, target: str, value: Any, *names: str) -> None:
        """Set a dotted field, unless it is left open; mark where it comes from.

        A field that one of ``names`` in the user's file states has no mark.
        """
        if target in self.missing:
            return
        put(self.job, target, value)
        given = [self._sources[name] for name in names if name in self._sources]
        if given:
            self.origins[target] = given[0]
        elif not any(self.has(name) for name in names):
            self.origins[target] = self.dialect.origin

    def put_none(self, field: Field) -> None:
        """Set a field to what Megatron's own None, stated by the user, means, if anything."""
        if field.name in NONE_MEANS:
            self.put(field.target, NONE_MEANS[field.name])
            self.origins.pop(field.target, None)

    def take(self, rows: Iterable[Field], *, over: Any) -> None:
        """Set the fields of a part; ``over`` that of a base architecture only stated ones."""
        for field in rows:
            name = field.name
            value = self.get(name) if over is None else self.stated.get(name)
            if value is not None:
                self.put(field.target, field.convert(self.spell(name), value), name)
            elif over and name in self.stated:
                self.put_none(field)

    def warn(self, name: str, text: str) -> None:
        """Add a warning, once: a setting as it is written, and ``text``."""
        self.warn_that(f"{self.spell(name)}{text}")

    def warn_that(self, text: str) -> None:
        """Add a warning, once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def fail(self, name: str, text: str, *, allowed: Any = None, value: Any = None) -> NoReturn:
        """Raise `ConfigError`: a setting as it is written, and ``text``."""
        msg = f"{self.spell(name)}{text}"
        raise ConfigError(msg, key=self.spell(name), value=value, allowed=allowed)

    def leave_open(self, target: str, name: str, text: str, *, allowed: Any = None) -> None:
        """Leave a dotted field to the user: a setting as it is written, and ``text``."""
        spelt = self.spell(name)
        msg = f"{spelt}{text}; or give {target}=..."
        self.missing.setdefault(target, ConfigError(msg, key=spelt, allowed=allowed))

    def derive(self, job: dict[str, Any]) -> Derived:
        """Return all fields that follow from others."""
        return {field: value for each in self.derived for field, value in each(job).items()}

    def refuse(self, name: str, text: str, *, allowed: Any = None, value: Any = None) -> NoReturn:
        """Raise `UnsupportedError`: a setting as it is written, and ``text``."""
        msg = f"{self.spell(name)}{text}"
        raise UnsupportedError(msg, key=self.spell(name), value=value, allowed=allowed)

    def applies(self, *names: str) -> bool:
        """Whether a model setting applies: always without a base, else only when stated."""
        return self.base is None or any(self.has(name) for name in names)

    def overrides(self, *names: str) -> bool:
        """Whether a setting is stated, maybe as None, over a base architecture."""
        return self.base is not None and any(name in self.stated for name in names)

    def base_section(self, name: str) -> Any:
        """Return a mapping of the base architecture, None if it has none."""
        return (self.base or {}).get(name)

    def native(self, section: str) -> dict[str, Any]:
        """Return what has been set of a section of the job."""
        fields: dict[str, Any] = self.job.get(section, {})
        return fields

    def num_layers(self) -> int:
        """Return the layers of the model, 0 where nothing says how many."""
        if self.has("num_layers"):
            return self.integer("num_layers")
        return int(self.base["num_layers"]) if self.base else 0

    def latent(self) -> bool:
        """Whether attention is multi-head latent attention."""
        if self.has("multi_latent_attention") or self.base is None:
            return self.on("multi_latent_attention")
        return self.base.get("mla") is not None


# Settings that are not taken over: the warning about each, if any.

UNMODELLED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    **{
        name: ((False, 0), note)
        for note, names in _TABLE["where_on"].items()
        for name in names.split()
    },
    **{name: ((True, 1), note) for name, note in _TABLE["where_off"].items()},
    **{
        name: (tuple(row["without_effect"]), row["note"])
        for name, row in _TABLE["where_other"].items()
    },
    **{name: ((), note) for name, note in _TABLE["where_stated"].items()},
}
"""Settings that change the result and are not modelled: values without effect, what is done."""

UNSUPPORTED = {
    name: Unsupported(row["what"], row["instead"], tuple(_TABLE["nothing_changes"].get(name, ())))
    for row in _TABLE["unsupported"]
    for name in row["settings"].split()
}
"""Settings without which the model would be another one, in the order in which they are told."""

_IGNORED = frozenset(_TABLE["ignored"].split())
_IGNORED_BEGINNINGS = tuple(_TABLE["ignored_beginnings"].split())


def is_harmless(name: str) -> bool:
    """Whether a setting can change nothing; names in capitals are environment variables."""
    return name in _IGNORED or name.startswith(_IGNORED_BEGINNINGS) or name.isupper()
