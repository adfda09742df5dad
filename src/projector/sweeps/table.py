"""Rows as tables of Arrow: what their points have on the axes, beside their results.

Arrow takes the memory of numpy as it is. ``pyarrow.array`` would load pandas, where there is one,
to find out whether it was given a series: 0.3 s of each process. So would ``to_numpy`` and empty
tables; ``pyarrow.compute`` takes 0.05 s.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from projector.arrays import Array, Flags, Ints, Ints32
from projector.errors import ProjectorError
from projector.projection.results import BOOL, FLOAT, INT, TEXT, Coded, Column
from projector.sweeps.space import cell
from projector.sweeps.store import arrow_types

if TYPE_CHECKING:
    import pyarrow as pa


def arrow_column(values: Array, missing: Flags | None = None) -> "pa.Array":
    """Return int, float64 or bool[rows] as an array; what is ``missing``, bool[rows], is null."""
    import pyarrow as pa

    kind = pa.from_numpy_dtype(values.dtype)
    data = _bits(values) if values.dtype == np.bool_ else np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(values), [_validity(missing), pa.py_buffer(data)])


def arrow_dictionary(numbers: "pa.Array", texts: Sequence[str]) -> "pa.Array":
    """Return the texts with these numbers, int32[rows], each text once."""
    import pyarrow as pa

    data = [text.encode() for text in texts]
    offset = np.zeros(len(data) + 1, np.int32)
    np.cumsum([len(each) for each in data], out=offset[1:])
    buffers = [None, pa.py_buffer(offset), pa.py_buffer(b"".join(data))]
    distinct = pa.Array.from_buffers(pa.string(), len(data), buffers)
    # Safe would be to look whether there is a text for each number.
    return pa.DictionaryArray.from_arrays(numbers, distinct, safe=False)


def count_text(column: "pa.ChunkedArray", text: str) -> int:
    """Return how many rows of a column of dictionaries without nulls are a text."""
    total = 0
    for chunk in column.chunks:
        code = np.from_dlpack(chunk.indices)
        for number, each in enumerate(chunk.dictionary.to_pylist()):
            if each == text:
                total += int(np.count_nonzero(code == number))
    return total


def _validity(missing: Flags | None) -> "pa.Buffer | None":
    import pyarrow as pa

    if missing is None or not missing.any():
        return None
    return pa.py_buffer(_bits(~missing))


def _bits(flags: Flags) -> Array:
    return np.packbits(flags, bitorder="little")


NUMPY_TYPES = {BOOL: np.bool_, INT: np.int64, FLOAT: np.float64}

AxisColumn = tuple[Ints | Ints32, list[Any]]
"""Which value each point has, int[points], and the values: a list that only grows."""


class Tables:
    """Makes tables of one space."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        """Keep the columns, name -> kind, in their order."""
        self._kinds = kinds
        self._cells: dict[str, tuple[list[Any], int, _Cells]] = {}

    @cached_property
    def schema(self) -> "pa.Schema":
        """The columns; texts are dictionaries."""
        import pyarrow as pa

        types = arrow_types() | {TEXT: pa.dictionary(pa.int32(), pa.string())}
        return pa.schema([(name, types[kind]) for name, kind in self._kinds.items()])

    def table(
        self, axes: Mapping[str, AxisColumn], rows: Ints, results: Mapping[str, Column]
    ) -> "pa.Table":
        """Return the rows of some points, whose positions rise.

        ``axes`` has what all points have on an axis. ``results`` are values of the rows; one is
        shown instead of an axis of its name.
        """
        import pyarrow as pa

        arrays = []
        for name, kind in self._kinds.items():
            if name in results:
                arrays.append(_result_array(results[name], kind))
                continue
            index, values = axes[name]
            if len(index) != len(rows):
                index = index.take(rows)
            arrays.append(self._cells_of(name, values).array(index))
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def _cells_of(self, name: str, values: list[Any]) -> "_Cells":
        known, count, cells = self._cells.get(name, (None, 0, None))
        if cells is None or known is not values or count < len(values):
            cells = _Cells.of(name, self._kinds[name], values)
            self._cells[name] = values, len(values), cells
        return cells


class _Cells(NamedTuple):
    """Values of an axis as its column has them."""

    numbers: Array
    """The numbers, or which of the texts."""
    missing: Flags | None
    """bool[values]: which are null; None where none is."""
    texts: list[str] | None
    """None for numbers."""

    @classmethod
    def of(cls, name: str, kind: str, values: Sequence[Any]) -> "_Cells":
        """Read the values of an axis; an error, which no row has, is null."""
        cells = [
            None if isinstance(each, ProjectorError) else cell(name, kind, each) for each in values
        ]
        missing = np.array([each is None for each in cells], np.bool_)
        numbers, texts = np.array([]), None
        if kind == TEXT:
            numbers, texts = _numbered(cells)
        else:
            numbers = np.array([each or 0 for each in cells], NUMPY_TYPES[kind])
        return cls(numbers, missing if missing.any() else None, texts)

    def array(self, index: Ints | Ints32) -> "pa.Array":
        """Return the column of points with these values."""
        missing = None if self.missing is None else self.missing.take(index)
        numbers = arrow_column(gathered(self.numbers, index), missing)
        return numbers if self.texts is None else arrow_dictionary(numbers, self.texts)


def _result_array(column: Column, kind: str) -> "pa.Array":
    """Return the column of a result; fractions that are not finite are null."""
    if not isinstance(column, Coded):
        return arrow_column(column, _not_finite(column) if kind == FLOAT else None)
    if kind == TEXT:
        numbers, texts = _numbered(column.values)
        return arrow_dictionary(arrow_column(gathered(numbers, column.code)), texts)
    values = np.asarray(column.values)
    missing = _not_finite(values) if kind == FLOAT else None
    return arrow_column(
        gathered(values, column.code), None if missing is None else missing.take(column.code)
    )


def _not_finite(values: Array) -> Flags | None:
    finite = np.isfinite(values)
    return None if finite.all() else ~finite


def _numbered(texts: Iterable[str | None]) -> tuple[Ints32, list[str]]:
    """Return the number of each text, 0 of none, and the distinct texts."""
    numbers: dict[str, int] = {}
    found = [0 if each is None else numbers.setdefault(each, len(numbers)) for each in texts]
    return np.array(found, np.int32), [*numbers]


def gathered(values: Array, index: Ints | Ints32) -> Array:
    """Return ``values[index]``, sooner where all of them are one value."""
    if _is_one(values) or _is_one(index):
        return np.full(len(index), values[index[0]], values.dtype)
    return values.take(index)


def _is_one(values: Array) -> bool:
    # Zeros of both signs are two.
    bits = values.view(np.int64) if values.dtype == np.float64 else values
    return len(bits) > 0 and bool(bits[0] == bits[-1] and (bits == bits[0]).all())
