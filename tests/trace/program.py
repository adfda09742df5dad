"""A program that a profiler might have seen, written as the nested calls that it makes.

Each call takes a nanosecond of its own on its thread, and kernels run one after the other on their
streams, so that every time follows from the order of the lines.
"""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from projector.trace.events import (
    ANNOTATION,
    COPY,
    FILL,
    KERNEL,
    LAUNCH,
    MODULE,
    NONE,
    OPERATOR,
    Events,
    Link,
    RankTrace,
    Trace,
)

NS = 1000
MAIN, AUTOGRAD = 1, 2
_KINDS = {"Memcpy": COPY, "Memset": FILL}


class Program:
    """Collects events of one rank."""

    def __init__(self, rank=0, zero_ns=0, world_size=0):
        self.rank, self.zero_ns, self.world_size = rank, zero_ns, world_size
        self.rows, self.names, self.details, self.links = [], {}, [], []
        self.now, self.thread, self.sequence = 0, MAIN, {}
        self.free, self.correlation = {}, 0

    def add(self, kind, name, start, duration, **more):
        detail = more.pop("detail", None)
        row = {
            "kind": kind, "name": self.names.setdefault(name, len(self.names)),
            "start_ps": start * NS, "duration_ps": duration * NS, "process": 100,
            "thread": self.thread, "correlation": NONE, "external": NONE, "sequence": NONE,
            "forward_thread": NONE, "detail": NONE,
        } | more  # fmt: skip
        if detail is not None:
            self.details.append(detail)
            row["detail"] = len(self.details) - 1
        self.rows.append(row)
        return row

    @contextmanager
    def call(self, kind, name, **more):
        row = self.add(kind, name, self.now, 0, **more)
        self.now += 1
        yield row
        self.now += 1
        row["duration_ps"] = self.now * NS - row["start_ps"]
        self.now += 1

    def range(self, name):
        return self.call(ANNOTATION, name)

    def module(self, name):
        return self.call(MODULE, f"nn.Module: {name}")

    def op(self, name, **more):
        return self.call(OPERATOR, name, **more)

    @contextmanager
    def forward(self, name, **more):
        """An operator that records for autograd; what it yields is what `backward` takes."""
        number = self.sequence.get(self.thread, 0)
        self.sequence[self.thread] = number + 1
        with self.op(name, sequence=number, forward_thread=0, **more) as row:
            yield row

    @contextmanager
    def backward(self, of, node, arrow=True):
        """The node of autograd that a forward made."""
        more = {"sequence": of["sequence"], "forward_thread": of["thread"]}
        with self.op(f"autograd::engine::evaluate_function: {node}", **more):
            if arrow:
                self.links.append(Link(of["thread"], of["start_ps"], self.thread, self.now * NS))
            with self.op(node, **more) as row:
                yield row

    @contextmanager
    def on(self, thread):
        """Go on in another thread; the first one waits."""
        before, self.thread = self.thread, thread
        yield
        self.thread = before

    def kernel(self, name, duration=10, stream=7, device=0, launched=True, after=0, detail=None):
        """Launch a kernel, a copy or a fill; it runs when its stream is free."""
        self.correlation += 1
        if launched:
            call = "cudaMemcpyAsync" if name[:6] in _KINDS else "cudaLaunchKernel"
            self.add(LAUNCH, call, self.now, 2, correlation=self.correlation)
        self.now += 3
        start = max(self.now, self.free.get((device, stream), 0)) + after
        self.free[device, stream] = start + duration
        return self.add(
            _KINDS.get(name[:6], KERNEL), name, start, duration, process=device, thread=stream,
            correlation=self.correlation, detail=detail,
        )  # fmt: skip

    def graph(self, *names, stream=7, device=0):
        """Launch a graph: one call for many kernels."""
        self.correlation += 1
        self.add(LAUNCH, "cudaGraphLaunch", self.now, 2, correlation=self.correlation)
        self.now += 3
        for name in names:
            start = max(self.now, self.free.get((device, stream), 0))
            self.free[device, stream] = start + 10
            self.add(
                KERNEL, name, start, 10, process=device, thread=stream,
                correlation=self.correlation,
            )  # fmt: skip

    def rank_trace(self):
        columns = {
            name: np.array([row[name] for row in self.rows], np.int64) for name in Events.__slots__
        }
        return RankTrace(
            path="program", format="kineto", rank=self.rank, world_size=self.world_size,
            zero_ns=self.zero_ns, names=tuple(self.names), events=Events(**columns),
            details=tuple(self.details), links=tuple(self.links),
        )  # fmt: skip

    @staticmethod
    def with_events(trace, events):
        """Return a rank's trace with other events."""
        return replace(trace, events=events)

    def trace(self):
        return Trace(ranks=(self.rank_trace(),))


def spoken(activities, column="operation"):
    """Return what each activity's column says, as text."""
    tables = {
        "operation": activities.operations, "name": activities.names, "group": activities.groups
    }  # fmt: skip
    return [
        tables[column][row] if row >= 0 else None for row in getattr(activities, column).tolist()
    ]
