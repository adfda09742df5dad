"""Workers: what they stay for, and what ends them."""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from projector.config.space import Space
from projector.errors import ProjectorError
from projector.sweeps import store, workers
from projector.sweeps.engine import sweep
from sweeps.grid import AXES, grid


def end_resting():
    for pool in [*workers._resting]:
        pool._leave()


@pytest.fixture
def seen(monkeypatch):
    """Every process that is started from here on; none rests before or after."""
    start, processes = workers._Process.start, []

    def watched(process):
        start(process)
        processes.append(process)

    monkeypatch.setattr(workers._Process, "start", watched)
    end_resting()
    yield processes
    end_resting()
    assert not any(process.is_alive() for process in processes)


@pytest.fixture
def started(seen, at_once):
    """The same, of sweeps that begin with all their workers."""
    del at_once
    return seen


def small(*batches):
    return grid({**AXES, "training.global_batch_size": list(batches)})


@pytest.mark.thorough
@pytest.mark.parametrize(("start_s", "number"), [(3600.0, 0), (1e-9, 2)])
def test_others_join_where_it_takes_long(seen, monkeypatch, start_s, number):
    # Chunks of more points than where orders are planned.
    monkeypatch.setattr(store, "CHUNK_POINTS", 144)
    monkeypatch.setattr(workers, "START_S", start_s)
    found = sweep(small(*range(64, 640, 64)), workers=3)
    assert len(seen) == number
    assert found.to_arrow().equals(sweep(small(*range(64, 640, 64)), workers=1).to_arrow())


def test_workers_stay_for_the_next_sweep(started, tmp_path):
    once = sweep(small(64, 128), tmp_path / "once", workers=2)
    again = sweep(small(64, 128), tmp_path / "again", workers=2)
    other = sweep(small(64, 192), workers=2)
    assert len(started) == 1
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
    assert len(started) == 1
    assert not rows[0].equals(rows[1])


@pytest.mark.thorough
def test_a_folder_made_anew_wants_other_workers(started, tmp_path, monkeypatch):
    folder = tmp_path / "here"
    for _ in range(2):
        folder.mkdir()
        monkeypatch.chdir(folder)
        assert sweep(small(64, 128), "out", workers=2).rows
        folder.rename(tmp_path / f"gone{len(started)}")
    assert len(started) == 2


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no umask here")
def test_workers_write_with_the_umask_of_the_caller(started, tmp_path):
    sweep(small(64, 128), tmp_path / "open", workers=2)
    before = os.umask(0o077)
    try:
        sweep(small(64, 128), tmp_path / "closed", workers=2)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "closed").glob("part-*")} == {0}


@pytest.mark.thorough
def test_another_number_of_workers(started):
    sweep(small(64, 128, 192, 256), workers=2)
    sweep(small(64, 128, 192, 256), workers=3)
    assert len(started) == 3
    assert not any(process.is_alive() for process in started[:1])


@pytest.mark.thorough
def test_few_chunks_start_few_workers(started, monkeypatch):
    monkeypatch.setattr(store, "CHUNK_POINTS", 144)
    for batches, number in (((64, 128), 3), ((64,), 3), ((64, 128, 192), 3 + 5)):
        sweep(small(*batches), workers=9)
        assert len(started) == number


@pytest.mark.thorough
def test_other_surroundings_want_other_workers(started, monkeypatch):
    sweep(small(64, 128), workers=2)
    monkeypatch.setenv("PROJECTOR_SOMETHING", "else")
    sweep(small(64, 128), workers=2)
    assert len(started) == 2
    assert not any(process.is_alive() for process in started[:1])


@pytest.mark.thorough
def test_a_worker_that_died_at_rest_is_replaced(started):
    sweep(small(64, 128), workers=2)
    started[0].kill()
    started[0].join()
    sweep(small(64, 128), workers=2)
    assert len(started) == 2


@pytest.mark.thorough
def test_nobody_waits_for_ever(started, monkeypatch):
    monkeypatch.setattr(workers, "REST_S", 0.05)
    sweep(small(64, 128), workers=2)
    until = time.monotonic() + 20.0
    while any(process.is_alive() for process in started) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(process.is_alive() for process in started)


def test_a_sweep_that_fails_leaves_no_workers(started, tmp_path, monkeypatch):
    def stop(done, total, rows):
        raise ProjectorError("enough")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ProjectorError, match="enough"):
        sweep(small(64, 128), workers=2, progress=stop)
    assert len(started) == 1
    assert not any(process.is_alive() for process in started)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_rows_in_memory_leave_no_files(started, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert sweep(small(64, 128), workers=2).rows
    assert list(tmp_path.iterdir()) == []


def test_a_space_that_cannot_be_sent_starts_nothing(started):
    class Local(Space):
        """A space that nobody can import."""

    with pytest.raises((AttributeError, TypeError), match="Local"):
        sweep(Local(grid().base, grid().axes, {}, []), workers=2)
    assert started == []


def test_a_process_that_may_have_no_children(started, monkeypatch):
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    assert sweep(small(64, 128), workers=2).rows
    assert started == []


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no copies of a process here")
def test_a_copy_of_the_caller_leaves_them_alone(started):
    sweep(small(64, 128), workers=2)
    child = os.fork()
    if not child:
        code = 1
        try:
            # As at the exit of a process.
            for worker in multiprocessing.active_children():
                worker.join()
            code = len(workers._take(1, 1)._context.workers)
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    sweep(small(64, 128), workers=2)
    assert len(started) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="other signals")
@pytest.mark.parametrize("number", workers.ENDINGS)
def test_a_signal_waits_while_a_worker_starts(number):
    done = []

    class Told(Exception):  # noqa: N818  no error
        pass

    def told(*_):
        raise Told

    def start():
        with workers._endings_blocked(), workers._endings_blocked():
            # Whichever thread takes it: some are older than the block.
            os.kill(os.getpid(), number)
            time.sleep(0.1)
            done.append("started")

    before = signal.signal(number, told)
    try:
        with pytest.raises(Told):
            start()
        assert signal.getsignal(number) is told
    finally:
        signal.signal(number, before)
    assert done == ["started"]


SCRIPT = """
import signal, sys, time
# Tests that run in the background of a shell hand on that it is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {tests!r})
from projector.sweeps import engine, store, workers
from sweeps.crews import start_at_once
from sweeps.grid import grid

start = workers._Process.start

def told(worker):
    start(worker)
    print(worker.pid, flush=True)

def say(*_):
    print("more", flush=True)
    time.sleep({pause})

if {alone}:
    workers.take_over()
workers._Process.start = told
store.CHUNK_POINTS = 16
start_at_once()
print("once", flush=True)
engine.sweep(grid(), {out!r}, workers=3, progress=say)
"""


def test_a_script_gets_its_memory_back(monkeypatch):
    kept = []
    monkeypatch.setattr(workers, "_keep_memory", kept.append)
    with pytest.raises(ValueError, match="within"), workers.keeping_memory():
        raise ValueError("within")
    assert kept == [workers.KEPT_BYTES, workers.LEFT_BYTES]


@pytest.fixture
def script(tmp_path):
    """Start a script that sweeps, as somebody writes it who has not heard of guards."""

    def start(pause, how, *, alone=False):
        text = SCRIPT.format(
            tests=str(Path(__file__).parents[1]),
            out=str(tmp_path / "out"),
            pause=pause,
            alone=alone,
        )
        file = tmp_path / "script.py"
        file.write_text(text)
        with file.open() as stream:
            return subprocess.Popen(
                [sys.executable, *([file] if how == "file" else ["-"])],
                stdin=stream,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )

    return start


def lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def assert_gone(pids):
    until = time.monotonic() + 20.0
    while any(map(lives, map(int, pids))) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(map(lives, map(int, pids)))


def workers_among(lines):
    return [line for line in lines if line.strip().isdigit()]


@pytest.mark.thorough
@pytest.mark.parametrize(("how", "alone"), [("file", False), ("input", False), ("file", True)])
def test_a_script_without_a_guard_runs_once(script, tmp_path, monkeypatch, how, alone):
    out, err = script(0.0, how, alone=alone).communicate()
    pids = workers_among(out.splitlines())
    assert (out.count("once"), out.count("\n"), len(pids), err) == (1, 17, 2, "")
    # They end with the caller, also at rest.
    assert_gone(pids)
    monkeypatch.setattr(store, "CHUNK_POINTS", 16)
    found = sweep(grid(), tmp_path / "out")
    assert found.rate_per_s is None
    assert found.to_arrow().equals(sweep(grid(), workers=1).to_arrow())


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="other signals")
@pytest.mark.parametrize(
    ("how", "lines", "alone"),
    # When rows have come, or as soon as one worker has been started.
    [
        (signal.SIGKILL, 5, False),
        (signal.SIGINT, 5, False),
        (signal.SIGINT, 2, False),
        (signal.SIGKILL, 6, True),
        (signal.SIGINT, 6, True),
        (signal.SIGINT, 3, True),
    ],
)
def test_a_caller_that_ends_takes_its_workers_along(script, tmp_path, how, lines, alone):
    with script(0.3, "file", alone=alone) as caller:
        pids = workers_among([caller.stdout.readline() for _ in range(lines)])
        assert pids
        if how == signal.SIGINT:
            # As a terminal sends it.
            os.killpg(caller.pid, how)
        else:
            caller.send_signal(how)
        _, err = caller.communicate()
    assert_gone(pids)
    assert list((tmp_path / "out").glob("_new-*")) == []
    assert caller.returncode == -how, err
    if how == signal.SIGINT:
        assert err.count("Traceback") == 1
        assert err.strip().endswith("KeyboardInterrupt")
