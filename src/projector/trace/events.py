"""What a trace holds, as it was read: columns of events, names apart.

Readers of all formats end here, so that nothing behind them knows a format.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from projector.arrays import Ints

KERNEL, COPY, FILL, LAUNCH, OPERATOR, ANNOTATION, GPU_ANNOTATION, MODULE = range(8)
"""Kinds of events.

A kernel, a copy or a fill of memory on a device; the call that launched one; an operator of the
framework; a range that the program named, on the host or as seen on a device; a call of a module of
the network (``nn.Module``).
"""

KINDS = (
    "kernel", "copy", "fill", "launch", "operator", "annotation", "GPU annotation", "module",
)  # fmt: skip
UNTOLD = len(KINDS)
"""Of an event without a category, until the name of its process tells its kind."""

ON_DEVICE = (KERNEL, COPY, FILL)

NS_PS = 1_000

NONE = -1
"""What stands where an event does not have something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Columns of equal length, one row an event, in the order of the file."""

    kind: Ints
    """Position in `KINDS`."""
    name: Ints
    """Row of ``RankTrace.names``."""
    start_ps: Ints
    """From the zero of the trace."""
    duration_ps: Ints
    process: Ints
    """Process of the host, or device."""
    thread: Ints
    """Thread of the host, or stream."""
    correlation: Ints
    """Joins an event of a device to the call that launched it; `NONE` where there is none."""
    external: Ints
    """Operator of the framework that stands around a launch (Kineto's ``External id``)."""
    sequence: Ints
    """Joins an operator of the backward to that of the forward (``Sequence number``)."""
    forward_thread: Ints
    """Thread of the forward of an operator of the backward; `NONE` or 0 elsewhere."""
    detail: Ints
    """Row of ``RankTrace.details``; `NONE` where nothing more is known."""

    def __len__(self) -> int:
        return len(self.kind)

    @staticmethod
    def empty() -> "Events":
        """Return no events."""
        return Events(**{name: np.zeros(0, np.int64) for name in Events.__slots__})


@dataclass(frozen=True, slots=True)
class Problem:
    """What was wrong with a file, and what was salvaged."""

    path: str
    where: str
    """Place in the file, such as ``byte 1,024`` or ``line 7``; empty for the whole file."""
    text: str


@dataclass(frozen=True, slots=True)
class Link:
    """Arrow of the profiler from an operator of the forward to one of the backward."""

    forward_thread: int
    forward_ps: int
    backward_thread: int
    backward_ps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Hardware counters of kernels, from a run whose kernels were serialised.

    Their times are those of that other run, so only order, names and grids join them to a trace.
    """

    path: str
    kernel: Sequence[str]
    """Name of the kernel of each row, in the order of dispatch."""
    device: Ints
    grid: Ints
    """int64[rows]: work items (AMD) or threads (NVIDIA) of the launch; `NONE` where unknown."""
    duration_ps: Ints
    """How long the serialised kernel ran; `NONE` where unknown."""
    values: Mapping[str, Any]
    """float64[rows] of each counter, NaN where it was not collected."""
    rank: int = NONE
    """Of the run with counters; `NONE` where neither file nor folder tells."""
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Something sampled over time beside a run."""

    path: str
    what: str
    """``cpu_percent``, ``clock_mhz``, ``memory_clock_mhz``, ``power_w``, ``memory_bytes``."""
    time_ps: Ints
    """int64[samples], from the zero of the trace."""
    values: Any
    """float64[samples, columns]: logical cores, or devices."""
    columns: tuple[str, ...]
    physical_core: Ints | None = None
    """int64[columns]: physical core of each logical one, where the columns are cores."""
    rank: int = NONE
    """Whose device it is; `NONE` for the whole machine."""
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """One rank's trace."""

    path: str
    format: str
    """``kineto``, ``rocprofv3``, ``rocprof``, ``projector``."""
    rank: int
    world_size: int
    """0 where it is not known."""
    zero_ns: int
    """Nanoseconds of the clock of the host at the zero of the times; 0 where it is not known."""
    names: tuple[str, ...]
    events: Events
    details: tuple[Mapping[str, Any], ...] = ()
    """What further is known of events, each distinct set once: for communication ``collective``,
    ``group``, ``group_ranks``, ``in_elements``, ``out_elements``, ``dtype``; for operators
    ``dims``, ``types``; for kernels ``grid``, ``block``; of copies ``bytes``."""
    links: tuple[Link, ...] = ()
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Ranks of each process group, by name."""
    devices: tuple[str, ...] = ()
    """Names of the devices, as the driver gives them."""
    vendor: str = ""
    """``NVIDIA``, ``AMD`` or nothing."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Events that were left out, by category, such as ``python_function``."""
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The traces of a run's ranks, and what was sampled and counted beside them."""

    ranks: tuple[RankTrace, ...]
    counters: tuple[Counters, ...] = ()
    samples: tuple[Samples, ...] = ()

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What was wrong with its files."""
        files: tuple[RankTrace | Counters | Samples, ...]
        files = (*self.ranks, *self.counters, *self.samples)
        return tuple(problem for file in files for problem in file.problems)
