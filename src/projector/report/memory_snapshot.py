"""Allocations of a step as a memory snapshot, which pytorch.org/memory_viz opens.

A snapshot is what ``torch.cuda.memory._snapshot`` returns: plain dictionaries, pickled. Each
pipeline rank is a device with one segment. Addresses are those that an allocator would give which
takes the lowest gap that is large enough.

Activations are those of the projection: each forward operation keeps its own from its start until
its backward ends, scaled so that a block keeps what the projection says. Working sets come and go
as the timeline says. All other terms are held throughout.
"""

import pickle
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Floats, Ints
from projector.errors import ConfigError
from projector.files import check_place, write_whole
from projector.lower.stages import RECOMPUTE_FULL
from projector.operations.work import dropped_rows
from projector.projection.evaluate import evaluate
from projector.projection.performance import PerformanceProjection
from projector.projection.terms import MEMORY_TERMS, STATIC_TERMS
from projector.projection.timeline import columns
from projector.projection.timeline.columns import Timeline

KEY = "memory_snapshot"
"""Option that names the file."""

PROTOCOL = 4
"""Of the pickle; the viewer reads none above."""

ROUNDING = 512
"""Bytes to which torch's allocator rounds an allocation."""

SEGMENT_ROUNDING = 2 << 20
"""Bytes to which it rounds a segment."""

FIRST_ADDRESS = 0x7F00_0000_0000
"""Address of the first segment; viewers keep addresses below 2**53 exact."""

STREAM = 0

UNKNOWN = "unknown"
"""Category of segments. The viewer fails on a snapshot that has categories, but not this one."""


_BEFORE_PS = -1
"""Start of what is there before the step."""

_BLOCK = ("rank", "stage", "microbatch")
_LAYER = (*_BLOCK, "layer")

_TRANSIENT = "transient"
assert _TRANSIENT in {term.name for term in STATIC_TERMS}

(_ACTIVATIONS,) = (term.name for term in MEMORY_TERMS if term.scheduled)


class Frame(NamedTuple):
    """One line of what the viewer shows of an allocation."""

    filename: str
    line: int
    name: str


class Allocation(NamedTuple):
    """Memory that one thing takes on one device."""

    device: int
    num_bytes: int
    start_ps: int
    """Below 0 for what was there before."""
    end_ps: int | None
    """None for what stays."""
    category: str
    """Term of memory, which gives the colour."""
    frames: tuple[Frame, ...]
    """From the operation outwards."""


def save_snapshot(snapshot: dict[str, Any], path: str | Path) -> None:
    """Write a snapshot, whole or not at all."""
    check_place(path, key=KEY)
    write_whole(Path(path), pickle.dumps(snapshot, protocol=PROTOCOL), key=KEY)


def snapshot_of(
    allocations: Iterable[Allocation], reserved_bytes: Sequence[int], **settings: Any
) -> dict[str, Any]:
    """Return a snapshot as torch makes it, of allocations in any order, with further settings.

    ``reserved_bytes`` is the size of each device's segment, if larger than what allocations take.
    """
    of_device: list[list[Allocation]] = [[] for _ in reserved_bytes]
    for allocation in allocations:
        if allocation.end_ps is not None and allocation.end_ps < allocation.start_ps:
            raise ConfigError(f"an allocation ends before it starts: {allocation}", key=KEY)
        of_device[allocation.device].append(allocation)
    parts = [
        _device(number, mine, reserved)
        for number, (mine, reserved) in enumerate(zip(of_device, reserved_bytes, strict=True))
    ]
    return {
        "segments": [segment for segment, _ in parts],
        "device_traces": [trace for _, trace in parts],
        "allocator_settings": {"PYTORCH_ALLOC_CONF": "", **settings},
        "external_annotations": [],
    }


def _device(
    number: int, allocations: list[Allocation], reserved_bytes: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the segment of a device as it is at the end, and what happened on the way."""
    rows = [allocation for allocation in allocations if allocation.num_bytes > 0]
    offset, top = place(rows)
    total = max(top, reserved_bytes, SEGMENT_ROUNDING)
    total = -(-total // SEGMENT_ROUNDING) * SEGMENT_ROUNDING
    base = FIRST_ADDRESS + number * (1 << 42)
    events = _events(rows, offset, base)
    first_us = min((row.start_ps // 10**6 for row in rows), default=0)
    opened = {
        "action": "segment_alloc", "addr": base, "size": total, "stream": STREAM,
        "time_us": min(0, first_us), "frames": [], "category": UNKNOWN,
    }  # fmt: skip
    kept = sorted((offset[i], row) for i, row in enumerate(rows) if row.end_ps is None)
    held = sum(row.num_bytes for _, row in kept)
    return {
        "device": number,
        "address": base,
        "total_size": total,
        "allocated_size": held,
        "active_size": held,
        "requested_size": held,
        "stream": STREAM,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": _blocks(kept, base, total),
    }, [opened, *events]


def place(rows: Sequence[Allocation]) -> tuple[list[int], int]:
    """Return the offset of each allocation in its segment, and the end of the highest.

    Each one takes the lowest gap that is large enough. What ends at the time at which something
    else starts makes room first.
    """
    offset = [0] * len(rows)
    live: list[tuple[int, int]] = []
    top = 0
    for row, is_start in _changes(rows):
        size = _rounded(rows[row].num_bytes)
        if not is_start:
            del live[bisect_left(live, (offset[row], offset[row] + size))]
            continue
        offset[row] = _lowest_gap(live, size)
        insort(live, (offset[row], offset[row] + size))
        top = max(top, offset[row] + size)
    return offset, top


def _changes(rows: Sequence[Allocation]) -> list[tuple[int, bool]]:
    """Return which allocations start or end, by time, ends first."""
    # Something that ends when it starts still starts first.
    found = [(row.start_ps, 1, i) for i, row in enumerate(rows)]
    found += [
        (row.end_ps, 2 if row.end_ps == row.start_ps else 0, i)
        for i, row in enumerate(rows)
        if row.end_ps is not None
    ]
    return [(i, turn == 1) for _, turn, i in sorted(found)]


def _lowest_gap(live: list[tuple[int, int]], size: int) -> int:
    free_from = 0
    for begin, end in live:
        if begin - free_from >= size:
            return free_from
        free_from = end
    return free_from


def _rounded(num_bytes: int) -> int:
    return -(-num_bytes // ROUNDING) * ROUNDING


def _events(rows: Sequence[Allocation], offset: list[int], base: int) -> list[dict[str, Any]]:
    """Return the allocations and frees in order; the viewer's time is their number."""
    frames = [[frame._asdict() for frame in row.frames] for row in rows]
    events: list[dict[str, Any]] = []
    for i, is_start in _changes(rows):
        row = rows[i]
        time_ps = row.start_ps if is_start else row.end_ps
        assert time_ps is not None
        common = {
            "addr": base + offset[i], "size": row.num_bytes, "stream": STREAM,
            "time_us": time_ps // 10**6, "frames": frames[i], "category": row.category,
        }  # fmt: skip
        actions = ("alloc",) if is_start else ("free_requested", "free_completed")
        events += [{"action": action, **common} for action in actions]
    return events


def _blocks(kept: list[tuple[int, Allocation]], base: int, total: int) -> list[dict[str, Any]]:
    """Return what fills a segment at the end, without gaps."""
    blocks: list[dict[str, Any]] = []

    def free(begin: int, end: int) -> None:
        if end > begin:
            blocks.append({
                "address": base + begin, "size": end - begin, "requested_size": 0,
                "state": "inactive", "frames": [],
            })  # fmt: skip

    at = 0
    for offset, row in kept:
        free(at, offset)
        size = _rounded(row.num_bytes)
        blocks.append({
            "address": base + offset, "size": size, "requested_size": row.num_bytes,
            "state": "active_allocated", "frames": [frame._asdict() for frame in row.frames],
        })  # fmt: skip
        at = offset + size
    free(at, total)
    return blocks


def step_snapshot(result: PerformanceProjection, timeline: Timeline) -> dict[str, Any]:
    """Return the snapshot of a step and its timeline, each pipeline rank a device."""
    allocations = [*_always(result), *_working(timeline), *_activations(result, timeline)]
    idle = round(result.memory.allocator_bytes)
    reserved_bytes = [round(stage.peak_bytes) + idle for stage in result.memory.stages]
    return snapshot_of(allocations, reserved_bytes, projected=result.job.model.name)


def _always(result: PerformanceProjection) -> Iterator[Allocation]:
    """Yield every term that is there throughout."""
    for rank, stage in enumerate(result.memory.stages):
        for term in STATIC_TERMS:
            if term.name != _TRANSIENT:
                frames = (Frame("step", 0, term.meaning), Frame("rank", rank, f"rank {rank}"))
                yield Allocation(rank, round(term.of(stage)), _BEFORE_PS, None, term.name, frames)


def _working(timeline: Timeline) -> Iterator[Allocation]:
    """Yield working sets: what comes last goes first."""
    ranges = timeline.ranges
    for rank, held in enumerate(timeline.memory):
        layers = np.flatnonzero((ranges.level == columns.LAYER) & (ranges.rank == rank))
        begun = dict(zip(ranges.start_ps[layers].tolist(), layers.tolist(), strict=True))
        whole = np.rint(held.transient_bytes).astype(np.int64)
        stack: list[tuple[int, int, tuple[Frame, ...]]] = []
        changes = np.diff(whole, prepend=0).tolist()
        for time_ps, change in zip(held.time_ps.tolist(), changes, strict=True):
            if change > 0:
                stack.append((time_ps, change, _working_frames(timeline, begun.get(time_ps))))
            left = -change
            while left > 0:
                start_ps, size, frames = stack.pop()
                if size > left:
                    stack.append((start_ps, size - left, frames))
                freed = min(size, left)
                left -= freed
                yield Allocation(rank, freed, start_ps, time_ps, _TRANSIENT, frames)
        for start_ps, size, frames in stack:
            yield Allocation(rank, size, start_ps, None, _TRANSIENT, frames)


def _working_frames(timeline: Timeline, layer: int | None) -> tuple[Frame, ...]:
    if layer is None:
        return (Frame("step", 0, "gathered weights, or the update"),)
    ranges = timeline.ranges
    label, number = timeline.labels[int(ranges.label[layer])], int(ranges.layer[layer])
    return (
        Frame(columns.PHASES[int(ranges.phase[layer])], 0, "working set"),
        Frame("layer", max(0, number), f"layers.{number} {label}" if number >= 0 else label),
        Frame("microbatch", int(ranges.microbatch[layer]), f"stage {int(ranges.stage[layer])}"),
    )


class _Freed(NamedTuple):
    """When a share of what each activity keeps is freed."""

    share: float
    by_activity: Ints
    """int64[activities]: -1 where no backward of it is told."""
    by_block: dict[tuple[int, ...], int]


def _activations(result: PerformanceProjection, timeline: Timeline) -> Iterator[Allocation]:
    """Yield what forwards keep, block by block."""
    ranges, held = timeline.ranges, result.pipeline.activation_bytes
    kept = kept_bytes(result)
    of_forward = (timeline.phase == columns.FORWARD) & ~timeline.recompute & (timeline.row >= 0)
    activities = np.flatnonzero(of_forward)
    activities = activities[kept[timeline.row[activities]] > 0.0]
    weight = kept[timeline.row[activities]]
    of_block: dict[tuple[int, ...], list[int]] = {}
    for at, key in enumerate(map(tuple, _keys(timeline, activities, _BLOCK).tolist())):
        of_block.setdefault(key, []).append(at)
    # With a backward that is split, a share of what is kept stays until W.
    run, named = result.pipeline, (*_LAYER, "label")
    parts: tuple[tuple[float, tuple[int, ...], tuple[str, ...]], ...]
    parts = ((1.0, (columns.BACKWARD, columns.WEIGHT), named),)
    if run.order.splits_backward:
        now = (1.0 - run.w_share, (columns.BACKWARD,), named)
        parts = (now, (run.w_share, (columns.WEIGHT,), _LAYER))
    shares = tuple(
        _Freed(
            share, _freed_ps(timeline, activities, phases, names), _block_ends_ps(timeline, phases)
        )
        for share, phases, names in parts
    )
    blocks = (ranges.level == columns.BLOCK) & (ranges.phase == columns.FORWARD)
    for block in np.flatnonzero(blocks).tolist():
        key = tuple(int(getattr(ranges, name)[block]) for name in _BLOCK)
        total = float(held[key[0], int(ranges.chunk[block])])
        rows = of_block.get(key, [])
        around = Frame("microbatch", key[2], f"stage {key[1]}")
        for freed in shares:
            until = freed.by_block.get(key)
            if not rows:
                frames = (Frame("forward", 0, "all layers"), around)
                start_ps, size = int(ranges.start_ps[block]), round(freed.share * total)
                yield Allocation(key[0], size, start_ps, until, _ACTIVATIONS, frames)
                continue
            # Rounded as a sum, so that a block keeps what the projection says.
            sums = np.cumsum(weight[rows]) * (freed.share * total / weight[rows].sum())
            sizes = np.diff(np.rint(sums).astype(np.int64), prepend=0).tolist()
            for at, size in zip(rows, sizes, strict=True):
                end_ps = int(freed.by_activity[at])
                yield Allocation(
                    key[0],
                    size,
                    int(timeline.start_ps[activities[at]]),
                    until if end_ps < 0 else end_ps,
                    _ACTIVATIONS,
                    (*_frames(timeline, int(activities[at])), around),
                )


def _frames(timeline: Timeline, activity: int) -> tuple[Frame, ...]:
    label, layer = timeline.labels[int(timeline.label[activity])], int(timeline.layer[activity])
    frames = (Frame("forward", 0, label),)
    return frames if layer < 0 else (*frames, Frame("layer", layer, f"layers.{layer}"))


def kept_bytes(result: PerformanceProjection) -> Floats:
    """Return what each row of the operation table keeps for the backward, in bytes.

    A layer that is recomputed as a whole keeps its input, which stands with its first row.
    """
    evaluation = evaluate([result.job])
    table, workloads = evaluation.table, evaluation.workloads
    full = workloads.columns.recompute == RECOMPUTE_FULL
    kept = np.where(dropped_rows(table, workloads) | full[table.workload], 0.0, table.saved_bytes)
    rows = np.flatnonzero((table.phase == columns.FORWARD) & full[table.workload])
    workload, first = np.unique(table.workload[rows], return_index=True)
    kept[rows[first]] = evaluation.costs.saved_bytes[workload]
    return kept


def _keys(timeline: Timeline, rows: Ints, names: tuple[str, ...]) -> Ints:
    return np.stack([getattr(timeline, name)[rows] for name in names], axis=1)


def _freed_ps(
    timeline: Timeline, activities: Ints, phases: tuple[int, ...], names: tuple[str, ...]
) -> Ints:
    """Return when the last of some phases ends that an activity shares names with, else -1."""
    later = np.isin(timeline.phase, phases) & ~timeline.recompute
    backward = np.flatnonzero(later & (timeline.row >= 0))
    both = np.concatenate([_keys(timeline, rows, names) for rows in (activities, backward)])
    _, number = np.unique(both, axis=0, return_inverse=True)
    number = number.reshape(-1)
    end_ps = np.full(int(number.max(initial=-1)) + 1, -1, np.int64)
    ends = timeline.start_ps[backward] + timeline.duration_ps[backward]
    np.maximum.at(end_ps, number[len(activities) :], ends)
    freed: Ints = end_ps[number[: len(activities)]]
    return freed


def _block_ends_ps(timeline: Timeline, phases: tuple[int, ...]) -> dict[tuple[int, ...], int]:
    """Return when the last of some phases of each block ends."""
    ranges = timeline.ranges
    rows = np.flatnonzero((ranges.level == columns.BLOCK) & np.isin(ranges.phase, phases))
    ends: dict[tuple[int, ...], int] = {}
    keys = zip(*(getattr(ranges, name)[rows].tolist() for name in _BLOCK), strict=True)
    for key, end in zip(keys, (ranges.start_ps + ranges.duration_ps)[rows].tolist(), strict=True):
        ends[key] = max(end, ends.get(key, end))
    return ends
