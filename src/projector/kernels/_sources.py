"""The sources a kernel is compiled from: its own module and every module of ours it imports.

Helpers reach a kernel through imports only, whatever name they have there, and constants too. So
a kernel has to be compiled anew when one of these modules has changed, and not otherwise.
"""

# ruff: noqa: PTH100, PTH113, PTH118, PTH119, PTH120, PTH123
# Every start of a command comes this way, and `Path` takes three times as long.

import hashlib
import os
import re
from collections.abc import Iterator
from functools import cache

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""Folder of the project."""

_PROJECT = os.path.basename(ROOT)

_WORD = re.compile(r"[.\w]+")
_REMARK = re.compile(r"#[^\n]*")
_STATEMENT = re.compile(r"\n[ \t]*((?:from|import)[ \t][^(\n]*(?:\((?:#[^\n]*|[^#)])*\))?)")
"""An import. Text that looks like one adds what it names, which does no harm."""


def sources_digest(path: str) -> str:
    """Return the digest of a module and of all that it imports from the project.

    Raises
    ------
    OSError
        If a source cannot be read, as in an archive.
    """
    digest = hashlib.sha256()
    for source in sorted(sources_of(path)):
        digest.update(source.removeprefix(ROOT).encode())
        digest.update(_read(source)[0])
    return digest.hexdigest()[:16]


@cache
def sources_of(path: str) -> frozenset[str]:
    """Return the files of a module and of all that it imports from the project."""
    found = {path}
    waiting = [path]
    while waiting:
        new = _read(waiting.pop())[1] - found
        found |= new
        waiting += new
    return frozenset(found)


@cache
def _read(path: str) -> tuple[bytes, frozenset[str]]:
    """Return the digest of a file, and the files of the project that it imports itself."""
    with open(path, "rb") as file:
        content = file.read()
    text = "\n" + content.decode().replace("\\\n", " ")
    folder = os.path.dirname(path)
    return hashlib.sha256(content).digest(), frozenset(
        file
        for statement in _STATEMENT.findall(text)
        if _PROJECT in statement or "from ." in statement
        for file in _imported(statement, folder)
    )


def _imported(statement: str, folder: str) -> Iterator[str]:
    """Yield the files of the project that an import in a module of ``folder`` may run or read."""
    kind, first, *rest = _WORD.findall(_REMARK.sub("", statement))
    if kind == "import":
        for name in (first, *rest):
            parts = name.split(".")
            for count in range(1, len(parts) + 1):
                yield from _file(_absolute(parts[:count]))
        return
    name = first.lstrip(".")
    parts = name.split(".") if name else []
    up = len(first) - len(name) - 1
    base = _absolute(parts) if up < 0 else os.path.join(folder, *[".."] * up, *parts)
    for file in _file(base):
        yield file
        if file.endswith("__init__.py"):
            for member in rest:
                yield from _file(os.path.join(base, member))


def _absolute(parts: list[str]) -> str:
    """Return the path of a module without its ending, "" where it is not of the project."""
    return os.path.join(ROOT, *parts[1:]) if parts[0] == _PROJECT else ""


def _file(path: str) -> Iterator[str]:
    """Yield the file of a module or package, if there is one."""
    for each in (f"{path}.py", os.path.join(path, "__init__.py")) if path else ():
        if os.path.isfile(each):
            yield os.path.normpath(each)
            return
