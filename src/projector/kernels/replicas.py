"""What replicas are made of: which of their stages and ranks are alike.

A pattern is where a pipeline places its stages, and which of them are alike. Many replicas share
one, so that what it says stands once, in numbers within a replica.
"""

from typing import NamedTuple

import numpy as np

from projector.arrays import Flags, Ints
from projector.kernels._jit import kernel


class Patterns(NamedTuple):
    """Patterns one after the other; numbers of stages, ranks and kinds count within each."""

    stage_first: Ints
    """``int64[patterns + 1]``: first of its virtual stages, those of one copy of the model."""
    stage_kind: Ints
    """``int64[stages]``: kind of each stage."""
    stage_rank: Ints
    """``int64[stages]``: pipeline rank of each stage."""
    kind_first: Ints
    """``int64[patterns + 1]``: first of its kinds of stages."""
    kind_stage: Ints
    """``int64[kinds]``: first stage of each kind."""
    rank_first: Ints
    """``int64[patterns + 1]``: first of its ranks."""
    rank_kind: Ints
    """``int64[ranks]``: kind of each rank."""
    rank_kind_first: Ints
    """``int64[patterns + 1]``: first of its kinds of ranks."""
    joins_ends: Flags
    """``bool[kinds of ranks]``: whether a rank holds the first stage of its model and the last."""
    held_first: Ints
    """``int64[kinds of ranks + 1]``: first chunk of each kind of rank."""
    held_stage: Ints
    """``int64[chunks of kinds]``: the stage that it holds."""
    chunk_first: Ints
    """``int64[patterns + 1]``: first of its chunks."""
    chunk_stage: Ints
    """``int64[chunks]``: stage of each chunk, rank after rank."""


@kernel
def spread(first: Ints, values: Ints, of_N: Ints, more_N: Ints, out: Ints) -> None:
    """Write the values of one segment after the other, each a little larger.

    first : int64[segments + 1]. First value of each segment.
    values : int64[any]
    of_N : int64[N]. Segment of each part of the output.
    more_N : int64[N]. What is added to its values.
    out : int64[values of all parts]. Output.
    """
    place = 0
    for part in range(of_N.shape[0]):
        for row in range(first[of_N[part]], first[of_N[part] + 1]):
            out[place] = values[row] + more_N[part]
            place += 1


def spread_segments(first: Ints, values: Ints, of: Ints, more: Ints) -> Ints:
    """Return what `spread` writes."""
    out = np.empty(int(np.diff(first).take(of).sum()), np.int64)
    spread(first, values, of, more, out)
    return out
