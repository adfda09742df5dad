"""Columns of events, put together from those of several files or records."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from projector.arrays import Flags, Ints
from projector.trace import events as ev
from projector.trace.csv_file import Table, load_formats
from projector.trace.events import NONE, Events, Problem, RankTrace

NS_PS = 1_000
US_NS = 1_000
LARGEST_NS = (1 << 63) // NS_PS - 1
"""Spans beyond it leave 64 bits of picoseconds: 106 days."""

_COLUMNS = (
    "kind", "name", "start_ns", "end_ns", "process", "thread", "correlation", "detail",
)  # fmt: skip


def distinct(*columns: Ints) -> tuple[Ints, Ints]:
    """Return the first place of each distinct row of some columns, and which of them each row is.

    Distinct rows are sorted, as by ``numpy.unique`` over rows, which takes ten times as long.
    """
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        found, part = np.unique(column, return_inverse=True)
        _, code = np.unique(code * max(len(found), 1) + part, return_inverse=True)
    _, first, code = np.unique(code, return_index=True, return_inverse=True)
    return first, code


def copy_names(directions: Sequence[str]) -> list[str]:
    """Return how Kineto names copies of some directions."""
    words = load_formats().directions
    named = {
        each: next((word.value for key, word in words.items() if key in each), each)
        for each in set(directions)
    }
    return [named[each] for each in directions]


def call_kind(domain: str) -> int:
    """Return the kind of the calls of a domain, `NONE` for those that are left out."""
    formats = load_formats()
    if any(domain.startswith(each) for each in formats.skipped_domains.value):
        return NONE
    if domain.startswith("RCCL"):
        return ev.OPERATOR
    word = formats.marker_domains.get(domain)
    return ev.LAUNCH if word is None else ev.KINDS.index(word.value)


class Rows:
    """Takes columns and makes a trace of them.

    Stamps are int64 ns of the clock of the profiler. What has none, or ends before it starts, is
    left out and told of.
    """

    def __init__(self) -> None:
        self._parts: list[dict[str, Ints]] = []
        self._names: dict[str, int] = {}
        self._details: dict[tuple[Any, ...], int] = {}
        self._facts: list[Mapping[str, Any]] = []
        self._problems: list[Problem] = []
        self.skipped: Counter[str] = Counter()

    def add(
        self, *, kind: "int | Ints", names: Sequence[str], start_ns: Ints, end_ns: Ints,
        process: Ints, thread: Ints, correlation: Ints, detail: Ints | None = None,
        table: Table | None = None, keep: Flags | None = None,
    ) -> None:  # fmt: skip
        """Take columns of equal length.

        Parameters
        ----------
        kind : int or int64[n]
            Position in ``events.KINDS``.
        table : Table, optional
            Where the rows come from, for the places of problems.
        keep : bool[n], optional
            Rows to take; all if left out.
        """
        count = len(start_ns)
        good = (start_ns > 0) & (end_ns >= start_ns)
        wanted = np.ones(count, bool) if keep is None else keep
        self._tell(np.flatnonzero(wanted & ~good), table)
        rows = np.flatnonzero(wanted & good)
        ids = self._names
        columns = {
            "kind": np.broadcast_to(np.asarray(kind, np.int64), count),
            "name": np.array([ids.setdefault(name, len(ids)) for name in names], np.int64),
            "start_ns": start_ns,
            "end_ns": end_ns,
            "process": process,
            "thread": thread,
            "correlation": correlation,
            "detail": np.full(count, NONE, np.int64) if detail is None else detail,
        }
        self._parts.append({name: columns[name][rows] for name in _COLUMNS})

    def _tell(self, rows: Ints, table: Table | None) -> None:
        if len(rows):
            where = "" if table is None else f"line {int(table.lines[rows[0]]):,}"
            text = f"{len(rows):,} events without stamps, or that end before they start, left out"
            self._problems.append(Problem("" if table is None else table.path, where, text))

    def fact(self, **facts: Any) -> int:
        """Return the row of what further is known of an event."""
        key = tuple(sorted(facts.items()))
        row = self._details.setdefault(key, len(self._facts))
        if row == len(self._facts):
            self._facts.append(facts)
        return row

    def grids(self, work_items: Ints, group: Ints) -> Ints:
        """Return the details of launches, of the work items int64[n, 3] and those of a group."""
        both = np.concatenate([work_items, group], axis=1)
        first, place = distinct(*both.T)
        rows = [self._grid(*map(int, each)) for each in both[first]]
        return np.array(rows, np.int64)[place] if len(both) else both[:, 0]

    def _grid(self, x: int, y: int, z: int, bx: int, by: int, bz: int) -> int:
        if min(x, y, z, bx, by, bz) <= 0:
            return NONE
        return self.fact(grid=(-(-x // bx), -(-y // by), -(-z // bz)), block=(bx, by, bz))

    def trace(
        self, *, path: str, which: str, problems: Sequence[Problem] = (), **more: Any
    ) -> RankTrace:
        """Return all that was taken, in the order of starts, as the trace of an unknown rank."""
        columns = {
            name: np.concatenate([part[name] for part in self._parts] or [np.zeros(0, np.int64)])
            for name in _COLUMNS
        }
        order = np.argsort(columns["start_ns"], kind="stable")
        columns = {name: column[order] for name, column in columns.items()}
        start_ns, end_ns = columns["start_ns"], columns["end_ns"]
        zero_ns = int(start_ns[0]) // US_NS * US_NS if len(start_ns) else 0
        fits = end_ns - zero_ns < LARGEST_NS
        told = list(problems) + self._problems
        if not fits.all():
            text = f"{int((~fits).sum()):,} events more than 106 days after the first, left out"
            told.append(Problem(path, "", text))
            columns = {name: column[fits] for name, column in columns.items()}
        return RankTrace(
            path=path, format=which, rank=NONE, world_size=0, zero_ns=zero_ns,
            names=tuple(self._names), events=_events(columns, zero_ns),
            details=tuple(self._facts), vendor="AMD", skipped=dict(self.skipped),
            problems=tuple(told), **more,
        )  # fmt: skip


def _events(columns: Mapping[str, Ints], zero_ns: int) -> Events:
    count = len(columns["kind"])
    nothing = np.full(count, NONE, np.int64)
    on_device = np.isin(columns["kind"], ev.ON_DEVICE)
    # A correlation of 0 stands for none.
    correlation = np.where(columns["correlation"] > 0, columns["correlation"], NONE)
    return Events(
        kind=columns["kind"],
        name=columns["name"],
        start_ps=(columns["start_ns"] - zero_ns) * NS_PS,
        duration_ps=(columns["end_ns"] - columns["start_ns"]) * NS_PS,
        process=np.where(on_device, np.maximum(columns["process"], 0), columns["process"]),
        thread=columns["thread"],
        correlation=correlation,
        external=nothing,
        sequence=nothing,
        forward_thread=nothing,
        detail=columns["detail"],
    )
