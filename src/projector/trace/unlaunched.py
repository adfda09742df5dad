"""What is told of activities whose launch is not in the trace: by repetition, or by their names.

A device runs behind its host, so a trace begins with work that was launched before it. Iterations
are alike: the activity that stands one iteration later on the same stream, and has the same name,
tells what it is.

In a trace of kernels without any framework, names tell phases: libraries name many kernels for the
phase that they belong to (``flash_bwd_kernel``, ``softmax_warp_forward``,
``multi_tensor_apply_kernel``). What has no such name, a matrix product above all, belongs to the
same phase as what stands around it.
"""

from dataclasses import dataclass

import numpy as np

from projector.arrays import Array, Flags, Ints
from projector.trace import names as tables
from projector.trace.activity import BACKWARD, FORWARD, OPTIMIZER, OTHER
from projector.trace.events import NONE
from projector.trace.groups import last_known, next_known, parts, values_at

LEAST_ALIKE = 0.95
"""Share of names on a stream that must agree with those of an iteration later."""

INHERITED = ("operation", "layer", "phase", "type", "recompute", "group", "bytes")
"""Columns that are alike in all iterations."""


def inherit(columns: dict[str, Array], unknown: Flags) -> Ints:
    """Give activities without a launch what those at the same place of another iteration have.

    Columns of `INHERITED` are changed. Returned is the activity that each took them from, `NONE`
    for all others.
    """
    source = np.full(len(unknown), NONE, np.int64)
    if not unknown.any() or unknown.all():
        return source
    order = np.lexsort((columns["start_ps"], columns["stream"], columns["device"]))
    for rows in parts(order, columns["device"], columns["stream"]):
        _inherit_on_stream(columns["name"][rows], columns["iteration"][rows], unknown, rows, source)
    taken = np.flatnonzero(source >= 0)
    for name in INHERITED:
        columns[name] = columns[name].copy()
        columns[name][taken] = columns[name][source[taken]]
    return source


def _inherit_on_stream(
    name: Ints, iteration: Ints, unknown: Flags, rows: Ints, source: Ints
) -> None:
    """Find the same places of other iterations for the begin of one stream."""
    known = np.flatnonzero(~unknown[rows])
    if len(known) == 0 or known[0] == 0:
        return
    first = int(known[0])
    numbers, count = np.unique(iteration[known], return_counts=True)
    count = count[numbers >= 0]
    if len(count) == 0 or (count != count[0]).any():
        return  # iterations differ, so places mean nothing
    period = int(count[0])
    place = np.arange(first)
    later = place + -((place - first) // period) * period
    usable = (later < len(rows)) & (later >= first)
    later = np.minimum(later, len(rows) - 1)
    alike = usable & (name[place] == name[later]) & ~unknown[rows[later]]
    if alike.sum() >= LEAST_ALIKE * first:
        source[rows[place[alike]]] = rows[later[alike]]


@dataclass(frozen=True, slots=True)
class Told:
    """What names of kernels tell; columns have one row an activity."""

    phase: Ints
    iteration: Ints


def told_by_kernels(name: Ints, names: tuple[str, ...], device: Ints, start_ps: Ints) -> Told:
    """Find phase and iteration from names alone; no backward and optimizer is inference."""
    used, row = np.unique(name, return_inverse=True)
    marks = tables.phases([names[i] for i in used], tables.load_trace_names().phase_kernels)
    mark = marks[row.reshape(-1)] if len(used) else np.zeros(0, np.int64)
    phase = np.full(len(name), FORWARD, np.int64)
    iteration = np.full(len(name), NONE, np.int64)
    if not np.isin(mark, (BACKWARD, OPTIMIZER)).any():
        return Told(phase, iteration)
    for rows in parts(np.lexsort((start_ps, device)), device):
        phase[rows] = _filled(mark[rows])
        iteration[rows] = _counted(phase[rows])
    return Told(phase, iteration)


def _filled(mark: Ints) -> Ints:
    """Return the phase of each kernel of one device, in order of start.

    What has no name of a phase belongs to the next one that has: it prepares that. Only between a
    forward and its backward it is forward: the last product and the loss.
    """
    count = len(mark)
    known = mark >= 0
    before, after = last_known(known), next_known(known)
    last = values_at(mark, before)
    following = np.where(after < count, mark[np.minimum(after, count - 1)], NONE)
    phase = np.where(following >= 0, following, np.where(last == OPTIMIZER, OTHER, last))
    ends = (following == BACKWARD) & ((last == FORWARD) | (last == NONE) | (last == OPTIMIZER))
    return np.where(known, mark, np.where(ends, FORWARD, phase))


def _counted(phase: Ints) -> Ints:
    steps = phase == OPTIMIZER
    if not steps.any():
        return np.full(len(phase), NONE, np.int64)
    begins = np.zeros(len(phase), np.int64)
    begins[1:] = steps[:-1] & ~steps[1:] & (phase[1:] != OTHER)
    return np.cumsum(begins)
