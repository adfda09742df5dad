"""Columns of numpy as arrays of Arrow, which takes their memory as it is.

``pyarrow.array`` would load pandas, where there is one, to find out whether it was given a series:
0.3 s of each process. So would ``to_numpy`` and empty tables; ``pyarrow.compute`` takes 0.05 s.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from projector.arrays import Array, Flags

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
