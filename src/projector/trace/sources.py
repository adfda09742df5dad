"""Bytes of a file, unpacked where it is packed, as far as it can be read."""

import glob
import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from projector.errors import ConfigError
from projector.files import check_name, refuse_special
from projector.trace.events import NONE, Problem

FIRST = 3
"""Places that are named of those where the same thing was wrong."""


@dataclass(slots=True)
class _Note:
    times: int = 0
    places: list[str] = field(default_factory=list)


class Notes:
    """Takes what was wrong while a file is read."""

    def __init__(self) -> None:
        self._notes: dict[str, _Note] = {}

    def __bool__(self) -> bool:
        return bool(self._notes)

    def wants(self, text: str) -> bool:
        """Whether a further place of it would be named."""
        note = self._notes.get(text)
        return note is None or len(note.places) < FIRST

    def add(self, text: str, where: str, times: int = 1) -> None:
        """Take one more place, which may be empty."""
        note = self._notes.setdefault(text, _Note())
        note.times += times
        if where and len(note.places) < FIRST:
            note.places.append(where)

    def problems(self, path: str) -> tuple[Problem, ...]:
        """Return what was taken, in its order."""
        return tuple(
            Problem(
                path, _places(note), text if note.times < 2 else f"{text} ({note.times:,} times)"
            )
            for text, note in self._notes.items()
        )


def _places(note: _Note) -> str:
    more = ", ..." if note.times > len(note.places) > 0 else ""
    return ", ".join(note.places) + more


CUT_OFF = "the packed file is cut off; what was before that is read"
BREAKS_OFF = "the file breaks off here; what was before is read"
COULD_BE_READ = "events could be read"
LEFT_OUT = "left out: trace: "
"""Begin of what is said of a file of a folder that holds no trace."""

BLOCK_BYTES = 1 << 18
"""Bytes of a packed file that are unpacked at once."""

MOST_BYTES = 1 << 23
"""Bytes that a block may unpack to at once; well-packed zeros are a thousand times their size."""

GZIP = b"\x1f\x8b"
BOM = b"\xef\xbb\xbf"

REFUSED = {
    b"PK\x03\x04": "a zip archive",
    b"PK\x05\x06": "an empty zip archive",
    b"\x28\xb5\x2f\xfd": "packed with zstd",
    b"BZh": "packed with bzip2",
    b"\xfd7zXZ\x00": "packed with xz",
    b"SQLite format 3\x00": "a database of SQLite, such as those of Nsight Systems and rocpd",
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
}
"""First bytes of files that are not read, and what they are."""


def named_files(
    given: Iterable[str | Path], key: str, inside: Callable[[Path], Iterable[Path]]
) -> dict[Path, bool]:
    """Return the files that paths, folders and patterns stand for, and whether each was named."""
    found: dict[Path, bool] = {}
    for each in given:
        path = Path(each)
        check_name(each, key=key)
        if path.is_dir():
            found |= {p: False for p in inside(path) if p not in found}
        elif path.exists():
            found[path] = True
        elif matches := sorted(glob.glob(str(each), recursive=True)):  # noqa: PTH207  # absolute, too
            found |= {p: False for p in map(Path, matches) if p not in found}
        else:
            msg = f"{key}: {each} does not exist"
            raise ConfigError(msg, key=key, value=str(each), allowed="a file or a folder")
    return found


def rank_in(name: str) -> int:
    """Return the rank that a name tells as ``rank3``, `NONE` without one."""
    match = _RANK.search(name)
    return int(match[1]) if match else NONE


_RANK = re.compile(r"rank[_\-]?(\d+)", re.IGNORECASE)


class Source:
    """A file, plain or gzip by its first bytes, read once; notes take what is wrong with it."""

    def __init__(self, path: Path, notes: Notes) -> None:
        self.path, self._notes = path, notes
        self.read_bytes = 0
        """Bytes of the file that were read so far, as they lie on the disk."""
        refuse_special(path, key="trace")
        try:
            self._file = path.open("rb")
            self.size_bytes = path.stat().st_size
            first = self._file.read(16)
            self._file.seek(0)
        except OSError as error:
            msg = f"trace: {path} cannot be read ({error.strerror or error})"
            raise ConfigError(msg, key="trace", value=str(path), allowed="a file") from None
        for magic, what in REFUSED.items():
            if first.startswith(magic):
                self._file.close()
                msg = f"trace: {path} is {what}; unpack it to JSON first, or pack it with gzip"
                raise ConfigError(msg, key="trace", value=str(path), allowed="JSON, plain or gzip")
        self._unpacker = zlib.decompressobj(31) if first.startswith(GZIP) else None
        self._packed = b""
        self._ended = False

    def read(self, least_bytes: int) -> bytes:
        """Return at least so many bytes, or what is left; nothing at the end."""
        parts, size = [], 0
        while size < least_bytes:
            part = self._plain(least_bytes) if self._unpacker is None else self._unpacked()
            if not part and (self._unpacker is None or self._ended):
                break
            parts.append(part)
            size += len(part)
        return b"".join(parts)

    def _plain(self, size: int) -> bytes:
        try:
            data = self._file.read(size)
        except OSError as error:
            self._notes.add(f"reading failed ({error.strerror or error})", "")
            return b""
        self.read_bytes += len(data)
        return data

    def _unpacked(self) -> bytes:
        if self._ended:
            return b""
        if not self._packed:
            self._packed = self._plain(BLOCK_BYTES)
            if not self._packed:
                self._ended = True
                self._notes.add(CUT_OFF, self._where())
                return b""
        assert self._unpacker is not None
        before, block = self._unpacker.copy(), self._packed
        try:
            data = self._unpacker.decompress(block, MOST_BYTES)
        except zlib.error as error:
            self._ended = True
            text = "the packed file is damaged; what was before that is read"
            self._notes.add(f"{text} ({error})", self._where())
            return _unpack_as_far_as_possible(before, block)
        self._packed = self._unpacker.unconsumed_tail
        if self._unpacker.eof:
            self._next_member(self._unpacker.unused_data)
        return data

    def _next_member(self, rest: bytes) -> None:
        """Go on with the file that is packed behind this one, if there is one."""
        rest = rest or self._plain(BLOCK_BYTES)
        # Tapes and some servers fill up with zeros.
        if not rest.strip(b"\0"):
            self._ended = True
        elif rest.startswith(GZIP):
            self._unpacker, self._packed = zlib.decompressobj(31), rest
        else:
            self._ended = True
            self._notes.add("bytes behind the packed file are left out", self._where())

    def _where(self) -> str:
        return f"byte {self.read_bytes:,} of the packed file"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def _unpack_as_far_as_possible(unpacker: "zlib._Decompress", block: bytes) -> bytes:
    """Return what comes before the damage: ever smaller parts of the block are tried."""
    parts = []
    step = max(len(block) // 64, 1)
    while block:
        before = unpacker.copy()
        try:
            parts.append(unpacker.decompress(block[:step]))
        except zlib.error:
            if step == 1:
                break
            unpacker, step = before, max(step // 64, 1)
            continue
        block = block[step:]
    return b"".join(parts)
