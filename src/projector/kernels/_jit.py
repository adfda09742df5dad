"""The one place where numba options are chosen."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import caching

Function = TypeVar("Function", bound=Callable[..., Any])

_numba_config: Any = numba.config


def _source_digest() -> str:
    """Hash every kernel source, so that an edited helper renews each kernel that inlines it."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def cache_dir() -> Path:
    """Return the folder of compiled kernels, named by the digest of their sources."""
    root = os.environ.get("PROJECTOR_CACHE_DIR")
    # Where there is no home, expanduser leaves "~" and nothing is kept below it.
    base = Path(root) if root else Path(os.path.expanduser("~/.cache/projector"))  # noqa: PTH111
    return base / "numba" / _DIGEST


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


_DIGEST = _source_digest()
_CACHE_DIR = str(cache_dir())

_Locator: Any = caching.UserProvidedCacheLocator
_CacheImplementation: Any = caching.CompileResultCacheImpl
_FunctionCache: Any = caching.FunctionCache


class KernelLocator(_Locator):  # type: ignore[misc]  # numba has no types
    """Our folder, also where it is complete and read-only, as in a container image."""

    def ensure_cache_path(self) -> None:
        """Raise OSError where the folder neither exists nor can be made."""
        if _CACHE_DIR.startswith("~"):
            raise FileNotFoundError(_CACHE_DIR)
        try:
            super().ensure_cache_path()
        except OSError:
            if not Path(self.get_cache_path()).is_dir():
                raise


class KernelCacheImplementation(_CacheImplementation):  # type: ignore[misc]  # numba has no types
    """Never another folder than ours: the digest of the sources is in its name only."""

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
        except OSError:
            self.disable()


def kernel(function: Function) -> Function:
    """Compile an entry-point kernel: strict IEEE arithmetic, no GIL, cached on disk.

    numba stamps a cached kernel with its own file only; the digest in the folder name covers
    the helpers it inlines. Without a folder that can be written, kernels live as long as the
    process. The setting is restored, so that other users of numba in the process keep theirs.
    """
    compiled: Function = numba.njit(function, error_model="numpy", nogil=True)
    previous = _numba_config.CACHE_DIR
    _numba_config.CACHE_DIR = _CACHE_DIR
    try:
        # Without the JIT, `compiled` is the function itself and ignores this.
        vars(compiled)["_cache"] = KernelCache(function)
    except RuntimeError:
        pass  # numba's word for a folder that cannot be written
    finally:
        _numba_config.CACHE_DIR = previous
    return compiled


def helper(function: Function) -> Function:
    """Compile a scalar helper that only kernels call; LLVM inlines it."""
    compiled: Function = numba.njit(function, error_model="numpy", nogil=True)
    return compiled


def inlined(function: Function) -> Function:
    """Compile a helper that LLVM must inline, as it would keep a loop from being vectorised."""
    compiled: Function = numba.njit(function, error_model="numpy", nogil=True, forceinline=True)
    return compiled
