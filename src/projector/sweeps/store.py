"""A sweep on disk: a folder of Parquet files that grows chunk by chunk and can be continued.

``part-000000.parquet`` and so on hold the rows of a chunk each; a chunk without rows has none.
Names that begin with ``_`` are ours: ``_sweep.json`` says which sweep this is, ``_chunks.jsonl``
has a line for every finished chunk, ``_lock`` keeps two runs apart. Every file is renamed into its
place when it is complete, and a line is added after that, so that a run may end at any moment.
Nobody waits for the disk: what a power cut has lost shows in the size or the footer of a part, and
is computed again.
In an object store objects appear whole, and lines of the journal are objects of their own. There is
no lock; runs of one sweep write the same, and one whose sweep has been overwritten writes no more.
Workers of this machine write drafts of parts, whose names no other run has: one that outlives its
caller for a moment does not meddle with the run that continues. Only the caller renames.
"""

import contextlib
import errno
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from projector.config.space import OtherSpace, Space
from projector.config.training import schedule_name
from projector.distribution import package_version
from projector.envelope import SCHEMA_VERSION, told
from projector.errors import ConfigError
from projector.schedule.registry import SCHEDULES
from projector.sweeps import journal
from projector.sweeps.places import errors_of, in_store, listed, readable, write
from projector.sweeps.table import arrow_types, optional_columns

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_POINTS = 196_608
"""Most points of a part: small enough that a run that is cut short loses little and memory stays
small, large enough that what each chunk costs is shared by many. A row takes a fifth longer with
65,536."""

LEAST_CHUNK_POINTS = 16_384
PLANNED_CHUNK_POINTS = 128
"""Points of a part where orders are planned, which takes long."""

PARTS = 16
"""A smaller space is cut into about as many parts, so that all workers have something to do."""

FORMAT = 1
LOCK, NEW = "_lock", "_new-"
SCHEDULE = "training.schedule"


@dataclass(frozen=True, slots=True)
class Plan:
    """Which sweep it is."""

    space: Mapping[str, Any]
    digest: str
    points: int
    kinds: Mapping[str, str]
    """Column -> kind."""
    chunk_points: int
    optional: frozenset[str] = frozenset()
    """Columns that may lack values."""

    @staticmethod
    def of(space: Space, kinds: Mapping[str, str], points: int | None = None) -> "Plan":
        """Return the plan of a space with these columns, cut as `chunk_points` says or given."""
        points = points or chunk_points(space)
        optional = optional_columns(space, kinds)
        return Plan(space.to_dict(), space.digest, space.size, kinds, points, optional)

    @property
    def is_slow(self) -> bool:
        """Whether few points take long."""
        return self.chunk_points <= PLANNED_CHUNK_POINTS

    @property
    def chunks(self) -> int:
        """Chunks of the space."""
        return -(-self.points // self.chunk_points)

    def chunk(self, number: int) -> range:
        """Return the points of a chunk."""
        begin = number * self.chunk_points
        return range(begin, min(begin + self.chunk_points, self.points))

    def schema(self) -> "pa.Schema":
        """Return the columns, with version and space in the metadata."""
        import pyarrow as pa

        types = arrow_types()
        metadata = {
            "projector.version": package_version(),
            "projector.schema_version": str(SCHEMA_VERSION),
            "projector.space_digest": self.digest,
            "projector.space": _json(self.space),
        }
        fields = [
            pa.field(name, types[kind], nullable=name in self.optional)
            for name, kind in self.kinds.items()
        ]
        return pa.schema(fields, metadata)

    def manifest(self) -> dict[str, Any]:
        """Return what identifies the sweep."""
        return {
            "format": FORMAT,
            "version": package_version(),
            "schema_version": SCHEMA_VERSION,
            **told(self, "digest points chunk_points space"),
        }


def chunk_points(space: Space) -> int:
    """Return the points of a part; they follow from the space alone, whoever sweeps it."""
    fair = max(LEAST_CHUNK_POINTS, 1 << max(0, space.size // PARTS - 1).bit_length())
    if isinstance(space, OtherSpace):
        return max(1, min(CHUNK_POINTS, space.most_points or fair) // space.choices) * space.choices
    schedule_axes = [
        (axis, axis.fields.index(SCHEDULE)) for axis in space.axes if SCHEDULE in axis.fields
    ]
    names = [point[column] for axis, column in schedule_axes for point in axis.points]
    if not schedule_axes:
        names = [space.base.training.schedule]
    whole = space.choices
    planned = any(
        name in SCHEDULES and SCHEDULES[name].planned
        for name in map(schedule_name, map(str, names))
    )
    is_planned = planned or SCHEDULE in space.derived
    most = min(CHUNK_POINTS, PLANNED_CHUNK_POINTS if is_planned else fair)
    # Points of which one is kept stay together.
    return max(1, most // whole) * whole


class Draft(NamedTuple):
    """A file that is written but has no name yet that counts."""

    path: Path
    size: int
    """Bytes."""


class Part(NamedTuple):
    """One finished chunk."""

    chunk: int
    content: bytes
    """Its rows as a Parquet file; empty without rows, or where a draft has them."""
    totals: journal.Totals
    draft: Draft | None = None
    leaders: Sequence[dict[str, Any]] = ()
    """Its rows that fit and may be among the fastest `LISTED`, the fastest first."""


def writer_options(schema: "pa.Schema") -> dict[str, Any]:
    """Return how pyarrow writes rows; texts come as dictionaries.

    Texts are written as dictionaries, though readers see texts. Numbers are written plain: to look
    for equal ones, even where few differ, would take more than half as long again.
    """
    import pyarrow as pa

    return {
        "compression": "snappy",
        "use_dictionary": [field.name for field in schema if pa.types.is_dictionary(field.type)],
        "write_statistics": False,
        "write_page_checksum": True,
        # Pages of this version compress values where they lie, not copied behind their nulls.
        "data_page_version": "2.0",
        "write_batch_size": CHUNK_POINTS,
        "store_schema": False,
    }


def encode(table: "pa.Table", schema: "pa.Schema") -> memoryview:
    """Return rows as a Parquet file with the columns of a schema; nothing for no rows.

    A column is optional where it lacks a value or the schema says so. Without a level for each
    value, others are written in half the time.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not len(table):
        return memoryview(b"")
    fields = [
        pa.field(field.name, column.type, nullable=field.nullable or column.null_count > 0)
        for field, column in zip(schema, table.columns, strict=True)
    ]
    rows = pa.Table.from_arrays(table.columns, schema=pa.schema(fields))
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, rows.schema, **writer_options(rows.schema)) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata(schema.metadata)
    return memoryview(sink.getvalue())


class Store:
    """The folder of one sweep, open for writing.

    ``overwrite``: another one there may go; ``verify``: all that parts hold is looked at.
    """

    def __init__(
        self, path: Path, plan: Plan, *, overwrite: bool = False, verify: bool = False
    ) -> None:
        self.path, self.plan = path, plan
        self.warnings: list[str] = []
        self._journal: BinaryIO | None = None
        self._lock: BinaryIO | None = None
        self._done = bytearray()
        self.totals = journal.Totals()
        """Counts of all finished chunks."""
        self.drafts = path / f"{NEW}{uuid.uuid4().hex}-"
        """How the names of drafts begin."""
        with contextlib.ExitStack() as undone:
            undone.callback(self.close)
            try:
                self._open(overwrite=overwrite, verify=verify)
            except ConfigError:
                raise
            except errors_of(path) as error:
                raise not_written(path, error) from None
            except ValueError as error:
                raise _refused(path, str(error)) from None
            undone.pop_all()

    def todo(self) -> Iterator[int]:
        """Yield the chunks that are not finished, in order."""
        return (chunk for chunk, done in enumerate(self._done) if not done)

    @property
    def finished(self) -> bool:
        """Whether all chunks are there."""
        return all(self._done)

    def put(self, part: Part) -> None:
        """Write the rows of a chunk and note it as finished."""
        chunk, content, totals, draft, _ = part
        try:
            self._check_ours()
            if draft is not None and not in_store(self.path):
                draft.path.replace(journal.part_path(self.path, chunk))
            elif content:
                _write_whole(journal.part_path(self.path, chunk), content)
            line = {
                "chunk": chunk,
                "bytes": len(content) if draft is None else draft.size,
                **asdict(totals),
            }
            if in_store(self.path):
                write(self.path / f"{journal.LINE}{chunk:06d}", _json(line).encode() + b"\n")
            else:
                if self._journal is None:
                    self._journal = (self.path / journal.JOURNAL).open("ab", buffering=0)
                _append(self._journal, _json(line).encode() + b"\n")
        except ConfigError:
            raise
        except errors_of(self.path) as error:
            raise not_written(self.path, error) from None
        self._done[chunk] = 1
        self.totals.add(totals)

    def close(self) -> None:
        """Let others write."""
        for stream in (self._journal, self._lock):
            if stream is not None:
                stream.close()
        self._journal = self._lock = None

    def _open(self, *, overwrite: bool, verify: bool) -> None:
        path = listed(self.path)
        if path.exists() and not path.is_dir():
            raise _refused(path, "it is a file; a sweep is a folder")
        if not in_store(path):
            if not path.parent.is_dir():
                raise _refused(path, f"there is no folder {path.parent}")
            path.mkdir(exist_ok=True)
        if not (path / journal.MANIFEST).exists() and any(
            # A run that ended before it had said its name leaves these.
            entry.name != LOCK and not entry.name.startswith(NEW)
            for entry in (path.iterdir() if path.exists() else ())
        ):
            raise _refused(path, "the folder holds something else than a sweep")
        read_only = self._take_lock()
        manifest = journal.read_manifest(path)
        if manifest is not None and manifest != json.loads(_json(self.plan.manifest())):
            if not overwrite and not self._holds_our_parts():
                raise _other(path, manifest, self.plan.manifest())
            if not overwrite and read_only is None:
                self.warnings.append(f"{path / journal.MANIFEST} was damaged; the parts say it all")
                self._write_manifest()
        self._done = bytearray(self.plan.chunks)
        if manifest is not None and not overwrite:
            self._resume(read_only, verify=verify)
        elif read_only is not None:
            raise read_only
        else:
            self._begin()

    def _holds_our_parts(self) -> bool:
        import pyarrow as pa
        import pyarrow.parquet as pq

        paths, wanted = self.path.glob("part-*.parquet"), self.plan.schema().metadata
        try:
            held = [pq.read_schema(readable(path)).metadata for path in paths]
            return bool(held) and all(metadata == wanted for metadata in held)
        except (OSError, pa.ArrowException):
            return False

    def _take_lock(self) -> OSError | None:
        """Keep other runs out; return why nothing can be written, where it cannot."""
        if in_store(self.path):
            return None
        try:
            self._lock = (self.path / LOCK).open("ab")
        except OSError as error:
            return error
        try:
            import fcntl
        except ImportError:
            return None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _refused(self.path, "another run is writing it") from None
        except OSError:
            # A file system without locks; there is nothing to hold on to.
            return None
        return None

    def _begin(self) -> None:
        """Clear what is ours, parts first in case the run ends, and say which sweep this is."""
        for old in self._chunk_files():
            old.unlink()
        (self.path / journal.JOURNAL).unlink(missing_ok=True)
        self._write_manifest()

    def _chunk_files(self) -> list[Path]:
        names = "part-*.parquet", f"{NEW}*", f"{journal.LINE}*"
        return [path for name in names for path in self.path.glob(name)]

    def _check_ours(self) -> None:
        """Refuse a store where another run has begun another sweep since."""
        if not in_store(self.path):
            return
        path: Any = self.path / journal.MANIFEST
        if json.loads(path.fs.cat_file(path.path)) != json.loads(_json(self.plan.manifest())):
            raise _refused(self.path, "another run has overwritten it with another sweep")

    def _write_manifest(self) -> None:
        # A line a key: `json` takes twenty times as long to indent all of it.
        lines = (f"{_json(key)}: {_json(value)}" for key, value in self.plan.manifest().items())
        content = ",\n ".join(sorted(lines))
        _write_whole(self.path / journal.MANIFEST, f"{{\n {content}\n}}\n".encode())

    def _resume(self, read_only: OSError | None, *, verify: bool) -> None:
        schema = self.plan.schema()
        all_good = True
        for _, entry in journal.entries(self.path):
            if entry is None or entry["chunk"] >= len(self._done) or self._done[entry["chunk"]]:
                all_good = False
                continue
            wrong = journal.damage(self.path, entry, schema, verify=verify)
            if wrong:
                all_good = False
                name = journal.part_path(self.path, entry["chunk"])
                self.warnings.append(f"{name} is computed again: {wrong}")
                continue
            self._done[entry["chunk"]] = 1
            self.totals.add(journal.totals_of(entry))
        if self.finished:
            return
        if read_only is not None:
            raise read_only
        if not all_good and not in_store(self.path):
            seen = bytearray(len(self._done))
            lines = []
            for line, entry in journal.entries(self.path):
                chunk = -1 if entry is None else entry["chunk"]
                if 0 <= chunk < len(seen) and self._done[chunk] and not seen[chunk]:
                    seen[chunk] = 1
                    lines.append(line)
            _write_whole(self.path / journal.JOURNAL, b"".join(lines))
        done = [chunk for chunk, is_done in enumerate(self._done) if is_done]
        names = {journal.part_path(self.path, chunk).name for chunk in done}
        names |= {f"{journal.LINE}{chunk:06d}" for chunk in done}
        for old in self._chunk_files():
            if old.name not in names:
                old.unlink()


def write_draft(drafts: Path, chunk: int, content: bytes | memoryview) -> Draft:
    """Write the rows of a chunk where only the `Store` with these ``drafts`` looks for them.

    In a store they are written to their place: whole, and the same whoever writes them.
    """
    path = drafts.with_name(f"{drafts.name}{chunk:06d}")
    if in_store(drafts):
        path = journal.part_path(drafts.parent, chunk)
    try:
        write(path, content)
    except errors_of(drafts) as error:
        with contextlib.suppress(errors_of(drafts)):
            path.unlink(missing_ok=True)
        raise not_written(drafts.parent, error) from None
    return Draft(path, len(content))


def read_draft(part: Part) -> Part:
    """Return a part that carries its rows; its draft goes."""
    if part.draft is None:
        return part
    content = part.draft.path.read_bytes()
    part.draft.path.unlink()
    return part._replace(content=content, draft=None)


def remove_drafts(drafts: Path) -> None:
    """Remove what has not become a part."""
    for path in drafts.parent.glob(f"{drafts.name}*"):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def is_begun(folder: Path) -> bool:
    """Whether there is a sweep, which may be another one."""
    try:
        return (folder / journal.MANIFEST).is_file()
    except (OSError, ValueError):
        # No such name can be; `Store` says why.
        return False


def part_paths(folder: Path, plan: Plan) -> Iterator[Path]:
    """Yield the parts of a sweep in order."""
    listed(folder)
    paths = (journal.part_path(folder, chunk) for chunk in range(plan.chunks))
    return (path for path in paths if path.is_file())


def stored_chunks(folder: Path) -> Iterator[tuple[int, journal.Totals]]:
    """Yield the finished chunks of a sweep with their counts, as they were finished."""
    for _, entry in journal.entries(folder):
        if entry is not None:
            yield entry["chunk"], journal.totals_of(entry)


def not_written(path: Path, error: Exception) -> ConfigError:
    """Return the error of a sweep that cannot be written."""
    why = getattr(error, "strerror", None) or str(error)
    return _refused(path, f"{why} (chunks that are finished are kept)")


def _refused(path: Path, why: str) -> ConfigError:
    msg = f"{path} cannot be written: {why}"
    return ConfigError(
        msg, key=journal.KEY, value=str(path), allowed="a new folder, or that of this sweep"
    )


def _other(path: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> ConfigError:
    if not stored:
        what = f"its {journal.MANIFEST} cannot be read"
    else:
        old, new = _flat(stored), _flat(json.loads(_json(wanted)))
        keys = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
        told = [key for key in keys if key not in {"digest", "points"}] or keys
        parts = [
            f"{key.removeprefix('space.')} was {_value(old, key)}, is {_value(new, key)}"
            for key in told[:3]
        ]
        rest = f", and {len(told) - 3} more differences" if len(told) > 3 else ""
        what = f"it holds another sweep: {'; '.join(parts)}{rest}"
    msg = f"{path} cannot be written: {what}. Overwrite it or take another folder"
    return ConfigError(
        msg, key=journal.KEY, value=str(path), allowed="another folder, or overwrite"
    )


def _value(flat: Mapping[str, Any], key: str) -> str:
    text = _json(flat[key]) if key in flat else "absent"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, list) and value and all(isinstance(member, Mapping) for member in value):
        # Axes are named by their fields.
        names = (member.get("fields", number) for number, member in enumerate(value))
        value = {
            ", ".join(name) if isinstance(name, list) else str(name): member
            for name, member in zip(names, value, strict=True)
        }
    if not isinstance(value, Mapping) or not value:
        return {prefix: value}
    flat: dict[str, Any] = {}
    for name, item in value.items():
        flat |= _flat(item, f"{prefix}.{name}" if prefix else str(name))
    return flat


def _write_whole(target: Path, content: bytes) -> None:
    if in_store(target):
        return write(target, content)
    temporary = target.with_name(f"{NEW}{target.name}")
    try:
        temporary.write_bytes(content)
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _append(stream: BinaryIO, line: bytes) -> None:
    """Add a whole line, or nothing where the disk is full."""
    end = os.fstat(stream.fileno()).st_size
    whole = False
    try:
        whole = stream.write(line) == len(line)
    finally:
        if not whole:
            with contextlib.suppress(OSError):
                os.ftruncate(stream.fileno(), end)
    if not whole:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
