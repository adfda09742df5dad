"""Memory of a pipeline rank over the step, layer by layer."""

import numpy as np

from projector.arrays import Floats, Ints
from projector.projection.timeline import columns
from projector.projection.timeline.columns import Held
from projector.projection.timeline.ranks import Placed
from projector.schedule.order import BACKWARD, FORWARD, WEIGHT


def held_over_time(
    placed: Placed,
    *,
    static_bytes: float,
    gathered_bytes: float,
    updating_bytes: float,
    weight_share: float,
) -> Held:
    """Return what a rank holds over time.

    A layer keeps its activations from the start of its forward until its backward ends; the share
    ``weight_share`` stays until its weights have their gradients, where these are made apart (0
    where they are not). Its working set is there while it runs. What is gathered of weights is
    there from the first layer to the last, and the working set of the update while that runs.
    ``static_bytes`` are there throughout.
    """
    begin, end, saved, transient, kind = _layers(placed)
    forward, backward, weight = (kind == each for each in (FORWARD, BACKWARD, WEIGHT))
    freed = saved * np.where(backward, 1.0 - weight_share, np.where(weight, weight_share, 0.0))
    nothing = np.zeros(len(saved))
    # What ends comes first: layers that follow on each other do not hold both working sets.
    times = [end, begin]
    activations = [-freed, np.where(forward, saved, 0.0)]
    working = [-transient, transient]
    if len(begin):
        times += [end[-1:], begin[:1]]
        activations += [nothing[:1], nothing[:1]]
        working += [np.array([-gathered_bytes]), np.array([gathered_bytes])]
    for element in _updates(placed):
        times += [np.array([placed.ends(element)]), np.array([placed.begins(element)])]
        activations += [np.zeros(1), np.zeros(1)]
        working += [np.array([-updating_bytes]), np.array([updating_bytes])]
    return _summed(placed.line.begin_ps, static_bytes, times, activations, working)


def _layers(placed: Placed) -> tuple[Ints, Ints, Floats, Floats, Ints]:
    """Return begin, end, activations, working set and kind of what blocks hold, in order."""
    elements = placed.line.elements
    count = np.array([len(each.saved_bytes) for each in elements], np.int64)
    first = np.repeat(placed.first_piece, count)
    piece = np.concatenate([each.held_piece for each in elements])
    kind = np.repeat([place.phase for place in placed.line.places], count)
    return (
        placed.boundary[first + piece[:, 0]],
        placed.boundary[first + piece[:, 1]],
        placed.line.joined("saved_bytes"),
        placed.line.joined("transient_bytes"),
        kind,
    )


def _updates(placed: Placed) -> list[int]:
    """Return the elements in which weights are updated."""
    return [
        at
        for at, each in enumerate(placed.line.elements)
        if len(each.track) == 1 and each.track[0] == columns.OPTIMIZER
    ]


def _summed(
    begin_ps: int,
    static_bytes: float,
    times: list[Ints],
    activations: list[Floats],
    working: list[Floats],
) -> Held:
    """Add changes up in the order of their times, one entry for each time."""
    when = np.concatenate([np.array([begin_ps]), *times])
    rows = np.argsort(when, kind="stable")
    changed = when[rows]
    last = np.append(changed[1:] > changed[:-1], True)
    held = [
        # Sums of what comes and goes are off by rounding.
        np.maximum(np.cumsum(np.concatenate([np.zeros(1), *each])[rows])[last], 0.0)
        for each in (activations, working)
    ]
    return Held(changed[last], static_bytes, held[0], held[1])
