"""Reading JSON that a program wrote and that a disk, an editor or a network may have spoilt."""

import json
from pathlib import Path
from typing import Any, NoReturn

from projector.config.yaml_file import check_nesting
from projector.errors import ConfigError
from projector.files import read_bounded

MOST_BYTES = 64 * 1024**2
"""A record of a large model has one or two MiB."""

MOST_COLLECTIONS = 1_000_000


def read_object(path: Path, *, key: str, what: str) -> dict[str, Any]:
    """Return the object in a JSON file.

    Parameters
    ----------
    path : Path
        The file.
    key : str
        Option that named it.
    what : str
        What the file should be, for messages: ``a record of measurements``.
    """

    def no(why: str) -> NoReturn:
        raise ConfigError(f"{path} {why}", key=key, value=str(path), allowed=what)

    try:
        text = read_bounded(path, MOST_BYTES, key=key, allowed=what).decode()
    except UnicodeDecodeError:
        no("is no text in UTF-8")
    if not text.strip():
        no("is empty")
    try:
        data = json.loads(
            text, object_pairs_hook=_once, parse_constant=_finite, parse_float=_finite
        )
    except json.JSONDecodeError as error:
        whole = text.strip()
        ended = whole[-1] == "}" and error.pos < len(text.rstrip())
        cut = whole[0] == "{" and not ended and error.msg != "Extra data"
        where = f"{error.msg} (line {error.lineno}, column {error.colno})"
        no(f"ends too early, it was cut off: {where}" if cut else f"is not valid JSON: {where}")
    except (ValueError, RecursionError) as error:
        no(f"is not valid JSON: {str(error) or type(error).__name__}")
    check_nesting(data, name=str(path), most=MOST_COLLECTIONS)
    if not isinstance(data, dict):
        no(f"holds a {type(data).__name__}, not {what}")
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} is given twice")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0.0:
        raise ValueError(f"{text} is no number that can be measured")
    return number
