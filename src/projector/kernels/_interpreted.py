"""Kernels that run as Python while they are not compiled.

Kernels of a step take 15 to 30 s of processor time to compile, half a second to run once as Python,
and most of them 5 s for the first 180,000 rows of a sweep, as jobs share operations and orders.
So a kernel is rented before it is bought: it runs as Python until this has taken as long as
compiling it, and no longer. What was run so is known afterwards, for others to compile.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property, partial
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import numpy as np
from numba.extending import is_jitted

LIMIT_S = 2.0
"""Seconds of processor time that a kernel may run as Python in all; to compile one takes up to 3 s,
and numba 1 s to begin with."""

COMPILE_S = 2e-4
"""Seconds that a byte of Python code takes to compile, once numba has begun: a kernel may run as
Python no longer then. Measured: 1.6e-4 to 5e-4 for kernels of a step of 1,000 to 15,000 bytes."""

MOST_US = 2.0
"""About what an element of the arguments takes as Python, of a kernel that passes over them."""


class Wanted(NamedTuple):
    """A compiled form that was not there."""

    module: str
    name: str
    signature: Any
    """Types of the arguments, as numba knows them."""


class Waiting:
    """Whether this process waits for a kernel that another process is just compiling."""

    waits = True


def interpret_what_others_compile() -> None:
    """Run a kernel as Python while another process compiles it, for one that is there to compile.

    It comes to the next kernel at once, instead of waiting for a result that nobody reads.
    """
    Waiting.waits = False


_limit_s: ContextVar[float | None] = ContextVar("interpreting", default=None)
_wanted: list[Wanted] = []


@contextmanager
def interpreting(limit_s: float | None = None) -> Iterator[None]:
    """Run kernels in the block as Python where compiling them would take longer.

    Each runs ``limit_s`` seconds of processor time in all, `LIMIT_S` when left out.
    """
    before = _limit_s.set(LIMIT_S if limit_s is None else limit_s)
    try:
        yield
    finally:
        _limit_s.reset(before)


def is_interpreting() -> bool:
    """Whether kernels that are not compiled run as Python here."""
    return _limit_s.get() is not None


def wanted_kernels() -> tuple[Wanted, ...]:
    """Return what this process ran as Python, each form once."""
    return tuple(_wanted)


class Interpreted:
    """One kernel as Python.

    function : callable. What is compiled otherwise.
    python_us : float. About what an element of the arguments takes, infinity where they do not
        tell. It is an estimate, which decides nothing but whether a call compiles: a wrong one
        costs seconds.
    """

    numba_has_begun = False

    def __init__(self, function: Callable[..., Any], python_us: float) -> None:
        self._function = function
        self._python_us = python_us
        self._spent_s = 0.0
        self._missing: set[Any] = set()

    def instead(
        self, signature: Any, is_kept: Callable[[], bool], compiled: Callable[[], Any]
    ) -> Callable[..., Any] | None:
        """Return what to call for a form that is not compiled, None where it has to be.

        signature. Types of the arguments.
        is_kept : callable. Whether this form is on disk.
        compiled : callable. Compiles it, for arguments with which Python would take too long.
        """
        # Another process may have compiled it since the last call.
        if (limit_s := _limit_s.get()) is None or is_kept():
            return None
        if signature not in self._missing:
            self._missing.add(signature)
            function = self._function
            _wanted.append(Wanted(function.__module__, function.__qualname__, signature))
        return partial(self._call, limit_s, compiled)

    @cached_property
    def _plain(self) -> Callable[..., Any]:
        return _plain(self._function)

    @cached_property
    def _compile_s(self) -> float:
        return COMPILE_S * sum(len(each.co_code) for each in _codes(self._function, set()))

    def _call(self, limit_s: float, compiled: Callable[[], Any], *values: Any) -> Any:
        if Interpreted.numba_has_begun:
            limit_s = min(limit_s, self._compile_s)
        if self._spent_s + _elements(values) * self._python_us * 1e-6 > limit_s:
            Interpreted.numba_has_begun = True
            return compiled()(*values)
        begin = time.thread_time()
        # Compiled code divides by zero and overflows without a word.
        with np.errstate(all="ignore"):
            result = self._plain(*values)
        self._spent_s += time.thread_time() - begin
        return result


def _codes(function: Any, found: set[CodeType]) -> set[CodeType]:
    """Return the code of a function and of all compiled ones that it calls."""
    if function.__code__ not in found:
        found.add(function.__code__)
        for name in function.__code__.co_names:
            if is_jitted(called := function.__globals__.get(name)):
                _codes(called.py_func, found)
    return found


def _elements(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.size
    return sum(map(_elements, value)) if isinstance(value, tuple) else 0


_names: dict[str, dict[str, Any]] = {}
"""What the modules of kernels know, with plain functions for compiled ones."""


def _plain(function: Any) -> Callable[..., Any]:
    """Return a function that calls the Python of what is compiled, with nothing in between."""
    module, name = function.__module__, function.__name__
    names = _names.get(module)
    if names is None:
        names = _names[module] = dict(vars(sys.modules[module]))
        for each, value in names.items():
            if is_jitted(value):
                names[each] = _plain(value.py_func)
    closure = function.__closure__
    return FunctionType(function.__code__, names, name, function.__defaults__, closure)
