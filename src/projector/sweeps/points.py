"""Points of a space as what they set in each section of its base.

What a point sets in a section depends on a few axes, and so does every constraint and every
computed field. Each is read once for each combination of those axes and then looked up.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from projector.arrays import Ints, Ints32
from projector.config.space import Expression, Space
from projector.errors import ProjectorError
from projector.sweeps.computed import Computed, one_by_one
from projector.sweeps.lookups import Lookup, Lookups, computed_field

SLO = "slo_met"
"""Column of results that says whether a deployment keeps what its load promises."""


class PointBatch(NamedTuple):
    """Points of a space whose sections are legal."""

    rows: Ints
    """int64[rows]: position among the points asked for."""
    numbers: Ints
    """int64[sections, rows]: which value of each section."""
    columns: dict[str, tuple[Ints | Ints32, list[Any]]]
    """Field of an axis -> which value each row has, and the values."""
    left_out: list[tuple[ProjectorError | str, int]]
    """Why points are left out, as an error or the text of a broken constraint; how many."""


class Points(Protocol):
    """Projects points of a space of one kind; what one chunk has taught may serve the next."""

    @property
    def reader(self) -> "PointReader":
        """What reads the points."""

    def evaluated(
        self, batch: PointBatch, refuse: Callable[[ProjectorError, int], None], group: Ints | None
    ) -> Iterator[tuple[Ints, Any]]:
        """Yield rows of a batch with their results; what cannot be projected is refused.

        ``group``, int64[rows], says of which rows only the best is wanted; the others may be left
        out.

        Results have ``columns()``, ``take(rows)``, and ``merits()``: the columns of `Merits` behind
        the first.
        """


Section = tuple[Sequence[str], Callable[[dict[str, Any]], Any]]
"""Fields of a space, and what makes a value of the overrides that they depend on."""


class PointReader:
    """Reads points of one space."""

    def __init__(
        self, space: Space, sections: Sequence[Section], checks: Sequence[Section] = ()
    ) -> None:
        """Keep what reads sections; ``checks`` only refuse."""
        self.space = space
        self._derived = {field: computed_field(space, field) for field in space.derived}
        constraints = [self._constraint(constraint) for constraint in space.constraints]
        self.sections = [self._lookup(*each) for each in sections]
        shown = [*self.sections, *self._derived.values()]
        self._refusing = [*self._derived.values(), *constraints, *self.sections]
        self._refusing += [self._lookup(*each) for each in checks]
        self._broken = {
            number: f"constraint: {constraint.text}"
            for number, constraint in enumerate(space.constraints, len(self._derived))
        }
        self._lookups = Lookups(space, self._refusing, shown)

    def _constraint(self, constraint: Expression) -> Lookup:
        axes, derived = self.space.axes_of(self.space.reads(constraint))
        return Lookup(
            self.space,
            axes,
            Computed(
                self.space,
                constraint,
                lambda places: self.space.keeps(
                    constraint, self.space.overrides_at(places, derived)
                ),
                truth=True,
            ),
            is_legal=lambda value: value is True,
        )

    def _lookup(self, fields: Sequence[str], compute: Callable[[dict[str, Any]], Any]) -> Lookup:
        axes, derived = self.space.axes_of(fields)
        return Lookup(
            self.space,
            axes,
            one_by_one(lambda places: compute(self.space.overrides_at(places, derived))),
        )

    def read(self, points: Ints) -> PointBatch:
        """Return those of some points, int64[points], that nothing refuses."""
        rows, places, numbers, refused = self._lookups.choose(points)
        left_out: list[tuple[ProjectorError | str, int]] = []
        for number, value, count in refused:
            why = self._refusing[number].values[value]
            is_error = isinstance(why, ProjectorError)
            left_out.append((why if is_error else self._broken[number], count))
        own, derived = numbers[: len(self.sections)], numbers[len(self.sections) :]
        return PointBatch(rows, own, self._columns(places, derived), left_out)

    def _columns(self, places: Ints32, derived: Ints) -> dict[str, tuple[Ints | Ints32, list[Any]]]:
        columns: dict[str, tuple[Ints | Ints32, list[Any]]] = {}
        for number, axis in enumerate(self.space.axes):
            for position, name in enumerate(axis.fields):
                columns[name] = (places[number], [point[position] for point in axis.points])
        for (name, lookup), numbers in zip(self._derived.items(), derived, strict=True):
            columns[name] = (numbers, lookup.values)
        return columns
