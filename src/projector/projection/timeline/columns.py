"""What a timeline is: columns of activities on tracks, ranges around them, and memory over time."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.operations.table import OperationTable
from projector.projection.terms import BREAKDOWN

COMPUTE, TP, CP, EP, DP, PP, OPTIMIZER, COPY, WAIT = range(9)
"""Tracks of a rank. On ``WAIT`` stands the time in which nothing runs on the device: gaps between
kernels, waits for the host, for other ranks and for the slowest device."""

TRACKS = ("compute", "TP", "CP", "EP", "DP", "PP", "optimizer", "copy", "wait")

FORWARD, BACKWARD, WEIGHT, UPDATE, OTHER = range(5)
"""Phases; the first three are those of the operation table."""

PHASES = ("forward", "backward", "weight", "optimizer", "other")

NONE = -1
"""What stands where an activity does not have something."""

NOT_LAUNCHED = int(np.iinfo(np.int64).min)
"""The same while a timeline is built, when the host may still launch before its zero."""

BLOCK, LAYER = range(2)
"""Levels of ranges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Columns of equal length of what begins and ends on a rank."""

    rank: Ints
    label: Ints
    """Row of ``Timeline.labels``."""
    phase: Ints
    """Position in `PHASES`."""
    layer: Ints
    """Layer of the model; `NONE` outside layers."""
    stage: Ints
    """Virtual stage, in model order; `NONE` outside blocks."""
    chunk: Ints
    """Which of the chunks of its rank; `NONE` outside blocks."""
    microbatch: Ints
    """`NONE` outside blocks."""
    start_ps: Ints
    """From the zero of the timeline."""
    duration_ps: Ints

    def __len__(self) -> int:
        return len(self.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges(Spans):
    """What stands around activities: blocks of the pipeline, layers within them."""

    level: Ints
    """`BLOCK` or `LAYER`."""


class Held(NamedTuple):
    """What a pipeline rank holds: entry i from ``time_ps[i]`` until ``time_ps[i + 1]``."""

    time_ps: Ints
    """int64[n], rising; the first is when the step begins."""
    static_bytes: float
    """Weights, gradients, optimizer states and buffers, which are there throughout."""
    activations_bytes: Floats
    """float64[n]: kept for backwards."""
    transient_bytes: Floats
    """float64[n]: working set of the layer that runs, with what is gathered of weights."""

    @property
    def bytes(self) -> Floats:
        """float64[n]: all of it."""
        return np.asarray(self.static_bytes + self.activations_bytes + self.transient_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline(Spans):
    """The step of one job: one row an activity, by rank and start.

    On one rank, track and lane nothing overlaps. On the rank that ends the step the sums of
    ``exposed_ps`` over the rows of a term are the breakdown, in whole picoseconds; so are the
    lengths of the compute less what stands in ``slowed_ps``.
    """

    track: Ints
    """Position in `TRACKS`."""
    lane: Ints
    """0, unless activities of one track overlap."""
    term: Ints
    """Position in ``projection.breakdown.BREAKDOWN`` of what the activity adds to the step."""
    exposed_ps: Ints
    """What of it lengthens the step. Of compute: all but what stands in ``slowed_ps``."""
    slowdown_ps: Ints
    """Of communication: what of ``exposed_ps`` is compute that takes longer beside it."""
    slowed_ps: Ints
    """Of compute: what of ``duration_ps`` is due to communication beside it."""
    alone_ps: Ints
    """What it would take with nothing beside it."""
    prepare_ps: Ints
    """When the host begins to prepare its launch; `NONE` without a launch."""
    launch_ps: Ints
    """When the host begins to launch it; `NONE` without a launch."""
    launch_end_ps: Ints
    """When the host has launched it; `NONE` without a launch."""
    launches: Floats
    """Kernels that it stands for."""
    flop: Floats
    """Matrix FLOP."""
    bytes: Floats
    """Traffic of memory-bound compute, buffer of a collective, message to another rank."""
    recompute: Flags
    """Whether it repeats a forward within the backward."""
    row: Ints
    """Row of ``table``; `NONE` where it is no operation of a layer."""
    labels: tuple[str, ...]
    table: OperationTable
    """The operations of the job's layers."""
    ranges: Ranges
    memory: tuple[Held, ...]
    """What each pipeline rank holds over time. Its activations peak where those of the projection
    do; its working sets do not all lie there, so that it may peak lower."""
    ending_rank: int
    """Pipeline rank that ends the step."""
    terms_ps: Ints
    """int64[terms]: the breakdown in whole picoseconds."""
    begin_ps: Ints
    """int64[pp]: when the step begins on each rank: 0, unless the host launches before, or ranks
    do not wait for each other between steps."""
    name: str = ""
    """Of the model."""
    clock_hz: float = 0.0
    """Of the largest matrix product; 0 where times were measured or there is none."""

    @property
    def step_ps(self) -> int:
        """The step: the sum of the terms."""
        return int(self.terms_ps.sum())

    def sums_ps(self, rank: int | None = None) -> Ints:
        """Return what a rank (by default the last to end) adds to the step, int64[terms]."""
        chosen = self.rank == (self.ending_rank if rank is None else rank)
        sums = np.zeros(len(BREAKDOWN), np.int64)
        np.add.at(sums, self.term[chosen], self.exposed_ps[chosen])
        return sums

    def to_dict(self) -> dict[str, Any]:
        """Return sizes and sums, not the activities."""
        return {
            "activities": len(self),
            "ranks": len(self.begin_ps),
            "ending_rank": self.ending_rank,
            "step_ps": self.step_ps,
            "terms_ps": dict(zip(BREAKDOWN, self.terms_ps.tolist(), strict=True)),
        }
