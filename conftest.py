"""What one run of tests and benchmarks takes in, and how the cores of a machine share it."""

import gc
import os
import random
import subprocess
import sys
import time

import pytest
from hypothesis import HealthCheck, settings

from thoroughness import PARTS, part_of

MOST_WORKERS = 8
"""Every worker loads its own kernels: beyond this, starting costs what sharing wins."""

_GC_THRESHOLD = 200_000
"""New objects between two collections of garbage: modules and tests make many that stay."""

# A first example may compile a kernel, which no per-example deadline survives.
_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("thorough", _COMMON, max_examples=60)
settings.register_profile("brief", _COMMON, max_examples=25)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what a run leaves out, and which part of rotated tests it takes."""
    group = parser.getgroup("projector")
    group.addoption(
        "--thorough",
        action="store_true",
        help="leave nothing out: thorough tests, all cases of rotated ones, all random examples",
    )
    group.addoption(
        "--part",
        type=int,
        choices=range(PARTS),
        help=f"which of {PARTS} parts of each rotated test is run (default: any)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Decide once what is left out; workers are told."""
    gc.set_threshold(_GC_THRESHOLD)
    option = config.option
    if not hasattr(config, "workerinput"):
        whole = option.benchmark_enable or (_names_files(config) and option.part is None)
        option.thorough = option.thorough or whole
        if option.part is None:
            option.part = random.randrange(PARTS)  # noqa: S311  # no secret
    settings.load_profile("thorough" if option.thorough else "brief")


def pytest_report_header(config: pytest.Config) -> str:
    """Say what is left out, and how to run the same again."""
    if config.option.thorough:
        return "tests: all"
    return f"tests: a part of the rotated ones (--part {config.option.part}), no thorough ones"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out thorough tests, and all parts but one of rotated tests."""
    if config.option.thorough:
        return
    rotated: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("rotated"):
            rotated.setdefault(item.nodeid.partition("[")[0], []).append(item)
    part = {item for cases in rotated.values() for item in part_of(cases, config.option.part)}
    left = {
        item
        for item in items
        if item.get_closest_marker("thorough")
        or (item.get_closest_marker("rotated") and item not in part)
    }
    config.hook.pytest_deselected(items=[*left])
    items[:] = [item for item in items if item not in left]


def pytest_collection_finish() -> None:
    """Keep what is there now out of later collections of garbage."""
    gc.freeze()


def _names_files(config: pytest.Config) -> bool:
    return all(".py" in each for each in config.args)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One worker a core, none where times are measured or only files are named."""
    if config.getoption("benchmark_enable") or _names_files(config):
        return 0
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:
        cores = os.cpu_count() or 1
    return 0 if cores == 1 else min(cores, MOST_WORKERS)


def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Compile kernels before workers start, on all cores: later each would wait for the others."""
    if config.option.collectonly or os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return
    begin = time.perf_counter()
    command = [sys.executable, "-m", "projector", "warmup", "--quiet"]
    # Where it fails, so will tests, which say more.
    subprocess.run(command, check=False)  # noqa: S603  # this Python, our own command
    report = config.pluginmanager.get_plugin("terminalreporter")
    if report is not None:
        report.write_line(f"kernels: ready after {time.perf_counter() - begin:.0f} s")
