"""Processes that parse pieces of a file while the next ones are read and unpacked.

They are started with this module as the program and talk through pipes, so that a script that
reads a trace needs no guard around its main part.
"""

import gc
import io
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal
from types import TracebackType
from typing import Any, BinaryIO, Self

from projector.trace.kineto_events import Batch, Collector, Inexact, Plan

LEAST_BYTES = 48 << 20
"""Unpacked bytes from which processes are worth their start of half a second."""

MOST_WORKERS = 8
"""One process that reads and unpacks cannot feed many more."""

READ_AHEAD = 2
"""Pieces that wait for each process."""

_LENGTH = 8


def parse_piece(data: bytes, plan: Plan) -> Batch | None:
    """Return what is found in a piece, or None if it cannot be parsed as a whole."""
    try:
        return _collect(data, plan)
    except Inexact:
        return _collect(data, Plan(plan.grid_ps, exact=True))


def _collect(data: bytes, plan: Plan) -> Batch | None:
    collector = Collector(plan)
    if not _parsed(data, plan, collector):
        return None
    return collector.batch()


def _parsed(data: bytes, plan: Plan, collector: Collector) -> bool:
    """Take the events of a piece, and return whether it could be parsed to its end."""
    try:
        import ijson
    except ImportError:
        return _parsed_at_once(data, plan, collector)
    text = io.BytesIO(b"[" + data + b"]")
    try:
        collector.take(ijson.items(text, "item", use_float=not plan.exact))
    except (ijson.JSONError, *_UNPARSED):
        return False
    return True


def _parsed_at_once(data: bytes, plan: Plan, collector: Collector) -> bool:
    """Do the same with the parser of Python, which holds a whole piece as objects."""
    try:
        events = json.loads(b"[" + data + b"]", parse_float=Decimal if plan.exact else float)
    except _UNPARSED:
        return False
    collector.take(events)
    return True


_UNPARSED = (ValueError, OverflowError, RecursionError)


class Workers:
    """A few processes that parse; without any, pieces are parsed here.

    Parameters
    ----------
    count : int
        How many processes.
    """

    def __init__(self, count: int) -> None:
        self.ahead = READ_AHEAD * count
        """Pieces that may wait."""
        self._local = threading.local()
        self._ended = False
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads = ThreadPoolExecutor(count) if count > 0 else None

    def submit(self, data: bytes, plan: Plan) -> "Future[Batch | None]":
        """Return what will be found in a piece."""
        if self._threads is not None:
            return self._threads.submit(self._ask, data, plan)
        future: Future[Batch | None] = Future()
        future.set_result(parse_piece(data, plan))
        return future

    def _ask(self, data: bytes, plan: Plan) -> Batch | None:
        """Have the process of this thread parse a piece; if it has died, parse it here."""
        try:
            process = self._process()
            assert process.stdin is not None
            assert process.stdout is not None
            _send(process.stdin, (data, plan))
            answer: Batch | None = _receive(process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            return None if self._ended else parse_piece(data, plan)
        return answer

    def _process(self) -> "subprocess.Popen[bytes]":
        process: subprocess.Popen[bytes] | None = getattr(self._local, "process", None)
        if process is None:
            command = (sys.executable, "-c", "from projector.trace.workers import work; work()")
            path = os.pathsep.join(part for part in sys.path if part)
            process = subprocess.Popen(  # noqa: S603  # this interpreter
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": path},
            )
            self._local.process = process
            self._processes.append(process)
        return process

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the processes, whatever they are doing."""
        self._ended = True
        for process in self._processes:
            process.kill()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            with suppress(OSError):
                process.communicate()


def _send(pipe: Any, value: object) -> None:
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    pipe.write(len(data).to_bytes(_LENGTH, "little"))
    pipe.write(data)
    pipe.flush()


def _receive(pipe: Any) -> Any:
    head = pipe.read(_LENGTH)
    if len(head) < _LENGTH:
        raise EOFError
    data = pipe.read(int.from_bytes(head, "little"))
    return pickle.loads(data)  # noqa: S301  # written by a process that this one started


def _tasks(pipe: BinaryIO) -> Iterator[tuple[bytes, Plan]]:
    while True:
        try:
            yield _receive(pipe)
        except EOFError:
            return


def work() -> None:
    """Parse what comes from the caller until it has no more."""
    # Events hold no cycles, so nothing is lost with it but its time.
    gc.disable()
    for data, plan in _tasks(sys.stdin.buffer):
        _send(sys.stdout.buffer, parse_piece(data, plan))
