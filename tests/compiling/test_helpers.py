import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from projector.cli.output import STEP_MODULES
from projector.compiling.helpers import helper

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
PARTS = dict(sleep=sleep)
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
        "from projector.compiling.helpers import helper\n"
        "with helper('slow_parts', ['sleep']):\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        pid = _pid(pid_file)
        process.send_signal(signal.SIGKILL)
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
