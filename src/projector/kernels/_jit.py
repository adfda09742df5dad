"""The one place where numba options are chosen."""

from collections.abc import Callable
from typing import Any, TypeVar

import numba

from projector.kernels._cache import KernelCache

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile an entry-point kernel: strict IEEE arithmetic, no GIL, cached on disk.

    Without a folder that can be written, kernels live as long as the process.
    """
    compiled: Function = numba.njit(function, error_model="numpy", nogil=True)
    # Without the JIT, `compiled` is the function itself and ignores this.
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
