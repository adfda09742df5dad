"""Which phase of an iteration the host was in, and what it computed a second time."""

from dataclasses import dataclass

import numpy as np

from projector.arrays import Flags, Ints
from projector.trace import names as tables
from projector.trace.codes import BACKWARD, FORWARD, OPTIMIZER
from projector.trace.events import ANNOTATION, NONE, OPERATOR, RankTrace
from projector.trace.modules import Modules
from projector.trace.nesting import Stack


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
    forward = records | modules.is_call
    within_forward = stack.outermost(forward, within=engine) >= 0
    ranges = stack.nearest((events.kind == ANNOTATION) & (mark != NONE))
    named = (ranges >= 0) & (mark[ranges] == FORWARD)
    recompute = inside & (within_forward | named) & (phase == BACKWARD)
    learned = ~inside & within_forward & (phase != OPTIMIZER)
    phase = np.where(learned, FORWARD, phase)
    phase = np.where(
        (phase == NONE) & _autograd_threads(stack.thread, engine, learned), BACKWARD, phase
    )
    return HostPhases(phase, recompute, engine, mark)


def _autograd_threads(thread: Ints, engine: Flags, forward: Flags) -> Flags:
    """Return which events stand on threads that run the backward and no forward of their own."""
    runs = np.zeros(int(thread.max(initial=0)) + 1, np.bool_)
    runs[thread[engine]] = True
    runs[thread[forward]] = False
    return runs[thread]
