"""What a trace does not hold or does not tell, one sentence each."""

from collections.abc import Iterator

import numpy as np

from projector.trace.activity import COMPUTE, Activities
from projector.trace.events import NONE, Trace

MOST_NAMED = 10
"""Ranks that a sentence names."""


def caveats(trace: Trace, activities: Activities, *, chosen_ranks: bool = False) -> list[str]:
    """Return what to keep in mind when reading any number of a trace.

    Parameters
    ----------
    trace : Trace
        What was read, with its problems.
    activities : Activities
        All of its activities.
    chosen_ranks : bool
        Whether the user chose ranks, so that others are not missed.
    """
    found = [*_problems(trace), *_contents(activities), *activities.notes]
    return found if chosen_ranks else [*found, *_missing_ranks(trace)]


def _problems(trace: Trace) -> Iterator[str]:
    for each in trace.problems:
        where = f" at {each.where}" if each.where else ""
        yield f"{each.path}{where}: {each.text}"


def _contents(activities: Activities) -> Iterator[str]:
    count = len(activities)
    if not count:
        yield "the trace has no kernels, no copies and no operators"
        return
    if activities.on_host:
        yield "the trace has no kernels of a device: operators of the host stand for them"
    inside = activities.iteration >= 0
    outside = int(np.count_nonzero(~inside))
    if outside == count:
        yield "the trace has no annotated iterations: it is shown as one"
        inside = ~inside
    elif outside:
        yield (
            f"{outside:,} of {count:,} activities lie outside iterations: the spans of the summary "
            "hold them, medians and shares of operations do not"
        )
    computing = inside & (activities.klass == COMPUTE)
    unknown = int(np.count_nonzero(computing & (activities.launch_ps == NONE)))
    if unknown and not activities.on_host:
        yield (
            f"{unknown:,} of {int(np.count_nonzero(computing)):,} kernels that compute have no "
            "launch in the trace: what delayed them is not known"
        )


def _missing_ranks(trace: Trace) -> Iterator[str]:
    ranks = sorted({rank.rank for rank in trace.ranks})
    world = max((rank.world_size for rank in trace.ranks), default=0)
    if world > len(ranks):
        named = ", ".join(map(str, ranks[:MOST_NAMED]))
        named += " ..." if len(ranks) > MOST_NAMED else ""
        word = "rank" if len(ranks) == 1 else "ranks"
        yield (
            f"the trace has {len(ranks)} of {world} ranks ({word} {named}): how the others did is "
            "not known"
        )
