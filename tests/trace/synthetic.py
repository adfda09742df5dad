"""Small traces with known answers: tables of activities, and the JSON that Kineto would write.

Times are whole nanoseconds from the zero of the trace, so that answers can be worked out by hand.
A line of a test is one `Kernel`; whatever a test does not name has a plain default.
"""

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from projector.trace.activity import (
    COLLECTIVE,
    COMMUNICATION,
    COMPUTE,
    FORWARD,
    MEMCPY,
    MOVE,
    OTHER,
    VECTOR,
    Activities,
)
from projector.trace.events import COPY, FILL, KERNEL

NS = 1000
"""Picoseconds of a nanosecond."""


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One activity of a device, with what the host did for it."""

    name: str = "k"
    start: int
    end: int
    rank: int = 0
    device: int | None = None
    """Of none given the rank's own number."""
    stream: int = 7
    kind: int | None = None
    """Of none given by the name: ``Memcpy``, ``Memset`` or a kernel."""
    klass: int | None = None
    """Of none given by the name: ``nccl`` communicates, ``Memcpy`` copies, the rest computes."""
    type: int | None = None
    launch: int | None = None
    """Start of the call that launched it; None where the trace has none."""
    launch_end: int | None = None
    operation: str | None = None
    instance: int = -1
    layer: int = -1
    phase: int = OTHER
    iteration: int = -1
    recompute: bool = False
    group: str | None = None
    bytes: int = -1
    detail: Mapping[str, Any] | None = None

    def kind_(self) -> int:
        """Return the kind of event."""
        if self.kind is not None:
            return self.kind
        return {"Memcpy": COPY, "Memset": FILL}.get(self.name[:6], KERNEL)

    def klass_(self) -> int:
        """Return the class of activity."""
        if self.klass is not None:
            return self.klass
        if "nccl" in self.name:
            return COMMUNICATION
        return MEMCPY if self.kind_() == COPY else COMPUTE

    def type_(self) -> int:
        """Return the type of operation."""
        if self.type is not None:
            return self.type
        return {COMMUNICATION: COLLECTIVE, MEMCPY: MOVE}.get(self.klass_(), VECTOR)

    def device_(self) -> int:
        """Return the number of the device."""
        return self.rank if self.device is None else self.device


def compute(start: int, end: int, **more: Any) -> Kernel:
    """Return a kernel that computes, by default of the forward."""
    return Kernel(**{"name": "gemm", "start": start, "end": end, "phase": FORWARD} | more)


def collective(start: int, end: int, **more: Any) -> Kernel:
    """Return a kernel that communicates, on a stream of its own."""
    return Kernel(**{"name": "ncclKernel", "start": start, "end": end, "stream": 20} | more)


def copy(start: int, end: int, **more: Any) -> Kernel:
    """Return a copy of memory."""
    return Kernel(**{"name": "Memcpy HtoD", "start": start, "end": end, "stream": 9} | more)


def activities(*kernels: Kernel, on_host: bool = False) -> Activities:
    """Return the table that `align` would make of some kernels, in its order."""
    rows = sorted(kernels, key=lambda k: (k.rank, k.device_(), k.start, k.end))
    names = _distinct(k.name for k in rows)
    operations = _distinct(k.operation for k in rows)
    groups = _distinct(k.group for k in rows)
    details: list[Mapping[str, Any]] = []
    for kernel in rows:
        if kernel.detail is not None and kernel.detail not in details:
            details.append(kernel.detail)

    def column(values: Iterable[int]) -> Any:
        return np.fromiter(values, np.int64, len(rows))

    return Activities(
        rank=column(k.rank for k in rows),
        device=column(k.device_() for k in rows),
        stream=column(k.stream for k in rows),
        name=column(names.index(k.name) for k in rows),
        kind=column(k.kind_() for k in rows),
        klass=column(k.klass_() for k in rows),
        type=column(k.type_() for k in rows),
        start_ps=column(k.start * NS for k in rows),
        end_ps=column(k.end * NS for k in rows),
        launch_ps=column(-1 if k.launch is None else k.launch * NS for k in rows),
        launch_end_ps=column(
            -1 if k.launch is None else (k.launch_end or k.launch) * NS for k in rows
        ),
        operation=column(_place(operations, k.operation) for k in rows),
        instance=column(k.instance for k in rows),
        layer=column(k.layer for k in rows),
        phase=column(k.phase for k in rows),
        iteration=column(k.iteration for k in rows),
        recompute=np.array([k.recompute for k in rows], bool),
        forward=column(-1 for _ in rows),
        group=column(_place(groups, k.group) for k in rows),
        bytes=column(k.bytes for k in rows),
        detail=column(-1 if k.detail is None else details.index(k.detail) for k in rows),
        names=tuple(names),
        operations=tuple(operations),
        groups=tuple(groups),
        details=tuple(details),
        on_host=on_host,
    )


def _distinct(values: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(v for v in values if v is not None))


def _place(values: Sequence[str], value: str | None) -> int:
    return -1 if value is None else values.index(value)


@dataclass(frozen=True, kw_only=True)
class Host:
    """Something on a thread of the host: an operator, an annotation, a call of a module."""

    name: str
    start: int
    end: int
    category: str = "cpu_op"
    thread: int = 1000
    args: Mapping[str, Any] = field(default_factory=dict)


def step(number: int, start: int, end: int) -> Host:
    """Return the annotation that a profiler puts around an iteration."""
    return Host(name=f"ProfilerStep#{number}", start=start, end=end, category="user_annotation")


def kineto(
    *lines: Kernel | Host, rank: int = 0, world_size: int = 1, zero_us: int = 0, **head: Any
) -> dict[str, Any]:
    """Return what the profiler would write of one rank; times are µs with three decimals.

    A kernel with a launch brings the call that launched it, on thread 1000, and a correlation that
    joins the two. ``zero_us`` is added to every stamp, as real traces count from long ago. Stamps
    are `Decimal`; `write` makes JSON of them.
    """
    events: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if isinstance(line, Host):
            events.append(_host_event(line, zero_us))
        else:
            events += _kernel_events(line, number, zero_us)
    shared = {"rank": rank, "world_size": world_size, "backend": "nccl"}
    return {"schemaVersion": 1, "distributedInfo": shared, **head, "traceEvents": events}


def _us(ns: int, zero_us: int = 0) -> Decimal:
    return (Decimal(ns) / 1000 + zero_us).quantize(Decimal("0.001"))


def _host_event(line: Host, zero_us: int) -> dict[str, Any]:
    return {
        "ph": "X", "cat": line.category, "name": line.name, "pid": 1, "tid": line.thread,
        "ts": _us(line.start, zero_us), "dur": _us(line.end - line.start), "args": dict(line.args),
    }  # fmt: skip


_ARGUMENTS = {
    "collective": "Collective name",
    "group": "Process Group Name",
    "group_ranks": "Process Group Ranks",
    "in_elements": "In msg nelems",
    "out_elements": "Out msg nelems",
}
"""What the profiler calls details of collectives."""


def _kernel_events(line: Kernel, number: int, zero_us: int) -> list[dict[str, Any]]:
    category = {KERNEL: "kernel", COPY: "gpu_memcpy", FILL: "gpu_memset"}[line.kind_()]
    args = {"device": line.device_(), "stream": line.stream, "correlation": number}
    if line.bytes >= 0:
        args["bytes"] = line.bytes
    args |= {_ARGUMENTS.get(name, name): value for name, value in (line.detail or {}).items()}
    events = [{
        "ph": "X", "cat": category, "name": line.name, "pid": line.device_(), "tid": line.stream,
        "ts": _us(line.start, zero_us), "dur": _us(line.end - line.start), "args": args,
    }]  # fmt: skip
    if line.launch is not None:
        end = line.launch if line.launch_end is None else line.launch_end
        events.append({
            "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1000,
            "ts": _us(line.launch, zero_us), "dur": _us(end - line.launch),
            "args": {"correlation": number},
        })  # fmt: skip
    return events


def write(path: Path, trace: Mapping[str, Any]) -> Path:
    """Write the JSON of a rank, compressed where the name ends in ``.gz``."""
    data = _dumps(trace).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def _dumps(value: Any) -> str:
    """Return JSON whose stamps keep their three decimals, which a float would not."""
    stamps: list[Decimal] = []

    def mark(stamp: Decimal) -> str:
        stamps.append(stamp)
        return "@stamp@"

    pieces = json.dumps(value, default=mark).split('"@stamp@"')
    ends = [str(stamp) for stamp in stamps] + [""]
    return "".join(piece + end for piece, end in zip(pieces, ends, strict=True))
