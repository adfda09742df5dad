"""Traces of Kineto, the profiler of PyTorch, in the JSON of Chrome's traces."""

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from projector.trace.kineto_events import NS_PS, US_PS, Batch, Plan
from projector.trace.kineto_trace import Found, Reading, make_trace
from projector.trace.notes import Notes
from projector.trace.pieces import Opening, Piece, Scanner, cut, parse_around
from projector.trace.sources import Source
from projector.trace.workers import Workers

AROUND = (
    "deviceProperties", "distributedInfo", "baseTimeNanoseconds", "otherData",
    "cupti_version", "cuda_runtime_version", "roctracer_version", "hip_runtime_version",
)  # fmt: skip
"""What is used of what stands around the events."""

Told = Callable[[int, int], None]
"""Called with the bytes read of a file and the events found in it."""


def read_kineto(
    source: Source, opening: Opening, notes: Notes, workers: Workers, told: Told
) -> Reading:
    """Return the trace of one rank.

    Parameters
    ----------
    source : Source
        The file, read as far as the opening tells.
    opening : Opening
        Where its events begin.
    notes : Notes
        What is wrong with the file so far; takes more.
    workers : Workers
        Parse pieces.
    told : callable
        Called now and then with the bytes read and the events found.
    """
    head = parse_around(opening.head, b"", AROUND, Notes())
    found = Found(_plan(head), notes)
    scanner = Scanner(notes, bare=opening.bare, grid_ps=found.plan.grid_ps)
    behind = _read_events(source, opening, found, scanner, workers, told)
    around = parse_around(opening.head, behind, AROUND, notes)
    found.join_edges()
    if notes:
        notes.add(f"{found.events:,} events could be read", "")
    return make_trace(source.path, around, found)


def _plan(head: Mapping[str, Any]) -> Plan:
    """Return the plan for a file: only our own say that they keep picoseconds."""
    other = head.get("otherData")
    grid_ps = other.get("time_grid_ps") if isinstance(other, dict) else None
    is_grid = isinstance(grid_ps, int) and 0 < grid_ps <= US_PS and US_PS % grid_ps == 0
    return Plan(grid_ps if is_grid and isinstance(grid_ps, int) else NS_PS)


def _read_events(
    source: Source,
    opening: Opening,
    found: "Found",
    scanner: Scanner,
    workers: Workers,
    told: Told,
) -> bytes:
    """Take all events, and return what stands behind them."""
    waiting: deque[tuple[Piece, Future[Batch | None]]] = deque()
    pieces = cut(source, opening)
    behind = b""
    while True:
        while len(waiting) <= workers.ahead and (piece := next(pieces, None)) is not None:
            waiting.append((piece, _submit(piece, found.plan, workers)))
        if not waiting:
            return behind
        piece, future = waiting.popleft()
        if scanner.ended:
            behind += b", " * bool(behind) + piece.data
            continue
        batch = None if scanner.waits else future.result()
        if batch is None:
            found.scan(piece, scanner)
            behind = scanner.behind.encode("utf-8", "replace")
        else:
            found.add(batch)
        told(source.read_bytes, found.events)


def _submit(piece: Piece, plan: Plan, workers: Workers) -> "Future[Batch | None]":
    """Have a piece parsed, but for the last: it holds more than events, and is scanned."""
    if not piece.last:
        return workers.submit(piece.data, plan)
    future: Future[Batch | None] = Future()
    future.set_result(None)
    return future
