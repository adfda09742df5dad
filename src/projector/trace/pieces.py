"""The events of a file in pieces, and events one by one where a piece is not as it should be.

A piece ends between two events, which is seen from the text alone: ``}, {"ph":`` cannot stand in a
string, where quotes are escaped. A list of objects within an event looks the same, so a piece may
end too early. Then it cannot be parsed, and `Scanner` joins it with the next.

Processes parse pieces while the next ones are read and unpacked. They are started with this module
as the program and talk through pipes, so that a script that reads a trace needs no guard around its
main part.
"""

import gc
import json
import os
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal
from typing import Any, NamedTuple, Self

from projector.trace.events import NS_PS
from projector.trace.kineto_events import MALFORMED, Batch, Inexact, Plan, collect
from projector.trace.sources import BOM, BREAKS_OFF, Notes, Source

PIECE_BYTES = 1 << 23
"""Bytes of a piece, about 30,000 events."""

SLICE = 1 << 17
"""Characters that are scanned at once."""

LONGEST_EVENT = 1 << 20
"""Characters after which an event that does not end is taken for broken."""

FLOAT_LENGTH, SHORT_FLOAT_LENGTH = 17, 15
"""Characters of numbers that float64 holds exactly enough, on grids of 1 ns and of 1 ps."""

LONGEST_HEAD = LONGEST_GAP = 1 << 28
"""Bytes within which the list of events must begin, and the next event: 3 MB unpack to 4 GB of
spaces."""

NO_UTF8 = "bytes that are not UTF-8 count as question marks"

_WINDOW = 1 << 16
_KEYS = "ph|name|cat|pid|tid|ts|dur|args|id|bp|s"
_BETWEEN = re.compile(rf'\}}\s*,\s*(?=\{{\s*"(?:{_KEYS})"\s*:)'.encode())
_START = re.compile(rf'(:\s*)?(\{{)\s*"(?:{_KEYS})"\s*:')
_FIRST = re.compile(rf'\{{\s*"(?:{_KEYS})"\s*:'.encode())
_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_PHASE = re.compile(rb'"ph"\s*:\s*"')
_SPACE = re.compile(r"[\s,]*")
_BEHIND = re.compile(r'\s*(?:,\s*"|\}\s*$|$)')
_NOT_FINITE = re.compile(r"(:\s*|[\[,]\s*)(-?)(?:nan|inf)(?=\s*[,}\]])")
_BAD_BYTES = re.compile("[\udc80-\udcff]")


class Piece(NamedTuple):
    """Some events, with commas between them."""

    data: bytes
    offset: int
    """Place of its first byte in the unpacked file."""
    last: bool
    """Whether nothing follows."""


class Opening(NamedTuple):
    """What stands before the events, and what was read so far."""

    head: bytes
    rest: bytes
    """Bytes after the bracket that opens the list."""
    offset: int
    """Place of `rest` in the unpacked file."""
    bare: bool
    """Whether the file is the list of events alone."""


def open_events(source: Source, first: bytes, notes: Notes) -> Opening | None:
    """Return where the events begin, with what was read so far; None where there are none."""
    skipped = len(BOM) if first.startswith(BOM) else 0
    text = first[skipped:]
    if text.lstrip()[:1] == b"[":
        begin = text.index(b"[") + 1
        return Opening(b"{}", text[begin:], skipped + begin, True)
    searched = 0
    while True:
        if match := _LIST.search(text, searched):
            return Opening(text[: match.end()], text[match.end() :], skipped + match.end(), False)
        searched = max(len(text) - _WINDOW, 0)
        more = source.read(PIECE_BYTES) if len(text) < LONGEST_HEAD else b""
        if not more:
            break
        text += more
    begun = _FIRST.search(text) if _PHASE.search(text) else None
    if begun is None:
        return None
    where = f"byte {skipped + begun.start():,}"
    notes.add("the list of events (traceEvents) has no begin; events are read from here on", where)
    return Opening(text[: begun.start()], text[begun.start() :], skipped + begun.start(), False)


def cut(source: Source, opening: Opening) -> Iterator[Piece]:
    """Yield the events of a file in pieces, in order; the last holds what follows them, too."""
    held, offset, size = opening.rest, opening.offset, PIECE_BYTES
    while True:
        if len(held) < size:
            more = source.read(size - len(held))
            held += more
            if not more:
                yield Piece(held, offset, True)
                return
        elif (match := _last_between(held, size)) is None:
            if size >= LONGEST_GAP:
                yield Piece(held[:LONGEST_EVENT], offset, True)
                return
            size *= 2
        else:
            yield Piece(held[: match.start() + 1], offset, False)
            offset += match.end()
            held, size = held[match.end() :], PIECE_BYTES


def _last_between(data: bytes, end: int) -> re.Match[bytes] | None:
    window = _WINDOW
    while True:
        last = None
        for match in _BETWEEN.finditer(data, max(end - window, 0), end):
            last = match
        if last is not None or window >= end:
            return last
        window *= 16


class Scanner:
    """Finds events one by one, goes on behind broken ones, and finds the end of the list.

    A file that is the list of events alone (`bare`) may leave out its end. `grid_ps` is the grid of
    the clock of its stamps.
    """

    def __init__(self, notes: Notes, *, bare: bool, grid_ps: int) -> None:
        self._notes, self._bare = notes, bare
        # A float64 holds 15 digits of any number, and stamps of 13 digits to the nanosecond.
        self._longest = FLOAT_LENGTH if grid_ps >= NS_PS else SHORT_FLOAT_LENGTH
        self._decode = json.JSONDecoder(parse_float=self._number, strict=False).raw_decode
        self._text, self._offset, self._last = "", 0, False
        self._tried = 0
        self.ended = False
        """Whether the list has ended."""
        self.behind = ""
        """What follows the list."""

    @property
    def waits(self) -> bool:
        """Whether an event has begun that has not ended."""
        return bool(self._text)

    def feed(self, piece: Piece) -> list[Any]:
        """Return the events of a piece that can be parsed; long numbers come as decimals."""
        text = piece.data.decode("utf-8", "surrogateescape")
        text, bad = _BAD_BYTES.subn("?", text)
        if bad:
            self._notes.add(NO_UTF8, _byte(piece.offset), bad)
        text = _NOT_FINITE.sub(r"\1NaN", text)
        if self._text:
            # The comma and the space that were cut out between the pieces.
            gap = piece.offset - self._offset - _bytes(self._text)
            text = "," + " " * (gap - 1) + text
        else:
            self._offset = piece.offset
        events: list[Any] = []
        # An error counts the lines of its text from the begin on, so the text must be short.
        for begin in range(0, max(len(text), 1), SLICE):
            part = text[begin : begin + SLICE]
            if self.ended:
                self.behind += part
                continue
            self._text += part
            self._last = piece.last and begin + SLICE >= len(text)
            self._scan(events)
        return events

    def _scan(self, events: list[Any]) -> None:
        """Take the events of the text, and keep what has begun and not ended."""
        at: int | None = 0
        while at is not None:
            found = _SPACE.match(self._text, at)
            assert found is not None
            at = found.end()
            if at == len(self._text):
                if self._last and not self._bare:
                    self._notes.add(BREAKS_OFF, self._byte(at, BREAKS_OFF))
                self._drop(at)
                return
            if self._text[at] == "]" and _BEHIND.match(self._text, at + 1):
                self.ended, self.behind, self._text = True, self._text[at + 1 :], ""
                return
            value, after = self._one(self._text, at)
            if value is not None:
                events.append(value)
            at = after if value is not None else self._go_on(at)

    def _number(self, text: str) -> float | Decimal:
        return float(text) if len(text) <= self._longest else Decimal(text)

    def _one(self, text: str, at: int) -> tuple[Mapping[str, Any] | None, int]:
        try:
            value, after = self._decode(text, at)
        except MALFORMED:
            return None, at
        return (value, after) if isinstance(value, Mapping) else (None, at)

    def _go_on(self, at: int) -> int | None:
        for match in _START.finditer(self._text, max(at + 1, self._tried)):
            begin = match.start(2)
            event, _ = (
                self._one(self._text[begin : begin + _WINDOW], 0) if not match[1] else (None, 0)
            )
            # An object within an event has no phase.
            if event is not None and "ph" in event:
                text = "an event cannot be parsed and is left out; reading goes on with the next"
                self._notes.add(text, self._byte(at, text))
                return begin
        self._tried = max(len(self._text) - _WINDOW, 0)
        if not self._last and len(self._text) - at < LONGEST_EVENT:
            self._drop(at)
            return None
        text, behind = BREAKS_OFF, ""
        if not self._last or not _PHASE.search(self._text[at:].encode("utf-8", "replace")):
            text, behind = "what stands here is no event and is left out", self._text[at:]
        self._notes.add(text, self._byte(at, text))
        self.behind = behind if self._last else ""
        self._drop(len(self._text))
        return None

    def _drop(self, at: int) -> None:
        self._offset += _bytes(self._text[:at])
        self._text = self._text[at:]
        self._tried = max(self._tried - at, 0)

    def _byte(self, at: int, text: str) -> str:
        return _byte(self._offset + _bytes(self._text[:at])) if self._notes.wants(text) else ""


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _byte(offset: int) -> str:
    return f"byte {offset:,}"


def parse_around(head: bytes, behind: bytes, keys: tuple[str, ...], notes: Notes) -> dict[str, Any]:
    """Return what stands around the list of events, at least its `keys` where that is broken."""
    before = head.decode("utf-8", "replace")
    after = behind.decode("utf-8", "replace").strip().lstrip(",")
    closed = before + "]}" if before.endswith("[") else before
    found: dict[str, Any] = {}
    for text, what in ((closed, "before"), ("{" + (after or "}"), "behind")):
        try:
            value = json.loads(_NOT_FINITE.sub(r"\1NaN", text), strict=False)
        except MALFORMED:
            value = _one_by_one(text, keys)
            notes.add(f"what stands {what} the events cannot be parsed as a whole", "")
        if isinstance(value, dict):
            found |= value
    found.pop("traceEvents", None)
    return found


def _one_by_one(text: str, keys: tuple[str, ...]) -> dict[str, Any]:
    """Return the values of some keys, wherever they stand in a text that cannot be parsed."""
    found = {}
    decode = json.JSONDecoder(strict=False).raw_decode
    for key in keys:
        if match := re.search(rf'"{key}"\s*:\s*', text):
            try:
                found[key] = decode(text, match.end())[0]
            except MALFORMED:
                continue
    return found


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
        events = json.loads(b"[" + data + b"]", parse_float=Decimal if plan.exact else float)
    except (ValueError, OverflowError, RecursionError):
        return None
    try:
        return collect(events, plan)
    except Inexact:
        return parse_piece(data, Plan(plan.grid_ps, exact=True))


class Workers:
    """A few processes that parse; without any, pieces are parsed here."""

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
            process: subprocess.Popen[bytes] | None = getattr(self._local, "process", None)
            if process is None:
                command = (sys.executable, "-c", "from projector.trace.pieces import work; work()")
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
            assert process.stdin is not None
            assert process.stdout is not None
            _send(process.stdin, (data, plan))
            answer: Batch | None = _receive(process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            return None if self._ended else parse_piece(data, plan)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
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


def work() -> None:
    """Parse what comes from the caller until it has no more."""
    # Events hold no cycles, so nothing is lost with it but its time.
    gc.disable()
    with suppress(EOFError):
        while True:
            data, plan = _receive(sys.stdin.buffer)
            _send(sys.stdout.buffer, parse_piece(data, plan))
