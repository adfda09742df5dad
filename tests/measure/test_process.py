"""Workers that die, hang, lie or are killed: an error says it, and no process is left.

The workers are small scripts: nothing here needs torch.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from projector.errors import MeasurementError
from projector.measure import process
from projector.measure.keys import OperationKey
from projector.measure.task import OperationProgram, Task

ONE = OperationProgram(key=OperationKey(label="mlp.fc1", phase="forward", kind="gemm", m=1))
TASK = Task(programs=[ONE])
PAIR = Task(ranks=2, programs=[ONE])
ANSWER = """{"environment": {"device": "none", "backend": "cpu", "memory_bytes": 1, "torch": "0"},
"outcomes": [{"status": "ok"}]}"""
TWO = ANSWER.replace('{"status": "ok"}', '{"status": "ok"}, {"status": "ok"}')
HEAD = f"""import json, os, signal, subprocess, sys, time
asked, answered = sys.argv[-2:]
ANSWER, TWO = {ANSWER!r}, {TWO!r}
"""


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """Return a function that puts a script in the worker's place."""
    monkeypatch.setattr(process, "check_torch", lambda: None)

    def replace(code: str, launcher: str | None = None) -> None:
        script = tmp_path / "worker.py"
        script.write_text(HEAD + code, encoding="utf-8")
        monkeypatch.setattr(process, "WORKER", (sys.executable, "-I", str(script)))
        if launcher is not None:
            (tmp_path / "launcher.py").write_text(HEAD + launcher, encoding="utf-8")
            command = (sys.executable, "-I", str(tmp_path / "launcher.py"))
            monkeypatch.setattr(process, "TORCHRUN", command)

    return replace


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Return the folder where temporary ones lie; it must be empty in the end."""
    parent = tmp_path / "temporary"
    parent.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(parent))
    yield parent
    # After a caller that was killed the guard removes them, once nothing runs.
    for _ in range(500):
        if not list(parent.iterdir()):
            return
        time.sleep(0.01)
    raise AssertionError(list(parent.iterdir()))


def gone(pid: int) -> bool:
    """Return whether a process has ended, within seconds."""
    for _ in range(500):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.01)
    return False


def pids(file: Path, count: int) -> list[int]:
    """Return the processes that have written their numbers, once there are so many."""
    for _ in range(1000):
        if file.exists() and len(found := file.read_text().split()) >= count:
            return [int(number) for number in found]
        time.sleep(0.01)
    raise AssertionError(file.read_text() if file.exists() else "nothing started")


def test_a_worker_answers_and_tells(worker, folders):
    worker("print(chr(30) + 'mlp.fc1'); open(answered, 'w').write(ANSWER)")
    heard = []
    answer = process.run_task(TASK, progress=heard.append)
    assert answer.environment.device == "none"
    assert heard == ["mlp.fc1"]


def test_temporary_files_of_a_worker_go_with_its_folder(worker, folders):
    worker("import tempfile; tempfile.mkstemp(); open(answered, 'w').write(ANSWER)")
    process.run_task(TASK)


@pytest.mark.rotated
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("sys.exit(3)", "the worker ended with exit code 3"),
        ("print(chr(30) + 'mlp'); sys.exit(3)", "ended with exit code 3 while it measured mlp"),
        ("os.kill(os.getpid(), 9)", "was killed by SIGKILL, as the system does where memory"),
        ("os.kill(os.getpid(), 11)", "was killed by SIGSEGV"),
        ("raise ValueError('odd shape')", "its last words:.*ValueError: odd shape"),
        ("import torch_of_nothing", "exit code 1; its last words:.*torch_of_nothing"),
        ("pass", "ended without an answer"),
        ("open(answered, 'w').write('')", "cannot be read"),
        ("open(answered, 'w').write(ANSWER[:60])", "cannot be read: Invalid JSON: EOF"),
        ("open(answered, 'wb').write(bytes(range(256)))", "cannot be read"),
        ("open(answered, 'w').write('[1, 2]')", "cannot be read"),
        ("open(answered, 'w').write(ANSWER.replace('ok', 'fine'))", "outcomes.0.status"),
        ("open(answered, 'w').write(TWO)", "answered 2 programs of 1"),
    ],
)
def test_what_went_wrong_is_said(worker, folders, code, message):
    worker(code)
    with pytest.raises(MeasurementError, match=f"(?s){message}"):
        process.run_task(TASK)


def test_an_error_that_a_worker_states_is_raised(worker, folders):
    worker("""
stated = {"error": "torch sees no GPU", "key": "device", "value": "cuda", "allowed": ["cpu"]}
open(answered, "w").write(json.dumps(stated))
sys.exit(2)""")
    with pytest.raises(MeasurementError, match="torch sees no GPU") as caught:
        process.run_task(TASK)
    assert caught.value.to_dict() == {
        "error": "torch sees no GPU", "key": "device", "value": "cuda", "allowed": ["cpu"],
    }  # fmt: skip


def test_a_torch_that_cannot_be_imported_is_named(worker, folders, tmp_path):
    broken = tmp_path / "packages" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('libcudart.so.12: cannot open')")
    worker(f"sys.path.insert(0, {str(broken.parent)!r})\nimport torch")
    with pytest.raises(MeasurementError, match=r"libcudart.so.12.*pip install") as caught:
        process.run_task(TASK)
    assert caught.value.key == "torch"


def test_no_torch_is_said_before_anything_starts(monkeypatch):
    monkeypatch.setattr(process, "find_spec", lambda name: None)
    with pytest.raises(MeasurementError, match=r"pip install '\.\[torch\]'"):
        process.run_task(TASK)


@pytest.mark.parametrize(
    ("version", "old"),
    [("2.5.1+cu124", True), ("2.6.0", False), ("2.13.0+cpu", False), ("3.0.0a0+git12", False)],
)
def test_an_old_torch_is_refused(monkeypatch, version, old):
    monkeypatch.setattr(process, "find_spec", lambda name: name)
    monkeypatch.setattr(process, "installed_version", lambda name: version)
    if old:
        with pytest.raises(MeasurementError, match=r"2\.6 or newer, and 2\.5\.1\+cu124"):
            process.check_torch()
    else:
        process.check_torch()


def test_the_oldest_torch_is_that_of_the_extra():
    project = Path(process.__file__).parents[3] / "pyproject.toml"
    least = ".".join(map(str, process.LEAST_TORCH))
    assert f'torch = ["torch>={least}"]' in project.read_text(encoding="utf-8")


TREE = """
mine = __file__.replace("worker.py", "pids")
child = "import os, time; open({!r}, 'a').write(f'{{os.getpid()}} '); time.sleep(600)".format(mine)
for apart in (False, True):
    subprocess.Popen([sys.executable, "-c", child], start_new_session=apart)
open(mine, "a").write(f"{os.getpid()} ")
print(chr(30) + "mlp.fc1", flush=True)
"""
"""A worker with two children, one in a session of its own, as torchrun starts ranks."""


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"timeout_s": 2.0}, "ended after 2 s, its time limit, while it measured mlp.fc1"),
        ({"silence_s": 2.0}, "said nothing for 2 s and was ended while it measured mlp.fc1"),
    ],
)
def test_a_worker_that_hangs_is_ended_with_all_its_children(
    worker, folders, tmp_path, limits, message
):
    worker(TREE + "time.sleep(600)")
    start = time.monotonic()
    with pytest.raises(MeasurementError, match=message):
        process.run_task(TASK, **limits)
    assert time.monotonic() - start < 30.0
    assert all(gone(pid) for pid in pids(tmp_path / "pids", 3))


def test_children_that_outlive_their_worker_are_ended(worker, folders, tmp_path):
    worker(
        TREE
        + """
while len(open(mine).read().split()) < 3:
    time.sleep(0.01)
os.kill(os.getpid(), 9)"""
    )
    with pytest.raises(MeasurementError, match="SIGKILL"):
        process.run_task(TASK)
    assert all(gone(pid) for pid in pids(tmp_path / "pids", 3))


CALLER = """
import sys, tempfile
from projector.measure import process
from projector.measure.task import Task
process.check_torch = lambda: None
process.WORKER = (sys.executable, "-I", sys.argv[1])
tempfile.tempdir = sys.argv[2]
process.run_task(Task.model_validate_json(sys.argv[3]))
"""


KEEPER = CALLER.replace("process.run_task(", "with process.kept_worker(): process.run_task(")


@pytest.mark.thorough
@pytest.mark.parametrize("caller", [CALLER, KEEPER])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_caller_is_killed(worker, folders, tmp_path, how, caller):
    worker(TREE + "signal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(600)")
    command = [sys.executable, "-c", caller, str(tmp_path / "worker.py"), str(folders)]
    with subprocess.Popen(
        [*command, TASK.model_dump_json()], stderr=subprocess.PIPE, start_new_session=True
    ) as running:
        started = pids(tmp_path / "pids", 3)
        running.send_signal(how)
        _, errors = running.communicate(timeout=30)
    assert running.returncode == -how
    assert (b"KeyboardInterrupt" in errors) == (how == signal.SIGINT)
    assert all(gone(pid) for pid in started)


def test_a_killed_guard_takes_the_worker_with_it(worker, folders):
    worker("os.kill(os.getppid(), 9)\ntime.sleep(600)")
    with pytest.raises(MeasurementError, match="SIGKILL"):
        process.run_task(TASK, timeout_s=60.0)


FORKS = """
import os, sys, time
from projector.measure import process
started = process.subprocess.Popen

class Forked(started):
    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        # It holds the guard's pipe open, and lives longer.
        if os.fork() == 0:
            open(sys.argv[1].replace("worker.py", "forked"), "w").write(str(os.getpid()))
            time.sleep(600)
            os._exit(0)

process.subprocess.Popen = Forked
"""


def test_a_pipe_that_a_forked_process_holds_open_keeps_nothing_alive(worker, folders, tmp_path):
    worker(TREE + "time.sleep(600)")
    command = [sys.executable, "-c", FORKS + CALLER, str(tmp_path / "worker.py"), str(folders)]
    with subprocess.Popen([*command, TASK.model_dump_json()], start_new_session=True) as caller:
        started = pids(tmp_path / "pids", 3)
        (forked,) = pids(tmp_path / "forked", 1)
        caller.kill()
    try:
        assert all(gone(pid) for pid in started)
    finally:
        os.kill(forked, signal.SIGKILL)


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError("No usable temporary directory"), OSError(28, "No space left on device")],
)
def test_no_room_for_temporary_files_is_said(worker, monkeypatch, error):
    def fails(**more):
        raise error

    worker("")
    monkeypatch.setattr(process.tempfile, "TemporaryDirectory", fails)
    with pytest.raises(MeasurementError, match=r"No .*TMPDIR names another folder"):
        process.run_task(TASK)


def test_a_process_that_cannot_be_started_is_said(worker, folders, monkeypatch):
    def fails(*arguments, **more):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    worker("")
    monkeypatch.setattr(process.subprocess, "Popen", fails)
    with pytest.raises(MeasurementError, match=r"no process can be started.*unavailable"):
        process.run_task(TASK)


FAILED = """
import pathlib
logs = pathlib.Path(next(a for a in sys.argv if a.startswith("--log-dir")).partition("=")[2])
for rank in ("0", "1"):
    folder = logs / "none_x" / "attempt_0" / rank
    folder.mkdir(parents=True)
    (folder / "stderr.log").write_text(f"Traceback of rank {rank}\\nValueError: of {rank}\\n")
print('''worker.py FAILED
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : OTHER (pid: 11)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : CODE (pid: 12)
  error_file: <N/A>
''', file=sys.stderr)
sys.exit(1)
"""


@pytest.mark.parametrize(
    ("code", "other", "message"),
    [
        ("3", "-15", "rank 1 of 2 ended with exit code 3.*ValueError: of 1"),
        ("-9", "-15", "rank 1 of 2 was killed by SIGKILL.*ValueError: of 1"),
        # One that waited for another in vain is not the one to blame.
        ("75", "-11", "rank 0 of 2 was killed by SIGSEGV.*ValueError: of 0"),
        ("75", "-15", "rank 1 of 2 waited in vain for another rank.*ValueError: of 1"),
        ("75", "75", "rank 1 of 2 waited in vain for another rank"),
    ],
)
def test_the_rank_that_failed_first_is_named(worker, folders, code, other, message):
    worker("", launcher=FAILED.replace("CODE", code).replace("OTHER", other))
    with pytest.raises(MeasurementError, match=f"(?s){message}"):
        process.run_task(PAIR)


def test_a_launcher_that_fails_itself_is_quoted(worker, folders):
    worker("", launcher="sys.exit('no rendezvous')")
    with pytest.raises(MeasurementError, match=r"(?s)the worker.*no rendezvous"):
        process.run_task(PAIR)


def test_several_ranks_are_started_by_torchrun(worker, folders):
    launcher = """
assert "--nproc-per-node=2" in sys.argv and "--standalone" in sys.argv
assert int(os.environ["OMP_NUM_THREADS"]) >= 1
open(answered, "w").write(ANSWER)"""
    worker("", launcher=launcher)
    assert process.run_task(PAIR).outcomes[0].status == "ok"


def test_a_command_that_is_not_there_is_said(worker, folders, monkeypatch):
    worker("")
    monkeypatch.setattr(process, "WORKER", ("/nowhere/python",))
    with pytest.raises(MeasurementError, match=r"(?s)exit code 127.*No such file"):
        process.run_task(TASK)


def test_torch_is_never_imported():
    code = "import sys, projector.measure.process; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


SERVING = """
open(__file__.replace("worker.py", "started"), "a").write("x")
for number in ("", "1", "2"):
    while not os.path.exists(asked + number):
        time.sleep(0.01)
    if len(json.load(open(asked + number))["programs"]) > 1:
        sys.exit(3)
    open(answered + number, "w").write(ANSWER)
    print(chr(30), flush=True)
time.sleep(600)
"""
"""A worker that waits for further tasks, and dies of one with two programs."""


def test_one_process_runs_several_tasks(worker, folders, tmp_path):
    worker(SERVING)
    with process.kept_worker() as kept:
        kept.start(TASK)
        heard = []
        answers = [process.run_task(TASK, progress=heard.append) for _ in range(3)]
    assert [len(answer.outcomes) for answer in answers] == [1, 1, 1]
    assert heard == []
    assert (tmp_path / "started").read_text() == "x"


def test_a_kept_process_that_dies_is_followed_by_another(worker, folders, tmp_path):
    worker(SERVING)
    deadly = TASK.model_copy(update={"programs": [ONE, ONE]})
    with process.kept_worker() as kept:
        process.run_task(TASK)
        with pytest.raises(MeasurementError, match="exit code 3"):
            process.run_task(deadly)
        process.run_task(TASK)
        kept.dismiss()
        process.run_task(TASK)
    assert (tmp_path / "started").read_text() == "xxx"


def test_other_ranks_are_another_process(worker, folders, tmp_path):
    worker(SERVING, launcher="open(answered, 'w').write(ANSWER)")
    with process.kept_worker():
        process.run_task(TASK)
        process.run_task(PAIR)
        process.run_task(TASK)
    assert (tmp_path / "started").read_text() == "xx"
