"""Processes that project chunks side by side; their parts come back in order.

They are started as programs of their own, so that neither threads of the caller are copied nor
its main module is run again; where the caller dies, they find their input closed and end. Those of
a sweep that has ended well stay for the next one a while, with the kernels they have loaded and the
orders of pipelines they have met. Of a space they keep nothing: files that it names may change.
"""

import atexit
import contextlib
import os
import pickle
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

import numpy as np

from projector.config.space import Space
from projector.errors import ProjectorError
from projector.kernels.grouping import group_rows
from projector.sweeps.rows import Sweeper
from projector.sweeps.store import Part, remove_drafts

AHEAD = 3
"""Chunks that wait for each worker, so that none of them waits for its own."""

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Workers share the processors among themselves."""

KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}
"""glibc hands the arrays of a chunk back to the system, and the next chunk finds fresh pages, which
took a tenth of its time; told so, it keeps them. 32 MiB is the largest that every version takes.
What the caller's environment says goes first."""

UNUSED = frozenset({"pandas", "scipy.linalg"})
"""What Arrow and numba load at their first use, if it is there, for tables and functions that no
chunk has: 0.4 s and 50 MB of each worker."""

REST_S = 60.0
"""How long the workers of a sweep stay for another one: starting them takes a second or two, and
again as long until they have met what is common to most chunks."""

_START = "import sys; sys.path[:] = {path!r}; from projector.sweeps.workers import serve; serve()"


class _Resting:
    """Worker processes that nobody uses, each with the surroundings it was started in."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: list[tuple[_Surroundings, subprocess.Popen[bytes]]] = []
        self._timer: threading.Timer | None = None
        atexit.register(self.end)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave)

    def _leave(self) -> None:
        """Leave them to the process that this one is a copy of."""
        for _, process in self._processes:
            process.returncode = 0
            _close(process)
        self._lock, self._processes, self._timer = threading.Lock(), [], None

    def take(self, most: int, here: "_Surroundings") -> list[subprocess.Popen[bytes]]:
        """Return up to ``most`` of them that run as a new one would; end those that do not."""
        with self._lock:
            every, self._processes = self._processes, []
            alike = [each for each in every if each[0] == here and each[1].poll() is None]
            _end([process for where, process in every if (where, process) not in alike])
            self._processes = alike[most:]
            return [process for _, process in alike[:most]]

    def add(
        self, processes: Iterable[subprocess.Popen[bytes]], surroundings: "_Surroundings"
    ) -> None:
        """Keep some that wait for a task, for `REST_S`."""
        with self._lock:
            self._processes += [(surroundings, process) for process in processes]
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(REST_S, self.end)
            self._timer.daemon = True
            self._timer.start()

    def end(self) -> None:
        """End them all."""
        with self._lock:
            _end([process for _, process in self._processes])
            self._processes = []


_resting = _Resting()

_Surroundings = tuple[object, ...]


def _surroundings() -> _Surroundings:
    """Return what a process takes over when it is started."""
    try:
        here = Path().stat()
        # A folder that was made anew under the same name is another one.
        folder: object = here.st_dev, here.st_ino, str(Path.cwd())
    except OSError:
        folder = object()
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        status = ""
    limits = [line for line in status.splitlines() if line.startswith(("Umask", "Cpus_allowed"))]
    return folder, limits, tuple(sys.path), dict(os.environ)


def start_ahead(workers: int) -> None:
    """Start what a `Crew` will want, while the caller still has something else to do."""
    here = _surroundings()
    at_hand = _resting.take(workers, here)
    _resting.add(at_hand + [_start() for _ in range(workers - len(at_hand))], here)


class Crew:
    """Worker processes of one sweep.

    Leaving the context ends them, unless all have answered: then they rest.

    With ``drafts`` of a `Store` they write the rows there, as copying them to the caller takes
    longer than writing them; without, parts carry them.
    """

    def __init__(
        self,
        workers: int,
        space: Space,
        axes: Mapping[str, str],
        chunk_points: int,
        drafts: Path | None = None,
    ) -> None:
        self._drafts = drafts
        # First, so that a space that cannot be sent starts nothing.
        task = pickle.dumps((space, dict(axes), chunk_points))
        self._task = pickle.dumps((task, drafts))
        self._workers = workers
        self._unanswered = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="sweep")

    def __enter__(self) -> Self:
        """Start the processes that do not rest."""
        self._surroundings = _surroundings()
        self._processes = _resting.take(self._workers, self._surroundings)
        try:
            while len(self._processes) < self._workers:
                self._processes.append(_start())
            for process in self._processes:
                self._idle.put(process)
                with contextlib.suppress(OSError):
                    _send(process, self._task)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the processes, or let them rest."""
        if kind is None and self._unanswered == 0:
            self._threads.shutdown()
            resting, self._processes = self._processes, []
            for process in resting:
                with contextlib.suppress(OSError):
                    _send(process, pickle.dumps(None))
            _resting.add(resting, self._surroundings)
        self.close()

    def close(self) -> None:
        """End the processes, whatever they are doing, and remove what nobody took from them."""
        for process in self._processes:
            process.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        _end(self._processes)
        if self._drafts is not None:
            remove_drafts(self._drafts)

    def project(self, chunks: Iterable[int]) -> Iterator[Part]:
        """Yield the rows of ``chunks`` in their order, a few of them ahead of the reader."""
        waiting: deque[Future[Part]] = deque()
        for chunk in chunks:
            self._unanswered += 1
            waiting.append(self._threads.submit(self._ask, chunk))
            if len(waiting) >= AHEAD * self._workers:
                yield self._answer(waiting)
        while waiting:
            yield self._answer(waiting)

    def _answer(self, waiting: deque[Future[Part]]) -> Part:
        part = waiting.popleft().result()
        self._unanswered -= 1
        return part

    def _ask(self, chunk: int) -> Part:
        process = self._idle.get()
        try:
            assert process.stdout is not None
            _send(process, pickle.dumps(chunk))
            found = pickle.load(process.stdout)  # noqa: S301  # our own process
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):
            raise _died(process) from None
        finally:
            self._idle.put(process)
        return unwrap(found, chunk)


def answer(sweeper: Sweeper, chunk: int) -> Part | ProjectorError | str:
    """Return a chunk, or what went wrong: an error of the user, or a traceback."""
    try:
        return sweeper.part(chunk)
    except ProjectorError as error:
        return error
    except Exception:  # noqa: BLE001, RUF100  # told to the caller
        return traceback.format_exc()


def unwrap(answer: Part | ProjectorError | str, chunk: int) -> Part:
    """Return the chunk in an `answer`, or raise what went wrong."""
    if isinstance(answer, Part):
        return answer
    if isinstance(answer, ProjectorError):
        raise answer
    msg = f"a worker of the sweep failed at chunk {chunk}"
    error = RuntimeError(msg)
    error.add_note(answer)
    raise error


def serve() -> None:
    """Answer requests of a `Crew` on standard input until it is closed."""
    requests = sys.stdin.buffer
    # What prints goes to standard error; standard output belongs to the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    _load_lightly()
    sweeper, failure, drafts = None, "", None
    with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while True:
            request = pickle.load(requests)  # noqa: S301  # our own process
            if isinstance(request, int):
                found: Any = failure if sweeper is None else answer(sweeper, request)
                answers.write(pickle.dumps(found))
                answers.flush()
            elif request is None:
                sweeper = drafts = None
            else:
                task, drafts = request
                sweeper, failure = _sweeper(task, drafts)
    if drafts is not None:
        # A caller that is there kills us; one that is gone takes no draft any more.
        remove_drafts(drafts)


def _sweeper(task: bytes, drafts: Path | None) -> tuple[Sweeper | None, str]:
    """Return who answers for a space, or the traceback of why nobody can."""
    try:
        space, axes, chunk_points = pickle.loads(task)  # noqa: S301  # our own process
        return Sweeper(space, axes, chunk_points, drafts), ""
    except Exception:  # noqa: BLE001, RUF100  # told to the caller at the first request
        return None, traceback.format_exc()


class _Absent:
    """Packages that cannot be imported while this is among the finders of modules."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> None:
        del path, target
        if name in UNUSED:
            raise ModuleNotFoundError(name, name=name)


def _load_lightly() -> None:
    """Let Arrow and numba find out that what is `UNUSED` is not there; others may import it."""
    import pyarrow as pa

    absent = _Absent()
    sys.meta_path.insert(0, absent)
    try:
        pa.array([])
        group_rows(np.zeros(1, np.int64))
    finally:
        sys.meta_path.remove(absent)


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603  # this interpreter
        [sys.executable, "-c", _START.format(path=sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**KEPT_MEMORY, **os.environ, **ONE_THREAD},
        # An interrupt is for the caller, who ends its workers.
        start_new_session=True,
    )


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
        _close(process)


def _close(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        # A request that was cut short cannot be flushed any more.
        with contextlib.suppress(OSError):
            assert stream is not None
            stream.close()


def _send(process: subprocess.Popen[bytes], content: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(content)
    process.stdin.flush()


def _died(process: subprocess.Popen[bytes]) -> ProjectorError:
    try:
        code = process.wait(timeout=5.0)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
    msg = (
        f"workers: a worker of the sweep {how}, perhaps for want of memory; give it fewer "
        "workers (what an output already holds is kept)"
    )
    return ProjectorError(msg, key="workers", allowed="fewer workers")
