"""Compiled kernels on disk: one file for each kernel, the types it was compiled for, and a machine.

numba keeps an index and a stamp of one source file beside each kernel. Here all that a compiled
form depends on is in the name of its file, and the file appears whole. So several processes may
compile at once, versions live side by side, and nothing is read that is not wanted.

Loading is what a short command spends most of its time on, and numba does three things for it that
only a compiler needs: it imports everything it can compile (with ``scipy.linalg`` for one check),
compiles its memory manager, and parses the code of the kernel once more, for other kernels to link.
All three are left until they are wanted.
"""

import hashlib
import os
import pickle
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
from numba.core import caching, compiler, serialize, sigutils
from numba.core.compiler_lock import global_compiler_lock
from numba.core.environment import Environment
from numba.core.runtime import nrt

from projector.kernels._sources import ROOT, sources_digest

if sys.platform != "win32":
    import fcntl

KEPT_S = 30 * 24 * 3600.0
"""How long a kernel of other sources stays, for whoever changes between versions."""

SETTINGS = ("BOUNDSCHECK", "DEBUGINFO_DEFAULT", "OPT")
"""Settings of numba that change what is compiled."""

_config: Any = numba.config
_Cache: Any = caching._Cache  # noqa: SLF001  # numba names here what it asks a cache for
_CompileResult: Any = compiler.CompileResult
_dumps: Any = serialize.dumps
_normalize_signature: Any = sigutils.normalize_signature
_nrt: Any = nrt


def cache_dir() -> Path:
    """Return the folder of compiled kernels."""
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


def kernel_files() -> set[str]:
    """Return the names of the files of compiled kernels, of all versions."""
    try:
        return {path.name for path in cache_dir().iterdir() if path.suffix == ".nbc"}
    except OSError:
        return set()


def is_compiled(module: str, files: Iterable[str]) -> bool:
    """Whether some kernel of a module, as its sources are now, is among the files."""
    path = os.path.join(ROOT, *module.split(".")[1:]) + ".py"  # noqa: PTH118  # at every start
    digest = sources_digest(path)
    return any(name.startswith(f"{module}.") and f"-{digest}." in name for name in files)


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
        code = self._function.__code__
        digest = sources_digest(code.co_filename)
        return f"{self._own_name}{code.co_firstlineno}-{digest}"

    @property
    def _own_name(self) -> str:
        function = self._function
        # "<locals>" has letters that no file of Windows may have.
        return f"{function.__module__}.{function.__qualname__}-".replace("<", "").replace(">", "")

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
            data = path.read_bytes()
        except OSError:
            return None
        try:
            found = _rebuilt(pickle.loads(data), target_context)  # noqa: S301  # our own folder
        except Exception:  # a damaged pickle raises anything
            self._remove(path)
            return None
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled form, unless the folder is read-only or full."""
        if not self._enabled or data.lifted or data.library.has_dynamic_globals:
            return
        try:
            _write(self._path(sig, data.codegen), _dumps(_reduced(data)))
            self._remove_old()
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
                path.parent.mkdir(parents=True, exist_ok=True)
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
        """Return the file of one compiled form."""
        folder = cache_dir()
        if folder.parts[:1] == ("~",):
            raise FileNotFoundError(folder)
        types, _ = _normalize_signature(sig)
        settings = [getattr(_config, each, None) for each in SETTINGS]
        machine = codegen.magic_tuple(), numba.__version__, sys.version_info[:2], settings
        # What a closure holds is not among the sources.
        cells = [each.cell_contents for each in self._function.__closure__ or ()]
        text = repr((machine, [*map(str, types)])).encode()
        digest = hashlib.sha256(text + (_dumps(cells) if cells else b"")).hexdigest()[:16]
        return folder / f"{self.name}.{digest}.nbc"

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError:
            self.disable()

    def _remove_old(self) -> None:
        """Remove forms of this kernel that were compiled from other sources a while ago."""
        oldest = time.time() - KEPT_S
        for path in cache_dir().glob(f"{self._own_name}*"):
            if not path.name.startswith(self.name) and path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)


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


def _write(path: Path, content: bytes) -> None:
    """Write a file that appears whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink()
        raise
