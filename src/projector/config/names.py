"""Names of the fields of a job: the short ones that people type, and Megatron's spellings."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, get_args

from projector.config._base import Config
from projector.config.job import Job
from projector.errors import ConfigError

FIRST = ("parallelism.", "training.", "load.")
"""Sections whose fields go before others of the same name."""


IN_FULL = ("training.adapter.",)
"""Sections of which one field alone makes another kind of training. No short name leads there:
``dropout=0.1`` would freeze the weights of a model."""


def shortened(fields: Iterable[str]) -> dict[str, str]:
    """Return short name -> dotted field where unique; those of `FIRST` go before others."""
    short: dict[str, list[str]] = {}
    for field in fields:
        short.setdefault(field.rpartition(".")[2], []).append(field)
    names = {}
    for name, dotted in short.items():
        near = [field for field in dotted if field.count(".") == 1]
        for candidates in (dotted, near, [field for field in near if field.startswith(FIRST)]):
            if len(candidates) == 1:
                names[name] = candidates[0]
    return names


@lru_cache(maxsize=4096)
def job_field(name: str, root: type[Config] = Job) -> str:
    """Return the dotted field that a name such as ``tp`` stands for; what is dotted stays."""
    head, dot, rest = name.partition(".")
    if head in root.model_fields:
        return name
    full = _names(root).get(head.replace("-", "_"))
    return name if full is None or full.startswith(IN_FULL) else f"{full}{dot}{rest}"


def is_field(dotted: str, root: type[Config] = Job) -> bool:
    """Whether jobs may have a dotted field, though one that leaves a section out has none of it."""
    return dotted in _every_field(root)


@lru_cache(maxsize=1024)
def native_names(dotted: str) -> tuple[str, ...]:
    """Split a dotted field, replacing Megatron's spellings by the names of the fields."""
    parts: list[str] = []
    for part in dotted.split("."):
        parts.append(aliases_of(".".join(parts)).get(part.replace("-", "_"), part))
    return tuple(parts)


def aliases_of(section: str) -> Mapping[str, str]:
    """Return other spellings of the fields of a dotted section."""
    return _aliases().get(section, {})


@cache
def _aliases() -> dict[str, Mapping[str, str]]:
    return {section: owner.aliases for section, owner in _sections(Job, "")}


def in_full(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return overrides under their dotted fields; of two for one field the later one counts."""
    named: dict[str, Any] = {}
    for given, value in overrides.items():
        field = job_field(str(given))
        if field.partition(".")[0] not in Job.model_fields:
            raise _unknown(str(given), value)
        field = ".".join(native_names(field))
        named.pop(field, None)
        named[field] = value
    return named


def _unknown(name: str, value: Any) -> ConfigError:
    """Name the nearest sections and fields, or fields of which the name is a part."""
    head, dot, rest = name.partition(".")
    sections = [each for each in Job.model_fields if each not in _NOT_STATED]
    known = {**_names(Job), **{each: each for each in sections}}
    partly = [full for short, full in known.items() if head in short.split("_")]
    partly.sort(key=lambda full: (not full.startswith(FIRST), full.count(".")))
    close = [known[each] for each in difflib.get_close_matches(head, known, n=MOST_NEAREST)]
    nearest = list(dict.fromkeys([*partly, *close]))[:MOST_NEAREST]
    if nearest and nearest[0] in sections:
        nearest = [f"{nearest[0]}{dot}{rest}"]
    hint = (
        f"did you mean {' or '.join(nearest)}?"
        if nearest
        else f"a field begins with its section: {', '.join(sections)}"
    )
    msg = f"a job has no field {name!r}; {hint}"
    return ConfigError(msg, key=head, value=value, allowed=nearest or sections)


MOST_NEAREST = 3
"""Fields that a message about an unknown name lists."""

_NOT_STATED = {"notes", "origins", "ignored"}
"""Fields of a job that its readers fill."""


@cache
def _names(root: type[Config]) -> dict[str, str]:
    """Return every short name and alias, with its dotted field."""
    names = shortened(field for field in _every_field(root) if "." in field)
    for section, owner in _sections(root, ""):
        for alias, name in owner.aliases.items():
            names.setdefault(alias, f"{section}.{name}" if section else name)
    return names


@cache
def _every_field(root: type[Config]) -> tuple[str, ...]:
    return tuple(_fields(root, ""))


def _fields(owner: type[Config], prefix: str) -> Iterator[str]:
    for name, info in owner.model_fields.items():
        if not prefix and name in _NOT_STATED:
            continue
        yield f"{prefix}{name}"
        for nested in _nested(info.annotation):
            yield from _fields(nested, f"{prefix}{name}.")


def _sections(owner: type[Config], path: str) -> Iterator[tuple[str, type[Config]]]:
    yield path, owner
    for name, info in owner.model_fields.items():
        for nested in _nested(info.annotation):
            yield from _sections(nested, f"{path}.{name}" if path else name)


def _nested(annotation: Any) -> Iterator[type[Config]]:
    """Yield the sections that a field may hold, not those within a list or a mapping."""
    if isinstance(annotation, type):
        if issubclass(annotation, Config):
            yield annotation
        return
    for part in get_args(annotation):
        if isinstance(part, type) and issubclass(part, Config):
            yield part
