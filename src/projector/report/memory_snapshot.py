"""Allocations of a step as a memory snapshot, which pytorch.org/memory_viz opens.

A snapshot is what ``torch.cuda.memory._snapshot`` returns: plain dictionaries, pickled. Each
pipeline rank is a device with one segment. Addresses are those that an allocator would give which
takes the lowest gap that is large enough.
"""

import pickle
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from projector.errors import ConfigError
from projector.files import check_place, write_whole

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


class Device(NamedTuple):
    """What is known of one device besides its allocations."""

    reserved_bytes: int = 0
    """Size of its segment, where that is larger than what the allocations take."""


def check_memory_snapshot(path: str | Path) -> None:
    """Refuse a snapshot that could not be written, before anything is projected for it."""
    check_place(path, key=KEY)


def save_snapshot(snapshot: dict[str, Any], path: str | Path) -> None:
    """Write a snapshot, whole or not at all."""
    check_memory_snapshot(path)
    write_whole(Path(path), pickle.dumps(snapshot, protocol=PROTOCOL), key=KEY)


def snapshot_of(
    allocations: Iterable[Allocation], devices: Sequence[Device], **settings: Any
) -> dict[str, Any]:
    """Return a snapshot as torch makes it.

    Parameters
    ----------
    allocations : iterable of Allocation
        In any order.
    devices : sequence of Device
        One for each device.
    settings
        What ``allocator_settings`` says besides.
    """
    of_device: list[list[Allocation]] = [[] for _ in devices]
    for allocation in allocations:
        if allocation.end_ps is not None and allocation.end_ps < allocation.start_ps:
            raise ConfigError(f"an allocation ends before it starts: {allocation}", key=KEY)
        of_device[allocation.device].append(allocation)
    parts = [
        _device(number, mine, device)
        for number, (mine, device) in enumerate(zip(of_device, devices, strict=True))
    ]
    return {
        "segments": [segment for segment, _ in parts],
        "device_traces": [trace for _, trace in parts],
        "allocator_settings": {"PYTORCH_ALLOC_CONF": "", **settings},
        "external_annotations": [],
    }


def _device(
    number: int, allocations: list[Allocation], device: Device
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the segment of a device as it is at the end, and what happened on the way."""
    rows = [allocation for allocation in allocations if allocation.num_bytes > 0]
    offset, top = place(rows)
    total = max(top, device.reserved_bytes, SEGMENT_ROUNDING)
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
    segment = {
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
    }
    return segment, [opened, *events]


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
    starts = np.array([row.start_ps for row in rows], np.int64)
    ending = [i for i, row in enumerate(rows) if row.end_ps is not None]
    ends = np.array([rows[i].end_ps for i in ending], np.int64)
    which = np.concatenate([np.arange(len(rows)), np.array(ending, np.int64)])
    time = np.concatenate([starts, ends])
    # Something that ends when it starts still starts first.
    empty = np.zeros(len(time), bool)
    empty[len(rows) :] = ends == starts[which[len(rows) :]]
    rank = np.concatenate([np.ones(len(rows), np.int64), np.zeros(len(ends), np.int64)])
    rank[empty] = 2
    order = np.lexsort([rank, time])
    return [(int(which[i]), bool(i < len(rows))) for i in order]


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
        if is_start:
            events.append({"action": "alloc", **common})
        else:
            events.append({"action": "free_requested", **common})
            events.append({"action": "free_completed", **common})
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
