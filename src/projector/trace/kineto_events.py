"""Events of a Kineto or Chrome trace, one by one, into columns.

The one place with a loop of Python per event, so it does little for each: a few look-ups and two
extensions of flat arrays. What is not as it should be goes another way, through `mend_event`: older
profilers write threads as ``stream 7``, ROCm some numbers in hexadecimal, hand-made traces numbers
as text. Whatever cannot be understood is left out, and said.
"""

import marshal
import math
import re
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Floats, Ints
from projector.config._base import Config
from projector.config.resources import shipped_table
from projector.trace import events as ev
from projector.trace.events import NS_PS
from projector.trace.names import Word

COLUMNS = (
    "kind", "name", "process", "thread", "correlation", "external", "sequence",
    "forward_thread", "detail",
)  # fmt: skip
"""Columns of integers, in the order in which a row holds them."""

US_PS = 1_000_000

FAR_US = 4 * 10**12
"""Stamps further than this from the others, 46 days, are none: int64 picoseconds hold 106 days."""


class EventNames(Config):
    """``hardware/trace_events.yaml``."""

    categories: dict[str, Word]
    """Category -> kind of event."""
    processes: dict[str, Word]
    """Process -> kind of event, for traces without categories."""
    counted: dict[str, Word]
    """Categories whose arguments are counters."""
    device_process: Word
    device_stream: Word
    device_events: dict[str, Word]
    calls: list[str]
    """Categories of calls of Python."""
    module_prefix: Word
    backward_arrows: dict[str, Word]
    memory_instants: dict[str, Word]
    vendor_keys: dict[str, Word]
    vendor_devices: dict[str, Word]
    vendor_calls: dict[str, Word]
    details: dict[str, dict[str, str]]
    """Kind of event -> argument -> detail; so are the next."""
    convolution_details: dict[str, str]
    collective_details: dict[str, str]
    projected_details: dict[str, str]
    sources: dict[str, str]


load_event_names = shipped_table(EventNames, "trace_events.yaml")


class Inexact(Exception):  # noqa: N818  # caught where it is raised for
    """Stamps too large for float64: the events are to be taken again, parsed with decimals."""


class Arrow(NamedTuple):
    """Half an arrow of the profiler."""

    begins: bool
    id: Any
    thread: int
    us: Any


class MemoryUse(NamedTuple):
    """Memory of a device at a moment."""

    us: Any
    device: str
    allocated_bytes: float
    reserved_bytes: float


class TrackValue(NamedTuple):
    """Values of a counter track at a moment, by series."""

    us: Any
    track: str
    values: dict[str, float]


def _none() -> Ints:
    return np.zeros(0, np.int64)


@dataclass(slots=True)
class Batch:
    """What was found in some events: columns, and the tables that they point into."""

    events: int = 0
    """Events that were looked at, also those left out."""
    zero_us: int = 0
    """Zero of the times below, on the clock of the file."""
    start_ps: Ints = field(default_factory=_none)
    duration_ps: Ints = field(default_factory=_none)
    rows: Ints = field(default_factory=_none)
    """int64[events, len(COLUMNS)]"""
    names: dict[str, int] = field(default_factory=dict)
    """Name -> its row."""
    keys: dict[bytes, int] = field(default_factory=dict)
    """Equal for equal `facts` -> their row."""
    facts: list[list[Any]] = field(default_factory=list)
    """What is known of events: names and values in turn."""
    skipped: Counter[str] = field(default_factory=Counter)
    arrows: list[Arrow] = field(default_factory=list)
    memory: list[MemoryUse] = field(default_factory=list)
    tracks: list[TrackValue] = field(default_factory=list)
    edges: list[Mapping[str, Any]] = field(default_factory=list)
    """Events that say where something begins or ends, not yet joined."""
    labels: dict[tuple[int, int], str] = field(default_factory=dict)
    """Names of processes, whose thread is -1, and of threads."""
    problems: dict[str, tuple[int, list[int]]] = field(default_factory=dict)
    """Text -> times and first events."""

    def row_of(self, key: bytes, facts: list[Any]) -> int:
        """Return the row of facts by their key, a new one where they have none."""
        row = self.keys.setdefault(key, len(self.facts))
        if row == len(self.facts):
            self.facts.append(facts)
        return row


@dataclass(frozen=True, slots=True)
class Plan:
    """How events are to be taken."""

    grid_ps: int = NS_PS
    exact: bool = False
    """Whether numbers come as decimals."""


class Collector(Batch):
    """Takes events and keeps what measures need of them."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        names = load_event_names()
        self.plan = plan
        self._rows = array("q")
        self._times: Any = [] if plan.exact else array("d")
        self._numbers = array("q")
        self._kinds = {cat: ev.KINDS.index(e.value) for cat, e in names.categories.items()}
        self._kinds |= dict.fromkeys(names.calls, ev.MODULE)
        self._of_process = {p: ev.KINDS.index(e.value) for p, e in names.processes.items()}
        self._counted = frozenset(names.counted)
        self._prefix = names.module_prefix.value
        self._arrow_names = frozenset(names.backward_arrows)
        self._memory_names = frozenset(names.memory_instants)
        self._details = {ev.KINDS.index(k): (*each.items(),) for k, each in names.details.items()}
        self._of_convolution = (*names.convolution_details.items(),)
        self._of_collective = (*names.collective_details.items(),)
        self._of_projection = (*names.projected_details.items(),)

    def take(self, events: Iterable[Any]) -> None:
        """Keep what is known of some events."""
        for event in events:
            self.events += 1
            try:
                self._take(event)
            except MALFORMED:
                self._take_mended(event)

    def _take(self, event: Mapping[str, Any]) -> None:
        if event["ph"] != "X":
            self._take_other(event)
            return
        category = event["cat"]
        kind = self._kinds.get(category)
        name = event["name"]
        if type(name) is not str:
            raise TypeError(name)
        if kind is None or (kind == ev.MODULE and not name.startswith(self._prefix)):
            self.skipped[category] += 1
            return
        self._keep(kind, name, event, counted=category in self._counted)

    def _keep(
        self, kind: int, name: str, event: Mapping[str, Any], *, counted: bool = False
    ) -> None:
        args = event.get("args", _NOTHING)
        get = args.get
        counters: list[Any] = []
        if counted:
            # Counters of NVIDIA have two lines in their names, as `sm__cycles_elapsed.max`.
            counters = ["counters", {n: float(v) for n, v in args.items() if "__" in n}]
        if kind <= ev.FILL:
            process, thread = get("device"), get("stream")
            if process is None:
                process = event["pid"]
            if thread is None:
                thread = event["tid"]
        else:
            process, thread = event["pid"], event["tid"]
        external = get("External id")
        if external is None:
            external = get("external id", -1)
        row = self.names.setdefault(name, len(self.names))
        detail = self._detail(kind, name, get, counters)
        self._rows.extend(
            (
                kind, row, process, thread, get("correlation", -1), external,
                get("Sequence number", -1), get("Fwd thread id", -1), detail,
            )
        )  # fmt: skip
        stamp, length = event["ts"], event["dur"]
        if self.plan.exact and (number(stamp) is not stamp or number(length) is not length):
            raise TypeError(stamp, length)
        self._times.extend((stamp, length))
        self._numbers.append(self.events)

    def _detail(self, kind: int, name: str, get: Any, facts: list[Any]) -> int:
        wanted = self._details.get(kind, ())
        if kind == ev.OPERATOR and "conv" in name:
            wanted += self._of_convolution
        if get("Collective name") is not None:
            wanted += self._of_collective
        if get("exposed_ps") is not None:
            wanted += self._of_projection
        for told, label in wanted:
            value = get(told)
            if value is not None:
                facts += (label, value)
        if not facts:
            return -1
        # Version 2 of the format holds no references, so equal values have equal bytes.
        return self.row_of(marshal.dumps(facts, 2), facts)

    def _take_other(self, event: Mapping[str, Any]) -> None:
        phase, category = event["ph"], event.get("cat")
        if phase in ("s", "f"):
            if category in self._arrow_names:
                thread = int(event["tid"])
                arrow = Arrow(phase == "s", str(event["id"]), thread, _number(event["ts"]))
                self.arrows.append(arrow)
        elif phase in ("B", "E"):
            self.edges.append(event)
        elif phase in ("i", "I") and event.get("name") in self._memory_names:
            args = event["args"]
            # Kinds of devices are those of PyTorch's c10::DeviceType, 0 the host.
            device = "host" if args["Device Type"] == 0 else f"device {int(args['Device Id'])}"
            use = MemoryUse(
                _number(event["ts"]), device,
                float(args["Total Allocated"]), float(args.get("Total Reserved", 0)),
            )  # fmt: skip
            self.memory.append(use)
        elif not isinstance(phase, str):
            raise TypeError(phase)
        elif phase == "M":
            own = {"process_name": -1, "thread_name": event.get("tid")}.get(str(event.get("name")))
            args = event.get("args")
            if own is not None and isinstance(args, dict):
                line = identity(event.get("pid", -1)), identity(own)
                self.labels[line] = printable(str(args.get("name")))
        elif phase == "C":
            stamp, track = _number(event["ts"]), str(event["name"])
            values = {str(series): float(value) for series, value in event["args"].items()}
            self.tracks.append(TrackValue(stamp, track, values))

    def _take_mended(self, event: Any) -> None:
        """Take an event in which something is not as it should be, as far as that is possible."""
        self._forget_half_rows()
        if event == {}:  # XLA ends its list with one
            return
        problems: list[str] = []
        try:
            event = mend_event(event, problems)
            if event["ph"] != "X":
                self._take_other(event)
            elif event["cat"] is not None:
                self._take(event)
            elif (kind := self._of_process.get(str(event["process"]))) is not None:
                self._keep(kind, event["name"], event)
            else:
                self._keep(ev.UNTOLD, event["name"], event)
        except Unusable as error:
            self._note(str(error))
        except MALFORMED:
            self._forget_half_rows()
            self._note("an event has values that it cannot have and is left out")
        for text in problems:
            self._note(text)

    def _forget_half_rows(self) -> None:
        del self._rows[len(self._numbers) * len(COLUMNS) :]
        del self._times[len(self._numbers) * 2 :]

    def _note(self, text: str) -> None:
        times, events = self.problems.get(text, (0, []))
        self.problems[text] = times + 1, (events if len(events) > 2 else [*events, self.events])

    def batch(self) -> Batch:
        """Return what was found."""
        self.zero_us, self.start_ps, self.duration_ps, good = self._clock()
        rows = np.array(self._rows, np.int64).reshape(-1, len(COLUMNS))
        self.rows = rows if good is None else rows[good]
        self.skipped = Counter({str(name): count for name, count in self.skipped.items()})
        return Batch(*(getattr(self, each.name) for each in fields(Batch)))

    def _clock(self) -> tuple[int, Ints, Ints, Any]:
        """Return the zero, starts, durations, and which events have stamps that can be."""
        if not self._numbers:
            return 0, np.zeros(0, np.int64), np.zeros(0, np.int64), None
        rough = np.array(self._times, np.float64).reshape(-1, 2)
        finite = np.isfinite(rough[:, 0])
        middle = float(np.median(rough[finite, 0])) if finite.any() else 0.0
        near = finite & (np.abs(rough[:, 0] - middle) < FAR_US)
        sound = (rough[:, 1] >= 0) & (rough[:, 1] < FAR_US)
        for fine, text in (
            (near, "an event has a stamp far from the others and is left out"),
            (sound | ~near, "an event has a duration that cannot be; it counts as of no length"),
        ):
            if len(bad := np.flatnonzero(~fine)):
                self.problems[text] = len(bad), [self._numbers[int(i)] for i in bad[:3]]
        good = None if near.all() else near
        rough = rough if good is None else rough[good]
        sound = sound if good is None else sound[good]
        zero_us = int(np.floor(rough[:, 0].min())) if len(rough) else 0
        if not self.plan.exact:
            # Does float64 tell stamps of the grid apart? Neighbours must lie closer than the steps:
            # below 2^e they lie 2^(e - 53) apart.
            limit_us = 2.0 ** (53 + np.floor(np.log2(self.plan.grid_ps / US_PS)))
            large = rough[np.abs(rough[:, 0]) >= limit_us, 0]
            if np.any(large != np.floor(large)) or np.any(np.abs(large) >= 2.0**51):
                raise Inexact
            starts = stamps_ps(rough[:, 0], self.plan.grid_ps, zero_us)
            durations = stamps_ps(np.where(sound, rough[:, 1], 0.0), self.plan.grid_ps)
            return zero_us, starts, durations, good
        pairs = zip(self._times[::2], self._times[1::2], strict=True)
        times = [pair for pair, is_good in zip(pairs, near, strict=True) if is_good]
        grid_ps = self.plan.grid_ps
        starts = np.array([_ps(t[0] - zero_us, grid_ps) for t in times], np.int64)
        lengths = [_ps(t[1], grid_ps) if s else 0 for t, s in zip(times, sound, strict=True)]
        return zero_us, starts, np.array(lengths, np.int64), good


def collect(events: Iterable[Any], plan: Plan) -> Batch:
    """Return what is found in some events; `Inexact` if they must come with decimals."""
    collector = Collector(plan)
    collector.take(events)
    return collector.batch()


_NOTHING: Mapping[str, Any] = {}


def _number(value: Any) -> Any:
    found = number(value)
    if found is None:
        raise ValueError(value)
    return found


def _ps(us: Any, grid_ps: int) -> int:
    """Return a number of microseconds, decimal or whole, in ps on a grid."""
    steps: int = round(us * US_PS / grid_ps)
    return steps * grid_ps


def stamps_ps(times_us: Floats, grid_ps: int, zero_us: int = 0) -> Ints:
    """Return stamps in ps after a zero, each on the grid of its clock.

    The fraction is split off before anything is scaled: the nearest float64 of a stamp of 4e12 us
    is within 0.0005 us of it, so the nearest ns is the right one.
    """
    whole = np.floor(times_us)
    steps = np.rint((times_us - whole) * (US_PS / grid_ps)).astype(np.int64)
    return (whole.astype(np.int64) - zero_us) * US_PS + steps * grid_ps


_NUMBERS = ("bytes", "in_elements", "out_elements", "group_size", "module")


def plain_detail(facts: list[Any]) -> dict[str, Any]:
    """Return facts as a mapping: numbers as integers, lists as tuples; what is neither is left."""
    detail = {}
    for name, value in zip(facts[::2], facts[1::2], strict=True):
        try:
            detail[name] = _plain(name, value)
        except (ValueError, TypeError, OverflowError, RecursionError):
            continue
    return detail


def _plain(name: str, value: Any) -> Any:
    if name in _NUMBERS:
        return int(value)
    if name == "group_ranks":
        return _ranks(value)
    if name in ("grid", "block"):
        return tuple(int(size) for size in value)
    return _frozen(value)


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return printable(value) if isinstance(value, str) else value


def printable(text: str) -> str:
    """Return a text that can be written: halves of characters become question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _ranks(text: Any) -> tuple[int, ...]:
    """Return ranks from a text such as ``[0, 1]``; the profiler cuts long ones with dots."""
    if isinstance(text, str):
        if "..." in text:
            return ()
        text = [part for part in text.strip("[] ").split(",") if part.strip()]
    return tuple(int(rank) for rank in text)


MALFORMED = (
    KeyError, TypeError, ValueError, OverflowError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip
"""What taking an event raises if something in it is not as it should be."""

WORD = 1 << 63
MOST_US = 10**18
"""No stamp is larger: 30,000 years."""

LONGEST_NAME = 65_536

_TRAILING = re.compile(r"(\d+)\s*$")
_INTEGERS = ("correlation", "External id", "Sequence number", "Fwd thread id")


class Unusable(Exception):  # noqa: N818  # caught where it is raised for
    """An event of which nothing can be used; the text says why."""


def mend_event(event: Any, problems: list[str]) -> dict[str, Any]:
    """Return an event with the types that it should have; tell what had to be left out."""
    if not isinstance(event, Mapping):
        raise Unusable("something among the events is none and is left out")
    mended = dict(event)
    phase = event.get("ph")
    if not isinstance(phase, str):
        raise Unusable("an event without a phase (ph) is left out")
    category = event.get("cat")
    mended["cat"] = category if category is None or isinstance(category, str) else str(category)
    mended["process"] = event.get("pid")
    mended["pid"] = identity(event.get("pid", -1))
    mended["tid"] = identity(event.get("tid", -1))
    mended["args"] = _args(event.get("args"), problems)
    if phase == "X":
        name, stamp, length = event.get("name"), number(event.get("ts")), number(event.get("dur"))
        if name is None:
            problems.append("an event has no name")
        if stamp is None:
            raise Unusable("an event without a stamp (ts) is left out")
        if length is None:
            problems.append("an event has no duration (dur); it counts as of no length")
        mended["name"] = "" if name is None else str(name)[:LONGEST_NAME]
        mended["ts"], mended["dur"] = stamp, 0 if length is None else length
    return mended


def _args(args: Any, problems: list[str]) -> dict[str, Any]:
    if args is None:
        return {}
    if not isinstance(args, Mapping):
        problems.append("the arguments (args) of an event are none and are left out")
        return {}
    mended = dict(args)
    for name in _INTEGERS:
        if name in mended:
            mended[name] = _integer(mended[name])
    if _integer(mended.get("external id", 0)) is None:
        del mended["external id"]
    for name in ("device", "stream"):
        if mended.get(name) is not None:
            mended[name] = identity(mended[name])
    for name in _INTEGERS:
        if name in mended and mended[name] is None:
            problems.append(f"{name!r} of an event is no number and is left out")
            del mended[name]
    return mended


def number(value: Any) -> Any:
    """Return a number, or what a text spells; None if it is none or beyond all stamps."""
    if isinstance(value, str):
        try:
            value = float(value) if not value.strip().isdecimal() else int(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    if isinstance(value, float | Decimal) and not math.isfinite(value):
        return None
    return value if -MOST_US < value < MOST_US else None


def identity(value: Any) -> int:
    """Return a number for a process, thread, device or stream, whatever stands for it.

    Texts become what they spell (``0x1f``, ``12``), the number at their end (``stream 7``) or a
    negative number of their own.
    """
    plain = _integer(value)
    if plain is not None:
        return plain
    text = str(value)
    match = _TRAILING.search(text)
    if match and len(match[1]) < len(str(WORD)) - 1:
        return int(match[1])
    return -2 - zlib.crc32(text.encode("utf-8", "replace"))


def _integer(value: Any) -> int | None:
    try:
        whole = int(value, 0) if isinstance(value, str) else int(value)
    except (ValueError, TypeError, OverflowError, ArithmeticError):
        return None
    if -WORD <= whole < WORD:
        return whole
    # Handles of streams may use all bits.
    return whole - 2 * WORD if WORD <= whole < 2 * WORD else None
