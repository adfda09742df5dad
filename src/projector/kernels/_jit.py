"""The one place where numba options are chosen, and where numba's insides are done without.

`_numba` knows them. Where it cannot be imported, or fails its check under a numba that nobody has
tried it with, numba's own decorator and cache stand for it. Kernels then give the same results;
they take longer to compile and to load, are never run as Python, and two processes may compile the
same one.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any, TypeVar, overload

import numba

from projector.kernels._cache import (
    FOLDER,
    cache_dir,
    cache_is_writable,
    is_ours,
    kernel_name,
    remove_old,
    sources_digest,
    write_whole,
)
from projector.kernels._interpreted import MOST_US

Function = TypeVar("Function", bound=Callable[..., Any])

TRIED = (0, 62), (0, 68)
"""First and last numba whose insides are known to be those that `_numba` expects."""

_OPTIONS: dict[str, Any] = {"error_model": "numpy", "nogil": True}
"""Strict IEEE arithmetic, and no GIL."""

_KERNEL_OPTIONS: dict[str, Any] = {
    **_OPTIONS,
    "nopython": True,
    "boundscheck": None,
    "no_cfunc_wrapper": True,
}
"""As numba fills them in, and no form for C to call, which nobody does."""

_HELPER_OPTIONS: dict[str, Any] = {**_KERNEL_OPTIONS, "no_cpython_wrapper": True}
"""Nor one for Python."""

_config: Any = numba.config
_njit: Any = numba.njit


def _insides() -> ModuleType | None:
    """Return `_numba`, None where it does not fit the numba at hand."""
    try:
        from projector.kernels import _numba
    except Exception:  # a name that is no more raises anything
        return None
    known = TRIED[0] <= numba.version_info.short <= TRIED[1]
    return _numba if known or _passes(str(_numba.__file__)) else None


def _passes(path: str) -> bool:
    """Whether `_numba` passes its check, which is made once on a machine."""
    with suppress(OSError):
        known = cache_dir() / f"{numba.__version__}-{sources_digest(path)}.checked"
        if known.exists() and is_ours(cache_dir()):
            return known.read_bytes() == b"passed"
        if cache_is_writable():
            passed = _check()
            write_whole(known, b"passed" if passed else b"failed")
            return passed
    return False


def _check() -> bool:
    """Whether a kernel is compiled by one process and found by the next."""
    code = (
        f"import os, sys; sys.path[:] = {sys.path!r}; from projector.kernels import _numba; "
        "os.environ['PROJECTOR_CACHE_DIR'] = sys.argv[1]; _numba.check()"
    )
    with tempfile.TemporaryDirectory() as folder:
        for hits in ("0", "1"):
            done = subprocess.run(  # noqa: S603  # this Python, our own code
                [sys.executable, "-c", code, folder], capture_output=True, text=True, check=False
            )
            if done.returncode or done.stdout.strip() != hits:
                return False
    return True


_INSIDES = None if _config.DISABLE_JIT else _insides()


@overload
def kernel(function: Function) -> Function: ...


@overload
def kernel(*, python_us: float) -> Callable[[Function], Function]: ...


def kernel(function: Any = None, *, python_us: float = MOST_US) -> Any:
    """Compile an entry-point kernel, cached on disk.

    Without a folder that can be written, kernels live as long as the process. Where few jobs are
    projected, a kernel may run as Python instead (`_interpreted`): ``python_us`` is about what it
    takes then for an element of its arguments.
    """
    if function is None:
        return partial(kernel, python_us=python_us)
    if _config.DISABLE_JIT:
        return function
    if _INSIDES is None:
        return _kept_by_numba(function)
    return _INSIDES.Kernel(function, {}, {**_KERNEL_OPTIONS}, python_us=python_us)


def helper(function: Function) -> Function:
    """Compile a scalar helper that only kernels call; LLVM inlines it."""
    compiled: Function = _called_by_kernels(function)
    return compiled


def inlined(function: Function) -> Function:
    """Compile a helper that LLVM must inline, as it would keep a loop from being vectorised."""
    compiled: Function = _called_by_kernels(function, forceinline=True)
    return compiled


def _called_by_kernels(function: Any, **options: Any) -> Any:
    if _config.DISABLE_JIT:
        return function
    if _INSIDES is None:
        return _njit(function, **_OPTIONS, **options)
    return _INSIDES.Helper(function, {}, {**_HELPER_OPTIONS, **options})


def _kept_by_numba(function: Callable[..., Any]) -> Any:
    """Compile a kernel that numba itself keeps, in a folder named by the digest of its sources."""
    before = _config.CACHE_DIR
    # OSError where sources cannot be read, RuntimeError where numba finds no place for its files.
    with suppress(OSError, RuntimeError):
        if cache_is_writable():
            folder = cache_dir() / (kernel_name(function) + FOLDER)
            if not is_ours(folder):
                return _njit(function, **_OPTIONS)
            if not folder.exists():
                remove_old(function)
            _config.CACHE_DIR = str(folder)
            try:
                return _njit(function, **_OPTIONS, cache=True)
            finally:
                _config.CACHE_DIR = before
    return _njit(function, **_OPTIONS)
