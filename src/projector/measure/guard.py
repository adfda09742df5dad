"""Stands between a caller and what it runs, and leaves no process behind whoever dies first.

Started as a script by `projector.measure.process`, in a session of its own, with nothing but the
standard library: ``guard.py FOLDER COMMAND...``. Its standard input is a pipe that the caller holds
open: when that closes, the caller is dead or wants an end. The guard then ends every process that
descends from the command, those in other sessions too, and removes the folder.
"""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""Of ``prctl(2)`` on Linux."""

ROUNDS = 100
"""So often processes are looked for that still run, 20 ms apart."""

LOOKS_EVERY_S = 1.0
"""How often the guard looks whether the caller is still there."""

CANNOT_START = 127
"""Exit code of a command that is not there, as in a shell."""


def end_with_parent() -> None:
    """Have Linux kill this process with its parent: torchrun's ranks see no group's signals."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It ended before the kernel was told.
        os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: Sequence[str]) -> int:
    """Run a command until it ends or the caller does; return how it ended, as `subprocess` does."""
    folder, *command = arguments
    caller = os.getppid()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(-signal.SIGTERM))
    if sys.platform.startswith("linux"):
        # Whoever loses its parent becomes a child of this process, which can find it.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    wakes, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        child = subprocess.Popen(  # noqa: S603  # the caller's own command
            command,
            stdin=subprocess.DEVNULL,
            preexec_fn=_as_a_child,  # noqa: PLW1509  # this process has no other thread
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return CANNOT_START
    status = None
    try:
        status = _wait(child, wakes, caller)
    finally:
        _end_all(child)
        if status is None:
            shutil.rmtree(folder, ignore_errors=True)
    return -signal.SIGTERM if status is None else status


def _as_a_child() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    end_with_parent()


def _wait(child: "subprocess.Popen[bytes]", wakes: int, caller: int) -> int | None:
    """Return the child's exit code, None if the caller ended or closed its pipe before."""
    while True:
        status = child.poll()
        if status is not None:
            return status
        ready, _, _ = select.select([0, wakes], [], [], LOOKS_EVERY_S)
        if os.getppid() != caller:
            # Its pipe may live on in a process that it forked.
            return None
        if wakes in ready:
            os.read(wakes, 4096)
        if 0 in ready and not os.read(0, 4096):
            return None


def _end_all(child: "subprocess.Popen[bytes]") -> None:
    for _ in range(ROUNDS):
        left = _descendants()
        if child.poll() is None and child.pid not in left:
            left.append(child.pid)
        for process in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        # Children that have ended are taken leave of, adopted ones too.
        child.poll()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not left:
            return
        time.sleep(0.02)


def _descendants() -> list[int]:
    """Return the processes that descend from this one; without ``/proc`` its group is ended."""
    if not Path("/proc/self/stat").exists():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with suppress(ProcessLookupError):
            os.killpg(0, signal.SIGTERM)
        return []
    parents, ended = {}, set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                # The name may hold anything, blanks and brackets too.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                if fields[0] in "ZX":
                    ended.add(int(entry.name))
    own = os.getpid()
    found = {own}
    grew = True
    while grew:
        more = {process for process, parent in parents.items() if parent in found} - found
        found |= more
        grew = bool(more)
    return sorted(found - {own} - ended)


if __name__ == "__main__":
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    code = main(sys.argv[1:])
    if code < 0:
        # End by the same signal, for the caller to see.
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    sys.exit(code)
