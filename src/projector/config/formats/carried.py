"""Fields that a file of another tool carries along, in comments which that tool does not read.

A line ``# projector: cluster.device=h100 training.elementwise=eager`` sets the fields that the
tool has no words for. It holds overrides as the command line takes them. JSON has no comments: a
key `KEY` at the top holds the fields there.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from projector.config.model_file import json_object
from projector.config.yaml_file import parse_yaml
from projector.errors import ConfigError, shown

MARK: Final = "# projector:"
"""How a line begins that carries fields."""

ORIGIN: Final = "comment of the file"

WIDTH: Final = 96
"""Columns of a line, where one field does not need more."""

KEY: Final = "projector"
"""What carries fields in JSON."""


def carried_fields(text: str, path: Path) -> dict[str, Any]:
    """Return the fields that the comments in the text of a file carry, dotted field -> value."""
    if path.suffix.lower() == ".json":
        return _of_json(text, path)
    found: dict[str, Any] = {}
    for line in text.splitlines():
        if line.startswith(MARK):
            found |= _fields(line.removeprefix(MARK), path)
    return found


def comment_lines(fields: Mapping[str, Any]) -> str:
    """Return the lines that carry fields, as `carried_fields` reads them."""
    lines: list[str] = []
    for field, value in fields.items():
        word = shlex.quote(f"{field}={_as_yaml(value)}")
        if lines and len(lines[-1]) + 1 + len(word) <= WIDTH:
            lines[-1] += f" {word}"
        else:
            lines.append(f"{MARK} {word}")
    return "".join(f"{line}\n" for line in lines)


def _of_json(text: str, path: Path) -> dict[str, Any]:
    fields = json_object(text, path).get(KEY, {})
    if not isinstance(fields, Mapping):
        msg = f"{path}: {KEY} should be a mapping of fields (got {shown(fields)})"
        raise ConfigError(msg, key=KEY, value=fields, allowed="a mapping")
    return {str(field): value for field, value in fields.items()}


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


def _as_yaml(value: Any) -> str:
    text: str = yaml.dump(value, Dumper=_OneLine, default_flow_style=True, width=1 << 20)
    return text.removesuffix("\n").removesuffix("...").removesuffix("\n")
