"""Patterns of replicas: which stages and ranks are alike, once for all that share a placement."""

from functools import lru_cache
from typing import Any

import numpy as np

from projector.arrays import Array, Ints
from projector.kernels.grouping import group_rows, offsets
from projector.kernels.replicas import Patterns
from projector.lower.workloads import Workloads
from projector.projection.schedules import Placements
from projector.schedule.placement import Placement


def find_patterns(
    workloads: Workloads, pipeline: Ints, placements: Placements
) -> tuple[Patterns, Ints]:
    """Return the patterns of some replicas, and that of each.

    Parameters
    ----------
    pipeline : int64[replicas]
    placements : Placements
        Of the replicas.
    """
    # Stages are alike in the same places where the layout is one.
    first, pattern = group_rows(placements.of, workloads.layout.take(pipeline))
    parts = []
    for row in first.tolist():
        begin, end = workloads.stage_offset[pipeline[row] :][:2].tolist()
        placement = placements.unique[int(placements.of[row])]
        parts.append(_pattern(placement, tuple(workloads.stage_like[begin:end].tolist())))
    return _end_to_end(parts), pattern


@lru_cache(maxsize=512)
def _pattern(placement: Placement, stage_like: tuple[int, ...]) -> Patterns:
    """Return the pattern of a placement whose stages are like these."""
    like = np.array(stage_like, np.int64)
    is_first = like == np.arange(len(like))
    held = placement.model_stage
    first_rank, rank_kind = group_rows(like[held], placement.joins_ends.astype(np.int64))
    return Patterns(
        stage_first=np.array([0, len(like)]),
        stage_kind=(np.cumsum(is_first) - 1)[like],
        # The first copy stands for all: each has ranks of its own.
        stage_rank=placement.rank_of[: len(like)],
        kind_first=np.array([0, is_first.sum()]),
        kind_stage=np.flatnonzero(is_first),
        rank_first=np.array([0, len(held)]),
        rank_kind=rank_kind,
        rank_kind_first=np.array([0, len(first_rank)]),
        joins_ends=placement.joins_ends[first_rank],
        held_first=np.arange(len(first_rank) + 1) * held.shape[1],
        held_stage=held[first_rank].ravel(),
        chunk_first=np.array([0, held.size]),
        chunk_stage=held.ravel(),
    )


def _end_to_end(parts: list[Patterns]) -> Patterns:
    """Put patterns one after the other."""
    columns: dict[str, Any] = {
        name: _offsets(values) if name.endswith("_first") else np.concatenate(values)
        for name, values in zip(Patterns._fields, zip(*parts, strict=True), strict=True)
    }
    return Patterns(**columns)


def _offsets(columns: tuple[Array, ...]) -> Ints:
    return offsets(np.concatenate([np.diff(column) for column in columns]))
