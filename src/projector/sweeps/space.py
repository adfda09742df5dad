"""What a sweep asks of a space, and how it reads the kinds of its axes."""

import json
import math
import random
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from projector.config.space import Space
from projector.config.space_file import load_space
from projector.errors import ConfigError
from projector.projection.results import BOOL, FLOAT, INT, RESULTS, TEXT
from projector.projection.run import RUN_SCALARS

PROBES = 2048
"""Points looked at for the kinds of computed fields: the first ones, evenly spaced ones and random
ones, this many each. Looking computes nothing."""

LARGEST = 2**62
"""Most points of a space; an index is an int64."""


SpaceLike = Space | Mapping[str, Any] | str | Path


def read_space(source: SpaceLike) -> Space:
    """Return a space as it is, or read one from a file or a mapping."""
    loaded = load_space(source)
    if loaded.size > LARGEST:
        msg = f"axes: the space has {loaded.size:.2e} points, more than can be numbered"
        raise ConfigError(msg, key="axes", value=loaded.size, allowed=f"<= {LARGEST} points")
    return loaded


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
        return value if value_kind == TEXT and isinstance(value, str) else _text(value)
    if value_kind == kind == INT:
        return int(value)
    if kind == FLOAT and value_kind in {INT, FLOAT}:
        return float(value) if math.isfinite(value) else None
    if value_kind == kind:
        return bool(value)
    msg = f"{field}: {value!r} differs in kind from the other values of its axis ({kind})"
    raise ConfigError(msg, key=field, value=value, allowed=f"values of one kind ({kind})")


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, Integral):
        # No field of a job takes a number that an int64 cannot hold.
        return INT if -(2**63) <= int(value) < 2**63 else TEXT
    return FLOAT if isinstance(value, Real) else TEXT


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
