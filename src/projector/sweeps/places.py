"""Folders of sweeps: on this machine, or in an object store that fsspec reaches.

A folder of a store does what a `Path` does. Its objects appear whole, so that they need no draft
and no rename; they cannot grow, and have no locks.
"""

from collections.abc import Iterable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

from projector.distribution import install_command
from projector.errors import ConfigError, UnsupportedError

STORES = ["a folder", "s3://", "gs://", "az://", "memory://"]
"""Objects of these appear whole; ``memory`` is that of this process."""


LONGEST_ANSWER_S = 60.0


def folder_of(out: str | Path) -> Path:
    """Return the folder at a path, or in a store at ``s3://bucket/folder``."""
    scheme, is_store, rest = str(out).partition("://")
    if not is_store:
        return Path(out)
    if f"{scheme}://" not in STORES:
        msg = f"out: {out} is in no store that is known; legal: {', '.join(STORES)}"
        raise ConfigError(msg, key="out", value=str(out), allowed=STORES)
    if not rest.partition("/")[0]:
        msg = f"out: {out} names no bucket; write {scheme}://BUCKET/FOLDER"
        raise ConfigError(msg, key="out", value=str(out), allowed=f"{scheme}://BUCKET/FOLDER")
    if wild := set("*?[") & set(rest):
        # fsspec reads these as patterns, also where it removes.
        msg = f"out: {out} holds {min(wild)}, which would name other folders too"
        raise ConfigError(msg, key="out", value=str(out), allowed="a name without *, ? and [")
    try:
        from upath import UPath

        folder: Any = UPath(str(out).rstrip("/"))
        folder.fs  # noqa: B018  # loads what reaches the store
    except ImportError as error:
        msg = f"out: {scheme}:// needs an extra; install it ({install_command('cloud')}): {error}"
        raise UnsupportedError(msg, key="out", value=str(out), allowed="the extra cloud") from None
    return folder  # type: ignore[no-any-return]


def in_store(path: Path | None) -> bool:
    """Whether a path is in an object store."""
    return path is not None and not isinstance(path, Path)


def is_shared(path: Path | None) -> bool:
    """Whether it is in a store that other processes reach."""
    return in_store(path) and getattr(path, "protocol", "") != "memory"


def errors_of(path: Path) -> type[Exception]:
    """Return what reading and writing may raise; libraries of stores have errors of their own."""
    return Exception if in_store(path) else OSError


def check_answer(path: Any) -> None:
    """Refuse a store that does not answer; libraries would try again for many minutes."""
    if not in_store(path) or not path.fs.async_impl:
        return
    from fsspec.asyn import FSTimeoutError, sync

    try:
        sync(path.fs.loop, path.fs._info, path.path, timeout=LONGEST_ANSWER_S)  # noqa: SLF001
    except FSTimeoutError:
        msg = f"{path} cannot be written: no answer for {LONGEST_ANSWER_S:g} s"
        raise UnsupportedError(msg, key="out", value=str(path), allowed="a store") from None
    except Exception:
        return  # whoever writes says why it cannot


def listed(folder: Any) -> Any:
    """Return a folder; one of a store is listed anew, which answers questions about its objects."""
    if in_store(folder):
        folder.fs.invalidate_cache()
        with suppress(FileNotFoundError):
            folder.fs.ls(folder.path)
    return folder


def write(path: Any, content: bytes | memoryview) -> None:
    """Write a file, or an object of a store, at once or not at all."""
    if in_store(path):
        path.fs.pipe_file(path.path, bytes(content))
    else:
        path.write_bytes(content)


def joined(paths: Iterable[Any]) -> BytesIO:
    """Return what is in objects, one after the other; they are asked for side by side."""
    objects = {path.path: path.fs for path in paths}
    found = next(iter(objects.values())).cat([*objects]) if objects else {}
    return BytesIO(b"".join(found[name] for name in sorted(found)))


def readable(path: Path) -> Any:
    """Return what Arrow reads."""
    return path.open("rb") if in_store(path) else path
