"""Workers that stay for the next sweep."""

import os
import subprocess
import sys
import time

import pytest

from projector.errors import ProjectorError
from projector.sweeps import engine, workers
from projector.sweeps.engine import sweep
from sweeps.grid import AXES, grid


@pytest.fixture
def started(monkeypatch):
    """Every process that is started from here on; none rests before or after."""
    monkeypatch.setattr(engine, "FEW_POINTS", 0)
    start, processes = workers._start, []

    def watched():
        processes.append(start())
        return processes[-1]

    monkeypatch.setattr(workers, "_start", watched)
    workers._resting.end()
    yield processes
    workers._resting.end()
    assert all(process.returncode is not None for process in processes)


def small(*batches):
    return grid({**AXES, "training.global_batch_size": list(batches)})


def test_workers_stay_for_the_next_sweep(started, tmp_path):
    once = sweep(small(64, 128), tmp_path / "once", workers=2)
    again = sweep(small(64, 128), tmp_path / "again", workers=2)
    other = sweep(small(64, 192), workers=2)
    assert len(started) == 2
    assert again.to_arrow().equals(once.to_arrow())
    assert other.to_arrow().equals(sweep(small(64, 192), workers=1).to_arrow())
    for path in sorted((tmp_path / "once").glob("part-*")):
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()
    assert not list(tmp_path.glob("*/_new-*"))


def test_a_file_that_a_space_names_may_change(started, tmp_path):
    file = tmp_path / "chip.yaml"
    rows = []
    for units in (132, 66):
        file.write_text(f"extends: h100\ncompute_units: {units}\n")
        space = grid({"cluster.device": [str(file), "h100"], **AXES})
        rows.append(sweep(space, workers=2).to_arrow())
        assert rows[-1].equals(sweep(space, workers=1).to_arrow())
    assert len(started) == 2
    assert not rows[0].equals(rows[1])


def test_a_folder_made_anew_wants_other_workers(started, tmp_path, monkeypatch):
    folder = tmp_path / "here"
    for _ in range(2):
        folder.mkdir()
        monkeypatch.chdir(folder)
        assert sweep(small(64, 128), "out", workers=2).rows
        folder.rename(tmp_path / f"gone{len(started)}")
    assert len(started) == 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no umask here")
def test_workers_write_with_the_umask_of_the_caller(started, tmp_path):
    sweep(small(64, 128), tmp_path / "open", workers=2)
    before = os.umask(0o077)
    try:
        sweep(small(64, 128), tmp_path / "closed", workers=2)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "closed").glob("part-*")} == {0}


def test_more_workers_than_rest(started):
    sweep(small(64, 128, 192, 256), workers=2)
    sweep(small(64, 128, 192, 256), workers=3)
    assert len(started) == 3


def test_other_surroundings_want_other_workers(started, monkeypatch):
    sweep(small(64, 128), workers=2)
    monkeypatch.setenv("PROJECTOR_SOMETHING", "else")
    sweep(small(64, 128), workers=2)
    assert len(started) == 4
    assert all(process.returncode is not None for process in started[:2])


def test_a_worker_that_died_at_rest_is_replaced(started):
    sweep(small(64, 128), workers=2)
    started[0].kill()
    started[0].wait()
    sweep(small(64, 128), workers=2)
    assert len(started) == 3


def test_nobody_waits_for_ever(started, monkeypatch):
    monkeypatch.setattr(workers, "REST_S", 0.05)
    sweep(small(64, 128), workers=2)
    until = time.monotonic() + 20.0
    while any(process.returncode is None for process in started) and time.monotonic() < until:
        time.sleep(0.02)
    assert all(process.returncode is not None for process in started)


def test_a_sweep_that_fails_leaves_no_workers(started):
    def stop(done, total, rows):
        raise ProjectorError("enough")

    with pytest.raises(ProjectorError, match="enough"):
        sweep(small(64, 128), workers=2, progress=stop)
    assert all(process.returncode is not None for process in started)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no copies of a process here")
def test_a_copy_of_the_caller_leaves_them_alone(started):
    sweep(small(64, 128), workers=2)
    child = os.fork()
    if not child:
        os._exit(len(workers._resting.take(2, workers._surroundings())))
    assert os.waitpid(child, 0)[1] == 0
    sweep(small(64, 128), workers=2)
    assert len(started) == 2


def test_they_end_with_the_caller():
    code = (
        "from projector.sweeps import workers\n"
        "workers.start_ahead(2)\n"
        "print(*(each.pid for _, each in workers._resting._processes))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pids = [int(each) for each in done.stdout.split()]
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
