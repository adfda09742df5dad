"""Which reader a file belongs to: by its ending, else by the keys at its top.

Files of any tool can carry fields of ours along, in comments.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from projector.config.formats.read_job import CARRIED, ReadJob
from projector.config.model_file import json_object
from projector.config.resources import known, settings_of
from projector.config.yaml_file import parse_yaml, yaml_mapping
from projector.errors import ConfigError, UnsupportedError, shown

Keys = frozenset[str]


def _launch_script(text: str, path: Path) -> ReadJob:
    from projector.config.formats.megatron import read_megatron
    from projector.config.formats.trainer import is_trainer_script, read_trainer_script

    if is_trainer_script(text):
        return read_trainer_script(text, path=path)
    return read_megatron(text, name=path.stem, path=path)


def _program(_: str, path: Path) -> ReadJob:
    msg = (
        f"{path} is a program, and nothing is executed here; torchtitan, NeMo 2 and "
        "Megatron-Bridge write recipes as Python: give the arguments or the file that it writes"
    )
    raise UnsupportedError(msg, key="config", value=str(path), allowed=known_files())


_BY_ENDING: dict[str, Callable[[str, Path], ReadJob]] = {
    ".sh": _launch_script,
    ".args": _launch_script,
    ".txt": _launch_script,
    ".toml": lambda text, path: _reader("torchtitan.read_toml")(text, path=path),
    ".py": _program,
}
"""Ending of a file's name -> what reads its text."""


def _reader(name: str) -> Callable[..., ReadJob]:
    """Return a function by its module and name; readers are imported where a file asks for them."""
    module, _, function = name.partition(".")
    read: Callable[..., ReadJob] = getattr(import_module(f"{__package__}.{module}"), function)
    return read


class _Format(NamedTuple):
    name: str
    marks: tuple[Keys, ...]
    """Keys at the top of a file: it is of this kind where it has all of one of these sets."""
    reader: str = ""
    """Module and function that read it."""
    instead: str = ""
    """What to do with one that is not read."""
    named: str = ""
    """How a job names one that describes a part of it."""


@cache
def _kinds(section: str) -> tuple[_Format, ...]:
    """Return a section of ``hardware/settings/kinds.yaml``, in the order in which it is tried."""
    return tuple(
        _Format(**{**row, "marks": tuple(frozenset(keys.split()) for keys in row["marks"])})
        for row in settings_of("kinds")[section]
    )


def known_files() -> list[str]:
    """Return the files that are read, as errors list them."""
    own = ["a native job", "Megatron-LM arguments", "a TOML file of torchtitan"]
    return own + [kind.name for kind in _kinds("read") if kind.reader]


def read_job_text(text: str, path: Path) -> ReadJob | dict[str, Any]:
    """Return what the reader of another tool's files made of a text, or a native job as written."""
    by_ending = _BY_ENDING.get(path.suffix.lower())
    if by_ending is not None:
        return by_ending(text, path)
    data = json_object(text, path) if path.suffix == ".json" else yaml_mapping(text, path)
    _refuse_other_files_of_ours(data, path)
    found = kind_of(data) or next(
        (kind for kind in _kinds("foreign") if _fits(kind.marks, data)), None
    )
    if found is None:
        return data
    if found.reader:
        return _reader(found.reader)(data, path=path)
    if found.named:
        msg = f"{path} describes {found.name}, not a job; {found.named}: {path}"
        raise ConfigError(msg, key="config", value=str(path), allowed="a job file")
    msg = f"{path} is {found.name}, which is not read; {found.instead}"
    raise UnsupportedError(msg, key="config", value=str(path), allowed=known_files())


def _refuse_other_files_of_ours(data: Mapping[str, Any], path: Path) -> None:
    """Refuse a space, and a device or model that starts from a shipped one."""
    if "base" in data and ("axes" in data or "best_of" in data):
        msg = f"{path} is a space of jobs, not a job; projector sweep takes it"
        raise ConfigError(msg, key="config", value=str(path), allowed="a job file")
    base = data.get("extends")
    for kind, name, field in (
        ("hardware", "a device", "cluster.device"),
        ("models", "an architecture", "model"),
    ):
        if isinstance(base, str) and known(kind, base) is not None:
            msg = f"{path} describes {name}, not a job; name it in a job: {field}={path}"
            raise ConfigError(msg, key="config", value=str(path), allowed="a job file")


def kind_of(keys: Iterable[str] | Mapping[str, Any]) -> _Format | None:
    """Return the kind of file that has these keys at its top, None for a native job."""
    return next((kind for kind in _kinds("read") if _fits(kind.marks, keys)), None)


def _fits(marks: tuple[Keys, ...], keys: Iterable[str]) -> bool:
    there = frozenset(keys)
    return any(each <= there for each in marks)


# Fields that a file of another tool carries along, in comments which that tool does not read: a
# line ``# projector: cluster.device=h100 training.elementwise=eager`` sets the fields that the tool
# has no words for, as overrides of the command line do. JSON has no comments: `CARRIED` at the top
# holds them there.

MARK: Final = "# projector:"
"""How a line begins that carries fields."""

ORIGIN: Final = "comment of the file"

WIDTH: Final = 96
"""Columns of a line, where one field does not need more."""


def carried_fields(text: str, path: Path) -> dict[str, Any]:
    """Return the fields that the comments in the text of a file carry, dotted field -> value."""
    if path.suffix.lower() == ".json":
        fields = json_object(text, path).get(CARRIED, {})
        if not isinstance(fields, Mapping):
            msg = f"{path}: {CARRIED} should be a mapping of fields (got {shown(fields)})"
            raise ConfigError(msg, key=CARRIED, value=fields, allowed="a mapping")
        return {str(field): value for field, value in fields.items()}
    found: dict[str, Any] = {}
    for line in text.splitlines():
        if line.startswith(MARK):
            found |= _fields(line.removeprefix(MARK), path)
    return found


def comment_lines(fields: Mapping[str, Any]) -> str:
    """Return the lines that carry fields, as `carried_fields` reads them."""
    lines: list[str] = []
    for field, value in fields.items():
        text: str = yaml.dump(value, Dumper=_OneLine, default_flow_style=True, width=1 << 20)
        text = text.removesuffix("\n").removesuffix("...").removesuffix("\n")
        word = shlex.quote(f"{field}={text}")
        if lines and len(lines[-1]) + 1 + len(word) <= WIDTH:
            lines[-1] += f" {word}"
        else:
            lines.append(f"{MARK} {word}")
    return "".join(f"{line}\n" for line in lines)


def _fields(text: str, path: Path) -> dict[str, Any]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        msg = f"{path}: {MARK!r} is not followed by key=value: {error}"
        raise ConfigError(msg, key=MARK, value=text, allowed="key=value") from None
    found: dict[str, Any] = {}
    for word in words:
        field, equals, value = word.partition("=")
        if not equals or not field:
            msg = f"{path}: {MARK!r} is followed by {word!r}, not by key=value"
            raise ConfigError(msg, key=MARK, value=word, allowed="key=value")
        found[field] = parse_yaml(value, name=field)
    return found


class _OneLine(yaml.SafeDumper):
    """Writes text without line breaks, which would end a comment."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Return text between double quotes where it has lines, so that their ends are escaped."""
        quotes = '"' if "\n" in text else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=quotes)


_OneLine.add_representer(str, _OneLine.represent_text)
