"""How one run of tests and benchmarks is shared between the cores of a machine."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

try:
    import fcntl
except ImportError:  # Windows, where workers may compile the same kernel twice
    fcntl = None

MOST_WORKERS = 8
"""Every worker loads its own kernels: beyond this, starting costs what sharing wins."""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One worker a core, none where times are measured or only files are named."""
    if config.getoption("benchmark_enable") or all(".py" in each for each in config.args):
        return 0
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:
        cores = os.cpu_count() or 1
    return 0 if cores == 1 else min(cores, MOST_WORKERS)


def pytest_configure(config: pytest.Config) -> None:
    """Let workers wait for a kernel that another one compiles."""
    if fcntl is not None and hasattr(config, "workerinput"):
        _compile_in_turns()


def _compile_in_turns() -> None:
    """Lock a kernel on disk while it is compiled; whoever waits then finds it there."""
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.dispatcher import Dispatcher

    from projector.kernels._cache import KernelCache, cache_is_writable

    alone = Dispatcher.compile

    def in_turns(dispatcher: Dispatcher, signature: object) -> object:
        cache = dispatcher._cache
        if not isinstance(cache, KernelCache) or not cache_is_writable():
            return alone(dispatcher, signature)
        path = Path(cache.cache_path, f"{cache.name}.lock")
        # The lock of this process first, or two of its threads could each hold what the other
        # one waits for.
        with global_compiler_lock, _locked(path):
            return alone(dispatcher, signature)

    Dispatcher.compile = in_turns


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock between processes, which ends with a process that dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
