"""Events of a Kineto or Chrome trace, one by one, into columns.

The one place with a loop of Python per event, so it does little for each: a few look-ups and two
extensions of flat arrays.
"""

import marshal
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from projector.config import resources
from projector.config._base import Config
from projector.config.yaml_file import read_yaml
from projector.trace import events as ev

COLUMNS = (
    "kind", "name", "process", "thread", "correlation", "external", "sequence",
    "forward_thread", "detail",
)  # fmt: skip
"""Columns of integers, in the order in which a row holds them."""

WORD = 1 << 63


class Entry(Config):
    """One line of ``hardware/trace_events.yaml``."""

    value: str
    source: str
    note: str = ""


class EventNames(Config):
    """``hardware/trace_events.yaml``."""

    categories: dict[str, Entry]
    """Category -> kind of event."""
    calls: list[str]
    """Categories of calls of Python."""
    module_prefix: Entry
    backward_arrows: dict[str, Entry]
    sources: dict[str, str]


@cache
def load_event_names() -> EventNames:
    """Return what the categories of a trace stand for."""
    path = resources.data_dir("hardware") / "trace_events.yaml"
    return EventNames.model_validate(read_yaml(path))


@dataclass(slots=True)
class Arrow:
    """Half an arrow of the profiler."""

    begins: bool
    id: Any
    thread: int
    ts_us: float


@dataclass(slots=True)
class Found:
    """What was found in some events: rows, and the tables that they point into."""

    rows: "array[int]" = field(default_factory=lambda: array("q"))
    """int64[events * len(COLUMNS)]"""
    times_us: "array[float]" = field(default_factory=lambda: array("d"))
    """float64[events * 2]: stamp and duration."""
    names: dict[str, int] = field(default_factory=dict)
    details: dict[bytes, int] = field(default_factory=dict)
    """Row of `facts`, by a key that equal facts share."""
    facts: list[list[Any]] = field(default_factory=list)
    """What is known of events: names and values in turn."""
    arrows: list[Arrow] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


class Collector:
    """Takes events and keeps what measures need of them in `found`."""

    def __init__(self) -> None:
        names = load_event_names()
        self.found = Found()
        self._kinds = {cat: ev.KINDS.index(e.value) for cat, e in names.categories.items()}
        self._kinds |= dict.fromkeys(names.calls, ev.MODULE)
        self._prefix = names.module_prefix.value
        self._arrows = frozenset(names.backward_arrows)

    def take(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Keep what is known of some events."""
        for event in events:
            self._take(event)

    def _take(self, event: Mapping[str, Any]) -> None:
        if event.get("ph") != "X":
            self._take_other(event)
            return
        category = event.get("cat")
        kind = self._kinds.get(category)  # type: ignore[arg-type]
        name = event["name"]
        if kind is None or (kind == ev.MODULE and not name.startswith(self._prefix)):
            self.found.skipped[str(category)] += 1
            return
        self._keep(kind, name, event)

    def _keep(self, kind: int, name: str, event: Mapping[str, Any]) -> None:
        found = self.found
        args = event.get("args") or {}
        row = found.names.setdefault(name, len(found.names))
        get = args.get
        found.times_us.extend((event["ts"], event.get("dur", 0)))
        if kind <= ev.FILL:
            process, thread = get("device", event["pid"]), get("stream", event["tid"])
        else:
            process, thread = event["pid"], event["tid"]
        found.rows.extend(
            (
                kind, row, process, thread,
                get("correlation", -1), get("External id", -1), get("Sequence number", -1),
                get("Fwd thread id", -1), self._detail(kind, args),
            )
        )  # fmt: skip

    def _detail(self, kind: int, args: Mapping[str, Any]) -> int:
        """Return the row of what further is known of an event, or -1."""
        facts: list[Any] = []
        wanted = _DETAILS[kind]
        if "Collective name" in args:
            wanted += _COLLECTIVE
        for name, label in wanted:
            value = args.get(name)
            if value is not None:
                facts += (label, value)
        if not facts:
            return -1
        # Version 2 of the format holds no references, so equal values have equal bytes.
        key = marshal.dumps(facts, 2)
        row = self.found.details.setdefault(key, len(self.found.facts))
        if row == len(self.found.facts):
            self.found.facts.append(facts)
        return row

    def _take_other(self, event: Mapping[str, Any]) -> None:
        if event.get("cat") in self._arrows and event.get("ph") in ("s", "f"):
            self.found.arrows.append(
                Arrow(event["ph"] == "s", event["id"], event["tid"], event["ts"])
            )


_GRID = (("grid", "grid"), ("block", "block"), ("bytes", "bytes"))
_DETAILS: dict[int, tuple[tuple[str, str], ...]] = {
    ev.KERNEL: _GRID,
    ev.COPY: _GRID,
    ev.FILL: _GRID,
    ev.LAUNCH: (*_GRID, ("size", "bytes")),
    ev.OPERATOR: (("Input Dims", "dims"), ("Input type", "types")),
    ev.ANNOTATION: (("Input Dims", "dims"), ("Input type", "types")),
    ev.GPU_ANNOTATION: (),
    ev.MODULE: (("Python module id", "module"),),
}
_COLLECTIVE = (
    ("Collective name", "collective"),
    ("Process Group Name", "group"),
    ("Process Group Description", "group_description"),
    ("Process Group Ranks", "group_ranks"),
    ("Group size", "group_size"),
    ("In msg nelems", "in_elements"),
    ("Out msg nelems", "out_elements"),
    ("dtype", "dtype"),
)


def plain_detail(facts: list[Any]) -> dict[str, Any]:
    """Return facts as a mapping, numbers as numbers and lists as tuples."""
    detail = dict(zip(facts[::2], map(_frozen, facts[1::2]), strict=True))
    for name in ("bytes", "in_elements", "out_elements", "group_size"):
        if name in detail:
            detail[name] = int(detail[name])
    if "group_ranks" in detail:
        detail["group_ranks"] = _ranks(detail["group_ranks"])
    return detail


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _ranks(text: Any) -> tuple[int, ...]:
    """Return ranks from a text such as ``[0, 1]``; the profiler cuts long ones with dots."""
    if isinstance(text, str):
        if "..." in text:
            return ()
        text = [part for part in text.strip("[] ").split(",") if part.strip()]
    return tuple(int(rank) for rank in text)
