"""How one run of tests and benchmarks is shared between the cores of a machine."""

import os

import pytest

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
