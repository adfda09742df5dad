"""The command as a process: how it is called, and how it ends when it is told to."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from projector.cli import main
from projector.errors import OutOfMemoryError

SPACE = {
    "base": {
        "model": "llama3.1_8b",
        "cluster": {"device": "h100", "nodes": 1},
        "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096},
    },
    "axes": {
        "training.global_batch_size": {"range": [64, 64_000, 64]},
        "cluster.device.hbm_gib": {"range": [40, 140, 1]},
        # More than a million points: workers start at once.
        "training.micro_batch_size": [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048],
    },
}


def call(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "projector", *arguments], capture_output=True, text=True, check=False
    )


def test_the_package_is_a_command():
    done = call("--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: projector ")
    assert call("no-such").returncode == main.WRONG_INPUT


@pytest.mark.parametrize(
    ("error", "says"),
    [(MemoryError(), "memory ran out"), (OutOfMemoryError("memory ran out in x"), "ran out in x")],
    ids=["any", "told"],
)
def test_memory_that_runs_out_is_a_sentence(error, says, monkeypatch, capsys):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(main.cli, "main", fails)
    assert main.run(["memory", "--json"]) == main.OUT_OF_MEMORY
    told = capsys.readouterr()
    assert says in json.loads(told.out)["error"]
    assert told.err.startswith("error: memory ran out")


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="other signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_sweep_that_is_told_to_end_ends_in_a_line(number, tmp_path):
    # With workers it ended with a warning of Python about semaphores, and left folders behind.
    space, out, left = tmp_path / "space.json", tmp_path / "out", tmp_path / "left"
    space.with_suffix(".yaml").write_text(json.dumps(SPACE))
    left.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "projector", "sweep", str(space.with_suffix(".yaml")),
         "--out", str(out), "--workers", "2", "--quiet"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "TMPDIR": str(left)},
    ) as command:  # fmt: skip
        until = time.monotonic() + 120.0
        while not _projects(left) and command.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        # As timeout(1) does: to the process, and to all of its group.
        if command.poll() is None:
            command.send_signal(number)
            os.killpg(command.pid, number)
        _, err = command.communicate(timeout=120)
    if command.returncode == 0:
        pytest.skip("it was done before it was told to end")
    assert command.returncode == 128 + number, err
    assert err.strip() == f"interrupted; the same command continues {out}"
    assert list(left.iterdir()) == []


LATER = """
import os, sys, threading
from projector.cli.main import main
threading.Timer(1.5, os.kill, [os.getpid(), int(sys.argv.pop(1))]).start()
main()
"""
LONG = {
    "plan": ["plan", "--model", "llama3.1_70b", "--tokens", "1T", "--deadline-days", "30",
             "--csv", "plan.csv", "--html", "plan.html", "--job-out", "job.yaml"],
    "plan of planned orders": [
        "plan", "--model", "llama3.1_70b", "--tokens", "1T", "--csv", "plan.csv",
        "training.schedule=seaailab"],
    "schedule": ["schedule", "--pp", "64", "--microbatches", "512",
                 "--pipeline-schedule-algorithm", "seaailab-ilp", "--plot", "gantt.png"],
}  # fmt: skip
"""Commands that compute for more than 2 s before they write anything."""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="other signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("name", LONG)
def test_a_long_command_that_is_told_to_end_leaves_nothing(name, number, tmp_path):
    out, left = tmp_path / "out", tmp_path / "left"
    out.mkdir()
    left.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", LATER, str(int(number)), *LONG[name], "--quiet"],
        cwd=out, env={**os.environ, "TMPDIR": str(left)}, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 128 + number, done.stderr
    assert done.stdout == done.stderr.strip() == ""
    assert [*out.iterdir(), *left.iterdir()] == []


def _projects(folder: Path) -> bool:
    """Whether the workers of a sweep are there, whose task lies in a folder."""
    return any(folder.glob("sweep-*/task"))
