"""Which collective of the models each collective of a trace is."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from projector.arrays import Ints
from projector.trace.activity import BACKWARD, COMMUNICATION, FORWARD, Activities
from projector.trace.measures.numbers import group as group_rows
from projector.validate.traces.expected import (
    DATA_PARALLEL,
    PIPELINE,
    Expected,
    ExpectedRow,
)
from projector.validate.traces.names import category_of_group, collective_of

ALIKE = math.log(1.25)
"""Buffers are alike up to this logarithm of their ratio: frameworks pad and quantise them."""

EQUAL = 1e-9
"""Costs nearer than this are equal."""

_OF_DATA_PARALLEL = {
    "dp.param_all_gather": ("all_gather",),
    "dp.grad_reduce": ("reduce_scatter", "all_reduce"),
}
_EXCHANGES = {"bulk_dispatch": "dispatch", "bulk_combine": "combine"}


def match_collectives(
    activities: Activities, expected: Expected, of: Ints, way: Ints, by: int
) -> None:
    """Write into ``of`` and ``way`` what the collectives of a rank are that are not known yet.

    Each is known by its kind and its group. Where that leaves a choice, the phase and the bytes
    decide; of equal ones those of data parallelism, which run at any time, come last. What is still
    equal, as of attention and MLP of a layer, takes turns in the order of the model.
    """
    names = {name: number for number, name in enumerate(expected.names)}
    rows = np.flatnonzero((activities.klass == COMMUNICATION) & (of < 0))
    columns = (
        activities.name, activities.operation, activities.group, activities.bytes,
        activities.detail, activities.phase, np.asarray(activities.recompute, np.int64),
    )  # fmt: skip
    if not len(rows):
        return
    same = group_rows(*(column[rows] for column in columns))
    keys = zip(*(column.tolist() for column in same.keys), strict=True)
    turns: dict[tuple[int, ...], list[int]] = {}
    place = {id(row): number for number, row in enumerate(expected.rows)}
    for number, (name, operation, group, size, detail, phase, again) in enumerate(keys):
        about = activities.details[detail] if detail >= 0 else {}
        texts = (str(about.get("collective", "")), activities.names[name],
                 activities.operations[operation] if operation >= 0 else "")  # fmt: skip
        kind = next((word for text in texts if (word := collective_of(text))), "")
        group_text = activities.groups[group] if group >= 0 else ""
        equal = _best(
            expected.rows, kind, f"{group_text} {about.get('group_description', '')}",
            _ranks(about), size, _phases(phase, again=bool(again)), expected,
        )  # fmt: skip
        if equal:
            turns.setdefault(tuple(place[id(row)] for row in equal), []).append(number)
    for numbers, members in turns.items():
        here = rows[np.isin(same.of, members)]
        here = here[np.argsort(activities.start_ps[here], kind="stable")]
        equal = [expected.rows[number] for number in numbers]
        cycle = np.array([names[row.name] for row in _cycle(equal, expected)], np.int64)
        of[here] = cycle[np.arange(len(here)) % len(cycle)]
        way[here] = by


def _cycle(equal: Sequence[ExpectedRow], expected: Expected) -> list[ExpectedRow]:
    """Return equal collectives in the order in which one pass through the model runs them.

    Those of the layers run as often as there are layers, those of the ends once; the backward runs
    the other way round.
    """
    if len(equal) == 1:
        return list(equal)
    ends = (expected.before, expected.after)
    before, after = ([row for row in equal if row.name.label in labels] for labels in ends)
    outside = {id(row) for row in (*before, *after)}
    within = [row for row in equal if id(row) not in outside]
    passes = min((row.runs for row in (*before, *after)), default=0.0)
    layers = round(within[0].runs / passes) if within and passes else 1
    cycle = [*before, *within * layers, *after]
    return cycle if equal[0].group == FORWARD else cycle[::-1]


def _ranks(about: Any) -> int:
    """Return how many ranks a group has, 0 where it is not known."""
    members = about.get("group_ranks", ())
    try:
        return len(members) if not isinstance(members, int) else members
    except TypeError:
        return 0


def _phases(phase: int, *, again: bool) -> tuple[str, ...]:
    if phase == FORWARD:
        return ("forward",)
    if phase == BACKWARD:
        return ("recompute", "forward") if again else ("backward", "weight")
    return ("forward", "backward", "weight")


def _best(
    rows: Iterable[ExpectedRow], kind: str, group: str, ranks: int, size: int,
    phases: Sequence[str], expected: Expected,
) -> list[ExpectedRow]:  # fmt: skip
    """Return the collectives of the models that are nearest, several where nothing tells which."""
    category = category_of_group(group)
    least, best = math.inf, list[ExpectedRow]()
    for row in rows:
        if row.kind not in ("collective", "exchange") or not _can_be(row, kind, ranks, expected):
            continue
        if category and category != row.category:
            continue
        cost = _cost(row, size, phases)
        if cost < least - EQUAL:
            least, best = cost, [row]
        elif cost <= least + EQUAL:
            best.append(row)
    return best


def _can_be(row: ExpectedRow, kind: str, ranks: int, expected: Expected) -> bool:
    if row.category == DATA_PARALLEL and row.key is None:
        degrees = expected.performance.degrees
        sizes = {degrees["dp"], degrees["dp"] * degrees["cp"], expected.performance.gpus}
        return kind in _OF_DATA_PARALLEL[row.name.label] and (not ranks or ranks in sizes)
    if row.category == PIPELINE and row.key is None:
        return kind == "send_recv"
    assert row.key is not None
    operation = _EXCHANGES.get(row.key.operation, row.key.operation)
    return kind == operation and (not ranks or ranks == row.key.ranks)


def _cost(row: ExpectedRow, size: int, phases: Sequence[str]) -> float:
    """Return how unlikely a collective is a row: another phase, other bytes."""
    if row.key is None:
        return 1.0 if row.category == DATA_PARALLEL else 0.0
    cost = 0.0 if row.name.phase in phases else 4.0
    if size > 0 and row.bytes > 0.0:
        apart = abs(math.log(size / row.bytes))
        cost += 0.1 * apart if apart <= ALIKE else 2.0 + apart
    return cost
