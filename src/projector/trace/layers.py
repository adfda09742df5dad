"""What the activities of a rank are part of: operations, layers, and the forward of a backward.

The layer of an event of the host is the one that is named, that modules tell, or repetition.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from projector.arrays import Flags, Ints
from projector.trace import host
from projector.trace import names as tables
from projector.trace.events import ANNOTATION, NONE, OPERATOR, RankTrace
from projector.trace.groups import begins, last_known, values_at

MOST_COMPARED = 4096
"""Operations that two layers are compared over; no layer has as many."""


def host_layers(
    trace: RankTrace, stack: host.Stack, phases: host.HostPhases, modules: host.Modules,
    forward: Ints, instance: Ints, attends: Flags, notes: list[str],
) -> Ints:  # fmt: skip
    """Return the layer of each event of the host, -1 outside layers.

    `forward` is the operator of the forward that each event of the backward belongs to, `instance`
    the operation of each event, and `attends` the calls that launch kernels of attention. What was
    inferred is added to the notes.
    """
    events = trace.events
    by_name = modules.layer.copy()
    ranges = np.unique(events.name[(events.kind == ANNOTATION) & ~modules.is_call])
    if len(ranges):
        by_name[ranges] = tables.numbers(
            [trace.names[row] for row in ranges], tables.load_trace_names().layers
        )
    speaks = modules.is_call | (events.kind == ANNOTATION)
    says = np.where(speaks, by_name[events.name], NONE)
    layer = values_at(says, stack.nearest(says >= 0))
    if not (layer[(events.kind == OPERATOR) & ~phases.recompute] >= 0).any():
        layer = _by_attention(trace, stack, phases, instance, attends)
        if (layer >= 0).any():
            notes.append(
                "layers were inferred: each holds one attention and the operations that repeat "
                "around it"
            )
    layer = _of_wrappers(trace, stack, layer)
    # Twice: with a checkpoint that enters the engine again, the inner backward has its layer from
    # what is run again, and that from the outer backward.
    layer = _of_backward(trace, stack, phases, forward, layer)
    return _of_backward(trace, stack, phases, forward, layer)


def _of_wrappers(trace: RankTrace, stack: host.Stack, layer: Ints) -> Ints:
    """Give operators that only hold others, such as a checkpoint, the layer of what they hold."""
    events = trace.events
    wraps = tables.fits(trace.names, tables.load_trace_names().wrappers)
    wrapper = (events.kind == OPERATOR) & wraps[events.name]
    if not wrapper.any():
        return layer
    outer = stack.outermost(wrapper)
    inner = np.flatnonzero((layer >= 0) & (outer >= 0))
    inner = inner[np.argsort(events.start_ps[inner], kind="stable")[::-1]]
    result = layer.copy()
    held = np.full(len(events), NONE, np.int64)
    held[outer[inner]] = layer[inner]
    own = np.flatnonzero(wrapper & (layer < 0))
    result[own] = held[outer[own]]
    return result


def _of_backward(
    trace: RankTrace, stack: host.Stack, phases: host.HostPhases, forward: Ints, layer: Ints
) -> Ints:
    """Give the backward the layer of its forward.

    What has no forward of its own, such as the sum of a gradient, has that of the operator that the
    engine ran before it.
    """
    events = trace.events
    engine = np.flatnonzero(phases.engine)
    linked = forward[engine]
    value = values_at(layer, linked)
    order = np.lexsort((events.start_ps[engine], stack.thread[engine]))
    known = linked[order] >= 0
    thread = stack.thread[engine][order]
    last = last_known(known)
    usable = (last >= 0) & (thread[np.maximum(last, 0)] == thread)
    filled = np.where(usable, value[order][np.maximum(last, 0)], NONE)
    of_engine = np.full(len(events), NONE, np.int64)
    of_engine[engine[order]] = filled
    nearest = stack.nearest(phases.engine)
    return np.where(layer >= 0, layer, values_at(of_engine, nearest))


def _by_attention(
    trace: RankTrace, stack: host.Stack, phases: host.HostPhases, instance: Ints, attends: Flags
) -> Ints:
    """Infer layers from attention: each forward has one in each layer.

    What stands between two attentions is the end of one layer and the begin of the next. The begin
    is as long as what the first layer has before its attention: the longest common end of the
    two sequences.
    """
    events = trace.events
    attention = (events.kind == OPERATOR) & tables.fits(
        trace.names, tables.load_trace_names().attention_operators
    )[events.name]
    attention |= attends
    holds = np.zeros(len(events) + 1, np.bool_)
    holds[instance[attention]] = True
    operators = np.flatnonzero(
        (instance == np.arange(len(events))) & ~phases.recompute
        & (stack.nearest(phases.engine) < 0)
    )  # fmt: skip
    operators = operators[np.argsort(events.start_ps[operators], kind="stable")]
    layer = np.full(len(events), NONE, np.int64)
    # Sequences of one forward: the backward, the optimizer, the begin of an iteration or a message
    # of a pipeline stands between two of them.
    marks = phases.engine | (phases.mark > 0) | _messages(trace, stack)
    starts, _, _ = host.annotated_iterations(events, trace.names)
    cuts = np.searchsorted(
        np.sort(np.concatenate([events.start_ps[marks], starts])),
        events.start_ps[operators], "right",
    )  # fmt: skip
    for part in np.split(operators, np.flatnonzero(np.diff(cuts)) + 1):
        layer[part] = layers_of_sequence(events.name[part], holds[part])
    return values_at(layer, stack.nearest(layer >= 0))


def _messages(trace: RankTrace, stack: host.Stack) -> Flags:
    """Return which events are messages that no operator holds: those of a pipeline."""
    events = trace.events
    messages = tables.load_trace_names().messages
    told = tables.fits([str(detail.get("collective", "")) for detail in trace.details], messages)
    operator = (events.kind == OPERATOR) & np.append(told, False)[events.detail]
    ranges = (events.kind == ANNOTATION) & tables.fits(trace.names, messages)[events.name]
    outer = stack.outermost(events.kind == OPERATOR)
    alone = (outer < 0) | (outer == np.arange(len(events)))
    found: Flags = (operator | ranges) & alone
    return found


def layers_of_sequence(names: Ints, attends: Flags) -> Ints:
    """Return the layer of each operation of one forward, or of several in a row.

    One attention is in each layer. Numbers are from 0, anew in each forward; -1 before the first
    layer of one, after its last, and with fewer than two attentions.
    """
    layer = np.full(len(names), NONE, np.int64)
    places = np.flatnonzero(attends)
    if len(places) < 2:
        return layer
    between = [names[a + 1 : b] for a, b in pairwise(places.tolist())]
    count = Counter(part.tobytes() for part in between)
    usual = np.frombuffer(count.most_common(1)[0][0], np.int64)
    kinds = list({part.tobytes(): part for part in between}.values())
    head = min(_common(names[: places[0]][::-1], part[::-1]) for part in kinds)
    tail = names[places[-1] + 1 :]
    alone = {*names[: places[0] - head].tolist(), *tail[_common(tail, usual) :].tolist()}
    found: Counter[int] = Counter()
    for kind, times in Counter(part.tobytes() for part in between).items():
        found.update(dict.fromkeys(np.unique(np.frombuffer(kind, np.int64)).tolist(), times))
    alone -= {name for name, times in found.items() if times > MOST_FORWARDS * len(between)}
    within = [part[: len(part) - head] for part in kinds if alone.isdisjoint(part.tolist())]
    number, start = 0, int(places[0]) - head
    for place, part in zip(places.tolist(), [*between, tail], strict=True):
        ends = part is tail or not alone.isdisjoint(part.tolist())
        length = max((_common(part, each) for each in within), default=0)
        stop = place + 1 + (length if ends else len(part) - head)
        layer[start:stop] = number
        number = 0 if ends else number + 1
        start = place + 1 + len(part) - head
    return layer


MOST_FORWARDS = 0.25
"""What stands between more of the layers than this share is part of them: no forward ends there."""


def _common(first: Ints, second: Ints) -> int:
    length = min(len(first), len(second), MOST_COMPARED)
    differ = np.flatnonzero(first[:length] != second[:length])
    return int(differ[0]) if len(differ) else length


@dataclass(frozen=True, slots=True)
class Operations:
    """What holds at each event of the host; all columns have one row an event."""

    label: Ints
    """Row of `labels`, -1 where no operator and no range of the program stands around."""
    instance: Ints
    """The operator, module or range that is the operation; -1 as above."""
    forward: Ints
    """Of the backward: the event that is the operation of the forward; -1 elsewhere."""
    layer: Ints
    labels: tuple[str, ...]


def name_operations(
    trace: RankTrace, stack: host.Stack, phases: host.HostPhases, modules: host.Modules,
    attends: Flags, notes: list[str],
) -> Operations:  # fmt: skip
    """Name the operation of each event of the host.

    The innermost range that the program named, or module that calls no other, is the operation;
    else the outermost operator within the module around. A backward is one for each node of
    autograd, and named as its forward.
    """
    events = trace.events
    forward = host.forward_operators(trace, stack)
    instance = _instances(trace, stack, phases, modules)
    layer = host_layers(trace, stack, phases, modules, forward, instance, attends, notes)
    module = stack.nearest(modules.is_call)
    of = np.maximum(instance, 0)
    name = np.where(instance >= 0, events.name[of], NONE)
    inside = np.where(
        (instance >= 0) & (module[of] >= 0) & (events.kind[of] == OPERATOR)
        & ~(phases.engine[of] | host.is_node(events)[of]),
        events.name[np.maximum(module[of], 0)], NONE,
    )  # fmt: skip
    ordinal = _ordinals(trace, phases, instance, name, inside, layer)
    label, labels = _labels(trace, modules, instance, name, inside, ordinal)
    linked = np.where((forward >= 0) & ~phases.recompute, instance[np.maximum(forward, 0)], NONE)
    takes = linked >= 0
    label = np.where(takes, _backward_labels(labels)[label[np.maximum(linked, 0)]], label)
    return Operations(label, instance, linked, layer, tuple(labels))


def _instances(
    trace: RankTrace, stack: host.Stack, phases: host.HostPhases, modules: host.Modules
) -> Ints:
    events = trace.events
    table = tables.load_trace_names()
    node = host.is_node(events)
    bounds = phases.engine | node
    ranges = (events.kind == ANNOTATION) & ~modules.is_call
    frame = tables.fits(trace.names, table.frames)
    # A range around modules that hold others, or around a backward, says where the program stands.
    holders = stack.nearest(ranges)
    wide = phases.engine | (modules.is_call & ~modules.is_leaf[events.name])
    around = holders[wide]
    while len(around := around[around >= 0]):
        frame[events.name[around]] = True
        above = stack.parent[np.unique(around)]
        around = holders[above[above >= 0]]
    named = ranges & ~frame[events.name]
    leaf = modules.is_call & modules.is_leaf[events.name]
    operator = (events.kind == OPERATOR) & ~tables.fits(trace.names, table.wrappers)[events.name]
    # A range of the program holds modules that call no other at most, so it goes before them.
    own = stack.nearest(named, within=bounds)
    closest = np.where(own >= 0, own, stack.nearest(leaf, within=bounds))
    outer = stack.outermost(
        operator & ~bounds, within=bounds | (events.kind == ANNOTATION) | modules.is_call
    )
    forward = np.where(closest >= 0, closest, outer)
    wrapper = stack.nearest((events.kind == OPERATOR) & ~bounds, within=bounds)
    forward = np.where(forward >= 0, forward, wrapper)  # a wrapper that works itself
    engine = stack.nearest(phases.engine)
    backward = np.where(engine >= 0, engine, stack.nearest(node))
    named_there = (closest >= 0) & (events.kind[np.maximum(closest, 0)] == ANNOTATION)
    return np.where((backward < 0) | phases.recompute | named_there, forward, backward)


def _ordinals(
    trace: RankTrace, phases: host.HostPhases, instance: Ints, name: Ints, inside: Ints, layer: Ints
) -> Ints:
    """Tell operators apart that one layer has several times: -1 for all others."""
    events = trace.events
    own = np.flatnonzero(
        (instance == np.arange(len(events))) & (events.kind == OPERATOR) & (layer >= 0)
        & ~phases.engine
    )  # fmt: skip
    own = own[np.argsort(events.start_ps[own], kind="stable")]
    key = name * (len(trace.names) + 1) + inside + 1
    # The how many-eth of its name each operation is within its run of one layer.
    run = np.cumsum(begins((layer * 2 + phases.recompute)[own]))
    order = np.lexsort((key[own], run))
    count = np.full(len(events), NONE, np.int64)
    ahead = last_known(begins(run[order], key[own][order]))
    count[own[order]] = np.arange(len(own)) - ahead
    repeated = np.unique(key[own][count[own] > 0])
    count = np.where(np.isin(key, repeated), count, NONE)
    return values_at(count, instance)


def _labels(
    trace: RankTrace, modules: host.Modules, instance: Ints, name: Ints, inside: Ints, ordinal: Ints
) -> tuple[Ints, list[str]]:
    own = np.unique(instance[instance >= 0])
    triples = np.stack([name[own], inside[own], ordinal[own]], axis=1)
    width = int(triples[:, 2].max(initial=0)) + 2
    key = ((triples[:, 0] + 1) * (len(trace.names) + 1) + triples[:, 1] + 1) * width
    key += triples[:, 2] + 1
    _, first, row = np.unique(key, return_index=True, return_inverse=True)
    texts = [_text(trace, modules, *triple) for triple in triples[first].tolist()]
    labels = list(dict.fromkeys(text for text in texts if text))
    place = {text: i for i, text in enumerate(labels)}
    row_of = np.array([place.get(text, NONE) for text in texts] or [NONE], np.int64)
    label = np.full(len(instance) + 1, NONE, np.int64)
    label[own] = row_of[row.reshape(-1)]
    return label[instance], labels


def _text(trace: RankTrace, modules: host.Modules, name: int, inside: int, ordinal: int) -> str:
    if name < 0:
        return ""
    if name in modules.label:
        return modules.label[name]
    # The engine of the backward puts a prefix before the name of a node.
    own = trace.names[name].rpartition("evaluate_function: ")[2]
    for expression in tables.expressions(tables.load_trace_names().layers):
        own, found = expression.subn("", own, count=1)
        own = own.strip(" ._:/()") or trace.names[name] if found else own
    part = f"{own}[{ordinal}]" if ordinal >= 0 else own
    within = inside >= 0 and modules.is_part[inside]
    return f"{modules.label[inside]} {part}" if within else part


def _backward_labels(labels: list[str]) -> Ints:
    """Return the label of the backward of each operation; new ones are added to the list."""
    prefix = tables.load_trace_names().phase_prefixes
    before, after = prefix["forward"], prefix["backward"]
    place = {text: row for row, text in enumerate(labels)}
    found = np.arange(len(labels) + 1, dtype=np.int64)
    found[-1] = NONE
    for row, text in enumerate(list(labels)):
        if text.startswith(before):
            other = after + text.removeprefix(before)
            found[row] = place.setdefault(other, len(labels))
            if found[row] == len(labels):
                labels.append(other)
    return found
