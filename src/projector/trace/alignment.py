"""A trace as a table of activities: each rank aligned, all ranks on one clock."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from projector.arrays import Array, Ints
from projector.trace.activity import COMMUNICATION, Activities
from projector.trace.clocks import Clock, Meetings, align_clocks
from projector.trace.events import NONE, ON_DEVICE, Trace
from projector.trace.names import fits, frameworks_of, load_trace_names
from projector.trace.rank import RankActivities, align_rank


def align(trace: Trace) -> Activities:
    """Put what devices did in the context of the program that launched it, ranks in one table."""
    on_host = not any(np.isin(rank.events.kind, ON_DEVICE).any() for rank in trace.ranks)
    parts = [align_rank(rank, on_host) for rank in trace.ranks]
    if not parts:
        return _empty()
    clocks = align_clocks(_meetings(parts))
    whole, tables = _columns(parts, clocks)
    order = np.lexsort((whole["end_ps"], whole["start_ps"], whole["device"], whole["rank"]))
    whole = {name: np.ascontiguousarray(values[order]) for name, values in whole.items()}
    tables["on_host"] = on_host
    events = sum(len(part.trace.events) for part in parts)
    whole["forward"] = _first_rows(whole["instance"], whole["forward"], events)
    frameworks = dict.fromkeys(name for part in parts for name in frameworks_of(part.trace))
    tables["clocks"] = clocks
    tables["frameworks"] = tuple(frameworks)
    tables["notes"] = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    return Activities(**(whole | tables))


def _columns(
    parts: Sequence[RankActivities], clocks: Sequence[Clock]
) -> tuple[dict[str, Array], dict[str, Any]]:
    names, name_rows = _join([part.trace.names for part in parts])
    operations, operation_rows = _join([part.operations for part in parts])
    groups, group_rows = _join([part.groups for part in parts])
    columns: dict[str, list[Array]] = {}
    details: list[Mapping[str, Any]] = []
    first_event = 0
    for i, part in enumerate(parts):
        own: dict[str, Array] = dict(part.columns)
        own["rank"] = np.full(len(part.instance), part.trace.rank, np.int64)
        own["name"] = name_rows[i][own["name"]]
        own["operation"] = _translated(own["operation"], operation_rows[i])
        own["group"] = _translated(own["group"], group_rows[i])
        own["detail"] = _beyond(own["detail"], len(details))
        own["forward"] = _beyond(own["forward"], first_event)
        own["instance"] = _beyond(part.instance, first_event)
        for name in ("start_ps", "end_ps"):
            own[name] = clocks[i].moved(own[name])
        known = own["launch_ps"] != NONE
        for name in ("launch_ps", "launch_end_ps"):
            own[name] = np.where(known, clocks[i].moved(own[name]), NONE)
        details += part.details
        first_event += len(part.trace.events)
        for name, values in own.items():
            columns.setdefault(name, []).append(values)
    whole = {name: np.concatenate(values) for name, values in columns.items()}
    return whole, {
        "names": names, "operations": operations, "groups": groups, "details": tuple(details)
    }  # fmt: skip


def _beyond(values: Ints, first: int) -> Ints:
    return np.where(values >= 0, values + first, NONE)


def _meetings(parts: Sequence[RankActivities]) -> list[Meetings]:
    known = any((part.columns["group"] >= 0).any() for part in parts)
    together = load_trace_names().ending_together
    found = []
    for part in parts:
        own = part.columns
        labels = [*part.operations, ""]
        ends = np.append(fits(part.operations, together), False)
        kernels = fits(part.trace.names, together)
        rows = np.flatnonzero(
            (own["klass"] == COMMUNICATION) & ((own["group"] >= 0) | (not known))
            & (ends[own["operation"]] | kernels[own["name"]])
        )  # fmt: skip
        rows = rows[np.argsort(own["start_ps"][rows], kind="stable")]
        groups = [*part.groups, ""]
        key = [
            (groups[own["group"][row]], labels[own["operation"][row]], int(own["bytes"][row]),
             int(own["iteration"][row]))
            for row in rows.tolist()
        ]  # fmt: skip
        found.append(Meetings(part.trace.rank, part.trace.zero_ns, key, own["end_ps"][rows]))
    return found


def _first_rows(instance: Ints, wanted: Ints, events: int) -> Ints:
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
    tables = {"names", "operations", "groups", "details"}
    flags = {"on_host", "clocks", "frameworks", "notes"}
    columns: dict[str, Any] = {
        name: np.zeros(0, np.int64) for name in Activities.__slots__ if name not in tables | flags
    }
    columns["recompute"] = np.zeros(0, np.bool_)
    columns |= dict.fromkeys(tables, ())
    return Activities(**columns)
