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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any, Literal, NamedTuple

import numpy as np

from projector.config import resources
from projector.config._base import Config
from projector.operations.table import ATTENTION, FORWARD, GEMM, OperationTable
from projector.projection.terms import BREAKDOWN
from projector.projection.timeline import columns
from projector.projection.timeline.columns import Timeline
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


class Drawn(NamedTuple):
    """Numbers under which a file tells of a pipeline rank."""

    rank: int
    device: int


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

    @property
    def key(self) -> tuple[int, int, int, str]:
        """What an operator of a forward and those of its backward share."""
        return (self.microbatch, self.stage, self.layer, self.label)


_PLAIN = tuple(name for name in Work._fields if name not in ("number", "label", "term", "thread"))


def step_lines(timeline: Timeline, head: Head) -> Iterator[str]:
    """Yield one file of all pipeline ranks in pieces, for people to look at."""
    ranks = range(len(timeline.begin_ps))
    about = {
        "deviceProperties": [{"id": rank, "name": head.device} for rank in ranks],
        "distributedInfo": {"backend": "nccl", "rank": 0},
    }
    works = works_of(timeline)
    zero_ps = _zero_ps(timeline, works)
    drawn = {rank: Drawn(rank, rank) for rank in ranks}
    yield from _Writer(timeline, works, head, zero_ps, drawn).lines(about)


def rank_lines(timeline: Timeline, head: Head) -> Iterator[tuple[int, Iterator[str]]]:
    """Yield each device that is told and its file, in pieces, as tools read them."""
    works = works_of(timeline)
    zero_ps = _zero_ps(timeline, works)
    of_rank: list[list[Work]] = [[] for _ in head.members]
    for work in works:
        of_rank[work.rank].append(work)
    descriptions = load_timeline_names().groups
    for rank, (member, mine) in enumerate(zip(head.members, of_rank, strict=True)):
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
        writer = _Writer(timeline, mine, own, zero_ps, {rank: Drawn(member.rank, member.device)})
        yield member.rank, writer.lines(about)


def _zero_ps(timeline: Timeline, works: Sequence[Work]) -> int:
    """Return what is added to every time so that none is negative, in whole microseconds."""
    begins = (work.prepare_ps for work in works if work.track != columns.WAIT)
    first = int(min(0, *timeline.begin_ps.tolist(), *begins))
    return -(first // 10**6) * 10**6


def works_of(timeline: Timeline) -> list[Work]:
    """Return the rows of a timeline, but for those that take no time and launch nothing."""
    labels, numbers = timeline.labels, range(1, len(timeline) + 1)
    plain = {name: getattr(timeline, name).tolist() for name in _PLAIN}
    backward = np.isin(timeline.phase, (columns.BACKWARD, columns.WEIGHT)) | timeline.recompute
    untold = (timeline.launch_ps == columns.NONE) & (timeline.track != columns.WAIT)
    named = {
        "number": numbers,
        "label": [labels[label] for label in timeline.label.tolist()],
        "term": [BREAKDOWN[term] for term in timeline.term.tolist()],
        "thread": np.where(untold, UNTOLD, np.where(backward, AUTOGRAD, MAIN)).tolist(),
    }
    found = {**plain, **named}
    works = map(Work._make, zip(*(found[name] for name in Work._fields), strict=True))
    empty = (timeline.duration_ps == 0) & (timeline.exposed_ps == 0) & (timeline.launches == 0.0)
    of_thread: dict[tuple[int, int], list[Work]] = {}
    for work, nothing in zip(works, empty.tolist(), strict=True):
        if not nothing:
            of_thread.setdefault((work.rank, work.thread), []).append(work)
    told = (
        _told(some) if thread == UNTOLD else _in_turn(some)
        for (_, thread), some in sorted(of_thread.items())
    )
    return [work for some in told for work in some]


class _Writer:
    def __init__(
        self,
        timeline: Timeline,
        works: list[Work],
        head: Head,
        zero_ps: int,
        drawn: Mapping[int, Drawn],
    ) -> None:
        self.timeline, self.head, self.zero_ps = timeline, head, zero_ps
        self.drawn = drawn
        """How each pipeline rank of the file is drawn."""
        self.names = load_timeline_names()
        self.operators = operators_of(timeline.table)
        self.works = works
        tracks = sorted({(columns.COMPUTE, 0)} | {(work.track, work.lane) for work in self.works})
        self.stream = {place: FIRST_STREAM + i for i, place in enumerate(tracks)}
        # A number for each operator of a forward, by what its backward shares with it.
        forward: dict[tuple[int, int, int, str], int] = {}
        for work in self.works:
            launched = work.thread == MAIN and work.track != columns.WAIT
            if work.phase == columns.FORWARD and not work.recompute and launched:
                forward.setdefault(work.key, len(forward))
        self.sequence = forward

    def lines(self, about: Mapping[str, Any]) -> Iterator[str]:
        other = {**self.head.other, "time_grid_ps": GRID_PS, "zero_ps": self.zero_ps}
        whole = {"schemaVersion": 1, "displayTimeUnit": "ms", "otherData": other, **about}
        yield json.dumps(whole, ensure_ascii=False)[:-1] + ',\n"traceEvents": [\n'
        separator = ""
        for line in self._events():
            yield separator + line
            separator = ",\n"
        yield "\n]}\n"

    def _events(self) -> Iterator[str]:
        """Yield names, then each rank's ranges, kernels, launches and memory."""
        yield from self._about()
        by_rank: dict[int, list[Work]] = {rank: [] for rank in self.drawn}
        for work in self.works:
            by_rank[work.rank].append(work)
        for rank, works in by_rank.items():
            yield from self._device_ranges(rank)
            for work in works:
                yield self._kernel(work) if work.track != columns.WAIT else self._wait(work)
            yield from self._host(rank, works)
            yield from self._memory(rank)
            if self.timeline.clock_hz:
                # Told as a run's clock is where it was sampled, so that two steps compare by it.
                device = self.drawn[rank].device
                clock = {str(device): self.timeline.clock_hz / MEGA}
                yield counter("clock_mhz", device, self.zero_ps, clock)

    def _about(self) -> Iterator[str]:
        for rank, device in self.drawn.values():
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

    def _cut(self, start_ps: int, end_ps: int) -> tuple[int, int]:
        """Return the start and length of what stands around something, or in it."""
        begin = whole_ns(self.zero_ps + start_ps)
        return (begin, whole_ns(self.zero_ps + end_ps) - begin)

    def _place(self, work: Work) -> tuple[int, int]:
        return (self.drawn[work.rank].device, self.stream[work.track, work.lane])

    def _device_ranges(self, rank: int) -> Iterator[str]:
        """Yield blocks and layers, on a track of their own above those of the kernels."""
        ranges, labels = self.timeline.ranges, self.timeline.labels
        mine = np.flatnonzero(ranges.rank == rank)
        mine = mine[np.lexsort([ranges.level[mine], ranges.start_ps[mine]])]
        where = (self.drawn[rank].device, RANGES)
        for row in mine.tolist():
            layer, label = int(ranges.layer[row]), labels[int(ranges.label[row])]
            facts = {
                name: int(getattr(ranges, name)[row])
                for name in ("layer", "stage", "chunk", "microbatch")
            }
            start_ps = int(ranges.start_ps[row])
            span = self._cut(start_ps, start_ps + int(ranges.duration_ps[row]))
            name = f"layers.{layer} {label}" if layer >= 0 else label
            yield complete("gpu_user_annotation", name, where, span, _known(facts))

    def _wait(self, work: Work) -> str:
        where = self._place(work)
        return complete("gpu_user_annotation", work.label, where, self._of(work), _facts(work))

    def _kernel(self, work: Work) -> str:
        where = self._place(work)
        args = (
            f'"External id": {work.number}, "device": {where[0]}, "stream": {where[1]}, '
            f'"correlation": {work.number}, {_facts(work)}'
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
            return complete("gpu_memcpy", f"Memcpy {work.label}", where, self._of(work), args)
        else:
            # Both gradients of a layer have its label; nothing else in the file tells them apart.
            gradient = ", weight" if work.phase == columns.WEIGHT else ""
            name = f"{work.label} ({self.names.compute.get(work.term, work.term)}{gradient})"
        return complete("kernel", name, where, self._of(work), args)

    def _of(self, work: Work) -> tuple[int, int]:
        return (self.zero_ps + work.start_ps, work.duration_ps)

    def _host(self, rank: int, works: Sequence[Work]) -> Iterator[str]:
        """Yield the launches of a rank with their operators, ranges and arrows."""
        host = HOST + self.drawn[rank].rank
        yield complete(
            "user_annotation", "ProfilerStep#0", (host, MAIN), self._step(rank, works), ""
        )
        for thread in _THREADS:
            mine = [work for work in works if work.thread == thread and work.track != columns.WAIT]
            mine = mine if thread == UNTOLD else _in_turn(mine)
            yield from self._host_ranges(mine, (host, thread))
            for work in mine:
                yield from self._launch(work, (host, thread))
        yield from self._backward_arrows(works)

    def _step(self, rank: int, works: Sequence[Work]) -> tuple[int, int]:
        """Return from when to when a rank works on the step, launches included."""
        begin_ps = int(self.timeline.begin_ps[rank])
        begins = (work.prepare_ps for work in works if work.track != columns.WAIT)
        ends = (work.start_ps + work.duration_ps for work in works)
        return self._cut(min(begin_ps, *begins, begin_ps), max(begin_ps, *ends, begin_ps))

    def _host_ranges(self, works: Sequence[Work], where: tuple[int, int]) -> Iterator[str]:
        """Yield what stands around launches that follow each other: passes, in them layers."""

        def line(category: str, name: str, rows: Iterable[Work], facts: str = "") -> str:
            spans = [(work.prepare_ps, work.launch_end_ps) for work in rows]
            return complete(category, name, where, self._cut(spans[0][0], spans[-1][1]), facts)

        for (name, microbatch, stage), group in groupby(
            works, lambda work: (work.surrounding, work.microbatch, work.stage)
        ):
            inside = list(group)
            if name:
                facts = _known({"microbatch": microbatch, "stage": stage})
                yield line("user_annotation", name, inside, facts)
            for layer, rest in groupby(inside, lambda work: work.layer):
                of_layer = list(rest)
                if layer >= 0:
                    yield line("user_annotation", f"layers.{layer}", of_layer)
                for again, repeated in groupby(of_layer, lambda work: work.recompute):
                    if again:
                        yield line("cpu_op", RECOMPUTE, repeated)

    def _launch(self, work: Work, where: tuple[int, int]) -> Iterator[str]:
        args, sequence = f'"External id": {work.number}', self.sequence.get(work.key)
        if work.recompute:
            # Recorded for autograd like any forward, under a number of its own.
            args += f', "Sequence number": {len(self.sequence) + work.number}, "Fwd thread id": 0'
        elif sequence is not None:
            forward_thread = MAIN if work.surrounding == _PASS[columns.BACKWARD] else 0
            args += f', "Sequence number": {sequence}, "Fwd thread id": {forward_thread}'
        whole = self._cut(work.prepare_ps, work.launch_end_ps)
        of_engine = work.surrounding == _PASS[columns.BACKWARD] and not work.recompute
        operator = f"{ENGINE}{work.label}" if of_engine else work.label
        yield complete("cpu_op", operator, where, whole, args)
        inner = self.operators[work.row] if work.row >= 0 else None
        if inner is not None:
            yield complete("cpu_op", inner[0], where, whole, f'"Input Dims": {inner[1]}')
        call = self._cut(work.launch_ps, work.launch_end_ps)
        args = f'"External id": {work.number}, "correlation": {work.number}'
        yield complete("cuda_runtime", self.names.launches[self.head.vendor], where, call, args)
        start_ps = self.zero_ps + work.start_ps
        yield arrow("ac2g", work.number, where, call[0], ends=False)
        yield arrow("ac2g", work.number, self._place(work), start_ps, ends=True)

    def _backward_arrows(self, works: Sequence[Work]) -> Iterator[str]:
        """Join each operator of a forward to the first of its backward."""
        begun: dict[int, Work] = {}
        for work in works:
            sequence = self.sequence.get(work.key)
            launched = work.thread != UNTOLD and work.track != columns.WAIT
            if sequence is None or work.recompute or not launched:
                continue
            if work.thread == MAIN:
                begun.setdefault(sequence, work)
            elif (first := begun.pop(sequence, None)) is not None:
                for end, ends in ((first, False), (work, True)):
                    place = (HOST + self.drawn[end.rank].rank, end.thread)
                    begin = self._cut(end.prepare_ps, end.launch_end_ps)[0]
                    yield arrow("fwdbwd", sequence, place, begin, ends=ends)

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
            for time_ps, now in zip(held.time_ps[told].tolist(), gib, strict=True):
                label = f"{name} of rank {rank}" if name == "memory" else f"memory: {name}"
                yield counter(label, rank, self.zero_ps + time_ps, {"GiB": now})


def _in_turn(works: Iterable[Work]) -> list[Work]:
    """Return works by when they are launched, each after the one before.

    They are rounded to picoseconds one by one, so that some begin one too early.
    """
    ordered = sorted(works, key=lambda work: (work.prepare_ps, work.start_ps, work.number))
    free_ps = 0
    for i, work in enumerate(ordered):
        if work.track != columns.WAIT and work.prepare_ps < free_ps:
            ordered[i] = work._replace(
                prepare_ps=free_ps,
                launch_ps=max(work.launch_ps, free_ps),
                launch_end_ps=max(work.launch_end_ps, free_ps),
            )
        free_ps = max(free_ps, ordered[i].launch_end_ps)
    return ordered


def _told(works: Iterable[Work]) -> list[Work]:
    """Return works with launches that end when they start, or when the next one begins."""
    told: list[Work] = []
    until_ps: int | None = None
    for work in sorted(works, key=lambda work: (-work.start_ps, -work.number)):
        end_ps = work.start_ps if until_ps is None else min(work.start_ps, until_ps)
        until_ps = end_ps - _CALL_PS
        told.append(work._replace(prepare_ps=until_ps, launch_ps=until_ps, launch_end_ps=end_ps))
    return told[::-1]


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
    facts = f'"term": "{work.term}", "exposed_ps": {work.exposed_ps}'
    for name in ("slowdown_ps", "slowed_ps"):
        if value := getattr(work, name):
            facts += f', "{name}": {value}'
    for name in ("layer", "stage", "chunk", "microbatch"):
        if (value := getattr(work, name)) >= 0:
            facts += f', "{name}": {value}'
    if work.flop:
        facts += f', "flop": {round(work.flop)}'
    if work.bytes:
        facts += f', "bytes": {round(work.bytes)}'
    return facts + (', "recompute": true' if work.recompute else "")


def us(time_ps: int) -> str:
    """Return a time of 0 or more in microseconds."""
    whole, rest = divmod(time_ps, _PS_PER_US)
    return f"{whole}.{rest:06d}2"


def whole_ns(time_ps: int) -> int:
    """Return a time cut to nanoseconds, in picoseconds.

    Where one event stands around others, both grids must agree that it does.
    """
    return time_ps // _NS_PS * _NS_PS


@cache
def quoted(text: str) -> str:
    """Return a text as JSON; names repeat, so each is made once."""
    return json.dumps(text, ensure_ascii=False)


def complete(
    category: str, name: str, where: tuple[int, int], span_ps: tuple[int, int], args: str
) -> str:
    """Return an event with a start and a duration, on a thread of a process."""
    return (
        f'{{"ph": "X", "cat": "{category}", "name": {quoted(name)}, "pid": {where[0]}, '
        f'"tid": {where[1]}, "ts": {us(span_ps[0])}, "dur": {us(span_ps[1])}, '
        f'"args": {{{args}}}}}'
    )


def arrow(category: str, number: int, where: tuple[int, int], time_ps: int, *, ends: bool) -> str:
    """Return one end of an arrow; it binds to the event that it lies in."""
    phase = '"f", "bp": "e"' if ends else '"s"'
    return (
        f'{{"ph": {phase}, "id": {number}, "pid": {where[0]}, "tid": {where[1]}, '
        f'"ts": {us(time_ps)}, "cat": "{category}", "name": "{category}"}}'
    )


def counter(name: str, process: int, time_ps: int, values: dict[str, float]) -> str:
    """Return what a counter has from a point in time on."""
    args = ", ".join(f'"{key}": {value!r}' for key, value in values.items())
    return (
        f'{{"ph": "C", "name": {quoted(name)}, "pid": {process}, "ts": {us(time_ps)}, '
        f'"args": {{{args}}}}}'
    )


def about(what: str, process: int, thread: int, key: str, value: str | int) -> str:
    """Return a name or a place of a process or thread; ``what`` is such as ``thread_name``."""
    return (
        f'{{"ph": "M", "name": "{what}", "pid": {process}, "tid": {thread}, '
        f'"args": {{"{key}": {json.dumps(value, ensure_ascii=False)}}}}}'
    )


class CollectiveNames(Config):
    """How tools of real traces know one collective."""

    kernel: str
    collective: str
    buffer: Literal["in", "out", "both"]
    """Which message is the buffer; the other one is smaller by the size of the group."""
    chakra: int
    """``CollectiveCommType`` of Chakra."""
    source: str

    def messages(self, num_bytes: float, ranks: int) -> tuple[int, int]:
        """Return the elements of one byte that go in and come out on each rank."""
        whole, part = round(num_bytes), round(num_bytes / max(1, ranks))
        return (part if self.buffer == "out" else whole, part if self.buffer == "in" else whole)


class TimelineNames(Config):
    """Names under which a step is written: ``hardware/timeline_names.yaml``."""

    groups: dict[str, str]

    collectives: dict[str, CollectiveNames]
    labels: dict[str, str]
    otherwise: str
    compute: dict[str, str]
    operators: dict[str, str]
    launches: dict[str, str]
    sources: dict[str, str]

    def collective(self, label: str) -> CollectiveNames:
        """Return the collective that a label of a projection ends with."""
        last = label.rpartition(".")[2]
        return self.collectives.get(self.labels.get(last, last), self.collectives[self.otherwise])


@cache
def load_timeline_names() -> TimelineNames:
    """Return the shipped table of names."""
    return resources.shipped_table(TimelineNames, "timeline_names.yaml")


def operators_of(table: OperationTable) -> list[tuple[str, str] | None]:
    """Return name and extents (as JSON) of the operator around each row of an operation table."""
    names = load_timeline_names().operators
    rows = zip(
        *(getattr(table, name).tolist() for name in ("kind", "phase", *_EXTENTS)), strict=True
    )
    found: list[tuple[str, str] | None] = []
    for kind, phase, m, n, k, batch, heads, key_heads, d_v in rows:
        if kind == GEMM:
            several = [batch] if batch > 1 else []
            dims = [[*several, m, k], [*several, k, n]]
            found.append((names["gemms" if several else "gemm"], json.dumps(dims)))
        elif kind == ATTENTION:
            query, key = [batch, m, heads, k], [batch, n, key_heads, k]
            back = phase != FORWARD
            # The gradient of the output comes first in the backward.
            gradient = [[batch, m, heads, d_v]] if back else []
            name = names["attention_backward" if back else "attention"]
            value = [batch, n, key_heads, d_v]
            found.append((name, json.dumps([*gradient, query, key, value])))
        else:
            found.append(None)
    return found


_EXTENTS = ("m", "n", "k", "batch", "heads", "key_heads", "d_v")
