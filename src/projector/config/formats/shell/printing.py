"""What ``$(...)`` prints, for the few programs that only look at their arguments."""

import os.path
from collections.abc import Callable, Sequence
from pathlib import Path

from projector.config.formats.shell.values import UNKNOWN

_UNSET = "${"


def printed(commands: Sequence[Sequence[str]], folder: Path | None) -> str | None:
    """Return what commands print one after the other, None where it is not known.

    Parameters
    ----------
    commands : sequence of sequence of str
        Words of each command.
    folder : Path or None
        Where the script runs, which is taken for the folder it lies in.
    """
    where = None if folder is None else str(folder)
    lines: list[str] = []
    for words in commands:
        if not words:
            continue
        name, arguments = words[0], list(words[1:])
        if any(UNKNOWN in word or _UNSET in word for word in arguments):
            return None
        if name == "cd" and len(arguments) == 1 and where is not None:
            where = os.path.normpath(os.path.join(where, arguments[0]))  # noqa: PTH118  # no links
        elif name == "pwd" and where is not None:
            lines.append(where)
        elif name in _PRINTING:
            line = _PRINTING[name]([word for word in arguments if not _is_option(word)], where)
            if line is None:
                return None
            lines.append(line)
        else:
            return None
    return "\n".join(lines)


def _is_option(word: str) -> bool:
    return word.startswith("-") and len(word) > 1


def _folder_of(arguments: list[str], _: str | None) -> str | None:
    return (os.path.dirname(arguments[0].rstrip("/")) or ".") if arguments else None  # noqa: PTH120


def _name_of(arguments: list[str], _: str | None) -> str | None:
    if not arguments:
        return None
    name = os.path.basename(arguments[0].rstrip("/"))  # noqa: PTH119
    return name.removesuffix(arguments[1]) if len(arguments) > 1 else name


def _whole_path(arguments: list[str], where: str | None) -> str | None:
    if not arguments or where is None:
        return None
    return os.path.normpath(os.path.join(where, arguments[-1]))  # noqa: PTH118


_PRINTING: dict[str, Callable[[list[str], str | None], str | None]] = {
    "dirname": _folder_of,
    "basename": _name_of,
    "realpath": _whole_path,
    "readlink": _whole_path,
    "echo": lambda arguments, _: " ".join(arguments),
}
"""Program -> what it prints of its arguments, options left out."""
