"""One rank's activities: launches, operators, operations, phases and iterations."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.arrays import Array, Flags, Ints
from projector.trace import activity as act
from projector.trace import host as hosts
from projector.trace import names as tables
from projector.trace.events import ANNOTATION, COPY, LAUNCH, NONE, ON_DEVICE, OPERATOR, RankTrace
from projector.trace.groups import begins, group, last_known, next_known, values_at
from projector.trace.layers import Operations, name_operations
from projector.trace.names import load_trace_names
from projector.trace.unlaunched import inherit, told_by_kernels


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
    """Align a rank's activities with its host, whose operators they are without devices."""
    events = trace.events
    stack = hosts.stack_events(events)
    modules = hosts.find_modules(trace, stack)
    phases = hosts.host_phases(trace, stack, modules)
    placed = _on_host(trace, stack, phases) if on_host else _on_devices(trace, stack)
    notes: list[str] = []
    klass, kind_of_work = _classify(trace, stack, placed)
    attends = np.zeros(len(events) + 1, np.bool_)
    attends[placed.anchor[kind_of_work == act.ATTENTION]] = True
    operations = name_operations(trace, stack, phases, modules, attends[:-1], notes)
    iteration = _iterations(trace, placed, phases, notes)
    phase = _phases(trace, placed, phases, iteration)
    talk = _communication(trace, stack, placed, klass)
    detail, details = _details(trace, stack, placed)
    operation, labels = _with_collectives(trace, placed, klass, talk, operations)
    at = np.maximum(placed.anchor, 0)
    has = placed.anchor >= 0
    columns: dict[str, Array] = _times(trace, placed) | {
        "klass": klass,
        "type": kind_of_work,
        "operation": operation,
        "layer": values_at(operations.layer, placed.anchor),
        "phase": phase,
        "iteration": iteration,
        "recompute": phases.recompute[at] & has,
        "forward": values_at(operations.forward, placed.anchor),
        "group": talk.group,
        "bytes": talk.bytes,
        "detail": detail,
    }
    instance = values_at(operations.instance, placed.anchor)
    apart = (klass == act.COMMUNICATION) & has
    instance = np.where(apart, np.where(talk.operator >= 0, talk.operator, at), instance)
    if not on_host:
        _complete(trace, placed, phases, columns, instance, notes)
    instance = np.where(columns["operation"] >= 0, instance, NONE)
    return RankActivities(trace, columns, instance, labels, talk.groups, details, tuple(notes))


def _times(trace: RankTrace, placed: Placed) -> dict[str, Array]:
    events, rows = trace.events, placed.rows
    launch = np.maximum(placed.launch, 0)
    known = placed.launch >= 0
    begun = events.start_ps[launch]
    return {
        "device": np.full(len(rows), NONE) if placed.on_host else events.process[rows],
        "stream": events.thread[rows],
        "name": events.name[rows],
        "kind": events.kind[rows],
        "start_ps": events.start_ps[rows],
        "end_ps": events.start_ps[rows] + events.duration_ps[rows],
        "launch_ps": np.where(known, begun, NONE),
        "launch_end_ps": np.where(known, begun + events.duration_ps[launch], NONE),
    }


def _complete(
    trace: RankTrace, placed: Placed, phases: hosts.HostPhases, columns: dict[str, Array],
    instance: Ints, notes: list[str],
) -> None:  # fmt: skip
    """Find out from kernels what the host does not tell, and say that it was inferred."""
    operators = (trace.events.kind == OPERATOR).any()
    if not operators and not (phases.phase >= 0).any():
        told = told_by_kernels(columns["name"], trace.names, columns["device"], columns["start_ps"])
        columns["phase"] = told.phase
        if np.isin(told.phase, (act.BACKWARD, act.OPTIMIZER)).any():
            notes.append("phases were inferred from names of kernels: no operator is in the trace")
        if not (columns["iteration"] >= 0).any() and (told.iteration >= 0).any():
            columns["iteration"] = told.iteration
            notes.append("iterations were inferred: each ends with kernels of the optimizer")
        return
    source = inherit(columns, (placed.launch < 0) & (placed.anchor < 0))
    taken = np.flatnonzero(source >= 0)
    if len(taken):
        # A run of activities that share an operation share it again.
        of = instance[source[taken]]
        order = np.lexsort((columns["start_ps"][taken], columns["stream"][taken]))
        first = last_known(begins(of[order]))
        instance[taken[order]] = placed.rows[taken[order[first]]]
        notes.append(
            f"rank {trace.rank}: {len(taken):,} activities were launched before the trace began; "
            "what they are was inferred from the iteration after them"
        )


def _on_host(trace: RankTrace, stack: hosts.Stack, phases: hosts.HostPhases) -> Placed:
    """Return the operators that stand for kernels: those that do their work themselves.

    These are operators that call no other, and those that spend less than half of their time in
    others: a matrix product asks for a view or two. All calls of one operator are alike, so that
    iterations stay comparable. Nodes of autograd only call others, and so does what is no matrix
    product and holds one, however long it takes.
    """
    events = trace.events
    operator = events.kind == OPERATOR
    names = len(trace.names)
    around = stack.nearest(operator)
    rows = np.flatnonzero(operator)
    above = stack.parent[rows]
    caller = np.where(above >= 0, around[above], NONE)
    called = caller >= 0
    spent = events.duration_ps.astype(np.float64)
    total = np.bincount(events.name[rows], spent[rows], names)
    passed = np.bincount(events.name[caller[called]], spent[rows[called]], names)
    calls = np.zeros(len(events), np.bool_)
    calls[caller[called]] = True
    table = tables.load_trace_names()
    heavy = tables.types(trace.names, table.operator_types)
    heavy = np.isin(heavy, (act.GEMM, act.ATTENTION, act.COLLECTIVE))[events.name] & operator
    holds = (stack.holders(heavy) & ~heavy) | tables.fits(trace.names, table.wrappers)[events.name]
    works = (2 * passed < total)[events.name] & ~phases.engine & ~hosts.is_node(events) & ~holds
    whole = operator & (works | ~calls)
    rows = np.flatnonzero(stack.outermost(whole) == np.arange(len(events)))
    return Placed(rows, np.full(len(rows), NONE), rows, True)


def _on_devices(trace: RankTrace, stack: hosts.Stack) -> Placed:
    events = trace.events
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


def _classify(trace: RankTrace, stack: hosts.Stack, placed: Placed) -> tuple[Ints, Ints]:
    table = tables.load_trace_names()
    events, rows = trace.events, placed.rows
    used = np.unique(events.name[rows])
    texts = [trace.names[row] for row in used]
    by_name = np.full(len(trace.names), NONE, np.int64)
    by_name[used] = tables.types(
        texts, table.operator_types if placed.on_host else table.kernel_types
    )
    type_ = by_name[events.name[rows]]
    sends = (
        by_name == act.COLLECTIVE
        if placed.on_host
        else tables.fits_used(trace.names, used, table.communication_kernels)
    )
    copies = events.kind[rows] == COPY
    klass = np.where(
        copies, act.MEMCPY, np.where(sends[events.name[rows]], act.COMMUNICATION, act.COMPUTE)
    )
    attends = tables.fits_used(
        trace.names, events.name[events.kind == OPERATOR], table.attention_operators
    )
    around = stack.nearest((events.kind == OPERATOR) & attends[events.name])
    attention = (placed.anchor >= 0) & (around[np.maximum(placed.anchor, 0)] >= 0)
    type_ = np.where(attention & (klass == act.COMPUTE), act.ATTENTION, type_)
    type_ = np.where(type_ < 0, act.VECTOR, type_)
    type_ = np.where(klass == act.MEMCPY, act.MOVE, type_)
    return klass, np.where(klass == act.COMMUNICATION, act.COLLECTIVE, type_)


def _iterations(
    trace: RankTrace, placed: Placed, phases: hosts.HostPhases, notes: list[str]
) -> Ints:
    """Return the iteration of activities: that in which they were launched."""
    events = trace.events
    start, end, number = hosts.annotated_iterations(events, trace.names)
    if len(start) == 0:
        steps = tables.fits(trace.names, tables.load_trace_names().optimizer_steps)
        rows = np.flatnonzero((events.kind == ANNOTATION) & steps[events.name])
        if len(rows):
            stop = events.start_ps[rows] + events.duration_ps[rows]
            forwards = np.sort(events.start_ps[phases.phase == act.FORWARD])
            start, end, number = hosts.steps_as_iterations(stop, forwards)
            notes.append("iterations were inferred: each ends with a step of the optimizer")
    called = placed.rows if placed.on_host else placed.launch
    known = called >= 0
    found = hosts.within(events.start_ps[np.maximum(called, 0)], start, end, number)
    return _as_neighbours(trace, placed, np.where(known, found, NONE), known)


def _as_neighbours(trace: RankTrace, placed: Placed, values: Ints, known: Flags) -> Ints:
    """Give activities without a launch what both their neighbours on the stream have."""
    events, rows = trace.events, placed.rows
    if known.all() or not known.any():
        return values
    order = np.lexsort((events.start_ps[rows], events.thread[rows], events.process[rows]))
    new = begins(events.process[rows][order], events.thread[rows][order])
    filled = hosts.fill_from_neighbours(values[order], known[order], np.cumsum(new, dtype=np.int64))
    result = values.copy()
    result[order] = filled
    return result


def _phases(trace: RankTrace, placed: Placed, host: hosts.HostPhases, iteration: Ints) -> Ints:
    events = trace.events
    phase = values_at(host.phase, placed.anchor)
    called = np.where(placed.launch >= 0, placed.launch, placed.anchor)
    time = values_at(events.start_ps, called)
    # What other threads start while a range of the program stands open belongs to it.
    ranges = np.flatnonzero((events.kind == ANNOTATION) & (host.mark != NONE))
    for code in (act.BACKWARD, act.OPTIMIZER, act.FORWARD):
        own = ranges[host.mark[ranges] == code]
        own = own[np.argsort(events.start_ps[own], kind="stable")]
        start = events.start_ps[own]
        end = np.maximum.accumulate(start + events.duration_ps[own])
        inside = hosts.within(time, start, end, np.full(len(own), code)) == code
        phase = np.where((phase == NONE) & (called >= 0) & inside, code, phase)
    if not np.isin(phase, (act.BACKWARD, act.OPTIMIZER)).any():
        phase = np.where((phase == NONE) & (called >= 0), act.FORWARD, phase)  # inference
    phase = _as_next(time, np.where(called >= 0, phase, act.OTHER), iteration)
    filled = _as_neighbours(trace, placed, np.where(called >= 0, phase, NONE), called >= 0)
    return np.where(filled == NONE, act.OTHER, filled)


def _as_next(time: Ints, phase: Ints, iteration: Ints) -> Ints:
    """Give what no range tells the phase of what is launched next in its iteration.

    It prepares that: inputs before the forward, the first gradient before the backward, clipping
    before the optimizer. What comes last keeps -1.
    """
    order = np.lexsort((time, iteration))
    known = phase[order] >= 0
    count = len(order)
    after = next_known(known)
    place = np.minimum(after, count - 1)
    usable = (after < count) & (iteration[order][place] == iteration[order])
    result = phase.copy()
    result[order] = np.where(usable, phase[order][place], phase[order])
    return result


@dataclass(frozen=True, slots=True)
class Talk:
    """What is known of communication; columns have one row an activity."""

    group: Ints
    groups: tuple[str, ...]
    bytes: Ints
    detail: Ints
    """Row of the trace's details that tells of the collective, `NONE` without one."""
    operator: Ints
    """Outermost operator of communication around it, `NONE` without one."""


def _communication(trace: RankTrace, stack: hosts.Stack, placed: Placed, klass: Ints) -> Talk:
    events = trace.events
    collective, named, moved = of_details(trace.details, trace.groups)
    groups = tuple(dict.fromkeys(name for name in named if name is not None))
    place = {name: row for row, name in enumerate(groups)}
    group_of = np.array([place.get(name or "", NONE) for name in named] + [NONE], np.int64)
    moved, tells = np.append(moved, NONE), np.append(collective, 0) > 0
    own = events.detail[placed.rows]
    has = placed.anchor >= 0
    at = np.maximum(placed.anchor, 0)
    around = stack.nearest(tells[events.detail] & (events.kind != LAUNCH))
    context = values_at(events.detail, values_at(around, placed.anchor))
    called = values_at(events.detail, placed.launch)
    talks = klass == act.COMMUNICATION
    told = np.where(talks, np.where(tells[own], own, context), NONE)
    counted = np.where(talks, told, np.where(moved[own] >= 0, own, called))
    counts = talks | (klass == act.MEMCPY)
    speaks = np.isin(events.kind, (OPERATOR, ANNOTATION))
    senders = tables.load_trace_names().communication_operators
    speaks &= tables.fits_used(trace.names, events.name[speaks], senders)[events.name]
    operator = np.where(talks & has, stack.outermost(speaks)[at], NONE)
    size = np.where(counts, moved[counted], NONE)
    given = values_at(events.detail, operator)
    open_ = np.flatnonzero((size < 0) & (given >= 0))
    used, row = np.unique(given[open_], return_inverse=True)
    sizes = [tensor_bytes(trace.details[i]) for i in used.tolist()]
    size[open_] = np.array([*sizes, NONE], np.int64)[row]
    return Talk(group_of[told], groups, size, told, operator)


def _with_collectives(
    trace: RankTrace, placed: Placed, klass: Ints, talk: Talk, operations: Operations
) -> tuple[Ints, tuple[str, ...]]:
    """Return the operation of activities: communication is its collective, wherever it stands."""
    events = trace.events
    label = values_at(operations.label, placed.anchor)
    texts = dict.fromkeys(operations.labels)
    talks = np.flatnonzero(klass == act.COMMUNICATION)
    told, operator = talk.detail[talks], talk.operator[talks]
    said = np.where((operator >= 0) & (told < 0), events.name[np.maximum(operator, 0)], NONE)
    same = group(told, said)
    first, row = same.first, same.of
    named = [
        str(trace.details[detail]["collective"]) if detail >= 0
        else trace.names[name].rpartition(":")[2] if name >= 0 else ""
        for detail, name in zip(told[first].tolist(), said[first].tolist(), strict=True)
    ]  # fmt: skip
    texts |= dict.fromkeys(filter(None, named))
    place = {text: i for i, text in enumerate(texts)}
    rows = np.array([place.get(text, NONE) for text in named] or [NONE], np.int64)
    found = rows[row]
    label[talks] = np.where(found >= 0, found, label[talks])
    return label, tuple(texts)


def _details(
    trace: RankTrace, stack: hosts.Stack, placed: Placed
) -> tuple[Ints, tuple[Mapping[str, Any], ...]]:
    events = trace.events
    shaped = np.array(["dims" in detail for detail in trace.details] + [False], np.bool_)
    around = stack.nearest((events.kind == OPERATOR) & shaped[events.detail])
    plain = stack.nearest(events.kind == OPERATOR)
    at = np.maximum(placed.anchor, 0)
    operator = np.where(around[at] >= 0, around[at], plain[at])
    operator = np.where(placed.anchor >= 0, operator, NONE)
    own = events.detail[placed.rows]
    name, context = values_at(events.name, operator), values_at(events.detail, operator)
    same = group(own, name, context)
    first, row = same.first, same.of
    details: list[Mapping[str, Any]] = []
    distinct = np.stack([name[first], context[first], own[first]], axis=1).tolist()
    for at_operator, around_it, mine in distinct:
        joined: dict[str, Any] = {}
        if at_operator >= 0:
            joined["operator"] = trace.names[at_operator]
        if around_it >= 0:
            joined |= trace.details[around_it]
        if mine >= 0:
            joined |= trace.details[mine]
        details.append(joined)
    return row, tuple(details)


MOST = 2**50
"""Bytes and elements beyond this are of no buffer: the file is spoilt there."""


def collective_bytes(detail: Mapping[str, Any]) -> int:
    """Return the buffer of a collective as collectives count it, -1 where it is not known.

    It is the larger side: what an all-gather ends with, what a reduce-scatter begins with, what
    each rank holds in an all-reduce, broadcast or all-to-all, and a message of two ranks.
    """
    elements = [detail.get("in_elements"), detail.get("out_elements")]
    known = [value for value in elements if isinstance(value, int) and 0 <= value < MOST]
    width = load_trace_names().element_bytes.get(str(detail.get("dtype", "")).rpartition("::")[2])
    return max(known) * width if known and width is not None else -1


def tensor_bytes(detail: Mapping[str, Any]) -> int:
    """Return the largest tensor of an operator, as symmetric memory has it; -1 if unknown."""
    width = load_trace_names().element_bytes
    dims, types = detail.get("dims"), detail.get("types")
    if not isinstance(dims, tuple) or not isinstance(types, tuple):
        return -1
    found = -1
    for shape, kind in zip(dims, types, strict=False):
        each = width.get(str(kind).rpartition("::")[2])
        if each is None or not isinstance(shape, tuple) or not shape:
            continue
        if all(isinstance(size, int) and 0 <= size < MOST for size in shape):
            found = max(found, math.prod(shape) * each)
    return found if found < MOST else -1


def group_name(detail: Mapping[str, Any], groups: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return a group's name and ranks, such as ``0: ranks 0-7``; None where it is not known."""
    name = detail.get("group")
    ranks = detail.get("group_ranks") or groups.get(str(name), ())
    if name is None and not ranks:
        return None
    if not ranks:
        return str(name)
    return f"{name if name is not None else 'group'}: ranks {rank_ranges(ranks)}"


def rank_ranges(ranks: Sequence[int]) -> str:
    """Return ranks as ranges: ``0-3,8``, and ``0-56 by 8`` for those at equal distances."""
    numbers = sorted({int(rank) for rank in ranks})
    steps = set(np.diff(numbers).tolist())
    if len(numbers) > 2 and len(steps) == 1 and steps != {1}:
        return f"{numbers[0]}-{numbers[-1]} by {steps.pop()}"
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1) if numbers else []
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def rank_distances(name: str) -> str:
    """Return the ranks that a group's name lists, from the first: ``8-11`` is ``0-3``; or none."""
    _, _, text = name.rpartition(": ranks ")
    ranks, by, step = text.partition(" by ")
    if text == name or not _RANKS.fullmatch(ranks):
        return ""
    first = int(ranks.replace(",", "-").split("-")[0])
    return re.sub(r"\d+", lambda match: str(int(match[0]) - first), ranks) + by + step


_RANKS = re.compile(r"\d{1,18}([,-]\d{1,18})*")


def of_details(
    details: Sequence[Mapping[str, Any]], groups: Mapping[str, tuple[int, ...]]
) -> tuple[Ints, list[str | None], Ints]:
    """Return what details tell of communication: whether it is any, its group, its bytes."""
    is_collective = np.array(["collective" in detail for detail in details], np.int64)
    named = [group_name(detail, groups) if "collective" in detail else None for detail in details]
    moved = []
    for detail in details:
        value = collective_bytes(detail) if "collective" in detail else detail.get("bytes")
        known = "collective" in detail or (isinstance(value, int) and 0 <= value < MOST)
        moved.append(value if known else -1)
    return is_collective, named, np.array(moved, np.int64)
