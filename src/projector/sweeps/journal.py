"""What a sweep on disk says of itself: its manifest, its journal, and whether a part is whole.

Whatever stands there may have been cut short, edited, or written by something else.
"""

import errno
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from projector.config.space_file import MOST_COLLECTIONS
from projector.config.yaml_file import check_nesting
from projector.errors import ConfigError, OutOfMemoryError
from projector.files import refuse_special
from projector.sweeps.places import in_store, joined, readable

if TYPE_CHECKING:
    import pyarrow as pa

MANIFEST, JOURNAL, LINE = "_sweep.json", "_chunks.jsonl", "_chunk-"
"""In a store, where no file grows, each line of the journal is an object, whose name begins so."""
KEY = "out"

MOST_REASONS = 1000
"""Reasons told apart; further ones are counted together."""
OTHER_REASONS = "other reasons"

LONGEST_LINE = 1 << 24
"""Bytes of a line of the journal; a thousand reasons take a hundredth of it."""

LARGEST_COUNT = 1 << 62


@dataclass(slots=True)
class Totals:
    """Counts of chunks, together or of one."""

    points: int = 0
    rows: int = 0
    fit: int = 0
    infeasible: dict[str, int] = field(default_factory=dict)
    at_risk: int = 0
    """Of those that fit, the rows that do not at the upper end of the band of memory."""

    def add(self, other: "Totals") -> None:
        """Count more chunks."""
        self.points += other.points
        self.rows += other.rows
        self.fit += other.fit
        self.at_risk += other.at_risk
        for reason, count in other.infeasible.items():
            known = reason in self.infeasible or len(self.infeasible) < MOST_REASONS
            name = reason if known else OTHER_REASONS
            self.infeasible[name] = self.infeasible.get(name, 0) + count


def part_path(folder: Path, chunk: int) -> Path:
    """Return where the rows of a chunk are."""
    return folder / f"part-{chunk:06d}.parquet"


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return which sweep a folder holds: None for none, nothing for one that cannot be read."""
    refuse_special(folder / MANIFEST, key=KEY)
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        check_nesting(manifest, name=MANIFEST, most=MOST_COLLECTIONS)
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def entries(folder: Path) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Yield the lines of the journal with what they say; None for one that was cut short."""
    refuse_special(folder / JOURNAL, key=KEY)
    try:
        is_file = not in_store(folder)
        stream = (folder / JOURNAL).open("rb") if is_file else joined(folder.glob(f"{LINE}*"))
    except FileNotFoundError:
        return
    with stream:
        while line := stream.readline(LONGEST_LINE):
            try:
                entry = json.loads(line) if line.endswith(b"\n") else None
            except (ValueError, RecursionError):
                entry = None
            yield line, entry if _is_entry(entry) else None


def _is_entry(entry: Any) -> bool:
    """Whether a line of the journal says what one says: counts that can be of one chunk."""
    if not isinstance(entry, dict) or not isinstance(entry.get("infeasible"), dict):
        return False
    names = ("chunk", "bytes", "at_risk", "fit", "rows", "points")
    counts = [*(entry.get(name) for name in names), *entry["infeasible"].values()]
    # True is an integer, too.
    if any(type(count) is not int or not 0 <= count < LARGEST_COUNT for count in counts):
        return False
    in_order = entry["at_risk"] <= entry["fit"] <= entry["rows"] <= entry["points"]
    return bool(in_order and sum(entry["infeasible"].values()) <= entry["points"])


def totals_of(entry: Mapping[str, Any]) -> Totals:
    """Return the counts of a finished chunk."""
    counts = (entry[name] for name in ("points", "rows", "fit", "infeasible", "at_risk"))
    return Totals(*counts)


def damage(
    folder: Path, entry: Mapping[str, Any], schema: "pa.Schema", *, verify: bool = False
) -> str:
    """Say what is wrong with a part, as far as its size and its footer tell; in a store, its size.

    ``verify`` also compares the checksums of its pages, which reads all of it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if entry["rows"] == 0:
        return ""
    path = part_path(folder, entry["chunk"])
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return "it is missing"
    if size != entry["bytes"]:
        return f"it has {size:,} bytes, not {entry['bytes']:,}"
    if in_store(path) and not verify:
        return ""
    try:
        with pq.ParquetFile(readable(path), page_checksum_verification=verify) as part:
            rows, columns = part.metadata.num_rows, part.schema_arrow
            for group in range(part.num_row_groups if verify else 0):
                part.read_row_group(group)
    except (MemoryError, OSError, pa.ArrowException) as error:
        if is_of_memory(error):
            raise no_memory(path) from None
        if is_of_the_system(error):
            raise
        return "it is damaged"
    if rows != entry["rows"]:
        return f"it has {rows:,} rows, not {entry['rows']:,}"
    # A part may lack values where columns of the schema need none.
    same = (columns.names, columns.types, columns.metadata) == (
        schema.names,
        schema.types,
        schema.metadata,
    )
    return "" if same else "it has other columns"


def is_of_memory(error: Exception) -> bool:
    """Whether a file could not be read because memory ran out.

    Where a reader within Arrow gets none, Arrow raises what it raises for damage, with other words.
    """
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return isinstance(error, MemoryError) or "bad_alloc" in str(error)


def is_of_the_system(error: Exception) -> bool:
    """Whether a file could not be read for a reason that lies outside of it, such as a permission.

    Arrow raises `OSError` without a number for content that it does not understand.
    """
    return isinstance(error, OSError) and error.errno not in {None, errno.ENOENT}


def no_memory(path: Path) -> OutOfMemoryError:
    """Return the error of a part for which there is no memory; there may be nothing wrong."""
    msg = f"memory ran out while {path} was read; the sweep is kept. Give it more memory"
    return OutOfMemoryError(msg, key=KEY, value=str(path), allowed="more memory")


def not_read(path: Path, error: Exception) -> ConfigError:
    """Return the error of a file that is there and that the system does not hand out."""
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    msg = f"{path} cannot be read: {why}"
    return ConfigError(msg, key=KEY, value=str(path), allowed="files that can be read")
