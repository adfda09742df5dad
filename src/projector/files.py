"""Files that appear whole or not at all, and files that are read up to a bound."""

import os
import select
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO, StringIO
from pathlib import Path
from typing import BinaryIO, NoReturn

from projector.errors import ConfigError, shown

PIPE_S = 30.0
"""Seconds that a pipe, or a file of the kernel, may say nothing; then nobody writes into it."""

MOST_TABLE_BYTES = 64 * 1024**2

_BLOCK_BYTES = 1 << 20
_BINARY: int = getattr(os, "O_BINARY", 0)
_AT_ONCE: int = getattr(os, "O_NONBLOCK", 0)
_NOT_FILES = {
    stat.S_IFDIR: "is a directory, not a file",
    stat.S_IFCHR: "is a device, not a file",
    stat.S_IFBLK: "is a device, not a file",
    stat.S_IFSOCK: "is a socket, not a file",
}


def check_place(path: str | Path, *, key: str) -> None:
    """Refuse a file that could not be written, before anything is projected for it."""
    target = Path(path)
    try:
        is_folder = target.is_dir()
    except OSError as error:
        raise not_written(target, error.strerror or str(error), key=key) from None
    if is_folder:
        raise not_written(target, "it is a folder", key=key)
    _refuse_unreplaceable(target, key=key)
    if not target.parent.is_dir():
        raise not_written(target, f"there is no folder {target.parent}", key=key)


def check_name(path: str | Path, *, key: str) -> None:
    """Refuse a file to read whose name the system does not take, or whose folder it hides."""
    why = "" if str(path) else "it has no name"
    try:
        Path(path).exists()
    except OSError as error:
        why = error.strerror or str(error)
    if why:
        msg = f"{key}: {shown(str(path))} cannot be read: {why}"
        raise ConfigError(msg, key=key, value=str(path), allowed="a file or a folder")


def is_file(path: Path) -> bool:
    """Whether there is such a file; a name that the system does not take is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def read_bounded(path: str | Path, most_bytes: int, *, key: str, allowed: str) -> bytes:
    """Return the content of a file, or of a pipe that somebody writes into.

    A larger file than ``most_bytes`` is refused; no more is read of one that does not know its
    size. Messages name the option ``key``, and say what is ``allowed``.
    """

    def no(why: str) -> NoReturn:
        raise ConfigError(f"{path} {why}", key=key, value=str(path), allowed=allowed) from None

    try:
        status = Path(path).stat()
        kind = stat.S_IFMT(status.st_mode)
        if kind in _NOT_FILES:
            no(_NOT_FILES[kind])
        # Files of the kernel have no size, and some of them wait for what comes, as pipes do.
        is_pipe = stat.S_ISFIFO(kind) or (status.st_size == 0 and bool(_AT_ONCE))
        # Else a pipe without a writer would be waited for when it is opened.
        handle = os.open(path, os.O_RDONLY | _BINARY | (_AT_ONCE if is_pipe else 0))
        with os.fdopen(handle, "rb", buffering=0) as stream:
            content = _some(stream, most_bytes + 1, is_pipe=is_pipe)
    except FileNotFoundError:
        no("does not exist")
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        no(f"cannot be read: {why}")
    if len(content) > most_bytes:
        no(f"is larger than {most_bytes // 1024**2} MiB, too large for {allowed}")
    return content


def open_table(path: str | Path, *, key: str) -> StringIO:
    """Return a table of text for `csv`, whose file may begin with a byte order mark."""
    content = read_bounded(path, MOST_TABLE_BYTES, key=key, allowed="a CSV table")
    try:
        return StringIO(content.decode("utf-8-sig"), newline="")
    except UnicodeDecodeError as error:
        msg = f"{path} cannot be read: {error}"
        raise ConfigError(msg, key=key, value=str(path), allowed="a CSV table") from None


def refuse_special(path: str | Path, *, key: str) -> None:
    """Refuse what is there and is no file: devices are endless, and pipes are read only once."""
    try:
        kind = stat.S_IFMT((Path(path) if isinstance(path, str) else path).stat().st_mode)
    except (OSError, ValueError):
        return
    why = {**_NOT_FILES, stat.S_IFIFO: "is a pipe, not a file"}.get(kind)
    if why is not None:
        raise ConfigError(f"{path} {why}", key=key, value=str(path), allowed="a file")


def _refuse_unreplaceable(target: Path, *, key: str) -> None:
    """Refuse a device, a pipe or ``/dev/stdout``: a file would take its place, for everybody."""
    refuse_special(target, key=key)
    try:
        led_to = target.readlink()
    except (OSError, ValueError):
        return
    if led_to.is_relative_to("/proc"):
        msg = f"{target} is a stream, not a file"
        raise ConfigError(msg, key=key, value=str(target), allowed="a file")


def _some(stream: FileIO, most_bytes: int, *, is_pipe: bool) -> bytes:
    """Return what is left of a file, at most so many bytes."""
    parts, size = [], 0
    while size < most_bytes:
        if is_pipe and not select.select([stream], [], [], PIPE_S)[0]:
            raise OSError(f"nothing came out of it for {PIPE_S:g} s")
        part = stream.read(min(_BLOCK_BYTES, most_bytes - size))
        if part is None:
            continue
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def made_folder(path: str | Path, *, key: str) -> Path:
    """Return a folder from the root, made where it is not there, that takes files."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        return folder.absolute()
    except OSError as error:
        msg = f"{key}: {shown(str(folder))} cannot be made or written: {error.strerror or error}"
        raise ConfigError(
            msg, key=key, value=str(folder), allowed="a folder to write into"
        ) from None


def write_whole(target: Path, content: bytes, *, key: str) -> None:
    """Write a file beside its place and rename it; ``key`` is the option that named it."""
    with written_whole(target, key=key) as stream:
        stream.write(content)


@contextmanager
def written_whole(target: Path, *, key: str) -> Iterator[BinaryIO]:
    """Open a file beside its place, and rename it once it is written without an error."""
    _refuse_unreplaceable(target, key=key)
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise not_written(target, error.strerror or str(error), key=key) from None
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
        temporary.chmod(0o666 & ~umask())
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise not_written(target, error.strerror or str(error), key=key) from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def not_written(target: Path, why: str, *, key: str) -> ConfigError:
    """Return the error of a file that cannot be written."""
    msg = f"{target} cannot be written: {why}"
    return ConfigError(msg, key=key, value=str(target))


def umask() -> int:
    """Return which rights new files do not get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
