"""Which activities a question is about: ranks, iterations, phases and types."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from projector.arrays import Flags, Ints
from projector.errors import ConfigError, shown
from projector.trace.activity import PHASES, TYPES, Activities

MOST_NUMBERS = 1_000_000
"""Numbers that a range may name."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What to look at; None stands for everything."""

    ranks: tuple[int, ...] | None = None
    iterations: tuple[int, ...] | None = None
    skip_warmup: int = 0
    """Iterations to leave out at the begin of every rank, and all that lies outside iterations."""
    phases: tuple[str, ...] | None = None
    """Some of `PHASES`."""
    types: tuple[str, ...] | None = None
    """Some of `TYPES`."""

    def __post_init__(self) -> None:
        _check_names("phase", self.phases, PHASES)
        _check_names("type", self.types, TYPES)
        if self.skip_warmup < 0:
            msg = f"skip_warmup: iterations to leave out cannot be {self.skip_warmup}"
            raise ConfigError(msg, key="skip_warmup", value=self.skip_warmup, allowed="0, 1, 2 ...")

    def to_dict(self) -> dict[str, object]:
        """Return what was chosen, without what was left open."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in found.items()
            if value
        }

    @property
    def in_time(self) -> "Selection":
        """The ranks and iterations alone: what may be cut out without tearing neighbours apart."""
        return replace(self, phases=None, types=None)


def numbers(text: str, key: str) -> tuple[int, ...]:
    """Read ``0,2-5`` as 0, 2, 3, 4, 5."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        begin, end = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not 0 <= end - begin < MOST_NUMBERS:
            msg = f"{key}: {shown(text)} is no list of numbers; write 3, or 0,2-5"
            raise ConfigError(msg, key=key, value=text, allowed="numbers and ranges: 0,2-5")
        found.update(range(begin, end + 1))
    return tuple(sorted(found))


def chosen(activities: Activities, selection: Selection) -> Flags:
    """Return which activities belong to a selection."""
    rows = np.ones(len(activities), np.bool_)
    if selection.ranks is not None:
        _check_present("ranks", selection.ranks, activities.rank)
        rows &= np.isin(activities.rank, selection.ranks)
    if selection.iterations is not None or selection.skip_warmup:
        known = _iterations(activities)
        kept = np.unique(known)[selection.skip_warmup :]
        if not len(kept):
            msg = (
                f"skip_warmup: the trace has {len(np.unique(known))} iterations; leaving out "
                f"{selection.skip_warmup} leaves nothing"
            )
            allowed = f"0 to {len(np.unique(known)) - 1}"
            raise ConfigError(msg, key="skip_warmup", value=selection.skip_warmup, allowed=allowed)
        if selection.iterations is not None:
            _check_present("iterations", selection.iterations, known)
            kept = np.intersect1d(kept, selection.iterations)
        rows &= np.isin(activities.iteration, kept)
    for wanted, column, names in (
        (selection.phases, activities.phase, PHASES),
        (selection.types, activities.type, TYPES),
    ):
        if wanted is not None:
            rows &= np.isin(column, [names.index(name) for name in wanted])
    return rows


def take(activities: Activities, rows: Flags) -> Activities:
    """Return some of the activities; a forward that is not among them becomes unknown."""
    if rows.all():
        return activities
    place = np.full(len(activities) + 1, -1, np.int64)
    place[:-1][rows] = np.arange(np.count_nonzero(rows))
    columns = {
        each.name: getattr(activities, each.name)[rows]
        for each in fields(activities)
        if isinstance(getattr(activities, each.name), np.ndarray)
    }
    # An unknown forward is -1, the last place, which is -1 again.
    return replace(activities, **(columns | {"forward": place[columns["forward"]]}))


def _iterations(activities: Activities) -> Ints:
    known = activities.iteration[activities.iteration >= 0]
    if not len(known):
        msg = "iterations: the trace has none, because nothing in it is annotated as a step"
        allowed = "a trace recorded with a step of the profiler (ProfilerStep#N)"
        raise ConfigError(msg, key="iterations", allowed=allowed)
    return known


def _check_present(key: str, wanted: Sequence[int], column: Ints) -> None:
    present = np.unique(column)
    missing = np.setdiff1d(wanted, present)
    if len(missing):
        found = ", ".join(map(str, present[:20])) + (" ..." if len(present) > 20 else "")
        msg = f"{key}: the trace has no {missing[0]}; it has {found}"
        allowed = [int(each) for each in present]
        raise ConfigError(msg, key=key, value=int(missing[0]), allowed=allowed)


def _check_names(key: str, wanted: Sequence[str] | None, names: Sequence[str]) -> None:
    for name in wanted or ():
        if name not in names:
            msg = f"{key}: there is no {shown(name)}; known: {', '.join(names)}"
            raise ConfigError(msg, key=key, value=name, allowed=list(names))
