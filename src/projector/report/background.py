"""The process that compiles kernels after the first commands on a machine ran them as Python.

It outlives the command that started it: of low priority, one at a time, without a terminal,
and with nothing to say. What it is to compile lies in files beside the kernels.
"""

import gc
import os
import pickle
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

from projector.kernels._cache import cache_dir, cache_is_writable
from projector.kernels._interpreted import Wanted
from projector.kernels._jit import interpret_what_others_compile
from projector.report.beside import GC_THRESHOLD

if sys.platform != "win32":
    import fcntl

VARIABLE = "PROJECTOR_BACKGROUND"
"""Variable of the environment that forbids such a process, by "0"."""

_LONGEST_S = 900
"""Where compiling has not ended after this time, it ends itself."""

_NICE = 5
"""It gives way to other work, but soon lets go of a kernel that others wait for."""


def is_possible() -> bool:
    """Whether such a process may be started, and what it compiles is kept."""
    return os.environ.get(VARIABLE) != "0" and bool(sys.executable) and cache_is_writable()


def compile_in_background(wanted: Sequence[Wanted]) -> None:
    """Start a process that compiles kernels, unless one that runs takes them over."""
    if not is_possible():
        return
    paths = [os.path.abspath(each) for each in sys.path]  # noqa: PTH100  # also of archives
    code = f"import sys; sys.path[:] = {paths!r}; import {__name__} as own; own.work()"
    with suppress(OSError):
        part = cache_dir() / uuid.uuid4().hex
        part.write_bytes(pickle.dumps(tuple(map(tuple, wanted))))
        part.replace(part.with_suffix(".wanted"))
        subprocess.Popen(  # noqa: S603  # this Python, our own code
            [sys.executable, "-c", code],
            cwd=cache_dir(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ).returncode = 0  # Nobody waits for it, and no warning says so.


def work() -> None:
    """Compile what commands wanted, until there is nothing more."""
    if sys.platform != "win32":
        os.nice(_NICE)
        signal.alarm(_LONGEST_S)
    gc.set_threshold(GC_THRESHOLD)
    interpret_what_others_compile()
    # Another process looks for more after it has let go, so nothing is left.
    while any(_requests()):
        with _alone() as alone:
            if not alone:
                return
            for request in _requests():
                _serve(request)


def _requests() -> list[Path]:
    return [*cache_dir().glob("*.wanted")]


@contextmanager
def _alone() -> Iterator[bool]:
    """Yield whether no other process is at work."""
    if sys.platform == "win32":  # where processes share what they compile, and no lock
        yield True
        return
    with (cache_dir() / "background.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _serve(request: Path) -> None:
    """Compile what a file lists; what is of other sources is not there any more."""
    data = request.read_bytes()
    request.unlink()
    with suppress(Exception):  # a damaged pickle raises anything
        for module, name, signature in pickle.loads(data):  # noqa: S301  # our own folder
            getattr(import_module(module), name).compile(signature)
