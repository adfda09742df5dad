"""What compiles kernels after a command that ran them as Python."""

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

from projector.compiling import background
from projector.kernels import _cache, _interpreted

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="looks for locks as POSIX does"),
    pytest.mark.skipif(
        os.environ.get("NUMBA_DISABLE_JIT", "0") != "0", reason="nothing is compiled"
    ),
]
COMMAND = "from projector.cli.main import main; main()"
GEMM = ("gemm", "64", "64", "64", "--model", "sol")
WORK = "from projector.compiling.background import work; work()"


@pytest.fixture
def python(tmp_path):
    """Run a line of Python with an empty cache; return what it printed."""

    def run(code, *arguments, **environment):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, "PROJECTOR_CACHE_DIR": str(tmp_path), **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout, done.stderr

    return run


def _compiled(folder: Path) -> set[str]:
    return {each.name.split("-")[0].split(".")[-1] for each in folder.rglob("*.nbc")}


def _ends(folder: Path) -> None:
    """Wait until nobody compiles."""
    import fcntl

    for _ in range(1200):
        lock = folder / "numba" / "background.lock"
        if lock.exists() and not [*folder.rglob("*.wanted")]:
            with lock.open("w") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    pass
                else:
                    return
        time.sleep(0.05)
    pytest.fail("the background process did not end")


def test_a_command_runs_as_python_and_what_it_ran_is_compiled_afterwards(python, tmp_path):
    first, told = python(COMMAND, *GEMM, PROJECTOR_BACKGROUND="1")
    assert told.startswith("kernels are compiled in the background")
    _ends(tmp_path)
    assert _compiled(tmp_path) == {"sol_times"}
    assert python(COMMAND, *GEMM, PROJECTOR_BACKGROUND="1") == (first, "")


def test_the_variable_forbids_it(python, tmp_path):
    python(COMMAND, *GEMM, PROJECTOR_BACKGROUND="0")
    assert not [*tmp_path.rglob("*.*")]


def test_where_nothing_can_be_kept_nothing_is_started(python, monkeypatch):
    expected, told = python(COMMAND, *GEMM, PROJECTOR_BACKGROUND="0")
    assert told == ""
    written = python(COMMAND, *GEMM, PROJECTOR_CACHE_DIR="/dev/null/x", PROJECTOR_BACKGROUND="1")
    assert written == (expected, "")


def test_one_at_a_time_which_takes_over_what_others_want(python, tmp_path):
    import fcntl

    folder = tmp_path / "numba"
    folder.mkdir()
    request = folder / "one.wanted"
    _cache.write_kept(request, pickle.dumps((("builtins", "nothing", ()),)))
    (folder / "two.wanted").write_text("damaged")
    with (folder / "background.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert python(WORK) == ("", "")
        assert request.exists()
    assert python(WORK) == ("", "")
    assert not [*folder.glob("*.wanted")]


def test_without_processes_a_command_ends_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("PROJECTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv(background.VARIABLE, "1")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    background.compile_in_background([_interpreted.Wanted("module", "name", ())])
    monkeypatch.setattr(sys, "executable", "")
    assert not background.is_possible()
