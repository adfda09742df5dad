"""What points of a space have, computed once for each combination of the axes it depends on."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Ints, Ints32
from projector.config.space import Space
from projector.errors import ProjectorError
from projector.kernels import space_index
from projector.sweeps.computed import Compute, Computed, decoded

DENSE_TABLE = 1 << 22
"""Combinations of axes up to which each has an entry in a table; beyond, those that are met are
kept in a dictionary."""

MOST_INNER = 128
"""Combinations of inner axes, if that is more than the last one; see `choose_points`."""

LONGEST_INNER = 1 << 16
"""Places of the last axis, if it alone is to be inner."""

MOST_VALUES = 1 << 17
"""Values that are kept of one look-up; beyond, it begins anew."""

MANY_POINTS, SAMPLE_STEP = 1 << 14, 997
"""Of more points, one in so many goes first: each unknown entry takes a pass over all of them."""

MOST_AT_ONCE = 1 << 15
"""Combinations that are all computed with the first, where columns say what they have."""


class Lookup:
    """Values that depend on some axes of a space, computed when they are first met."""

    def __init__(
        self,
        space: Space,
        axes: Sequence[int],
        compute: Compute,
        *,
        is_legal: Callable[[Any], bool] = lambda value: not isinstance(value, ProjectorError),
    ) -> None:
        """Keep lookups for axes, by `Compute`; ``is_legal``: a point with a value may be a job."""
        self.axes = tuple(axes)
        self._sizes = [len(space.axes[axis].points) for axis in self.axes]
        self._compute, self._is_legal = compute, is_legal
        self.stride = np.zeros(len(space.axes), np.int64)
        """int64[axes]: what a step on each axis adds to the number of a combination."""
        self.combinations = 1
        for axis, size in zip(reversed(self.axes), reversed(self._sizes), strict=True):
            self.stride[axis] = self.combinations
            self.combinations *= size
        self.is_dense = self.combinations <= DENSE_TABLE
        self.dense = np.zeros(0, np.int32)
        """int32[combinations]: entries, part of the table of several look-ups."""
        self._begin()

    def _begin(self) -> None:
        self.values: list[Any] = []
        """Distinct values."""
        self._numbers: dict[tuple[type, str], int] = {}
        self._sparse: dict[int, int] = {}

    def make_room(self) -> None:
        """Begin anew where no more values should be kept."""
        if max(len(self.values), len(self._sparse)) > MOST_VALUES:
            self._begin()
            self.dense[:] = space_index.UNKNOWN

    def learn(self, keys: Ints) -> None:
        """Compute what combinations with distinct numbers have."""
        is_cheap = isinstance(self._compute, Computed) and self._compute.in_columns
        if self.combinations <= MOST_AT_ONCE and self.is_dense and is_cheap:
            keys = np.arange(self.combinations)
        values, numbers = self._compute(decoded(keys, self.axes, self._sizes))
        entries = np.array([self._entry(value) for value in values], np.int32)[numbers]
        if self.is_dense:
            self.dense[keys] = entries
        else:
            self._sparse.update(zip(keys.tolist(), entries.tolist(), strict=True))

    def entries(self, keys: Ints) -> Ints32:
        """Return the entries of a look-up without a table, int32[combinations]."""
        return np.array(
            [self._sparse.get(key, space_index.UNKNOWN) for key in keys.tolist()], np.int32
        )

    def _entry(self, value: Any) -> int:
        number = len(self.values)
        if isinstance(value, bool | int | float | str):
            number = self._numbers.setdefault((type(value), repr(value)), number)
        if number == len(self.values):
            self.values.append(value)
        return 2 * number + 2 + (not self._is_legal(value)) * space_index.REFUSED


def computed_field(space: Space, field: str) -> Lookup:
    """Return the values of a computed field."""
    axes, derived = space.axes_of([field])

    def alone(places: Mapping[int, int]) -> Any:
        return space.overrides_at(places, derived)[field]

    return Lookup(space, axes, Computed(space, space.derived[field], alone, truth=False))


class Chosen(NamedTuple):
    """Points that no look-up refuses."""

    rows: Ints
    """int64[chosen]: position among the points asked for."""
    places: Ints32
    """int32[axes, chosen]: position on each axis."""
    numbers: Ints
    """int64[shown, chosen]: value of each look-up that is shown."""
    refused: list[tuple[int, int, int]]
    """Look-up and value for which points are refused, and how many."""


class Lookups:
    """Several look-ups, of which a point is refused by the first one that does so."""

    def __init__(self, space: Space, lookups: Sequence[Lookup], shown: Sequence[Lookup]) -> None:
        """Put look-ups together, in the order asked; those ``shown`` give values of points."""
        self._lookups = list(lookups)
        self._sizes = np.array([len(axis.points) for axis in space.axes], np.int64)
        strides = np.array([lookup.stride for lookup in lookups], np.int64).T.copy()
        inner = _inner_places(self._sizes)
        self._axes = space_index.Axes(self._sizes, inner)
        inner_strides = strides[len(self._sizes) - len(inner) :]
        sparse = [not lookup.is_dense for lookup in lookups]
        dense = [lookup.combinations if lookup.is_dense else 0 for lookup in lookups]
        first_entry = np.concatenate([[0], np.cumsum(dense)])[:-1]
        # Pages that nobody writes take no memory.
        table = np.zeros(sum(dense), np.int32)
        for lookup, first, count in zip(lookups, first_entry.tolist(), dense, strict=True):
            if lookup.is_dense:
                lookup.dense = table[first : first + count]
        self._sparse = [lookup for lookup in lookups if not lookup.is_dense]
        self._known = space_index.LookupColumns(
            stride=strides,
            key=np.ascontiguousarray(inner_strides.T @ inner.astype(np.int64)),
            varies=(inner_strides != 0).any(axis=0) | sparse,
            first=first_entry,
            entry=table,
            slot=_positions(self._lookups, self._sparse),
            entry_of_point=np.empty((0, 0), np.int32),
            shown=_positions(self._lookups, shown),
            value=np.empty(0, np.int64),
        )
        self._shown = len(shown)

    def choose(self, points: Ints) -> Chosen:
        """Return which of some points, int64[points], are legal."""
        for lookup in self._lookups:
            lookup.make_room()
        count = len(points)
        if count > MANY_POINTS:
            self.choose(points[::SAMPLE_STEP])
        keys = [_combined(lookup, points, self._sizes) for lookup in self._sparse]
        wanted = np.empty((count, 2), np.int64)
        rows, numbers = np.empty(count, np.int64), np.empty((self._shown, count), np.int64)
        places = np.empty((len(self._sizes), count), np.int32)
        while True:
            values = [len(lookup.values) for lookup in self._lookups]
            refused = np.zeros(sum(values), np.int64)
            begin = np.cumsum([0, *values])
            legal, unknown = space_index.choose_points(
                points,
                self._axes,
                self._known._replace(
                    entry_of_point=_stacked(self._sparse, keys, count), value=begin[:-1]
                ),
                space_index.Found(rows, places, numbers, refused, wanted),
            )
            if not unknown:
                break
            self._learn(points, wanted[:unknown])
        return Chosen(
            rows[:legal], places[:, :legal], numbers[:, :legal], _refusals(refused, begin)
        )

    def _learn(self, points: Ints, wanted: Ints) -> None:
        """Compute entries that are wanted: look-up, and position of a point."""
        new = []
        for number, lookup in enumerate(self._lookups):
            rows = wanted[wanted[:, 0] == number, 1]
            new.append(np.unique(_combined(lookup, points[rows], self._sizes)))
            # A mistake on the way must not leave its mark.
            if lookup.is_dense:
                lookup.dense[new[-1]] = space_index.UNKNOWN
        for lookup, keys in zip(self._lookups, new, strict=True):
            if len(keys):
                lookup.learn(keys)


def _inner_places(sizes: Ints) -> Ints32:
    """Return the places of all combinations of the inner axes, int32[inner axes, combinations]."""
    first, count = len(sizes), 1
    while first and (
        count * sizes[first - 1] <= MOST_INNER or (count == 1 and sizes[first - 1] <= LONGEST_INNER)
    ):
        first -= 1
        count *= int(sizes[first])
    places = decoded(np.arange(count), range(len(sizes) - first), sizes[first:].tolist())
    inner = [places[axis] for axis in sorted(places)]
    return np.array(inner, np.int32).reshape(len(inner), count)


def _positions(lookups: Sequence[Lookup], among: Sequence[Lookup]) -> Ints:
    """Return the position of each look-up among some of them, -1 of others."""
    return np.array([among.index(each) if each in among else -1 for each in lookups], np.int64)


def _combined(lookup: Lookup, points: Ints, sizes: Ints) -> Ints:
    found = np.zeros(len(points), np.int64)
    for axis in reversed(range(len(sizes))):
        points, places = np.divmod(points, sizes[axis])
        found += places * lookup.stride[axis]
    return found


def _stacked(lookups: Sequence[Lookup], keys: Sequence[Ints], count: int) -> Ints32:
    """Return the entries of look-ups without a table, int32[lookups, points]."""
    entries = np.empty((len(lookups), count), np.int32)
    for row, (lookup, of_point) in enumerate(zip(lookups, keys, strict=True)):
        distinct, place = np.unique(of_point, return_inverse=True)
        entries[row] = lookup.entries(distinct)[place]
    return entries


def _refusals(refused: Ints, begin: Ints) -> list[tuple[int, int, int]]:
    """Return look-up, value and points of what is refused; ``begin`` of each look-up's values."""
    at = np.flatnonzero(refused)
    lookup = np.searchsorted(begin, at, side="right") - 1
    return list(
        zip(lookup.tolist(), (at - begin[lookup]).tolist(), refused[at].tolist(), strict=True)
    )
