"""Processes that project chunks side by side; their parts come back in order.

They are started as programs of their own, so that neither threads of the caller are copied nor
its main module is run again; where the caller dies, they find their input closed and end.
"""

import contextlib
import os
import pickle
import subprocess
import sys
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
from projector.kernels.distinct import distinct
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

_START = "import sys; sys.path[:] = {path!r}; from projector.sweeps.workers import serve; serve()"


class Crew:
    """Worker processes of one sweep; leaving the context ends them.

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
        self._task = pickle.dumps((space, dict(axes), chunk_points, drafts))
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="sweep")

    def __enter__(self) -> Self:
        """Start the processes."""
        try:
            for _ in range(self._workers):
                process = _start()
                self._processes.append(process)
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
        """End the processes."""
        self.close()

    def close(self) -> None:
        """End the processes, whatever they are doing, and remove what nobody took from them."""
        for process in self._processes:
            process.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for process in self._processes:
            process.wait()
            for stream in (process.stdin, process.stdout):
                # A request that was cut short cannot be flushed any more.
                with contextlib.suppress(OSError):
                    assert stream is not None
                    stream.close()
        if self._drafts is not None:
            remove_drafts(self._drafts)

    def project(self, chunks: Iterable[int]) -> Iterator[Part]:
        """Yield the rows of ``chunks`` in their order, a few of them ahead of the reader."""
        waiting: deque[Future[Part]] = deque()
        for chunk in chunks:
            waiting.append(self._threads.submit(self._ask, chunk))
            if len(waiting) >= AHEAD * self._workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

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
    drafts: Path | None = None
    with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        try:
            space, axes, chunk_points, drafts = pickle.load(requests)  # noqa: S301  # our own process
            sweeper: Sweeper | None = Sweeper(space, axes, chunk_points, drafts)
            failure = ""
        except Exception:  # noqa: BLE001, RUF100  # told to the caller at the first request
            sweeper, failure = None, traceback.format_exc()
        while True:
            chunk = pickle.load(requests)  # noqa: S301  # our own process
            found: Any = failure if sweeper is None else answer(sweeper, chunk)
            answers.write(pickle.dumps(found))
            answers.flush()
    if drafts is not None:
        # A caller that is there kills us; one that is gone takes no draft any more.
        remove_drafts(drafts)


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
        distinct(np.zeros(1, np.int64))
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
