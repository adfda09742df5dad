"""The one place where numba options are chosen."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

_numba_config: Any = numba.config


def _source_digest() -> str:
    """Hash every kernel source, so that an edited helper renews each kernel that inlines it."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def cache_dir() -> Path:
    """Return the folder of compiled kernels, named by the digest of their sources."""
    root = os.environ.get("PROJECTOR_CACHE_DIR")
    base = Path(root) if root else Path.home() / ".cache" / "projector"
    return base / "numba" / _DIGEST


_DIGEST = _source_digest()
_CACHE_DIR = str(cache_dir())


def kernel(function: Function) -> Function:
    """Compile an entry-point kernel: strict IEEE arithmetic, no GIL, cached on disk.

    numba stamps a cached kernel with its own file only; the digest in the folder name covers
    the helpers it inlines. The setting is restored, so that other users of numba in the process
    keep theirs.
    """
    previous = _numba_config.CACHE_DIR
    _numba_config.CACHE_DIR = _CACHE_DIR
    try:
        compiled: Function = numba.njit(function, cache=True, error_model="numpy", nogil=True)
    finally:
        _numba_config.CACHE_DIR = previous
    return compiled


def helper(function: Function) -> Function:
    """Compile a scalar helper that only kernels call; LLVM inlines it."""
    compiled: Function = numba.njit(function, error_model="numpy", nogil=True)
    return compiled
