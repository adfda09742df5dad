"""Processes that compile kernels beside the one that waits for them."""

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module

from projector.kernels._cache import cache_is_writable
from projector.kernels._jit import interpret_what_others_compile

GC_THRESHOLD = 200_000
"""New objects between two garbage collections: compiling makes many that stay."""


def possible_helpers() -> int:
    """Return how many processes can compile beside this one, on a core each."""
    if not sys.executable or not cache_is_writable():
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
        f"from projector.report.beside import work; work({module!r}, {[*parts]!r})"
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


def work(module: str, parts: Sequence[str]) -> None:
    """Call some of the ``PARTS`` of a module, as long as whoever asked for it lives."""
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    gc.set_threshold(GC_THRESHOLD)
    interpret_what_others_compile()
    calls = import_module(module).PARTS
    for part in parts:
        calls[part]()


def _end_with_standard_input() -> None:
    """End this process when the other end of its standard input is closed, however that comes."""
    os.read(0, 1)
    os._exit(0)
