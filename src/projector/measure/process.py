"""Runs what is measured in processes of their own, so that their end never ends the caller.

One rank is one process; several are started by torchrun. `projector.measure.guard` stands in
between and leaves no process behind. A process that is kept takes one task after the other, so that
torch is imported once. Nothing here imports torch.
"""

import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from projector.distribution import install_command, installed_version
from projector.errors import MeasurementError
from projector.measure import guard
from projector.measure import task as tasks

WORKER = (sys.executable, "-P", "-m", "projector.measure.worker")
"""The command that is given the paths of a task and of its answer."""

TORCHRUN = (sys.executable, "-P", "-m", "torch.distributed.run")

LEAST_TORCH = (2, 6)
"""Oldest torch that has what the worker calls; that of the extra ``torch``."""

ASKED, ANSWERED = "task.json", "answer.json"
"""Files of a worker's first task; those of later ones have their number behind."""

INSTALL = install_command("torch")

SILENCE_S = 600.0
"""A worker that says nothing for so long counts as hung."""

STOPPING_S = 10.0
"""How long the guard may take to end everything."""

KEPT_LINES = 200
"""Lines of a worker's output that are kept, the last ones."""

SHOWN_LINES = 6
"""Of these a message shows so many."""


def run_task(
    task: tasks.Task,
    *,
    timeout_s: float | None = None,
    silence_s: float = SILENCE_S,
    progress: tasks.Progress | None = None,
) -> tasks.Answer:
    """Measure every program of a task; the answer has one outcome for each.

    It runs in a process of its own, or in that of `kept_worker`. All is ended after ``timeout_s``,
    and after ``silence_s`` without a word of the worker. ``progress`` is called with one line
    whenever the worker starts something new.
    """
    kept = _KEPT.get()
    if kept is not None:
        return kept.run(task, _Limits(timeout_s, silence_s), progress)
    with kept_worker() as worker:
        return worker.run(task, _Limits(timeout_s, silence_s), progress)


@contextmanager
def kept_worker() -> "Iterator[Worker]":
    """Have one process run every task of `run_task` in this context; its end ends the process.

    The process starts with its first task, or before with `Worker.start`.
    """
    worker = Worker()
    token = _KEPT.set(worker)
    try:
        yield worker
    finally:
        _KEPT.reset(token)
        worker.stop()


class Worker:
    """A process, or one for each rank, that runs one task after the other until one fails."""

    def __init__(self) -> None:
        self._held = ExitStack()
        self._guarded: subprocess.Popen[bytes] | None = None
        self._folder = Path()
        self._layout: tuple[int, ...] = ()
        self._tasks = 0

    def start(self, task: tasks.Task) -> None:
        """Start to import torch for tasks of as many ranks, unless that runs already."""
        layout = (task.ranks, task.tp, task.cp, task.ep, task.etp)
        if self._guarded is not None and self._guarded.poll() is None and layout == self._layout:
            return
        self.stop()
        if os.name != "posix":
            msg = f"measuring needs Linux or macOS, and this is {sys.platform}"
            raise MeasurementError(msg, key="system", value=sys.platform, allowed="Linux or macOS")
        check_torch()
        self._folder, self._layout, self._tasks = Path(_folder(self._held)), layout, 0
        self._guarded = _started(task, self._folder)
        self._held.callback(_stop, self._guarded)

    def run(
        self, task: tasks.Task, limits: "_Limits", progress: tasks.Progress | None
    ) -> tasks.Answer:
        """Measure every program of a task."""
        self.start(task)
        assert self._guarded is not None
        # As the worker counts them, see `projector.measure.worker`.
        number = self._tasks or ""
        self._tasks += 1
        asked, answered = (self._folder / f"{name}{number}" for name in (ASKED, ANSWERED))
        ended = _Ended()
        try:
            _write_task(asked, task)
            _follow(self._guarded, ended, limits, progress)
            if ended.late is not None:
                raise ended.late
            code = 0 if ended.answered else self._guarded.wait()
            if code:
                raise _failure(task, code, self._folder, answered, ended)
            return tasks.read_answer(task, answered)
        finally:
            if not ended.answered:
                self.stop()

    def stop(self) -> None:
        """End whatever still runs; also while an interrupt is on its way up."""
        self._guarded = None
        self._held.close()

    def dismiss(self) -> None:
        """Let it end while the caller goes on; `stop` waits for that."""
        if self._guarded is not None:
            _dismiss(self._guarded)
            self._guarded = None


_KEPT: ContextVar[Worker | None] = ContextVar("kept", default=None)


def dismiss_worker() -> None:
    """Let the process of `kept_worker` end, as nothing more is measured."""
    kept = _KEPT.get()
    if kept is not None:
        kept.dismiss()


def _write_task(asked: Path, task: tasks.Task) -> None:
    # It appears whole, as the worker waits for it.
    part = asked.with_suffix(".part")
    try:
        part.write_text(task.model_dump_json(), encoding="utf-8")
        part.replace(asked)
    except OSError as error:
        raise _no_folder(error) from None


def _folder(held: ExitStack) -> str:
    try:
        return held.enter_context(tempfile.TemporaryDirectory(prefix="projector-"))
    except OSError as error:
        raise _no_folder(error) from None


def _no_folder(error: OSError) -> MeasurementError:
    why = error.strerror or str(error)
    msg = f"no temporary file can be written ({why}); the variable TMPDIR names another folder"
    return MeasurementError(msg, key="TMPDIR", value=os.environ.get("TMPDIR"), allowed="a folder")


def check_torch() -> None:
    """Raise `MeasurementError` if torch is not installed or too old, without importing it."""
    if find_spec("torch") is None:
        msg = f"measuring needs torch, which is not installed: {INSTALL}"
        raise MeasurementError(msg, key="torch", allowed=INSTALL)
    version = installed_version("torch")
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    # Without one it is built from source, or something else of that name; importing it will tell.
    if version and numbers < LEAST_TORCH:
        least = ".".join(map(str, LEAST_TORCH))
        msg = f"measuring needs torch {least} or newer, and {version} is installed: {INSTALL}"
        raise MeasurementError(msg, key="torch", value=version, allowed=f"{least} or newer")


@dataclass(frozen=True)
class _Limits:
    timeout_s: float | None
    silence_s: float


@dataclass
class _Ended:
    answered: bool = False
    """Whether the worker said that its answer is there, and waits for another task."""
    late: MeasurementError | None = None
    """Set where it was ended because of a time limit."""
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    now: str = ""
    """What it said last that it measured."""


def _launch(task: tasks.Task, folder: Path) -> list[str]:
    """Return the command up to its two paths; torchrun starts several ranks."""
    if task.ranks == 1:
        return list(WORKER)
    return [
        *TORCHRUN,
        "--standalone",
        # Names of hosts need not resolve in a container.
        "--local-addr=127.0.0.1",
        f"--nproc-per-node={task.ranks}",
        # Error output goes to a file a rank, standard output to the caller.
        f"--log-dir={folder / 'ranks'}",
        "--redirects=2",
        "--no-python",
        *WORKER,
    ]


def _started(task: tasks.Task, folder: Path) -> "subprocess.Popen[bytes]":
    command = [*_launch(task, folder), str(folder / ASKED), str(folder / ANSWERED)]
    # The variables of the worker: temporary files go where they are removed.
    variables = {**os.environ, "TMPDIR": str(folder), "PYTHONFAULTHANDLER": "1"}
    if task.ranks > 1:
        threads = task.threads or max(1, (os.cpu_count() or 1) // task.ranks)
        variables["OMP_NUM_THREADS"] = str(threads)
        # Collectives start before the GEMMs that they run beside, as Megatron-LM asks for.
        variables.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    try:
        return subprocess.Popen(  # noqa: S603  # our own interpreter and modules
            [sys.executable, "-I", guard.__file__, str(folder), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=variables,
            start_new_session=True,
        )
    except OSError as error:
        msg = f"no process can be started to measure in: {error.strerror or error}"
        raise MeasurementError(msg, key="worker") from None


def _dismiss(guarded: "subprocess.Popen[bytes]") -> None:
    assert guarded.stdin is not None
    with suppress(OSError):
        guarded.stdin.close()


def _stop(guarded: "subprocess.Popen[bytes]") -> None:
    assert guarded.stdout is not None
    assert guarded.stderr is not None
    _dismiss(guarded)
    try:
        guarded.wait(STOPPING_S)
    except subprocess.TimeoutExpired:
        os.killpg(guarded.pid, signal.SIGKILL)
        guarded.wait()
    finally:
        guarded.stdout.close()
        guarded.stderr.close()


def _follow(
    guarded: "subprocess.Popen[bytes]",
    ended: _Ended,
    limits: _Limits,
    progress: tasks.Progress | None,
) -> None:
    """Read both outputs until an answer is there, they close, or a time limit has passed."""
    assert guarded.stdout is not None
    assert guarded.stderr is not None
    rests = {guarded.stdout.fileno(): b"", guarded.stderr.fileno(): b""}
    start = heard = time.monotonic()
    with selectors.DefaultSelector() as selector:
        for stream in rests:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map() and not ended.answered:
            left = _left(limits, start, heard)
            if left <= 0.0:
                ended.late = _late(limits, start, ended.now)
                return
            for ready, _ in selector.select(min(left, 60.0)):
                heard = time.monotonic()
                data = os.read(ready.fd, 1 << 16)
                if not data:
                    selector.unregister(ready.fd)
                lines = (rests[ready.fd] + data).split(b"\n")
                rests[ready.fd] = lines.pop()[-(1 << 16) :]
                for line in lines:
                    _hear(line.decode("utf-8", "replace"), ended, progress)


def _hear(line: str, ended: _Ended, progress: tasks.Progress | None) -> None:
    text = tasks.told(line)
    if text is None:
        ended.errors.append(line)
        return
    if text == tasks.ANSWER_IS_THERE:
        ended.answered = True
        return
    ended.now = text
    if progress is not None:
        progress(text)


def _left(limits: _Limits, start: float, heard: float) -> float:
    now = time.monotonic()
    of_silence = heard + limits.silence_s - now
    if limits.timeout_s is None:
        return of_silence
    return min(of_silence, start + limits.timeout_s - now)


def _late(limits: _Limits, start: float, now: str) -> MeasurementError:
    doing = f" while it measured {now}" if now else ""
    timeout_s = limits.timeout_s
    if timeout_s is not None and time.monotonic() >= start + timeout_s:
        msg = f"the measurement was ended after {timeout_s:g} s, its time limit,{doing}"
        return MeasurementError(
            msg.rstrip(","), key="timeout_s", value=timeout_s, allowed="a longer time"
        )
    msg = f"the worker said nothing for {limits.silence_s:g} s and was ended{doing}"
    return MeasurementError(msg, key="worker", value="hung", allowed="a worker that answers")


def _failure(
    task: tasks.Task, code: int, folder: Path, answered: Path, ended: _Ended
) -> MeasurementError:
    stated = tasks.read_error(answered)
    if stated is not None:
        return stated
    lines, who = list(ended.errors), "the worker"
    if task.ranks > 1:
        failed = _failed_rank("\n".join(lines))
        if failed is not None:
            rank, code = failed
            who = f"rank {rank} of {task.ranks}"
            lines = _rank_errors(folder / "ranks", rank) or lines
    lines = [line.rstrip() for line in lines if line.strip()]
    broken = _broken_torch(lines)
    if broken is not None:
        return broken
    doing = f" while it measured {ended.now}" if ended.now else ""
    msg = f"{who} {_how(code)}{doing}"
    if lines:
        tail = "\n  ".join(lines[-SHOWN_LINES:])
        msg = f"{msg}; its last words:\n  {tail}"
    return MeasurementError(msg, key="worker", value=code, allowed="exit code 0")


def _how(code: int) -> str:
    if code == tasks.LOST_RANK:
        return "waited in vain for another rank, which hangs or has ended,"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    why = ", as the system does where memory runs out," if code == -signal.SIGKILL else ""
    return f"was killed by {name}{why}"


def _failed_rank(said: str) -> tuple[int, int] | None:
    """Return the rank to blame and its exit code, from torchrun's closing words.

    That is the one that failed first, unless it only waited for another in vain.
    """
    others, found, cause = said.rpartition("Root Cause")
    first = _pairs(cause)
    if not found or not first:
        return None
    blamed = [pair for pair in _pairs(others) if pair[1] not in {tasks.LOST_RANK, -signal.SIGTERM}]
    return blamed[0] if first[0][1] == tasks.LOST_RANK and blamed else first[0]


def _pairs(text: str) -> list[tuple[int, int]]:
    found = re.findall(r"^\s*rank\s*:\s*(\d+).*\n\s*exitcode\s*:\s*(-?\d+)", text, re.MULTILINE)
    return [(int(rank), int(code)) for rank, code in found]


def _rank_errors(logs: Path, rank: int) -> list[str]:
    """Return the last lines of one rank's error output, where torchrun has put it."""
    for file in sorted(logs.rglob(f"{rank}/stderr.log")):
        with suppress(OSError):
            return file.read_text(encoding="utf-8", errors="replace").splitlines()[-KEPT_LINES:]
    return []


def _broken_torch(lines: Sequence[str]) -> MeasurementError | None:
    last: Any = lines[-1] if lines else ""
    importing = any(re.match(r"\s*(import|from) torch\b", line) for line in lines)
    if not importing or not re.match(r"(ImportError|ModuleNotFoundError|OSError)\b", last):
        return None
    msg = f"the installed torch cannot be imported ({last}); install it anew: {INSTALL}"
    return MeasurementError(msg, key="torch", value=last, allowed=INSTALL)
