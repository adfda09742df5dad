"""Columns of sections, each declared once: what it reads, its type, its unit and its meaning.

Jobs of a batch mostly share a few sections, so that a section is read once for all of them.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from projector.arrays import Array, Ints, bytes_of_rows

S = TypeVar("S")
"""A section of a job."""

T = TypeVar("T", np.int64, np.float64)


Part = Callable[[Any], Any]
"""Returns a section of a section."""


class Column(Generic[S, T]):
    """One number of a section, or a fixed row of numbers: an attribute of `SectionColumns`."""

    def __init__(
        self,
        dtype: type[T],
        read: Callable[[Any], Any],
        unit: str,
        meaning: str,
        part: "Part | None" = None,
    ) -> None:
        """Declare what is read of a section, or of a part of it; booleans become 0 and 1.

        Parameters
        ----------
        unit : str
            Unit of the numbers, or what kind of number they are.
        meaning : str
            What the column says, in one line.
        part : callable, optional
            Returns the part, which many sections may share: it is read once for all of them.
        """
        self.dtype: type[T] = dtype
        self.part = part
        self.read, self.unit, self.meaning = read, unit, meaning

    def __set_name__(self, owner: type, name: str) -> None:
        """Take the name of the attribute."""
        self.name = name

    @overload
    def __get__(self, columns: None, owner: type) -> Self: ...
    @overload
    def __get__(self, columns: "SectionColumns[S]", owner: type) -> NDArray[T]: ...
    def __get__(self, columns: "SectionColumns[S] | None", owner: type) -> "Self | NDArray[T]":
        """Return int64 or float64[jobs], computed once for each batch."""
        if columns is None:
            return self
        values: NDArray[T] = columns.of_jobs(columns.table.column(self))
        # Found there from now on, before this declaration.
        columns.__dict__[self.name] = values
        return values


class KeyColumn(Generic[S]):
    """Equal numbers where sections are equal in what a key reads."""

    def __init__(self, read: Callable[[S], Hashable], meaning: str) -> None:
        """Declare what is compared of a section, and what jobs share that agree in it."""
        self.read, self.meaning = read, meaning

    def __set_name__(self, owner: type, name: str) -> None:
        """Take the name of the attribute."""
        self.name = name

    @overload
    def __get__(self, columns: None, owner: type) -> Self: ...
    @overload
    def __get__(self, columns: "SectionColumns[S]", owner: type) -> Ints: ...
    def __get__(self, columns: "SectionColumns[S] | None", owner: type) -> Self | Ints:
        """Return int64[jobs], computed once for each batch."""
        if columns is None:
            return self
        values: Ints = columns.of_jobs(columns.table.key(self))
        columns.__dict__[self.name] = values
        return values

    def keys(self, table: "SectionTable[S]", begin: int) -> list[Hashable]:
        """Return what is compared of the sections from a row of their table on."""
        return [self.read(item) for item in table.items[begin:]]


class KeyOfColumns(KeyColumn[S]):
    """Equal numbers where sections are equal in some columns, and in what a key reads."""

    def __init__(
        self,
        columns: Callable[[], Sequence[Column[S, Any]]],
        read: Callable[[S], Hashable],
        meaning: str,
    ) -> None:
        """Declare which columns are compared, and what besides."""
        super().__init__(read, meaning)
        self._columns = columns

    def keys(self, table: "SectionTable[S]", begin: int) -> list[Hashable]:
        """Return what is compared of the sections from a row of their table on."""
        num = len(table.items) - begin
        columns = [table.column(column)[begin:] for column in self._columns()]
        rows = np.concatenate([each.reshape(num, -1).view(np.int64) for each in columns], axis=1)
        return [*zip(bytes_of_rows(rows), super().keys(table, begin), strict=True)]


class Declare(Generic[S]):
    """Makes declarations for one kind of section, so that what they read is checked."""

    def ints(
        self, read: Callable[[S], int | Sequence[int]], unit: str, meaning: str
    ) -> Column[S, np.int64]:
        """Declare whole numbers, codes or flags."""
        return Column(np.int64, read, unit, meaning)

    def floats(
        self, read: Callable[[S], float | Sequence[float]], unit: str, meaning: str
    ) -> Column[S, np.float64]:
        """Declare bytes, seconds, rates and shares."""
        return Column(np.float64, read, unit, meaning)

    def part(self, part: Part) -> "DeclareOfPart[S]":
        """Return what makes declarations for a part of such a section."""
        return DeclareOfPart(part)

    def key(self, read: Callable[[S], Hashable], meaning: str) -> KeyColumn[S]:
        """Declare what is compared."""
        return KeyColumn(read, meaning)

    def key_of(
        self,
        columns: Callable[[], Sequence[Column[S, Any]]],
        meaning: str,
        read: Callable[[S], Hashable] = lambda _: None,
    ) -> KeyOfColumns[S]:
        """Declare which columns are compared, and what besides."""
        return KeyOfColumns(columns, read, meaning)


class DeclareOfPart(Generic[S]):
    """Makes declarations of what is read of one part of a section."""

    def __init__(self, part: Part) -> None:
        """Keep what returns the part."""
        self._part = part

    def ints(
        self, read: Callable[[Any], int | Sequence[int]], unit: str, meaning: str
    ) -> Column[S, np.int64]:
        """Declare whole numbers, codes or flags."""
        return Column(np.int64, read, unit, meaning, self._part)

    def floats(
        self, read: Callable[[Any], float | Sequence[float]], unit: str, meaning: str
    ) -> Column[S, np.float64]:
        """Declare bytes, seconds, rates and shares."""
        return Column(np.float64, read, unit, meaning, self._part)


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
