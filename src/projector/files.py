"""Files that appear whole or not at all."""

import os
import tempfile
from pathlib import Path

from projector.errors import ConfigError, shown


def check_place(path: str | Path, *, key: str) -> None:
    """Refuse a file that could not be written, before anything is projected for it.

    Raises
    ------
    ConfigError
        If the path is a folder, or its folder is not there.
    """
    target = Path(path)
    if target.is_dir():
        raise not_written(target, "it is a folder", key=key)
    if not target.parent.is_dir():
        raise not_written(target, f"there is no folder {target.parent}", key=key)


def check_name(path: str | Path, *, key: str) -> None:
    """Refuse a file to read whose name the system does not take, or whose folder it hides.

    Raises
    ------
    ConfigError
        If the name is empty or too long, or a folder of it may not be looked into.
    """
    why = "" if str(path) else "it has no name"
    try:
        Path(path).exists()
    except OSError as error:
        why = error.strerror or str(error)
    if why:
        msg = f"{key}: {shown(str(path))} cannot be read: {why}"
        raise ConfigError(msg, key=key, value=str(path), allowed="a file or a folder")


def made_folder(path: str | Path, *, key: str) -> Path:
    """Return a folder from the root, made where it is not there, that takes files.

    Raises
    ------
    ConfigError
        If it cannot be made, or is read-only.
    """
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
    """Write a file beside its place and rename it; ``key`` is the option that named it.

    Raises
    ------
    ConfigError
        If the file cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise not_written(target, error.strerror or str(error), key=key) from None
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        temporary.chmod(0o666 & ~_umask())
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


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
