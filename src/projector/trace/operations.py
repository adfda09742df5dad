"""What the activities of a rank are part of: operations, layers, and the forward of a backward."""

from dataclasses import dataclass

import numpy as np

from projector.arrays import Flags, Ints
from projector.trace import names as tables
from projector.trace.backward import forward_operators, is_node
from projector.trace.events import ANNOTATION, NONE, OPERATOR, RankTrace
from projector.trace.layers import host_layers, ordinals
from projector.trace.modules import Modules
from projector.trace.nesting import Stack
from projector.trace.phases import HostPhases


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
    trace: RankTrace, stack: Stack, phases: HostPhases, modules: Modules, attends: Flags,
    notes: list[str],
) -> Operations:  # fmt: skip
    """Name the operation of each event of the host.

    The innermost range that the program named, or module that calls no other, is the operation;
    else the outermost operator within the module around. A backward is one for each node of
    autograd, and named as its forward.
    """
    events = trace.events
    forward = forward_operators(trace, stack)
    instance = _instances(trace, stack, phases, modules)
    layer = host_layers(trace, stack, phases, modules, forward, instance, attends, notes)
    module = stack.nearest(modules.is_call)
    of = np.maximum(instance, 0)
    name = np.where(instance >= 0, events.name[of], NONE)
    inside = np.where(
        (instance >= 0) & (module[of] >= 0) & (events.kind[of] == OPERATOR)
        & ~(phases.engine[of] | is_node(events)[of]),
        events.name[np.maximum(module[of], 0)], NONE,
    )  # fmt: skip
    ordinal = _ordinals(trace, phases, instance, name, inside, layer)
    label, labels = _labels(trace, modules, instance, name, inside, ordinal)
    linked = np.where((forward >= 0) & ~phases.recompute, instance[np.maximum(forward, 0)], NONE)
    takes = linked >= 0
    label = np.where(takes, _backward_labels(labels)[label[np.maximum(linked, 0)]], label)
    return Operations(label, instance, linked, layer, tuple(labels))


def _instances(trace: RankTrace, stack: Stack, phases: HostPhases, modules: Modules) -> Ints:
    """Return the event that is the operation of each event."""
    events = trace.events
    table = tables.load_trace_names()
    node = is_node(events)
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
    keep = (backward < 0) | phases.recompute | named_there
    return np.where(keep, forward, backward)


def _ordinals(
    trace: RankTrace, phases: HostPhases, instance: Ints, name: Ints, inside: Ints, layer: Ints
) -> Ints:
    """Tell operators apart that one layer has several times: -1 for all others."""
    events = trace.events
    own = np.flatnonzero(
        (instance == np.arange(len(events))) & (events.kind == OPERATOR) & (layer >= 0)
        & ~phases.engine
    )  # fmt: skip
    own = own[np.argsort(events.start_ps[own], kind="stable")]
    key = name * (len(trace.names) + 1) + inside + 1
    place = layer * 2 + phases.recompute
    count = ordinals(key, place, own)
    repeated = np.unique(key[own][count[own] > 0])
    count = np.where(np.isin(key, repeated), count, NONE)
    return np.where(instance >= 0, count[np.maximum(instance, 0)], NONE)


def _labels(
    trace: RankTrace, modules: Modules, instance: Ints, name: Ints, inside: Ints, ordinal: Ints
) -> tuple[Ints, list[str]]:
    """Return the row of the text that names each event's operation, and the texts."""
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


def _text(trace: RankTrace, modules: Modules, name: int, inside: int, ordinal: int) -> str:
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
