import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from projector.kernels import _helpers
from projector.kernels._cache import STEP_MODULES
from projector.kernels._helpers import helper, helpers_of_a_script
from projector.kernels._interpreted import interpreting
from projector.sweeps import engine

USED = """
import sys
from projector.kernels._numba import KernelCache
used, load = set(), KernelCache.load_overload
def noted(self, sig, context):
    used.add((self.name, str(sig)))
    return load(self, sig, context)
KernelCache.load_overload = noted
{calls}
print(*sorted(map(repr, used)), sep="\\n")
"""
HELPERS = """
from projector.compiling.helpers import PARTS
PARTS[{part!r}]()
"""
LOAD = """
from projector.serving.api import project_serving
traffic = {"batch": 2, "context": 128, "output": 8, "rate_per_s": 1.0, "requests": 20}
served = {"model": "llama3.1_8b", "cluster": {"device": "h100"}, "load": traffic}
project_serving(deployment=served)
"""
COMMAND = """
import numpy as np
from projector.sweeps.rows import Projector
from projector.sweeps.table import axis_kinds, load_space
space = load_space("examples/space_llama70b.yaml")
Projector(space, axis_kinds(space)).project(np.arange(3000))
"""
SLOW = """
import os, time
from pathlib import Path
def sleep():
    Path({path!r}).write_text(str(os.getpid()))
    print("working")
    time.sleep(60)
PARTS = dict(sleep=sleep, steps=sleep)
from projector.compiling.helpers import work
"""
SPACE = {
    "base": {
        "model": "llama3.1_8b",
        "training": {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 1024},
        "cluster": {"device": "h100"},
    },
    "axes": {"parallelism.tp": [1]},
}
SCRIPT = """
import os, signal, time
from pathlib import Path
import projector
from projector.kernels import _helpers
from projector.sweeps import engine
def surroundings():
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGCHLD
    return dict(os.environ), [signal.getsignal(each) for each in numbers]
def wait(*_):
    assert surroundings() == before
    while not Path({path!r}).exists():
        time.sleep(0.05)
    time.sleep({seconds})
    raise SystemExit
_helpers.WORK, _helpers.possible_helpers = "slow_parts", lambda: 1
engine.MANY_POINTS, engine._sweep = 1, wait
before = surroundings()
projector.sweep({space!r}, workers=2)
"""


def _used(calls: str) -> set[str]:
    root = Path(__file__).parents[2]
    code = [sys.executable, "-c", USED.format(calls=calls)]
    done = subprocess.run(code, cwd=root, capture_output=True, text=True, check=True)
    return {*done.stdout.split("\n")}


def test_helpers_compile_what_a_sweep_needs_and_nothing_else():
    used = _used(COMMAND)
    assert _used(HELPERS.format(part="steps")) == used
    assert all(any(f"'{module}." in each for each in used) for module in STEP_MODULES)


def test_the_helper_of_a_load_compiles_the_form_that_a_load_needs():
    used = _used(HELPERS.format(part="load"))
    assert {each for each in _used(LOAD) if "serving_load" in each} == used - {""} != set()


@pytest.fixture
def pid_file(tmp_path, monkeypatch):
    path = tmp_path / "pid"
    (tmp_path / "slow_parts.py").write_text(SLOW.format(path=str(path)))
    monkeypatch.syspath_prepend(tmp_path)
    return path


def _pid(path: Path) -> int:
    for _ in range(600):
        if path.exists() and path.read_text():
            return int(path.read_text())
        time.sleep(0.05)
    pytest.fail("the helper did not begin")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    # Nobody may be there to take notice of the end of an orphan.
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(sys.platform == "win32", reason="looks for a process as POSIX does")
def test_a_helper_ends_with_the_block_and_prints_nothing(pid_file, capfd):
    with helper("slow_parts", ["sleep"]):
        pid = _pid(pid_file)
        assert _lives(pid)
    assert not _lives(pid)
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(sys.platform == "win32", reason="kills as POSIX does")
def test_a_helper_does_not_outlive_a_process_that_is_killed(pid_file):
    code = (
        f"import sys, time; sys.path[:] = {sys.path!r}\n"
        "from projector.kernels._helpers import helper\n"
        "with helper('slow_parts', ['sleep']):\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        pid = _pid(pid_file)
        process.send_signal(signal.SIGKILL)
    _wait_for_its_end(pid)


def _wait_for_its_end(pid: int) -> None:
    for _ in range(200):
        if not _lives(pid):
            return
        time.sleep(0.05)
    pytest.fail("the helper lives on")


def test_without_processes_the_block_runs_alone(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    ran = []
    with helper("slow_parts", ["sleep"]):
        ran.append(True)
    assert ran


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals as POSIX does")
@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_helper_of_a_script_ends_with_it_and_changes_nothing_there(pid_file, tmp_path, number):
    # Without a guard against a second run of the script.
    script, seconds = tmp_path / "script.py", 0 if number is None else 60
    script.write_text(SCRIPT.format(path=str(pid_file), seconds=seconds, space=SPACE))
    environment = {**os.environ, "PROJECTOR_CACHE_DIR": str(tmp_path), "PROJECTOR_BACKGROUND": "1"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    with subprocess.Popen(
        [sys.executable, script],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        pid = _pid(pid_file)
        if number is not None:
            process.send_signal(number)
        told, errors = process.communicate()
    assert told == b""
    assert errors == b"" or number == signal.SIGINT
    assert (process.returncode == 0) == (number is None)
    _wait_for_its_end(pid)


@pytest.fixture
def count_helpers(monkeypatch, tmp_path):
    """Return how many helpers a script has that may have two."""
    monkeypatch.setenv("PROJECTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv(_helpers.VARIABLE, "1")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "0")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16), raising=False)
    begun = []
    monkeypatch.setattr(_helpers, "helper", lambda *_: nullcontext(begun.append(True)))

    def count(most=2):
        begun.clear()
        with helpers_of_a_script(most):
            return len(begun)

    return count


def test_a_script_has_helpers_where_that_is_safe(count_helpers, monkeypatch):
    assert [count_helpers(most) for most in (0, 1, 2, 15)] == [0, 1, 2, _helpers.MOST_HELPERS]
    with interpreting():
        assert count_helpers() == 0
    for change in (
        lambda patch: patch.setenv(_helpers.VARIABLE, "0"),
        lambda patch: patch.setenv("PYTEST_XDIST_WORKER", "gw0"),
        lambda patch: patch.setenv("PROJECTOR_CACHE_DIR", "/dev/null/x"),
        lambda patch: patch.setattr(sys, "frozen", True, raising=False),
        lambda patch: patch.setattr(sys, "executable", ""),
        lambda patch: patch.setattr(multiprocessing, "parent_process", lambda: patch),
        lambda patch: patch.setenv("NUMBA_DISABLE_JIT", "1"),
        lambda patch: patch.setattr(_helpers, "steps_are_compiled", lambda _: True),
    ):
        with monkeypatch.context() as patch:
            change(patch)
            assert count_helpers() == 0


@pytest.mark.parametrize(("points", "workers", "most"), [(4, 3, 2), (4, 1, 0), (3, 3, 0)])
def test_a_sweep_of_many_points_has_one_helper_less_than_workers(
    monkeypatch, points, workers, most
):
    asked = []
    monkeypatch.setattr(engine, "MANY_POINTS", 4)
    monkeypatch.setattr(engine, "helpers_of_a_script", lambda most: nullcontext(asked.append(most)))
    monkeypatch.setattr(engine, "_sweep", lambda *_: SimpleNamespace(warnings=()))
    axes = {"parallelism.tp": [*range(1, points + 1)]}
    engine.sweep({**SPACE, "axes": axes}, workers=workers)
    assert asked == [most]
