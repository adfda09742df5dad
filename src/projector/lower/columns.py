"""Columns of sections, each declared once: what it reads and its type.

Jobs of a batch mostly share a few sections, so that a section is read once for all of them.
"""

from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from typing import Any, Generic, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from projector.arrays import Array, Ints, bytes_of_rows
from projector.units import si_unit

S = TypeVar("S")
"""A section of a job."""

P = TypeVar("P")
"""What is read of it: the section, or a part of it."""

T = TypeVar("T", np.int64, np.float64)


Part = Callable[[Any], Any]
"""Returns a section of a section."""

None_ = float | Callable[[str], float] | None
"""What stands for a number that is not stated, or what returns it given the name of the field."""


def _plain(field: str, none: None_) -> Callable[[Any], Any]:
    """Return what reads a field, and something else where it or a section around it is none."""
    if none is None:
        return attrgetter(field)
    names = field.split(".")

    def read(section: Any) -> Any:
        for name in names:
            section = getattr(section, name)
            if section is None:
                return none(name) if callable(none) else none
        return section

    return read


V = TypeVar("V", bound="NDArray[Any]")


class Declared(Generic[V]):
    """An attribute of a class of columns, which is read once where it is asked for."""

    def __set_name__(self, owner: type, name: str) -> None:
        """Take the name of the attribute."""
        self.name = name

    def values_of(self, columns: Any) -> V:
        """Return the column of a table, a batch or records."""
        raise NotImplementedError

    @overload
    def __get__(self, columns: None, owner: type) -> Self: ...
    @overload
    def __get__(self, columns: object, owner: type) -> V: ...
    def __get__(self, columns: object | None, owner: type) -> Self | V:
        """Return the column, int64 or float64[jobs or workloads]."""
        if columns is None:
            return self
        values = self.values_of(columns)
        # Found there from now on, before this declaration.
        columns.__dict__[self.name] = values
        return values


class Column(Declared[NDArray[T]], Generic[S, T]):
    """One number of a section, or a fixed row of numbers: an attribute of `SectionColumns`."""

    def __init__(
        self,
        dtype: type[T],
        read: str | Callable[[Any], Any],
        part: Part | None = None,
        none: None_ = None,
    ) -> None:
        """Declare what is read of a section, or of a part of it; booleans become 0 and 1."""
        self.field = read if isinstance(read, str) else ""
        self.read = _plain(read, none) if isinstance(read, str) else read
        self.dtype: type[T] = dtype
        self.part = part

    def values_of(self, columns: "SectionColumns[S]") -> NDArray[T]:
        """Return the column of every job."""
        values: NDArray[T] = columns.of_jobs(columns.table.column(self))
        return values


class KeyColumn(Declared[Ints], Generic[S]):
    """Equal numbers where sections are equal in what a key reads."""

    def __init__(self, read: Callable[[S], Hashable]) -> None:
        """Declare what is compared of a section."""
        self.read = read

    def values_of(self, columns: "SectionColumns[S]") -> Ints:
        """Return the key of every job."""
        return columns.of_jobs(columns.table.key(self))

    def keys(self, table: "SectionTable[S]", begin: int) -> list[Hashable]:
        """Return what is compared of the sections from a row of their table on."""
        return [self.read(item) for item in table.items[begin:]]


class KeyOfColumns(KeyColumn[S]):
    """Equal numbers where sections are equal in some columns, and in what a key reads."""

    def __init__(
        self, columns: Callable[[], Sequence[Column[S, Any]]], read: Callable[[S], Hashable]
    ) -> None:
        """Declare which columns are compared, and what besides."""
        super().__init__(read)
        self._columns = columns

    def keys(self, table: "SectionTable[S]", begin: int) -> list[Hashable]:
        """Return what is compared of the sections from a row of their table on."""
        num = len(table.items) - begin
        columns = [table.column(column)[begin:] for column in self._columns()]
        rows = np.concatenate([each.reshape(num, -1).view(np.int64) for each in columns], axis=1)
        return [*zip(bytes_of_rows(rows), super().keys(table, begin), strict=True)]


class Declare(Generic[S, P]):
    """Declares columns of what is read of one kind of section, or of a part that sections share.

    A plain read names a field or a property, which says what it is and in which unit; it may lie in
    a nested section. Whatever takes more is a function, with a comment: its meaning, [its unit].
    """

    def __init__(self, part: Part | None = None) -> None:
        """Keep what returns the part, which is read once for all sections that share it."""
        self._part = part

    def ints(
        self, read: str | Callable[[P], int | Sequence[int]], none: int | None = None
    ) -> Column[S, np.int64]:
        """Declare whole numbers or flags; ``none`` stands where nothing is stated."""
        return Column(np.int64, read, self._part, none)

    def floats(
        self, read: str | Callable[[P], float | Sequence[float]], none: None_ = None
    ) -> Column[S, np.float64]:
        """Declare bytes, seconds, rates and shares; ``none`` as in `si`."""
        return Column(np.float64, read, self._part, none)

    def si(self, field: str, none: None_ = None) -> Column[S, np.float64]:
        """Declare a field in SI units; the end of its name tells its own.

        Where nothing is stated, ``none`` stands in the unit of the field, or returns what does.
        """
        column = Column[S, np.float64](np.float64, field, part=self._part, none=none)
        stated, unit = column.read, si_unit(field)
        column.read = lambda section: stated(section) * unit
        return column

    def code(self, field: str, among: Sequence[str]) -> Column[S, np.int64]:
        """Declare the position of what a field says among all that it may say."""
        column = Column[S, np.int64](np.int64, field, part=self._part)
        stated = column.read
        column.read = lambda section: among.index(stated(section))
        return column

    def key(self, read: Callable[[S], Hashable]) -> KeyColumn[S]:
        """Declare what is compared."""
        return KeyColumn(read)

    def key_of(
        self,
        columns: Callable[[], Sequence[Column[S, Any]]],
        read: Callable[[S], Hashable] = lambda _: None,
    ) -> KeyOfColumns[S]:
        """Declare which columns are compared, and what besides."""
        return KeyOfColumns(columns, read)


class SectionTable(Generic[S]):
    """Sections of one kind, one row each; columns are read when they are asked for."""

    def __init__(self, items: Sequence[S]) -> None:
        """Keep the sections, which stay alive as long as their table."""
        self.items = tuple(items)
        self._columns: dict[Column[S, Any], Array] = {}
        self._parts: dict[Part, tuple[SectionTable[Any], dict[int, int], Ints]] = {}
        self._keys: dict[KeyColumn[S], tuple[dict[Hashable, int], Ints]] = {}

    def grow(self, items: Sequence[S]) -> None:
        """Add sections behind those that are there, which are not read again."""
        self.items += tuple(items)

    def column(self, column: Column[S, Any]) -> Array:
        """Return int64 or float64[sections]."""
        known = self._columns.get(column)
        if known is None or len(known) < len(self.items):
            if column.part is None:
                known = self.read(column)
            else:
                parts, index = self._parts_of(column.part)
                known = parts.read(column).take(index, axis=0)
            self._columns[column] = known
        return known

    def read(self, column: Column[Any, Any]) -> Array:
        """Return a column as it is read of each item, those that were not read before."""
        known = self._columns.get(column, np.zeros(0, column.dtype))
        more = [column.read(item) for item in self.items[len(known) :]]
        if more:
            read = np.array(more, column.dtype)
            known = self._columns[column] = np.concatenate([known, read]) if len(known) else read
        return known

    def _parts_of(self, part: Part) -> tuple["SectionTable[Any]", Ints]:
        """Return the distinct parts of the sections, and which of them each section has."""
        table, number, index = self._parts.get(part, (SectionTable([]), {}, np.zeros(0, np.int64)))
        if len(index) < len(self.items):
            found = [part(item) for item in self.items[len(index) :]]
            more = [number.setdefault(id(each), len(number)) for each in found]
            new = dict(zip(more, found, strict=True))
            table.grow([new[at] for at in range(len(table.items), len(number))])
            index = np.concatenate([index, np.array(more, np.int64)])
            self._parts[part] = table, number, index
        return table, index

    def key(self, key: KeyColumn[S]) -> Ints:
        """Return int64[sections]: equal numbers where sections are equal in a key."""
        known, numbers = self._keys.get(key, ({}, np.zeros(0, np.int64)))
        if len(numbers) < len(self.items):
            more = [known.setdefault(each, len(known)) for each in key.keys(self, len(numbers))]
            numbers = np.concatenate([numbers, np.array(more, np.int64)])
            self._keys[key] = known, numbers
        return numbers


class SectionColumns(Generic[S]):
    """One section of every job of a batch; subclasses declare its columns."""

    def __init__(self, table: SectionTable[S], index: Ints) -> None:
        """Keep the table, and the row of it that each job has."""
        self.table, self.index = table, index

    def of_jobs(self, column: Array) -> Array:
        """Return a column of the table for every job."""
        if len(column) == 1 and column.ndim == 1:
            values = np.full(len(self.index), column[0])
        else:
            values = column.take(self.index, axis=0)
        # A shared column is read-only.
        values.setflags(write=False)
        return values

    def of(self, row: int) -> S:
        """Return the section of one job."""
        return self.table.items[int(self.index[row])]
