"""Modules of the network as a trace shows them: which are layers, and how parts of one are called.

The profiler names calls of modules by class and number, ``nn.Module: Linear_3``; our recorder by
their place in the network, ``nn.Module: layers.3.mlp.up``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from projector.arrays import Flags, Ints
from projector.trace import names as tables
from projector.trace.events import ANNOTATION, MODULE, NONE, RankTrace
from projector.trace.nesting import Stack

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
    """A module: where it stands."""

    name: int
    parent: int
    """Row of the name of the module around it, `NONE` without one."""
    kind: str
    """Its class, or its place in the network."""
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
    parents = np.where(around >= 0, events.name[np.maximum(around, 0)], NONE)
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
    """Find the class that is the layer, number its modules, and call the others by their path."""
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
    count: dict[str, int] = {}
    leafs: dict[str, bool] = {}
    for part in parts:
        count[part.kind] = count.get(part.kind, 0) + 1
        leafs[part.kind] = leafs.get(part.kind, True) and bool(is_leaf[part.name])
    spent_of_name = np.bincount(
        events.name[rows], events.duration_ps[rows].astype(np.float64), len(trace.names)
    )
    spent: dict[str, float] = {}
    for part in parts:
        spent[part.kind] = spent.get(part.kind, 0.0) + float(spent_of_name[part.name])
    several = [kind for kind in kinds if count[kind] > 1 and not contains[kind]]
    candidates = [kind for kind in several if not leafs[kind]] or several
    if not candidates:
        return None
    longest = max(spent[kind] for kind in candidates)
    main = [kind for kind in candidates if spent[kind] >= longest / 2]
    return max(main, key=lambda kind: (count[kind], spent[kind]))
