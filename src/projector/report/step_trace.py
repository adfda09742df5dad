"""The step of a projection as the profiler of PyTorch would write it.

Perfetto (ui.perfetto.dev) opens the file, and `projector.trace` reads it back. Each pipeline rank
has a device, whose streams are the tracks of the timeline, and a process of the host that launches
the kernels. What the file says of each event lets a reader sum the breakdown to the picosecond.

Viewers multiply a time by 1,000 and cut it to whole nanoseconds, each number for itself, and draw
what then seems to overlap as if one were inside the other. A time is therefore written with a fifth
of a picosecond more, so that the product of floating-point numbers never falls below a whole
nanosecond that it should reach. Who rounds to picoseconds reads the exact time.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Array, Ints, bits
from projector.kernels.grouping import group_rows
from projector.projection.terms import BREAKDOWN
from projector.projection.timeline import columns
from projector.projection.timeline.columns import Timeline
from projector.report.step_names import load_timeline_names, operators_of
from projector.units import MEGA, to_gib

_PS_PER_US = 10**6

_NS_PS = 1000

GRID_PS = 1
"""Grid of the times, as the head of a file says."""

HOST = 1_000_000
"""Number of the process of the host of rank 0; those of the other ranks follow."""

EXPERTS_TP = "moe.etp"
"""What labels of the tensor parallelism of experts begin with."""

MOST_TOLD_RANKS = 30
"""Ranks of a group that an event tells; PyTorch cuts longer lists with dots, too."""

MAIN, AUTOGRAD, UNTOLD = 1, 2, 3
"""Threads of the host. The last one launches what the projection tells no launch of, right when it
starts: communication, copies beside it and the optimizer."""

_THREADS = {MAIN: "main", AUTOGRAD: "autograd", UNTOLD: "launches not told"}

_CALL_PS = 100_000
"""How long an untold launch is drawn: 0.1 us."""

FIRST_STREAM = 7
"""Number of the first stream, as NVIDIA's runtime counts."""

ENGINE = "autograd::engine::evaluate_function: "
"""What the names of operators begin with that the engine of the backward starts."""

RECOMPUTE = f"{ENGINE}CheckpointFunctionBackward"
"""Operator of the backward in which a forward runs again."""

RANGES = FIRST_STREAM - 1
"""Track of a device on which blocks and layers stand."""

_COMMUNICATION = (columns.TP, columns.CP, columns.EP, columns.DP, columns.PP)

_PASS = {
    columns.FORWARD: "forward",
    columns.BACKWARD: "backward",
    columns.WEIGHT: "backward",
    columns.UPDATE: "optimizer",
    columns.OTHER: "",
}
"""Range of the host around launches of each phase."""


class Member(NamedTuple):
    """A device of the job, by the numbers that a launcher gives it."""

    rank: int
    """Of all devices."""
    device: int
    """Within its node."""
    groups: Mapping[str, tuple[int, ...]]
    """Ranks of each group that it communicates in, by the name of the group."""


class Head(NamedTuple):
    """What a file says of the job."""

    title: str
    vendor: str
    device: str
    gpus: int
    gpus_per_node: int
    members: tuple[Member, ...]
    """The device that is told of each pipeline rank."""
    other: dict[str, Any]
    """What tools do not ask for."""


class Work(NamedTuple):
    """One activity of the timeline: a kernel of the step, or a time in which a device waits."""

    number: int
    """Counted from 1; the correlation of a kernel."""
    rank: int
    track: int
    lane: int
    label: str
    term: str
    phase: int
    layer: int
    stage: int
    chunk: int
    microbatch: int
    start_ps: int
    duration_ps: int
    exposed_ps: int
    slowdown_ps: int
    slowed_ps: int
    prepare_ps: int
    launch_ps: int
    launch_end_ps: int
    flop: float
    bytes: float
    recompute: bool
    row: int
    """Of the operation table."""
    thread: int
    """Of the host, on which it is launched."""

    @property
    def communicates(self) -> bool:
        """Whether it moves data between devices."""
        return self.track in _COMMUNICATION

    @property
    def surrounding(self) -> str:
        """Range of the host around its launch."""
        return _PASS[columns.BACKWARD if self.recompute else self.phase]


Works = dict[str, Array]
"""Columns of works by the fields of `Work`; labels and terms are their numbers in the timeline."""

_PLAIN = tuple(name for name in Work._fields if name not in ("number", "thread"))
_HOST_PS = ("prepare_ps", "launch_ps", "launch_end_ps")
_OPERATOR = ("microbatch", "stage", "layer", "label")
"""What an operator of a forward and those of its backward share."""

_ALIKE = (
    "rank", "track", "lane", "label", "term", "phase", "layer", "stage", "chunk",
    "recompute", "row", "thread",
)  # fmt: skip
"""Works that agree in these differ in times and numbers alone."""


def step_lines(timeline: Timeline, head: Head) -> Iterator[str]:
    """Yield one file of all pipeline ranks in pieces, for people to look at."""
    ranks = range(len(timeline.begin_ps))
    about = {
        "deviceProperties": [{"id": rank, "name": head.device} for rank in ranks],
        "distributedInfo": {"backend": "nccl", "rank": 0},
    }
    works = work_columns(timeline)
    zero_ps = _zero_ps(timeline, works)
    drawn = {rank: Member(rank, rank, {}) for rank in ranks}
    yield from _Writer(timeline, works, head, zero_ps, drawn).lines(about)


def rank_lines(timeline: Timeline, head: Head) -> Iterator[tuple[int, Iterator[str]]]:
    """Yield each device that is told and its file, in pieces, as tools read them."""
    works = work_columns(timeline)
    zero_ps = _zero_ps(timeline, works)
    descriptions = load_timeline_names().groups
    for rank, member in enumerate(head.members):
        groups = [
            {
                "pg_name": name,
                "pg_desc": descriptions[name],
                "backend_config": "cuda:nccl",
                "pg_size": len(ranks),
                "ranks": list(ranks),
            }
            for name, ranks in member.groups.items()
        ]
        about = {
            "deviceProperties": [
                {"id": device, "name": head.device} for device in range(head.gpus_per_node)
            ],
            "distributedInfo": {
                "backend": "nccl",
                "rank": member.rank,
                "world_size": head.gpus,
                "pg_count": len(groups),
                "pg_config": groups,
            },
        }
        own = head._replace(other={**head.other, "pipeline_rank": rank})
        writer = _Writer(timeline, _of_rank(works, rank), own, zero_ps, {rank: member})
        yield member.rank, writer.lines(about)


def _zero_ps(timeline: Timeline, works: Works) -> int:
    """Return what is added to every time so that none is negative, in whole microseconds."""
    begins = works["prepare_ps"][works["track"] != columns.WAIT]
    first = int(min(0, timeline.begin_ps.min(initial=0), begins.min(initial=0)))
    return -(first // 10**6) * 10**6


def works_of(timeline: Timeline) -> list[Work]:
    """Return the rows of a timeline, but for those that take no time and launch nothing."""
    return _listed(work_columns(timeline), timeline.labels)


def _listed(works: Works, labels: Sequence[str]) -> list[Work]:
    plain = {name: works[name].tolist() for name in Work._fields}
    plain["label"] = [labels[label] for label in plain["label"]]
    plain["term"] = [BREAKDOWN[term] for term in plain["term"]]
    return [*map(Work._make, zip(*plain.values(), strict=True))]


def work_columns(timeline: Timeline) -> Works:
    """Return what `works_of` does as columns: by rank, thread of the host, and launch."""
    told = (timeline.duration_ps != 0) | (timeline.exposed_ps != 0) | (timeline.launches != 0.0)
    works = {name: getattr(timeline, name)[told] for name in _PLAIN}
    backward = np.isin(works["phase"], (columns.BACKWARD, columns.WEIGHT)) | works["recompute"]
    untold = (works["launch_ps"] == columns.NONE) & (works["track"] != columns.WAIT)
    works["number"] = np.flatnonzero(told) + 1
    works["thread"] = np.where(untold, UNTOLD, np.where(backward, AUTOGRAD, MAIN))
    thread = works["rank"] * len(_THREADS) + works["thread"]
    works = _taken(works, np.argsort(thread, kind="stable"))
    ends = np.flatnonzero(np.diff(np.sort(thread), prepend=-1, append=-1))
    parts = [_taken(works, slice(*each)) for each in pairwise(ends.tolist())]
    parts = [_told(part) if part["thread"][0] == UNTOLD else _in_turn(part) for part in parts]
    return {
        name: np.concatenate([part[name] for part in parts]) for name in works if parts
    } or works


def _taken(works: Works, rows: Ints | slice) -> Works:
    return {name: column[rows] for name, column in works.items()}


def _of_rank(works: Works, rank: int) -> Works:
    return _taken(works, slice(*np.searchsorted(works["rank"], (rank, rank + 1))))


class _Writer:
    def __init__(
        self,
        timeline: Timeline,
        works: Works,
        head: Head,
        zero_ps: int,
        drawn: Mapping[int, Member],
    ) -> None:
        self.timeline, self.head, self.zero_ps = timeline, head, zero_ps
        self.drawn = drawn
        """Device as which each pipeline rank of the file is drawn."""
        self.names = load_timeline_names()
        self.operators = operators_of(timeline.table)
        places = zip(works["track"].tolist(), works["lane"].tolist(), strict=True)
        tracks = sorted({(columns.COMPUTE, 0), *places})
        self.stream = {place: FIRST_STREAM + i for i, place in enumerate(tracks)}
        # A number for each operator of a forward, by what its backward shares with it.
        kinds, kind = group_rows(*(works[name] for name in _OPERATOR))
        forward = (works["phase"] == columns.FORWARD) & (works["thread"] == MAIN)
        forward &= ~works["recompute"] & (works["track"] != columns.WAIT)
        of_forward, first = np.unique(kind[forward], return_index=True)
        number = np.full(len(kinds), columns.NONE)
        number[of_forward[np.argsort(first)]] = np.arange(len(first))
        sequence = number[kind]
        # Operators that run again are recorded for autograd, each under a number of its own.
        again = works["recompute"]
        sizes = bits(works["flop"]), bits(works["bytes"])
        alike = (works[name].astype(np.int64) for name in _ALIKE)
        known = (sequence >= 0).astype(np.int64)
        first, kind = group_rows(*alike, *sizes, known)
        numbers = np.where(again, len(of_forward) + works["number"], sequence)
        self.works = works | {"kind": kind, "sequence": sequence, "sequence_number": numbers}
        self.device: list[_Form] = []
        """Of each kind of works: its event on the device."""
        self.host: list[_Form] = []
        """Of each kind: the events of its launch."""
        has_sequence = (numbers[first] >= 0).tolist()
        for work, known in zip(
            _listed(_taken(works, first), timeline.labels), has_sequence, strict=True
        ):
            waits = work.track == columns.WAIT
            self.device.append(_form(self._device_event(work)))
            launch = [] if waits else self._launch(work, known=known)
            self.host.append(_form(",\n".join(launch)))

    def lines(self, about: Mapping[str, Any]) -> Iterator[str]:
        other = {**self.head.other, "time_grid_ps": GRID_PS, "zero_ps": self.zero_ps}
        whole = {"schemaVersion": 1, "displayTimeUnit": "ms", "otherData": other, **about}
        yield json.dumps(whole, ensure_ascii=False)[:-1] + ',\n"traceEvents": [\n'
        events = self._events()
        yield next(events)
        yield from map(",\n".__add__, events)
        yield "\n]}\n"

    def _events(self) -> Iterator[str]:
        """Yield names, then each rank's ranges, kernels, launches and memory."""
        yield from self._about()
        for rank in self.drawn:
            yield from self._device_ranges(rank)
            works = _of_rank(self.works, rank)
            yield from _filled(self.device, works, self._on_device(works))
            yield from self._host(rank, works)
            yield from self._memory(rank)
            if self.timeline.clock_hz:
                # Told as a run's clock is where it was sampled, so that two steps compare by it.
                device = self.drawn[rank].device
                clock_mhz = self.timeline.clock_hz / MEGA
                yield counter("clock_mhz", device, us(self.zero_ps), f'"{device}": {clock_mhz!r}')

    def _on_device(self, works: Works) -> Iterator[tuple[Any, ...]]:
        """Yield the values of `FIELDS` that the events of works on the device have."""
        exposed = [*map(str, works["exposed_ps"].tolist())]
        for name in ("slowdown_ps", "slowed_ps"):
            for row in np.flatnonzero(works[name]).tolist():
                exposed[row] += f', "{name}": {works[name][row]}'
        of = works["microbatch"].tolist()
        microbatches = [f', "microbatch": {each}' if each >= 0 else "" for each in of]
        starts, lengths = _us(self.zero_ps + works["start_ps"]), _us(works["duration_ps"])
        return zip(works["number"].tolist(), starts, lengths, exposed, microbatches, strict=True)

    def _on_host(self, works: Works) -> Iterator[tuple[Any, ...]]:
        """Yield the values of `FIELDS` that the events of launches have."""
        prepare, launch, launched = (works[name] for name in _HOST_PS)
        whole = self._cut(prepare, launched)
        call = whole if np.array_equal(prepare, launch) else self._cut(launch, launched)
        numbers, sequences = works["number"].tolist(), works["sequence_number"].tolist()
        starts = _us(self.zero_ps + works["start_ps"])
        return zip(numbers, starts, sequences, *whole, *call, strict=True)

    def _about(self) -> Iterator[str]:
        for rank, device, _ in self.drawn.values():
            host = HOST + rank
            for process, name, label, place in (
                (device, f"{self.head.title}, rank {rank}", f"GPU {device}", device),
                (host, f"host of rank {rank}", "CPU", len(self.head.members) + rank),
            ):
                yield about("process_name", process, 0, "name", name)
                yield about("process_labels", process, 0, "labels", label)
                yield about("process_sort_index", process, 0, "sort_index", place)
            threads = [(host, thread, name) for thread, name in _THREADS.items()]
            threads.append((device, RANGES, "blocks and layers"))
            for (track, lane), stream in self.stream.items():
                name = columns.TRACKS[track] + (f" {lane}" if lane else "")
                threads.append((device, stream, f"stream {stream} {name}"))
            for process, thread, name in threads:
                yield about("thread_name", process, thread, "name", name)
                yield about("thread_sort_index", process, thread, "sort_index", thread)

    def _cut(self, start_ps: Ints, end_ps: Ints) -> tuple[list[str], list[str]]:
        """Return starts and lengths of what stands around something, or in it."""
        begin, end = (whole_ns(self.zero_ps + each) for each in (start_ps, end_ps))
        return _us(begin), _us(end - begin)

    def _place(self, work: Work) -> tuple[int, int]:
        return (self.drawn[work.rank].device, self.stream[work.track, work.lane])

    def _device_ranges(self, rank: int) -> Iterator[str]:
        """Yield blocks and layers, on a track of their own above those of the kernels."""
        ranges, labels = self.timeline.ranges, self.timeline.labels
        mine = np.flatnonzero(ranges.rank == rank)
        mine = mine[np.lexsort([ranges.level[mine], ranges.start_ps[mine]])]
        where = (self.drawn[rank].device, RANGES)
        start_ps = ranges.start_ps[mine]
        spans = zip(*self._cut(start_ps, start_ps + ranges.duration_ps[mine]), strict=True)
        told = ("label", "layer", "stage", "chunk", "microbatch")
        rows = zip(*(getattr(ranges, name)[mine].tolist() for name in told), strict=True)
        for span, (label, layer, *facts) in zip(spans, rows, strict=True):
            name = f"layers.{layer} {labels[label]}" if layer >= 0 else labels[label]
            args = _known(dict(zip(told[1:], (layer, *facts), strict=True)))
            yield complete("gpu_user_annotation", name, where, span, args)

    def _device_event(self, work: Work) -> str:
        where = self._place(work)
        if work.track == columns.WAIT:
            return complete("gpu_user_annotation", work.label, where, _ON_DEVICE, _facts(work))
        args = (
            f'"External id": {_NUMBER}, "device": {where[0]}, "stream": {where[1]}, '
            f'"correlation": {_NUMBER}, {_facts(work)}'
        )
        if work.communicates:
            known = self.names.collective(work.label)
            group = group_of(work)
            ranks = self.head.members[work.rank].groups.get(group, ())
            sent, received = known.messages(work.bytes, len(ranks))
            args += (
                f', "Collective name": "{known.collective}", "In msg nelems": {sent}, '
                f'"Out msg nelems": {received}, "Group size": {len(ranks)}, "dtype": "Byte", '
                f'"Process Group Name": "{group}", '
                f'"Process Group Description": "{self.names.groups[group]}", '
                f'"Process Group Ranks": "{_told_ranks(ranks)}"'
            )
            name = f"{known.kernel} {work.label}"
        elif work.track == columns.COPY:
            return complete("gpu_memcpy", f"Memcpy {work.label}", where, _ON_DEVICE, args)
        else:
            # Both gradients of a layer have its label; nothing else in the file tells them apart.
            gradient = ", weight" if work.phase == columns.WEIGHT else ""
            name = f"{work.label} ({self.names.compute.get(work.term, work.term)}{gradient})"
        return complete("kernel", name, where, _ON_DEVICE, args)

    def _host(self, rank: int, works: Works) -> Iterator[str]:
        """Yield the launches of a rank with their operators, ranges and arrows."""
        host = HOST + self.drawn[rank].rank
        yield complete(
            "user_annotation", "ProfilerStep#0", (host, MAIN), self._step(rank, works), ""
        )
        for thread in _THREADS:
            mine = (works["thread"] == thread) & (works["track"] != columns.WAIT)
            launched = _taken(works, np.flatnonzero(mine))
            launched = launched if thread == UNTOLD else _in_turn(launched)
            yield from self._host_ranges(launched, (host, thread))
            yield from _filled(self.host, launched, self._on_host(launched))
        yield from self._backward_arrows(works)

    def _step(self, rank: int, works: Works) -> tuple[str, str]:
        """Return from when to when a rank works on the step, launches included."""
        begin_ps = self.timeline.begin_ps[rank]
        begins = works["prepare_ps"][works["track"] != columns.WAIT]
        ends = works["start_ps"] + works["duration_ps"]
        first, last = begins.min(initial=begin_ps), ends.max(initial=begin_ps)
        (begin,), (length,) = self._cut(np.array([first]), np.array([last]))
        return begin, length

    def _host_ranges(self, works: Works, where: tuple[int, int]) -> Iterator[str]:
        """Yield what stands around launches that follow each other: passes, in them layers."""

        def line(category: str, name: str, rows: Iterable[Any], facts: str = "") -> str:
            spans = [row[-2:] for row in rows]
            begin_ps, end_ps = spans[0][0], spans[-1][1]
            return complete(category, name, where, (us(begin_ps), us(end_ps - begin_ps)), facts)

        phase = np.where(works["recompute"], columns.BACKWARD, works["phase"])
        passes = [_PASS[each] for each in phase.tolist()]
        told = [works[name] for name in ("microbatch", "stage", "layer", "recompute")]
        told += [whole_ns(self.zero_ps + works[name]) for name in ("prepare_ps", "launch_end_ps")]
        rows = zip(passes, *(column.tolist() for column in told), strict=True)
        for (name, microbatch, stage), group in groupby(rows, itemgetter(0, 1, 2)):
            inside = list(group)
            if name:
                facts = _known({"microbatch": microbatch, "stage": stage})
                yield line("user_annotation", name, inside, facts)
            for layer, rest in groupby(inside, itemgetter(3)):
                of_layer = list(rest)
                if layer >= 0:
                    yield line("user_annotation", f"layers.{layer}", of_layer)
                for is_again, repeated in groupby(of_layer, itemgetter(4)):
                    if is_again:
                        yield line("cpu_op", RECOMPUTE, repeated)

    def _launch(self, work: Work, *, known: bool) -> Iterator[str]:
        """Yield the events of a launch; ``known`` says whether autograd has a number for it."""
        where = (HOST + self.drawn[work.rank].rank, work.thread)
        of_backward = work.surrounding == _PASS[columns.BACKWARD]
        of_engine = of_backward and not work.recompute
        args = f'"External id": {_NUMBER}'
        if known:
            thread = MAIN if of_engine else 0
            args += f', "Sequence number": {_SEQUENCE}, "Fwd thread id": {thread}'
        operator = f"{ENGINE}{work.label}" if of_engine else work.label
        yield complete("cpu_op", operator, where, _WHOLE, args)
        inner = self.operators[work.row] if work.row >= 0 else None
        if inner is not None:
            yield complete("cpu_op", inner[0], where, _WHOLE, f'"Input Dims": {inner[1]}')
        args = f'"External id": {_NUMBER}, "correlation": {_NUMBER}'
        yield complete("cuda_runtime", self.names.launches[self.head.vendor], where, _CALL, args)
        yield arrow("ac2g", _NUMBER, where, _CALL[0], ends=False)
        yield arrow("ac2g", _NUMBER, self._place(work), _ON_DEVICE[0], ends=True)

    def _backward_arrows(self, works: Works) -> Iterator[str]:
        """Join each operator of a forward to the first of its backward."""
        joined = (works["sequence"] >= 0) & ~works["recompute"]
        joined &= (works["thread"] != UNTOLD) & (works["track"] != columns.WAIT)
        some = _taken(works, np.flatnonzero(joined))
        begins = self._cut(some["prepare_ps"], some["launch_end_ps"])[0]
        threads, hosts = some["thread"].tolist(), some["rank"].tolist()
        begun: dict[int, int] = {}
        for row, (sequence, thread) in enumerate(
            zip(some["sequence"].tolist(), threads, strict=True)
        ):
            if thread == MAIN:
                begun.setdefault(sequence, row)
            elif (first := begun.pop(sequence, None)) is not None:
                for end, ends in ((first, False), (row, True)):
                    place = (HOST + self.drawn[hosts[end]].rank, threads[end])
                    yield arrow("fwdbwd", sequence, place, begins[end], ends=ends)

    def _memory(self, rank: int) -> Iterator[str]:
        held = self.timeline.memory[rank]
        parts = {
            "held throughout": np.full(len(held.time_ps), held.static_bytes),
            "activations": held.activations_bytes,
            "working sets": held.transient_bytes,
        }
        for name, values in {"memory": held.bytes, **parts}.items():
            # Viewers keep a value until the next one, so only changes are told.
            told = np.append(True, np.diff(values) != 0.0)
            gib = to_gib(np.asarray(values, np.float64))[told].tolist()
            label = f"{name} of rank {rank}" if name == "memory" else f"memory: {name}"
            text = counter(label, rank, "%s", '"GiB": %r')
            yield from map(
                text.__mod__, zip(_us(self.zero_ps + held.time_ps[told]), gib, strict=True)
            )


def _in_turn(works: Works) -> Works:
    """Return works by when they are launched, each after the one before.

    They are rounded to picoseconds one by one, so that some begin one too early.
    """
    order = np.lexsort([works[name] for name in ("number", "start_ps", "prepare_ps")])
    works = _taken(works, order)
    free_ps = np.maximum.accumulate(np.append(0, works["launch_end_ps"]))[:-1]
    early = (works["track"] != columns.WAIT) & (works["prepare_ps"] < free_ps)
    later = {name: np.maximum(works[name], free_ps) for name in _HOST_PS}
    return works | {name: np.where(early, each, works[name]) for name, each in later.items()}


def _told(works: Works) -> Works:
    """Return works with launches that end when they start, or when the next one begins."""
    works = _taken(works, np.lexsort([works["number"], works["start_ps"]]))
    # Launches of calls that follow until the last.
    calls_ps = _CALL_PS * np.arange(len(works["number"]))[::-1]
    latest = works["start_ps"] + calls_ps
    end_ps = np.minimum.accumulate(latest[::-1])[::-1] - calls_ps
    begin_ps = end_ps - _CALL_PS
    return works | dict(zip(_HOST_PS, (begin_ps, begin_ps, end_ps), strict=True))


def group_of(work: Work) -> str:
    """Return the group in which something communicates; experts' gathers by their label alone."""
    if work.track == columns.TP and work.label.startswith(EXPERTS_TP):
        return "ETP"
    return columns.TRACKS[work.track]


def _told_ranks(ranks: Sequence[int]) -> str:
    told = ", ".join(map(str, ranks[:MOST_TOLD_RANKS]))
    return f"[{told}, ...]" if len(ranks) > MOST_TOLD_RANKS else f"[{told}]"


def _known(facts: dict[str, int]) -> str:
    return ", ".join(f'"{name}": {value}' for name, value in facts.items() if value >= 0)


def _facts(work: Work) -> str:
    """Return what a reader needs to sum the breakdown, and what a viewer shows."""
    facts = f'"term": "{work.term}", "exposed_ps": {_EXPOSED}'
    for name in ("layer", "stage", "chunk"):
        if (value := getattr(work, name)) >= 0:
            facts += f', "{name}": {value}'
    facts += _MICROBATCH
    if work.flop:
        facts += f', "flop": {round(work.flop)}'
    if work.bytes:
        facts += f', "bytes": {round(work.bytes)}'
    return facts + (', "recompute": true' if work.recompute else "")


_Form = tuple[str, Callable[[tuple[Any, ...]], tuple[Any, ...]]]
"""A text with places for values, and what picks them of those of `FIELDS`."""

FIELDS = {
    "number": 0, "start": 1,
    "length": 2, "exposed": 3, "microbatch": 4,
    "sequence": 2, "begin": 3, "whole": 4, "call": 5, "called": 6,
}  # fmt: skip
"""In what works of a kind differ -> its position on the device, from ``sequence`` on on the host.
"""

_NUMBER, _START, _LENGTH, _EXPOSED, _MICROBATCH, _SEQUENCE, *_TIMES = (
    f"\0{name}\0" for name in FIELDS
)
_ON_DEVICE, _WHOLE, _CALL = (_START, _LENGTH), (_TIMES[0], _TIMES[1]), (_TIMES[2], _TIMES[3])


def _form(text: str) -> _Form:
    pieces = text.split("\0")
    places = [FIELDS[name] for name in pieces[1::2]]
    return "%s".join(piece.replace("%", "%%") for piece in pieces[::2]), itemgetter(*places or [0])


def _filled(forms: Sequence[_Form], works: Works, values: Iterator[tuple[Any, ...]]) -> list[str]:
    """Return the text of each work: that of its kind with its values."""
    of_work = map(forms.__getitem__, works["kind"].tolist())
    return [text % pick(each) for (text, pick), each in zip(of_work, values, strict=True)]


def us(time_ps: int) -> str:
    """Return a time of 0 or more in microseconds."""
    whole, rest = divmod(time_ps, _PS_PER_US)
    return f"{whole}.{rest:06d}2"


def _us(time_ps: Ints) -> list[str]:
    whole, rest = np.divmod(time_ps, _PS_PER_US)
    return [*map("%d.%06d2".__mod__, zip(whole.tolist(), rest.tolist(), strict=True))]


def whole_ns(time_ps: Ints) -> Ints:
    """Return times cut to nanoseconds, in picoseconds.

    Where one event stands around others, both grids must agree that it does.
    """
    return time_ps // _NS_PS * _NS_PS


@cache
def quoted(text: str) -> str:
    """Return a text as JSON; names repeat, so each is made once."""
    return json.dumps(text, ensure_ascii=False)


def complete(
    category: str, name: str, where: tuple[int, int], span_us: tuple[str, str], args: str
) -> str:
    """Return an event with a start and a duration, on a thread of a process."""
    return (
        f'{{"ph": "X", "cat": "{category}", "name": {quoted(name)}, "pid": {where[0]}, '
        f'"tid": {where[1]}, "ts": {span_us[0]}, "dur": {span_us[1]}, '
        f'"args": {{{args}}}}}'
    )


def arrow(
    category: str, number: int | str, where: tuple[int, int], time_us: str, *, ends: bool
) -> str:
    """Return one end of an arrow; it binds to the event that it lies in."""
    phase = '"f", "bp": "e"' if ends else '"s"'
    return (
        f'{{"ph": {phase}, "id": {number}, "pid": {where[0]}, "tid": {where[1]}, '
        f'"ts": {time_us}, "cat": "{category}", "name": "{category}"}}'
    )


def counter(name: str, process: int, time_us: str, args: str) -> str:
    """Return what a counter has from a point in time on."""
    return (
        f'{{"ph": "C", "name": {quoted(name)}, "pid": {process}, "ts": {time_us}, '
        f'"args": {{{args}}}}}'
    )


def about(what: str, process: int, thread: int, key: str, value: str | int) -> str:
    """Return a name or a place of a process or thread; ``what`` is such as ``thread_name``."""
    return (
        f'{{"ph": "M", "name": "{what}", "pid": {process}, "tid": {thread}, '
        f'"args": {{"{key}": {json.dumps(value, ensure_ascii=False)}}}}}'
    )
