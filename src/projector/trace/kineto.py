"""Traces of Kineto, the profiler of PyTorch: a rank made of what the pieces of its file hold."""

import itertools
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Floats
from projector.trace import events as ev
from projector.trace import kineto_events as raw
from projector.trace.events import NS_PS, Events, Link, Problem, RankTrace, Samples
from projector.trace.pieces import Opening, Piece, Scanner, Workers, cut, parse_around
from projector.trace.sources import COULD_BE_READ, Notes, Source

AROUND = (
    "deviceProperties", "distributedInfo", "baseTimeNanoseconds", "otherData",
    "cupti_version", "cuda_runtime_version", "roctracer_version", "hip_runtime_version",
)  # fmt: skip
"""What is used of what stands around the events."""

Told = Callable[[int, int], None]
"""Called with the bytes read of a file and the events found in it."""

_KIND, _NAME, _PROCESS, _THREAD, _DETAIL = (
    raw.COLUMNS.index(name) for name in ("kind", "name", "process", "thread", "detail")
)


class Reading(NamedTuple):
    """What a file held."""

    rank: RankTrace
    """Its rank is -1 where the file does not tell."""
    samples: tuple[Samples, ...]
    """Memory and counters over time, from the zero of the rank."""
    events: int


def read_kineto(
    source: Source, opening: Opening, notes: Notes, workers: Workers, told: Told
) -> Reading:
    """Return the trace of one rank, whose file was read as far as the opening tells.

    `notes` takes what is wrong, `workers` parse pieces, and `told` is called now and then with the
    bytes read and the events found.
    """
    head = parse_around(opening.head, b"", AROUND, Notes())
    # The plan for a file: only our own say that they keep picoseconds.
    other = head.get("otherData")
    grid_ps = other.get("time_grid_ps") if isinstance(other, dict) else None
    is_grid = isinstance(grid_ps, int) and 0 < grid_ps <= raw.US_PS and raw.US_PS % grid_ps == 0
    found = Found(raw.Plan(grid_ps if is_grid and isinstance(grid_ps, int) else NS_PS), notes)
    scanner = Scanner(notes, bare=opening.bare, grid_ps=found.plan.grid_ps)
    behind = _read_events(source, opening, found, scanner, workers, told)
    around = parse_around(opening.head, behind, AROUND, notes)
    found.join_edges()
    found.tell_kinds()
    if notes:
        notes.add(f"{found.events:,} {COULD_BE_READ}", "")
    return make_trace(source.path, around, found)


def _read_events(
    source: Source, opening: Opening, found: "Found", scanner: Scanner, workers: Workers, told: Told
) -> bytes:
    waiting: deque[tuple[Piece, Future[raw.Batch | None] | None]] = deque()
    pieces = cut(source, opening)
    behind = b""
    while True:
        while len(waiting) <= workers.ahead and (piece := next(pieces, None)) is not None:
            # The last holds more than events, and is scanned.
            future = None if piece.last else workers.submit(piece.data, found.plan)
            waiting.append((piece, future))
        if not waiting:
            return behind
        piece, future = waiting.popleft()
        if scanner.ended:
            behind += b", " * bool(behind) + piece.data
            continue
        batch = None if scanner.waits or future is None else future.result()
        if batch is None:
            found.add(found.collect(scanner.feed(piece)))
            behind = scanner.behind.encode("utf-8", "replace")
        else:
            found.add(batch)
        told(source.read_bytes, found.events)


class Found(raw.Batch):
    """What the pieces of a file held, with common tables of names and details."""

    def __init__(self, plan: raw.Plan, notes: Notes) -> None:
        super().__init__()
        self.plan, self.notes = plan, notes
        self.batches: list[raw.Batch] = []

    def collect(self, events: list[Any]) -> raw.Batch:
        """Return what is found in events that were parsed one by one."""
        try:
            return raw.collect(events, self.plan)
        except raw.Inexact:
            return raw.collect(events, raw.Plan(self.plan.grid_ps, exact=True))

    def add(self, batch: raw.Batch) -> None:
        """Take a batch, whose rows then point into the common tables."""
        for text, (times, events) in batch.problems.items():
            for event in events[:-1]:
                self.notes.add(text, f"event {self.events + event:,}")
            last = f"event {self.events + events[-1]:,}" if events else ""
            self.notes.add(text, last, times - len(events) + 1)
        names = [self.names.setdefault(name, len(self.names)) for name in batch.names]
        details = [self.row_of(*pair) for pair in zip(batch.keys, batch.facts, strict=True)]
        if len(batch.rows):
            batch.rows[:, _NAME] = np.array(names, np.int64)[batch.rows[:, _NAME]]
            # The last entry serves those without details, whose row is -1.
            batch.rows[:, _DETAIL] = np.array([*details, -1], np.int64)[batch.rows[:, _DETAIL]]
            self.batches.append(batch)
        self.events += batch.events
        self.skipped.update(batch.skipped)
        self.arrows += batch.arrows
        self.memory += batch.memory
        self.tracks += batch.tracks
        self.edges += batch.edges
        self.labels |= batch.labels

    def join_edges(self) -> None:
        """Take what begins and ends as two events (``B`` and ``E``) as one."""
        open_edges: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
        whole = []
        stamped = (edge for edge in self.edges if raw.number(edge.get("ts")) is not None)
        for edge in sorted(stamped, key=lambda edge: Decimal(str(edge["ts"]))):
            line = raw.identity(edge.get("pid", -1)), raw.identity(edge.get("tid", -1))
            if edge["ph"] == "B":
                open_edges.setdefault(line, []).append(edge)
            elif stack := open_edges.get(line):
                begun = stack.pop()
                length = Decimal(str(edge["ts"])) - Decimal(str(begun["ts"]))
                whole.append(
                    {**begun, "ph": "X", "dur": length if self.plan.exact else float(length)}
                )
            else:
                self.notes.add("something ends (E) that has not begun and is left out", "")
        left = sum(map(len, open_edges.values()))
        if left:
            self.notes.add("something begins (B) that does not end and is left out", "", left)
        self.edges = []
        if whole:
            self.add(self.collect(whole))

    def tell_kinds(self) -> None:
        """Find the kinds of events without category by their processes; leave out the others."""
        lines = {line: device for line in self.labels if (device := self._device(line)) is not None}
        names = list(self.names)
        begins = {
            n: ev.KINDS.index(e.value) for n, e in raw.load_event_names().device_events.items()
        }
        for batch in self.batches:
            rows = batch.rows
            for row in np.flatnonzero(rows[:, _KIND] == ev.UNTOLD).tolist():
                device = lines.get((int(rows[row, _PROCESS]), int(rows[row, _THREAD])))
                if device is not None:
                    name = names[int(rows[row, _NAME])]
                    kind = next((k for n, k in begins.items() if name.startswith(n)), ev.KERNEL)
                    rows[row, _KIND], rows[row, _PROCESS] = kind, device
            known = rows[:, _KIND] != ev.UNTOLD
            left = len(rows) - int(known.sum())
            if left:
                self.skipped["without category"] += left
                batch.rows = rows[known]
                batch.start_ps, batch.duration_ps = batch.start_ps[known], batch.duration_ps[known]
        self.batches = [batch for batch in self.batches if len(batch.rows)]

    def _device(self, line: tuple[int, int]) -> int | None:
        known = raw.load_event_names()
        process = re.match(known.device_process.value, self.labels.get((line[0], -1), ""))
        is_stream = self.labels[line].startswith(known.device_stream.value)
        return int(process[1]) if process and is_stream and len(process[1]) < 10 else None


def make_trace(path: Path, around: Mapping[str, Any], found: Found) -> Reading:
    """Return the trace of a rank of what its events held, with what was sampled in it."""
    distributed = _mapping(around.get("distributedInfo"))
    batches = _near(found.batches, found.notes)
    told = _mapping(around.get("otherData"))
    blocks, detail = (_whole(told.get(key), 0) for key in ("blocks", "blocks_in_detail"))
    if _is_own(around) and detail < blocks:
        found.notes.add(
            f"the timeline tells {detail:,} of {blocks:,} blocks operation by operation: times and "
            "counts of operations are those of a part of the step",
            "",
        )
    # The zero is a whole number of microseconds, so that it is one of nanoseconds, too.
    zero_us = min((b.zero_us + int(b.start_ps.min()) // raw.US_PS for b in batches), default=0)
    zero_ns = _whole(around.get("baseTimeNanoseconds"), 0) + zero_us * NS_PS
    names = tuple(map(raw.printable, found.names))
    clock = _Clock(found.plan.grid_ps, zero_us)
    events, details = _columns(batches, zero_us), tuple(map(raw.plain_detail, found.facts))
    held = [  # what the framework holds on each device, as it changes
        raw.TrackValue(
            use.us,
            "memory_bytes",
            {use.device: use.allocated_bytes, f"{use.device} reserved": use.reserved_bytes},
        )
        for use in found.memory
    ]
    samples = (*_tracks(held, clock, path), *_tracks(found.tracks, clock, path))
    rank = RankTrace(
        path=str(path),
        format="projector" if _is_own(around) else "kineto",
        rank=_whole(distributed.get("rank"), -1),
        world_size=_whole(distributed.get("world_size"), 0),
        zero_ns=zero_ns if abs(zero_ns) < 1 << 62 else 0,
        names=names,
        events=events,
        details=details,
        links=_links(found.arrows, clock),
        groups=_groups(distributed),
        devices=_devices(around),
        vendor=_vendor(around, names),
        skipped=dict(sorted(found.skipped.items())),
        problems=(*found.notes.problems(str(path)), *_serialised(path, events, details)),
    )
    return Reading(rank, samples, found.events)


def _serialised(
    path: Path, events: Events, details: Sequence[Mapping[str, Any]]
) -> Iterable[Problem]:
    """Say that kernels with counters have no times."""
    counted = np.array(["counters" in detail for detail in details] + [False])[events.detail]
    if counted.any():
        many = int(counted.sum())
        text = f"the times of {many:,} kernels of CUPTI's range profiler are none: the profile "
        yield Problem(str(path), "", f"{text}divides its time evenly among them")


def _is_own(around: Mapping[str, Any]) -> bool:
    return str(_mapping(around.get("otherData")).get("producer", "")).startswith("projector")


def _near(batches: list[raw.Batch], notes: Notes) -> list[raw.Batch]:
    """Return the batches whose stamps int64 picoseconds can hold together."""
    if not batches:
        return []
    middle = sorted(batch.zero_us for batch in batches)[len(batches) // 2]
    near = [batch for batch in batches if abs(batch.zero_us - middle) < raw.FAR_US]
    left = sum(len(batch.rows) for batch in batches) - sum(len(batch.rows) for batch in near)
    if left:
        notes.add("an event has a stamp far from the others and is left out", "", left)
    return near


def _columns(batches: list[raw.Batch], zero_us: int) -> Events:
    if not batches:
        return Events.empty()
    starts = [batch.start_ps + (batch.zero_us - zero_us) * raw.US_PS for batch in batches]
    columns = {
        name: np.concatenate([batch.rows[:, i] for batch in batches])
        for i, name in enumerate(raw.COLUMNS)
    }
    return Events(
        start_ps=np.concatenate(starts),
        duration_ps=np.concatenate([batch.duration_ps for batch in batches]),
        **columns,
    )


class _Clock(NamedTuple):
    grid_ps: int
    zero_us: int

    def ps(self, us: Any) -> int | None:
        """Return a time in exact arithmetic; None if int64 cannot hold it."""
        after_us = Decimal(str(us)) - self.zero_us
        if not abs(after_us) < 2 * raw.FAR_US:
            return None
        return round(after_us * raw.US_PS / self.grid_ps) * self.grid_ps


def _links(arrows: list[raw.Arrow], clock: _Clock) -> tuple[Link, ...]:
    """Join the halves of arrows: each end goes to the last begin of its number before it."""
    timed = [
        (at, not arrow.begins, arrow) for arrow in arrows if (at := clock.ps(arrow.us)) is not None
    ]
    begun: dict[str, tuple[int, raw.Arrow]] = {}
    links = []
    for at, _, arrow in sorted(timed, key=lambda half: half[:2]):
        if arrow.begins:
            begun[arrow.id] = at, arrow
        elif arrow.id in begun:
            before, forward = begun[arrow.id]
            links.append(Link(forward.thread, before, arrow.thread, at))
    return tuple(links)


def _tracks(values: list[raw.TrackValue], clock: _Clock, path: Path) -> Iterable[Samples]:
    """Yield each counter track; a series keeps its value until it has another."""
    timed = [(v.track, at, v.values) for v in values if (at := clock.ps(v.us)) is not None]
    timed.sort(key=lambda value: value[:2])
    for track, group in itertools.groupby(timed, key=lambda value: value[0]):
        moments = list(group)
        columns = tuple(dict.fromkeys(series for _, _, held in moments for series in held))
        place = {series: i for i, series in enumerate(columns)}
        table: Floats = np.full((len(moments), len(columns)), np.nan)
        for row, (_, _, held) in enumerate(moments):
            if row:
                table[row] = table[row - 1]
            for series, value in held.items():
                table[row, place[series]] = value
        yield Samples(
            path=str(path),
            what=track,
            time_ps=np.array([at for _, at, _ in moments], np.int64),
            values=table,
            columns=columns,
        )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _whole(value: Any, other: int) -> int:
    """Return a number without fraction that int64 holds, or the other."""
    found = raw.number(value) if not isinstance(value, int) else value
    if found is None or isinstance(found, bool) or not -(1 << 62) < found < 1 << 62:
        return other
    return int(found)


def _groups(distributed: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    groups = {}
    listed = distributed.get("pg_config")
    for group in listed if isinstance(listed, list) else ():
        try:
            name = raw.printable(str(group["pg_name"]))
            groups[name] = tuple(int(rank) for rank in group.get("ranks", ()))
        except raw.MALFORMED:
            continue
    return groups


def _devices(around: Mapping[str, Any]) -> tuple[str, ...]:
    listed = around.get("deviceProperties")
    found = [_mapping(device) for device in listed] if isinstance(listed, list) else []
    named = [(_whole(d.get("id"), i), str(d.get("name", ""))) for i, d in enumerate(found)]
    return tuple(raw.printable(name) for _, name in sorted(named))


def _vendor(around: Mapping[str, Any], names: Iterable[str]) -> str:
    known = raw.load_event_names()
    told = [entry.value for key, entry in known.vendor_keys.items() if key in around]
    tables = ((_devices(around), known.vendor_devices), (names, known.vendor_calls))
    begun = (
        entry.value
        for texts, begins in tables
        for text in texts
        for begin, entry in begins.items()
        if text.startswith(begin)
    )
    return told[0] if told else next(begun, "")
