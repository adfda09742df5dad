"""Columns of a sweep: the kinds of its axes, and rows as tables of Arrow.

Arrow takes the memory of numpy as it is. ``pyarrow.array`` would load pandas, where there is one,
to find out whether it was given a series: 0.3 s of each process. So would ``to_numpy`` and empty
tables; ``pyarrow.compute`` takes 0.05 s.
"""

import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from projector.arrays import Array, Flags, Ints, Ints32
from projector.config.space import OtherSpace, Space
from projector.config.space_file import read_space
from projector.config.yaml_file import read_yaml
from projector.errors import ConfigError, ProjectorError, shown
from projector.projection.results import BOOL, FLOAT, INT, RESULTS, STATUS, TEXT, Coded, Column
from projector.projection.run import RUN_SCALARS

if TYPE_CHECKING:
    import pyarrow as pa

PROBES = 2048
"""Points looked at for the kinds of computed fields: the first ones, evenly spaced ones and random
ones, this many each. Looking computes nothing."""

LARGEST = 2**62
"""Most points of a space; an index is an int64."""

SpaceLike = Space | Mapping[str, Any] | str | Path


def load_space(source: SpaceLike) -> Space:
    """Read a space of jobs, or of deployments that serve.

    Args:
        source (str, Path, mapping or Space): A YAML file or a mapping with ``base`` (a job, or what
            serves: it has a section ``load``; a file, beside the space file, or a mapping),
            ``axes`` (dotted field -> values) and
            ``constraints`` (expressions that every point must make true). Values are a list, or a
            mapping with one of ``range: [first, last, step]``, ``powers_of_two: [first, last]``,
            ``log: [first, last, count]`` (evenly spaced logarithms), ``scale: [factors]`` (of the
            base's value) or ``expression: text`` (computed from the others). ``field, field:
            [[value, value], ...]`` ties fields together. ``best_of`` has axes too; of their
            combinations a sweep keeps the best for each point of ``axes``.

    Raises:
        ConfigError: For anything that does not describe a space; the message names key and remedy.
    """
    loaded = read_space(source, _kind_of)
    if loaded.size > LARGEST:
        msg = f"axes: the space has {loaded.size:.2e} points, more than can be numbered"
        raise ConfigError(msg, key="axes", value=loaded.size, allowed=f"<= {LARGEST} points")
    return loaded


def _kind_of(base: Any) -> type[Space]:
    if isinstance(base, Path) and base.suffix in {".yaml", ".yml"}:
        with suppress(ConfigError):
            base = read_yaml(base)
    if not isinstance(base, Mapping) or "load" not in base:
        if isinstance(base, Mapping) and "device" in base:
            msg = "base: a deployment also needs a section load; a job has cluster.device"
            raise ConfigError(msg, key="base", allowed="a serving file with a load, or a job")
        return Space
    from projector.sweeps.serving import ServingSpace

    return ServingSpace


def sample(space: Space, count: int) -> Sequence[int]:
    """Return ``count`` random points, always the same; all of them, mixed, where there are few."""
    draw = random.Random(0)  # noqa: S311  # a sample, no secret
    if space.size <= count:
        return draw.sample(range(space.size), space.size)
    return [draw.randrange(space.size) for _ in range(count)]


STATES_A_RUN = ("run", "run.tokens", "run.steps", "run.samples")
"""Fields that say how much a job trains."""


def states_run(space: Space) -> bool:
    """Whether jobs of a space say how much they train; their rows have the columns of a run."""
    return space.base.run.is_stated or any(field in STATES_A_RUN for field in space.fields)


def results_of(space: Space) -> dict[str, str]:
    """Return every column of results with its kind.

    Those of a run, where `states_run` says so, stand before the last one.
    """
    if isinstance(space, OtherSpace):
        return dict(space.results)
    kinds = dict(RESULTS)
    if states_run(space):
        last = kinds.pop(STATUS)
        kinds |= {scalar.name: FLOAT for scalar in RUN_SCALARS} | {STATUS: last}
    return kinds


def column_kinds(axes: Mapping[str, str], results: Mapping[str, str] = RESULTS) -> dict[str, str]:
    """Return every column with its kind: axes first; an axis that results repeat is listed once."""
    return {**axes, **results}


def axis_kinds(space: Space) -> dict[str, str]:
    """Return the kind of each axis' column; that of a computed field from a few thousand points.

    Whole numbers and fractions together are fractions; anything else together is text, and so are
    lists and mappings.
    """
    kinds_of: dict[str, set[str]] = {field: set() for field in space.fields}
    for axis in space.axes:
        for position, field in enumerate(axis.fields):
            values = [point[position] for point in axis.points]
            kinds_of[field] |= {_kind(value) for value in values if value is not None}
    for field, values in _probed(space).items():
        kinds_of[field] |= {_kind(value) for value in values if value is not None}
    return {
        field: FLOAT if kinds == {INT, FLOAT} else kinds.pop() if len(kinds) == 1 else TEXT
        for field, kinds in kinds_of.items()
    }


def optional_columns(space: Space, kinds: Mapping[str, str]) -> frozenset[str]:
    """Return which columns, name -> kind, may lack values in some rows of a space.

    They are axes with such a value, computed fields, and what a whole run takes.
    """
    optional = {*space.derived, *(scalar.name for scalar in RUN_SCALARS)}
    for axis in space.axes:
        for position, field in enumerate(axis.fields):
            if field in RESULTS:  # of a legal job, whose values have its kind
                continue
            cells = (cell(field, kinds[field], point[position]) for point in axis.points)
            if any(each is None for each in cells):
                optional.add(field)
    return frozenset(name for name in optional - RESULTS.keys() if name in kinds)


def _probed(space: Space) -> dict[str, list[Any]]:
    """Return the distinct values of computed fields at some points at which all can be computed."""
    if not space.derived:
        return {}
    from projector.sweeps.lookups import Lookups, computed_field

    size = space.size
    even = {size * step // PROBES for step in range(PROBES)} if size else set()
    points = {*range(min(size, PROBES)), *even, *sample(space, PROBES)}
    fields = {field: computed_field(space, field) for field in space.derived}
    lookups = [*fields.values()]
    chosen = Lookups(space, lookups, lookups).choose(np.array(sorted(points), np.int64))
    return {
        field: [lookup.values[number] for number in np.unique(numbers).tolist()]
        for (field, lookup), numbers in zip(fields.items(), chosen.numbers, strict=True)
    }


def cell(field: str, kind: str, value: Any) -> Any:
    """Return a value of an axis as its column holds it."""
    if value is None:
        return None
    value_kind = _kind(value)
    if kind == TEXT:
        is_text = value_kind == TEXT and isinstance(value, str)
        return value if is_text else json.dumps(value, sort_keys=True, default=str)
    if value_kind == kind == INT:
        return int(value)
    if kind == FLOAT and value_kind in {INT, FLOAT}:
        return float(value) if math.isfinite(value) else None
    if value_kind == kind:
        return bool(value)
    msg = f"{field}: {shown(value)} differs in kind from the other values of its axis ({kind})"
    raise ConfigError(msg, key=field, value=value, allowed=f"values of one kind ({kind})")


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, Integral):
        # No field of a job takes a number that an int64 cannot hold.
        return INT if -(2**63) <= int(value) < 2**63 else TEXT
    return FLOAT if isinstance(value, Real) else TEXT


def arrow_types() -> dict[str, "pa.DataType"]:
    """Return kind of a column -> its type."""
    import pyarrow as pa

    return {BOOL: pa.bool_(), INT: pa.int64(), FLOAT: pa.float64(), TEXT: pa.string()}


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
            known, count, cells = self._cells.get(name, (None, 0, None))
            if cells is None or known is not values or count < len(values):
                cells = _Cells.of(name, self._kinds[name], values)
                self._cells[name] = values, len(values), cells
            arrays.append(cells.array(index))
        return pa.Table.from_arrays(arrays, schema=self.schema)


class _Cells(NamedTuple):
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
