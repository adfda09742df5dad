"""Activities and the rows of results as tables of Arrow and as files of Parquet."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from projector.distribution import package_version
from projector.envelope import SCHEMA_VERSION
from projector.files import write_whole
from projector.frames import table_of_rows
from projector.trace.activity import CLASSES, PHASES, TYPES, Activities
from projector.trace.events import KINDS, NONE

if TYPE_CHECKING:
    import pyarrow as pa

KEY = "parquet"

_NUMBERS = ("rank", "device", "stream", "start_ps", "end_ps", "launch_ps", "launch_end_ps")
_MAY_BE_UNKNOWN = ("layer", "iteration", "bytes", "launch_ps", "launch_end_ps")


def activity_table(activities: Activities, measured: Mapping[str, Any] | None = None) -> "pa.Table":
    """Return one row an activity; what is unknown, or below 0 or NaN in more columns, is null."""
    import pyarrow as pa

    columns: dict[str, Any] = {}
    for name in (*_NUMBERS, "layer", "iteration", "bytes"):
        values = getattr(activities, name)
        unknown = values == NONE if name in _MAY_BE_UNKNOWN else None
        columns[name] = pa.array(values, mask=unknown)
    columns |= {
        "name": _words(activities.name, activities.names),
        "kind": _words(activities.kind, KINDS),
        "class": _words(activities.klass, CLASSES),
        "type": _words(activities.type, TYPES),
        "operation": _words(activities.operation, activities.operations),
        "phase": _words(activities.phase, PHASES),
        "recompute": pa.array(activities.recompute),
        "group": _words(activities.group, activities.groups),
    }
    for name, values in (measured or {}).items():
        columns[name] = pa.array(values, mask=~(np.asarray(values) >= 0))
    return _stamped(pa.table(columns))


def row_table(rows: Sequence[Mapping[str, Any]]) -> "pa.Table":
    """Return the rows of a result; a nested mapping becomes columns with dotted names."""
    return _stamped(table_of_rows(rows))


def write_parquet(table: "pa.Table", path: str | Path) -> None:
    """Write a table as one file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd")
    write_whole(Path(path), buffer.getvalue(), key=KEY)


def _words(codes: Any, words: Sequence[str]) -> Any:
    import pyarrow as pa

    indices = pa.array(codes.astype(np.int32), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(list(words), pa.string()))


def _stamped(table: "pa.Table") -> "pa.Table":
    return table.replace_schema_metadata(
        {"projector.version": package_version(), "projector.schema_version": str(SCHEMA_VERSION)}
    )
