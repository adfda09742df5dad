"""How far functions are compiled: kernels to machine code, their helpers to what kernels link.

numba optimises each function that it compiles, with all that it calls, and makes machine code of
it. No one runs the machine code of a helper, and LLVM optimises a helper again in every function
that calls it. So helpers are kept as they are lowered, which takes a third off the time that LLVM
needs; the kernels come out with the same arithmetic.
"""

from collections.abc import Callable
from typing import Any

from numba.core import codegen, compiler

_Compiler: Any = compiler.Compiler
_Library: Any = codegen.JITCodeLibrary


class _LoweredLibrary(_Library):  # type: ignore[misc]  # numba has no types
    """Code of a helper, for others to link."""

    @property
    def codegen(self) -> "_LoweredLibrary":
        """What sets the environment of machine code: this library, as there is none."""
        return self

    def set_env(self, env_name: str, env: Any) -> None:
        """Leave the constants of the function to the kernels that it is linked into."""

    def get_pointer_to_function(self, name: str) -> int:  # noqa: ARG002  # numba names it
        """Return no machine code."""
        return 0

    def _optimize_final_module(self) -> None:
        """Leave it to the kernels."""

    def _finalize_final_module(self) -> None:
        """Let others link the code, and make nothing of it."""
        self._finalize_dynamic_globals()
        self._finalized = True


class HelperCompiler(_Compiler):  # type: ignore[misc]  # numba has no types
    """Compiles what only other compiled functions call."""

    def compile_extra(self, function: Callable[..., Any]) -> Any:
        """Return the compiled form, without machine code."""
        maker = self.state.targetctx.codegen()
        self.state.library = _LoweredLibrary(maker, function.__qualname__)
        return super().compile_extra(function)


class KernelCompiler(_Compiler):  # type: ignore[misc]  # numba has no types
    """Compiles what Python calls."""

    def compile_extra(self, function: Callable[..., Any]) -> Any:
        """Return the compiled form; it holds the constants of helpers, as one from disk does."""
        compiled = super().compile_extra(function)
        for each in compiled._find_referenced_environments():  # noqa: SLF001  # numba's own use
            compiled.library.codegen.set_env(each.env_name, each)
        return compiled
