"""What is projected of a step, as files that other tools open: its timeline and its memory."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np

from projector.distribution import package_version
from projector.files import write_whole
from projector.projection.performance import PerformanceProjection
from projector.projection.terms import BREAKDOWN
from projector.projection.timeline.build import Detail, build_timeline
from projector.projection.timeline.columns import CP, DP, EP, PP, TP, TRACKS, Timeline
from projector.report.memory_snapshot import check_memory_snapshot, save_snapshot, step_snapshot
from projector.report.step_trace import Head, step_lines
from projector.report.terminal.job import short_title
from projector.report.timeline import KEY, check_timeline

DETAIL = Detail(most=100_000)
"""What a file tells operation by operation: some 85 MB of text, 6 MB compressed. Viewers take much
more than that only slowly."""


def write_timeline(
    result: PerformanceProjection, path: str | Path, *, timeline: Timeline | None = None
) -> None:
    """Write the step of a projection as a trace, whole or not at all.

    ui.perfetto.dev and chrome://tracing open it, and `projector.load_trace` reads it.

    Parameters
    ----------
    result : PerformanceProjection
        What `project_performance` returns.
    path : str or Path
        File to write, compressed where the name ends in ``.gz``.
    timeline : Timeline, optional
        What `build_timeline` made of the result; made here unless given.

    Raises
    ------
    ConfigError
        If the file cannot be written.
    """
    check_timeline(path)
    target = Path(path)
    found = build_timeline(result, DETAIL) if timeline is None else timeline
    content = "".join(step_lines(found, head_of(result, found))).encode()
    if target.suffix == ".gz":
        # Neither time nor name, so that the same step gives the same file.
        content = gzip.compress(content, compresslevel=6, mtime=0)
    write_whole(target, content, key=KEY)


def write_memory_snapshot(
    result: PerformanceProjection, path: str | Path, *, timeline: Timeline | None = None
) -> None:
    """Write the memory of a step as a snapshot of torch's allocator, whole or not at all.

    pytorch.org/memory_viz opens it, and ``python -m torch.cuda._memory_viz`` does. Each pipeline
    rank is a device.

    Parameters
    ----------
    result : PerformanceProjection
        What `project_performance` returns.
    path : str or Path
        File to write, a pickle of plain values.
    timeline : Timeline, optional
        What `build_timeline` made of the result; made here unless given.

    Raises
    ------
    ConfigError
        If the file cannot be written.
    """
    check_memory_snapshot(path)
    found = build_timeline(result, DETAIL) if timeline is None else timeline
    save_snapshot(step_snapshot(result, found), path)


def _told(timeline: Timeline) -> dict[str, int]:
    """Return how many blocks are there, and how many are told operation by operation."""
    place = np.column_stack([timeline.rank, timeline.chunk, timeline.microbatch])
    block = timeline.microbatch >= 0
    return {
        "blocks": len(np.unique(place[block], axis=0)),
        "blocks_in_detail": len(np.unique(place[block & (timeline.row >= 0)], axis=0)),
    }


def head_of(result: PerformanceProjection, timeline: Timeline) -> Head:
    """Return what a file says of the job."""
    order, split, device = result.pipeline.order, result.degrees, result.job.cluster.device
    members = {TP: split["tp"], CP: split["cp"], EP: split["ep"], DP: split["dp"], PP: 2}
    other: dict[str, Any] = {
        "producer": f"projector {package_version()}",
        "schedule": result.schedule,
        "gpus": result.gpus,
        "pp": order.pp,
        "chunks": order.vpp,
        "microbatches": order.microbatches * order.directions,
        "makespan_s": result.pipeline.makespan_s,
        "bubble_fraction": result.bubble_fraction,
        "iteration_time_ms": result.iteration_time_s * 1e3,
        "ending_rank": timeline.ending_rank,
        **_told(timeline),
        "breakdown_ps": dict(zip(BREAKDOWN, timeline.terms_ps.tolist(), strict=True)),
    }
    return Head(
        title=short_title(result.job),
        vendor=device.vendor,
        device=device.name,
        group_ranks={TRACKS[track]: count for track, count in members.items()},
        other=other,
    )
