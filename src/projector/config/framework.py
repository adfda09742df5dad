"""The training framework of a job, and the defaults that it brings along.

``hardware/software.yaml`` says for each framework what it runs, by release and, where it matters,
by the architecture of the device. What a job states itself always wins.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, cast

from pydantic import BaseModel, TypeAdapter, ValidationError, field_validator, model_validator

from projector.config import resources
from projector.config._base import Config, config_error
from projector.errors import ConfigError

FILE = "software.yaml"

DECIDES = ("training.framework", "cluster.device", "cluster.gpu")
"""Fields, whole or in part, on which the defaults of a framework depend."""

SECTIONS = ("parallelism", "training", "cluster")
"""Sections of a job that have fields with such defaults."""

Section = TypeVar("Section", bound=Config)

_NUMBER = re.compile(r"\d+")
_MONTH = re.compile(r"20\d\d-[01]\d")


class FrameworkConfig(Config):
    """A training framework and its release."""

    name: str
    """Framework, as ``hardware/software.yaml`` names it."""
    release: str | None = None
    """Release, in quotes where it looks like a number; none given means the newest known."""

    @field_validator("name", mode="after")
    @classmethod
    def _name_is_known(cls, name: str) -> str:
        return profile_named(name).key

    @field_validator("release", mode="before")
    @classmethod
    def _release_is_text(cls, release: Any) -> Any:
        is_number = isinstance(release, int | float) and not isinstance(release, bool)
        return str(release) if is_number else release

    @model_validator(mode="after")
    def _release_is_known(self) -> "FrameworkConfig":
        if self.release is not None:
            profile_named(self.name).position(self.release)
        return self

    def __str__(self) -> str:
        return self.name if self.release is None else f"{self.name} {self.release}"


class Stated(Config):
    """A value of a field with where it comes from."""

    value: Any
    source: str
    note: str = ""


class Rule(Config):
    """Values that a framework sets under some conditions."""

    since: str | None = None
    """First release with these values; all before the first that ends them, if none is given."""
    before: str | None = None
    """First release without them."""
    architectures: tuple[str, ...] | None = None
    """Architectures of devices that have them; none given means all."""
    set: Mapping[str, Stated]
    """Dotted field -> value."""


class Profile(Config):
    """What one framework runs."""

    key: str
    """Name in the file."""
    title: str
    also: tuple[str, ...] = ()
    releases: Mapping[str, str]
    """Release -> month it came out (year-month), oldest first."""
    rules: tuple[Rule, ...] = ()
    """Later rules win over earlier ones."""
    few_runs: Literal["none", "experts", "all"] = "none"
    """Jobs behind which hardly any published run stands, so that their bands are those of such."""

    def position(self, release: str | None) -> int:
        """Return the place of a release among the known ones, the last where none is given.

        A patch release counts as the release that it belongs to, and where releases are months, a
        month as the last one before it.
        """
        known = [*self.releases]
        if release is None:
            return len(known) - 1
        given = _NUMBER.findall(release)
        for place in reversed(range(len(known))):
            numbers = _NUMBER.findall(known[place])
            later = _MONTH.fullmatch(release) and _MONTH.fullmatch(known[place])
            if given and (numbers == given[: len(numbers)] or (later and numbers < given)):
                return place
        if given and self.months_after(release):
            return len(known) - 1
        msg = (
            f"unknown release {release!r} of {self.key}; known: {', '.join(known)} "
            f"(in quotes, so that 25.10 is not read as 25.1)"
        )
        raise ConfigError(msg, key="release", value=release, allowed=known)

    def months_after(self, release: str | None) -> int:
        """Return the months from the newest known release to a later one, 0 for any other.

        Releases that are no months come every two, as Megatron Core's do.
        """
        both = release or "", [*self.releases][-1]
        given, newest = ([*map(int, _NUMBER.findall(each))][:2] for each in both)
        if len(given) < len(newest) or len(newest) < 2 or given <= newest:
            return 0
        years, numbers = (there - here for there, here in zip(given, newest, strict=True))
        return 12 * years + numbers if newest[0] >= 20 else max(1, 2 * numbers)

    def month(self, release: str | None) -> str:
        """Return the month in which a release came out, as year-month."""
        return [*self.releases.values()][self.position(release)]

    def values(self, release: str | None, architecture: str) -> dict[str, Stated]:
        """Return dotted field -> value on devices of an architecture."""
        place, found = self.position(release), dict[str, Stated]()
        for rule in self.rules:
            since = 0 if rule.since is None else self.position(rule.since)
            before = len(self.releases) if rule.before is None else self.position(rule.before)
            is_there = rule.architectures is None or architecture in rule.architectures
            if since <= place < before and is_there:
                found |= rule.set
        return found


class _Profiles(NamedTuple):
    by_key: Mapping[str, Profile]
    by_name: Mapping[str, Profile]
    """Normalised names and further names."""
    fields: frozenset[str]
    """Every dotted field that any of them sets."""


@cache
def profiles() -> _Profiles:
    """Read the shipped profiles."""
    data = resources.hardware_table(FILE)
    sources = set(data["sources"])
    by_key = {
        key: Profile.parse({"key": key, **entry}, path=f"{FILE}: {key}")
        for key, entry in data["frameworks"].items()
    }
    by_name: dict[str, Profile] = {}
    fields: set[str] = set()
    for key, profile in by_key.items():
        for name in (key, *profile.also):
            by_name[_plain(name)] = profile
        for rule in profile.rules:
            fields |= rule.set.keys()
            for field, stated in rule.set.items():
                if stated.source not in sources:
                    msg = f"{FILE}: {key}: {field} has an unknown source {stated.source!r}"
                    raise ConfigError(msg, key=field, value=stated.source)
    return _Profiles(by_key, by_name, frozenset(fields))


def _plain(name: str) -> str:
    return "".join(char for char in name.lower() if char.isalnum())


def profile_named(name: str) -> Profile:
    """Return the profile of a framework."""
    found = profiles()
    profile = found.by_name.get(_plain(name))
    if profile is not None:
        return profile
    known = [*found.by_key]
    close = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    msg = f"unknown framework {name!r}; {hint}known: {', '.join(known)}"
    raise ConfigError(msg, value=name, allowed=known)


def decides_defaults(field: str) -> bool:
    """Whether defaults of a framework depend on a dotted field, or on a part of it."""
    return any(_overlap(field, name) for name in DECIDES)


def names_framework(field: str) -> bool:
    """Whether a dotted field is the framework, holds it, or is a part of it."""
    return _overlap(field, DECIDES[0])


def _overlap(field: str, other: str) -> bool:
    return f"{field}.".startswith(f"{other}.") or f"{other}.".startswith(f"{field}.")


def defaults_of(
    framework: FrameworkConfig | None, architecture: str
) -> Mapping[str, Mapping[str, Any]]:
    """Return for each section: field below it -> default of a framework (or the classes' own)."""
    return {} if framework is None else _defaults(framework.name, framework.release, architecture)


@lru_cache(maxsize=1024)
def _defaults(name: str, release: str | None, architecture: str) -> Mapping[str, Mapping[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for dotted, stated in profile_named(name).values(release, architecture).items():
        section, _, field = dotted.partition(".")
        found.setdefault(section, {})[field] = stated.value
    return found


def with_defaults(
    section: Section, values: Mapping[str, Any], may_differ: Iterable[str]
) -> Section:
    """Return a section whose unset fields have the defaults of a framework, by dotted field.

    The section may have those of another one: fields of ``may_differ``, which any framework sets,
    get the default of their class where ``values`` has none. Which fields were set stays as it was,
    so that what states a job is not changed.
    """
    nested: dict[str, set[str]] = {}
    for dotted in may_differ:
        first, _, rest = dotted.partition(".")
        nested.setdefault(first, set()).add(rest)
    changed: dict[str, Any] = {}
    for name, inner in nested.items():
        value = getattr(section, name)
        if "" not in inner:
            prefix = f"{name}."
            below = {
                dotted.removeprefix(prefix): default
                for dotted, default in values.items()
                if dotted.startswith(prefix)
            }
            new = with_defaults(value, below, inner)
        elif name in section.model_fields_set:
            continue
        elif name in values:
            new = _checked(type(section), name, values[name])
        else:
            new = type(section).model_fields[name].get_default(call_default_factory=True)
        if new is not value:
            changed[name] = new
    if not changed:
        return section
    fields = {name: getattr(section, name) for name in type(section).model_fields}
    stated = section.model_fields_set.copy()
    return cast("Section", type(section).model_construct(stated, **{**fields, **changed}))


def _checked(owner: type[BaseModel], name: str, value: Any) -> Any:
    key = (owner, name, repr(value))
    if key not in _values:
        field = owner.model_fields[name]
        kind: Any = Annotated[field.annotation, field]
        try:
            _values[key] = TypeAdapter(kind).validate_python(value)
        except ValidationError as error:
            raise config_error(error, f"{FILE}: {name}") from None
    return _values[key]


_values: dict[tuple[type[BaseModel], str, str], Any] = {}


@cache
def _fields_by_section() -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for dotted in profiles().fields:
        section, _, field = dotted.partition(".")
        found.setdefault(section, set()).add(field)
    return {section: frozenset(fields) for section, fields in found.items()}


def fill(
    section_name: str, section: Any, framework: FrameworkConfig | None, architecture: str
) -> Any:
    """Return one section of a job with the defaults of its framework on an architecture."""
    values = defaults_of(framework, architecture).get(section_name, {})
    return with_defaults(section, values, _fields_by_section().get(section_name, frozenset()))


def framework_origins(job: Any) -> Iterator[tuple[str, str]]:
    """Yield every field of a job that its framework decided, with the value and the framework."""
    framework = job.training.framework
    for name, values in defaults_of(framework, job.cluster.device.architecture).items():
        for field in values:
            section, value = getattr(job, name), attrgetter(f"{name}.{field}")(job)
            if not _is_set(section, field):
                shown = str(value).lower() if isinstance(value, bool) else value
                yield f"{name}.{field}", f"{shown} (framework {framework})"


def _is_set(section: BaseModel, dotted: str) -> bool:
    first, _, rest = dotted.partition(".")
    return first in section.model_fields_set if not rest else _is_set(getattr(section, first), rest)
