"""The settings of one job as a tool writes them, and the native job that rules make of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from projector.config.formats.megatron_settings.fields import ALIASES, CHOICES, OPEN
from projector.config.formats.megatron_settings.values import (
    Converter,
    flag,
    integer,
    word,
)
from projector.config.formats.read_job import Derived
from projector.errors import ConfigError, UnsupportedError


@dataclass(frozen=True)
class Dialect:
    """How one tool writes Megatron's settings.

    Attributes
    ----------
    spell : callable
        Megatron's name -> how the user writes it.
    defaults : mapping
        What holds where nothing is stated.
    origin : str
        How a value from ``defaults`` is marked.
    label : str
        What a setting is called in messages.
    """

    spell: Callable[[str], str]
    defaults: Mapping[str, Any]
    origin: str
    label: str


class Settings:
    """The settings of one job, read by Megatron's name, and what has been made of them.

    Attributes
    ----------
    stated : dict
        What the user's file states; None means Megatron's own None.
    base : mapping or None
        A native architecture that the settings override; without it they describe all of it.
    job : dict
        Native job mapping.
    warnings : list of str
        What is projected otherwise than stated.
    origins : dict
        Dotted field -> where its value came from, if not from the file.
    ignored : list of str
        Settings that cannot change a projection, as they are written.
    missing : dict
        Dotted field that is left open -> the error where nobody else gives it.
    derived : list of callable
        Fields that follow from others; each is called with the native job behind overrides.
    """

    def __init__(
        self,
        stated: Mapping[str, Any],
        dialect: Dialect,
        base: Mapping[str, Any] | None,
        sources: Mapping[str, str],
    ) -> None:
        self.dialect = dialect
        self.base = base
        self.job: dict[str, Any] = {}
        self.warnings: list[str] = []
        self.origins: dict[str, str] = {}
        self.ignored: list[str] = []
        self.missing: dict[str, ConfigError] = {}
        self.derived: list[Callable[[dict[str, Any]], Derived]] = []
        self.stated: dict[str, Any] = {}
        self._sources = sources
        for given, value in stated.items():
            name = ALIASES.get(given, given)
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
        node = self.job
        *path, last = target.split(".")
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
        given = [self._sources[name] for name in names if name in self._sources]
        if given:
            self.origins[target] = given[0]
        elif not any(self.has(name) for name in names):
            self.origins[target] = self.dialect.origin

    def put_none(self, target: str, value: Any) -> None:
        """Set a dotted field to what Megatron's own None, stated by the user, means."""
        self.put(target, value)
        self.origins.pop(target, None)

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


def section_of(job: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of a native job, an empty one where it is missing or a name."""
    section = job.get(name)
    return section if isinstance(section, Mapping) else {}
