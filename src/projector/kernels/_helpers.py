"""Processes that compile kernels beside the one that waits for them.

The first search or sweep on a machine has some for the kernels of a step, the first load one.
"""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from projector.kernels._cache import cache_is_writable, kernel_files, steps_are_compiled
from projector.kernels._interpreted import is_interpreting

VARIABLE = "PROJECTOR_BACKGROUND"
"""Variable of the environment by which "0" forbids processes that compile for others."""

MOST_HELPERS = 4

WORK = "projector.compiling.helpers"
"""What a helper imports; it has the list of jobs, which need all layers."""


def possible_helpers() -> int:
    """Return how many processes can compile beside this one, on a core each."""
    # The executable of a frozen program is that program, which would start itself again and again.
    if not sys.executable or hasattr(sys, "frozen") or not cache_is_writable():
        return 0
    known = getattr(os, "sched_getaffinity", None)
    return (len(known(0)) if known is not None else os.cpu_count() or 1) - 1


@contextmanager
def helper(module: str, parts: Sequence[str]) -> Iterator[None]:
    """Let another process call some of the ``PARTS`` of a module; it ends with the block.

    It prints nothing and compiles nothing twice: this one waits for what the other compiles, and
    the other goes on to what nobody compiles. Where no process can be started, there is none.
    """
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"from {WORK} import work; work({module!r}, {[*parts]!r})"
    )
    try:
        process = subprocess.Popen(  # noqa: S603  # this Python, our own code
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        yield
        return
    with process:
        try:
            yield
        finally:
            process.kill()


@contextmanager
def helpers_of_a_step(most: int = MOST_HELPERS) -> Iterator[None]:
    """Let up to `MOST_HELPERS` processes compile the kernels of a step, each what is still free."""
    with ExitStack() as started:
        for _ in range(min(possible_helpers(), MOST_HELPERS, most)):
            started.enter_context(helper(WORK, ["steps"]))
        yield


def helpers_of_a_script(most: int) -> AbstractContextManager[None]:
    """Let up to ``most`` helpers of a step work beside a block of a script, where it lacks kernels.

    There are none beside a command, which has its own, nor beside a worker of anybody. The script
    runs nothing as Python meanwhile: with that a sweep of a million points took a fifth more time.
    """
    is_worker = multiprocessing.parent_process() is not None or "PYTEST_XDIST_WORKER" in os.environ
    forbids = os.environ.get(VARIABLE) == "0" or os.environ.get("NUMBA_DISABLE_JIT", "0") != "0"
    if most < 1 or is_interpreting() or is_worker or forbids:
        return nullcontext()
    return nullcontext() if steps_are_compiled(kernel_files()) else helpers_of_a_step(most)
