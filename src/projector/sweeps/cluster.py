"""Chunks of a sweep as tasks of a Dask cluster: one on this machine, or any that is running.

Rows come back to the caller, who alone writes, so that a folder is the same as that of local
processes; into an object store workers write themselves. A worker that is lost costs what it was
computing: Dask gives that to another one.
"""

import asyncio
import hashlib
import json
import logging
import pickle
import signal
import threading
import time
import uuid
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from projector.config.resources import data_dir
from projector.distribution import install_command, package_version
from projector.errors import ConfigError, ProjectorError, UnsupportedError
from projector.sweeps.rows import Sweeper
from projector.sweeps.store import Part
from projector.sweeps.workers import AHEAD, answer, unwrap

if TYPE_CHECKING:
    from distributed import Client

KEY = "scheduler"
ALLOWED = "tcp://HOST:PORT, a scheduler file, or a distributed.Client"
KEPT = "what an output already holds is kept, and the same command continues it"

CONNECT_S = 10.0
"""Seconds until a scheduler that does not answer is given up."""

PATIENCE_S = 600.0
"""Seconds without any worker until a sweep gives up: queues are slow, but not to be sat out."""

POLL_S = 60.0
"""Seconds between two looks at whether there are workers, while a chunk takes so long."""

REFRESH_S = 2.0
"""Seconds between two counts of the workers, who come and go."""

_CLOSE_S = 5.0

_CALL = f"__import__({__name__!r}, fromlist=['task']).task(sweep, wanted, chunk)"
"""What a task does. A worker that cannot even read a task leaves its cluster without a word, so
tasks consist of what every Python has, and import projector while they run."""


class Cluster:
    """A Dask cluster; leaving the context ends what it started, and nothing else.

    ``scheduler`` is the address or scheduler file of a running cluster, or a client of one. None is
    a cluster of ``workers`` processes on this machine, which starts when there is something to do.
    """

    def __init__(self, scheduler: "str | Path | Client | None", workers: int) -> None:
        self._dask = _distributed()
        self._open = ExitStack()
        self._client: Any = None
        self._workers = workers
        self._address = ""
        if scheduler is None:
            return
        if isinstance(scheduler, self._dask.Client):
            self._client = _usable(scheduler)
        elif isinstance(scheduler, str | Path):
            self._address = _address(scheduler)
        else:
            msg = f"{KEY}: {ALLOWED}; got {scheduler!r}"
            raise ConfigError(msg, key=KEY, value=scheduler, allowed=ALLOWED)

    def __enter__(self) -> Self:
        if self._address:
            try:
                # In a thread, as this one may run a loop of its own, such as that of a notebook.
                with ThreadPoolExecutor(1) as thread:
                    thread.submit(asyncio.run, _ask(self._dask, self._address)).result()
                self._client = self._connect(self._address, timeout=CONNECT_S)
            except Exception as error:
                why = (str(error) or type(error).__name__).splitlines()[0]
                msg = f"{KEY}: no Dask scheduler answers at {self._address} ({why})"
                raise ConfigError(
                    msg, key=KEY, value=self._address, allowed="a running scheduler"
                ) from None
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    @property
    def workers(self) -> int:
        """Points that are projected at the same time; at least 1, as workers may come later."""
        if self._client is None:
            return self._workers
        with _told(self._client):
            return max(1, _threads(self._client))

    def crew(self, most: int, *of_sweeper: Any) -> "TaskCrew":
        """Return the tasks of one sweep of at most ``most`` chunks; see `TaskCrew`."""
        if self._client is None:
            self._start(max(1, min(self._workers, most)))
        return TaskCrew(self._client, *of_sweeper)

    def _start(self, workers: int) -> None:
        try:
            cluster = self._dask.LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                # A worker over its share would be paused for good, where a local one goes on.
                memory_limit=0,
                # Any port: a second sweep on this machine has its own.
                dashboard_address="127.0.0.1:0",
                preload=[__name__],
                silence_logs=logging.ERROR,
            )
        except RuntimeError:
            msg = (
                f"engine: {workers} Dask workers could not be started here; a script that sweeps "
                "keeps its own code under: if __name__ == '__main__'"
            )
            raise ProjectorError(
                msg, key="engine", allowed="a script that can be imported"
            ) from None
        self._open.enter_context(cluster)
        # A worker that dies is started again; where that takes long, Dask would give it up.
        lost = {"distributed.deploy.lost-worker-timeout": "1 day"}
        self._open.enter_context(import_module("dask").config.set(lost))
        self._client = self._connect(cluster)

    def _connect(self, to: Any, **settings: Any) -> Any:
        # The caller's own client, if any, stays the one that Dask uses where none is named.
        client = self._dask.Client(to, set_as_default=False, name="projector", **settings)
        self._open.callback(_close, client)
        return client


class TaskCrew:
    """Tasks of one sweep on a cluster; leaving the context takes back what is not done."""

    def __init__(self, client: Any, *of_sweeper: Any) -> None:
        """Begin with nothing done; ``of_sweeper`` is what makes a `Sweeper` in each worker."""
        # Spaces of classes that only the caller has are sent with their classes.
        self._content = zlib.compress(import_module("cloudpickle").dumps(of_sweeper))
        self._client = client
        self._name = f"projector-sweep-{uuid.uuid4().hex}"
        self._kept: Any = None
        self._waiting: deque[tuple[int, Any]] = deque()
        self._ahead, self._counted = AHEAD, -REFRESH_S

    def __enter__(self) -> Self:
        """Leave the space with the scheduler, where each worker fetches it once.

        If tasks depended on it as the result of another, Dask would give them to the one worker
        that has it, and to others only once it knows how long they take.
        """
        with _told(self._client):
            # What the scheduler keeps under the name of a task goes with it, also where a caller is
            # killed.
            self._kept = self._client.submit(bytes, key=self._name, pure=False)
            self._client.set_metadata(self._name, self._content)
        return self

    def __exit__(self, *error: object) -> None:
        futures = [future for _, future in self._waiting]
        self._waiting.clear()
        if self._client.status == "running":
            # Whoever has lost the cluster has nothing to cancel there.
            with suppress(Exception):
                self._client.cancel([*futures, self._kept], force=True)

    def project(self, chunks: Iterable[int]) -> Iterator[Part]:
        """Yield the rows of ``chunks`` in their order, a few a worker ahead of the reader."""
        for chunk in chunks:
            with _told(self._client):
                key = (self._name, chunk)
                names = {"sweep": self._name, "wanted": fingerprint(), "chunk": chunk}
                future = self._client.submit(eval, _CALL, names, key=key, pure=False)
                self._waiting.append((chunk, future))
                self._count()
            while len(self._waiting) >= self._ahead:
                yield self._next()
        while self._waiting:
            yield self._next()

    def _count(self) -> None:
        """Follow the number of workers, so that none waits for work and few results wait."""
        if time.monotonic() - self._counted >= REFRESH_S:
            self._ahead = AHEAD * max(1, _threads(self._client))
            self._counted = time.monotonic()

    def _next(self) -> Part:
        chunk, future = self._waiting[0]
        with _told(self._client, chunk):
            answer = self._result(future)
        part = unwrap(pickle.loads(answer), chunk)  # noqa: S301  # of `task`
        self._waiting.popleft()
        return part

    def _result(self, future: Any) -> Any:
        last_seen = time.monotonic()
        while True:
            with suppress(TimeoutError):
                return future.result(timeout=POLL_S)
            if _threads(self._client):
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen >= PATIENCE_S:
                raise _no_worker(_where(self._client), f"has had no worker for {PATIENCE_S:g} s")


@cache
def fingerprint() -> str:
    """Return version and digest of what rows depend on: the sources and what ships with them."""
    package = Path(__file__).parents[1]
    files = {path.relative_to(package).as_posix(): path for path in package.rglob("*.py")}
    for kind in ("hardware", "models"):
        folder = data_dir(kind)
        shipped = folder.rglob("*.yaml")
        files |= {f"{kind}/{path.relative_to(folder).as_posix()}": path for path in shipped}
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        digest.update(f"{name}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return f"{package_version()} ({digest.hexdigest()[:12]})"


def task(sweep: str, wanted: str, chunk: int) -> bytes:
    """Project one chunk on a worker; return the pickle of an `answer`, which any worker may keep.

    What goes wrong here is thus told apart from what Dask raises. ``sweep`` is the name under which
    the scheduler has what a `Sweeper` is made of; ``wanted`` is the `fingerprint` of whoever asks.
    """
    return pickle.dumps(answer(lambda: _project(sweep, wanted, chunk)))


def _project(sweep: str, wanted: str, chunk: int) -> Part:
    version = fingerprint()
    if version != wanted:
        what = f"projector {version}, not {wanted}"
        raise _other_projector(what, wanted)
    with _ONE_AT_A_TIME:
        return _sweeper(_content(sweep)).part(chunk)


@lru_cache(maxsize=2)
def _content(sweep: str) -> bytes:
    from distributed import get_worker
    from distributed.utils import sync

    worker = get_worker()
    content: bytes = sync(worker.loop, worker.scheduler.get_metadata, keys=[sweep])
    return zlib.decompress(content)


def dask_setup(worker: Any) -> None:
    """Leave interrupts to the caller, who ends the workers; Dask calls this in each of ours."""
    del worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@lru_cache(maxsize=2)
def _sweeper(content: bytes) -> Sweeper:
    return Sweeper(*pickle.loads(content))  # noqa: S301  # of `TaskCrew`


_ONE_AT_A_TIME = threading.Lock()
"""Threads of a worker would share what a projection keeps between points."""


def _distributed() -> Any:
    try:
        return import_module("distributed")
    except ImportError:
        msg = f"engine: Dask is not installed; install it ({install_command('dask')})"
        raise UnsupportedError(
            msg, key="engine", value="dask", allowed="local, or the extra dask"
        ) from None


def _usable(client: Any) -> Any:
    """Return a client that can be waited for."""
    if client.asynchronous:
        wrong = "waits for nothing (asynchronous=True)"
    elif client.status != "running":
        wrong = f"is {client.status}"
    else:
        return client
    msg = f"{KEY}: the client {wrong}; give one that is connected"
    raise ConfigError(msg, key=KEY, value=str(client), allowed=ALLOWED)


def _address(scheduler: str | Path) -> str:
    path = Path(scheduler)
    if path.is_file():
        try:
            address = json.loads(path.read_bytes())["address"]
            return _checked(str(address))
        except (OSError, ValueError, KeyError, TypeError):
            msg = f"{KEY}: {path} is not a Dask scheduler file: it has no address"
    else:
        with suppress(ValueError, TypeError, RuntimeError):
            return _checked(str(scheduler))
        msg = f"{KEY}: {str(scheduler)!r} is neither an address (tcp://HOST:PORT) nor a file"
    raise ConfigError(msg, key=KEY, value=str(scheduler), allowed=ALLOWED)


def _checked(address: str) -> str:
    from distributed.comm.addressing import get_address_host_port

    get_address_host_port(address)
    return address


@contextmanager
def _told(client: Any, chunk: int = 0) -> Iterator[None]:
    from distributed.scheduler import KilledWorker, NoValidWorkerError

    where = _where(client)
    try:
        yield
    except ProjectorError:
        raise
    except KilledWorker as error:
        msg = (
            f"workers: {error.allowed_failures + 1} workers of the cluster at {where} died with "
            f"chunk {chunk:,}, perhaps because they ran out of memory; give each more ({KEPT})"
        )
        raise ProjectorError(msg, key="workers", allowed="workers with more memory") from None
    except NoValidWorkerError:
        raise _no_worker(where, "has no worker") from None
    except Exception as error:
        connected = client.status == "running"
        if connected and isinstance(error, ImportError | AttributeError | TypeError):
            # Before `task` runs; what fails in it is returned.
            why = f"no such projector ({error})"
            raise _other_projector(why, fingerprint()) from None
        if connected and not isinstance(error, OSError | CancelledError):
            raise
        why = getattr(error, "reason", "") or str(error) or type(error).__name__
        msg = f"{KEY}: the cluster at {where} is lost ({why}); {KEPT}"
        raise ProjectorError(msg, key=KEY, value=where, allowed="a cluster that stays") from None


async def _ask(dask: Any, address: str) -> None:
    """Find out whether a scheduler answers; a client would wait for whoever is silent."""
    security = dask.Security().get_connection_args("client")
    async with asyncio.timeout(CONNECT_S), dask.rpc(address, connection_args=security) as there:
        kind = (await there.identity())["type"]
    if kind != "Scheduler":
        raise ValueError(f"a {kind} does")


def _threads(client: Any) -> int:
    return sum(client.nthreads().values())


def _where(client: Any) -> str:
    return str(getattr(client.scheduler, "address", "an address that is gone"))


def _no_worker(where: str, what: str) -> ProjectorError:
    msg = f"{KEY}: the cluster at {where} {what}; start some ({KEPT})"
    return ProjectorError(msg, key=KEY, value=where, allowed="workers")


def _other_projector(what: str, wanted: str) -> UnsupportedError:
    msg = f"{KEY}: a worker of the cluster has {what}; install the same one everywhere"
    return UnsupportedError(msg, key=KEY, value=what, allowed=f"projector {wanted}")


def _close(client: Any) -> None:
    # A cluster that is gone does not answer the farewell either, and Dask logs that at length.
    log = logging.getLogger("distributed.client")
    before, log.disabled = log.disabled, True
    try:
        with suppress(Exception):
            client.close(timeout=_CLOSE_S)
    finally:
        log.disabled = before
