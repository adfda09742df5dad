"""What is projected of a step, as files that other tools open: its timeline and its memory."""

import gzip
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from projector.distribution import package_version
from projector.files import check_place, not_written, umask
from projector.lower.placement import ORDERS, strides
from projector.projection.performance import PerformanceProjection
from projector.projection.terms import BREAKDOWN
from projector.projection.timeline.build import Detail, build_timeline
from projector.projection.timeline.columns import Timeline
from projector.report.memory_snapshot import save_snapshot, step_snapshot
from projector.report.step_trace import Head, Member, rank_lines, step_lines
from projector.report.terminal.job import short_title
from projector.report.timeline import KEY, write_text

DETAIL = Detail(most=100_000)
"""What a file tells operation by operation: some 85 MB of text, 6 MB compressed. Viewers take much
more than that only slowly."""

MOST_IN_FILES = 4 * DETAIL.most
"""What the files of all ranks tell so at most: writing it takes half a minute."""

_RANK_FILE = re.compile(r"rank\d+\.json\.gz")
_PRODUCER = "projector"


def write_timeline(
    result: PerformanceProjection, path: str | Path, *, timeline: Timeline | None = None
) -> None:
    """Write the step of a projection as a trace, whole or not at all.

    ui.perfetto.dev and chrome://tracing open it, and `projector.load_trace` reads it. A folder gets
    a file for each pipeline rank, ``rank<N>.json.gz``, as PyTorch's profiler writes them: N is the
    number of its first device among all devices of the job.

    Args:
        result (PerformanceProjection): What `project_performance` returns.
        path (str or Path): File to write, compressed where the name ends in ``.gz``, or a folder:
            one that is there, or a text that ends in a slash. What another projection wrote into
            the folder is replaced.
        timeline (Timeline, optional): What `build_timeline` made of the result; made here unless
            given.

    Raises:
        ConfigError: If the files cannot be written, or the folder holds anything but timelines.
    """
    check_step_timeline(path)
    target, in_files = Path(path), _is_folder(path)
    found = build_timeline(result, step_detail(result, path)) if timeline is None else timeline
    head = head_of(result, found)
    if in_files:
        files = ((f"rank{rank}.json.gz", text) for rank, text in rank_lines(found, head))
        _replace_folder(target, files)
    else:
        write_text(target, step_lines(found, head))


def step_detail(result: PerformanceProjection, path: str | Path | None) -> Detail:
    """Return what the files at a place tell operation by operation."""
    if path is None or not _is_folder(path):
        return DETAIL
    return replace(DETAIL, most=min(DETAIL.most * result.pipeline.order.pp, MOST_IN_FILES))


def check_step_timeline(path: str | Path) -> None:
    """Refuse a place where a timeline could not be written, before anything is projected for it."""
    folder = Path(path)
    if not _is_folder(path):
        check_place(path, key=KEY)
    elif not os.path.isdir(folder):  # noqa: PTH112
        check_place(folder.absolute(), key=KEY)
        if folder.exists():
            raise not_written(folder, "it is a file, not a folder", key=KEY)
    else:
        other = next((p.name for p in sorted(folder.iterdir()) if not _is_ours(p)), None)
        if other is not None:
            why = f"{other} in it is no timeline of a projection; name a new or an empty folder"
            raise not_written(folder, why, key=KEY)


def _is_folder(path: str | Path) -> bool:
    return str(path).endswith(("/", "\\")) or os.path.isdir(path)  # noqa: PTH112  # of any name


def _is_ours(path: Path) -> bool:
    """Whether a file is one of those that a timeline in a folder consists of."""
    if not _RANK_FILE.fullmatch(path.name) or not path.is_file():
        return False
    try:
        with gzip.open(path) as stream:
            return f'"producer": "{_PRODUCER} '.encode() in stream.read(4096)
    except (OSError, EOFError):
        return False


def _replace_folder(target: Path, files: Iterable[tuple[str, Iterable[str]]]) -> None:
    """Write a folder beside its place and rename it, in the place of one that is there."""
    folder = target.resolve()
    try:
        made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            new = made / "new"
            new.mkdir(0o777 & ~umask())
            for name, text in files:
                write_text(new / name, text)
            if folder.is_dir():
                folder.rename(made / "old")
            new.rename(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        raise not_written(target, error.strerror or str(error), key=KEY) from None


def write_memory_snapshot(
    result: PerformanceProjection, path: str | Path, *, timeline: Timeline | None = None
) -> None:
    """Write the memory of a step as a snapshot of torch's allocator, whole or not at all.

    pytorch.org/memory_viz opens it, and ``python -m torch.cuda._memory_viz`` does. Each pipeline
    rank is a device.

    Args:
        result (PerformanceProjection): What `project_performance` returns.
        path (str or Path): File to write, a pickle of plain values.
        timeline (Timeline, optional): What `build_timeline` made of the result; made here unless
            given.

    Raises:
        ConfigError: If the file cannot be written.
    """
    check_place(path, key="memory_snapshot")
    found = build_timeline(result, DETAIL) if timeline is None else timeline
    save_snapshot(step_snapshot(result, found), path)


def head_of(result: PerformanceProjection, timeline: Timeline) -> Head:
    """Return what a file says of the job."""
    order, device = result.pipeline.order, result.job.cluster.device
    place = np.column_stack([timeline.rank, timeline.chunk, timeline.microbatch])
    block = timeline.microbatch >= 0
    other: dict[str, Any] = {
        "producer": f"{_PRODUCER} {package_version()}",
        "schedule": result.schedule,
        "gpus": result.gpus,
        "pp": order.pp,
        "chunks": order.vpp,
        "microbatches": order.microbatches * order.directions,
        "makespan_s": result.pipeline.makespan_s,
        "bubble_fraction": result.bubble_fraction,
        "iteration_time_ms": result.iteration_time_s * 1e3,
        "ending_rank": timeline.ending_rank,
        "blocks": len(np.unique(place[block], axis=0)),
        "blocks_in_detail": len(np.unique(place[block & (timeline.row >= 0)], axis=0)),
        "breakdown_ps": dict(zip(BREAKDOWN, timeline.terms_ps.tolist(), strict=True)),
    }
    return Head(
        title=short_title(result.job),
        vendor=device.vendor,
        device=device.name,
        gpus=result.gpus,
        gpus_per_node=result.job.cluster.gpus_per_node,
        members=_members(result),
        other=other,
    )


def _members(result: PerformanceProjection) -> tuple[Member, ...]:
    """Return the first device of each pipeline rank, with the groups that it is in."""
    job, split = result.job, result.degrees
    etp, ep = (split["etp"], split["ep"]) if job.model.moe is not None else (1, 1)
    edp = result.gpus // (etp * ep * split["pp"])
    dense = _strides(job.parallelism.rank_order, {**split, "ep": 1})
    expert = _strides(
        job.parallelism.rank_order, {**split, "tp": etp, "cp": 1, "ep": ep, "dp": edp}
    )
    offsets = {
        "TP": _offsets((split["tp"], dense["tp"])),
        "ETP": _offsets((etp, expert["tp"])),
        "CP": _offsets((split["cp"], dense["cp"])),
        "EP": _offsets((ep, expert["ep"])),
        "DP": _offsets((split["dp"], dense["dp"]), (split["cp"], dense["cp"])),
    }
    stages = _offsets((split["pp"], dense["pp"]))
    members = []
    for rank in stages:
        groups = {name: tuple(rank + offset for offset in of) for name, of in offsets.items()}
        groups["PP"] = stages
        several = {name: ranks for name, ranks in groups.items() if len(ranks) > 1}
        members.append(Member(rank, rank % job.cluster.gpus_per_node, several))
    return tuple(members)


def _strides(order: str, sizes: Mapping[str, int]) -> dict[str, int]:
    columns = {name: np.array([size]) for name, size in sizes.items()}
    found = strides(np.array([ORDERS.index(order)]), columns)
    return {name: int(stride[0]) for name, stride in found.items()}


def _offsets(*degrees: tuple[int, int]) -> tuple[int, ...]:
    """Return the distances of the members of a group from the first one, of sizes and strides."""
    each = [[stride * place for place in range(size)] for size, stride in degrees]
    return tuple(sorted(map(sum, product(*each))))
