"""The one place where numba options are chosen."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, overload

import numba
from numba.core import types
from numba.core.registry import CPUDispatcher

from projector.kernels._cache import KernelCache
from projector.kernels._compiler import HelperCompiler, KernelCompiler
from projector.kernels._interpreted import MOST_US, Interpreted

Function = TypeVar("Function", bound=Callable[..., Any])


_OPTIONS: dict[str, Any] = {"error_model": "numpy", "nogil": True, "no_cfunc_wrapper": True}
"""Strict IEEE arithmetic, no GIL, and no form for C to call, which nobody does."""

_HELPER_OPTIONS: dict[str, Any] = {
    **_OPTIONS,
    "no_cpython_wrapper": True,
    "pipeline_class": HelperCompiler,
}

_njit: Any = numba.njit
_unliteral: Any = types.unliteral
_Dispatcher: Any = CPUDispatcher


class _Helper(_Dispatcher):  # type: ignore[misc]  # numba has no types
    """What other compiled functions call; where Python calls it, it runs as Python.

    A form for Python to call would take a third of the time to compile.
    """

    def __call__(self, *values: Any) -> Any:
        """Return what the function that is compiled returns."""
        return self.py_func(*values)

    def get_call_template(self, types_by_place: Any, types_by_name: dict[str, Any]) -> Any:
        """Return what a call is compiled to: one form for a number, whether written or computed."""
        return super().get_call_template(
            [_unliteral(each) for each in types_by_place],
            {name: _unliteral(each) for name, each in types_by_name.items()},
        )


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
    compiled = _njit(function, **_OPTIONS, pipeline_class=KernelCompiler)
    # Without the JIT, `compiled` is the function itself.
    if isinstance(compiled, CPUDispatcher):
        _keep(compiled, python_us)
    return compiled


class _Waiting:
    """Whether this process waits for a kernel that another process is just compiling."""

    waits = True


def interpret_what_others_compile() -> None:
    """Run a kernel as Python while another process compiles it, for one that is there to compile.

    It comes to the next kernel at once, instead of waiting for a result that nobody reads.
    """
    _Waiting.waits = False


def _keep(compiled: Any, python_us: float) -> None:
    """Give a kernel its files, and let it wait for a process that is just writing one."""
    cache = KernelCache(compiled.py_func)
    compile_alone = compiled.compile
    interpreted = Interpreted(compiled.py_func, python_us)

    def compile_in_turn(signature: Any) -> Any:
        with cache.turn(signature, compiled.targetctx, wait=_Waiting.waits) as ours:
            return compile_alone(signature) if ours else compiled.py_func

    def choose(signature: Any) -> Any:
        instead = interpreted.instead(
            signature,
            partial(cache.has, signature, compiled.targetctx),
            partial(compile_in_turn, signature),
        )
        return compile_in_turn(signature) if instead is None else instead

    vars(compiled).update(_cache=cache, compile=choose)


def helper(function: Function) -> Function:
    """Compile a scalar helper that only kernels call; LLVM inlines it."""
    compiled: Function = _called_by_kernels(_njit(function, **_HELPER_OPTIONS))
    return compiled


def inlined(function: Function) -> Function:
    """Compile a helper that LLVM must inline, as it would keep a loop from being vectorised."""
    compiled: Function = _called_by_kernels(_njit(function, **_HELPER_OPTIONS, forceinline=True))
    return compiled


def _called_by_kernels(compiled: Any) -> Any:
    # Without the JIT it is the function itself.
    if isinstance(compiled, CPUDispatcher):
        compiled.__class__ = _Helper
    return compiled
