"""Activities of all ranks in one table."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from projector.arrays import Array, Ints
from projector.trace.activity_table import Activities
from projector.trace.events import NONE, ON_DEVICE, RankTrace, Trace
from projector.trace.rank import RankActivities, align_rank


def merge(trace: Trace) -> Activities:
    """Align each rank, and put all of them in one table."""
    on_host = not any(np.isin(rank.events.kind, ON_DEVICE).any() for rank in trace.ranks)
    parts = [align_rank(rank, on_host) for rank in trace.ranks]
    names, name_rows = _join([part.trace.names for part in parts])
    operations, operation_rows = _join([part.operations for part in parts])
    groups, group_rows = _join([part.groups for part in parts])
    columns: dict[str, list[Array]] = {}
    details: list[Mapping[str, Any]] = []
    instances: list[Ints] = []
    forwards: list[Ints] = []
    first_event = 0
    for i, part in enumerate(parts):
        own: dict[str, Array] = dict(part.columns)
        own["rank"] = np.full(len(part.instance), part.trace.rank, np.int64)
        own["name"] = name_rows[i][own["name"]]
        own["operation"] = _translated(own["operation"], operation_rows[i])
        own["group"] = _translated(own["group"], group_rows[i])
        own["detail"] = np.where(own["detail"] >= 0, own["detail"] + len(details), NONE)
        details += part.details
        forward = own.pop("forward")
        forwards.append(np.where(forward >= 0, forward + first_event, NONE))
        instances.append(np.where(part.instance >= 0, part.instance + first_event, NONE))
        first_event += len(part.trace.events)
        for name, values in own.items():
            columns.setdefault(name, []).append(values)
    whole = {name: np.concatenate(values) for name, values in columns.items()}
    if not whole:
        return _empty()
    order = np.lexsort((whole["end_ps"], whole["start_ps"], whole["device"], whole["rank"]))
    whole = {name: np.ascontiguousarray(values[order]) for name, values in whole.items()}
    instance, forward = np.concatenate(instances)[order], np.concatenate(forwards)[order]
    whole["instance"] = instance
    whole["forward"] = _first_rows(instance, forward, first_event)
    return Activities(
        **whole, names=names, operations=operations, groups=groups, details=tuple(details),
        on_host=on_host,
    )  # fmt: skip


def _first_rows(instance: Ints, wanted: Ints, events: int) -> Ints:
    """Return the first activity of each wanted event that is an operation."""
    first = np.full(events + 1, len(instance), np.int64)
    has = instance >= 0
    np.minimum.at(first, instance[has], np.flatnonzero(has))
    row = first[np.where(wanted >= 0, wanted, events)]
    return np.where(row < len(instance), row, NONE)


def _join(tables: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], list[Ints]]:
    """Return one table of texts, and for each of several where its rows stand in it."""
    place: dict[str, int] = {}
    rows = [
        np.fromiter((place.setdefault(text, len(place)) for text in table), np.int64, len(table))
        for table in tables
    ]
    return tuple(place), rows


def _translated(values: Ints, rows: Ints) -> Ints:
    return np.append(rows, NONE)[values]


def _empty() -> Activities:
    columns: dict[str, Any] = {
        name: np.zeros(0, np.int64)
        for name in Activities.__slots__
        if name not in ("names", "operations", "groups", "details", "on_host")
    }
    columns["recompute"] = np.zeros(0, np.bool_)
    return Activities(**columns, names=(), operations=(), groups=(), details=())


__all__ = ["RankActivities", "RankTrace", "merge"]
