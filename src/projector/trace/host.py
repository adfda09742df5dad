"""What the host was in at each event: calls, modules, a phase, an iteration, and its forward.

Which event of a thread stands within which is found again from times alone. The profiler names
calls of modules by class and number, ``nn.Module: Linear_3``; our recorder by their place in the
network, ``nn.Module: layers.3.mlp.up``.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from projector.arrays import Flags, Ints
from projector.trace import names as tables
from projector.trace.activity import BACKWARD, FORWARD, OPTIMIZER
from projector.trace.events import ANNOTATION, LAUNCH, MODULE, NONE, OPERATOR, Events, RankTrace
from projector.trace.groups import begins, group, last_known, next_known, values_at

_OUTSIDE_FIRST = {ANNOTATION: 0, MODULE: 1, OPERATOR: 2, LAUNCH: 3}
"""Of kinds with one and the same span: a range holds a module, that an operator, that a call."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Events of the host as trees. All columns have one row an event of the trace."""

    parent: Ints
    """Event that stands directly around an event; `NONE` for the outermost ones."""
    levels: tuple[Ints, ...]
    """Events of the host by depth, the outermost ones first, each level in order of start."""
    thread: Ints
    """A small number for each pair of process and thread."""

    def nearest(self, marked: Flags, within: Flags | None = None) -> Ints:
        """Return the innermost marked event around each, or itself; `within` begins anew."""
        found = np.full(len(self.parent), NONE, np.int64)
        for rows in self.levels:
            inherited = self._inherited(found, rows, within)
            found[rows] = np.where(marked[rows], rows, inherited)
        return found

    def outermost(self, marked: Flags, within: Flags | None = None) -> Ints:
        """Return the outermost marked event around each event, as `nearest` does the innermost."""
        found = np.full(len(self.parent), NONE, np.int64)
        for rows in self.levels:
            inherited = self._inherited(found, rows, within)
            own = np.where(marked[rows], rows, NONE)
            if within is not None:
                own[within[rows]] = NONE
            found[rows] = np.where(inherited >= 0, inherited, own)
        return found

    def _inherited(self, found: Ints, rows: Ints, within: Flags | None) -> Ints:
        """Return what was found around some events, nothing where the search begins anew."""
        above = self.parent[rows]
        inherited = np.where(above >= 0, found[above], NONE)
        if within is not None:
            inherited[within[rows]] = NONE
        return inherited

    def holders(self, marked: Flags) -> Flags:
        """Return which events hold a marked one, itself not included."""
        found = np.zeros(len(self.parent), np.bool_)
        for rows in reversed(self.levels):
            inner = rows[marked[rows] | found[rows]]
            above = self.parent[inner]
            found[above[above >= 0]] = True
        return found


def stack_events(events: Events) -> Stack:
    """Find the event around each event of the host.

    An event stands within another of its thread if it begins and ends within it. Events that
    overlap without that stand side by side. Each pass takes the outermost events of what is left,
    so that the number of passes is the depth of the stack and each is a few sweeps of numpy.
    """
    parent = np.full(len(events), NONE, np.int64)
    rows = np.flatnonzero(np.isin(events.kind, tuple(_OUTSIDE_FIRST)))
    start, end = events.start_ps[rows], events.start_ps[rows] + events.duration_ps[rows]
    order_of_kind = np.array([_OUTSIDE_FIRST.get(kind, 9) for kind in range(16)], np.int64)
    threads = thread_of(events)
    thread = threads[rows]
    order = np.lexsort((order_of_kind[events.kind[rows]], -end, start, thread))
    rows, thread, end = rows[order], thread[order], end[order]
    # Each thread is lifted above the one before it, so that one running maximum serves all.
    if len(rows):
        span = int(end.max() - start.min()) + 1
        if span * (int(thread[-1]) + 1) < 2**62:
            end = end + thread * span
        else:
            end = np.unique(end, return_inverse=True)[1].astype(np.int64) + thread * len(rows)
    levels: list[Ints] = []
    while len(rows):
        highest = np.maximum.accumulate(end)
        outer = np.empty(len(rows), np.bool_)
        outer[0] = True
        outer[1:] = end[1:] > highest[:-1]
        levels.append(rows[outer])
        holder = rows[np.maximum.accumulate(np.where(outer, np.arange(len(rows)), 0))]
        rest = ~outer
        parent[rows[rest]] = holder[rest]
        rows, end = rows[rest], end[rest]
    return Stack(parent, tuple(levels), threads)


def thread_of(events: Events) -> Ints:
    """Return a small number for each pair of process and thread."""
    # Events of one thread stand together in a file, so there are far fewer runs than events.
    first = np.flatnonzero(begins(events.process, events.thread))
    number = group(events.process[first], events.thread[first]).of
    return np.repeat(number, np.diff(np.append(first, len(events))))


PREFIX = "nn.Module: "
_NUMBERED = re.compile(r"^(.+?)_(\d+)$")


@dataclass(frozen=True, slots=True)
class Modules:
    """What is known of calls of modules; columns have one row an event or a name of the trace."""

    is_call: Flags
    """bool[events]"""
    is_leaf: Flags
    """bool[names]: modules that call no other."""
    layer: Ints
    """int64[names]: the layer that a module is or that it names, -1 for others."""
    is_part: Flags
    """bool[names]: modules within a layer, so that their label tells where."""
    label: Mapping[int, str]
    """Row of a name -> what the module is called within its layer."""


@dataclass(frozen=True, slots=True)
class _Part:
    name: int
    parent: int
    """Row of the name of the module around it, `NONE` without one."""
    kind: str
    """Class of the module, or its place in the network."""
    number: int


def find_modules(trace: RankTrace, stack: Stack) -> Modules:
    """Find the modules of a network, and which of them are its layers."""
    events = trace.events
    marked = np.fromiter(
        (name.startswith(PREFIX) for name in trace.names), np.bool_, len(trace.names)
    )
    is_call = (events.kind == MODULE) | ((events.kind == ANNOTATION) & marked[events.name])
    rows = np.flatnonzero(is_call)
    within = stack.nearest(is_call)
    above = stack.parent[rows]
    around = np.where(above >= 0, within[above], NONE)
    own = events.name[rows]
    parents = values_at(events.name, around)
    is_leaf = np.zeros(len(trace.names), np.bool_)
    is_leaf[own] = True
    is_leaf[parents[parents >= 0]] = False
    layer = np.full(len(trace.names), NONE, np.int64)
    if len(rows) == 0:
        return Modules(is_call, is_leaf, layer, is_leaf.copy(), {})
    order = rows[np.argsort(events.start_ps[rows], kind="stable")]
    first = dict.fromkeys(events.name[order].tolist())
    parent_of = dict(zip(own[::-1].tolist(), parents[::-1].tolist(), strict=True))
    placed = bool((events.kind[rows] == ANNOTATION).any())
    if placed:
        labels = _of_places(trace, list(first), layer)
    else:
        parts = [_part(trace.names[name], name, parent_of[name]) for name in first]
        labels = _of_classes(trace, parts, is_leaf, layer, rows)
    is_part = np.zeros(len(trace.names), np.bool_)
    within_layer = stack.nearest(is_call & (layer[events.name] >= 0))[rows]
    is_part[own[within_layer >= 0]] = True
    if not placed:
        is_part[layer >= 0] = False  # the layer itself: its operators need no path
    return Modules(is_call, is_leaf, layer, is_part, labels)


def _of_places(trace: RankTrace, used: list[int], layer: Ints) -> dict[int, str]:
    """Give modules with a place in the network their layer: the first number of the place."""
    found: dict[tuple[str, int], list[int]] = {}
    labels: dict[int, str] = {}
    for name in used:
        place = trace.names[name].removeprefix(PREFIX).split(".")
        at = next((i for i, part in enumerate(place) if part.isdecimal()), None)
        labels[name] = ".".join(place)
        if at is not None and len(place[at]) < _DIGITS:
            found.setdefault((".".join(place[:at]), int(place[at])), []).append(name)
            labels[name] = ".".join(place[at + 1 :]) or "layer"
    several = len({prefix for prefix, _ in found}) > 1
    for count, ((_, number), rows) in enumerate(found.items()):
        layer[rows] = count if several else number
    return labels


_DIGITS = 9


def _part(text: str, name: int, parent: int) -> _Part:
    match = _NUMBERED.match(text.removeprefix(PREFIX))
    if match is None or len(match[2]) > _DIGITS:
        return _Part(name, parent, text.removeprefix(PREFIX), 0)
    return _Part(name, parent, match[1], int(match[2]))


def _of_classes(
    trace: RankTrace, parts: list[_Part], is_leaf: Flags, layer: Ints, rows: Ints
) -> dict[int, str]:
    kind = _layer_class(trace, parts, is_leaf, rows)
    layers = [part.name for part in parts if part.kind == kind]
    layer[layers] = np.arange(len(layers))
    of = {part.name: part for part in parts}
    alike: dict[tuple[int, str], list[int]] = {}
    for part in parts:
        alike.setdefault((part.parent, part.kind), []).append(part.name)
    skipped = tables.fits([part.kind for part in parts], tables.load_trace_names().containers)
    holds = {part.name for part, skip in zip(parts, skipped, strict=True) if skip}
    labels: dict[int, str] = {}

    def local(part: _Part) -> str:
        same = alike[part.parent, part.kind]
        if part.kind == kind or len(same) == 1:
            return part.kind
        return f"{part.kind}[{same.index(part.name)}]"

    for part in parts:
        path, step = [local(part)], part
        while step.parent in of and len(path) < _DEEPEST:
            step = of[step.parent]
            if step.kind == kind:
                break
            if step.name not in holds:
                path.append(local(step))
        inside = step.kind == kind and step is not part
        labels[part.name] = ".".join(reversed(path)) if inside else path[0]
    return labels


_DEEPEST = 32
"""Modules cannot hold themselves; a spoilt trace may say so."""


def _layer_class(trace: RankTrace, parts: list[_Part], is_leaf: Flags, rows: Ints) -> str | None:
    """Return the class of modules that is the layer of the network, or None.

    It has several modules, holds others, and runs for most of the time that any such class does;
    of several the one with the most modules, then the one that runs longest.
    """
    events = trace.events
    table = tables.load_trace_names()
    kinds = list(dict.fromkeys(part.kind for part in parts))
    contains = dict(zip(kinds, tables.fits(kinds, table.containers).tolist(), strict=True))
    count = Counter(part.kind for part in parts)
    holding = {part.kind for part in parts if not is_leaf[part.name]}
    spent_of_name = np.bincount(
        events.name[rows], events.duration_ps[rows].astype(np.float64), len(trace.names)
    )
    spent: dict[str, float] = defaultdict(float)
    for part in parts:
        spent[part.kind] += float(spent_of_name[part.name])
    several = [kind for kind in kinds if count[kind] > 1 and not contains[kind]]
    candidates = [kind for kind in several if kind in holding] or several
    if not candidates:
        return None
    longest = max(spent[kind] for kind in candidates)
    main = [kind for kind in candidates if spent[kind] >= longest / 2]
    return max(main, key=lambda kind: (count[kind], spent[kind]))


@dataclass(frozen=True, slots=True)
class HostPhases:
    """What holds at each event of the host."""

    phase: Ints
    """int64[events]: position in ``PHASES``; -1 where nothing around the event tells."""
    recompute: Flags
    """bool[events]: part of a forward that the backward runs again."""
    engine: Flags
    """bool[events]: operators that the engine of the backward starts."""
    mark: Ints
    """int64[events]: phase that the event itself tells, -1 for most."""


def host_phases(trace: RankTrace, stack: Stack, modules: Modules) -> HostPhases:
    """Find the phase of each event of the host from the ranges and operators around it.

    The innermost range of a backward or optimizer holds; a forward within those is recomputation.
    It shows as a call of a module, as an operator that records for autograd (it has a sequence
    number and no thread of a forward), or as a range named for the forward. What records for
    autograd in a range named for the backward, but outside the engine, is forward still: programs
    put the loss there.
    """
    events = trace.events
    by_name = tables.phases(trace.names, tables.load_trace_names().phases)
    speaks = np.isin(events.kind, (ANNOTATION, OPERATOR)) & ~modules.is_call
    mark = np.where(speaks, by_name[events.name], NONE)
    engine = (events.kind == OPERATOR) & (mark == BACKWARD)
    inside = stack.nearest(engine) >= 0
    later = stack.nearest((mark == BACKWARD) | (mark == OPTIMIZER))
    early = stack.nearest(mark == FORWARD) >= 0
    phase = np.where(later >= 0, mark[later], np.where(early, FORWARD, NONE))
    records = (events.kind == OPERATOR) & (events.sequence >= 0) & (events.forward_thread <= 0)
    within_forward = stack.outermost(records | modules.is_call, within=engine) >= 0
    ranges = stack.nearest((events.kind == ANNOTATION) & (mark != NONE))
    named = (ranges >= 0) & (mark[ranges] == FORWARD)
    recompute = inside & (within_forward | named) & (phase == BACKWARD)
    learned = ~inside & within_forward & (phase != OPTIMIZER)
    phase = np.where(learned, FORWARD, phase)
    # Threads that run the backward and no forward of their own.
    backward = np.zeros(int(stack.thread.max(initial=0)) + 1, np.bool_)
    backward[stack.thread[engine]] = True
    backward[stack.thread[learned]] = False
    phase = np.where((phase == NONE) & backward[stack.thread], BACKWARD, phase)
    return HostPhases(phase, recompute, engine, mark)


def annotated_iterations(events: Events, names: Sequence[str]) -> tuple[Ints, Ints, Ints]:
    """Return start, end and number of iterations, by the first kind of range that is there."""
    rows = np.flatnonzero(events.kind == ANNOTATION)
    used = np.unique(events.name[rows])
    texts = [names[row] for row in used]
    for pattern in tables.load_trace_names().iterations:
        found = tables.numbers(texts, [pattern])
        if not (found >= 0).any():
            continue
        number = np.full(len(names), NONE, np.int64)
        number[used] = found
        rows = rows[number[events.name[rows]] >= 0]
        rows = rows[np.argsort(events.start_ps[rows], kind="stable")]
        start = events.start_ps[rows]
        return start, start + events.duration_ps[rows], number[events.name[rows]]
    none = np.zeros(0, np.int64)
    return none, none, none


def within(times: Ints, start: Ints, end: Ints, number: Ints) -> Ints:
    """Return the number of the ordered range around each time, -1 outside and at ends."""
    if len(start) == 0:
        return np.full(len(times), NONE, np.int64)
    place = np.searchsorted(start, times, "right") - 1
    inside = (place >= 0) & (times < end[np.maximum(place, 0)])
    return np.where(inside, number[place], NONE)


def steps_as_iterations(optimizer_ends: Ints, forwards: Ints) -> tuple[Ints, Ints, Ints]:
    """Return iterations that end with a step of the optimizer: start, end, number from 0.

    Several optimizers may step one after the other: a new iteration needs a call of the forward, of
    which the ordered starts are given.
    """
    ends = np.sort(optimizer_ends)
    last = np.ones(len(ends), np.bool_)
    if len(forwards):
        last[:-1] = np.diff(np.searchsorted(forwards, ends)) > 0
    ends = ends[last]
    low = np.iinfo(np.int64).min // 2
    starts = np.concatenate([[low], ends[:-1]]).astype(np.int64)
    return starts, ends.astype(np.int64), np.arange(len(ends), dtype=np.int64)


def fill_from_neighbours(values: Ints, known: Flags, stream: Ints) -> Ints:
    """Give unknown values those of the neighbours on the stream, where both agree.

    Rows are in order of stream and start, since a stream runs its work in the order of launches.
    """
    count = len(values)
    if count == 0:
        return values
    before, after = last_known(known), next_known(known)
    usable = ~known & (before >= 0) & (after < count)
    left, right = values[np.maximum(before, 0)], values[np.minimum(after, count - 1)]
    same = (stream[np.maximum(before, 0)] == stream) & (
        stream[np.minimum(after, count - 1)] == stream
    )
    return np.where(usable & same & (left == right), left, values)


MOST_ARROWS = 10_000
"""Arrows that are looked at to learn which thread is which; a few hundred would do."""


def is_node(events: Events) -> Flags:
    """Return which operators are of the backward: they know the thread of their forward."""
    node: Flags = (events.kind == OPERATOR) & (events.sequence >= 0) & (events.forward_thread > 0)
    return node


def forward_operators(trace: RankTrace, stack: Stack) -> Ints:
    """Return the operator of the forward that each event of the backward belongs to.

    Both have one sequence number, which each thread of a forward counts by itself. Of operators
    that share a number the last one made the node. How the framework numbers its threads is learned
    from the profiler's arrows, else from which thread has the numbers.
    """
    events = trace.events
    node = is_node(events)
    rows = np.flatnonzero(node)
    candidates = np.flatnonzero(
        (events.kind == OPERATOR) & (events.sequence >= 0) & (events.forward_thread <= 0)
    )
    found = np.full(len(events), NONE, np.int64)
    if len(rows) and len(candidates):
        found[rows] = _linked(trace, rows, candidates)
    return values_at(found, stack.nearest(node))


def _linked(trace: RankTrace, rows: Ints, candidates: Ints) -> Ints:
    events = trace.events
    sequence, start = events.sequence, events.start_ps
    freely = latest_before(
        (sequence[rows],), start[rows], (sequence[candidates],), start[candidates]
    )
    guess = values_at(candidates, freely)
    votes = Counter(
        zip(
            events.forward_thread[rows][guess >= 0].tolist(),
            events.thread[guess[guess >= 0]].tolist(),
            strict=True,
        )
    )
    votes.update({pair: count * len(rows) for pair, count in _arrows(trace, rows).items()})
    thread_of: dict[int, int] = {}
    for (number, thread), _ in sorted(votes.items(), key=lambda item: -item[1]):
        thread_of.setdefault(number, thread)
    numbers = np.unique(events.forward_thread[rows])
    threads = np.array([thread_of.get(number, NONE) for number in numbers.tolist()], np.int64)
    thread = threads[np.searchsorted(numbers, events.forward_thread[rows])]
    exact = latest_before(
        (sequence[rows], thread), start[rows],
        (sequence[candidates], events.thread[candidates]), start[candidates],
    )  # fmt: skip
    return values_at(candidates, exact)


def _arrows(trace: RankTrace, rows: Ints) -> Counter[tuple[int, int]]:
    """Count which thread the arrows of each numbered thread of a forward come from."""
    events = trace.events
    links = trace.links[:: max(1, len(trace.links) // MOST_ARROWS)]
    wanted = {(link.backward_thread, link.backward_ps): link.forward_thread for link in links}
    ends = np.array([link.backward_ps for link in links], np.int64)
    near = rows[np.isin(events.start_ps[rows], ends)]
    votes: Counter[tuple[int, int]] = Counter()
    for row in near.tolist():
        origin = wanted.get((int(events.thread[row]), int(events.start_ps[row])))
        if origin is not None:
            votes[int(events.forward_thread[row]), origin] += 1
    return votes


def latest_before(
    keys: tuple[Ints, ...], time: Ints, among_keys: tuple[Ints, ...], among_time: Ints
) -> Ints:
    """Return the last row of ``among`` with the same keys before each time; `NONE` without."""
    count = len(among_time)
    both = [np.concatenate(pair) for pair in zip(among_keys, keys, strict=True)]
    when = np.concatenate([among_time, time])
    asks = np.concatenate([np.zeros(count, np.int64), np.ones(len(time), np.int64)])
    order = np.lexsort((asks, when, *both))
    last = last_known(asks[order] == 0)
    answer = np.full(len(order), NONE, np.int64)
    answer[order] = values_at(order, last)
    found = answer[count:]
    same = found >= 0
    for column in both:
        same &= column[np.maximum(found, 0)] == column[count:]
    return np.where(same, found, NONE)
