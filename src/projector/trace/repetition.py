"""What repetition tells of activities whose launch is not in the trace.

A device runs behind its host, so a trace begins with work that was launched before it. Iterations
are alike: the activity that stands one iteration later on the same stream, and has the same name,
tells what it is.
"""

import numpy as np

from projector.arrays import Array, Flags, Ints
from projector.trace.events import NONE

LEAST_ALIKE = 0.95
"""Share of names on a stream that must agree with those of an iteration later."""

INHERITED = ("operation", "layer", "phase", "type", "recompute", "group", "bytes")
"""Columns that are alike in all iterations."""


def inherit(columns: dict[str, Array], unknown: Flags) -> Ints:
    """Give activities without a launch what those at the same place of another iteration have.

    Parameters
    ----------
    columns : dict
        Columns of one rank's activities, in any order. Those of `INHERITED` are changed.
    unknown : bool[activities]
        Activities of which the host tells nothing.

    Returns
    -------
    int64[activities]
        The activity that each took its columns from; `NONE` for all others.
    """
    source = np.full(len(unknown), NONE, np.int64)
    if not unknown.any() or unknown.all():
        return source
    order = np.lexsort((columns["start_ps"], columns["stream"], columns["device"]))
    device, stream = columns["device"][order], columns["stream"][order]
    new = np.flatnonzero((np.diff(device) != 0) | (np.diff(stream) != 0)) + 1
    for rows in np.split(order, new):
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
