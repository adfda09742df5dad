"""The one place where numba options are chosen."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import caching

from projector.kernels._sources import sources_digest

Function = TypeVar("Function", bound=Callable[..., Any])


def cache_dir() -> Path:
    """Return the folder of compiled kernels; the digest of its sources is in a kernel's name."""
    root = os.environ.get("PROJECTOR_CACHE_DIR")
    # Where there is no home, expanduser leaves "~" and nothing is kept below it.
    base = Path(root) if root else Path(os.path.expanduser("~/.cache/projector"))  # noqa: PTH111
    return base / "numba"


def cache_is_writable() -> bool:
    """Whether compiled kernels are kept; creates their folder."""
    folder = cache_dir()
    if folder.parts[:1] == ("~",):
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


_CACHE_DIR = str(cache_dir())

KEPT_S = 30 * 24 * 3600.0
"""How long a kernel of other sources stays, for whoever changes between versions."""

_Locator: Any = caching._CacheLocator  # noqa: SLF001  # numba names what a locator must have
_CacheImplementation: Any = caching.CompileResultCacheImpl
_FunctionCache: Any = caching.FunctionCache


class KernelLocator(_Locator):  # type: ignore[misc]  # numba has no types
    """Our folder, also where it is complete and read-only, as in a container image.

    Where the sources stand is all the same: their contents are what a kernel is found by.
    """

    def __init__(self, function: Callable[..., Any], file: str) -> None:
        self._py_file = file
        self._digest = sources_digest(file)
        self._line = function.__code__.co_firstlineno

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> "KernelLocator | None":
        """Return None where there is no source, or no folder."""
        try:
            locator = cls(function, file)
            locator.ensure_cache_path()
        except OSError:
            return None
        return locator

    def get_cache_path(self) -> str:
        """Return the folder of all kernels."""
        return _CACHE_DIR

    def get_source_stamp(self) -> str:
        """Return what is compared when a kernel is read, though its name says it, too."""
        return self._digest

    def get_disambiguator(self) -> str:
        """Return what tells this kernel from others of its name, and of other sources."""
        return f"{self._line}-{self._digest}"

    def ensure_cache_path(self) -> None:
        """Raise OSError where the folder neither exists nor can be made."""
        if _CACHE_DIR.startswith("~"):
            raise FileNotFoundError(_CACHE_DIR)
        try:
            super().ensure_cache_path()
        except OSError:
            if not Path(_CACHE_DIR).is_dir():
                raise


class KernelCacheImplementation(_CacheImplementation):  # type: ignore[misc]  # numba has no types
    """Never another folder than ours, nor another name: numba knows a kernel's own file only."""

    _locator_classes = (KernelLocator,)


class KernelCache(_FunctionCache):  # type: ignore[misc]  # numba has no types
    """Compiled forms of one kernel on disk; one that cannot be read or kept is compiled again."""

    _impl_class = KernelCacheImplementation

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return a compiled form, None where there is none that can be read."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # a damaged pickle raises anything
            try:
                self.flush()
            except OSError:
                self.disable()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled form, unless the folder is read-only or full."""
        try:
            super().save_overload(sig, data)
            self._remove_old()
        except OSError:
            self.disable()

    def _remove_old(self) -> None:
        """Remove forms of this kernel that were compiled from other sources a while ago."""
        own = self._impl.filename_base
        name, _, _ = own.rsplit("-", 2)
        oldest = time.time() - KEPT_S
        for path in Path(_CACHE_DIR).glob(f"{name}-*-*"):
            if not path.name.startswith(own) and path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)


def kernel(function: Function) -> Function:
    """Compile an entry-point kernel: strict IEEE arithmetic, no GIL, cached on disk.

    Without a folder that can be written, kernels live as long as the process.
    """
    compiled: Function = numba.njit(function, error_model="numpy", nogil=True)
    # RuntimeError is numba's word for a folder that cannot be written. Without the JIT, `compiled`
    # is the function itself and ignores this.
    with suppress(RuntimeError):
        vars(compiled)["_cache"] = KernelCache(function)
    return compiled


def helper(function: Function) -> Function:
    """Compile a scalar helper that only kernels call; LLVM inlines it."""
    compiled: Function = numba.njit(function, error_model="numpy", nogil=True)
    return compiled


def inlined(function: Function) -> Function:
    """Compile a helper that LLVM must inline, as it would keep a loop from being vectorised."""
    compiled: Function = numba.njit(function, error_model="numpy", nogil=True, forceinline=True)
    return compiled
