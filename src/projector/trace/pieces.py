"""The events of a file in pieces, and events one by one where a piece is not as it should be.

A piece ends between two events, which is seen from the text alone: ``}, {"ph":`` cannot stand in a
string, where quotes are escaped. A list of objects within an event looks the same, so a piece may
end too early. Then it cannot be parsed, and `Scanner` joins it with the next.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from projector.trace.kineto_events import NS_PS
from projector.trace.mend import MALFORMED
from projector.trace.notes import Notes
from projector.trace.sources import BOM, Source

PIECE_BYTES = 1 << 23
"""Bytes of a piece, about 30,000 events."""

LONGEST_EVENT = 1 << 22
"""Characters after which an event that does not end is taken for broken."""

FLOAT_LENGTH, SHORT_FLOAT_LENGTH = 17, 15
"""Characters of numbers that float64 holds exactly enough, on grids of 1 ns and of 1 ps."""

LONGEST_HEAD = 1 << 28
"""Bytes within which the list of events must begin."""

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
    """Of its first byte in the unpacked file."""
    last: bool
    """Whether nothing follows."""


class Opening(NamedTuple):
    """What stands before the events, and what was read so far."""

    head: bytes
    rest: bytes
    """Bytes after the bracket that opens the list."""
    offset: int
    """Of `rest` in the unpacked file."""
    bare: bool
    """Whether the file is the list of events alone."""


def open_events(source: Source, first: bytes, notes: Notes) -> Opening | None:
    """Return where the events begin; None where there are none.

    Parameters
    ----------
    source : Source
        The file.
    first : bytes
        What was read of it.
    notes : Notes
        Takes what is wrong.
    """
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
    held, offset = opening.rest, opening.offset
    while True:
        more = source.read(max(PIECE_BYTES - len(held), _WINDOW))
        held += more
        if not more:
            yield Piece(held, offset, True)
            return
        if len(held) < PIECE_BYTES or (match := _last_between(held)) is None:
            continue
        yield Piece(held[: match.start() + 1], offset, False)
        offset += match.end()
        held = held[match.end() :]


def _last_between(data: bytes) -> re.Match[bytes] | None:
    """Return the last place between two events."""
    window = _WINDOW
    while True:
        last = None
        for match in _BETWEEN.finditer(data, max(len(data) - window, 0)):
            last = match
        if last is not None or window >= len(data):
            return last
        window *= 16


class Scanner:
    """Finds events one by one, goes on behind broken ones, and finds the end of the list.

    Parameters
    ----------
    notes : Notes
        Takes what is wrong, with its place.
    bare : bool
        Whether the file is the list of events alone, whose end may be left out.
    grid_ps : int
        Grid of the clock of its stamps.
    """

    def __init__(self, notes: Notes, *, bare: bool, grid_ps: int) -> None:
        self._notes, self._bare = notes, bare
        # A float64 holds 15 digits of any number, and stamps of 13 digits to the nanosecond.
        self._longest = FLOAT_LENGTH if grid_ps >= NS_PS else SHORT_FLOAT_LENGTH
        self._text, self._offset = "", 0
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
        if not self._text:
            self._offset = piece.offset
        text = piece.data.decode("utf-8", "surrogateescape")
        text, bad = _BAD_BYTES.subn("?", text)
        if bad:
            self._notes.add(
                "bytes that are not UTF-8 count as question marks", _byte(piece.offset), bad
            )
        self._text += ("," if self._text else "") + _NOT_FINITE.sub(r"\1NaN", text)
        decode = json.JSONDecoder(parse_float=self._number, strict=False).raw_decode
        events: list[Any] = []
        at = 0
        while not self.ended:
            found = _SPACE.match(self._text, at)
            assert found is not None
            at = found.end()
            if at == len(self._text):
                self._end_of_text(piece.last, at)
                break
            if self._text[at] == "]" and _BEHIND.match(self._text, at + 1):
                self.ended, self.behind, self._text = True, self._text[at + 1 :], ""
                break
            after = self._one(decode, at, events)
            if after is None:
                after = self._go_on(at, piece.last)
            if after is None:
                break
            at = after
        return events

    def _number(self, text: str) -> float | Decimal:
        return float(text) if len(text) <= self._longest else Decimal(text)

    def _one(
        self, decode: Callable[[str, int], tuple[Any, int]], at: int, events: list[Any]
    ) -> int | None:
        """Take one event and return where it ends, or None if there is none."""
        try:
            value, after = decode(self._text, at)
        except (StopIteration, *MALFORMED):
            return None
        if not isinstance(value, Mapping):
            return None
        events.append(value)
        return after

    def _go_on(self, at: int, last: bool) -> int | None:
        """Return where the next event begins, or None if that is not known yet."""
        match = next((m for m in _START.finditer(self._text, at + 1) if not m[1]), None)
        if match is not None:
            text = "an event cannot be parsed and is left out; reading goes on with the next"
            self._notes.add(text, self._byte(at, text))
            return match.start(2)
        if not last and len(self._text) - at < LONGEST_EVENT:
            self._offset += _bytes(self._text[:at])
            self._text = self._text[at:]
            return None
        text = "the file breaks off here; what was before is read"
        if _PHASE.search(self._text[at : at + _WINDOW].encode()) is None:
            text = "what stands here is no event; what was before is read"
        self._notes.add(text, self._byte(at, text))
        self.behind, self._text = self._text[at:] if last else "", ""
        return None

    def _end_of_text(self, last: bool, at: int) -> None:
        if last and not self._bare:
            text = "the file breaks off here; what was before is read"
            self._notes.add(text, self._byte(at, text))
        self._text = ""

    def _byte(self, at: int, text: str) -> str:
        return _byte(self._offset + _bytes(self._text[:at])) if self._notes.wants(text) else ""


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _byte(offset: int) -> str:
    return f"byte {offset:,}"


def parse_around(head: bytes, behind: bytes, keys: tuple[str, ...], notes: Notes) -> dict[str, Any]:
    """Return what stands before and behind the events.

    Parameters
    ----------
    head : bytes
        Up to the bracket that opens the list of events.
    behind : bytes
        From behind the bracket that closes it.
    keys : tuple of str
        What is looked for one by one where the whole cannot be parsed.
    notes : Notes
        Takes what is wrong.
    """
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
