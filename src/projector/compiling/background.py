"""The process that compiles kernels after the first commands on a machine ran them as Python.

It outlives the command that started it. It has a low priority and no terminal, prints nothing, and
runs once at a time. Files beside the kernels say what it is to compile.
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

from projector.compiling.helpers import GC_THRESHOLD
from projector.kernels._cache import cache_dir, cache_is_writable, read_kept, write_kept
from projector.kernels._helpers import VARIABLE
from projector.kernels._interpreted import Wanted, interpret_what_others_compile

if sys.platform != "win32":
    import fcntl

_LONGEST_S = 900
"""Seconds after which it ends itself, whatever it is compiling."""

_NICE = 5
"""Its niceness: it gives way to other work, but not so much that others wait long for a kernel
that it compiles."""


def is_possible() -> bool:
    """Whether such a process may be started, and what it compiles is kept."""
    return os.environ.get(VARIABLE) != "0" and bool(sys.executable) and cache_is_writable()


def compile_in_background(wanted: Sequence[Wanted]) -> None:
    """Start a process that compiles kernels; one that is at work already takes them over."""
    if not is_possible():
        return
    paths = [os.path.abspath(each) for each in sys.path]  # noqa: PTH100  # also of archives
    code = f"import sys; sys.path[:] = {paths!r}; import {__name__} as own; own.work()"
    with suppress(OSError):
        request = cache_dir() / f"{uuid.uuid4().hex}.wanted"
        write_kept(request, pickle.dumps(tuple(map(tuple, wanted))))
        process = subprocess.Popen(  # noqa: S603  # this Python, our own code
            [sys.executable, "-c", code],
            cwd=cache_dir(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        # `Popen` warns of a process that nobody has waited for, unless it has a return code. This
        # one outlives us, so nobody waits.
        process.returncode = 0


def work() -> None:
    """Compile what commands wanted, until there is nothing more."""
    if sys.platform != "win32":
        os.nice(_NICE)
        signal.alarm(_LONGEST_S)
    gc.set_threshold(GC_THRESHOLD)
    interpret_what_others_compile()
    # A process looks for requests again after it has let go of the lock. So whoever finds the lock
    # taken may end: what it was started for is not left behind.
    while any(_requests()):
        with _only_one() as is_ours:
            if not is_ours:
                return
            for request in _requests():
                _serve(request)


def _requests() -> list[Path]:
    return [*cache_dir().glob("*.wanted")]


@contextmanager
def _only_one() -> Iterator[bool]:
    """Yield whether this process has the lock, which one at a time can have."""
    if sys.platform == "win32":  # without such locks, several may compile the same
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
    """Compile what a file lists, and remove the file."""
    content = read_kept(request)
    request.unlink()
    # A kernel of another version may not exist here.
    with suppress(Exception):
        for module, name, signature in pickle.loads(content or b""):  # noqa: S301  # our own
            getattr(import_module(module), name).compile(signature)
