"""Processes that project chunks beside the caller: the standard library's pool, and what it lacks.

A pool whose sweep has ended well rests, for the next sweep. Rows never travel through it: a pool
whose worker is killed while it sends a long answer waits for ever, and until Python 3.11.5 also one
that sends a long task. So workers write rows as drafts, and read what all chunks share from a file.
Then tasks and answers fit into the buffer of a pipe: all of one is sent, or nothing.

Beside the command, workers are copies of it: they have all loaded, and what the first points have
taught. A copy of a process with threads may find locks that nobody will open. So beside a script,
whose threads are not ours to know, workers are processes that begin with nothing.
"""

import atexit
import copy
import ctypes
import gc
import math
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from importlib.machinery import ModuleSpec
from multiprocessing import context, resource_tracker
from multiprocessing.context import BaseContext, SpawnProcess
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

from projector.errors import OutOfMemoryError, ProjectorError

if TYPE_CHECKING:
    # A worker imports this module before `_prepare` says how many threads libraries start.
    from projector.config.space import Space
    from projector.sweeps.rows import Sweeper
    from projector.sweeps.store import Part

AHEAD = 3
"""Chunks that each worker has or that wait for it, so that none of them waits for its own."""

LONGEST_LINE = 64
"""Chunks that are ready or on their way while the next one, of a worker that begins, is not."""

START_S, COPY_S = 1.0, 0.5
"""What takes the caller no longer is projected before further processes have started: each takes 1
to 2 s of processor time until its first row. A copy of the caller takes 0.1 s."""

REST_S = 60.0
"""How long the workers of a sweep stay for another one: its first row comes after 2 to 3 s on a
busy machine of two processors, and after 10 s where they start anew; that is 4 s of processor time
of each."""

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Without it each worker starts a thread for each processor, and all of them idle."""

MMAP_BYTES, KEPT_BYTES, LEFT_BYTES = 1 << 25, (1 << 31) - 1, 1 << 26
"""M_MMAP_THRESHOLD of glibc and M_TRIM_THRESHOLD, within a sweep and behind it. It otherwise hands
the arrays of a chunk back and finds fresh pages for the next one: 28,000 page faults rather than
11,000 for half a million rows, 7 % of the rate. 32 MiB is the largest that every version takes, and
glibc itself takes it, with 64 MiB, once such an array was let go."""

ENDINGS = [signal.SIGINT, signal.SIGTERM]
"""Signals that end the caller and all its group."""
if sys.platform != "win32":
    ENDINGS.append(signal.SIGHUP)

_FEWER = "give it fewer workers (what an output already holds is kept)"

NOT_STARTED = 70
"""Exit code of a process that could not become a worker."""

_Answer: TypeAlias = "Part | ProjectorError | str"

_resting: "list[_Pool]" = []
_starting = threading.Lock()
_drafts: deque[Path] = deque(maxlen=1)
"""Where this process, a worker, writes rows."""
_handed: "dict[Path, Sweeper]" = {}
"""What copies of this process project with: task -> what has projected here."""
_alone: set[int] = set()
"""This process, if it is ours alone."""


def project_side_by_side(
    chunks: Iterable[int],
    left: int,
    workers: int,
    space: "Space",
    axes: Mapping[str, str],
    chunk_points: int,
    drafts: Path | None = None,
    *,
    is_long: bool = False,
) -> "Generator[Part, None, None]":
    """Yield the parts of ``chunks``, of which there are ``left``, in their order.

    This process is one of the ``workers``. The others join it where that pays: at once where all
    chunks are known to take long, ``is_long``, otherwise when the first ones have shown it; copies
    of this process wait until it has learned from a few points. With ``drafts`` of a `Store` rows
    are there; without, parts carry them. An early end kills the others and removes what nobody
    took.
    """
    from projector.kernels._interpreted import is_interpreting
    from projector.sweeps.rows import Sweeper
    from projector.sweeps.store import read_draft, remove_drafts

    todo = iter(chunks)
    line: deque[tuple[int, Future[_Answer]]] = deque()
    own = Sweeper(space, axes, chunk_points, drafts)
    least_s, chunk_s = COPY_S if can_copy() else START_S, math.inf if is_long else 0.0
    # The first chunk also loads kernels, or compiles them, and is not counted.
    timed, spent_s = -1, 0.0
    # Where kernels are not compiled yet, the first rows go before: they need few of them.
    alone = left - is_interpreting()
    others: _Others | None = None
    with ExitStack() as stack:
        stack.enter_context(keeping_memory())
        if can_copy():
            # What is loaded is no garbage, and a collection would look at all of it: 0.06 s.
            gc.freeze()
        if drafts is not None:
            # When nobody writes any more. What was taken has another name by then.
            stack.callback(remove_drafts, drafts)
        while left or line:
            if others is None and workers > 1 < left <= alone and left * chunk_s > least_s:
                if is_long and can_copy():
                    own.learn()
                task = space, dict(axes), chunk_points
                others = stack.enter_context(_Others.at_work(workers - 1, task, drafts, own))
            while left and others is not None and others.want_more(left):
                chunk, left = next(todo), left - 1
                line.append((chunk, others.submit(chunk)))
            if left and len(line) < LONGEST_LINE:
                chunk, left = next(todo), left - 1
                begun = time.perf_counter()
                line.append((chunk, Future()))
                line[-1][1].set_result(own.part(chunk))
                timed += 1
                if timed > 0:
                    spent_s += time.perf_counter() - begun
                    chunk_s = spent_s / timed
            # What is there already goes; with nothing else to do, the next one is waited for.
            while line and (not left or len(line) >= LONGEST_LINE or line[0][1].done()):
                chunk, future = line.popleft()
                part = unwrap(future.result(), chunk)
                yield read_draft(part) if drafts is None else part


class _Others:
    def __init__(self, pool: "_Pool", task: Path) -> None:
        self._pool, self._task = pool, task
        self._running: set[Future[_Answer]] = set()
        # Copies are there at once: their first chunks need not wait for the caller's.
        self._starting = set() if pool.copies else pool.start()

    @classmethod
    @contextmanager
    def at_work(
        cls, count: int, task: tuple[object, ...], drafts: Path | None, own: "Sweeper"
    ) -> Iterator["_Others"]:
        """Start some, or take those that rest; they rest after a whole sweep, and end otherwise."""
        with TemporaryDirectory(prefix="sweep-") as folder:
            file, drafts = Path(folder) / "task", drafts or Path(folder) / "rows-"
            # First, so that a space that cannot be sent starts nothing.
            file.write_bytes(pickle.dumps((*task, drafts)))
            _handed[file] = copy.copy(own)
            _handed[file].drafts = drafts
            if can_copy():
                # A collection would write to all that it looks at, and so copy it.
                gc.freeze()
            pool = _take(count, own.chunks)
            whole = False
            try:
                yield cls(pool, file)
                whole = pool.is_whole()
            except BrokenProcessPool:
                raise pool.death() from None
            finally:
                del _handed[file]
                if whole:
                    pool.rest()
                else:
                    pool.end()

    def want_more(self, left: int) -> bool:
        """Whether some of them have started and would soon have nothing to do.

        Where few chunks are ``left``, nothing waits for them that the caller could begin before.
        """
        self._starting = {future for future in self._starting if not future.done()}
        self._running = {future for future in self._running if not future.done()}
        started = self._pool.size - len(self._starting)
        return len(self._running) - started < min(left - 1, (AHEAD - 1) * started)

    def submit(self, chunk: int) -> "Future[_Answer]":
        future = self._pool.submit(_work, self._task, chunk)
        self._running.add(future)
        return future


def start_ahead(workers: int, chunks: int) -> None:
    """Start what will work beside the caller, who does something else first; no copies of it."""
    if not can_copy():
        pool = _take(workers - 1, chunks)
        pool.start()
        pool.rest()


def answer(project: "Callable[[], Part]") -> _Answer:
    """Return a chunk, or what went wrong: an error of the user, or a traceback."""
    try:
        return project()
    except ProjectorError as error:
        return error
    except MemoryError:
        msg = f"workers: memory ran out in a worker of the sweep; {_FEWER}"
        return OutOfMemoryError(msg, key="workers", allowed="fewer workers")
    except Exception:  # noqa: BLE001, RUF100  # told to the caller
        return traceback.format_exc()


def unwrap(answer: _Answer, chunk: int) -> "Part":
    """Return the chunk in an `answer`, or raise what went wrong."""
    if isinstance(answer, ProjectorError):
        raise answer
    if not isinstance(answer, str):
        return answer
    msg = f"a worker of the sweep failed at chunk {chunk}"
    error = RuntimeError(msg)
    error.add_note(answer)
    raise error


@contextmanager
def _endings_blocked() -> Iterator[None]:
    """Let signals that end the caller wait; processes that are started meanwhile never see one.

    Blocking them in this thread is what those inherit. Another thread may still take one, and
    Python then calls the handler in the main thread: so that waits, too.
    """
    waiting: list[tuple[int, FrameType | None]] = []
    handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
    if threading.current_thread() is threading.main_thread():
        known = {number: signal.getsignal(number) for number in ENDINGS}
        handlers = {number: handler for number, handler in known.items() if callable(handler)}

    def call_first() -> None:
        for number, frame in waiting[:1]:
            handlers[number](number, frame)

    # One of them may raise: the others are undone all the same.
    with ExitStack() as undone:
        undone.callback(call_first)
        for number, handler in handlers.items():
            undone.callback(signal.signal, number, handler)
            signal.signal(number, lambda *received: waiting.append(received))
        if sys.platform != "win32":
            before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
            undone.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        yield


class _Process(BaseProcess):
    """A process that leaves alone what is the caller's: its main module and its interrupts."""

    def start(self) -> None:
        self.caller = os.getpid()
        main = sys.modules["__main__"]
        with _starting, _endings_blocked():
            before = main.__spec__
            # The module of a script would be run again; it may have no guard against that. Main
            # modules of packages, which have this name, never are.
            main.__spec__ = ModuleSpec("__main__", None)
            try:
                super().start()
            finally:
                main.__spec__ = before

    def join(self, timeout: float | None = None) -> None:
        # At its exit a copy of the caller comes here, too.
        if os.getpid() == self.caller:
            super().join(timeout)


class _Worker(_Process, SpawnProcess):
    """A new process."""


if sys.platform != "win32":

    class Copy(_Process, context.ForkProcess):
        """A copy of the caller."""


class _Context(BaseContext):
    def __init__(self) -> None:
        self.copies = can_copy()
        self._name = "fork" if self.copies else "spawn"
        self.workers: list[_Process] = []

    def Process(self, *args: Any, **settings: Any) -> _Process:  # noqa: N802  # a class there
        kind = Copy if sys.platform != "win32" and self.copies else _Worker
        self.workers.append(kind(*args, **settings))
        return self.workers[-1]


class _Pool(ProcessPoolExecutor):
    def __init__(self, workers: int, surroundings: tuple[object, ...]) -> None:
        self.size, self.surroundings = workers, surroundings
        self._context = _Context()
        self.copies = self._context.copies
        # What is made halfway when a signal comes would never be removed.
        with _endings_blocked():
            if sys.platform != "win32" and not self.copies:
                # It removes our semaphores when we have ended, and so must outlive a signal to all
                # of the group. Python has it ignore interrupts and SIGTERM, but not a hang-up.
                resource_tracker.ensure_running()
            super().__init__(workers, self._context, _prepare)

    def submit(self, *args: Any, **keywords: Any) -> Future[Any]:
        """Take a task, and start what it needs; a signal waits until all of it has started."""
        with _endings_blocked():
            return super().submit(*args, **keywords)

    def start(self) -> set[Future[Any]]:
        """Start all its processes; each future is done when one of them is there."""
        return {self.submit(int) for _ in range(self.size)}

    def is_whole(self) -> bool:
        """Whether all its processes live."""
        return all(worker.is_alive() for worker in self._context.workers)

    def rest(self) -> None:
        """Wait for another sweep; the command that copies were made of has none, so they end."""
        if self.copies:
            self.shutdown(wait=False)
            return
        self.timer = threading.Timer(REST_S, self._leave)
        self.timer.daemon = True
        _resting.append(self)
        self.timer.start()

    def _leave(self) -> None:
        with suppress(ValueError):
            _resting.remove(self)
            self.end()

    def end(self) -> None:
        """End its processes, whatever they are doing; a copy of the caller leaves them to it."""
        if os.getpid() == self.surroundings[0]:
            for worker in self._context.workers:
                if worker.pid is not None:
                    worker.kill()
            self.shutdown()

    def death(self) -> ProjectorError:
        """Return the error of a pool that has lost a worker; it ends the others itself."""
        self.shutdown()
        codes = [worker.exitcode or 0 for worker in self._context.workers]
        code = next((code for code in codes if code not in {0, -signal.SIGTERM}), -signal.SIGTERM)
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        msg = (
            f"workers: a worker of the sweep {how}, perhaps because it ran out of memory; {_FEWER}"
        )
        return ProjectorError(msg, key="workers", allowed="fewer workers")


def _take(workers: int, chunks: int) -> _Pool:
    """Return a pool that rests and is as a new one would be, or a new one; end the others.

    Few ``chunks`` need no more workers than they are.
    """
    size = min(workers, chunks)
    umask = os.umask(0o077)
    os.umask(umask)
    folder = Path().stat()
    taken_over = umask, folder.st_dev, folder.st_ino, tuple(sys.path), dict(os.environ)
    surroundings = os.getpid(), workers, taken_over
    with suppress(IndexError):
        while True:
            pool = _resting.pop()
            pool.timer.cancel()
            if pool.surroundings == surroundings and pool.size >= size and pool.is_whole():
                return pool
            pool.end()
    return _Pool(size, surroundings)


def _prepare() -> None:
    """Make this process a worker; where there is no memory for it, it ends without a word."""
    try:
        _become_worker()
    except (MemoryError, OSError, ImportError, RuntimeError):
        # A limit shows as any of these: no pages, no library, no thread. The caller tells it once.
        os._exit(NOT_STARTED)


def _become_worker() -> None:
    if sys.platform == "win32":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    else:
        # Linux shares a busy machine out among sessions. With 15 processes waiting for two
        # processors the first row came after 11 s, in the session of the caller after 38 s.
        os.setsid()
        # A pool that has lost a worker ends the others by SIGTERM.
        for number in ENDINGS:
            # What the caller does at its end is no concern of a copy.
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS[1:])
    threading.Thread(target=end_with_caller, daemon=True).start()
    # Taking all modules apart would take 0.4 s.
    atexit.register(os._exit, 0)
    take_over()
    # What is imported stays: to look for garbage meanwhile takes a tenth of it.
    gc.disable()
    import projector.sweeps.rows  # noqa: F401  # while the caller is at its first chunks

    gc.freeze()
    gc.enable()


def take_over() -> None:
    """Make this process, which must be ours alone and have no threads, one that only sweeps.

    It keeps the memory of arrays that are let go, those of Arrow too, libraries start no threads in
    it, and workers may be copies of it.
    """
    _alone.add(os.getpid())
    os.environ.update(ONE_THREAD)
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    _keep_memory(KEPT_BYTES)


@contextmanager
def keeping_memory() -> Iterator[None]:
    """Keep the memory of arrays that are let go, and give it back behind."""
    _keep_memory(KEPT_BYTES)
    try:
        yield
    finally:
        if os.getpid() not in _alone:
            _keep_memory(LEFT_BYTES)
            with suppress(AttributeError, OSError, TypeError):
                ctypes.CDLL(None).malloc_trim(0)


def _keep_memory(trim_bytes: int) -> None:
    with suppress(AttributeError, OSError, TypeError):
        for name, value in (-3, MMAP_BYTES), (-1, trim_bytes):
            ctypes.CDLL(None).mallopt(name, value)


def can_copy() -> bool:
    """Whether a copy of this process would find no lock that a thread holds.

    The threads of libraries, such as those that Arrow's memory has, are ready to be copied. On
    macOS libraries are not.
    """
    return os.getpid() in _alone and sys.platform == "linux" and threading.active_count() == 1


def end_with_caller() -> None:
    """Wait for the end of the caller, who may be killed, and end too."""
    caller = multiprocessing.parent_process()
    assert caller is not None
    caller.join()
    for drafts in _drafts:
        from projector.sweeps.store import remove_drafts

        remove_drafts(drafts)
    os._exit(1)


@lru_cache(maxsize=1)
def _sweeper(task: Path) -> "Sweeper":
    """Return what projects the chunks of a sweep. No other sweep has a file of this name."""
    from projector.sweeps.rows import Sweeper

    sweeper = _handed.get(task)
    if sweeper is None:
        sweeper = Sweeper(*pickle.loads(task.read_bytes()))  # noqa: S301  # our own process
    if sweeper.drafts is not None:
        _drafts.append(sweeper.drafts)
    return sweeper


def _work(task: Path, chunk: int) -> _Answer:
    return answer(lambda: _sweeper(task).part(chunk))
