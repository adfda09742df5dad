"""One rank's activities: launches, operators, operations, phases and iterations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.arrays import Array, Flags, Ints
from projector.trace import iterations as counting
from projector.trace import names as tables
from projector.trace.codes import (
    ATTENTION,
    BACKWARD,
    COLLECTIVE,
    COMMUNICATION,
    COMPUTE,
    FORWARD,
    MEMCPY,
    MOVE,
    OPTIMIZER,
    OTHER,
    VECTOR,
)
from projector.trace.communication import of_details
from projector.trace.events import (
    ANNOTATION,
    COPY,
    LAUNCH,
    NONE,
    ON_DEVICE,
    OPERATOR,
    RankTrace,
)
from projector.trace.nesting import Stack, stack_events
from projector.trace.operations import Operations, name_operations
from projector.trace.phases import HostPhases, host_phases


@dataclass(frozen=True, slots=True)
class RankActivities:
    """Columns of one rank as ``Activities`` has them, with texts of its own.

    ``forward`` and ``instance`` are rows of the trace's events: the operator of the forward, and
    the operator or range that is the operation.
    """

    trace: RankTrace
    columns: dict[str, Array]
    instance: Ints
    operations: tuple[str, ...]
    groups: tuple[str, ...]
    details: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """Rows of a trace that are activities, and what stands around each."""

    rows: Ints
    """int64[activities]: events."""
    launch: Ints
    """int64[activities]: the call that launched it, `NONE` where it is not in the trace."""
    anchor: Ints
    """int64[activities]: innermost event of the host that is known to stand around it."""
    on_host: bool


def align_rank(trace: RankTrace, on_host: bool) -> RankActivities:
    """Put one rank's activities in the context of its host.

    Parameters
    ----------
    trace : RankTrace
        One rank's trace.
    on_host : bool
        Whether operators of the host are the activities, since no rank has devices.
    """
    stack = stack_events(trace.events)
    placed = _place(trace, stack, on_host)
    phases = host_phases(trace, stack)
    operations = name_operations(trace, stack, phases)
    klass, kind_of_work = _classify(trace, stack, placed)
    notes: list[str] = []
    iteration = _iterations(trace, placed, notes)
    phase = _phases(trace, placed, phases, iteration)
    group, groups, moved = _communication(trace, stack, placed, klass)
    detail, details = _details(trace, stack, placed)
    at = np.maximum(placed.anchor, 0)
    has = placed.anchor >= 0
    launch = np.maximum(placed.launch, 0)
    events = trace.events
    known = placed.launch >= 0
    columns: dict[str, Array] = {
        "device": np.full(len(placed.rows), NONE) if on_host else events.process[placed.rows],
        "stream": events.thread[placed.rows],
        "name": events.name[placed.rows],
        "kind": events.kind[placed.rows],
        "klass": klass,
        "type": kind_of_work,
        "start_ps": events.start_ps[placed.rows],
        "end_ps": events.start_ps[placed.rows] + events.duration_ps[placed.rows],
        "launch_ps": np.where(known, events.start_ps[launch], NONE),
        "launch_end_ps": np.where(
            known, events.start_ps[launch] + events.duration_ps[launch], NONE
        ),
        "operation": np.where(has, operations.label[at], NONE),
        "layer": np.where(has, operations.layer[at], NONE),
        "phase": phase,
        "iteration": iteration,
        "recompute": phases.recompute[at] & has,
        "forward": np.where(has, operations.forward[at], NONE),
        "group": group,
        "bytes": moved,
        "detail": detail,
    }
    instance = np.where(has, operations.instance[at], NONE)
    return RankActivities(
        trace, columns, instance, operations.labels, groups, details, tuple(notes)
    )


def _place(trace: RankTrace, stack: Stack, on_host: bool) -> Placed:
    events = trace.events
    if on_host:
        operator = events.kind == OPERATOR
        calls = np.zeros(len(events), np.bool_)
        inner = stack.parent[operator]
        calls[inner[inner >= 0]] = True
        rows = np.flatnonzero(operator & ~calls)
        return Placed(rows, np.full(len(rows), NONE), rows, True)
    rows = np.flatnonzero(np.isin(events.kind, ON_DEVICE))
    launch = _match(events.correlation[rows], events.correlation, events.kind == LAUNCH)
    is_operator = events.kind == OPERATOR
    own = _match(events.external[rows], events.external, is_operator)
    known = np.maximum(launch, 0)
    called = _match(events.external[known], events.external, is_operator)
    alone = (launch < 0) | (stack.parent[known] < 0)
    named = np.where((launch >= 0) & (called >= 0), called, own)
    return Placed(rows, launch, np.where(alone & (named >= 0), named, launch), False)


def _match(wanted: Ints, keys: Ints, among: Flags) -> Ints:
    """Return the first event among some whose key is each wanted one; `NONE` without one."""
    candidates = np.flatnonzero(among & (keys >= 0))
    if len(candidates) == 0:
        return np.full(len(wanted), NONE, np.int64)
    order = candidates[np.argsort(keys[candidates], kind="stable")]
    place = np.minimum(np.searchsorted(keys[order], wanted), len(order) - 1)
    return np.where((wanted >= 0) & (keys[order[place]] == wanted), order[place], NONE)


def _classify(trace: RankTrace, stack: Stack, placed: Placed) -> tuple[Ints, Ints]:
    """Return class and type of activities."""
    table = tables.load_trace_names()
    events, rows = trace.events, placed.rows
    used = np.unique(events.name[rows])
    texts = [trace.names[row] for row in used]
    by_name = np.full(len(trace.names), NONE, np.int64)
    by_name[used] = tables.types(
        texts, table.operator_types if placed.on_host else table.kernel_types
    )
    type_ = by_name[events.name[rows]]
    sends = np.zeros(len(trace.names), np.bool_)
    sends[used] = (
        by_name[used] == COLLECTIVE
        if placed.on_host
        else tables.fits(texts, table.communication_kernels)
    )
    copies = events.kind[rows] == COPY
    klass = np.where(copies, MEMCPY, np.where(sends[events.name[rows]], COMMUNICATION, COMPUTE))
    attends = np.zeros(len(trace.names), np.bool_)
    operators = np.unique(events.name[events.kind == OPERATOR])
    attends[operators] = tables.fits(
        [trace.names[row] for row in operators], table.attention_operators
    )
    around = stack.nearest((events.kind == OPERATOR) & attends[events.name])
    attention = (placed.anchor >= 0) & (around[np.maximum(placed.anchor, 0)] >= 0)
    type_ = np.where(attention & (klass == COMPUTE), ATTENTION, type_)
    type_ = np.where(type_ < 0, VECTOR, type_)
    type_ = np.where(klass == MEMCPY, MOVE, type_)
    return klass, np.where(klass == COMMUNICATION, COLLECTIVE, type_)


def _iterations(trace: RankTrace, placed: Placed, notes: list[str]) -> Ints:
    events = trace.events
    start, end, number = counting.annotated_iterations(events, trace.names)
    if len(start) == 0:
        optimizer = _ranges(trace, OPTIMIZER)
        if len(optimizer):
            stop = events.start_ps[optimizer] + events.duration_ps[optimizer]
            start, end, number = counting.steps_as_iterations(stop)
            notes.append("iterations were inferred: each ends with a step of the optimizer")
    called = placed.rows if placed.on_host else placed.launch
    known = called >= 0
    found = counting.within(events.start_ps[np.maximum(called, 0)], start, end, number)
    return _as_neighbours(trace, placed, np.where(known, found, NONE), known)


def _ranges(trace: RankTrace, phase: int) -> Ints:
    """Return the outermost ranges that the program named for a phase."""
    events = trace.events
    mark = tables.phases(trace.names, tables.load_trace_names().phases)
    return np.flatnonzero((events.kind == ANNOTATION) & (mark[events.name] == phase))


def _as_neighbours(trace: RankTrace, placed: Placed, values: Ints, known: Flags) -> Ints:
    """Give activities without a launch what both their neighbours on the stream have."""
    events, rows = trace.events, placed.rows
    if known.all() or not known.any():
        return values
    order = np.lexsort((events.start_ps[rows], events.thread[rows], events.process[rows]))
    process, thread = events.process[rows][order], events.thread[rows][order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (process[1:] != process[:-1]) | (thread[1:] != thread[:-1])
    filled = counting.fill_from_neighbours(values[order], known[order], np.cumsum(new))
    result = values.copy()
    result[order] = filled
    return result


def _phases(trace: RankTrace, placed: Placed, host: HostPhases, iteration: Ints) -> Ints:
    """Return the phase of activities."""
    events = trace.events
    has = placed.anchor >= 0
    phase = np.where(has, host.phase[np.maximum(placed.anchor, 0)], NONE)
    called = np.where(placed.launch >= 0, placed.launch, placed.anchor)
    time = np.where(called >= 0, events.start_ps[np.maximum(called, 0)], NONE)
    # What other threads start while a range of the program stands open belongs to it.
    ranges = np.flatnonzero((events.kind == ANNOTATION) & (host.mark != NONE))
    for code in (BACKWARD, OPTIMIZER, FORWARD):
        own = ranges[host.mark[ranges] == code]
        own = own[np.argsort(events.start_ps[own], kind="stable")]
        start = events.start_ps[own]
        end = np.maximum.accumulate(start + events.duration_ps[own])
        inside = counting.within(time, start, end, np.full(len(own), code)) == code
        phase = np.where((phase == NONE) & (called >= 0) & inside, code, phase)
    if not np.isin(host.phase, (BACKWARD, OPTIMIZER)).any() and not (host.phase == FORWARD).any():
        phase = np.where((phase == NONE) & has, FORWARD, phase)  # inference: nothing else is done
    phase = np.where(phase == NONE, _between(time, phase, iteration), phase)
    filled = _as_neighbours(trace, placed, phase, called >= 0)
    return np.where(filled == NONE, OTHER, filled)


def _between(time: Ints, phase: Ints, iteration: Ints) -> Ints:
    """Return the phase whose first and last launch of the iteration stand around each launch."""
    found = np.full(len(time), NONE, np.int64)
    number = np.unique(iteration, return_inverse=True)[1]
    size = int(number.max()) + 1 if len(number) else 0
    for code in (FORWARD, BACKWARD, OPTIMIZER):
        rows = phase == code
        first = np.full(size, np.iinfo(np.int64).max)
        last = np.full(size, np.iinfo(np.int64).min)
        np.minimum.at(first, number[rows], time[rows])
        np.maximum.at(last, number[rows], time[rows])
        inside = (time >= 0) & (time >= first[number]) & (time <= last[number])
        found = np.where((found == NONE) & inside, code, found)
    return found


def _communication(
    trace: RankTrace, stack: Stack, placed: Placed, klass: Ints
) -> tuple[Ints, tuple[str, ...], Ints]:
    """Return group of activities, names of groups, and bytes."""
    events = trace.events
    tells, named, moved = of_details(trace.details, trace.groups)
    groups = tuple(dict.fromkeys(name for name in named if name is not None))
    place = {name: row for row, name in enumerate(groups)}
    group_of = np.array([place.get(name or "", NONE) for name in named] + [NONE], np.int64)
    moved = np.append(moved, NONE)
    own = events.detail[placed.rows]
    speaks = np.append(tells, 0)[events.detail] > 0
    around = stack.nearest(speaks & (events.kind != LAUNCH))
    holder = np.where(placed.anchor >= 0, around[np.maximum(placed.anchor, 0)], NONE)
    context = np.where(holder >= 0, events.detail[np.maximum(holder, 0)], NONE)
    called = np.where(placed.launch >= 0, events.detail[np.maximum(placed.launch, 0)], NONE)
    talks = klass == COMMUNICATION
    detail = np.where(np.append(tells, 0)[own] > 0, own, context)
    detail = np.where(talks, detail, np.where(moved[own] >= 0, own, called))
    return (
        np.where(talks, group_of[detail], NONE),
        groups,
        np.where(talks | (klass == MEMCPY), moved[detail], NONE),
    )


def _details(
    trace: RankTrace, stack: Stack, placed: Placed
) -> tuple[Ints, tuple[Mapping[str, Any], ...]]:
    """Join what is known of each activity to the innermost operator that has dimensions."""
    events = trace.events
    shaped = np.array(["dims" in detail for detail in trace.details] + [False], np.bool_)
    around = stack.nearest((events.kind == OPERATOR) & shaped[events.detail])
    plain = stack.nearest(events.kind == OPERATOR)
    at = np.maximum(placed.anchor, 0)
    operator = np.where(around[at] >= 0, around[at], plain[at])
    operator = np.where(placed.anchor >= 0, operator, NONE)
    own = events.detail[placed.rows]
    safe = np.maximum(operator, 0)
    triple = np.stack(
        [
            own,
            np.where(operator >= 0, events.name[safe], NONE),
            np.where(operator >= 0, events.detail[safe], NONE),
        ],
        axis=1,
    )
    distinct, row = np.unique(triple, axis=0, return_inverse=True)
    details: list[Mapping[str, Any]] = []
    for mine, name, context in distinct.tolist():
        joined: dict[str, Any] = {}
        if name >= 0:
            joined["operator"] = trace.names[name]
        if context >= 0:
            joined |= trace.details[context]
        if mine >= 0:
            joined |= trace.details[mine]
        details.append(joined)
    return row.reshape(-1).astype(np.int64), tuple(details)


__all__ = ["Operations", "RankActivities", "align_rank"]
