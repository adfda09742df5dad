"""Where compiled kernels lie on disk, and the sources that each is compiled from.

Helpers reach a kernel through imports only, whatever name they have there, and constants too. So
a kernel has to be compiled anew when its own module or one of ours that it imports has changed, and
not otherwise. What it depends on is in the name of its file; numba keeps a stamp of one source file
instead. So versions live side by side, and nothing is read that is not wanted.
"""

# ruff: noqa: PTH100, PTH111, PTH113, PTH116, PTH118, PTH119, PTH120, PTH123
# Every start of a command comes this way, and `Path` takes three times as long.

import hashlib
import os
import re
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

KEPT_S = 30 * 24 * 3600.0
"""How long a kernel of other sources stays, for whoever changes between versions."""

FORM, FOLDER = ".nbc", ".plain"
"""Endings of a compiled form, and of a folder in which numba itself keeps those of a kernel."""

STEP_MODULES = ("projector.kernels.gemm.times", "projector.kernels.results")
"""Modules whose kernels every projection of a step runs, early and late."""

_DIGEST_BYTES = 32
"""Of SHA-256."""

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""Folder of the project."""

_PROJECT = os.path.basename(ROOT)

_WORD = re.compile(r"[.\w]+")
_REMARK = re.compile(r"#[^\n]*")
_STATEMENT = re.compile(r"\n[ \t]*((?:from|import)[ \t][^(\n]*(?:\((?:#[^\n]*|[^#)])*\))?)")
"""An import. Text that looks like one adds what it names, which does no harm."""


def cache_dir() -> Path:
    """Return the folder of compiled kernels."""
    root = os.environ.get("PROJECTOR_CACHE_DIR")
    # Where there is no home, expanduser leaves "~" and nothing is kept below it.
    return Path(root or os.path.expanduser("~/.cache/projector")) / "numba"


def is_ours(path: str | Path) -> bool:
    """Whether only this user and root can have put there what is read; it may also be free."""
    try:
        return _only_we_write(os.stat(path))
    except FileNotFoundError:
        return True


def _only_we_write(status: os.stat_result) -> bool:
    # Compiled kernels run as this user does, so nobody else may choose them.
    if sys.platform == "win32":
        return True
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022


def cache_fault() -> str:
    """Return why compiled kernels are not kept, "" where they are; creates their folder."""
    folder = cache_dir()
    if folder.parts[:1] == ("~",):
        return "there is no home folder"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_ours(folder):
            return f"{folder} belongs to another user, or others may write there (chmod go-w)"
    except OSError:
        return f"{folder} cannot be made"
    return "" if os.access(folder, os.W_OK) else f"{folder} cannot be written"


def cache_is_writable() -> bool:
    """Whether compiled kernels are kept; creates their folder."""
    return not cache_fault()


def kernel_files() -> set[str]:
    """Return the names of what holds compiled kernels, of all versions."""
    folder = cache_dir()
    try:
        return {
            path.name
            for path in (folder.iterdir() if is_ours(folder) else ())
            if path.suffix == FORM or (path.suffix == FOLDER and any(path.rglob(f"*{FORM}")))
        }
    except OSError:
        return set()


def is_compiled(module: str, files: Iterable[str]) -> bool:
    """Whether some kernel of a module, as its sources can be read now, is among the files."""
    try:
        digest = sources_digest(os.path.join(ROOT, *module.split(".")[1:]) + ".py")
    except OSError:
        return False
    return any(name.startswith(f"{module}.") and f"-{digest}." in name for name in files)


def steps_are_compiled(files: set[str]) -> bool:
    """Whether the files hold kernels of all `STEP_MODULES`."""
    return all(is_compiled(module, files) for module in STEP_MODULES)


def kernel_name(function: Callable[..., Any]) -> str:
    """Return what the files of a kernel begin with; OSError where its source cannot be read."""
    code = function.__code__
    return f"{_own_name(function)}{code.co_firstlineno}-{sources_digest(code.co_filename)}"


def _own_name(function: Callable[..., Any]) -> str:
    # "<locals>" has letters that no file of Windows may have.
    return f"{function.__module__}.{function.__qualname__}-".replace("<", "").replace(">", "")


def remove_old(function: Callable[..., Any]) -> None:
    """Remove what was compiled of a kernel from other sources a while ago."""
    oldest, name = time.time() - KEPT_S, kernel_name(function)
    for path in cache_dir().glob(f"{_own_name(function)}*"):
        if path.name.startswith(name) or path.stat().st_mtime >= oldest:
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that appears whole and that nobody else may change."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        with open(part, "xb", opener=lambda name, flags: os.open(name, flags, 0o644)) as file:
            file.write(content)
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink()
        raise


def write_kept(path: Path, content: bytes) -> None:
    """Write a file that `read_kept` can tell from one that is damaged."""
    write_whole(path, hashlib.sha256(content).digest() + content)


def read_kept(path: Path) -> bytes | None:
    """Return what `write_kept` wrote, None where it is damaged or others can have written it."""
    with open(path, "rb") as file:
        ours, data = _only_we_write(os.fstat(file.fileno())), file.read()
    content = data[_DIGEST_BYTES:]
    return content if ours and hashlib.sha256(content).digest() == data[:_DIGEST_BYTES] else None


def sources_digest(path: str) -> str:
    """Return the digest of a module and of all that it imports from the project.

    OSError where a source cannot be read, as in an archive.
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
    for each in (f"{path}.py", os.path.join(path, "__init__.py")) if path else ():
        if os.path.isfile(each):
            yield os.path.normpath(each)
            return
