"""What the activities of a rank are part of: operations, layers, and the forward of a backward."""

from dataclasses import dataclass

import numpy as np

from projector.arrays import Ints
from projector.trace import names as tables
from projector.trace.events import ANNOTATION, MODULE, NONE, OPERATOR, RankTrace
from projector.trace.nesting import Stack
from projector.trace.phases import HostPhases


@dataclass(frozen=True, slots=True)
class Operations:
    """What holds at each event of the host; all columns have one row an event."""

    label: Ints
    """Row of `labels`, -1 where no operator and no range of the program stands around."""
    instance: Ints
    """The operator or range that is the operation; -1 as above."""
    forward: Ints
    """Of the backward: the event that is the operation of the forward; -1 elsewhere."""
    layer: Ints
    labels: tuple[str, ...]


def name_operations(trace: RankTrace, stack: Stack, phases: HostPhases) -> Operations:
    """Name the operation of each event of the host.

    The innermost range that the program named is the operation, apart from those that say where
    the program stands; else the outermost operator within the module around. A backward is named
    as its forward, or as its node of autograd.
    """
    events = trace.events
    table = tables.load_trace_names()
    frame = tables.fits(trace.names, table.frames)
    named = (events.kind == ANNOTATION) & ~frame[events.name]
    operator = events.kind == OPERATOR
    around = stack.nearest(named)
    bounds = (events.kind == MODULE) | (events.kind == ANNOTATION)
    outer = stack.outermost(operator, within=bounds)
    instance = np.where(around >= 0, around, outer)
    own = np.where(instance >= 0, events.name[np.maximum(instance, 0)], NONE)
    forward = _forward(trace, stack)
    linked = np.where(forward >= 0, instance[np.maximum(forward, 0)], NONE)
    backward = stack.nearest(phases.engine)
    plain = (around < 0) & ~phases.recompute
    own = np.where(plain & (linked >= 0), events.name[np.maximum(linked, 0)], own)
    node = plain & (linked < 0) & (backward >= 0)
    own = np.where(node, events.name[np.maximum(backward, 0)], own)
    used, label = np.unique(own, return_inverse=True)
    labels = [_plain(trace.names[row]) if row >= 0 else "" for row in used.tolist()]
    distinct = tuple(dict.fromkeys(text for text in labels if text))
    place = {text: row for row, text in enumerate(distinct)}
    row_of = np.array([place.get(text, NONE) for text in labels] or [NONE], np.int64)
    return Operations(
        row_of[label.reshape(-1)],
        instance,
        np.where(phases.recompute, NONE, linked),
        np.full(len(events), NONE, np.int64),
        distinct,
    )


def _plain(name: str) -> str:
    """Return a name without the prefix that the engine of the backward gives it."""
    return name.rpartition("evaluate_function: ")[2]


def _forward(trace: RankTrace, stack: Stack) -> Ints:
    """Return the operator of the forward that each event of the backward belongs to."""
    events = trace.events
    operator = events.kind == OPERATOR
    later = operator & (events.sequence >= 0) & (events.forward_thread > 0)
    candidates = np.flatnonzero(operator & (events.sequence >= 0) & (events.forward_thread <= 0))
    found = np.full(len(events), NONE, np.int64)
    rows = np.flatnonzero(later)
    if len(rows) and len(candidates):
        found[rows] = _latest_before(
            events.sequence[rows], events.start_ps[rows], candidates,
            events.sequence[candidates], events.start_ps[candidates],
        )  # fmt: skip
    nearest = stack.nearest(later)
    return np.where(nearest >= 0, found[np.maximum(nearest, 0)], NONE)


def _latest_before(
    key: Ints, time: Ints, candidates: Ints, candidate_key: Ints, candidate_time: Ints
) -> Ints:
    """Return, of the candidates with the same key, the last that starts before each time."""
    order = np.lexsort((candidate_time, candidate_key))
    candidate_key, candidate_time = candidate_key[order], candidate_time[order]
    both_key = np.concatenate([candidate_key, key])
    both_time = np.concatenate([candidate_time, time])
    asks = np.concatenate([np.zeros(len(order), np.int64), np.ones(len(key), np.int64)])
    rank = np.lexsort((asks, both_time, both_key))
    place = np.where(asks[rank] == 0, rank, -1)
    last = np.maximum.accumulate(np.where(place >= 0, np.arange(len(rank)), -1))
    answer = np.full(len(both_key), -1, np.int64)
    answer[rank] = np.where(last >= 0, rank[np.maximum(last, 0)], -1)
    found = answer[len(order) :]
    fits = (found >= 0) & (candidate_key[np.maximum(found, 0)] == key)
    return np.where(fits, candidates[order[np.maximum(found, 0)]], NONE)
