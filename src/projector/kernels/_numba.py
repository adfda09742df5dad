"""All that leans on numba's insides; `_jit` does without it where numba has others.

Compiled kernels are kept in one file for each kernel, the types it was compiled for, and a machine.
All that a compiled form depends on is in the name of its file, and the file appears whole, so that
several processes may compile at once.

Loading is what a short command spends most of its time on, and numba does three things for it that
only a compiler needs: it imports everything it can compile (with ``scipy.linalg`` for one check),
compiles its memory manager, and parses the code of the kernel once more, for other kernels to link.
All three are left until they are wanted.

numba also optimises each function that it compiles, with all that it calls, and makes machine code
of it. No one runs the machine code of a helper, and LLVM optimises a helper again in every function
that calls it. So helpers are kept as they are lowered, which takes a third off the time that LLVM
needs; the kernels come out with the same arithmetic. Much of what numba does itself is left out
too: passes that find nothing, counts of references to arrays, rules that were tried before, helpers
linked into one another.
"""

import hashlib
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from numba.core import caching, codegen, compiler, imputils, serialize, sigutils, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.environment import Environment
from numba.core.registry import CPUDispatcher
from numba.core.runtime import nrt

from projector.arrays import Floats
from projector.kernels._cache import (
    FORM,
    cache_dir,
    is_ours,
    kernel_name,
    read_kept,
    remove_old,
    write_kept,
)
from projector.kernels._interpreted import Interpreted, Waiting

if sys.platform != "win32":
    import fcntl

SETTINGS = ("BOUNDSCHECK", "DEBUGINFO_DEFAULT", "OPT")
"""Settings of numba that change what is compiled."""

_LEFT_OUT = "InlineClosureLikes", "InlineOverloads"
"""Passes of numba for closures and functions to inline, which kernels do not have."""

_MAKING = "call", "binop", "inplace_binop", "unary"
"""Expressions that may make an array; others that do need a count, and numba refuses them."""

_config: Any = numba.config
_BaseFunction: Any = types.BaseFunction
_call_type: Any = _BaseFunction.get_call_type
_Cache: Any = caching._Cache  # noqa: SLF001  # numba names here what it asks a cache for
_Compiler: Any = compiler.Compiler
_CompileResult: Any = compiler.CompileResult
_Dispatcher: Any = CPUDispatcher
_PassManager: Any = compiler.PassManager  # type: ignore[attr-defined]
_Library: Any = codegen.JITCodeLibrary
_dumps: Any = serialize.dumps
_lower_builtin: Any = imputils.lower_builtin
_normalize_signature: Any = sigutils.normalize_signature
_nrt: Any = nrt
_unliteral: Any = types.unliteral

# numba asks for this at each use of an array, and searches long for what nobody has defined.
_lower_builtin("__array__", types.Array)(lambda _context, _builder, _types, values: values[0])


class Kernel(_Dispatcher):  # type: ignore[misc]  # numba has no types
    """What Python calls, with files of its own; waits for a process that is just writing one.

    Where few jobs are projected, it may run as Python instead (`Interpreted`).
    """

    def __init__(self, py_func: Callable[..., Any], *given: Any, python_us: float = 0.0) -> None:
        super().__init__(py_func, *given, pipeline_class=KernelCompiler)
        self._cache = KernelCache(py_func)
        self._interpreted = Interpreted(py_func, python_us)

    def compile(self, sig: Any) -> Any:
        """Return what to call for a signature."""
        instead = self._interpreted.instead(
            sig, partial(self._cache.has, sig, self.targetctx), partial(self._compile_in_turn, sig)
        )
        return self._compile_in_turn(sig) if instead is None else instead

    def _compile_in_turn(self, sig: Any) -> Any:
        with self._cache.turn(sig, self.targetctx, wait=Waiting.waits) as ours:
            return super().compile(sig) if ours else self.py_func


class Helper(_Dispatcher):  # type: ignore[misc]
    """What other compiled functions call; where Python calls it, it runs as Python.

    A form for Python to call would take a third of the time to compile.
    """

    def __init__(self, py_func: Callable[..., Any], *given: Any) -> None:
        super().__init__(py_func, *given, pipeline_class=HelperCompiler)

    def __call__(self, *values: Any) -> Any:
        """Return what the function that is compiled returns."""
        return self.py_func(*values)

    def get_call_template(self, types_by_place: Any, types_by_name: dict[str, Any]) -> Any:
        """Return what a call is compiled to: one form for a number, whether written or computed."""
        return super().get_call_template(
            [_unliteral(each) for each in types_by_place],
            {name: _unliteral(each) for name, each in types_by_name.items()},
        )


class KernelCache(_Cache):  # type: ignore[misc]  # numba has no types
    """Compiled forms of one kernel on disk; one that cannot be read or kept is compiled again."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._enabled = True

    @property
    def cache_path(self) -> str:
        """Folder of all kernels."""
        return str(cache_dir())

    @cached_property
    def name(self) -> str:
        """What the files of this kernel begin with; OSError where its source cannot be read."""
        return kernel_name(self._function)

    def enable(self) -> None:
        """Read and write files."""
        self._enabled = True

    def disable(self) -> None:
        """Let the kernel live as long as the process."""
        self._enabled = False

    def flush(self) -> None:
        """Remove all forms of this kernel."""
        for path in cache_dir().glob(f"{self.name}.*"):
            path.unlink(missing_ok=True)

    def has(self, sig: Any, target_context: Any) -> bool:
        """Whether there is a file of a compiled form."""
        try:
            return self._path(sig, target_context.codegen()).exists()
        except OSError:
            return False

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return a compiled form, None where there is none that can be read."""
        if not self._enabled:
            return None
        try:
            path = self._path(sig, target_context.codegen())
            content = read_kept(path)
        except OSError:
            return None
        if content is not None:
            with suppress(Exception):  # numba may have changed under us
                return _rebuilt(pickle.loads(content), target_context)  # noqa: S301  # our own
        print(  # noqa: T201
            f"notice: a kernel is compiled again: {path} is damaged, or others may write there",
            file=sys.stderr,
        )
        try:
            path.unlink(missing_ok=True)
        except OSError:
            self.disable()
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled form, unless the folder is read-only or full."""
        if not self._enabled or data.lifted or data.library.has_dynamic_globals:
            return
        try:
            write_kept(self._path(sig, data.codegen), _dumps(_reduced(data)))
            remove_old(self._function)
        except OSError:
            self.disable()

    @contextmanager
    def turn(self, sig: Any, target_context: Any, *, wait: bool) -> Iterator[bool]:
        """Let other processes wait while this one compiles; what they want is then there.

        Yields whether it is this one's turn: always, unless it does not wait for another.
        """
        lock = None
        if sys.platform == "win32":  # where two processes may compile the same kernel
            yield True
            return
        with suppress(OSError), global_compiler_lock:
            path = self._path(sig, target_context.codegen())
            if self._enabled and not path.exists():
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                lock = path.with_suffix(".lock").open("w")
        if lock is None:
            yield True
            return
        # The lock of this process first, or two of its threads could each hold what the other one
        # waits for. That between processes ends with a process that dies.
        with global_compiler_lock, lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def _path(self, sig: Any, codegen: Any) -> Path:
        folder = cache_dir()
        if folder.parts[:1] == ("~",) or not is_ours(folder):
            raise FileNotFoundError(folder)
        types, _ = _normalize_signature(sig)
        settings = [getattr(_config, each, None) for each in SETTINGS]
        machine = codegen.magic_tuple(), numba.__version__, sys.version_info[:2], settings
        # What a closure holds is not among the sources.
        cells = [each.cell_contents for each in self._function.__closure__ or ()]
        text = repr((machine, [*map(str, types)])).encode()
        digest = hashlib.sha256(text + (_dumps(cells) if cells else b"")).hexdigest()[:16]
        return folder / f"{self.name}.{digest}{FORM}"


class _Code:
    """The code of a kernel for others to link, parsed when one of them does."""

    def __init__(self, bitcode: bytes) -> None:
        self._bitcode = bitcode

    def __getattr__(self, name: str) -> Any:
        return getattr(llvm.parse_bitcode(self._bitcode), name)

    def clone(self) -> Any:
        """Return a module that may be taken apart."""
        return llvm.parse_bitcode(self._bitcode)


def _reduced(compiled: Any) -> tuple[Any, ...]:
    """Return what is kept: names of other code that this calls, numba's form, code to link."""
    module = compiled.library._get_module_for_linking()  # noqa: SLF001
    called = [
        each.name
        for each in (*module.functions, *module.global_variables)
        if each.is_declaration and not each.name.startswith("llvm.")
    ]
    (name, kind, (machine_code, bitcode)), *others, environments = compiled._reduce()  # noqa: SLF001
    entry = compiled.fndesc.llvm_cpython_wrapper_name
    defined = llvm.parse_assembly(f'define void @"{entry}"() {{ ret void }}').as_bitcode()
    used = [(each.globals["__name__"], each.consts, each.env_name) for each in environments]
    return called, ((name, kind, (machine_code, defined)), *others), used, bitcode


def _rebuilt(kept: tuple[Any, ...], target_context: Any) -> Any:
    """Return the compiled form, ready to be called.

    Without what numba imports to compile, some code may be missing that a kernel calls. LLVM would
    end the process, so the names are looked up first.
    """
    called, form, used, bitcode = kept
    for name, address in _nrt._nrt.c_helpers.items():  # noqa: SLF001
        llvm.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)
    if not all(llvm.address_of_symbol(name) for name in called):
        target_context.refresh()
    environments = [_environment(*each) for each in used]
    compiled = _CompileResult._rebuild(target_context, *form, environments)  # noqa: SLF001
    compiled.library._shared_module = _Code(bitcode)  # noqa: SLF001
    return compiled


def _environment(module: str, constants: list[Any], name: str) -> Any:
    """Return the constants of a function that was compiled into a kernel, as numba knows them.

    numba imports its module for the names in it, but code without Python objects looks none up.
    """
    known = Environment._memo.get(name)  # noqa: SLF001
    if known is None:
        names = vars(sys.modules[module]) if module in sys.modules else {"__name__": module}
        known = Environment(names)
        known.consts[:] = constants
        known.env_name = name
        Environment._memo[name] = known  # noqa: SLF001
    return known


def _known_call_type(function: Any, context: Any, args: Any, kws: Any) -> Any:
    """Return the signature of a call; numba tries dozens of rules for each ``+``."""
    known = function.__dict__.setdefault("_known_calls", {})
    key = context, tuple(args), tuple(kws.items())
    if key not in known:
        known[key] = _call_type(function, context, args, kws)
    return known[key]


def _count_no_references(state: Any) -> None:
    """Let a function count no references that makes and returns no arrays: its caller holds them.

    A tuple of 40 arrays is otherwise 40 calls of the memory manager at each use.
    """
    models = state.targetctx.data_model_manager
    calls = [each for each in state.calltypes if getattr(each, "op", "") in _MAKING]
    made = [state.return_type, *(state.calltypes[each].return_type for each in calls)]
    made += [each for each in state.typemap.values() if isinstance(each, types.List)]
    if not any(models[each].contains_nrt_meminfo() for each in made):
        state.flags.nrt = False
        state.targetctx = state.targetctx.subtarget(enable_nrt=False)


class _Passes(_PassManager):  # type: ignore[misc]  # numba has no types
    def _runPass(self, _index: int, each: Any, state: Any) -> None:  # noqa: N802
        """Run a pass, without a new analysis after it."""
        each.analysis = self._analysis
        # Its rewrites are of expressions of arrays.
        if state.flags.nrt or each.name() != "nopython_rewrites":
            each.run_pass(state)
        if each.name() == "nopython_type_inference":
            _count_no_references(state)


class _LeanCompiler(_Compiler):  # type: ignore[misc]  # numba has no types
    def define_pipelines(self) -> list[Any]:
        """Return the passes."""
        (passes,) = super().define_pipelines()
        passes.passes = [each for each in passes.passes if each[0].__name__ not in _LEFT_OUT]
        passes.__class__ = _Passes
        return [passes]


class _FlatLibrary(_Library):  # type: ignore[misc]  # numba has no types
    def add_linking_library(self, library: Any) -> None:
        """Link each that is called once, behind its callers: LLVM leaves out what nobody calls."""
        super().add_linking_library(library)
        called = *self._linking_libraries, *library._linking_libraries  # noqa: SLF001
        self._linking_libraries[:] = reversed(dict.fromkeys(reversed(called)))


class _KernelLibrary(_FlatLibrary):
    def _optimize_final_module(self) -> None:
        """Optimise once; numba first does so in part, for the sake of counts."""
        passes, builder = self._codegen._module_pass_manager()  # noqa: SLF001
        passes.run(self._final_module, builder)


class _LoweredLibrary(_FlatLibrary):
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

    def _optimize_functions(self, ll_module: Any) -> None:
        """Leave it to the kernels."""

    def finalize(self) -> None:
        """Let others link the code, and what it calls; make nothing of it."""
        self._finalize_dynamic_globals()
        self._finalized = True


class HelperCompiler(_LeanCompiler):
    """Compiles what only other compiled functions call."""

    def compile_extra(self, function: Callable[..., Any]) -> Any:
        """Return the compiled form, without machine code."""
        maker = self.state.targetctx.codegen()
        self.state.library = _LoweredLibrary(maker, function.__qualname__)
        return super().compile_extra(function)


class KernelCompiler(_LeanCompiler):
    """Compiles what Python calls."""

    def compile_extra(self, function: Callable[..., Any]) -> Any:
        """Return the compiled form; it holds the constants of helpers, as one from disk does."""
        before, _BaseFunction.get_call_type = _BaseFunction.get_call_type, _known_call_type
        maker = self.state.targetctx.codegen()
        self.state.library = _KernelLibrary(maker, function.__qualname__)
        self.state.library.enable_object_caching()
        # What numba compiles for itself, such as `max`, only the kernel calls.
        maker.create_library = partial(_LoweredLibrary, maker)
        try:
            compiled = super().compile_extra(function)
        finally:
            _BaseFunction.get_call_type = before
            vars(maker).pop("create_library", None)
        for each in compiled._find_referenced_environments():  # noqa: SLF001  # numba's own use
            compiled.library.codegen.set_env(each.env_name, each)
        return compiled


def check() -> None:
    """Compile and keep a kernel with a helper and a constant, or find it; print how often it was.

    `_jit` runs it in processes of their own, as LLVM ends one whose code does not fit.
    """
    options = {"nopython": True, "boundscheck": None, "error_model": "numpy", "nogil": True}
    globals()["_third"] = Helper(_third, {}, {**options, "no_cpython_wrapper": True})
    kernel = Kernel(_thirds, {}, {**options, "no_cfunc_wrapper": True})
    values = np.array([1.0, 2.0, 4.0])
    total = kernel(values)
    if total != _thirds(values) or _third(1.0) != 1.0 / 3.0:
        raise ArithmeticError(total)
    print(sum(kernel.stats.cache_hits.values()))  # noqa: T201


_CONSTANTS = 3.0, 0.0


def _third(value: float) -> float:
    return value / _CONSTANTS[0]


def _thirds(values: Floats) -> float:
    total = _CONSTANTS[1]
    for value in values:
        total += _third(value)
    return total
