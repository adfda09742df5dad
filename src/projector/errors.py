"""Every error that a user can cause, with what was wrong and what would be right."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

LONGEST_MESSAGE = 8192


class ProjectorError(Exception):
    """Base of every error a user can cause.

    Args:
        message (str): One sentence that names the key, the value and the way out.
        key (str): Dotted field the error is about, ``""`` when it concerns a whole file.
        value (object): The offending value as the user gave it.
        allowed (object): What would be legal: a list of values, or a description.
    """

    def __init__(
        self, message: str, *, key: str = "", value: Any = None, allowed: Any = None
    ) -> None:
        if len(message) > LONGEST_MESSAGE:  # it repeats what was given
            message = f"{message[: LONGEST_MESSAGE // 2]} ... {message[-LONGEST_MESSAGE // 2 :]}"
        super().__init__(message)
        self.message = message
        self.key = key
        self.value = value
        self.allowed = allowed

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints for this error."""
        return {
            "error": self.message,
            "key": self.key,
            "value": _for_json(self.value),
            "allowed": _for_json(self.allowed),
        }


class ConfigError(ProjectorError, ValueError):
    """A configuration that cannot describe a real job."""


class UnsupportedError(ConfigError):
    """A configuration that is legal elsewhere and that this package does not model."""


class ScheduleError(ProjectorError, ValueError):
    """A pipeline schedule that cannot run with the given stages and microbatches."""


class NumericError(ProjectorError, ArithmeticError):
    """A kernel reported a status other than success: a number left its range."""


class OutOfMemoryError(ProjectorError, MemoryError):
    """The memory of this machine ran out, or what a limit leaves of it; no input is wrong."""


class MeasurementError(ProjectorError, RuntimeError):
    """Something could not be measured on this machine: no torch, a process that died or hung."""


LONGEST = 60
"""Characters of a value that a message shows."""

MOST_BITS = 1024
"""Integers beyond this are no float, and Python refuses to write those of thousands of digits."""


def shown(value: Any) -> str:
    """Return a value as a message shows it: short, and also where it has no text."""
    try:
        text = repr(value)
    except ValueError:
        text = "a number of thousands of digits"
    except RecursionError:
        text = f"a {type(value).__name__} nested too deeply"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _for_json(value: Any) -> Any:
    """Return what JSON can hold, text for what nests too deeply to be walked."""
    try:
        return _plain(value)
    except RecursionError:
        return shown(value)


def _plain(value: Any) -> Any:
    """Return what JSON can hold; it has no NaN and no infinity, so these become text."""
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return shown(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    return str(value)


def check_working_folder() -> None:
    """Raise `ConfigError` if the working directory was removed: processes cannot start there."""
    try:
        Path.cwd()
    except FileNotFoundError:
        msg = "the working directory does not exist any more; change to one that does"
        allowed = "a directory that exists"
        raise ConfigError(msg, key="working_directory", allowed=allowed) from None


T = TypeVar("T")


def one_of(key: str, value: object, legal: Iterable[T]) -> T:
    """Return the one of these names that was given; refuse any other."""
    names = list(legal)
    for known in names:
        if isinstance(value, str) and value == known:
            return known
    msg = f"{key} must be one of {', '.join(map(str, names))}, got {value!r}"
    raise ConfigError(msg, key=key, value=value, allowed=names)
